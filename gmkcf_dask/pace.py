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

        The last third counts, at least ten: how fast changes shrink itself changes slowly.
        """
        if self._heard < _STEADY or self._changes[-1] >= _SMALL_CHANGE:
            return None
        recent = list(self._changes)[-max(_STEADY, self._heard // 3) :]
        return iterations_left(recent, tol)


def iterations_left(changes: Sequence[float], tol: float) -> float:
    """Iterations until the change falls to tol, if it goes on shrinking at its recent rate.

    The rate is the median of the slopes between all pairs of logarithms, and so is where the line
    stands now: a few odd iterations do not move it.

    >>> iterations_left([1e-2, 1e-3], 1e-5)
    2.0
    """
    if len(changes) < 2 or min(changes) <= 0 or tol <= 0:
        return math.inf
    logs = [math.log(change) for change in changes]
    shrink = median((b - a) / (j - i) for (i, a), (j, b) in combinations(enumerate(logs), 2))
    if shrink >= 0:
        return math.inf
    last = len(logs) - 1
    now = median(value + shrink * (last - i) for i, value in enumerate(logs))
    return max(0.0, round((math.log(tol) - now) / shrink, 6))


def duration(seconds: float) -> str:
    """A time as people say it.

    >>> duration(3.2), duration(990), duration(97_200)
    ('3 s', '16 min', '27.0 h')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 60 else f"{minutes / 60:.1f} h"
