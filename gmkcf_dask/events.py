"""What happens during work, as small values for whoever wants to watch.

Work never prints. It calls a listener with events; progress displays, logs and tests are listeners.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class StageProgress:
    """A stage that is counted, in tiles unless another unit is named."""

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
