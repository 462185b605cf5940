"""What all displays share: where they draw, and the colours of all pictures."""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from gmkcf_dask.errors import InputError
from gmkcf_dask.results.run_folder import INSIGHT, read_insight, read_result
from gmkcf_dask.results.schemas import Insight, RunResult, parse_insight
from gmkcf_dask.store.files import exists
from gmkcf_dask.store.object_storage import location

INK, QUIET, GRID = "#1f2933", "#66727f", "#e4e7eb"
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c6d00", "#525b66")
"""Told apart by eyes of all kinds, after Okabe and Ito; lines and marks differ as well."""
MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
LINES = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)))
MOST_NAMED = 24
"""Clusters or kernels that can be named in one picture and still be read."""


def colour_of(number: int) -> str:
    """Of a cluster or a kernel; after eight they come again, with other marks or lines."""
    return COLOURS[number % len(COLOURS)]


class Display(ABC):
    """What all displays share."""

    figure_: Any
    ax_: Any

    @abstractmethod
    def plot(self, ax: Any = None, **kwargs: Any) -> Self:
        """Draw into these axes, or into new ones."""

    @classmethod
    def from_insight(cls, insight: Mapping[str, Any], *, ax: Any = None, **kwargs: Any) -> Self:
        """Draw an insight: the content of `insight.json`, or what `explain` returns."""
        return cls._of_insight(parse_insight(insight)).plot(ax, **kwargs)

    @classmethod
    def from_run(
        cls, run: str | Path | Mapping[str, Any], *, ax: Any = None, **kwargs: Any
    ) -> Self:
        """Draw a run: its folder as a path or URL, or the content of its insight.json."""
        if isinstance(run, Mapping):
            return cls.from_insight(run, ax=ax, **kwargs)
        folder = location(run)
        if exists(folder / INSIGHT):
            return cls._of_insight(read_insight(folder)).plot(ax, **kwargs)
        return cls._of_result(read_result(folder), folder).plot(ax, **kwargs)

    @classmethod
    @abstractmethod
    def _of_insight(cls, insight: Insight) -> Self:
        """The display of an insight, not yet drawn."""

    @classmethod
    @abstractmethod
    def _of_result(cls, result: RunResult, folder: Path) -> Self:
        """The display of a run folder without insight.json, not yet drawn."""

    def _axes(self, ax: Any, size: tuple[float, float] = (6.4, 4.4)) -> Any:
        """The axes to draw into, and colours as in all pictures."""
        if ax is None:
            ax = _pyplot().subplots(figsize=size, layout="constrained")[1]
        self.ax_, self.figure_ = ax, ax.figure
        ax.tick_params(length=3, colors=QUIET, labelsize=9, labelcolor=INK)
        ax.spines[["top", "right"]].set_visible(False)
        ax.spines[["bottom", "left"]].set_color("#b4bcc4")
        return ax


def style_panel(axes: Any, *, ticks: str, labelsize: float) -> None:
    """Axes of a picture that is a file of its own: no frame, a quiet grid behind the values."""
    axes.tick_params(length=0, colors=ticks, labelsize=labelsize)
    axes.grid(axis="y", color=GRID, lw=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color("#cbd2d9")


def png_of(figure: Any) -> bytes:
    """A figure as the content of a PNG file."""
    image = io.BytesIO()
    figure.savefig(image, format="png")
    return image.getvalue()


LEGEND: dict[str, Any] = {"frameon": False, "fontsize": 9, "labelcolor": INK, "loc": "upper right"}


def _pyplot() -> Any:
    try:
        from matplotlib import pyplot as plt
    except ImportError as error:
        raise InputError("pictures need Matplotlib: pip install 'gmkcf-dask[plot]'") from error
    return plt


def check_fitted(estimator: Any, attribute: str) -> None:
    if not hasattr(estimator, attribute):
        raise InputError(
            f"{type(estimator).__name__} has no {attribute}: fit the estimator before it is drawn"
        )


def short_name(name: str, most: int = 24) -> str:
    """A name on one line that Matplotlib does not take for mathematics."""
    folded = " ".join(name.split())
    short = folded if len(folded) <= most else folded[: most - 1] + "…"
    return short.replace("$", r"\$")
