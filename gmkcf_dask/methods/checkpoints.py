"""Where a fit stands between two iterations, told to whoever keeps it; methods know no files.

GMKCF, KCF, RMKKM and KKM tell; SC and Coreg, a few dozen products long, begin again. A fit that
goes on from a state does what it would have done: the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
State = dict[str, Any]
"""All that determines how work goes on: numbers, strings, arrays, and lists and dicts of them."""


class Checkpoints(Protocol):
    """Keeps the states of a fit."""

    @property
    def resumed(self) -> State | None:
        """Where an earlier fit stood; None to begin at the beginning."""

    def keep(self, state: State) -> None:
        """An iteration has ended here. The arrays in a state are never changed afterwards."""


class _NoCheckpoints:
    resumed = None

    def keep(self, state: State) -> None:
        """Nobody asked."""


NO_CHECKPOINTS = _NoCheckpoints()


@dataclass(frozen=True)
class Turn:
    """One run's part in the checkpoints of its fit.

    Attributes
    ----------
    resumed : State or None
        Where the run goes on; None at its start.
    keep : callable
        Gets the run's state after every iteration that was not the last.
    """

    resumed: State | None = None
    keep: Callable[[State], object] = NO_CHECKPOINTS.keep


FRESH = Turn()


def as_state(ended: Any) -> State:
    """The fields of a run's result (a dataclass), its arrays as they are."""
    return dict(vars(ended))


def from_state(kind: type[T], state: State) -> T:
    """The result again; its sequences are tuples."""
    fields = {name: tuple(v) if isinstance(v, list) else v for name, v in state.items()}
    return kind(**fields)
