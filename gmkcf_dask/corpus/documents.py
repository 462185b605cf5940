"""Turn documents into a `Corpus`: TF-IDF or hashed rows of unit length, names and warnings."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from scipy import sparse

from gmkcf_dask.corpus.model import Corpus
from gmkcf_dask.corpus.text_options import TextOptions, TextReading
from gmkcf_dask.corpus.validate import check_ids, check_labels, name_of, short
from gmkcf_dask.corpus.vectorize import (
    CorpusCounts,
    Document,
    DocumentInfo,
    ReadContext,
    ReadProgress,
    TermWeights,
    Vocabulary,
    select_terms,
    vectorize_documents,
)
from gmkcf_dask.errors import DataWarning, InputError
from gmkcf_dask.events import Listener, ignore

if TYPE_CHECKING:
    from gmkcf_dask.compute.runner import Runner

__all__ = ["TextOptions", "corpus_from_texts", "texts_in"]

_TITLE = 300
"""Characters of a title that are kept."""


@dataclass
class WarningLog:
    """Problems of documents: by kind, how often and where first."""

    problems: dict[str, tuple[int, str]] = field(default_factory=dict)

    def add(self, kind: str, where: str) -> None:
        count, first = self.problems.get(kind, (0, _printable(where)))
        self.problems[kind] = (count + 1, first)

    def count(self, kind: str) -> int:
        return self.problems.get(kind, (0, ""))[0]

    def first(self, kind: str) -> str:
        return self.problems[kind][1]

    def warn(self, sentences: dict[str, str], total: int, **words: str) -> None:
        """Issue a `DataWarning` for each kind of problem; sentences may use the words given."""
        for kind, sentence in sentences.items():
            if kind in self.problems:
                count, first = self.problems[kind]
                text = sentence.format(count=f"{count:,}", total=f"{total:,}", first=first, **words)
                warnings.warn(text, DataWarning, stacklevel=3)


_SENTENCES = {
    "repaired": "{count} of {total} documents contain unreadable characters (first: {first}), "
    "which are replaced; try --encoding cp1252, or encoding in TextOptions",
    "empty": "{count} of {total} documents are empty (first: {first}); they are kept, but their "
    "clusters have no meaning",
    "repeated": "{count} of {total} documents repeat an earlier one (first: {first}); they are "
    "kept",
    "lost": "{count} of {total} documents have none of the terms that are kept (first: {first}); "
    "they are kept as rows of zeros, but their clusters have no meaning",
    "unknown": "{count} of {total} documents have no term that the model knows (first: {first}); "
    "their clusters have no meaning",
}


@dataclass
class _Names:
    """Ids, labels and titles, collected while documents are read."""

    ids: list[object] = field(default_factory=list)
    labels: list[object] = field(default_factory=list)
    titles: list[object] = field(default_factory=list)

    def collect(self, documents: Iterable[Document], progress: ReadProgress) -> Iterator[Document]:
        for number, document in enumerate(documents):
            self.ids.append(document.id)
            self.labels.append(document.label)
            self.titles.append(document.title)
            if progress.unit == "documents":
                progress.done = number + 1
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
    runner: Runner | None = None,
    listen: Listener = ignore,
) -> Corpus:
    """Return a corpus of features, one row of unit length per text.

    Parameters
    ----------
    texts : iterable of str, length n_samples
        A text without any kept term becomes a row of zeros. Read once; never all in memory.
    ids, labels, titles : iterable, length n_samples, or None
        Without ids they count from "0".
    options : TextOptions or None
    runner : Runner, optional
        Where terms are counted; this process when not given.
    listen : callable
        Receives `StageProgress` while texts are read.

    Returns
    -------
    Corpus
        With X a csr_array of shape (n_samples, n_terms) and the terms in alphabetical order. X
        equals what scikit-learn's TfidfVectorizer makes of the same texts.

    Warns
    -----
    DataWarning
        For documents that are empty, repeat others, or lose all their terms.

    Examples
    --------
    >>> corpus = corpus_from_texts(["green apples", "red apples"])
    >>> corpus.terms
    ('apples', 'green', 'red')
    """
    if isinstance(texts, str):
        raise InputError("texts is one text, but a list of texts is expected: put it into a list.")
    n = len(texts) if isinstance(texts, Sequence) else 0
    given = {"id": ids, "label": labels, "title": titles}
    columns = {what: list(names) for what, names in given.items() if names is not None}
    documents = _documents(texts, columns)
    corpus = read_documents(
        documents, options or TextOptions(), ReadContext(runner, listen), ReadProgress(n)
    )
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

    Missing values among texts pass; they are rejected later, with the row.
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
    context: ReadContext | None = None,
    progress: ReadProgress | None = None,
) -> Corpus:
    """The corpus of an iterator of documents, with its own vocabulary."""

    def weigh(counted: CorpusCounts) -> TermWeights:
        if options.features == "tfidf":
            return select_terms(counted, options)
        if not counted.lengths.any():
            raise InputError(
                f"no terms are left to describe the {counted.lengths.size} documents: give texts "
                "with words, or keep stop words."
            )
        return TermWeights(options.n_hash_features, options.sublinear_tf)

    vocabulary = Vocabulary() if options.features == "tfidf" else None
    return _read(documents, options, context, progress, vocabulary, weigh)


def read_documents_like(
    documents: Iterable[Document],
    reading: TextReading,
    terms: Sequence[str] | None,
    context: ReadContext | None = None,
    progress: ReadProgress | None = None,
    warn: Collection[str] = _SENTENCES,
) -> Corpus:
    """The corpus of new documents, in the features of an earlier one."""
    names = _known_terms(reading, terms)

    def weigh(counted: CorpusCounts) -> TermWeights:
        sublinear = reading.options.sublinear_tf
        return TermWeights(reading.n_features, sublinear, None, reading.idf, names)

    numbers = {term: number for number, term in enumerate(names or ())}
    vocabulary = None if names is None else Vocabulary(numbers, fixed=True)
    return _read(
        documents, reading.options, context, progress, vocabulary, weigh, known=True, warn=warn
    )


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
        For documents that are empty or have no known term: their clusters have no meaning.
    """
    X = read_documents_like(_documents(texts), reading, terms, warn=("empty", "unknown")).X
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
    context: ReadContext | None,
    progress: ReadProgress | None,
    vocabulary: Vocabulary | None,
    weigh: Callable[[CorpusCounts], TermWeights],
    *,
    known: bool = False,
    warn: Collection[str] = _SENTENCES,
) -> Corpus:
    names, progress = _Names(), progress or ReadProgress()
    named = names.collect(documents, progress)
    X, infos, weights = vectorize_documents(
        named, options, context or ReadContext(), progress, vocabulary, weigh
    )
    n = len(infos)
    ids = check_ids(names.all_ids(), n)
    _warn_about(ids, infos, X, known=known, kinds=warn)
    return Corpus(
        X=X,
        ids=ids,
        labels=None if names.labels[0] is None else check_labels(names.labels, n),
        terms=weights.terms,
        titles=_titles(names.titles, infos, ids),
        excerpts=tuple(info.excerpt for info in infos),
        reading=TextReading(options, weights.idf),
    )


def _titles(
    given: list[object], infos: list[DocumentInfo], ids: tuple[str, ...]
) -> tuple[str, ...] | None:
    """The title of a page, else what was given, else the id; None where there are none at all."""
    if all(title is None for title in given) and not any(info.title for info in infos):
        return None
    titles = (
        name_of(info.title or (title if title not in (None, "") else name))
        for title, info, name in zip(given, infos, ids, strict=True)
    )
    return tuple(" ".join(title.split())[:_TITLE] or "untitled" for title in titles)


def _warn_about(
    ids: tuple[str, ...],
    infos: list[DocumentInfo],
    X: sparse.csr_array,
    *,
    known: bool,
    kinds: Collection[str],
) -> None:
    log, seen = WarningLog(), set[bytes]()
    for number, (name, info) in enumerate(zip(ids, infos, strict=True)):
        if info.repaired:
            log.add("repaired", name)
        if not info.digest:
            log.add("empty", name)
            continue
        if info.digest in seen:
            log.add("repeated", name)
        seen.add(info.digest)
        if X.indptr[number] == X.indptr[number + 1]:
            log.add("unknown" if known else "lost", name)
    log.warn({kind: _SENTENCES[kind] for kind in _SENTENCES if kind in kinds}, len(ids))


def _printable(name: str) -> str:
    """A name for use in messages: file names may contain control characters of terminals."""
    shown = "".join(c if c.isprintable() else "?" for c in name[:101])
    return shown if len(shown) <= 100 else f"{shown[:97]}..."
