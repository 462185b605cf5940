"""Compiled loops over the rows of large factors; rows do not depend on each other."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from gmkcf_dask.system.compiled import compiled

Array = npt.NDArray[Any]


@compiled
def hals_rows(V: Array, KU: Array, UtKU: Array, used: Array, passes: int) -> None:
    """[8] row by row, in place: each entry at its best while the others stay, `passes` times.

    A row whose entries all stay is at its best, so further passes would change nothing.
    """
    n, k = V.shape
    slope = np.empty(k)  # K_wU − V·UᵀK_wU of a row
    for row in range(n):
        slope[:] = KU[row]
        for j in range(k):
            for c in range(k):
                slope[c] -= V[row, j] * UtKU[j, c]
        for _ in range(passes):
            moved = False
            for c in used:
                entry = max(V[row, c] + slope[c] / UtKU[c, c], 0.0)
                step = entry - V[row, c]
                if step != 0.0:
                    moved = True
                    V[row, c] = entry
                    for j in range(k):
                        slope[j] -= step * UtKU[c, j]
            if not moved:
                break


@compiled
def signed_rows(
    U: Array, KV: Array, P: Array, N: Array, floor: float, most: float, least: float
) -> None:
    """[6] entry by entry, in place, from K⁺U·VᵀV and K⁻U·VᵀV.

    No denominator is below `floor`, no entry grows by more than `most` or falls below `least`.
    """
    n, k = U.shape
    for row in range(n):
        for c in range(k):
            B, p, m = KV[row, c], P[row, c], N[row, c]
            square = B * B + 4.0 * p * m
            if 1e-200 < square < 1e200:
                R = math.sqrt(square)
            else:  # squares that overflow, or vanish
                R = math.hypot(B, 2.0 * math.sqrt(p) * math.sqrt(m))
            up = B >= 0.0
            numerator, denominator = (B + R, 2.0 * p) if up else (2.0 * m, R - B)
            factor = min(numerator / max(denominator, floor), most)
            U[row, c] = max(min(U[row, c] * factor, most * U[row, c]), least)


def row_slices(n: int, step: int = 1 << 14) -> list[slice]:
    """n rows, some at a time."""
    return [slice(first, min(n, first + step)) for first in range(0, n, step)]


def as_floats(values: Array) -> Array:
    """C order and float64, as compiled loops want it."""
    return np.ascontiguousarray(values, dtype=np.float64)
