"""RMKKM: robust multiple kernel k-means (Du et al. 2015), with the ℓ2,1 norm.

minimise F = Σ_j sqrt(Σ_i w_i d^i_j), d^i_j the squared distance of sample j to its centre in kernel
i, over clusters, centres and weights with Σ w_i^γ = 1.

Cost of one iteration: one sweep over the m kernels to fuse Σ w_i K^i and one for the distances in
every kernel, and one over the fused kernel for each inner step, the first of which comes with
fusing. Mixed signs are no matter as long as the kernels are positive semi-definite.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.special import logsumexp
from sklearn.exceptions import ConvergenceWarning

from gmkcf_dask.compute.lockstep import ProductRequest, SolverSteps, multiply_by, run_in_lockstep
from gmkcf_dask.compute.operators import KernelStack
from gmkcf_dask.errors import HopelessInputError, InputError
from gmkcf_dask.events import Listener
from gmkcf_dask.methods import checkpointing
from gmkcf_dask.methods.base import RunContext, WeightLearningMethod, check_whole, fused_kernel
from gmkcf_dask.methods.checkpointing import Schema, matches
from gmkcf_dask.methods.kmeans_steps import (
    KMeansRun,
    assign,
    centre_norms,
    distances,
    indicator,
    kmeans_run_schema,
    sample_centres,
)
from gmkcf_dask.system.arrays import Floats, Labels

AT_CENTRE = 1e-10
"""Squared distance, relative to the mean diagonal, below which a sample sits on its centre, where
rounding is not larger."""
LARGEST = 1e150
"""Of m^(1/γ): sums of squares of its inverse must still be numbers."""
INNER_RESTARTS = 2
"""Random inner starts per iteration with `restart_inner`, as the authors have it."""


@dataclass(frozen=True)
class Rmkkm(WeightLearningMethod[np.random.SeedSequence, KMeansRun]):
    """Robust multiple kernel k-means.

    Parameters
    ----------
    n_clusters : int
    gamma : float
        Between 0 and 1: small values favour few kernels.
    restart_inner : bool
        Cluster anew in every iteration, best of two random starts: the authors' way, in which the
        objective may rise and the labels seldom settle. Otherwise every iteration starts from the
        last centres.
    n_init : int
        Random restarts; the one of lowest objective is kept.
    max_iter, inner_iter : int
        Weight steps, and cluster steps per weight step, at most.
    """

    name: ClassVar[str] = "rmkkm"
    run_type = KMeansRun
    n_clusters: int
    gamma: float = 0.3
    restart_inner: bool = False
    n_init: int = 1
    max_iter: int = 50
    inner_iter: int = 30

    def __post_init__(self) -> None:
        check_whole(
            n_clusters=self.n_clusters,
            n_init=self.n_init,
            max_iter=self.max_iter,
            inner_iter=self.inner_iter,
        )
        if not isinstance(self.gamma, float | np.floating) or not 0 < self.gamma < 1:
            raise InputError(f"gamma must be a number between 0 and 1, not {self.gamma!r}")

    def starts(self, n: int, seed: int) -> Iterable[np.random.SeedSequence]:
        return np.random.SeedSequence(seed).spawn(self.n_init)

    def run(
        self, stack: KernelStack, start: np.random.SeedSequence, context: RunContext
    ) -> KMeansRun:
        m, n, k = len(stack.names), stack.n_samples, self.n_clusters
        if np.log(m) / self.gamma > np.log(LARGEST):
            raise HopelessInputError(
                f"gamma={self.gamma:g} is too small for {m} kernels: equal weights "
                "would be m^(-1/gamma), which no number can hold; choose a larger gamma"
            )
        rng = np.random.default_rng(start)
        labels: Labels | None = None
        history: list[float] = []
        weights_history: list[Floats] = []
        assigned: dict[str, Floats] = {}  # what the last labels came from
        if context.resumed is not None:
            w, labels, starts = (context.resumed[name] for name in ("w", "labels", "starts"))
            assigned = context.resumed["assigned"]
            history = list(context.resumed["history"])
            weights_history = list(context.resumed["weights_history"])
            rng.bit_generator.state = context.resumed["rng"]
        else:
            w = np.full(m, m ** (-1.0 / self.gamma))
            n_starts = INNER_RESTARTS if self.restart_inner else 1
            starts = [sample_centres(rng, n, k) for _ in range(n_starts)]
        converged, fresh = False, labels is None or self.restart_inner
        for _ in range(max(1, len(history)), self.max_iter + 1):
            # clusters do not change with the scale of w, and w itself can be as small as m^(−1/γ)
            relative = w / w.max()
            clusters = self._cluster(stack, relative, starts, fresh=fresh)
            assigned = {"C": clusters.assigned, "norms": clusters.norms, "fused_weights": relative}
            C, own = own_distances(stack, clusters, w)
            if not history:
                history.append(float(np.sqrt(own @ w).sum()))
                weights_history.append(w)
            w = weights_from_distances(own, w, self.gamma)
            history.append(float(np.sqrt(own @ w).sum()))
            weights_history.append(w)
            context.report(history, self.max_iter, w)
            converged = labels is not None and bool((clusters.labels == labels).all())
            labels = clusters.labels
            if converged:
                break
            fresh = self.restart_inner
            starts = [sample_centres(rng, n, k) for _ in range(INNER_RESTARTS)] if fresh else [C]
            context.keep(
                {
                    "w": w,
                    "labels": labels,
                    "starts": starts,
                    "history": tuple(history),
                    "rng": rng.bit_generator.state,
                    "weights_history": np.array(weights_history),
                    "assigned": assigned,
                }
            )
        assert labels is not None
        if not converged and not self.restart_inner:
            warnings.warn(
                f"stopped after max_iter={self.max_iter} iterations while samples still changed "
                "their clusters: raise max_iter",
                ConvergenceWarning,
                stacklevel=2,
            )
        trail = np.array(weights_history)
        return KMeansRun(labels, w, tuple(history), converged, trail, **assigned)

    def _cluster(
        self, stack: KernelStack, weights: Floats, starts: Sequence[Floats], *, fresh: bool
    ) -> RobustClusters:
        """The best clusters from these starts on the kernel fused by these weights."""
        with fused_kernel(stack, weights) as fused:
            diagonal = fused.diagonal()
            on_centre = max(AT_CENTRE, 100 * stack.error_floor) * float(diagonal.mean())
            runs = [
                robust_clusters(diagonal, C, self.inner_iter, on_centre, fresh=fresh)
                for C in starts
            ]
            return min(run_in_lockstep(runs, multiply_by(fused)), key=lambda run: run.objective)

    def state_schemas(self, n: int, names: Sequence[str]) -> tuple[Schema, Schema]:
        k, m = self.n_clusters, len(names)
        running: Schema = {
            "w": checkpointing.weights(m),
            "labels": checkpointing.labels(n, k),
            "starts": lambda starts: bool(starts) and matches(starts, [checkpointing.array(n, k)]),
            "history": checkpointing.history,
            "rng": _is_generator,
            "weights_history": checkpointing.weights_history(m),
            "assigned": {
                "C": checkpointing.array(n, k, low=0),
                "norms": checkpointing.array(k),
                "fused_weights": checkpointing.weights(m),
            },
        }
        return running, kmeans_run_schema(n, k, m)

    def conclude(
        self, run: KMeansRun, seed: int, listen: Listener
    ) -> tuple[Labels, dict[str, Floats]]:
        return run.labels, run.factors


def _is_generator(state: object) -> bool:
    """Whether NumPy's generator takes it as its state."""
    try:
        np.random.PCG64().state = state  # type: ignore[assignment]
    except (ValueError, TypeError, KeyError, OverflowError):
        return False
    return True


@dataclass(frozen=True)
class RobustClusters:
    """Clusters; their centres C (n×k) and those before the last step; Σ_j sqrt(d_j) at these.

    `assigned` are the centres (n×k) the labels came from, `norms` their squared norms (k).
    """

    labels: Labels
    C: Floats
    C_before: Floats
    objective: float
    assigned: Floats
    norms: Floats


def robust_clusters(
    diagonal: Floats, C: Floats, max_iter: int, on_centre: float, *, fresh: bool
) -> SolverSteps[RobustClusters]:
    """Clusters of lowest Σ_j sqrt(d_j) on one kernel: samples far from their centre weigh less.

    Parameters
    ----------
    diagonal : ndarray, shape (n,)
    C : ndarray, shape (n, k)
        First centres.
    max_iter : int
    on_centre : float
        Squared distance below which a sample sits on its centre. It must be above rounding: one
        sample with a weight from a distance of rounding would hold its centre for ever.
    fresh : bool
        The first centres are samples, which are left at once.

    Notes
    -----
    A step of the centres lowers the sum unless samples sit on one of them: these would weigh
    infinitely much, get a finite weight instead, and the sum may rise (duplicates do that). A
    centre whose cluster got worse goes back to where it was, and nothing more is asked for it.
    """
    labels: Labels | None = None
    before, K_before, parts = C, C, np.full(C.shape[1], np.inf)
    for step in range(max_iter):
        products = yield ProductRequest(C)
        KC = products.full
        if labels is not None:
            worse = cluster_sums(distances(diagonal, C, KC), labels) > parts
            C, KC = np.where(worse, before, C), np.where(worse, K_before, KC)
        d = distances(diagonal, C, KC)
        new_labels, own = assign(d)
        own = np.maximum(own, 0.0)
        settled = labels is not None and bool((new_labels == labels).all())
        labels, objective = new_labels, float(np.sqrt(own).sum())
        before, K_before = C, KC
        taken = np.bincount(d.argmin(axis=1), minlength=C.shape[1]) > 0
        free = ~taken | (fresh and step == 0)
        parts = np.where(free, np.inf, np.bincount(labels, np.sqrt(own), C.shape[1]))
        C = indicator(labels, C.shape[1], _sample_weights(own, on_centre))
        if settled:
            break
    assert labels is not None
    last = np.where(np.isinf(parts), C, before)
    norms = centre_norms(before, K_before)
    return RobustClusters(labels, C, last, objective, before, norms)


def cluster_sums(d: Floats, labels: Labels) -> Floats:
    """Σ sqrt(d_j) over the samples of every cluster, shape (k,)."""
    own = np.maximum(d[np.arange(len(d)), labels], 0.0)
    return np.asarray(np.bincount(labels, np.sqrt(own), d.shape[1]), dtype=np.float64)


def _sample_weights(own: Floats, on_centre: float) -> Floats:
    """s_j = 1 / (2 sqrt(d_j)); for a sample on its centre the mean of the others."""
    away = own >= on_centre
    if not away.any():
        return np.ones(len(own))
    s = 1.0 / (2.0 * np.sqrt(np.where(away, own, 1.0)))
    return np.where(away, s, s[away].mean())


def own_distances(stack: KernelStack, clusters: RobustClusters, w: Floats) -> tuple[Floats, Floats]:
    """Centres, and d^i_j of every sample to its own one in every kernel, shape (n, m). One sweep.

    For each cluster the better of its last two centres.
    """
    k, samples = clusters.C.shape[1], np.arange(stack.n_samples)
    both = np.hstack([clusters.C, clusters.C_before])
    columns = [
        distances(stack.diagonal(i), both, KC) for i, KC in enumerate(stack.matmul_each(both))
    ]
    after, before = (
        np.maximum([d[samples, clusters.labels + shift] for d in columns], 0.0).T
        for shift in (0, k)
    )
    sums = [np.bincount(clusters.labels, np.sqrt(own @ w), k) for own in (after, before)]
    worse = sums[0] > sums[1]
    C = np.where(worse, clusters.C_before, clusters.C)
    return C, np.where(worse[clusters.labels][:, None], before, after)


def weights_from_distances(own: Floats, w: Floats, gamma: float) -> Floats:
    """w_i = h_i^(−1/(1−γ)) / (Σ_l h_l^(−γ/(1−γ)))^(1/γ), h_i = Σ_j d^i_j / (2 sqrt(Σ_l w_l d^l_j)).

    A kernel in which every sample sits on its centre would take all the weight: h_i is floored
    relative to the largest.
    """
    away = own @ w > 0
    if not away.any():
        return w
    h = (own[away] / (2.0 * np.sqrt(own[away] @ w))[:, None]).sum(axis=0)
    h = np.maximum(h / h.max(), AT_CENTRE)  # the common factor cancels in Σ w_i^γ = 1
    powers = np.log(h) / (gamma - 1)  # in logarithms nothing overflows, whatever γ
    return np.asarray(np.exp(powers - logsumexp(gamma * powers) / gamma))
