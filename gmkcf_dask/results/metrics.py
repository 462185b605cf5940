"""How well clusters match known topics: accuracy, NMI, purity and the adjusted Rand index.

All four read one table: how many samples of each class fell into each cluster. Labels may be
numbers or strings, and their names never matter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment

from gmkcf_dask.errors import InputError

Labels = Sequence[Any] | npt.NDArray[Any]
Counts = npt.NDArray[np.int64]


def clustering_accuracy(labels_true: Labels, labels_pred: Labels) -> float:
    """Return the share of samples that agree under the best one-to-one map of clusters to classes.

    Parameters
    ----------
    labels_true, labels_pred : sequence of str or int, length n_samples

    Returns
    -------
    float
        Between 0 and 1.

    Examples
    --------
    >>> clustering_accuracy(["a", "a", "b", "b"], [1, 1, 0, 1])
    0.75
    """
    return _accuracy(_contingency(labels_true, labels_pred))


def nmi_max(labels_true: Labels, labels_pred: Labels) -> float:
    """Return the mutual information divided by the larger of the two entropies.

    Two groupings that both put everything in one group agree fully (1); if only one of them does,
    it says nothing about the other (0).

    Parameters
    ----------
    labels_true, labels_pred : sequence of str or int, length n_samples

    Returns
    -------
    float
        Between 0 and 1.

    Examples
    --------
    >>> nmi_max(["a", "a", "b", "b"], [7, 7, 3, 3])
    1.0
    >>> nmi_max(["a", "a", "b", "b"], [0, 1, 0, 1])
    0.0
    """
    return _nmi_max(_contingency(labels_true, labels_pred))


def purity(labels_true: Labels, labels_pred: Labels) -> float:
    """Return the share of samples that belong to the largest class of their cluster.

    Parameters
    ----------
    labels_true, labels_pred : sequence of str or int, length n_samples

    Returns
    -------
    float
        Between 0 and 1; it can only grow when clusters are split.

    Examples
    --------
    >>> purity(["a", "a", "b", "b"], [0, 1, 2, 2])
    1.0
    """
    return _purity(_contingency(labels_true, labels_pred))


def adjusted_rand(labels_true: Labels, labels_pred: Labels) -> float:
    """Return the agreement on pairs of samples, corrected for chance (Hubert and Arabie, 1985).

    Parameters
    ----------
    labels_true, labels_pred : sequence of str or int, length n_samples

    Returns
    -------
    float
        At most 1; about 0 for random groupings.

    Examples
    --------
    >>> adjusted_rand(["a", "a", "b", "b"], [0, 0, 1, 1])
    1.0
    """
    return _adjusted_rand(_contingency(labels_true, labels_pred))


def scores(labels_true: Labels, labels_pred: Labels) -> dict[str, float]:
    """Return all measures by name.

    Parameters
    ----------
    labels_true, labels_pred : sequence of str or int, length n_samples

    Returns
    -------
    dict of str to float
        With the keys ACC, NMI, purity and ARI.

    Examples
    --------
    >>> scores(["a", "a", "b", "b"], [1, 1, 0, 0])
    {'ACC': 1.0, 'NMI': 1.0, 'purity': 1.0, 'ARI': 1.0}
    """
    table = _contingency(labels_true, labels_pred)
    return {
        "ACC": _accuracy(table),
        "NMI": _nmi_max(table),
        "purity": _purity(table),
        "ARI": _adjusted_rand(table),
    }


def confusion(
    labels_true: Labels, labels_pred: Labels, n_clusters: int
) -> tuple[list[str], list[int], Counts]:
    """Return how many samples of every topic are in every cluster.

    Parameters
    ----------
    labels_true : sequence of str or int, length n_samples
    labels_pred : sequence of int, length n_samples
        From 0 to n_clusters − 1.
    n_clusters : int

    Returns
    -------
    topics : list of str
        Those that the best one-to-one map gives a cluster, by name, then the others.
    clusters : list of int
        In the order of the topics they are mapped to, then the others.
    counts : ndarray of int, shape (n_topics, n_clusters)

    Examples
    --------
    >>> topics, clusters, counts = confusion(["a", "a", "b"], [1, 1, 0], 2)
    >>> topics, clusters, counts.tolist()
    (['a', 'b'], [1, 0], [[2, 0], [0, 1]])
    """
    topics, of = np.unique(np.asarray(labels_true).astype(str), return_inverse=True)
    counts = np.zeros((len(topics), n_clusters), dtype=np.int64)
    np.add.at(counts, (of, np.asarray(labels_pred)), 1)
    rows, columns = (list(map(int, way)) for way in linear_sum_assignment(counts, maximize=True))
    rows += [i for i in range(len(topics)) if i not in rows]
    columns += [c for c in range(n_clusters) if c not in columns]
    return [str(topics[i]) for i in rows], columns, counts[np.ix_(rows, columns)]


def _contingency(labels_true: Labels, labels_pred: Labels) -> Counts:
    """Count the samples of class i in cluster j, shape (n_classes, n_clusters)."""
    classes, class_of = _codes("labels_true", labels_true)
    clusters, cluster_of = _codes("labels_pred", labels_pred)
    if len(class_of) != len(cluster_of):
        raise InputError(
            f"there are {len(class_of)} true labels but {len(cluster_of)} predicted ones: give one "
            "of each per sample, in the same order."
        )
    if len(class_of) == 0:
        raise InputError("there are no labels to score: give at least one sample.")
    table = np.zeros((classes, clusters), dtype=np.int64)
    np.add.at(table, (class_of, cluster_of), 1)
    return table


def _codes(name: str, labels: Labels) -> tuple[int, npt.NDArray[np.intp]]:
    values = np.asarray(labels)
    if values.ndim != 1:
        raise InputError(f"{name} has {values.ndim} dimension(s) but must be one list of labels.")
    if values.dtype.kind == "O":
        # Columns of a data frame: str and int cannot be sorted together.
        values = values.astype(str)
    distinct, codes = np.unique(values, return_inverse=True)
    return len(distinct), codes


def _accuracy(table: Counts) -> float:
    matched = linear_sum_assignment(table, maximize=True)
    return float(table[matched].sum() / table.sum())


def _nmi_max(table: Counts) -> float:
    n = table.sum()
    larger = max(_entropy(table.sum(axis=1) / n), _entropy(table.sum(axis=0) / n))
    if larger == 0:
        return 1.0
    independent = np.outer(table.sum(axis=1), table.sum(axis=0)) / n
    filled = table > 0
    counts = table[filled]
    information = float(np.sum(counts / n * np.log(counts / independent[filled])))
    return min(max(information / larger, 0.0), 1.0)


def _entropy(shares: npt.NDArray[np.float64]) -> float:
    return float(-np.sum(shares * np.log(shares)))


def _purity(table: Counts) -> float:
    return float(table.max(axis=0).sum() / table.sum())


def _adjusted_rand(table: Counts) -> float:
    together = _pairs(table)
    in_classes, in_clusters = _pairs(table.sum(axis=1)), _pairs(table.sum(axis=0))
    everything = math.comb(int(table.sum()), 2)
    if in_classes == in_clusters == together:
        return 1.0
    by_chance = in_classes * in_clusters / everything
    return (together - by_chance) / ((in_classes + in_clusters) / 2 - by_chance)


def _pairs(counts: Counts) -> int:
    return int(np.sum(counts * (counts - 1) // 2))
