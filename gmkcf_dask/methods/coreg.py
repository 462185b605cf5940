"""Coreg: co-regularised spectral clustering, centroid form (Kumar, Rai, Daumé 2011).

maximise Σ_v tr(U_vᵀ L_v U_v) + λ Σ_v tr(U_vU_vᵀ U*U*ᵀ) over orthonormal U_v and U*, where
L_v = D_v^-½ K^v D_v^-½. In turn: U_v = top-k eigenvectors of L_v + λ U*U*ᵀ, U* = left singular
vectors of [U_1 … U_m]. K-means or spherical k-means on the rows of U* at unit length. L_v is K^v/λ₁
for a kernel known by factors of mixed signs, as in spectral clustering.

All kernels share every sweep: one for the degrees, one (up to 1,000 samples) or at most 60 for the
first U_v, then at most 60 in each of ten rounds, which start from the last U_v and U* and need few.
The history holds the negative of the sum above, so it falls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from gmkcf_dask.compute.blas import one_blas_thread
from gmkcf_dask.compute.eigen import (
    DIRECT,
    Eigenpairs,
    ShiftedKernel,
    fix_signs,
    leading_eigenpairs,
)
from gmkcf_dask.compute.lockstep import SolverSteps, multiply_by_each, run_in_lockstep
from gmkcf_dask.compute.operators import FusedKernel, KernelStack
from gmkcf_dask.events import IterationDone, Listener, ignore
from gmkcf_dask.methods.assign import check_assign, cluster_rows
from gmkcf_dask.methods.base import (
    Clustering,
    MultipleKernelMethod,
    RunSummary,
    check_positive,
    check_whole,
    no_weights,
)
from gmkcf_dask.methods.checkpointing import NO_CHECKPOINTS, Checkpoints
from gmkcf_dask.methods.defaults import Assign
from gmkcf_dask.methods.spectral import embed, laplacian_of, warn_inexact
from gmkcf_dask.methods.spherical import normalized_rows
from gmkcf_dask.system.arrays import Floats


@dataclass(frozen=True)
class Coreg(MultipleKernelMethod):
    """Co-regularised spectral clustering.

    Parameters
    ----------
    n_clusters : int
    lam : float
        How strongly the kernels are drawn to their consensus.
    max_iter : int
        Rounds; fewer when the consensus no longer moves beyond rounding.
    assign : {"kmeans", "spherical"}
        How rows of the embedding become labels, see `assign`.
    """

    name: ClassVar[str] = "coreg"
    n_clusters: int
    lam: float = 0.1
    max_iter: int = 10
    assign: Assign = "kmeans"

    def __post_init__(self) -> None:
        check_assign(self.assign, self.name, concepts=False)
        check_whole(n_clusters=self.n_clusters, max_iter=self.max_iter)
        check_positive(lam=self.lam)

    def fit(
        self,
        stack: KernelStack,
        seeds: Sequence[int],
        listen: Listener = ignore,
        checkpoints: Checkpoints = NO_CHECKPOINTS,
    ) -> list[Clustering]:
        self.check_samples(stack.n_samples)
        with one_blas_thread():
            run = consensus(stack, self.n_clusters, self.lam, self.max_iter, listen)
        m, rows = len(stack.names), normalized_rows(run.vectors)
        return [
            Clustering(
                labels,
                np.full(m, 1.0 / m),
                stack.names,
                run.history,
                run.converged,
                (RunSummary.of(run),),
                seed,
                {"embedding": rows, **places},
                weights_history=no_weights(m),
            )
            for seed in seeds
            for labels, places in [cluster_rows(rows, self.n_clusters, seed, self.assign)]
        ]


@dataclass(frozen=True)
class Consensus:
    """U*, shape (n, k), and the negative objective after the start and every round."""

    vectors: Floats
    history: tuple[float, ...]
    converged: bool


def consensus(
    stack: KernelStack, k: int, lam: float, max_iter: int, listen: Listener = ignore
) -> Consensus:
    """U* after at most `max_iter` rounds."""
    m = len(stack.names)
    multiply = multiply_by_each(stack, range(m))
    setup = [_normalized(stack.single(v), k, stack.error_floor) for v in range(m)]
    matrices, known = zip(*run_in_lockstep(setup, multiply), strict=True)

    def solve(
        matrices: Sequence[ShiftedKernel], starts: Sequence[Floats], direct: int, round_: int
    ) -> list[Eigenpairs]:
        runs = [
            leading_eigenpairs(A, k, start, stack.error_floor, direct=direct)
            for A, start in zip(matrices, starts, strict=True)
        ]
        return run_in_lockstep(runs, multiply, listen, f"coreg {round_}")

    views = solve(matrices, known, DIRECT, 0)
    affinities = [float(view.values.sum()) for view in views]
    centre, agreement = _centre([view.vectors for view in views], k)
    history = [-(sum(affinities) + lam * agreement)]
    converged = False
    for round_ in range(1, max_iter + 1):
        last = centre
        pulled = [replace(A, pull=centre, lam=lam) for A in matrices]
        warm = [np.hstack([view.vectors, centre]) for view in views]
        views = solve(pulled, warm, 0, round_)
        affinities = [
            float(view.values.sum() - lam * np.sum((view.vectors.T @ centre) ** 2))
            for view in views
        ]
        centre, agreement = _centre([view.vectors for view in views], k)
        history.append(-(sum(affinities) + lam * agreement))
        change = (history[-2] - history[-1]) / abs(history[-1])
        listen(IterationDone(0, 1, round_, max_iter, history[-1], change, 0.0, (1 / m,) * m))
        moved = np.linalg.norm(centre - last @ (last.T @ centre))
        converged = bool(moved <= 100 * stack.error_floor)
        if converged:
            break
    for name, view in zip(stack.names, views, strict=True):
        if not view.converged:
            warn_inexact(view, f"kernel {name}")
    return Consensus(centre, tuple(history), converged)


def _normalized(
    kernel: FusedKernel, k: int, rounding: float
) -> SolverSteps[tuple[ShiftedKernel, Floats]]:
    """L_v, whose largest eigenvalue is 1, and guesses of its leading eigenvectors."""
    if not kernel.signed_factors:
        return (yield from laplacian_of(kernel, "symmetric"))
    embedding = yield from embed(kernel, k, "symmetric", rounding)
    return ShiftedKernel(
        embedding.scale, np.zeros(len(embedding.scale)), kernel.diagonal()
    ), embedding.vectors


def _centre(vectors: Sequence[Floats], k: int) -> tuple[Floats, float]:
    """U*, and Σ_v tr(U_vU_vᵀ U*U*ᵀ)."""
    left, singular, _ = np.linalg.svd(np.hstack(list(vectors)), full_matrices=False)
    return fix_signs(left[:, :k]), float(np.sum(singular[:k] ** 2))
