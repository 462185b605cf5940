"""How a fit went: the objective of its restarts, and the weights of the kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from gmkcf_dask.errors import InputError
from gmkcf_dask.results.plots.base import (
    COLOURS,
    GRID,
    INK,
    LEGEND,
    LINES,
    MOST_NAMED,
    QUIET,
    Display,
    check_fitted,
    colour_of,
    short_name,
)
from gmkcf_dask.results.plots.numbers import spread_apart
from gmkcf_dask.results.schemas import Insight, RunResult


class ConvergenceDisplay(Display):
    """The objective of every restart, iteration by iteration; the one that was kept stands out.

    Parameters
    ----------
    histories : sequence of array-like
        Objective of each restart: of its start, then after every iteration.
    best : int, default=0
        The restart that was kept.
    converged : sequence of bool, optional
        Which of them have finished.

    Attributes
    ----------
    ax_, figure_ : of Matplotlib
    lines_ : list of Line2D
        One for each restart.
    """

    def __init__(
        self, histories: Sequence[Any], best: int = 0, converged: Sequence[bool] | None = None
    ) -> None:
        self.histories = [np.asarray(history, dtype=float) for history in histories]
        self.best = best
        self.converged = converged
        if not self.histories or not all(history.size for history in self.histories):
            raise InputError(
                "there is nothing to draw: give the objectives of at least one restart, and at "
                "least one objective of each"
            )
        if not 0 <= best < len(self.histories):
            raise InputError(f"there is no restart {best} among {len(self.histories)}")

    @classmethod
    def from_estimator(cls, estimator: Any, *, ax: Any = None, **kwargs: Any) -> Self:
        """Draw a fitted estimator; all restarts where it knows their histories."""
        check_fitted(estimator, "objective_history_")
        runs = estimator.runs_
        best = int(np.argmin([run.objective for run in runs])) if runs else 0
        histories = [getattr(run, "history", ()) for run in runs]
        if not histories or not all(len(history) for history in histories):
            one = [estimator.converged_]
            return cls([estimator.objective_history_], 0, one).plot(ax, **kwargs)
        return cls(histories, best, [run.converged for run in runs]).plot(ax, **kwargs)

    @classmethod
    def _of_insight(cls, insight: Insight) -> Self:
        runs = insight.runs
        return cls([run.history for run in runs], insight.best, [run.converged for run in runs])

    @classmethod
    def _of_result(cls, result: RunResult, folder: Path) -> Self:
        runs = result.runs
        if not all(run.history for run in runs):
            return cls([result.objective_history], 0, [result.converged])
        best = int(np.argmin([run.objective for run in runs]))
        return cls([run.history for run in runs], best, [run.converged for run in runs])

    def plot(self, ax: Any = None, *, start: bool = False, **kwargs: Any) -> Self:
        """Draw.

        Parameters
        ----------
        ax : of Matplotlib, optional
        start : bool, default=False
            Show the objective of the start, too: it lies far above all others.
        **kwargs : of `Axes.plot`
        """
        ax = self._axes(ax)
        first = 0 if start else 1
        self.lines_: list[Any] = []
        for number, history in enumerate(self.histories):
            # a history of one value is a start that was never left
            begin = min(first, len(history) - 1)
            kept = number == self.best
            style = {
                "color": COLOURS[0] if kept else "#9aa5b1",
                "linewidth": 2.0 if kept else 1.1,
                "zorder": 3 if kept else 2,
            }
            x = np.arange(begin, len(history))
            (line,) = ax.plot(x, history[begin:], **{**style, **kwargs})
            self.lines_.append(line)
            done = self.converged is None or self.converged[number]
            ax.plot(
                x[-1:],
                history[-1:],
                "o",
                color=line.get_color(),
                markerfacecolor=line.get_color() if done else "white",
                markersize=5 if kept else 4,
                zorder=4,
            )
        handles = [self.lines_[self.best]]
        names = [f"kept, {self.histories[self.best][-1]:.5g}"]
        others = [line for line in self.lines_ if line is not handles[0]]
        if others:
            handles.append(others[0])
            names.append(f"{len(others)} other restart{'s' if len(others) > 1 else ''}")
        if self.converged is not None and not all(self.converged):
            handles += ax.plot([], [], "o", color=QUIET, markerfacecolor="white", markersize=5)
            names.append("not converged")
        ax.legend(handles, names, **LEGEND)
        ax.set_xlabel("iteration", color=INK)
        ax.set_ylabel("objective J (no unit)", color=INK)
        ax.grid(axis="y", color=GRID, linewidth=0.8)
        ax.xaxis.get_major_locator().set_params(integer=True)
        return self


class KernelWeightsDisplay(Display):
    """The weights of the kernels: bars, or lines over the iterations where these are known.

    Parameters
    ----------
    names : sequence of str
    weights : array-like, shape (m,)
    history : array-like, shape (n_iter + 1, m), optional

    Attributes
    ----------
    ax_, figure_ : of Matplotlib
    bars_ : BarContainer or None
    lines_ : list of Line2D
    """

    def __init__(self, names: Sequence[str], weights: Any, history: Any = None) -> None:
        self.names = tuple(map(str, names))
        self.weights = np.asarray(weights, dtype=float)
        self.history = None if history is None or len(history) < 2 else np.asarray(history, float)
        if not self.names or self.weights.shape != (len(self.names),):
            raise InputError(
                f"weights of shape {self.weights.shape} do not fit {len(self.names)} names: give "
                "one for each of at least one kernel"
            )

    @classmethod
    def from_estimator(cls, estimator: Any, *, ax: Any = None, **kwargs: Any) -> Self:
        """Draw a fitted estimator."""
        check_fitted(estimator, "kernel_weights_")
        history = getattr(estimator, "weights_history_", None)
        return cls(estimator.kernel_names_, estimator.kernel_weights_, history).plot(ax, **kwargs)

    @classmethod
    def _of_insight(cls, insight: Insight) -> Self:
        kernels = insight.kernels
        return cls(kernels.names, kernels.weights, kernels.history)

    @classmethod
    def _of_result(cls, result: RunResult, folder: Path) -> Self:
        weights = result.kernel_weights
        return cls(list(weights), list(weights.values()), result.weights_history)

    def plot(self, ax: Any = None, *, kind: str = "auto", **kwargs: Any) -> Self:
        """Draw.

        Parameters
        ----------
        ax : of Matplotlib, optional
        kind : {"auto", "bars", "lines"}
            Lines need a history; "auto" draws them where there is one.
        **kwargs : of `Axes.barh` or `Axes.plot`
        """
        if kind not in ("auto", "bars", "lines"):
            raise InputError(f"kind must be auto, bars or lines, not {kind!r}")
        if kind == "lines" and self.history is None:
            raise InputError("these weights have no history: draw them as bars")
        self.bars_: Any = None
        self.lines_: list[Any] = []
        height = 1.0 + 0.27 * min(len(self.names), 60)
        if self.history is None or kind == "bars":
            return self._plot_bars(self._axes(ax, (6.4, max(2.4, height))), kwargs)
        return self._plot_lines(self._axes(ax), kwargs)

    def _plot_bars(self, ax: Any, kwargs: Mapping[str, Any]) -> Self:
        rows = np.arange(len(self.names))
        self.bars_ = ax.barh(rows, self.weights, **{"color": COLOURS[0], "height": 0.72, **kwargs})
        ax.bar_label(self.bars_, fmt="%.3f", padding=3, fontsize=8, color=QUIET)
        ax.set_yticks(rows, [short_name(name) for name in self.names])
        ax.invert_yaxis()
        ax.set_xlim(0, 1.12 * max(float(self.weights.max()), 1e-12))
        ax.set_xlabel("weight (the weights sum to 1)", color=INK)
        ax.set_ylabel("kernel", color=INK)
        ax.grid(axis="x", color=GRID, linewidth=0.8)
        ax.set_axisbelow(True)
        return self

    def _plot_lines(self, ax: Any, kwargs: Mapping[str, Any]) -> Self:
        assert self.history is not None
        order = np.argsort(-self.weights, kind="stable")
        for number, kernel in enumerate(order):
            (line,) = ax.plot(
                np.arange(len(self.history)),
                self.history[:, kernel],
                **{
                    "color": colour_of(number),
                    "linestyle": LINES[number // len(COLOURS) % len(LINES)],
                    "linewidth": 1.6,
                    "label": short_name(self.names[kernel]),
                    **kwargs,
                },
            )
            self.lines_.append(line)
        shown = order[:MOST_NAMED]
        low, high = ax.get_ylim()
        ends = spread_apart(self.history[-1][shown], low, high, 0.052 * (high - low))
        end = len(self.history) - 1
        for number, (kernel, at) in enumerate(zip(shown, ends, strict=True)):
            ax.annotate(
                short_name(self.names[kernel]),
                (end, self.history[-1][kernel]),
                xytext=(end * 1.07 + 0.2, at),
                fontsize=8,
                color=INK,
                va="center",
                annotation_clip=False,
                arrowprops={
                    "arrowstyle": "-",
                    "color": colour_of(number),
                    "linewidth": 0.8,
                    "relpos": (0.0, 0.5),
                    "shrinkA": 0,
                },
            )
        ax.set_xlabel("iteration", color=INK)
        ax.set_ylabel("weight (the weights sum to 1)", color=INK)
        ax.grid(axis="y", color=GRID, linewidth=0.8)
        ax.xaxis.get_major_locator().set_params(integer=True)
        return self
