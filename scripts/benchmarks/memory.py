"""Peak resident size of every worker against the plan: 12 and 24 kernels, two sizes."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from helpers.corpora import request_of, scratch_folder
from measure import Bar, Report, without_warnings

from gmkcf_dask import pipeline
from gmkcf_dask.cluster import ClusterConfig
from gmkcf_dask.compute.tiled import TiledKernels
from gmkcf_dask.methods.factorize import SolverOptions
from gmkcf_dask.methods.gmkcf import gmkcf
from gmkcf_dask.store.build import look_up
from gmkcf_dask.system.units import MIB

K = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sizes", type=int, nargs="+", default=[8192, 16_384])
    parser.add_argument("--kernels", type=int, nargs="+", default=[12, 24])
    parser.add_argument("--memory", type=int, default=1 << 30)
    parser.add_argument("--folder", type=Path)


def run(args: argparse.Namespace) -> Report:
    rows, peaks = [], {}
    for n in args.sizes:
        for m in args.kernels:
            plan, measured = measure_one(n, m, args)
            peaks[n, m] = max(measured)
            rows.append([n, m, plan.residency, plan.worker_peak_bytes / MIB, max(measured) / MIB,
                         max(measured) / plan.worker_peak_bytes])  # fmt: skip
    growth = [peaks[n, args.kernels[-1]] / peaks[n, args.kernels[0]] for n in args.sizes]
    return Report(
        "memory",
        f"build and two iterations, k = {K}, compact, two workers × {args.memory / MIB:.0f} MiB",
        ["n", "m", "K_w lives in", "planned MiB", "measured MiB", "measured / planned"],
        rows,
        [
            Bar("largest measured / planned", max(row[5] for row in rows), 1.0),
            Bar(
                f"peak with {args.kernels[-1]} / with {args.kernels[0]} kernels", max(growth), 1.05
            ),
        ],
    )


def measure_one(n, m, args):
    """The plan, and the peak of every worker over a build and two iterations."""
    request = request_of(n, "compact", m)
    rng = np.random.default_rng(0)
    start = rng.random((n, K)), rng.random((n, K))
    with (
        scratch_folder(args.folder) as folder,
        start(ClusterConfig("local", workers=2, memory=args.memory), n) as resources,
    ):
        place = look_up(folder / "s.zarr", request)
        plan = pipeline.request_plan(request, K, resources, place)
        store = pipeline.build(place, request, plan, resources)
        stack = TiledKernels(store, resources.runner, plan.residency)
        without_warnings(lambda: gmkcf(stack, start, SolverOptions(K, max_iter=2, tol=0.0)))
        return plan, list(resources.worker_peaks().values())
