"""Where work runs: threads of this process, a cluster on this machine, or a scheduler elsewhere."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dask
import psutil

from gmkcf_dask.blas import cores
from gmkcf_dask.errors import ClusterError, InputError
from gmkcf_dask.graph import Runner, pin_worker_threads
from gmkcf_dask.plan import MIB

if TYPE_CHECKING:
    from distributed import Client

_ADDRESS = re.compile(r"((tcp|tls|ucx|wss?)://)?([^\s/:\[\]]+|\[[^\s\]]+\]):\d+|inproc://\S+")
CONNECT_SECONDS = 10.0
LOCAL_CLUSTER_FROM = 5_000
"""Samples from which worker processes pay for their start."""

# Dask's default gives every freed tile back to the system, and each new one is then page-faulted in
# again: 2.5 to 5 times slower reads. Freed tiles are kept up to a bound instead.
WORKER_ENVIRONMENT = {
    "MALLOC_TRIM_THRESHOLD_": str(64 * MIB),
    "MALLOC_MMAP_THRESHOLD_": str(32 * MIB),
    "MALLOC_TOP_PAD_": str(16 * MIB),
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}


@dataclass(frozen=True)
class Resources:
    """A place to run and what it has. Memory in bytes, per worker."""

    runner: Runner
    n_workers: int
    threads_per_worker: int
    memory_per_worker: int
    description: str
    in_this_process: bool = False

    def worker_peaks(self) -> dict[str, int]:
        """Largest resident size of every worker process so far; empty on threads."""
        if self.runner.client is None:
            return {}
        found: dict[str, int] = self.runner.client.run(_peak_resident_bytes)
        return found


def share_of_memory(n_workers: int) -> int:
    """Bytes for each of n workers, leaving a tenth of what is free to the driver."""
    return int(psutil.virtual_memory().available * 9 // 10 // n_workers)


def threads(n_threads: int | None = None, memory: int | None = None) -> Resources:
    """Threads of this process."""
    n_threads = n_threads or cores()
    memory = memory or int(psutil.virtual_memory().available)
    runner = Runner(n_threads=n_threads)
    what = f"{n_threads} threads of this process"
    return Resources(runner, 1, n_threads, memory, what, in_this_process=True)


def of_client(client: Client) -> Resources:
    """A connected cluster; its smallest worker sets the limits."""
    if not hasattr(client, "scheduler_info"):
        raise InputError(f"client must be a distributed.Client, not {client!r}")
    if client.status != "running":
        raise ClusterError(f"the Dask client is {client.status}: pass one that is connected")
    try:
        # with n_workers=-1 all of them are reported, by default only a handful
        workers = list(client.scheduler_info(n_workers=-1)["workers"].values())
        if workers:
            pin_worker_threads(client)
    except (OSError, TimeoutError) as error:
        raise ClusterError(f"the Dask scheduler does not answer: {error}") from error
    if not workers:
        raise ClusterError(
            f"the Dask scheduler at {client.scheduler.address} has no workers: start some first"
        )
    memory = min(int(w["memory_limit"]) or int(psutil.virtual_memory().total) for w in workers)
    n_threads = max(int(w["nthreads"]) for w in workers)
    what = f"{len(workers)} workers at {client.scheduler.address}"
    return Resources(Runner(client), len(workers), n_threads, memory, what)


@contextmanager
def open_cluster(
    kind: str | None,
    n_samples: int,
    workers: int | None = None,
    memory: int | None = None,
    *,
    only_describe: bool = False,
) -> Iterator[Resources]:
    """Resources by the word a user gave: threads, local, or the address of a scheduler.

    Parameters
    ----------
    kind : str or None
        None chooses `local` from 5,000 samples on, else `threads`.
    workers : int, optional
        Worker processes, or threads for `threads`; all cores when not given.
    memory : int, optional
        Bytes per worker; an equal share of what is free when not given.
    only_describe : bool
        For a plan: say what a local cluster would have, but start none.
    """
    kind = kind or ("local" if n_samples >= LOCAL_CLUSTER_FROM else "threads")
    if workers is not None and workers < 1:
        raise InputError(f"workers must be at least 1, not {workers}")
    if kind == "threads":
        yield threads(workers, memory)
    elif kind == "local" and only_describe:
        n_workers = workers or cores()
        memory = memory or share_of_memory(n_workers)
        yield Resources(Runner(), n_workers, 1, memory, f"{n_workers} workers on this machine")
    elif kind == "local":
        with local_cluster(workers or cores(), memory) as client:
            yield of_client(client)
    else:
        if workers is not None or memory is not None:
            raise InputError(
                "workers and memory are for clusters started here: the scheduler at an address "
                "brings its own"
            )
        with _connect(kind) as client:
            yield of_client(client)


@contextmanager
def local_cluster(n_workers: int, memory: int | None = None) -> Iterator[Any]:
    """A client of worker processes on this machine, one thread each, on loopback only."""
    from distributed import Client, LocalCluster

    memory = memory or share_of_memory(n_workers)
    settings = {"distributed.nanny.pre-spawn-environ": WORKER_ENVIRONMENT}
    with (
        dask.config.set(settings),
        LocalCluster(
            n_workers=n_workers,
            threads_per_worker=1,
            memory_limit=memory,
            host="127.0.0.1",
            # no dashboard; the health page that remains gets a free port on loopback
            dashboard_address="127.0.0.1:0",
            scheduler_kwargs={"dashboard": False},
            # a failed task is told to the user by the driver, in one sentence
            silence_logs=logging.CRITICAL,
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


@contextmanager
def _connect(address: str) -> Iterator[Any]:
    from distributed import Client

    if not _ADDRESS.fullmatch(address):
        raise InputError(
            f"cluster must be threads, local or the address of a Dask scheduler such as "
            f"tcp://host:8786, not {address!r}"
        )
    try:
        client = Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise ClusterError(
            f"no Dask scheduler answers at {address!r}: check the address (tcp://host:8786), or "
            f"use --cluster threads or local ({type(error).__name__})"
        ) from error
    with client:
        yield client


def _peak_resident_bytes() -> int:
    status = Path("/proc/self/status")
    if status.exists():
        # getrusage would begin with the size of the process that started this one
        lines = (line.split() for line in status.read_text().splitlines())
        return next(int(line[1]) * 1024 for line in lines if line[0] == "VmHWM:")
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
