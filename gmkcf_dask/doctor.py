"""What is there and what is wrong with it: every worker of a cluster, asked and measured."""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from threadpoolctl import threadpool_info

from gmkcf_dask.cluster import WORKER_ENVIRONMENT
from gmkcf_dask.errors import GmkcfError, PlanRefused
from gmkcf_dask.kernels.preflight import View, look, trouble_with, write_trouble
from gmkcf_dask.kernels.store import KernelStore
from gmkcf_dask.locations import is_remote, location
from gmkcf_dask.plan import human_bytes, refuse_small_workers
from gmkcf_dask.versions import installed_versions, version_differences

READ_SECONDS = 1.0
"""How long each worker reads tiles to measure how fast that is."""
LOW_DISK = 1 << 30
_BLAS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Examined:
    """One worker, as it sees itself. Sizes in bytes.

    Attributes
    ----------
    settings : dict
        Of allocator and BLAS, as far as they differ from ours; None for one that is not set.
    blas_threads : int
        Most threads that a BLAS of the process would use.
    view : View or None
        Of the store; None where there is none.
    place : str or None
        Why a store could not be made at a path where there is none; "" where it could.
    read : tuple of (int, float)
        Bytes of kernel read from the store, and the seconds that took.
    """

    host: str
    versions: dict[str, str]
    memory: int
    threads: int
    settings: dict[str, str | None]
    blas_threads: int
    folder: str
    disk_free: int
    view: View | None = None
    place: str | None = None
    read: tuple[int, float] = (0, 0.0)


@dataclass(frozen=True)
class Patient:
    """A worker's answers, or its error instead, and the seconds of an array to it and back."""

    name: str
    found: Examined | str
    round_trip: float | None = None
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())


def examine(path: str | None, *, there: bool, first: int = 0, dask_worker: Any = None) -> Examined:
    """On a worker (or here): what it has, sees and can.

    Parameters
    ----------
    path : str or None
        A store, or where one shall be.
    there : bool
        The driver sees a store there.
    first : int
        The tile to begin reading with: each worker another, so that none helps the others.
    """
    folder = str(Path.cwd()) if dask_worker is None else str(dask_worker.local_directory)
    manager = getattr(dask_worker, "memory_manager", None)
    memory = getattr(manager, "memory_limit", None) or psutil.virtual_memory().total
    threads = 1 if dask_worker is None else int(dask_worker.state.nthreads)
    differ = {n: os.environ.get(n) for n, v in WORKER_ENVIRONMENT.items() if os.environ.get(n) != v}
    pools = [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]
    asked: dict[str, Any] = {}
    if path is not None:
        asked = _of_store(path, first) if there else {"place": _trouble_with_place(location(path))}
    return Examined(
        socket.gethostname(),
        installed_versions(),
        int(memory),
        threads,
        differ,
        max(pools, default=1),
        folder,
        shutil.disk_usage(folder).free,
        **asked,
    )


def _of_store(path: str, first: int) -> dict[str, Any]:
    view = look(path, write=True)
    return {"view": view, "read": (0, 0.0) if view.found is None else _read(location(path), first)}


def _trouble_with_place(store: Path) -> str:
    if is_remote(store):
        return write_trouble(store) or ""
    existing = next((p for p in (store, *store.parents) if p.exists()), None)
    return "nothing of the path exists" if existing is None else _room(existing)


def _room(folder: Path) -> str:
    if not folder.is_dir():
        return f"{folder} is a file"
    trouble = write_trouble(folder)
    return "" if trouble is None else f"{folder}: {trouble}"


def _read(path: Path, first: int) -> tuple[int, float]:
    """Bytes of kernel values and seconds, for as many tiles as a moment has room for."""
    try:
        store = KernelStore.open(path)
    except GmkcfError:
        return 0, 0.0
    reader, n_tiles = store.reader, store.tiling.n_tiles
    buffer = reader.buffer()
    begin, read, tile = time.perf_counter(), 0, first
    while time.perf_counter() - begin < READ_SECONDS and tile < first + n_tiles * len(store.names):
        kernel, t = divmod(tile % (n_tiles * len(store.names)), n_tiles)
        read += reader.raw(kernel, t, buffer).nbytes
        tile += 7  # neighbours may have come with the one before
    return read, time.perf_counter() - begin


def judge(
    name: str,
    found: Any,
    round_trip: float | None,
    here: dict[str, str],
    store_id: str | None = None,
) -> Patient:
    """What is wrong with a worker, and how to mend it; and what could be better."""
    if isinstance(found, GmkcfError):  # of the place it was to look at
        return Patient(name, str(found), round_trip, (str(found),))
    if not isinstance(found, Examined):
        words = f"it cannot be asked ({found}): install gmkcf-dask there, the same version as here"
        return Patient(name, str(found), round_trip, (words,))
    problems = [
        f"{difference}: install the same versions everywhere"
        for difference in version_differences(here, {name: found.versions})
    ]
    try:
        refuse_small_workers(found.memory)
    except PlanRefused as error:
        problems.append(str(error))
    problems += _store_problems(found, store_id)
    notes = []
    if found.disk_free < LOW_DISK:
        notes.append(
            f"only {human_bytes(found.disk_free)} free in {found.folder}, where it spills to: give "
            "it another --local-directory"
        )
    allocator = [n for n in found.settings if n not in _BLAS]
    if allocator:
        notes.append(
            f"{', '.join(allocator)} not as recommended, reading tiles may be several times "
            "slower: start it with DASK_CONFIG=cluster_configs/workers.yaml"
        )
    return Patient(name, found, round_trip, tuple(problems), tuple(notes))


def _store_problems(found: Examined, store_id: str | None) -> list[str]:
    if found.place:
        return [f"no store can be made there ({found.place}): choose a path that workers share"]
    if found.view is None or store_id is None:
        return []
    wrong = trouble_with(found.view, store_id)
    mend = "mount it for writing" if found.view.found == store_id else "put it where workers see it"
    return [] if wrong is None else [f"it {wrong}: {mend}"]


def examine_cluster(
    client: Any,
    path: Path | None,
    store_id: str | None,
    shape: tuple[int, int],
    wait: float = 60.0,
) -> list[Patient]:
    """Ask every worker of a cluster, and measure.

    Parameters
    ----------
    client : distributed.Client
    path : Path or None
        A store, or where one shall be.
    store_id : str or None
        Of the store that the driver sees there.
    shape : tuple of (int, int)
        Of the array that is sent to each worker and back.
    """
    here = installed_versions()
    text = None if path is None else str(path)
    workers = sorted(client.scheduler_info(n_workers=-1)["workers"])
    patients = []
    for number, worker in enumerate(workers):
        # one after the other: what they share is then measured once for each, not divided
        how = {"there": store_id is not None, "first": 31 * number}
        found = client.run(examine, text, workers=[worker], on_error="return", **how)[worker]
        seconds = _round_trip(client, worker, shape, wait)
        patients.append(judge(worker, found, seconds, here, store_id))
    return patients


def examine_here(path: Path | None, store_id: str | None) -> list[Patient]:
    """The same for this process, where work runs on threads."""
    found = examine(None if path is None else str(path), there=store_id is not None)
    patient = judge("this process", found, None, installed_versions(), store_id)
    return [replace(patient, notes=())]  # its settings are made for the work itself


def _round_trip(client: Any, worker: str, shape: tuple[int, int], wait: float) -> float | None:
    array = np.random.default_rng(0).random(shape)
    best = None
    for _ in range(3):
        begin = time.perf_counter()
        future = client.submit(_back, array, workers=[worker], pure=False)
        try:
            future.result(timeout=wait)
        except (OSError, ImportError, RuntimeError):
            return None
        seconds = time.perf_counter() - begin
        best = seconds if best is None else min(best, seconds)
    return best


def _back(array: Any) -> Any:
    return array


def report(patients: Sequence[Patient], shape: tuple[int, int]) -> list[str]:
    """All of it in words, a few lines for each worker."""
    lines = []
    for patient in patients:
        lines.append(patient.name)
        if isinstance(patient.found, Examined):
            lines += [f"  {line}" for line in _described(patient.found)]
        if patient.round_trip is not None:
            size = human_bytes(8 * shape[0] * shape[1])
            rows, columns = shape
            lines.append(
                f"  {rows:,} × {columns} numbers ({size}) there and back in "
                f"{1000 * patient.round_trip:.0f} ms"
            )
        lines += [f"  WRONG: {problem}" for problem in patient.problems]
        lines += [f"  note: {note}" for note in patient.notes]
    return lines


def _described(found: Examined) -> list[str]:
    versions = ", ".join(f"{name} {value}" for name, value in found.versions.items())
    settings = _settings(found.settings)
    lines = [
        f"on {found.host}: {found.threads} thread{'s' if found.threads > 1 else ''}, "
        f"{human_bytes(found.memory)} of memory",
        versions,
        f"allocator and BLAS: {settings}; BLAS uses {found.blas_threads} "
        f"thread{'s' if found.blas_threads > 1 else ''}",
        f"{human_bytes(found.disk_free)} free in {found.folder}",
    ]
    if found.view is not None and found.view.found is not None:
        rights = "reads and writes" if found.view.trouble is None else "reads"
        speed = f", at {human_bytes(int(found.read[0] / found.read[1]))}/s" if found.read[1] else ""
        lines.append(f"{rights} the store{speed}")
    elif found.place == "":
        lines.append("could make a store there")
    return lines


def _settings(differ: Mapping[str, str | None]) -> str:
    if not differ:
        return "as recommended"
    return "as recommended but " + ", ".join(
        f"{name} {'not set' if value is None else f'= {value}'}" for name, value in differ.items()
    )
