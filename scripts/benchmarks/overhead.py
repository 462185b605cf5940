"""What a local cluster adds: outer iterations through the same store, workers against threads."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from helpers.corpora import scratch_folder, store_of
from measure import Bar, Report, best_seconds, without_warnings

from gmkcf_dask.cluster import local_cluster, of_client, threads
from gmkcf_dask.compute.dense import DenseKernels
from gmkcf_dask.compute.tiled import TiledKernels
from gmkcf_dask.methods.factorize import SolverOptions
from gmkcf_dask.methods.gmkcf import gmkcf

K, ITERATIONS = 10, 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--n", type=int, default=8192)
    parser.add_argument("--precision", default="compact")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path)


def run(args: argparse.Namespace) -> Report:
    rng = np.random.default_rng(0)
    start = rng.random((args.n, K)), rng.random((args.n, K))
    options = SolverOptions(K, max_iter=ITERATIONS, tol=0.0)
    with scratch_folder(args.folder) as folder, local_cluster(2, 4 << 30) as client:
        store = store_of(folder / "s.zarr", args.n, args.precision)
        stacks = {
            "threads": TiledKernels(store, threads().runner, "memory"),
            "two workers": TiledKernels(store, of_client(client).runner, "memory"),
            "in memory": DenseKernels.from_store(store),
        }
        seconds = best_seconds(
            {
                name: lambda stack=stack: without_warnings(lambda: gmkcf(stack, start, options))
                for name, stack in stacks.items()
            },
            args.repeats,
        )
    seconds = {name: value / ITERATIONS for name, value in seconds.items()}
    rows = [[name, s, s / seconds["threads"]] for name, s in seconds.items()]
    return Report(
        "overhead",
        f"n = {args.n:,}, m = 12, k = {K}, {args.precision}: one outer iteration",
        ["", "s", "× threads"],
        rows,
        [Bar("two workers / threads, both through the store", rows[1][2], 1.3)],
        ["In memory is what threads of one process use when all kernels fit: no store, no Dask."],
        {"seconds": seconds},
    )
