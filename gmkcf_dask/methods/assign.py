"""From the representation V to labels."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

from gmkcf_dask.errors import NumericsWarning

Floats = npt.NDArray[np.float64]
KMEANS_STARTS = 20


def kmeans_labels(
    V: Floats, n_clusters: int, seed: int, n_init: int = KMEANS_STARTS
) -> npt.NDArray[np.int32]:
    """K-means (k-means++, 20 starts) on the rows of V, shape (n,).

    One thread: with more, sums and therefore labels could change from machine to machine.
    """
    state = int(np.random.SeedSequence(seed).generate_state(1)[0])
    model: Any = KMeans(n_clusters=n_clusters, n_init=n_init, random_state=state)
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        labels: npt.NDArray[np.int32] = model.fit(V).labels_
    found = len(np.unique(labels))
    if found < n_clusters:
        warnings.warn(
            f"only {found} of {n_clusters} clusters are used: the representation has too few "
            "distinct rows, a smaller k describes these samples as well",
            NumericsWarning,
            stacklevel=2,
        )
    return labels
