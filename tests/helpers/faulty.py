"""Commands and clusters in processes of their own, and what a run left behind."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from distributed import Client

from gmkcf_dask.cluster.process_settings import WORKER_ENVIRONMENT
from gmkcf_dask.compute.runner import Runner
from gmkcf_dask.results.run_folder import read_result
from gmkcf_dask.store.build import build_store
from helpers.commands import gmkcf
from helpers.problems import kernels, request

PACKAGE = str(Path(__file__).resolve().parents[2])
AS_PAPER = ("--init", "random", "--solver", "paper", "--assign", "kmeans")
"""The paper's method on a store of any kernels; `--paper` is for its twelve kernels only."""
FIT = ("-k", "3", "--tol", "0", "--checkpoint-every", "1", "--seed", "3", *AS_PAPER)
THREADS = ("--cluster", "threads")


def environment():
    paths = os.pathsep.join(filter(None, [PACKAGE, os.environ.get("PYTHONPATH")]))
    # Dask puts the variables of workers that it starts into the process that starts them, too
    clean = {name: value for name, value in os.environ.items() if name not in WORKER_ENVIRONMENT}
    return {**clean, "PYTHONPATH": paths, "PYTHONWARNINGS": "ignore"}


def small_store(path, n=150, m=3, block=40):
    Ks = kernels(np.random.default_rng(0), n, m)
    return build_store(path, request(Ks, "float32", block), Runner())


def start(*arguments, settings=None):
    """`gmkcf` in a process of its own, in a process group of its own; settings are variables."""
    return subprocess.Popen(
        [sys.executable, "-m", "gmkcf_dask.cli", *map(str, arguments)],
        env={**environment(), **(settings or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def run(*arguments):
    """`gmkcf` in this process: exit code and all that was said."""
    done = gmkcf(*arguments)
    return done.exit_code, done.output


def wait_until(true, process, seconds=60):
    """Wait for something to become true while a process runs; False if it ended before."""
    until = time.monotonic() + seconds
    while not true():
        if process.poll() is not None:
            return False
        assert time.monotonic() < until, "it took too long"
        time.sleep(0.005)
    return True


def serial_of(out):
    """Whether a checkpoint is there, by the files alone."""
    return any((out / "checkpoint" / name).exists() for name in ("0.json", "1.json"))


def outcome(out):
    """All that a run found, to the last bit."""
    result = read_result(out)
    with np.load(out / "factors.npz", allow_pickle=False) as factors:
        arrays = {name: factors[name].tobytes() for name in factors.files}
    labels = (out / "labels.csv").read_bytes()
    learned = result.kernel_weights, result.weights_history
    return labels, arrays, result.objective_history, result.runs, learned


def mount(*arguments):
    """Exit code; not 0 where one has no right to."""
    try:
        return subprocess.run(["mount", *arguments], capture_output=True, check=False).returncode
    except OSError:
        return 1


@contextmanager
def disk_of(folder, size, *options):
    """A file system of a size of its own at a new folder; skips the test where that cannot be."""
    folder.mkdir()
    if mount("-t", "tmpfs", "-o", ",".join([f"size={size}", *options]), "tmpfs", str(folder)):
        pytest.skip("no right to mount a file system here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder, left):
    """Take all of a file system but some bytes; returns the file to delete for them."""
    path = folder / "full"
    with path.open("xb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    os.truncate(path, path.stat().st_size // 4096 * 4096 - left)
    return path


def kill(process, number=signal.SIGKILL):
    """To one process, or to all of its group."""
    if process.poll() is None:
        os.kill(process.pid, number)


STALL = 8
"""Seconds for --stall-timeout: a busy machine may take some for the first task."""


def short_fit(folder, iterations=40, *options, block=20, store=None):
    """The command of a fit without --out and --cluster, and what it finds when nobody disturbs.

    `store` is where the store is made, if not in the folder.
    """
    store = store or folder / "s.zarr"
    small_store(store, block=block)
    fit = ("fit", store, *FIT, "--max-iter", iterations, *options)
    code, said = run(*fit, *THREADS, "--out", folder / "whole")
    assert code == 0, said
    return fit, outcome(folder / "whole")


def goes_on(err):
    """Run the command that an error ends with, on threads."""
    (line,) = [line for line in err.splitlines() if line.startswith("resume with: gmkcf ")]
    words = shlex.split(line.removeprefix("resume with: gmkcf "))
    assert words[-1] == "--resume"
    words[words.index("--cluster") + 1] = "threads"
    for option in ("--workers", "--memory"):
        if option in words:
            del words[words.index(option) : words.index(option) + 2]
    code, said = run(*words)
    assert code == 0, said


def lost_cluster_ends_in_a_checkpoint(folder, hit, number, bound):
    """Send a signal to some processes of a cluster during a fit: bounded wait, resumed to the same.

    `hit` chooses them, given the scheduler and the list of workers.
    """
    fit, expected = short_fit(folder)
    out = folder / "out"
    with separate_cluster(folder / "cluster") as (address, scheduler, workers):
        process = start(*fit, "--out", out, "--cluster", address, "--stall-timeout", STALL)
        assert wait_until(lambda: serial_of(out), process), process.communicate()[1]
        for one in hit(scheduler, workers):
            kill(one, number)
        begin = time.monotonic()
        _, err = process.communicate(timeout=2 * bound)
        assert time.monotonic() - begin < bound
    assert process.returncode == 5, err
    goes_on(err)
    assert outcome(out) == expected


@contextmanager
def separate_cluster(folder, n_workers=2, settings=None, last_worker=None, last_within=()):
    """A scheduler and workers without nannies, each a process of its own, on loopback.

    `settings` are variables for all of them, `last_worker` more of these for the last one, and
    `last_within` a command that starts it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "scheduler.json"
    host, found = "--host 127.0.0.1", ["--scheduler-file", str(file)]
    worker = (
        "distributed.cli.dask_worker --no-nanny --nthreads 1 --no-dashboard --death-timeout 20 "
    )
    worker += host
    variables = {**environment(), **(settings or {})}
    last = {**variables, **(last_worker or {})}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    begin = [sys.executable, "-m"]
    scheduler = subprocess.Popen(
        [*begin, *f"distributed.cli.dask_scheduler --port 0 --no-dashboard {host}".split(), *found],
        env=variables,
        **quiet,
    )
    workers = []
    try:
        wait_until(file.exists, scheduler)
        command = [*begin, *worker.split(), *found, "--local-directory", str(folder)]
        workers += [subprocess.Popen(command, env=variables, **quiet) for _ in range(n_workers - 1)]
        workers.append(subprocess.Popen([*last_within, *command], env=last, **quiet))
        yield address_of(file, n_workers), scheduler, workers
    finally:
        for process in (*workers, scheduler):
            if process.poll() is None:
                process.kill()
            process.wait()


def address_of(file, n_workers):
    for _ in range(100):
        with suppress(ValueError):  # the scheduler may still be writing it
            address = json.loads(file.read_text())["address"]
            break
        time.sleep(0.05)
    with Client(address, set_as_default=False, timeout=30) as client:
        client.wait_for_workers(n_workers, timeout=60)
    return address
