"""Commands that show, verify and repair a store, and examine the workers of a cluster."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from gmkcf_dask.cli.commands import main
from gmkcf_dask.cli.options import COUNT, Location, cluster_options, force_option, start_cluster
from gmkcf_dask.cli.output import add_note, add_result, echo, output_options
from gmkcf_dask.cli.progress import show_progress
from gmkcf_dask.errors import ClusterError, DamagedStoreError
from gmkcf_dask.store.files import absolute

store_argument = click.argument("store", type=Location())


@main.command()
@store_argument
@output_options
def info(store: Path) -> None:
    """Show what is in a STORE: samples, kernels, sizes, state, versions, who writes into it."""
    from gmkcf_dask.store.describe import describe_store
    from gmkcf_dask.store.manifest import Manifest

    lines, manifest = describe_store(store), Manifest.read(store)
    fields = ("n_samples", "n_features", "precision", "complete")
    add_result(store=store, **{name: getattr(manifest, name) for name in fields})
    add_result(kernels=list(manifest.kernel_names))
    if manifest.kernels:
        add_result(layout="each" if manifest.gram is None else "gram")
    for line in lines:
        click.echo(line)


@main.command()
@store_argument
@cluster_options
@output_options
def verify(store: Path, **options: Any) -> None:
    """Read all of a STORE and list everything that is damaged.

    Exit code 0 if nothing is damaged, 4 otherwise.
    """
    from gmkcf_dask.store.describe import tiles_in_words
    from gmkcf_dask.store.verify import find_damage, open_unchecked

    opened = open_unchecked(store)
    with start_cluster(opened.n_samples, options) as resources, show_progress() as listen:
        damage = find_damage(opened, resources.runner, listen)
    lines = damage.lines(opened.manifest)
    add_result(store=store, damaged=lines)
    for line in lines:
        click.echo(line)
    if damage:
        raise DamagedStoreError(
            f"{len(lines)} parts of {store} are damaged: repair them with {damage.command(store)}"
        )
    m = opened.manifest
    parts = [tiles_in_words(m)] if m.kernels else []
    parts += [f"{len(m.factored)} factored kernels"] if m.factored else []
    echo(f"{store}: no damage found in {' and '.join(parts)}")


@main.command()
@store_argument
@force_option
@cluster_options
@output_options
def repair(store: Path, force: bool, **options: Any) -> None:
    """Recompute exactly what is damaged in a STORE from the features inside it.

    Exit code 0 if everything is repaired, 4 if damage is left.
    """
    from gmkcf_dask.store.repair import repair_store
    from gmkcf_dask.store.verify import open_unchecked

    opened = open_unchecked(store)
    with start_cluster(opened.n_samples, options) as resources, show_progress() as listen:
        done = repair_store(store, resources.runner, listen, force=force)
    lines = done.lines
    add_result(store=store, repaired=lines, left=done.left)
    for line in lines:
        click.echo(f"found: {line}")
    if done.changed:
        add_note(
            f"{done.changed} tiles were computed again and differ in the last bits: other "
            "versions or processors round differently"
        )
    if done.left:
        raise DamagedStoreError(f"{store} is still damaged: {'; '.join(done.left)}")
    echo(f"{store}: {len(lines)} parts repaired" if lines else f"{store}: nothing to repair")


@main.command()
@click.argument("store", required=False, type=Location())
@click.option(
    "--samples",
    type=COUNT,
    help="Rows of the array that is sent to each worker and back.  [default: as the store has, or "
    "10,000]",
)
@click.option("-k", "--clusters", "n_clusters", type=COUNT, default=10)
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
    lines = examination.report_lines(patients, shape)
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
