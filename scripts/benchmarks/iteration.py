"""One outer iteration in memory, against two frozen float64 ports and the memory's bandwidth.

The ports are what one would write first, and what one would write after some thought; they are part
of the yardstick and stay as they are.
"""

from __future__ import annotations

import argparse

import numpy as np
from helpers.corpora import request_of
from limits import memory_bandwidth, sgemm_rate
from measure import Bar, Report, best_seconds, without_warnings

from gmkcf_dask import pipeline
from gmkcf_dask.compute.blas import own_cores
from gmkcf_dask.compute.plan import make_plan
from gmkcf_dask.methods.factorize import SolverOptions
from gmkcf_dask.methods.gmkcf import gmkcf

K = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--n", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=5)


def literal(Ks, U, V, w):
    """The updates as they are printed, every product where it stands."""
    Kw = np.zeros_like(Ks[0])
    for i in range(len(Ks)):
        Kw = Kw + w[i] ** 2 * Ks[i]
    U = U * (Kw @ V) / (Kw @ U @ (V.T @ V))
    V = V * (Kw @ U) / (V @ (U.T @ Kw @ U))
    e = np.array(
        [np.trace(K) - 2 * np.trace(V.T @ K @ U) + np.trace(U.T @ K @ U @ (V.T @ V)) for K in Ks]
    )
    w = (1 / e) / (1 / e).sum()
    return U, V, w, float((w**2 * e).sum())


def decent(Ks, U, V, w):
    """Fused by one tensordot, K_wU kept, one product K^iU per kernel."""
    Kw = np.tensordot(w**2, Ks, axes=1)
    KU = Kw @ U
    U = U * (Kw @ V) / (KU @ (V.T @ V))
    KU = Kw @ U
    V = V * KU / (V @ (U.T @ KU))
    VtV = V.T @ V
    e = np.empty(len(Ks))
    for i, K in enumerate(Ks):
        KiU = K @ U
        e[i] = np.trace(K) - 2 * np.sum(V * KiU) + np.sum((U.T @ KiU) * VtV)
    w = (1 / e) / (1 / e).sum()
    return U, V, w, float(w**2 @ e)


def run(args: argparse.Namespace) -> Report:
    n, m = args.n, 12
    request = request_of(n, "float32")
    stack = pipeline.dense_kernels(request)
    rng = np.random.default_rng(0)
    U, V, w = rng.random((n, K)), rng.random((n, K)), np.full(m, 1 / m)
    Ks = full_kernels(stack)
    expected = literal(Ks, U, V, w)[-1]
    J = {
        "decent": decent(Ks, U, V, w)[-1],
        "ours": without_warnings(
            lambda: gmkcf(stack, (U, V), SolverOptions(K, max_iter=1, tol=0.0)).history[-1]
        ),
    }
    for name, value in J.items():
        assert abs(value / expected - 1) < 1e-5, (name, value, expected)
    iterations = 5
    many = SolverOptions(K, max_iter=iterations, tol=0.0)
    seconds = best_seconds(
        {
            "literal": lambda: literal(Ks, U, V, w),
            "decent": lambda: decent(Ks, U, V, w),
            "ours": lambda: without_warnings(lambda: gmkcf(stack, (U, V), many)),
        },
        args.repeats,
    )
    seconds["ours"] /= iterations
    plan = make_plan(
        n, 5000, m, K, feature_bytes=0, block=stack.block_size, one_process=True,
        n_workers=1, threads_per_worker=own_cores(), memory_per_worker=64 << 30,
    )  # fmt: skip
    touched = plan.read_per_iteration
    bandwidth = memory_bandwidth()
    share = touched / seconds["ours"] / bandwidth
    rows = [
        [name, 1000 * value, seconds["literal"] / value, seconds["decent"] / value]
        for name, value in seconds.items()
    ]
    return Report(
        "iteration",
        f"n = {n:,}, m = {m}, k = {K}, float32 tiles in memory, {own_cores()} threads",
        ["", "ms", "× literal", "× decent"],
        rows,
        [
            Bar("times faster than the literal port", rows[2][2], 25, at_least=True),
            Bar("times faster than the decent port", rows[2][3], 4, at_least=True),
            Bar("share of memory read bandwidth", share, 0.6, at_least=True),
        ],
        [
            f"touched per iteration {touched / 1e9:.3f} GB, at "
            f"{touched / seconds['ours'] / 1e9:.1f} GB/s; memory reads at "
            f"{bandwidth / 1e9:.1f} GB/s, sgemm {sgemm_rate() / 1e9:.0f} Gflop/s"
        ],
        {"seconds": seconds, "touched": touched, "bandwidth": bandwidth},
    )


def full_kernels(stack):
    """The kernels as one float64 array (m, n, n)."""
    n, tiling, stacks = stack.n_samples, stack._reader.tiling, stack._reader.stacks
    Ks = np.empty((len(stack.names), n, n))
    for K, own in zip(Ks, zip(*stacks, strict=True), strict=True):
        for (i, j), tile in zip(tiling.pairs(), own, strict=True):
            K[tiling.rows(i), tiling.rows(j)] = tile
            K[tiling.rows(j), tiling.rows(i)] = tile.T
    return Ks
