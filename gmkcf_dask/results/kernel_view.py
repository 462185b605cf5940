"""Clusters as the kernels see them, from sums between groups of samples: nothing here is n×n.

One overview serves all: groups are parts of clusters, so sums of clusters are sums of groups. A
sample's similarity to itself says nothing about its cluster and is left out of all means.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gmkcf_dask.compute.costs import SUMMED_AT_ONCE
from gmkcf_dask.compute.operators import KernelStack, Overview
from gmkcf_dask.methods.members import NO_CLUSTER, member_matrix
from gmkcf_dask.results.membership import Membership
from gmkcf_dask.system.arrays import Floats
from gmkcf_dask.system.units import MIB

N_GROUPS = 120
"""Groups the samples are cut into, for a picture of the fused kernel."""
OVERVIEW_BYTES = 16 * MIB
"""What summing the sums of all kernels may hold at once."""
HIGH_CORRELATION = 0.99
"""Correlation from which two kernels are nearly the same."""


@dataclass(frozen=True)
class Grouping:
    """Samples in the order of their clusters, the largest first and the surest first in each.

    Samples without a cluster are one group more, the last: sums go over all samples.
    """

    of: npt.NDArray[np.int32]  # (n,), group of every sample
    clusters: npt.NDArray[np.intp]  # (g,), cluster of every group: none has samples of two
    sizes: npt.NDArray[np.intp]  # (g,)

    @property
    def n_placed(self) -> int:
        """Groups of samples that have a cluster; they come first."""
        return int((self.clusters != NO_CLUSTER).sum())


def group_samples(members: Membership, n_kernels: int) -> Grouping:
    """Cut every cluster into groups of about the same size, as many as their sums have room."""
    room = OVERVIEW_BYTES // ((SUMMED_AT_ONCE + 1) * 8 * n_kernels)
    most = max(1, min(N_GROUPS, int(room**0.5)))
    n, of = len(members.labels), np.zeros(len(members.labels), np.int32)
    clusters: list[int] = []
    sizes: list[int] = []
    for cluster in np.argsort(-members.sizes, kind="stable"):
        size = int(members.sizes[cluster])
        if not size:
            continue
        parts = max(1, round(most * size / n))
        inside = np.flatnonzero(members.labels == cluster)
        ranked = inside[np.lexsort((inside, -members.sure[inside]))]
        for part in np.array_split(ranked, min(parts, size)):
            of[part] = len(sizes)
            clusters.append(int(cluster))
            sizes.append(len(part))
    without = ~members.placed
    if without.any():
        of[without] = len(sizes)
        clusters.append(NO_CLUSTER)
        sizes.append(int(without.sum()))
    return Grouping(of, np.array(clusters), np.array(sizes))


@dataclass(frozen=True)
class KernelView:
    """Mean similarities between groups and between clusters, in every kernel and the fused one.

    The weights of the fused kernel are scaled to a sum of 1. NaN where there is no pair. Samples
    without a cluster have no part in any mean.
    """

    overview: Overview
    group_means: Floats  # (g, g), in the fused kernel, between groups that have a cluster
    inside: Floats  # (m, k), in every kernel between two samples of a cluster
    outside: Floats  # (m, k), between samples of the cluster and all others
    between: Floats  # (k, k), in the fused kernel; on the diagonal between two of one cluster
    overall: float  # in the fused kernel between any two samples
    same: float  # between two samples of one cluster, whichever it is
    apart: float  # between samples of different clusters
    compared: float  # share of the pairs over which kernels were compared with each other

    def relative(self, cluster: int, other: int) -> float | None:
        """Mean fused similarity between two clusters, 1 for that of any two samples."""
        value = self.between[cluster, other]
        return float(value / self.overall) if self.overall > 0 and np.isfinite(value) else None

    def nearest(self, cluster: int) -> list[tuple[int, float]]:
        """The three clusters most similar to one, and how similar."""
        others = [(self.relative(cluster, c), c) for c in range(len(self.between)) if c != cluster]
        known = [(-value, c) for value, c in others if value is not None]
        return [(c, -value) for value, c in sorted(known)[:3]]

    def contrasts(self, cluster: int) -> Floats:
        """(mean inside − mean to others) / standard deviation of a kernel's entries, shape (m,)."""
        spread = self.overview.deviations()
        apart = self.inside[:, cluster] - self.outside[:, cluster]
        return np.divide(apart, spread, out=np.zeros_like(apart), where=spread > 0)


def view_kernels(
    stack: KernelStack, coefficients: Floats, members: Membership, grouping: Grouping
) -> KernelView:
    """What one sweep over all kernels says about clusters.

    Of the m coefficients of the fused kernel only the proportions count.
    """
    m, g = len(stack.names), len(grouping.sizes)
    overview = stack.overview(grouping.of, g)
    own = np.array([np.bincount(grouping.of, stack.diagonal(i), g) for i in range(m)])
    shares = coefficients / coefficients.sum()
    of_cluster = member_matrix(grouping.clusters, len(members.sizes))
    sizes = members.sizes.astype(np.float64)
    sums = of_cluster.T @ overview.sums @ of_cluster
    own_of_cluster = own @ of_cluster
    inside = np.array(
        [_pair_means(S, d, sizes).diagonal() for S, d in zip(sums, own_of_cluster, strict=True)]
    )
    diagonals = np.diagonal(sums, axis1=1, axis2=2)
    pairs = np.where(sizes > 0, sizes * (sizes.sum() - sizes), 0.0)
    outside = _ratio(sums.sum(axis=2) - diagonals, pairs)
    fused = np.tensordot(shares, sums, 1)
    n = sizes.sum()
    own_fused = shares @ own_of_cluster
    overall = (fused.sum() - own_fused.sum()) / (n * (n - 1)) if n > 1 else 0.0
    placed = slice(grouping.n_placed)
    group_own, group_sizes = (shares @ own)[placed], grouping.sizes[placed]
    group_means = _pair_means(
        np.tensordot(shares, overview.sums, 1)[placed, placed],
        group_own,
        group_sizes.astype(np.float64),
    )
    own_sum = fused.trace() - own_fused.sum()
    pairs_inside = (sizes * (sizes - 1)).sum()
    alone = np.flatnonzero(group_sizes == 1)
    group_means[alone, alone] = group_own[alone]  # there is nothing else to show
    pairs_of_all = len(grouping.of) * (len(grouping.of) - 1)
    return KernelView(
        overview,
        group_means,
        inside,
        outside,
        _pair_means(fused, own_fused, sizes),
        float(overall),
        float(_ratio(np.array(own_sum), np.array(pairs_inside))),
        float(_ratio(np.array(fused.sum() - fused.trace()), np.array(n * n - (sizes**2).sum()))),
        min(1.0, overview.entries / pairs_of_all) if pairs_of_all else 1.0,
    )


def near_kernels(correlation: Floats, names: tuple[str, ...]) -> list[tuple[str, str, float]]:
    """Pairs of kernels that are nearly the same, the most alike first."""
    pairs = [
        (names[i], names[j], float(correlation[i, j]))
        for i in range(len(names))
        for j in range(i + 1, len(names))
        if correlation[i, j] > HIGH_CORRELATION
    ]
    return sorted(pairs, key=lambda pair: -pair[2])


def _pair_means(sums: Floats, own: Floats, sizes: Floats) -> Floats:
    """Means over pairs of two different samples; NaN where there is none. Shape (g, g)."""
    pairs = np.outer(sizes, sizes) - np.diag(sizes)
    return _ratio(sums - np.diag(own), pairs)


def _ratio(sums: Floats, counts: Floats) -> Floats:
    counts = np.broadcast_to(counts, sums.shape)
    return np.asarray(np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0))
