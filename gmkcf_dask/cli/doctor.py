"""`gmkcf doctor`: connect, ask every worker, say what is wrong and how to fix it."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from gmkcf_dask.cli.commands import main
from gmkcf_dask.cli.options import Location, cluster_options, start_cluster
from gmkcf_dask.cli.output import add_result, output_options
from gmkcf_dask.errors import ClusterError
from gmkcf_dask.store.files import absolute


@main.command()
@click.argument("store", required=False, type=Location())
@click.option(
    "--samples",
    type=click.IntRange(min=1),
    help="Rows of the array that is sent to each worker and back.  [default: as the store has, or "
    "10,000]",
)
@click.option("-k", "--clusters", "n_clusters", type=click.IntRange(min=1), default=10)
@cluster_options
@output_options
def doctor(store: Path | None, samples: int | None, n_clusters: int, **options: Any) -> None:
    """Connect to a cluster and show every worker: versions, memory, settings, disk, speed.

    STORE is a store, or a path or URL where one shall be: each worker then tells whether it sees
    it, may write there, and how fast it reads. Exit code 0 where nothing is wrong, 2 where a run
    would fail.
    """
    from gmkcf_dask.cluster import doctor as examination
    from gmkcf_dask.store.manifest import Manifest

    with ExitStack() as stack:
        place, rows = None, samples or 10_000
        if store is not None:
            place = stack.enter_context(examination.place_of(absolute(store)))
            if place.store_id is not None and samples is None:
                rows = Manifest.read(store).n_samples
        shape = (rows, n_clusters)
        resources = stack.enter_context(start_cluster(rows, options, unchecked=True))
        click.echo(f"{resources.description}")
        if place is not None and place.store_id is None:
            click.echo(f"there is no store yet: it would be made in {Path(place.probe).parent}")
        client = resources.runner.client
        patients = (
            examination.examine_here(place, resources.threads_per_worker)
            if client is None
            else examination.examine_cluster(client, place, shape)
        )
    lines = examination.report(patients, shape)
    add_result(workers=len(patients), report=list(lines))
    for line in lines:
        click.echo(line)
    ill = [patient for patient in patients if patient.problems]
    if ill:
        raise ClusterError(
            f"{len(ill)} of {len(patients)} workers would fail in a run: fix what is marked WRONG "
            "above"
        )
    click.echo("all is well")
