"""Files become a `Corpus`; the ending of the name says how to read them.

Matrices: ``.npz``, ``.npy``, ``.mtx``, ``.mtx.gz``, ``.svmlight``, ``.libsvm``, ``.mat``.
Texts: ``.jsonl``, ``.csv``, ``.tsv``, or a folder of ``.txt`` files.

No pickles are ever loaded. SciPy's MATLAB reader is not hardened against crafted files: read only
``.mat`` files you trust.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import struct
import sys
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import scipy.io
from scipy import sparse
from scipy.io.matlab import MatReadError
from sklearn.datasets import load_svmlight_file

from gmkcf_dask.corpus.model import Corpus
from gmkcf_dask.corpus.text import Record, TextOptions, corpus_from_records, corpus_from_texts
from gmkcf_dask.corpus.validate import as_features, check_ids, check_labels
from gmkcf_dask.errors import DataWarning, InputError

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
    MatReadError,
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
    """
    path = Path(path)
    if not path.exists():
        raise InputError(f"{path} does not exist: check the path.")
    read = _read_folder if path.is_dir() else _reader_for(path)
    try:
        return read(path, text)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
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
        labels=None if y is None else check_labels(_flat(y), n),
    )


def _flat(y: Any) -> list[object]:
    values = y.toarray() if hasattr(y, "toarray") else np.asarray(y)
    # MATLAB wraps each string of a cell array in an array of its own.
    return [
        value.item() if isinstance(value, np.ndarray) and value.size == 1 else value
        for value in values.ravel().tolist()
    ]


def _read_npz(path: Path, _: TextOptions) -> Corpus:
    with zipfile.ZipFile(path) as archive:
        names = [Path(name).stem for name in archive.namelist()]
    if "format" in names and "X" not in names:
        return _matrix_corpus(sparse.load_npz(path))
    _require_variable("X", names)
    with np.load(path, allow_pickle=False) as arrays:
        return _matrix_corpus(arrays["X"], arrays.get("y"), _optional_list(arrays.get("ids")))


def _optional_list(values: Any) -> list[object] | None:
    return None if values is None else _flat(values)


def _read_npy(path: Path, _: TextOptions) -> Corpus:
    with path.open("rb") as file:
        return _matrix_corpus(np.lib.format.read_array(file, allow_pickle=False))


def _read_matrix_market(path: Path, _: TextOptions) -> Corpus:
    opened = gzip.open if path.suffix.lower() == ".gz" else open
    with opened(path, "rb") as file:
        text = file.read()
    # SciPy 1.17 stops reading only at a line end: a NUL or a last line left open crashes Python.
    if b"\0" in text:
        raise InputError(
            "a Matrix Market file is plain text but this one holds NUL bytes: mend it."
        )
    return _matrix_corpus(scipy.io.mmread(io.BytesIO(text + b"\n")))


def _read_svmlight(path: Path, _: TextOptions) -> Corpus:
    X, y = load_svmlight_file(str(path))
    return _matrix_corpus(X, y)


def _read_matlab(path: Path, _: TextOptions) -> Corpus:
    try:
        _require_variable("X", [name for name, *_ in scipy.io.whosmat(str(path))])
        variables = scipy.io.loadmat(str(path), variable_names=["X", "y"])
    except NotImplementedError as error:
        raise InputError(
            "this is a MATLAB v7.3 (HDF5) file, which is not read: save it again with '-v7'."
        ) from error
    X, y = variables["X"], variables.get("y")
    if y is not None and np.prod(y.shape) != X.shape[0]:
        raise InputError(
            f"X has shape {X.shape} but y has shape {y.shape}: X needs one row per label, so "
            "transpose it or mend y."
        )
    return _matrix_corpus(X, y)


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
    with path.open(encoding="utf-8-sig") as file:
        return corpus_from_records(_json_records(file), options)


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
    with path.open(encoding="utf-8-sig", newline="") as file, _fields_of_any_size():
        # strict: a quote left open would otherwise swallow the rest of the file
        rows = csv.reader(file, delimiter=delimiter, strict=True)
        return corpus_from_records(_csv_records(rows), options)


@contextmanager
def _fields_of_any_size() -> Iterator[None]:
    usual = csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
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
