"""Texts become TF-IDF rows of unit length."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal

from sklearn.feature_extraction.text import TfidfVectorizer

from gmkcf_dask.corpus.limits import refuse_shape
from gmkcf_dask.corpus.model import Corpus
from gmkcf_dask.corpus.validate import as_features, check_ids, check_labels
from gmkcf_dask.errors import InputError

# Two or more letters or digits of any script, so no language is favoured.
_WORD = r"(?u)\b\w\w+\b"

_DOCUMENTS_FOR_PRUNING = 50

Record = tuple[int, Mapping[str, Any]]
"""Line number and named fields of one document in a table."""


@dataclass(frozen=True)
class TextOptions:
    """How documents are found in a table and turned into features.

    Attributes
    ----------
    text_column : str
        Column that holds the text.
    id_column, label_column : str or None
        Columns that name the document and its topic. None takes ``"id"`` and ``"label"`` where
        the table has them.
    min_df : int, float or "auto"
        Terms in fewer documents are left out: a count, or a share of the documents. "auto" is 2
        from 50 documents on, else 1.
    max_df : int or float
        Terms in more documents are left out: a count, or a share of the documents.
    max_features : int or None
        Keep only this many of the most frequent terms.
    stop_words : "english" or None
        Common words to leave out. None leaves out none and favours no language.
    sublinear_tf : bool
        Count a term as 1 + log(count), which keeps long documents from repeating themselves.
    """

    text_column: str = "text"
    id_column: str | None = None
    label_column: str | None = None
    min_df: int | float | Literal["auto"] = "auto"
    max_df: int | float = 1.0
    max_features: int | None = None
    stop_words: Literal["english"] | None = None
    sublinear_tf: bool = False

    def __post_init__(self) -> None:
        if self.min_df != "auto":
            _check_frequency("min_df", self.min_df)
        _check_frequency("max_df", self.max_df)
        if self.max_features is not None and self.max_features < 1:
            raise InputError(f"max_features is {self.max_features} but must be at least 1 or None.")
        if self.stop_words not in ("english", None):
            raise InputError(f"stop_words is {self.stop_words!r} but must be 'english' or None.")


def corpus_from_texts(
    texts: Sequence[str],
    ids: Iterable[object] | None = None,
    labels: Iterable[object] | None = None,
    options: TextOptions | None = None,
) -> Corpus:
    """Return a corpus of TF-IDF features, one row of unit length per text.

    Parameters
    ----------
    texts : sequence of str, length n_samples
        A text without any kept term becomes a row of zeros.
    ids : iterable, length n_samples, or None
        None counts from "0".
    labels : iterable, length n_samples, or None
    options : TextOptions or None

    Returns
    -------
    Corpus
        With X a csr_array of shape (n_samples, n_terms) and the terms in alphabetical order.

    Examples
    --------
    >>> corpus = corpus_from_texts(["green apples", "red apples"])
    >>> corpus.terms
    ('apples', 'green', 'red')
    """
    options = options or TextOptions()
    n = len(texts)
    if n == 0:
        raise InputError("there are no documents (0 sample(s)): give at least one text.")
    vectorizer = TfidfVectorizer(
        token_pattern=_WORD,
        min_df=_min_df(options, n),
        max_df=options.max_df,
        max_features=options.max_features,
        stop_words=options.stop_words,
        sublinear_tf=options.sublinear_tf,
    )
    try:
        X = vectorizer.fit_transform(texts)
    except ValueError as error:
        raise InputError(
            f"no terms are left to describe the {n} documents ({str(error).rstrip('.')}): give "
            "texts with words, lower min_df, raise max_df or keep stop words."
        ) from error
    return Corpus(
        X=as_features(X),
        ids=check_ids(range(n) if ids is None else ids, n),
        labels=None if labels is None else check_labels(labels, n),
        terms=tuple(str(term) for term in vectorizer.get_feature_names_out()),
    )


def corpus_from_records(records: Iterable[Record], options: TextOptions) -> Corpus:
    """Return the corpus of a table whose rows are documents.

    Parameters
    ----------
    records : iterable of (int, mapping), length n_samples
        Line number and named fields of each document.
    options : TextOptions
        Names the columns. Whether there are ids and labels is decided by the first document.

    Returns
    -------
    Corpus
        With X a csr_array of shape (n_samples, n_terms).
    """
    texts: list[str] = []
    columns: dict[str, str] = {}
    names: dict[str, list[object]] = {}
    for record in records:
        if not texts:
            columns = _named_columns(record, options)
            names = {column: [] for column in columns.values()}
        # the other fields are dropped here: they may be many times as large
        texts.append(_text(record, options.text_column))
        for column, found in names.items():
            found.append(_name(record, column))
        refuse_shape((len(texts),))
    if not texts:
        raise InputError("the file holds no documents: give at least one.")
    ids, labels = (names.get(columns.get(what, "")) for what in ("id", "label"))
    return corpus_from_texts(texts, ids, labels, options)


def _named_columns(first: Record, options: TextOptions) -> dict[str, str]:
    """The columns for id and label, if there are any."""
    _, fields = first
    _refuse_numbers(fields, options.text_column)
    asked = {"id": options.id_column, "label": options.label_column}
    return {
        what: column or what
        for what, column in asked.items()
        if column is not None or what in fields
    }


def _min_df(options: TextOptions, n: int) -> int | float:
    if options.min_df != "auto":
        return options.min_df
    return 2 if n >= _DOCUMENTS_FOR_PRUNING else 1


def _check_frequency(name: str, value: object) -> None:
    if not isinstance(value, Real):
        raise InputError(f"{name} is {value!r} but must be a count or a share of the documents.")
    if isinstance(value, float) and not 0 <= value <= 1:
        raise InputError(f"{name} is {value} but a share of the documents lies between 0 and 1.")
    if value < (0 if isinstance(value, float) else 1):
        raise InputError(f"{name} is {value} but a count of documents is at least 1.")


def _refuse_numbers(fields: Mapping[str, Any], text_column: str) -> None:
    if fields and text_column not in fields and all(map(_is_number, fields.values())):
        raise InputError(
            f"there is no column {text_column!r} and every cell is a number: save a table of "
            "numbers as .npy or .npz."
        )


def _is_number(cell: object) -> bool:
    try:
        float(str(cell))
    except ValueError:
        return False
    return True


def _text(record: Record, column: str) -> str:
    number, _ = record
    value = _field(record, column)
    if value is not None and not isinstance(value, str):
        raise InputError(
            f"line {number} holds {type(value).__name__} in column {column!r}, not text: write it "
            "as a string."
        )
    return value or ""


def _name(record: Record, column: str) -> object:
    number, _ = record
    value = _field(record, column)
    if value in (None, "") or isinstance(value, dict | list):
        raise InputError(
            f"line {number} has no name or number in column {column!r}: give one to every document."
        )
    return value


def _field(record: Record, column: str) -> Any:
    number, fields = record
    if column not in fields:
        close = difflib.get_close_matches(column, fields, n=1, cutoff=0.4)
        hint = f" (closest match: {close[0]!r})" if close else ""
        listed = ", ".join(map(repr, fields)) or "none"
        raise InputError(
            f"line {number} has no column {column!r}; its columns are {listed}: name one of them"
            f"{hint}."
        )
    return fields[column]
