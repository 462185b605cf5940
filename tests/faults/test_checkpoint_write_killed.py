"""Kill between writing a checkpoint's temporary file and moving it: the older one is used."""

import subprocess
import sys

import pytest
from helpers.commands import exits
from helpers.faulty import THREADS, environment, outcome, short_fit
from helpers.marks import mostly_slow

KILLED = """
import os, pathlib, signal, sys
from gmkcf_dask.cli import main

replace, left = pathlib.Path.replace, [int(sys.argv.pop(1))]

def kill_instead(self, target):
    left[0] -= pathlib.Path(target).parent.name == "checkpoint"
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return replace(self, target)

pathlib.Path.replace = kill_instead
main()
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return short_fit(tmp_path_factory.mktemp("whole"), 10, *THREADS, block=40)


@mostly_slow("moves", [1, 7, 8])  # the first of all; an npz; the JSON that goes with it
def test_the_older_generation_is_used(tmp_path, whole, moves):
    fit, expected = whole
    out = tmp_path / "out"
    words = [*map(str, fit), "--out", str(out)]
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(moves), *words], env=environment(), check=False
    )
    assert done.returncode == -9
    err = exits(0, *words, "--resume").output
    assert ("no checkpoint" in err) == (moves == 1)
    assert outcome(out) == expected
    assert not (out / "checkpoint").exists(), "temporary files were left"
