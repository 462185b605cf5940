"""What all commands of `gmkcf` have in common: how they end, and what is said then."""

from __future__ import annotations

import io
import shlex
import sys
from dataclasses import dataclass
from typing import Any, NoReturn

import click

from gmkcf_dask.cli.signals import signals_interrupt
from gmkcf_dask.errors import GmkcfError
from gmkcf_dask.redact import redacted, without_user_info


@dataclass
class Told:
    """The arguments of a command, and whether it left a checkpoint to go on from."""

    arguments: list[str]
    resumable: bool = False

    def again(self) -> str:
        """The command that goes on."""
        words = list(self.arguments)
        if self.resumable:
            words = [word for word in words if word not in ("--overwrite", "--resume")]
            words.append("--resume")
        return without_user_info(shlex.join(["gmkcf", *words]))


class Group(click.Group):
    """Turns our errors into one sentence on standard error and an exit code."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.obj = Told(list(args))
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        if isinstance(sys.stdout, io.TextIOWrapper):
            # names of files may be text in no encoding; not to be able to print one is no failure
            sys.stdout.reconfigure(errors="backslashreplace")
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


def _end(ctx: click.Context, sentence: str, code: int) -> NoReturn:
    """Say what ended a command and, where it makes sense, how to go on."""
    click.echo(sentence, err=True)
    if ctx.obj.resumable or code not in (2, 3, 4, 6):
        click.echo(f"to go on: {ctx.obj.again()}", err=True)
    sys.exit(code)
