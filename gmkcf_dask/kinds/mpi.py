"""A cluster inside `mpirun`: rank 0 schedules, rank 1 drives, the others work.

Every rank runs the same command line. All but the driver serve inside `mpi_member` until the driver
has ended, whichever way it did.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import dask

from gmkcf_dask.cluster import Access, connect
from gmkcf_dask.cluster_config import ClusterConfig
from gmkcf_dask.errors import GmkcfError, InputError
from gmkcf_dask.kinds.started import (
    ENVIRONMENT,
    directory_here,
    is_loopback_interface,
    not_installed,
    not_started,
    prepare,
)

_SMALLEST = 3


@contextmanager
def mpi_member(config: ClusterConfig) -> Iterator[bool]:
    """Take part in an MPI job: True on the rank that drives, False on others once all is over."""
    world = _world()
    if world.Get_size() < _SMALLEST:
        raise InputError(
            f"a cluster of kind mpi needs {_SMALLEST} processes or more, for the scheduler, the "
            f"driver and workers, and there is {world.Get_size()}: start with mpirun -n N gmkcf ..."
        )
    with dask.config.set(config.settings):
        # all that can be known to be wrong is found on every rank, before one waits for another
        started = prepare(config, only_loopback=is_loopback_interface(config.interface))
        options = {
            "interface": config.interface,
            "protocol": started.protocol,
            "nthreads": config.threads or 1,
            "memory_limit": config.memory or "auto",
            "local_directory": directory_here(config),
            "worker_class": "distributed.Nanny",  # for the environment of the worker
            "worker_options": {"dashboard": False, "dashboard_address": "127.0.0.1:0"},
            **started.page,
        }
        # what fails is told to the user by the driver, in one sentence
        quiet = {
            ENVIRONMENT: started.settings[ENVIRONMENT] | {"DASK_LOGGING__DISTRIBUTED": "critical"}
        }
        with dask.config.set(started.settings | quiet):
            if not _serve(world, options):
                yield False
                return
            try:
                yield True
            finally:
                _shut_down(config)


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
