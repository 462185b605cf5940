"""Commands about a store as such: show, verify and repair it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from gmkcf_dask.cli.commands import main
from gmkcf_dask.cli.options import Location, cluster_options, force_option, start_cluster
from gmkcf_dask.cli.output import add_note, add_result, echo, output_options
from gmkcf_dask.cli.progress import show_progress
from gmkcf_dask.errors import DamagedStoreError

store_argument = click.argument("store", type=Location())


@main.command()
@store_argument
@output_options
def info(store: Path) -> None:
    """Show what is in a STORE: samples, kernels, sizes, state, versions, who writes into it."""
    from gmkcf_dask.store.describe import describe
    from gmkcf_dask.store.manifest import Manifest

    lines, found = describe(store), Manifest.read(store)
    add_result(
        store=store,
        n_samples=found.n_samples,
        n_features=found.n_features,
        precision=found.precision,
        complete=found.complete,
        kernels=list(found.names),
    )
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
    from gmkcf_dask.store.verify import find_damage, open_unchecked

    opened = open_unchecked(store)
    with start_cluster(opened.n_samples, options) as resources, show_progress() as listen:
        damage = find_damage(opened, resources.runner, listen)
    add_result(store=store, damaged=damage.lines(opened.manifest))
    for line in damage.lines(opened.manifest):
        click.echo(line)
    if damage:
        raise DamagedStoreError(
            f"{len(damage.lines(opened.manifest))} parts of {store} are damaged: repair them with "
            f"{damage.command(store)}"
        )
    kernels = len(set(opened.manifest.stored))
    tiles = opened.tiling.n_tiles
    echo(f"{store}: no damage found in {kernels} kernels with {tiles:,} tiles each")


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
    with (
        start_cluster(opened.n_samples, options) as resources,
        show_progress() as listen,
    ):
        done = repair_store(store, resources.runner, listen, force=force)
    lines = done.lines
    add_result(store=store, mended=lines, left=done.left)
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
