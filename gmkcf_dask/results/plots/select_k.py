"""What speaks for each k, as one picture. Needs Matplotlib (the extra `[plot]`)."""

from __future__ import annotations

from importlib.util import find_spec

from gmkcf_dask.errors import InputError
from gmkcf_dask.methods.select_k import KSuggestion
from gmkcf_dask.results.plots.base import INK, png_of, style_panel

QUIET, ACCENT, SECOND = "#7b8794", "#0b7285", "#e8590c"
CRITERIA = {
    "silhouette": "silhouette: how far apart the clusters lie in V",
    "stability": "stability: agreement of restarts",
    "eigengap": "eigengap: share of the fall right behind k",
}


def can_draw() -> bool:
    """Whether Matplotlib is there."""
    return find_spec("matplotlib") is not None


def draw_suggestion(suggestion: KSuggestion) -> bytes:
    """A PNG of three small panels over k with the suggestion marked."""
    if not can_draw():
        raise InputError("pictures need the extra [plot]: pip install 'gmkcf-dask[plot]'")
    from matplotlib.figure import Figure

    width = min(10.0, max(6.4, 2.5 + 0.3 * len(suggestion.ks)))
    figure = Figure(figsize=(width, 6.2), dpi=150, layout="constrained", facecolor="white")
    panels = figure.subplots(3, 1, sharex=True)
    for axes, (name, title) in zip(panels, CRITERIA.items(), strict=True):
        values = getattr(suggestion, name)
        at = dict(zip(suggestion.ks, values, strict=True))
        axes.axvline(suggestion.k, color=ACCENT, lw=9, alpha=0.13, zorder=0)
        axes.plot(suggestion.ks, values, "-", color=QUIET, lw=1.3, zorder=1)
        axes.plot(suggestion.ks, values, "o", ms=4.5, mfc="white", mec=QUIET, mew=1.2, zorder=2)
        for k, colour in ((suggestion.runner_up, SECOND), (suggestion.k, ACCENT)):
            axes.plot([k], [at[k]], "o", ms=7, color=colour, zorder=3)
        axes.set_title(title, fontsize=9.5, color=INK, loc="left")
        low, high = min(0.0, *values), max(1.0 if name != "silhouette" else 0.0, *values)
        axes.set_ylim(low - 0.04 * (high - low), high + 0.12 * (high - low))
        style_panel(axes, ticks=QUIET, labelsize=8.5)
    panels[-1].set_xlabel("k, the number of clusters", color=INK, fontsize=9.5)
    step = -(-len(suggestion.ks) // 24)  # a label for every one would run together
    panels[-1].set_xticks(sorted({*suggestion.ks[::step], suggestion.k}))
    figure.suptitle(
        f"k = {suggestion.k}, {suggestion.word} ({suggestion.sure:.2f})",
        x=0.01,
        ha="left",
        color=ACCENT,
        fontsize=14,
        weight="bold",
    )
    figure.text(
        0.99, 0.985, f"runner-up: {suggestion.runner_up}", color=SECOND, ha="right", va="top"
    )
    return png_of(figure)
