"""Commands about a finished run: score it, write its report, predict clusters of new samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gmkcf_dask.cli.commands import main
from gmkcf_dask.cli.options import (
    FactorFiles,
    Location,
    cluster_options,
    new_argument,
    raw_ids_option,
)
from gmkcf_dask.cli.output import add_result, echo, output_options
from gmkcf_dask.cli.progress import show_progress
from gmkcf_dask.cli.report import printable
from gmkcf_dask.errors import InputError
from gmkcf_dask.system.units import human_bytes

run_argument = click.argument("run_folder", metavar="RUN", type=Location())


@main.command()
@run_argument
@click.option(
    "--labels",
    type=Location(),
    help="CSV with the columns id,label.  [default: the labels that came with the corpus]",
)
@cluster_options
@output_options
def score(run_folder: Path, labels: Path | None, **options: Any) -> None:
    """Compare the clusters of a RUN with known labels: ACC, NMI, purity, ARI.

    Samples without a cluster (label -1) count as one cluster of their own; where there are any, the
    share of the others is printed as coverage.

    The cluster options are accepted but not used.
    """
    from gmkcf_dask.results.finished_run import store_of_run
    from gmkcf_dask.results.metrics import coverage, scores
    from gmkcf_dask.results.run_folder import labels_of_run, match_labels, read_labels, read_result

    result = read_result(run_folder)
    predicted = labels_of_run(run_folder, result)
    if labels is not None:
        known = read_labels(labels)
    else:
        store = store_of_run(result, run_folder)
        stored = store.strings("labels")
        if stored is None:
            raise InputError("the corpus came without labels: give them with --labels FILE")
        known = dict(zip(store.ids, stored, strict=True))
    measured = scores(*match_labels(predicted, known))
    covered = coverage(list(predicted.values()))
    add_result(run=run_folder, scores=measured, coverage=covered)
    for name, value in measured.items():
        click.echo(f"{name:<7}{value:.4f}")
    if covered < 1.0:
        click.echo(f"coverage {covered:.4f}: the share of samples that have a cluster")


@main.command()
@run_argument
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
    from gmkcf_dask.pipeline import explain_again
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


@main.command()
@run_argument
@new_argument
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

    Of a run on factors (--kernels factored) NEW is NAME=FILE for each of them. Else
    NEW is of any kind that INPUT can be: a matrix with the columns that the run's input had, or
    texts, which are read with the vocabulary of the run. Their kernels with the run's samples come
    from the features in its store. Written is how clearly each sample belongs to its cluster, too:
    1 in its centre, 0 half way to another. A sample without a direction, such as a text without
    usable words, has the label -1 and belongs to no cluster.
    """
    from gmkcf_dask.cli.cluster import CommandCluster
    from gmkcf_dask.methods.members import NO_CLUSTER
    from gmkcf_dask.pipeline.predict_file import FileForm, check_out, place_newcomers

    check_out(out, overwrite=overwrite)
    form = FileForm(options["text_column"], options["id_column"], options["encoding"])

    files = new.files if isinstance(new, FactorFiles) else new
    with CommandCluster(options) as cluster, show_progress("reading", "predict") as listen:
        clusters = place_newcomers(run_folder, files, out, form, cluster, listen, raw_ids=raw_ids)
    total = sum(one.size for one in clusters)
    gathered = [one for one in clusters if one.label != NO_CLUSTER]
    without = total - sum(one.size for one in gathered)
    add_result(
        out=out,
        n_samples=total,
        n_without_cluster=without,
        sizes={str(one.label): one.size for one in clusters},
        names={str(one.label): one.name for one in clusters if one.name},
    )
    rest = f", {without:,} in no cluster (label {NO_CLUSTER})" if without else ""
    echo(f"{out}: {total - without:,} samples in {len(gathered)} clusters{rest}")
    for one in gathered:
        click.echo(f"  {one.label:>3}  {one.size:>7,}  {printable(one.name)}".rstrip())
