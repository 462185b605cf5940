"""Driver kill -9 at random times during fit: every resume succeeds, the result is the same bits."""

import random
import time

from helpers.commands import exits
from helpers.faulty import THREADS, kill, outcome, serial_of, short_fit, start, wait_until


def test_killed_and_resumed(tmp_path):
    options = ("--n-init", 2, "--solver", "accelerated")
    fit, expected = short_fit(tmp_path, 100, *THREADS, *options, block=40)
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
        exits(0, *fit, "--out", out, "--resume")
    assert outcome(out) == expected
    assert not (out / "checkpoint").exists()
