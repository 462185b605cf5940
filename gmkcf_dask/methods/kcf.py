"""KCF: concept factorization with one kernel, or with an equal-weight mean of several.

Cost of one iteration: two sweeps over the one kernel (K V, K U); J needs none. With
solver="accelerated" one, or two where momentum went astray, and one more to begin with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gmkcf_dask.compute.operators import FusedKernel
from gmkcf_dask.events import IterationDone, Listener, ignore
from gmkcf_dask.methods import checkpointing
from gmkcf_dask.methods.accelerate import iterate
from gmkcf_dask.methods.assign import kmeans
from gmkcf_dask.methods.base import SingleKernelMethod, no_weights
from gmkcf_dask.methods.checkpointing import NEW_RUN, CheckpointSlot, Schema
from gmkcf_dask.methods.factorize import (
    Factorization,
    Iterate,
    SolverOptions,
    begin,
    factorization_schema,
    factors_of,
    finish,
    has_risen,
    iterate_schema,
    refuse_negative,
    should_stop,
    warn_not_converged,
)
from gmkcf_dask.methods.init import Start, spectral_start
from gmkcf_dask.methods.lockstep import SolverSteps
from gmkcf_dask.system.arrays import Floats, Labels


@dataclass(frozen=True)
class Kcf(SolverOptions, SingleKernelMethod[Start | None, Factorization]):
    """Concept factorization with one kernel, and K-means on V; with the linear kernel it is CF."""

    name: ClassVar[str] = "kcf"
    run_type = Factorization

    def check_samples(self, n: int) -> None:
        super().check_samples(n)
        self.starts(n, 0)

    def run(
        self,
        kernel: FusedKernel,
        start: Start | None,
        weights: Floats,
        rounding: float,
        listen: Listener,
        restart: tuple[int, int],
        slot: CheckpointSlot,
    ) -> SolverSteps[Factorization]:
        return kcf(kernel, start, self, weights, rounding, listen, restart, slot)

    def state_schemas(self, n: int, m: int) -> tuple[Schema, Schema]:
        k = self.n_clusters
        running: Schema = {"at": iterate_schema(n, k), "history": checkpointing.history}
        return running, factorization_schema(n, k, m, finished=True)

    def conclude(self, run: Factorization, seed: int) -> tuple[Labels, dict[str, Floats]]:
        labels, centres = kmeans(run.V, self.n_clusters, seed)
        return labels, factors_of(run, centres)


def kcf(
    kernel: FusedKernel,
    start: Start | None,
    options: SolverOptions,
    weights: Floats,
    rounding: float,
    listen: Listener = ignore,
    restart: tuple[int, int] = (0, 1),
    slot: CheckpointSlot = NEW_RUN,
) -> SolverSteps[Factorization]:
    """One run from one start, finished: K U is at hand, so that costs no sweep.

    Parameters
    ----------
    kernel : FusedKernel
    start : (U0, V0), each of shape (n, k); None for the spectral start
    options : SolverOptions
    weights : ndarray, shape (m,)
        The fixed weights the kernel was made with; reported, not changed.
    rounding : float
        Relative rounding of J to be expected of this kernel.
    slot : CheckpointSlot
        Where the run goes on, if not at its start, and who keeps its states.
    """
    if slot.resumed is not None:
        at = Iterate.of_state(slot.resumed["at"])
        history = list(slot.resumed["history"])
    else:
        if start is None:
            start = yield from spectral_start(kernel, options.n_clusters, rounding, listen)
        at = yield from begin(kernel, start)
        history = [at.objective(kernel.trace)]
    start = None  # of many runs that wait for each other none shall hold more than it needs
    converged = risen = False
    for iteration in range(len(history), options.max_iter + 1):
        at = yield from iterate(kernel, at, options)
        J_old, J = history[-1], at.objective(kernel.trace)
        refuse_negative(J, kernel.trace, nonnegative=kernel.nonnegative)
        J = max(J, rounding * kernel.trace)
        history.append(J)
        change = (J_old - J) / J if J > 0 else 0.0
        listen(
            IterationDone(
                *restart,
                iteration,
                options.max_iter,
                J,
                change,
                options.tol,
                tuple(map(float, weights)),
            )
        )
        risen = has_risen(J_old, J, kernel.trace, rounding)
        converged = not risen and should_stop(J_old, J, kernel.trace, options.tol)
        if risen or converged:
            break
        slot.keep({"at": at.state(), "history": tuple(history)})
    if not converged:
        warn_not_converged(options, history, risen=risen, what=f"KCF on {kernel.label}")
    constant = no_weights(len(weights))
    run = Factorization(at.U, at.V, weights, tuple(history), converged, constant)
    return finish(run, at.KU.full, polish=options.polish, diagonal=kernel.diagonal())
