"""What a cluster has: workers, threads and memory, of one that runs or of one to be started."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from gmkcf_dask.cluster.config import ClusterConfig
from gmkcf_dask.cluster.process_settings import directory_here
from gmkcf_dask.compute import STALL_SECONDS
from gmkcf_dask.compute.runner import Runner, pin_worker_threads
from gmkcf_dask.compute.worker_checks import refuse_other_versions
from gmkcf_dask.errors import ClusterError, InputError
from gmkcf_dask.system.resources import cores, free_memory, peak_resident_bytes, total_memory
from gmkcf_dask.system.units import human_bytes

if TYPE_CHECKING:
    from distributed import Client

_TRIES = 3
_T = TypeVar("_T")


@dataclass(frozen=True)
class Resources:
    """A place to run and what it has. Memory in bytes, per worker; all that is free on a machine
    whose workers are still to be started."""

    runner: Runner
    n_workers: int
    threads_per_worker: int
    memory_per_worker: int
    description: str
    in_this_process: bool = False
    machine_memory: int | None = None
    dashboard: str | None = None
    smallest: str | None = None
    """Of workers that differ in memory: which has least, in words."""

    def worker_peaks(self) -> dict[str, int]:
        """Largest resident size of every worker process that answers; empty on threads."""
        if self.runner.client is None:
            return {}
        try:
            peaks = self.runner.run_on_workers(peak_resident_bytes)
        except (ClusterError, OSError, RuntimeError):  # asked when the work is done: no reason to
            return {}  # lose it
        return {worker: peak for worker, peak in peaks.items() if isinstance(peak, int)}


def share_of_memory(n_workers: int) -> int:
    """Bytes for each of n workers, leaving a tenth of what is free to the driver."""
    return free_memory() * 9 // 10 // n_workers


def threads(n_threads: int | None = None, memory: int | None = None) -> Resources:
    """Threads of this process."""
    n_threads = n_threads or cores()
    free = free_memory()
    runner = Runner(n_threads=n_threads)
    what = f"{n_threads} threads of this process"
    # what is asked for cannot be more than there is: a cgroup would kill the process
    return Resources(runner, 1, n_threads, min(memory or free, free), what, in_this_process=True)


def of_client(
    client: Client, stall_timeout: float = STALL_SECONDS, *, unchecked: bool = False
) -> Resources:
    """A connected cluster of the same versions; its smallest worker sets the limits.

    With `unchecked` any versions will do: for one who wants to see what is wrong.
    """
    if not hasattr(client, "scheduler_info"):
        raise InputError(f"client must be a distributed.Client, not {client!r}")
    if client.status != "running":
        raise ClusterError(f"the Dask client is {client.status}: pass one that is connected")

    def prepare() -> dict[str, dict[str, Any]]:
        # with n_workers=-1 all of them are reported, by default only a handful
        workers = dict(client.scheduler_info(n_workers=-1)["workers"])
        if workers and not unchecked:
            refuse_other_versions(client)
            pin_worker_threads(client)
        return workers

    workers = retry_cluster(prepare, "the Dask scheduler does not answer")
    if not workers:
        raise ClusterError(
            f"the Dask scheduler at {client.scheduler.address} has no workers: start some first"
        )
    memory = {a: int(w["memory_limit"]) or total_memory() for a, w in workers.items()}
    n_threads = max(int(w["nthreads"]) for w in workers.values())
    what, smallest = f"{len(workers)} workers at {client.scheduler.address}", _smallest(memory)
    if smallest is not None:
        what = f"{what}; {smallest}"
    runner = Runner(client, stall_timeout=stall_timeout)
    least = min(memory.values())
    return Resources(runner, len(workers), n_threads, least, what, smallest=smallest)


def _smallest(memory: Mapping[str, int]) -> str | None:
    """Which worker has least, where that is less than nine tenths of what another has."""
    address, least = min(memory.items(), key=lambda one: (one[1], one[0]))
    most = max(memory.values())
    if least * 10 >= most * 9:
        return None
    return (
        f"worker {address} has the least memory, {human_bytes(least)}, and sets the limits (others "
        f"have up to {human_bytes(most)})"
    )


def local_resources(config: ClusterConfig) -> Resources:
    """Resources that workers on this machine would have."""
    directory_here(config)  # refuses a variable that is not set
    most = config.adaptive.maximum if config.adaptive else config.workers or cores()
    workers = config.adaptive.minimum if config.adaptive else most
    return Resources(
        Runner(),
        workers,
        config.threads or 1,
        config.memory or share_of_memory(most),
        f"{workers} workers on this machine",
        machine_memory=free_memory(),
    )


def retry_cluster(work: Callable[[], _T], sentence: str) -> _T:
    """Do what fails where a worker dies in the middle of it: its successor may do better."""
    for attempt in range(_TRIES):
        try:
            return work()
        except ClusterError:
            raise
        except (OSError, RuntimeError) as error:  # Dask's own errors of starting and talking
            if attempt == _TRIES - 1:
                raise ClusterError(f"{sentence}: {error}") from error
            time.sleep(1.0)
    raise AssertionError("unreachable")
