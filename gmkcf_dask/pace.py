"""How fast work goes and how long it will take: figures that may be believed, or none."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from itertools import combinations
from statistics import median

_REMEMBERED_SECONDS = 20.0
"""What lies longer ago counts for less than 1/e in a rate."""
_STEADY = 10
"""Iterations before their time left is guessed: the first ones fall fast and say nothing."""
_SMALL_CHANGE = 1e-2
_APART = 5.0
"""How many times larger one of two guesses may be for both to be believed."""


class Rate:
    """Units per second, an exponential average: what happened long ago is forgotten.

    >>> rate = Rate()
    >>> for second in range(4):
    ...     rate.count(10 * second, float(second))
    >>> rate.per_second
    10.0
    """

    def __init__(self) -> None:
        self._units = self._seconds = 0.0
        self._last: tuple[float, float] | None = None

    def count(self, done: float, now: float) -> None:
        """So much is done now. The first count is what was there before."""
        if self._last is not None:
            before, then = self._last
            fades = math.exp(-max(now - then, 0.0) / _REMEMBERED_SECONDS)
            self._units = self._units * fades + max(done - before, 0.0)
            self._seconds = self._seconds * fades + max(now - then, 0.0)
        self._last = (done, now)

    @property
    def per_second(self) -> float | None:
        """None as long as it would be made up."""
        return self._units / self._seconds if self._units > 0 and self._seconds > 0.01 else None


class Countdown:
    """Seconds left that run with the clock and give way to new guesses little by little.

    >>> left = Countdown()
    >>> left.guess(100.0, now=0.0), left.guess(90.0, now=10.0)
    (100.0, 90.0)
    >>> left.guess(900.0, now=11.0) < 300  # one odd guess is not believed
    True
    """

    def __init__(self) -> None:
        self._end: float | None = None
        self._then = 0.0

    def guess(self, seconds: float, now: float) -> float:
        """A new guess; returns what is to be shown."""
        if self._end is None:
            self._end = now + seconds
        else:
            trust = min(0.3, 1 - math.exp(-(now - self._then) / 5))
            self._end += trust * (now + seconds - self._end)
        self._then = now
        return max(0.0, self._end - now)

    def rest(self, now: float) -> float | None:
        """What is left of earlier guesses, where there is no new one."""
        return None if self._end is None else max(0.0, self._end - now)


class Decay:
    """The changes of the objective, and the iterations until they reach the tolerance."""

    def __init__(self) -> None:
        self._changes: deque[float] = deque(maxlen=60)
        self._heard = 0

    def hear(self, change: float) -> None:
        self._changes.append(change)
        self._heard += 1

    def iterations_left(self, tol: float) -> float | None:
        """None until a guess means something, infinity where the changes do not shrink.

        The last third counts, at least ten. Changes shrink by a share per iteration at best, and
        like a power of the iterations where convergence is slow: both are fitted, and the one that
        fits better has more to say. Guesses that are far apart are none.
        """
        if self._heard < _STEADY or self._changes[-1] >= _SMALL_CHANGE:
            return None
        recent = list(self._changes)[-max(_STEADY, self._heard // 3) :]
        if min(recent) <= 0 or tol <= 0:
            return math.inf
        logs = [math.log(change) for change in recent]
        steps = [float(self._heard - len(recent) + i + 1) for i in range(len(recent))]
        fast, fast_error = _reaches(steps, logs, math.log(tol))
        slow, slow_error = _reaches([math.log(step) for step in steps], logs, math.log(tol))
        if math.isinf(fast):
            return math.inf
        fast -= self._heard
        slow = math.exp(min(slow, 700.0)) - self._heard
        if fast <= 1 or slow <= 1:
            return max(fast, 0.0)
        if slow > _APART * fast:
            return None
        share = (slow_error + 1e-9) / (fast_error + slow_error + 2e-9)
        return math.exp(share * math.log(fast) + (1 - share) * math.log(slow))


def iterations_left(changes: Sequence[float], tol: float) -> float:
    """Iterations until the change falls to tol, if it goes on shrinking at its recent rate.

    >>> iterations_left([1e-2, 1e-3], 1e-5)
    2.0
    """
    if len(changes) < 2 or min(changes) <= 0 or tol <= 0:
        return math.inf
    steps = [float(step) for step in range(len(changes))]
    logs = [math.log(change) for change in changes]
    return max(0.0, round(_reaches(steps, logs, math.log(tol))[0] - steps[-1], 6))


def _reaches(x: Sequence[float], y: Sequence[float], level: float) -> tuple[float, float]:
    """Where a falling line through points reaches a level, and how far they lie from it.

    The line is that of Theil and Sen, the median of all slopes: a few odd points do not move it.
    """
    slope = median((y[j] - y[i]) / (x[j] - x[i]) for i, j in combinations(range(len(x)), 2))
    at = median(b - slope * a for a, b in zip(x, y, strict=True))
    error = median(abs(b - at - slope * a) for a, b in zip(x, y, strict=True))
    return ((level - at) / slope if slope < 0 else math.inf), error


def duration(seconds: float) -> str:
    """A time as people say it.

    >>> duration(3.2), duration(990), duration(97_200)
    ('3 s', '16 min', '27.0 h')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 60 else f"{minutes / 60:.1f} h"
