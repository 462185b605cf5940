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

from gmkcf_dask.compute.lockstep import run_solver
from gmkcf_dask.compute.operators import KernelStack
from gmkcf_dask.errors import NumericsWarning
from gmkcf_dask.events import Listener
from gmkcf_dask.methods import checkpointing, updates
from gmkcf_dask.methods.accelerate import WeightStep, iterate
from gmkcf_dask.methods.base import (
    NEW_RUN,
    RunContext,
    WeightLearningMethod,
    fused_kernel,
    no_weights,
)
from gmkcf_dask.methods.checkpointing import Schema, State
from gmkcf_dask.methods.factorize import (
    Factorization,
    FactorizationMethod,
    SolverOptions,
    begin,
    factorization_schema,
    finish,
    has_risen,
    refuse_unbounded,
    should_stop,
    warn_not_converged,
)
from gmkcf_dask.methods.init import Start, spectral_start
from gmkcf_dask.system.arrays import Floats


@dataclass(frozen=True)
class Gmkcf(FactorizationMethod, WeightLearningMethod[Start | None, Factorization]):
    """Concept factorization with learned kernel weights, and clusters of rows of V."""

    name: ClassVar[str] = "gmkcf"

    def run(self, stack: KernelStack, start: Start | None, context: RunContext) -> Factorization:
        return gmkcf(stack, start, self, context)

    def finish(self, stack: KernelStack, run: Factorization) -> Factorization:
        fused = stack.fuse(run.w**2, keep=False)
        return finish(run, fused.matmul(run.U), polish=self.polish, diagonal=fused.diagonal())

    def state_schemas(self, n: int, names: Sequence[str]) -> tuple[Schema, Schema]:
        k, m = self.n_clusters, len(names)
        running: Schema = {
            "U": checkpointing.array(n, k, low=0),
            "V": checkpointing.array(n, k, low=0),
            "w": checkpointing.weights(m),
            "before": (None, checkpointing.array(n, k)),
            "pace": checkpointing.number,
            "history": checkpointing.history,
            "floored": [lambda name: name in names],
            "gain": checkpointing.number,
            "weights_history": checkpointing.weights_history(m),
        }
        return running, factorization_schema(n, k, m, finished=False)


def gmkcf(
    stack: KernelStack,
    start: Start | None,
    options: SolverOptions,
    context: RunContext = NEW_RUN,
) -> Factorization:
    """One run from one start, factors not yet scaled.

    Parameters
    ----------
    stack : KernelStack
    start : (U0, V0), each of shape (n, k); None for the spectral start
    options : SolverOptions
    """
    floor = stack.error_floor * stack.traces
    state = context.resumed or _first_state(stack, start, options, context.listen)
    U, V, w, before, pace = (state[name] for name in ("U", "V", "w", "before", "pace"))
    history: list[float] = list(state["history"])
    weights_history: list[Floats] = list(state["weights_history"])
    floored: set[str] = set(state["floored"])
    weight_step = WeightStep(stack.products_per_weight_step, state["gain"])
    converged = risen = False
    for _ in range(max(1, len(history)), options.max_iter + 1):
        with fused_kernel(stack, w**2) as fused:
            at = run_solver(begin(fused, (U, V), before, pace), fused)
            if not history:
                history.append(at.objective(fused.trace))
                weights_history.append(w)
            at = run_solver(iterate(fused, at, options, weight_step), fused)
            U, V, before, pace = at.U, at.V, at.before, at.pace

        e = stack.errors(U, V)
        trace = float(w**2 @ stack.traces)
        refuse_unbounded(float(w**2 @ e), trace, bounded=stack.nonnegative or stack.semidefinite)
        floored.update(np.array(stack.names)[e < floor])
        e = np.maximum(e, floor)
        J_before = float(w**2 @ e)
        w = updates.weights_from_errors(e)
        J_old, J = history[-1], float(w**2 @ e)
        weight_step = replace(weight_step, gain=J_before - J)
        history.append(J)
        weights_history.append(w)
        context.report(history, options.max_iter, w, options.tol)
        trace = float(w**2 @ stack.traces)
        risen = has_risen(J_old, J, trace, stack.error_floor)
        converged = not risen and should_stop(J_old, J, trace, options.tol)
        if risen or converged:
            break
        context.keep(
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
    if 0 < len(floored) < len(stack.names):  # all of them draw nothing from one another
        warnings.warn(
            f"the reconstruction error of {', '.join(sorted(floored))} fell to its floor of "
            f"{stack.error_floor:g} of the trace: k concepts reproduce these kernels exactly, or "
            "scaling made them slightly indefinite, and they draw the weight to themselves; leave "
            "them out if the clusters make no sense",
            NumericsWarning,
            stacklevel=2,
        )
    return Factorization(U, V, w, tuple(history), converged, np.array(weights_history))


def _first_state(
    stack: KernelStack, start: Start | None, options: SolverOptions, listen: Listener
) -> State:
    m = len(stack.names)
    w = np.full(m, 1.0 / m)
    if start is None:
        with fused_kernel(stack, w**2) as fused:
            steps = spectral_start(fused, options.n_clusters, stack.error_floor, listen)
            start = run_solver(steps, fused)
    U, V = start
    rest: State = {"before": None, "pace": 1.0, "history": (), "floored": (), "gain": 0.0}
    return {"U": U, "V": V, "w": w, "weights_history": no_weights(m), **rest}
