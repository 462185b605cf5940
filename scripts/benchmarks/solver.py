"""Sweeps of the accelerated solver against the paper's, from the same spectral start.

Both run on the paper's corpora with twelve kernels in float32. Counted are products with the fused
kernel K_w, and sweeps over all kernels, until J at the end of an iteration is within 1e-3 of the
best objective that a long run of either solver reached; the start itself, which both share, is not
counted. Clusters are compared by the accuracy (ACC) of K-means on V, mean over seeds.
"""

from __future__ import annotations

import argparse
import math
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from measure import Bar, Report

from gmkcf_dask.compute.dense import DenseKernels
from gmkcf_dask.compute.lockstep import run_solver
from gmkcf_dask.compute.operators import FusedKernel, KernelStack
from gmkcf_dask.corpus import read_corpus
from gmkcf_dask.errors import NumericsWarning
from gmkcf_dask.events import Event, IterationDone
from gmkcf_dask.kernels.specs import PAPER12
from gmkcf_dask.methods.gmkcf import Gmkcf
from gmkcf_dask.methods.init import Start, spectral_start
from gmkcf_dask.pipeline import dense_kernels
from gmkcf_dask.results.metrics import scores
from gmkcf_dask.store.request import KernelRequest

SETS = ("bbc", "tr31", "k1b", "webkb")
BESIDE = ("tr11",)
SOLVERS = ("paper", "accelerated")
WITHIN = 1e-3
LONG_TOL = 1e-7
COLUMNS = (
    "set", "n", "k",
    "K_w sweeps, paper", "accelerated", "ratio",
    "kernel sweeps, paper", "accelerated",
    "K_w sweeps to tol 1e-5, paper", "accelerated",
    "J above best, paper", "accelerated",
    "ACC at tol 1e-5, paper", "accelerated",
    "ACC at tol 1e-7, paper", "accelerated",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    beside = Path(os.environ.get("GMKCF_DATA", "../shared/data"))
    parser.add_argument("--data", type=Path, default=beside, help="folder with NAME.mat (X, y)")
    parser.add_argument("--sets", nargs="+", default=[*SETS, *BESIDE], help="corpora to run")
    parser.add_argument("--normalization", default="unit", choices=["unit", "degree", "none"])
    parser.add_argument("--seeds", type=int, default=10, help="K-means runs per ACC")
    parser.add_argument("--max-iter", type=int, default=2000, help="of the long runs")


def run(args: argparse.Namespace) -> Report:
    rows = {name: _row(args.data / f"{name}.mat", name, args) for name in args.sets}
    judged = [row for name, row in rows.items() if name not in BESIDE]
    ratios = [row["ratio"] for row in judged]
    apart = {when: max(abs(np.subtract(*row["ACC"][when])) for row in judged) for when in "ab"}
    return Report(
        "solver",
        f"sweeps until J is within {WITHIN:g} of the best, spectral start, {args.normalization}",
        COLUMNS,
        [row["cells"] for row in rows.values()],
        bars=[
            Bar("geometric mean of the ratios", math.exp(np.mean(np.log(ratios))), 1.5, True),
            Bar("smallest ratio", min(ratios), 1.2, True),
            Bar("largest difference in ACC, both run to tol 1e-7", apart["b"], 0.01),
        ],
        notes=[
            f"ACC is the mean of {args.seeds} K-means seeds on the same V. It is compared where "
            "both solvers have converged: at tol 1e-5 they stop at different heights (J above "
            f"best), and the largest difference there is {apart['a']:.4f}.",
            f"{', '.join(BESIDE)} is no part of the bars.",
        ],
        figures={name: row["figures"] for name, row in rows.items()},
    )


def _row(path: Path, name: str, args: argparse.Namespace) -> dict[str, Any]:
    corpus = read_corpus(path)
    assert corpus.labels is not None
    k = len(set(corpus.labels))
    request = KernelRequest(corpus, PAPER12, args.normalization, "minmax", precision="float32")
    stack = dense_kernels(request)
    start = _start(stack, k)
    runs = {}
    for solver in SOLVERS:
        for when, options in (("a", {}), ("b", {"tol": LONG_TOL, "max_iter": args.max_iter})):
            method = Gmkcf(k, init=start, solver=solver, **options)  # type: ignore[arg-type]
            runs[solver, when] = _watched(stack, method, corpus.labels, args.seeds)
    best = min(one["J"] for one in runs.values())
    short = [runs[solver, "a"] for solver in SOLVERS]
    needed = [
        next((w, all_) for w, all_, J in one["trail"] if best * (1 + WITHIN) >= J) for one in short
    ]
    ratio = needed[0][0] / needed[1][0]
    accuracy = {when: [runs[solver, when]["ACC"] for solver in SOLVERS] for when in "ab"}
    cells = [
        name, len(corpus.labels), k,
        needed[0][0], needed[1][0], ratio,
        needed[0][1], needed[1][1],
        *(one["trail"][-1][0] for one in short),
        *(one["J"] / best - 1 for one in short),
        *accuracy["a"], *accuracy["b"],
    ]  # fmt: skip
    trails = {f"{solver} {when}": one["trail"] for (solver, when), one in runs.items()}
    return {"cells": cells, "ratio": ratio, "ACC": accuracy, "figures": {"trails": trails}}


def _start(stack: DenseKernels, k: int) -> Start:
    m = len(stack.names)
    fused = stack.fuse(np.full(m, 1.0 / m) ** 2)
    return run_solver(spectral_start(fused, k, stack.error_floor), fused)


def _watched(stack: KernelStack, method: Gmkcf, labels: Any, seeds: int) -> dict[str, Any]:
    """One run: its trail of (products with K_w, sweeps over all kernels, J), final J and ACC."""
    counted = Counted(stack)
    trail: list[tuple[int, int, float]] = []

    def listen(event: Event) -> None:
        if isinstance(event, IterationDone):
            trail.append((counted.fused, counted.all, event.objective))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumericsWarning)
        clusterings = method.fit(counted, range(seeds), listen)
    accuracy = [scores(labels, one.labels)["ACC"] for one in clusterings]
    return {"trail": trail, "J": clusterings[0].objective, "ACC": float(np.mean(accuracy))}


class Counted:
    """An operator that counts: products with fused kernels, and sweeps over all kernels."""

    def __init__(self, stack: KernelStack) -> None:
        self._stack = stack
        self.fused = self.all = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stack, name)

    def errors(self, U: Any, V: Any) -> Any:
        self.all += 1
        return self._stack.errors(U, V)

    def fuse(self, weights: Any, *, keep: bool = True) -> Any:
        self.all += 1
        return CountedKernel(self._stack.fuse(weights, keep=keep), self)


class CountedKernel:
    """Its fused kernel."""

    def __init__(self, kernel: FusedKernel, counted: Counted) -> None:
        self._kernel, self._counted = kernel, counted

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel, name)

    def matmul(self, Z: Any) -> Any:
        self._counted.fused += 1
        return self._kernel.matmul(Z)

    def split_matmul(self, Z: Any) -> Any:
        self._counted.fused += 1
        return self._kernel.split_matmul(Z)
