"""The parent's side of reading MATLAB files; `matlab_child` does the reading."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scipy import sparse

from gmkcf_dask.corpus.arrays import read_npy
from gmkcf_dask.corpus.limits import most_bytes, refuse_shape
from gmkcf_dask.corpus.validate import NotNumericError
from gmkcf_dask.errors import InputError
from gmkcf_dask.plan import MIB

SECONDS = 60.0
"""For one file, and as much again for every 100 MiB of it."""
_CHILD = Path(__file__).with_name("matlab_child.py")
_ADVICE = "the file is damaged or made to do harm, do not use it."


def read_mat(path: Path) -> tuple[Any, list[object] | None]:
    """X and, where there are any, labels of a .mat file. Nothing of it is parsed in this process.

    Returns
    -------
    X : ndarray or csc_array, shape (n_samples, n_features)
    y : list, length n_samples, or None
    """
    with tempfile.TemporaryDirectory(prefix="gmkcf-mat-") as scratch:
        out = Path(scratch, "out")
        ended = run_child([(path, out)], SECONDS * (1 + path.stat().st_size / (100 * MIB)))
        report = out / "report.json"
        if not report.exists():
            raise InputError(f"the reader of MATLAB files {ended}: {_ADVICE}")
        return from_report(json.loads(report.read_text(encoding="utf-8")), out)


def run_child(pairs: Sequence[tuple[Path, Path]], seconds: float) -> str:
    """Convert files in one child; returns, in words, how it ended."""
    command = [sys.executable, "-P", str(_CHILD), str(most_bytes())]
    command += [str(path.absolute()) for pair in pairs for path in pair]
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
    if done.returncode < 0:
        return f"crashed ({signal.Signals(-done.returncode).name})"
    return f"ended with exit code {done.returncode}"


def from_report(report: dict[str, Any], folder: Path) -> tuple[Any, list[object] | None]:
    """What the child found, as arrays; or the sentence it had for us."""
    if "version" in report:
        raise InputError(
            "this is a MATLAB v7.3 (HDF5) file, which is not read: save it again with '-v7'."
        )
    if "refused" in report:
        raise InputError(f"{report['refused']}; {_ADVICE}")
    if "unreadable" in report:
        raise ValueError(report["unreadable"])
    if "shape" not in report:
        listed = ", ".join(sorted(report["names"])) or "nothing"
        raise InputError(f"no variable X was found (the file holds {listed}): call it X.")
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
            "label, so transpose it or mend y."
        )
    parts = {name: read_npy(folder / f"{name}.npy") for name in report["parts"]}
    X: Any = parts.get("X")
    if X is None:
        X = sparse.csc_array((parts["data"], parts["indices"], parts["indptr"]), shape=shape)
    return X, report.get("y")
