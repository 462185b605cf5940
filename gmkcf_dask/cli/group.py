"""What all commands of `gmkcf` have in common: how they end, and what is said then."""

from __future__ import annotations

import io
import shlex
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from typing import Any, NoReturn

import click

from gmkcf_dask.cli.signals import signals_interrupt
from gmkcf_dask.cli.voice import Patient, Voice
from gmkcf_dask.errors import GmkcfError
from gmkcf_dask.redact import redacted, without_user_info


@dataclass
class Told:
    """The arguments of a command, whether it left a checkpoint to go on from, and how it speaks."""

    arguments: list[str]
    resumable: bool = False
    voice: Voice = field(default_factory=Voice)

    def anew(self) -> str:
        """The command that gives the same results again, in the folder where they are now."""
        words = _without_watching(self.arguments)
        words = [word for word in words if word not in ("--overwrite", "--resume")]
        words[1:1] = ["--overwrite"] if "--" in words else []
        if "--overwrite" not in words:
            words.append("--overwrite")
        return without_user_info(shlex.join(["gmkcf", *words]))

    def again(self) -> str:
        """The command that goes on."""
        words = list(self.arguments)
        if self.resumable:
            words = [word for word in words if word not in ("--overwrite", "--resume")]
            words.append("--resume")
        return without_user_info(shlex.join(["gmkcf", *words]))


def _without_watching(words: list[str]) -> list[str]:
    """Arguments without those that change nothing but what is said."""
    kept: list[str] = []
    given = iter(words)
    for word in given:
        if word == "--log":
            next(given, None)  # its file
        elif word not in ("--quiet", "--json") and not word.startswith("--log="):
            kept.append(word)
    return kept


class Group(click.Group):
    """Turns our errors into one sentence on standard error and an exit code."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.obj = Told(list(args))
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        if isinstance(sys.stdout, io.TextIOWrapper):
            # names of files may be text in no encoding; not to be able to print one is no failure
            sys.stdout.reconfigure(errors="backslashreplace")
        # who reads our output may go, as `head` does: the work is done all the same
        with redirect_stdout(Patient(sys.stdout)), redirect_stderr(Patient(sys.stderr)):
            return self._invoke(ctx)

    def _invoke(self, ctx: click.Context) -> Any:
        try:
            with signals_interrupt():
                return super().invoke(ctx)
        except GmkcfError as error:
            _end(ctx, f"error: {error}", error.exit_code)
        except KeyboardInterrupt as error:
            said = "interrupted: a store that was begun is kept"
            if ctx.obj.resumable:
                said = "interrupted: the last iteration that was complete is kept"
            _end(ctx, said, getattr(error, "exit_code", 130))
        except OSError as error:  # disk full, a vanished path: the system's own words
            _end(ctx, f"error: {redacted(str(error))}", GmkcfError.exit_code)
        except click.ClickException as error:  # an option may be wrong before --json is read
            ctx.obj.voice.json = ctx.obj.voice.json or "--json" in ctx.obj.arguments
            if not ctx.obj.voice.json:
                raise
            _end(ctx, f"error: {redacted(error.format_message())}", error.exit_code)
        except (click.Abort, click.exceptions.Exit):
            raise
        except Exception as error:  # of ours: Python says where, machines and the log that it was
            ctx.obj.voice.broken(f"{type(error).__name__}: {redacted(str(error))}")
            raise


def _end(ctx: click.Context, sentence: str, code: int) -> NoReturn:
    """Say what ended a command and, where it makes sense, how to go on."""
    goes_on = ctx.obj.resumable or code not in (2, 3, 4, 6)
    ctx.obj.voice.end(sentence, code, ctx.obj.again() if goes_on else None)
    sys.exit(code)
