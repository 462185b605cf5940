"""Heat kernels: local kernels for dense rows that have no common length.

Columns are standardised. The neighbour graph of p/2, p and 2p neighbours gives one kernel each:
with λ, E the leading eigenpairs of D^-½AD^-½, Z are the unit rows of E exp(−t(1−λ)/2). The time t
follows from k alone: Σ exp(−t(1−λ)) = k.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse
from scipy.optimize import brentq
from scipy.sparse.csgraph import connected_components, minimum_spanning_tree

from gmkcf_dask.corpus.model import Matrix
from gmkcf_dask.kernels.local import affinities
from gmkcf_dask.kernels.neighbours import n_neighbours, search_dense
from gmkcf_dask.system.arrays import Floats

VECTORS_PER_CLUSTER = 4
_LONGEST = 1e12
"""Time at which nothing is left but eigenvalues of 1."""


def sizes(p: int, n: int) -> dict[str, int]:
    """Neighbours of each graph by the name of its kernel."""
    return {"heat_s": max(1, p // 2), "heat_m": p, "heat_l": min(2 * p, n - 1)}


@dataclass(frozen=True)
class Standardizer:
    """Columns at mean 0 and standard deviation 1; constant ones are dropped.

    Attributes
    ----------
    mean, deviation : ndarray, shape (d,)
        A deviation of 0 drops the column.
    """

    mean: Floats
    deviation: Floats

    @property
    def n_dropped(self) -> int:
        return int(np.count_nonzero(self.deviation == 0.0))

    def __call__(self, X: Matrix) -> Floats:
        """Rows of the kept columns, shape (len, kept)."""
        kept = self.deviation > 0.0
        dense = X if isinstance(X, np.ndarray) else np.asarray(X.toarray())
        return (dense[:, kept] - self.mean[kept]) / self.deviation[kept]


def deviations(variance: Floats, largest: Floats) -> Floats:
    """Standard deviations of columns, 0 for a constant one: what is left of it is rounding.

    Parameters
    ----------
    variance : ndarray, shape (d,)
    largest : ndarray, shape (d,)
        Largest modulus of each column.
    """
    made = np.sqrt(variance)
    return np.where(made > 1e-12 * largest, made, 0.0)


def join_components(A: sparse.csr_array, X: Floats) -> sparse.csr_array:
    """A with edges between components of the graph, so that near ones are near in the embedding.

    Rows that repeat have only their copies as neighbours. Each component stands for its centre:
    centres are neighbours as samples are, and the shortest edges that join all of them are added.

    Parameters
    ----------
    A : csr_array, shape (n, n)
    X : ndarray, shape (n, d)
        Standardised rows.
    """
    count, component = connected_components(A, directed=False)
    if count == 1 or not X.shape[1]:
        return A
    members = sparse.csr_array((np.ones(len(X)), (component, np.arange(len(X)))))
    centres = np.asarray(members @ X) / np.bincount(component)[:, None]
    away = np.square(X - centres[component]).sum(axis=1)
    order = np.lexsort((np.arange(len(X)), away, component))
    medoids = order[np.unique(component[order], return_index=True)[1]]
    p = max(1, n_neighbours(count))
    near = search_dense(centres, range(count), p, "euclidean")
    squared = np.maximum(-near.similarities.astype(np.float64), 0.0)
    between: Any = affinities(near.indices, squared)
    present = near.indices >= 0
    rows = np.repeat(np.arange(count), p)[present.ravel()]
    lengths = np.maximum(np.sqrt(squared[present]), np.finfo(float).tiny)
    tree = minimum_spanning_tree(
        sparse.csr_array((lengths, (rows, near.indices[present])), shape=(count, count))
    ).tocoo()
    width = np.median(tree.data) if tree.nnz else 1.0
    bridge = sparse.csr_array(
        (np.exp(-np.square(tree.data / width)), (tree.row, tree.col)), shape=(count, count)
    )
    between = between.maximum(bridge).maximum(bridge.T).tocoo()
    edges = (between.data, (medoids[between.row], medoids[between.col]))
    return sparse.csr_array(A + sparse.csr_array(edges, shape=A.shape))


def normalized_affinities(A: sparse.csr_array) -> tuple[sparse.csr_array, Floats]:
    """D^-½AD^-½ and the degrees, shape (n,); an isolated sample is a component of its own."""
    degrees = np.asarray(A.sum(axis=1)).ravel()
    alone = degrees <= 0.0
    root = np.where(alone, 0.0, 1.0 / np.sqrt(np.where(alone, 1.0, degrees)))
    scale = sparse.diags_array(root)
    whole: Any = (scale @ A @ scale + sparse.diags_array(alone.astype(np.float64))).tocsr()
    return whole, np.where(alone, 1.0, degrees)


def heat_weights(values: Floats, n_clusters: int) -> Floats:
    """exp(−t(1−λ)) of the leading eigenvalues, with t such that they sum to k; shape (4k,)."""
    gaps = np.maximum(1.0 - values[: VECTORS_PER_CLUSTER * n_clusters], 0.0)

    def excess(t: float) -> float:
        return float(np.exp(-t * gaps).sum()) - n_clusters

    if excess(0.0) <= 0.0:
        return np.ones_like(gaps)
    if excess(_LONGEST) >= 0.0:  # more components than clusters
        return np.exp(-_LONGEST * gaps)
    high = 1.0
    while excess(high) > 0.0:
        high *= 2.0
    return np.exp(-float(brentq(excess, 0.0, high, xtol=1e-12, rtol=1e-14)) * gaps)
