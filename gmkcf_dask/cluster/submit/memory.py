"""Memory of the driver of a job, from what its input tells at once."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from gmkcf_dask.cluster.submit.slurm import SCHEDULER_BYTES
from gmkcf_dask.compute.costs import SCHEDULER_BYTES as IN_PLAN
from gmkcf_dask.compute.costs import Job
from gmkcf_dask.compute.plan import make_plan
from gmkcf_dask.corpus.read import UNREADABLE
from gmkcf_dask.errors import GmkcfError
from gmkcf_dask.kernels.specs import resolve_kernels
from gmkcf_dask.store.kernel_store import KernelStore
from gmkcf_dask.store.object_storage import is_remote

_LARGEST_SHAPE = 4096
_ANY_WORKER = 1 << 50  # the plan is asked for its driver only


def driver_memory(command: str, params: dict[str, Any]) -> int | None:
    """Bytes of driver and scheduler by the plan; None where only reading the input could tell.

    A store tells it by its manifest, a matrix by the headers of its `.npy` or `.npz`. Of texts
    nothing is known before they are read.

    Parameters
    ----------
    command : {"run", "fit"}
    params : dict
        The options of that command.
    """
    try:
        if command == "fit":
            manifest = KernelStore.open(params["store"]).manifest
            shape, size = (manifest.n_samples, manifest.n_features), 0
            n_kernels, precision = len(manifest.kernels), manifest.precision
            signed = min((manifest.stored_minima or {"": 0.0}).values()) < 0.0
        else:
            shape, size = _matrix(params["input_path"])
            n_kernels = len(resolve_kernels(params["kernels"]))
            precision = params.get("precision") or "float32"
            signed = params.get("scaling") == "none"
        plan = make_plan(
            *shape,
            n_kernels,
            params["n_clusters"],
            feature_bytes=size,
            memory_per_worker=_ANY_WORKER,
            precision=precision,
            signed=signed,
            job=_job(params, n_kernels),
        )
    except (GmkcfError, KeyError, *UNREADABLE):
        return None  # the job itself says what is wrong with its input
    # the plan counts a scheduler inside the driver's process; here it has one of its own
    return plan.driver_bytes - IN_PLAN + SCHEDULER_BYTES


def _job(params: dict[str, Any], n_kernels: int) -> Job:
    """What the options of a command say of the job."""
    init = params.get("init")
    return Job(
        params["n_clusters"],
        params.get("method") or "gmkcf",
        n_init=params.get("n_init") or 1,
        n_alone=n_kernels if params.get("kernel") == "all" else 1,
        spectral=init == "spectral",
    )


def _matrix(given: str) -> tuple[tuple[int, int], int]:
    """Shape and bytes of a matrix, without reading it."""
    path = Path(given)
    if is_remote(given):
        raise ValueError(given)
    if path.suffix == ".npy":
        with path.open("rb") as file:
            shape, dtype = _header(file)
        return _of_two(shape), math.prod(shape) * dtype.itemsize
    with zipfile.ZipFile(path) as archive:
        size = sum(member.file_size for member in archive.infolist())
        if "shape.npy" in archive.namelist():  # sparse
            if archive.getinfo("shape.npy").file_size > _LARGEST_SHAPE:
                raise ValueError(given)
            with archive.open("shape.npy") as member:
                stored = np.lib.format.read_array(member, allow_pickle=False)
            return _of_two(tuple(map(int, stored.ravel()))), size
        with archive.open("X.npy") as member:
            return _of_two(_header(member)[0]), size


def _header(file: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    version = np.lib.format.read_magic(file)
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    shape, _, dtype = read[version](file)
    return shape, dtype


def _of_two(shape: tuple[int, ...]) -> tuple[int, int]:
    n, d = shape
    return n, d
