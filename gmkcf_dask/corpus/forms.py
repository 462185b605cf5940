"""Texts in a form that is not read: what to give instead, in one sentence."""

from __future__ import annotations

from collections.abc import Iterator, Set, ValuesView
from typing import Any

import numpy as np
from scipy import sparse

from gmkcf_dask.corpus.text import short
from gmkcf_dask.corpus.validate import is_no_value
from gmkcf_dask.errors import InputError


def refuse_other_forms(X: Any, *, only_texts: bool = False) -> None:
    """Refuse what seems to hold texts but is no list of them, with a word on what to give.

    Parameters
    ----------
    X : anything that `texts_in` finds no texts in
    only_texts : bool
        Whether what is no table cannot be anything else than texts.
    """
    if sparse.issparse(X):  # some of them are dicts as well
        return
    if isinstance(X, str | bytes):
        raise InputError("X is one text, but a list of texts is wanted: put it into a list.")
    shape = getattr(X, "shape", None)
    flat = isinstance(X, list | tuple) or (isinstance(shape, tuple) and len(shape) == 1)
    if flat and len(X) == 0:
        raise InputError("X is empty: give a list of texts, or rows of numbers.")
    if flat and not _holds_numbers(X) and all(_is_no_sample(value) for value in X):
        raise InputError(
            f"row 0 holds {short(next(iter(X)))}, not text: give a list of texts, and fill such "
            "rows or leave them out."
        )
    how = _way_to_list(X, shape)
    if how is not None or (only_texts and _is_no_table(X)):
        such = f", such as {how}" if how else ""
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

    Libraries are told by what their objects can do: none of them is imported for this.
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
