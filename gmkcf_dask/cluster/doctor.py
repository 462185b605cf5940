"""Examine every worker of a cluster: versions, memory, settings, store and speed."""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from threadpoolctl import threadpool_info

from gmkcf_dask.cluster.process_settings import WORKER_ENVIRONMENT
from gmkcf_dask.compute.blas import one_blas_thread
from gmkcf_dask.compute.plan import refuse_small_workers
from gmkcf_dask.compute.runner import large_graphs
from gmkcf_dask.compute.tile_ops import arrays_of
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
    """One worker, as it sees itself. Sizes in bytes."""

    host: str
    versions: dict[str, str]
    memory: int
    threads: int
    settings: dict[str, str | None]  # of allocator and BLAS, where not ours; None: not set
    blas_threads: int  # most that a BLAS of the process would use
    folder: str
    disk_free: int
    view: View | None = None  # of the store
    place: str | None = None  # why no store can be made where there is none; "" where one can
    read: tuple[int, float] = (0, 0.0)  # bytes of kernel read from the store, and the seconds


@dataclass(frozen=True)
class WorkerReport:
    """A worker's answers, or its error instead, and the seconds of an array to it and back."""

    name: str
    examined: Examined | str
    round_trip: float | None = None
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Place:
    """Where the store is, or shall be, and the id of the store that the driver sees there.

    `probe`, where there is none yet: a file that the driver has put into the nearest existing
    folder, for the others to see.
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

    Each worker begins reading with another tile, `first`, so that none helps the others.
    """
    folder = str(Path.cwd()) if dask_worker is None else str(dask_worker.local_directory)
    manager = getattr(dask_worker, "memory_manager", None)
    memory = getattr(manager, "memory_limit", None) or total_memory()
    threads = 1 if dask_worker is None else int(dask_worker.state.nthreads)
    now = {name: os.environ.get(name) for name in WORKER_ENVIRONMENT}
    pools = [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]
    return Examined(
        socket.gethostname(),
        installed_versions(),
        int(memory),
        threads,
        {name: value for name, value in now.items() if value != WORKER_ENVIRONMENT[name]},
        max(pools, default=1),
        folder,
        shutil.disk_usage(folder).free,
        **({} if place is None else _examine_place(place, first)),
    )


def _examine_place(place: Place, first: int) -> dict[str, Any]:
    if place.store_id is None:
        return {"place": _trouble_with(location(place.probe))}
    view = look(place.path, write=True)
    return {"view": view, "read": (0, 0.0) if view.store_id is None else _read(place.path, first)}


def _read(path: str, first: int) -> tuple[int, float]:
    """Bytes of kernel values and seconds, for as many tiles as a moment has room for.

    Tiles that are damaged, or not yet there, are not what is asked for here.
    """
    begin, read, tile = time.perf_counter(), 0, first
    with suppress(GmkcfError):
        store = KernelStore.open(location(path))
        reader, n_tiles = store.reader, store.tiling.n_tiles
        arrays = arrays_of(reader)
        buffers = [reader.buffer(array) for array in arrays]
        n, begin = n_tiles * len(arrays), time.perf_counter()
        while time.perf_counter() - begin < READ_SECONDS and tile < first + n:
            number, t = divmod(tile % n, n_tiles)
            read += reader.raw(arrays[number], t, buffers[number]).nbytes
            tile += 7  # neighbours may have come with the one before
    return read, time.perf_counter() - begin


def diagnose(
    name: str,
    examined: Any,
    round_trip: float | None,
    here: dict[str, str],
    store_id: str | None = None,
) -> WorkerReport:
    """What is wrong with a worker, and how to fix it; and what could be better."""
    if not isinstance(examined, Examined):
        problem = str(examined)  # a GmkcfError is about the place it was to look at
        if not isinstance(examined, GmkcfError):
            problem = (
                f"it does not answer ({examined}): see whether it runs, and whether its disks hang"
                if isinstance(examined, OSError)
                else f"it cannot be asked ({examined}): install gmkcf-dask there, the same version "
                "as here"
            )
        return WorkerReport(name, str(examined), round_trip, (problem,))
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
    trouble = trouble_with(examined.view, store_id)
    if trouble is None:
        return []
    visible = examined.view.store_id == store_id
    return [f"it {trouble}: {'mount it for writing' if visible else 'put it where workers see it'}"]


def examine_cluster(
    client: Any, place: Place | None, shape: tuple[int, int], wait: float = ANSWER_SECONDS
) -> list[WorkerReport]:
    """Ask every worker of a cluster, and send it an array of some shape and back."""
    here = installed_versions()
    store_id = None if place is None else place.store_id
    reports = []
    for number, worker in enumerate(sorted(client.scheduler_info(n_workers=-1)["workers"])):
        # one after the other: what they share is then measured once for each, not divided
        first = 31 * number
        answers = ask_workers(client, examine, place, only=[worker], first=first, seconds=wait)
        silent = isinstance(answers[worker], OSError)
        seconds = None if silent else _round_trip(client, worker, shape, wait)
        reports.append(diagnose(worker, answers[worker], seconds, here, store_id))
    return reports


def examine_here(place: Place | None, threads: int = 1) -> list[WorkerReport]:
    """The same for this process, where work runs on threads; some settings are made by work."""
    store_id = None if place is None else place.store_id
    with one_blas_thread():
        examined = replace(examine(place), threads=threads, settings={})
    return [diagnose("this process", examined, None, installed_versions(), store_id)]


def _round_trip(client: Any, worker: str, shape: tuple[int, int], wait: float) -> float | None:
    """Seconds of the fastest of three; None where one fails."""
    array = np.random.default_rng(0).random(shape)
    seconds = []
    for _ in range(3):
        begin = time.perf_counter()
        try:
            with large_graphs():
                future = client.submit(np.asarray, array, workers=[worker], pure=False)
            future.result(timeout=wait)
        except (OSError, ImportError, RuntimeError):
            return None
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


def report_lines(reports: Sequence[WorkerReport], shape: tuple[int, int]) -> list[str]:
    """All of it in words, a few lines for each worker."""
    rows, columns = shape
    lines = []
    for worker in reports:
        lines.append(worker.name)
        if isinstance(worker.examined, Examined):
            lines += [f"  {line}" for line in _described(worker.examined)]
        if worker.round_trip is not None:
            lines.append(
                f"  {rows:,} × {columns} numbers ({human_bytes(8 * rows * columns)}) there and "
                f"back in {1000 * worker.round_trip:.0f} ms"
            )
        lines += [f"  WRONG: {problem}" for problem in worker.problems]
        lines += [f"  note: {note}" for note in worker.notes]
    return lines


def _described(examined: Examined) -> list[str]:
    settings = "as recommended"
    if examined.settings:
        settings += " but " + ", ".join(
            f"{name} {'not set' if value is None else f'= {value}'}"
            for name, value in examined.settings.items()
        )
    lines = [
        f"on {examined.host}: {_threads(examined.threads)}, "
        f"{human_bytes(examined.memory)} of memory",
        ", ".join(f"{name} {value}" for name, value in examined.versions.items()),
        f"allocator and BLAS: {settings}; BLAS uses {_threads(examined.blas_threads)}",
        f"{human_bytes(examined.disk_free)} free in {examined.folder}",
    ]
    if examined.view is not None and examined.view.store_id is not None:
        rights = "reads and writes" if examined.view.trouble is None else "reads"
        size, seconds = examined.read
        speed = f", at {human_bytes(int(size / seconds))}/s" if seconds else ""
        lines.append(f"{rights} the store{speed}")
    elif examined.place == "":
        lines.append("sees the place, and could make a store there")
    return lines


def _threads(n: int) -> str:
    return f"{n} thread{'s' if n > 1 else ''}"
