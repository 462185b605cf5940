"""Where work runs: threads of this process, a cluster on this machine, or a scheduler elsewhere."""

from __future__ import annotations

import logging
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import dask

from gmkcf_dask.cluster.config import Adaptive
from gmkcf_dask.cluster.tls import (
    Certificates,
    default_scheme,
    is_encrypted,
    pages,
    reason_of,
    refuse_open_address,
    refuse_plain,
    security_for,
    security_here,
)
from gmkcf_dask.compute import STALL_SECONDS
from gmkcf_dask.compute.runner import Runner, ignore_interrupts, pin_worker_threads
from gmkcf_dask.compute.worker_checks import refuse_other_versions
from gmkcf_dask.errors import ClusterError, InputError, redacted
from gmkcf_dask.store.files import make_folder
from gmkcf_dask.system.resources import cores, free_memory, peak_resident_bytes, total_memory
from gmkcf_dask.system.temporary import run_folder
from gmkcf_dask.system.units import MIB, human_bytes

if TYPE_CHECKING:
    from distributed import Client

_ADDRESS = re.compile(r"((tcp|tls|ucx|wss?)://)?([^\s/:\[\]]+|\[[^\s\]]+\]):\d+|inproc://\S+")
CONNECT_SECONDS = 10.0
_TRIES = 3
_T = TypeVar("_T")

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
class Access:
    """Who may listen, and to whom we may talk.

    Attributes
    ----------
    certificates : Certificates, optional
        For tls:// addresses; a local cluster with them talks TLS as well. Without, Dask's own
        configuration (distributed.comm.tls) is asked.
    insecure : bool
        Talk to a scheduler elsewhere without encryption.
    dashboard : bool
        Local clusters: serve Dask's dashboard, on loopback.
    """

    certificates: Certificates | None = None
    insecure: bool = False
    dashboard: bool = False


CLOSED = Access()


@dataclass(frozen=True)
class Waiting:
    """How many workers have to be there before work begins, and the seconds they are given."""

    minimum: int = 1
    seconds: float = 0.0


@dataclass(frozen=True)
class LocalWorkers:
    """What else may be said of workers on this machine.

    Attributes
    ----------
    threads : int
        Of each.
    adaptive : Adaptive, optional
        Bounds instead of a number.
    directory : str, optional
        The folder in which the private one is made that they spill to; TMPDIR when not given.
    """

    threads: int = 1
    adaptive: Adaptive | None = None
    directory: str | None = None


PLAIN = LocalWorkers()


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

    workers = _patiently(prepare, "the Dask scheduler does not answer")
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


def local_resources(workers: int | None, memory: int | None, local: LocalWorkers) -> Resources:
    """Resources that workers on this machine would have."""
    most = local.adaptive.maximum if local.adaptive else workers or cores()
    workers = local.adaptive.minimum if local.adaptive else most
    return Resources(
        Runner(),
        workers,
        local.threads,
        memory or share_of_memory(most),
        f"{workers} workers on this machine",
        machine_memory=free_memory(),
    )


def wait_for_workers(client: Any, waiting: Waiting, hint: str = "start some first") -> None:
    """Until there are enough; a sentence where they do not come in time."""
    if waiting.seconds <= 0:
        return  # what is there is counted later
    try:
        client.wait_for_workers(waiting.minimum, timeout=waiting.seconds)
    except (OSError, TimeoutError) as error:
        if client.status != "running":
            raise ClusterError("the connection to the Dask scheduler was lost") from error
        present = len(client.scheduler_info(n_workers=-1)["workers"])
        raise ClusterError(
            f"{present} of {waiting.minimum} workers came within {waiting.seconds:g} s: {hint}"
        ) from error


@contextmanager
def private_space(directory: str | None) -> Iterator[str]:
    """A new folder of mode 0700 for what processes of this run write, removed at the end.

    Dask's own choice is `dask-scratch-space` in TMPDIR, whoever made it. It puts that folder first
    on the path from which a process imports modules, and spills results into it. Workers get the
    folder by argument, schedulers and nannies by `writing_into` while they start.

    Parameters
    ----------
    directory : str or None
        The folder to make it in, which is made as well where it is missing; for None
        `temporary-directory` of Dask's settings, or else TMPDIR.
    """
    directory = directory or dask.config.get("temporary-directory", None)
    within = None if directory is None else Path(directory).absolute()
    if within is not None:
        make_folder(within, "spilled results")
    with run_folder("spill", within) as folder:
        yield str(folder)


def writing_into(folder: str) -> dask.config.set:
    """Dask's settings while the processes of a run start in this process.

    Not for longer: another cluster of this process would take the folder for its own, and lose it
    when the first one ends.
    """
    return dask.config.set({"temporary-directory": folder})


@contextmanager
def local_cluster(
    n_workers: int,
    memory: int | None = None,
    access: Access = CLOSED,
    local: LocalWorkers = PLAIN,
) -> Iterator[Any]:
    """A client of worker processes on this machine, on loopback only."""
    from distributed import Client, LocalCluster

    memory = memory or share_of_memory(n_workers)
    security = security_here(access.certificates)
    # a page may only be talked to from its own address, which has to be known beforehand
    port = free_port() if access.dashboard else 0
    settings = {
        "distributed.nanny.pre-spawn-environ": worker_environment(),
        # pages of other sites must not talk to a dashboard on this machine
        "distributed.scheduler.dashboard.bokeh-application.allow_websocket_origin": [
            f"127.0.0.1:{port}",
            f"localhost:{port}",
        ],
        **pages(dashboard=access.dashboard),
    }
    start: Callable[..., Any] = partial(
        LocalCluster,
        n_workers=n_workers,
        threads_per_worker=local.threads,
        memory_limit=memory,
        host="127.0.0.1",
        protocol="tcp://" if security is None else "tls://",
        security=security,
        dashboard_address=f"127.0.0.1:{port}",
        scheduler_kwargs={"dashboard": access.dashboard},
        # a failed task is told to the user by the driver, in one sentence
        silence_logs=logging.CRITICAL,
    )
    with (
        dask.config.set(settings),
        private_space(local.directory) as folder,
        ExitStack() as stack,
    ):
        with writing_into(folder):
            cluster = stack.enter_context(
                _patiently(
                    partial(start, local_directory=folder), "worker processes cannot be started"
                )
            )
        client = stack.enter_context(Client(cluster, security=security, set_as_default=False))
        _patiently(lambda: ignore_interrupts(client), "worker processes do not answer")
        if local.adaptive is not None:
            cluster.adapt(minimum=local.adaptive.minimum, maximum=local.adaptive.maximum)
        yield client


def _patiently(work: Callable[[], _T], sentence: str) -> _T:
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


def free_port() -> int:
    """On loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def worker_environment() -> dict[str, str]:
    """Ours, where Dask's configuration was not changed to something else."""
    default = dask.config.merge(*dask.config.defaults)["distributed"]["nanny"]["pre-spawn-environ"]
    now = dask.config.get("distributed.nanny.pre-spawn-environ", {})
    changed = {name: str(value) for name, value in now.items() if default.get(name) != value}
    return WORKER_ENVIRONMENT | changed


@contextmanager
def connect(address: str, access: Access) -> Iterator[Any]:
    """A client of the scheduler at an address, encrypted unless that is meant otherwise."""
    from distributed import Client

    if not _ADDRESS.fullmatch(address):
        raise InputError(
            f"cluster must be threads, local or the address of a Dask scheduler such as "
            f"tls://host:8786, not {redacted(address)!r}"
        )
    scheme = default_scheme()
    refuse_open_address(address, insecure=access.insecure, default_scheme=scheme)
    encrypted = is_encrypted(address, scheme)
    if not encrypted:
        refuse_plain(address)
    security = security_for(address, access.certificates) if encrypted else None
    hint = "tls://host:8786), its certificates" if encrypted else "tls://host:8786 if it talks TLS)"
    try:
        client = Client(address, timeout=CONNECT_SECONDS, set_as_default=False, security=security)
    except (OSError, TimeoutError, ValueError) as error:
        raise ClusterError(
            f"no Dask scheduler answers at {address!r} ({reason_of(error)}): check the address "
            f"({hint}, or use --cluster threads or local"
        ) from error
    with client:
        yield client


def dashboard_of(client: Any) -> str | None:
    """Where the scheduler serves its dashboard, on loopback of its machine."""
    port = client.scheduler_info(n_workers=0).get("services", {}).get("dashboard")
    return None if port is None else f"http://127.0.0.1:{port}/status"
