"""Listeners that are ready to use: lines for machines, and what the iterations did."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from gmkcf_dask.events import Event, IterationDone
from gmkcf_dask.redact import redacted_tree
from gmkcf_dask.stages import Stage, Stages


def as_record(event: Event) -> dict[str, Any]:
    """An event as names and values, its kind under "event".

    >>> from gmkcf_dask.events import StageProgress
    >>> as_record(StageProgress("write", 1, 10))["event"]
    'stage_progress'
    """
    kind = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(event).__name__).lower()
    return {"event": kind, **asdict(event)}


class JsonLines:
    """A listener that writes a JSON object per line and event, with the time of it.

    Beside the events there is a line "stage_done" for every stage that is over. Secrets are struck
    out, and numbers that are not finite are null.

    Parameters
    ----------
    file : text stream, or path
        A path is appended to.

    Examples
    --------
    >>> import sys
    >>> from gmkcf_dask.events import StageProgress
    >>> lines = JsonLines(sys.stdout)
    >>> lines(StageProgress("write", 1, 10))  # doctest: +ELLIPSIS
    {"event": "stage_progress", "time": "...", "stage": "write", "done": 1, ...}
    """

    def __init__(self, file: TextIO | str | Path) -> None:
        self._path = Path(file) if isinstance(file, str | Path) else None
        self._file = None if isinstance(file, str | Path) else file
        self._stages = Stages(time.monotonic())

    def __call__(self, event: Event) -> None:
        self._say_ended(self._stages.hear(event, time.monotonic()))
        self.write(as_record(event))

    def write(self, record: Mapping[str, Any]) -> None:
        """One line of its own; the time is added."""
        moment = datetime.now(UTC).isoformat(timespec="milliseconds")
        kind = {"event": record["event"], "time": moment}
        text = json.dumps(_plain(redacted_tree({**kind, **record, **kind})))
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(f"{text}\n")
        elif self._file is not None:
            self._file.write(f"{text}\n")
            self._file.flush()

    def close(self) -> None:
        """Say that the last stage is over."""
        self._say_ended(self._stages.end())

    def _say_ended(self, stage: Stage | None) -> None:
        if stage is not None:
            self.write({"event": "stage_done", **stage_record(stage)})

    def __deepcopy__(self, memo: dict[int, Any]) -> JsonLines:
        """The clone of an estimator writes into the same file."""
        return self


class History:
    """A listener that keeps objective, change and weights of every iteration.

    Restarts of one fit are kept apart; another fit begins anew. Methods whose restarts share their
    sweeps (kcf, kkm with n_init above 1) tell only how many have ended.

    Attributes
    ----------
    objective, change : list of list of float
        For each restart, after every iteration.
    weights : list of list of tuple of float
        The same for the weights of the kernels.

    Examples
    --------
    >>> history = History()
    >>> for number in (1, 2):
    ...     history(IterationDone(0, 1, number, 500, 2.0 / number, 1.0, 1e-5, (0.5, 0.5)))
    >>> history.objective
    [[2.0, 1.0]]
    """

    def __init__(self) -> None:
        self.objective: list[list[float]] = []
        self.change: list[list[float]] = []
        self.weights: list[list[tuple[float, ...]]] = []
        self._last = (-1, 0)

    def __call__(self, event: Event) -> None:
        if not isinstance(event, IterationDone):
            return
        at = (event.restart, event.iteration)
        if at <= self._last:
            self.__init__()  # type: ignore[misc]
        if event.restart != self._last[0]:
            for kept in (self.objective, self.change, self.weights):
                kept.append([])
        self._last = at
        self.objective[-1].append(event.objective)
        self.change[-1].append(event.change)
        self.weights[-1].append(event.weights)


def stage_record(stage: Stage) -> dict[str, Any]:
    """What a stage came to, as names and values."""
    record: dict[str, Any] = {"stage": stage.name, "seconds": round(stage.seconds, 3)}
    if stage.count is not None and stage.iteration is None:
        record |= {"done": stage.count.done, "total": stage.count.total, "unit": stage.count.unit}
    if stage.iteration is not None:
        record |= {"iterations": stage.iterations, "objective": stage.best}
    return record


def _plain(value: Any) -> Any:
    """The same in what JSON knows: numbers that are not finite are null, others are text."""
    if isinstance(value, Mapping):
        return {str(name): _plain(held) for name, held in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(held) for held in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | bool | None) else str(value)
