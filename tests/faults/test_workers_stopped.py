"""Rows: workers stopped. All: a checkpoint after a bounded wait. One of three: work goes on.

Dask drops a silent worker, but another one that is just fetching a result from it waits on, because
its connection is not closed: then the watchdog has the work done again.
"""

import signal
import time

import dask.array as da
import pytest
from helpers.faulty import (
    kill,
    lost_cluster_ends_in_a_checkpoint,
    outcome,
    separate_cluster,
    serial_of,
    short_fit,
    start,
    wait_until,
)
from helpers.marks import mostly_slow

from gmkcf_dask.compute.runner import Runner
from gmkcf_dask.errors import ClusterStalled

DROPPED_AFTER = {"DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": "5s"}


@pytest.mark.cluster
def test_all(tmp_path):
    lost_cluster_ends_in_a_checkpoint(tmp_path, lambda _, workers: workers, signal.SIGSTOP, 30)


@pytest.mark.cluster
def test_one_of_three(tmp_path):
    """For longer than the scheduler's worker-ttl: the others do its work."""
    fit, expected = short_fit(tmp_path, iterations=15)
    out = tmp_path / "out"
    with separate_cluster(tmp_path / "cluster", 3, DROPPED_AFTER) as (address, _, workers):
        process = start(*fit, "--out", out, "--cluster", address, "--stall-timeout", 20)
        assert wait_until(lambda: serial_of(out), process), process.communicate()[1]
        kill(workers[0], signal.SIGSTOP)
        _, err = process.communicate(timeout=120)
        assert workers[0].poll() is None
    assert process.returncode == 0, err
    assert outcome(out) == expected


@mostly_slow("hanging", [1, 2])
def test_a_stall_is_tried_once_more_where_workers_answer(two_workers, hanging):
    runner, tried = Runner(two_workers, stall_timeout=2.0), []

    def waits(block, seconds):
        time.sleep(seconds)
        return block

    def graph():
        tried.append(1)
        seconds = 6.0 if len(tried) <= hanging else 0.0
        return da.ones(2, chunks=2).map_blocks(waits, seconds, dtype=float, meta=da.ones(1)._meta)

    def work():
        return runner.compute(graph()).sum()

    if hanging == 1:
        assert runner.retry(work) == 2.0
    else:
        with pytest.raises(ClusterStalled, match="no task finished for 2 s"):
            runner.retry(work)
    assert len(tried) == 2
