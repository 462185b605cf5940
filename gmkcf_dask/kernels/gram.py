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
    ArrayFeatures,
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
from gmkcf_dask.kernels.tiling import Precision, Tiling
from gmkcf_dask.system.arrays import AnyFloats, Floats

Content = Literal["codes", "distances", "products"]
"""What is kept of a pair: a code of its distance, its distance, or its inner product."""
GRAM = "gram/X"
"""The array of it: its path in a store, and its name among arrays of tiles."""
SQUARES, CENTRED, ALONG = "gram_rows/squares", "gram_rows/centred", "gram_rows/along"
"""Vectors (n,): ‖x‖², ‖x − μ‖² and xᵀμ, μ what distances are measured from (see `offset_of`)."""
ZERO_AND_UNIT, TWO_ZEROS, ZERO_ITSELF = STEPS + 1, STEPS + 2, STEPS + 3
"""Codes of pairs with a row of zeros, whose kernels no distance tells. Distances in float32 have
STEPS minus the code. The last is the code that marks what was never written, so it is not stored:
`mark_zeros` puts it on the diagonal of what was read."""

COARSEST_CODES = 1e-3
"""Largest error of a kernel by codes; distances in float32 are kept where it would be larger."""
COARSEST_FLOATS = 1e-6
"""The same by float32, relative to a kernel's largest value."""
_UNIT = 1e-7
"""How far ‖x‖² of a unit row may be from 1: twice that is the error in kernels."""
_HELD = 1e-15, 1e18
"""Largest distances whose squares are far from the limits of float32."""
_MARGIN = 0.8
"""Part of an error that a sample may come to: all pairs may have more."""
_ROWS = 4096
_SAMPLE = 128
"""Rows on which errors of float32 are measured, and as many with extreme lengths."""


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
    """

    content: Content
    dtype: Literal["uint16", "float32", "float64"]
    unit_rows: bool
    shifted: bool = False
    tabulated: bool = False
    widths_from: float | None = None
    d_max: float = 0.0
    mostly_equal: bool = False

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
    """
    squares = np.concatenate([squared_norms(X[rows]) for rows in row_blocks(X)])
    with np.errstate(all="ignore"):  # what overflows is refused with the statistics
        sample, found = _resolved_sample(kernels, X, squares)
        matrix = _least_matrix(kernels, X, squares, sample, found, precision)
        known = replace(matrix, d_max=float(np.sqrt(found.d2_max)))
        counts = np.unique(_kept(known, sample), return_counts=True)[1]
    return replace(matrix, mostly_equal=bool(2 * counts.max() > counts.sum()))


def _least_matrix(
    kernels: Sequence[ResolvedKernel],
    X: Matrix,
    squares: Floats,
    sample: PairTile,
    found: Resolved,
    precision: Precision,
) -> GramMatrix:
    offset = offset_of(X)
    products = GramMatrix("products", "float64", unit_rows=False, shifted=offset is not None)
    if precision == "float64":
        return products
    unit_rows = bool(((np.abs(squares - 1.0) <= _UNIT) | (squares == 0.0)).all())
    distances = GramMatrix("distances", "float32", unit_rows)
    widths = [kernel.spec.t for kernel in kernels if isinstance(kernel.spec, Rbf)]
    narrowest = np.float64(min(widths, default=np.inf) * found.mean_distance)  # may be 0
    top = _largest_distance(X, squares)
    # distances and products that float32 holds
    held = _HELD[0] < top < _HELD[1]
    if unit_rows or len(widths) == len(kernels):
        # exp(−d²/2σ²) has slopes up to exp(−½)/σ, and second derivatives up to 1/σ²
        step = top / STEPS / narrowest
        tables = all(kernel.normalization != "degree" for kernel in kernels)
        if precision == "compact" and not 0.5 * np.exp(-0.5) * step > _MARGIN * COARSEST_CODES:
            codes = GramMatrix("codes", "uint16", unit_rows, tabulated=tables)
            known = replace(codes, d_max=float(np.sqrt(found.d2_max)))
            if _sampled_error(found, sample, known) <= _MARGIN * COARSEST_CODES:
                return codes
        if not (held and _sampled_error(found, sample, distances) <= COARSEST_FLOATS):
            return products
        fine = bool(0.125 * step**2 <= COARSEST_FLOATS)
        return replace(distances, tabulated=tables and fine)
    if not held:
        return products
    if _sampled_error(found, sample, distances) <= COARSEST_FLOATS:
        return distances
    # products of near samples, which a sample of pairs may not have
    rounding = np.finfo(np.float32).eps / 2 * float(np.max(sample.inner[1]))
    floats = replace(products, dtype="float32")
    if (
        not rounding / narrowest**2 > COARSEST_FLOATS
        and _sampled_error(found, sample, floats) <= COARSEST_FLOATS
    ):
        return floats
    return products


def _resolved_sample(
    kernels: Sequence[ResolvedKernel], X: Matrix, squares: Floats
) -> tuple[PairTile, Resolved]:
    """A tile of a few samples, those of extreme lengths among them, and its statistics."""
    n, by_length = len(squares), np.argsort(squares, kind="stable")
    spread = np.linspace(0, n - 1, min(n, _SAMPLE)).astype(int)
    rows = np.unique(np.r_[spread, by_length[: _SAMPLE // 2], by_length[-(_SAMPLE // 2) :]])
    features, whole = ArrayFeatures(X[rows]), slice(0, len(rows))
    tiling = Tiling(len(rows), len(rows))

    def sweep(gather: Callable[[PairTile], TileStatistics], what: str) -> TileStatistics:
        return run_here(gather, features, tiling, [0])

    found = resolve(tuple(kernels), features, tiling, sweep, distances=True)
    return PairTile(features, whole, whole), found


def _largest_distance(X: Matrix, squares: Floats) -> float:
    """A distance that no pair exceeds."""
    values: Any = X if isinstance(X, np.ndarray) else X.data
    product = 0.0 if values.size == 0 or float(values.min()) >= 0.0 else float(squares.max())
    return float(np.sqrt(2.0 * (squares.max() + product)))


def _sampled_error(found: Resolved, sample: PairTile, matrix: GramMatrix) -> float:
    """Largest error on a sample of kernels evaluated on what is kept, relative to their largest."""
    vectors = row_vectors(sample.features)
    pair = pair_of(matrix, _kept(matrix, sample), sample.rows, sample.cols, vectors.__getitem__)
    errors = [0.0]
    for kernel in found.kernels:
        exact = final_values(kernel, sample, found.norms)
        gap = np.abs(final_values(kernel, pair, found.norms) - exact).max()
        errors.append(float(gap / max(np.abs(exact).max(), TINIEST)))
    return float(np.max(errors))  # NaN stays


def _kept(matrix: GramMatrix, tile: PairTile) -> npt.NDArray[Any]:
    """What is kept of the pairs of a tile."""
    into = np.empty(tile.shape, matrix.dtype)
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


def with_statistics(matrix: GramMatrix, found: Resolved) -> GramMatrix:
    """The same, once the kernels and the largest distance are known."""
    matrix = replace(matrix, d_max=float(np.sqrt(found.d2_max)))
    kernels = [kernel for kernel in found.kernels if is_function_of_gram(kernel.spec)]
    tabulated = is_tabulated(matrix, kernels)
    if tabulated and matrix.content == "codes":
        error, name = max((table_error(matrix, [kernel]), kernel.name) for kernel in kernels)
        if error > COARSEST_CODES:  # no pair of the sample showed it
            raise InputError(
                f"kernel {name} would be off by {error:.1g} in layout gram with precision compact: "
                "use precision float32, or layout each"
            )
    return replace(
        matrix,
        tabulated=tabulated,
        widths_from=_least_width(matrix, kernels),
    )


def _least_width(matrix: GramMatrix, kernels: Sequence[ResolvedKernel]) -> float | None:
    """The least t whose Gaussian kernel is exact enough as a table, wider ones all the more."""
    widths = {kernel.spec.t: kernel for kernel in kernels if isinstance(kernel.spec, Rbf)}
    for t, kernel in sorted(widths.items()) if matrix.content != "products" else ():
        raw = replace(kernel, normalization="none", scaling="none")
        if matrix.content == "codes" or table_error(matrix, [raw]) <= COARSEST_FLOATS:
            return t
    return None


# functions as tables


def is_tabulated(matrix: GramMatrix, kernels: Sequence[ResolvedKernel]) -> bool:
    """Whether each of the kernels is a table over what is kept, and exact enough as one."""
    degree = any(kernel.normalization == "degree" for kernel in kernels)
    gaussian = all(isinstance(kernel.spec, Rbf) for kernel in kernels)
    if matrix.content == "products" or degree or not (matrix.unit_rows or gaussian):
        return False
    return matrix.content == "codes" or table_error(matrix, kernels) <= COARSEST_FLOATS


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


@lru_cache(maxsize=32)
def table_of(matrix: GramMatrix, kernel: ResolvedKernel) -> Floats:
    """A kernel at every entry that can be kept, float64 of shape (ENTRIES,), not to be changed."""
    table = np.zeros(ENTRIES)
    d2: Floats = np.square(np.arange(STEPS + 1)[None] * matrix.step)
    table[: STEPS + 1] = final_values(kernel, _pair(d2, 1.0 - d2 / 2, 1.0, 1.0), {})
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
    return table_of(matrix, replace(kernel, normalization="none", scaling="none"))


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
        known |= {"gram": products, "inner": (values, centred[rows], centred[cols])}
        return known_pair(rows, cols, **known)
    d2 = _squared(matrix, values)
    known |= {"squared_distances": d2, "gram": (sq_rows[:, None] + sq_cols - d2) / 2}
    return known_pair(rows, cols, **known)


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
    spec = kernel.spec
    values, valid = np.ones_like(squares), np.ones(squares.shape, bool)
    if isinstance(spec, Polynomial):
        values = (spec.a + squares) ** spec.b
    elif isinstance(spec, Linear):
        values = squares.copy()
    if kernel.normalization == "degree":
        assert norms is not None
        valid = norms > 0.0
        values = np.divide(values, norms, out=np.zeros_like(values), where=valid)
    elif kernel.normalization == "unit" and isinstance(spec, Polynomial):
        values, valid = np.ones_like(squares), spec.a + squares > 0.0
    elif isinstance(spec, Cosine) or (kernel.normalization == "unit" and isinstance(spec, Linear)):
        values, valid = np.ones_like(squares), squares > 0.0
    if kernel.scaling == "minmax" and not kernel.range_follows_from_distance:
        values = min_max(values, kernel, clip=True)
    values[~valid] = 1.0
    return values


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
        return np.array([table_of(self.matrix, kernel) for kernel in own])

    def combined_table(self, weights: Mapping[int, float]) -> AnyFloats:
        """The table of Σ weights_i K^i over these, made in float64."""
        own = [weights.get(number, 0.0) for number, _ in self.kernels if number in self.in_tables]
        return (np.array(own) @ self.tables).astype(np.float32)
