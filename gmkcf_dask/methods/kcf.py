"""KCF: concept factorization with one kernel, or with an equal-weight mean of several.

Cost of one iteration: two sweeps over the one kernel (K V, K U); J needs none. With
solver="accelerated" one, or two where momentum went astray, and one more to begin with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gmkcf_dask.engine.operators import FusedKernel
from gmkcf_dask.events import IterationDone, Listener, ignore
from gmkcf_dask.methods import forms
from gmkcf_dask.methods.accelerate import iterate
from gmkcf_dask.methods.assign import kmeans
from gmkcf_dask.methods.base import Labels, SingleKernelMethod, no_weights
from gmkcf_dask.methods.checkpoints import FRESH, Turn
from gmkcf_dask.methods.factorize import (
    Factorization,
    Floats,
    Iterate,
    SolverOptions,
    begin,
    factorization_form,
    factors_of,
    finish,
    has_risen,
    iterate_form,
    refuse_negative,
    should_stop,
    warn_not_converged,
)
from gmkcf_dask.methods.forms import Form
from gmkcf_dask.methods.init import Start, spectral_start
from gmkcf_dask.methods.steps import Steps


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
        turn: Turn,
    ) -> Steps[Factorization]:
        return kcf(kernel, start, self, weights, rounding, listen, restart, turn)

    def forms(self, n: int, m: int) -> tuple[Form, Form]:
        k = self.n_clusters
        running = forms.fields(at=iterate_form(n, k), history=forms.history)
        return running, factorization_form(n, k, m, finished=True)

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
    turn: Turn = FRESH,
) -> Steps[Factorization]:
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
    turn : Turn
        Where the run goes on, if not at its start, and who keeps its states.
    """
    if turn.resumed is not None:
        at = Iterate.of_state(turn.resumed["at"])
        history = list(turn.resumed["history"])
    else:
        if start is None:
            start = yield from spectral_start(kernel, options.n_clusters, rounding, listen)
        at = yield from begin(kernel, start)
        history = [at.objective(kernel.trace)]
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
        turn.keep({"at": at.state(), "history": tuple(history)})
    if not converged:
        warn_not_converged(options, history, risen=risen, what=f"KCF on {kernel.label}")
    constant = no_weights(len(weights))
    run = Factorization(at.U, at.V, weights, tuple(history), converged, constant)
    return finish(run, at.KU.full, polish=options.polish, diagonal=kernel.diagonal())
