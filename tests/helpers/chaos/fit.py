"""Damage done to a running fit, many times over: the driver, workers, the scheduler.

Each function prints a table and returns whether every single one came out right: the same bits as
an undisturbed run, or a checkpoint and the command that goes on from it, to the same bits. Nothing
may take longer than its bound.
"""

from __future__ import annotations

import os
import random
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from helpers.faulty import (
    FIT,
    kill,
    outcome,
    separate_cluster,
    serial_of,
    small_store,
    start,
    wait_until,
)

BOUND = 180.0
"""Seconds that one fit, from its start to its end, may take at most."""


@contextmanager
def _prepared(*options: object, block: int = 40) -> Iterator[tuple[Path, tuple[Any, ...], Any]]:
    """A folder, the command of a fit without --out, and what it finds when nobody disturbs it."""
    with tempfile.TemporaryDirectory(prefix="gmkcf-chaos-") as name:
        folder = Path(name)
        small_store(folder / "s.zarr", block=block)
        fit = ("fit", folder / "s.zarr", *FIT, *options)
        code, err = _ended(start(*fit, "--cluster", "threads", "--out", folder / "whole"))
        if code != 0:
            raise SystemExit(f"the undisturbed run failed: {err}")
        yield folder, fit, outcome(folder / "whole")


def _ended(process: Any) -> tuple[int, str]:
    try:
        _, err = process.communicate(timeout=BOUND)
    except subprocess.TimeoutExpired:
        kill(process)
        process.communicate()
        raise TimeoutError(f"it did not end within {BOUND:g} s") from None
    return process.returncode, err


def _table(what: str, count: int, limit: float, attempt: Callable[[int], str]) -> bool:
    begin, found = time.monotonic(), Counter[str]()
    for number in range(count):
        if time.monotonic() - begin > limit:
            break  # what was done until then still counts
        try:
            found[attempt(number)] += 1
        except (AssertionError, OSError, TimeoutError, ValueError) as error:
            found[f"FAILED: {type(error).__name__}: {error}"[:200]] += 1
    print(f"{what}: {found.total()} of {count} in {time.monotonic() - begin:.0f} s")
    for outcome_, times in found.most_common():
        print(f"  {times:>4}  {outcome_}")
    return found.total() > 0 and not any(outcome_.startswith("FAILED") for outcome_ in found)


def fit_kills(count: int, seed: int = 0, limit: float = 3600.0) -> bool:
    """kill -9 of the driver at random times of a fit, each followed by --resume."""
    dice = random.Random(seed)
    options = ("--cluster", "threads", "--n-init", 2, "--max-iter", 150)
    with _prepared(*options[2:]) as (folder, fit, expected):

        def attempt(number: int) -> str:
            out = folder / f"killed-{number}"
            command = (*fit, *options[:2], "--out", out, "--resume")
            process = start(*command)
            # a third at any time, start-up included; the others while it iterates
            if number % 3 == 0:
                time.sleep(dice.random() * 4)
            elif wait_until(lambda: serial_of(out), process):
                time.sleep(dice.random() * 0.7)
            where = "after its end" if process.poll() is not None else "before a checkpoint"
            if process.poll() is None and serial_of(out):
                where = "with a checkpoint"
            kill(process)
            process.communicate(timeout=BOUND)
            if not (out / "result.json").exists() or serial_of(out):
                code, err = _ended(start(*command))
                assert code == 0, err
            assert outcome(out) == expected, "another result"
            assert not (out / "checkpoint").exists(), "the checkpoint is still there"
            return f"killed {where}, same bits"

        return _table("driver kill -9 during fit", count, limit, attempt)


def worker_kills(count: int, seed: int = 0, limit: float = 3600.0) -> bool:
    """kill -9 of one or two of three workers of a local cluster, at any time of a fit.

    Times are drawn from the duration of an undisturbed run on such a cluster: every fourth one
    between the workers' start and the first checkpoint, the others between that and the end.
    Whether a kill came during a task is judged by whether the worker used its processor.
    """
    dice = random.Random(seed)
    where = ("--cluster", "local", "--workers", 3, "--memory", "1GiB", "--stall-timeout", 40)
    with _prepared("--max-iter", 12, block=20) as (folder, fit, expected):
        process = start(*fit, *where, "--out", folder / "undisturbed")
        _all_workers(process)
        times = [time.monotonic()]
        wait_until(lambda: serial_of(folder / "undisturbed"), process)
        times.append(time.monotonic())
        code, err = _ended(process)
        if code != 0:
            raise SystemExit(f"the undisturbed run failed: {err}")
        first, rest = times[1] - times[0], time.monotonic() - times[1]
        print(f"undisturbed: {first:.1f} s to the first checkpoint, {rest:.1f} s from there")

        def attempt(number: int) -> str:
            out = folder / f"workers-{number}"
            process = start(*fit, *where, "--out", out)
            victims = dice.sample(_all_workers(process), dice.choice([1, 2]))
            if number % 4:
                wait_until(lambda: serial_of(out), process)
            time.sleep(dice.random() * (rest if number % 4 else first))
            if process.poll() is not None:
                return f"no kill, it had ended; {_same_or_resumed(process, out, expected)}"
            when = "after" if serial_of(out) else "before"
            busy = sum(_computes(pid) for pid in victims)
            for pid in victims:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            ended = _same_or_resumed(process, out, expected)
            hit = (
                f"{len(victims)} killed, {busy} of them during a task, {when} the first checkpoint"
            )
            return f"{hit}: {ended}"

        return _table("worker kill -9 during fit, 3 workers", count, limit, attempt)


def _all_workers(process: Any, n_workers: int = 3) -> list[int]:
    """The workers of a local cluster, once all are there."""
    found: list[int] = []

    def there() -> bool:
        found[:] = _workers_of(process.pid)
        return len(found) == n_workers

    assert wait_until(there, process), process.communicate()[1]
    return found


def _computes(pid: int) -> bool:
    """Whether a process uses its processor just now, as a worker does in a task."""
    import psutil

    with suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).cpu_percent(interval=0.02) > 40)
    return False


def scheduler_kills(count: int, seed: int = 0, limit: float = 3600.0) -> bool:
    """kill -9 of a scheduler that was started apart, while a fit runs on it."""
    dice = random.Random(seed)
    with _prepared("--max-iter", 60, block=20) as (folder, fit, expected):

        def attempt(number: int) -> str:
            out = folder / f"scheduler-{number}"
            with separate_cluster(folder / f"cluster-{number}") as (address, scheduler, _):
                process = start(*fit, "--cluster", address, "--stall-timeout", 20, "--out", out)
                assert wait_until(lambda: serial_of(out), process), process.communicate()[1]
                time.sleep(dice.random())
                kill(scheduler)
                return _same_or_resumed(process, out, expected)

        return _table("scheduler kill -9 during fit", count, limit, attempt)


def _same_or_resumed(process: Any, out: Path, expected: Any) -> str:
    code, err = _ended(process)
    if code == 0:
        assert outcome(out) == expected, "another result"
        return "same bits without help"
    assert code == 5, f"exit code {code}: {err}"
    (line,) = [line for line in err.splitlines() if line.startswith("resume with: gmkcf ")]
    words = shlex.split(line.removeprefix("resume with: gmkcf "))
    words[words.index("--cluster") + 1] = "threads"
    for option in ("--workers", "--memory"):
        if option in words:
            del words[words.index(option) : words.index(option) + 2]
    code, err = _ended(start(*words))
    assert code == 0, err
    assert outcome(out) == expected, "another result"
    return "exit code 5 and a checkpoint, same bits when resumed"


def _workers_of(driver: int) -> list[int]:
    """Processes of the workers of a local cluster: spawned children of the driver."""
    import psutil

    children = psutil.Process(driver).children(recursive=True)
    return [child.pid for child in children if "spawn_main" in " ".join(child.cmdline())]


KINDS = {"fit-kills": fit_kills, "worker-kills": worker_kills, "scheduler-kills": scheduler_kills}

if __name__ == "__main__":
    sys.exit(0 if KINDS[sys.argv[1]](int(sys.argv[2])) else 1)
