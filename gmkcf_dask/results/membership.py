"""How clearly samples belong to their clusters, from the representation the labels came from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gmkcf_dask.compute.operators import KernelStack
from gmkcf_dask.methods.base import Clustering
from gmkcf_dask.system.arrays import Floats

Labels = npt.NDArray[np.integer]
SHOWN = 5
"""Samples named for a cluster: the most central, and as many of the most doubtful."""
CLEAR = 0.2
"""`sure` from which a sample lies clearly inside: its centre is nearer by a fifth than any other.
"""


@dataclass(frozen=True)
class Membership:
    """Samples and the centres of clusters, in the representation that was clustered.

    Attributes
    ----------
    rows : ndarray, shape (n, r)
    centres : ndarray, shape (k, r)
        Means of the clusters; of an empty cluster NaN.
    distances : ndarray, shape (n, k)
        From every sample to every centre; infinite where a cluster is empty.
    sure : ndarray, shape (n,)
        1 − d(own centre) / d(nearest other centre), clipped to 0 … 1: 1 at the centre, 0 halfway
        to another one or beyond. Where there is only one cluster, 1. A cluster of one says nothing
        about how clearly its sample belongs to it: 0 there.
    labels : ndarray of int, shape (n,)
    """

    rows: Floats
    centres: Floats
    distances: Floats
    sure: Floats
    labels: Labels

    @property
    def sizes(self) -> npt.NDArray[np.intp]:
        """Samples of every cluster, shape (k,)."""
        return np.bincount(self.labels, minlength=len(self.centres))

    @property
    def own(self) -> Floats:
        """Distance of every sample to its own centre, shape (n,)."""
        return self.distances[np.arange(len(self.labels)), self.labels]

    def central(self, cluster: int, most: int = SHOWN) -> list[int]:
        """The samples that stand for a cluster: the surest, of equals the nearest to the centre."""
        return [int(j) for j in self._ranked(cluster)[:most]]

    def doubtful(self, cluster: int, most: int = SHOWN) -> list[int]:
        """The least sure, least first; none that is among the central ones."""
        rest = self._ranked(cluster)[SHOWN:]
        return [int(j) for j in rest[::-1][:most]]

    def _ranked(self, cluster: int) -> npt.NDArray[np.intp]:
        inside = np.flatnonzero(self.labels == cluster)
        return inside[np.lexsort((inside, self.own[inside], -self.sure[inside]))]


def membership(rows: Floats, labels: Labels, n_clusters: int) -> Membership:
    """What distances to the centres say, for a representation of shape (n, r)."""
    sizes = np.bincount(labels, minlength=n_clusters)
    sums = np.zeros((n_clusters, rows.shape[1]))
    np.add.at(sums, labels, rows)
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
    ratio = np.divide(own, second, out=np.ones_like(own), where=second > 0)
    sure = np.clip(1.0 - ratio, 0.0, 1.0)
    if filled.sum() > 1:
        sure[sizes[labels] == 1] = 0.0  # its centre is itself
    return Membership(rows, centres, distances, sure, labels)


def fused_weights(method: str, weights: Floats) -> Floats:
    """What a method multiplies the kernels by when it fuses them, shape (m,)."""
    return weights**2 if method == "gmkcf" else weights


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
    kernel = stack.fuse(fused_weights(method, weights), keep=False)
    member = np.eye(n_clusters)[clustering.labels]
    sums = kernel.matmul(member) - member * kernel.diagonal()[:, None]  # not to themselves
    others = member.sum(axis=0) - member
    similarity = np.divide(sums, others, out=np.zeros_like(sums), where=others > 0)
    return similarity, "the mean similarity to each cluster"
