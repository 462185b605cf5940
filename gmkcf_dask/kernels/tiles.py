"""From one pair of row blocks to the tile of every kernel: plain NumPy, no store, no graph.

Order of things for each kernel: the formula, the normalisation, the scaling to [0, 1], the rule for
samples without a direction (k(x,x) = 0), exact symmetry. All in float64; see docs/algorithm.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gmkcf_dask.errors import InputError
from gmkcf_dask.kernels.features import PairTile, divide_by_roots
from gmkcf_dask.kernels.specs import (
    Cosine,
    FunctionKernel,
    Linear,
    Normalization,
    Polynomial,
    Precomputed,
    Rbf,
    Scaling,
    TileSpec,
)
from gmkcf_dask.kernels.tiling import Precision
from gmkcf_dask.system.arrays import Floats

Bools = npt.NDArray[np.bool_]
Norms = Mapping[str, Floats]
"""By kernel name, the vector (n,) that normalisation divides by: k(x,x) or row sums."""

COMPACT_MAX = 65534
"""Largest uint16 code that is data; 65535 marks what was never written."""
_CONSTANT = 1e-12
STORED_DTYPE: dict[Precision, str] = {
    "float32": "float32",
    "float64": "float64",
    "compact": "uint16",
}
CODE_SCALE: dict[Precision, float | None] = {
    "float32": None,
    "float64": None,
    "compact": 1.0 / COMPACT_MAX,
}
"""What a stored code is multiplied by to get the kernel's value; None where it is the value."""


@dataclass(frozen=True)
class ResolvedKernel:
    """A spec with the options in force for it and the global statistics found for it.

    Attributes
    ----------
    mean_distance : float or None
        D₀, the mean distance over all n² pairs, for an RBF.
    sigma : float or None
        Width of an RBF, t·D₀; 0 when all samples are equal.
    d2_max : float or None
        Largest squared distance, from which an RBF's minimum follows.
    minimum, maximum : float or None
        Of the normalised kernel, over the samples that have a direction.
    """

    spec: TileSpec
    normalization: Normalization
    scaling: Scaling
    mean_distance: float | None = None
    sigma: float | None = None
    d2_max: float | None = None
    minimum: float | None = None
    maximum: float | None = None

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def needs_norms(self) -> bool:
        """Whether normalisation wants a vector that cannot be had from the row blocks alone."""
        if self.normalization == "degree":
            return True
        return self.normalization == "unit" and isinstance(self.spec, FunctionKernel | Precomputed)

    @property
    def elementwise(self) -> bool:
        """A function of inner products and norms, entry by entry."""
        return not isinstance(self.spec, FunctionKernel | Precomputed)

    @property
    def range_follows_from_distance(self) -> bool:
        """An RBF that is not degree-normalised lies in [exp(−d²max/2σ²), 1]: no sweep needed."""
        return isinstance(self.spec, Rbf) and self.normalization != "degree"


def resolve_options(
    spec: TileSpec, normalization: Normalization, scaling: Scaling
) -> ResolvedKernel:
    """A kernel with its options, statistics still unknown."""
    if isinstance(spec, Precomputed):
        normalization, scaling = spec.normalization, spec.scaling
    return ResolvedKernel(spec, normalization, scaling)


def with_distances(kernel: ResolvedKernel, mean_distance: float, d2_max: float) -> ResolvedKernel:
    """Fill in what an RBF takes from the distances."""
    if not isinstance(kernel.spec, Rbf):
        return kernel
    sigma = kernel.spec.t * mean_distance
    kernel = replace(kernel, mean_distance=mean_distance, sigma=sigma, d2_max=d2_max)
    if kernel.range_follows_from_distance:
        smallest = float(np.exp(_rbf_exponent(kernel, np.float64(d2_max))))
        kernel = replace(kernel, minimum=smallest, maximum=1.0)
    return kernel


def raw_values(kernel: ResolvedKernel, tile: PairTile) -> Floats:
    """The kernel's formula, before normalisation, shape (len I, len J)."""
    spec = kernel.spec
    if isinstance(spec, Rbf):
        return np.asarray(np.exp(_rbf_exponent(kernel, tile.squared_distances)))
    if isinstance(spec, Polynomial):
        return _power(spec.a + tile.gram, spec.b)
    if isinstance(spec, Linear):
        return tile.gram.copy()
    if isinstance(spec, Cosine):
        return tile.unit_products(0.0).copy()
    if isinstance(spec, Precomputed):
        block = spec.matrix[tile.rows, tile.cols].astype(np.float64)
        mirror = spec.matrix[tile.cols, tile.rows].T
        return np.asarray((block + mirror) / 2)
    return _call(spec, tile)


def normalized_values(
    kernel: ResolvedKernel, tile: PairTile, norms: Norms
) -> tuple[Floats, Bools, Bools]:
    """The kernel after normalisation, and which row and column samples have a direction.

    Returns
    -------
    values : ndarray, shape (len I, len J)
    valid_rows, valid_cols : ndarray of bool
        False where k(x,x) (unit) or the row sum (degree) is 0.
    """
    spec, by = kernel.spec, kernel.normalization
    if by == "unit" and isinstance(spec, Polynomial):
        # dividing before the power keeps a⁴ of large numbers away from overflow
        values = _power(tile.unit_products(spec.a).copy(), spec.b)
        return values, spec.a + tile.sq_rows > 0, spec.a + tile.sq_cols > 0
    if by == "unit" and isinstance(spec, Linear):
        return tile.unit_products(0.0).copy(), tile.sq_rows > 0, tile.sq_cols > 0
    values = raw_values(kernel, tile)
    if kernel.needs_norms:
        norm_rows, norm_cols = tile.norms_of(kernel.name, norms)
        values = divide_by_roots(values, norm_rows, norm_cols)
        return values, norm_rows > 0, norm_cols > 0
    if isinstance(spec, Cosine):
        return values, tile.sq_rows > 0, tile.sq_cols > 0
    return values, np.ones(tile.shape[0], bool), np.ones(tile.shape[1], bool)


def final_values(kernel: ResolvedKernel, tile: PairTile, norms: Norms) -> Floats:
    """The kernel as methods see it, float64, shape (len I, len J)."""
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused below
        values = _scaled_values(kernel, tile, norms)
    if not np.isfinite([values.min(), values.max()]).all():  # NaN passes through both
        row = tile.rows.start + int(np.argmin(np.isfinite(values).all(axis=1)))
        raise InputError(
            f"kernel {kernel.name} is not finite at sample {row}: scale the features down or use "
            "normalization unit"
        )
    return values


def _scaled_values(kernel: ResolvedKernel, tile: PairTile, norms: Norms) -> Floats:
    if kernel.scaling == "minmax" and kernel.range_follows_from_distance:
        values = _scaled_rbf(kernel, tile)
        valid_rows, valid_cols = np.ones(tile.shape[0], bool), np.ones(tile.shape[1], bool)
    else:
        values, valid_rows, valid_cols = normalized_values(kernel, tile, norms)
        if kernel.scaling == "minmax":
            values = min_max(values, kernel, clip=tile.bounded)
    if not (valid_rows.all() and valid_cols.all()):
        values[~valid_rows] = 0.0
        values[:, ~valid_cols] = 0.0
    if tile.on_diagonal:
        values = (values + values.T) / 2
        values[~valid_rows, ~valid_rows] = 1.0
    return values


def stored_tiles(
    kernels: tuple[ResolvedKernel, ...], tile: PairTile, norms: Norms, precision: Precision
) -> Iterator[tuple[str, npt.NDArray[Any], float]]:
    """(name, tile as stored, smallest value) of every kernel from one pair of row blocks.

    One kernel at a time, and each a strip at a time: its formulas run in the cache.
    """
    strips = list(tile.strips())
    for kernel in kernels:
        stored = np.empty(tile.shape, STORED_DTYPE[precision])
        for part in strips if kernel.elementwise else [tile]:
            values = final_values(kernel, part, norms)
            first = part.rows.start - tile.rows.start
            encode(values, precision, kernel.name, stored[first : first + len(values)])
        yield kernel.name, stored, float(stored.min()) * (CODE_SCALE[precision] or 1.0)


def encode(values: Floats, precision: Precision, name: str, into: npt.NDArray[Any]) -> None:
    """Float64 values as they are stored, in the room given for them."""
    low, high = float(values.min()), float(values.max())
    if precision == "compact":
        if low < 0.0 or high > 1.0:
            raise InputError(
                f"kernel {name} has values from {low:.3g} to {high:.3g} but precision compact "
                "holds only [0, 1]: use scaling minmax or precision float32"
            )
        codes = values * COMPACT_MAX
        np.copyto(into, np.rint(codes, out=codes), casting="unsafe")
        return
    limit = float(np.finfo(into.dtype).max)
    if low < -limit or high > limit:
        raise InputError(
            f"kernel {name} overflows {precision}: scale the features down, use normalization "
            "unit, or precision float64"
        )
    np.copyto(into, values, casting="same_kind")


def decode_tile(stored: npt.NDArray[Any], code_scale: float | None) -> npt.NDArray[Any]:
    """A stored tile as numbers: codes of precision compact are widened to float32."""
    if code_scale is None:
        return stored
    return stored.astype(np.float32) * np.float32(code_scale)


def _scaled_rbf(kernel: ResolvedKernel, tile: PairTile) -> Floats:
    """(exp(−a·d²) − min)/(1 − min) without cancellation, however wide the kernel."""
    assert kernel.d2_max is not None
    span = -np.expm1(_rbf_exponent(kernel, np.float64(kernel.d2_max)))
    if span == 0.0:
        return np.ones(tile.shape)
    values: Floats = _rbf_exponent(kernel, tile.squared_distances)
    np.expm1(values, out=values)
    values /= span
    values += 1.0  # expm1 is never above 0, so this is never above 1
    return np.maximum(values, 0.0, out=values) if tile.bounded else values


def is_constant(low: float, high: float) -> bool:
    """Whether a kernel with values in this range is constant, but for rounding."""
    return high - low <= _CONSTANT * abs(high)


def min_max(values: Floats, kernel: ResolvedKernel, *, clip: bool) -> Floats:
    """(values − min)/(max − min) in place; all ones where the kernel is constant."""
    assert kernel.minimum is not None
    assert kernel.maximum is not None
    if is_constant(kernel.minimum, kernel.maximum):
        return np.ones_like(values)
    values -= kernel.minimum
    values /= kernel.maximum - kernel.minimum
    return np.asarray(np.clip(values, 0.0, 1.0, out=values)) if clip else values


def _power(values: Floats, b: int) -> Floats:
    """values^b in place, by multiplying: many times faster than the general power."""
    if b == 1:
        return values
    if b % 2:
        base = values.copy()
        return np.multiply(_power(values, b - 1), base, out=values)
    np.multiply(values, values, out=values)
    return _power(values, b // 2)


def _rbf_exponent(kernel: ResolvedKernel, d2: Any) -> Any:
    assert kernel.sigma is not None
    if kernel.sigma == 0.0:
        return np.zeros_like(d2)  # all samples equal: every RBF is all ones
    return np.divide(d2, -2.0 * kernel.sigma**2)


def _call(spec: FunctionKernel, tile: PairTile) -> Floats:
    try:
        returned: Any = spec.function(tile.X_rows, tile.X_cols)
        returned = returned.toarray() if hasattr(returned, "toarray") else returned
        values = np.array(returned, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"kernel function {spec.name} did not return numbers: {error}") from error
    if values.shape != tile.shape:
        raise InputError(
            f"kernel function {spec.name} returned shape {values.shape} for blocks of "
            f"{tile.shape[0]} and {tile.shape[1]} samples: it must return one value per pair"
        )
    if not np.isfinite(values).all():
        row = tile.rows.start + int(np.argmin(np.isfinite(values).all(axis=1)))
        raise InputError(f"kernel function {spec.name} returned NaN or infinity for sample {row}")
    if tile.on_diagonal and not np.allclose(values, values.T, rtol=1e-5, atol=1e-8):
        raise InputError(f"kernel function {spec.name} is not symmetric: f(x, y) must be f(y, x)")
    return values
