"""KCF: concept factorization with one kernel, or with an equal-weight mean of several.

Cost of one iteration: two sweeps over the one kernel (K V, K U); J needs none. With
solver="accelerated" one, or two where momentum went astray, and one more to begin with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from gmkcf_dask.compute.lockstep import SolverSteps
from gmkcf_dask.compute.operators import FusedKernel
from gmkcf_dask.methods import checkpointing
from gmkcf_dask.methods.accelerate import iterate
from gmkcf_dask.methods.base import NEW_RUN, RunContext, SingleKernelMethod, no_weights
from gmkcf_dask.methods.checkpointing import Schema
from gmkcf_dask.methods.factorize import (
    Factorization,
    FactorizationMethod,
    Iterate,
    SolverOptions,
    begin,
    factorization_schema,
    finish,
    has_risen,
    iterate_schema,
    refuse_unbounded,
    should_stop,
    warn_not_converged,
)
from gmkcf_dask.methods.init import Start, spectral_start
from gmkcf_dask.system.arrays import Floats


@dataclass(frozen=True)
class Kcf(FactorizationMethod, SingleKernelMethod[Start | None, Factorization]):
    """Concept factorization with one kernel and clusters of rows of V; CF with the linear one."""

    name: ClassVar[str] = "kcf"

    def run(
        self,
        kernel: FusedKernel,
        start: Start | None,
        weights: Floats,
        rounding: float,
        context: RunContext,
    ) -> SolverSteps[Factorization]:
        return kcf(kernel, start, self, weights, rounding, context)

    def state_schemas(self, n: int, names: Sequence[str]) -> tuple[Schema, Schema]:
        k = self.n_clusters
        running: Schema = {"at": iterate_schema(n, k), "history": checkpointing.history}
        return running, factorization_schema(n, k, len(names), finished=True)


def kcf(
    kernel: FusedKernel,
    start: Start | None,
    options: SolverOptions,
    weights: Floats,
    rounding: float,
    context: RunContext = NEW_RUN,
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
    """
    if context.resumed is not None:
        at = Iterate.of_state(context.resumed["at"])
        history = list(context.resumed["history"])
    else:
        if start is None:
            start = yield from spectral_start(kernel, options.n_clusters, rounding, context.listen)
        at = yield from begin(kernel, start)
        history = [at.objective(kernel.trace)]
    start = None  # of many runs that wait for each other none shall hold more than it needs
    converged = risen = False
    for _ in range(len(history), options.max_iter + 1):
        at = yield from iterate(kernel, at, options)
        J_old, J = history[-1], at.objective(kernel.trace)
        refuse_unbounded(J, kernel.trace, bounded=kernel.nonnegative or kernel.semidefinite)
        J = max(J, rounding * kernel.trace)
        history.append(J)
        context.report(history, options.max_iter, weights, options.tol)
        risen = has_risen(J_old, J, kernel.trace, rounding)
        converged = not risen and should_stop(J_old, J, kernel.trace, options.tol)
        if risen or converged:
            break
        context.keep({"at": at.state(), "history": tuple(history)})
    if not converged:
        warn_not_converged(options, history, risen=risen, what=f"KCF on {kernel.label}")
    constant = no_weights(len(weights))
    run = Factorization(at.U, at.V, weights, tuple(history), converged, constant)
    return finish(run, at.KU.full, polish=options.polish, diagonal=kernel.diagonal())
