"""One line on a terminal that says how far work is, how fast, and how long it will take.

Silent when the stream is not a terminal.
"""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from typing import TextIO

from gmkcf_dask.events import Event, IterationDone, StageProgress
from gmkcf_dask.plan import human_bytes

_SECONDS_BETWEEN_LINES = 0.1


class Progress:
    """A listener that draws on a terminal.

    Parameters
    ----------
    stream : text stream
        Standard error unless given.
    enabled : bool, optional
        Draw even though the stream is no terminal, or not at all.
    """

    def __init__(self, stream: TextIO | None = None, enabled: bool | None = None) -> None:
        self._stream = stream or sys.stderr
        self._enabled = self._stream.isatty() if enabled is None else enabled
        self._stage = ""
        self._started = self._drawn = 0.0
        self._first_done = 0
        self._changes: deque[float] = deque(maxlen=10)

    def __call__(self, event: Event) -> None:
        if not self._enabled:
            return
        now = time.monotonic()
        stage = event.stage if isinstance(event, StageProgress) else f"fit {event.restart + 1}"
        if stage != self._stage:
            self.close()
            self._stage, self._started, self._drawn = stage, now, 0.0
            self._changes.clear()
            # a resumed stage begins with work it did not do: no rate may be made of that
            self._first_done = 0
        last = isinstance(event, StageProgress) and event.done >= event.total
        if isinstance(event, IterationDone):
            self._changes.append(event.change)
        if now - self._drawn < _SECONDS_BETWEEN_LINES and not last:
            return
        self._drawn = now
        elapsed = max(now - self._started, 1e-9)
        text = (
            self._tiles(event, elapsed)
            if isinstance(event, StageProgress)
            else self._fit(event, elapsed)
        )
        self._stream.write(f"\r\x1b[2K{text}")
        self._stream.flush()

    def close(self) -> None:
        """End the line that is being drawn."""
        if self._enabled and self._stage:
            self._stream.write("\n")
            self._stream.flush()
            self._stage = ""

    def _tiles(self, event: StageProgress, elapsed: float) -> str:
        rate = event.done / elapsed
        left = (event.total - event.done) / rate if rate else math.inf
        speed = f", {human_bytes(int(event.bytes_done / elapsed))}/s" if event.bytes_done else ""
        filled = 24 * event.done // max(event.total, 1)
        bar = "█" * filled + "░" * (24 - filled)
        return (
            f"{event.stage:<11}{bar} {event.done}/{event.total} tiles, {rate:.1f}/s{speed}, "
            f"{_duration(left)} left"
        )

    def _fit(self, event: IterationDone, elapsed: float) -> str:
        rate = event.iteration / elapsed
        remaining = min(
            iterations_left(list(self._changes), event.tol), event.max_iter - event.iteration
        )
        left = f", about {_duration(remaining / rate)} left" if len(self._changes) > 2 else ""
        run = f" run {event.restart + 1}/{event.n_restarts}" if event.n_restarts > 1 else ""
        return (
            f"fit{run}: iteration {event.iteration}, J = {event.objective:.6g}, "
            f"change {event.change:.1e} (stops at {event.tol:g}), {rate:.2f}/s{left}"
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
