"""The formulas, one function each: n×k and k×k matrices in, new ones out, nothing changed in place.

Numbers in brackets are the equations of docs/algorithm.md, whose section "Guards" says what they
give where the formula has no answer. Names: KU = K_w U, KV = K_w V, UtKU = Uᵀ K_w U, VtV = Vᵀ V.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.linalg import eigh
from scipy.optimize import nnls

from gmkcf_dask.compute.blas import on_cores, one_blas_thread
from gmkcf_dask.methods import loops
from gmkcf_dask.system.arrays import Floats

DENOMINATOR_FLOOR = 1e-300
LARGEST_STEP = 1e12
"""No entry of U or V grows by more than this factor in one multiplicative step."""
SMALLEST = float(np.finfo(np.float64).tiny)
"""What a multiplicative step leaves at least: 0 could never grow again, and denormals are slow."""
COMPILED_ROWS = 1 << 13
"""From so many rows on, loops over them are compiled; the last bits follow from n alone."""
_RANK = 1e-5
"""Along smaller eigenvalues of UᵀK_wU, relative to the largest, rounding of float32 kernels (6e-8)
would be seen in V."""
_PULL = 1e-9
"""Likewise, how strongly a given V decides there: too weak to matter where the kernel does."""
_INDEFINITE = 1e-5
_FAINT = 1e-6
"""Relative to the largest entry of V: too small for J, enough for a direction."""


def update_U(U: Floats, KU: Floats, KV: Floats, VtV: Floats) -> Floats:
    """[2] U ∘ K_wV ⊘ (K_wU·VᵀV), for K_w ≥ 0."""
    return _guarded(U, _ratio(U * KV, KU @ VtV))


def update_V(V: Floats, KU: Floats, UtKU: Floats) -> Floats:
    """[3] V ∘ K_wU ⊘ (V·UᵀK_wU), for K_w ≥ 0."""
    return _guarded(V, _ratio(V * KU, V @ UtKU))


def update_U_mixed(U: Floats, KU: Floats, KposU: Floats, KV: Floats, VtV: Floats) -> Floats:
    """[6] The U step for K_w of mixed signs, K⁻U = K⁺U − K_wU."""
    if len(U) < COMPILED_ROWS:
        KnegU = np.maximum(KposU - KU, 0.0)
        return _guarded(U, U * _signed_factor(KV, KposU @ VtV, KnegU @ VtV))
    made, KV = np.array(U, order="C"), loops.as_floats(KV)

    def work(rows: slice) -> None:
        P, N = KposU[rows] @ VtV, np.maximum(KposU[rows] - KU[rows], 0.0) @ VtV
        guards = (DENOMINATOR_FLOOR, LARGEST_STEP, SMALLEST)
        loops.signed_rows(made[rows], KV[rows], P, N, *guards)

    with one_blas_thread():
        on_cores(lambda: work, loops.row_slices(len(made)))
    return made


def update_V_mixed(V: Floats, U: Floats, KU: Floats, KposU: Floats) -> Floats:
    """[7] The V step for K_w of mixed signs."""
    KnegU = np.maximum(KposU - KU, 0.0)
    return _guarded(V, V * _signed_factor(KU, V @ (U.T @ KposU), V @ (U.T @ KnegU)))


def hals_V(V: Floats, KU: Floats, UtKU: Floats, passes: int) -> Floats:
    """[8] Column after column of V at its best while the others stay; `passes` times over all.

    Any signs of K_w will do. A column of an empty concept stays as it is.
    """
    used = np.flatnonzero(np.diagonal(UtKU) > DENOMINATOR_FLOOR)
    if len(V) >= COMPILED_ROWS:
        return _hals_by_rows(V, KU, UtKU, used, passes)
    V = V.copy()
    for _ in range(passes):
        for c in used:
            V[:, c] = np.maximum(V[:, c] + (KU[:, c] - V @ UtKU[:, c]) / UtKU[c, c], 0.0)
    return V


def _hals_by_rows(V: Floats, KU: Floats, UtKU: Floats, used: Any, passes: int) -> Floats:
    """The same for many rows: one pass over memory instead of one for every column and pass."""
    made, KU, G = np.array(V, order="C"), loops.as_floats(KU), loops.as_floats(UtKU)

    def work(rows: slice) -> None:
        loops.hals_rows(made[rows], KU[rows], G, used, passes)

    on_cores(lambda: work, loops.row_slices(len(made)))
    return made


def objective(trace: float, V: Floats, KU: Floats, UtKU: Floats) -> float:
    """[1] tr K_w − 2 tr(VᵀK_wU) + tr(UᵀK_wU VᵀV), from products at hand."""
    return float(trace - 2.0 * np.sum(V * KU) + np.sum(UtKU * (V.T @ V)))


def weights_from_errors(e: Floats) -> Floats:
    """[4] w_i = (1/e_i) / Σ_j (1/e_j); kernels without any error share the weight equally."""
    if e.min() == 0.0:
        return np.asarray((e == 0.0) / np.count_nonzero(e == 0.0))
    inverse = e.min() / e  # the common factor cancels, and nothing overflows
    return np.asarray(inverse / inverse.sum())


def column_scale(UtKU: Floats) -> Floats:
    """s with diag(UᵀK_wU) = s²; 1 for a concept that is empty. Shape (k,)."""
    s = np.sqrt(np.maximum(np.diagonal(UtKU), 0.0))
    return np.where(s > 0.0, s, 1.0)


def solve_V(KU: Floats, UtKU: Floats, V: Floats) -> Floats:
    """[5] Each row v ≥ 0 of V exactly: min vᵀ(UᵀK_wU)v − 2 vᵀ(K_wU)_row.

    Where concepts coincide the best row is not unique; the one nearest to the given V is taken.
    Where UᵀK_wU has clearly negative eigenvalues no row is the best: the given V decides in those
    directions, and rows that would not be better than it stay as they are. Shape (n, k).
    """
    s, (eigenvalues, Q) = column_scale(UtKU), eigh(_scaled(UtKU))
    largest = max(float(eigenvalues[-1]), DENOMINATOR_FLOOR)
    kept = eigenvalues > _RANK * largest
    roots = np.sqrt(eigenvalues[kept])
    # vᵀGv − 2vᵀb = ‖Rv − t‖² + const with R = Λ^½Qᵀ, t = Λ^-½Qᵀb
    R = roots[:, None] * Q[:, kept].T
    targets: Floats = (KU / s) @ (Q[:, kept] / roots)
    if not kept.all():
        pull = np.sqrt(_PULL * largest)
        R = np.vstack([R, pull * np.eye(len(s))])
        targets = np.hstack([targets, pull * (V * s)])
    solved = np.array([_nonnegative(R, target) for target in targets]).reshape(KU.shape) / s
    if not is_indefinite(UtKU):
        return solved
    better = _row_values(solved, KU, UtKU) < _row_values(V, KU, UtKU)
    return np.where(better[:, None], solved, V)


def with_direction(V: Floats, KU: Floats, UtKU: Floats) -> Floats:
    """V with a faint entry in rows that no concept explains: in the least unlike one.

    Kernels of mixed signs have samples whose similarity to all concepts is negative, and whose
    best row is 0. They still have a nearest concept; a sample without any similarity has none.
    """
    lost = ~(V > SMALLEST).any(axis=1) & KU.any(axis=1)
    if not lost.any():
        return V
    V = V.copy()
    V[lost, (KU[lost] / column_scale(UtKU)).argmax(axis=1)] = _FAINT * max(float(V.max()), SMALLEST)
    return V


def lacks_rank(UtKU: Floats) -> bool:
    """Whether the exact V depends on the given one: concepts coincide, or it is indefinite."""
    eigenvalues = eigh(_scaled(UtKU), eigvals_only=True)
    return not eigenvalues[0] > _RANK * eigenvalues[-1]


def is_indefinite(UtKU: Floats) -> bool:
    """Whether UᵀK_wU has clearly negative eigenvalues: then no V is the best."""
    eigenvalues = eigh(_scaled(UtKU), eigvals_only=True)
    return bool(eigenvalues[0] < -_INDEFINITE * max(float(eigenvalues[-1]), DENOMINATOR_FLOOR))


def _scaled(UtKU: Floats) -> Floats:
    """UᵀK_wU of concepts at unit length, shape (k, k)."""
    s = column_scale(UtKU)
    return UtKU / np.outer(s, s)


def _row_values(V: Floats, KU: Floats, UtKU: Floats) -> Floats:
    """vᵀ(UᵀK_wU)v − 2 vᵀ(K_wU)_row of every row, shape (n,)."""
    return np.asarray(np.sum(V * (V @ UtKU - 2.0 * KU), axis=1))


def _nonnegative(R: Floats, target: Floats) -> Floats:
    """argmin over v ≥ 0 of ‖Rv − t‖, shape (k,)."""
    try:
        return np.asarray(nnls(R, target)[0])
    except RuntimeError:  # the active-set search ran out of steps: column by column gets there, too
        start = np.zeros((1, R.shape[1]))
        return np.asarray(hals_V(start, (target @ R)[None], R.T @ R, passes=1000)[0])


def empty_concepts(UtKU: Floats, V: Floats) -> int:
    """Concepts without samples: no length in the fused kernel, or no entry in V."""
    return int(np.sum((np.diagonal(UtKU) <= 0.0) | (V.max(axis=0) <= SMALLEST)))


def _ratio(numerator: Floats, denominator: Floats) -> Floats:
    with np.errstate(over="ignore"):  # a denominator of 0: `_guarded` bounds the step
        return np.asarray(numerator / np.maximum(denominator, DENOMINATOR_FLOOR))


def _guarded(before: Floats, after: Floats) -> Floats:
    """A multiplicative step within bounds: no entry is thrown to 0 or out of all proportion.

    The step is towards the minimum of a function that is convex in each entry, so stopping short of
    it does no harm to the descent of J.
    """
    return np.maximum(np.minimum(after, LARGEST_STEP * before), SMALLEST)


def _signed_factor(B: Floats, P: Floats, N: Floats) -> Floats:
    """(B + R)/(2P) with R = sqrt(B² + 4PN), in the form that never subtracts equal numbers.

    Where B < 0 that is 2N/(R − B), the same number; the first form is 0/0 in rows of K_w without a
    positive entry, and the objective would rise.
    """
    R = np.hypot(B, 2.0 * np.sqrt(P) * np.sqrt(N))  # squares of large numbers would overflow
    up = B >= 0.0
    numerator = np.where(up, B + R, 2.0 * N)
    # bounded here already: 0 times infinity would be no number
    return np.minimum(_ratio(numerator, np.where(up, 2.0 * P, R - B)), LARGEST_STEP)
