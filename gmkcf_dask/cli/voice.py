"""What a command says: to people, to machines, and into a log."""

from __future__ import annotations

import io
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO

import click

from gmkcf_dask.errors import InputError
from gmkcf_dask.events import Event, IterationDone, StageProgress, in_words
from gmkcf_dask.redact import redacted

_SECONDS_BETWEEN_COUNTS = 10.0


@dataclass
class Voice:
    """How a command speaks, as its options ask, and what it has to say at its end.

    Attributes
    ----------
    quiet : bool
        Nothing but notes and errors.
    json : bool
        A JSON object per line on standard output, and no text for people.
    log : Path or None
        A file that gets everything, with the time.
    """

    quiet: bool = False
    json: bool = False
    log: Path | None = None
    planned: tuple[str, ...] = ()
    found: dict[str, Any] = field(default_factory=dict)
    noted: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)
    _stdout: TextIO | None = None
    _log_works: bool | None = None

    @contextmanager
    def speaking(self, command: str) -> Iterator[None]:
        """All text of a command goes where the options say; at its end there is a result."""
        self._check()
        self.written(f"begins: {redacted(command)}")
        if not (self.quiet or self.json or self.log):
            yield
            return
        self._stdout = sys.stdout
        shown = None if self.quiet or self.json else sys.stdout
        try:
            with redirect_stdout(_Copied(shown, self.written)):
                yield
        finally:
            self._stdout = None

    def _check(self) -> None:
        if self.quiet and self.json:
            raise InputError(
                "--json writes lines for machines and no text already: leave --quiet out"
            )
        if self.log is not None:
            self._log_works = False  # until it is known: what is said of it must not be written
            _check_log(self.log)
            self._log_works = True

    def listener(self, stages: Sequence[str]) -> Watcher:
        """Who hears the events of a command; `stages` are those of all of it, in order."""
        self.planned = self.planned or tuple(stages)
        heard: list[Any] = []
        if self.json:
            heard.append(self._lines())
        elif not self.quiet:
            from gmkcf_dask.progress import Progress

            heard.append(Progress(stages=self.planned))
        if self.log is not None:
            heard.append(_Logged(self.written))
        return Watcher(heard)

    def note(self, sentence: str) -> None:
        """Something worth knowing that ends nothing; once is enough."""
        if sentence in self.noted:
            return
        self.noted.append(sentence)
        self.written(f"note: {sentence}")
        if self.json:
            self.emit("note", message=sentence)
        else:
            _to_stderr(f"note: {sentence}")

    def answer(self, text: str) -> None:
        """What a command was asked for, where nothing else is said."""
        if self.quiet and self._stdout is not None:
            self._stdout.write(f"{text}\n")

    def end(self, sentence: str, code: int, again: str | None = None) -> None:
        """Why a command ended before it was done, and how to go on."""
        self.written(sentence)
        if again is not None:
            self.written(f"to go on: {again}")
        self.written(f"ends after {self._seconds:.1f} s with exit code {code}")
        if self.json:
            more = {} if again is None else {"to_go_on": again}
            message = sentence.removeprefix("error: ")
            self.emit("error", message=message, exit_code=code, **more)
            return
        _to_stderr(sentence)
        if again is not None:
            _to_stderr(f"to go on: {again}")

    def broken(self, sentence: str) -> None:
        """An error that nobody foresaw; Python itself says where it was."""
        self.written(f"error: {sentence}")
        if self.json:
            self.emit("error", message=sentence, exit_code=1)

    def finish(self, command: str) -> None:
        """All is done."""
        self.written(f"ends after {self._seconds:.1f} s with exit code 0")
        if self.json:
            self.emit("result", command=command, seconds=round(self._seconds, 3), **self.found)

    def emit(self, event: str, **fields: Any) -> None:
        """A line for machines."""
        self._lines().write({"event": event, **fields})

    def written(self, line: str) -> None:
        """A line of the log; a log that cannot be written ends nothing."""
        if self.log is None or self._log_works is False or not line.strip():
            return
        moment = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        try:
            if self._log_works is None:  # an error came before the command could begin
                self._log_works = False
                _check_log(self.log)
                self._log_works = True
            with self.log.open("a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(f"{moment} {_on_one_line(redacted(line))}\n")
        except InputError:
            return
        except OSError as error:
            self._log_works = False
            self.note(f"the log {self.log} cannot be written any more: {error.strerror}")

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self.began

    def _lines(self) -> Any:
        from gmkcf_dask.listeners import JsonLines

        return JsonLines(self._stdout or sys.stdout)


@dataclass(frozen=True)
class Watcher:
    """A listener made of several, which draw until it is closed."""

    heard: Sequence[Any]

    def __call__(self, event: Event) -> None:
        for listener in self.heard:
            listener(event)

    def close(self) -> None:
        """No more events for now: lines that are being drawn end."""
        for listener in self.heard:
            listener.close()


class _Logged:
    """A listener that writes stages and iterations as sentences."""

    def __init__(self, write: Callable[[str], None]) -> None:
        from gmkcf_dask.stages import Stages

        self._write = write
        self._stages = Stages(time.monotonic())
        self._counted = -math.inf

    def __call__(self, event: Event) -> None:
        from gmkcf_dask.stages import counted

        now = time.monotonic()
        before = self._stages.current
        self._say_ended(self._stages.hear(event, now))
        stage = self._stages.current
        assert stage is not None
        if before is None or before.began != stage.began:
            self._write(f"{in_words(stage.name)}: begins")
            self._counted = now
        if isinstance(event, IterationDone):
            weights = " ".join(f"{weight:.4f}" for weight in event.weights)
            run = f"run {event.restart + 1}/{event.n_restarts}, " if event.n_restarts > 1 else ""
            self._write(
                f"{in_words(stage.name)}: {run}iteration {event.iteration}, objective "
                f"{event.objective:.8g}, change {event.change:.2e}, weights {weights}"
            )
        elif isinstance(event, StageProgress) and now - self._counted >= _SECONDS_BETWEEN_COUNTS:
            self._counted = now
            self._write(f"{in_words(stage.name)}: {counted(event)}")

    def close(self) -> None:
        self._say_ended(self._stages.end())

    def _say_ended(self, stage: Any) -> None:
        if stage is not None:
            self._write(f"{in_words(stage.name)}: {stage.sentence()}")


class _Copied(io.TextIOBase):
    """Standard output as long as a command speaks: shown or not, and written line by line."""

    encoding = "utf-8"

    def __init__(self, shown: TextIO | None, write: Callable[[str], None]) -> None:
        super().__init__()
        self._shown, self._write, self._rest = shown, write, ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if self._shown is not None:
            self._shown.write(text)
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._write(line)
        return len(text)

    def flush(self) -> None:
        if self._shown is not None and not self._shown.closed:
            self._shown.flush()


class Patient(io.TextIOBase):
    """A stream that falls silent, and ends nothing, when whoever read it has gone."""

    def __init__(self, shown: TextIO) -> None:
        super().__init__()
        self._shown = shown

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._shown.encoding or "utf-8"

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return self._shown.isatty()

    def fileno(self) -> int:
        return self._shown.fileno()

    def write(self, text: str) -> int:
        with self._or_silence():
            self._shown.write(text)
        return len(text)

    def flush(self) -> None:
        if self._shown.closed:  # Python flushes once more when this is thrown away
            return
        with self._or_silence():
            self._shown.flush()

    @contextmanager
    def _or_silence(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            # what waits to be written, now and when Python ends, goes nowhere
            with suppress(OSError, ValueError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, self._shown.fileno())
                os.close(nowhere)


def _check_log(log: Path) -> None:
    """Refuse what is no file or cannot be one: a pipe would wait for a reader for ever."""
    try:
        if log.exists() and not log.is_file():
            raise InputError(f"{log} is no file: choose another path for --log")
        log.parent.mkdir(parents=True, exist_ok=True)
        log.open("a").close()
    except OSError as error:
        raise InputError(
            f"cannot write the log {log} ({error.strerror}): choose another path for --log"
        ) from error


def _to_stderr(text: str) -> None:
    click.echo(text, err=True)


def _on_one_line(text: str) -> str:
    """Nothing that moves a terminal or passes for another line."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
