"""Where work runs: threads of this process, a cluster on this machine, or a scheduler elsewhere."""

from __future__ import annotations

import logging
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

import dask
import psutil

from gmkcf_dask.blas import cores
from gmkcf_dask.cluster_tls import (
    default_scheme,
    pages,
    reason_of,
    refuse_plain,
    security_for,
    security_here,
)
from gmkcf_dask.cluster_values import Adaptive
from gmkcf_dask.errors import ClusterError, InputError
from gmkcf_dask.graph import STALL_SECONDS, Runner, ignore_interrupts, pin_worker_threads
from gmkcf_dask.plan import MIB, refuse_small_workers
from gmkcf_dask.redact import redacted
from gmkcf_dask.resident import peak_resident_bytes
from gmkcf_dask.security import Certificates, is_encrypted, refuse_open_address
from gmkcf_dask.versions import refuse_other_versions

if TYPE_CHECKING:
    from distributed import Client

_ADDRESS = re.compile(r"((tcp|tls|ucx|wss?)://)?([^\s/:\[\]]+|\[[^\s\]]+\]):\d+|inproc://\S+")
CONNECT_SECONDS = 10.0
_TRIES = 3
_T = TypeVar("_T")
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
        Where they spill to; Dask's choice when not given.
    """

    threads: int = 1
    adaptive: Adaptive | None = None
    directory: str | None = None


AT_ONCE = Waiting()
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

    def worker_peaks(self) -> dict[str, int]:
        """Largest resident size of every worker process that answers; empty on threads."""
        if self.runner.client is None:
            return {}
        try:
            found = self.runner.everywhere(peak_resident_bytes)
        except (ClusterError, OSError, RuntimeError):  # asked when the work is done: no reason to
            return {}  # lose it
        return {worker: peak for worker, peak in found.items() if isinstance(peak, int)}


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

    def prepare() -> list[dict[str, Any]]:
        # with n_workers=-1 all of them are reported, by default only a handful
        found = list(client.scheduler_info(n_workers=-1)["workers"].values())
        if found and not unchecked:
            refuse_other_versions(client)
            pin_worker_threads(client)
        return found

    workers = _patiently(prepare, "the Dask scheduler does not answer")
    if not workers:
        raise ClusterError(
            f"the Dask scheduler at {client.scheduler.address} has no workers: start some first"
        )
    memory = min(int(w["memory_limit"]) or int(psutil.virtual_memory().total) for w in workers)
    n_threads = max(int(w["nthreads"]) for w in workers)
    what = f"{len(workers)} workers at {client.scheduler.address}"
    runner = Runner(client, stall_timeout=stall_timeout)
    return Resources(runner, len(workers), n_threads, memory, what)


@contextmanager
def open_cluster(
    kind: str | None,
    n_samples: int,
    workers: int | None = None,
    memory: int | None = None,
    *,
    only_describe: bool = False,
    check: Callable[[Resources], object] | None = None,
    access: Access = CLOSED,
    stall_timeout: float = STALL_SECONDS,
    settings: Mapping[str, Any] | None = None,
    local: LocalWorkers = PLAIN,
    waiting: Waiting = AT_ONCE,
    unchecked: bool = False,
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
    check : callable, optional
        Raises where what a local cluster would have is too little, before any worker is started.
    access : Access
    stall_timeout : float
        Seconds without progress after which a cluster is given up.
    settings : mapping, optional
        Dask's own, by dotted name, for the connection and for workers started here.
    local : LocalWorkers
        More about the workers of `local`.
    waiting : Waiting
        For the workers of a scheduler elsewhere.
    unchecked : bool
        Take workers of any version.
    """
    kind = kind or ("local" if n_samples >= LOCAL_CLUSTER_FROM else "threads")
    if workers is not None and workers < 1:
        raise InputError(f"workers must be at least 1, not {workers}")
    _refuse_needless(kind, access)
    with ExitStack() as stack:
        stack.enter_context(dask.config.set(dict(settings or {})))
        if kind == "threads":
            yield threads(workers, memory)
        elif kind == "local":
            described = _local(workers, memory, local)
            if not only_describe:
                if check is not None:
                    check(described)
                refuse_small_workers(described.memory_per_worker)
                n, memory = described.n_workers, described.memory_per_worker
                client = stack.enter_context(local_cluster(n, memory, access, local))
                described = of_client(client, stall_timeout, unchecked=unchecked)
                if access.dashboard:
                    described = replace(described, dashboard=dashboard_of(client))
            yield described
        else:
            if workers is not None or memory is not None:
                raise InputError(
                    "workers and memory are for clusters started here: the scheduler at an address "
                    "brings its own"
                )
            client = stack.enter_context(connect(kind, access))
            wait_for_workers(client, waiting)
            yield of_client(client, stall_timeout, unchecked=unchecked)


def _local(workers: int | None, memory: int | None, local: LocalWorkers) -> Resources:
    """What workers on this machine would have."""
    most = local.adaptive.maximum if local.adaptive else workers or cores()
    workers = local.adaptive.minimum if local.adaptive else most
    return Resources(
        Runner(),
        workers,
        local.threads,
        memory or share_of_memory(most),
        f"{workers} workers on this machine",
        machine_memory=int(psutil.virtual_memory().available),
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
        found = len(client.scheduler_info(n_workers=-1)["workers"])
        raise ClusterError(
            f"{found} of {waiting.minimum} workers came within {waiting.seconds:g} s: {hint}"
        ) from error


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
    start = partial(
        LocalCluster,
        n_workers=n_workers,
        threads_per_worker=local.threads,
        memory_limit=memory,
        local_directory=local.directory,
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
        _patiently(start, "worker processes cannot be started") as cluster,
        Client(cluster, security=security, set_as_default=False) as client,
    ):
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
        found: int = probe.getsockname()[1]
    return found


def worker_environment() -> dict[str, str]:
    """Ours, where Dask's configuration was not changed to something else."""
    default = dask.config.merge(*dask.config.defaults)["distributed"]["nanny"]["pre-spawn-environ"]
    now = dask.config.get("distributed.nanny.pre-spawn-environ", {})
    asked = {name: str(value) for name, value in now.items() if default.get(name) != value}
    return WORKER_ENVIRONMENT | asked


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


def _refuse_needless(kind: str, access: Access) -> None:
    """An option that would do nothing may be a misunderstanding: better said than ignored."""
    if access.dashboard:
        if kind != "local":
            raise InputError("--dashboard is for --cluster local: nothing else is started here")
        if find_spec("bokeh") is None:
            raise InputError(
                "the dashboard needs bokeh: pip install 'gmkcf-dask[dashboard]', or leave the "
                "option out"
            )
    if access.certificates is not None and (
        kind == "threads" or (kind != "local" and not is_encrypted(kind, default_scheme()))
    ):
        raise InputError(
            f"certificates are for --cluster local or a tls:// address, not {redacted(kind)!r}: "
            "leave them out or mend the address"
        )


def dashboard_of(client: Any) -> str | None:
    """Where the scheduler serves its dashboard, on loopback of its machine."""
    port = client.scheduler_info(n_workers=0).get("services", {}).get("dashboard")
    return None if port is None else f"http://127.0.0.1:{port}/status"
