"""A task that takes workers with it, as one over the memory limit does, becomes advice."""

import os

import dask
import dask.array as da
import pytest

from gmkcf_dask.cluster import local_cluster, of_client
from gmkcf_dask.errors import WorkersKilled
from gmkcf_dask.plan import GIB


def dies(block):
    # the nanny of a worker over its limit kills it just so
    os._exit(9)


def test_killed_workers_become_advice():
    tried = []

    def graph():
        tried.append(1)
        return da.ones(2, chunks=2).map_blocks(dies, dtype=float, meta=da.ones(1)._meta)

    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        local_cluster(1, GIB) as client,
    ):
        runner = of_client(client, 30.0).runner
        with pytest.raises(WorkersKilled, match="more memory per worker, or build with a smaller"):
            runner.retry(lambda: runner.compute(graph()))
    assert len(tried) == 2
    assert WorkersKilled.exit_code == 5
