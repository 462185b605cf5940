"""From stored arrays to factors: which columns of which array are Z_i for so many clusters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from gmkcf_dask.kernels import heat, local
from gmkcf_dask.kernels.neighbours import n_neighbours
from gmkcf_dask.kernels.products import unit_length
from gmkcf_dask.system.arrays import Floats

FactorKind = Literal["local", "heat", "given", "rows", "unit"]
PRODUCTS: tuple[FactorKind, ...] = ("rows", "unit")
"""Kinds whose factor is X, as it is or with rows at unit length: see `kernels.products`."""
FOR_CLUSTERS: tuple[FactorKind, ...] = ("local", "heat")
"""Kinds whose columns depend on the number of clusters."""
FEATURES = "features"
"""Stands for an array: the features themselves."""
NEIGHBOUR_ARRAYS = ("neighbours", "similarities")
"""Arrays of local and of heat kernels: the nearest samples, and how near."""


@dataclass(frozen=True)
class ArrayShape:
    """Shape and dtype of an array."""

    shape: tuple[int, ...]
    dtype: Literal["float32", "float64", "int32"]


@dataclass(frozen=True)
class FactorView:
    """How a row of Z_i follows from a row of an array.

    Attributes
    ----------
    name : str
        Of the kernel.
    array : str
        The array its rows are in, shape (n, r) with r ≥ `rank`.
    rank : int
        Columns that are used, the first ones.
    scale : tuple of float, or None
        What columns are multiplied by.
    unit : bool
        Whether rows are brought to unit length.
    """

    name: str
    array: str
    rank: int
    scale: tuple[float, ...] | None = None
    unit: bool = True

    def rows(self, stored: Any) -> Any:
        """Rows of Z_i from rows of the array, shape (len, rank); sparse ones stay sparse."""
        if self.array == FEATURES:
            return unit_length(stored) if self.unit else stored
        if not isinstance(stored, np.ndarray):  # a sparse factor that the user brought
            return stored
        own = stored[:, : self.rank]
        if self.scale is not None:
            own = own * np.asarray(self.scale, own.dtype)
        return local.unit_rows(own) if self.unit else np.ascontiguousarray(own)


def array_of(name: str, kind: FactorKind) -> str:
    """The array that a kernel's factor is in."""
    if kind in PRODUCTS:
        return FEATURES
    if kind == "local":
        return f"smooth_{name.removeprefix('local_')}"
    return f"vectors_{name.removeprefix('heat_')}" if kind == "heat" else f"given_{name}"


def values_of(name: str) -> str:
    """The array with the eigenvalues of a heat kernel."""
    return f"values_{name.removeprefix('heat_')}"


def is_made_by_name(name: str, kind: FactorKind) -> bool:
    """Whether there is such a kernel; given ones have any name."""
    names = {
        "local": [f"local_{t}" for t in local.DEPTHS],
        "heat": list(heat.sizes(1, 2)),
        "rows": ["linear"],
        "unit": ["linear", "cosine"],
    }
    return kind == "given" or name in names[kind]


def parts_of(name: str) -> tuple[str, str, str]:
    """The arrays that a sparse factor is kept in: entries of each row, their columns, values.

    A row block is a chunk of each; columns and values have one row for every block.
    """
    return f"csr_lengths_{name}", f"csr_columns_{name}", f"csr_values_{name}"


def is_given(array: str) -> bool:
    """Whether an array is of a factor that the user brings."""
    return array.startswith(("given_", "csr_"))


def is_by_block(array: str) -> bool:
    """Whether an array has one row for every block of samples."""
    return array.startswith(("csr_columns_", "csr_values_"))


def local_rank(n: int, n_features: int, max_clusters: int) -> int:
    """Columns of the arrays of local kernels."""
    return min(local.rank_for(max_clusters), n, n_features)


def heat_rank(n: int, max_clusters: int) -> int:
    """Eigenvectors of heat kernels that are kept."""
    return min(n, heat.VECTORS_PER_CLUSTER * max_clusters)


def local_shapes(n: int, n_features: int, rank: int) -> dict[str, ArrayShape]:
    """All arrays of local kernels, by name."""
    smooth = ArrayShape((n, rank), "float32")
    return {
        **_neighbour_shapes(n, max(1, n_neighbours(n))),  # an array needs a column
        "directions": ArrayShape((n_features, rank), "float32"),
        **{f"smooth_{step}": smooth for step in range(max(local.DEPTHS) + 1)},
    }


def heat_shapes(n: int, n_features: int, n_vectors: int) -> dict[str, ArrayShape]:
    """All arrays of heat kernels, by name."""
    sizes = heat.sizes(n_neighbours(n), n)
    return {
        "columns": ArrayShape((n_features, 2), "float64"),
        **_neighbour_shapes(n, max(sizes.values())),
        **{array_of(name, "heat"): ArrayShape((n, n_vectors), "float32") for name in sizes},
        **{values_of(name): ArrayShape((n_vectors,), "float64") for name in sizes},
    }


def _neighbour_shapes(n: int, p: int) -> dict[str, ArrayShape]:
    indices, similarities = ArrayShape((n, p), "int32"), ArrayShape((n, p), "float32")
    return dict(zip(NEIGHBOUR_ARRAYS, (indices, similarities), strict=True))


def array_shapes(
    kinds: Mapping[str, FactorKind], n: int, n_features: int, max_clusters: int
) -> dict[str, ArrayShape]:
    """All arrays that factored kernels are made of, but for given ones, by name."""
    shapes: dict[str, ArrayShape] = {}
    if "local" in kinds.values():
        rank = local_rank(n, n_features, max_clusters)
        shapes |= local_shapes(n, n_features, rank)
    if "heat" in kinds.values():
        shapes |= heat_shapes(n, n_features, heat_rank(n, max_clusters))
    return shapes


def factor_views(
    kinds: Mapping[str, FactorKind],
    ranks: Mapping[str, int],
    eigenvalues: Mapping[str, Floats],
    n_clusters: int,
) -> tuple[FactorView, ...]:
    """The factors for so many clusters, in the order of the kernels.

    Parameters
    ----------
    kinds : mapping of str to str
        Kernels by name.
    ranks : mapping of str to int
        Columns of their arrays.
    eigenvalues : mapping of str to ndarray
        Of heat kernels.
    """
    views = []
    for name, kind in kinds.items():
        array, rank = array_of(name, kind), ranks[name]
        if kind == "local":
            views.append(FactorView(name, array, min(rank, local.rank_for(n_clusters))))
        elif kind == "heat":
            weights = np.sqrt(heat.heat_weights(eigenvalues[name], n_clusters))
            views.append(FactorView(name, array, len(weights), tuple(map(float, weights))))
        else:
            views.append(FactorView(name, array, rank, unit=kind == "unit"))
    return tuple(views)


def most_clusters(names: Sequence[str], max_k: int) -> str:
    """The sentence for a store that was built for fewer clusters."""
    return (
        f"the kernels {', '.join(names)} were built for at most {max_k} clusters: build them with "
        "a larger --max-k"
    )
