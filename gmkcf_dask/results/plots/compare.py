"""How far methods agree and what speaks for each, as one picture. Needs Matplotlib."""

from __future__ import annotations

import numpy as np

from gmkcf_dask.errors import InputError
from gmkcf_dask.results.comparison import MEASURES, Comparison
from gmkcf_dask.results.plots.base import COLOURS, INK, LEGEND, QUIET, png_of, style_panel
from gmkcf_dask.results.plots.select_k import can_draw


def draw_comparison(comparison: Comparison) -> bytes:
    """A PNG: a heat map of the agreement of every two runs, and bars of their scores."""
    if not can_draw():
        raise InputError("pictures need the extra [plot]: pip install 'gmkcf-dask[plot]'")
    from matplotlib.figure import Figure

    names = [run.name for run in comparison.runs]
    size = max(4.0, 1.6 + 0.42 * len(names))
    figure = Figure(figsize=(2.3 * size, size), dpi=150, layout="constrained", facecolor="white")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.1))
    image = left.imshow(comparison.agreement, vmin=0.0, vmax=1.0, cmap="Blues")
    for (i, j), value in np.ndenumerate(comparison.agreement):
        colour = "white" if value > 0.6 else INK
        left.text(j, i, f"{value:.2f}", ha="center", va="center", fontsize=7, color=colour)
    left.set_xticks(range(len(names)), names, rotation=60, ha="right", fontsize=8, color=INK)
    left.set_yticks(range(len(names)), names, fontsize=8, color=INK)
    left.tick_params(length=0)
    left.set_title("agreement of every two (adjusted Rand index)", fontsize=9.5, color=INK)
    figure.colorbar(image, ax=left, shrink=0.7)

    bars = _bars(comparison)
    width = 0.8 / len(bars)
    places = np.arange(len(names))
    for number, (title, values) in enumerate(bars.items()):
        shift = (number - (len(bars) - 1) / 2) * width
        colour = COLOURS[number % len(COLOURS)]
        right.bar(places + shift, values, width, label=title, color=colour)
    style_panel(right, ticks=QUIET, labelsize=8.5)
    right.set_xticks(places, names, rotation=60, ha="right", fontsize=8, color=INK)
    right.axhline(0.0, color=QUIET, lw=0.7)
    right.set_title("what speaks for each", fontsize=9.5, color=INK)
    figure.legend(**{**LEGEND, "loc": "outside lower right", "ncols": len(bars), "fontsize": 8})
    return png_of(figure)


def _bars(comparison: Comparison) -> dict[str, list[float]]:
    """Values of every run by the title of a bar; 0 where there is no telling."""
    bars = {
        f"contrast, {preset} kernels": [run.contrast.get(preset) or 0.0 for run in comparison.runs]
        for preset in comparison.kernels
    }
    bars["mean agreement"] = comparison.mean_agreement.tolist()
    if comparison.runs[0].scores:
        bars |= {name: [run.scores[name] for run in comparison.runs] for name in MEASURES}
    return bars
