"""What the clusters are about, from features read a row block at a time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gmkcf_dask.kernels.features import Features

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ClusterSummary:
    """Size of a cluster and the terms that set it apart, most telling first."""

    label: int
    size: int
    terms: tuple[str, ...]


def summarize_clusters(
    labels: npt.NDArray[np.integer],
    features: Features | None,
    terms: tuple[str, ...] | None,
    n_terms: int = 8,
    rows_at_once: int = 4096,
) -> list[ClusterSummary]:
    """Sizes, and top terms where the features have names.

    A term ranks by how far its mean weight inside the cluster lies above its mean over all.
    """
    n_clusters = int(labels.max()) + 1
    sizes = np.bincount(labels, minlength=n_clusters)
    named: list[tuple[str, ...]] = [()] * n_clusters
    if features is not None and terms is not None:
        sums = np.zeros((n_clusters, len(terms)))
        for start in range(0, features.n_samples, rows_at_once):
            where = slice(start, min(start + rows_at_once, features.n_samples))
            sums += _sums_by_label(features, where, labels, n_clusters)
        above = sums / np.maximum(sizes, 1)[:, None] - sums.sum(axis=0) / len(labels)
        named = [tuple(terms[i] for i in np.argsort(-row)[:n_terms] if row[i] > 0) for row in above]
    return [
        ClusterSummary(c, int(size), words)
        for c, (size, words) in enumerate(zip(sizes, named, strict=True))
    ]


def _sums_by_label(
    features: Features,
    where: slice,
    labels: npt.NDArray[np.integer],
    n_clusters: int,
) -> Floats:
    X = features.rows(where)
    member = (labels[where][None, :] == np.arange(n_clusters)[:, None]).astype(np.float64)
    return np.asarray((X.T @ member.T).T)
