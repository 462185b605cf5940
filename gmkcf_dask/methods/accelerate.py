"""The accelerated solver: the same objective as the paper's alternation, in fewer sweeps.

J never rises. A round multiplies the new U and the V at hand in one sweep over K_w, so its U step
knows K_wV of the V one round ago: it is the step [2] or [6] from there, carried on by momentum [9].
HALS [8] then brings V up to the new U without a sweep. Where that gains no more than `tol` the
round takes a second sweep, for the U step without momentum: K_wV of the very V came with the first
sweep, so this is the paper's step, which cannot raise J. A round that gains no more than `tol` is
therefore one in which the paper's U step gained no more either, and `tol` means what it always did.

Cost of an iteration with r rounds: r sweeps over K_w, one more for each round that needed its
second, and for GMKCF the first products, which come with fusing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import count

import numpy as np

from gmkcf_dask.compute.lockstep import Products, SolverSteps
from gmkcf_dask.compute.operators import FusedKernel
from gmkcf_dask.methods import updates
from gmkcf_dask.methods.factorize import (
    Iterate,
    SolverOptions,
    alternate,
    multiply,
    multiply_both,
    should_stop,
    step_U,
    symmetric_product,
)
from gmkcf_dask.system.arrays import Floats

HALS_PASSES = 8
"""Passes over the columns of V per round; more change little."""
FARTHEST = 10.0
"""An entry of U counts as changed by at most this factor when momentum carries it on."""


@dataclass(frozen=True)
class WeightStep:
    """What a weight step costs, in products with K_w, and by how much the last one lowered J."""

    products: int = 0
    gain: float = 0.0


NO_WEIGHTS = WeightStep()


def iterate(
    kernel: FusedKernel, at: Iterate, options: SolverOptions, weights: WeightStep = NO_WEIGHTS
) -> SolverSteps[Iterate]:
    """The rounds of one iteration, by the solver that was asked for."""
    if options.solver == "paper":
        return (yield from alternate(kernel, at, options))
    return (yield from accelerated(kernel, at, options, weights))


def accelerated(
    kernel: FusedKernel, at: Iterate, options: SolverOptions, weights: WeightStep
) -> SolverSteps[Iterate]:
    """At least `inner_iter` rounds on a fixed K_w, and more while they are worth their bytes.

    That is while the last round gained more per byte than the iteration so far, the weight step it
    began with included; without weights that is one round.
    """
    J_begin = J = at.objective(kernel.trace)
    for done in count(1):
        J_old = J
        at, J = yield from _round(kernel, at, J, options)
        if should_stop(J_old, J, kernel.trace, options.tol):
            break
        spent, gained = weights.products + done, weights.gain + J_begin - J
        if done >= options.inner_iter and (J_old - J) * spent <= gained:
            break
    return at


def _round(
    kernel: FusedKernel, at: Iterate, J: float, options: SolverOptions
) -> SolverSteps[tuple[Iterate, float]]:
    """One new U and V, and their J."""
    assert at.KV is not None
    passes = max(options.v_steps, HALS_PASSES)
    pace = (1.0 + np.sqrt(1.0 + 4.0 * at.pace**2)) / 2.0
    momentum = (at.pace - 1.0) / pace
    U = _step_U(at.U, at.seen, at.KU, at.KV)
    if momentum > 0.0:
        assert at.before is not None
        U = U * _change(at.U, at.before) ** momentum
    KU, KV = yield from multiply_both(kernel, U, at.V)
    tried = Iterate(U, _step_V(at.V, U, KU, passes), KU, KV, at.V, at.U, pace)
    J_tried = tried.objective(kernel.trace)
    if J - J_tried > options.tol * J_tried:
        return tried, J_tried

    # momentum begins anew; the smaller gain of a step that was not good enough may still be one
    candidates = [(replace(at, KV=KV, seen=at.V, pace=1.0), J), (replace(tried, pace=1.0), J_tried)]
    if momentum > 0.0 or at.seen is not at.V:  # else that was the paper's step already
        U = _step_U(at.U, at.V, at.KU, KV)
        KU = yield from multiply(kernel, U)
        plain = Iterate(U, _step_V(at.V, U, KU, passes), KU, KV, at.V, at.U)
        candidates.append((plain, plain.objective(kernel.trace)))
    return min(candidates, key=lambda candidate: candidate[1])


def _step_U(U: Floats, V: Floats, KU: Products, KV: Products) -> Floats:
    """The paper's U step; a concept that no sample has keeps its column, for HALS may need it."""
    return np.where(V.any(axis=0), step_U(U, V, KU, KV), U)


def _step_V(V: Floats, U: Floats, KU: Products, passes: int) -> Floats:
    return updates.hals_V(V, KU.full, symmetric_product(U, KU.full), passes)


def _change(U: Floats, before: Floats) -> Floats:
    """U ⊘ U_before, within bounds: what has almost vanished must not be thrown to zero."""
    return np.clip(U / np.maximum(before, updates.DENOMINATOR_FLOOR), 1 / FARTHEST, FARTHEST)
