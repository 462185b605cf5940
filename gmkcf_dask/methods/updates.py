"""The formulas, one function each: n×k and k×k matrices in, new ones out, nothing changed in place.

Numbers in brackets are the equations of docs/algorithm.md, whose section "Guards" says what they
give where the formula has no answer. Names: KU = K_w U, KV = K_w V, UtKU = Uᵀ K_w U, VtV = Vᵀ V.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.linalg import eigh
from scipy.optimize import nnls

Floats = npt.NDArray[np.float64]

DENOMINATOR_FLOOR = 1e-300
LARGEST_STEP = 1e12
"""No entry of U or V grows by more than this factor in one multiplicative step."""
SMALLEST = float(np.finfo(np.float64).tiny)
"""What a multiplicative step leaves at least: 0 could never grow again, and denormals are slow."""
_RANK = 1e-7
"""Smaller eigenvalues of UᵀK_wU, relative to the largest, are rounding of float32 kernels."""
_INDEFINITE = 1e-5


def update_U(U: Floats, KU: Floats, KV: Floats, VtV: Floats) -> Floats:
    """[2] U ∘ K_wV ⊘ (K_wU·VᵀV), for K_w ≥ 0."""
    return _guarded(U, _ratio(U * KV, KU @ VtV))


def update_V(V: Floats, KU: Floats, UtKU: Floats) -> Floats:
    """[3] V ∘ K_wU ⊘ (V·UᵀK_wU), for K_w ≥ 0."""
    return _guarded(V, _ratio(V * KU, V @ UtKU))


def update_U_mixed(U: Floats, KU: Floats, KposU: Floats, KV: Floats, VtV: Floats) -> Floats:
    """[6] The U step for K_w of mixed signs, K⁻U = K⁺U − K_wU."""
    KnegU = np.maximum(KposU - KU, 0.0)
    return _guarded(U, U * _signed_factor(KV, KposU @ VtV, KnegU @ VtV))


def update_V_mixed(V: Floats, U: Floats, KU: Floats, KposU: Floats) -> Floats:
    """[7] The V step for K_w of mixed signs."""
    KnegU = np.maximum(KposU - KU, 0.0)
    return _guarded(V, V * _signed_factor(KU, V @ (U.T @ KposU), V @ (U.T @ KnegU)))


def hals_V(V: Floats, KU: Floats, UtKU: Floats, passes: int) -> Floats:
    """[8] Column after column of V at its best while the others stay; `passes` times over all.

    Any signs of K_w will do. A column of an empty concept stays as it is.
    """
    V = V.copy()
    for _ in range(passes):
        for c in np.flatnonzero(np.diagonal(UtKU) > DENOMINATOR_FLOOR):
            V[:, c] = np.maximum(V[:, c] + (KU[:, c] - V @ UtKU[:, c]) / UtKU[c, c], 0.0)
    return V


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


def solve_V(KU: Floats, UtKU: Floats, V: Floats) -> Floats | None:
    """[5] Each row v ≥ 0 of V exactly: min vᵀ(UᵀK_wU)v − 2 vᵀ(K_wU)_row.

    Where concepts coincide the best row is not unique; the one nearest to the given V is taken.

    Parameters
    ----------
    KU, V : ndarray, shape (n, k)
    UtKU : ndarray, shape (k, k)

    Returns
    -------
    ndarray of shape (n, k), or None where UᵀK_wU has clearly negative eigenvalues: then no row is
    the best.
    """
    s = column_scale(UtKU)
    eigenvalues, Q = eigh(UtKU / np.outer(s, s))
    if eigenvalues[0] < -_INDEFINITE * max(float(eigenvalues[-1]), DENOMINATOR_FLOOR):
        return None
    R, targets = _least_squares(eigenvalues, Q, KU / s, V * s)
    try:
        return np.array([nnls(R, target)[0] for target in targets]) / s
    except RuntimeError:  # the active-set search ran out of steps
        return None


def place_rows(KU: Floats, UtKU: Floats) -> Floats:
    """[5] for samples of which nothing else is known, row by row; shape (len, k).

    Where concepts coincide the smallest of the best rows is taken. Directions in which UᵀK_wU is
    negative have no best point and are left out.
    """
    s = column_scale(UtKU)
    eigenvalues, Q = eigh(UtKU / np.outer(s, s))
    R, targets = _least_squares(eigenvalues, Q, KU / s, np.zeros_like(KU))
    return np.array([_nonnegative(R, target) for target in targets]).reshape(KU.shape) / s


def _nonnegative(R: Floats, target: Floats) -> Floats:
    try:
        return np.asarray(nnls(R, target)[0])
    except RuntimeError:  # column by column gets there as well, if slowly
        start = np.zeros((1, R.shape[1]))
        return np.asarray(hals_V(start, (target @ R)[None], R.T @ R, passes=1000)[0])


def _least_squares(eigenvalues: Floats, Q: Floats, KU: Floats, V: Floats) -> tuple[Floats, Floats]:
    """R and rows t with vᵀGv − 2vᵀb = ‖Rv − t‖² + const, G = QΛQᵀ: R = Λ^½Qᵀ, t = Λ^-½Qᵀb.

    Where G has no full rank, a weak pull to the rows of V decides.
    """
    largest = max(float(eigenvalues[-1]), DENOMINATOR_FLOOR)
    kept = eigenvalues > _RANK * largest
    roots = np.sqrt(eigenvalues[kept])
    R = roots[:, None] * Q[:, kept].T
    targets: Floats = KU @ (Q[:, kept] / roots)
    if not kept.all():
        pull = np.sqrt(_RANK * largest)  # too weak to matter where the kernel has a say
        R = np.vstack([R, pull * np.eye(len(Q))])
        targets = np.hstack([targets, pull * V])
    return R, targets


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
