"""Compiled loops over the rows of large factors; rows do not depend on each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gmkcf_dask.system.compiled import compiled

Array = npt.NDArray[Any]


@compiled
def hals_rows(V: Array, KU: Array, UtKU: Array, used: Array, passes: int) -> None:
    """[8] row by row, in place: each entry at its best while the others stay, `passes` times."""
    n, k = V.shape
    for row in range(n):
        for _ in range(passes):
            for c in used:
                total = KU[row, c]
                for j in range(k):
                    total -= V[row, j] * UtKU[j, c]
                V[row, c] = max(V[row, c] + total / UtKU[c, c], 0.0)


def row_slices(n: int, step: int = 1 << 14) -> list[slice]:
    """n rows, some at a time."""
    return [slice(first, min(n, first + step)) for first in range(0, n, step)]


def as_floats(values: Array) -> Array:
    """C order and float64, as compiled loops want it."""
    return np.ascontiguousarray(values, dtype=np.float64)
