"""Labels from the direction of rows: spherical k-means.

K-means on V measures lengths as well, and samples that no concept explains well, short texts above
all, end in one large cluster around zero. Directions have no such cluster.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy import sparse

from gmkcf_dask.compute.blas import on_cores, one_blas_thread
from gmkcf_dask.system.arrays import Floats, Labels

STARTS = 10
MAX_ITER = 100
LEAST_GAIN = 1e-6
"""Of the mean cosine to the own centre: steps that gain no more are not worth their time."""
_CANCELLED = 1e-12
"""Length of a sum of unit rows that is 0 but for rounding."""


def spherical_kmeans(
    rows: Floats, n_clusters: int, seed: int, n_init: int = STARTS, max_iter: int = MAX_ITER
) -> Floats:
    """Centres of clusters of directions: maximise Σ_j ⟨row_j, centre of its cluster⟩.

    Each start has one thread, so the result does not depend on the number of cores.

    Parameters
    ----------
    rows : ndarray, shape (n, r)
        Of any length; a row of zeros has no direction and takes no part.
    n_clusters : int
    seed : int
    n_init : int
        Greedy k-means++ starts; the best is kept.

    Returns
    -------
    centres : ndarray, shape (k, r)
        Of unit length; zeros where no row has a direction.
    """
    unit = normalized_rows(rows)[has_direction(rows)]
    if not len(unit):
        return np.zeros((n_clusters, rows.shape[1]))

    def run(stream: np.random.SeedSequence) -> tuple[list[float], Floats]:
        start = plus_plus(unit, n_clusters, np.random.default_rng(stream))
        return climb(unit, start, max_iter)

    with one_blas_thread():
        runs = on_cores(lambda: run, np.random.SeedSequence(seed).spawn(n_init))
    return max(runs, key=lambda run: run[0][-1])[1]  # the first of equals


def climb(unit: Floats, centres: Floats, max_iter: int = MAX_ITER) -> tuple[list[float], Floats]:
    """Lloyd's steps on the sphere, until they gain nothing: the objective never falls.

    Returns
    -------
    scores : list of float
        The objective with the start, then after every step.
    centres : ndarray, shape (k, r)
    """
    labels = np.full(len(unit), -1)
    scores: list[float] = []
    while True:
        similar = unit @ centres.T
        new = similar.argmax(axis=1)
        own = np.take_along_axis(similar, new[:, None], axis=1)[:, 0]
        scores.append(float(own.sum()))
        settled = len(scores) > 1 and scores[-1] - scores[-2] <= LEAST_GAIN * len(unit)
        if len(scores) > max_iter or settled or np.array_equal(new, labels):
            return scores, centres
        labels = new
        centres = _mean_directions(unit, labels, own, centres)


def _mean_directions(unit: Floats, labels: Labels, own: Floats, before: Floats) -> Floats:
    """New centres; those without samples move to the samples that are served worst."""
    k, n = len(before), len(labels)
    members = sparse.csr_array((np.ones(n), (labels, np.arange(n))), shape=(k, n))
    sums = np.asarray(members @ unit)
    empty = np.flatnonzero(np.bincount(labels, minlength=k) == 0)[:n]
    if len(empty):
        sums[empty] = unit[np.argsort(own, kind="stable")[: len(empty)]]
    lengths = np.linalg.norm(sums, axis=1)
    # members that cancel out: any centre serves them alike, so it stays
    cancelled = lengths < _CANCELLED
    return np.where(cancelled[:, None], before, sums / np.where(cancelled, 1.0, lengths)[:, None])


def plus_plus(unit: Floats, k: int, rng: np.random.Generator) -> Floats:
    """Greedy k-means++ with d² = 2 − 2 cos: of 2 + log k candidates the best is kept. (k, r)."""
    n_candidates = 2 + int(np.log(k))
    first = int(rng.integers(len(unit)))
    chosen, distance = [first], np.maximum(2.0 - 2.0 * (unit @ unit[first]), 0.0)
    for _ in range(1, k):
        total = np.cumsum(distance)
        draws = rng.random(n_candidates) * total[-1]
        candidates = np.minimum(np.searchsorted(total, draws), len(unit) - 1)
        new = np.maximum(2.0 - 2.0 * (unit @ unit[candidates].T), 0.0)
        both = np.minimum(distance[:, None], new)
        best = int(both.sum(axis=0).argmin())
        chosen.append(int(candidates[best]))
        distance = both[:, best]
    return unit[chosen]


def normalized_rows(rows: Floats) -> Floats:
    """Rows at unit length; a row of zeros stays."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.where(lengths > 0, lengths, 1.0))


def has_direction(rows: Floats) -> npt.NDArray[np.bool_]:
    """Of every row, whether it is not all zero, shape (n,); squares that vanish are zeros."""
    return np.asarray(np.linalg.norm(rows, axis=1) > 0)


def cosines(rows: Floats, centres: Floats) -> Floats:
    """Of every row with every unit centre, shape (n, k); no row depends on the others."""
    unit = normalized_rows(rows)
    return np.stack([(unit * centre).sum(axis=1) for centre in centres], axis=1)
