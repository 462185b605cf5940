"""All workers lost, all workers stopped, the scheduler killed: bounded wait, checkpoint, resume."""

import shlex
import signal
import time

import pytest
from faulty import (
    FIT,
    kill,
    outcome,
    run,
    separate_cluster,
    serial_of,
    small_store,
    start,
    wait_until,
)

STALL = 8  # a busy machine may take some seconds for the first task


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    small_store(folder / "s.zarr", block=20)
    fit = ("fit", folder / "s.zarr", *FIT, "--max-iter", 40)
    assert run(*fit, "--cluster", "threads", "--out", folder / "whole")[0] == 0
    return fit, outcome(folder / "whole")


@pytest.mark.parametrize(
    ("fault", "bound"), [("killed", 30), ("stopped", 30), ("no scheduler", 45)]
)
def test_a_lost_cluster_ends_in_a_checkpoint(tmp_path, whole, fault, bound):
    fit, expected = whole
    out = tmp_path / "out"
    with separate_cluster(tmp_path / "cluster") as (address, scheduler, workers):
        command = (*fit, "--out", out, "--cluster", address, "--stall-timeout", STALL)
        process = start(*command)
        assert wait_until(lambda: serial_of(out), process), process.communicate()[1]
        hit = [scheduler] if fault == "no scheduler" else workers
        for one in hit:
            kill(one, signal.SIGSTOP if fault == "stopped" else signal.SIGKILL)
        begin = time.monotonic()
        _, err = process.communicate(timeout=2 * bound)
        assert time.monotonic() - begin < bound
    assert process.returncode == 5, err
    (line,) = [line for line in err.splitlines() if line.startswith("to go on: gmkcf ")]
    words = shlex.split(line.removeprefix("to go on: gmkcf "))
    words[words.index("--cluster") + 1] = "threads"
    code, err = run(*words)
    assert code == 0, err
    assert outcome(out) == expected
