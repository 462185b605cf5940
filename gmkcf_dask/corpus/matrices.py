"""Readers of matrix files. Headers are checked first, and pickles are never loaded."""

from __future__ import annotations

import errno
import gzip
import io
import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import scipy.io
from numpy.lib import format as npy
from scipy import sparse
from sklearn.datasets import load_svmlight_file

from gmkcf_dask.corpus.limits import (
    exit_reason,
    most_bytes,
    most_text,
    refuse_array,
    refuse_bytes,
    refuse_shape,
)
from gmkcf_dask.corpus.matlab_child import CANNOT_WRITE
from gmkcf_dask.corpus.model import Corpus
from gmkcf_dask.corpus.validate import NotNumericError, as_features, check_ids, check_labels
from gmkcf_dask.errors import InputError
from gmkcf_dask.system.disk_space import disk_full_errors, full_error
from gmkcf_dask.system.retry import is_full, is_trouble, refused, storage_error
from gmkcf_dask.system.temporary import run_folder, temporary_root
from gmkcf_dask.system.units import MIB, human_bytes

Reader = Callable[[Path], Corpus]
AnyArray = npt.NDArray[Any]
_KNOWN = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


def read_npy(path: Path) -> AnyArray:
    """The array of an .npy file."""
    with path.open("rb") as file:
        _check_header(file, path.stat().st_size, "X")
        file.seek(0)
        return npy.read_array(file, allow_pickle=False)


def read_npy_header(path: Path) -> tuple[tuple[int, ...], Any]:
    """Shape and dtype of the array of an .npy file."""
    with path.open("rb") as file:
        return _header(file)


def npz_names(path: Path | IO[bytes]) -> list[str]:
    """Names of the arrays in an .npz file."""
    with zipfile.ZipFile(path) as archive:
        return [name.removesuffix(".npy") for name in archive.namelist()]


def read_npz(path: Path | IO[bytes], names: tuple[str, ...]) -> dict[str, AnyArray]:
    """The arrays of these names, as far as the file has them.

    A member is unpacked only as far as the archive's directory says (zipfile stops there), so that
    number is checked against memory, and each array's header against that number.
    """
    arrays: dict[str, AnyArray] = {}
    with zipfile.ZipFile(path) as archive:
        members = {f"{name}.npy": name for name in names}
        listed = [info for info in archive.infolist() if info.filename in members]
        if len({info.filename for info in listed}) < len(listed):
            raise InputError("an array is there twice under one name: write the file again.")
        if any(info.compress_type not in _KNOWN for info in listed):
            raise InputError(
                "it uses a compression that NumPy does not write: save the file again."
            )
        refuse_bytes(sum(info.file_size for info in listed), "unpacking this file")
        for info in listed:
            name = members[info.filename]
            with archive.open(info) as file:
                _check_header(file, info.file_size, name)
            with archive.open(info) as file:
                arrays[name] = npy.read_array(file, allow_pickle=False)
    return arrays


def _check_header(file: IO[bytes], size: int, name: str) -> None:
    shape, dtype = _header(file, name)
    if not dtype.hasobject:  # those are refused when read, in NumPy's own words
        refuse_array(shape, dtype, size - file.tell(), name)


def _header(file: IO[bytes], name: str = "X") -> tuple[tuple[int, ...], Any]:
    version = npy.read_magic(file)
    read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(version)
    if read is None:  # 3.0 is for named fields in other scripts, which are no matrix
        raise InputError(
            f"{name} is of .npy version {version}, which is not read: save it plainly."
        )
    shape, _, dtype = read(file)
    return shape, dtype


FILE_SECONDS = 60.0
"""For one file, and as much again for every 100 MiB of it."""
_CHILD = Path(__file__).with_name("matlab_child.py")
_NO_ROOM = "set TMPDIR to a folder with more room"
_ADVICE = "the file is damaged or made to do harm, do not use it."


def read_mat(path: Path) -> tuple[Any, list[object] | None]:
    """X, shape (n_samples, n_features), and labels of a .mat file, parsed in a child process."""
    root, size = temporary_root(), path.stat().st_size
    with disk_full_errors(root, _NO_ROOM, lambda: _needed(size)), run_folder("mat", root) as folder:
        out = folder / "out"
        ended = run_child(path, out, FILE_SECONDS * (1 + size / (100 * MIB)))
        if (out / "report.json").exists():
            report = json.loads((out / "report.json").read_text(encoding="utf-8"))
            if "failed" not in report:
                return from_report(report, out)
            raise _cannot_write(report["failed"], root, report["needed"])
        if isinstance(ended, int):
            if ended > CANNOT_WRITE:
                raise _cannot_write(ended - CANNOT_WRITE, root, size)
            ended = exit_reason(ended)
        raise InputError(f"the reader of MATLAB files {ended}: {_ADVICE}")


def _needed(size: int) -> str:
    return f"reading this MATLAB file needs at least {human_bytes(max(1, size))}"


def _cannot_write(number: int | None, root: Path, needed: int) -> Exception:
    """The error for a child that cannot write its results; the input file is fine."""
    error = OSError(number or errno.EIO, os.strerror(number or errno.EIO))
    if is_full(error):
        return full_error(error, root, _NO_ROOM, _needed(needed))
    if is_trouble(error):
        return storage_error(error, root, "write")
    return refused(error, root, "write")


def run_child(path: Path, out: Path, seconds: float) -> int | str:
    """Convert a file in a child process; its return code, or in words why there is none."""
    words = map(str, (_CHILD, most_bytes(), path.absolute(), out.absolute()))
    command = [sys.executable, "-P", *words]
    # one thread: each further one would reserve address space, which is bounded
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(  # noqa: S603  # our own script; the paths are arguments, not code
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"did not end within {seconds:.0f} s"
    except OSError as error:
        return f"could not be started ({error})"
    return done.returncode


def from_report(report: dict[str, Any], folder: Path) -> tuple[Any, list[object] | None]:
    """The arrays of a report of the child, or its error."""
    if "version" in report:
        raise InputError(
            "this is a MATLAB v7.3 (HDF5) file, which is not read: save it again with '-v7'."
        )
    if "refused" in report:
        raise InputError(f"{report['refused']}; {_ADVICE}")
    if "unreadable" in report:
        raise ValueError(report["unreadable"])
    if "shape" not in report:
        raise _no_variable(report["names"])
    shape = tuple(report["shape"])
    if report["kind"] == "c":
        raise InputError("Complex data not supported: X must hold real numbers.")
    if report["kind"] not in "biuf":
        what = {"O": "a cell array", "U": "text", "V": "a struct"}.get(report["kind"], "something")
        raise NotNumericError(f"X is {what}, not numbers: save a matrix under that name.")
    refuse_shape(shape)
    if "y" in report and len(report["y"]) != shape[0]:
        raise InputError(
            f"X has shape {shape} but y has shape {tuple(report['y_shape'])}: X needs one row per "
            "label, so transpose it or fix y."
        )
    parts = {name: read_npy(folder / f"{name}.npy") for name in report["parts"]}
    X: Any = parts.get("X")
    if X is None:
        X = sparse.csc_array((parts["data"], parts["indices"], parts["indptr"]), shape=shape)
    return X, report.get("y")


def _no_variable(names: list[str]) -> InputError:
    listed = ", ".join(sorted(names)) or "nothing"
    return InputError(f"no variable X was found (the file holds {listed}): call it X.")


def _matrix_corpus(X: object, y: Any = None, ids: Iterable[object] | None = None) -> Corpus:
    features = as_features(X)
    n = features.shape[0]
    if isinstance(y, np.ndarray):
        if y.size != n:  # before a list of any length is made of it
            raise InputError(f"there are {y.size} labels for {n} samples: give one per sample.")
        y = y.ravel().tolist()
    return Corpus(
        X=features,
        ids=check_ids(range(n) if ids is None else ids, n),
        labels=None if y is None else check_labels(y, n),
    )


_SPARSE_PARTS = (
    "format", "shape", "data", "indices", "indptr", "row", "col", "coords", "offsets", "_is_array",
)  # fmt: skip


def _read_npz(path: Path) -> Corpus:
    names = npz_names(path)
    if "format" in names and "X" not in names:
        return _matrix_corpus(_sparse_of(read_npz(path, _SPARSE_PARTS)))
    if "X" not in names:
        raise _no_variable(names)
    arrays = read_npz(path, ("X", "y", "ids"))
    ids = arrays.get("ids")
    return _matrix_corpus(
        arrays["X"], arrays.get("y"), None if ids is None else ids.ravel().tolist()
    )


def _sparse_of(parts: Mapping[str, Any]) -> Any:
    """What `scipy.sparse.save_npz` wrote; the shape is checked before SciPy believes it."""
    kind = parts["format"].item()
    kind = kind.decode("ascii") if isinstance(kind, bytes) else str(kind)
    if parts["shape"].size != 2:
        raise InputError(f"X has {parts['shape'].size} dimension(s) but needs 2.")
    rows, columns = (int(side) for side in parts["shape"].ravel())
    refuse_shape((rows, columns))
    shape, data = (rows, columns), parts["data"]
    compressed = {"csr": sparse.csr_array, "csc": sparse.csc_array, "bsr": sparse.bsr_array}
    if kind in compressed:
        return compressed[kind]((data, parts["indices"], parts["indptr"]), shape=shape)
    if kind == "dia":
        return sparse.dia_array((data, parts["offsets"]), shape=shape)
    if kind == "coo":
        where = tuple(parts["coords"]) if "coords" in parts else (parts["row"], parts["col"])
        return sparse.coo_array((data, where), shape=shape)
    raise InputError(f"the sparse format {kind[:20]!r} is not read: save it as csr.")


def _read_matrix_market(path: Path) -> Corpus:
    opened = gzip.open if path.suffix.lower() == ".gz" else open
    with opened(path, "rb") as file:
        text = file.read(most_text() + 1)  # never more, however much is packed into a .gz
    refuse_bytes(len(text), "reading this text", most_text())
    # SciPy 1.17 stops reading only at a line end: a NUL or a last line left open crashes Python.
    if b"\0" in text:
        raise InputError(
            "a Matrix Market file is plain text but this one contains NUL bytes: fix it."
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
    refuse_bytes(path.stat().st_size, "reading this text", most_text())
    with path.open("rb") as file:
        lines = sum(part.count(b"\n") for part in iter(lambda: file.read(1 << 20), b""))
    refuse_shape((lines,))
    X, y = load_svmlight_file(str(path))
    return _matrix_corpus(X, y)


READERS: Mapping[str, Reader] = {
    ".npz": _read_npz,
    ".npy": lambda path: _matrix_corpus(read_npy(path)),
    ".mtx": _read_matrix_market,
    ".mtx.gz": _read_matrix_market,
    ".svmlight": _read_svmlight,
    ".libsvm": _read_svmlight,
    ".mat": lambda path: _matrix_corpus(*read_mat(path)),
}
"""Of matrices, by ending."""


def _rows(file: IO[bytes]) -> int | None:
    shape, _ = _header(file)
    return shape[0] if len(shape) == 2 else None


def count_matrix_rows(path: Path) -> int | None:
    """Samples of a matrix file, from its header or lines; None where only reading tells."""
    name = path.name.lower()
    if not path.is_file():
        return None
    if name.endswith(".npy"):
        with path.open("rb") as file:
            return _rows(file)
    if name.endswith(".npz"):
        with zipfile.ZipFile(path) as archive:
            members = archive.namelist()
            if "X.npy" in members:
                with archive.open("X.npy") as file:
                    return _rows(file)
        shape = read_npz(path, ("shape",)).get("shape") if "format.npy" in members else None
        return None if shape is None or shape.size != 2 else int(shape.ravel()[0])
    if name.endswith((".svmlight", ".libsvm")):
        with path.open("rb") as file:
            lines = (line.lstrip() for line in iter(lambda: file.readline(1 << 20), b""))
            return sum(1 for line in lines if line and not line.startswith(b"#")) or None
    if name.endswith(".mtx"):
        with path.open("rb") as file:
            for line in iter(lambda: file.readline(1 << 20), b""):
                if line.strip() and not line.startswith(b"%"):
                    return int(line.split()[0])
    return None
