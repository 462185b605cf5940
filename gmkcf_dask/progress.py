"""One line on a terminal that says how far work is, how fast, and how long it will take.

A stage that is over leaves a line that sums it up. Silent when the stream is not a terminal.
"""

from __future__ import annotations

import math
import os
import shutil
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple, TextIO

from gmkcf_dask.events import Event, IterationDone, StageProgress, in_words
from gmkcf_dask.pace import Countdown, Decay, Rate, duration
from gmkcf_dask.pace import iterations_left as iterations_left
from gmkcf_dask.plan import human_bytes
from gmkcf_dask.stages import Stage, Stages, counted, is_known, title

_BLOCKS = "▁▂▃▄▅▆▇█"
_TITLE, _BAR = 20, 16


class Piece(NamedTuple):
    """Part of a line: where room is short, its short form, and those of the highest rank go."""

    text: str
    rank: int = 0
    short: str | None = None


class Progress:
    """A listener that draws on a terminal.

    Parameters
    ----------
    stream : text stream
        Standard error unless given.
    enabled : bool, optional
        Draw at all; by default only on a terminal. Elsewhere lines are plain and few.
    stages : sequence of str
        What is to come, in order, so that each stage can say which of them it is.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        enabled: bool | None = None,
        stages: Sequence[str] = (),
    ) -> None:
        self._stream = stream or sys.stderr
        self._terminal = self._stream.isatty()
        self._enabled = self._terminal if enabled is None else enabled
        self._pause = 0.1 if self._terminal else 2.0
        self._fine = _can_show(self._stream, _BLOCKS)
        self._planned = tuple(stages)
        self._stages = Stages(time.monotonic())
        self._drawn = -math.inf
        self._part = ""
        self._restarts_took: list[float] = []
        self._restart_began = 0.0
        self._forget()

    def __call__(self, event: Event) -> None:
        if not self._enabled:
            return
        now = time.monotonic()
        began = self._stages.current is None
        ended = self._stages.hear(event, now)
        stage = self._stages.current
        assert stage is not None
        if ended is not None or began:
            self._finish(ended)
            self._drawn = -math.inf
            self._restarts_took, self._restart_began = [], stage.began
            self._part = ""
        self._measure(stage, event, now)
        # of a stage that is over the last count is always shown, in plain lines by its summary
        last = isinstance(event, StageProgress) and event.done >= event.total and self._terminal
        if now - self._drawn >= self._pause or last:
            self._drawn = now
            self._draw(self._line(stage, event, now))

    def close(self) -> None:
        """End the line that is being drawn, and the stage with it."""
        self._finish(self._stages.end())

    def __deepcopy__(self, memo: dict[int, Any]) -> Progress:
        """The clone of an estimator draws on the same terminal."""
        return self

    def _finish(self, stage: Stage | None) -> None:
        if not self._enabled or stage is None:
            return
        head = title(stage.name, self._planned)
        self._draw([Piece(f"{head:<{_TITLE - 1}} {stage.sentence()}")])
        if self._terminal:
            self._stream.write("\n")
            self._stream.flush()

    def _measure(self, stage: Stage, event: Event, now: float) -> None:
        """Keep rates and what they are made from; another count or restart begins them anew."""
        counted_part = isinstance(event, StageProgress)
        part = event.stage if isinstance(event, StageProgress) else f"run {event.restart}"
        if part != self._part:
            if self._part.startswith("run ") and not counted_part:
                self._restarts_took.append(now - self._restart_began)
                self._restart_began = now
            self._part = part
            self._forget()
            if isinstance(event, IterationDone) and stage.iterations == 1:
                # the first iteration began with the stage
                self._rate.count(event.iteration - 1, stage.began)
        if isinstance(event, StageProgress):
            self._rate.count(event.done, now)
            self._bytes.count(event.bytes_done, now)
        else:
            self._rate.count(event.iteration, now)
            self._decay.hear(event.change)

    def _forget(self) -> None:
        self._rate, self._bytes = Rate(), Rate()
        self._decay, self._left = Decay(), Countdown()

    def _line(self, stage: Stage, event: Event, now: float) -> list[Piece]:
        if isinstance(event, IterationDone):
            pieces = self._iteration(stage, event, now)
        else:
            pieces = self._count(stage, event, now)
        if stage.name in self._planned:
            rest = self._planned[self._planned.index(stage.name) + 1 :]
            if rest:
                pieces.append(Piece(f", then {', '.join(map(in_words, rest))}", 9))
        return pieces

    def _count(self, stage: Stage, event: StageProgress, now: float) -> list[Piece]:
        head = title(stage.name, self._planned)
        if event.stage != stage.name and stage.name in ("statistics", "fit"):
            head = f"{head}: {event.stage}"
        pieces = [Piece(f"{head:<{_TITLE - 1}} ")]
        if is_known(event):
            long, short = (
                self._bar(event.done / max(event.total, 1), n) for n in (_BAR, _BAR // 2)
            )
            pieces.append(Piece(long, 6, short))
        pieces.append(Piece(counted(event)))
        rate, speed = self._rate.per_second, self._bytes.per_second
        if rate is None:
            return pieces
        pieces.append(Piece(f", {_per_second(rate)}", 7))
        if speed is not None:
            pieces.append(Piece(f", {human_bytes(int(speed))}/s", 5))
        # runs that share their sweeps end together: how many have says nothing of the others
        if is_known(event) and event.done < event.total and event.unit != "runs":
            left = self._left.guess((event.total - event.done) / rate, now)
            pieces.append(Piece(f", {duration(left)} left", 1))
        return pieces

    def _iteration(self, stage: Stage, event: IterationDone, now: float) -> list[Piece]:
        run = f" run {event.restart + 1}/{event.n_restarts}" if event.n_restarts > 1 else ""
        arrow = "→" if self._fine else "to"
        change = f"{event.change:.0e} {arrow} {event.tol:g}"
        pieces = [
            Piece(f"{title(stage.name, self._planned)}{run}: iteration {event.iteration}"),
            Piece(f", objective {event.objective:.5g}", 4, f", J {event.objective:.5g}"),
            Piece(f", change {change}", 3, f", -{change}" if event.change >= 0 else None),
        ]
        if len(event.weights) > 1:
            pieces.append(Piece(f", {small_bars(event.weights, fine=self._fine)}", 6))
        rate = self._rate.per_second
        if rate is not None:
            pieces.append(Piece(f", {_per_second(rate)}", 7))
        left = self._seconds_left(event, rate, now)
        if left is not None:
            pieces.append(Piece(f", {left} left", 1))
        return pieces

    def _seconds_left(self, event: IterationDone, rate: float | None, now: float) -> str | None:
        """Of all restarts: guessed from how the change shrinks, bounded by the iterations left.

        As long as that says nothing, a restart takes as long as those before it.
        """
        most = math.inf if rate is None else max(0, event.max_iter - event.iteration) / rate
        iterations = None if rate is None else self._decay.iterations_left(event.tol)
        if rate is None or iterations is None or math.isinf(iterations):
            left = self._left.rest(now)
        else:
            left = self._left.guess(iterations / rate, now)
        if left is None and self._restarts_took:
            usual = sum(self._restarts_took) / len(self._restarts_took)
            rest = usual - (now - self._restart_began)
            left = rest if rest > 0 else None
        if left is None and iterations is None:
            return None
        bound = left is None or left >= most
        left = most if left is None else min(left, most)
        left += self._other_restarts(event, left, now)
        return f"at most {duration(left)}" if bound else duration(left)

    def _other_restarts(self, event: IterationDone, left: float, now: float) -> float:
        """Seconds for the restarts to come, which take as long as those before did."""
        to_come = event.n_restarts - event.restart - 1
        took = [*self._restarts_took, now - self._restart_began + left]
        return to_come * sum(took) / len(took)

    def _bar(self, share: float, length: int) -> str:
        full, empty = "█░" if self._fine else "#-"
        filled = int(length * share)
        return full * filled + empty * (length - filled) + " "

    def _draw(self, pieces: list[Piece]) -> None:
        if self._terminal:
            # a line that wraps could not be drawn over
            width = _columns(self._stream) - 1
            self._stream.write(f"\r\x1b[2K{fitting(pieces, width)}")
        else:
            self._stream.write("".join(piece.text for piece in pieces) + "\n")
        self._stream.flush()


def fitting(pieces: Sequence[Piece], width: int) -> str:
    """What fits into a width: all pieces, or their short forms, without those of the highest rank.

    >>> fitting([Piece("write"), Piece(", 10/s", 7), Piece(", 6 s left", 1)], 16)
    'write, 6 s left'
    """
    kept = list(pieces)
    if _length(kept) > width:  # what comes after this stage is the first to go
        kept = [piece for piece in kept if piece.rank < 9]
    if _length(kept) > width:
        kept = [piece._replace(text=piece.short or piece.text) for piece in kept]
    while _length(kept) > width and any(piece.rank for piece in kept):
        kept.remove(max(kept, key=lambda piece: piece.rank))
    return "".join(piece.text for piece in kept)[:width]


def _length(pieces: Sequence[Piece]) -> int:
    return sum(len(piece.text) for piece in pieces)


def small_bars(weights: Sequence[float], *, fine: bool = True) -> str:
    """A bar of one character for each weight, the largest full; digits where bars cannot be shown.

    >>> small_bars([0.0, 0.25, 0.5]), small_bars([0.0, 0.25, 0.5], fine=False)
    ('▁▅█', '059')
    """
    marks = _BLOCKS if fine else "0123456789"
    largest = max(weights, default=0.0)
    if not (largest > 0 and math.isfinite(largest)):
        return marks[0] * len(weights)
    shares = (max(weight, 0.0) / largest for weight in weights)
    return "".join(marks[math.floor((len(marks) - 1) * share + 0.5)] for share in shares)


def _per_second(rate: float) -> str:
    if rate >= 0.1:
        return f"{rate:.1f}/s" if rate >= 10 else f"{rate:.2f}/s"
    return f"{duration(1 / rate)} each"


def _columns(stream: TextIO) -> int:
    """Columns of the terminal that is drawn on, which standard output need not be."""
    try:
        asked = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError, AttributeError):
        asked = 0
    return asked or shutil.get_terminal_size().columns


def _can_show(stream: TextIO, text: str) -> bool:
    try:
        text.encode(getattr(stream, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
