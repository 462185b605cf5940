"""How well clusters match known topics: accuracy, NMI, purity and the adjusted Rand index.

Labels are numbers or strings, one for each of n samples; their names never matter. All measures are
from 0 to 1, but the adjusted Rand index, which may be below 0. Samples without a cluster, whose
label is −1, count as one cluster of their own; `coverage` says how many the others are.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment

from gmkcf_dask.errors import InputError
from gmkcf_dask.methods.members import NO_CLUSTER

LabelsLike = Sequence[Any] | npt.NDArray[Any]
Counts = npt.NDArray[np.int64]
Codes = npt.NDArray[np.intp]


def clustering_accuracy(labels_true: LabelsLike, labels_pred: LabelsLike) -> float:
    """Return the share of samples that agree under the best one-to-one map of clusters to classes.

    >>> clustering_accuracy(["a", "a", "b", "b"], [1, 1, 0, 1])
    0.75
    """
    table = _contingency(labels_true, labels_pred)
    matched = linear_sum_assignment(table, maximize=True)
    return float(table[matched].sum() / table.sum())


def nmi_max(labels_true: LabelsLike, labels_pred: LabelsLike) -> float:
    """Return the mutual information divided by the larger of the two entropies.

    Two groupings that both put everything in one group agree fully (1); if only one of them does,
    it says nothing about the other (0).

    >>> nmi_max(["a", "a", "b", "b"], [7, 7, 3, 3])
    1.0
    >>> nmi_max(["a", "a", "b", "b"], [0, 1, 0, 1])
    0.0
    """
    score = _sklearn_score(
        "normalized_mutual_info_score", labels_true, labels_pred, average_method="max"
    )
    return min(max(score, 0.0), 1.0)  # rounding


def purity(labels_true: LabelsLike, labels_pred: LabelsLike) -> float:
    """Return the share of samples that belong to the largest class of their cluster.

    It can only grow when clusters are split.

    >>> purity(["a", "a", "b", "b"], [0, 1, 2, 2])
    1.0
    """
    table = _contingency(labels_true, labels_pred)
    return float(table.max(axis=0).sum() / table.sum())


def adjusted_rand(labels_true: LabelsLike, labels_pred: LabelsLike) -> float:
    """Return the agreement on pairs of samples, corrected for chance (Hubert and Arabie, 1985).

    At most 1; about 0 for random groupings.

    >>> adjusted_rand(["a", "a", "b", "b"], [0, 0, 1, 1])
    1.0
    """
    return _sklearn_score("adjusted_rand_score", labels_true, labels_pred)


def _sklearn_score(
    name: str, labels_true: LabelsLike, labels_pred: LabelsLike, **options: Any
) -> float:
    from sklearn import metrics  # slow to import

    codes = _codes(labels_true, labels_pred)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The number of unique classes")  # they may be many
        return float(getattr(metrics, name)(*codes, **options))


def scores(labels_true: LabelsLike, labels_pred: LabelsLike) -> dict[str, float]:
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
    codes = _codes(labels_true, labels_pred)
    return {
        "ACC": clustering_accuracy(*codes),
        "NMI": nmi_max(*codes),
        "purity": purity(*codes),
        "ARI": adjusted_rand(*codes),
    }


def coverage(labels_pred: LabelsLike) -> float:
    """Return the share of samples that have a cluster.

    >>> coverage([0, 1, -1, 0])
    0.75
    """
    labels = np.asarray(labels_pred).astype(str)
    if not labels.size:
        raise InputError("there are no labels to score: give at least one sample.")
    return float((labels != str(NO_CLUSTER)).mean())


def confusion(
    labels_true: LabelsLike, labels_pred: LabelsLike, n_clusters: int
) -> tuple[list[str], list[int], Counts]:
    """Return topics, clusters and counts, shape (n_topics, n_clusters), of samples in both.

    Predicted labels are from 0 to n_clusters − 1. Topics that the best one-to-one map gives a
    cluster come first, by name; clusters are in the order of the topics they are mapped to. Where
    there are samples without a cluster the last column, −1, counts them.

    >>> topics, clusters, counts = confusion(["a", "a", "b"], [1, 1, 0], 2)
    >>> topics, clusters, counts.tolist()
    (['a', 'b'], [1, 0], [[2, 0], [0, 1]])
    """
    topics, of = np.unique(np.asarray(labels_true).astype(str), return_inverse=True)
    counts = np.zeros((len(topics), n_clusters + 1), dtype=np.int64)
    np.add.at(counts, (of, np.asarray(labels_pred)), 1)
    matched = linear_sum_assignment(counts[:, :n_clusters], maximize=True)
    rows, columns = (list(map(int, way)) for way in matched)
    rows += [i for i in range(len(topics)) if i not in rows]
    columns += [c for c in range(n_clusters) if c not in columns]
    columns += [NO_CLUSTER] if counts[:, NO_CLUSTER].any() else []
    return [str(topics[i]) for i in rows], columns, counts[np.ix_(rows, columns)]


def _contingency(labels_true: LabelsLike, labels_pred: LabelsLike) -> Counts:
    """Count the samples of class i in cluster j, shape (n_classes, n_clusters)."""
    classes, clusters = _codes(labels_true, labels_pred)
    table = np.zeros((classes.max() + 1, clusters.max() + 1), dtype=np.int64)
    np.add.at(table, (classes, clusters), 1)
    return table


def _codes(labels_true: LabelsLike, labels_pred: LabelsLike) -> tuple[Codes, Codes]:
    """Numbers from 0 for the distinct values of both labelings."""
    both = []
    for name, labels in (("labels_true", labels_true), ("labels_pred", labels_pred)):
        values = np.asarray(labels)
        if values.ndim != 1:
            raise InputError(
                f"{name} has {values.ndim} dimension(s) but must be one list of labels."
            )
        if values.dtype.kind == "O":
            values = values.astype(str)  # of a data frame: str and int cannot be sorted together
        both.append(np.unique(values, return_inverse=True)[1])
    classes, clusters = both
    if len(classes) != len(clusters):
        raise InputError(
            f"there are {len(classes)} true labels but {len(clusters)} predicted ones: give one "
            "of each per sample, in the same order."
        )
    if len(classes) == 0:
        raise InputError("there are no labels to score: give at least one sample.")
    return classes, clusters
