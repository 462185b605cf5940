"""Worker processes on this machine."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import dask

from gmkcf_dask.cluster.config import ClusterConfig
from gmkcf_dask.cluster.process_settings import (
    ENVIRONMENT,
    directory_here,
    page_settings,
    private_space,
    worker_environment,
    writing_into,
)
from gmkcf_dask.cluster.resources import retry_cluster, share_of_memory
from gmkcf_dask.cluster.tls import security_here
from gmkcf_dask.compute.runner import ignore_interrupts

LOCAL_CLUSTER = ClusterConfig("local")


@contextmanager
def local_cluster(
    n_workers: int, memory: int | None = None, config: ClusterConfig = LOCAL_CLUSTER
) -> Iterator[Any]:
    """A client of worker processes on this machine, on loopback only."""
    from distributed import Client, LocalCluster

    security = security_here(config.certificates)
    settings, page = page_settings(dashboard=config.dashboard)
    with (
        dask.config.set({ENVIRONMENT: worker_environment(), **settings}),
        private_space(directory_here(config)) as folder,
        ExitStack() as stack,
    ):
        start_workers = partial(
            LocalCluster,
            n_workers=n_workers,
            threads_per_worker=config.threads or 1,
            memory_limit=memory or share_of_memory(n_workers),
            local_directory=folder,
            host="127.0.0.1",
            protocol="tcp://" if security is None else "tls://",
            security=security,
            dashboard_address=page["dashboard_address"],
            scheduler_kwargs={"dashboard": page["dashboard"]},
            # the driver reports a failed task to the user, in one sentence
            silence_logs=logging.CRITICAL,
        )
        with writing_into(folder):
            cluster: Any = retry_cluster(start_workers, "worker processes cannot be started")
        stack.enter_context(cluster)
        client = stack.enter_context(Client(cluster, security=security, set_as_default=False))
        retry_cluster(lambda: ignore_interrupts(client), "worker processes do not answer")
        if config.adaptive is not None:
            cluster.adapt(minimum=config.adaptive.minimum, maximum=config.adaptive.maximum)
        yield client
