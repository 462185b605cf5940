"""A compiled product of two blocks of sparse rows, which is dense.

SciPy makes a sparse product first, and before it counts its entries. Here sums go to their place at
once, in the same order and with the same bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gmkcf_dask.system.arrays import Floats
from gmkcf_dask.system.compiled import compiled

Indices = npt.NDArray[Any]


def sparse_product(rows: Any, cols: Any) -> Floats:
    """rows·colsᵀ of two CSR matrices, shape (len rows, len cols)."""
    by_feature = cols.tocsc()
    out = np.zeros((rows.shape[0], cols.shape[0]))
    add_products(
        rows.indptr, rows.indices, rows.data.astype(np.float64, copy=False),
        by_feature.indptr, by_feature.indices, by_feature.data.astype(np.float64, copy=False),
        out,
    )  # fmt: skip
    return out


@compiled
def add_products(
    starts: Indices,
    features: Indices,
    values: Floats,
    feature_starts: Indices,
    samples: Indices,
    feature_values: Floats,
    out: Floats,
) -> None:
    """out += A·Bᵀ of CSR A and Bᵀ by rows."""
    for i in range(out.shape[0]):
        row = out[i]
        for at in range(starts[i], starts[i + 1]):
            value, feature = values[at], features[at]
            for other in range(feature_starts[feature], feature_starts[feature + 1]):
                row[samples[other]] += value * feature_values[other]
