"""The command that sends new samples to the clusters of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gmkcf_dask.cli.commands import main
from gmkcf_dask.cli.options import Location, cluster_options, raw_ids_option, start_cluster
from gmkcf_dask.cli.output import add_result, echo, output_options
from gmkcf_dask.cli.progress import show_progress
from gmkcf_dask.cli.reading import reading_runner
from gmkcf_dask.cli.report import printable


@main.command()
@click.argument("run_folder", metavar="RUN", type=Location())
@click.argument("new", metavar="NEW")
@click.option("--out", type=Location(), required=True, help="CSV file for id,label,sure.")
@click.option("--overwrite", is_flag=True, help="Replace the file that is there.")
@raw_ids_option
@click.option("--text-column", help="Tables: the column with the text.  [default: as for RUN]")
@click.option("--id-column", help="Tables: sample ids.  [default: as for RUN]")
@click.option("--encoding", help="Of text files, such as cp1252, or auto.  [default: as for RUN]")
@cluster_options
@output_options
def predict(
    run_folder: Path, new: str, out: Path, overwrite: bool, raw_ids: bool, **options: Any
) -> None:
    """Send NEW samples to the clusters of a RUN, or of a model that was saved.

    NEW is of any kind that INPUT can be: a matrix with the columns that the run's input had, or
    texts, which are read with the vocabulary of the run. Their kernels with the run's samples come
    from the features in its store. Written is how clearly each sample belongs to its cluster, too:
    1 in its centre, 0 half way to another.
    """
    from gmkcf_dask.pipeline.predict_file import FileForm, check_out, place_newcomers

    check_out(out, overwrite=overwrite)
    form = FileForm(options["text_column"], options["id_column"], options["encoding"])

    def place(n_samples: int) -> Any:
        return start_cluster(n_samples, options)

    def readers() -> Any:
        return reading_runner(new, options)

    with show_progress("reading", "predict") as listen:
        found = place_newcomers(run_folder, new, out, form, place, listen, readers, raw_ids=raw_ids)
    total = sum(one.size for one in found)
    add_result(
        out=out,
        n_samples=total,
        sizes={str(one.label): one.size for one in found},
        names={str(one.label): one.name for one in found if one.name},
    )
    echo(f"{out}: {total:,} samples in {len(found)} clusters")
    for one in found:
        click.echo(f"  {one.label:>3}  {one.size:>7,}  {printable(one.name)}".rstrip())
