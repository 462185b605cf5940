"""What GMKCF and KCF share: the alternation on one fused kernel, restarts, and the finish."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, get_args

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from gmkcf_dask.compute.lockstep import (
    SCALE_THEM,
    ProductRequest,
    Products,
    SolverSteps,
    refuse_nonfinite,
)
from gmkcf_dask.compute.operators import FusedKernel
from gmkcf_dask.errors import InputError, NotPositiveError, NumericsError, NumericsWarning
from gmkcf_dask.events import Listener, StageProgress
from gmkcf_dask.methods import checkpointing, updates
from gmkcf_dask.methods.assign import check_assign, cluster_rows
from gmkcf_dask.methods.base import RestartedMethod, check_whole, no_weights
from gmkcf_dask.methods.checkpointing import Schema, State, as_state
from gmkcf_dask.methods.defaults import Assign
from gmkcf_dask.methods.init import Init, Start, make_starts
from gmkcf_dask.system.arrays import Floats, Labels

Solver = Literal["paper", "accelerated"]

_NEGATIVE = 1e-6
"""Fraction of the trace below zero at which J is negative beyond rounding."""
EXACT_FIT = 1e-12
"""Below this fraction of the trace the samples are reproduced exactly: nothing is left to do."""


@dataclass(frozen=True)
class SolverOptions:
    """How to iterate. The defaults are the paper's Algorithm 1.

    Parameters
    ----------
    n_clusters : int
    inner_iter : int
        (U, V) iterations per weight step.
    v_steps : int
        V steps per U step; they cost no pass over the kernels.
    max_iter : int
        Outer iterations at most.
    tol : float
        Stop when (J_old − J_new) / J_new is at most this.
    polish : bool
        Solve V exactly at the end.
    n_init : int
        Random restarts; the one of lowest objective is kept.
    init : "random", "spectral" or (U0, V0)
    solver : {"paper", "accelerated"}
        Algorithm 1; or fewer sweeps to the same objective, see `accelerate`. For the second,
        `inner_iter` and `v_steps` are what it does at least.
    """

    n_clusters: int
    inner_iter: int = 1
    v_steps: int = 1
    max_iter: int = 500
    tol: float = 1e-5
    polish: bool = True
    n_init: int = 1
    init: Init = "random"
    solver: Solver = "paper"

    def __post_init__(self) -> None:
        check_whole(
            n_clusters=self.n_clusters,
            inner_iter=self.inner_iter,
            v_steps=self.v_steps,
            max_iter=self.max_iter,
        )
        if not isinstance(self.tol, int | float | np.floating) or not self.tol >= 0:
            raise InputError(f"tol must be 0 or more, not {self.tol!r}")
        if not isinstance(self.solver, str) or self.solver not in get_args(Solver):
            raise InputError(f"solver must be 'paper' or 'accelerated', not {self.solver!r}")

    def starts(self, n: int, seed: int) -> Iterable[Start | None]:
        """Where the restarts of a seed begin; None where the kernel decides."""
        return make_starts(n, self.n_clusters, seed, self.n_init, self.init)

    @property
    def seeded(self) -> bool:
        """Whether anything before K-means depends on the seed."""
        return isinstance(self.init, str) and self.init == "random"


@dataclass(frozen=True)
class Factorization:
    """Where one run ended.

    Attributes
    ----------
    U, V : ndarray, shape (n, k)
    w : ndarray, shape (m,)
        Kernel weights.
    history : tuple of float
        J of the start, then after every iteration.
    converged : bool
    weights_history : ndarray, shape (n_iter + 1, m)
        w of the start, then after every iteration; shape (0, m) where it stays.
    UtKU : ndarray, shape (k, k), or None
        UᵀK_wU, once the run is finished.
    diagonal : ndarray, shape (n,), or None
        Of K_w, likewise.
    """

    U: Floats
    V: Floats
    w: Floats
    history: tuple[float, ...]
    converged: bool
    weights_history: Floats = field(default_factory=partial(no_weights, 0))
    UtKU: Floats | None = None
    diagonal: Floats | None = None

    def __post_init__(self) -> None:
        refuse_nonfinite(U=self.U, V=self.V)

    @property
    def weights(self) -> Floats:
        return self.w

    @property
    def n_iter(self) -> int:
        return len(self.history) - 1

    @property
    def objective(self) -> float:
        return self.history[-1]


@dataclass(frozen=True)
class FactorizationMethod(SolverOptions, RestartedMethod[Start | None, Factorization]):
    """A method that clusters the rows of V.

    Parameters
    ----------
    assign : {"kmeans", "spherical", "argmax"}
        How rows of V become labels, see `assign`.
    """

    run_type = Factorization
    assign: Assign = "kmeans"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_assign(self.assign, self.name, concepts=True)

    def check_samples(self, n: int) -> None:
        super().check_samples(n)
        self.starts(n, 0)

    def conclude(
        self, run: Factorization, seed: int, listen: Listener
    ) -> tuple[Labels, dict[str, Floats]]:
        listen(StageProgress("k-means", 0, 1, unit="clusterings"))
        labels, places = cluster_rows(run.V, self.n_clusters, seed, self.assign)
        listen(StageProgress("k-means", 1, 1, unit="clusterings"))
        assert run.UtKU is not None
        assert run.diagonal is not None
        factors = {"U": run.U, "V": run.V, **places}
        return labels, {**factors, "UtKU": run.UtKU, "diagonal": run.diagonal}


def factorization_schema(n: int, k: int, m: int, *, finished: bool) -> Schema:
    """Of a `Factorization` in a checkpoint."""
    return {
        "U": checkpointing.array(n, k, low=0),
        "V": checkpointing.array(n, k, low=0),
        "w": checkpointing.weights(m),
        "history": checkpointing.history,
        "converged": checkpointing.flag,
        "weights_history": checkpointing.weights_history(m),
        "UtKU": checkpointing.array(k, k) if finished else None,
        "diagonal": checkpointing.array(n) if finished else None,
    }


def iterate_schema(n: int, k: int) -> Schema:
    """Of an `Iterate` in a checkpoint."""
    factor, product = checkpointing.array(n, k, low=0), checkpointing.array(n, k)
    products: Schema = {"full": product, "positive": (None, product)}
    return {
        "U": factor,
        "V": factor,
        "KU": products,
        "KV": (None, products),
        "seen": (None, factor),
        "before": (None, product),
        "pace": checkpointing.number,
    }


@dataclass(frozen=True)
class Iterate:
    """Where a run stands on one fused kernel, with the products at hand.

    Attributes
    ----------
    U, V : ndarray, shape (n, k)
    KU : Products
        K_wU.
    KV : Products or None
        K_w times `seen`; None where the next step has to ask for it.
    seen : ndarray, shape (n, k)
        V itself or, for the accelerated solver, the V before it.
    before : ndarray, shape (n, k), or None
        For the accelerated solver: U before the last step.
    pace : float
        For the accelerated solver: how far momentum has built up, 1 for not at all.
    """

    U: Floats
    V: Floats
    KU: Products
    KV: Products | None
    seen: Floats
    before: Floats | None = None
    pace: float = 1.0

    def __post_init__(self) -> None:
        refuse_nonfinite(U=self.U, V=self.V)

    def state(self) -> State:
        """For a checkpoint, products included: made anew they would cost a sweep."""
        parts = {"KU": as_state(self.KU), "KV": None if self.KV is None else as_state(self.KV)}
        # that `seen` is V itself, and not only equal to it, tells the paper's step
        return {**as_state(self), **parts, "seen": None if self.seen is self.V else self.seen}

    @classmethod
    def of_state(cls, state: State) -> Iterate:
        """From a checkpoint."""
        KV, seen = state["KV"], state["seen"]
        parts = {"KU": Products(**state["KU"]), "KV": None if KV is None else Products(**KV)}
        return cls(**{**state, **parts, "seen": state["V"] if seen is None else seen})

    def objective(self, trace: float) -> float:
        """J, from products at hand."""
        UtKU = symmetric_product(self.U, self.KU.full)
        return updates.objective(trace, self.V, self.KU.full, UtKU)


def multiply(kernel: FusedKernel, Z: Floats) -> SolverSteps[Products]:
    """The products a step needs, in one sweep."""
    return (yield ProductRequest(Z, split=not kernel.nonnegative))


def multiply_both(
    kernel: FusedKernel, U: Floats, V: Floats
) -> SolverSteps[tuple[Products, Products]]:
    """K_wU and K_wV in one sweep; K⁺V is in no update."""
    k = U.shape[1]
    both = yield ProductRequest(np.hstack([U, V]), split=not kernel.nonnegative, first=k)
    return both.columns(slice(0, k)), Products(both.full[:, k:])


def begin(
    kernel: FusedKernel, start: Start, before: Floats | None = None, pace: float = 1.0
) -> SolverSteps[Iterate]:
    """First products: with a new fused kernel this is its one sweep over all kernels.

    `before` and `pace` are of the kernel before this one: momentum is of U alone and continues.
    """
    U, V = start
    KU, KV = yield from multiply_both(kernel, U, V)
    return Iterate(U, V, KU, KV, seen=V, before=before, pace=pace)


def symmetric_product(U: Floats, KU: Floats) -> Floats:
    """UᵀK_wU, symmetric to the last bit, shape (k, k)."""
    UtKU = U.T @ KU
    return np.asarray((UtKU + UtKU.T) / 2)


def step_U(U: Floats, V: Floats, KU: Products, KV: Products) -> Floats:
    """One U step."""
    VtV = V.T @ V
    if KU.positive is None:
        return updates.update_U(U, KU.full, KV.full, VtV)
    return updates.update_U_mixed(U, KU.full, KU.positive, KV.full, VtV)


def step_V(V: Floats, U: Floats, KU: Products, v_steps: int) -> Floats:
    """V steps for fixed U: all from the same K_wU."""
    UtKU = symmetric_product(U, KU.full)
    for _ in range(v_steps):
        if KU.positive is None:
            V = updates.update_V(V, KU.full, UtKU)
        else:
            V = updates.update_V_mixed(V, U, KU.full, KU.positive)
    return V


def alternate(kernel: FusedKernel, at: Iterate, options: SolverOptions) -> SolverSteps[Iterate]:
    """`inner_iter` rounds of U and V on a fixed K_w; K_wU passes from each round to the next."""
    U, V, KU, KV = at.U, at.V, at.KU, at.KV
    for _ in range(options.inner_iter):
        if KV is None:
            KV = yield from multiply(kernel, V)
        U = step_U(U, V, KU, KV)
        KU = yield from multiply(kernel, U)
        V, KV = step_V(V, U, KU, options.v_steps), None
    return Iterate(U, V, KU, KV, seen=V)


def should_stop(J_old: float, J_new: float, trace: float, tol: float) -> bool:
    """The paper's rule, or nothing left to explain."""
    return J_new <= EXACT_FIT * trace or (J_old - J_new) / J_new <= tol


def has_risen(J_old: float, J_new: float, trace: float, rounding: float) -> bool:
    """A rise beyond rounding cannot happen with kernels that are what they claim to be.

    J is a difference of numbers of the size of the trace: that is what its rounding is relative to.
    """
    return J_new - J_old > 100 * rounding * abs(trace)


def refuse_unbounded(J: float, trace: float, *, bounded: bool) -> None:
    """With mixed signs and no positive semi-definiteness J has no lower bound: stop, and say so.

    Of factored kernels an exact fit leaves a J around 0, below it by rounding.
    """
    if not np.isfinite(J):
        raise NumericsError(
            "the objective is no longer finite: the kernels hold numbers too large to multiply; "
            f"{SCALE_THEM}"
        )
    if not bounded and -_NEGATIVE * abs(trace) > J:
        raise NotPositiveError(
            f"the objective fell to {J:.4g}, below zero: a kernel with mixed signs is not positive "
            "semi-definite, so there is no best factorization; fix the kernels, or "
            f"{SCALE_THEM}"
        )


def warn_not_converged(
    options: SolverOptions, history: Sequence[float], *, risen: bool, what: str
) -> None:
    """Say why a run ended without converging, and how far from its tolerance it was."""
    J_old, J = history[-2:]
    if risen:
        warnings.warn(
            f"the objective of {what} rose from {J_old:.8g} to {J:.8g}, and the run stopped: a "
            "kernel is far from positive semi-definite",
            NumericsWarning,
            stacklevel=3,
        )
        return
    change = (J_old - J) / J
    warnings.warn(
        f"{what} stopped after max_iter={options.max_iter} iterations with a relative change of "
        f"{change:.2e} per iteration, above tol={options.tol:g}: raise max_iter or tol",
        ConvergenceWarning,
        stacklevel=3,
    )


def finish(
    run: Factorization, KU: Floats, *, polish: bool, diagonal: Floats | None = None
) -> Factorization:
    """Exact V if wanted, then columns scaled so that diag(UᵀK_wU) = 1; KU is K_wU of the final w.

    Clusters are of rows of V, so the scale of its columns matters; J does not change with it.
    """
    UtKU = symmetric_product(run.U, KU)
    V = run.V
    if polish:
        V = updates.with_direction(updates.solve_V(KU, UtKU, run.V), KU, UtKU)
    if polish and updates.is_indefinite(UtKU):
        warnings.warn(
            "the exact V is not unique and depends on the last iterate: the fused kernel is not "
            "positive semi-definite on the concepts (min-max scaling of wide kernels can do that)",
            NumericsWarning,
            stacklevel=3,
        )
    empty = updates.empty_concepts(UtKU, V)
    if empty:
        warnings.warn(
            f"{empty} of {V.shape[1]} concepts are empty, no sample belongs to them: a smaller k "
            "describes these samples as well",
            NumericsWarning,
            stacklevel=3,
        )
    s = updates.column_scale(UtKU)
    return replace(run, U=run.U / s, V=V * s, UtKU=UtKU / np.outer(s, s), diagonal=diagonal)
