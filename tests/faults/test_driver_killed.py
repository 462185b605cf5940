"""Driver kill -9 at random times during fit: every resume succeeds, the result is the same bits."""

import random
import time

from helpers.faulty import (
    FIT,
    THREADS,
    kill,
    outcome,
    run,
    serial_of,
    small_store,
    start,
    wait_until,
)


def test_killed_and_resumed(tmp_path):
    small_store(tmp_path / "s.zarr")
    options = ("--n-init", 2, "--solver", "accelerated", "--max-iter", 100)
    fit = ("fit", tmp_path / "s.zarr", *FIT, *THREADS, *options)
    code, err = run(*fit, "--out", tmp_path / "whole")
    assert code == 0, err
    out, killed, dice = tmp_path / "killed", 0, random.Random(1)
    for _ in range(3):
        process = start(*fit, "--out", out, "--resume")
        if wait_until(lambda: serial_of(out), process):
            time.sleep(dice.random() * 0.3)
            killed += process.poll() is None
            kill(process)
        process.communicate()
        if (out / "result.json").exists():
            break
    assert killed >= 1
    if not (out / "result.json").exists():
        code, err = run(*fit, "--out", out, "--resume")
        assert code == 0, err
    assert outcome(out) == outcome(tmp_path / "whole")
    assert not (out / "checkpoint").exists()
