"""What is done to one tile: plain NumPy, shared by every operator.

A tile (I, J) with I ≤ J stands for itself and, off the diagonal, for its transpose (J, I).
Products run in the tile's dtype; sums over tiles are float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from scipy.linalg import get_blas_funcs

from gmkcf_dask.plan import Tiling

Floats = npt.NDArray[np.float64]
AnyFloats = npt.NDArray[np.floating[Any]]

SPLIT_EVERY = 8
"""Partial products summed at once in the tree."""
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
        """Room for one stored tile; None where tiles are in memory already."""

    def raw(self, kernel: int, t: int, into: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Tile t of a kernel as stored, shape (len I, len J); `into` is room for it."""


Load = Callable[[int, "AnyFloats | None"], AnyFloats]
"""Tile t, shape (len I, len J), C-contiguous. A source that has no such tile in memory makes it in
the room it is given, or in new memory; another one lets the room be."""


class TileSource(Protocol):
    """Tiles of one matrix."""

    def loader(self) -> Load:
        """A function for one task on one thread: its buffers serve tile after tile."""


class Room:
    """Memory for one tile after the other: pages that were faulted in once stay."""

    def __init__(self, block: int, dtype: np.dtype[Any]) -> None:
        self._values = np.empty(block * block, dtype)

    def of(self, shape: tuple[int, int]) -> npt.NDArray[Any]:
        """A C-contiguous piece of that shape."""
        return self._values[: shape[0] * shape[1]].reshape(shape)


@dataclass(frozen=True)
class MemoryTiles:
    """Tiles held in this process.

    Attributes
    ----------
    tiles : tuple, one entry per kernel
        Tiles in tile order; float32, float64, or uint16 codes with their `code_scale`.
    """

    tiles: tuple[tuple[npt.NDArray[Any], ...], ...]
    tiling: Tiling
    code_scale: float | None = None

    @property
    def stored(self) -> tuple[int, ...]:
        first: dict[int, int] = {}
        return tuple(first.setdefault(id(own), i) for i, own in enumerate(self.tiles))

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.float32) if self.code_scale else self.tiles[0][0].dtype

    def scale(self) -> float:
        return self.code_scale or 1.0

    def buffer(self) -> None:
        return None

    def raw(self, kernel: int, t: int, into: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        return self.tiles[kernel][t]


class Wide:
    """Tiles of a reader as floats, each in the memory of the last.

    Codes of precision compact are widened but not scaled: what is made of them is multiplied by
    `scale` at the end.
    """

    def __init__(self, reader: TileReader) -> None:
        self.scale = reader.scale()
        self._reader = reader
        self._stored = reader.buffer()
        self._room = Room(reader.tiling.block, reader.dtype)

    def load(self, kernel: int, t: int) -> AnyFloats:
        """Tile t of a kernel, C-contiguous, until the next one is loaded."""
        tile = self._reader.raw(kernel, t, self._stored)
        if tile.dtype == self._reader.dtype and tile.flags.c_contiguous:
            return tile
        wide = self._room.of((tile.shape[0], tile.shape[1]))
        np.copyto(wide, tile)
        return wide


@dataclass(frozen=True)
class FusedTiles:
    """Tiles of Σ weights_i K^i, fused as they are asked for.

    One kernel's tile is read and added after the other, so the peak does not grow with m.
    """

    reader: TileReader
    weights: tuple[float, ...]

    def loader(self) -> Load:
        wide = Wide(self.reader)
        axpy = get_blas_funcs("axpy", dtype=self.reader.dtype)
        totals: dict[int, float] = {}  # kernels with the same tiles are read once
        for kernel, weight in zip(self.reader.stored, self.weights, strict=True):
            totals[kernel] = totals.get(kernel, 0.0) + weight
        used = [(kernel, weight * wide.scale) for kernel, weight in totals.items() if weight]

        def load(t: int, into: AnyFloats | None) -> AnyFloats:
            shape = self.reader.tiling.shape(t)
            total = np.empty(shape, self.reader.dtype) if into is None else into
            total[...] = 0.0
            for kernel, weight in used:
                # one pass: the tile comes from memory, the sum stays in cache
                axpy(wide.load(kernel, t).ravel(), total.ravel(), a=weight)
            return total

        return load


@dataclass(frozen=True)
class Partial:
    """Part of an n×c product: only the row blocks some tiles touch.

    Attributes
    ----------
    blocks : dict
        Row block number → float64 rows, shape (len I, c); for products of several kernels the key
        is (kernel, row block).
    """

    blocks: dict[Any, Floats]

    @classmethod
    def tree_sum(cls, parts: list[Partial]) -> Partial:
        """Sum of partial products by the tree every operator uses: the same bits from each."""
        while len(parts) > 1:
            parts = [
                cls.merge(parts[i : i + SPLIT_EVERY]) for i in range(0, len(parts), SPLIT_EVERY)
            ]
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
    return np.ascontiguousarray(np.where(np.abs(Z) < TINY, 0.0, Z), dtype)


def partial_product(
    source: TileSource, tiles: Iterable[int], Z: AnyFloats, tiling: Tiling, *, split: bool
) -> Partial:
    """The given tiles times Z.

    Parameters
    ----------
    Z : ndarray, shape (n, c)
    split : bool
        Append the product with the positive part: columns [K Z, K⁺ Z], shape (·, 2c).
    """
    width = Z.shape[1] * (2 if split else 1)
    load, room = source.loader(), Room(tiling.block, Z.dtype)
    blocks: dict[Any, Floats] = {}
    for t in tiles:
        i, j = tiling.pair(t)
        tile = load(t, room.of(tiling.shape(t)))
        _add(blocks, i, tile, Z[tiling.rows(j)], width)
        if i != j:
            _add(blocks, j, tile.T, Z[tiling.rows(i)], width)
    return Partial(blocks)


def partial_product_each(
    reader: TileReader,
    columns: Mapping[int, slice],
    tiles: Iterable[int],
    Z: AnyFloats,
    *,
    split: bool,
) -> Partial:
    """The given tiles of several kernels, each times its own columns of Z; keys (kernel, block)."""
    tiling, wide = reader.tiling, Wide(reader)
    Z = Z * Z.dtype.type(wide.scale)
    ordered = sorted(columns.items(), key=lambda item: reader.stored[item[0]])
    blocks: dict[Any, Floats] = {}
    for t in tiles:
        i, j = tiling.pair(t)
        last = None
        for kernel, own in ordered:
            width = (own.stop - own.start) * (2 if split else 1)
            if reader.stored[kernel] != last:
                last = reader.stored[kernel]
                tile = wide.load(kernel, t)
            _add(blocks, (kernel, i), tile, Z[tiling.rows(j), own], width)
            if i != j:
                _add(blocks, (kernel, j), tile.T, Z[tiling.rows(i), own], width)
    return Partial(blocks)


def _add(
    blocks: dict[Any, Floats], key: Any, tile: AnyFloats, Z_rows: AnyFloats, width: int
) -> None:
    total = blocks.setdefault(key, np.zeros((tile.shape[0], width)))
    c = Z_rows.shape[1]
    total[:, :c] += tile @ Z_rows
    if width > c:
        total[:, c:] += np.maximum(tile, 0) @ Z_rows


def error_factors(U: Floats, V: Floats) -> Floats:
    """[U, A] with A = U·VᵀV − 2V: ⟨K, U·Aᵀ⟩ = tr(UᵀKU VᵀV) − 2 tr(VᵀKU). Shape (n, 2k)."""
    return np.hstack([U, U @ (V.T @ V) - 2.0 * V])


def partial_errors(
    reader: TileReader, n_kernels: int, tiles: Iterable[int], F: AnyFloats
) -> Floats:
    """⟨K^i, U·Aᵀ⟩ over the given tiles, every kernel; F = [U, A]. Shape (m,).

    One tile of the symmetric part S = (U·Aᵀ + A·Uᵀ)/2 serves all kernels.
    """
    tiling, k, wide = reader.tiling, F.shape[1] // 2, Wide(reader)
    swapped = np.hstack([F[:, k:], F[:, :k]]) * F.dtype.type(0.5)
    room = Room(tiling.block, F.dtype)
    sums = np.zeros(n_kernels)
    for t in tiles:
        i, j = tiling.pair(t)
        S = room.of(tiling.shape(t))
        np.matmul(F[tiling.rows(i)], swapped[tiling.rows(j)].T, out=S)
        twice = 1.0 if i == j else 2.0
        for kernel in sorted(set(reader.stored)):
            row_sums = np.vecdot(S, wide.load(kernel, t))
            sums[kernel] += twice * row_sums.sum(dtype=np.float64)
    return sums[list(reader.stored)] * wide.scale


def assemble_each(
    partial: Partial, tiling: Tiling, columns: Mapping[int, slice], *, split: bool
) -> dict[int, Floats]:
    """The products of several kernels from their row blocks, each of shape (n, c_i)."""
    found = {}
    for kernel, own in columns.items():
        blocks = {i: partial.blocks[kernel, i] for i in range(tiling.n_blocks)}
        width = (own.stop - own.start) * (2 if split else 1)
        found[kernel] = assemble(Partial(blocks), tiling, width)
    return found


def assemble(partial: Partial, tiling: Tiling, n_columns: int) -> Floats:
    """The full product from its row blocks, shape (n, c)."""
    out = np.empty((tiling.n, n_columns))
    for i in range(tiling.n_blocks):
        out[tiling.rows(i)] = partial.blocks[i]
    return out
