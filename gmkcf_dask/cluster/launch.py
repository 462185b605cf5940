"""Describe and start the cluster of a `ClusterConfig`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import dask
import msgspec

from gmkcf_dask.cluster import jobqueue, mpi, ssh
from gmkcf_dask.cluster.config import ClusterConfig
from gmkcf_dask.cluster.connect import connect, dashboard_of, scheduler_address, wait_for_workers
from gmkcf_dask.cluster.local import local_cluster
from gmkcf_dask.cluster.process_settings import WAIT_SECONDS, need_bokeh, prepare
from gmkcf_dask.cluster.resources import Resources, local_resources, of_client, threads
from gmkcf_dask.cluster.tls import is_encrypted
from gmkcf_dask.compute import STALL_SECONDS
from gmkcf_dask.compute.plan import refuse_small_workers
from gmkcf_dask.compute.runner import Runner
from gmkcf_dask.errors import InputError, redacted

LOCAL_CLUSTER_FROM = 5_000
"""Samples from which worker processes pay for their start."""


def describe(config: ClusterConfig, n_samples: int) -> Resources | None:
    """Resources that a cluster would have; starts nothing.

    Parameters
    ----------
    config : ClusterConfig
        Without a kind, it is `local` from 5,000 samples on, else `threads`.
    n_samples : int

    Returns
    -------
    Resources or None
        None where only the running cluster knows: a scheduler elsewhere, MPI, or hosts without a
        memory limit in the file.
    """
    config = _with_kind(config, n_samples)
    with dask.config.set(config.settings):
        return _described(config)


@contextmanager
def start(config: ClusterConfig, n_samples: int, *, unchecked: bool = False) -> Iterator[Resources]:
    """Start a cluster, or connect to one; it ends with the context.

    Parameters
    ----------
    config, n_samples
        As for `describe`.
    unchecked : bool
        Accept workers of any version.
    """
    config = _with_kind(config, n_samples)
    with ExitStack() as stack:
        stack.enter_context(dask.config.set(config.settings))
        described = _described(config)
        if described is not None and described.in_this_process:
            yield described
            return
        if described is not None:
            refuse_small_workers(described.memory_per_worker)
        client = stack.enter_context(_client(config, described))
        wait_for_workers(client, *_waiting(config))
        stall_timeout = config.stall_timeout or STALL_SECONDS
        resources = of_client(client, stall_timeout, unchecked=unchecked)
        if config.dashboard:
            resources = replace(resources, dashboard=dashboard_of(client))
        yield resources


class LazyCluster(ExitStack):
    """The cluster of one command: described before it runs, started once, stopped with the context.

    Parameters
    ----------
    config : ClusterConfig
    """

    def __init__(self, config: ClusterConfig) -> None:
        super().__init__()
        self.config = config
        self._resources: Resources | None = None

    def describe(self, n_samples: int) -> Resources | None:
        """As the function; None also where the cluster runs already."""
        return None if self._resources is not None else describe(self.config, n_samples)

    def start(self, n_samples: int) -> Resources:
        """The resources of the cluster, which starts with the first call."""
        if self._resources is None:
            self._resources = self.enter_context(self._started(n_samples))
        return self._resources

    def start_for_texts(self, n_samples: int) -> Resources | None:
        """Start worker processes of this machine before texts are read; None where it has none.

        No plan has been made yet: the later one compares with the memory that is free now.
        """
        if _with_kind(self.config, n_samples).kind != "local":
            return None
        described = describe(self.config, n_samples)
        assert described is not None
        resources = self.start(n_samples)
        self._resources = replace(resources, machine_memory=described.machine_memory)
        return self._resources

    def _started(self, n_samples: int) -> AbstractContextManager[Resources]:
        return start(self.config, n_samples)


def _with_kind(config: ClusterConfig, n_samples: int) -> ClusterConfig:
    """The configuration with the default kind filled in."""
    if config.kind:
        return config
    return msgspec.structs.replace(
        config, kind="local" if n_samples >= LOCAL_CLUSTER_FROM else "threads"
    )


def _described(config: ClusterConfig) -> Resources | None:
    """As `describe`, with Dask's settings in place."""
    if config.workers is not None and config.workers < 1:
        raise InputError(f"workers must be at least 1, not {config.workers}")
    if config.kind == "threads":
        _refuse_unused(config, encrypted=False)
        return threads(config.workers, config.memory)
    if config.kind == "local":
        _refuse_unused(config, encrypted=True)
        return local_resources(config)
    if config.kind == "jobqueue":
        _refuse_minimum(config, jobqueue.most_workers(config) if config.minimum else 0)
        n, n_threads, memory = jobqueue.described(config)
        return Resources(Runner(), n, n_threads, memory, f"{n} workers of {config.system}")
    if config.kind == "ssh":
        n = ssh.ssh_workers(config)
        _refuse_minimum(config, n)
        if config.memory is not None:
            description = f"{n} workers on {len(config.hosts) - 1} hosts"
            return Resources(Runner(), n, config.threads or 1, config.memory, description)
    return None


def _client(config: ClusterConfig, described: Resources | None) -> AbstractContextManager[Any]:
    """The client of a cluster that is started, or connected to."""
    if config.kind == "local":
        assert described is not None
        return local_cluster(described.n_workers, described.memory_per_worker, config)
    if config.kind == "ssh":
        return _start_prepared(ssh.ssh_cluster, config, only_loopback=ssh.ssh_only_loopback(config))
    if config.kind == "jobqueue":
        inside = jobqueue.jobs_only_loopback(config)
        return _start_prepared(jobqueue.jobqueue_cluster, config, only_loopback=inside)
    if config.kind == "mpi":
        _refuse_minimum(config, mpi.mpi_workers() if config.minimum else 0)
        return mpi.mpi_cluster(config)
    address = config.where
    if config.path is not None:
        address = scheduler_address(config.path, config.wait or 0.0)
    _refuse_unused(config, encrypted=is_encrypted(address), address=address)
    return connect(address, config.certificates, insecure=config.insecure)


@contextmanager
def _start_prepared(start_cluster: Any, config: ClusterConfig, *, only_loopback: bool) -> Any:
    process = prepare(config, only_loopback=only_loopback)
    with dask.config.set(process.settings), start_cluster(config, process) as client:
        yield client


def _refuse_unused(config: ClusterConfig, *, encrypted: bool, address: str | None = None) -> None:
    """Refuse options that would do nothing at this place."""
    if config.dashboard and config.kind != "local":
        raise InputError("--dashboard is for --cluster local: nothing else is started here")
    if config.dashboard:
        need_bokeh()
    if config.certificates is not None and not encrypted:
        raise InputError(
            "certificates are for --cluster local or a tls:// address, not "
            f"{redacted(address or config.kind)!r}: leave them out or fix the address"
        )
    if address is not None and (config.workers is not None or config.memory is not None):
        raise InputError(
            "workers and memory are for clusters started here: the scheduler at an address brings "
            "its own"
        )


def _refuse_minimum(config: ClusterConfig, most: int) -> None:
    """Refuse to wait for more workers than ever come."""
    if config.minimum is not None and config.minimum > most:
        raise InputError(
            f"the cluster file wants minimum {config.minimum:,} workers before work begins, but "
            f"never more than {most:,} come: give a smaller minimum, or more workers"
        )


def _waiting(config: ClusterConfig) -> tuple[int, float, str]:
    """How many workers to wait for, how long, and what to do if they do not come."""
    if config.kind == "local":
        return 1, 0.0, ""
    if config.kind in ("address", "scheduler-file"):
        seconds = config.wait or (60.0 if config.minimum else 0.0)
        return config.minimum or 1, seconds, "start some first"
    if config.kind == "jobqueue":
        least, hint = jobqueue.bounds(config).minimum if config.adaptive else 1, "the queue"
    elif config.kind == "ssh":
        least, hint = ssh.ssh_workers(config), "the hosts"
    else:
        least, hint = mpi.mpi_workers(), "the ranks"
    hint = f"look at {hint}, or give a longer wait in the cluster file"
    return config.minimum or least, config.wait or WAIT_SECONDS, hint
