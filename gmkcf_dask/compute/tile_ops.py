"""What is done to one tile: plain NumPy, shared by every operator.

A tile (I, J) with I ≤ J stands for itself and, off the diagonal, for its transpose (J, I).
Products run in the tile's dtype; sums over tiles are float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from gmkcf_dask.compute.blas import axpy
from gmkcf_dask.compute.costs import SUMMED_AT_ONCE
from gmkcf_dask.kernels.tiling import Tiling
from gmkcf_dask.system.arrays import AnyFloats, Floats

_Dtype = TypeVar("_Dtype", bound=np.generic)
TINY = 1e-30
"""Smaller factors become 0 in float32 products: denormals are slow and mean nothing there."""


class TileReader(Protocol):
    """Tiles of several kernels, from memory or from a store."""

    @property
    def tiling(self) -> Tiling: ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of products: float32 or float64."""

    @property
    def stored(self) -> tuple[int, ...]:
        """By kernel, the number of the one whose tiles stand for it: equals are stored once."""

    def scale(self) -> float:
        """What a stored value is multiplied by to get the kernel's value."""

    def buffer(self) -> npt.NDArray[Any] | None:
        """A buffer for one stored tile; None where tiles are in memory already."""

    def raw(self, kernel: int, t: int, into: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Tile t of a kernel as stored, shape (len I, len J); `into` is a buffer for it."""

    def expect(self, kernel: int, t: int) -> None:
        """Prefetch tile t of a kernel: it is read next."""

    def ahead(
        self, kernels: Iterable[int], tiles: Iterable[int]
    ) -> AbstractContextManager[TileReader]:
        """A reader for one task that reads tiles of these kernels, tile by tile in this order."""

    def stack(self, t: int) -> npt.NDArray[Any] | None:
        """Tile t of all kernels that have tiles, shape (m', len I, len J), if it is at hand."""


Load = Callable[[int, "AnyFloats | None"], AnyFloats]
"""Tile t, shape (len I, len J), C-contiguous. A source that does not have the tile in memory writes
it into the given buffer, or into new memory; others ignore the buffer."""


class TileSource(Protocol):
    """Tiles of one matrix."""

    def loader(self) -> Load:
        """A function for one task on one thread: its buffers serve tile after tile."""


class StoredSource(TileSource, Protocol):
    """Tiles of one matrix that come from files or objects."""

    def ahead(self, tiles: Iterable[int]) -> AbstractContextManager[TileSource]:
        """The source for one task that loads these tiles in this order."""


class Buffer:
    """Memory that is reused for one tile after the other, so no page is faulted in twice."""

    def __init__(self, block: int, dtype: np.dtype[Any]) -> None:
        self._values = np.empty(block * block, dtype)

    def view(self, shape: tuple[int, int]) -> npt.NDArray[Any]:
        """A C-contiguous piece of that shape."""
        return self._values[: shape[0] * shape[1]].reshape(shape)


@dataclass(frozen=True)
class MemoryTiles:
    """Tiles held in this process."""

    stacks: tuple[npt.NDArray[Any], ...]
    """One per tile, shape (m', len I, len J): the tile of every kernel that has tiles of its own;
    float32, float64, or uint16 codes with their `code_scale`."""
    tiling: Tiling
    code_scale: float | None
    stored: tuple[int, ...]
    """By kernel, the number of the one whose tiles stand for it."""

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.float32) if self.code_scale else self.stacks[0].dtype

    @cached_property
    def _positions(self) -> dict[int, int]:
        return {kernel: position for position, kernel in enumerate(sorted(set(self.stored)))}

    def scale(self) -> float:
        return self.code_scale or 1.0

    def buffer(self) -> None:
        return None

    def raw(self, kernel: int, t: int, into: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        tile: npt.NDArray[Any] = self.stacks[t][self._positions[self.stored[kernel]]]
        return tile

    def expect(self, kernel: int, t: int) -> None:
        pass

    def ahead(
        self, kernels: Iterable[int], tiles: Iterable[int]
    ) -> AbstractContextManager[MemoryTiles]:
        return nullcontext(self)

    def stack(self, t: int) -> npt.NDArray[Any] | None:
        return None if self.code_scale else self.stacks[t]


class FloatTiles:
    """Tiles of a reader as floats, all in the same buffer.

    Codes of precision compact are widened but not scaled: what is made of them is multiplied by
    `scale` at the end.
    """

    def __init__(self, reader: TileReader) -> None:
        self.scale = reader.scale()
        self._reader = reader
        self._stored = reader.buffer()
        self._buffer = Buffer(reader.tiling.block, reader.dtype)

    def load(self, kernel: int, t: int) -> AnyFloats:
        """Tile t of a kernel, C-contiguous, until the next one is loaded."""
        tile = self._reader.raw(kernel, t, self._stored)
        if tile.dtype == self._reader.dtype and tile.flags.c_contiguous:
            return tile
        widened = self._buffer.view((tile.shape[0], tile.shape[1]))
        np.copyto(widened, tile)
        return widened

    def batches(self, t: int) -> Iterator[tuple[list[int], AnyFloats]]:
        """Tile t of every kernel that has tiles: their numbers, and shape (…, len I, len J)."""
        kernels, stack = sorted(set(self._reader.stored)), self._reader.stack(t)
        if stack is not None:  # few calls on much data keep several threads busy
            yield kernels, stack
            return
        for kernel, tile in self.each(kernels, t):
            yield [kernel], tile[None]

    def each(self, kernels: Sequence[int], t: int) -> Iterator[tuple[int, AnyFloats]]:
        """Tile t of some kernels, one after the other; the next is fetched while one is used."""
        for kernel, following in zip_longest(kernels, kernels[1:]):
            if following is not None:
                self._reader.expect(following, t)
            yield kernel, self.load(kernel, t)


@dataclass(frozen=True)
class FusedTiles:
    """Tiles of Σ weights_i K^i, fused when they are loaded.

    One kernel's tile is read and added after the other, so the peak does not grow with m.
    """

    reader: TileReader
    weights: tuple[float, ...]

    @cached_property
    def _totals(self) -> dict[int, float]:
        """Weights by kernel that has tiles: those with the same ones are read once."""
        totals: dict[int, float] = {}
        for kernel, weight in zip(self.reader.stored, self.weights, strict=True):
            totals[kernel] = totals.get(kernel, 0.0) + weight
        return {kernel: weight for kernel, weight in totals.items() if weight}

    @contextmanager
    def ahead(self, tiles: Iterable[int]) -> Iterator[FusedTiles]:
        with self.reader.ahead(self._totals, tiles) as reader:
            yield replace(self, reader=reader)

    def loader(self) -> Load:
        tiles = FloatTiles(self.reader)
        used = {kernel: weight * tiles.scale for kernel, weight in self._totals.items()}
        kernels = list(used)

        def load(t: int, into: AnyFloats | None) -> AnyFloats:
            shape = self.reader.tiling.shape(t)
            total = np.empty(shape, self.reader.dtype) if into is None else into
            total[...] = 0.0
            for kernel, tile in tiles.each(kernels, t):
                # one pass: the tile comes from memory, the sum stays in cache
                axpy(used[kernel], tile, total)
            return total

        return load


@dataclass(frozen=True)
class Partial:
    """Part of an n×c product: only the row blocks some tiles touch."""

    blocks: dict[Any, Floats]
    """Row block number → float64 rows, shape (len I, c); for products of several kernels the key
    is (kernel, row block)."""

    @classmethod
    def tree_sum(cls, parts: list[Partial]) -> Partial:
        """Sum of partial products by the tree every operator uses: the same bits from each."""
        while len(parts) > 1:
            starts = range(0, len(parts), SUMMED_AT_ONCE)
            parts = [cls.merge(parts[i : i + SUMMED_AT_ONCE]) for i in starts]
        return parts[0]

    @classmethod
    def merge(cls, parts: Iterable[Partial]) -> Partial:
        """Sum of partial products, in the order given."""
        total: dict[Any, Floats] = {}
        for part in parts:
            for key, rows in part.blocks.items():
                if key in total:
                    total[key] += rows
                else:
                    total[key] = rows.copy()
        return cls(total)


def as_factor(Z: Floats, dtype: np.dtype[Any]) -> AnyFloats:
    """An n×c factor in the dtype of the tiles, in C order: BLAS sums other orders otherwise."""
    if dtype == np.float64:
        return np.ascontiguousarray(Z)
    with np.errstate(over="ignore"):  # beyond float32: the product is refused as not finite
        return np.ascontiguousarray(np.where(np.abs(Z) < TINY, 0.0, Z), dtype)


def contiguous(values: npt.NDArray[_Dtype]) -> npt.NDArray[_Dtype]:
    """In C order and aligned: what came over a network may be neither, and NumPy then sums the
    same numbers in another order."""
    return np.require(values, requirements=["C_CONTIGUOUS", "ALIGNED"])


class Product:
    """Tiles of one matrix times Z (n, c), for one task or thread: buffers serve tile after tile.

    `split` appends the product with the positive part: columns [K Z, K⁺ Z], shape (·, 2c).
    """

    def __init__(self, source: TileSource, Z: AnyFloats, tiling: Tiling, *, split: bool) -> None:
        self._load, self._buffer = source.loader(), Buffer(tiling.block, Z.dtype)
        self._Z, self._tiling, self._split = Z, tiling, split

    def __call__(self, tiles: Iterable[int]) -> Partial:
        """The sum over the given tiles."""
        Z, tiling = self._Z, self._tiling
        blocks: dict[Any, Floats] = {}
        for t in tiles:
            i, j = tiling.pair(t)
            tile = self._load(t, self._buffer.view(tiling.shape(t)))
            _add(blocks, i, tile, Z[tiling.rows(j)], split=self._split)
            if i != j:
                _add(blocks, j, tile.T, Z[tiling.rows(i)], split=self._split)
        return Partial(blocks)


class ProductEach:
    """Tiles of several kernels, each times its own columns of Z; keys are (kernel, block)."""

    def __init__(
        self, reader: TileReader, columns: Mapping[int, slice], Z: AnyFloats, *, split: bool
    ) -> None:
        self._tiles, self._reader, self._split = FloatTiles(reader), reader, split
        self._Z = Z * Z.dtype.type(reader.scale())
        # by the kernel whose tiles stand for it: these are read once
        self._columns: dict[int, list[tuple[int, slice]]] = {}
        for kernel, own in columns.items():
            self._columns.setdefault(reader.stored[kernel], []).append((kernel, own))

    def __call__(self, tiles: Iterable[int]) -> Partial:
        """The sums over the given tiles."""
        Z, tiling = self._Z, self._reader.tiling
        blocks: dict[Any, Floats] = {}
        for t in tiles:
            i, j = tiling.pair(t)
            for stored, tile in self._tiles.each(list(self._columns), t):
                for kernel, own in self._columns[stored]:
                    _add(blocks, (kernel, i), tile, Z[tiling.rows(j), own], split=self._split)
                    if i != j:
                        _add(blocks, (kernel, j), tile.T, Z[tiling.rows(i), own], split=self._split)
        return Partial(blocks)


def _add(
    blocks: dict[Any, Floats], key: Any, tile: AnyFloats, Z_rows: AnyFloats, *, split: bool
) -> None:
    c = Z_rows.shape[1]
    if key not in blocks:
        blocks[key] = np.zeros((tile.shape[0], 2 * c if split else c))
    total = blocks[key]
    total[:, :c] += times(tile, Z_rows)
    if split:
        total[:, c:] += times(np.maximum(tile, 0), Z_rows)


SMALL = 1_000_000
"""Multiplications up to which OpenBLAS works on a matrix where it lies, instead of copying it."""


def times(tile: AnyFloats, Z: AnyFloats) -> AnyFloats:
    """The product of a tile with a thin block, in pieces that need no copy of the tile."""
    rows = 1 << max(0, SMALL // (tile.shape[1] * Z.shape[1])).bit_length() >> 1
    if not 32 <= rows < tile.shape[0]:
        return np.asarray(tile @ Z)
    out = np.empty((tile.shape[0], Z.shape[1]), tile.dtype)
    whole = tile.shape[0] // rows * rows
    pieces = tile[:whole].reshape(-1, rows, tile.shape[1])  # a view, of a transpose as well
    np.matmul(pieces, Z, out=out[:whole].reshape(-1, rows, Z.shape[1]))
    np.matmul(tile[whole:], Z, out=out[whole:])
    return out


def error_factors(U: Floats, V: Floats) -> Floats:
    """[U, A] with A = U·VᵀV − 2V: ⟨K, U·Aᵀ⟩ = tr(UᵀKU VᵀV) − 2 tr(VᵀKU). Shape (n, 2k)."""
    return np.hstack([U, U @ (V.T @ V) - 2.0 * V])


class Errors:
    """⟨K^i, U·Aᵀ⟩ of every kernel over tiles, for F = [U, A] of shape (n, 2k).

    One tile of the symmetric part S = (U·Aᵀ + A·Uᵀ)/2 serves all kernels.
    """

    def __init__(self, reader: TileReader, F: AnyFloats) -> None:
        self._tiles, self._buffer = FloatTiles(reader), Buffer(reader.tiling.block, F.dtype)
        self._reader, self._F = reader, F

    def __call__(self, tiles: Iterable[int]) -> Floats:
        """The sums over the given tiles, shape (m,)."""
        tiling, stored = self._reader.tiling, self._reader.stored
        sums = np.zeros(len(stored))
        for t in tiles:
            i, j = tiling.pair(t)
            S = self._symmetric_part(t)
            twice = 1.0 if i == j else 2.0
            for kernels, batch in self._tiles.batches(t):
                row_sums = np.vecdot(batch, S)
                sums[kernels] += twice * row_sums.sum(axis=1, dtype=np.float64)
        return sums[list(stored)] * self._tiles.scale

    def _symmetric_part(self, t: int) -> AnyFloats:
        F, tiling = self._F, self._reader.tiling
        rows, cols = map(tiling.rows, tiling.pair(t))
        k = F.shape[1] // 2
        swapped = np.hstack([F[cols, k:], F[cols, :k]]) * F.dtype.type(0.5)
        S: AnyFloats = self._buffer.view(tiling.shape(t))
        # in rows: twice as fast as the transpose of what lies in columns
        return np.matmul(F[rows], np.ascontiguousarray(swapped.T), out=S)


def assemble_each(
    partial: Partial, tiling: Tiling, columns: Mapping[int, slice], *, split: bool
) -> dict[int, Floats]:
    """The products of several kernels from their row blocks, each of shape (n, c_i)."""
    products = {}
    for kernel, own in columns.items():
        blocks = {i: partial.blocks[kernel, i] for i in range(tiling.n_blocks)}
        width = (own.stop - own.start) * (2 if split else 1)
        products[kernel] = assemble(Partial(blocks), tiling, width)
    return products


def assemble(partial: Partial, tiling: Tiling, n_columns: int) -> Floats:
    """The full product from its row blocks, shape (n, c)."""
    out = np.empty((tiling.n, n_columns))
    for i in range(tiling.n_blocks):
        out[tiling.rows(i)] = partial.blocks[i]
    return out
