"""Features as row blocks, and the products of two row blocks that every kernel is made from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Protocol

import numpy as np

from gmkcf_dask.corpus.model import Matrix
from gmkcf_dask.kernels.sparse_loops import sparse_product
from gmkcf_dask.kernels.tiling import Tiling
from gmkcf_dask.system.arrays import Floats

_FAR = 1e3
"""‖mean‖² against mean squared spread from which distances are measured from the mean."""
_ROUNDING = 8 * float(np.finfo(np.float64).eps)


class Features(Protocol):
    """Samples that can be had a row block at a time, from memory or from a store."""

    @property
    def n_samples(self) -> int: ...

    @property
    def offset(self) -> Floats | None:
        """What distances are measured from, shape (d,); None for the origin. See `offset_of`."""

    def rows(self, where: slice) -> Matrix:
        """Row block, shape (len, d)."""


@dataclass(frozen=True)
class ArrayFeatures:
    """Features held in this process."""

    X: Matrix

    @property
    def n_samples(self) -> int:
        return int(self.X.shape[0])

    @cached_property
    def offset(self) -> Floats | None:
        return offset_of(self.X)

    def rows(self, where: slice) -> Matrix:
        return self.X[where]


@dataclass(frozen=True)
class NoFeatures:
    """Stands in where all kernels are precomputed."""

    n_samples: int
    offset: None = None

    def rows(self, where: slice) -> Matrix:
        return np.empty((where.stop - where.start, 0))


CACHED_ENTRIES = 1 << 16
"""Of a strip: half a MiB in float64, so that a chain of formulas stays in the cache of a core."""


@dataclass(frozen=True)
class PairTile:
    """All a kernel can want to know about samples I × samples J; computed once, on demand."""

    bounded: ClassVar[bool] = True
    """Whether values lie in the ranges found, those of the samples that ranges were taken from."""

    features: Features
    rows: slice
    cols: slice
    compiled: bool = False
    """Whether products of sparse features are made by our own loop, once it is loaded: faster."""

    @classmethod
    def at(cls, features: Features, tiling: Tiling, t: int) -> PairTile:
        """The samples of tile t."""
        i, j = tiling.pair(t)
        return cls(features, tiling.rows(i), tiling.rows(j), tiling.gram)

    def strips(self) -> Iterator[PairTile]:
        """The tile cut into pieces of a few rows; products of features are made once for all.

        A tile on the diagonal stays whole, because it is made symmetric as a whole.
        """
        height = max(1, CACHED_ENTRIES // self.shape[1])
        if self.on_diagonal or self.shape[0] <= height:
            yield self
            return
        for first in range(0, self.shape[0], height):
            part = slice(first, min(first + height, self.shape[0]))
            strip = self.part(part)
            G, sq_rows, sq_cols = self.inner
            strip.__dict__.update(
                gram=self.gram[part],
                sq_rows=self.sq_rows[part],
                sq_cols=self.sq_cols,
                inner=(G[part], sq_rows[part], sq_cols),
            )
            yield strip

    def part(self, rows: slice) -> PairTile:
        """Some of the rows, counted from the first of the tile."""
        start = self.rows.start
        return replace(self, rows=slice(start + rows.start, start + rows.stop))

    def norms_of(self, kernel: str, norms: Mapping[str, Floats]) -> tuple[Floats, Floats]:
        """What normalisation divides the row and the column samples by."""
        return norms[kernel][self.rows], norms[kernel][self.cols]

    def corner(self, size: int = 256) -> PairTile:
        """At most so many rows and columns of the far corner: few of these samples are the same."""
        rows = slice(max(self.rows.start, self.rows.stop - size), self.rows.stop)
        return PairTile(
            self.features, rows, slice(max(self.cols.start, self.cols.stop - size), self.cols.stop)
        )

    @property
    def on_diagonal(self) -> bool:
        return self.rows == self.cols

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows.stop - self.rows.start, self.cols.stop - self.cols.start

    @cached_property
    def X_rows(self) -> Matrix:
        return self.features.rows(self.rows)

    @cached_property
    def X_cols(self) -> Matrix:
        return self.X_rows if self.on_diagonal else self.features.rows(self.cols)

    @cached_property
    def sq_rows(self) -> Floats:
        """Squared norms ‖x‖² of the row samples, shape (len I,)."""
        return squared_norms(self.X_rows)

    @cached_property
    def sq_cols(self) -> Floats:
        """Squared norms ‖x‖² of the column samples, shape (len J,)."""
        return self.sq_rows if self.on_diagonal else squared_norms(self.X_cols)

    @cached_property
    def gram(self) -> Floats:
        """X_I X_Jᵀ, shape (len I, len J)."""
        G = _product(self.X_rows, self.X_cols, self.on_diagonal, compiled=self.compiled)
        if self.on_diagonal:
            np.fill_diagonal(G, self.sq_rows)
        return G

    @cached_property
    def inner(self) -> tuple[Floats, Floats, Floats]:
        """Inner products and squared norms that distances are made from."""
        offset = self.features.offset
        if offset is None:
            return self.gram, self.sq_rows, self.sq_cols
        rows, cols = _shifted(self.X_rows, offset), _shifted(self.X_cols, offset)
        G = _product(rows, cols, self.on_diagonal)
        return G, squared_norms(rows), squared_norms(cols)

    @cached_property
    def squared_distances(self) -> Floats:
        """‖x−y‖², shape (len I, len J), exactly 0 for equal samples."""
        G, sq_rows, sq_cols = self.inner
        sums = sq_rows[:, None] + sq_cols[None, :]
        d2 = np.multiply(G, -2.0)
        d2 += sums
        sums *= _ROUNDING
        d2 *= d2 > sums  # equal samples, but for rounding
        if self.on_diagonal:
            np.fill_diagonal(d2, 0.0)
        return d2

    def unit_products(self, a: float) -> Floats:
        """(a + xᵀy) / sqrt((a + ‖x‖²)(a + ‖y‖²)), shape (len I, len J), not to be changed.

        The last one is kept: powers of it are kernels of their own.
        """
        cached = self.__dict__.get("_unit_products")
        if cached is None or cached[0] != a:
            cached = a, divide_by_roots(self.gram + a, a + self.sq_rows, a + self.sq_cols)
            self.__dict__["_unit_products"] = cached
        return cached[1]


def divide_by_roots(values: Floats, norm_rows: Floats, norm_cols: Floats) -> Floats:
    """values_ij / sqrt(r_i c_j) in place; 0 where a norm is 0."""
    values *= _inverse_roots(norm_rows)[:, None]
    values *= _inverse_roots(norm_cols)[None, :]
    return values


def _inverse_roots(norm: Floats) -> Floats:
    roots = np.sqrt(np.maximum(norm, 0.0))
    return np.divide(1.0, roots, out=np.zeros_like(roots), where=roots > 0.0)


def squared_norms(X: Matrix) -> Floats:
    """Row-wise ‖x‖², shape (n,)."""
    if isinstance(X, np.ndarray):
        return np.asarray(np.einsum("ij,ij->i", X, X))
    squares: Any = X.multiply(X)
    return np.asarray(squares.sum(axis=1), dtype=np.float64).ravel()


def offset_of(X: Matrix) -> Floats | None:
    """The mean row, where distances from the origin would lose digits; None elsewhere.

    ‖x−y‖² is had from inner products, which cancel when samples lie far from the origin compared
    with their spread. Measured from the mean they do not, at the price of a second Gram tile.
    Sparse features stay sparse.
    """
    if not isinstance(X, np.ndarray):
        return None
    with np.errstate(over="ignore", invalid="ignore"):  # too large is refused with the distances
        mean: Floats = X.mean(axis=0)
        spread = float(np.mean(squared_norms(X - mean)))
        return mean if float(mean @ mean) > _FAR * spread else None


def _product(rows: Matrix, cols: Matrix, on_diagonal: bool, *, compiled: bool = False) -> Floats:
    G: Any
    if compiled and not isinstance(rows, np.ndarray) and not isinstance(cols, np.ndarray):
        G = sparse_product(rows, cols)
    else:
        G = rows @ cols.T
        G = G if isinstance(G, np.ndarray) else G.toarray()
    return np.asarray((G + G.T) / 2 if on_diagonal else G)


def _shifted(X: Matrix, offset: Floats) -> Floats:
    """Rows measured from the offset, dense; new samples may come sparse to dense training ones."""
    return (X if isinstance(X, np.ndarray) else np.asarray(X.toarray())) - offset
