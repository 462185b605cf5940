"""Kernels that do not fit into the machine's memory, for real: three iterations from disk.

Made-up text compresses well, and a store of half its size would end up in the page cache: all
memory but `--leave` is taken, so that every sweep has to come from the disk.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import psutil
from helpers.corpora import request_of, scratch_folder
from limits import disk_rates
from measure import Bar, Report, without_warnings

from gmkcf_dask import pipeline
from gmkcf_dask.cluster import ClusterConfig, start as start_cluster
from gmkcf_dask.compute.tiled import TiledKernels
from gmkcf_dask.events.progress import Progress
from gmkcf_dask.methods.base import RunContext
from gmkcf_dask.methods.factorize import SolverOptions
from gmkcf_dask.methods.gmkcf import gmkcf
from gmkcf_dask.store.build import look_up
from gmkcf_dask.system.units import GIB, MIB, human_bytes

K, ITERATIONS = 10, 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--n", type=int, default=48_000)
    parser.add_argument("--memory", type=int, default=2 * GIB)
    parser.add_argument("--leave", type=int, default=6 * GIB)
    parser.add_argument("--folder", type=Path)


def run(args: argparse.Namespace) -> Report:
    progress = Progress()
    rng = np.random.default_rng(0)
    start = rng.random((args.n, K)), rng.random((args.n, K))
    with (
        scratch_folder(args.folder) as folder,
        start_cluster(ClusterConfig("local", workers=2, memory=args.memory), args.n) as resources,
    ):
        # touched, so it is really there; after the workers, whose peaks would else begin with it
        ballast = np.ones(max(0, psutil.virtual_memory().available - args.leave), np.uint8)
        read, written = disk_rates(folder, size=2 * GIB)
        request = request_of(args.n, "compact")
        place = look_up(folder / "s.zarr", request)
        plan = pipeline.request_plan(request, K, resources, place)
        print(plan, flush=True)
        begun = time.perf_counter()
        store = pipeline.build(place, request, plan, resources, progress)
        built = time.perf_counter()
        on_disk = store.stored_bytes()
        stack = TiledKernels(store, resources.runner, plan.residency)
        moments = [time.perf_counter()]

        options = SolverOptions(K, max_iter=ITERATIONS, tol=0.0)

        def listen(event) -> None:
            progress(event)
            moments.append(time.perf_counter())

        without_warnings(lambda: gmkcf(stack, start, options, RunContext(listen)))
        progress.close()
        peaks = list(resources.worker_peaks().values())
    each = float(np.mean(np.diff(moments)))
    del ballast
    from_disk = plan.kernel_sweeps_per_iteration * on_disk
    from_disk += 2 * plan.kw_bytes if plan.residency == "scratch" else 0
    rows = [
        [
            "build",
            built - begun,
            on_disk / (built - begun) / 1e9,
            on_disk / (built - begun) / written,
        ],
        ["one iteration", each, from_disk / each / 1e9, from_disk / each / read],
    ]
    return Report(
        "larger-than-memory",
        f"n = {args.n:,}, m = 12, k = {K}, compact: {human_bytes(plan.stored_bytes)} of kernels, "
        f"{human_bytes(on_disk)} on disk, {human_bytes(args.leave)} of memory left free, "
        f"two workers × {human_bytes(args.memory)}",
        ["", "s", "GB/s to or from disk", "share of the disk's rate"],
        rows,
        [Bar("largest worker peak / planned", max(peaks) / plan.worker_peak_bytes, 1.0)],
        [
            f"disk alone reads at {read / 1e9:.2f} and writes at {written / 1e9:.2f} GB/s; K_w "
            f"lives in {plan.residency}; peaks {', '.join(f'{p / MIB:.0f}' for p in peaks)} MiB, "
            f"planned {plan.worker_peak_bytes / MIB:.0f}"
        ],
        {
            "iterations": np.diff(moments).tolist(),
            "disk": [read, written],
            "on_disk": on_disk,
            "from_disk": from_disk,
        },
    )
