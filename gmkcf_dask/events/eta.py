"""Estimate the rate of work and the time left; no estimate rather than a wrong one."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from itertools import combinations
from statistics import fmean, median

from gmkcf_dask.events import Event, IterationDone, StageProgress
from gmkcf_dask.events.stages import has_total

_DECAY_SECONDS = 20.0
"""Time constant of the moving average of a rate."""
_MIN_ITERATIONS = 10
"""Iterations before a forecast: the first changes fall fast and predict nothing."""
_MAX_CHANGE = 1e-2
_MAX_RATIO = 5.0
"""Largest ratio of two forecasts that still agree."""


class Rate:
    """Units per second, as an exponential moving average.

    >>> rate = Rate()
    >>> for second in range(4):
    ...     rate.update(10 * second, float(second))
    >>> rate.per_second
    10.0
    """

    def __init__(self) -> None:
        self._units = self._seconds = 0.0
        self._last: tuple[float, float] | None = None

    def update(self, done: float, now: float) -> None:
        """Add a count. The first one is work that was done before."""
        if self._last is not None:
            units, seconds = (max(b - a, 0.0) for a, b in zip(self._last, (done, now), strict=True))
            decay = math.exp(-seconds / _DECAY_SECONDS)
            self._units = self._units * decay + units
            self._seconds = self._seconds * decay + seconds
        self._last = (done, now)

    @property
    def per_second(self) -> float | None:
        """None until there is something to measure."""
        return self._units / self._seconds if self._units > 0 and self._seconds > 0.01 else None


class SmoothedEta:
    """Seconds left that count down with the clock and follow new estimates slowly.

    >>> eta = SmoothedEta()
    >>> eta.update(100.0, now=0.0), eta.update(90.0, now=10.0)
    (100.0, 90.0)
    >>> eta.update(900.0, now=11.0) < 300  # an outlier moves it little
    True
    """

    def __init__(self) -> None:
        self._end: float | None = None
        self._updated = 0.0

    def update(self, seconds: float, now: float) -> float:
        """Add an estimate and return the smoothed one."""
        if self._end is None:
            self._end = now + seconds
        else:
            weight = min(0.3, 1 - math.exp(-(now - self._updated) / 5))
            self._end += weight * (now + seconds - self._end)
        self._updated = now
        return max(0.0, self._end - now)

    def remaining(self, now: float) -> float | None:
        """Seconds left by earlier estimates."""
        return None if self._end is None else max(0.0, self._end - now)


class ConvergenceForecast:
    """Forecast the iterations until the relative change of the objective reaches `tol`."""

    def __init__(self) -> None:
        self._changes: deque[float] = deque(maxlen=60)
        self._n = 0

    def update(self, change: float) -> None:
        """Add the change of one more iteration."""
        self._changes.append(change)
        self._n += 1

    def iterations_left(self, tol: float) -> float | None:
        """None while there is no reliable forecast, infinity if the changes do not shrink.

        Fits the last third of the changes, at least ten, with an exponential and with a power law,
        and weights both by how well they fit. There is no forecast if the two are far apart.
        """
        if self._n < _MIN_ITERATIONS or self._changes[-1] >= _MAX_CHANGE:
            return None
        recent = list(self._changes)[-max(_MIN_ITERATIONS, self._n // 3) :]
        if min(recent) <= 0 or tol <= 0:
            return math.inf
        logs = [math.log(change) for change in recent]
        steps = [float(self._n - len(recent) + i + 1) for i in range(len(recent))]
        fast, fast_error = _crossing(steps, logs, math.log(tol))
        slow, slow_error = _crossing([math.log(step) for step in steps], logs, math.log(tol))
        if math.isinf(fast):
            return math.inf
        fast -= self._n
        slow = math.exp(min(slow, 700.0)) - self._n
        if fast <= 1 or slow <= 1:
            return max(fast, 0.0)
        if slow > _MAX_RATIO * fast:
            return None
        share = (slow_error + 1e-9) / (fast_error + slow_error + 2e-9)
        return math.exp(share * math.log(fast) + (1 - share) * math.log(slow))


def _crossing(x: Sequence[float], y: Sequence[float], level: float) -> tuple[float, float]:
    """Return where a falling Theil-Sen line through points reaches a level, and its median error.

    The slope is the median of all slopes between two points, which outliers do not move.
    """
    slope = median((y[j] - y[i]) / (x[j] - x[i]) for i, j in combinations(range(len(x)), 2))
    intercept = median(b - slope * a for a, b in zip(x, y, strict=True))
    error = median(abs(b - intercept - slope * a) for a, b in zip(x, y, strict=True))
    return ((level - intercept) / slope if slope < 0 else math.inf), error


class StageEta:
    """Rates and time left of one stage, which may have several parts or restarts."""

    def __init__(self, start: float) -> None:
        self._updated = self._restart_start = start
        self._restart_seconds: list[float] = []
        self._part: str | int | None = None
        self._reset()

    def _reset(self) -> None:
        self.rate, self.byte_rate = Rate(), Rate()
        self._forecast, self._eta = ConvergenceForecast(), SmoothedEta()

    def update(self, event: Event, now: float) -> None:
        """Add an event; another part or restart is measured from its start."""
        part = event.stage if isinstance(event, StageProgress) else event.restart
        if part != self._part:
            self._reset()
            if isinstance(event, IterationDone):
                self.rate.update(event.iteration - 1, self._updated)
                if isinstance(self._part, int):
                    self._restart_seconds.append(now - self._restart_start)
                    self._restart_start = now
            self._part = part
        if isinstance(event, StageProgress):
            self.rate.update(event.done, now)
            self.byte_rate.update(event.bytes_done, now)
        else:
            self.rate.update(event.iteration, now)
            self._forecast.update(event.change)
        self._updated = now

    def remaining(self, event: Event, now: float) -> str | None:
        """Time left as text, or None."""
        if isinstance(event, IterationDone):
            return self._remaining_iterations(event, now)
        rate, left = self.rate.per_second, event.total - event.done
        # restarts in lockstep end together: the number that ended does not predict the others
        if rate is None or not has_total(event) or left == 0 or event.unit == "runs":
            return None
        return format_seconds(self._eta.update(left / rate, now))

    def _remaining_iterations(self, event: IterationDone, now: float) -> str | None:
        """Time left of all restarts: a forecast, bounded by max_iter.

        Without a forecast, a restart is expected to take as long as the earlier ones.
        """
        rate = self.rate.per_second
        bound = math.inf if rate is None else max(0, event.max_iter - event.iteration) / rate
        iterations = None if rate is None else self._forecast.iterations_left(event.tol)
        if rate is None or iterations is None or math.isinf(iterations):
            seconds = self._eta.remaining(now)
        else:
            seconds = self._eta.update(iterations / rate, now)
        elapsed = now - self._restart_start
        if seconds is None and self._restart_seconds:
            rest = fmean(self._restart_seconds) - elapsed
            seconds = rest if rest > 0 else None
        if seconds is None and iterations is None:
            return None
        is_bound = seconds is None or seconds >= bound
        seconds = bound if seconds is None else min(seconds, bound)
        restarts_left = event.n_restarts - event.restart - 1
        seconds += restarts_left * fmean([*self._restart_seconds, elapsed + seconds])
        return f"{'at most ' if is_bound else ''}{format_seconds(seconds)}"


def format_seconds(seconds: float) -> str:
    """Format a duration with few digits.

    >>> format_seconds(3.2), format_seconds(990), format_seconds(97_200)
    ('3 s', '16 min', '27.0 h')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 60 else f"{minutes / 60:.1f} h"
