"""Validate input: arrays, sparse matrices and tables become float64 rows, or an `InputError`."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set, ValuesView
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from gmkcf_dask.corpus.limits import refuse_shape
from gmkcf_dask.corpus.model import Matrix, row_blocks
from gmkcf_dask.errors import DataWarning, InputError
from gmkcf_dask.system.arrays import Floats

_NUMERIC_KINDS = "biuf"


class NotNumericError(InputError, TypeError):
    """The features hold something that is not a number."""


def as_features(X: object) -> Matrix:
    """Return samples as float64 rows in the one form the rest of the package reads.

    Parameters
    ----------
    X : array-like or SciPy sparse matrix or array, shape (n_samples, n_features)
        Numbers of any kind but complex. Never modified.

    Returns
    -------
    X : ndarray or csr_array of float64, shape (n_samples, n_features)
        C-contiguous, or CSR in canonical form (sorted, no duplicates, no stored zeros). Dense
        input already in this form is returned as it is, not copied.

    Raises
    ------
    InputError
        If X is not numeric, not two-dimensional, empty, or holds NaN or infinity.

    Examples
    --------
    >>> as_features([[1, 0], [0, 2]])
    array([[1., 0.],
           [0., 2.]])
    """
    if sparse.issparse(X):
        return _sparse_features(X)
    if isinstance(X, np.ma.MaskedArray) and np.ma.is_masked(X):
        raise InputError("X has masked entries: fill or impute them first.")
    try:
        array = np.asarray(X)
    except ValueError as error:
        raise InputError(
            "X is ragged (its rows have different lengths): give every sample the same features."
        ) from error
    return _dense_features(array, _column_names(X))


def apart_from(X: object, features: Matrix) -> Matrix:
    """The features of X in memory of their own: a copy where `as_features` made none."""
    if not isinstance(features, np.ndarray) or isinstance(X, list | tuple):
        return features
    return features.copy() if np.may_share_memory(features, np.asarray(X)) else features


def check_ids(ids: Iterable[object], n: int) -> tuple[str, ...]:
    """Return the ids as text, once there are n of them and no two are equal.

    >>> check_ids([7, 8], n=2)
    ('7', '8')
    """
    names = tuple(map(name_of, ids))
    if len(names) != n:
        raise InputError(f"there are {len(names)} ids for {n} samples: give one id per sample.")
    if len(set(names)) != n:
        repeated, times = Counter(names).most_common(1)[0]
        raise InputError(f"the id {repeated!r} is used {times} times: give every sample its own.")
    return names


def ids_of_index(X: object, n: int) -> tuple[str, ...] | None:
    """The index of a table or series as ids; None where it counts the rows, or two are equal.

    pandas objects are recognised by `iloc`: lists have an `index`, too.
    """
    index: Any = getattr(X, "index", None) if hasattr(X, "iloc") else None
    if index is None or len(index) != n:
        return None
    if (getattr(index, "start", None), getattr(index, "step", None)) == (0, 1):
        return None  # the one that pandas makes: as many strings would say nothing
    names = tuple(map(name_of, index))
    return names if len(set(names)) == n else None


def check_labels(labels: Iterable[object], n: int) -> tuple[str, ...]:
    """Return the known topics as text, once there are n of them.

    >>> check_labels([1.0, 2.0, 1.0], n=3)
    ('1', '2', '1')
    """
    names = tuple(map(name_of, labels))
    if len(names) != n:
        raise InputError(f"there are {len(names)} labels for {n} samples: give one per sample.")
    return names


def name_of(value: object) -> str:
    """Return a label or id as text: whole numbers without their ``.0``, bytes decoded."""
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="replace")
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    # lone surrogates could not be written to any file
    return str(value).encode("utf-8", "backslashreplace").decode("utf-8")


def warn_about_zero_rows(X: Matrix) -> int:
    """Return how many samples are all zero, with a `DataWarning` if there are any."""
    entries = np.count_nonzero(X, axis=1) if isinstance(X, np.ndarray) else np.diff(X.indptr)
    is_zero = np.asarray(entries) == 0
    count = int(is_zero.sum())
    if count:
        warnings.warn(
            f"{count} of {X.shape[0]} samples are empty (all-zero rows, first: row "
            f"{int(is_zero.argmax())}); they are kept",
            DataWarning,
            stacklevel=2,
        )
    return count


def refuse_equal_rows(X: Matrix) -> None:
    """Refuse samples that are all equal."""
    if X.shape[0] > 1 and _all_rows_equal(X):
        raise InputError(
            f"all {X.shape[0]} samples are equal: there is nothing to cluster, check that the rows "
            "are the samples"
        )


def _all_rows_equal(X: Matrix) -> bool:
    if isinstance(X, np.ndarray):
        return bool((X[0] == X).all())
    n, counts = X.shape[0], np.diff(X.indptr)
    if (counts != counts[0]).any():
        return False
    parts = (X.indices.reshape(n, counts[0]), X.data.reshape(n, counts[0]))
    return all((part[rows] == part[0]).all() for part in parts for rows in row_blocks(X))


def _is_arrow(X: object) -> bool:
    # a table of pandas has its columns as attributes, too, whatever they are called
    return hasattr(X, "column_names") and not hasattr(X, "iloc")


def _column_names(X: object) -> list[object]:
    """Column names of a table, which Arrow has under another name; none of an array."""
    names: Any = getattr(X, "column_names" if _is_arrow(X) else "columns", ())
    return list(names) if isinstance(names, Iterable) else []


def _dense_features(X: npt.NDArray[Any], columns: Sequence[object]) -> Floats:
    _check_shape(X.shape)
    _check_kind(X.dtype)
    # longdouble may overflow here; the check for infinity below says so in words
    with np.errstate(over="ignore"):
        is_object = X.dtype.kind == "O"
        features = _numbers_in(X, columns) if is_object else X.astype(np.float64, copy=False)
    features = np.ascontiguousarray(features)
    finite = np.isfinite(features)
    if not finite.all():
        row, column = divmod(int(np.argmin(finite)), features.shape[1])
        _refuse_value(features[row, column], row, columns[column : column + 1])
    return features


def _sparse_features(X: Any) -> sparse.csr_array:
    _check_shape(X.shape)
    _check_kind(X.dtype, allow_objects=False)
    own = X.astype(np.float64)  # a copy, and duplicates of small integers cannot overflow
    if own.format in ("csr", "csc", "bsr"):
        try:  # SciPy's compiled loops would follow indices out of bounds blindly
            own.check_format(full_check=True)
        except ValueError as error:
            raise InputError(
                f"X is not a valid sparse matrix ({error}): build it again."
            ) from error
    features = sparse.csr_array(own)
    features.sum_duplicates()
    features.eliminate_zeros()
    finite = np.isfinite(features.data)
    if not finite.all():
        first = int(np.argmin(finite))
        row = int(np.searchsorted(features.indptr, first, side="right")) - 1
        _refuse_value(features.data[first], row)
    return features


def _check_shape(shape: tuple[int, ...]) -> None:
    if len(shape) == 3:
        raise InputError(
            f"X has 3 dimension(s), shape {shape}, but needs 2, samples by features; for kernels "
            "that are already computed use kernels='precomputed'."
        )
    if len(shape) != 2:
        raise InputError(
            f"X has {len(shape)} dimension(s) but needs 2, samples by features. Reshape your data: "
            "X.reshape(-1, 1) if it has a single feature, X.reshape(1, -1) if a single sample."
        )
    refuse_shape(shape)
    for what, count in zip(("sample", "feature"), shape, strict=True):
        if count == 0:
            raise InputError(f"X has 0 {what}(s) (shape={shape}) while a minimum of 1 is required.")


def _check_kind(dtype: np.dtype[Any], *, allow_objects: bool = True) -> None:
    if dtype.kind == "c":
        raise InputError("Complex data not supported: X must hold real numbers.")
    if dtype.kind not in _NUMERIC_KINDS and not (dtype.kind == "O" and allow_objects):
        raise NotNumericError(
            f"X holds values of type {dtype}, not numbers: convert them, or read text as a corpus."
        )


def _numbers_in(X: npt.NDArray[np.object_], columns: Sequence[object]) -> Floats:
    """Convert an object array of plain numbers; "3" stays text and is refused."""
    is_text = np.fromiter((isinstance(value, str | bytes) for value in X.flat), bool, X.size)
    if is_text.any():
        row, column = divmod(int(is_text.argmax()), X.shape[1])
        if len(columns) == X.shape[1]:
            name = columns[column]
            raise NotNumericError(
                f"X holds text in column {name!r} (row {row}), not numbers: give X[{name!r}] alone "
                "for texts, or leave that column out."
            )
        raise NotNumericError(
            f"X has dtype object and holds text in row {row}, not numbers: convert it first."
        )
    is_missing = np.fromiter(map(is_no_value, X.flat), bool, X.size)
    if is_missing.any():
        row, column = divmod(int(is_missing.argmax()), X.shape[1])
        _refuse_value(X[row, column], row, columns[column : column + 1])
    try:
        return X.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise NotNumericError(
            f"X has dtype object and holds values that are not numbers ({error}): convert it first."
        ) from error


def is_no_value(value: object) -> bool:
    """None, or what pandas has for a value that is missing; NaN is a number."""
    return value is None or type(value).__name__ in ("NAType", "NaTType")


def _refuse_value(value: object, row: int, column: Sequence[object] = ()) -> None:
    """Refuse a missing or infinite value; `column` holds the name of its column, if any."""
    what = str(value).strip("<>")  # as pandas shows NA
    if isinstance(value, float):
        what = "NaN" if np.isnan(value) else "infinity"
    where = "".join(f", column {name!r}" for name in column)
    raise InputError(f"X contains {what} in row {row}{where}: remove or impute such values first.")


def refuse_other_forms(X: Any, *, only_texts: bool = False) -> None:
    """Refuse input that seems to hold texts but is not a list of them, with a remedy.

    X is something that `texts_in` finds no texts in. With `only_texts`, anything that is not a
    table is refused.
    """
    if sparse.issparse(X):  # some of them are dicts as well
        return
    if isinstance(X, str | bytes):
        raise InputError("X is one text, but a list of texts is expected: put it into a list.")
    shape = getattr(X, "shape", None)
    flat = isinstance(X, list | tuple) or (isinstance(shape, tuple) and len(shape) == 1)
    if flat and len(X) == 0:
        raise InputError("X is empty: give a list of texts, or rows of numbers.")
    if flat and not _holds_numbers(X) and all(map(_is_no_sample, X)):
        raise InputError(
            f"row 0 holds {short(next(iter(X)))}, not text: give a list of texts, and fill such "
            "rows or leave them out."
        )
    way = _way_to_list(X, shape)
    if way is not None or (only_texts and _is_no_table(X)):
        such = f", such as {way}" if way else ""
        kind = type(X).__name__
        raise InputError(f"X is of type {kind}, not a list of texts: give a list of texts{such}.")


def _holds_numbers(X: Any) -> bool:
    return getattr(getattr(X, "dtype", None), "kind", "O") in "biufc"


def _is_no_table(X: Any) -> bool:
    try:
        return np.ndim(X) != 2
    except ValueError:  # ragged rows, which `as_features` refuses
        return False


def _is_no_sample(value: object) -> bool:
    """Missing, or bytes: no text, and no number either."""
    is_nan = isinstance(value, float) and value != value
    return is_nan or isinstance(value, bytes) or is_no_value(value)


def _way_to_list(X: Any, shape: Any) -> str | None:
    """From what holds texts to a list of them: "" where that is long, None where it holds none.

    Libraries are recognised by their attributes, so none of them is imported.
    """
    if isinstance(X, dict):
        return ""
    if isinstance(X, Iterator | Set | ValuesView):
        return "list(X)"
    if shape is None and hasattr(X, "to_pylist") and "string" in str(getattr(X, "type", "")):
        return "X.to_pylist()"
    column = isinstance(shape, tuple) and shape[1:] == (1,)
    values = np.asarray(X) if column else np.empty(0)
    if _holds_numbers(values) or not any(isinstance(value, str) for value in values.flat):
        return None
    if _is_arrow(X):  # whose `columns` are not names
        return f"X[{X.column_names[0]!r}].to_pylist()"
    return f"X[{X.columns[0]!r}]" if hasattr(X, "columns") else "X[:, 0]"


def short(value: object) -> str:
    """A value as a sentence may show it."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
