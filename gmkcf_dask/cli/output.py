"""Output of a command: text for people, JSON lines for programs, and a log file.

Commands print with `echo` or `click.echo`: `--quiet` and `--json` mute that, `--log` copies it.
Notes go to standard error; results are the last line of `--json`.
"""

from __future__ import annotations

import io
import logging
import os
import shlex
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial, wraps
from pathlib import Path
from typing import Any, TextIO, TypeVar, cast

import click

from gmkcf_dask.errors import InputError, redacted, visible

_Command = TypeVar("_Command", bound=Callable[..., Any])
_HIDDEN_WARNINGS = (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning)


@dataclass
class Output:
    """Output streams of one command."""

    quiet: bool = False  # only notes and errors
    json: bool = False  # JSON lines instead of text
    stages: tuple[str, ...] = ()  # of the whole command, in order
    results: dict[str, Any] = field(default_factory=dict)  # for the last JSON line
    notes: list[str] = field(default_factory=list)  # all so far
    display: Any = None  # the `Progress` that is shown
    _stdout: TextIO = field(default_factory=lambda: sys.stdout)
    _logger: logging.Logger = field(default_factory=lambda: logging.Logger("gmkcf"))
    _start: float = field(default_factory=time.monotonic)

    @contextmanager
    def safe_streams(self) -> Iterator[None]:
        """Let the work continue if a reader closes its pipe, as `head` does; close the log."""
        if isinstance(sys.stdout, io.TextIOWrapper):
            # file names may not be valid text: print them anyway
            sys.stdout.reconfigure(errors="backslashreplace")
        self._stdout = cast(TextIO, _SafeStream(sys.stdout, keep="\n\t"))
        stderr = cast(TextIO, _SafeStream(sys.stderr))
        try:
            with redirect_stdout(self._stdout), redirect_stderr(stderr):
                yield
        finally:
            for handler in self._logger.handlers:
                with suppress(OSError):
                    handler.close()

    @contextmanager
    def command(self, arguments: list[str]) -> Iterator[None]:
        """Send text and warnings of a command to where the options want them."""
        if self.quiet and self.json:
            raise InputError("--json replaces all text: remove --quiet")
        self.log(f"begins: {redacted(shlex.join(['gmkcf', *arguments]))}")
        stdout = _Tee(self._stdout, self.log, muted=self.quiet or self.json)
        with redirect_stdout(cast(TextIO, stdout)), warnings.catch_warnings():
            warnings.simplefilter("always")
            for category in _HIDDEN_WARNINGS:
                warnings.simplefilter("ignore", category)
            # not by `add_note`: other threads have no click context
            warnings.showwarning = lambda message, *_, **__: self.note(str(message))
            yield

    def open_log(self, path: Path) -> None:
        """Append everything to a file from now on."""
        try:
            if path.exists() and not path.is_file():  # opening a pipe would wait for a reader
                raise InputError(f"{path} is not a file: choose another path for --log")
            path.parent.mkdir(parents=True, exist_ok=True)
            self._logger.addHandler(_LogFile(path, self))
        except OSError as error:
            raise InputError(
                f"cannot write the log {path} ({error.strerror}): choose another path for --log"
            ) from error

    def log(self, line: str) -> None:
        """Write a line to the log only."""
        if line.strip():
            self._logger.info(line)

    def note(self, text: str) -> None:
        """Show a note on standard error, once."""
        if text in self.notes:
            return
        self.notes.append(text)
        self.log(f"note: {text}")
        if self.json:
            self.emit("note", message=text)
        else:
            self._print_stderr(f"note: {text}")

    def tell(self, text: str) -> None:
        """Show a line of an event, which listeners show themselves; results do not keep it."""
        self.log(f"note: {text}")
        if self.display is None and not (self.quiet or self.json):
            self._print_stderr(f"note: {text}")

    def answer(self, text: str) -> None:
        """Print the one result that `--quiet` does not mute."""
        if self.quiet:
            self._stdout.write(f"{text}\n")

    def fail(
        self, message: str, exit_code: int, resume: str | None = None, *, traceback: bool = False
    ) -> None:
        """Report what ended the command, and the command that resumes it.

        Python itself prints an error with a `traceback`.
        """
        lines = [message] if resume is None else [message, f"resume with: {resume}"]
        for line in lines:
            self.log(line)
        self.log(f"ends after {self._seconds:.1f} s with exit code {exit_code}")
        if self.json:
            fields = {} if resume is None else {"to_go_on": resume}
            message = message.removeprefix("error: ")
            self.emit("error", message=message, exit_code=exit_code, **fields)
        elif not traceback:
            for line in lines:
                self._print_stderr(line)

    def finish(self, command: str) -> None:
        """Report success."""
        self.log(f"ends after {self._seconds:.1f} s with exit code 0")
        if self.json:
            self.emit("result", command=command, seconds=round(self._seconds, 3), **self.results)

    def end_stage(self) -> None:
        """Finish the live line, so that other text can follow."""
        if self.display is not None:
            self.display.close()

    def emit(self, event: str, **fields: Any) -> None:
        """Write a JSON line."""
        self.json_lines().write({"event": event, **fields})

    def json_lines(self) -> Any:
        """A listener that writes JSON lines to standard output."""
        from gmkcf_dask.events.listeners import JsonLines

        return JsonLines(self._stdout)

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self._start

    def _print_stderr(self, line: str) -> None:
        """Print one line; nothing in it moves the cursor or looks like another line."""
        if self.display is None:
            click.echo(visible(line), err=True)
        else:
            self.display.print(visible(line))


class _LogFile(logging.FileHandler):
    """Log file with one line per record: time and message, without secrets."""

    def __init__(self, path: Path, output: Output) -> None:
        super().__init__(path, encoding="utf-8", errors="backslashreplace")
        self._output = output

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created).astimezone()
        message = visible(redacted(record.getMessage()))
        return f"{moment.isoformat(sep=' ', timespec='seconds')} {message}"

    def handleError(self, record: logging.LogRecord) -> None:
        """Continue without the log."""
        error = sys.exc_info()[1]
        self._output._logger.removeHandler(self)
        with suppress(OSError):
            self.close()
        self._output.note(f"cannot write the log {self.baseFilename} any more: {error}")


class _SafeStream:
    """A text stream that goes silent when its reader closes the pipe.

    Control characters are escaped except those in `keep`; without `keep` none are.
    """

    def __init__(self, stream: TextIO, keep: str | None = None) -> None:
        self._stream, self._keep = stream, keep

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        self._try(self._stream.write, text if self._keep is None else visible(text, self._keep))
        return len(text)

    def flush(self) -> None:
        self._try(self._stream.flush)

    def _try(self, method: Callable[..., object], *args: str) -> None:
        try:
            method(*args)
        except BrokenPipeError:
            with suppress(OSError, ValueError):  # also what Python flushes at its exit
                devnull = os.open(os.devnull, os.O_WRONLY)
                os.dup2(devnull, self._stream.fileno())
                os.close(devnull)


class _Tee(_SafeStream):
    """Standard output of a command: logged line by line, and shown unless muted."""

    def __init__(self, stream: TextIO, log: Callable[[str], None], *, muted: bool) -> None:
        super().__init__(stream)
        self._log, self._muted, self._line = log, muted, ""

    def write(self, text: str) -> int:
        if not self._muted:
            super().write(text)
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            self._log(line)
        return len(text)


def _set_option(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    output = getattr(context.find_root().obj, "output", None)
    if not value or output is None:  # `gmkcf submit` parses commands that it does not run
        return
    if parameter.name == "log":
        output.open_log(value)
    else:
        setattr(output, str(parameter.name), value)


_option = partial(click.option, is_eager=True, expose_value=False, callback=_set_option)
_OPTIONS = (
    _option("--quiet", is_flag=True, help="Print only notes and errors: no progress, no results."),
    _option(
        "--json",
        is_flag=True,
        help="Print JSON lines instead of text: one object on standard output for every event and "
        'note. The "event" of the last one is "result" or "error".',
    ),
    _option(
        "--log",
        metavar="FILE",
        type=click.Path(path_type=Path),
        help="Append all output and progress to this file, with the time.  [default: none]",
    ),
)


def output_options(command: _Command) -> _Command:
    """Add `--quiet`, `--json` and `--log` to a command, which does not see them."""

    @wraps(command)
    def wrapper(*args: Any, **options: Any) -> Any:
        context = click.get_current_context()
        output = current_output()
        with output.command(context.find_root().obj.arguments):
            result = command(*args, **options)
        output.finish(context.info_name or "")
        return result

    for option in reversed(_OPTIONS):
        wrapper = option(wrapper)
    return cast(_Command, wrapper)


def current_output() -> Output:
    """Output of the running command."""
    output: Output = click.get_current_context().find_root().obj.output
    return output


def add_note(text: str) -> None:
    """Show a note on standard error, once."""
    current_output().note(text)


def add_result(**fields: Any) -> None:
    """Add fields to the last line of `--json`."""
    current_output().results.update(fields)


def echo(line: str) -> None:
    """Print one line on standard output; names in it cannot start another line."""
    click.echo(visible(line))
