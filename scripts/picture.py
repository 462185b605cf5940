"""Draw docs/picture.png from the run that scripts/demo leaves in demo_run/."""

import json
import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np

from gmkcf_dask import KernelStore

mpl.use("Agg")
import matplotlib.pyplot as plt

INK, QUIET, ACCENT = "#1f2933", "#7b8794", "#0b7285"


def thumbnail(K: np.ndarray, pixels: int) -> np.ndarray:
    """Block means of a square matrix, so that nothing is dropped, only blurred."""
    edges = np.linspace(0, len(K), pixels + 1).astype(int)[:-1]
    sums = np.add.reduceat(np.add.reduceat(K, edges, axis=0), edges, axis=1)
    counts = np.diff(np.append(edges, len(K)))
    return sums / np.outer(counts, counts)


def show(axes, K: np.ndarray, title: str, size: float) -> None:
    high = np.quantile(K[~np.eye(len(K), dtype=bool)], 0.995)
    axes.imshow(K, cmap="GnBu", vmin=0, vmax=max(high, 1e-6), interpolation="nearest")
    axes.set_title(title, fontsize=size, color=INK, pad=3)
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_color("#cbd2d9")


def main(run: Path, out: Path) -> None:
    result = json.loads((run / "result.json").read_text())
    store = KernelStore.open(result["store"])
    labels = np.loadtxt(run / "labels.csv", delimiter=",", skiprows=1, usecols=1, dtype=int)
    by_size = np.argsort(np.argsort(np.bincount(labels)))
    order = np.lexsort((np.arange(len(labels)), by_size[labels]))
    weights = result["kernel_weights"]

    figure = plt.figure(figsize=(12.5, 4.1), dpi=130, facecolor="white")
    grid = figure.add_gridspec(
        3, 10, width_ratios=[1, 1, 1, 1, 0.55, 3.1, 0.5, 1.3, 1.3, 0.05], hspace=0.38, wspace=0.14,
        left=0.012, right=0.985, top=0.82, bottom=0.08,
    )  # fmt: skip
    fused = np.zeros((260, 260))
    for i, name in enumerate(store.names):
        K = store.to_dask(name).compute(scheduler="threads")[np.ix_(order, order)]
        show(figure.add_subplot(grid[i // 4, i % 4]), thumbnail(K, 64), name, 7.5)
        fused += weights[name] ** 2 * thumbnail(K, 260)
    middle = figure.add_subplot(grid[:, 5])
    show(middle, fused, "", 9)
    ends = np.cumsum(np.sort(np.bincount(labels)))[:-1] * 260 / len(labels) - 0.5
    for end in ends:
        middle.axhline(end, color="white", lw=0.6)
        middle.axvline(end, color="white", lw=0.6)

    right = grid[:, 7:9].subgridspec(2, 1, height_ratios=[2.1, 1], hspace=0.42)
    bars = figure.add_subplot(right[0])
    names = list(weights)[::-1]
    bars.barh(names, [weights[n] for n in names], color=ACCENT, height=0.72)
    bars.axvline(1 / len(names), color=QUIET, lw=0.8, ls=":")
    bars.tick_params(labelsize=7, length=0, colors=INK)
    bars.spines[["top", "right"]].set_visible(False)
    bars.set_title("weight of each kernel (dotted: equal)", fontsize=8, color=INK, loc="left")

    curve = figure.add_subplot(right[1])
    iterations = range(1, result["n_iter"] + 1)
    curve.plot(iterations, result["objective_history"][1:], color=ACCENT, lw=1.6)
    curve.tick_params(labelsize=7, colors=INK)
    curve.spines[["top", "right"]].set_visible(False)
    curve.set_title("objective by iteration", fontsize=8, color=INK, loc="left")

    n, k = result["n_samples"], len(result["clusters"])
    for x, text in (
        (0.012, f"1  {len(names)} kernels of {n:,} documents,\n    in chunks on disk"),
        (0.405, "2  fused by learned weights\n    and factorized on Dask workers"),
        (0.735, f"3  {k} clusters, kernel weights,\n    a trace that never rises"),
    ):
        figure.text(x, 0.985, text, fontsize=11, color=INK, va="top", weight="bold")
    figure.savefig(out)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo_run"), Path("docs/picture.png"))
