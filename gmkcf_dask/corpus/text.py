"""Texts become rows of unit length: TF-IDF of their own vocabulary, or of that of a model."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from scipy import sparse

from gmkcf_dask.corpus.counts import Document, Facts
from gmkcf_dask.corpus.model import Corpus
from gmkcf_dask.corpus.options import TextOptions
from gmkcf_dask.corpus.passes import (
    Counts,
    Meter,
    Place,
    Vocabulary,
    Weights,
    chosen_terms,
    features_of,
)
from gmkcf_dask.corpus.reading import TextReading
from gmkcf_dask.corpus.validate import check_ids, check_labels, name_of
from gmkcf_dask.errors import DataWarning, InputError

__all__ = ["TextOptions", "corpus_from_texts", "texts_in"]

_TITLE = 300
"""Characters of a title that are kept."""


@dataclass
class Notes:
    """What was met on the way and is worth a sentence: by kind, how often and where first."""

    found: dict[str, tuple[int, str]] = field(default_factory=dict)

    def add(self, kind: str, where: str) -> None:
        times, first = self.found.get(kind, (0, _printable(where)))
        self.found[kind] = (times + 1, first)

    def times(self, kind: str) -> int:
        return self.found.get(kind, (0, ""))[0]

    def first(self, kind: str) -> str:
        return self.found[kind][1]

    def tell(self, sentences: dict[str, str], total: int, **words: str) -> None:
        """A `DataWarning` for each kind that was met.

        Sentences name count, total and first, and the words given here.
        """
        for kind, sentence in sentences.items():
            if kind in self.found:
                count, first = self.found[kind]
                told = {"count": f"{count:,}", "total": f"{total:,}", "first": first}
                said = sentence.format(**told, **words)
                warnings.warn(said, DataWarning, stacklevel=3)


_SENTENCES = {
    "mended": "{count} of {total} documents hold bytes that are no characters (first: {first}); "
    "these are replaced; CSV and JSONL that are not UTF-8 need --encoding, or encoding in "
    "TextOptions",
    "empty": "{count} of {total} documents are empty (first: {first}); they are kept, but their "
    "clusters mean nothing",
    "repeated": "{count} of {total} documents repeat an earlier one (first: {first}); they are "
    "kept",
    "lost": "{count} of {total} documents have none of the terms that are kept (first: {first}); "
    "they are kept as rows of zeros, but their clusters mean nothing",
    "unknown": "{count} of {total} documents have no term that the model knows (first: {first}); "
    "their clusters mean nothing",
}


@dataclass
class _Names:
    """Ids, labels and titles, noted while documents pass by."""

    ids: list[object] = field(default_factory=list)
    labels: list[object] = field(default_factory=list)
    titles: list[object] = field(default_factory=list)

    def noting(self, documents: Iterable[Document], meter: Meter) -> Iterator[Document]:
        for number, document in enumerate(documents):
            self.ids.append(document.id)
            self.labels.append(document.label)
            self.titles.append(document.title)
            if meter.unit == "documents":
                meter.done = number + 1
            yield document

    def all_ids(self) -> list[object]:
        """Numbers of rows for ids that are missing; spelled out where another row has that id."""
        given = {name_of(value) for value in self.ids if value is not None}
        return [
            (f"row {number}" if str(number) in given else number) if value is None else value
            for number, value in enumerate(self.ids)
        ]


def corpus_from_texts(
    texts: Iterable[str],
    ids: Iterable[object] | None = None,
    labels: Iterable[object] | None = None,
    options: TextOptions | None = None,
    titles: Iterable[object] | None = None,
    *,
    place: Place | None = None,
) -> Corpus:
    """Return a corpus of features, one row of unit length per text.

    Parameters
    ----------
    texts : iterable of str, length n_samples
        A text without any kept term becomes a row of zeros. Read once, and never held as a whole.
    ids, labels, titles : iterable, length n_samples, or None
        Without ids they count from "0".
    options : TextOptions or None
    place : Place, optional
        Where texts are counted, and who hears how far that is; this process when not given.

    Returns
    -------
    Corpus
        With X a csr_array of shape (n_samples, n_terms) and the terms in alphabetical order. X
        equals what scikit-learn's TfidfVectorizer makes of the same texts.

    Warns
    -----
    DataWarning
        Of documents that are empty, repeat others, or lose all their terms.

    Examples
    --------
    >>> corpus = corpus_from_texts(["green apples", "red apples"])
    >>> corpus.terms
    ('apples', 'green', 'red')
    """
    if isinstance(texts, str):
        raise InputError("texts is one text, but a list of texts is wanted: put it into a list.")
    n = len(texts) if isinstance(texts, Sequence) else 0
    given = {"id": ids, "label": labels, "title": titles}
    columns = {what: list(names) for what, names in given.items() if names is not None}
    documents = _documents(texts, columns)
    corpus = read_documents(documents, options or TextOptions(), place, Meter(n))
    for what, names in columns.items():
        if len(names) > corpus.n_samples:
            raise InputError(
                f"there are {len(names)} {what}s for {corpus.n_samples} samples: give one for each."
            )
    return corpus


def _documents(
    texts: Iterable[str], columns: Mapping[str, list[Any]] = MappingProxyType({})
) -> Iterator[Document]:
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise InputError(
                f"row {number} holds {short(text)}, not text: fill such rows or leave them out."
            )
        for what, names in columns.items():
            if len(names) <= number:
                raise InputError(
                    f"there are {len(names)} {what}s for {number + 1} samples or more: give one "
                    "for each."
                )
        yield Document(text, **{what: names[number] for what, names in columns.items()})


def texts_in(X: Any) -> Iterable[str] | None:
    """The texts where X is a list, array or series of them; None where it is something else.

    Missing values among texts are let through, for a sentence that names the row.
    """
    if isinstance(X, str | bytes | dict) or sparse.issparse(X):
        return None
    shape = getattr(X, "shape", None)
    if not (isinstance(X, list | tuple) or (isinstance(shape, tuple) and len(shape) == 1)):
        return None
    kind = getattr(getattr(X, "dtype", None), "kind", "O")
    if kind not in "OUTS" or not any(isinstance(value, str) for value in X):
        return None
    return X if isinstance(X, list | tuple) else _plain(X)


def _plain(X: Any) -> list[Any]:
    """The values of an array or series, NumPy's strings as Python's."""
    return [str(value) if isinstance(value, str) else value for value in X]


def read_documents(
    documents: Iterable[Document],
    options: TextOptions,
    place: Place | None = None,
    meter: Meter | None = None,
) -> Corpus:
    """The corpus of documents that come one by one, with a vocabulary of their own."""

    def weigh(counted: Counts) -> Weights:
        if options.features == "tfidf":
            return chosen_terms(counted, options)
        if not counted.lengths.any():
            raise InputError(
                f"no terms are left to describe the {counted.lengths.size} documents: give texts "
                "with words, or keep stop words."
            )
        return Weights(options.n_hash_features, options.sublinear_tf)

    vocabulary = Vocabulary() if options.features == "tfidf" else None
    return _read(documents, options, place, meter, vocabulary, weigh)


def read_documents_like(
    documents: Iterable[Document],
    reading: TextReading,
    terms: Sequence[str] | None,
    place: Place | None = None,
    meter: Meter | None = None,
    told: Collection[str] = _SENTENCES,
) -> Corpus:
    """The corpus of new documents, in the features of an earlier one."""
    names = _known_terms(reading, terms)

    def weigh(counted: Counts) -> Weights:
        sublinear = reading.options.sublinear_tf
        return Weights(reading.n_features, sublinear, None, reading.idf, names)

    numbers = {term: number for number, term in enumerate(names or ())}
    vocabulary = None if names is None else Vocabulary(numbers, fixed=True)
    return _read(documents, reading.options, place, meter, vocabulary, weigh, known=True, told=told)


def transform_texts(
    texts: Iterable[str], reading: TextReading, terms: Sequence[str] | None
) -> sparse.csr_array:
    """Features of new texts as those of the corpus were made.

    Parameters
    ----------
    texts : iterable of str, length n_samples
    terms : sequence of str or None
        Names of the columns; None for hashed features.

    Returns
    -------
    csr_array, shape (n_samples, n_terms)
        As `TfidfVectorizer.transform` would give.

    Warns
    -----
    DataWarning
        Of documents that are empty or have no known term: nothing is known of where they belong.
    """
    X = read_documents_like(_documents(texts), reading, terms, told=("empty", "unknown")).X
    assert isinstance(X, sparse.csr_array)
    return X


def _known_terms(reading: TextReading, terms: Sequence[str] | None) -> tuple[str, ...] | None:
    if reading.idf is None:
        return None
    if terms is None or len(terms) != reading.n_features:
        raise InputError(
            f"{0 if terms is None else len(terms)} terms are given for {reading.n_features} "
            "weights: give the terms of the corpus that was read."
        )
    return tuple(terms)


def _read(
    documents: Iterable[Document],
    options: TextOptions,
    place: Place | None,
    meter: Meter | None,
    vocabulary: Vocabulary | None,
    weigh: Callable[[Counts], Weights],
    *,
    known: bool = False,
    told: Collection[str] = _SENTENCES,
) -> Corpus:
    names, meter = _Names(), meter or Meter()
    passing = names.noting(documents, meter)
    X, facts, weights = features_of(passing, options, place or Place(), meter, vocabulary, weigh)
    n = len(facts)
    ids = check_ids(names.all_ids(), n)
    _tell(ids, facts, X, known=known, told=told)
    return Corpus(
        X=X,
        ids=ids,
        labels=None if names.labels[0] is None else check_labels(names.labels, n),
        terms=weights.terms,
        titles=_titles(names.titles, facts, ids),
        excerpts=tuple(fact.excerpt for fact in facts),
        reading=TextReading(options, weights.idf),
    )


def _titles(
    given: list[object], facts: list[Facts], ids: tuple[str, ...]
) -> tuple[str, ...] | None:
    """The title of a page, else what was given, else the id; None where there are none at all."""
    if all(title is None for title in given) and not any(fact.title for fact in facts):
        return None
    found = (
        name_of(fact.title or (title if title not in (None, "") else name))
        for title, fact, name in zip(given, facts, ids, strict=True)
    )
    return tuple(" ".join(title.split())[:_TITLE] or "untitled" for title in found)


def _tell(
    ids: tuple[str, ...],
    facts: list[Facts],
    X: sparse.csr_array,
    *,
    known: bool,
    told: Collection[str],
) -> None:
    notes, seen = Notes(), set[bytes]()
    for number, (name, fact) in enumerate(zip(ids, facts, strict=True)):
        if fact.mended:
            notes.add("mended", name)
        if not fact.digest:
            notes.add("empty", name)
            continue
        if fact.digest in seen:
            notes.add("repeated", name)
        seen.add(fact.digest)
        if X.indptr[number] == X.indptr[number + 1]:
            notes.add("unknown" if known else "lost", name)
    notes.tell({kind: _SENTENCES[kind] for kind in _SENTENCES if kind in told}, len(ids))


def _printable(name: str) -> str:
    """A name as a note may show it: file names can hold what moves a terminal's cursor."""
    shown = "".join(c if c.isprintable() else "?" for c in name[:101])
    return shown if len(shown) <= 100 else f"{shown[:97]}..."


def short(value: object) -> str:
    """A value as a sentence may show it."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
