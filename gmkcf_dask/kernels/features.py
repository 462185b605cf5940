"""Features as row blocks, and the products of two row blocks that every kernel is made from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from scipy import sparse

from gmkcf_dask.corpus.model import Floats, Matrix


class Features(Protocol):
    """Samples that can be had a row block at a time, from memory or from a store."""

    @property
    def n_samples(self) -> int: ...

    @property
    def column_means(self) -> Floats | None:
        """Means of the columns, shape (d,), where features are dense; None where sparse."""

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
    def column_means(self) -> Floats | None:
        return None if sparse.issparse(self.X) else np.asarray(self.X.mean(axis=0))

    def rows(self, where: slice) -> Matrix:
        return self.X[where]


@dataclass(frozen=True)
class NoFeatures:
    """Stands in where all kernels are precomputed."""

    n_samples: int
    column_means: None = None

    def rows(self, where: slice) -> Matrix:
        return np.empty((where.stop - where.start, 0))


@dataclass(frozen=True)
class PairTile:
    """All a kernel can want to know about samples I × samples J; computed once, on demand."""

    features: Features
    rows: slice
    cols: slice

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
        means = self.features.column_means
        if means is None:
            G = _exactly_symmetric(_dense(self.X_rows @ self.X_cols.T), self.on_diagonal)
        else:
            a = (self._centered_rows @ means)[:, None]
            c = (self._centered_cols @ means)[None, :]
            G = self._centered_gram + (a + c) + means @ means
        if self.on_diagonal:
            np.fill_diagonal(G, self.sq_rows)
        return G

    @cached_property
    def squared_distances(self) -> Floats:
        """‖x−y‖², shape (len I, len J), exactly 0 for a sample and itself.

        Dense features are centred first: distances do not change, and samples far from the
        origin lose no digits.
        """
        if self.features.column_means is None:
            G, sq_rows, sq_cols = self.gram, self.sq_rows, self.sq_cols
        else:
            G = self._centered_gram
            sq_rows = squared_norms(self._centered_rows)
            sq_cols = squared_norms(self._centered_cols)
        d2 = G * -2.0
        d2 += sq_rows[:, None] + sq_cols[None, :]
        np.maximum(d2, 0.0, out=d2)
        if self.on_diagonal:
            np.fill_diagonal(d2, 0.0)
        return d2

    @cached_property
    def _centered_rows(self) -> Floats:
        return _centered(self.X_rows, self.features.column_means)

    @cached_property
    def _centered_cols(self) -> Floats:
        if self.on_diagonal:
            return self._centered_rows
        return _centered(self.X_cols, self.features.column_means)

    @cached_property
    def _centered_gram(self) -> Floats:
        G = self._centered_rows @ self._centered_cols.T
        return _exactly_symmetric(G, self.on_diagonal)


def squared_norms(X: Matrix) -> Floats:
    """Row-wise ‖x‖², shape (n,)."""
    if isinstance(X, np.ndarray):
        return np.asarray(np.einsum("ij,ij->i", X, X))
    squares: Any = X.multiply(X)
    return np.asarray(squares.sum(axis=1), dtype=np.float64).ravel()


def _centered(X: Matrix, means: Floats | None) -> Floats:
    assert isinstance(X, np.ndarray)
    assert means is not None
    return X - means


def _dense(product: Any) -> Floats:
    return np.asarray(product if isinstance(product, np.ndarray) else product.toarray())


def _exactly_symmetric(G: Floats, on_diagonal: bool) -> Floats:
    return (G + G.T) / 2 if on_diagonal else G
