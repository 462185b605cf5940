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
from threading import Lock
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from gmkcf_dask.compute.blas import axpy
from gmkcf_dask.compute.costs import SUMMED_AT_ONCE
from gmkcf_dask.compute.gram_tiles import GramTiles
from gmkcf_dask.kernels.gram import GramKernels, mark_zeros
from gmkcf_dask.kernels.gram_loops import ENTRIES
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
        """By kernel, the number of the array whose tiles stand for it: equals are stored once.

        Arrays have the numbers of kernels. Behind them comes the Gram matrix, if there is one.
        """

    @property
    def gram(self) -> GramKernels | None:
        """The kernels that are evaluated from the Gram matrix."""

    def scale(self) -> float:
        """What a stored value is multiplied by to get the value of a kernel with own tiles."""

    def buffer(self, array: int = 0) -> npt.NDArray[Any] | None:
        """A buffer for one tile of an array; None where tiles are in memory already."""

    def raw(self, kernel: int, t: int, into: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Tile t as stored for a kernel, shape (len I, len J); `into` is a buffer for it."""

    def expect(self, kernel: int, t: int) -> None:
        """Prefetch tile t of a kernel: it is read next."""

    def ahead(
        self, kernels: Iterable[int], tiles: Iterable[int]
    ) -> AbstractContextManager[TileReader]:
        """A reader for one task that reads tiles of these kernels, tile by tile in this order."""

    def stack(self, t: int) -> npt.NDArray[Any] | None:
        """Tile t of all kernels that have tiles, shape (m', len I, len J), if it is at hand."""


def own_arrays(reader: TileReader) -> list[int]:
    """Kernels that have tiles of their own, in the order of a sweep over all."""
    gram = -1 if reader.gram is None else reader.gram.number
    return [array for array in sorted(set(reader.stored)) if array != gram]


def distinct_kernels(reader: TileReader) -> list[int]:
    """Kernels that are not stored as another one, in their order."""
    evaluated = set() if reader.gram is None else set(reader.gram.by_number)
    return sorted({*own_arrays(reader), *evaluated})


def arrays_of(reader: TileReader) -> list[int]:
    """All arrays that a sweep over all kernels reads, in its order."""
    return sorted(set(reader.stored))


def values_of(reader: TileReader) -> list[int]:
    """By kernel, the one whose values it has: itself, or where equals are stored once the first."""
    if reader.gram is None:
        return list(reader.stored)
    evaluated, m = reader.gram.by_number, len(reader.stored) - 1
    return [k if k in evaluated else reader.stored[k] for k in range(m)]


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
    """By kernel, the number of the array whose tiles stand for it."""
    gram: GramKernels | None = None
    gram_tiles: tuple[npt.NDArray[Any], ...] = ()
    """Tiles of the Gram matrix, where kernels are evaluated from it."""

    @property
    def dtype(self) -> np.dtype[Any]:
        if self.gram is not None:
            return self.gram.dtype
        return np.dtype(np.float32) if self.code_scale else self.stacks[0].dtype

    @cached_property
    def _positions(self) -> dict[int, int]:
        return {kernel: position for position, kernel in enumerate(own_arrays(self))}

    def scale(self) -> float:
        return self.code_scale or 1.0

    def buffer(self, array: int = 0) -> None:
        return None

    def raw(self, kernel: int, t: int, into: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        array = self.stored[kernel]
        if self.gram is not None and array == self.gram.number:
            return self.gram_tiles[t]
        tile: npt.NDArray[Any] = self.stacks[t][self._positions[array]]
        return tile

    def expect(self, kernel: int, t: int) -> None:
        pass

    def ahead(
        self, kernels: Iterable[int], tiles: Iterable[int]
    ) -> AbstractContextManager[MemoryTiles]:
        return nullcontext(self)

    def stack(self, t: int) -> npt.NDArray[Any] | None:
        return None if self.code_scale or not self.stacks else self.stacks[t]


class FloatTiles:
    """Tiles of a reader as floats, all in the same buffer.

    Codes of precision compact are widened but not scaled: what is made of them is multiplied by
    `scale` at the end. Kernels that are evaluated from the Gram matrix have their values.
    """

    def __init__(self, reader: TileReader) -> None:
        self._reader = reader
        self._rooms: dict[int, npt.NDArray[Any] | None] = {}
        self._buffer = Buffer(reader.tiling.block, reader.dtype)
        self._evaluated = set() if reader.gram is None else set(reader.gram.by_number)
        self._gram = None if reader.gram is None else GramTiles(reader.gram, reader.tiling)
        self._held: tuple[int, npt.NDArray[Any]] | None = None

    def scale(self, kernel: int) -> float:
        """What the tiles of a kernel are multiplied by to get its values."""
        return 1.0 if kernel in self._evaluated else self._reader.scale()

    def load(self, kernel: int, t: int) -> AnyFloats:
        """Tile t of a kernel, C-contiguous, until the next one is loaded."""
        if kernel in self._evaluated:
            assert self._gram is not None
            values: AnyFloats = self._buffer.view(self._reader.tiling.shape(t))
            self._gram.evaluate(kernel, t, self.gram_tile(t), values)
            return values
        tile = self._reader.raw(kernel, t, self._room(0))
        if tile.dtype == self._reader.dtype and tile.flags.c_contiguous:
            return tile
        widened = self._buffer.view((tile.shape[0], tile.shape[1]))
        np.copyto(widened, tile)
        return widened

    def fuse(
        self, t: int, weights: Mapping[int, float], table: AnyFloats | None, out: AnyFloats
    ) -> None:
        """out = Σ weights_i K^i over kernels that are evaluated."""
        assert self._gram is not None
        self._gram.fuse(t, self.gram_tile(t), weights, table, out)

    @property
    def gram(self) -> GramTiles:
        assert self._gram is not None
        return self._gram

    def gram_tile(self, t: int) -> npt.NDArray[Any]:
        """Tile t of the Gram matrix as it is stored; read once for all kernels."""
        if self._held is None or self._held[0] != t:
            gram, (i, j) = self._reader.gram, self._reader.tiling.pair(t)
            assert gram is not None
            tile = self._reader.raw(gram.number, t, self._room(gram.number))
            if i == j:
                mark_zeros(gram.matrix, tile)
            self._held = t, tile
        return self._held[1]

    def _room(self, array: int) -> npt.NDArray[Any] | None:
        if array not in self._rooms:
            self._rooms[array] = self._reader.buffer(array)
        return self._rooms[array]

    def batches(self, t: int) -> Iterator[tuple[list[int], AnyFloats]]:
        """Tile t of every kernel that has tiles: their numbers, and shape (…, len I, len J)."""
        kernels, stack = own_arrays(self._reader), self._reader.stack(t)
        if stack is not None:  # few calls on much data keep several threads busy
            yield kernels, stack
            return
        for kernel, tile in self.each(kernels, t):
            yield [kernel], tile[None]

    def each(self, kernels: Sequence[int], t: int) -> Iterator[tuple[int, AnyFloats]]:
        """Tile t of some kernels, one after the other; the next is fetched while one is used."""
        stored = self._reader.stored
        for kernel, following in zip_longest(kernels, kernels[1:]):
            if following is not None and stored[following] != stored[kernel]:
                self._reader.expect(following, t)
            yield kernel, self.load(kernel, t)


@dataclass(frozen=True)
class FusedTiles:
    """Tiles of Σ weights_i K^i, fused when they are loaded.

    One kernel's tile is read and added after the other, so the peak does not grow with m. `table`
    is that of kernels that are evaluated by tables: see `of`.
    """

    reader: TileReader
    weights: tuple[float, ...]
    table: AnyFloats | None = None

    @classmethod
    def of(cls, reader: TileReader, weights: Floats) -> FusedTiles:
        """The fused kernel of these weights, shape (m,)."""
        fused = cls(reader, tuple(float(w) for w in weights))
        if reader.gram is not None and reader.gram.in_tables & fused._evaluated.keys():
            fused = replace(fused, table=reader.gram.combined_table(fused._evaluated))
        return fused

    @cached_property
    def _evaluated(self) -> dict[int, float]:
        """Weights of kernels that are evaluated from the Gram matrix."""
        numbers = () if self.reader.gram is None else self.reader.gram.by_number
        return {number: self.weights[number] for number in numbers if self.weights[number]}

    @cached_property
    def _totals(self) -> dict[int, float]:
        """Weights by kernel that has tiles: those with the same ones are read once."""
        totals: dict[int, float] = {}
        gram = -1 if self.reader.gram is None else self.reader.gram.number
        stored = self.reader.stored[: len(self.weights)]  # without the Gram matrix
        for kernel, weight in zip(stored, self.weights, strict=True):
            if kernel != gram:
                totals[kernel] = totals.get(kernel, 0.0) + weight
        return {kernel: weight for kernel, weight in totals.items() if weight}

    @contextmanager
    def ahead(self, tiles: Iterable[int]) -> Iterator[FusedTiles]:
        with self.reader.ahead([*list(self._evaluated)[:1], *self._totals], tiles) as reader:
            yield replace(self, reader=reader)

    def loader(self) -> Load:
        tiles = FloatTiles(self.reader)
        used = {kernel: weight * self.reader.scale() for kernel, weight in self._totals.items()}
        kernels, evaluated = list(used), self._evaluated

        def load(t: int, into: AnyFloats | None) -> AnyFloats:
            shape = self.reader.tiling.shape(t)
            total = np.empty(shape, self.reader.dtype) if into is None else into
            if evaluated:
                tiles.fuse(t, evaluated, self.table, total)
            else:
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


class TreeSum:
    """The sum of partial products as they come, by the tree of `Partial.tree_sum`.

    Only parts that wait for their neighbours are kept. Several threads may add.
    """

    def __init__(self, n_parts: int) -> None:
        self._counts = [n_parts]
        while self._counts[-1] > 1:
            self._counts.append(-(-self._counts[-1] // SUMMED_AT_ONCE))
        self._waiting: dict[tuple[int, int], Partial] = {}
        self._lock = Lock()

    def add(self, number: int, part: Partial) -> None:
        """Add one of the parts, by its number among all."""
        level = 0
        while level < len(self._counts) - 1:
            first = number // SUMMED_AT_ONCE * SUMMED_AT_ONCE
            group = range(first, min(first + SUMMED_AT_ONCE, self._counts[level]))
            with self._lock:
                self._waiting[level, number] = part
                if any((level, other) not in self._waiting for other in group):
                    return
                parts = [self._waiting.pop((level, other)) for other in group]
            part, number, level = Partial.merge(parts), number // SUMMED_AT_ONCE, level + 1
        self.total = part


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
        self._scaled, self._Z = Z * Z.dtype.type(reader.scale()), Z
        # by the kernel whose tiles stand for it: these are read once
        self._columns: dict[int, list[tuple[int, slice]]] = {}
        values = values_of(reader)
        for kernel, own in columns.items():
            self._columns.setdefault(values[kernel], []).append((kernel, own))

    def __call__(self, tiles: Iterable[int]) -> Partial:
        """The sums over the given tiles."""
        tiling = self._reader.tiling
        blocks: dict[Any, Floats] = {}
        for t in tiles:
            i, j = tiling.pair(t)
            for stored, tile in self._tiles.each(list(self._columns), t):
                Z = self._Z if self._tiles.scale(stored) == 1.0 else self._scaled
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
        self._reader, self._F, self._gram = reader, F, reader.gram

    def __call__(self, tiles: Iterable[int]) -> Floats:
        """The sums over the given tiles, shape (m,), where no kernel has a table."""
        return self._sums(tiles, None)

    def with_bins(self, tiles: Iterable[int]) -> Partial:
        """The same, and S summed by entry of the tables."""
        bins = np.zeros((2, ENTRIES))
        sums = self._sums(tiles, bins)
        return Partial({"sums": sums, "bins": bins[0] + bins[1]})

    def _sums(self, tiles: Iterable[int], bins: Floats | None) -> Floats:
        tiling = self._reader.tiling
        sums = np.zeros(len(self._reader.stored))
        for t in tiles:
            i, j = tiling.pair(t)
            S = self._symmetric_part(t)
            twice = 1.0 if i == j else 2.0
            for kernels, batch in self._tiles.batches(t):
                row_sums = np.vecdot(batch, S)
                sums[kernels] += twice * row_sums.sum(axis=1, dtype=np.float64)
            if bins is not None:
                self._tiles.gram.add_to_bins(self._tiles.gram_tile(t), S, twice, bins)
            if self._gram is not None:
                products = self._tiles.gram.inner_products(t, self._tiles.gram_tile(t), S)
                for number, product in products.items():
                    sums[number] += twice * product
        own = values_of(self._reader)
        return np.asarray(sums[own] * [self._tiles.scale(kernel) for kernel in own])

    def _symmetric_part(self, t: int) -> AnyFloats:
        F, tiling = self._F, self._reader.tiling
        rows, cols = map(tiling.rows, tiling.pair(t))
        k = F.shape[1] // 2
        swapped = np.hstack([F[cols, k:], F[cols, :k]]) * F.dtype.type(0.5)
        S: AnyFloats = self._buffer.view(tiling.shape(t))
        # in rows: twice as fast as the transpose of what lies in columns
        return np.matmul(F[rows], np.ascontiguousarray(swapped.T), out=S)


def has_tables(reader: TileReader) -> bool:
    """Whether errors are told by `Errors.with_bins`."""
    return reader.gram is not None and bool(reader.gram.in_tables)


def sums_of_bins(partial: Partial, reader: TileReader) -> Floats:
    """⟨K^i, U·Aᵀ⟩ of every kernel from what `Errors.with_bins` adds up, shape (m,)."""
    assert reader.gram is not None
    sums: Floats = partial.blocks["sums"].copy()
    numbers = sorted(reader.gram.in_tables)
    sums[numbers] = reader.gram.tables @ partial.blocks["bins"]
    return np.asarray(sums)


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
