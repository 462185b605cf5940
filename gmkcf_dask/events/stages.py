"""Group events into stages and summarize each stage."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gmkcf_dask.events import AT_MOST, Event, IterationDone, StageProgress, stage_label, stage_of


@dataclass(frozen=True)
class StageState:
    """State of a stage after its latest event."""

    name: str
    start: float  # by a monotonic clock
    updated: float
    count: StageProgress | None = None  # the latest
    iteration: IterationDone | None = None  # the latest
    n_iterations: int = 0  # of all restarts
    objective: float = float("inf")  # the lowest

    @property
    def seconds(self) -> float:
        return self.updated - self.start

    def summary(self) -> str:
        """One line on the work that was done."""
        seconds = f"in {self.seconds:.1f} s"
        if self.iteration is not None:
            n_restarts = self.iteration.n_restarts
            runs = f"{n_restarts:,} runs, " if n_restarts > 1 else ""
            plural = "s" if self.n_iterations != 1 else ""
            return (
                f"{self.n_iterations:,} iteration{plural}, {runs}objective {self.objective:.5g}, "
                f"change {self.iteration.change:.0e}, {seconds}"
            )
        return seconds if self.count is None else f"{format_count(self.count)} {seconds}"

    def after(self, event: Event, now: float) -> StageState:
        """State after one more event."""
        if isinstance(event, StageProgress):
            return replace(self, count=event, updated=now)
        return replace(
            self,
            iteration=event,
            n_iterations=self.n_iterations + 1,
            objective=min(self.objective, event.objective),
            updated=now,
        )


class StageTracker:
    """Track the current stage."""

    def __init__(self) -> None:
        self.current: StageState | None = None
        self._updated = time.monotonic()

    def update(self, event: Event, now: float) -> tuple[StageState, StageState | None, bool]:
        """Return the current stage, the stage that this event finished, and if one started."""
        finished, started = None, self.current is None or _starts_stage(self.current, event)
        if started:
            finished = self.finish()
            # iterations are reported when they end: the first one started at the previous event
            start = now if isinstance(event, StageProgress) else self._updated
            self.current = StageState(stage_of(event), start, now)
        assert self.current is not None
        self.current = self.current.after(event, now)
        self._updated = now
        return self.current, finished, started

    def finish(self) -> StageState | None:
        """End the current stage and return it."""
        finished, self.current = self.current, None
        return finished


def _starts_stage(stage: StageState, event: Event) -> bool:
    """Return whether an event belongs to another stage, or to a repetition of this one."""
    if stage_of(event) != stage.name:
        return True
    if isinstance(event, IterationDone):
        last = stage.iteration
        return last is not None and (
            (event.restart, event.iteration) <= (last.restart, last.iteration)
        )
    count = stage.count
    return (
        count is not None
        and stage.name not in ("reading", "fit")  # these may count more than once
        and (event.stage, event.unit) == (count.stage, count.unit)
        and event.done < count.done
    )


def format_count(event: StageProgress) -> str:
    """Format a count and its total.

    >>> format_count(StageProgress("write", 4, 10))
    '4/10 tiles'
    >>> format_count(StageProgress("reading", 7, -1, 0, "files"))
    '7 files'
    """
    unit = event.unit.removesuffix(AT_MOST)
    if unit != event.unit:
        return f"{event.done:,} {unit},{AT_MOST} {event.total:,}"
    if not has_total(event):
        return f"{event.done:,} {unit}"
    return f"{event.done:,}/{event.total:,} {unit}"


def has_total(event: StageProgress) -> bool:
    """Return whether the total is known exactly."""
    return event.total >= event.done and not event.unit.endswith(AT_MOST)


def stage_title(stage: str, stages: Sequence[str]) -> str:
    """Label of a stage with its position among the planned stages.

    >>> stage_title("write", ("reading", "write", "fit")), stage_title("write", ())
    ('2/3 write kernels', 'write kernels')
    """
    if len(stages) < 2 or stage not in stages:
        return stage_label(stage)
    return f"{stages.index(stage) + 1}/{len(stages)} {stage_label(stage)}"
