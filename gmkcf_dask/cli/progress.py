"""Progress of a command: the display on a terminal, JSON lines and the log.

with show_progress("reading", "predict") as listen:   # all stages to come, in order
    work(listen)
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from gmkcf_dask.cli.output import current_output
from gmkcf_dask.events import Event, IterationDone, StageNote, stage_label
from gmkcf_dask.events.stages import StageState, StageTracker, format_count

_LOG_INTERVAL = 10.0


class Listeners(list[Any]):
    """A listener that calls several; `close` ends the stage that they show."""

    def __call__(self, event: Event) -> None:
        for listener in self:
            listener(event)
        if isinstance(event, StageNote):
            current_output().tell(event.message)

    def close(self) -> None:
        for listener in self:
            listener.close()


class _StageLog:
    """A listener that logs stages, iterations and, every ten seconds, counts."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        self._tracker = StageTracker()
        self._logged = -math.inf

    def __call__(self, event: Event) -> None:
        now = time.monotonic()
        stage, finished, started = self._tracker.update(event, now)
        label = stage_label(stage.name)
        self._log_summary(finished)
        if started:
            self._log(f"{label}: begins")
            self._logged = now
        if isinstance(event, IterationDone):
            weights = " ".join(f"{weight:.4f}" for weight in event.weights)
            run = f"run {event.restart + 1}/{event.n_restarts}, " if event.n_restarts > 1 else ""
            self._log(
                f"{label}: {run}iteration {event.iteration}, objective {event.objective:.8g}, "
                f"change {event.change:.2e}, weights {weights}"
            )
        elif now - self._logged >= _LOG_INTERVAL:
            self._logged = now
            self._log(f"{label}: {format_count(event)}")

    def close(self) -> None:
        self._log_summary(self._tracker.finish())

    def _log_summary(self, stage: StageState | None) -> None:
        if stage is not None:
            self._log(f"{stage_label(stage.name)}: {stage.summary()}")


@contextmanager
def show_progress(*stages: str) -> Iterator[Listeners]:
    """Show progress as the options want it; the stages of the first call are the command's."""
    output = current_output()
    output.stages = output.stages or stages
    listeners = Listeners([_StageLog(output.log)])
    if output.json:
        listeners.insert(0, output.json_lines())
    elif not output.quiet and sys.stderr.isatty():
        from gmkcf_dask.events.progress import Progress  # importing rich takes time

        output.display = Progress(stages=output.stages)
        listeners.insert(0, output.display)
    try:
        yield listeners
    finally:
        listeners.close()
        output.display = None
