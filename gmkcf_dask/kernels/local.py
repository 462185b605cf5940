"""Local kernels: cosines of documents after their features are smoothed over their neighbours.

K_t = Z_t Z_tᵀ with Z_t the unit rows of S^t F, t = 0, 1, 2, 4. F = X R are the leading principal
directions of X, S the lazy random walk on the neighbour graph of X. docs/algorithm.md has every
constant and where it comes from. Everything here is a function of arrays; `store` reads and writes
them and decides where loops run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from gmkcf_dask.corpus.model import Matrix
from gmkcf_dask.system.arrays import AnyFloats, Floats

DEPTHS = (0, 1, 2, 4)
"""Steps of the walk, one kernel each."""
LEAST_RANK, RANK_PER_CLUSTER = 100, 2
OVERSAMPLE, POWER_STEPS = 10, 4
SCALE_NEIGHBOUR = 7
"""The distance to this neighbour is the width of a sample's own neighbourhood."""
_RANK_TOLERANCE = 1e-10
_SAME = 4e-6
"""Squared distance that rounding of float32 cosines may give to equal rows."""

Indices = npt.NDArray[np.int32]
Floats32 = npt.NDArray[np.float32]


def rank_for(n_clusters: int) -> int:
    """Columns of the factors for so many clusters."""
    return max(LEAST_RANK, RANK_PER_CLUSTER * n_clusters)


def neighbourhood_scale(distances: Floats, present: npt.NDArray[np.bool_]) -> Floats:
    """σ of every sample, shape (n,), from sorted distances to its neighbours, shape (n, p).

    The distance to the seventh neighbour, or to the last there is; where that is 0, as among
    duplicates, the smallest positive one; 1 where there is none.
    """
    if not distances.shape[1]:
        return np.ones(len(distances))
    count = np.minimum(present.sum(axis=1), SCALE_NEIGHBOUR)
    rows = np.arange(len(distances))
    scale = np.where(count > 0, distances[rows, np.maximum(count - 1, 0)], 0.0)
    positive = np.where(present & (distances > 0.0), distances, np.inf)
    nearest = positive.min(axis=1, initial=np.inf)
    scale = np.where(scale > 0.0, scale, nearest)
    return np.where(np.isfinite(scale), scale, 1.0)


def affinities(indices: Indices, squared: Floats) -> sparse.csr_array:
    """A = (W + Wᵀ)/2 with W_ij = exp(−d²_ij / (σ_i σ_j)) over neighbours j of i, shape (n, n).

    Parameters
    ----------
    indices : ndarray of int, shape (n, p)
        Neighbours, nearest first; −1 where there are fewer.
    squared : ndarray, shape (n, p)
        Squared distances to them.
    """
    n, p = indices.shape
    present = indices >= 0
    scale = neighbourhood_scale(np.sqrt(squared), present)
    rows, columns = np.repeat(np.arange(n), p)[present.ravel()], indices[present]
    values = np.exp(-squared[present] / (scale[rows] * scale[columns]))
    W = sparse.csr_array((values, (rows, columns)), shape=(n, n))
    return sparse.csr_array((W + W.T) * 0.5)


def lazy_walk(A: sparse.csr_array) -> sparse.csr_array:
    """S = (I + D⁻¹A)/2 in float32, rows of sum 1; an isolated sample stays where it is."""
    degrees = np.asarray(A.sum(axis=1)).ravel()
    alone = degrees <= 0.0
    inverse = np.where(alone, 0.0, 0.5 / np.where(alone, 1.0, degrees))
    stay = sparse.diags_array(np.where(alone, 1.0, 0.5))
    walk: Any = (stay + sparse.diags_array(inverse) @ A).tocsr()
    return sparse.csr_array(walk.astype(np.float32))


def squared_chords(similarities: AnyFloats) -> Floats:
    """2 − 2 cos; 0 where that is rounding, so that duplicates have no distance."""
    squared = 2.0 - 2.0 * np.asarray(similarities, dtype=np.float64)
    return np.where(squared > _SAME, squared, 0.0)


def principal_directions(
    apply: Callable[[Floats32], Floats], n_features: int, n_samples: int, rank: int
) -> Floats32:
    """R: the leading right singular vectors of X, shape (d, r), by subspace iteration.

    The start is fixed, so nothing depends on a seed. Columns come in the order of their singular
    values; there are fewer than `rank` where X has a lower rank.

    Parameters
    ----------
    apply : callable
        Ω ↦ XᵀXΩ, shapes (d, l): one pass over the rows of X.
    """
    width = min(rank + OVERSAMPLE, n_features, n_samples)
    start = np.random.default_rng(0).standard_normal((n_features, width), dtype=np.float32)
    basis = _orthonormal(apply(start))
    for _ in range(POWER_STEPS):
        basis = _orthonormal(apply(basis.astype(np.float32)))
    product = apply(basis.astype(np.float32))
    small = basis.T @ product
    values, vectors = np.linalg.eigh((small + small.T) / 2)
    order = np.argsort(-values, kind="stable")[:rank]
    order = order[values[order] > _RANK_TOLERANCE * max(values.max(), 0.0)]
    R = basis @ vectors[:, order]
    largest = np.abs(R).argmax(axis=0)  # signs are arbitrary: fix them
    return np.asarray(R * np.sign(R[largest, np.arange(R.shape[1])]), dtype=np.float32)


def _orthonormal(Y: Floats) -> Floats:
    """An orthonormal basis of the columns of a tall block, from its Gram matrix, made twice."""
    for _ in range(2):
        values, vectors = np.linalg.eigh(Y.T @ Y)
        kept = values > _RANK_TOLERANCE * max(values[-1], 0.0)
        Y = Y @ (vectors[:, kept] / np.sqrt(values[kept]))
    return Y


def cross_block(X: Matrix, basis: Floats32) -> Floats:
    """XᵀXΩ of some rows of X, shape (d, l)."""
    own = X.astype(np.float32)
    return np.asarray(own.T @ (own @ basis), dtype=np.float64)


def project(X: Matrix, R: Floats32) -> Floats32:
    """Rows of F = X R, shape (len, r)."""
    return np.asarray(X.astype(np.float32) @ R, dtype=np.float32)


def unit_rows(F: AnyFloats, rank: int | None = None) -> Floats32:
    """The first columns of rows at unit length; a row of zeros stays."""
    own = F[:, :rank]
    lengths = np.sqrt(np.einsum("ij,ij->i", own, own, dtype=np.float64))
    scale = np.where(lengths > 1e-12, 1.0 / np.where(lengths > 0.0, lengths, 1.0), 0.0)
    return np.asarray(own * scale[:, None].astype(np.float32), dtype=np.float32)


def unit_block(X: Matrix) -> Any:
    """Some rows at unit length in float32."""
    squares: Any = np.square(X) if isinstance(X, np.ndarray) else X.power(2)
    lengths = np.sqrt(np.asarray(squares.sum(axis=1), np.float64).ravel())
    scale = np.where(lengths > 0.0, 1.0 / np.where(lengths > 0.0, lengths, 1.0), 0.0)
    if isinstance(X, np.ndarray):
        return np.asarray(X * scale[:, None], np.float32)
    made: Any = sparse.diags_array(scale) @ X
    return sparse.csr_array(made.astype(np.float32))


# new samples


def new_edges(similar: sparse.csr_array, last: Floats, scale: Floats, p: int) -> sparse.csr_array:
    """P of new samples, shape (n_new, n): where a step of the walk takes them, rows of sum 1.

    Edges go to the p most similar training samples, and to every one that would have the new
    sample among its own p: these count half each, both together whole, as among training samples.

    Parameters
    ----------
    similar : csr_array, shape (n_new, n)
        Positive cosines.
    last : ndarray, shape (n,)
        Similarity of every training sample's last neighbour; 0 where it has fewer than p.
    scale : ndarray, shape (n,)
        σ of the training samples.
    """
    indptr, columns, weights = [0], [], []
    for row in range(similar.shape[0]):
        own = slice(similar.indptr[row], similar.indptr[row + 1])
        j, s = similar.indices[own], similar.data[own].astype(np.float64)
        order = np.lexsort((j, -s))[:p]
        near = np.zeros(len(j), dtype=bool)
        near[order] = True
        back = s >= last[j]
        squared = squared_chords(s)
        distances = np.sqrt(squared[order])[None]
        own_scale = neighbourhood_scale(distances, np.ones_like(distances, bool))[0]
        w = np.exp(-squared / (own_scale * scale[j])) * (0.5 * near + 0.5 * back)
        kept = w > 0.0
        columns.append(j[kept])
        weights.append(w[kept] / w.sum() if kept.any() else w[kept])
        indptr.append(indptr[-1] + int(kept.sum()))
    parts = (np.concatenate(weights), np.concatenate(columns), np.array(indptr))
    return sparse.csr_array(parts, shape=similar.shape)
