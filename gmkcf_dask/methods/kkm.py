"""KKM: kernel k-means with one kernel, or with the equal-weight mean of several.

minimise Σ_j d_j, d_j the squared distance of sample j to the mean of its cluster in kernel space.

Cost of one iteration: one sweep over the one kernel (K C); t iterations take t + 1 sweeps. Mixed
signs are no matter; where the kernel is not positive semi-definite the objective may rise, and the
run then ends.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from sklearn.exceptions import ConvergenceWarning

from gmkcf_dask.engine.operators import FusedKernel
from gmkcf_dask.errors import NumericsWarning
from gmkcf_dask.events import IterationDone, Listener
from gmkcf_dask.methods import forms
from gmkcf_dask.methods.base import Floats, Labels, SingleKernelMethod, check_whole, no_weights
from gmkcf_dask.methods.checkpoints import Turn
from gmkcf_dask.methods.forms import Form
from gmkcf_dask.methods.partition import (
    Partition,
    assign,
    centre_norms,
    distances,
    indicator,
    partition_form,
    random_centres,
)
from gmkcf_dask.methods.steps import Ask, Steps


@dataclass(frozen=True)
class Kkm(SingleKernelMethod[Floats, Partition]):
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
    run_type = Partition
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
        listen: Listener,
        restart: tuple[int, int],
        turn: Turn,
    ) -> Steps[Partition]:
        C, k, diagonal = start, self.n_clusters, kernel.diagonal()
        labels: Labels | None = None
        history: list[float] = []
        assigned: tuple[Floats, Floats] | None = None  # centres of the last labels, and norms
        if turn.resumed is not None:
            labels, history = turn.resumed["labels"], list(turn.resumed["history"])
            assigned = turn.resumed["C"], turn.resumed["norms"]
            C = indicator(turn.resumed["labels"], k)
        converged = risen = False
        for iteration in range(len(history), self.max_iter + 1):
            products = yield Ask(C)
            d = distances(diagonal, C, products.full)
            value = float(d.min(axis=1).sum())
            risen = bool(history) and value - history[-1] > 100 * rounding * kernel.trace
            if risen:
                break
            found, _ = assign(d)
            history.append(value)
            if iteration:
                change = (history[-2] - value) / value if value > 0 else 0.0
                listen(
                    IterationDone(
                        *restart, iteration, self.max_iter, value, change, 0.0, tuple(weights)
                    )
                )
            converged = labels is not None and bool((found == labels).all())
            labels, assigned = found, (C, centre_norms(C, products.full))
            if converged:
                break
            C = indicator(labels, k)
            kept = {"C": assigned[0], "norms": assigned[1]}
            turn.keep({"labels": labels, "history": tuple(history), **kept})
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
        return Partition(labels, weights, tuple(history), converged, constant, *assigned, weights)

    def forms(self, n: int, m: int) -> tuple[Form, Form]:
        k = self.n_clusters
        running = forms.fields(
            labels=forms.labels(n, k),
            history=forms.history,
            C=forms.floats(n, k),
            norms=forms.any_floats(k),
        )
        return running, partition_form(n, k, m)

    def conclude(self, run: Partition, seed: int) -> tuple[Labels, dict[str, Floats]]:
        return run.labels, run.factors
