"""The states of a fit between two iterations: what a run passes on, and how a state is validated.

Methods know no files: they pass states to `Checkpoints`. GMKCF, KCF, RMKKM and KKM do; SC and
Coreg, a few dozen products long, start again. A resumed fit computes the same bits.

Anyone can make a file whose digests are right, so types, shapes and ranges of a state are compared
with a schema. A schema is a dict of schemas (exactly these keys), a list of one schema (any number
of such values), a tuple of schemas (any of them), None, or a function that tests a value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np

from gmkcf_dask.errors import DamagedCheckpointError

T = TypeVar("T")
State = dict[str, Any]
"""What determines how a fit continues: numbers, strings, arrays, and lists and dicts of them."""
Test = Callable[[Any], bool]
Schema: TypeAlias = "Mapping[str, Schema] | list[Schema] | tuple[Schema, ...] | Test | None"


class Checkpoints(Protocol):
    """Keeps the states of a fit."""

    @property
    def resumed(self) -> State | None:
        """The last state of an earlier fit; None to start at the beginning."""

    def keep(self, state: State) -> None:
        """An iteration has ended here. The arrays in a state are never changed afterwards."""


class _NoCheckpoints:
    resumed = None

    def keep(self, state: State) -> None:
        """Forget it."""


NO_CHECKPOINTS = _NoCheckpoints()


class SharedCheckpoints:
    """The checkpoints of runs that share sweeps.

    How many blocks go into a product affects the last bits, so the runs have to continue as they
    went, side by side: their states make a checkpoint when all of them end an iteration in the same
    round. `batch_size` runs at a time share sweeps, one batch after the other; a checkpoint has the
    results of the batches before, as summaries but for the best, and the runs of one batch. One
    that was made with other batches is rejected.
    """

    def __init__(
        self, checkpoints: Checkpoints, n_runs: int, batch_size: int, running: Schema, ended: Schema
    ) -> None:
        resumed: State = {"ended": {}, "running": {}}
        if checkpoints.resumed is not None:
            resumed = checkpoints.resumed
            either = (ended, SUMMARY) if batch_size < n_runs else ended
            parts = {"ended": partial(_by_name, either), "running": partial(_by_name, running)}
            validate_state(resumed, parts)
            validate_state(resumed, partial(_is_batch, n_runs, batch_size))
        self.ended: dict[int, State] = {int(r): state for r, state in resumed["ended"].items()}
        self._running: dict[int, State] = {int(r): s for r, s in resumed["running"].items()}
        self._checkpoints = checkpoints
        self._current: dict[int, State] = {}

    def slot(self, number: int) -> tuple[State | None, Callable[[State], object]]:
        """Where run `number` resumes, and the function that keeps its states."""
        return self._running.get(number), partial(self._current.__setitem__, number)

    def before_round(self, results: Mapping[int, object], batch: range) -> None:
        """Keep the states if there is one of every unfinished run of a batch."""
        if all(number in results or number in self._current for number in batch):
            self._checkpoints.keep(
                {
                    "ended": {str(number): as_state(run) for number, run in results.items()},
                    "running": {str(number): state for number, state in self._current.items()},
                }
            )
        self._current.clear()


def _by_name(schema: Schema, value: Any) -> bool:
    return isinstance(value, dict) and all(matches(part, schema) for part in value.values())


def _is_batch(n_runs: int, batch_size: int, state: State) -> bool:
    """Whether all runs of one batch are there, and those of the batches before it have ended."""
    numbers = {*state["ended"], *state["running"]}
    n = len(numbers)
    complete = n == n_runs or (n > 0 and n % batch_size == 0 and n < n_runs)
    before = (n - 1) // batch_size * batch_size
    return (
        complete
        and len(state["ended"]) + len(state["running"]) == n
        and numbers == set(map(str, range(n)))
        and all(str(number) in state["ended"] for number in range(before))
    )


def as_state(result: Any) -> State:
    """The fields of a run's result (a dataclass), without copies."""
    return dict(vars(result))


def from_state(kind: type[T], state: State) -> T:
    """The result again; its sequences are tuples."""
    fields = {name: tuple(v) if isinstance(v, list) else v for name, v in state.items()}
    return kind(**fields)


# schemas


def validate_state(state: Any, schema: Schema) -> None:
    """Raise where a state does not match a schema."""
    if not matches(state, schema):
        raise DamagedCheckpointError(
            "the newest checkpoint does not fit this run and cannot be used: start again with "
            "--overwrite, or remove the folder of the checkpoint"
        )


def matches(value: Any, schema: Schema) -> bool:
    """Whether a value matches a schema; histories of one dict have the same length."""
    if isinstance(schema, Mapping):
        return (
            isinstance(value, dict)
            and value.keys() == schema.keys()
            and all(matches(value[name], part) for name, part in schema.items())
            and len(value.get("weights_history", ())) in (0, len(value.get("history", ())))
        )
    if isinstance(schema, list):
        return isinstance(value, list | tuple) and all(matches(part, schema[0]) for part in value)
    if isinstance(schema, tuple):
        return any(matches(value, part) for part in schema)
    return value is None if schema is None else schema(value)


def nothing(value: Any) -> bool:
    """Of a method that keeps no states."""
    return False


def number(value: Any) -> bool:
    """A finite float."""
    return type(value) is float and math.isfinite(value)


def count(value: Any) -> bool:
    """A whole number that is not negative."""
    return type(value) is int and 0 <= value < 1 << 62


def flag(value: Any) -> bool:
    """True or False."""
    return isinstance(value, bool)


def history(value: Any) -> bool:
    """Objectives, of the start at least."""
    return matches(value, [number]) and len(value) > 0


def array(
    *shape: int | None, dtype: Any = np.float64, low: float = -math.inf, high: float = math.inf
) -> Test:
    """An array of finite numbers from `low` to `high`; None in the shape for any length."""
    return lambda value: (
        isinstance(value, np.ndarray)
        and value.dtype == dtype
        and value.ndim == len(shape)
        and all(want in (None, size) for want, size in zip(shape, value.shape, strict=True))
        and bool(np.isfinite(value).all() and (value >= low).all() and (value <= high).all())
    )


def labels(n: int, k: int) -> Test:
    """One of k clusters for each of n samples."""
    return array(n, dtype=np.int32, low=0, high=k - 1)


def weights(m: int) -> Test:
    """Of m kernels, at least one of them above 0."""
    return lambda value: array(m, low=0)(value) and bool(value.any())


def weights_history(m: int) -> Test:
    """Weights of m kernels after some iterations, or after none."""
    return array(None, m, low=0)


SUMMARY: Schema = {"objective": number, "n_iter": count, "converged": flag, "history": history}
"""Of a `RunSummary`."""
