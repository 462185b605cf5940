"""`linear` and `cosine` in factored form: their factor is X, or X with rows at unit length.

docs/algorithm.md has the rule of when they are factored, and why.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from scipy import sparse

from gmkcf_dask.corpus.model import Matrix, row_blocks
from gmkcf_dask.kernels.features import squared_norms
from gmkcf_dask.kernels.specs import (
    Cosine,
    KernelSpec,
    Linear,
    Normalization,
    Scaling,
    TileSpec,
)
from gmkcf_dask.kernels.tiling import Precision
from gmkcf_dask.system.arrays import Floats

ProductKind = Literal["rows", "unit"]
"""The factor is rows of X as they are, or at unit length."""
_ONE = 1e-12
_LARGEST, _SMALLEST = 1e30, 1e-30
"""Of ‖x‖²: beyond these the sentences of kernels in tiles say what is wrong."""
_TRIED = 16


def product_kind(spec: KernelSpec, normalization: Normalization) -> ProductKind | None:
    """What the factor of a kernel is made of X by; None for a kernel that has no such factor.

    >>> product_kind(Linear(), "none"), product_kind(Cosine(), "none")
    ('rows', 'unit')
    """
    if normalization == "degree" or not isinstance(spec, Linear | Cosine):
        return None
    return "rows" if isinstance(spec, Linear) and normalization == "none" else "unit"


def possible_products(
    specs: Sequence[KernelSpec],
    normalization: Normalization,
    precision: Precision,
    merge_duplicates: float,
) -> dict[str, ProductKind]:
    """Kernels that are factored if the features allow it, by name; none beside other tiles."""
    if precision == "compact" or merge_duplicates > 0.0:
        return {}  # these are options of tiles
    kinds = {spec.name: product_kind(spec, normalization) for spec in specs}
    tiles = {spec.name for spec in specs if isinstance(spec, TileSpec)}
    found = {name: kind for name, kind in kinds.items() if kind is not None}
    return found if set(found) == tiles else {}


def allow_products(X: Matrix, kinds: Sequence[ProductKind], scaling: Scaling) -> bool:
    """Whether kernels of all these kinds are what they would be in tiles, but for rounding.

    Rows of zeros have k(x,x) = 1 in tiles where lengths count, and min-max scaling is no change
    only where values lie in [0, 1] already, with 0 and 1 among them.
    """
    with np.errstate(over="ignore"):
        squares = np.concatenate([squared_norms(X[rows]) for rows in row_blocks(X)])
    if not float(squares.mean()) > _SMALLEST or not float(squares.max()) < _LARGEST:
        return False
    if "unit" in kinds and not float(squares.min()) > 0.0:
        return False
    if scaling == "none":
        return True
    if "rows" in kinds and abs(float(squares.max()) - 1.0) > _ONE:
        return False
    return _is_nonnegative(X) and has_orthogonal_pair(X)


def _is_nonnegative(X: Matrix) -> bool:
    values: Any = X if isinstance(X, np.ndarray) else X.data
    return bool(values.size) and float(values.min()) >= 0.0


def has_orthogonal_pair(X: Matrix) -> bool:
    """Whether two rows without negative entries have the product 0.

    The rows of fewest entries are compared with all others: where none of 16 finds such a row, the
    answer is no.
    """
    counts = np.count_nonzero(X, axis=1) if isinstance(X, np.ndarray) else np.diff(X.indptr)
    for row in np.argsort(counts, kind="stable")[:_TRIED]:
        own: Any = X[[row]]
        x = (own if isinstance(own, np.ndarray) else own.toarray())[0]
        if bool((np.asarray(X @ x) == 0.0).any()):
            return True
    return False


def unit_length(X: Matrix) -> Any:
    """Rows at unit length, in float64; a row of zeros stays."""
    lengths: Floats = np.sqrt(squared_norms(X))
    scale = np.divide(1.0, lengths, out=np.zeros_like(lengths), where=lengths > 0.0)
    if isinstance(X, np.ndarray):
        return X * scale[:, None]
    made: Any = X.copy()
    made.data *= np.repeat(scale, np.diff(X.indptr))
    return sparse.csr_array(made)
