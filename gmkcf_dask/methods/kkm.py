"""KKM: kernel k-means with one kernel, or with the equal-weight mean of several.

minimise Σ_j d_j, d_j the squared distance of sample j to the mean of its cluster in kernel space.

Cost of one iteration: one sweep over the one kernel (K C); t iterations take t + 1 sweeps. Mixed
signs are no matter; where the kernel is not positive semi-definite the objective may rise, and the
run then ends.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from sklearn.exceptions import ConvergenceWarning

from gmkcf_dask.compute.lockstep import ProductRequest, SolverSteps
from gmkcf_dask.compute.operators import FusedKernel
from gmkcf_dask.errors import NumericsWarning
from gmkcf_dask.events import Listener
from gmkcf_dask.methods import checkpointing
from gmkcf_dask.methods.base import RunContext, SingleKernelMethod, check_whole, no_weights
from gmkcf_dask.methods.checkpointing import Schema
from gmkcf_dask.methods.kmeans_steps import (
    KMeansRun,
    assign,
    centre_norms,
    distances,
    indicator,
    kmeans_run_schema,
    random_centres,
)
from gmkcf_dask.system.arrays import Floats, Labels


@dataclass(frozen=True)
class Kkm(SingleKernelMethod[Floats, KMeansRun]):
    """Kernel k-means from k random samples.

    Parameters
    ----------
    n_clusters : int
    n_init : int
        Random restarts; the one of lowest objective is kept.
    max_iter : int
        Iterations at most.
    """

    name: ClassVar[str] = "kkm"
    run_type = KMeansRun
    n_clusters: int
    n_init: int = 1
    max_iter: int = 100

    def __post_init__(self) -> None:
        check_whole(n_clusters=self.n_clusters, n_init=self.n_init, max_iter=self.max_iter)

    def starts(self, n: int, seed: int) -> Iterable[Floats]:
        return random_centres(n, self.n_clusters, seed, self.n_init)

    def run(
        self,
        kernel: FusedKernel,
        start: Floats,
        weights: Floats,
        rounding: float,
        context: RunContext,
    ) -> SolverSteps[KMeansRun]:
        C, k, diagonal = start, self.n_clusters, kernel.diagonal()
        labels: Labels | None = None
        history: list[float] = []
        assigned: tuple[Floats, Floats] | None = None  # centres of the last labels, and norms
        if context.resumed is not None:
            labels, history = context.resumed["labels"], list(context.resumed["history"])
            assigned = context.resumed["C"], context.resumed["norms"]
            C = indicator(context.resumed["labels"], k)
        converged = risen = False
        for iteration in range(len(history), self.max_iter + 1):
            products = yield ProductRequest(C)
            d = distances(diagonal, C, products.full)
            value = float(d.min(axis=1).sum())
            risen = bool(history) and value - history[-1] > 100 * rounding * kernel.trace
            if risen:
                break
            new_labels, _ = assign(d)
            history.append(value)
            if iteration:
                context.report(history, self.max_iter, weights)
            converged = labels is not None and bool((new_labels == labels).all())
            labels, assigned = new_labels, (C, centre_norms(C, products.full))
            if converged:
                break
            C = indicator(labels, k)
            kept = {"C": assigned[0], "norms": assigned[1]}
            context.keep({"labels": labels, "history": tuple(history), **kept})
        assert labels is not None
        assert assigned is not None
        if risen:
            warnings.warn(
                f"kernel k-means stopped because its objective rose: {kernel.label} is not "
                "positive semi-definite",
                NumericsWarning,
                stacklevel=2,
            )
        elif not converged:
            warnings.warn(
                f"kernel k-means on {kernel.label} stopped after max_iter={self.max_iter} "
                "iterations while samples still changed their clusters: raise max_iter",
                ConvergenceWarning,
                stacklevel=2,
            )
        constant = no_weights(len(weights))
        return KMeansRun(labels, weights, tuple(history), converged, constant, *assigned, weights)

    def state_schemas(self, n: int, names: Sequence[str]) -> tuple[Schema, Schema]:
        k = self.n_clusters
        running: Schema = {
            "labels": checkpointing.labels(n, k),
            "history": checkpointing.history,
            "C": checkpointing.array(n, k, low=0),
            "norms": checkpointing.array(k),
        }
        return running, kmeans_run_schema(n, k, len(names))

    def conclude(
        self, run: KMeansRun, seed: int, listen: Listener
    ) -> tuple[Labels, dict[str, Floats]]:
        return run.labels, run.factors
