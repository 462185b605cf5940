"""Reads MATLAB files in a process of its own: SciPy's reader is not hardened against crafted ones.

A script: ``python -P matlab_child.py MOST_BYTES IN OUT``. It leaves a folder OUT with
``report.json`` and, where X was found, its arrays as .npy files: plain numbers, so that the parent
needs no pickle. It imports nothing of this package, which keeps its start short.
"""

from __future__ import annotations

import json
import math
import sys
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import scipy.io
from scipy import sparse

CANNOT_WRITE = 100
"""Exit codes from here on are error numbers of writing results."""
_LARGEST_INFLATION = 1100
"""zlib packs at most 1032 bytes into one."""


def main(most: int, source: Path, folder: Path) -> int:
    """Read one file; the exit code is `CANNOT_WRITE` and the error number if results cannot be."""
    _bound_memory(most)
    warnings.simplefilter("ignore")
    try:
        folder.mkdir(exist_ok=True)
        report = convert_mat(source, folder, most)
        # written last, whole: a report that is there is complete
        (folder / "report.part").write_text(json.dumps(report), encoding="utf-8")
        (folder / "report.part").replace(folder / "report.json")
    except OSError as error:
        number = error.errno or 0
        return CANNOT_WRITE + number if number < 256 - CANNOT_WRITE else 1
    return 0


def convert_mat(source: Path, folder: Path, most: int) -> dict[str, Any]:
    """One file to plain arrays; the report tells the parent what there is, or why not."""
    try:
        listed = scipy.io.whosmat(str(source))
        names = [name for name, *_ in listed]
        if "X" not in names:
            return {"names": names}
        for name, shape, kind in listed:
            stored_sparse = kind == "sparse" and name == "X"  # y is filled up with zeros
            too_large = _too_large(shape, stored_sparse, source.stat().st_size, most)
            if name in ("X", "y") and too_large:
                return {"refused": f"{name} declares the shape {shape}: {too_large}"}
        variables = scipy.io.loadmat(str(source), variable_names=["X", "y"])
        if variables.get("X") is None:
            return {"names": [name for name in variables if not name.startswith("__")]}
        saved = _save_X(variables["X"], folder)
        return (
            saved if "failed" in saved else {"names": names, **saved, **_labels(variables.get("y"))}
        )
    except NotImplementedError:
        return {"version": "7.3"}
    except MemoryError:
        return {"refused": "it needs more memory than may be used"}
    except Exception as error:  # noqa: BLE001  # whatever SciPy meets in a crafted file
        cause = " ".join(str(error).split()).rstrip(".")
        return {"unreadable": cause or type(error).__name__}


def _too_large(shape: tuple[int, ...], stored_sparse: bool, file_size: int, most: int) -> str:
    if any(side < 0 for side in shape):
        return "the header is damaged"
    if stored_sparse:
        return "it has too many columns" if 8 * shape[-1] > most else ""
    if math.prod(shape) > _LARGEST_INFLATION * file_size:
        return "the file is too small to hold that"
    return "it needs more memory than may be used" if 8 * math.prod(shape) > most else ""


def _save_X(X: Any, folder: Path) -> dict[str, Any]:
    parts = {"X": X}
    if sparse.issparse(X):
        column_wise: Any = X
        column_wise = column_wise.tocsc()
        parts = {name: getattr(column_wise, name) for name in ("data", "indices", "indptr")}
    shape = [int(side) for side in X.shape]
    if X.dtype.kind in "biuf":
        try:
            for name, values in parts.items():
                _save(folder / f"{name}.npy", values)
        except OSError as error:  # of the folder for our results, not of the file that is read
            for name in parts:  # room for the report
                (folder / f"{name}.npy").unlink(missing_ok=True)
            needed = sum(int(values.nbytes) for values in parts.values())
            return {"failed": error.errno, "needed": needed}
    return {"parts": sorted(parts), "shape": shape, "kind": X.dtype.kind}


def _save(path: Path, values: Any) -> None:
    array = np.asarray(values)
    header = np.lib.format.header_data_from_array_1_0(array)
    flat = np.ascontiguousarray(array.T if header["fortran_order"] else array)
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        file.write(flat.data)  # `tofile` does not say why it failed


def _labels(y: Any) -> dict[str, Any]:
    if y is None:
        return {}
    values = y.toarray() if hasattr(y, "toarray") else np.asarray(y)
    # MATLAB wraps each string of a cell array in an array of its own.
    flat = [
        value.item() if isinstance(value, np.ndarray) and value.size == 1 else value
        for value in values.ravel().tolist()
    ]
    labels = [value if isinstance(value, str | int | float) else str(value) for value in flat]
    return {"y": labels, "y_shape": [int(side) for side in values.shape]}


def _bound_memory(most: int) -> None:
    """No more address space than what is used now and what may be used: a bomb ends itself."""
    with suppress(ImportError, OSError, ValueError):  # not Linux: the parent's time limit remains
        import resource

        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        bound = pages * resource.getpagesize() + 2 * most
        resource.setrlimit(resource.RLIMIT_AS, (bound, bound))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])))
