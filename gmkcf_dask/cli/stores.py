"""Commands about a store as such: what is in it, whether it is whole, mending it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click

from gmkcf_dask.cli.commands import main
from gmkcf_dask.cli.options import Location, cluster_options, force_option, open_place
from gmkcf_dask.cli.watching import note, tell, watch_options, watching
from gmkcf_dask.errors import DamagedStoreError

store_argument = click.argument("store", type=Location())


@main.command()
@store_argument
@watch_options
def info(store: Path) -> None:
    """Show what is in a STORE: samples, kernels, sizes, state, versions, who writes into it."""
    from gmkcf_dask.kernels.describe import describe
    from gmkcf_dask.kernels.manifest import Manifest

    lines, found = describe(store), Manifest.read(store)
    tell(
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
@watch_options
def verify(store: Path, **options: Any) -> None:
    """Read all of a STORE and name everything that is not what was written.

    Exit code 0 where all is well, 4 where something is damaged.
    """
    from gmkcf_dask.kernels.check import find_damage, open_unchecked

    opened = open_unchecked(store)
    with open_place(opened.n_samples, options) as resources, watching() as listen:
        damage = find_damage(opened, resources.runner, listen)
    tell(store=store, damaged=damage.lines(opened.manifest))
    for line in damage.lines(opened.manifest):
        click.echo(line)
    if damage:
        raise DamagedStoreError(
            f"{len(damage.lines(opened.manifest))} parts of {store} are damaged: mend them with "
            f"gmkcf repair {shlex.quote(str(store))}"
        )
    kernels = len(set(opened.manifest.stored))
    tiles = opened.tiling.n_tiles
    click.echo(f"{store}: all is well, {kernels} kernels with {tiles:,} tiles each were read")


@main.command()
@store_argument
@force_option
@cluster_options
@watch_options
def repair(store: Path, force: bool, **options: Any) -> None:
    """Make exactly what is damaged in a STORE again, from the features inside it.

    Exit code 0 where all is mended, 4 where something is left.
    """
    from gmkcf_dask.kernels.check import open_unchecked
    from gmkcf_dask.kernels.repair import repair_store

    opened = open_unchecked(store)
    with open_place(opened.n_samples, options) as resources, watching() as listen:
        done = repair_store(store, resources.runner, listen, force=force)
    lines = done.lines
    tell(store=store, mended=lines, left=done.left)
    for line in lines:
        click.echo(f"found: {line}")
    if done.changed:
        note(
            f"{done.changed} tiles were made again with other last bits than before: other "
            "versions or processors round differently"
        )
    if done.left:
        raise DamagedStoreError(f"{store} is still damaged: {'; '.join(done.left)}")
    click.echo(f"{store}: {len(lines)} parts mended" if lines else f"{store}: nothing to mend")
