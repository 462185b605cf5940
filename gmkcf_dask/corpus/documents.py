"""Turn documents into a `Corpus`: TF-IDF or hashed rows of unit length, names and warnings."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from scipy import sparse

from gmkcf_dask.corpus.model import Corpus
from gmkcf_dask.corpus.preset import choose_by_sample, settle
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

    count: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)

    def add(self, kind: str, where: str) -> None:
        self.count[kind] += 1
        self.first.setdefault(kind, _printable(where))

    def warn(self, sentences: Mapping[str, str], total: int, **words: str) -> None:
        """Issue a `DataWarning` for each kind of problem; sentences may use the words given."""
        for kind, sentence in sentences.items():
            if kind in self.first:
                counts = {"count": f"{self.count[kind]:,}", "total": f"{total:,}"}
                text = sentence.format(first=self.first[kind], **counts, **words)
                warnings.warn(text, DataWarning, stacklevel=3)


_SENTENCES = {
    "repaired": "{count} of {total} documents contain unreadable characters (first: {first}), "
    "which are replaced; try --encoding cp1252, or encoding in TextOptions",
    "empty": "{count} of {total} documents are empty (first: {first}); they are kept, without "
    "words to be clustered by",
    "repeated": "{count} of {total} documents repeat an earlier one (first: {first}); they are "
    "kept",
    "lost": "{count} of {total} documents have none of the terms that are kept (first: {first}); "
    "they are kept as rows of zeros, without words to be clustered by",
    "unknown": "{count} of {total} documents have no term that the model knows (first: {first}): "
    "they have no words to be clustered by",
}


def _number_rows(ids: Sequence[object]) -> list[object]:
    """Numbers of rows for ids that are missing; spelled out where another row has that id."""
    used = {name_of(value) for value in ids if value is not None}
    return [
        (f"row {number}" if str(number) in used else number) if value is None else value
        for number, value in enumerate(ids)
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
    runner : Runner, optional
        Where terms are counted; this process when not given.
    listen : callable
        Receives `StageProgress` while texts are read, and a `StageNote` on options that the preset
        chose.

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
    corpus = read_documents(
        documents_of(texts, columns),
        options or TextOptions(),
        ReadContext(runner, listen),
        ReadProgress(n),
    )
    for what, names in columns.items():
        if len(names) > corpus.n_samples:
            raise InputError(
                f"there are {len(names)} {what}s for {corpus.n_samples} samples: give one for each."
            )
    return corpus


def documents_of(
    texts: Iterable[str], columns: Mapping[str, list[Any]] = MappingProxyType({})
) -> Iterator[Document]:
    """Documents of texts and, by the name of a field, their ids, labels and titles."""
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
    if isinstance(X, list | tuple):
        return X
    return [str(value) if isinstance(value, str) else value for value in X]  # no `np.str_`


def read_documents(
    documents: Iterable[Document],
    options: TextOptions,
    context: ReadContext | None = None,
    progress: ReadProgress | None = None,
) -> Corpus:
    """The corpus of an iterator of documents, with its own vocabulary."""
    context, progress = context or ReadContext(), progress or ReadProgress()
    choice, documents = choose_by_sample(documents, options)
    options = choice.options

    def weigh(counted: CorpusCounts) -> TermWeights:
        if options.features == "tfidf":
            return select_terms(counted, options)
        if not counted.lengths.any():
            raise InputError(
                f"no terms are left to describe the {counted.lengths.size} documents: give texts "
                "with words, or keep stop words."
            )
        return TermWeights(options.n_hash_features, bool(options.sublinear_tf))

    vocabulary = Vocabulary() if options.features == "tfidf" else None
    corpus = _read(documents, options, context, progress, vocabulary, weigh)
    return settle(corpus, choice, context.listen, progress)


def read_documents_like(
    documents: Iterable[Document],
    reading: TextReading,
    terms: Sequence[str] | None,
    context: ReadContext | None = None,
    progress: ReadProgress | None = None,
    warn: Collection[str] = _SENTENCES,
) -> Corpus:
    """The corpus of new documents, in the features of an earlier one."""
    names, vocabulary = None, None
    if reading.idf is not None:
        if terms is None or len(terms) != reading.n_features:
            raise InputError(
                f"{0 if terms is None else len(terms)} terms are given for {reading.n_features} "
                "weights: give the terms of the corpus that was read."
            )
        names = tuple(terms)
        vocabulary = Vocabulary({term: number for number, term in enumerate(names)}, fixed=True)
    options = reading.options
    weights = TermWeights(reading.n_features, bool(options.sublinear_tf), None, reading.idf, names)
    return _read(
        documents, options, context, progress, vocabulary, lambda _: weights, known=True, warn=warn
    )


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
    progress = progress or ReadProgress()
    given_ids: list[object] = []
    labels: list[object] = []
    titles: list[object] = []

    def collect_names() -> Iterator[Document]:
        for document in documents:
            given_ids.append(document.id)
            labels.append(document.label)
            titles.append(document.title)
            if progress.unit == "documents":
                progress.done = len(given_ids)
            yield document

    X, infos, weights = vectorize_documents(
        collect_names(), options, context or ReadContext(), progress, vocabulary, weigh
    )
    n = len(infos)
    ids = check_ids(_number_rows(given_ids), n)
    _warn_about(ids, infos, X, known=known, kinds=warn)
    return Corpus(
        X=X,
        ids=ids,
        labels=None if labels[0] is None else check_labels(labels, n),
        terms=weights.terms,
        titles=_titles(titles, infos, ids),
        excerpts=tuple(info.excerpt for info in infos),
        reading=TextReading(options, weights.idf),
    )


def _titles(
    given: Sequence[object], infos: list[DocumentInfo], ids: tuple[str, ...]
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
    log, digests = WarningLog(), set[bytes]()
    for number, (name, info) in enumerate(zip(ids, infos, strict=True)):
        if info.repaired:
            log.add("repaired", name)
        if not info.digest:
            log.add("empty", name)
            continue
        if info.digest in digests:
            log.add("repeated", name)
        digests.add(info.digest)
        if X.indptr[number] == X.indptr[number + 1]:
            log.add("unknown" if known else "lost", name)
    log.warn({kind: _SENTENCES[kind] for kind in _SENTENCES if kind in kinds}, len(ids))


def _printable(name: str) -> str:
    """A name for use in messages: file names may contain control characters of terminals."""
    shown = "".join(c if c.isprintable() else "?" for c in name[:101])
    return shown if len(shown) <= 100 else f"{shown[:97]}..."
