"""Numbers so small that their squares are none: refused before any kernel is made of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gmkcf_dask.corpus.model import Floats, Matrix, row_blocks
from gmkcf_dask.errors import InputError
from gmkcf_dask.kernels.features import squared_norms
from gmkcf_dask.kernels.specs import TINIEST, Linear, Polynomial
from gmkcf_dask.kernels.tiles import ResolvedKernel
from gmkcf_dask.plan import Precision

_LOST = 1e-290
"""Squares below this have lost digits, or are 0."""
SMALLEST_DIAGONAL: dict[Precision, float] = {
    "float32": TINIEST,
    "compact": TINIEST,
    "float64": _LOST,
}
"""Mean of a kernel's diagonal below which its entries cannot be kept in this precision."""
LARGEST_TRACE: dict[Precision, float] = {"float32": 1e37, "compact": 1e37, "float64": 1e290}
"""Above it K Z may overflow: sums of n entries are of the size of the trace."""


def refuse_tiny(X: Matrix, kernels: Sequence[ResolvedKernel], precision: Precision) -> None:
    """Refuse samples that would count as empty without being so, and kernels that would vanish."""
    if not any(kernel.elementwise for kernel in kernels):
        return
    with np.errstate(over="ignore"):  # too large is refused with the statistics
        squares = np.concatenate([squared_norms(X[rows]) for rows in row_blocks(X)])
    filled = X.any(axis=1) if isinstance(X, np.ndarray) else np.diff(X.indptr) > 0
    lost = filled & (squares < _LOST)
    if lost.any():
        raise InputError(
            f"the features are too small: row {int(lost.argmax())} is not empty, but the squares "
            "of its entries are 0; scale the features up, or round such entries to 0"
        )
    for kernel in kernels:
        if kernel.normalization == kernel.scaling == "none":
            mean = _mean_diagonal(kernel, squares)
            if not mean > SMALLEST_DIAGONAL[precision]:
                raise InputError(
                    f"kernel {kernel.name} has a mean diagonal of {mean:.3g}, too small for "
                    f"precision {precision}: scale the features up, or use normalization unit"
                )


def _mean_diagonal(kernel: ResolvedKernel, squares: Floats) -> float:
    """Of kernels whose diagonal follows from ‖x‖²; 1 for the others."""
    spec = kernel.spec
    with np.errstate(over="ignore", under="ignore"):
        if isinstance(spec, Linear):
            return float(squares.mean())
        if isinstance(spec, Polynomial):
            return float(((spec.a + squares) ** spec.b).mean())
    return 1.0
