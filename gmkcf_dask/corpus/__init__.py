"""Read files, folders, texts and arrays into one `Corpus`, and validate them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gmkcf_dask.corpus.documents import corpus_from_texts
from gmkcf_dask.corpus.matrices import READERS
from gmkcf_dask.corpus.model import Corpus, Matrix
from gmkcf_dask.corpus.read import count_samples, read_corpus, read_like
from gmkcf_dask.corpus.text_options import TextOptions, TextReading
from gmkcf_dask.corpus.validate import (
    NotNumericError,
    as_features,
    check_ids,
    check_labels,
    refuse_equal_rows,
    warn_about_zero_rows,
)

if TYPE_CHECKING:
    from gmkcf_dask.corpus.docstrings import docstring_corpus, docstring_documents

__all__ = [
    "READERS",
    "Corpus",
    "Matrix",
    "NotNumericError",
    "TextOptions",
    "TextReading",
    "as_features",
    "check_ids",
    "check_labels",
    "corpus_from_texts",
    "count_samples",
    "docstring_corpus",
    "docstring_documents",
    "read_corpus",
    "read_like",
    "refuse_equal_rows",
    "warn_about_zero_rows",
]


def __getattr__(name: str) -> Any:
    # lazy: `python -m gmkcf_dask.corpus.docstrings` would warn of a module imported twice
    if name in ("docstring_corpus", "docstring_documents"):
        from gmkcf_dask.corpus import docstrings

        return getattr(docstrings, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
