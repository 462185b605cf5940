"""A clock and a terminal for tests of progress."""

from __future__ import annotations

import io
import re

from gmkcf_dask.events import IterationDone


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True

    @property
    def drawn(self) -> list[str]:
        """Every text that was drawn over the one before, or below it."""
        parts = re.split(r"[\r\n]", self.getvalue().replace("\x1b[2K", ""))
        return [part for part in parts if part]


class Clock:
    """Replaces `time.monotonic`."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


def iteration(number: int, objective: float = 2.5, change: float = 1e-3, **more) -> IterationDone:
    settings = {"restart": 0, "n_restarts": 1, "max_iter": 500, "tol": 1e-5, "weights": (0.5, 0.5)}
    return IterationDone(iteration=number, objective=objective, change=change, **settings | more)
