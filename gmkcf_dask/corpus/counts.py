"""The work on one batch of documents: it runs on any worker, and sends back only counts."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gmkcf_dask.corpus.markup import page_text, whole_characters
from gmkcf_dask.corpus.options import TextOptions

EXCERPT = 200
"""Characters of a document's beginning that are kept."""

Ints = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Document:
    """One text on its way in. `page` says that it is HTML still."""

    text: str
    id: object = None
    label: object = None
    title: object = None
    page: bool = False


@dataclass(frozen=True, slots=True)
class Facts:
    """What is kept of a document beside its counts.

    Attributes
    ----------
    digest : bytes
        Of the text with white space folded; empty where there is no text.
    mended : bool
        Whether it, or a name that it goes by, held what is no character.
    title : str or None
        Of an HTML page.
    """

    excerpt: str
    digest: bytes
    mended: bool
    title: str | None


@dataclass(frozen=True)
class Counted:
    """Terms of a batch of documents.

    Attributes
    ----------
    facts : tuple of Facts, length n_batch
    lengths : ndarray of int64, shape (n_batch,)
        Different terms of each document.
    ids, counts : ndarray of int32, shape (sum of lengths,)
        Term and how often it is there, document by document.
    terms : tuple of str or None
        What ids stand for, in the order in which the batch has them; None for hashed columns.
    """

    facts: tuple[Facts, ...]
    lengths: npt.NDArray[np.int64]
    ids: Ints
    counts: Ints
    terms: tuple[str, ...] | None


def count_batch(options: TextOptions, documents: Sequence[Document]) -> Counted:
    """Count the terms of a few documents."""
    texts, facts = [], []
    for document in documents:
        text, title = page_text(document.text) if document.page else (document.text, None)
        whole = whole_characters(text)
        texts.append(whole)
        facts.append(_facts(whole, title, mended=whole != text or _is_mended(document)))
    count = _hashed if options.features == "hashing" else _counted
    return Counted(tuple(facts), *count(options, texts))


def _is_mended(document: Document) -> bool:
    """Whether a name of a document holds what is no character, and will be spelled out."""
    names = (document.id, document.label, document.title)
    return any(isinstance(name, str) and whole_characters(name) != name for name in names)


def _facts(text: str, title: str | None, *, mended: bool) -> Facts:
    words = text.split()
    digest = hashlib.blake2b(" ".join(words).encode(), digest_size=16).digest() if words else b""
    return Facts(" ".join(words[:EXCERPT])[:EXCERPT], digest, mended, title)


def _counted(
    options: TextOptions, texts: Iterable[str]
) -> tuple[npt.NDArray[np.int64], Ints, Ints, tuple[str, ...]]:
    analyze = options.analyzer()
    numbers: dict[str, int] = {}
    lengths, ids, counts = [], [], []
    for text in texts:
        found = Counter(analyze(text))
        lengths.append(len(found))
        ids.append(np.fromiter((numbers.setdefault(t, len(numbers)) for t in found), np.int32))
        counts.append(np.fromiter(found.values(), np.int32, len(found)))
    return np.array(lengths, np.int64), np.concatenate(ids), np.concatenate(counts), tuple(numbers)


def _hashed(
    options: TextOptions, texts: Sequence[str]
) -> tuple[npt.NDArray[np.int64], Ints, Ints, None]:
    X = options.hasher().transform(texts)
    lengths = np.diff(X.indptr).astype(np.int64)
    return lengths, X.indices.astype(np.int32), X.data.astype(np.int32), None
