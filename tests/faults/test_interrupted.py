"""Ctrl-C and SIGTERM: a checkpoint, the exit code of a shell, and the command that goes on."""

import os
import shlex
import signal
import subprocess
import sys
from contextlib import suppress

import pytest
from helpers.commands import exits
from helpers.faulty import environment, outcome, run, serial_of, small_store, start, wait_until
from helpers.marks import mostly_slow

from gmkcf_dask import GMKCF
from gmkcf_dask.cli.signals import Interrupted, interruptible, signals_interrupt
from gmkcf_dask.errors import InputError
from gmkcf_dask.events import StageProgress, ignore
from gmkcf_dask.results.checkpoints import read_checkpoint

LONG = ("-k", "3", "--tol", "0", "--max-iter", "200", "--seed", "3")


@mostly_slow(
    ("number", "code", "where"),
    [
        (signal.SIGTERM, 143, "threads"),
        (signal.SIGHUP, 129, "threads"),
        (signal.SIGINT, 130, "local"),
    ],
)
def test_a_signal_ends_in_a_checkpoint(tmp_path, number, code, where):
    store, out = tmp_path / "s.zarr", tmp_path / "out"
    small_store(store)
    # on workers an iteration takes far longer: fewer of them
    how = LONG if where == "threads" else (*LONG, "--max-iter", "12", "--workers", "2")
    fit = ("fit", store, *how, "--checkpoint-every", "2", "--cluster", where)
    process = start(*fit, "--out", out)
    assert wait_until(lambda: serial_of(out), process)
    os.killpg(process.pid, number)  # as a terminal does: workers hear it too
    _, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    (command,) = [line for line in err.splitlines() if line.startswith("resume with: gmkcf fit")]
    words = shlex.split(command.removeprefix("resume with: gmkcf "))
    assert words[-1] == "--resume"
    assert "Traceback" not in err
    assert not (out / "result.json").exists()

    refused, err = run(*words[:-1])
    assert refused == 2
    assert "--resume" in err
    assert "--overwrite" in err
    words[words.index("--cluster") + 1] = "threads"
    exits(0, *words)
    again = ("fit", store, *how, "--cluster", "threads", "--out", tmp_path / "whole")
    assert run(*again)[0] == 0
    assert outcome(out) == outcome(tmp_path / "whole")


def test_a_hangup_that_nohup_ignores_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signals_interrupt():
            os.kill(os.getpid(), signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        with pytest.raises(Interrupted) as raised, signals_interrupt():
            os.kill(os.getpid(), signal.SIGHUP)
        assert raised.value.exit_code == 129
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_that_was_swallowed_is_raised_after_the_iteration():
    listen = interruptible(ignore)
    event = StageProgress("fit", 0, 1)
    with signals_interrupt():
        listen(event)
        with suppress(Interrupted):  # as a destructor does
            os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Interrupted) as raised:
            listen(event)
    assert raised.value.exit_code == 143
    with signals_interrupt():
        listen(event)


DESTRUCTOR = """
import os, signal
from gmkcf_dask.cli.signals import Interrupted, interruptible, signals_interrupt
from gmkcf_dask.events import StageProgress, ignore

class Interrupting:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)

class Broken:
    def __del__(self):
        raise ValueError("is reported")

with signals_interrupt():
    Broken()
    Interrupting()
    try:
        interruptible(ignore)(StageProgress("fit", 0, 1))
    except Interrupted as interrupted:
        raise SystemExit(interrupted.exit_code)
"""


def test_a_signal_inside_a_destructor_leaves_no_traceback():
    ended = subprocess.run(
        [sys.executable, "-c", DESTRUCTOR], env=environment(), capture_output=True, text=True
    )
    assert ended.returncode == 143
    assert "is reported" in ended.stderr
    assert "Interrupted" not in ended.stderr


ESTIMATOR = """
import sys
from gmkcf_dask import GMKCF
from gmkcf_dask.store.kernel_store import KernelStore
model = GMKCF(3, tol=0.0, max_iter=3000, random_state=0, checkpoint_dir=sys.argv[2],
              checkpoint_every=1000, callbacks=[lambda event: print(event.iteration, flush=True)])
model.fit(KernelStore.open(sys.argv[1]))
"""


@pytest.mark.slow
def test_an_estimator_that_is_asked_to_end_leaves_a_checkpoint(tmp_path):
    store, folder = tmp_path / "s.zarr", tmp_path / "kept"
    small_store(store)
    process = subprocess.Popen(
        [sys.executable, "-c", ESTIMATOR, str(store), str(folder)],
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    for line in process.stdout:
        if int(line) == 20:  # long before one is due
            process.terminate()
            break
    process.stdout.read()
    process.wait(timeout=60)
    process.stdout.close()
    assert process.returncode == 143
    assert read_checkpoint(folder).serial == 1
    assert [entry.name for entry in tmp_path.iterdir() if "lease" in entry.name] == []


@pytest.mark.parametrize(("every", "sentence"), [(0, "1 or more"), (2.5, "1 or more")])
def test_intervals_that_are_none(tmp_path, every, sentence):
    model = GMKCF(2, random_state=0, checkpoint_dir=tmp_path, checkpoint_every=every)
    with pytest.raises(InputError, match=sentence):
        model.fit([[1.0], [2.0], [3.0]])
    with pytest.raises(InputError, match="needs checkpoint_dir"):
        GMKCF(2, random_state=0, checkpoint_every=2).fit([[1.0], [2.0], [3.0]])
