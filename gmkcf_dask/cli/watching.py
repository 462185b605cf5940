"""How to watch a command: `--quiet`, `--json`, `--log`, and the line of progress.

A command gets all of it with two lines::

    @cluster_options
    @watch_options                       # below the other options
    def predict(...):
        with watching("reading", "predict") as listen:   # the stages to come, in order
            work(listen)

Text goes out with `click.echo` as ever: it is left out, or copied into the log, as asked. A note is
said with `note`, and `tell` adds names and values to the last line of `--json`.
"""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from gmkcf_dask.cli.voice import Voice, Watcher
from gmkcf_dask.events import Listener, StageProgress

_F = TypeVar("_F", bound=Callable[..., Any])


def watch_options(command: _F) -> _F:
    """Options of how to watch; the command itself does not see them."""

    @wraps(command)
    def watched(*args: Any, **options: Any) -> Any:
        context = click.get_current_context()
        arguments = getattr(context.find_root().obj, "arguments", [])
        voice = the_voice()
        with voice.speaking(shlex.join(["gmkcf", *arguments])):
            found = command(*args, **options)
        voice.finish(context.info_name or "")
        return found

    for option in reversed(_OPTIONS):
        watched = option(watched)
    return cast(_F, watched)


def _set(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    if value:
        setattr(the_voice(ctx), str(param.name), value)


_OPTIONS = (
    click.option(
        "--quiet",
        is_flag=True,
        expose_value=False,
        callback=_set,
        help="Say nothing but notes and errors: no progress, no report.",
    ),
    click.option(
        "--json",
        is_flag=True,
        expose_value=False,
        callback=_set,
        help="Lines for machines instead of text: a JSON object on standard output for every "
        'event and note, at the end one whose "event" is "result" or "error".',
    ),
    click.option(
        "--log",
        metavar="FILE",
        type=click.Path(path_type=Path),
        expose_value=False,
        callback=_set,
        help="Append everything that happens and is said to this file, with the time.  [default: "
        "none]",
    ),
)


def the_voice(context: click.Context | None = None) -> Voice:
    """The voice of the command that is running."""
    told = (context or click.get_current_context()).find_root().obj
    voice = getattr(told, "voice", None)
    return voice if isinstance(voice, Voice) else Voice()


@contextmanager
def watching(*stages: str) -> Iterator[Watcher]:
    """A listener for work: progress on the terminal, lines for machines and the log.

    Parameters
    ----------
    *stages : str
        All stages of the command, in order; those of the first call count.
    """
    watcher = the_voice().listener(stages)
    try:
        yield watcher
    finally:
        watcher.close()


def note(sentence: str) -> None:
    """Something worth knowing, on standard error."""
    the_voice().note(sentence)


def tell(**fields: Any) -> None:
    """What `--json` says at the end."""
    the_voice().found.update(fields)


@contextmanager
def showing_notes() -> Iterator[None]:
    """Warnings as one sentence each, without the source line Python prints."""
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        yield
    for warning in raised:
        note(str(warning.message))


def reading(read: Callable[[Listener], Any], *stages: str) -> Any:
    """Read the input as the first of some stages; what is read says how many samples it has."""
    with watching(*stages) as listen:
        listen(StageProgress("reading", 0, -1, unit="samples"))
        found = read(listen)
        listen(StageProgress("reading", found.n_samples, found.n_samples, unit="samples"))
    return found
