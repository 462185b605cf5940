"""Tiles of kernels evaluated from tiles of the Gram matrix, for one task or thread.

By tables, Σ weights_i K^i is one look-up for each entry, and the errors of all kernels are the sums
of S by entry of the table: neither depends on the number of kernels. By formulas it is one kernel
after the other, a strip of rows at a time so that they run in the cache, and in float64.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from gmkcf_dask.compute.blas import axpy
from gmkcf_dask.kernels import gram_loops
from gmkcf_dask.kernels.features import CACHED_ENTRIES, PairTile
from gmkcf_dask.kernels.gram import (
    GramKernels,
    diagonal_values,
    pair_of,
    power_of,
    raw_table_of,
    table_of,
)
from gmkcf_dask.kernels.specs import Rbf
from gmkcf_dask.kernels.tiles import ResolvedKernel, final_values
from gmkcf_dask.kernels.tiling import CACHED_TABLES, Tiling
from gmkcf_dask.system.arrays import AnyFloats, Floats

Stored = npt.NDArray[Any]
"""A tile as it is kept, shape (len I, len J)."""


class GramTiles:
    """Evaluates kernels on tiles of what is kept of pairs."""

    def __init__(self, gram: GramKernels, tiling: Tiling) -> None:
        self._gram, self._tiling = gram, tiling

    def fuse(
        self,
        t: int,
        stored: Stored,
        weights: Mapping[int, float],
        table: AnyFloats | None,
        out: AnyFloats,
    ) -> None:
        """out = Σ weights_i K^i; `table` is that of the sum over kernels that have tables."""
        if table is None:
            out[...] = 0.0
        else:
            look_up(self._gram, stored, table, out)
        for numbers in self._by_formula():
            used = [number for number in numbers if weights.get(number)]
            for strip in self._strips(t, stored) if used else ():
                total = np.zeros(strip.shape)
                for number in used:
                    axpy(weights[number], strip.values(self._gram.by_number[number]), total)
                np.add(out[strip.part], total, out=out[strip.part], casting="same_kind")

    def evaluate(self, number: int, t: int, stored: Stored, out: AnyFloats) -> None:
        """Tile t of one kernel."""
        kernel = self._gram.by_number[number]
        if number in self._gram.in_tables:
            table = table_of(self._gram.matrix, kernel).astype(out.dtype)
            look_up(self._gram, stored, table, out)
            return
        for strip in self._strips(t, stored):
            out[strip.part] = strip.values(kernel)

    def add_to_bins(self, stored: Stored, S: AnyFloats, factor: float, bins: Floats) -> None:
        """Add factor·S up by entry of the tables; `bins` has shape (2, ENTRIES)."""
        matrix = self._gram.matrix
        if matrix.content == "codes":
            gram_loops.scatter_codes(stored, S, factor, bins)
        else:
            gram_loops.scatter_distances(stored, S, factor, matrix.per_distance, bins)

    def inner_products(self, t: int, stored: Stored, S: AnyFloats) -> dict[int, float]:
        """⟨K^i, S⟩ on a tile, by kernel without a table."""
        sums: dict[int, float] = {}
        for numbers in self._by_formula():
            sums |= dict.fromkeys(numbers, 0.0)
            for strip in self._strips(t, stored):
                wide = S[strip.part].astype(np.float64)
                for number in numbers:
                    values = strip.values(self._gram.by_number[number])
                    sums[number] += float(np.vdot(values, wide))
        return sums

    def _by_formula(self) -> list[list[int]]:
        """Kernels without a table, as many at a time as a process keeps tables they are made of."""
        numbers = [n for n in self._gram.by_number if n not in self._gram.in_tables]
        starts = range(0, len(numbers), CACHED_TABLES)
        return [numbers[first : first + CACHED_TABLES] for first in starts]

    def _strips(self, t: int, stored: Stored) -> Iterator[Strip]:
        """A tile in pieces of a few rows."""
        rows, cols = map(self._tiling.rows, self._tiling.pair(t))
        height = max(1, CACHED_ENTRIES // stored.shape[1])
        for first in range(0, stored.shape[0], height):
            part = slice(first, min(first + height, stored.shape[0]))
            where = slice(rows.start + part.start, rows.start + part.stop)
            yield Strip(self._gram, stored[part], part, where, cols)


def look_up(gram: GramKernels, stored: Stored, table: AnyFloats, out: AnyFloats) -> None:
    """The values of a table for what is kept of pairs."""
    if gram.matrix.content == "codes":
        gram_loops.gather_codes(stored, table, out)
    else:
        gram_loops.gather_distances(stored, table, gram.matrix.per_distance, out)


@dataclass(frozen=True)
class Strip:
    """Some rows of a tile, and kernels on them by their formulas.

    Attributes
    ----------
    part : slice
        These rows, counted from the first of the tile.
    rows, cols : slice
        Rows and columns among all samples.
    """

    gram: GramKernels
    stored: Stored
    part: slice
    rows: slice
    cols: slice

    @property
    def shape(self) -> tuple[int, int]:
        return self.stored.shape[0], self.stored.shape[1]

    def values(self, kernel: ResolvedKernel) -> Floats:
        """A kernel, float64, in memory that is the caller's."""
        quick = self._quick_values(kernel)
        if quick is not None:
            return quick
        norms = self.gram.norms(kernel)
        values = np.ascontiguousarray(final_values(kernel, self._pair, norms))
        first = self.rows.start - self.cols.start
        if 0 <= first < self.shape[1]:  # a sample with itself is not any pair of equal samples
            own = norms[kernel.name][self.rows] if norms else None
            diagonal = diagonal_values(kernel, self._pair.sq_rows, own)
            at = np.arange(len(values))
            values[at, first + at] = diagonal
        return values

    def _quick_values(self, kernel: ResolvedKernel) -> Floats | None:
        """The same by compiled loops, where no sample of the strip is a special case."""
        if self._distances is None:
            return None
        raw: Floats | None = self._products
        if isinstance(kernel.spec, Rbf):
            if not self.gram.matrix.has_table(kernel.spec):
                return None
            raw = np.empty(self.shape)
            look_up(self.gram, self.stored, raw_table_of(self.gram.matrix, kernel), raw)
        norms, squares = self.gram.norms(kernel).get(kernel.name), self.gram.squares
        both = [
            power_of(kernel, squares[where], None if norms is None else norms[where])
            for where in (self.rows, self.cols)
        ]
        if any(one is None for one in both):
            return None
        (row, form), (col, _) = (one for one in both if one is not None)
        values = np.empty(self.shape)
        assert raw is not None
        gram_loops.power(raw, row, col, form.a, form.b, form.after, form.low, form.factor, values)
        if kernel.scaling == "minmax":
            gram_loops.clip(values)
        return values

    @cached_property
    def _distances(self) -> npt.NDArray[np.float32] | None:
        """Distances, where they are kept and no sample of the strip is zero."""
        matrix, squares = self.gram.matrix, self.gram.squares
        if matrix.content == "products" or not (
            squares[self.rows].all() and squares[self.cols].all()
        ):
            return None
        if matrix.content == "distances":
            return self.stored
        return self.stored * np.float32(matrix.step)

    @cached_property
    def _products(self) -> Floats:
        """Inner products."""
        products, squares = np.empty(self.shape), self.gram.squares
        least = 0.0 if self.gram.matrix.clipped else -np.inf
        lengths = squares[self.rows], squares[self.cols]
        assert self._distances is not None
        gram_loops.products_at(self._distances, *lengths, least, products)
        return products

    @cached_property
    def _pair(self) -> PairTile:
        matrix, vectors = self.gram.matrix, self.gram.vectors
        return pair_of(matrix, self.stored, self.rows, self.cols, vectors)
