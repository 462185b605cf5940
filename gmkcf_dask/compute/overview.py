"""Kernels in small: sums over groups of samples and products between kernels, tile by tile.

A tile adds its g×g sums through the groups of its rows and of its columns. Products between kernels
need a position of all of them at once. Where these are more than a task may hold, every s-th row of
each tile is compared: a part of the rows, all of the columns, the same ones everywhere. The
diagonal is not compared: kernels that agree there alone are not alike.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from gmkcf_dask.compute.operators import Overview, check_finite
from gmkcf_dask.compute.tile_ops import (
    FloatTiles,
    Partial,
    TileReader,
    distinct_kernels,
    values_of,
)
from gmkcf_dask.kernels.tiling import SUMMED_ENTRIES
from gmkcf_dask.system.arrays import AnyFloats, Floats
from gmkcf_dask.system.units import ceil_div

Groups = npt.NDArray[np.int32]


class GroupSums:
    """Sums over groups of samples, and products between kernels, for one task or thread."""

    def __init__(self, reader: TileReader, groups: Groups, n_groups: int) -> None:
        self._tiles, self._reader = FloatTiles(reader), reader
        self._groups, self._n_groups = groups, n_groups
        self._kernels = distinct_kernels(reader)

    def __call__(self, tiles: Iterable[int]) -> Partial:
        """What the given tiles add, by kernel that has tiles; codes are not scaled."""
        edge = min(self._reader.tiling.n, self._reader.tiling.block)
        tiling, m, g = self._reader.tiling, len(self._kernels), self._n_groups
        step = tiling.compared_step(m, self._reader.dtype.itemsize)
        sums, products = np.zeros((m, g, g)), np.zeros((m, m))
        compared, entries = np.zeros(m), np.zeros(1)
        buffer = np.empty((m, ceil_div(edge, step) * edge), self._reader.dtype)
        for t in tiles:
            i, j = tiling.pair(t)
            rows, cols = tiling.shape(t)
            twice = 1.0 if i == j else 2.0
            kept = buffer[:, : ceil_div(rows, step) * cols]
            by_row, by_column = self._strips(i, cols), self._one_hot(j).toarray()
            for number, (_, tile) in enumerate(self._tiles.each(self._kernels, t)):
                part = _sum_rows(by_row, tile) @ by_column
                sums[number] += part if i == j else part + part.T
                kept[number] = tile[::step].ravel()
            if i == j:
                kept[:, np.arange(ceil_div(rows, step)) * (cols + step)] = 0.0  # the diagonal
                entries -= ceil_div(rows, step)
            width = max(1, SUMMED_ENTRIES // m)
            for first in range(0, kept.shape[1], width):
                strip = kept[:, first : first + width].astype(np.float64)
                products += twice * (strip @ strip.T)
                compared += twice * strip.sum(axis=1)
            entries += twice * kept.shape[1]
        return Partial(
            {"sums": sums, "products": products, "compared": compared, "entries": entries}
        )

    def _one_hot(self, block: int) -> sparse.csr_array:
        """The group of every sample of a block, shape (len, g)."""
        groups = self._groups[self._reader.tiling.rows(block)]
        ones = np.ones(len(groups))
        where = np.arange(len(groups) + 1)
        return sparse.csr_array((ones, groups, where), shape=(len(groups), self._n_groups))

    def _strips(self, block: int, cols: int) -> list[sparse.csr_array]:
        """The same for a few rows of a tile at a time, each of shape (g, rows)."""
        whole, rows = self._one_hot(block), max(1, SUMMED_ENTRIES // cols)
        starts = range(0, whole.shape[0], rows)
        return [sparse.csr_array(whole[first : first + rows].T) for first in starts]


def _sum_rows(by_row: list[sparse.csr_array], tile: AnyFloats) -> Floats:
    """Rows of a tile summed by group in float64, shape (g, len J)."""
    total = np.zeros((by_row[0].shape[0], tile.shape[1]))
    first = 0
    for strip in by_row:
        last = first + strip.shape[1]
        total += strip @ tile[first:last]
        first = last
    return total


def overview_of(total: Partial, reader: TileReader) -> Overview:
    """The sums over all tiles as they are of the kernels, merged ones included."""
    blocks: dict[str, Any] = total.blocks
    position = {kernel: number for number, kernel in enumerate(distinct_kernels(reader))}
    values, evaluated = values_of(reader), () if reader.gram is None else reader.gram.by_number
    each = [position[kernel] for kernel in values]
    scale = np.array([1.0 if kernel in evaluated else reader.scale() for kernel in values])
    sums = check_finite(blocks["sums"][each] * scale[:, None, None], "the sum of a kernel")
    products = check_finite(
        blocks["products"][np.ix_(each, each)] * np.outer(scale, scale), "the square of a kernel"
    )
    return Overview(
        (sums + sums.transpose(0, 2, 1)) / 2,
        products,
        blocks["compared"][each] * scale,
        int(blocks["entries"][0]),
    )
