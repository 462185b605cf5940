"""GMKCF: concept factorization with learned kernel weights (Li, Du, Ren 2019).

minimise Σ w_i² e_i(U, V) with U, V, w ≥ 0 and Σ w_i = 1. See docs/algorithm.md.

Cost of one iteration with inner_iter=1: two sweeps over the m kernels (fuse, errors) and two over
the fused one, the first of which comes with fusing; three graphs. With solver="accelerated" there
are as many over the fused one as its rounds take, and one more, which comes with fusing. One more
sweep over the m kernels ends a run. A spectral start takes one to fuse the equal-weight kernel, and
over that one the sweeps of spectral clustering.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from gmkcf_dask.compute.blas import one_blas_thread
from gmkcf_dask.compute.operators import KernelStack
from gmkcf_dask.errors import NumericsWarning
from gmkcf_dask.events import IterationDone, Listener, StageProgress, ignore
from gmkcf_dask.methods import checkpointing, updates
from gmkcf_dask.methods.accelerate import WeightStep, iterate
from gmkcf_dask.methods.assign import kmeans
from gmkcf_dask.methods.base import (
    Clustering,
    MultipleKernelMethod,
    best_restart,
    no_weights,
    refuse_many_seeds,
    warn_if_one_kernel_has_it_all,
)
from gmkcf_dask.methods.checkpointing import (
    NEW_RUN,
    NO_CHECKPOINTS,
    Checkpoints,
    CheckpointSlot,
    Schema,
    State,
)
from gmkcf_dask.methods.factorize import (
    Factorization,
    SolverOptions,
    begin,
    factorization_schema,
    factors_of,
    finish,
    has_risen,
    refuse_negative,
    should_stop,
    warn_not_converged,
)
from gmkcf_dask.methods.init import Start, spectral_start
from gmkcf_dask.methods.lockstep import run_solver
from gmkcf_dask.system.arrays import Floats


@dataclass(frozen=True)
class Gmkcf(SolverOptions, MultipleKernelMethod):
    """Concept factorization with learned kernel weights, and K-means on V."""

    name: ClassVar[str] = "gmkcf"
    run_type = Factorization

    def check_samples(self, n: int) -> None:
        super().check_samples(n)
        self.starts(n, 0)

    def fit(
        self,
        stack: KernelStack,
        seeds: Sequence[int],
        listen: Listener = ignore,
        checkpoints: Checkpoints = NO_CHECKPOINTS,
    ) -> list[Clustering]:
        self.check_samples(stack.n_samples)
        refuse_many_seeds(seeds, checkpoints)
        found: list[Clustering] = []
        for seed in seeds:
            if found and not self.seeded:  # only K-means differs
                labels, centres = kmeans(found[0].V, self.n_clusters, seed)
                factors = {**found[0].factors, "centres": centres}
                found.append(replace(found[0], labels=labels, seed=seed, factors=factors))
            else:
                found.append(self._fit_seed(stack, seed, listen, checkpoints))
        return found

    def _fit_seed(
        self, stack: KernelStack, seed: int, listen: Listener, checkpoints: Checkpoints
    ) -> Clustering:
        def run(number: int, start: Start | None, slot: CheckpointSlot) -> Factorization:
            return gmkcf(stack, start, self, listen, (number, self.n_init), slot)

        starts = self.starts(stack.n_samples, seed)
        with one_blas_thread():
            n, k, m = stack.n_samples, self.n_clusters, len(stack.names)
            running = _state_schema(n, k, stack.names)
            ended = factorization_schema(n, k, m, finished=False)
            best, runs = best_restart(starts, run, Factorization, checkpoints, running, ended)
            fused = stack.fuse(best.w**2, keep=False)
            KU, diagonal = fused.matmul(best.U), fused.diagonal()
            done = finish(best, KU, polish=self.polish, diagonal=diagonal)
        warn_if_one_kernel_has_it_all(stack.names, done.w, "GMKCF")
        listen(StageProgress("k-means", 0, 1, unit="clusterings"))
        labels, centres = kmeans(done.V, self.n_clusters, seed)
        listen(StageProgress("k-means", 1, 1, unit="clusterings"))
        return Clustering(
            labels,
            done.w,
            stack.names,
            done.history,
            done.converged,
            runs,
            seed,
            factors_of(done, centres),
            weights_history=done.weights_history,
        )


def gmkcf(
    stack: KernelStack,
    start: Start | None,
    options: SolverOptions,
    listen: Listener = ignore,
    restart: tuple[int, int] = (0, 1),
    slot: CheckpointSlot = NEW_RUN,
) -> Factorization:
    """One run from one start, factors not yet scaled.

    Parameters
    ----------
    stack : KernelStack
    start : (U0, V0), each of shape (n, k); None for the spectral start
    options : SolverOptions
    listen : callable
        Gets an `IterationDone` after every iteration.
    restart : (number, total)
        Which of several runs this is, for the events.
    slot : CheckpointSlot
        Where the run goes on, if not at its start, and who keeps its states.
    """
    floor = stack.error_floor * stack.traces
    state = slot.resumed or _first_state(stack, start, options, listen)
    U, V, w, before, pace = (state[name] for name in ("U", "V", "w", "before", "pace"))
    history: list[float] = list(state["history"])
    weights_history: list[Floats] = list(state["weights_history"])
    floored: set[str] = set(state["floored"])
    weight_step = WeightStep(stack.products_per_weight_step, state["gain"])
    converged = risen = False
    for iteration in range(max(1, len(history)), options.max_iter + 1):
        fused = stack.fuse(w**2)
        try:
            at = run_solver(begin(fused, (U, V), before, pace), fused)
            if not history:
                history.append(at.objective(fused.trace))
                weights_history.append(w)
            at = run_solver(iterate(fused, at, options, weight_step), fused)
            U, V, before, pace = at.U, at.V, at.before, at.pace
        finally:
            fused.release()

        e = stack.errors(U, V)
        trace = float(w**2 @ stack.traces)
        refuse_negative(float(w**2 @ e), trace, nonnegative=stack.nonnegative)
        floored.update(np.array(stack.names)[e < floor])
        e = np.maximum(e, floor)
        J_before = float(w**2 @ e)
        w = updates.weights_from_errors(e)
        J_old, J = history[-1], float(w**2 @ e)
        weight_step = replace(weight_step, gain=J_before - J)
        history.append(J)
        weights_history.append(w)
        change = (J_old - J) / J if J > 0 else 0.0
        listen(
            IterationDone(
                *restart, iteration, options.max_iter, J, change, options.tol, tuple(map(float, w))
            )
        )
        trace = float(w**2 @ stack.traces)
        risen = has_risen(J_old, J, trace, stack.error_floor)
        converged = not risen and should_stop(J_old, J, trace, options.tol)
        if risen or converged:
            break
        slot.keep(
            {
                "U": U,
                "V": V,
                "w": w,
                "before": before,
                "pace": pace,
                "history": tuple(history),
                "floored": sorted(floored),
                "gain": weight_step.gain,
                "weights_history": np.array(weights_history),
            }
        )
    if not converged:
        warn_not_converged(options, history, risen=risen, what="GMKCF")
    if floored:
        warnings.warn(
            f"the reconstruction error of {', '.join(sorted(floored))} fell to its floor of "
            f"{stack.error_floor:g} of the trace: k concepts reproduce these kernels exactly, or "
            "scaling made them slightly indefinite, and they draw the weight to themselves; leave "
            "them out if the clusters make no sense",
            NumericsWarning,
            stacklevel=2,
        )
    return Factorization(U, V, w, tuple(history), converged, np.array(weights_history))


def _state_schema(n: int, k: int, names: Sequence[str]) -> Schema:
    return {
        "U": checkpointing.array(n, k, low=0),
        "V": checkpointing.array(n, k, low=0),
        "w": checkpointing.weights(len(names)),
        "before": (None, checkpointing.array(n, k)),
        "pace": checkpointing.number,
        "history": checkpointing.history,
        "floored": [lambda name: name in names],
        "gain": checkpointing.number,
        "weights_history": checkpointing.weights_history(len(names)),
    }


def _first_state(
    stack: KernelStack, start: Start | None, options: SolverOptions, listen: Listener
) -> State:
    m = len(stack.names)
    w = np.full(m, 1.0 / m)
    U, V = _spectral_start(stack, w, options.n_clusters, listen) if start is None else start
    rest: State = {"before": None, "pace": 1.0, "history": (), "floored": (), "gain": 0.0}
    return {"U": U, "V": V, "w": w, "weights_history": no_weights(m), **rest}


def _spectral_start(stack: KernelStack, w: Floats, k: int, listen: Listener) -> Start:
    fused = stack.fuse(w**2)
    try:
        return run_solver(spectral_start(fused, k, stack.error_floor, listen), fused)
    finally:
        fused.release()
