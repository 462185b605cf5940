"""Whether clusters are closer than any two samples, from one product with the fused kernel.

The similarity of two samples is K_w at unit length, r_jl = (K_w)_jl / √((K_w)_jj (K_w)_ll). The
contrast is (a − b) / s, with a the mean of r over pairs of different samples of one cluster, b that
over all pairs, and s the root mean square of r_jc − b, r_jc the mean similarity of sample j to the
other samples of cluster c, weighted by their number. Labels drawn at random have a contrast about
0. It does not change when a number is added to all r: so it is the same measure for flat kernels,
whose r are all near 1, for narrow ones, whose r are all near 0, and for mixed signs. a / b is not.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gmkcf_dask.compute.blas import one_blas_thread
from gmkcf_dask.compute.costs import SHARED_BYTES, block_bytes
from gmkcf_dask.compute.operators import FusedKernel, KernelStack
from gmkcf_dask.errors import WeakClustersWarning
from gmkcf_dask.methods.base import Clustering, Method
from gmkcf_dask.methods.factorize import FactorizationMethod
from gmkcf_dask.methods.members import NO_CLUSTER, cluster_sizes, member_matrix
from gmkcf_dask.methods.silhouette import kernel_silhouette
from gmkcf_dask.system.arrays import Floats, Labels

LEAST_CONTRAST = 0.1
"""Below it, clusters are barely more similar than random groups. See docs/algorithm.md."""

BLOCKS_OF_A_PRODUCT = 4
"""Z, its product, the same at unit length, and what is summed on the way."""


def add_contrast(stack: KernelStack, method: Method, clustering: Clustering) -> Clustering:
    """The clustering with its contrast, and a warning where that is too low.

    One product of the fused kernel with n×(k + 1), of its own: nothing else changes by it.
    With solver="accelerated" a run that stopped on a plateau has not converged.
    """
    k, n = method.n_clusters, stack.n_samples
    weights = fusion_weights(method.name, clustering.weights)
    # those of rmkkm can be too small for products; the contrast does not depend on their size
    weights = weights if isinstance(method, FactorizationMethod) else weights / weights.max()
    kernel = stack.fuse(weights, keep=False)
    diagonal = kernel.diagonal()
    scale = unit_scale(diagonal)
    share = 2.0 ** -np.ceil(np.log2(n))  # about 1/n, so that no sum overflows, and exact
    Z = np.hstack([scale[:, None] * member_matrix(clustering.labels, k), np.full((n, 1), share)])
    try:
        with one_blas_thread():
            KZ = kernel.matmul(Z)
    finally:
        kernel.release()
    similar, row_sums = scale[:, None] * KZ[:, :k], KZ[:, k] / share
    value = contrast(similar, scale**2 * diagonal, clustering.labels, stack.error_floor)
    clustering = replace(clustering, contrast=value)
    if value is None or value >= LEAST_CONTRAST:
        return clustering
    if isinstance(method, FactorizationMethod):
        clustering = _converged_or_not(
            method, clustering, kernel.trace, row_sums, stack.error_floor
        )
    warnings.warn(weak_clusters(method.name, clustering), WeakClustersWarning, stacklevel=3)
    return clustering


def _converged_or_not(
    method: FactorizationMethod,
    clustering: Clustering,
    trace: float,
    row_sums: Floats,
    error_floor: float,
) -> Clustering:
    """Whether it stopped where a single concept is as good: a plateau is no convergence."""
    one = one_concept_objective(trace, row_sums)
    slack = max(method.tol * clustering.objective, error_floor * trace)
    if method.solver == "accelerated" and one - clustering.objective <= slack:
        best = int(np.argmin([run.objective for run in clustering.runs]))
        runs = list(clustering.runs)
        runs[best] = replace(runs[best], converged=False)
        clustering = replace(clustering, converged=False, runs=tuple(runs))
    return clustering


def contrasts(
    kernel: FusedKernel, labelings: Sequence[Labels], k: int, rounding: float
) -> list[float | None]:
    """The contrast of several labelings in one kernel."""
    return [value for value, _ in internal_scores(kernel, labelings, k, rounding)]


def internal_scores(
    kernel: FusedKernel, labelings: Sequence[Labels], k: int, rounding: float
) -> list[tuple[float | None, float | None]]:
    """Contrast and silhouette of several labelings in one kernel at unit length.

    One product with n×(k · labelings), or several where that takes more than `SHARED_BYTES`. None
    where there is no telling.
    """
    diagonal = kernel.diagonal()
    scale, n = unit_scale(diagonal), len(diagonal)
    together = max(1, SHARED_BYTES // (BLOCKS_OF_A_PRODUCT * block_bytes(n, k)))
    found: list[tuple[float | None, float | None]] = []
    for first in range(0, len(labelings), together):
        group = labelings[first : first + together]
        Z = np.hstack([scale[:, None] * member_matrix(labels, k) for labels in group])
        with one_blas_thread():
            similar = scale[:, None] * kernel.matmul(Z)
        for i, labels in enumerate(group):
            own, sums = scale**2 * diagonal, similar[:, i * k : (i + 1) * k]
            value = contrast(sums, own, labels, rounding)
            apart = None if value is None else kernel_silhouette(sums, own, labels)
            found.append((value, apart))
    return found


def unit_scale(diagonal: Floats) -> Floats:
    """1 / √(K_w)_jj, shape (n,); 0 for a sample that has no length."""
    return np.divide(
        1.0, np.sqrt(np.abs(diagonal)), out=np.zeros_like(diagonal), where=diagonal > 0
    )


def contrast(similar: Floats, own: Floats, labels: Labels, rounding: float) -> float | None:
    """How much closer samples of one cluster are than any two; None where there is no telling.

    Parameters
    ----------
    similar : ndarray, shape (n, k)
        Sums of the similarities of every sample to the samples of every cluster, itself included.
    own : ndarray, shape (n,)
        Similarity of every sample to itself: 1, or 0 where it has no length.
    labels : ndarray of int, shape (n,)
    rounding : float
        Of similarities: what varies less is constant.

    Returns
    -------
    float or None
        About 0 for labels drawn at random, and 0 where all similarities are the same. None for a
        single cluster, and where each sample is alone in its cluster.
    """
    placed, k = labels != NO_CLUSTER, similar.shape[1]
    H, sizes = member_matrix(labels, k)[placed], cluster_sizes(labels, k)
    if (sizes > 0).sum() < 2 or sizes.max() < 2:
        return None
    others = sizes - H  # of every sample in every cluster, itself left out
    sums = similar[placed] - H * own[placed, None]
    inside = (sums * H).sum() / (others * H).sum()
    overall = sums.sum() / others.sum()
    means = np.divide(sums, others, out=np.zeros_like(sums), where=others > 0)
    spread = np.sqrt((others * np.square(means - overall)).sum() / others.sum())
    return float((inside - overall) / spread) if spread > rounding else 0.0


def one_concept_objective(trace: float, row_sums: Floats) -> float:
    """J of a single concept that all samples have the same share in, and of the best V for it.

    tr K − ‖K1‖² / 1ᵀK1, from the row sums K1, shape (n,).
    """
    total = float(row_sums.sum())
    return trace - float(row_sums @ row_sums) / total if total > 0 else trace


def weak_clusters(method: str, clustering: Clustering) -> str:
    """What a fit with too low a contrast says; empty for others."""
    if clustering.contrast is None or clustering.contrast >= LEAST_CONTRAST:
        return ""
    who = method.upper() + ("" if clustering.kernel is None else f" on {clustering.kernel}")
    return (
        f"the clusters of {who} are barely more similar than random groups (contrast "
        f"{clustering.contrast:.2f}, below {LEAST_CONTRAST:g}), so they say little: standardise "
        "the columns, or try another k, other kernels (local is the default), another start or "
        "more iterations with a smaller tol"
    )


def fusion_weights(method: str, weights: Floats) -> Floats:
    """What a method multiplies the kernels by when it fuses them, shape (m,)."""
    return weights**2 if method == "gmkcf" else weights
