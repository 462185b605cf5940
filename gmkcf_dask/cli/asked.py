"""What the options of a fit ask for, checked before any work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gmkcf_dask.cli.watching import tell
from gmkcf_dask.errors import InputError


def resumes(method: Any, options: dict[str, Any], *, overwrite: bool) -> bool:
    """Whether to go on; refused where a method keeps no checkpoints but an interval is given."""
    resume: bool = options["resume"]
    if resume and overwrite:
        raise InputError("--resume goes on with a run and --overwrite drops it: choose one")
    if method.run_type is None and options["checkpoint_every"] is not None:
        raise InputError(
            f"{method.name} is short and keeps no checkpoints: leave --checkpoint-every out"
        )
    return resume


def is_done(
    out: Path, store: Any, method: Any, kernels: list[str], options: dict[str, Any]
) -> bool:
    """Whether there is nothing to go on with, which is said."""
    from gmkcf_dask.workflow import is_finished

    finished = is_finished(out, store, method, seed=options["seed"], kernels=kernels)
    if finished:
        click.echo(f"this run is finished: {out} holds its results, nothing was done")
        tell(out=out, finished_before=True)
    return finished


def kernels_asked(asked: str | None, method: Any, names: tuple[str, ...]) -> list[str]:
    """The kernels to run on: one, every one of them, or (methods of many kernels) no matter."""
    from gmkcf_dask.methods.base import MEAN, SingleKernelMethod

    if not isinstance(method, SingleKernelMethod):
        if asked is not None:
            raise InputError(f"{method.name} uses all kernels: leave --kernel out")
        return [MEAN]
    if asked == "all":
        return list(names)
    if asked not in (None, MEAN, *names):
        raise InputError(
            f"there is no kernel {asked!r} here: choose mean, all, or one of {', '.join(names)}"
        )
    return [asked or MEAN]
