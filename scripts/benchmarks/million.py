"""From texts to a report at any size: time of every stage and memory of all processes.

`--input` names a corpus of texts; without one documents are made up: a Zipf vocabulary with topics,
60 words each, their number by `--n`. With several sizes the exponent of every stage is shown.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import psutil
from helpers.corpora import scratch_folder
from measure import Bar, Report

from gmkcf_dask.system.units import GIB

K, TOPICS, WORDS = 20, 40, 60
LIMITS = {"seconds": 3600.0, "GiB": 12.0}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--n", type=int, nargs="+", default=[100_000, 400_000])
    parser.add_argument("--input", type=Path, help="a corpus instead of made-up documents")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--memory", default="4GiB", help="of each worker")
    parser.add_argument("-k", type=int, default=K)
    parser.add_argument("--most-seconds", type=float, default=LIMITS["seconds"])
    parser.add_argument("--most-gib", type=float, default=LIMITS["GiB"])
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
    out = folder / f"run_{path.stem}"
    command = [sys.executable, "-m", "gmkcf_dask.cli", "run", str(path), "-k", str(args.k)]
    command += ["--out", str(out), "--cluster", "local", "--workers", str(args.workers)]
    command += ["--memory", args.memory, "--log", str(folder / f"{path.stem}.log"), "--json"]
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
    seconds = json.loads((out / "result.json").read_text())["seconds"]
    seconds["total"] = time.perf_counter() - begin
    return seconds, memory.peak / GIB


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
    bars = [
        Bar("seconds of the largest", max(s["total"] for s in by_size.values()), args.most_seconds),
        Bar("GiB of all processes", max(row[3] for row in rows), args.most_gib),
    ]
    sizes = sorted(by_size)
    if len(sizes) > 1:
        ratio = math.log(sizes[-1] / sizes[0])
        for stage, last in by_size[sizes[-1]].items():
            exponent = math.log(last / max(by_size[sizes[0]].get(stage, last), 1e-3)) / ratio
            rows.append(["exponent", stage, exponent, 0.0])
    title = f"k = {args.k}, {args.workers} workers of {args.memory}"
    return Report("million", title, ["documents", "stage", "s", "GiB"], rows, bars)
