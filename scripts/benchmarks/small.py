"""The cost of convenience: `import gmkcf_dask`, and what `GMKCF().fit` adds to the bare solve."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from measure import Bar, Report, best_seconds, without_warnings
from sklearn.cluster import KMeans

from gmkcf_dask import GMKCF, read_corpus
from gmkcf_dask.methods import gmkcf as module

IMPORTS = ("sklearn.cluster", "gmkcf_dask", "gmkcf_dask.estimators")
T = (0.01, 0.05, 0.1, 1, 10, 50, 100)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    data = Path(os.environ.get("GMKCF_DATA", "../shared/data"))
    parser.add_argument("--data", type=Path, default=data)
    parser.add_argument("--repeats", type=int, default=5)


def importing(what: str) -> None:
    """A fresh process that imports one thing."""
    subprocess.run([sys.executable, "-c", f"import {what}"], check=True)


def plain_kernels(X):
    """The twelve kernels in plain NumPy: unit diagonal, scaled to [0, 1]."""
    G = (X @ X.T).toarray()
    sq = np.diagonal(G)
    d2 = np.maximum(sq[:, None] + sq[None, :] - 2 * G, 0)
    sigma = np.sqrt(d2).mean()
    Ks = [np.exp(-d2 / (2 * (t * sigma) ** 2)) for t in T]
    Ks += [(a + G) ** b for a in (0, 1) for b in (2, 4)] + [G.copy()]
    for K in Ks:
        K /= np.sqrt(np.outer(np.diagonal(K), np.diagonal(K)))
        K -= K.min()
        K /= K.max()
    return Ks


def run(args: argparse.Namespace) -> Report:
    bare = best_seconds({"nothing": lambda: importing("sys")}, args.repeats)["nothing"]
    imports = best_seconds(
        {name: lambda name=name: importing(name) for name in IMPORTS},
        args.repeats,
    )
    X = read_corpus(args.data / "bbc.mat").X
    solve = Clock(module.gmkcf)
    module.gmkcf = solve
    V = {}

    def whole() -> None:
        solve.seconds = 0.0
        begun = time.perf_counter()
        V["V"] = without_warnings(lambda: GMKCF(5, random_state=0).fit(X)).V_
        V["rest"] = min(V.get("rest", np.inf), time.perf_counter() - begun - solve.seconds)

    whole()
    by_hand = {
        "kernels and KMeans by hand": lambda: (
            plain_kernels(X),
            KMeans(5, n_init=20, random_state=0).fit(V["V"]),
        ),
        "GMKCF().fit": whole,
    }
    seconds = best_seconds(by_hand, args.repeats)
    rows = [
        ["import sklearn.cluster", imports["sklearn.cluster"], 1.0],
        ["import gmkcf_dask", imports["gmkcf_dask"],
         imports["gmkcf_dask"] / imports["sklearn.cluster"]],
        ["import gmkcf_dask.estimators", imports["gmkcf_dask.estimators"],
         imports["gmkcf_dask.estimators"] / imports["sklearn.cluster"]],
        ["kernels in NumPy + KMeans", seconds["kernels and KMeans by hand"], 1.0],
        ["GMKCF().fit minus the solve", V["rest"],
         V["rest"] / seconds["kernels and KMeans by hand"]],
    ]  # fmt: skip
    return Report(
        "import",
        "import times of fresh processes; BBC, n = 737, twelve kernels",
        ["", "s", "ratio"],
        rows,
        [
            Bar("import gmkcf_dask / import sklearn.cluster", rows[1][2], 1.5),
            Bar("GMKCF().fit minus the solve / kernels and KMeans by hand", rows[4][2], 1.5),
        ],
        [
            "Estimators are loaded when they are first named; that is the third row.",
            f"an empty Python process takes {bare:.3f} s; the whole fit "
            f"{seconds['GMKCF().fit']:.2f} s",
        ],
    )


class Clock:
    """A function that adds up its own time."""

    def __init__(self, function) -> None:
        self.function, self.seconds = function, 0.0

    def __call__(self, *args, **kwargs):
        begun = time.perf_counter()
        try:
            return self.function(*args, **kwargs)
        finally:
            self.seconds += time.perf_counter() - begun
