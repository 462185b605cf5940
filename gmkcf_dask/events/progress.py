"""Progress display: a live line on a terminal, drawn by rich, or plain lines elsewhere.

This module imports rich; import it only where a display is needed.
"""

from __future__ import annotations

import math
import os
import shutil
import sys
import time
from collections.abc import Sequence
from typing import Any, TextIO

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gmkcf_dask.events import Event, IterationDone, StageNote, StageProgress, stage_label
from gmkcf_dask.events.eta import StageEta, format_seconds
from gmkcf_dask.events.stages import StageState, StageTracker, format_count, has_total, stage_title
from gmkcf_dask.system.units import human_bytes

_TITLE, _BAR = 19, 10
_BLOCKS = "▁▂▃▄▅▆▇█"


class _Console(Console):
    """A console that never hides the cursor: nobody may close a `Progress` given as a callback."""

    def show_cursor(self, show: bool = True) -> bool:
        return False


class Progress:
    """A listener that shows progress: the current stage, its rate and the time left.

    A finished stage leaves one line with its summary.

    Parameters
    ----------
    stream : text stream
        Standard error by default.
    enabled : bool, optional
        Show progress. By default only on a terminal. On other streams lines are plain and few.
    stages : sequence of str
        All stages to come, in order, to show the position of each.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        enabled: bool | None = None,
        stages: Sequence[str] = (),
    ) -> None:
        self._stream = stream or sys.stderr
        self._terminal = self._stream.isatty()
        self._enabled = self._terminal if enabled is None else enabled
        self._interval = 0.1 if self._terminal else 2.0
        self._stages = tuple(stages)
        self._tracker = StageTracker()
        self._drawn = -math.inf
        self._live: Live | None = None
        self._console = _Console(
            file=self._stream, force_terminal=True, force_jupyter=False, color_system=None
        )

    def __call__(self, event: Event) -> None:
        if not self._enabled:
            return
        now = time.monotonic()
        stage, finished, started = self._tracker.update(event, now)
        if started:
            self._finish(finished)
            self._drawn, self._eta = -math.inf, StageEta(stage.start)
        self._eta.update(event, now)
        if isinstance(event, StageNote):
            self.print(f"note: {event.message}")
        # a terminal always shows the last count; plain lines have it in the summary
        last = isinstance(event, StageProgress) and event.done >= event.total and self._terminal
        if now - self._drawn >= self._interval or last:
            self._drawn = now
            self._draw(stage, event, now)

    def close(self) -> None:
        """Finish the current stage and its line."""
        self._finish(self._tracker.finish())

    def print(self, line: str) -> None:
        """Print a line above the live one."""
        if self._live is None:
            self._stream.write(f"{line}\n")
            self._stream.flush()
        else:
            self._console.print(Text(line), soft_wrap=True)

    def __deepcopy__(self, memo: dict[int, Any]) -> Progress:
        """The clone of an estimator shares the display."""
        return self

    def _finish(self, stage: StageState | None) -> None:
        if not self._enabled or stage is None:
            return
        line = f"{stage_title(stage.name, self._stages):<{_TITLE}} {stage.summary()}"
        if self._live is None:
            self.print(line)
        else:
            self._live.update(_one_line(line))
            self._live.stop()
            self._live = None

    def _draw(self, stage: StageState, event: Event, now: float) -> None:
        title, status = self._title(stage, event), self._status(stage, event, now)
        if not self._terminal:
            self.print(f"{title} {', '.join(status)}")
            return
        self._console.size = _terminal_size(self._stream)
        bar = isinstance(event, StageProgress) and has_total(event)
        width = self._console.width - len(title) - 1 - bar * (_BAR + 1)
        while len(", ".join(status)) > width and len(status) > 1:
            status.pop()
        row: list[Any] = [_one_line(title), _one_line(", ".join(status))]
        if isinstance(event, StageProgress) and bar:
            row.insert(1, ProgressBar(event.total, event.done, width=_BAR))
        grid = Table.grid(padding=(0, 1))
        grid.add_row(*row)
        if self._live is None:
            self._live = Live(
                console=self._console,
                auto_refresh=False,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()
        self._live.update(grid, refresh=True)

    def _title(self, stage: StageState, event: Event) -> str:
        title = stage_title(stage.name, self._stages)
        if isinstance(event, IterationDone):
            run = f" run {event.restart + 1}/{event.n_restarts}" if event.n_restarts > 1 else ""
            return f"{title}{run}:"
        if event.stage != stage.name and stage.name in ("statistics", "fit"):
            title = f"{title}: {event.stage}"
        return f"{title:<{_TITLE}}"

    def _status(self, stage: StageState, event: Event, now: float) -> list[str]:
        """Parts of the status, the most important first: a narrow terminal drops the last."""
        rate, byte_rate = self._eta.rate.per_second, self._eta.byte_rate.per_second
        if isinstance(event, IterationDone):
            parts = [f"iteration {event.iteration}"]
        else:
            parts = [format_count(event)]
        remaining = self._eta.remaining(event, now)
        if remaining is not None:
            parts.append(f"{remaining} left")
        if rate is not None:
            parts.append(_format_rate(rate))
        if byte_rate is not None:
            parts.append(f"{human_bytes(int(byte_rate))}/s")
        if isinstance(event, IterationDone):
            unicode = not self._console.options.ascii_only
            parts.append(f"objective {event.objective:.5g}")
            parts.append(f"change {event.change:.0e} {'→' if unicode else 'to'} {event.tol:g}")
            if len(event.weights) > 1:
                parts.append(sparkline(event.weights, unicode=unicode))
        if stage.name in self._stages[:-1]:
            later = self._stages[self._stages.index(stage.name) + 1 :]
            parts.append(f"then {', '.join(map(stage_label, later))}")
        return parts


def sparkline(weights: Sequence[float], *, unicode: bool = True) -> str:
    """One bar per weight, relative to the largest; digits if the terminal has no block characters.

    >>> sparkline([0.0, 0.25, 0.5]), sparkline([0.0, 0.25, 0.5], unicode=False)
    ('▁▅█', '059')
    """
    marks = _BLOCKS if unicode else "0123456789"
    largest = max(weights, default=0.0)
    if not (largest > 0 and math.isfinite(largest)):
        return marks[0] * len(weights)
    shares = (max(weight, 0.0) / largest for weight in weights)
    return "".join(marks[math.floor((len(marks) - 1) * share + 0.5)] for share in shares)


def _one_line(text: str) -> Text:
    return Text(text, no_wrap=True, overflow="crop")


def _format_rate(rate: float) -> str:
    if rate >= 0.1:
        return f"{rate:.1f}/s" if rate >= 10 else f"{rate:.2f}/s"
    return f"{format_seconds(1 / rate)} each"


def _terminal_size(stream: TextIO) -> tuple[int, int]:
    """Columns and rows of the terminal behind a stream, which standard output need not be."""
    try:
        columns, rows = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError, AttributeError):
        columns = rows = 0
    default = shutil.get_terminal_size()
    return (columns or default.columns) - 1, rows or default.lines
