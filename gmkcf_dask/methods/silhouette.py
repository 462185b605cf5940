"""How clearly clusters lie apart: silhouettes (Rousseeuw 1987) from distances or from kernels."""

from __future__ import annotations

import numpy as np

from gmkcf_dask.methods.members import NO_CLUSTER
from gmkcf_dask.system.arrays import Floats, Labels


def kernel_silhouette(KH: Floats, diagonal: Floats, labels: Labels) -> float:
    """Mean silhouette of all samples in a kernel's own space, by mean *squared* distances.

    These follow from K's diagonal and from K H, shape (n, k), where H_jc is 1 for the samples j of
    cluster c and 0 elsewhere. Samples without a cluster are left out.
    """
    placed = labels != NO_CLUSTER
    if not placed.all():
        KH, diagonal, labels = KH[placed], diagonal[placed], labels[placed]
    k, rows = KH.shape[1], np.arange(len(labels))
    size = np.bincount(labels, minlength=k).astype(np.float64)
    lengths = np.bincount(labels, weights=diagonal, minlength=k)
    used = np.maximum(size, 1.0)
    means = np.maximum(diagonal[:, None] + lengths / used - 2 * KH / used, 0.0)
    inside = means[rows, labels] * size[labels] / np.maximum(size[labels] - 1, 1)
    means[:, size == 0] = np.inf
    means[rows, labels] = np.inf
    return mean_silhouette(inside, means.min(axis=1), size[labels])


def mean_silhouette(inside: Floats, outside: Floats, size: Floats) -> float:
    """From mean distances to the own and to the next cluster, shape (s,); 0 for one alone."""
    larger = np.maximum(inside, outside)
    valid = (larger > 0) & np.isfinite(larger) & (size > 1)
    gain = np.where(valid, outside, 0.0) - np.where(valid, inside, 0.0)
    return float(np.mean(gain / np.where(valid, larger, 1.0)))
