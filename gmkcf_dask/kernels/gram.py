"""One number for every pair of samples, of which all built-in kernels are functions.

What is kept of a pair is its distance, as a code of 16 bits or as float32, or its inner product.
Where every kernel is a function of the distance alone (samples of unit length, or Gaussian kernels
only) a function is a table: see `gram_loops`. Elsewhere the formulas of `tiles` are evaluated on
what is kept. docs/algorithm.md has the errors of both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from typing import Any, Literal, TypeGuard

import numpy as np
import numpy.typing as npt

from gmkcf_dask.corpus.model import Matrix, row_blocks
from gmkcf_dask.errors import InputError
from gmkcf_dask.kernels.features import (
    Features,
    NoFeatures,
    PairTile,
    offset_of,
    squared_norms,
)
from gmkcf_dask.kernels.gram_loops import ENTRIES, STEPS
from gmkcf_dask.kernels.specs import (
    TINIEST,
    Cosine,
    Layout,
    Linear,
    Polynomial,
    Rbf,
    parse_kernel,
)
from gmkcf_dask.kernels.statistics import Resolved, TileStatistics, resolve, run_here
from gmkcf_dask.kernels.tiles import ResolvedKernel, final_values, is_constant, min_max
from gmkcf_dask.kernels.tiling import CACHED_TABLES, Precision, Tiling
from gmkcf_dask.system.arrays import AnyFloats, Floats

Content = Literal["codes", "distances", "products"]
"""What is kept of a pair: a code of its distance, its distance, or its inner product."""
GRAM = "gram/X"
"""The array of it: its path in a store, and its name among arrays of tiles."""
SQUARES, CENTRED, ALONG = "gram_rows/squares", "gram_rows/centred", "gram_rows/along"
"""Vectors (n,): ‖x‖², and with μ what distances are measured from (see `offset_of`), ‖x − μ‖² and
xᵀμ − ‖μ‖²/2: two of these and the product of two samples measured from μ make their product."""
ZERO_AND_UNIT, TWO_ZEROS, ZERO_ITSELF = STEPS + 1, STEPS + 2, STEPS + 3
"""Codes of pairs with a row of zeros, whose kernels no distance tells. Distances in float32 have
STEPS minus the code. The last is the code that marks what was never written, so it is not stored:
`mark_zeros` puts it on the diagonal of what was read."""

COARSEST_CODES = 1e-3
"""Largest error of a kernel by codes; distances in float32 are kept where it would be larger."""
COARSEST_FLOATS = 1e-6
"""The same by float32, relative to a kernel's largest value."""
_UNIT = 1e-6
"""How far ‖x‖² of a unit row may be from 1, so that rows normalised in float32 are unit rows."""
_HELD = 1e-15, 1e18
"""Largest distances whose squares are far from the limits of float32."""
_MARGIN = 0.8
"""Part of an error that a sample may come to: all pairs may have more."""
_ROUNDING = float(np.finfo(np.float32).eps) / 2
_ROWS = 4096
_SAMPLE = 128
"""Rows on which errors are measured, and as many that are extreme in one way or another."""


@dataclass(frozen=True)
class GramMatrix:
    """What is kept of every pair of samples.

    Attributes
    ----------
    unit_rows : bool
        ‖x‖ is 1 or 0 for every sample, so that kernels are functions of the distance.
    shifted : bool
        Inner products are measured from the mean row.
    tabulated : bool
        All kernels are evaluated by tables; before statistics are known, probably.
    widths_from : float or None
        Gaussian kernels of this width t or a larger one are, whatever others there are.
    d_max : float
        The largest distance, which the last code stands for; 0 before statistics are known.
    mostly_equal : bool
        More than half of all pairs have the same entry, as where most share no word.
    clipped : bool
        No feature is negative: inner products below 0 are rounding, and are 0. Kernels would have
        mixed signs otherwise, which take other updates.
    """

    content: Content
    dtype: Literal["uint16", "float32", "float64"]
    unit_rows: bool
    shifted: bool = False
    tabulated: bool = False
    widths_from: float | None = None
    d_max: float = 0.0
    mostly_equal: bool = False
    clipped: bool = False

    @property
    def itemsize(self) -> int:
        """Bytes of an entry."""
        return np.dtype(self.dtype).itemsize

    @property
    def step(self) -> float:
        """The distance from one code to the next."""
        return self.d_max / STEPS

    @property
    def per_distance(self) -> float:
        """Codes of a distance of 1; 0 where all samples are equal."""
        return STEPS / self.d_max if self.d_max > 0.0 else 0.0

    def has_table(self, spec: object) -> bool:
        """Whether a kernel is Gaussian, and wide enough for a table."""
        least = np.inf if self.widths_from is None else self.widths_from
        return isinstance(spec, Rbf) and spec.t >= least

    @property
    def vectors(self) -> tuple[str, ...]:
        """Vectors of the samples that formulas need besides."""
        return (SQUARES, CENTRED, ALONG) if self.shifted else (SQUARES,)


_EXACT = GramMatrix("products", "float64", unit_rows=False)
GramSpec = Rbf | Polynomial | Linear | Cosine
"""Kernels that are functions of inner products and lengths."""


def is_function_of_gram(spec: object) -> TypeGuard[GramSpec]:
    """Whether a kernel is a function of inner products and lengths."""
    return isinstance(spec, GramSpec)


def gram_spec(name: str) -> GramSpec:
    """The spec of such a kernel by its name; refused where it is another kind."""
    spec = parse_kernel(name)
    if not is_function_of_gram(spec):
        raise InputError(f"kernel {name} is no function of inner products")
    return spec


# what is kept


def gram_for(
    kernels: Sequence[ResolvedKernel], X: Matrix | None, precision: Precision, layout: Layout
) -> GramMatrix | None:
    """What is kept of pairs where a layout asks for it; None where each kernel has its tiles.

    One kernel alone has no smaller tiles than its own.
    """
    functions = [kernel for kernel in kernels if is_function_of_gram(kernel.spec)]
    least = {"each": np.inf, "auto": 2, "gram": 1}[layout]
    if X is None or len(functions) < least:
        return None
    return choose_gram(functions, X, precision)


def choose_gram(kernels: Sequence[ResolvedKernel], X: Matrix, precision: Precision) -> GramMatrix:
    """The least that tells the kernels of these samples within the errors above.

    It follows from lengths and from a sample of pairs alone, so that plans know it beforehand.
    `with_statistics` tries it once more, when the ranges of kernels over all pairs are known.
    """
    squares, offset = _squares_of(X), offset_of(X)
    exact = replace(_EXACT, shifted=offset is not None, clipped=_least_feature(X) >= 0.0)
    unit_rows = bool(((np.abs(squares - 1.0) <= _UNIT) | (squares == 0.0)).all())
    rows = [_typical_rows(X), _telling_rows(X, squares)]
    try:
        trials = [_trial(kernels, SomeRows(X[some], offset)) for some in rows]
    except InputError:  # so few samples have no statistics, whether all of them have or not
        return exact
    d_max = _largest_distance(squares, exact)
    for matrix in _candidates(kernels, precision, unit_rows, exact):
        known = replace(matrix, d_max=d_max)
        if all(trial.allows(known, _MARGIN) for trial in trials):
            break
    typical = trials[0]
    _, counts = np.unique(_kept(known, typical.tile), return_counts=True)
    return replace(
        matrix,
        tabulated=matrix.tabulated and is_tabulated(known, typical.found.kernels),
        mostly_equal=bool(2 * counts.max() > counts.sum()),
    )


def _candidates(
    kernels: Sequence[ResolvedKernel], precision: Precision, unit_rows: bool, exact: GramMatrix
) -> list[GramMatrix]:
    """What may be kept under a precision, fewest bytes first."""
    if precision == "float64":
        return [exact]
    by_distance = unit_rows or all(isinstance(kernel.spec, Rbf) for kernel in kernels)
    tables = by_distance and all(kernel.normalization != "degree" for kernel in kernels)
    plain = replace(exact, content="distances", dtype="float32", shifted=False)
    known = replace(plain, unit_rows=unit_rows, tabulated=tables)
    codes = replace(known, content="codes", dtype="uint16")
    return [
        *([codes] if by_distance and precision == "compact" else []),
        *([known] if by_distance else []),
        *([] if by_distance and not unit_rows else [plain]),
        replace(exact, dtype="float32"),
        exact,
    ]


@dataclass(frozen=True)
class _Trial:
    """A few samples on which what is kept of pairs is tried, and the statistics of kernels."""

    tile: PairTile
    found: Resolved

    def allows(self, matrix: GramMatrix, margin: float = 1.0) -> bool:
        """Whether kernels evaluated on what is kept are exact enough."""
        if matrix.dtype == "float64":
            return True
        if matrix.dtype == "float32" and not _HELD[0] < matrix.d_max < _HELD[1]:
            return False
        limit = margin * COARSEST_CODES if matrix.content == "codes" else COARSEST_FLOATS
        with np.errstate(all="ignore"):  # what overflows is refused with the statistics
            if not self._error(matrix) <= limit:  # NaN is not allowed either
                return False
            if matrix.content == "products":
                return self._products_tell_near_samples()
            return all(kept_error(matrix, kernel) <= limit for kernel in self.found.kernels)

    def _error(self, matrix: GramMatrix) -> float:
        """Largest error of a kernel on these pairs, relative to its largest value."""
        tile, norms = self.tile, self.found.norms
        vectors = row_vectors(tile.features)
        pair = pair_of(matrix, _kept(matrix, tile), tile.rows, tile.cols, vectors.__getitem__)
        errors = [0.0]
        for kernel in self.found.kernels:
            exact = final_values(kernel, tile, norms)
            gap = np.abs(final_values(kernel, pair, norms) - exact).max()
            errors.append(float(gap / max(np.abs(exact).max(), TINIEST)))
        return float(np.max(errors))  # NaN stays

    def _products_tell_near_samples(self) -> bool:
        """Whether float32 products tell distances of pairs that may not be among these."""
        widths = [kernel.spec.t for kernel in self.found.kernels if isinstance(kernel.spec, Rbf)]
        narrowest = np.float64(min(widths, default=np.inf) * self.found.mean_distance)  # may be 0
        rounding = _ROUNDING * float(np.max(self.tile.inner[1]))
        return bool(rounding / narrowest**2 <= COARSEST_FLOATS)


@dataclass(frozen=True)
class SomeRows:
    """Some of the samples; distances are measured from where those of all samples are."""

    X: Matrix
    offset: Floats | None

    @property
    def n_samples(self) -> int:
        return int(self.X.shape[0])

    def rows(self, where: slice) -> Matrix:
        return self.X[where]


def _trial(kernels: Sequence[ResolvedKernel], features: SomeRows) -> _Trial:
    """With the statistics of these samples."""
    tiling = Tiling(features.n_samples, features.n_samples)

    def sweep(gather: Callable[[PairTile], TileStatistics], what: str) -> TileStatistics:
        return run_here(gather, features, tiling, [0])

    with np.errstate(all="ignore"):
        found = resolve(tuple(kernels), features, tiling, sweep, distances=True)
    return _Trial(PairTile.at(features, tiling, 0), found)


def _typical_rows(X: Matrix) -> npt.NDArray[np.intp]:
    """A few samples, evenly spread."""
    n = int(X.shape[0])
    return np.linspace(0, n - 1, min(n, _SAMPLE)).astype(int)


def _telling_rows(X: Matrix, squares: Floats) -> npt.NDArray[np.intp]:
    """The same, and samples of extreme length, and of extreme products with the mean of all."""
    with np.errstate(all="ignore"):
        along = np.asarray(X @ np.asarray(X.mean(axis=0)).ravel()).ravel()
    rows = [_typical_rows(X)]
    for order in (np.argsort(squares, kind="stable"), np.argsort(along, kind="stable")):
        rows += [order[: _SAMPLE // 2], order[-(_SAMPLE // 2) :]]
    return np.unique(np.concatenate(rows))


def _squares_of(X: Matrix) -> Floats:
    """‖x‖², shape (n,), summed in float64."""
    with np.errstate(over="ignore"):
        parts = [squared_norms(X[rows].astype(np.float64)) for rows in row_blocks(X)]
    return np.concatenate(parts)


def _least_feature(X: Matrix) -> float:
    values: Any = X if isinstance(X, np.ndarray) else X.data
    return float(values.min(initial=0.0))


def _largest_distance(squares: Floats, matrix: GramMatrix) -> float:
    """A distance that no pair exceeds."""
    with np.errstate(over="ignore"):
        return float(np.sqrt((2.0 if matrix.clipped else 4.0) * squares.max()))


def _kept(matrix: GramMatrix, tile: PairTile) -> npt.NDArray[Any]:
    """What is kept of the pairs of a tile."""
    into = np.empty(tile.shape, matrix.dtype)
    with np.errstate(all="ignore"):
        encode_gram(matrix, tile, into)
    return into


def row_vectors(features: Features) -> dict[str, Floats]:
    """The vectors of the samples that formulas may need, each of shape (n,)."""
    n, offset = features.n_samples, features.offset
    names = (SQUARES,) if offset is None else (SQUARES, CENTRED, ALONG)
    vectors = {name: np.empty(n) for name in names}
    for first in range(0, n, _ROWS):
        where = slice(first, min(first + _ROWS, n))
        X = features.rows(where)
        vectors[SQUARES][where] = squared_norms(X)
        if offset is not None:
            assert isinstance(X, np.ndarray)
            vectors[CENTRED][where] = squared_norms(X - offset)
            vectors[ALONG][where] = X @ offset - offset @ offset / 2
    return vectors


def encode_gram(matrix: GramMatrix, tile: PairTile, into: npt.NDArray[Any]) -> None:
    """What is kept of the pairs of a tile, in the room given for it."""
    for part in tile.strips():
        first = part.rows.start - tile.rows.start
        out = into[first : first + part.shape[0]]
        if matrix.content == "products":
            np.copyto(out, part.inner[0], casting="same_kind")
            continue
        distances = np.sqrt(part.squared_distances)
        if matrix.content == "codes":
            distances *= matrix.per_distance
            np.rint(distances, out=distances)
        np.copyto(out, distances, casting="unsafe")
        if matrix.unit_rows:
            zero_rows, zero_cols = part.sq_rows == 0.0, part.sq_cols == 0.0
            out[zero_rows] = mark(matrix, ZERO_AND_UNIT)
            out[:, zero_cols] = mark(matrix, ZERO_AND_UNIT)
            out[np.ix_(zero_rows, zero_cols)] = mark(matrix, TWO_ZEROS)


def mark(matrix: GramMatrix, code: int) -> int:
    """The entry that stands for a pair with a row of zeros."""
    return code if matrix.content == "codes" else STEPS - code


def mark_zeros(matrix: GramMatrix, diagonal_tile: npt.NDArray[Any]) -> None:
    """Tell a row of zeros with itself from two of them, in a tile on the diagonal that was read."""
    if matrix.unit_rows and matrix.content != "products":
        zeros = np.flatnonzero(np.diagonal(diagonal_tile) == mark(matrix, TWO_ZEROS))
        diagonal_tile[zeros, zeros] = mark(matrix, ZERO_ITSELF)


def with_statistics(matrix: GramMatrix, found: Resolved, features: Features) -> GramMatrix:
    """What is kept, once the statistics of all pairs are known.

    That is more than was chosen where a kernel turns out to be more sensitive than the sample said.
    """
    kernels = tuple(kernel for kernel in found.kernels if is_function_of_gram(kernel.spec))
    X, d_max = features.rows(slice(0, features.n_samples)), float(np.sqrt(found.d2_max))
    rows = _telling_rows(X, _squares_of(X))
    few, everything = SomeRows(X[rows], features.offset), slice(0, len(rows))
    norms = {name: values[rows] for name, values in found.norms.items()}
    tile = PairTile(few, everything, everything)
    trial = _Trial(tile, replace(found, kernels=kernels, norms=norms))
    finer = [replace(_EXACT, shifted=features.offset is not None)]
    if matrix.content == "codes":
        finer.insert(0, replace(matrix, content="distances", dtype="float32"))
    for candidate in (matrix, *finer):
        known = replace(
            candidate, d_max=d_max, mostly_equal=matrix.mostly_equal, clipped=matrix.clipped
        )
        if trial.allows(known):
            break
    return replace(
        known,
        tabulated=is_tabulated(known, kernels),
        widths_from=_least_width(known, kernels),
    )


def _least_width(matrix: GramMatrix, kernels: Sequence[ResolvedKernel]) -> float | None:
    """The least t whose Gaussian kernel is exact enough as a table, wider ones all the more."""
    widths = {kernel.spec.t: kernel for kernel in kernels if isinstance(kernel.spec, Rbf)}
    for t, kernel in sorted(widths.items()) if matrix.content != "products" else ():
        if matrix.content == "codes" or _are_fine(matrix, [_raw(kernel)]):
            return t
    return None


# functions as tables


def is_tabulated(matrix: GramMatrix, kernels: Sequence[ResolvedKernel]) -> bool:
    """Whether each of the kernels is a table over what is kept, and exact enough as one."""
    if not all(_follows_distance(matrix, kernel) for kernel in kernels):
        return False
    return matrix.content == "codes" or _are_fine(matrix, kernels)


def _follows_distance(matrix: GramMatrix, kernel: ResolvedKernel) -> bool:
    """Whether the distance of a pair, which is kept, tells the value of a kernel."""
    if matrix.content == "products" or kernel.normalization == "degree":
        return False
    return matrix.unit_rows or isinstance(kernel.spec, Rbf)


def _are_fine(matrix: GramMatrix, kernels: Sequence[ResolvedKernel]) -> bool:
    """Whether kernels are exact enough where they are interpolated between entries of tables."""
    return all(table_error(matrix, [kernel]) <= COARSEST_FLOATS for kernel in kernels)


def kept_error(matrix: GramMatrix, kernel: ResolvedKernel) -> float:
    """Bound of the error of a kernel of exact formulas, because distances are rounded as they are.

    Nothing is said of kernels that are no function of the distance; of Gaussian ones divided by
    degrees it is the bound before that.
    """
    if isinstance(kernel.spec, Rbf) and kernel.normalization == "degree":
        kernel = _raw(kernel)
    if not _follows_distance(matrix, kernel):
        return 0.0
    if matrix.content == "codes":
        return table_error(matrix, [kernel])
    slopes = np.abs(np.diff(table_of(matrix, kernel)[: STEPS + 1]))
    return _ROUNDING * float((slopes * np.arange(1, STEPS + 1)).max())


def table_error(matrix: GramMatrix, kernels: Sequence[ResolvedKernel]) -> float:
    """Bound of the error of kernels by their tables.

    A code is off by half a step, which moves a function by at most half the difference between
    entries; linear interpolation is off by an eighth of the second difference.
    """
    largest = 0.0
    for kernel in kernels:
        entries = table_of(matrix, kernel)[: STEPS + 1]
        order = 1 if matrix.content == "codes" else 2
        part = 0.5 if matrix.content == "codes" else 0.125
        largest = max(largest, part * float(np.abs(np.diff(entries, order)).max()))
    return largest


@lru_cache(maxsize=CACHED_TABLES)
def table_of(matrix: GramMatrix, kernel: ResolvedKernel) -> Floats:
    """A kernel at every entry that can be kept, float64 of shape (ENTRIES,), not to be changed."""
    table = np.zeros(ENTRIES)
    d2: Floats = np.square(np.arange(STEPS + 1)[None] * matrix.step)
    products = _clipped(matrix, 1.0 - d2 / 2)
    table[: STEPS + 1] = final_values(kernel, _pair(d2, products, 1.0, 1.0), {})
    if matrix.unit_rows:
        one = np.ones((1, 1))
        table[ZERO_AND_UNIT] = final_values(kernel, _pair(one, 0 * one, 0.0, 1.0), {})[0, 0]
        table[TWO_ZEROS] = final_values(kernel, _pair(0 * one, 0 * one, 0.0, 0.0), {})[0, 0]
        table[ZERO_ITSELF] = diagonal_values(kernel, np.zeros(1), None)[0]
    table.flags.writeable = False
    return table


def nearest_tables(
    matrix: GramMatrix, kernels: Sequence[ResolvedKernel]
) -> dict[str, tuple[str, float]]:
    """By kernel, the earlier one that its table is nearest to, and their largest difference.

    Over all distances up to the largest; where kernels have no tables, nothing is said.
    """
    own = [kernel for kernel in kernels if is_function_of_gram(kernel.spec)]
    if not matrix.tabulated:
        return {}
    few = np.array([table_of(matrix, kernel)[: STEPS + 1 : 256] for kernel in own])
    nearest = {}
    for later, kernel in enumerate(own[1:], 1):
        earlier = own[int(np.abs(few[:later] - few[later]).max(axis=1).argmin())]
        apart = np.abs(table_of(matrix, kernel) - table_of(matrix, earlier)).max()
        nearest[kernel.name] = earlier.name, float(apart)
    return nearest


def raw_table_of(matrix: GramMatrix, kernel: ResolvedKernel) -> Floats:
    """A Gaussian kernel as it is before normalisation and scaling."""
    return table_of(matrix, _raw(kernel))


def _raw(kernel: ResolvedKernel) -> ResolvedKernel:
    return replace(kernel, normalization="none", scaling="none")


def _pair(d2: Floats, products: Floats, sq_row: float, sq_cols: float) -> PairTile:
    """Pairs of one sample with others, no two of them the same."""
    cols = slice(1, 1 + d2.shape[1])
    known = {"sq_rows": np.full(1, sq_row), "sq_cols": np.full(d2.shape[1], sq_cols)}
    return known_pair(slice(0, 1), cols, squared_distances=d2, gram=products, **known)


# formulas on what is kept


def known_pair(rows: slice, cols: slice, **known: Any) -> PairTile:
    """Pairs of which these values are known, and nothing else."""
    tile = PairTile(NoFeatures(cols.stop), rows, cols)
    tile.__dict__.update(known)
    return tile


Vectors = Callable[[str], Floats]
"""From the name of a vector (n,) to its values."""


def pair_of(
    matrix: GramMatrix, stored: npt.NDArray[Any], rows: slice, cols: slice, vectors: Vectors
) -> PairTile:
    """Some rows of a tile as kernels want to know them, from what is kept of its pairs."""
    squares = vectors(SQUARES)
    sq_rows, sq_cols = squares[rows], squares[cols]
    if matrix.unit_rows:  # as tables have it
        sq_rows, sq_cols = np.rint(sq_rows), np.rint(sq_cols)
    known: dict[str, Any] = {"sq_rows": sq_rows, "sq_cols": sq_cols}
    values = stored.astype(np.float64)
    if matrix.content == "products":
        centred = vectors(CENTRED if matrix.shifted else SQUARES)
        products = values
        if matrix.shifted:
            along = vectors(ALONG)
            products = values + along[rows, None] + along[cols]
        products = _clipped(matrix, products)
        known |= {"gram": products, "inner": (values, centred[rows], centred[cols])}
        return known_pair(rows, cols, **known)
    d2 = _squared(matrix, values)
    products = _clipped(matrix, (sq_rows[:, None] + sq_cols - d2) / 2)
    known |= {"squared_distances": d2, "gram": products}
    return known_pair(rows, cols, **known)


def _clipped(matrix: GramMatrix, products: Floats) -> Floats:
    return np.maximum(products, 0.0) if matrix.clipped else products


def _squared(matrix: GramMatrix, values: Floats) -> Floats:
    """Squared distances from codes or distances, in place."""
    if matrix.unit_rows:
        one = values == mark(matrix, ZERO_AND_UNIT)
        both = (values == mark(matrix, TWO_ZEROS)) | (values == mark(matrix, ZERO_ITSELF))
        values[one] = matrix.per_distance if matrix.content == "codes" else 1.0
        values[both] = 0.0
    if matrix.content == "codes":
        values *= matrix.step
    return np.multiply(values, values, out=values)


@dataclass(frozen=True)
class Power:
    """A kernel as ((a + g)·r_x·r_y)^b, then scaled: (value − low)·factor.

    With `after`, r_x·r_y is multiplied to the power.
    """

    a: float
    b: int
    after: bool
    low: float
    factor: float


def power_of(
    kernel: ResolvedKernel, squares: Floats, norms: Floats | None
) -> tuple[Floats, Power] | None:
    """r of some samples, and the rest of a kernel's formula; None where it has special cases.

    g is the inner product, and for a Gaussian kernel its value before normalisation.
    """
    spec = kernel.spec
    a, b = (spec.a, spec.b) if isinstance(spec, Polynomial) else (0.0, 1)
    divided = np.ones_like(squares)
    if isinstance(spec, Cosine):
        divided = squares.copy()
    elif kernel.normalization == "unit" and isinstance(spec, Polynomial | Linear):
        divided = a + squares
    if kernel.normalization == "degree":
        assert norms is not None
        divided *= norms
    low, high = kernel.minimum or 0.0, kernel.maximum or 0.0
    constant = kernel.scaling == "minmax" and is_constant(low, high)
    if constant or not divided.min() > 0.0:
        return None
    factor = 1.0 / (high - low) if kernel.scaling == "minmax" else 1.0
    low = low if kernel.scaling == "minmax" else 0.0
    form = Power(a, b, kernel.normalization == "degree", low, factor)
    return 1.0 / np.sqrt(divided), form


def diagonal_values(kernel: ResolvedKernel, squares: Floats, norms: Floats | None) -> Floats:
    """k(x,x) of samples with these ‖x‖² and, for degree, row sums; shape (n,)."""
    spec, unit = kernel.spec, kernel.normalization == "unit"
    values, valid = np.ones_like(squares), np.ones(squares.shape, bool)
    if isinstance(spec, Cosine) or (unit and isinstance(spec, Linear)):
        valid = squares > 0.0
    elif isinstance(spec, Polynomial):
        if unit:
            valid = spec.a + squares > 0.0
        else:
            values = (spec.a + squares) ** spec.b
    elif isinstance(spec, Linear):
        values = squares.copy()
    if kernel.normalization == "degree":
        assert norms is not None
        valid = norms > 0.0
        values = np.divide(values, norms, out=np.zeros_like(values), where=valid)
    if kernel.scaling == "minmax" and not kernel.range_follows_from_distance:
        values = min_max(values, kernel, clip=True)
    values[~valid] = 1.0
    return values


def lowest_product(matrix: GramMatrix, tile: PairTile) -> float:
    """What no inner product of a tile is below when it is had from what is kept."""
    least = float(tile.gram.min())
    if matrix.clipped:
        return max(0.0, least)
    if matrix.content == "codes":
        return least - matrix.d_max * matrix.step
    lengths = float(tile.sq_rows.max() + tile.sq_cols.max())
    return least - 4.0 * float(np.finfo(matrix.dtype).eps) * lengths


def lowest_value(kernel: ResolvedKernel, product: float) -> float:
    """A value of the sign of a kernel's smallest, where no inner product is below this one."""
    spec = kernel.spec
    if kernel.scaling == "minmax" or isinstance(spec, Rbf):
        return 0.0
    if isinstance(spec, Polynomial):
        return min(0.0, spec.a + product) if spec.b % 2 else 0.0
    return min(0.0, product)


# kernels of a fit


@dataclass(frozen=True)
class GramKernels:
    """Kernels that are evaluated from one array of tiles.

    Attributes
    ----------
    precision : {"float32", "float64", "compact"}
    number : int
        Of that array among those of a reader.
    kernels : tuple of (int, ResolvedKernel)
        With their numbers among all kernels.
    vectors : callable
        From the name of a vector of the samples, or of row sums, to its values.
    nonnegative : bool
        No entry of any of these kernels is below zero.
    """

    matrix: GramMatrix
    precision: Precision
    number: int
    kernels: tuple[tuple[int, ResolvedKernel], ...]
    vectors: Vectors
    nonnegative: bool = True

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of evaluated tiles."""
        return np.dtype(np.float64 if self.precision == "float64" else np.float32)

    @cached_property
    def by_number(self) -> dict[int, ResolvedKernel]:
        return dict(self.kernels)

    def diagonal(self, number: int) -> Floats:
        """k(x,x) of every sample, shape (n,)."""
        kernel = self.by_number[number]
        return diagonal_values(kernel, self.squares, self.norms(kernel).get(kernel.name))

    def norms(self, kernel: ResolvedKernel) -> dict[str, Floats]:
        """The row sums that a kernel is normalised by, if it is."""
        return {kernel.name: self.vectors(f"norms/{kernel.name}")} if kernel.needs_norms else {}

    @cached_property
    def in_tables(self) -> frozenset[int]:
        """Those that are evaluated by tables."""
        if self.matrix.tabulated:
            return frozenset(self.by_number)
        return frozenset(
            number
            for number, kernel in self.kernels
            if self.matrix.has_table(kernel.spec) and kernel.normalization != "degree"
        )

    @cached_property
    def squares(self) -> Floats:
        """‖x‖² of every sample, shape (n,)."""
        squares = self.vectors(SQUARES)
        return np.rint(squares) if self.matrix.unit_rows else squares

    def __reduce__(self) -> tuple[Any, ...]:
        # tables are made where they are needed
        return GramKernels, tuple(getattr(self, field.name) for field in fields(self))

    @cached_property
    def tables(self) -> Floats:
        """The tables of those that have one, in their order, shape (m', ENTRIES)."""
        own = [kernel for number, kernel in self.kernels if number in self.in_tables]
        tables = np.empty((len(own), ENTRIES))  # no second copy of many of them
        for table, kernel in zip(tables, own, strict=True):
            table[:] = table_of(self.matrix, kernel)
        return tables

    def combined_table(self, weights: Mapping[int, float]) -> AnyFloats:
        """The table of Σ weights_i K^i over these, made in float64."""
        own = [weights.get(number, 0.0) for number, _ in self.kernels if number in self.in_tables]
        return (np.array(own) @ self.tables).astype(np.float32)
