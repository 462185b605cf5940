"""Ready-made listeners: JSON lines, and the history of the iterations."""

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

from gmkcf_dask.errors import redacted_tree
from gmkcf_dask.events import Event, IterationDone
from gmkcf_dask.events.stages import StageState, StageTracker


class JsonLines:
    """A listener that writes every event as one line of JSON, with the time.

    Each finished stage adds a line "stage_done". Secrets are redacted, and numbers that are not
    finite are null.

    Parameters
    ----------
    file : text stream, or path
        Lines are appended to a path.

    Examples
    --------
    >>> import sys
    >>> from gmkcf_dask.events import StageProgress
    >>> lines = JsonLines(sys.stdout)
    >>> lines(StageProgress("write", 1, 10))  # doctest: +ELLIPSIS
    {"event": "stage_progress", "time": "...", "stage": "write", "done": 1, ...}
    """

    def __init__(self, file: TextIO | str | Path) -> None:
        self._file = Path(file) if isinstance(file, str) else file
        self._tracker = StageTracker()

    def __call__(self, event: Event) -> None:
        self._write_stage(self._tracker.update(event, time.monotonic())[1])
        kind = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(event).__name__).lower()
        self.write({"event": kind, **asdict(event)})

    def write(self, record: Mapping[str, Any]) -> None:
        """Write one record, which has an "event"; the time is added."""
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        head = {"event": record["event"], "time": time}
        line = json.dumps(_json_value(redacted_tree(head | dict(record) | head))) + "\n"
        if isinstance(self._file, Path):
            with self._file.open("a", encoding="utf-8") as file:
                file.write(line)
        else:
            self._file.write(line)
            self._file.flush()

    def close(self) -> None:
        """Finish the current stage."""
        self._write_stage(self._tracker.finish())

    def _write_stage(self, stage: StageState | None) -> None:
        if stage is None:
            return
        record: dict[str, Any] = {"stage": stage.name, "seconds": round(stage.seconds, 3)}
        if stage.iteration is not None:
            record |= {"iterations": stage.n_iterations, "objective": stage.objective}
        elif (count := stage.count) is not None:
            record |= {"done": count.done, "total": count.total, "unit": count.unit}
        self.write({"event": "stage_done", **record})

    def __deepcopy__(self, memo: dict[int, Any]) -> JsonLines:
        """The clone of an estimator writes to the same file."""
        return self


class History:
    """A listener that keeps objective, change and weights of every iteration.

    Restarts of one fit are kept apart; another fit replaces them. Methods whose restarts share
    their sweeps (kcf and kkm with n_init above 1) only report how many have ended.

    Attributes
    ----------
    objective, change : list of list of float
        For each restart, after every iteration.
    weights : list of list of tuple of float
        Kernel weights, for each restart and after every iteration.

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
        if (event.restart, event.iteration) <= self._last:
            self.__init__()  # type: ignore[misc]
        if event.restart != self._last[0]:
            for values in (self.objective, self.change, self.weights):
                values.append([])
        self._last = (event.restart, event.iteration)
        self.objective[-1].append(event.objective)
        self.change[-1].append(event.change)
        self.weights[-1].append(event.weights)


def _json_value(value: Any) -> Any:
    """Convert a value to JSON types: numbers that are not finite to null, other objects to text."""
    if isinstance(value, Mapping):
        return {str(name): _json_value(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | bool | None) else str(value)
