"""From the representation V to labels."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

from gmkcf_dask.errors import NumericsWarning
from gmkcf_dask.system.arrays import Floats, Labels

KMEANS_STARTS = 20


def kmeans(
    V: Floats, n_clusters: int, seed: int, n_init: int = KMEANS_STARTS
) -> tuple[Labels, Floats]:
    """K-means (k-means++, 20 starts) on the rows of V, shape (n, r).

    One thread: with more, sums and therefore labels could change from machine to machine.

    Returns
    -------
    labels : ndarray of int, shape (n,)
        Of every row the nearest centre, by the same rule as for new rows.
    centres : ndarray, shape (k, r)
    """
    state = int(np.random.SeedSequence(seed).generate_state(1)[0])
    model: Any = KMeans(n_clusters=n_clusters, n_init=n_init, random_state=state)
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        centres: Floats = np.asarray(model.fit(V).cluster_centers_, dtype=np.float64)
    labels = nearest(squared_distances(V, centres))
    found = len(np.unique(labels))
    if found < n_clusters:
        warnings.warn(
            f"only {found} of {n_clusters} clusters are used: the representation has too few "
            "distinct rows, a smaller k describes these samples as well",
            NumericsWarning,
            stacklevel=2,
        )
    return labels, centres


def kmeans_labels(V: Floats, n_clusters: int, seed: int, n_init: int = KMEANS_STARTS) -> Labels:
    """The labels alone."""
    return kmeans(V, n_clusters, seed, n_init)[0]


def squared_distances(V: Floats, centres: Floats) -> Floats:
    """Of every row to every centre, shape (n, k); no row depends on the others."""
    return np.stack([np.square(V - centre).sum(axis=1) for centre in centres], axis=1)


def nearest(distances: Floats) -> Labels:
    """The nearest centre of every row, the first of those that are equally near; shape (n,)."""
    return np.asarray(distances.argmin(axis=1), dtype=np.int32)


def sureness(squared: Floats) -> Floats:
    """How clearly rows belong to their nearest centre: 1 − d₁/d₂, the two smallest distances.

    1 on the centre itself, 0 half way to another. Shape (n,).
    """
    if squared.shape[1] == 1:
        return np.ones(len(squared))
    first, second = np.sqrt(np.maximum(np.partition(squared, 1, axis=1)[:, :2], 0.0)).T
    ratio = np.divide(first, second, out=np.ones_like(first), where=second > 0.0)
    return np.asarray(1.0 - ratio)
