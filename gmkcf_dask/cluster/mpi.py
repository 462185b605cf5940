"""A cluster inside `mpirun`: rank 0 schedules, rank 1 drives, the others work.

Every rank runs the same command line. All but the driver serve inside `mpi_member` until the driver
has ended, whichever way it did.
"""

from __future__ import annotations

import logging
import socket
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, TypeVar, cast

import dask

from gmkcf_dask.cluster.config import ClusterConfig
from gmkcf_dask.cluster.connect import connect
from gmkcf_dask.cluster.process_settings import (
    ENVIRONMENT,
    ProcessSettings,
    directory_here,
    is_loopback_interface,
    not_installed,
    not_started,
    prepare,
    private_space,
    writing_into,
)
from gmkcf_dask.errors import GmkcfError, InputError, SecurityWarning

_SMALLEST = 3
_T = TypeVar("_T")


@contextmanager
def mpi_member(read: Callable[[], ClusterConfig]) -> Iterator[ClusterConfig | None]:
    """Take part in an MPI job: the configuration on the rank that drives, else None at the end.

    Every rank calls `read` by itself: files, interfaces and variables may differ between nodes.
    """
    world = _world()
    config, process, directory = _on_all_ranks(world, lambda: _prepare_rank(world, read))
    options: dict[str, Any] = {
        "interface": config.interface,
        "protocol": process.protocol,
        "nthreads": config.threads or 1,
        "memory_limit": config.memory or "auto",
        "worker_class": "distributed.Nanny",  # for the environment of the worker
        "worker_options": {"dashboard": False, "dashboard_address": "127.0.0.1:0"},
        **process.page,
    }
    # what fails is told to the user by the driver, in one sentence
    quiet = {ENVIRONMENT: process.settings[ENVIRONMENT] | {"DASK_LOGGING__DISTRIBUTED": "critical"}}
    with ExitStack() as stack:
        stack.enter_context(dask.config.set(process.settings | quiet))
        # every rank has its own: nodes need not share a file system
        private = private_space(directory)
        folder = _on_all_ranks(world, lambda: stack.enter_context(private))
        stack.enter_context(writing_into(folder))  # one cluster is all that a rank has
        options["local_directory"] = folder
        if not _serve(world, options):
            yield None
            return
        try:
            yield config
        finally:
            _shut_down(config)


def _prepare_rank(
    world: Any, read: Callable[[], ClusterConfig]
) -> tuple[ClusterConfig, ProcessSettings, str | None]:
    """All that can be known to be wrong before one rank waits for another."""
    config = read()
    if world.Get_size() < _SMALLEST:
        raise InputError(
            f"a cluster of kind mpi needs {_SMALLEST} processes or more, for the scheduler, the "
            f"driver and workers, and there is {world.Get_size()}: start with mpirun -n N gmkcf ..."
        )
    with dask.config.set(config.settings), _without_security_warnings():
        process = prepare(config, only_loopback=is_loopback_interface(config.interface))
        return config, process, directory_here(config)


def _on_all_ranks(world: Any, work: Callable[[], _T]) -> _T:
    """What some work gives on this rank, once it is well on all of them.

    Where it is not, the first rank that it fails on says why and all end: one that went on would
    wait for the others for ever.
    """
    result: _T | None = None
    error: Exception | None = None
    try:
        result = work()
    except Exception as raised:  # noqa: BLE001  # raised again, once the others know
        error = raised
    code = None if error is None else getattr(error, "exit_code", 1)
    codes: list[int | None] = world.allgather(code)
    failed = [rank for rank, code in enumerate(codes) if code is not None]
    if not failed:
        return cast(_T, result)
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
    with connect(address, config.certificates, insecure=True) as client:
        yield client


def mpi_workers() -> int:
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
    with suppress(GmkcfError, OSError), _without_security_warnings(), mpi_cluster(config) as client:
        client.shutdown()


@contextmanager
def _without_security_warnings() -> Iterator[None]:
    """Warnings of certificates are for the driver to give, once for all ranks, when it connects."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SecurityWarning)
        yield
