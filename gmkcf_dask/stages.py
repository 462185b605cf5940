"""From events to stages: which one goes on, what was reached in it, and how long it took."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gmkcf_dask.events import AT_MOST, Event, IterationDone, StageProgress, in_words, stage_of


@dataclass(frozen=True)
class Stage:
    """A stage so far.

    Attributes
    ----------
    name : str
    began, heard : float
        When it began and when it was last heard of, in seconds of a monotonic clock.
    count : StageProgress or None
        The last count.
    iteration : IterationDone or None
        The last iteration.
    iterations : int
        All of them, of every restart.
    best : float
        The lowest objective.
    """

    name: str
    began: float
    heard: float
    count: StageProgress | None = None
    iteration: IterationDone | None = None
    iterations: int = 0
    best: float = float("inf")

    @property
    def seconds(self) -> float:
        return self.heard - self.began

    def sentence(self) -> str:
        """What the stage came to, in one line."""
        took = f"in {self.seconds:.1f} s"
        if self.iteration is not None:
            runs = self.iteration.n_restarts
            some = f"{runs:,} runs, " if runs > 1 else ""
            return (
                f"{self.iterations:,} iteration{'s' if self.iterations != 1 else ''}, {some}"
                f"objective {self.best:.5g}, change {self.iteration.change:.0e}, {took}"
            )
        if self.count is None:
            return took
        return f"{counted(self.count)} {took}"

    def after(self, event: Event, now: float) -> Stage:
        """The stage once an event of it was heard."""
        if isinstance(event, StageProgress):
            return replace(self, count=event, heard=now)
        return replace(
            self,
            iteration=event,
            iterations=self.iterations + 1,
            best=min(self.best, event.objective),
            heard=now,
        )


class Stages:
    """Keeps the stage that goes on."""

    def __init__(self, now: float) -> None:
        self.current: Stage | None = None
        self._heard = now

    def hear(self, event: Event, now: float) -> Stage | None:
        """Take an event; returns the stage that ended with it, if one did."""
        ended = None
        if self.current is None or _begins(self.current, event):
            ended = self.end()
            # the first iteration began when the last event before it was heard
            began = now if isinstance(event, StageProgress) else self._heard
            self.current = Stage(stage_of(event), began, now)
        self.current = self.current.after(event, now)
        self._heard = now
        return ended

    def end(self) -> Stage | None:
        """Nothing more is coming; returns the stage that went on."""
        ended, self.current = self.current, None
        return ended


def _begins(stage: Stage, event: Event) -> bool:
    """Whether a stage begins with an event, or again."""
    if stage_of(event) != stage.name:
        return True
    last = stage.iteration
    if isinstance(event, IterationDone) and last is not None:
        return (event.restart, event.iteration) <= (last.restart, last.iteration)
    count = stage.count
    return (
        isinstance(event, StageProgress)
        and count is not None
        and stage.name not in ("reading", "fit")  # these may count several times over
        and (event.stage, event.unit) == (count.stage, count.unit)
        and event.done < count.done
    )


def counted(event: StageProgress) -> str:
    """How much is done of how much.

    >>> counted(StageProgress("write", 4, 10)), counted(StageProgress("reading", 7, -1, 0, "files"))
    ('4/10 tiles', '7 files')
    """
    unit = event.unit.removesuffix(AT_MOST)
    if unit != event.unit:
        return f"{event.done:,} {unit},{AT_MOST} {event.total:,}"
    if not is_known(event):
        return f"{event.done:,} {unit}"
    return f"{event.done:,}/{event.total:,} {unit}"


def is_known(event: StageProgress) -> bool:
    """Whether the total is a number to be reached."""
    return event.total >= event.done and not event.unit.endswith(AT_MOST)


def title(stage: str, planned: tuple[str, ...]) -> str:
    """A stage in words, after its place among those that are planned.

    >>> title("write", ("reading", "write", "fit")), title("write", ())
    ('2/3 write kernels', 'write kernels')
    """
    if len(planned) < 2 or stage not in planned:
        return in_words(stage)
    return f"{planned.index(stage) + 1}/{len(planned)} {in_words(stage)}"
