"""Repair of a store: exactly what is damaged is computed again.

Kernels come from the features inside the store; the inputs themselves from the corpus, where a
build has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import numpy as np

from gmkcf_dask.compute.runner import Runner
from gmkcf_dask.errors import DamagedStoreError, StoreGoneError
from gmkcf_dask.events import Listener, StageProgress, ignore
from gmkcf_dask.kernels.duplicates import Comparison
from gmkcf_dask.kernels.features import Features
from gmkcf_dask.kernels.specs import KernelSpec, parse_kernel
from gmkcf_dask.kernels.statistics import TOLERANCE, GatherRowSums, Summary, run_here, summary_of
from gmkcf_dask.store.digests import TileTable
from gmkcf_dask.store.features import open_array, write_metadata
from gmkcf_dask.store.files import exists, is_file, put_atomic, remove, remove_tree
from gmkcf_dask.store.kernel_store import KernelStore, write_inputs
from gmkcf_dask.store.layout import METADATA, expected_metadata
from gmkcf_dask.store.lock import LockInfo, confirm, writing
from gmkcf_dask.store.manifest import SUMMARY_BYTES, build_command, package_versions, vector_digest
from gmkcf_dask.store.object_storage import is_remote
from gmkcf_dask.store.preflight import refuse_blind_workers
from gmkcf_dask.store.request import KernelRequest
from gmkcf_dask.store.scratch import sweep_scratch
from gmkcf_dask.store.tile_tasks import (
    WriteTiles,
    batches,
    diagonal_from_tiles,
    for_tasks,
    resolved_kernels,
    run_tasks,
    tiles_per_build_task,
)
from gmkcf_dask.store.verify import (
    BadTile,
    Damage,
    features_hold,
    find_bad_tiles,
    find_damage,
    find_damage_beside_tiles,
    open_unchecked,
    summarize_tiles,
)
from gmkcf_dask.system.arrays import Floats
from gmkcf_dask.system.disk_space import disk_full_errors


@dataclass(frozen=True)
class Repair:
    """What was found and what became of it.

    Attributes
    ----------
    damage : Damage
    left : tuple of str
        What could not be repaired, and why, one sentence each.
    changed : int
        Tiles that were made again but not to the same bits: other versions of the libraries or
        another kind of processor round differently.
    lines : tuple of str
        What was found, in words.
    store : KernelStore
        The store as it is now.
    """

    damage: Damage
    left: tuple[str, ...]
    changed: int
    lines: tuple[str, ...]
    store: KernelStore


def repair_store(
    path: Path, runner: Runner, listen: Listener = ignore, *, force: bool = False
) -> Repair:
    """Find all damage of a finished store and repair what can be repaired.

    Parameters
    ----------
    force : bool
        Take over the lock of a writer that is gone.
    """
    open_unchecked(path)  # where there is nothing to repair nothing is written, not even a lock
    advice = "make room and run the same command again"
    with disk_full_errors(path, advice), writing(path, force=force) as lock:
        # only now: until the lock was had somebody may have put another store there
        open_array.cache_clear()
        store = open_unchecked(path)
        sweep_scratch(path)
        refuse_blind_workers(runner, store.path, store.manifest.store_id, write=True)
        damage = find_damage(store, runner, listen)
        if not damage:
            return Repair(damage, (), 0, (), store)
        return repair_damage(store, damage, runner, listen, lock)


def repair_damage(
    store: KernelStore,
    damage: Damage,
    runner: Runner,
    listen: Listener,
    lock: LockInfo,
    request: KernelRequest | None = None,
) -> Repair:
    """Repair what can be repaired, and look whether it is.

    Parameters
    ----------
    request : KernelRequest, optional
        What the store was made from: then inputs are written again, what stores of an earlier
        format lack is added, and kernels that were passed in can be made again.
    """
    lines = tuple(damage.lines(store.manifest))
    left: list[str] = []
    confirm(store.path, lock)
    clear_places(store, damage)
    rewrite_metadata(store, damage)
    store, inputs = rewrite_inputs(store, damage, request, left)
    sources = _Sources(store, request, inputs)
    store = _repair_norms(store, damage, sources, runner, left, lock)
    store, changed = _repair_tiles(store, damage, sources, runner, listen, left, lock)
    _repair_diagonals(store, damage, left)
    if request is not None and not left:
        store = _add_summaries(store, runner, lock)
    if not left:
        left += _still_damaged(store, damage, runner)
    return Repair(damage, tuple(left), changed, lines, store)


@dataclass(frozen=True)
class _Sources:
    """What kernels can be made from again."""

    store: KernelStore
    request: KernelRequest | None
    damaged_inputs: tuple[str, ...]
    """Inputs that are not what was written, and could not be written again."""
    untrusted: set[str] = field(default_factory=set)
    """Norms that could not be repaired."""

    @property
    def specs(self) -> dict[str, KernelSpec]:
        """Kernels that can be computed, by name: formulas, or whatever was asked for."""
        if self.request is not None:
            return {spec.name: spec for spec in self.request.specs}
        return {name: parse_kernel(name) for name in self.store.manifest.formulas}

    @property
    def features(self) -> Features:
        if self.request is not None and self.request.corpus is None:
            return self.request.features
        return self.store.features()

    @property
    def have_features(self) -> bool:
        return "features" not in self.damaged_inputs

    def runner(self, runner: Runner) -> Runner:
        """Matrices that were passed in live in this process, and so do their tasks."""
        if self.request is not None and self.request.precomputed:
            return Runner(n_threads=runner.n_threads)
        return runner

    def may_replace(self, old: bytes | None, new: bytes, size: int, tolerance: float) -> bool:
        """Whether values of other bits may stand for those they replace.

        All inputs must be what was written, and the summaries must agree. A store of an earlier
        format has none: there the input itself, in the hands of a build, must do.
        """
        if self.damaged_inputs or self.untrusted:
            return False
        if old is None:
            return self.request is not None
        return Summary.from_bytes(new).agrees(Summary.from_bytes(old), size, tolerance)


def clear_places(store: KernelStore, damage: Damage) -> None:
    """Remove folders in the place of files, and files in the place of folders."""
    if is_remote(store.path):
        return
    reader = store.reader
    files = [store.path / bad.where / METADATA for bad in damage.metadata]
    files += [store.path / f"{name}.json" for name in damage.inputs]
    files += [Path(reader.file(bad.kernel, bad.t)) for bad in damage.tiles]
    for vector in damage.vectors:
        chunks = store.path / vector / "c"
        for folder in (chunks.parent.parent, chunks.parent):
            if is_file(folder):
                remove(folder)
        files += list(chunks.iterdir()) if chunks.is_dir() else []
    for file in files:
        for folder in reversed(file.parents[: len(file.relative_to(store.path).parts) - 1]):
            if is_file(folder):
                remove(folder)
        if file.is_dir():
            remove_tree(file, store.path)
    for vector in damage.vectors:
        if is_file(store.path / vector / "c"):
            remove(store.path / vector / "c")


def rewrite_inputs(
    store: KernelStore, damage: Damage, request: KernelRequest | None, left: list[str]
) -> tuple[KernelStore, tuple[str, ...]]:
    """Write damaged inputs again; returns those that are left."""
    wanted = list(damage.inputs)
    corpus = None if request is None else request.corpus
    if corpus is None:
        # whose zarr.json alone was damaged are whole again
        if "features" in wanted and store.manifest.features and features_hold(store):
            wanted.remove("features")
        # that there are no labels, say, is known without the input
        for name in wanted:
            if store.manifest.inputs.get(name) == "none":
                put_atomic(store.path / f"{name}.json", b"null")
        wanted = [name for name in wanted if store.manifest.inputs.get(name) != "none"]
        left += [
            f"{name} of the samples cannot be restored from the store: write them again from the "
            f"input with {build_command(store.path)}"
            for name in wanted
        ]
        return store, tuple(wanted)
    if not store.manifest.features and "features" not in wanted:
        wanted.append("features")  # of an earlier format: now with digests
    if not wanted:
        return store, ()
    if "features" in wanted and not is_remote(store.path):
        features = store.path / "features"
        if is_file(features):
            remove(features)
        remove_tree(features, store.path)
    manifest = write_inputs(store.path, store.manifest, corpus, wanted)
    manifest.write(store.path)
    open_array.cache_clear()
    return replace(store, manifest=manifest), ()


def rewrite_metadata(store: KernelStore, damage: Damage) -> None:
    """Write every zarr.json that is damaged, and its folder, as it has to be.

    Features without a chunk are left: only the input can bring them back.
    """
    expected = dict(expected_metadata(store.path, store.manifest))
    for bad in damage.metadata:
        if bad.where.startswith("features/") and not (
            # in format 3 the shape of features is not known
            store.manifest.features and exists(store.path / bad.where / "c")
        ):
            continue
        if bad.where in expected:
            write_metadata(store.path, bad.where, expected[bad.where])
    open_array.cache_clear()


def _repair_norms(
    store: KernelStore,
    damage: Damage,
    sources: _Sources,
    runner: Runner,
    left: list[str],
    lock: LockInfo,
) -> KernelStore:
    """Row sums of kernels normalised by degree, again by the sweep that made them."""
    lost = [name.removeprefix("norms/") for name in damage.vectors if name.startswith("norms/")]
    specs = list(sources.specs.values())
    can = [name for name in lost if name in sources.specs and sources.have_features]
    for name in lost:
        if name not in can:
            why = _no_formula(store) if name not in sources.specs else _no_features(store)
            left.append(f"norms/{name} {why}")
            sources.untrusted.add(name)
    if not can:
        return store
    gather, features = GatherRowSums(resolved_kernels(store, specs)), sources.features
    tiling, per_task = store.tiling, tiles_per_build_task(store.tiling)

    def run(block: Any) -> Any:
        return run_here(gather, features, tiling, (int(t) for t in block))

    parts: list[Any] = []
    for group in batches(range(tiling.n_tiles), per_task):
        parts = [reduce(add, parts + run_tasks(run, group, per_task, sources.runner(runner)))]
    by_block = parts[0].row_sums
    sums = np.hstack([by_block[first] for first in sorted(by_block)])
    rows = {spec.name: row for spec, row in zip(specs, sums, strict=True) if spec.name in can}
    repaired = {}
    for name, values in rows.items():
        if _is_the_vector(store, f"norms/{name}", values, sources):
            repaired[name] = values
        else:
            left.append(f"norms/{name} {_other_values(store, sources)}")
            sources.untrusted.add(name)
    confirm(store.path, lock)
    store.write_norms(repaired)
    open_array.cache_clear()
    return _with_vectors(store, {f"norms/{name}": values for name, values in repaired.items()})


def _is_the_vector(store: KernelStore, name: str, values: Floats, sources: _Sources) -> bool:
    """Whether a vector that was made again is the one it replaces."""
    if vector_digest(values) == store.manifest.vectors[name]:
        return True
    known = store.manifest.vector_summaries.get(name)
    return sources.may_replace(
        None if known is None else bytes.fromhex(known),
        Summary.of(values).to_bytes(),
        values.size,
        TOLERANCE["float64"] * values.size,  # a sum of so many
    )


def _with_vectors(store: KernelStore, values: Mapping[str, Floats]) -> KernelStore:
    """The store with the digests of vectors in its manifest, written only where one differs."""
    digests = {name: vector_digest(vector) for name, vector in values.items()}
    if all(store.manifest.vectors.get(name) == digest for name, digest in digests.items()):
        return store
    summaries = {name: summary_of(vector) for name, vector in values.items()}
    return store.with_manifest(
        vectors={**store.manifest.vectors, **digests},
        vector_summaries={**store.manifest.vector_summaries, **summaries},
    )


def _repair_tiles(
    store: KernelStore,
    damage: Damage,
    sources: _Sources,
    runner: Runner,
    listen: Listener,
    left: list[str],
    lock: LockInfo,
) -> tuple[KernelStore, int]:
    wanted = _wanted(store, damage, sources, left)
    if not wanted:
        return store, 0
    m, n_tiles = store.manifest, store.tiling.n_tiles
    write = WriteTiles(
        for_tasks(store),
        sources.features,
        resolved_kernels(store, sources.specs.values()),
        Comparison({}, 1.0),
        {t: frozenset(names) for t, names in wanted.items()},
    )
    table = TileTable(m.digests, n_tiles, m.digests)
    summaries = TileTable(m.tile_summaries, n_tiles, m.tile_summaries, SUMMARY_BYTES)
    changed: set[tuple[str, int]] = set()
    refused: dict[str, int] = {}
    done, per_task = 0, tiles_per_build_task(store.tiling)
    listen(StageProgress("repair", 0, len(wanted)))
    for group in batches(sorted(wanted), per_task):
        for written in run_tasks(write, group, per_task, sources.runner(runner)):
            for (name, t), (digest, _) in written.tiles.items():
                if table.get(name, t) == digest:
                    continue
                new = written.summaries[name, t]
                old = summaries.get(name, t) if name in m.tile_summaries else None
                size = int(np.prod(store.tiling.shape(t)))
                if not sources.may_replace(old, new, size, TOLERANCE[m.precision]):
                    refused[name] = refused.get(name, 0) + 1
                    continue
                changed.add((name, t))
                table.put(name, t, digest)
                if name in m.tile_summaries:
                    summaries.put(name, t, new)
        done += len(group)
        listen(StageProgress("repair", done, len(wanted)))
    why = _other_values(store, sources)
    left += [f"{_tiles(count)} of kernel {name} {why}" for name, count in refused.items()]
    if changed:
        confirm(store.path, lock)
        store = store.with_manifest(
            digests=table.as_text(m.digests),
            tile_summaries=summaries.as_text(m.tile_summaries),
            versions={**m.versions, **package_versions()},
        )
        store = _diagonals_again(store, {name for name, _ in changed}, lock)
    return store, len(changed)


def _diagonals_again(store: KernelStore, names: set[str], lock: LockInfo) -> KernelStore:
    """Diagonals of kernels whose tiles came out with other bits."""
    values: dict[str, Floats] = {}
    for name in sorted(names):
        diagonal = diagonal_from_tiles(store, name)
        for other, stands in zip(store.names, store.manifest.stored_as or store.names, strict=True):
            if stands == name:
                values[f"diagonals/{other}"] = diagonal
    confirm(store.path, lock)
    for where, diagonal in values.items():
        store.write_vector(where, diagonal)
    return _with_vectors(store, values)


def _wanted(
    store: KernelStore, damage: Damage, sources: _Sources, left: list[str]
) -> dict[int, set[str]]:
    """By tile, the kernels to make again; why the others cannot be is said once per kernel."""
    by_kernel: dict[str, list[BadTile]] = {}
    for bad in damage.tiles:
        by_kernel.setdefault(bad.kernel, []).append(bad)
    wanted: dict[int, set[str]] = {}
    for kernel, tiles in by_kernel.items():
        many = f"{_tiles(len(tiles))} of kernel {kernel}"
        if kernel not in sources.specs:
            left.append(f"{many} {_no_formula(store)}")
        elif not sources.have_features:
            left.append(f"{many} {_no_features(store)}")
        elif kernel in sources.untrusted:
            left.append(f"{many} cannot be computed again without norms/{kernel}")
        else:
            for bad in tiles:
                wanted.setdefault(bad.t, set()).add(kernel)
    return wanted


def _repair_diagonals(store: KernelStore, damage: Damage, left: list[str]) -> None:
    lost = {name for name in damage.vectors if name.startswith("diagonals/")}
    for where in sorted(lost):
        name = where.removeprefix("diagonals/")
        stands = store.names[store.manifest.stored[store.names.index(name)]]
        try:
            values = diagonal_from_tiles(store, stands)
        except StoreGoneError:
            raise
        except DamagedStoreError:
            left.append(f"{where} cannot be computed while tiles of the kernel are damaged")
            continue
        if vector_digest(values) != store.manifest.vectors[where]:
            left.append(f"{where} cannot be computed from the tiles of {stands}: {_anew(store)}")
            continue
        open_array.cache_clear()
        store.write_vector(where, values)


def _add_summaries(store: KernelStore, runner: Runner, lock: LockInfo) -> KernelStore:
    """Statistics of tiles and vectors, for a store of an earlier format."""
    m = store.manifest
    if m.tile_summaries and m.vector_summaries:
        return store
    summaries = TileTable(m.digests, store.tiling.n_tiles, {}, SUMMARY_BYTES)
    for (name, t), summary in summarize_tiles(store, range(store.tiling.n_tiles), runner).items():
        summaries.put(name, t, summary)
    vectors = {name: summary_of(store.vector(name)) for name in m.vectors}
    confirm(store.path, lock)
    return store.with_manifest(
        tile_summaries=summaries.as_text(m.digests), vector_summaries=vectors
    )


def _still_damaged(store: KernelStore, damage: Damage, runner: Runner) -> list[str]:
    """What was repaired, looked at once more."""
    tiles: Sequence[int] = sorted({bad.t for bad in damage.tiles})
    again: Iterable[BadTile] = find_bad_tiles(store, tiles, runner) if tiles else ()
    found = replace(find_damage_beside_tiles(store), tiles=tuple(again))
    return [f"{line} after it was written again" for line in found.lines(store.manifest)]


def _tiles(count: int) -> str:
    return f"{count} tile{'s' if count > 1 else ''}"


def _no_features(store: KernelStore) -> str:
    return f"cannot be computed again without the features: run {build_command(store.path)}"


def _no_formula(store: KernelStore) -> str:
    return (
        "cannot be computed again, because a matrix or function that was passed in is not in the "
        f"store: {_anew(store)}"
    )


def _anew(store: KernelStore) -> str:
    return f"remove {store.path} and build it again"


def _other_values(store: KernelStore, sources: _Sources) -> str:
    """Why values that were made again are not accepted, and what to do."""
    said = "were computed again with other bits than before and not accepted"
    if sources.damaged_inputs or sources.untrusted or not store.manifest.tile_summaries:
        return f"{said}, because not all inputs can be checked: run {build_command(store.path)}"
    return (
        f"{said}, because their statistics differ too: the libraries or the processor here compute "
        "something else, so build a new store at another path"
    )
