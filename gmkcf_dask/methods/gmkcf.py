"""GMKCF: concept factorization with learned kernel weights (Li, Du, Ren 2019).

minimise Σ w_i² e_i(U, V) with U, V, w ≥ 0 and Σ w_i = 1. See docs/algorithm.md.

Cost of one iteration with inner_iter=1: two sweeps over the m kernels (fuse, errors) and two over
the fused one, the first of which comes with fusing; three graphs.
"""

from __future__ import annotations

import warnings

import numpy as np

from gmkcf_dask.engine.operators import KernelStack
from gmkcf_dask.errors import NumericsWarning
from gmkcf_dask.events import IterationDone, Listener, ignore
from gmkcf_dask.methods import updates
from gmkcf_dask.methods.factorize import (
    Factorization,
    SolverOptions,
    alternate,
    first_products,
    has_risen,
    refuse_negative,
    should_stop,
    symmetric_product,
    warn_not_converged,
)
from gmkcf_dask.methods.init import Start


def gmkcf(
    stack: KernelStack,
    start: Start,
    options: SolverOptions,
    listen: Listener = ignore,
    restart: tuple[int, int] = (0, 1),
) -> Factorization:
    """One run from one start, factors not yet scaled.

    Parameters
    ----------
    stack : KernelStack
    start : (U0, V0), each of shape (n, k)
    options : SolverOptions
    listen : callable
        Gets an `IterationDone` after every iteration.
    restart : (number, total)
        Which of several runs this is, for the events.
    """
    m = len(stack.names)
    floor = stack.error_floor * stack.traces
    U, V = start
    w = np.full(m, 1.0 / m)
    history: list[float] = []
    floored: set[str] = set()
    converged = risen = False
    for iteration in range(1, options.max_iter + 1):
        fused = stack.fuse(w**2)
        try:
            KU, KV = first_products(fused, U, V)
            if not history:
                UtKU = symmetric_product(U, KU.full)
                history.append(updates.objective(fused.trace, V, KU.full, UtKU))
            U, V, _ = alternate(fused, (U, V), KU, KV, options)
        finally:
            fused.release()

        e = stack.errors(U, V)
        trace = float(w**2 @ stack.traces)
        refuse_negative(float(w**2 @ e), trace, nonnegative=stack.nonnegative)
        floored.update(np.array(stack.names)[e < floor])
        e = np.maximum(e, floor)
        w = updates.weights_from_errors(e)
        J_old, J = history[-1], float(w**2 @ e)
        history.append(J)
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
    if not converged:
        warn_not_converged(options, history, risen=risen)
    if floored:
        warnings.warn(
            f"the reconstruction error of {', '.join(sorted(floored))} fell to its floor of "
            f"{stack.error_floor:g} of the trace: k concepts reproduce these kernels exactly, or "
            "scaling made them slightly indefinite, and they draw the weight to themselves; leave "
            "them out if the clusters make no sense",
            NumericsWarning,
            stacklevel=2,
        )
    return Factorization(U, V, w, tuple(history), converged)
