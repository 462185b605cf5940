"""Files become a `Corpus`; the ending of the name says how to read them.

Matrices: ``.npz``, ``.npy``, ``.mtx``, ``.mtx.gz``, ``.svmlight``, ``.libsvm``, ``.mat``.
Texts: ``.jsonl``, ``.csv``, ``.tsv``, or a folder of ``.txt`` files.

No pickles are ever loaded, sizes that files declare are bounded before memory is given to them
(`limits`), and ``.mat`` files are read in a process of their own (`matlab`).
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import struct
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import scipy.io
from scipy import sparse
from sklearn.datasets import load_svmlight_file

from gmkcf_dask.corpus.arrays import npz_names, read_npy, read_npz
from gmkcf_dask.corpus.limits import (
    MOST_CHARACTERS,
    bounded_lines,
    most_text,
    refuse_bytes,
    refuse_large_text,
    refuse_shape,
)
from gmkcf_dask.corpus.matlab import read_mat
from gmkcf_dask.corpus.model import Corpus
from gmkcf_dask.corpus.text import Record, TextOptions, corpus_from_records, corpus_from_texts
from gmkcf_dask.corpus.validate import as_features, check_ids, check_labels
from gmkcf_dask.errors import DataWarning, InputError, PlanRefused

Reader = Callable[[Path, TextOptions], Corpus]

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


def read_corpus(path: str | Path, *, text: TextOptions = _DEFAULT_TEXT) -> Corpus:
    """Read samples, their ids and, where the file has them, their labels and terms.

    Parameters
    ----------
    path : str or Path
        A file with a known ending, or a folder of ``.txt`` files.
    text : TextOptions
        Columns and features of texts; matrices ignore it.

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
    """
    path = Path(path)
    if not path.exists():
        raise InputError(f"{path} does not exist: check the path.")
    read = _read_folder if path.is_dir() else _reader_for(path)
    if not (path.is_dir() or path.is_file()):
        raise InputError(f"{path} is not a regular file: give a file or a folder.")
    try:
        return read(path, text)
    except (InputError, PlanRefused) as error:
        raise (PlanRefused if isinstance(error, PlanRefused) else InputError)(
            f"{path}: {error}"
        ) from error
    except _UNREADABLE as error:
        cause = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise InputError(
            f"{path} cannot be read ({cause}): check that the file is complete and of the kind "
            "its ending says."
        ) from error


def _reader_for(path: Path) -> Reader:
    for ending, read in READERS.items():
        if path.name.lower().endswith(ending):
            return read
    known = ", ".join(READERS)
    raise InputError(
        f"{path} is of a kind this program does not read: use {known} or a folder of .txt files."
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


def _read_npz(path: Path, _: TextOptions) -> Corpus:
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


def _read_npy(path: Path, _: TextOptions) -> Corpus:
    return _matrix_corpus(read_npy(path))


def _read_matrix_market(path: Path, _: TextOptions) -> Corpus:
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


def _read_svmlight(path: Path, _: TextOptions) -> Corpus:
    refuse_large_text(path)
    with path.open("rb") as file:
        lines = sum(part.count(b"\n") for part in iter(lambda: file.read(1 << 20), b""))
    refuse_shape((lines,))
    X, y = load_svmlight_file(str(path))
    return _matrix_corpus(X, y)


def _read_matlab(path: Path, _: TextOptions) -> Corpus:
    return _matrix_corpus(*read_mat(path))


def _require_variable(name: str, names: list[str]) -> None:
    if name not in names:
        listed = ", ".join(sorted(names)) or "nothing"
        raise InputError(f"no variable {name} was found (the file holds {listed}): call it {name}.")


def _read_folder(path: Path, options: TextOptions) -> Corpus:
    """Read every ``.txt`` below the folder; its sub-folder is its topic if all files have one."""
    files = {
        _printable(file.relative_to(path).as_posix()): file
        for file in path.rglob("*")
        if file.suffix.lower() == ".txt" and file.is_file()
    }
    if not files:
        if (path / "manifest.json").exists():
            raise InputError("this is a store of kernels, not a corpus: use gmkcf fit on it.")
        raise InputError("the folder holds no .txt files: give a folder that does.")
    ids = sorted(files)
    refuse_shape((len(ids),))
    size = sum(file.stat().st_size for file in files.values())
    refuse_bytes(size, "reading these texts", most_text())
    contents = [files[name].read_bytes() for name in ids]
    _warn_about_encoding(ids, contents)
    folders = [name.rpartition("/")[0] for name in ids]
    return corpus_from_texts(
        [content.decode("utf-8-sig", errors="replace") for content in contents],
        ids,
        folders if all(folders) else None,
        options,
    )


def _printable(name: str) -> str:
    """A file name as text: bytes that are no UTF-8 are spelled out, so that it can be stored."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _warn_about_encoding(ids: list[str], contents: list[bytes]) -> None:
    damaged = [name for name, content in zip(ids, contents, strict=True) if not _is_utf8(content)]
    if damaged:
        warnings.warn(
            f"{len(damaged)} of {len(ids)} files are not UTF-8 (first: {damaged[0]}); their "
            "unreadable characters are replaced",
            DataWarning,
            stacklevel=2,
        )


def _is_utf8(content: bytes) -> bool:
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _read_jsonl(path: Path, options: TextOptions) -> Corpus:
    refuse_large_text(path)
    with path.open(encoding="utf-8-sig") as file:
        return corpus_from_records(_json_records(bounded_lines(file)), options)


def _json_records(lines: Iterable[str]) -> Iterator[Record]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"line {number} is not valid JSON ({error}): mend it.") from error
        if not isinstance(fields, dict):
            raise InputError(f"line {number} is not a JSON object: write one object per line.")
        yield number, fields


def _read_csv(path: Path, options: TextOptions) -> Corpus:
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    refuse_large_text(path)
    with path.open(encoding="utf-8-sig", newline="") as file, _long_fields():
        # strict: a quote left open would otherwise swallow the rest of the file
        rows = csv.reader(bounded_lines(file), delimiter=delimiter, strict=True)
        return corpus_from_records(_csv_records(rows), options)


@contextmanager
def _long_fields() -> Iterator[None]:
    usual = csv.field_size_limit(MOST_CHARACTERS)
    try:
        yield
    finally:
        csv.field_size_limit(usual)


def _csv_records(rows: Any) -> Iterator[Record]:
    header: list[str] = next(rows, [])
    for cells in rows:
        if cells and len(cells) != len(header):
            raise InputError(
                f"line {rows.line_num} has {len(cells)} cells but the header names {len(header)} "
                "columns: mend or quote it."
            )
        if cells:
            yield rows.line_num, dict(zip(header, cells, strict=True))


READERS: Mapping[str, Reader] = {
    ".npz": _read_npz,
    ".npy": _read_npy,
    ".mtx": _read_matrix_market,
    ".mtx.gz": _read_matrix_market,
    ".svmlight": _read_svmlight,
    ".libsvm": _read_svmlight,
    ".mat": _read_matlab,
    ".jsonl": _read_jsonl,
    ".csv": _read_csv,
    ".tsv": _read_csv,
}
