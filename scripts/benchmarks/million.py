"""From texts to a report at any size: time of every stage and memory of all processes.

`--input` names a corpus of texts; without one documents are made up: a Zipf vocabulary with topics,
60 words each, their number by `--n`. With several sizes the exponent of every stage has a bar.
Times of stages come from the log of the run.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import psutil
from helpers.corpora import scratch_folder
from measure import Bar, Report

from gmkcf_dask.system.units import GIB

K, TOPICS, WORDS = 20, 40, 60
LIMITS = {True: (900.0, 6.0), False: (3600.0, 12.0)}
"""Seconds and GiB at most, for a corpus of 200,000 abstracts, and for a million documents."""
EXPONENT, OF_NEIGHBOURS = 1.2, 1.8
SHORT = 2.0
"""Seconds below which a stage of the smaller size says nothing about its exponent."""
STAGE = re.compile(r" (?P<stage>[a-z][a-z -]*?)( \d+ of \d+)?: .* in (?P<seconds>[\d.,]+) s$")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--n", type=int, nargs="+", default=[100_000, 400_000])
    parser.add_argument("--input", type=Path, help="a corpus instead of made-up documents")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--memory", default="4GiB", help="of each worker")
    parser.add_argument("-k", type=int, default=K)
    parser.add_argument("--folder", type=Path)


def write_documents(path: Path, n: int, seed: int = 0) -> None:
    """Texts of about the term statistics of abstracts: Zipf's law, and terms of topics."""
    rng = np.random.default_rng(seed)
    vocabulary = max(20_000, int(40 * math.sqrt(n)))
    common = 1.0 / np.arange(1, vocabulary + 1)
    common = np.cumsum(common / common.sum())
    own = [rng.choice(vocabulary, 400, replace=False) for _ in range(TOPICS)]
    with gzip.open(path, "wt", encoding="utf-8", compresslevel=1) as out:
        for first in range(0, n, 10_000):
            count = min(10_000, n - first)
            words = np.searchsorted(common, rng.random((count, WORDS)))
            topics = rng.integers(TOPICS, size=count)
            for i in range(count):
                topic = int(topics[i])
                special = rng.choice(own[topic], WORDS // 3)
                text = " ".join(f"w{w}" for w in (*words[i], *special))
                row = {"id": str(first + i), "text": text, "label": str(topic)}
                out.write(json.dumps(row) + "\n")


class Memory(threading.Thread):
    """The largest resident size of a process and all it starts, sampled."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.process, self.peak = psutil.Process(pid), 0

    def run(self) -> None:
        while True:
            try:
                family = [self.process, *self.process.children(recursive=True)]
                self.peak = max(self.peak, sum(_private(one) for one in family))
            except psutil.Error:
                return
            time.sleep(0.5)


def _private(process: psutil.Process) -> int:
    """Memory that is the process's own: mapped files can be dropped at any time."""
    try:
        info = process.memory_info()
        return int(info.rss - getattr(info, "shared", 0))
    except psutil.Error:
        return 0


def measure(path: Path, folder: Path, args: argparse.Namespace) -> tuple[dict[str, float], float]:
    """Seconds of every stage and GiB of memory of one run."""
    out, log = folder / f"run_{path.stem}", folder / f"{path.stem}.log"
    command = [sys.executable, "-m", "gmkcf_dask.cli", "run", str(path), "-k", str(args.k)]
    command += ["--out", str(out), "--cluster", "local", "--workers", str(args.workers)]
    command += ["--memory", args.memory, "--log", str(log), "--json"]
    command += ["--label-column", "label", "--id-column", "id"]
    begin = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    memory = Memory(process.pid)
    memory.start()
    error = process.communicate()[1]
    if process.returncode:
        raise SystemExit(error)
    total = time.perf_counter() - begin
    seconds = {**stage_seconds(log.read_text(encoding="utf-8").splitlines())}
    kept = json.loads((out / "result.json").read_text())["seconds"]
    seconds |= {name: value for name, value in kept.items() if name not in seconds}
    return {**seconds, "total": total}, memory.peak / GIB


def stage_seconds(lines: Iterable[str]) -> dict[str, float]:
    """Seconds of every stage that a log has the end of; steps of one stage are added.

    >>> stage_seconds(["t smooth 1 of 4: 9/9 samples in 1.5 s", "t smooth 2 of 4: 9/9 in 2 s"])
    {'smooth': 3.5}
    """
    seconds: dict[str, float] = {}
    for match in filter(None, map(STAGE.search, lines)):
        value = float(match["seconds"].replace(",", ""))
        seconds[match["stage"]] = seconds.get(match["stage"], 0.0) + value
    return seconds


def run(args: argparse.Namespace) -> Report:
    rows, by_size = [], {}
    with scratch_folder(args.folder) as folder:
        for n in [0] if args.input else sorted(args.n):
            path = args.input or folder / f"documents_{n}.jsonl.gz"
            if not path.exists():
                write_documents(path, n)
            seconds, gib = measure(path.resolve(), folder, args)
            by_size[n] = seconds
            rows += [[n or path.name, stage, value, gib] for stage, value in seconds.items()]
            print(f"{n or path.name}: {seconds['total']:.0f} s, {gib:.1f} GiB", flush=True)
    most_seconds, most_gib = LIMITS[args.input is not None]
    bars = [
        Bar("seconds of the largest", max(s["total"] for s in by_size.values()), most_seconds),
        Bar("GiB of all processes", max(row[3] for row in rows), most_gib),
    ]
    small, large = min(by_size), max(by_size)
    if small < large:
        ratio = math.log(large / small)
        for stage, last in by_size[large].items():
            first = by_size[small].get(stage, 0.0)
            if first >= SHORT:
                limit = OF_NEIGHBOURS if stage == "neighbours" else EXPONENT
                bars.append(Bar(f"exponent of {stage}", math.log(last / first) / ratio, limit))
    title = f"k = {args.k}, {args.workers} workers of {args.memory}"
    return Report("million", title, ["documents", "stage", "s", "GiB"], rows, bars)
