"""What is done to one tile: plain NumPy, shared by every operator.

A tile (I, J) with I ≤ J stands for itself and, off the diagonal, for its transpose (J, I).
Products run in the tile's dtype; sums over tiles are float64.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gmkcf_dask.kernels.tiles import decode
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

    def scale(self) -> float:
        """What a stored value is multiplied by to get the kernel's value."""

    def raw(self, kernel: int, t: int) -> npt.NDArray[Any]:
        """Tile t of a kernel as stored, shape (len I, len J)."""

    def decoded(self, kernel: int, t: int) -> npt.NDArray[Any]:
        """Tile t of a kernel in `dtype`."""


class TileSource(Protocol):
    """Tiles of one matrix."""

    def load(self, t: int) -> AnyFloats:
        """Tile t, shape (len I, len J)."""


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
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.float32) if self.code_scale else self.tiles[0][0].dtype

    def scale(self) -> float:
        return self.code_scale or 1.0

    def raw(self, kernel: int, t: int) -> npt.NDArray[Any]:
        return self.tiles[kernel][t]

    def decoded(self, kernel: int, t: int) -> npt.NDArray[Any]:
        return decode(self.raw(kernel, t), self.code_scale)


@dataclass(frozen=True)
class FusedTiles:
    """Tiles of Σ weights_i K^i, fused as they are asked for.

    One kernel's tile is read and added after the other, so the peak does not grow with m.
    """

    reader: TileReader
    weights: tuple[float, ...]

    def load(self, t: int) -> AnyFloats:
        i, j = self.reader.tiling.pair(t)
        rows, cols = self.reader.tiling.rows(i), self.reader.tiling.rows(j)
        total = np.zeros((rows.stop - rows.start, cols.stop - cols.start), self.reader.dtype)
        term = np.empty_like(total)
        for kernel, weight in enumerate(self.weights):
            if weight != 0.0:
                factor = self.reader.dtype.type(weight * self.reader.scale())
                np.multiply(self.reader.raw(kernel, t), factor, out=term)
                total += term
        return total


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
    """An n×c factor in the dtype of the tiles."""
    if dtype == np.float64:
        return Z
    return np.where(np.abs(Z) < TINY, 0.0, Z).astype(dtype)


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
    blocks: dict[Any, Floats] = {}
    for t in tiles:
        i, j = tiling.pair(t)
        tile = source.load(t)
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
    tiling = reader.tiling
    blocks: dict[Any, Floats] = {}
    for t in tiles:
        i, j = tiling.pair(t)
        for kernel, own in columns.items():
            width = (own.stop - own.start) * (2 if split else 1)
            tile = reader.decoded(kernel, t)
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
    tiling, k = reader.tiling, F.shape[1] // 2
    swapped = np.hstack([F[:, k:], F[:, :k]]) * F.dtype.type(0.5)
    sums = np.zeros(n_kernels)
    for t in tiles:
        i, j = tiling.pair(t)
        S = F[tiling.rows(i)] @ swapped[tiling.rows(j)].T
        twice = 1.0 if i == j else 2.0
        for kernel in range(n_kernels):
            row_sums = np.einsum("ij,ij->i", S, reader.decoded(kernel, t))
            sums[kernel] += twice * row_sums.sum(dtype=np.float64)
    return sums


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
