"""Events: small values that describe the progress of work.

Work never prints. It calls a listener with events; progress displays, logs and tests are listeners.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

AT_MOST = " at most"
"""Suffix of a unit whose total is an upper bound, as in "sweeps at most"."""


@dataclass(frozen=True)
class StageProgress:
    """Progress of a counted stage, in tiles unless another unit is given.

    The first event of a stage gives what was done before it started. The total is unknown if it is
    negative or less than `done`.
    """

    stage: str
    done: int
    total: int
    bytes_done: int = 0
    unit: str = "tiles"


@dataclass(frozen=True)
class StageNote(StageProgress):
    """Progress of a stage with a line for people: something that was decided for them."""

    message: str = ""


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


@dataclass(frozen=True)
class PlanMade:
    """A run has read its input and started its cluster; next it builds the kernels."""

    lines: tuple[str, ...]
    runs_on: str


@dataclass(frozen=True)
class KernelsReady:
    """A run has its kernels, with a sentence on each that is nearly another; next it fits."""

    duplicates: tuple[str, ...]


Event = StageProgress | IterationDone
Listener = Callable[[Event], object]
RunListener = Callable[[Event | PlanMade | KernelsReady], object]
"""A listener that also hears how far a whole run has come."""


def ignore(event: Event | PlanMade | KernelsReady) -> None:
    """Listener that does nothing."""


# several counts may belong to one stage
_STAGES = {
    "row sums": "statistics",
    "ranges": "statistics",
    "kernels": "write",  # into memory
    "summary": "overview",
    **dict.fromkeys(("eigenvectors", "k-means", "compare"), "fit"),
    **dict.fromkeys(("gmkcf", "kcf", "kkm", "sc", "coreg", "rmkkm"), "fit"),
}
_LABELS = {
    "reading": "read",
    "write": "write kernels",
    "check": "check tiles",
    "repair": "repair tiles",
    "overview": "describe clusters",
    "suggest": "try numbers of clusters",
}


def stage_of(event: Event) -> str:
    """Name of the stage of an event; a stage may be counted in several parts.

    >>> stage_of(StageProgress("row sums", 0, 10)), stage_of(StageProgress("coreg 2", 1, 4))
    ('statistics', 'fit')
    """
    if isinstance(event, IterationDone):
        return "fit"
    return _STAGES.get(event.stage.split(" ")[0], _STAGES.get(event.stage, event.stage))


def stage_label(stage: str) -> str:
    """Label of a stage in displays and logs.

    >>> stage_label("write"), stage_label("something new")
    ('write kernels', 'something new')
    """
    return _LABELS.get(stage, stage)
