"""Statistics of kernels: global ones for normalisation, limits of magnitude.

`unit` and `none` need one sweep (distances and ranges together). `degree` needs three: distances,
then row sums, then ranges. What a sweep gathers per tile is a small value that merges by `+`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Protocol

import numpy as np

from gmkcf_dask.corpus.model import Matrix, row_blocks
from gmkcf_dask.errors import InputError
from gmkcf_dask.kernels.features import Features, PairTile, squared_norms
from gmkcf_dask.kernels.specs import (
    TINIEST,
    KernelSpec,
    Linear,
    Polynomial,
    Precomputed,
    Rbf,
)
from gmkcf_dask.kernels.tiles import (
    Norms,
    ResolvedKernel,
    normalized_values,
    raw_values,
    with_distances,
)
from gmkcf_dask.kernels.tiling import Precision, Tiling
from gmkcf_dask.system.arrays import Floats

Kernels = tuple[ResolvedKernel, ...]


@dataclass(frozen=True)
class TileStatistics:
    """Statistics of one or more tiles; minima and maxima of m kernels, shape (m,)."""

    distance_sum: float
    """Σ‖x−y‖ over ordered pairs."""
    d2_max: float
    minima: Floats
    maxima: Floats
    row_sums: dict[int, Floats]
    """By first row of a block, shape (m, len); only the blocks some tile touched."""

    def all_row_sums(self) -> Floats:
        """Row sums of all samples, shape (m, n), once every tile was gathered."""
        return np.hstack([self.row_sums[first] for first in sorted(self.row_sums)])

    def __add__(self, other: TileStatistics) -> TileStatistics:
        return TileStatistics(
            self.distance_sum + other.distance_sum,
            max(self.d2_max, other.d2_max),
            np.minimum(self.minima, other.minima),
            np.maximum(self.maxima, other.maxima),
            {
                first: self.row_sums[first] + other.row_sums[first]
                if first in self.row_sums and first in other.row_sums
                else either
                for first, either in (self.row_sums | other.row_sums).items()
            },
        )


class Sweep(Protocol):
    """Runs one gathering function over all tiles and merges what comes back, in tile order."""

    def __call__(
        self, gather: Callable[[PairTile], TileStatistics], what: str
    ) -> TileStatistics: ...


@dataclass(frozen=True)
class GatherDistancesAndRanges:
    """Distances where an RBF needs them, ranges where they need no distance statistics."""

    kernels: Kernels
    norms: Norms
    distances: bool

    def __call__(self, tile: PairTile) -> TileStatistics:
        total, d2_max = 0.0, 0.0
        for strip in tile.strips() if self.distances else ():
            d2 = strip.squared_distances
            total += float(np.sqrt(d2).sum()) * (1 if tile.on_diagonal else 2)
            d2_max = np.maximum(d2_max, d2.max())  # NaN stays
        ranges = _ranges(self.kernels, tile, self.norms, _range_known_first)
        return TileStatistics(total, float(d2_max), *ranges, {})


@dataclass(frozen=True)
class GatherRowSums:
    """Row sums of the raw kernels that are normalised by degree."""

    kernels: Kernels

    def __call__(self, tile: PairTile) -> TileStatistics:
        m = len(self.kernels)
        sums = {tile.rows.start: np.zeros((m, tile.shape[0]))}
        sums.setdefault(tile.cols.start, np.zeros((m, tile.shape[1])))
        strips = list(tile.strips())
        for i, kernel in enumerate(self.kernels):
            if kernel.normalization != "degree":
                continue
            for part in strips if kernel.elementwise else [tile]:
                values = raw_values(kernel, part)
                first = part.rows.start - tile.rows.start
                sums[tile.rows.start][i, first : first + len(values)] += values.sum(axis=1)
                if not tile.on_diagonal:
                    sums[tile.cols.start][i] += values.sum(axis=0)
        return TileStatistics(0.0, 0.0, np.full(m, np.inf), np.full(m, -np.inf), sums)


@dataclass(frozen=True)
class GatherDegreeRanges:
    """Ranges of the kernels whose normalisation had to be known first."""

    kernels: Kernels
    norms: Norms

    def __call__(self, tile: PairTile) -> TileStatistics:
        ranges = _ranges(self.kernels, tile, self.norms, _range_known_last)
        return TileStatistics(0.0, 0.0, *ranges, {})


@dataclass(frozen=True)
class Resolved:
    """What sweeps over all pairs tell.

    Attributes
    ----------
    kernels : tuple of ResolvedKernel
        With widths and ranges filled in.
    norms : dict of ndarray, shape (n,)
        For the kernels with `needs_norms`.
    mean_distance, d2_max : float
        D₀ and the largest squared distance; 0 where no kernel needed them.
    """

    kernels: Kernels
    norms: dict[str, Floats]
    mean_distance: float = 0.0
    d2_max: float = 0.0


def resolve(
    kernels: Kernels, features: Features, tiling: Tiling, sweep: Sweep, *, distances: bool = False
) -> Resolved:
    """Run the sweeps the options call for; with `distances` these are known in any case."""
    norms = _unit_norms(kernels, features, tiling)
    distances = distances or any(isinstance(kernel.spec, Rbf) for kernel in kernels)
    mean_distance = d2_max = 0.0
    if distances or any(map(_range_known_first, kernels)):
        stats = sweep(GatherDistancesAndRanges(kernels, norms, distances), "statistics")
        mean_distance = stats.distance_sum / features.n_samples**2
        if not np.isfinite(mean_distance):
            raise InputError(_TOO_LARGE)
        _refuse_infinite_ranges(kernels, stats)
        d2_max = stats.d2_max
        kernels = tuple(
            with_distances(_with_range(kernel, stats, i), mean_distance, stats.d2_max)
            for i, kernel in enumerate(kernels)
        )
    if any(kernel.normalization == "degree" for kernel in kernels):
        sums = sweep(GatherRowSums(kernels), "row sums").all_row_sums()
        for kernel, row_sums in zip(kernels, sums, strict=True):
            if kernel.normalization == "degree":
                refuse_negative_norms(row_sums, kernel.spec, "row sum")
                norms[kernel.name] = row_sums
        if any(map(_range_known_last, kernels)):
            stats = sweep(GatherDegreeRanges(kernels, norms), "ranges")
            _refuse_infinite_ranges(kernels, stats)
            kernels = tuple(_with_range(kernel, stats, i) for i, kernel in enumerate(kernels))
    kernels = tuple(_range_or_constant(kernel) for kernel in kernels)
    return Resolved(kernels, norms, mean_distance, d2_max)


def run_here(
    gather: Callable[[PairTile], TileStatistics],
    features: Features,
    tiling: Tiling,
    tiles: Iterable[int],
) -> TileStatistics:
    """Gather over the given tiles, one after the other, in this process."""
    with np.errstate(over="ignore", invalid="ignore"):  # refused when the sums are in
        parts = (gather(PairTile.at(features, tiling, int(t))) for t in tiles)
        total: TileStatistics = reduce(add, parts)
    return total


def _range_known_first(kernel: ResolvedKernel) -> bool:
    """Whether a range is needed that depends on no other statistic."""
    needed = kernel.scaling != "none" and kernel.normalization != "degree"
    return needed and not kernel.range_follows_from_distance


def _range_known_last(kernel: ResolvedKernel) -> bool:
    """Whether a range is needed that depends on the row sums."""
    return kernel.scaling != "none" and kernel.normalization == "degree"


def _ranges(
    kernels: Kernels, tile: PairTile, norms: Norms, needed: Callable[[ResolvedKernel], bool]
) -> tuple[Floats, Floats]:
    """Smallest and largest value of the kernels that need a range, shape (m,) each."""
    minima, maxima = np.full(len(kernels), np.inf), np.full(len(kernels), -np.inf)
    strips = list(tile.strips())
    for i, kernel in enumerate(kernels):
        for part in (strips if kernel.elementwise else [tile]) if needed(kernel) else ():
            low, high = _range(kernel, part, norms)
            minima[i], maxima[i] = np.minimum(minima[i], low), np.maximum(maxima[i], high)
    return minima, maxima


def _range(kernel: ResolvedKernel, tile: PairTile, norms: Norms) -> tuple[float, float]:
    values, valid_rows, valid_cols = normalized_values(kernel, tile, norms)
    if not (valid_rows.all() and valid_cols.all()):
        values = values[np.ix_(valid_rows, valid_cols)]
    return float(values.min(initial=np.inf)), float(values.max(initial=-np.inf))


def _with_range(kernel: ResolvedKernel, stats: TileStatistics, i: int) -> ResolvedKernel:
    low, high = float(stats.minima[i]), float(stats.maxima[i])
    return kernel if high < low else replace(kernel, minimum=low, maximum=high)


def _refuse_infinite_ranges(kernels: Kernels, stats: TileStatistics) -> None:
    for kernel, low, high in zip(kernels, stats.minima, stats.maxima, strict=True):
        gathered = not (low == np.inf and high == -np.inf)
        if gathered and not (np.isfinite(low) and np.isfinite(high)):
            raise InputError(
                f"kernel {kernel.name} is not finite on these samples: scale the features down or "
                "use normalization unit"
            )


def _range_or_constant(kernel: ResolvedKernel) -> ResolvedKernel:
    """Where no sample has a direction there is nothing to scale: treated as a constant kernel."""
    if kernel.scaling == "none" or kernel.minimum is not None:
        return kernel
    return replace(kernel, minimum=0.0, maximum=0.0)


def _unit_norms(kernels: Kernels, features: Features, tiling: Tiling) -> dict[str, Floats]:
    """k(x,x) of kernels whose diagonal must be computed: n values, no sweep."""
    norms: dict[str, Floats] = {}
    for kernel in kernels:
        if not (kernel.normalization == "unit" and kernel.needs_norms):
            continue
        diagonal = np.empty(features.n_samples)
        for i in range(tiling.n_blocks):
            where = tiling.rows(i)
            block = raw_values(kernel, PairTile(features, where, where))
            diagonal[where] = np.diagonal(block)
        refuse_negative_norms(diagonal, kernel.spec, "k(x,x)")
        norms[kernel.name] = diagonal
    return norms


def refuse_negative_norms(values: Floats, spec: KernelSpec, what: str, first: int = 0) -> None:
    """Refuse norms without a root; `first` is the number of the first sample."""
    if not np.isfinite(values).all():
        row = first + int(np.argmin(np.isfinite(values)))
        raise InputError(
            f"kernel {spec.name} cannot be normalised: its {what} is not finite at sample {row}; "
            "scale the features down"
        )
    if values.min() < 0:
        row = int(values.argmin())
        if isinstance(spec, Precomputed):  # only matrices have a normalisation of their own
            remedy = "use normalization none for it"
        else:
            other = "unit" if what == "row sum" else "none"
            remedy = f"use normalization {other}, or leave this kernel out"
        raise InputError(
            f"kernel {spec.name} cannot be normalised: its {what} is {values[row]:.3g} at sample "
            f"{first + row}; {remedy}"
        )


# limits of magnitude

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
    squares = _squares_of_filled(X)  # too large is refused with the statistics
    for kernel in kernels:
        if kernel.normalization == kernel.scaling == "none":
            mean = _mean_diagonal(kernel, squares)
            if not mean > SMALLEST_DIAGONAL[precision]:
                raise InputError(
                    f"kernel {kernel.name} has a mean diagonal of {mean:.3g}, too small for "
                    f"precision {precision}: scale the features up, or use normalization unit"
                )


def refuse_extreme(X: Matrix) -> None:
    """Refuse samples whose squares vanish or overflow: no lengths, deviations or distances."""
    squares = _squares_of_filled(X)
    with np.errstate(over="ignore"):
        if not np.isfinite(4.0 * squares.sum()):
            raise InputError(_TOO_LARGE)


_TOO_LARGE = "the features are too large: squared distances overflow, scale them"


def _squares_of_filled(X: Matrix) -> Floats:
    """‖x‖², shape (n,); refused where it vanishes and x does not."""
    with np.errstate(over="ignore"):
        squares = np.concatenate([squared_norms(X[rows]) for rows in row_blocks(X)])
    filled = X.any(axis=1) if isinstance(X, np.ndarray) else np.diff(X.indptr) > 0
    lost = filled & (squares < _LOST)
    if lost.any():
        raise InputError(
            f"the features are too small: row {int(lost.argmax())} is not empty, but the squares "
            "of its entries are 0; scale the features up, or round such entries to 0"
        )
    return squares


def _mean_diagonal(kernel: ResolvedKernel, squares: Floats) -> float:
    """Of kernels whose diagonal follows from ‖x‖²; 1 for the others."""
    spec = kernel.spec
    with np.errstate(over="ignore", under="ignore"):
        if isinstance(spec, Linear):
            return float(squares.mean())
        if isinstance(spec, Polynomial):
            return float(((spec.a + squares) ** spec.b).mean())
    return 1.0
