"""Files become a `Corpus`; the ending of the name says how to read them.

Matrices: ``.npz``, ``.npy``, ``.mtx``, ``.mtx.gz``, ``.svmlight``, ``.libsvm``, ``.mat``.
Texts: ``.jsonl``, ``.csv``, ``.tsv`` (each also ``.gz``), ``.parquet``, and files that are one
document each, ``.txt``, ``.text``, ``.md``, ``.html``, ``.htm`` (also ``.gz``): a folder of them,
or a pattern that matches several files of one kind.

No pickles are ever loaded, sizes that files declare are bounded before memory is given to them
(`limits`), and ``.mat`` files are read in a process of their own (`matlab`).
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import scipy.io
from scipy import sparse
from sklearn.datasets import load_svmlight_file

from gmkcf_dask.corpus.arrays import npz_names, read_npy, read_npz
from gmkcf_dask.corpus.counts import Document
from gmkcf_dask.corpus.folders import TABLE_ENDINGS, TEXT_ENDINGS, text_files
from gmkcf_dask.corpus.limits import (
    most_text,
    refuse_bytes,
    refuse_large_text,
    refuse_shape,
)
from gmkcf_dask.corpus.matlab import read_mat
from gmkcf_dask.corpus.model import Corpus
from gmkcf_dask.corpus.options import TextOptions
from gmkcf_dask.corpus.passes import Meter, Place
from gmkcf_dask.corpus.reading import TextReading
from gmkcf_dask.corpus.tables import Wanted
from gmkcf_dask.corpus.text import read_documents, read_documents_like
from gmkcf_dask.corpus.validate import as_features, check_ids, check_labels
from gmkcf_dask.errors import GmkcfError, InputError, PlanRefused
from gmkcf_dask.events import Listener, ignore
from gmkcf_dask.graph import Runner

Reader = Callable[[Path], Corpus]

_DEFAULT_TEXT = TextOptions()

# What NumPy, SciPy, scikit-learn and the standard library raise on files they cannot read.
_UNREADABLE = (
    OSError,
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    EOFError,
    OverflowError,
    MemoryError,
    RuntimeError,
    NotImplementedError,
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
        Where texts are taken apart; this process when not given. They are never held as a whole,
        and features of more than 64 MiB stay in a temporary file (in TMPDIR).
    listen : callable
        Hears of `StageProgress` while texts are read.

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
        Of documents that are empty, repeat others or lose all their terms, and of files that are
        no text or in another encoding.
    """
    place = _place(runner, listen)
    return _read(
        path,
        lambda documents, meter: read_documents(documents, text, place, meter),
        Wanted(text),
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
        without any known term are rows of zeros, and are told by a `DataWarning`.
    """
    place = _place(runner, listen)
    options = replace(
        reading.options,
        text_column=text_column or reading.options.text_column,
        id_column=id_column or reading.options.id_column,
        encoding=reading.options.encoding if encoding is None else encoding,
    )
    return _read(
        path,
        lambda documents, meter: read_documents_like(documents, reading, terms, place, meter),
        Wanted(options, new=True, named=id_column is not None),
        _refuse_matrix,
    )


def _place(runner: Runner | None, listen: Listener) -> Place:
    return Place(listen=listen) if runner is None else Place(runner, listen)


def _read(
    path: str | Path,
    of_documents: Callable[[Iterator[Document], Meter], Corpus],
    wanted: Wanted,
    of_matrix: Reader,
) -> Corpus:
    """Texts by one way, matrices by the other; whatever is wrong is said with the path."""
    place = Path(path)
    try:
        found = text_files(path)
        if not place.exists() and place in (found.files.values() if found else [place]):
            raise InputError(f"{path} does not exist: check the path.")
        if found is not None:
            _refuse_special(place)
            meter = found.meter()
            return of_documents(found.documents(wanted, meter), meter)
        _reader_for(place)
        _refuse_special(place)
        return of_matrix(place)
    except (InputError, PlanRefused) as error:
        kind = PlanRefused if isinstance(error, PlanRefused) else InputError
        named = str(error).startswith(f"{path} ")
        raise kind(str(error) if named else f"{path}: {error}") from error
    except GmkcfError:
        raise
    except _UNREADABLE as error:
        cause = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise InputError(
            f"{path} cannot be read ({cause}): check that the file is complete and of the kind "
            "its ending says."
        ) from error


def _refuse_special(path: Path) -> None:
    if path.exists() and not (path.is_dir() or path.is_file()):
        raise InputError(f"{path} is not a regular file: give a file or a folder.")


def _refuse_matrix(path: Path) -> Corpus:
    raise InputError(f"{path} is a matrix, but texts are wanted: give documents.")


def _reader_for(path: Path) -> Reader:
    for ending, read in READERS.items():
        if path.name.lower().endswith(ending):
            return read
    tables, texts, matrices = map(", ".join, (TABLE_ENDINGS, TEXT_ENDINGS, READERS))
    raise InputError(
        f"{path} is of a kind this program does not read: use a table ({tables}), a text or a "
        f"folder of texts ({texts}), also packed as .gz, or a matrix ({matrices}); save a "
        "spreadsheet as CSV."
    )


def _matrix_corpus(X: object, y: object = None, ids: Iterable[object] | None = None) -> Corpus:
    features = as_features(X)
    n = features.shape[0]
    return Corpus(
        X=features,
        ids=check_ids(range(n) if ids is None else ids, n),
        labels=None if y is None else check_labels(_flat(y, n), n),
    )


def _flat(y: Any, n: int | None = None) -> list[object]:
    if isinstance(y, list):
        return y
    if n is not None and y.size != n:  # before a list of any length is made of it
        raise InputError(f"there are {y.size} labels for {n} samples: give one per sample.")
    found: list[object] = y.ravel().tolist()
    return found


_SPARSE_PARTS = (
    "format", "shape", "data", "indices", "indptr", "row", "col", "coords", "offsets", "_is_array",
)  # fmt: skip


def _read_npz(path: Path) -> Corpus:
    names = npz_names(path)
    if "format" in names and "X" not in names:
        return _matrix_corpus(_sparse_of(read_npz(path, _SPARSE_PARTS)))
    _require_variable("X", names)
    found = read_npz(path, ("X", "y", "ids"))
    ids = found.get("ids")
    return _matrix_corpus(found["X"], found.get("y"), None if ids is None else _flat(ids))


def _sparse_of(parts: Mapping[str, Any]) -> Any:
    """What `scipy.sparse.save_npz` wrote; the shape is checked before SciPy believes it."""
    kind = parts["format"].item()
    kind = kind.decode("ascii") if isinstance(kind, bytes) else str(kind)
    if parts["shape"].size != 2:
        raise InputError(f"X has {parts['shape'].size} dimension(s) but needs 2.")
    rows, columns = (int(side) for side in parts["shape"].ravel())
    refuse_shape((rows, columns))
    shape, data = (rows, columns), parts["data"]
    if kind in ("csr", "csc", "bsr"):
        make = {"csr": sparse.csr_array, "csc": sparse.csc_array, "bsr": sparse.bsr_array}[kind]
        return make((data, parts["indices"], parts["indptr"]), shape=shape)
    if kind == "dia":
        return sparse.dia_array((data, parts["offsets"]), shape=shape)
    if kind == "coo":
        where = tuple(parts["coords"]) if "coords" in parts else (parts["row"], parts["col"])
        return sparse.coo_array((data, where), shape=shape)
    raise InputError(f"the sparse format {kind[:20]!r} is not read: save it as csr.")


def _read_npy(path: Path) -> Corpus:
    return _matrix_corpus(read_npy(path))


def _read_matrix_market(path: Path) -> Corpus:
    opened = gzip.open if path.suffix.lower() == ".gz" else open
    with opened(path, "rb") as file:
        text = file.read(most_text() + 1)  # never more, however much is packed into a .gz
    refuse_bytes(len(text), "reading this text", most_text())
    # SciPy 1.17 stops reading only at a line end: a NUL or a last line left open crashes Python.
    if b"\0" in text:
        raise InputError(
            "a Matrix Market file is plain text but this one holds NUL bytes: mend it."
        )
    _check_matrix_market(text)
    return _matrix_corpus(scipy.io.mmread(io.BytesIO(text + b"\n")))


def _check_matrix_market(text: bytes) -> None:
    """Refuse a header that promises more numbers than the text can hold, or none at all.

    What is not understood here is not passed on: SciPy 1.17 divides by a size of 0, for one.
    """
    banner = text.partition(b"\n")[0].lower().split()
    if not banner or banner[0].lstrip(b"%") != b"matrixmarket":
        raise ValueError("it does not begin with %%MatrixMarket")
    if banner[1:2] != [b"matrix"] or banner[2:3] not in ([b"array"], [b"coordinate"]):
        raise ValueError("its first line names no matrix of kind array or coordinate")
    dense = banner[2] == b"array"
    lines = (line.strip() for line in io.BytesIO(text))
    size = next((line for line in lines if line and not line.startswith(b"%")), b"")
    if not re.fullmatch(rb"\d+\s+\d+" if dense else rb"\d+\s+\d+\s+\d+", size):
        raise ValueError("its size line is not whole numbers")
    rows, columns, *rest = map(int, size.split())
    if rows == 0 or columns == 0:
        raise InputError(f"X has 0 sample(s) or 0 feature(s), its size is {rows}×{columns}.")
    refuse_shape((rows, columns))
    entries = rows * columns if dense else rest[0]
    # an entry takes a digit and a space, or "1 1" and one; of a symmetric matrix half is written
    least = entries * (2 if dense else 4) // (2 if dense and b"general" not in banner else 1)
    if least > len(text) + rows:
        raise InputError(
            f"the header declares {entries:,} entries but {len(text):,} characters cannot hold "
            "them: the file is not complete, or its header is damaged."
        )
    refuse_bytes(entries * 24, f"X of shape ({rows}, {columns})")


def _read_svmlight(path: Path) -> Corpus:
    refuse_large_text(path)
    with path.open("rb") as file:
        lines = sum(part.count(b"\n") for part in iter(lambda: file.read(1 << 20), b""))
    refuse_shape((lines,))
    X, y = load_svmlight_file(str(path))
    return _matrix_corpus(X, y)


def _read_matlab(path: Path) -> Corpus:
    return _matrix_corpus(*read_mat(path))


def _require_variable(name: str, names: list[str]) -> None:
    if name not in names:
        listed = ", ".join(sorted(names)) or "nothing"
        raise InputError(f"no variable {name} was found (the file holds {listed}): call it {name}.")


READERS: Mapping[str, Reader] = {
    ".npz": _read_npz,
    ".npy": _read_npy,
    ".mtx": _read_matrix_market,
    ".mtx.gz": _read_matrix_market,
    ".svmlight": _read_svmlight,
    ".libsvm": _read_svmlight,
    ".mat": _read_matlab,
}
"""Of matrices, by ending."""
