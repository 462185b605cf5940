"""Building kernels: in memory for small data, into a store through Dask for the rest.

Both walk the same tiles with the same functions; only who holds the result differs.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import count
from operator import add
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import structs

from gmkcf_dask.compute.blas import on_cores
from gmkcf_dask.compute.runner import Runner
from gmkcf_dask.errors import (
    BlindWorkersError,
    DamagedStoreError,
    DataWarning,
    InputError,
    StoreError,
    StoreGoneError,
)
from gmkcf_dask.events import Listener, StageProgress, ignore
from gmkcf_dask.kernels.duplicates import Comparison, stored_names
from gmkcf_dask.kernels.features import Features, PairTile
from gmkcf_dask.kernels.statistics import TileStatistics, resolve, run_here, summary_of
from gmkcf_dask.kernels.tiles import CODE_SCALE, STORED_DTYPE, ResolvedKernel, stored_tiles
from gmkcf_dask.kernels.tiling import STORED_BYTES, Precision, Tiling, default_block
from gmkcf_dask.store.digests import TileTable
from gmkcf_dask.store.files import (
    absolute,
    exists,
    make_folders,
    missing_folders,
    refuse_link,
    remove_folder,
)
from gmkcf_dask.store.kernel_store import KernelStore, delete_store, is_store, records
from gmkcf_dask.store.layout import bad_metadata
from gmkcf_dask.store.lock import LockInfo, confirm, writing
from gmkcf_dask.store.manifest import SUMMARY_BYTES, Manifest, differences, vector_digest
from gmkcf_dask.store.object_storage import is_remote
from gmkcf_dask.store.preflight import refuse_blind_workers
from gmkcf_dask.store.repair import clear_places, repair_damage, rewrite_inputs, rewrite_metadata
from gmkcf_dask.store.request import KernelRequest
from gmkcf_dask.store.tile_reader import gone
from gmkcf_dask.store.tile_tasks import (
    WriteTiles,
    batches,
    diagonal_from_tiles,
    for_tasks,
    pair_tile,
    resolved_kernels,
    run_tasks,
    tiles_per_build_task,
)
from gmkcf_dask.store.verify import (
    BadTile,
    Damage,
    find_bad_tiles,
    find_damage,
    find_damage_beside_tiles,
    summarize_tiles,
)
from gmkcf_dask.system.arrays import Floats
from gmkcf_dask.system.disk_space import disk_full_errors, refuse_few_files
from gmkcf_dask.system.units import human_bytes

_SECONDS_BETWEEN_MANIFESTS = 2.0


@dataclass(frozen=True)
class BuiltTiles:
    """Kernels in memory, as they would be stored.

    Attributes
    ----------
    stacks : tuple of ndarray, one per tile, each of shape (m, len I, len J)
    kernels : tuple of ResolvedKernel
        With their statistics.
    norms : dict of ndarray of float64, shape (n,)
        By kernel, what normalisation divides by.
    """

    stacks: tuple[npt.NDArray[Any], ...]
    kernels: tuple[ResolvedKernel, ...]
    norms: dict[str, Floats]


def build_tiles(request: KernelRequest, block: int, listen: Listener = ignore) -> BuiltTiles:
    """Compute the tiles of every kernel of a request in this process."""
    return tiles_of(request.kernels, request.features, block, request.precision, listen)


def tiles_of(
    kernels: tuple[ResolvedKernel, ...],
    features: Features,
    block: int,
    precision: Precision,
    listen: Listener = ignore,
) -> BuiltTiles:
    """The same for kernels that may have options of their own each."""
    tiling = Tiling(features.n_samples, block)
    everything, step = range(tiling.n_tiles), tiles_per_build_task(tiling)
    lock, done = Lock(), count(1)

    def sweep(gather: Callable[[PairTile], TileStatistics], what: str) -> TileStatistics:
        # grouped as the tasks of a store are, so that both get the same bits
        groups = [everything[t : t + step] for t in range(0, tiling.n_tiles, step)]
        listen(StageProgress(what, 0, tiling.n_tiles))
        found = on_cores(lambda: partial(run_here, gather, features, tiling), groups)
        listen(StageProgress(what, tiling.n_tiles, tiling.n_tiles))
        return reduce(add, found)

    def make(t: int) -> npt.NDArray[Any]:
        stack = np.empty((len(kernels), *tiling.shape(t)), STORED_DTYPE[precision])
        tile = pair_tile(features, tiling, t)
        for room, (_, stored, _) in zip(
            stack, stored_tiles(kernels, tile, norms, precision), strict=True
        ):
            room[...] = stored
        with lock:
            listen(StageProgress("kernels", next(done), tiling.n_tiles))
        return stack

    kernels, norms = resolve(kernels, features, tiling, sweep)
    return BuiltTiles(tuple(on_cores(lambda: make, everything)), kernels, norms)


def find_store(path: Path, request: KernelRequest) -> KernelStore | None:
    """The store at a path if it is, finished or not, the one requested; refused if another.

    Returns None where there is nothing yet. Only the manifest is read: what else is damaged is
    for `build_store` to find and repair.
    """
    if not is_store(path):
        return None
    store = KernelStore(absolute(path), Manifest.read(path))
    wanted = request.manifest(request.block or 1)
    different = differences(store.manifest, wanted, any_block=request.block is None)
    if different:
        raise StoreError(
            f"{path} was made for other data or parameters, it differs in "
            f"{'; '.join(different)}: choose another path or remove it"
        )
    return store


def build_store(
    path: Path,
    request: KernelRequest,
    runner: Runner,
    listen: Listener = ignore,
    block: int | None = None,
    *,
    force: bool = False,
    verify: bool = False,
) -> KernelStore:
    """Write all kernels of a request into a store, or finish one that was begun.

    A store that is complete is checked, and what is damaged is written again from the request. If
    nothing is, nothing is written.

    Parameters
    ----------
    path : Path
    request : KernelRequest
    runner : Runner
        Where tile tasks run. Precomputed matrices live in this process, and so do their tasks.
    block : int, optional
        The plan's tile edge for a new store.
    force : bool
        Take over the lock of a writer that is gone.
    verify : bool
        Read all tiles of a complete store, and add what a store of an earlier format lacks. A fit
        compares tiles when it first reads them, so it does without.

    Raises
    ------
    DamagedStoreError
        Something is damaged that cannot be repaired.
    """
    store = find_store(path, request)
    if request.precomputed:
        runner = Runner(n_threads=runner.n_threads)
    if store is not None and store.manifest.complete:
        return _repaired(store, request, runner, listen, verify=verify, force=force)
    refuse_link(path, "a store")
    KernelStore.check_place(path)
    if store is None:
        edge = block or request.block or default_block(request.n_samples)
        _refuse_few_files(path, request, edge)
    missing = missing_folders(path)
    make_folders(path.parent)
    try:
        with _disk_full_errors(path, request), writing(path, force=force) as lock:
            store = find_store(path, request)  # another writer may have been here meanwhile
            if store is not None:
                return _fill(store, request, runner, listen, lock, found_there=True)
            edge = block or request.block or default_block(request.n_samples)
            return _make(path, request, edge, runner, listen, lock)
    except InputError:
        for folder in missing[1:]:
            with suppress(OSError):  # somebody put something there meanwhile
                folder.rmdir()
        raise


def _repaired(
    store: KernelStore,
    request: KernelRequest,
    runner: Runner,
    listen: Listener,
    *,
    verify: bool,
    force: bool,
) -> KernelStore:
    """A complete store, once it is whole."""

    def look(store: KernelStore) -> Damage:
        return find_damage(store, runner, listen) if verify else find_damage_beside_tiles(store)

    if not look(store) and not (verify and store.manifest.lacks):
        store.warn_about_format()
        return store
    refuse_link(store.path, "a store")
    with _disk_full_errors(store.path, request), writing(store.path, force=force) as lock:
        found = find_store(store.path, request)
        if found is None:
            raise gone(str(store.path))
        refuse_blind_workers(runner, store.path, found.manifest.store_id, write=True)
        lacks, damage = found.manifest.lacks, look(found)
        done = repair_damage(found, damage, runner, listen, lock, request)
    if done.left:
        raise DamagedStoreError(f"{store.path} is still damaged: {'; '.join(done.left)}")
    if done.lines:
        parts = "; ".join([*done.lines[:5], *(["…"] if len(done.lines) > 5 else [])])
        sentence = f"{len(done.lines)} damaged parts of {store.path} were repaired: {parts}"
        warnings.warn(sentence, DataWarning, stacklevel=2)
    if lacks:
        sentence = f"added to {store.path}, which an earlier version made: {' and '.join(lacks)}"
        warnings.warn(sentence, DataWarning, stacklevel=2)
    return done.store


def _make(
    path: Path, request: KernelRequest, edge: int, runner: Runner, listen: Listener, lock: LockInfo
) -> KernelStore:
    """A new store; where the data themselves cannot be used, nothing is left of it."""
    empty_before = exists(path)
    try:
        store = KernelStore.create(path, request.manifest(edge), request.corpus)
        return _fill(store, request, runner, listen, lock)
    except (InputError, BlindWorkersError):
        # no later try could finish this store
        delete_store(path, ignore_errors=True)
        if empty_before:
            make_folders(path)
        raise


def _disk_full_errors(path: Path, request: KernelRequest) -> AbstractContextManager[None]:
    """A disk without room: said with what is still needed. What is there stays."""

    def needed() -> str:
        done, edge = 0, request.block or default_block(request.n_samples)
        if is_store(path):
            manifest = Manifest.read(path)
            done, edge = len(manifest.tiles_done), manifest.block_size
        tiles = Tiling(request.n_samples, edge).n_tiles
        size = edge * edge * STORED_BYTES[request.precision] * len(request.specs)
        need = human_bytes((tiles - done) * size)
        return f"{done} of {tiles} tiles are kept, the others need up to {need}"

    advice = "make room and run the same command again, it resumes"
    files = _files_of(request, request.block or default_block(request.n_samples))
    return disk_full_errors(path, advice, needed, files)


def _refuse_few_files(path: Path, request: KernelRequest, edge: int) -> None:
    if not is_remote(path):
        refuse_few_files(path, _files_of(request, edge), "the store")


def _files_of(request: KernelRequest, edge: int) -> int:
    """A store is a file for each tile of each kernel, and folders for the rows of tiles."""
    tiling = Tiling(request.n_samples, edge)
    per_kernel = tiling.n_tiles + 2 * tiling.n_blocks + 8  # its diagonal and metadata as well
    return len(request.specs) * per_kernel + _OTHER_FILES


_OTHER_FILES = 64  # manifest, names, features (a few large chunks), groups


def _fill(
    store: KernelStore,
    request: KernelRequest,
    runner: Runner,
    listen: Listener,
    lock: LockInfo,
    *,
    found_there: bool = False,
) -> KernelStore:
    if store.manifest.complete:
        return store
    refuse_blind_workers(runner, store.path, store.manifest.store_id, write=True)
    if found_there:
        store = _with_inputs(store, request, runner)
    features: Features = request.features if request.corpus is None else store.features()
    if not store.manifest.resolved:
        store = _resolve_into(store, request, features, runner, listen, lock)
    return _write_tiles(store, request, features, runner, listen, lock)


def _with_inputs(store: KernelStore, request: KernelRequest, runner: Runner) -> KernelStore:
    """A build that broke off, with inputs and metadata that are damaged written again.

    Tiles of damaged features would be wrong and carry digests that say they are right.
    """
    damage = find_damage_beside_tiles(store)
    everything = [BadTile(n, t, "") for n in store.names for t in range(store.tiling.n_tiles)]
    clear_places(store, replace(damage, tiles=tuple(everything)))
    if damage.metadata or damage.inputs or (request.corpus and not store.manifest.features):
        rewrite_metadata(store, damage)
        store, _ = rewrite_inputs(store, damage, request, [])
    if any(name.startswith("norms/") for name in damage.vectors):
        # nothing that was made with them can be trusted: begin with the statistics
        remove_folder(store.path, "norms")
        fresh = request.manifest(store.manifest.block_size)
        m = store.manifest
        fresh = structs.replace(fresh, store_id=m.store_id, features=m.features)
        fresh.write(store.path)
        store = replace(store, manifest=fresh)
        rewrite_metadata(store, Damage(tuple(bad_metadata(store.path, fresh))))
    done = store.manifest.tiles_done
    if done and not store.manifest.tile_summaries:  # of an earlier format
        done = tuple(sorted(_tiles_that_hold(store, runner, ignore)))
        table = TileTable(store.names, store.tiling.n_tiles, {}, SUMMARY_BYTES)
        for (name, t), summary in summarize_tiles(store, done, runner).items():
            table.put(name, t, summary)
        store = store.with_manifest(tiles_done=done, tile_summaries=table.as_text(store.names))
    return store


def _resolve_into(
    store: KernelStore,
    request: KernelRequest,
    features: Features,
    runner: Runner,
    listen: Listener,
    lock: LockInfo,
) -> KernelStore:
    tiling, per_task = store.tiling, tiles_per_build_task(store.tiling)

    def sweep(gather: Callable[[PairTile], TileStatistics], what: str) -> TileStatistics:
        def run(block: npt.NDArray[np.int64]) -> TileStatistics:
            return run_here(gather, features, tiling, (int(t) for t in block))

        total: list[TileStatistics] = []  # nothing or one: folded batch by batch, to stay small
        listen(StageProgress(what, 0, tiling.n_tiles))
        for group in batches(range(tiling.n_tiles), per_task):
            total = [reduce(add, total + run_tasks(run, group, per_task, runner))]
            done = int(group[-1]) + 1
            listen(StageProgress(what, done, tiling.n_tiles))
        return total[0]

    kernels, norms = resolve(request.kernels, features, tiling, sweep)
    confirm(store.path, lock)
    vectors = store.write_norms(norms)
    summaries = {f"norms/{name}": summary_of(values) for name, values in norms.items()}
    return store.with_manifest(
        kernels=records(kernels), resolved=True, vectors=vectors, vector_summaries=summaries
    )


def _write_tiles(
    store: KernelStore,
    request: KernelRequest,
    features: Features,
    runner: Runner,
    listen: Listener,
    lock: LockInfo,
) -> KernelStore:
    kernels = resolved_kernels(store, request.specs)
    tiling, per_task = store.tiling, tiles_per_build_task(store.tiling)
    if store.manifest.nearest is None:  # what was compared so far must be what is compared on
        sample = pair_tile(features, tiling, min(1, tiling.n_tiles - 1)).corner()
        planned = Comparison.plan(kernels, sample, store.norms(), request.precision)
        confirm(store.path, lock)
        store = store.with_manifest(nearest=dict(planned.nearest))
    nearest = store.manifest.nearest or {}
    comparison = Comparison(nearest, CODE_SCALE[request.precision] or 1.0)
    write = WriteTiles(for_tasks(store), features, kernels, comparison)
    done = _tiles_that_hold(store, runner, listen)
    table = TileTable(store.names, tiling.n_tiles, store.manifest.digests)
    summaries = TileTable(store.names, tiling.n_tiles, store.manifest.tile_summaries, SUMMARY_BYTES)
    minima = dict(store.manifest.stored_minima or dict.fromkeys(store.names, np.inf))
    apart = dict(store.manifest.differences)
    sizes: dict[tuple[str, int], int] = {}
    todo = [t for t in range(tiling.n_tiles) if t not in done]
    tile_bytes = len(kernels) * tiling.block**2 * STORED_BYTES[request.precision]

    def keep(**changes: Any) -> KernelStore:
        confirm(store.path, lock)
        return store.with_manifest(
            tiles_done=tuple(sorted(done)),
            stored_minima=minima,
            differences=apart,
            digests=table.as_text(store.names),
            tile_summaries=summaries.as_text(store.names),
            **changes,
        )

    last_written = time.monotonic()
    listen(StageProgress("write", len(done), tiling.n_tiles, len(done) * tile_bytes))
    for group in batches(todo, per_task):
        for written in run_tasks(write, group, per_task, runner):
            minima = {name: min(minima[name], written.minima[name]) for name in minima}
            found = written.differences
            apart |= {name: max(apart.get(name, 0.0), value) for name, value in found.items()}
            for (name, t), (digest, size) in written.tiles.items():
                table.put(name, t, digest)
                summaries.put(name, t, written.summaries[name, t])
                sizes[name, t] = size
        done.update(int(t) for t in group)
        listen(StageProgress("write", len(done), tiling.n_tiles, len(done) * tile_bytes))
        if time.monotonic() - last_written > _SECONDS_BETWEEN_MANIFESTS:
            store = keep()
            last_written = time.monotonic()
    stored_as = store.manifest.stored_as
    if not stored_as:  # else decided by a build that broke off: tiles to compare may be gone
        equal = store.equal_kernels()
        stored_as = stored_names(store.names, equal, nearest, apart, request.merge_duplicates)
    # first what stands for what, then removing, then complete: a kill between them loses nothing
    store = keep(stored_as=stored_as)
    store.drop_merged()
    return _complete(store, sizes, lock)


def _tiles_that_hold(store: KernelStore, runner: Runner, listen: Listener) -> set[int]:
    """Marked tiles of a build that broke off which are there to the last bit.

    A mark is on the disk before its tiles are: after a power cut they may be missing.
    """
    marked = store.manifest.tiles_done
    if not marked:
        return set()
    bad = find_bad_tiles(store, marked, runner, listen)
    return set(marked) - {tile.t for tile in bad}


def _complete(store: KernelStore, sizes: dict[tuple[str, int], int], lock: LockInfo) -> KernelStore:
    """Mark a store complete once every chunk is known to be there.

    What an earlier process wrote was read and compared when this one began; what this one wrote is
    there in its full length. Bytes are compared when they are first used.
    """
    size_of, stored = store.tile_sizes(), set(store.manifest.stored_as)
    lost = {t for (name, t), size in sizes.items() if name in stored and size_of(name, t) != size}
    if lost:
        confirm(store.path, lock)
        left = tuple(t for t in store.manifest.tiles_done if t not in lost)
        store.with_manifest(tiles_done=left)
        raise DamagedStoreError(
            f"{len(lost)} tiles of {store.path} were changed or removed while it was built: see "
            "who else works there, then run the same build again"
        )
    m, diagonals = store.manifest, _write_diagonals(store)
    confirm(store.path, lock)
    kept = [name for name in store.names if name in stored]
    return store.with_manifest(
        vectors={**m.vectors, **{name: vector_digest(d) for name, d in diagonals.items()}},
        vector_summaries={
            **m.vector_summaries,
            **{name: summary_of(d) for name, d in diagonals.items()},
        },
        digests={name: m.digests[name] for name in kept},
        tile_summaries={name: m.tile_summaries[name] for name in kept},
        complete=True,
    )


def _write_diagonals(store: KernelStore) -> dict[str, Floats]:
    """Write the diagonals, from tiles, which have digests of their own."""
    diagonals: dict[str, Floats] = {}
    for stands in sorted(set(store.manifest.stored)):
        try:
            values = diagonal_from_tiles(store, store.names[stands])
        except StoreGoneError:
            raise
        except DamagedStoreError as error:
            raise DamagedStoreError(
                f"tiles of kernel {store.names[stands]} in {store.path} were changed while it was "
                "built: see who else works there, then run the same build again"
            ) from error
        for name, other in zip(store.names, store.manifest.stored, strict=True):
            if other == stands:
                store.write_vector(f"diagonals/{name}", values)
                diagonals[f"diagonals/{name}"] = values
    return {f"diagonals/{name}": diagonals[f"diagonals/{name}"] for name in store.names}
