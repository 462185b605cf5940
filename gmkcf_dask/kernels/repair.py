"""Mending a store: exactly what is damaged is made again from the features inside it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import numpy as np

from gmkcf_dask.errors import DamagedStoreError, StoreGoneError
from gmkcf_dask.events import Listener, StageProgress, ignore
from gmkcf_dask.graph import Runner
from gmkcf_dask.kernels.arrays import open_array, write_metadata
from gmkcf_dask.kernels.check import BadTile, Damage, find_damage, open_unchecked
from gmkcf_dask.kernels.digests import DigestTable
from gmkcf_dask.kernels.duplicates import Comparison
from gmkcf_dask.kernels.lease import Lease, confirm, writing
from gmkcf_dask.kernels.manifest import package_versions, vector_digest
from gmkcf_dask.kernels.preflight import refuse_blind_workers
from gmkcf_dask.kernels.scratch import sweep_scratch
from gmkcf_dask.kernels.specs import parse_kernel
from gmkcf_dask.kernels.statistics import GatherRowSums, run_here
from gmkcf_dask.kernels.store import KernelStore
from gmkcf_dask.kernels.tasks import batches, run_tasks, tiles_per_build_task
from gmkcf_dask.kernels.writing import (
    WriteTiles,
    diagonal_from_tiles,
    for_tasks,
    resolved_kernels,
)


@dataclass(frozen=True)
class Repair:
    """What was found and what became of it.

    Attributes
    ----------
    damage : Damage
    left : tuple of str
        What could not be mended, and why, one sentence each.
    changed : int
        Tiles that were made again but not to the same bits: other versions of the libraries or
        another kind of processor round differently.
    """

    damage: Damage
    left: tuple[str, ...]
    changed: int
    lines: tuple[str, ...] = ()
    """What was found, in words."""


def repair_store(
    path: Path, runner: Runner, listen: Listener = ignore, *, force: bool = False
) -> Repair:
    """Find all damage of a finished store and mend what can be mended.

    Parameters
    ----------
    force : bool
        Take over the lease of a writer that is gone.
    """
    open_unchecked(path)  # where there is nothing to mend nothing is written, not even a lease
    with writing(path, force=force) as lease:
        # only now: until the lease was had somebody may have put another store there
        open_array.cache_clear()
        store = open_unchecked(path)
        sweep_scratch(path)
        refuse_blind_workers(runner, store.path, store.manifest.store_id, write=True)
        damage = find_damage(store, runner, listen)
        if not damage:
            return Repair(damage, (), 0)
        lines = tuple(damage.lines(store.manifest))
        left = [
            f"{name} of the samples cannot be had from the store: build it again from the input"
            for name in damage.inputs
        ]
        confirm(store.path, lease)
        _mend_metadata(store, damage)
        store = _mend_norms(store, damage, runner, left, lease)
        store, changed = _mend_tiles(store, damage, runner, listen, left, lease)
        _mend_diagonals(store, damage, left)
    return Repair(damage, tuple(left), changed, lines)


def _mend_metadata(store: KernelStore, damage: Damage) -> None:
    for bad in damage.metadata:
        if bad.where.startswith("features/"):
            continue  # said with the features
        write_metadata(store.path, bad.where, bad.fields)
    open_array.cache_clear()


def _mend_norms(
    store: KernelStore, damage: Damage, runner: Runner, left: list[str], lease: Lease
) -> KernelStore:
    """Row sums of kernels normalised by degree, again by the sweep that made them."""
    lost = [name.removeprefix("norms/") for name in damage.vectors if name.startswith("norms/")]
    can = [name for name in lost if name in store.manifest.formulas]
    left += [f"norms/{name} {_NO_FORMULA}" for name in lost if name not in can]
    if can and "features" in damage.inputs:
        left += [f"norms/{name} {_NO_FEATURES}" for name in can]
        return store
    if not can:
        return store
    specs = [parse_kernel(name) for name in store.manifest.formulas]
    gather, features = GatherRowSums(resolved_kernels(store, specs)), store.features()
    tiling, per_task = store.tiling, tiles_per_build_task(store.tiling)

    def run(block: Any) -> Any:
        return run_here(gather, features, tiling, (int(t) for t in block))

    parts: list[Any] = []
    for group in batches(range(tiling.n_tiles), per_task):
        parts = [reduce(add, parts + run_tasks(run, group, per_task, runner))]
    by_block = parts[0].row_sums
    sums = np.hstack([by_block[first] for first in sorted(by_block)])
    found = {spec.name: row for spec, row in zip(specs, sums, strict=True) if spec.name in can}
    confirm(store.path, lease)
    digests = store.write_norms(found)
    open_array.cache_clear()
    return store.with_manifest(vectors={**store.manifest.vectors, **digests})


def _mend_tiles(
    store: KernelStore,
    damage: Damage,
    runner: Runner,
    listen: Listener,
    left: list[str],
    lease: Lease,
) -> tuple[KernelStore, int]:
    wanted = _wanted(store, damage, left)
    if not wanted:
        return store, 0
    specs = [parse_kernel(name) for name in store.manifest.formulas]
    write = WriteTiles(
        for_tasks(store),
        store.features(),
        resolved_kernels(store, specs),
        Comparison({}, 1.0),
        {t: frozenset(names) for t, names in wanted.items()},
    )
    table = DigestTable(store.manifest.digests, store.tiling.n_tiles, store.manifest.digests)
    changed: set[tuple[str, int]] = set()
    done, per_task = 0, tiles_per_build_task(store.tiling)
    listen(StageProgress("repair", 0, len(wanted)))
    for group in batches(sorted(wanted), per_task):
        for written in run_tasks(write, group, per_task, runner):
            for (name, t), (digest, _) in written.tiles.items():
                if table.get(name, t) != digest:
                    changed.add((name, t))
                    table.put(name, t, digest)
        done += len(group)
        listen(StageProgress("repair", done, len(wanted)))
    if changed:
        confirm(store.path, lease)
        versions = {**store.manifest.versions, **package_versions()}
        digests = table.as_text(store.manifest.digests)
        store = store.with_manifest(digests=digests, versions=versions)
        store = _diagonals_again(store, {name for name, _ in changed}, lease)
    return store, len(changed)


def _diagonals_again(store: KernelStore, names: set[str], lease: Lease) -> KernelStore:
    """Diagonals of kernels whose tiles came out with other bits."""
    vectors = dict(store.manifest.vectors)
    for name in sorted(names):
        values = diagonal_from_tiles(store, name)
        store.write_vector(f"diagonals/{name}", values)
        vectors[f"diagonals/{name}"] = vector_digest(values)
    confirm(store.path, lease)
    return store.with_manifest(vectors=vectors)


def _wanted(store: KernelStore, damage: Damage, left: list[str]) -> dict[int, set[str]]:
    """By tile, the kernels to make again; why the others cannot be is said once per kernel."""
    by_kernel: dict[str, list[BadTile]] = {}
    for bad in damage.tiles:
        by_kernel.setdefault(bad.kernel, []).append(bad)
    wanted: dict[int, set[str]] = {}
    for kernel, tiles in by_kernel.items():
        many = f"{len(tiles)} tile{'s' if len(tiles) > 1 else ''} of kernel {kernel}"
        if kernel not in store.manifest.formulas:
            left.append(f"{many} {_NO_FORMULA}")
        elif "features" in damage.inputs:
            left.append(f"{many} {_NO_FEATURES}")
        else:
            for bad in tiles:
                wanted.setdefault(bad.t, set()).add(kernel)
    return wanted


def _mend_diagonals(store: KernelStore, damage: Damage, left: list[str]) -> None:
    lost = {name for name in damage.vectors if name.startswith("diagonals/")}
    for where in sorted(lost):
        name = where.removeprefix("diagonals/")
        stands = store.names[store.manifest.stored[store.names.index(name)]]
        try:
            values = diagonal_from_tiles(store, stands)
        except StoreGoneError:
            raise
        except DamagedStoreError:
            left.append(f"{where} cannot be had while tiles of the kernel are damaged")
            continue
        if vector_digest(values) != store.manifest.vectors[where]:
            left.append(f"{where} cannot be had from the tiles of {stands}: build the store again")
            continue
        open_array.cache_clear()
        store.write_vector(where, values)


_NO_FEATURES = "cannot be made again without the features: build the store again"
_NO_FORMULA = (
    "cannot be made again, because a matrix or function that was passed in is not in the store: "
    "build the store again"
)
