"""Statistics of kernels: global ones for normalisation, limits of magnitude, tile summaries.

`unit` and `none` need one sweep (distances and ranges together). `degree` needs three: distances,
then row sums, then ranges. What a sweep gathers per tile is a small value that merges by `+`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gmkcf_dask.corpus.model import Matrix, row_blocks
from gmkcf_dask.errors import InputError
from gmkcf_dask.kernels.features import Features, PairTile, squared_norms
from gmkcf_dask.kernels.specs import (
    TINIEST,
    FunctionKernel,
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
    """Statistics of one or more tiles.

    Attributes
    ----------
    distance_sum : float
        Σ‖x−y‖ over ordered pairs.
    d2_max : float
    minima, maxima : ndarray, shape (m,)
    row_sums : dict of ndarray, each of shape (m, len)
        By first row of a block; only the blocks some tile touched.
    """

    distance_sum: float
    d2_max: float
    minima: Floats
    maxima: Floats
    row_sums: dict[int, Floats]

    def __add__(self, other: TileStatistics) -> TileStatistics:
        return TileStatistics(
            self.distance_sum + other.distance_sum,
            max(self.d2_max, other.d2_max),
            np.minimum(self.minima, other.minima),
            np.maximum(self.maxima, other.maxima),
            {
                first: _sum_of(self.row_sums.get(first), other.row_sums.get(first))
                for first in self.row_sums | other.row_sums
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
        wanted = [k.scaling != "none" and not _range_known_later(k) for k in self.kernels]
        minima, maxima = _ranges(self.kernels, wanted, tile, self.norms)
        return TileStatistics(total, float(d2_max), minima, maxima, {})


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
        wanted = [k.normalization == "degree" and k.scaling != "none" for k in self.kernels]
        return TileStatistics(0.0, 0.0, *_ranges(self.kernels, wanted, tile, self.norms), {})


def resolve(
    kernels: Kernels, features: Features, tiling: Tiling, sweep: Sweep
) -> tuple[Kernels, dict[str, Floats]]:
    """Run the sweeps the options call for.

    Returns
    -------
    kernels : tuple of ResolvedKernel
        With widths and ranges filled in.
    norms : dict of ndarray, shape (n,)
        For the kernels with `needs_norms`.
    """
    norms = _unit_norms(kernels, features, tiling)
    by_degree = any(kernel.normalization == "degree" for kernel in kernels)
    distances = any(isinstance(kernel.spec, Rbf) for kernel in kernels)
    ranges = any(k.scaling != "none" and not _range_known_later(k) for k in kernels)
    if distances or ranges:
        stats = sweep(GatherDistancesAndRanges(kernels, norms, distances), "statistics")
        mean_distance = stats.distance_sum / features.n_samples**2
        if not np.isfinite(mean_distance):
            raise InputError("the features are too large: squared distances overflow, scale them")
        _refuse_infinite_ranges(kernels, stats)
        kernels = tuple(
            with_distances(_with_range(kernel, stats, i), mean_distance, stats.d2_max)
            for i, kernel in enumerate(kernels)
        )
    if by_degree:
        by_block = sweep(GatherRowSums(kernels), "row sums").row_sums
        sums = np.hstack([by_block[first] for first in sorted(by_block)])
        norms |= _checked_row_sums(kernels, sums)
        if any(k.normalization == "degree" and k.scaling != "none" for k in kernels):
            stats = sweep(GatherDegreeRanges(kernels, norms), "ranges")
            _refuse_infinite_ranges(kernels, stats)
            kernels = tuple(_with_range(kernel, stats, i) for i, kernel in enumerate(kernels))
    return tuple(_range_or_constant(kernel) for kernel in kernels), norms


def run_here(
    gather: Callable[[PairTile], TileStatistics],
    features: Features,
    tiling: Tiling,
    tiles: Iterable[int],
) -> TileStatistics:
    """Gather over the given tiles, one after the other, in this process."""
    total: TileStatistics | None = None
    for t in tiles:
        i, j = tiling.pair(t)
        with np.errstate(over="ignore", invalid="ignore"):  # refused when the sums are in
            stats = gather(PairTile(features, tiling.rows(i), tiling.rows(j)))
        total = stats if total is None else total + stats
    assert total is not None
    return total


def _sum_of(mine: Floats | None, theirs: Floats | None) -> Floats:
    if mine is None or theirs is None:
        either = mine if theirs is None else theirs
        assert either is not None
        return either
    return mine + theirs


def _range_known_later(kernel: ResolvedKernel) -> bool:
    return kernel.range_follows_from_distance or kernel.normalization == "degree"


def _ranges(
    kernels: Kernels, wanted: list[bool], tile: PairTile, norms: Norms
) -> tuple[Floats, Floats]:
    """Smallest and largest value of the kernels that are wanted, shape (m,) each."""
    minima, maxima = np.full(len(kernels), np.inf), np.full(len(kernels), -np.inf)
    strips = list(tile.strips())
    for i, kernel in enumerate(kernels):
        for part in (strips if kernel.elementwise else [tile]) if wanted[i] else ():
            low, high = _range(kernel, part, norms)
            minima[i], maxima[i] = np.minimum(minima[i], low), np.maximum(maxima[i], high)
    return minima, maxima


def _range(kernel: ResolvedKernel, tile: PairTile, norms: Norms) -> tuple[float, float]:
    values, valid_rows, valid_cols = normalized_values(kernel, tile, norms)
    if not (valid_rows.all() and valid_cols.all()):
        values = values[np.ix_(valid_rows, valid_cols)]
    if values.size == 0:
        return np.inf, -np.inf
    return float(values.min()), float(values.max())


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
            diagonal[where] = np.diagonal(_diagonal_block(kernel, features, where))
        refuse_negative(diagonal, kernel.spec, "k(x,x)")
        norms[kernel.name] = diagonal
    return norms


def _diagonal_block(kernel: ResolvedKernel, features: Features, where: slice) -> Floats:
    assert isinstance(kernel.spec, FunctionKernel | Precomputed)
    return raw_values(kernel, PairTile(features, where, where))


def _checked_row_sums(kernels: Kernels, sums: Floats) -> dict[str, Floats]:
    norms = {}
    for kernel, row_sums in zip(kernels, sums, strict=True):
        if kernel.normalization == "degree":
            refuse_negative(row_sums, kernel.spec, "row sum")
            norms[kernel.name] = row_sums
    return norms


def refuse_negative(values: Floats, spec: KernelSpec, what: str, first: int = 0) -> None:
    """Refuse norms without a root; `first` is the number of the first sample."""
    if not np.isfinite(values).all():
        row = first + int(np.argmin(np.isfinite(values)))
        raise InputError(
            f"kernel {spec.name} cannot be normalised: its {what} is not finite at sample {row}; "
            "scale the features down"
        )
    if values.min() < 0:
        row = int(values.argmin())
        raise InputError(
            f"kernel {spec.name} cannot be normalised: its {what} is {values[row]:.3g} at sample "
            f"{first + row}; {_way_out(spec, what)}"
        )


def _way_out(spec: KernelSpec, what: str) -> str:
    """The remedy for a negative norm: only matrices have a normalisation of their own."""
    if isinstance(spec, Precomputed):
        return "use normalization none for it"
    other = "unit" if what == "row sum" else "none"
    return f"use normalization {other}, or leave this kernel out"


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


# summaries of tiles and vectors

_STRIP = 1 << 16
"""Values that are made float64 at once, so that they stay in the cache of a core."""
TOLERANCE: dict[Precision, float] = {"float32": 4 * 2.0**-23, "float64": 1e-12, "compact": 2e-5}
"""By precision, how far a value may be from the one it replaces, relative to the largest: what the
stored type rounds to, or what float64 formulas may lose on the way to float64."""


@dataclass(frozen=True)
class Summary:
    """Sum, sum of squares, smallest and largest of some values."""

    total: float
    squares: float
    smallest: float
    largest: float

    @classmethod
    def of(cls, values: npt.NDArray[Any]) -> Summary:
        """The summary of an array, in float64.

        >>> Summary.of(np.array([1.0, 2.0]))
        Summary(total=3.0, squares=5.0, smallest=1.0, largest=2.0)
        """
        rows = values.reshape(1, -1) if values.ndim == 1 else values
        step = max(1, _STRIP // max(1, rows.shape[1]))
        total = squares = 0.0
        for first in range(0, rows.shape[0], step):
            strip = rows[first : first + step].astype(np.float64).ravel()
            total += float(strip.sum())
            squares += float(strip @ strip)
        return cls(total, squares, float(values.min()), float(values.max()))

    @classmethod
    def from_bytes(cls, content: bytes) -> Summary:
        """What `to_bytes` gave."""
        return cls(*np.frombuffer(content, "<f8").tolist())

    def to_bytes(self) -> bytes:
        """Four little-endian float64."""
        values = [self.total, self.squares, self.smallest, self.largest]
        return np.array(values, "<f8").tobytes()

    def agrees(self, other: Summary, size: int, tolerance: float) -> bool:
        """Whether values differ by no more than rounding, as far as summaries tell.

        Parameters
        ----------
        other : Summary
            Of the values that these replace.
        size : int
            How many values there are.
        tolerance : float
            How far each may be off, relative to the largest of them.
        """
        largest = max(abs(other.smallest), abs(other.largest))
        near = tolerance * largest
        # written so that a NaN agrees with nothing
        return (
            abs(self.smallest - other.smallest) <= near
            and abs(self.largest - other.largest) <= near
            and abs(self.total - other.total) <= size * near
            and abs(self.squares - other.squares) <= 2 * size * near * largest
        )


def summary_of(values: npt.NDArray[Any]) -> str:
    """The summary of a vector as the manifest has it, in hexadecimal digits."""
    return Summary.of(values).to_bytes().hex()
