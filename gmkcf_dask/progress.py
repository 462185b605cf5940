"""One line on a terminal that says how far work is, how fast, and how long it will take.

Silent when the stream is not a terminal.
"""

from __future__ import annotations

import math
import shutil
import sys
import time
from collections import deque
from typing import TextIO

from gmkcf_dask.events import Event, IterationDone, StageProgress
from gmkcf_dask.plan import human_bytes


class Progress:
    """A listener that draws on a terminal.

    Parameters
    ----------
    stream : text stream
        Standard error unless given.
    enabled : bool, optional
        Draw at all; by default only on a terminal. Elsewhere lines are plain and few.
    """

    def __init__(self, stream: TextIO | None = None, enabled: bool | None = None) -> None:
        self._stream = stream or sys.stderr
        self._terminal = self._stream.isatty()
        self._enabled = self._terminal if enabled is None else enabled
        self._pause = 0.1 if self._terminal else 2.0
        self._stage = ""
        self._started = self._heard = time.monotonic()
        self._drawn = -math.inf
        self._first_done = 0
        self._changes: deque[float] = deque(maxlen=10)

    def __call__(self, event: Event) -> None:
        if not self._enabled:
            return
        now = time.monotonic()
        stage = event.stage if isinstance(event, StageProgress) else f"fit {event.restart + 1}"
        if stage != self._stage:
            self._begin(stage, event, now)
        self._heard = now
        last = isinstance(event, StageProgress) and event.done >= event.total
        if isinstance(event, IterationDone):
            self._changes.append(event.change)
        if now - self._drawn >= self._pause or last:
            self._drawn = now
            self._draw(self._text(event, max(now - self._started, 1e-3)))

    def _begin(self, stage: str, event: Event, now: float) -> None:
        self.close()
        self._stage, self._drawn = stage, -math.inf
        self._changes.clear()
        counted = isinstance(event, StageProgress)
        # the first event of a counted stage says what was there before it began: no rate from that;
        # the first iteration began when the last event before it was heard
        self._first_done = event.done if isinstance(event, StageProgress) else 0
        self._started = now if counted else self._heard

    def _text(self, event: Event, elapsed: float) -> str:
        if isinstance(event, StageProgress):
            return self._tiles(event, elapsed)
        return self._fit(event, elapsed)

    def _draw(self, text: str) -> None:
        if self._terminal:
            # a line that wraps could not be drawn over
            width = shutil.get_terminal_size().columns - 1
            self._stream.write(f"\r\x1b[2K{text[:width]}")
        else:
            self._stream.write(f"{text}\n")
        self._stream.flush()

    def close(self) -> None:
        """End the line that is being drawn."""
        if self._enabled and self._stage:
            if self._terminal:
                self._stream.write("\n")
                self._stream.flush()
            self._stage = ""

    def _tiles(self, event: StageProgress, elapsed: float) -> str:
        filled = 16 * event.done // max(event.total, 1)
        bar = "█" * filled + "░" * (16 - filled)
        text = f"{event.stage:<11}{bar} {event.done}/{event.total} {event.unit}"
        new = event.done - self._first_done
        if new <= 0:
            return text
        rate = new / elapsed
        bytes_per_tile = event.bytes_done // max(event.done, 1)
        speed = f", {human_bytes(int(rate * bytes_per_tile))}/s" if bytes_per_tile else ""
        left = _duration((event.total - event.done) / rate)
        return f"{text}, {rate:.1f}/s{speed}, {left} left"

    def _fit(self, event: IterationDone, elapsed: float) -> str:
        rate = event.iteration / elapsed
        remaining = min(
            iterations_left(list(self._changes), event.tol), event.max_iter - event.iteration
        )
        speed = f", {rate:.2f}/s" if elapsed > 0.01 else ""
        # the first iterations fall fast and say nothing of the rest
        steady = len(self._changes) == self._changes.maxlen and event.change < 1e-2
        left = f", {_duration(remaining / rate)} left" if steady else ""
        run = f" run {event.restart + 1}/{event.n_restarts}" if event.n_restarts > 1 else ""
        return (
            f"fit{run}: iteration {event.iteration}, objective {event.objective:.5g}, "
            f"change {event.change:.0e} → {event.tol:g}{speed}{left}"
        )


def iterations_left(changes: list[float], tol: float) -> float:
    """Iterations until the change falls to tol, if it goes on shrinking at its recent rate.

    >>> iterations_left([1e-2, 1e-3], 1e-5)
    2.0
    """
    if len(changes) < 2 or min(changes) <= 0 or tol <= 0:
        return math.inf
    shrink = math.log(changes[-1] / changes[0]) / (len(changes) - 1)
    if shrink >= 0:
        return math.inf
    return max(0.0, round(math.log(tol / changes[-1]) / shrink, 6))


def _duration(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "unknown time"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 60 else f"{minutes / 60:.1f} h"
