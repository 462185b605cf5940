"""What happens during work, as small values for whoever wants to watch.

Work never prints. It calls a listener with events; progress displays, logs and tests are listeners.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

AT_MOST = " at most"
"""Ends a unit whose total is a bound, as in "sweeps at most"."""


@dataclass(frozen=True)
class StageProgress:
    """A stage that is counted, in tiles unless another unit is named.

    The first event of a stage says what was done before it began. A total below what is done, or
    below 0, is one that nobody knows.
    """

    stage: str
    done: int
    total: int
    bytes_done: int = 0
    unit: str = "tiles"


@dataclass(frozen=True)
class IterationDone:
    """One outer iteration of one restart. `change` is (J_old − J_new) / J_new."""

    restart: int
    n_restarts: int
    iteration: int
    max_iter: int
    objective: float
    change: float
    tol: float
    weights: tuple[float, ...]


Event = StageProgress | IterationDone
Listener = Callable[[Event], object]


def ignore(event: Event) -> None:
    """The listener of those who do not watch."""


# stages as people know them: several counts may belong to one
_PARTS = {
    "row sums": "statistics",
    "ranges": "statistics",
    "kernels": "write",  # into memory
    "summary": "overview",
    **dict.fromkeys(("eigenvectors", "k-means"), "fit"),
    **dict.fromkeys(("gmkcf", "kcf", "kkm", "sc", "coreg", "rmkkm"), "fit"),
}
_WORDS = {
    "reading": "read",
    "statistics": "statistics",
    "write": "write kernels",
    "check": "check tiles",
    "repair": "mend tiles",
    "overview": "describe clusters",
    "suggest": "try numbers of clusters",
}


def stage_of(event: Event) -> str:
    """The stage an event belongs to, which may be counted in several parts.

    >>> stage_of(StageProgress("row sums", 0, 10)), stage_of(StageProgress("coreg 2", 1, 4))
    ('statistics', 'fit')
    """
    if isinstance(event, IterationDone):
        return "fit"
    return _PARTS.get(event.stage.split(" ")[0], _PARTS.get(event.stage, event.stage))


def in_words(stage: str) -> str:
    """A stage as it is shown.

    >>> in_words("write"), in_words("something new")
    ('write kernels', 'something new')
    """
    return _WORDS.get(stage, stage)
