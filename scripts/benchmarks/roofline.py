"""A picture of what the other benchmarks left in bench_results: bytes against time, and limits."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from measure import RESULTS, Report

INK, QUIET = "#1f2933", "#7b8794"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--picture", type=Path, default=Path("docs/roofline.png"))


def held(name: str) -> dict:
    """What `scripts/bench NAME` wrote last."""
    return json.loads((RESULTS / f"{name}.json").read_text())


def run(args: argparse.Namespace) -> Report:
    scaling, sweep, larger = held("scaling"), held("sweep"), held("larger-than-memory")
    figures = sweep["figures"]
    points = {  # bytes, seconds
        "iterations in memory, n = 2,048 to 16,384": [
            (row[2] * 1e9, row[1] / 1000) for row in scaling["rows"]
        ],
        "sweeps over a store in the page cache, n = 16,384": [
            (figures["stored"], figures["seconds"][name])
            for name in ("errors", "fuse and multiply")
        ],
        "iterations from disk, n = 48,000": [
            (larger["figures"]["from_disk"], seconds) for seconds in larger["figures"]["iterations"]
        ],
    }
    memory = next(row[3] / row[4] for row in scaling["rows"]) * 1e9
    read = larger["figures"]["disk"][0]
    by_zarr = figures["stored"] / figures["seconds"]["zarr alone"]
    limits = {
        f"memory reads, {memory / 1e9:.0f} GB/s": memory,
        f"disk reads, {read / 1e9:.1f} GB/s": read,
        f"zarr reads and decodes, {by_zarr / 1e9:.1f} GB/s": by_zarr,
    }
    draw(points, limits, args.picture)
    rows = [
        [what, size / 1e9, seconds, size / seconds / 1e9]
        for what, measured in points.items()
        for size, seconds in measured
    ]
    return Report(
        "roofline",
        f"drawn into {args.picture}",
        ["", "GB read", "s", "GB/s"],
        rows,
        notes=[f"limit: {name}" for name in limits],
    )


def draw(points: dict, limits: dict[str, float], path: Path) -> None:
    """Both axes in powers of ten; a bandwidth is a line of slope one."""
    figure = Figure(figsize=(8, 4.6), dpi=150, layout="constrained")
    axes = figure.subplots()
    sizes = [size for measured in points.values() for size, _ in measured]
    x = np.geomspace(min(sizes) / 2, max(sizes) * 2, 2)
    for (name, rate), style in zip(limits.items(), ("-", "--", ":"), strict=True):
        axes.plot(x / 1e9, x / rate, style, color=QUIET, lw=1.2, label=name)
    marks = zip(points.items(), ("o", "s", "D"), ("#c2410c", "#5588a8", "#e39f4d"), strict=True)
    for (name, measured), mark, colour in marks:
        axes.plot(
            [size / 1e9 for size, _ in measured],
            [s for _, s in measured],
            mark,
            color=colour,
            label=name,
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("GB read (from a store: as stored, compressed)", color=INK)
    axes.set_ylabel("seconds", color=INK)
    axes.grid(color="#e4e7eb", lw=0.7)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=QUIET)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(path)
