"""Commands that explain a run to its reader."""

from __future__ import annotations

from pathlib import Path

import click

from gmkcf_dask.cli.commands import main
from gmkcf_dask.cli.options import Location
from gmkcf_dask.errors import InputError
from gmkcf_dask.plan import human_bytes


@main.command()
@click.argument("run_folder", metavar="RUN", type=Location())
@click.option(
    "--out", type=Location(), help="File to write, path or URL.  [default: RUN/report.html]"
)
def report(run_folder: Path, out: Path | None) -> None:
    """Write the report of a finished RUN: one page for any browser that needs nothing else.

    It is made from RUN/insight.json alone, in a moment and in this process.
    """
    from gmkcf_dask.files import size_of
    from gmkcf_dask.locations import is_remote
    from gmkcf_dask.results.report import read_insight, write_report
    from gmkcf_dask.results.run import REPORT

    path = out if out is not None else run_folder / REPORT
    if not is_remote(path) and path.is_dir():
        raise InputError(f"{path} is a folder: give a file to write, such as {path / REPORT}")
    write_report(path.parent, read_insight(run_folder), path.name)
    click.echo(f"{path}: {human_bytes(size_of(path))}, open it in a browser")
