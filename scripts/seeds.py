"""GMKCF (Algorithm 1, unit kernels) on the paper's corpora: mean ± standard error over seeds."""

import argparse
import os
import time
import warnings
from pathlib import Path

import numpy as np
from sklearn.cluster import KMeans, SpectralClustering
from sklearn.decomposition import NMF
from sklearn.exceptions import ConvergenceWarning

from gmkcf_dask import Corpus, read_corpus, workflow
from gmkcf_dask.kernels.build import KernelRequest
from gmkcf_dask.kernels.specs import resolve_kernels
from gmkcf_dask.methods.factorize import SolverOptions
from gmkcf_dask.results.metrics import scores

MEASURES = ("ACC", "NMI", "purity")
# mean plus two standard errors must reach these
BARS = {
    "bbc": (0.56, 0.35, 0.60),
    "tr31": (0.46, 0.35, 0.62),
    "k1b": (0.75, 0.58, 0.82),
    "webkb": (0.61, 0.36, 0.66),
}


def baselines(corpus: Corpus, k: int, runs: int) -> None:
    """What users would otherwise take, on the same features."""
    X, n = corpus.X, corpus.n_samples
    seeds = range(runs)
    nmf = NMF(k, init="nndsvda", max_iter=1000, random_state=0)
    graph = {"affinity": "nearest_neighbors", "n_neighbors": 20, "assign_labels": "kmeans"}
    found = {
        "KMeans on X": [KMeans(k, n_init=10, random_state=s).fit_predict(X) for s in seeds],
        "NMF on X (nndsvda, argmax)": [nmf.fit_transform(X).argmax(axis=1)],
        "SpectralClustering, 20 neighbours": [
            SpectralClustering(k, random_state=s, **graph).fit_predict(X) for s in seeds
        ],
    }
    for name, labelings in found.items():
        means = np.mean([list(scores(corpus.labels, y).values()) for y in labelings], axis=0)
        cells = "  ".join(f"{m} {v:.3f}" for m, v in zip(MEASURES, means, strict=False))
        print(f"       n={n} k={k}  {cells}  {name}", flush=True)


def main() -> None:
    beside = Path(__file__).resolve().parents[1].parent / "shared" / "data"
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("GMKCF_DATA", beside)))
    parser.add_argument("--datasets", default=",".join(BARS))
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--v-steps", type=int, default=1)
    parser.add_argument("--normalization", default="unit")
    parser.add_argument("--baselines", action="store_true", help="scikit-learn methods on X too")
    options = parser.parse_args()

    reached = True
    for name in options.datasets.split(","):
        corpus = read_corpus(options.data / f"{name}.mat")
        k = len(set(corpus.labels))
        request = KernelRequest(
            corpus, resolve_kernels("paper12"), normalization=options.normalization
        )
        start = time.perf_counter()
        stack = workflow.dense_kernels(request)
        solver = SolverOptions(k, v_steps=options.v_steps)
        found, iterations = [], []
        for seed in range(options.runs):
            result = workflow.fit_gmkcf(stack, solver, seed=seed)
            measured = scores(corpus.labels, result.labels)
            found.append([measured[measure] for measure in MEASURES])
            iterations.append(result.n_iter)
        mean = np.mean(found, axis=0)
        error = np.std(found, axis=0, ddof=1) / np.sqrt(options.runs)
        bars = BARS[name]
        ok = bool((mean + 2 * error >= bars).all())
        reached &= ok
        cells = "  ".join(
            f"{measure} {m:.3f} ± {e:.3f} (bar {bar:.2f})"
            for measure, m, e, bar in zip(MEASURES, mean, error, bars, strict=True)
        )
        print(
            f"{name:<6} n={corpus.n_samples} k={k}  {cells}  iterations {np.mean(iterations):.0f}  "
            f"{time.perf_counter() - start:.0f} s  {'ok' if ok else 'BELOW'}",
            flush=True,
        )
        if options.baselines:
            baselines(corpus, k, options.runs)
    raise SystemExit(0 if reached else 1)


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        main()
