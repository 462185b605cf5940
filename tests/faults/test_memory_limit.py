"""A task that takes workers with it, as one over the memory limit does, becomes advice."""

import os

import dask
import dask.array as da
import pytest
from helpers.faulty import goes_on, outcome, short_fit, start

from gmkcf_dask.cluster.local import local_cluster
from gmkcf_dask.cluster.resources import of_client
from gmkcf_dask.errors import WorkersKilled
from gmkcf_dask.system.units import GIB


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


GREEDY = """
import time
from pathlib import Path

import numpy as np

from gmkcf_dask.compute import tiled as tasks

def greedy(real):
    def product(*arguments, **options):
        if Path({out!r}, "checkpoint", "0.json").exists():
            held = []
            for _ in range(200):  # 2 GiB, given the time
                held.append(np.ones(10 << 17))
                time.sleep(0.01)
        return real(*arguments, **options)
    product.is_greedy = True
    return product

# every product, so that the second try dies as the first did: it fuses again and multiplies in one
# task. Workers run this file more than once.
for name in ("fuse_and_multiply_task", "product_of_blocks_task", "product_task"):
    if not hasattr(getattr(tasks, name), "is_greedy"):
        setattr(tasks, name, greedy(getattr(tasks, name)))
"""


@pytest.mark.once
@pytest.mark.cluster
def test_a_worker_that_really_takes_too_much(tmp_path):
    """Killed by its nanny in the third iteration: advice, a checkpoint, and the way to go on."""
    fit, expected = short_fit(tmp_path)
    out = tmp_path / "out"
    (tmp_path / "greedy.py").write_text(GREEDY.format(out=str(out)))
    settings = {
        "DASK_DISTRIBUTED__WORKER__PRELOAD": str(tmp_path / "greedy.py"),
        "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "0",
    }
    where = ("--cluster", "local", "--workers", 1, "--memory", "600MiB", "--stall-timeout", 30)
    process = start(*fit, *where, "--out", out, settings=settings)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 5, err
    assert "give more memory per worker" in err
    assert "Traceback" not in err
    goes_on(err)
    assert outcome(out) == expected
