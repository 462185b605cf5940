"""Which kernels there are, and how they are named.

A spec is a small frozen value. Its name is its identity: in options, in stores and in results.
"""

from __future__ import annotations

import difflib
import numbers
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, cast, get_args

import numpy as np
import numpy.typing as npt
from scipy import sparse

from gmkcf_dask.corpus.arrays import RowArray, is_row_array
from gmkcf_dask.corpus.validate import NotNumericError
from gmkcf_dask.errors import InputError
from gmkcf_dask.kernels.local import DEPTHS

Normalization = Literal["unit", "degree", "none"]
Scaling = Literal["minmax", "none"]
NORMALIZATIONS: tuple[Normalization, ...] = get_args(Normalization)
SCALINGS: tuple[Scaling, ...] = get_args(Scaling)
Layout = Literal["auto", "each", "gram"]
"""One array for each kernel, or one for all kernels that are functions of inner products."""
LAYOUTS: tuple[Layout, ...] = get_args(Layout)

NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
# Names that mean something to the file system or to Zarr: the folder itself, its parent, metadata.
_RESERVED = frozenset({".", "..", "zarr.json"})
TINIEST = 1e-30
_NUMBER = r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)"


def is_plain_name(name: object) -> bool:
    """Whether a name may become a file or folder: 1 to 64 of A-Z a-z 0-9 _ . -, and no path.

    >>> is_plain_name("rbf_0.5"), is_plain_name(".."), is_plain_name("a/b")
    (True, False, False)
    """
    return isinstance(name, str) and name not in _RESERVED and bool(NAME.fullmatch(name))


@dataclass(frozen=True)
class Rbf:
    """exp(−‖x−y‖² / (2σ²)) with σ = t·D₀, D₀ the mean distance over all n² pairs."""

    t: float

    def __post_init__(self) -> None:
        if not 1e-9 <= self.t <= 1e9:
            raise InputError(f"the width of an rbf kernel must lie in 1e-9 … 1e9, not {self.t}")

    @property
    def name(self) -> str:
        return f"rbf_{_digits(self.t)}"


@dataclass(frozen=True)
class Polynomial:
    """(a + xᵀy)^b"""

    a: float
    b: int

    def __post_init__(self) -> None:
        if not (0 <= self.a <= 1e9 and isinstance(self.b, int) and 1 <= self.b <= 64):
            raise InputError(
                "a poly kernel needs a in 0 … 1e9 and a whole b in 1 … 64, not "
                f"a={self.a}, b={self.b}"
            )

    @property
    def name(self) -> str:
        return f"poly_a{_digits(self.a)}_b{self.b}"


@dataclass(frozen=True)
class Linear:
    """xᵀy"""

    @property
    def name(self) -> str:
        return "linear"


@dataclass(frozen=True)
class Cosine:
    """xᵀy / (‖x‖‖y‖)"""

    @property
    def name(self) -> str:
        return "cosine"


@dataclass(frozen=True)
class FunctionKernel:
    """Any function of two row blocks, f(X_I, X_J) → (len I, len J); stored by its name only."""

    function: Callable[[Any, Any], npt.ArrayLike] = field(compare=False)
    name: str


@dataclass(frozen=True)
class Precomputed:
    """A matrix the user brings. Taken as it is unless normalisation or scaling is asked for here.

    Parameters
    ----------
    matrix : array, shape (n_samples, n_samples)
        Symmetric and finite.
    name : str
    normalization : {"none", "unit", "degree"}
    scaling : {"none", "minmax"}
    """

    matrix: npt.NDArray[np.floating[Any]] = field(compare=False, repr=False)
    name: str
    normalization: Normalization = "none"
    scaling: Scaling = "none"

    def __post_init__(self) -> None:
        object.__setattr__(self, "matrix", _numeric(self.matrix, self.name))


@dataclass(frozen=True)
class Local:
    """Cosines of rows that are smoothed `depth` times over their neighbours: `kernels.local`."""

    depth: int

    @property
    def name(self) -> str:
        return f"local_{self.depth}"


@dataclass(frozen=True)
class Heat:
    """Diffusion on the graph of few (s), usual (m) or many (l) neighbours; see `kernels.heat`."""

    size: Literal["s", "m", "l"]

    @property
    def name(self) -> str:
        return f"heat_{self.size}"


@dataclass(frozen=True)
class LocalSet:
    """Stands for `local_*` or `heat_*`, whichever suit the data: see `local_kernels_for`."""

    name: str = "local"


@dataclass(frozen=True)
class GivenFactor:
    """K = Z Zᵀ with a factor the user brings, such as sentence embeddings.

    Parameters
    ----------
    factor : array, sparse matrix or Zarr array, shape (n_samples, r)
        Finite; rows are taken as they are. Mapped arrays and those of Zarr are read a block of
        rows at a time.
    name : str
    """

    factor: Any = field(compare=False, repr=False)
    name: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "factor", _checked_factor(self.factor, self.name))


def is_thin(factor: Any) -> bool:
    """Whether a factor is a sparse matrix."""
    return bool(sparse.issparse(factor))


TileSpec = Rbf | Polynomial | Linear | Cosine | FunctionKernel | Precomputed
"""Kernels whose entries are computed tile by tile."""
FactorSpec = Local | Heat | GivenFactor
"""Kernels that are known by a factor."""
KernelSpec = TileSpec | FactorSpec | LocalSet

LOCAL: tuple[Local, ...] = tuple(Local(depth) for depth in DEPTHS)
HEAT: tuple[Heat, ...] = (Heat("s"), Heat("m"), Heat("l"))
PAPER12: tuple[KernelSpec, ...] = (
    *(Rbf(t) for t in (0.01, 0.05, 0.1, 1.0, 10.0, 50.0, 100.0)),
    *(Polynomial(a, b) for a in (0.0, 1.0) for b in (2, 4)),
    Cosine(),
)
KERNEL_SETS: dict[str, tuple[KernelSpec, ...]] = {"paper12": PAPER12, "local": (LocalSet(),)}
MOST_IN_BANK = 1000
"""Above it, four digits no longer keep the spacing of an `rbf_bank` even."""


def rbf_bank(m: int) -> tuple[Rbf, ...]:
    """Gaussian kernels of m widths, logarithmically spaced from 0.01 to 100.

    A width has four significant digits, so that its name is short and says it exactly.

    >>> [spec.name for spec in rbf_bank(4)]
    ['rbf_0.01', 'rbf_0.2154', 'rbf_4.642', 'rbf_100']
    """
    if not isinstance(m, numbers.Integral) or not 2 <= m <= MOST_IN_BANK:
        raise _no_bank(m)
    exponents = np.linspace(-2.0, 2.0, int(m))
    return tuple(Rbf(float(f"{10.0**exponent:.4g}")) for exponent in exponents)


def _no_bank(given: object) -> InputError:
    return InputError(
        f"rbf_bank(M) needs a whole number M in 2 … {MOST_IN_BANK}, such as rbf_bank(100), not "
        f"{given!r}"
    )


def kernel_set(name: str) -> tuple[KernelSpec, ...] | None:
    """The kernels of the set of this name; None if no set has it.

    >>> len(kernel_set("rbf_bank(100)")), kernel_set("cosine")
    (100, None)
    """
    if not name.startswith("rbf_bank"):
        return KERNEL_SETS.get(name)
    if match := re.fullmatch(r"rbf_bank\(([0-9]{1,9})\)", name):
        return rbf_bank(int(match[1]))
    raise _no_bank(name)


def parse_kernel(name: str) -> KernelSpec:
    """The spec a name stands for.

    >>> parse_kernel("poly_a1_b4")
    Polynomial(a=1.0, b=4)
    """
    if name == "linear":
        return Linear()
    if name == "cosine":
        return Cosine()
    members: tuple[Local | Heat, ...] = (*LOCAL, *HEAT)
    factored: dict[str, KernelSpec] = {spec.name: spec for spec in members}
    if name in factored:
        return factored[name]
    with suppress(InputError):  # a number out of range: the sentence below names what is allowed
        if match := re.fullmatch(rf"rbf_{_NUMBER}", name):
            return Rbf(float(match[1]))
        if match := re.fullmatch(rf"poly_a{_NUMBER}_b(\d{{1,3}})", name):
            return Polynomial(float(match[1]), int(match[2]))
    members_known = (spec.name for spec in (*PAPER12, *LOCAL, *HEAT))
    known = [*KERNEL_SETS, "rbf_bank(100)", *members_known, "linear"]
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise InputError(
        f"unknown kernel {name!r}: {hint}Known are the sets local, paper12 and rbf_bank(M), their "
        "members such as local_1, linear, cosine, rbf_T with T > 0 (rbf_0.5) and poly_aA_bB with "
        "A ≥ 0 and a whole B ≥ 1 (poly_a1_b2)"
    )


def resolve_kernels(kernels: object) -> tuple[KernelSpec, ...]:
    """Kernel specs from a set's name, a kernel's name, a spec, a callable, or a list of these.

    A kernel that is in two sets is taken once.

    >>> [spec.name for spec in resolve_kernels("paper12")][:2]
    ['rbf_0.01', 'rbf_0.05']
    >>> [spec.name for spec in resolve_kernels("linear,rbf_bank(3),rbf_bank(2)")]
    ['linear', 'rbf_0.01', 'rbf_1', 'rbf_100']
    """
    specs = _joined(tuple(_groups(kernels)))
    check_names(specs)
    return specs


def _joined(groups: Sequence[tuple[KernelSpec, ...]]) -> tuple[KernelSpec, ...]:
    """The kernels of all groups, those of a set without what earlier, other sets have.

    Whatever else is named twice stays, and `check_names` refuses it.
    """
    specs: list[KernelSpec] = []
    sets: list[tuple[KernelSpec, ...]] = []
    for group in groups:
        shared = {spec for other in sets if other != group for spec in other}
        is_set = len(group) > 1
        specs += [spec for spec in group if not (is_set and spec in shared)]
        sets += [group] if is_set else []
    return tuple(specs)


def local_kernels_for(X: Any) -> tuple[KernelSpec, ...]:
    """The local kernels that suit features.

    Sparse rows and dense rows of unit length (embeddings) are compared by cosine; the columns of
    other dense rows have units of their own, and heat kernels standardise them.
    """
    if not isinstance(X, np.ndarray):
        return LOCAL
    squares = np.einsum("ij,ij->i", X, X, dtype=np.float64)
    unit = np.abs(squares - 1.0) <= unit_tolerance(X)
    return LOCAL if bool((unit | (squares == 0.0)).all()) and bool(unit.any()) else HEAT


def unit_tolerance(X: npt.NDArray[Any]) -> float:
    """How far squared lengths of unit rows may be from 1, by the precision their values have.

    Features are float64 by now; values that float16 or float32 can hold all came from there.
    """
    first = X[:_ROWS_LOOKED_AT]
    with np.errstate(over="ignore"):
        half = np.array_equal(first.astype(np.float16).astype(first.dtype), first)
    return 4 * float(np.finfo(np.float16).eps) if half else _UNIT


_ROWS_LOOKED_AT = 1000
_UNIT = 1e-5
"""How far squared lengths of float32 rows may be from 1."""


def _checked_factor(Z: Any, name: str) -> Any:
    """A factor as float32 or float64, dense, CSR or in a file; refused where it is not finite."""
    if is_row_array(Z):
        if Z.dtype.kind not in "biuf":
            raise NotNumericError(f"factor {name} is not numeric (dtype {Z.dtype})")
        Z = RowArray(Z, f"factor {name}")
    try:
        made: Any = Z
        if not isinstance(Z, RowArray):
            made = sparse.csr_array(Z) if is_thin(Z) else np.asarray(Z)
            if made.dtype.kind not in "biuf":
                made = made.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise NotNumericError(f"factor {name} is not numeric: {error}") from error
    if made.ndim != 2 or 0 in made.shape:
        raise InputError(f"factor {name} has shape {made.shape}: give n_samples rows of numbers")
    if made.dtype not in (np.float32, np.float64):
        made = made.astype(np.float64)
    for first in range(0, made.shape[0], _CHECKED_ROWS):
        block = made[first : first + _CHECKED_ROWS]
        bad = ~np.isfinite(block.data if is_thin(made) else block)
        if bad.any():
            at = int(np.argmax(bad if is_thin(made) else bad.any(axis=1)))
            row = int(np.searchsorted(block.indptr, at, side="right")) - 1 if is_thin(made) else at
            raise InputError(
                f"factor {name} contains NaN or infinity in row {first + row}: fix that row"
            )
    return made


_CHECKED_ROWS = 4096


def factor_specs(factors: object) -> tuple[GivenFactor, ...]:
    """Specs from a mapping of names to factors, one (n, r) array, or a list of them."""
    items: list[tuple[str, Any]]
    if isinstance(factors, Mapping):
        items = [(str(name), Z) for name, Z in factors.items()]
    elif isinstance(factors, list | tuple) and not is_one_matrix(factors):
        items = [(f"factor_{i}", Z) for i, Z in enumerate(factors)]
    else:
        items = [("factor_0", factors)]
    if not items:
        raise InputError("no factor was given: give a mapping of names to arrays")
    specs = tuple(Z if isinstance(Z, GivenFactor) else GivenFactor(Z, name) for name, Z in items)
    check_names(specs)
    rows = {int(spec.factor.shape[0]) for spec in specs}
    if len(rows) > 1:
        lengths = ", ".join(f"{spec.name} {spec.factor.shape[0]}" for spec in specs)
        raise InputError(f"factors have different numbers of rows ({lengths}): give one per sample")
    return specs


def check_names(specs: Sequence[KernelSpec]) -> None:
    """Names become folders of a store and keys of results: short, plain, each one once."""
    if not specs:
        raise InputError("no kernel was named: give at least one, or the set local")
    names = [spec.name for spec in specs]
    for name in names:
        if not is_plain_name(name):
            raise InputError(
                f"kernel name {name!r} must be 1 to 64 of the characters A-Z a-z 0-9 _ . - and no "
                "path; name a function with FunctionKernel(f, 'name')"
            )
        if names.count(name) > 1:
            raise InputError(f"kernel {name!r} is named twice: name each kernel once")


def _groups(kernels: object) -> Iterable[tuple[KernelSpec, ...]]:
    """What each name, spec and callable stands for: the kernels of a set, or one kernel."""
    if isinstance(kernels, str):
        for name in filter(None, (part.strip() for part in kernels.split(","))):
            yield kernel_set(name) or (parse_kernel(name),)
    elif isinstance(kernels, KernelSpec):
        yield (kernels,)
    elif callable(kernels):
        yield (FunctionKernel(kernels, getattr(kernels, "__name__", type(kernels).__name__)),)
    elif _holds_numbers(kernels):
        raise InputError(
            f"kernels must be names, not {_shown_numbers(kernels)}: pass matrices to fit and "
            "use 'precomputed' here, or wrap each in Precomputed(matrix, name)"
        )
    elif isinstance(kernels, Iterable) and getattr(kernels, "ndim", 1) != 0:
        for item in kernels:
            yield from _groups(item)
    else:
        raise InputError(
            f"kernels must be names, kernel specs, callables or 'precomputed', not {kernels!r}"
        )


def _shown_numbers(kernels: object) -> str:
    try:
        return f"a matrix of shape {np.shape(cast('Any', kernels))}"
    except ValueError:  # rows of different lengths
        return "a list of numbers"


def _holds_numbers(kernels: object) -> bool:
    """Whether these are rows of numbers, in any form: an array, a table, a sparse matrix, lists."""
    if isinstance(kernels, list | tuple):
        first = list(kernels[0]) if is_one_matrix(kernels) else []
        return len(first) > 0 and isinstance(first[0], numbers.Number)
    if not hasattr(kernels, "__array__"):
        return bool(sparse.issparse(kernels))
    array = np.asarray(kernels)
    return array.ndim > 0 and array.dtype.kind in "biufc"


def precomputed_specs(matrices: object) -> tuple[Precomputed, ...]:
    """Specs from an (m, n, n) array, one (n, n) matrix, or a list of matrices.

    Parameters
    ----------
    matrices : array of shape (m, n, n) or (n, n), or sequence of (n, n) arrays or `Precomputed`
    """
    if sparse.issparse(matrices):
        raise InputError("sparse precomputed kernels are not supported: pass a dense array")
    if is_one_matrix(matrices):
        matrices = _numeric(matrices, "kernel_0")
    if isinstance(matrices, np.ndarray):
        if matrices.ndim not in (2, 3):
            raise InputError(
                f"precomputed kernels are square, (m, n, n) or (n, n), not {matrices.shape}. "
                "Reshape your data"
            )
        items: list[object] = [matrices] if matrices.ndim == 2 else list(matrices)
    elif isinstance(matrices, list | tuple):
        items = list(matrices)
    else:
        raise InputError(
            f"precomputed kernels must be an (m, n, n) array or a list of (n, n) arrays, not a "
            f"{type(matrices).__name__}"
        )
    if not items:
        raise InputError("no precomputed kernel was given: pass an (m, n, n) array or a list")
    specs = tuple(
        item if isinstance(item, Precomputed) else Precomputed(cast("Any", item), f"kernel_{i}")
        for i, item in enumerate(items)
    )
    check_names(specs)
    n = specs[0].matrix.shape[0]
    for spec in specs:
        check_matrix(spec, n)
    return specs


def is_one_matrix(matrices: object) -> bool:
    """Whether these are rows of numbers, or an object that becomes one array: no list of arrays."""
    if isinstance(matrices, list | tuple):
        return (
            len(matrices) > 0
            and isinstance(matrices[0], list | tuple)
            and not any(isinstance(entry, list | tuple) for entry in matrices[0])
        )
    return hasattr(matrices, "__array__") and not isinstance(matrices, np.ndarray)


def _numeric(item: object, name: str) -> npt.NDArray[np.floating[Any]]:
    if sparse.issparse(item):
        raise InputError(f"precomputed kernel {name} is sparse, which is not supported")
    try:
        array = np.asarray(item)
        if array.dtype.kind == "O":
            array = array.astype(np.float64)
    except TypeError as error:
        raise NotNumericError(f"precomputed kernel {name} is not numeric: {error}") from error
    except ValueError as error:
        raise InputError(f"precomputed kernel {name} is ragged or not numeric: {error}") from error
    if array.dtype.kind == "c":
        raise InputError(f"precomputed kernel {name} is not numeric. Complex data not supported")
    if array.dtype.kind not in "biuf":
        raise InputError(f"precomputed kernel {name} is not numeric (dtype {array.dtype})")
    if array.ndim != 2:
        raise InputError(f"precomputed kernel {name} has shape {array.shape}: a kernel is square")
    return array if array.dtype.kind == "f" else array.astype(np.float64)


def check_matrix(spec: Precomputed, n: int) -> None:
    """Refuse a precomputed kernel that is not a finite symmetric n×n matrix."""
    K = spec.matrix
    if K.ndim == 2 and 0 in K.shape:
        raise InputError(
            f"precomputed kernel {spec.name} is empty: 0 sample(s) or 0 feature(s) "
            f"(shape={K.shape}) while a minimum of 1 is required."
        )
    finite = np.isfinite(K).all(axis=1)
    if not finite.all():
        row = int(np.argmin(finite))
        raise InputError(
            f"precomputed kernel {spec.name} contains NaN or infinity in row {row}: fix that row"
        )
    if K.ndim != 2 or K.shape[0] != K.shape[1]:
        raise InputError(
            f"precomputed kernel {spec.name} has shape {K.shape}: a kernel is square, n×n"
        )
    if K.shape[0] != n:
        raise InputError(
            f"precomputed kernel {spec.name} is {K.shape[0]}×{K.shape[0]} but must be {n}×{n}: all "
            "kernels must be of the same samples"
        )
    if not float(np.trace(K)) / n > TINIEST:
        raise InputError(
            f"precomputed kernel {spec.name} has a mean diagonal of {np.trace(K) / n:.3g}: it must "
            "be positive and not too small for float32; leave the kernel out or scale it up"
        )
    step = max(1, (1 << 22) // n)
    scale = max(float(np.abs(K[i : i + step]).max()) for i in range(0, n, step))
    for i in range(0, n, step):
        gap = np.abs(K[i : i + step] - K[:, i : i + step].T)
        if float(gap.max()) > 1e-5 * scale:
            row, col = divmod(int(gap.argmax()), n)
            raise InputError(
                f"precomputed kernel {spec.name} is not symmetric: entries ({i + row}, {col}) and "
                f"({col}, {i + row}) differ by {gap.max():.3g}; use (K + K.T) / 2 if that is meant"
            )
    check_option("normalization", spec.normalization, NORMALIZATIONS)
    check_option("scaling", spec.scaling, SCALINGS)


def _digits(number: float) -> str:
    """A number as it is typed, all its digits and no exponent: 0.01, 2000000."""
    return np.format_float_positional(number, trim="-")


def check_option(what: str, value: object, allowed: Sequence[str]) -> None:
    """Refuse an option value that is not one of the allowed words."""
    if value not in allowed:
        raise InputError(f"{what} must be one of {', '.join(allowed)}, not {value!r}")
