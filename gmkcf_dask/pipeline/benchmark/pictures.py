"""Bars with error bars, published values as marks. Needs Matplotlib (the extra `[plot]`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from gmkcf_dask.pipeline.benchmark.entries import Entry
from gmkcf_dask.pipeline.benchmark.published import DATASET_TITLES, PAPER_MEASURES, SIZES
from gmkcf_dask.pipeline.benchmark.tables import Results, published
from gmkcf_dask.results.plots.base import INK, png_of, style_panel
from gmkcf_dask.store.files import put_atomic

AXIS_COLOUR = "#7b8794"
METHOD_COLOURS = {
    "KKM": "#a9c7d9", "SC": "#7fa8c2", "KCF": "#5588a8",
    "Coreg": "#f2c68c", "RMKKM": "#e39f4d", "GMKCF": "#c2410c",
}  # fmt: skip
REFERENCE_COLOURS = ("#d3d9de", "#aeb8c0", "#88949e")


def draw_measure(results: Results, measure: str, path: Path) -> None:
    """One measure: the paper's methods and the references on every set, and their mean."""
    groups: list[tuple[str, str | None]] = [
        (DATASET_TITLES.get(dataset, dataset), dataset) for dataset in results.datasets
    ]
    if len(groups) > 1:
        groups.append(("mean", None))
    figure = Figure(figsize=(1.5 + 1.9 * len(groups), 3.6), dpi=150, layout="constrained")
    axes = figure.subplots()
    _bars(axes, results, [(title, dataset, measure) for title, dataset in groups])
    axes.set_ylabel(measure, color=INK)
    _legend(figure, axes)
    put_atomic(path, png_of(figure))


def draw_means(results: Results, path: Path) -> None:
    """The means over the sets, one group of bars for each measure."""
    figure = Figure(figsize=(8.6, 3.6), dpi=150, layout="constrained")
    axes = figure.subplots()
    _bars(axes, results, [(measure, None, measure) for measure in PAPER_MEASURES])
    sets = ", ".join(DATASET_TITLES.get(dataset, dataset) for dataset in results.mean_sets())
    axes.set_ylabel(f"mean over {sets}" if len(sets) < 40 else "mean over sets", color=INK)
    _legend(figure, axes)
    put_atomic(path, png_of(figure))


def _bars(axes: Any, results: Results, groups: Sequence[tuple[str, str | None, str]]) -> None:
    entries = [*results.of("paper"), *results.of("reference")]
    width = 0.86 / max(len(entries), 1)
    marked = False
    for number, (_, dataset, measure) in enumerate(groups):
        for position, entry in enumerate(entries):
            cell = results.cell(dataset, entry, measure)
            if cell is None:
                continue
            x = number + (position - (len(entries) - 1) / 2) * width
            axes.bar(
                x,
                cell.mean,
                0.92 * width,
                color=_colour(entry, results),
                yerr=cell.error or None,
                error_kw={"lw": 0.8, "ecolor": INK, "capsize": 1.5},
                label=entry.title if number == 0 else None,
            )
            printed = _published(results, entry, dataset, measure)
            if printed is not None:
                label = None if marked else "published"
                marked = True
                axes.plot(
                    x, printed, "D", ms=3.6, mfc="white", mec=INK, mew=0.9, zorder=5, label=label
                )
    axes.set_xticks(range(len(groups)), [title for title, _, _ in groups], color=INK)
    axes.set_ylim(0, 1)
    style_panel(axes, ticks=AXIS_COLOUR, labelsize=9)


def _published(results: Results, entry: Entry, dataset: str | None, measure: str) -> float | None:
    sets = [dataset] if dataset else results.mean_sets()
    if entry.kind != "paper" or not set(sets) <= set(SIZES):
        return None
    return published(measure, dataset, entry.title, sets)


def _colour(entry: Entry, results: Results) -> str:
    if entry.kind == "paper":
        return METHOD_COLOURS[entry.title]
    return REFERENCE_COLOURS[results.of("reference").index(entry) % len(REFERENCE_COLOURS)]


def _legend(figure: Any, axes: Any) -> None:
    handles, labels = axes.get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda i: labels[i] == "published")
    figure.legend(
        [handles[i] for i in order],
        [labels[i] for i in order],
        loc="outside upper center",
        ncols=5,
        frameon=False,
        fontsize=8,
        handlelength=1.2,
    )
