"""Rows of factors for new samples: where the walk takes them among the training samples.

Everything global (directions, widths of neighbourhoods, degrees, eigenpairs) is that of the
training samples. A new sample that equals a training sample takes its row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from scipy import sparse

from gmkcf_dask.corpus.model import Matrix
from gmkcf_dask.kernels import heat, local
from gmkcf_dask.kernels.cross import CrossKernels, products_of_blocks
from gmkcf_dask.kernels.factored import (
    FEATURES,
    FOR_CLUSTERS,
    PRODUCTS,
    FactorKind,
    FactorView,
    array_of,
    factor_views,
    values_of,
)
from gmkcf_dask.kernels.features import Features, squared_norms
from gmkcf_dask.kernels.neighbours import n_neighbours
from gmkcf_dask.system.arrays import AnyFloats, Floats

_BLOCK = 4096
"""Training samples that new ones are compared with at a time."""
_SAME = 1e-5
"""Squared distance up to which two rows are looked at for being equal."""


class Arrays(Protocol):
    """The arrays of the training samples."""

    def read(self, name: str) -> Any:
        """A whole array; a sparse factor is CSR."""

    def columns(self, name: str) -> int:
        """Columns of an array."""


class FactorExtension(Protocol):
    """From new samples to their rows of the arrays that factors are made of."""

    def rows(self, new: Matrix) -> Mapping[str, Any]:
        """By array, rows of new samples, shape (len, r)."""


@dataclass(frozen=True)
class LocalExtension:
    """Local kernels: f_0 = xR, f_t = ½ f_{t−1} + ½ Σ_j P_xj (S^{t−1}F)_j.

    Attributes
    ----------
    features : Features
        Of the training samples.
    arrays : Arrays
    """

    features: Features
    arrays: Arrays

    @cached_property
    def _near(self) -> tuple[npt.NDArray[np.int32], Floats, Floats, Floats]:
        """Neighbours, squared distances, last similarity and σ of every training sample."""
        indices, similar = self.arrays.read("neighbours"), self.arrays.read("similarities")
        squared = local.squared_chords(similar)
        full = indices[:, -1] >= 0 if indices.shape[1] else np.zeros(len(indices), bool)
        last = np.where(full, similar[:, -1] if indices.shape[1] else 0.0, 0.0)
        scale = local.neighbourhood_scale(np.sqrt(squared), indices >= 0)
        return indices, squared, np.asarray(last, np.float64), scale

    def rows(self, new: Matrix) -> Mapping[str, AnyFloats]:
        own = local.unit_block(new)
        F = local.project(own, self.arrays.read("directions"))
        indices, _, last, scale = self._near
        p = indices.shape[1]
        similar, equal = self._similarities(own, last, p)
        steps = local.new_edges(similar, last, scale, p)
        moves = np.diff(steps.indptr) > 0
        arrays = {"smooth_0": F}
        for t in range(1, max(local.DEPTHS) + 1):
            moved = np.asarray(steps @ self.arrays.read(f"smooth_{t - 1}"), np.float32)
            F = np.where(moves[:, None], 0.5 * F + 0.5 * moved, F)
            arrays[f"smooth_{t}"] = F
        same = equal >= 0
        if same.any():
            for name, values in arrays.items():
                values[same] = self.arrays.read(name)[equal[same]]
        return arrays

    def _similarities(self, own: Any, last: Floats, p: int) -> tuple[Any, npt.NDArray[np.int64]]:
        """Cosines with training samples that can matter, as csr, and the equal sample or −1."""
        n, equal = self.features.n_samples, np.full(own.shape[0], -1)
        parts = []
        for first in range(0, n, _BLOCK):
            rows = slice(first, min(n, first + _BLOCK))
            X = local.unit_block(self.features.rows(rows))
            product: Any = own @ X.T
            S = product if isinstance(product, np.ndarray) else product.toarray()
            self._note_equal(own, X, S, first, equal)
            back = (last[rows] <= S) & (S > 0.0)
            parts.append(sparse.csr_array(np.where(back | _top(S, p), S, 0.0)))
        return sparse.csr_array(sparse.hstack(parts, format="csr")), equal

    def _note_equal(
        self, own: Any, X: Any, S: AnyFloats, first: int, equal: npt.NDArray[np.int64]
    ) -> None:
        for row, column in np.argwhere(S >= 1.0 - _SAME):
            if equal[row] < 0 and _same_row(own, int(row), X, int(column)):
                equal[row] = first + column


def _top(S: AnyFloats, p: int) -> npt.NDArray[np.bool_]:
    """The p largest positive entries of every row, with all that equal the last of them."""
    if p >= S.shape[1]:
        return np.asarray(S > 0.0)
    least = np.partition(S, S.shape[1] - p, axis=1)[:, S.shape[1] - p, None]
    return np.asarray((least <= S) & (S > 0.0))


def _same_row(own: Any, row: int, X: Any, column: int) -> bool:
    a, b = own[[row]], X[[column]]
    if isinstance(own, np.ndarray):
        return bool(np.array_equal(a, b))
    return bool(np.array_equal(a.indices, b.indices) and np.array_equal(a.data, b.data))


@dataclass(frozen=True)
class HeatExtension:
    """Heat kernels: Nyström, e(x) = Σ_j A_xj / √(d_x d_j) E_j / λ.

    Attributes
    ----------
    features : Features
        Of the training samples.
    arrays : Arrays
    """

    features: Features
    arrays: Arrays

    @cached_property
    def _standardize(self) -> heat.Standardizer:
        return heat.Standardizer(*np.ascontiguousarray(self.arrays.read("columns").T))

    @cached_property
    def _training(self) -> Floats:
        n = self.features.n_samples
        parts = [
            self._standardize(self.features.rows(slice(first, min(n, first + _BLOCK))))
            for first in range(0, n, _BLOCK)
        ]
        return np.concatenate(parts)

    def rows(self, new: Matrix) -> Mapping[str, AnyFloats]:
        own, X = self._standardize(new), self._training
        n = len(X)
        D = np.stack([np.square(x - X).sum(axis=1) for x in own])
        nearest = D.argmin(axis=1)
        same = (X[nearest] == own).all(axis=1)
        indices, squared = self.arrays.read("neighbours"), -self.arrays.read("similarities")
        squared = np.maximum(squared.astype(np.float64), 0.0)
        arrays: dict[str, AnyFloats] = {}
        for name, size in heat.sizes(n_neighbours(n), n).items():
            A = heat.join_components(local.affinities(indices[:, :size], squared[:, :size]), X)
            degrees = heat.normalized_affinities(A)[1]
            scale = local.neighbourhood_scale(np.sqrt(squared[:, :size]), indices[:, :size] >= 0)
            a = _new_affinities(D, squared[:, size - 1], scale, size)
            own_degree = a.sum(axis=1)
            a /= np.sqrt(np.where(own_degree > 0.0, own_degree, 1.0))[:, None] * np.sqrt(degrees)
            vectors, values = (
                self.arrays.read(array_of(name, "heat")),
                self.arrays.read(values_of(name)),
            )
            inverse = np.where(np.abs(values) > 1e-6, 1.0 / np.where(values == 0, 1.0, values), 0.0)
            rows = np.asarray((a @ vectors) * inverse, np.float32)
            rows[same] = vectors[nearest[same]]
            arrays[array_of(name, "heat")] = rows
        return arrays


def _new_affinities(D: Floats, last: Floats, scale: Floats, size: int) -> Floats:
    """A between new and training samples, shape (n_new, n), from squared distances."""
    A = np.zeros_like(D)
    for row, squared in enumerate(D):
        order = np.lexsort((np.arange(len(squared)), squared))[:size]
        near = np.zeros(len(squared), bool)
        near[order] = True
        distances = np.sqrt(squared[order])[None]
        own = local.neighbourhood_scale(distances, np.ones_like(distances, bool))[0]
        share = 0.5 * near + 0.5 * (squared <= last)
        exponent = squared / (own * scale)
        # far from everything all would vanish; rows are scaled to unit length in the end
        A[row] = np.exp(exponent[share > 0].min() - exponent) * share
    return A


@dataclass(frozen=True)
class FactoredCross:
    """Σ weights_i k^i(x, ·) for new samples x, by their rows of the factors.

    Answers what `CrossKernels` answers.

    Attributes
    ----------
    views : tuple of FactorView, length m
    weights : ndarray, shape (m,)
    extension : FactorExtension
    arrays : Arrays
        Of the training samples.
    """

    views: tuple[FactorView, ...]
    weights: Floats
    extension: FactorExtension
    arrays: Arrays

    def products(
        self, new: Matrix, first: int, B: Floats, diagonal: Floats | None = None
    ) -> tuple[Floats, npt.NDArray[np.int64]]:
        """k_w(x, ·) B and the nearest training samples; see `CrossKernels.products`."""
        if diagonal is not None:
            rows_of = self.values_of(new)
            ranges = _ranges(B.shape[0], _BLOCK)
            blocks = ((rows, rows_of(rows)) for rows in ranges)
            return products_of_blocks(blocks, new.shape[0], B, diagonal)
        # float64, or what else is in a block would show in the digits of a sample
        total = np.zeros((new.shape[0], B.shape[1]))
        for z, view, weight in zip(self._rows(new), self.views, self.weights, strict=True):
            if weight != 0.0:
                total += weight * np.asarray(_float64(z) @ self._inner(view, B))
        return total, np.zeros(new.shape[0], np.int64)

    def _inner(self, view: FactorView, B: Floats) -> Floats:
        """Zᵀ B, shape (r, c), over blocks of rows."""
        stored, total = self.arrays.read(view.array), np.zeros((view.rank, B.shape[1]))
        for rows in _ranges(B.shape[0], _BLOCK):
            Z = _float64(view.rows(stored[rows]))
            if isinstance(Z, np.ndarray):
                total += Z.T @ B[rows]
            else:
                used, columns = np.unique(Z.indices, return_inverse=True)
                thin = sparse.csr_array((Z.data, columns, Z.indptr), (Z.shape[0], used.size))
                total[used] += np.asarray(thin.T @ B[rows])
        return total

    def values_of(self, new: Matrix) -> Callable[[slice], Floats]:
        """From a range of training samples to k_w(x, ·) on them, shape (n_new, len)."""
        zs = [_float64(z) for z in self._rows(new)]

        def values(rows: slice) -> Floats:
            K = np.zeros((new.shape[0], rows.stop - rows.start))
            for z, view, weight in zip(zs, self.views, self.weights, strict=True):
                if weight != 0.0:
                    Z = view.rows(self.arrays.read(view.array)[rows])
                    product: Any = z @ Z.T
                    K += weight * (
                        product if isinstance(product, np.ndarray) else product.toarray()
                    )
            return K

        return values

    def diagonal(self, new: Matrix, first: int) -> Floats:
        """k_w(x, x), shape (len,)."""
        total = np.zeros(new.shape[0])
        for z, weight in zip(self._rows(new), self.weights, strict=True):
            total += weight * squared_norms(_float64(z))
        return total

    def _rows(self, new: Matrix) -> list[Any]:
        rows = self.extension.rows(new)
        return [view.rows(rows[view.array]) for view in self.views]


def _ranges(n: int, step: int) -> list[slice]:
    return [slice(first, min(n, first + step)) for first in range(0, n, step)]


def _float64(z: Any) -> Any:
    return z.astype(np.float64, copy=False)


@dataclass(frozen=True)
class SummedCross:
    """Kernels in tiles and factored ones in one fit: what both answer, added up.

    Attributes
    ----------
    tiled : CrossKernels
    factored : FactoredCross
    """

    tiled: CrossKernels
    factored: FactoredCross

    def products(
        self, new: Matrix, first: int, B: Floats, diagonal: Floats | None = None
    ) -> tuple[Floats, npt.NDArray[np.int64]]:
        """k_w(x, ·) B and the nearest training samples; see `CrossKernels.products`."""
        if diagonal is not None:
            rows_of = self.factored.values_of(new)
            blocks = ((cols, K + rows_of(cols)) for cols, K in self.tiled.column_blocks(new, first))
            return products_of_blocks(blocks, new.shape[0], B, diagonal)
        tiled, nearest = self.tiled.products(new, first, B)
        return tiled + self.factored.products(new, first, B)[0], nearest

    def diagonal(self, new: Matrix, first: int) -> Floats:
        """k_w(x, x), shape (len,)."""
        return self.tiled.diagonal(new, first) + self.factored.diagonal(new, first)


@dataclass(frozen=True)
class GivenExtension:
    """Factors the user brings: those of new samples come side by side, in the same order."""

    ranks: Mapping[str, int]
    """By kernel, columns of its factor."""

    def rows(self, new: Matrix) -> Mapping[str, Any]:
        ends = np.cumsum([0, *self.ranks.values()]).tolist()
        return {
            array_of(name, "given"): new[:, begin:end]
            for name, begin, end in zip(self.ranks, ends[:-1], ends[1:], strict=True)
        }


@dataclass(frozen=True)
class OwnRows:
    """Linear and cosine kernels: rows of the features are rows of the factor, by `FactorView`."""

    def rows(self, new: Matrix) -> Mapping[str, Any]:
        return {FEATURES: new}


@dataclass(frozen=True)
class JoinedExtension:
    """Several extensions of the same samples."""

    parts: tuple[FactorExtension, ...]

    def rows(self, new: Matrix) -> Mapping[str, Any]:
        return {name: rows for part in self.parts for name, rows in part.rows(new).items()}


@dataclass(frozen=True)
class DictArrays:
    """Arrays in memory."""

    arrays: Mapping[str, Any]

    def read(self, name: str) -> Any:
        return self.arrays[name]

    def columns(self, name: str) -> int:
        return int(self.arrays[name].shape[1])


@dataclass(frozen=True)
class TrainingFactors:
    """The factored kernels of a fit, and the arrays of the training samples they are made of."""

    kinds: Mapping[str, FactorKind]
    arrays: Arrays

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.kinds)

    @property
    def given(self) -> bool:
        """Whether the user brings the factors: then also those of new samples."""
        return "given" in self.kinds.values()

    def array_names(self) -> list[str]:
        """All arrays that new samples need, beside the features."""
        names = [array_of(name, kind) for name, kind in self.kinds.items() if kind == "given"]
        if "local" in self.kinds.values():
            steps = [f"smooth_{t}" for t in range(max(local.DEPTHS) + 1)]
            names += ["neighbours", "similarities", "directions", *steps]
        if "heat" in self.kinds.values():
            heats = [name for name, kind in self.kinds.items() if kind == "heat"]
            names += ["neighbours", "similarities", "columns", *map(values_of, heats)]
            names += [array_of(name, "heat") for name in heats]
        return names

    @property
    def of_features(self) -> bool:
        """Whether some factor is made from features: then those of new samples are needed."""
        return set(self.kinds.values()) != {"given"}

    @property
    def products(self) -> bool:
        """Whether the features themselves are a factor."""
        return any(kind in PRODUCTS for kind in self.kinds.values())

    def in_memory(self, X: Matrix | None) -> TrainingFactors:
        """The same with all arrays in the memory of this process; X are the features there."""
        whole: dict[str, Any] = {name: self.arrays.read(name) for name in self.array_names()}
        if X is not None and self.products:
            whole[FEATURES] = X
        return TrainingFactors(self.kinds, DictArrays(whole))

    def views(self, n_clusters: int) -> tuple[FactorView, ...]:
        """The factors for so many clusters."""
        return views_of(self.kinds, self.arrays, n_clusters)

    def cross(self, features: Features | None, weights: Floats, n_clusters: int) -> FactoredCross:
        """Σ weights_i k^i(x, ·) for new samples."""
        views, kinds = self.views(n_clusters), set(self.kinds.values())
        parts: list[FactorExtension] = []
        if self.given:
            parts.append(
                GivenExtension({v.name: v.rank for v in views if self.kinds[v.name] == "given"})
            )
        if kinds & set(FOR_CLUSTERS):
            assert features is not None
            kind = LocalExtension if "local" in kinds else HeatExtension
            parts.append(kind(features, self.arrays))
        if self.products:
            parts.append(OwnRows())
        extension = parts[0] if len(parts) == 1 else JoinedExtension(tuple(parts))
        return FactoredCross(views, weights, extension, self.arrays)


def views_of(
    kinds: Mapping[str, FactorKind], arrays: Arrays, n_clusters: int
) -> tuple[FactorView, ...]:
    """The factors of kernels for so many clusters, from their arrays."""
    eigenvalues = {n: arrays.read(values_of(n)) for n, kind in kinds.items() if kind == "heat"}
    ranks = {name: arrays.columns(array_of(name, kind)) for name, kind in kinds.items()}
    return factor_views(kinds, ranks, eigenvalues, n_clusters)
