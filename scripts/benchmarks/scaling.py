"""Time of one iteration in memory as n doubles: four times as many bytes, four times the time."""

from __future__ import annotations

import argparse
import math

import numpy as np
from helpers.corpora import request_of
from limits import memory_bandwidth
from measure import Bar, Report, best_seconds, without_warnings

from gmkcf_dask import pipeline
from gmkcf_dask.methods.factorize import SolverOptions
from gmkcf_dask.methods.gmkcf import gmkcf

K, ITERATIONS = 10, 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sizes", type=int, nargs="+", default=[2048, 4096, 8192, 16_384])
    parser.add_argument("--repeats", type=int, default=4)


def run(args: argparse.Namespace) -> Report:
    bandwidth = memory_bandwidth()
    measured: list[tuple[int, float, int]] = []
    for n in args.sizes:
        stack = pipeline.dense_kernels(request_of(n, "float32"))
        rng = np.random.default_rng(0)
        start = rng.random((n, K)), rng.random((n, K))
        options = SolverOptions(K, max_iter=ITERATIONS, tol=0.0)

        def iterate(stack=stack, start=start, options=options) -> None:
            without_warnings(lambda: gmkcf(stack, start, options))

        seconds = best_seconds({"ours": iterate}, args.repeats)["ours"] / ITERATIONS
        tiles = stack._reader.tiling.n_tiles * stack.block_size**2 * 4
        measured.append((n, seconds, (2 * 12 + 2) * tiles))
    rows = []
    for number, (n, seconds, touched) in enumerate(measured):
        before = measured[number - 1] if number else None
        exponent = (
            math.log(seconds / before[1]) / math.log(n / before[0]) if before else float("nan")
        )
        rate = touched / seconds
        rows.append([n, 1000 * seconds, touched / 1e9, rate / 1e9, rate / bandwidth, exponent])
    return Report(
        "scaling",
        f"m = 12, k = {K}, float32 tiles in memory; memory reads at {bandwidth / 1e9:.1f} GB/s",
        ["n", "ms per iteration", "GB touched", "GB/s", "share of bandwidth", "exponent"],
        rows,
        [Bar(f"exponent up to n = {measured[-1][0]:,}", rows[-1][5], 2.1)],
    )
