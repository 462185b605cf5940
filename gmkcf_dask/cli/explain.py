"""Commands that explain a run to its reader."""

from __future__ import annotations

from pathlib import Path

import click

from gmkcf_dask.cli.commands import main
from gmkcf_dask.cli.options import Location
from gmkcf_dask.cli.output import add_result, echo, output_options
from gmkcf_dask.cli.progress import show_progress
from gmkcf_dask.errors import InputError
from gmkcf_dask.system.units import human_bytes


@main.command()
@click.argument("run_folder", metavar="RUN", type=Location())
@click.option(
    "--out", type=Location(), help="File to write, path or URL.  [default: RUN/report.html]"
)
@output_options
def report(run_folder: Path, out: Path | None) -> None:
    """Write the report of a finished RUN as one self-contained HTML page.

    It is made from RUN/insight.json. If the run was interrupted before that file was written, it is
    computed again from the store.
    """
    from gmkcf_dask.cluster import threads
    from gmkcf_dask.pipeline.run import explain_again
    from gmkcf_dask.results.report.render import write_report
    from gmkcf_dask.results.run_folder import INSIGHT, REPORT, RESULT, read_insight, write_insight
    from gmkcf_dask.store.files import exists, size_of
    from gmkcf_dask.store.object_storage import is_remote

    path = out if out is not None else run_folder / REPORT
    if not is_remote(path) and path.is_dir():
        raise InputError(f"{path} is a folder: give a file to write, such as {path / REPORT}")
    if exists(run_folder / RESULT) and not exists(run_folder / INSIGHT):
        with show_progress("overview") as listen:
            insight = explain_again(run_folder, threads(), listen)
        write_insight(run_folder, insight)
    else:
        insight = read_insight(run_folder)
    write_report(path.parent, insight, path.name)
    add_result(out=path)
    echo(f"{path}: {human_bytes(size_of(path))}. Open it in a browser.")
