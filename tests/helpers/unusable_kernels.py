"""Precomputed kernels that cannot be used, and what the error names."""

from __future__ import annotations

import numpy as np

from gmkcf_dask import Precomputed
from helpers.refusals import (
    N,
    kernel,
)


def asymmetric(n: int = N) -> np.ndarray:
    found = kernel(n)
    found[2, 5] += 1
    return found


def not_finite(row: int) -> np.ndarray:
    found = kernel()
    found[row, row] = np.nan
    return found


UNUSABLE_KERNELS = {
    "not square": (np.ones((N, N - 1)), ("square", "(30, 29)")),
    "not square in a list": ([kernel(), np.ones((N, 4))], ("square", "kernel_1")),
    "not square stacked": (np.ones((2, N, 4)), "square"),
    "asymmetric": (asymmetric(), ("not symmetric", "(2, 5)")),
    "second asymmetric": ([kernel(), asymmetric()], ("kernel_1", "not symmetric")),
    "different sizes": ([kernel(), kernel(N - 1)], ("29×29", "30×30")),
    "nan": ([not_finite(6)], ("NaN", "row 6")),
    "infinity": ([kernel() * np.where(np.eye(N) > 0, np.inf, 1)], "row 0"),
    "none": ([], "no precomputed"),
    "none stacked": (np.empty((0, N, N)), "no precomputed"),
    "empty": (np.empty((2, 0, 0)), "empty"),
    "text": ([np.full((N, N), "x")], "numeric"),
    "complex": ([kernel() * 1j], "numeric"),
    "ragged": ([[[1.0, 2.0], [3.0]]], "ragged"),
    "vector": (np.ones(N), ("square",)),
    "numbers": ([1.0, 2.0], "square"),
    "a number": (5, "precomputed"),
    "nothing": (None, "precomputed"),
    "four dimensions": (np.ones((1, 1, N, N)), "square"),
    "same name": ([Precomputed(kernel(), "a"), Precomputed(kernel(), "a")], "'a'"),
    "name with a path": ([Precomputed(kernel(), "../a")], "'../a'"),
    "unknown normalization": ([Precomputed(kernel(), "a", normalization="l2")], "l2"),
    "unknown scaling": ([Precomputed(kernel(), "a", scaling="l2")], "l2"),
    "list as a matrix": ([Precomputed([[1.0, 2.0]], "a")], "a"),
}
