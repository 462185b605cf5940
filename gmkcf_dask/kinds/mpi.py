"""A cluster inside `mpirun`: rank 0 schedules, rank 1 drives, the others work.

Every rank runs the same command line. All but the driver serve inside `mpi_member` until the driver
has ended, whichever way it did.
"""

from __future__ import annotations

import logging
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar, cast

import dask

from gmkcf_dask.cluster import Access, connect
from gmkcf_dask.cluster_config import ClusterConfig
from gmkcf_dask.errors import GmkcfError, InputError
from gmkcf_dask.kinds.started import (
    ENVIRONMENT,
    Started,
    directory_here,
    is_loopback_interface,
    not_installed,
    not_started,
    prepare,
)

_SMALLEST = 3
_T = TypeVar("_T")


@contextmanager
def mpi_member(look: Callable[[], ClusterConfig]) -> Iterator[bool]:
    """Take part in an MPI job: True on the rank that drives, False on others once all is over.

    `look` reads what the cluster is to be. On every rank by itself: files, interfaces and variables
    may differ from node to node.
    """
    world = _world()
    config, started, directory = _together(world, lambda: _ready(world, look))
    options = {
        "interface": config.interface,
        "protocol": started.protocol,
        "nthreads": config.threads or 1,
        "memory_limit": config.memory or "auto",
        "local_directory": directory,
        "worker_class": "distributed.Nanny",  # for the environment of the worker
        "worker_options": {"dashboard": False, "dashboard_address": "127.0.0.1:0"},
        **started.page,
    }
    # what fails is told to the user by the driver, in one sentence
    quiet = {ENVIRONMENT: started.settings[ENVIRONMENT] | {"DASK_LOGGING__DISTRIBUTED": "critical"}}
    with dask.config.set(started.settings | quiet):
        if not _serve(world, options):
            yield False
            return
        try:
            yield True
        finally:
            _shut_down(config)


def _ready(
    world: Any, look: Callable[[], ClusterConfig]
) -> tuple[ClusterConfig, Started, str | None]:
    """All that can be known to be wrong before one rank waits for another."""
    config = look()
    if world.Get_size() < _SMALLEST:
        raise InputError(
            f"a cluster of kind mpi needs {_SMALLEST} processes or more, for the scheduler, the "
            f"driver and workers, and there is {world.Get_size()}: start with mpirun -n N gmkcf ..."
        )
    with dask.config.set(config.settings):
        started = prepare(config, only_loopback=is_loopback_interface(config.interface))
        return config, started, directory_here(config)


def _together(world: Any, work: Callable[[], _T]) -> _T:
    """What some work gives on this rank, once it is well on all of them.

    Where it is not, the first rank that it fails on says why and all end: one that went on would
    wait for the others for ever.
    """
    found: _T | None = None
    error: Exception | None = None
    try:
        found = work()
    except Exception as raised:  # noqa: BLE001  # raised again, once the others know
        error = raised
    code = None if error is None else getattr(error, "exit_code", 1)
    codes: list[int | None] = world.allgather(code)
    failed = [rank for rank, code in enumerate(codes) if code is not None]
    if not failed:
        return cast(_T, found)
    if failed[0] != world.Get_rank():
        raise SystemExit(codes[failed[0]])
    assert error is not None
    if isinstance(error, InputError) and len(failed) < len(codes):
        where = f"rank {failed[0]} on {socket.gethostname()}"
        more = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
        raise InputError(f"{where}{more}: {error}") from error
    raise error


@contextmanager
def mpi_cluster(config: ClusterConfig) -> Iterator[Any]:
    """A client of the scheduler on rank 0, for the driver inside `mpi_member`."""
    address = dask.config.get("scheduler-address", None)
    if address is None:
        raise InputError("a cluster of kind mpi is started with mpirun -n N gmkcf ...")
    # whether it may be open was settled when it was started
    with connect(address, Access(config.certificates, insecure=True)) as client:
        yield client


def n_workers() -> int:
    """Ranks that work."""
    return int(_world().Get_size()) - 2


def _world() -> Any:
    try:
        import dask_mpi  # noqa: F401
        from mpi4py import MPI
    except ImportError as error:  # mpi4py raises it for a missing libmpi, too
        raise not_installed("mpi", "dask-mpi, mpi4py and an MPI") from error
    except RuntimeError as error:
        raise not_started("mpi", error) from error
    return MPI.COMM_WORLD


def _serve(world: Any, options: dict[str, Any]) -> bool:
    """Whether this rank drives; the others come back when the cluster is shut down."""
    from dask_mpi import initialize

    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    try:
        return bool(initialize(**options, exit=False))
    except Exception as error:  # whatever it is, nobody may wait for this rank for ever
        sentence = not_started("mpi", error)
        sys.stderr.write(f"error: rank {world.Get_rank()}: {sentence}\n")
        sys.stderr.flush()
        world.Abort(sentence.exit_code)
        raise


def _shut_down(config: ClusterConfig) -> None:
    """Without this dask-mpi waits for ever at the end of the driver's process."""
    with suppress(GmkcfError, OSError), mpi_cluster(config) as client:
        client.shutdown()
