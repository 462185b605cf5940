"""How clearly samples belong to their clusters, from the representation the labels came from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gmkcf_dask.compute.operators import KernelStack
from gmkcf_dask.methods.base import Clustering
from gmkcf_dask.methods.contrast import fusion_weights
from gmkcf_dask.methods.members import NO_CLUSTER, cluster_sizes, member_matrix
from gmkcf_dask.system.arrays import AnyLabels, Floats

SHOWN = 5
"""Samples named for a cluster: the most central, and as many of the most doubtful."""
CLEAR = 0.2
"""`sure` from which a sample lies clearly inside: its centre is nearer by a fifth than any other.
"""


@dataclass(frozen=True)
class Membership:
    """Samples and the centres of clusters, in the representation that was clustered."""

    rows: Floats  # (n, r)
    centres: Floats  # (k, r), means of the clusters; of an empty cluster NaN
    distances: Floats  # (n, k), samples to centres; infinite where a cluster is empty
    sure: Floats  # (n,)
    """1 − d(own centre) / d(nearest other centre), clipped to 0 … 1: 1 at the centre, 0 halfway to
    another one or beyond. Where there is only one cluster, 1. A cluster of one says nothing about
    how clearly its sample belongs to it: 0 there. A sample without a cluster has 0, too."""
    labels: AnyLabels  # (n,), −1 where a sample has no cluster

    @property
    def sizes(self) -> npt.NDArray[np.intp]:
        """Samples of every cluster, shape (k,)."""
        return cluster_sizes(self.labels, len(self.centres))

    @property
    def placed(self) -> npt.NDArray[np.bool_]:
        """Which samples have a cluster, shape (n,)."""
        return np.asarray(self.labels != NO_CLUSTER)

    @property
    def company(self) -> npt.NDArray[np.intp]:
        """Samples in the cluster of every sample, itself included, shape (n,); 0 without one."""
        return np.where(self.placed, self.sizes[self.labels], 0)

    @property
    def own(self) -> Floats:
        """Distance of every sample to its own centre, shape (n,); infinite without one."""
        own = self.distances[np.arange(len(self.labels)), self.labels]
        return np.where(self.placed, own, np.inf)

    def central_and_doubtful(self, cluster: int) -> tuple[list[int], list[int]]:
        """The samples that stand for a cluster, and the least sure, least first, of the others.

        The surest are central, of equals the nearest to the centre.
        """
        inside = np.flatnonzero(self.labels == cluster)
        ranked = inside[np.lexsort((inside, self.own[inside], -self.sure[inside]))].tolist()
        return ranked[:SHOWN], ranked[SHOWN:][::-1][:SHOWN]


def membership(rows: Floats, labels: AnyLabels, n_clusters: int) -> Membership:
    """What distances to the centres say, for a representation of shape (n, r)."""
    sizes, placed = cluster_sizes(labels, n_clusters), labels != NO_CLUSTER
    sums = np.zeros((n_clusters, rows.shape[1]))
    np.add.at(sums, labels[placed], rows[placed])
    filled = sizes > 0
    centres = np.full_like(sums, np.nan)
    centres[filled] = sums[filled] / sizes[filled, None]
    distances = np.full((len(rows), n_clusters), np.inf)
    for cluster in np.flatnonzero(filled):
        distances[:, cluster] = np.linalg.norm(rows - centres[cluster], axis=1)
    samples = np.arange(len(rows))
    own = distances[samples, labels]
    others = distances.copy()
    others[samples, labels] = np.inf
    second = others.min(axis=1)
    # two centres in one place: nobody belongs to the one more than to the other
    ratio = np.divide(own, second, out=np.ones_like(own), where=placed & (second > 0))
    sure = np.clip(1.0 - ratio, 0.0, 1.0)
    if filled.sum() > 1:
        sure[sizes[labels] == 1] = 0.0  # its centre is itself
    return Membership(rows, centres, distances, sure, labels)


def representation(
    stack: KernelStack, method: str, clustering: Clustering, n_clusters: int
) -> tuple[Floats, str]:
    """What the labels were read from, shape (n, r), and what a person calls it.

    V of a factorization, the embedding of spectral methods. The k-means methods have none: there it
    is the mean fused similarity of every sample to the others of every cluster, for one sweep.
    """
    if "V" in clustering.factors:
        return clustering.V, "the memberships of all samples (V)"
    if "embedding" in clustering.factors:
        return clustering.factors["embedding"], "the spectral embedding"
    weights = clustering.weights / clustering.weights.max()
    kernel = stack.fuse(fusion_weights(method, weights), keep=False)
    member = member_matrix(clustering.labels, n_clusters)
    sums = kernel.matmul(member) - member * kernel.diagonal()[:, None]  # not to themselves
    others = member.sum(axis=0) - member
    similarity = np.divide(sums, others, out=np.zeros_like(sums), where=others > 0)
    return similarity, "the mean similarity to each cluster"
