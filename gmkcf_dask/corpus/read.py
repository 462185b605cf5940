"""Read files into a `Corpus`; the ending of the name selects the reader.

Matrices: ``.npz``, ``.npy``, ``.mtx``, ``.mtx.gz``, ``.svmlight``, ``.libsvm``, ``.mat``.
Texts: ``.jsonl``, ``.csv``, ``.tsv`` (each also ``.gz``), ``.parquet``, and files that are one
document each, ``.txt``, ``.text``, ``.md``, ``.html``, ``.htm`` (also ``.gz``): a folder of them,
or a pattern that matches several files of one kind.

Pickles are never loaded, declared sizes are checked before memory is allocated (`limits`), and
``.mat`` files are read in a separate process (`matlab_child`).
"""

from __future__ import annotations

import csv
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gmkcf_dask.corpus.documents import read_documents, read_documents_like
from gmkcf_dask.corpus.folders import TABLE_ENDINGS, TEXT_ENDINGS, text_files
from gmkcf_dask.corpus.matrices import READERS, Reader, count_matrix_rows
from gmkcf_dask.corpus.model import Corpus
from gmkcf_dask.corpus.tables import ColumnRequest, count_rows
from gmkcf_dask.corpus.text_options import TextOptions, TextReading
from gmkcf_dask.corpus.vectorize import Document, ReadContext, ReadProgress
from gmkcf_dask.errors import GmkcfError, InputError, PlanRefused, visible
from gmkcf_dask.events import Listener, ignore
from gmkcf_dask.system.disk_space import typed_error
from gmkcf_dask.system.retry import retried

if TYPE_CHECKING:
    from gmkcf_dask.compute.runner import Runner

_DEFAULT_TEXT = TextOptions()

# What NumPy, SciPy, scikit-learn and the standard library raise on files they cannot read.
UNREADABLE = (
    OSError,
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    EOFError,
    OverflowError,
    MemoryError,
    RuntimeError,
    csv.Error,
    tokenize.TokenError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
    SyntaxError,
    SystemError,  # CPython's own, for characters beyond Unicode in an array of text
)


def read_corpus(
    path: str | Path,
    *,
    text: TextOptions = _DEFAULT_TEXT,
    runner: Runner | None = None,
    listen: Listener = ignore,
) -> Corpus:
    """Read samples, their ids and, where the file has them, their labels and terms.

    Parameters
    ----------
    path : str or Path
        A file with a known ending, a folder of texts, or a pattern such as ``"logs/*.jsonl.gz"``
        that matches several files with texts of one kind.
    text : TextOptions
        Columns and features of texts; matrices ignore it.
    runner : Runner, optional
        Where terms are counted; this process when not given. Texts are never all in memory, and
        features of more than 64 MiB stay in a temporary file (in TMPDIR).
    listen : callable
        Receives `StageProgress` while texts are read, and a `StageNote` on options that the preset
        chose.

    Returns
    -------
    Corpus
        With X of shape (n_samples, n_features). Ids count from "0" where the file has none.

    Raises
    ------
    InputError
        If the path is missing, of unknown kind, damaged, or holds unusable data.
    PlanRefused
        If what the file declares does not fit the memory that is free.

    Warns
    -----
    DataWarning
        For documents that are empty, repeat others or lose all their terms, and for files that are
        not text or have another encoding.
    """
    context = ReadContext(runner, listen)
    return _read(
        path,
        lambda documents, progress: read_documents(documents, text, context, progress),
        ColumnRequest(text),
        lambda file: _reader_for(file)(file),
    )


def read_like(
    path: str | Path,
    reading: TextReading,
    terms: Sequence[str] | None,
    *,
    text_column: str | None = None,
    id_column: str | None = None,
    encoding: str | None = None,
    runner: Runner | None = None,
    listen: Listener = ignore,
) -> Corpus:
    """Read new documents in the features of a corpus that was read before.

    Parameters
    ----------
    path : str or Path
        Texts, as for `read_corpus`. Only the column with the text has to be there: labels are not
        looked for, a missing id becomes the number of the row, and titles may be missing, too.
    reading : TextReading
        Of the earlier corpus: `Corpus.reading`, or `KernelStore.reading()`.
    terms : sequence of str or None
        Its terms; None for hashed features.
    text_column, id_column : str, optional
        Columns of these documents, which have to be there; when not given, those of the earlier
        corpus.
    encoding : str, optional
        Of these files, or "auto"; when not given, that of the earlier corpus.
    runner, listen
        As for `read_corpus`.

    Returns
    -------
    Corpus
        With X of shape (n_new, n_terms), as `TfidfVectorizer.transform` would give. Documents
        without any known term are rows of zeros, with a `DataWarning`.
    """
    context = ReadContext(runner, listen)
    options = replace(
        reading.options,
        text_column=text_column or reading.options.text_column,
        id_column=id_column or reading.options.id_column,
        encoding=reading.options.encoding if encoding is None else encoding,
    )
    return _read(
        path,
        lambda documents, progress: read_documents_like(
            documents, reading, terms, context, progress
        ),
        ColumnRequest(options, new=True, named=id_column is not None),
        _refuse_matrix,
    )


_LONGEST_CAUSE = 300


def _read(
    path: str | Path,
    of_documents: Callable[[Iterator[Document], ReadProgress], Corpus],
    request: ColumnRequest,
    of_matrix: Reader,
) -> Corpus:
    """Read texts or a matrix; errors name the path."""
    file = Path(path)
    try:
        texts = retried(partial(text_files, path), path, "read")
        if not file.exists() and file in (texts.files.values() if texts else [file]):
            raise InputError(f"{path} does not exist: check the path.")
        if texts is not None:
            _refuse_special(file)
            progress = ReadProgress(texts.size, unit="MiB")
            return of_documents(texts.documents(request, progress), progress)
        _reader_for(file)
        _refuse_special(file)
        return retried(partial(of_matrix, file), file, "read")
    except (InputError, PlanRefused) as error:
        kind = PlanRefused if isinstance(error, PlanRefused) else InputError
        named = str(error).startswith(f"{visible(str(path))} ")
        raise kind(str(error) if named else f"{path}: {error}") from error
    except GmkcfError:
        raise
    except UNREADABLE as error:
        if isinstance(error, OSError) and (known := typed_error(error, file)) is not None:
            raise known from error
        cause = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        if len(cause) > _LONGEST_CAUSE:  # some quote the file
            cause = f"{cause[:_LONGEST_CAUSE]}…"
        raise InputError(
            f"{path} cannot be read ({cause}): check that the file is complete and has the "
            "right ending."
        ) from error


def _refuse_special(path: Path) -> None:
    if path.exists() and not (path.is_dir() or path.is_file()):
        raise InputError(f"{path} is not a regular file: give a file or a folder.")


def _refuse_matrix(path: Path) -> Corpus:
    raise InputError(f"{path} is a matrix, but texts are expected: give documents.")


def _reader_for(path: Path) -> Reader:
    for ending, read in READERS.items():
        if path.name.lower().endswith(ending):
            return read
    tables, texts, matrices = map(", ".join, (TABLE_ENDINGS, TEXT_ENDINGS, READERS))
    raise InputError(
        f"{path} has an unknown file type: use a table ({tables}), a text or a "
        f"folder of texts ({texts}), also as .gz, or a matrix ({matrices}); save a "
        "spreadsheet as CSV."
    )


def count_samples(path: str | Path, text: TextOptions | None = None) -> int | None:
    """Samples of an input; None where only reading tells.

    In a folder all text files count, even those that reading will skip.
    """
    try:
        texts = text_files(path)
        if texts is not None:
            if not texts.tables:
                return len(texts.files)
            if not all(file.is_file() for file in texts.files.values()):
                return None  # reading from a pipe would wait
            request = ColumnRequest(text or TextOptions(), several=len(texts.files) > 1)
            return sum(count_rows(file, request, ReadProgress()) for file in texts.files.values())
        return count_matrix_rows(Path(path))
    except (GmkcfError, ImportError, *UNREADABLE):
        return None  # reading gives the better error
