"""Commands that explain a run to its reader."""

from __future__ import annotations

from pathlib import Path

import click

from gmkcf_dask.cli.commands import main
from gmkcf_dask.cli.options import Location
from gmkcf_dask.cli.watching import showing_notes, tell, watch_options, watching
from gmkcf_dask.errors import InputError
from gmkcf_dask.plan import human_bytes


@main.command()
@click.argument("run_folder", metavar="RUN", type=Location())
@click.option(
    "--out", type=Location(), help="File to write, path or URL.  [default: RUN/report.html]"
)
@watch_options
def report(run_folder: Path, out: Path | None) -> None:
    """Write the report of a finished RUN: one page for any browser that needs nothing else.

    It is made from RUN/insight.json alone, in a moment and in this process; where a run was broken
    off before that was written, it is worked out again from the store.
    """
    from gmkcf_dask.cluster import threads
    from gmkcf_dask.files import exists, size_of
    from gmkcf_dask.locations import is_remote
    from gmkcf_dask.results.report import read_insight, write_report
    from gmkcf_dask.results.run import INSIGHT, REPORT, RESULT, write_insight
    from gmkcf_dask.workflow import explain_again

    path = out if out is not None else run_folder / REPORT
    if not is_remote(path) and path.is_dir():
        raise InputError(f"{path} is a folder: give a file to write, such as {path / REPORT}")
    if exists(run_folder / RESULT) and not exists(run_folder / INSIGHT):
        with showing_notes(), watching("overview") as listen:
            insight = explain_again(run_folder, threads(), listen)
        write_insight(run_folder, insight)
    else:
        insight = read_insight(run_folder)
    write_report(path.parent, insight, path.name)
    tell(out=path)
    click.echo(f"{path}: {human_bytes(size_of(path))}, open it in a browser")
