"""The group of all `gmkcf` commands: turn errors into messages and exit codes."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass, field
from typing import Any, NoReturn

import click

from gmkcf_dask.cli.output import Output
from gmkcf_dask.cli.signals import signals_interrupt
from gmkcf_dask.errors import (
    CheckpointError,
    DiskFullError,
    GmkcfError,
    redacted,
    visible,
    without_user_info,
)
from gmkcf_dask.system.disk_space import typed_error
from gmkcf_dask.system.retry import is_full

_NO_RESUME = (2, 3, 4, 6)
"""Exit codes of errors that the same command would meet again."""


@dataclass
class Invocation:
    """One call of `gmkcf`: its arguments, its output, and whether it left a checkpoint."""

    arguments: list[str]
    resumable: bool = False
    output: Output = field(default_factory=Output)

    def rerun_command(self) -> str:
        """The command that computes the same results again, into the same folder."""
        words: list[str] = []
        arguments = iter(self.arguments)
        for word in arguments:
            if word == "--log":
                next(arguments, None)  # its file
            elif word not in ("--quiet", "--json") and not word.startswith("--log="):
                words.append(word)
        words = _without_start_options(words)
        words.insert(1 if "--" in words else len(words), "--overwrite")
        return _as_text(words)

    def resume_command(self) -> str:
        """The command that resumes this one."""
        if not self.resumable:
            return _as_text(self.arguments)
        return _as_text([*_without_start_options(self.arguments), "--resume"])


def _without_start_options(words: list[str]) -> list[str]:
    return [word for word in words if word not in ("--overwrite", "--resume")]


def _as_text(words: list[str]) -> str:
    return without_user_info(shlex.join(["gmkcf", *words]))


class Group(click.Group):
    """Ends a command that fails with one message on standard error and an exit code."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.obj = Invocation(list(args))
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        with ctx.obj.output.safe_streams():
            return self._invoke(ctx)

    def _invoke(self, ctx: click.Context) -> Any:
        resumable_code = CheckpointError.exit_code
        try:
            with signals_interrupt():
                return super().invoke(ctx)
        except GmkcfError as error:
            full = isinstance(error, DiskFullError) and ctx.obj.resumable
            _exit(ctx, f"error: {error}", resumable_code if full else error.exit_code)
        except KeyboardInterrupt as error:
            kept = "the last complete iteration" if ctx.obj.resumable else "the store, if started,"
            _exit(ctx, f"interrupted: {kept} is kept", getattr(error, "exit_code", 130))
        except OSError as error:
            known = typed_error(error)
            code = GmkcfError.exit_code if known is None else known.exit_code
            if ctx.obj.resumable and is_full(error):
                code = resumable_code
            _exit(ctx, f"error: {redacted(str(known or error))}", code)
        except click.ClickException as error:
            vars(error).update(message=visible(error.message, keep="\n"))
            # the error may come before --json is parsed
            if not (ctx.obj.output.json or "--json" in ctx.obj.arguments):
                raise
            ctx.obj.output.json = True
            _exit(ctx, f"error: {redacted(error.format_message())}", error.exit_code)
        except (click.Abort, click.exceptions.Exit):
            raise
        except Exception as error:
            message = f"error: {type(error).__name__}: {redacted(str(error))}"
            ctx.obj.output.fail(message, 1, traceback=True)
            raise


def _exit(ctx: click.Context, message: str, code: int) -> NoReturn:
    """Report an error, with the command that resumes if one can, and exit."""
    can_resume = ctx.obj.resumable or code not in _NO_RESUME
    ctx.obj.output.fail(message, code, ctx.obj.resume_command() if can_resume else None)
    sys.exit(code)
