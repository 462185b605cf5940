"""What clusters are about: the terms, or the columns, that set them apart.

Features are read once, a row block at a time; what is kept are sums by cluster and by concept.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from msgspec import UNSET

from gmkcf_dask.corpus.model import Matrix
from gmkcf_dask.kernels.features import Features
from gmkcf_dask.methods.members import NO_CLUSTER, cluster_sizes, member_matrix
from gmkcf_dask.results.schemas import Term
from gmkcf_dask.system.arrays import AnyLabels, Floats

N_TERMS = 10
ROWS_AT_ONCE = 4096
MOST_SUMS = 1 << 25
"""Entries of sums by concept: beyond, with a million of terms, concepts go without their own."""
CONSTANT = 1e-12
"""Variance of a column, as a part of its mean square, that is rounding."""


@dataclass(frozen=True)
class Profile:
    """Sums of the features of the samples that have a cluster."""

    sizes: npt.NDArray[np.intp]  # (k,)
    sums: Floats  # (k, d), by cluster
    squares: Floats  # (d,), sums of squares over all clusters
    by_concept: Floats | None  # (c, d), Uᵀ X: every concept as a weighted sum of samples
    nonnegative: bool  # no feature is below 0


def read_profile(
    labels: AnyLabels, n_clusters: int, features: Features | None, U: Floats | None = None
) -> Profile | None:
    """Read all features once; None where there are none."""
    if features is None:
        return None
    n, sizes = features.n_samples, cluster_sizes(labels, n_clusters)
    sums = squares = by_concept = np.zeros(0)
    nonnegative = True
    for start in range(0, n, ROWS_AT_ONCE):
        where = slice(start, min(start + ROWS_AT_ONCE, n))
        X = features.rows(where)
        if start == 0:
            sums, squares = np.zeros((n_clusters, X.shape[1])), np.zeros(X.shape[1])
            if U is not None and U.shape[1] * X.shape[1] > MOST_SUMS:
                U = None
            by_concept = np.zeros((0 if U is None else U.shape[1], X.shape[1]))
        sums += _weighted(X, member_matrix(labels[where], n_clusters))
        placed = labels[where] != NO_CLUSTER
        squares += _squares(X if placed.all() else X[placed])
        nonnegative = nonnegative and bool(X.min() >= 0)
        if U is not None:
            by_concept += _weighted(X, U[where])
    return Profile(sizes, sums, squares, None if U is None else by_concept, nonnegative)


def has_words(texts: bool | None, terms: tuple[str, ...] | None, profile: Profile | None) -> bool:
    """Whether names of features are words that documents have more or less of.

    `texts` says whether the features were made of texts; None where nobody knows.
    """
    if terms is None or profile is None or not profile.nonnegative:
        return False
    return texts is None or texts


def cluster_terms(
    profile: Profile | None, terms: tuple[str, ...] | None, texts: bool | None = None
) -> list[list[Term]]:
    """What sets every cluster apart, most telling first.

    Terms of documents by class-based TF-IDF; other columns by how far their mean inside lies from
    that outside. Nothing for texts whose words were hashed: the numbers of columns say nothing.
    """
    if profile is None or (texts and terms is None):
        return []
    if has_words(texts, terms, profile):
        assert terms is not None
        return [_top(row, terms) for row in class_tf_idf(profile.sums)]
    names = terms or tuple(f"column {number}" for number in range(profile.sums.shape[1]))
    return [_top(row, names, signed=True) for row in mean_differences(profile)]


def concept_terms(
    profile: Profile | None, terms: tuple[str, ...] | None, V: Floats | None, labels: AnyLabels
) -> list[list[Term]]:
    """For every cluster the terms of the concept that has most of it; none without U or terms.

    A term counts by how far its share of the concept lies above its share of all concepts in the
    mean: words that every concept needs say nothing.
    """
    if profile is None or profile.by_concept is None or terms is None or V is None:
        return []
    if not profile.nonnegative:
        return []
    shares = _shares(profile.by_concept)
    above = shares - shares.mean(axis=0)
    mass = np.zeros((len(profile.sizes), V.shape[1]))
    placed = labels != NO_CLUSTER
    np.add.at(mass, labels[placed], V[placed])
    return [
        _top(above[int(row.argmax())], terms) if size else []
        for row, size in zip(mass, profile.sizes, strict=True)
    ]


def class_tf_idf(sums: Floats) -> Floats:
    """Weights of terms in classes, from the sums of their weights in documents, shape (k, d).

    The share of a term in the class, as far as it is above its share of all classes together, times
    log(1 + A / f): f is the sum of the term over all classes and A the mean sum of all terms in a
    class. All documents of a class count as one; a term that is frequent everywhere counts little,
    also in a class so large that its words are nearly those of all. A single class has nothing to
    be compared with: there the share itself counts.
    """
    totals = sums.sum(axis=1)
    frequency = sums.sum(axis=0)
    classes = int((totals > 0).sum())
    rare = np.divide(
        totals.sum() / max(1, classes), frequency, out=np.zeros_like(frequency), where=frequency > 0
    )
    usual = _shares(frequency[None]) if classes > 1 else 0.0
    return np.asarray(np.maximum(_shares(sums) - usual, 0.0) * np.log1p(rare))


def mean_differences(profile: Profile) -> Floats:
    """(mean inside − mean outside) / standard deviation over all, shape (k, d)."""
    n, sizes = int(profile.sizes.sum()), profile.sizes[:, None]
    total = profile.sums.sum(axis=0)
    square = profile.squares / n
    variance = square - (total / n) ** 2
    varies = variance > CONSTANT * square
    inside = profile.sums / np.maximum(sizes, 1)
    outside = (total - profile.sums) / np.maximum(n - sizes, 1)
    apart = np.where((sizes > 0) & (sizes < n), inside - outside, 0.0)
    spread = np.sqrt(np.where(varies, variance, 1.0))
    return np.asarray(np.where(varies, apart / spread, 0.0))


def _shares(sums: Floats) -> Floats:
    totals = sums.sum(axis=1, keepdims=True)
    return np.asarray(np.divide(sums, totals, out=np.zeros_like(sums), where=totals > 0))


def _top(scores: Floats, names: tuple[str, ...], *, signed: bool = False) -> list[Term]:
    strength = np.abs(scores) if signed else scores
    most = min(N_TERMS, len(scores))
    # the largest without sorting all; of equals the first
    least = np.partition(strength, len(scores) - most)[len(scores) - most]
    candidates = np.flatnonzero(strength >= max(least, np.finfo(float).tiny))
    ranked = candidates[np.argsort(-strength[candidates], kind="stable")][:most]
    return [
        Term(names[i], float(f"{strength[i]:.6g}"), bool(scores[i] > 0) if signed else UNSET)
        for i in ranked
    ]


def _squares(X: Matrix) -> Floats:
    """Sums of squares by column, shape (d,)."""
    if isinstance(X, np.ndarray):
        return np.asarray(np.einsum("ij,ij->j", X, X))
    return np.asarray(X.multiply(X).sum(axis=0), dtype=np.float64).ravel()


def _weighted(X: Matrix, weights: Floats) -> Floats:
    """weightsᵀ X, shape (c, d)."""
    return np.asarray((X.T @ weights).T)
