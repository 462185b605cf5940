"""From rows of the representation V, or of an embedding, to labels.

kmeans     the nearest centre of K-means
spherical  the centre nearest in direction, of spherical k-means
argmax     the largest entry: each column of V is a cluster

A row of zeros has no direction and no largest entry: label −1 under spherical and argmax. Rows of
new samples get their labels by the same rule, to the last bit.
"""

from __future__ import annotations

import warnings
from typing import Any, get_args

import numpy as np
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

from gmkcf_dask.errors import InputError, NumericsWarning
from gmkcf_dask.methods.defaults import Assign
from gmkcf_dask.methods.members import NO_CLUSTER
from gmkcf_dask.methods.spherical import cosines, has_direction, spherical_kmeans
from gmkcf_dask.system.arrays import Floats, Labels

KMEANS_STARTS = 20
_TOO_FEW = "the representation has too few distinct rows"


def check_assign(value: object, method: str, *, concepts: bool) -> None:
    """Refuse what is no rule, or none for a method whose columns are no concepts."""
    if not isinstance(value, str) or value not in get_args(Assign):
        raise InputError(f"assign must be one of {', '.join(get_args(Assign))}, not {value!r}")
    if value == "argmax" and not concepts:
        raise InputError(
            f"assign='argmax' is not for {method}, whose columns are eigenvectors and not "
            "clusters: choose kmeans or spherical"
        )


def cluster_rows(
    rows: Floats, n_clusters: int, seed: int, rule: Assign
) -> tuple[Labels, dict[str, Floats]]:
    """Labels of the rows of a fit.

    Parameters
    ----------
    rows : ndarray, shape (n, r)
    n_clusters : int
    seed : int
    rule : {"kmeans", "spherical", "argmax"}

    Returns
    -------
    labels : ndarray of int, shape (n,)
        From 0 to k − 1; −1 for a row of zeros, but not under kmeans.
    factors : dict of str to ndarray
        What `place_rows` needs for new rows: `centres`, shape (k, r), or nothing under argmax.
    """
    if rule == "kmeans":
        labels, centres = kmeans(rows, n_clusters, seed)
        return labels, {"centres": centres}
    factors = {"centres": spherical_kmeans(rows, n_clusters, seed)} if rule == "spherical" else {}
    labels = place_rows(rows, rule, factors.get("centres"))[0]
    _warn_of_empty(labels, n_clusters, _TOO_FEW if factors else "no row is largest in the others")
    return labels, factors


def place_rows(rows: Floats, rule: Assign, centres: Floats | None) -> tuple[Labels, Floats]:
    """Labels of rows, and how clearly they belong there; no row depends on the others.

    Parameters
    ----------
    rows : ndarray, shape (n, r)
    rule : {"kmeans", "spherical", "argmax"}
    centres : ndarray, shape (k, r), or None
        As `cluster_rows` found them.

    Returns
    -------
    labels : ndarray of int, shape (n,)
    sure : ndarray, shape (n,)
        From 0 to 1: 1 − d₁/d₂ of the two smallest distances, which are √(2 − 2 cos) under
        spherical; 1 − v₂/v₁ of the two largest entries under argmax. 0 for label −1.
    """
    if rule == "argmax":
        labels, sure = _first_largest(rows), _lead(rows)
    else:
        assert centres is not None
        if rule == "kmeans":
            squared = squared_distances(rows, centres)
            return nearest(squared), sureness(squared)
        similar = cosines(rows, centres)
        labels, sure = _first_largest(similar), sureness(2.0 - 2.0 * similar)
    placed = has_direction(rows)
    return np.where(placed, labels, np.int32(NO_CLUSTER)), np.where(placed, sure, 0.0)


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
    _warn_of_empty(labels, n_clusters, _TOO_FEW)
    return labels, centres


def kmeans_labels(V: Floats, n_clusters: int, seed: int, n_init: int = KMEANS_STARTS) -> Labels:
    """The labels alone."""
    return kmeans(V, n_clusters, seed, n_init)[0]


def _warn_of_empty(labels: Labels, n_clusters: int, why: str) -> None:
    n_used = len(np.unique(labels[labels >= 0]))
    if n_used < n_clusters:
        warnings.warn(
            f"only {n_used} of {n_clusters} clusters are used: {why}, a smaller k describes these "
            "samples as well",
            NumericsWarning,
            stacklevel=3,
        )


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
    return _one_minus(first, second)


def _first_largest(values: Floats) -> Labels:
    return np.asarray(values.argmax(axis=1), dtype=np.int32)


def _lead(values: Floats) -> Floats:
    """1 − v₂/v₁ of the two largest of the entries ≥ 0 of every row."""
    if values.shape[1] == 1:
        return np.ones(len(values))
    second, first = np.partition(values, -2, axis=1)[:, -2:].T
    return _one_minus(second, first)


def _one_minus(small: Floats, large: Floats) -> Floats:
    """1 − small/large, and 0 where both are 0."""
    return np.asarray(1.0 - np.divide(small, large, out=np.ones_like(small), where=large > 0.0))
