"""Labels as counts and as a matrix. A sample with the label −1 belongs to no cluster."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gmkcf_dask.system.arrays import Floats

NO_CLUSTER = -1
"""Label of a sample without a direction, such as a document without usable words."""


def cluster_sizes(labels: npt.NDArray[np.integer[Any]], n_clusters: int) -> npt.NDArray[np.intp]:
    """Samples of every cluster, shape (k,).

    >>> cluster_sizes(np.array([1, -1, 1]), 3).tolist()
    [0, 2, 0]
    """
    return np.bincount(labels[labels != NO_CLUSTER], minlength=n_clusters)


def member_matrix(labels: npt.NDArray[np.integer[Any]], n_clusters: int) -> Floats:
    """1 where a sample is in a cluster, shape (n, k); a row without a cluster is 0.

    >>> member_matrix(np.array([1, -1]), 2).tolist()
    [[0.0, 1.0], [0.0, 0.0]]
    """
    return np.asarray(np.eye(n_clusters + 1, n_clusters)[labels])
