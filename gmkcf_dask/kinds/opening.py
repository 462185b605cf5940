"""The place that a cluster file or the options of a command describe."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask

from gmkcf_dask.cluster import (
    Access,
    LocalWorkers,
    Resources,
    Waiting,
    dashboard_of,
    of_client,
    open_cluster,
    wait_for_workers,
)
from gmkcf_dask.cluster_config import ClusterConfig
from gmkcf_dask.errors import ClusterError, InputError
from gmkcf_dask.graph import STALL_SECONDS, Runner
from gmkcf_dask.kinds import jobqueue, mpi, ssh
from gmkcf_dask.kinds.started import (
    WAIT_SECONDS,
    directory_here,
    is_loopback_interface,
    prepare,
)
from gmkcf_dask.plan import refuse_small_workers
from gmkcf_dask.security import is_loopback

_LARGEST_SCHEDULER_FILE = 1 << 20
_IN_CLUSTER = ("", "threads", "local", "address", "scheduler-file")


@contextmanager
def open_config(
    config: ClusterConfig,
    n_samples: int,
    *,
    only_describe: bool = False,
    check: Callable[[Resources], object] | None = None,
    unchecked: bool = False,
) -> Iterator[Resources]:
    """Resources by a description; parameters as of `open_cluster`."""
    if config.kind in _IN_CLUSTER:
        waiting = Waiting(config.minimum or 1, config.wait or (60.0 if config.minimum else 0.0))
        with open_cluster(
            _word(config),
            n_samples,
            config.workers,
            config.memory,
            only_describe=only_describe,
            check=check,
            access=Access(config.certificates, config.insecure, config.dashboard),
            stall_timeout=config.stall_timeout or STALL_SECONDS,
            settings=config.settings,
            local=LocalWorkers(config.threads or 1, config.adaptive, directory_here(config)),
            waiting=waiting,
            unchecked=unchecked,
        ) as resources:
            yield resources
        return
    with ExitStack() as stack:
        stack.enter_context(dask.config.set(config.settings))
        _refuse_to_wait_for_ever(config, only_describe=only_describe)
        before = _described(config)
        if before is not None:
            if only_describe:
                yield before
                return
            if check is not None:
                check(before)
            refuse_small_workers(before.memory_per_worker)
        client = stack.enter_context(_started(config))
        wait_for_workers(client, *_waiting(config))
        found = of_client(client, config.stall_timeout or STALL_SECONDS, unchecked=unchecked)
        if config.dashboard:
            found = replace(found, dashboard=dashboard_of(client))
        yield found


def _word(config: ClusterConfig) -> str | None:
    if config.kind == "scheduler-file":
        assert config.path is not None
        return scheduler_address(config.path, config.wait or 0.0)
    return config.where or None


@contextmanager
def _started(config: ClusterConfig) -> Iterator[Any]:
    if config.kind == "mpi":
        with mpi.mpi_cluster(config) as client:
            yield client
        return
    start: Callable[..., AbstractContextManager[Any]]
    if config.kind == "ssh":
        start, inside = ssh.ssh_cluster, ssh.only_loopback(config)
    else:
        interface, host = jobqueue.scheduler_interface(config)
        start, inside = jobqueue.jobqueue_cluster, host is not None and is_loopback(host)
        inside = inside or is_loopback_interface(interface)
    started = prepare(config, only_loopback=inside)
    with dask.config.set(started.settings), start(config, started) as client:
        yield client


def _described(config: ClusterConfig) -> Resources | None:
    """What a cluster would have, where that is known without starting it."""
    if config.kind == "jobqueue":
        n, threads, memory = jobqueue.described(config)
        what = f"{n} workers of {config.system}"
    elif config.kind == "ssh" and config.memory is not None:
        n, threads, memory = ssh.n_workers(config), config.threads or 1, config.memory
        what = f"{n} workers on {len(config.hosts) - 1} hosts"
    else:
        return None
    return Resources(Runner(), n, threads, memory, what)


def _refuse_to_wait_for_ever(config: ClusterConfig, *, only_describe: bool) -> None:
    """Refuse a minimum that the cluster never has."""
    if config.minimum is None:
        return
    if config.kind == "jobqueue":
        most = jobqueue.most_workers(config)
    elif config.kind == "ssh":
        most = ssh.n_workers(config)
    elif only_describe:
        return  # of mpi nothing is known before
    else:
        most = mpi.n_workers()
    if config.minimum > most:
        raise InputError(
            f"the cluster file wants minimum {config.minimum:,} workers before work begins, but "
            f"never more than {most:,} come: give a smaller minimum, or more workers"
        )


def _waiting(config: ClusterConfig) -> tuple[Waiting, str]:
    """For how many, how long, and what to look at if they do not come."""
    if config.kind == "jobqueue":
        least, hint = jobqueue.bounds(config).minimum if config.adaptive else 1, "the queue"
    elif config.kind == "ssh":
        least, hint = ssh.n_workers(config), "the hosts"
    else:
        least, hint = mpi.n_workers(), "the ranks"
    waiting = Waiting(config.minimum or least, config.wait or WAIT_SECONDS)
    return waiting, f"look at {hint}, or give a longer wait in the cluster file"


def scheduler_address(path: Path, seconds: float = 0.0) -> str:
    """The address that a scheduler left in a file; one that is still to come is waited for."""
    until = time.monotonic() + seconds
    while True:
        try:
            return _read_address(path)
        except (ClusterError, InputError):  # not there, or still being written
            if time.monotonic() > until:
                raise
        time.sleep(0.2)


def _read_address(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST_SCHEDULER_FILE + 1)
    except OSError as error:
        raise ClusterError(
            f"cannot read the scheduler file {path} ({error.strerror or error}): start the "
            "scheduler with --scheduler-file on a path that is seen from here"
        ) from error
    try:
        found = json.loads(content)["address"]
    except (ValueError, KeyError, TypeError, RecursionError):
        found = None
    if not isinstance(found, str):
        raise InputError(
            f"{path} is not the file of a Dask scheduler: it must be JSON with an address"
        )
    return found
