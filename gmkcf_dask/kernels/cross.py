"""Kernels between new samples and the training samples: the same formulas, on rectangular tiles.

Every global statistic (D₀, ranges, norms) is that of the training samples. Values are not clipped
to [0, 1]: a new sample may lie farther away than any of the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from gmkcf_dask.corpus.model import Matrix
from gmkcf_dask.errors import InputError
from gmkcf_dask.kernels.features import ArrayFeatures, Features, PairTile
from gmkcf_dask.kernels.specs import FunctionKernel
from gmkcf_dask.kernels.statistics import refuse_negative_norms
from gmkcf_dask.kernels.tiles import Norms, ResolvedKernel, final_values, raw_values
from gmkcf_dask.system.arrays import Floats
from gmkcf_dask.system.units import MIB, ceil_div

EDGE = 1024
"""Rows of new and of training samples that a tile has at most: 8 MiB in float64."""
_LEAST_EDGE, _PIECES, _ROW_BYTES = 64, 16, 64 * MIB


@dataclass(frozen=True)
class CrossTile(PairTile):
    """New samples × training samples J; `rows` are the new ones' numbers, for error messages."""

    bounded: ClassVar[bool] = False

    new: Matrix = field(kw_only=True)
    """The new samples themselves, shape (len, d)."""
    own_norms: Norms = field(default_factory=dict, kw_only=True)
    """What normalisation divides them by, shape (len,), by kernel."""

    @property
    def on_diagonal(self) -> bool:
        return False

    @cached_property
    def X_rows(self) -> Matrix:
        return self.new

    def part(self, rows: slice) -> CrossTile:
        start = self.rows.start
        return CrossTile(
            self.features,
            slice(start + rows.start, start + rows.stop),
            self.cols,
            new=self.new[rows],
            own_norms={name: norm[rows] for name, norm in self.own_norms.items()},
        )

    def norms_of(self, kernel: str, norms: Mapping[str, Floats]) -> tuple[Floats, Floats]:
        return self.own_norms[kernel], norms[kernel][self.cols]


class SelfTile(PairTile):
    """New samples × themselves."""

    bounded: ClassVar[bool] = False


@dataclass(frozen=True)
class PrecomputedRows:
    """A kernel function with known values; samples are given by their numbers."""

    values: npt.NDArray[np.floating[Any]]
    """Shape (n_new, n)."""

    def __call__(self, rows: Floats, cols: Floats) -> npt.NDArray[np.floating[Any]]:
        return self.values[_run_of(rows), _run_of(cols)]


def sample_numbers(n: int) -> Floats:
    """Samples as their numbers, shape (n, 1)."""
    return np.arange(n, dtype=np.float64)[:, None]


def _run_of(samples: Floats) -> slice:
    first = int(samples[0, 0])
    return slice(first, first + len(samples))


@dataclass(frozen=True)
class MissingFunction:
    """Stands for a kernel function or matrix of which only the name was saved."""

    name: str

    def __call__(self, rows: Any, cols: Any) -> Any:
        raise InputError(missing_function_message(self.name))


def missing_function_message(name: str) -> str:
    """The error message for it."""
    return (
        f"kernel {name} is a user function or matrix, and models and stores save only its name: "
        f"give the function again, load(path, kernels={{{name!r}: function}})"
    )


def missing_kernel(name: str) -> FunctionKernel:
    """A kernel of which only the name was saved."""
    return FunctionKernel(MissingFunction(name), name)


@dataclass(frozen=True)
class CrossKernels:
    """Σ weights_i k^i(x, ·) for new samples x, a block of training samples at a time.

    Attributes
    ----------
    kernels : tuple of ResolvedKernel, length m
        With the statistics found on the training samples.
    weights : ndarray, shape (m,)
    training : Features
    norms : mapping of str to ndarray, shape (n,)
        Of the training samples, for kernels with `needs_norms`.
    edge : int
        Training samples in a block.
    """

    kernels: tuple[ResolvedKernel, ...]
    weights: Floats
    training: Features
    norms: Norms
    edge: int = EDGE

    @cached_property
    def used(self) -> tuple[tuple[float, ResolvedKernel], ...]:
        """Kernels that count, each once: some may stand for others."""
        total: dict[str, float] = {}
        for kernel, weight in zip(self.kernels, self.weights, strict=True):
            total[kernel.name] = total.get(kernel.name, 0.0) + float(weight)
        by_name = {kernel.name: kernel for kernel in self.kernels}
        return tuple((weight, by_name[name]) for name, weight in total.items() if weight != 0.0)

    def products(
        self, new: Matrix, first: int, B: Floats, diagonal: Floats | None = None
    ) -> tuple[Floats, npt.NDArray[np.int64]]:
        """k_w(x, ·) B, summed over training blocks in their order, and the nearest samples.

        Parameters
        ----------
        new : ndarray or csr_array, shape (len, d)
        first : int
            Number of the first of these samples.
        B : ndarray, shape (n, r)
        diagonal : ndarray, shape (n,), optional
            k_w of the training samples with themselves: distances need it.

        Returns
        -------
        products : ndarray, shape (len, r)
        nearest : ndarray of int, shape (len,)
            The training sample of smallest distance k_w(j,j) − 2k_w(x,j) + k_w(x,x), the first of
            several; 0 where no diagonal was given.
        """
        nearest, distance = np.zeros(new.shape[0], np.int64), np.full(new.shape[0], np.inf)
        total = np.zeros((new.shape[0], B.shape[1]))
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused
            own = self.own_norms(new, first)
            for tile in self._tiles(new, first, own):
                for rows, K in self._fused(tile):
                    total[rows] += K @ B[tile.cols]
                    if diagonal is not None:
                        d = diagonal[tile.cols] - 2.0 * K
                        best = d.argmin(axis=1)
                        least = d[np.arange(len(d)), best]
                        closer = least < distance[rows]
                        distance[rows] = np.where(closer, least, distance[rows])
                        nearest[rows] = np.where(closer, tile.cols.start + best, nearest[rows])
        return total, nearest

    def column_blocks(self, new: Matrix, first: int) -> Iterator[tuple[slice, Floats]]:
        """k_w(x, ·) on a block of training samples after the other, shape (n_new, len)."""
        with np.errstate(over="ignore", invalid="ignore"):
            own = self.own_norms(new, first)
            for tile in self._tiles(new, first, own):
                whole = np.empty(tile.shape)
                for rows, K in self._fused(tile):
                    whole[rows] = K
                yield tile.cols, whole

    def diagonal(self, new: Matrix, first: int) -> Floats:
        """k_w(x, x), shape (len,)."""
        where, total = slice(0, new.shape[0]), np.zeros(new.shape[0])
        with np.errstate(over="ignore", invalid="ignore"):
            own = self.own_norms(new, first)
            tile = SelfTile(ArrayFeatures(new), where, where)
            for weight, kernel in self.used:
                total += weight * np.diagonal(final_values(kernel, tile, own))
        return total

    def own_norms(self, new: Matrix, first: int) -> dict[str, Floats]:
        """What normalisation divides new samples by: their k(x,x), or sums over the training."""
        norms: dict[str, Floats] = {}
        by_degree = [kernel for _, kernel in self.used if kernel.normalization == "degree"]
        sums = np.zeros((len(by_degree), new.shape[0]))
        for tile in self._tiles(new, first, {}) if by_degree else ():
            for row, kernel in zip(sums, by_degree, strict=True):
                for part in tile.strips() if kernel.elementwise else [tile]:
                    row[_rows_in(part, tile)] += raw_values(kernel, part).sum(axis=1)
        for row, kernel in zip(sums, by_degree, strict=True):
            refuse_negative_norms(row, kernel.spec, "row sum", first)
            norms[kernel.name] = row
        for _, kernel in self.used:
            if kernel.needs_norms and kernel.normalization == "unit":
                where = slice(0, new.shape[0])
                own = np.diagonal(raw_values(kernel, SelfTile(ArrayFeatures(new), where, where)))
                refuse_negative_norms(own, kernel.spec, "k(x,x)", first)
                norms[kernel.name] = own
        return norms

    def _tiles(self, new: Matrix, first: int, own: Norms) -> Iterator[CrossTile]:
        rows, n = slice(first, first + new.shape[0]), self.training.n_samples
        for start in range(0, n, self.edge):
            cols = slice(start, min(start + self.edge, n))
            yield CrossTile(self.training, rows, cols, new=new, own_norms=own)

    def _fused(self, tile: CrossTile) -> Iterator[tuple[slice, Floats]]:
        """Σ weights_i k^i a strip at a time, with the rows it is of; functions by whole tiles."""
        formulas = [one for one in self.used if one[1].elementwise]
        functions = [one for one in self.used if not one[1].elementwise]
        called = _weighted_sum(functions, tile, self.norms) if functions else None
        for part in tile.strips() if formulas else ():
            rows, K = _rows_in(part, tile), _weighted_sum(formulas, part, self.norms)
            yield rows, K if called is None else K + called[rows]
        if called is not None and not formulas:
            yield _rows_in(tile, tile), called


def products_of_blocks(
    blocks: Iterable[tuple[slice, Floats]], n_new: int, B: Floats, diagonal: Floats
) -> tuple[Floats, npt.NDArray[np.int64]]:
    """k_w(x, ·) B and the nearest training samples, as of `CrossKernels.products`."""
    total = np.zeros((n_new, B.shape[1]))
    nearest, distance = np.zeros(n_new, np.int64), np.full(n_new, np.inf)
    for columns, K in blocks:
        total += K @ B[columns]
        d = diagonal[columns] - 2.0 * K
        best = d.argmin(axis=1)
        least = d[np.arange(len(d)), best]
        closer = least < distance
        distance = np.where(closer, least, distance)
        nearest = np.where(closer, columns.start + best, nearest)
    return total, nearest


def _weighted_sum(
    kernels: list[tuple[float, ResolvedKernel]], tile: PairTile, norms: Norms
) -> Floats:
    total = np.zeros(tile.shape)
    for weight, kernel in kernels:
        values = final_values(kernel, tile, norms)
        values *= weight
        total += values
    return total


def _rows_in(part: PairTile, tile: PairTile) -> slice:
    start = tile.rows.start
    return slice(part.rows.start - start, part.rows.stop - start)


def edges(n_new: int, n_features: int, *, sparse: bool) -> tuple[int, int]:
    """New samples in a task, and training samples in a tile of it.

    From sizes alone, not from who works: the same bits everywhere. Dense rows of many features are
    taken fewer at a time.
    """
    fits = EDGE if sparse else max(1, _ROW_BYTES // (8 * max(1, n_features)))
    edge = min(EDGE, fits)
    return min(edge, max(_LEAST_EDGE, ceil_div(n_new, _PIECES))), edge
