"""From features to labels on two workers of 2 GiB: every stage, no spilling."""

from __future__ import annotations

import argparse
from pathlib import Path

from helpers.corpora import request_of, scratch_folder, text_like
from measure import Bar, Report, without_warnings

from gmkcf_dask import pipeline
from gmkcf_dask.cluster import ClusterConfig, start
from gmkcf_dask.events.progress import Progress
from gmkcf_dask.methods.gmkcf import Gmkcf
from gmkcf_dask.results.metrics import scores
from gmkcf_dask.store.build import look_up
from gmkcf_dask.system.units import MIB, human_bytes

K = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--n", type=int, default=20_000)
    parser.add_argument("--precision", default="compact")
    parser.add_argument("--max-iter", type=int, default=500)
    parser.add_argument("--folder", type=Path)


def spilled(dask_worker) -> int:
    """Blocks a worker wrote to disk for want of memory."""
    metrics = dask_worker.data.cumulative_metrics
    return int(sum(v for k, v in metrics.items() if "disk-write" in k and "count" in k))


def run(args: argparse.Namespace) -> Report:
    watch, progress = pipeline.Stopwatch({}), Progress()
    method = Gmkcf(K, max_iter=args.max_iter, inner_iter=4, v_steps=5)
    with watch.time("make text"):
        request = request_of(args.n, args.precision)
    with (
        scratch_folder(args.folder) as folder,
        start(ClusterConfig("local", workers=2, memory=2 << 30), args.n) as resources,
    ):
        place = look_up(folder / "s.zarr", request)
        plan = pipeline.request_plan(request, K, resources, place)
        with watch.time("build"):
            store = pipeline.build(place, request, plan, resources, progress)
        fit_options = pipeline.FitOptions(folder / "run", method)
        (run,) = without_warnings(
            lambda: pipeline.fit_into(fit_options, store, resources, listen=progress, watch=watch)
        )
        clustering, result = run.clustering, run.result
        progress.close()
        blocks = sum(resources.runner.client.run(spilled).values())
        on_disk = store.stored_bytes()
    total = sum(watch.seconds.values())
    rows = [[stage, seconds, seconds / total] for stage, seconds in watch.seconds.items()]
    rows.append(["total", total, 1.0])
    peaks = result.bytes.worker_peaks
    measured = scores(text_like(args.n).labels, clustering.labels)
    return Report(
        "endtoend",
        f"n = {args.n:,}, m = 12, k = {K}, {args.precision}, {human_bytes(on_disk)} on disk, "
        f"inner_iter 4, v_steps 5, two workers × 2 GiB",
        ["stage", "s", "share"],
        rows,
        [
            Bar("blocks spilled", blocks, 0),
            Bar("largest worker peak / planned", max(peaks) / plan.worker_peak_bytes, 1.0),
        ],
        [
            f"{clustering.n_iter} iterations, "
            f"{'converged' if clustering.converged else 'not converged'}, "
            f"K_w in {plan.residency}; peaks {', '.join(f'{p / MIB:.0f}' for p in peaks)} MiB, "
            f"planned {plan.worker_peak_bytes / MIB:.0f}; ACC {measured['ACC']:.3f}"
        ],
    )
