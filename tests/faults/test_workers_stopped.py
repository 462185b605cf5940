"""Rows: workers stopped. All: a checkpoint after a bounded wait. One of three: mostly it goes on.

Dask drops a silent worker, but another one that is just fetching a result from it waits on, because
its connection is not closed: then the watchdog ends the fit with a checkpoint.
"""

import signal

import pytest
from faulty import (
    goes_on,
    kill,
    lost_cluster_ends_in_a_checkpoint,
    outcome,
    separate_cluster,
    serial_of,
    short_fit,
    start,
    wait_until,
)

pytestmark = pytest.mark.once
DROPPED_AFTER = {"DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": "5s"}


def test_all(tmp_path):
    lost_cluster_ends_in_a_checkpoint(tmp_path, lambda _, workers: workers, signal.SIGSTOP, 30)


def test_one_of_three(tmp_path):
    """Longer than the scheduler's worker-ttl, shorter than ours: the others do its work, or ours
    ends in a checkpoint."""
    fit, expected = short_fit(tmp_path, iterations=15)
    out = tmp_path / "out"
    with separate_cluster(tmp_path / "cluster", 3, DROPPED_AFTER) as (address, _, workers):
        process = start(*fit, "--out", out, "--cluster", address, "--stall-timeout", 20)
        assert wait_until(lambda: serial_of(out), process), process.communicate()[1]
        kill(workers[0], signal.SIGSTOP)
        _, err = process.communicate(timeout=120)
        assert workers[0].poll() is None
    assert process.returncode in (0, 5), err
    if process.returncode == 5:
        goes_on(err)
    assert outcome(out) == expected
