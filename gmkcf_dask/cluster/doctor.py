"""What is there and what is wrong with it: every worker of a cluster, asked and measured."""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from threadpoolctl import threadpool_info

from gmkcf_dask.cluster.resources import WORKER_ENVIRONMENT
from gmkcf_dask.compute.blas import one_blas_thread
from gmkcf_dask.compute.plan import refuse_small_workers
from gmkcf_dask.compute.runner import large_graphs
from gmkcf_dask.compute.worker_checks import (
    ANSWER_SECONDS,
    ask_workers,
    installed_versions,
    version_differences,
)
from gmkcf_dask.errors import GmkcfError, InputError, PlanRefused
from gmkcf_dask.store.files import exists, nearest_existing, put_if_absent, remove
from gmkcf_dask.store.kernel_store import KernelStore, is_store
from gmkcf_dask.store.manifest import Manifest
from gmkcf_dask.store.object_storage import is_remote, location
from gmkcf_dask.store.preflight import View, look, trouble_with, write_trouble
from gmkcf_dask.system.resources import total_memory
from gmkcf_dask.system.units import human_bytes

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
class WorkerReport:
    """A worker's answers, or its error instead, and the seconds of an array to it and back."""

    name: str
    examined: Examined | str
    round_trip: float | None = None
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())


@dataclass(frozen=True)
class Place:
    """Where the store is, or shall be.

    Attributes
    ----------
    path : str
    store_id : str or None
        Of the store that the driver sees there.
    probe : str
        Where there is none yet: a file that the driver has put into the folder in which it would be
        made, the nearest that is there, for the others to see.
    """

    path: str
    store_id: str | None = None
    probe: str = ""


@contextmanager
def place_of(path: Path) -> Iterator[Place]:
    """What the driver sees of a place; refused where it could not make a store there itself."""
    if is_store(path):
        yield Place(str(path), Manifest.read(path).store_id)
        return
    folder = path.parent if is_remote(path) else nearest_existing(path.parent)
    probe = folder / f".probe.{uuid4().hex}"
    trouble = _trouble_with(probe, put=True)
    if trouble:
        raise InputError(f"no store can be made at {path} ({trouble}): choose another path")
    try:
        yield Place(str(path), None, str(probe))
    finally:
        remove(probe)


def _trouble_with(probe: Path, *, put: bool = False) -> str:
    """Why a store could not be made beside a file, as seen from here; "" where it could."""
    folder = probe.parent
    if not is_remote(folder) and folder.exists() and not folder.is_dir():
        return f"{folder} is a file"
    trouble = write_trouble(folder)
    if trouble is not None:
        return f"{folder}: {trouble}"
    if put:
        put_if_absent(probe, b"")
    elif not exists(probe):
        return f"{folder} is another one than the driver's"
    return ""


def examine(place: Place | None, *, first: int = 0, dask_worker: Any = None) -> Examined:
    """On a worker (or here): what it has, sees and can.

    Parameters
    ----------
    place : Place or None
    first : int
        The tile to begin reading with: each worker another, so that none helps the others.
    """
    folder = str(Path.cwd()) if dask_worker is None else str(dask_worker.local_directory)
    manager = getattr(dask_worker, "memory_manager", None)
    memory = getattr(manager, "memory_limit", None) or total_memory()
    threads = 1 if dask_worker is None else int(dask_worker.state.nthreads)
    differ = {n: os.environ.get(n) for n, v in WORKER_ENVIRONMENT.items() if os.environ.get(n) != v}
    pools = [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]
    return Examined(
        socket.gethostname(),
        installed_versions(),
        int(memory),
        threads,
        differ,
        max(pools, default=1),
        folder,
        shutil.disk_usage(folder).free,
        **({} if place is None else _seen_of(place, first)),
    )


def _seen_of(place: Place, first: int) -> dict[str, Any]:
    if place.store_id is None:
        return {"place": _trouble_with(location(place.probe))}
    view = look(place.path, write=True)
    speed = (0, 0.0) if view.found is None else _read(location(place.path), first)
    return {"view": view, "read": speed}


def _read(path: Path, first: int) -> tuple[int, float]:
    """Bytes of kernel values and seconds, for as many tiles as a moment has room for.

    Tiles that are damaged, or not yet there, are not what is asked for here.
    """
    begin, read, tile = time.perf_counter(), 0, first
    with suppress(GmkcfError):
        store = KernelStore.open(path)
        reader, n_tiles = store.reader, store.tiling.n_tiles
        n, buffer, begin = n_tiles * len(store.names), reader.buffer(), time.perf_counter()
        while time.perf_counter() - begin < READ_SECONDS and tile < first + n:
            kernel, t = divmod(tile % n, n_tiles)
            read += reader.raw(kernel, t, buffer).nbytes
            tile += 7  # neighbours may have come with the one before
    return read, time.perf_counter() - begin


def judge(
    name: str,
    examined: Any,
    round_trip: float | None,
    here: dict[str, str],
    store_id: str | None = None,
) -> WorkerReport:
    """What is wrong with a worker, and how to fix it; and what could be better."""
    if isinstance(examined, GmkcfError):  # of the place it was to look at
        return WorkerReport(name, str(examined), round_trip, (str(examined),))
    if isinstance(examined, OSError):
        words = f"it does not answer ({examined}): see whether it runs, and whether its disks hang"
        return WorkerReport(name, str(examined), round_trip, (words,))
    if not isinstance(examined, Examined):
        words = (
            f"it cannot be asked ({examined}): install gmkcf-dask there, the same version as here"
        )
        return WorkerReport(name, str(examined), round_trip, (words,))
    problems = [
        f"{difference}: install the same versions everywhere"
        for difference in version_differences(here, {name: examined.versions})
    ]
    try:
        refuse_small_workers(examined.memory)
    except PlanRefused as error:
        problems.append(str(error))
    problems += _store_problems(examined, store_id)
    notes = []
    if examined.disk_free < LOW_DISK:
        notes.append(
            f"only {human_bytes(examined.disk_free)} free in {examined.folder}, where it spills "
            "to: give it another --local-directory"
        )
    allocator = [n for n in examined.settings if n not in _BLAS]
    if allocator:
        notes.append(
            f"{', '.join(allocator)} not as recommended, reading tiles may be several times "
            "slower: put cluster_configs/workers.yaml where its Dask settings are (DASK_CONFIG)"
        )
    return WorkerReport(name, examined, round_trip, tuple(problems), tuple(notes))


def _store_problems(examined: Examined, store_id: str | None) -> list[str]:
    if examined.place:
        return [f"no store can be made there ({examined.place}): choose a path that workers share"]
    if examined.view is None or store_id is None:
        return []
    wrong = trouble_with(examined.view, store_id)
    remedy = (
        "mount it for writing" if examined.view.found == store_id else "put it where workers see it"
    )
    return [] if wrong is None else [f"it {wrong}: {remedy}"]


def examine_cluster(
    client: Any, place: Place | None, shape: tuple[int, int], wait: float = ANSWER_SECONDS
) -> list[WorkerReport]:
    """Ask every worker of a cluster, and measure.

    Parameters
    ----------
    client : distributed.Client
    place : Place or None
    shape : tuple of (int, int)
        Of the array that is sent to each worker and back.
    """
    here = installed_versions()
    store_id = None if place is None else place.store_id
    patients = []
    for number, worker in enumerate(sorted(client.scheduler_info(n_workers=-1)["workers"])):
        # one after the other: what they share is then measured once for each, not divided
        answers = ask_workers(
            client, examine, place, only=[worker], first=31 * number, seconds=wait
        )
        examined = answers[worker]
        silent = isinstance(examined, OSError)
        seconds = None if silent else _round_trip(client, worker, shape, wait)
        patients.append(judge(worker, examined, seconds, here, store_id))
    return patients


def examine_here(place: Place | None, threads: int = 1) -> list[WorkerReport]:
    """The same for this process, where work runs on threads; some settings are made by work."""
    store_id = None if place is None else place.store_id
    with one_blas_thread():
        examined = replace(examine(place), threads=threads, settings={})
    return [judge("this process", examined, None, installed_versions(), store_id)]


def _round_trip(client: Any, worker: str, shape: tuple[int, int], wait: float) -> float | None:
    array = np.random.default_rng(0).random(shape)
    best = None
    for _ in range(3):
        begin = time.perf_counter()
        try:
            with large_graphs():
                future = client.submit(_back, array, workers=[worker], pure=False)
            future.result(timeout=wait)
        except (OSError, ImportError, RuntimeError):
            return None
        seconds = time.perf_counter() - begin
        best = seconds if best is None else min(best, seconds)
    return best


def _back(array: Any) -> Any:
    return array


def report(patients: Sequence[WorkerReport], shape: tuple[int, int]) -> list[str]:
    """All of it in words, a few lines for each worker."""
    lines = []
    for patient in patients:
        lines.append(patient.name)
        if isinstance(patient.examined, Examined):
            lines += [f"  {line}" for line in _described(patient.examined)]
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


def _described(examined: Examined) -> list[str]:
    versions = ", ".join(f"{name} {value}" for name, value in examined.versions.items())
    settings = _settings(examined.settings)
    lines = [
        f"on {examined.host}: {examined.threads} thread{'s' if examined.threads > 1 else ''}, "
        f"{human_bytes(examined.memory)} of memory",
        versions,
        f"allocator and BLAS: {settings}; BLAS uses {examined.blas_threads} "
        f"thread{'s' if examined.blas_threads > 1 else ''}",
        f"{human_bytes(examined.disk_free)} free in {examined.folder}",
    ]
    if examined.view is not None and examined.view.found is not None:
        rights = "reads and writes" if examined.view.trouble is None else "reads"
        speed = (
            f", at {human_bytes(int(examined.read[0] / examined.read[1]))}/s"
            if examined.read[1]
            else ""
        )
        lines.append(f"{rights} the store{speed}")
    elif examined.place == "":
        lines.append("sees the place, and could make a store there")
    return lines


def _settings(differ: Mapping[str, str | None]) -> str:
    if not differ:
        return "as recommended"
    return "as recommended but " + ", ".join(
        f"{name} {'not set' if value is None else f'= {value}'}" for name, value in differ.items()
    )
