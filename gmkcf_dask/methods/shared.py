"""Checkpoints of several runs that go on side by side."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from gmkcf_dask.methods import forms
from gmkcf_dask.methods.checkpoints import Checkpoints, State, Turn, as_state
from gmkcf_dask.methods.forms import Form, refuse_other_forms


class SharedStates:
    """The checkpoints of runs that share sweeps.

    How many blocks go into a product has a say in the last bits, so the runs have to go on as they
    went, side by side: their states make a checkpoint when all of them end an iteration in the same
    round.
    """

    def __init__(self, checkpoints: Checkpoints, n_runs: int, running: Form, ended: Form) -> None:
        if checkpoints.resumed is not None:
            refuse_other_forms(checkpoints.resumed, forms.one_of_each(n_runs, ended, running))
        resumed = checkpoints.resumed or {"ended": {}, "running": {}}
        self.ended: dict[int, State] = {int(r): state for r, state in resumed["ended"].items()}
        self._running: dict[int, State] = {int(r): s for r, s in resumed["running"].items()}
        self._checkpoints = checkpoints
        self._numbers = range(n_runs)
        self._at_hand: dict[int, State] = {}

    def turn(self, number: int) -> Turn:
        """For run `number`."""
        return Turn(self._running.get(number), partial(self._at_hand.__setitem__, number))

    def before_round(self, results: Mapping[int, object]) -> None:
        """Keep the states if there is one of every run that goes on."""
        if all(number in results or number in self._at_hand for number in self._numbers):
            self._checkpoints.keep(
                {
                    "ended": {str(number): as_state(run) for number, run in results.items()},
                    "running": {str(number): state for number, state in self._at_hand.items()},
                }
            )
        self._at_hand.clear()
