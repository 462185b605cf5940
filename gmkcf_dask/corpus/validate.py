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
    return _dense_features(_as_array(X), _column_names(X))


def apart_from(X: object, features: Matrix) -> Matrix:
    """The features of X in memory of their own: a copy where `as_features` made none."""
    if not isinstance(features, np.ndarray) or isinstance(X, list | tuple):
        return features
    return features.copy() if np.may_share_memory(features, np.asarray(X)) else features


def check_ids(ids: Iterable[object], n: int) -> tuple[str, ...]:
    """Return the ids as text, once there are n of them and no two are equal.

    Examples
    --------
    >>> check_ids([7, 8], n=2)
    ('7', '8')
    """
    names = tuple(name_of(value) for value in ids)
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
    names = tuple(name_of(value) for value in index)
    return names if len(set(names)) == n else None


def check_labels(labels: Iterable[object], n: int) -> tuple[str, ...]:
    """Return the known topics as text, once there are n of them.

    Examples
    --------
    >>> check_labels([1.0, 2.0, 1.0], n=3)
    ('1', '2', '1')
    """
    names = tuple(name_of(value) for value in labels)
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
    is_zero = _entries_per_row(X) == 0
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
    for values in (X.indices.reshape(n, counts[0]), X.data.reshape(n, counts[0])):
        if not all(bool((values[rows] == values[0]).all()) for rows in row_blocks(X)):
            return False
    return True


def _entries_per_row(X: Matrix) -> npt.NDArray[np.integer[Any]]:
    if isinstance(X, np.ndarray):
        return np.asarray(np.count_nonzero(X, axis=1))
    return np.diff(X.indptr)


def _as_array(X: object) -> npt.NDArray[Any]:
    if isinstance(X, np.ma.MaskedArray) and np.ma.is_masked(X):
        raise InputError("X has masked entries: fill or impute them first.")
    try:
        return np.asarray(X)
    except ValueError as error:
        raise InputError(
            "X is ragged (its rows have different lengths): give every sample the same features."
        ) from error


def _column_names(X: object) -> list[object]:
    """What a table calls its columns; nothing of an array. Arrow has them under another name."""
    # a table of pandas has its columns as attributes, too, whatever they are called
    of_arrow = hasattr(X, "column_names") and not hasattr(X, "iloc")
    names: Any = getattr(X, "column_names" if of_arrow else "columns", ())
    return list(names) if isinstance(names, Iterable) else []


def _dense_features(X: npt.NDArray[Any], columns: Sequence[object] = ()) -> Floats:
    _check_shape(X.shape)
    _check_kind(X.dtype)
    # longdouble may overflow here; the check for infinity below says so in words
    with np.errstate(over="ignore"):
        features = (
            _numbers_in(X, columns) if X.dtype.kind == "O" else X.astype(np.float64, copy=False)
        )
    features = np.ascontiguousarray(features)
    finite = np.isfinite(features)
    if not finite.all():
        row, column = divmod(int(np.argmin(finite)), features.shape[1])
        _refuse_value(_named(features[row, column]), row, columns[column : column + 1])
    return features


def _sparse_features(X: Any) -> sparse.csr_array:
    _check_shape(X.shape)
    _check_kind(X.dtype, allow_objects=False)
    own = X.astype(np.float64)  # a copy, and duplicates of small integers cannot overflow
    if own.format in ("csr", "csc", "bsr"):
        _check_indices(own)
    features = sparse.csr_array(own)
    features.sum_duplicates()
    features.eliminate_zeros()
    finite = np.isfinite(features.data)
    if not finite.all():
        first = int(np.argmin(finite))
        row = int(np.searchsorted(features.indptr, first, side="right")) - 1
        _refuse_value(_named(features.data[first]), row)
    return features


def _check_indices(X: Any) -> None:
    """Refuse indices out of bounds, which SciPy's compiled loops would follow blindly."""
    try:
        X.check_format(full_check=True)
    except ValueError as error:
        raise InputError(f"X is not a valid sparse matrix ({error}): build it again.") from error


def _check_shape(shape: tuple[int, ...]) -> None:
    if len(shape) == 3:
        raise InputError(
            f"X has 3 dimension(s), shape {shape}, but needs 2, samples by features; for kernels "
            "that are computed already say kernels='precomputed'."
        )
    if len(shape) != 2:
        raise InputError(
            f"X has {len(shape)} dimension(s) but needs 2, samples by features. Reshape your data: "
            "X.reshape(-1, 1) if it has a single feature, X.reshape(1, -1) if a single sample."
        )
    refuse_shape(shape)
    n_samples, n_features = shape
    if n_samples == 0:
        raise InputError(f"X has 0 sample(s) (shape={shape}) while a minimum of 1 is required.")
    if n_features == 0:
        raise InputError(f"X has 0 feature(s) (shape={shape}) while a minimum of 1 is required.")


def _check_kind(dtype: np.dtype[Any], *, allow_objects: bool = True) -> None:
    if dtype.kind == "c":
        raise InputError("Complex data not supported: X must hold real numbers.")
    if dtype.kind not in _NUMERIC_KINDS and not (dtype.kind == "O" and allow_objects):
        raise NotNumericError(
            f"X holds values of type {dtype}, not numbers: convert them, or read text as a corpus."
        )


def _numbers_in(X: npt.NDArray[np.object_], columns: Sequence[object] = ()) -> Floats:
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
        what = str(X[row, column]).strip("<>")  # as pandas shows NA
        _refuse_value(what, row, columns[column : column + 1])
    try:
        return X.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise NotNumericError(
            f"X has dtype object and holds values that are not numbers ({error}): convert it first."
        ) from error


def is_no_value(value: object) -> bool:
    """None, or what pandas has for a value that is missing; NaN is a number."""
    return value is None or type(value).__name__ in ("NAType", "NaTType")


def _named(value: float) -> str:
    return "NaN" if np.isnan(value) else "infinity"


def _refuse_value(what: str, row: int, column: Sequence[object] = ()) -> None:
    """Refuse a missing or infinite value; `column` holds the name of its column, if any."""
    where = "".join(f", column {name!r}" for name in column)
    raise InputError(f"X contains {what} in row {row}{where}: remove or impute such values first.")


def refuse_other_forms(X: Any, *, only_texts: bool = False) -> None:
    """Refuse input that seems to hold texts but is not a list of them, with a remedy.

    Parameters
    ----------
    X : anything that `texts_in` finds no texts in
    only_texts : bool
        Whether anything that is not a table must be texts.
    """
    if sparse.issparse(X):  # some of them are dicts as well
        return
    if isinstance(X, str | bytes):
        raise InputError("X is one text, but a list of texts is expected: put it into a list.")
    shape = getattr(X, "shape", None)
    flat = isinstance(X, list | tuple) or (isinstance(shape, tuple) and len(shape) == 1)
    if flat and len(X) == 0:
        raise InputError("X is empty: give a list of texts, or rows of numbers.")
    if flat and not _holds_numbers(X) and all(_is_no_sample(value) for value in X):
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
    except ValueError:  # ragged rows, of which another sentence tells
        return False


def _is_no_sample(value: object) -> bool:
    """Missing, or bytes: no text, and no number either."""
    return (
        is_no_value(value)
        or isinstance(value, bytes)
        or (isinstance(value, float) and value != value)
    )


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
    # of Arrow, whose columns are no names; a table of pandas may have a column called that
    if hasattr(X, "column_names") and not hasattr(X, "iloc"):
        return f"X[{X.column_names[0]!r}].to_pylist()"
    return f"X[{X.columns[0]!r}]" if hasattr(X, "columns") else "X[:, 0]"


def short(value: object) -> str:
    """A value as a sentence may show it."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
