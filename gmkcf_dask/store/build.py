"""Building kernels: in memory for small data, into a store through Dask for the rest.

Both walk the same tiles with the same functions; only who holds the result differs.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import structs

from gmkcf_dask.compute.build_tasks import BuiltTiles, resolve_by_tasks, run_batches, tiles_of
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
from gmkcf_dask.kernels.duplicates import DuplicateCandidates
from gmkcf_dask.kernels.features import Features, PairTile
from gmkcf_dask.kernels.gram import GRAM, nearest_tables, row_vectors, with_statistics
from gmkcf_dask.kernels.tiles import CODE_SCALE
from gmkcf_dask.kernels.tiling import FACTOR_ROWS, STORED_BYTES, Tiling, default_block
from gmkcf_dask.store import files
from gmkcf_dask.store.digests import TileTable
from gmkcf_dask.store.factors import StoreArrays, factor_bytes, factor_stages, written_bytes
from gmkcf_dask.store.features import write_metadata
from gmkcf_dask.store.kernel_store import KernelStore, delete_store, is_store
from gmkcf_dask.store.layout import bad_metadata, gram_layout
from gmkcf_dask.store.lock import LockInfo, confirm, writing
from gmkcf_dask.store.manifest import (
    SUMMARY_BYTES,
    GramRecord,
    KernelRecord,
    Manifest,
    manifest_differences,
)
from gmkcf_dask.store.object_storage import is_remote
from gmkcf_dask.store.preflight import refuse_blind_workers
from gmkcf_dask.store.repair import clear_places, repair_damage, rewrite_inputs, rewrite_metadata
from gmkcf_dask.store.request import KernelRequest
from gmkcf_dask.store.tile_reader import gone
from gmkcf_dask.store.tile_tasks import (
    WriteTiles,
    for_tasks,
    made_diagonal,
    resolved_kernels,
    write_diagonals,
)
from gmkcf_dask.store.verify import (
    BadTile,
    Damage,
    bad_given_blocks,
    find_bad_tiles,
    find_damage,
    find_damage_beside_tiles,
    summarize_tiles,
)
from gmkcf_dask.system.arrays import Floats
from gmkcf_dask.system.disk_space import disk_full_errors, refuse_few_files
from gmkcf_dask.system.units import ceil_div, human_bytes

_SECONDS_BETWEEN_MANIFESTS = 2.0
_OTHER_FILES = 64  # manifest, names, features (a few large chunks), groups


def build_tiles(request: KernelRequest, block: int, listen: Listener = ignore) -> BuiltTiles:
    """Compute the tiles of every kernel of a request in this process."""
    return tiles_of(
        request.kernels, request.features, block, request.precision, listen, request.gram
    )


def find_store(path: Path, request: KernelRequest) -> KernelStore | None:
    """The store at a path if it is, finished or not, the one requested; refused if another.

    Returns None where there is nothing yet. Only the manifest is read: what else is damaged is
    for `build_store` to find and repair.
    """
    if not is_store(path):
        return None
    store = KernelStore(files.absolute(path), Manifest.read(path))
    wanted = request.as_stored(store.manifest).manifest(request.block or 1)
    different = manifest_differences(store.manifest, wanted, any_block=request.block is None)
    if different:
        raise StoreError(
            f"{path} was made for other data or parameters, it differs in "
            f"{'; '.join(different)}: choose another path or remove it"
        )
    return store


@dataclass(frozen=True)
class StorePlace:
    """Where the store of a request is or will be, looked up once for plan and build."""

    path: Path
    store: KernelStore | None = None
    """What is there already, finished or not."""


def look_up(path: Path, request: KernelRequest) -> StorePlace:
    """The place of a request's store; refused where another store is."""
    return StorePlace(path, find_store(path, request))


def build_store(
    path: Path, request: KernelRequest, runner: Runner, listen: Listener = ignore, **options: Any
) -> KernelStore:
    """Write all kernels of a request into a store at a path; options as for `build_at`."""
    return build_at(look_up(path, request), request, runner, listen, **options)


def build_at(
    place: StorePlace,
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
    place : StorePlace
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
    path, store = place.path, place.store
    if store is not None:
        request = request.as_stored(store.manifest)
    if request.precomputed:
        runner = Runner(n_threads=runner.n_threads)
    if store is not None and store.manifest.complete:
        return _repaired(store, request, runner, listen, verify=verify, force=force)
    files.refuse_link(path, "a store")
    KernelStore.check_place(path)
    edge = block or request.block or default_block(request.n_samples)
    if store is None and not is_remote(path):
        refuse_few_files(path, _files_of(request, edge), "the store")
    missing = files.missing_folders(path)
    files.make_folders(path.parent)
    try:
        with _disk_full_errors(path, request), writing(path, force=force) as lock:
            build = _Build(request, runner, listen, lock)
            store = find_store(path, request)  # another writer may have been here meanwhile
            return build.create(path, edge) if store is None else build.resume(store)
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
        if verify:
            return find_damage(store, runner, listen)
        # what was passed in comes back from nowhere else
        return replace(find_damage_beside_tiles(store), blocks=tuple(bad_given_blocks(store)))

    if not look(store) and not (verify and store.manifest.lacks):
        store.warn_about_format()
        return store
    files.refuse_link(store.path, "a store")
    with _disk_full_errors(store.path, request), writing(store.path, force=force) as lock:
        current = find_store(store.path, request)
        if current is None:
            raise gone(str(store.path))
        refuse_blind_workers(runner, store.path, current.manifest.store_id, write=True)
        lacks, damage = current.manifest.lacks, look(current)
        done = repair_damage(current, damage, runner, listen, lock, request)
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


def _disk_full_errors(path: Path, request: KernelRequest) -> AbstractContextManager[None]:
    """A disk without room: said with what is still needed. What is there stays."""
    default_edge = request.block or default_block(request.n_samples)

    def needed() -> str:
        done, edge, written = 0, default_edge, 0
        if is_store(path):
            manifest = Manifest.read(path)
            done, edge = len(manifest.tiles_done), manifest.block_size
            written = written_bytes(manifest.factors)
        parts = []
        if request.factored:
            rest = factor_bytes(request.factors, request.n_samples) - written
            parts.append(
                f"{human_bytes(written)} of factors are kept, the others need up to "
                f"{human_bytes(max(0, rest))}"
            )
        if not request.tiled:
            return parts[0]
        tiles = Tiling(request.n_samples, edge).n_tiles
        size = edge * edge * _entry_bytes(request)
        need = human_bytes((tiles - done) * size)
        parts.append(f"{done} of {tiles} tiles are kept, the others need up to {need}")
        return ", ".join(parts)

    advice = "make room and run the same command again, it resumes"
    return disk_full_errors(path, advice, needed, _files_of(request, default_edge))


def _entry_bytes(request: KernelRequest) -> int:
    """What is written for a pair of samples."""
    own = len(request.tiled) - len(request.in_gram)
    gram = 0 if request.gram is None else request.gram.itemsize
    return own * STORED_BYTES[request.precision] + gram


def _files_of(request: KernelRequest, edge: int) -> int:
    """A store is a file for each tile of each array, and folders for the rows of tiles."""
    tiling = Tiling(request.n_samples, edge)
    arrays = len(request.tiled) - len(request.in_gram) + (request.gram is not None)
    tiles = arrays * (tiling.n_tiles + tiling.n_blocks)
    diagonals = len(request.tiled) * (tiling.n_blocks + 8)  # metadata as well
    blocks = 10 * ceil_div(request.n_samples, FACTOR_ROWS) if request.factored else 0
    return tiles + diagonals + blocks + _OTHER_FILES


@dataclass(frozen=True)
class _Build:
    """A build under the lock of its store."""

    request: KernelRequest
    runner: Runner
    listen: Listener
    lock: LockInfo

    def create(self, path: Path, edge: int) -> KernelStore:
        """A new store; where the data themselves cannot be used, nothing is left of it."""
        empty_before = files.exists(path)
        try:
            store = KernelStore.create(path, self.request.manifest(edge), self.request.corpus)
            self._check_workers(store)
            return self._fill(store)
        except (InputError, BlindWorkersError):
            # no later try could finish this store
            delete_store(path, ignore_errors=True)
            if empty_before:
                files.make_folders(path)
            raise

    def resume(self, store: KernelStore) -> KernelStore:
        if store.manifest.complete:
            return store
        self._check_workers(store)
        return self._fill(self._with_inputs(store))

    def _check_workers(self, store: KernelStore) -> None:
        refuse_blind_workers(self.runner, store.path, store.manifest.store_id, write=True)

    def _with_inputs(self, store: KernelStore) -> KernelStore:
        """A build that broke off, with inputs and metadata that are damaged written again.

        Tiles of damaged features would be wrong and carry digests that say they are right.
        """
        request, damage = self.request, find_damage_beside_tiles(store)
        m = store.manifest
        everything = [BadTile(name, t, "") for name in m.array_names for t in range(m.n_tiles)]
        clear_places(store, replace(damage, tiles=tuple(everything)))
        if damage.metadata or damage.inputs or (request.corpus and not store.manifest.features):
            rewrite_metadata(store, damage)
            store, _ = rewrite_inputs(store, damage, request, [])
        if any(name.startswith(("norms/", "gram_rows/")) for name in damage.vectors):
            # nothing that was made with them can be trusted: begin with the statistics
            for folder in ("norms", "gram_rows"):
                files.remove_folder(store.path, folder)
            m = store.manifest
            fresh = structs.replace(
                request.manifest(m.block_size), store_id=m.store_id, features=m.features
            )
            fresh.write(store.path)
            store = replace(store, manifest=fresh)
            rewrite_metadata(store, Damage(tuple(bad_metadata(store.path, fresh))))
        done = store.manifest.tiles_done
        if done and not store.manifest.tile_summaries:  # of an earlier format
            done = tuple(sorted(self._intact_tiles(store, ignore)))
            table = TileTable(store.names, store.manifest.n_tiles, {}, SUMMARY_BYTES)
            table.update(summarize_tiles(store, done, self.runner))
            store = store.with_manifest(tiles_done=done, tile_summaries=table.as_text(store.names))
        return store

    def _fill(self, store: KernelStore) -> KernelStore:
        request = self.request
        features: Features = request.features if request.corpus is None else store.features()
        if request.factored:
            store = self._write_factors(store, features)
        if not store.names:
            confirm(store.path, self.lock)
            return store.with_manifest(resolved=True, complete=True)
        if not store.manifest.resolved:
            store = self._resolved(store, features)
        return self._write_tiles(store, features)

    def _resolved(self, store: KernelStore, features: Features) -> KernelStore:
        """The store with the statistics of its kernels, which come before the first tile."""
        request, chosen = self.request, store.manifest.gram
        found = resolve_by_tasks(
            request.kernels,
            features,
            store.tiling,
            self.runner,
            self.listen,
            distances=chosen is not None,
        )
        vectors = {f"norms/{name}": values for name, values in found.norms.items()}
        confirm(store.path, self.lock)
        gram = None
        if chosen is not None:
            gram = GramRecord.of(with_statistics(chosen.matrix, found, request.features))
            rows = row_vectors(features)
            vectors |= {name: rows[name] for name in gram.matrix.vectors}
            # what it is kept as may have changed; the next try mends what a crash leaves here
            metadata = gram_layout(structs.replace(store.manifest, gram=gram)).fields()
            write_metadata(store.path, GRAM, metadata)
        store.write_new_vectors(vectors)
        return store.with_vectors(
            vectors,
            kernels=tuple(map(KernelRecord.of, found.kernels)),
            gram=gram,
            resolved=True,
        )

    def _write_factors(self, store: KernelStore, features: Features) -> KernelStore:
        runner = self.runner
        if self.request.given_factors:  # they live in this process, and so do their tasks
            runner = Runner(n_threads=runner.n_threads)
        arrays = StoreArrays(store, runner, lambda: confirm(store.path, self.lock))
        arrays.build(factor_stages(self.request.factors, features, arrays), self.listen)
        return arrays.store

    def _write_tiles(self, store: KernelStore, features: Features) -> KernelStore:
        request, tiling = self.request, store.tiling
        kernels = resolved_kernels(store, request.tiled)
        own = tuple(kernel for kernel in kernels if kernel.name in store.manifest.own_names)
        if store.manifest.nearest is None:  # what was compared so far must be what is compared on
            norms = store.norms() if own else {}
            sample = PairTile.at(features, tiling, min(1, tiling.n_tiles - 1)).corner()
            planned = DuplicateCandidates.plan(own, sample, norms, request.precision)
            gram = store.manifest.gram
            alike = {} if gram is None else nearest_tables(gram.matrix, kernels)
            confirm(store.path, self.lock)
            store = store.with_manifest(
                nearest={**planned.nearest, **{name: other for name, (other, _) in alike.items()}},
                differences={name: apart for name, (_, apart) in alike.items()},
            )
        own_names = set(store.manifest.own_names)
        nearest = {a: b for a, b in (store.manifest.nearest or {}).items() if a in own_names}
        candidates = DuplicateCandidates(nearest, CODE_SCALE[request.precision] or 1.0)
        write = WriteTiles(for_tasks(store), features, kernels, candidates)
        m, names, arrays = store.manifest, store.names, store.manifest.array_names
        done = self._intact_tiles(store, self.listen)
        digests = TileTable(arrays, tiling.n_tiles, m.digests)
        summaries = TileTable(arrays, tiling.n_tiles, m.tile_summaries, SUMMARY_BYTES)
        minima = dict(m.stored_minima or dict.fromkeys(names, np.inf))
        apart = dict(m.differences)
        sizes: dict[tuple[str, int], int] = {}

        def save(**changes: Any) -> KernelStore:
            confirm(store.path, self.lock)
            return store.with_manifest(
                tiles_done=tuple(sorted(done)),
                stored_minima=minima,
                differences=apart,
                digests=digests.as_text(arrays),
                tile_summaries=summaries.as_text(arrays),
                **changes,
            )

        def show_progress() -> None:
            entry = len(own) * STORED_BYTES[request.precision]
            entry += 0 if m.gram is None else m.gram.matrix.itemsize
            tile_bytes = tiling.block**2 * entry
            self.listen(StageProgress("write", len(done), tiling.n_tiles, len(done) * tile_bytes))

        last_saved = time.monotonic()
        show_progress()
        todo = [t for t in range(tiling.n_tiles) if t not in done]
        for batch in run_batches(write, todo, tiling, self.runner):
            for written in batch:
                for name in names:
                    minima[name] = min(minima[name], written.minima[name])
                for name, value in written.differences.items():
                    apart[name] = max(apart.get(name, 0.0), value)
                digests.update(written.digests)
                summaries.update(written.summaries)
                sizes |= written.sizes
                done.update(t for _, t in written.sizes)
            show_progress()
            if time.monotonic() - last_saved > _SECONDS_BETWEEN_MANIFESTS:
                store = save()
                last_saved = time.monotonic()
        stored_as = store.manifest.stored_as
        if not stored_as:  # else decided by a build that broke off: tiles to compare may be gone
            equal = store.equal_kernels()
            stored_as = stored_names(names, equal, nearest, apart, request.merge_duplicates)
        # first what stands for what, then removing, then complete: a kill between loses nothing
        store = save(stored_as=stored_as)
        store.drop_merged()
        return self._complete(store, sizes)

    def _intact_tiles(self, store: KernelStore, listen: Listener) -> set[int]:
        """Marked tiles of a build that broke off which are there to the last bit.

        A mark is on the disk before its tiles are: after a power cut they may be missing.
        """
        marked = store.manifest.tiles_done
        if not marked:
            return set()
        return set(marked) - {bad.t for bad in find_bad_tiles(store, marked, self.runner, listen)}

    def _complete(self, store: KernelStore, sizes: dict[tuple[str, int], int]) -> KernelStore:
        """Mark a store complete once every chunk is known to be there.

        What an earlier process wrote was read and compared when this one began; what this one
        wrote is there in its full length. Bytes are compared when they are first used.
        """
        size_of, stored = store.tile_sizes(), set(store.manifest.stored_arrays)
        lost = {t for (name, t), n in sizes.items() if name in stored and size_of(name, t) != n}
        if lost:
            confirm(store.path, self.lock)
            left = tuple(t for t in store.manifest.tiles_done if t not in lost)
            store.with_manifest(tiles_done=left)
            raise DamagedStoreError(
                f"{len(lost)} tiles of {store.path} were changed or removed while it was built: "
                "see who else works there, then run the same build again"
            )
        m, kept = store.manifest, set(store.manifest.stored_as)
        own = [name for name in store.names if name in kept]
        diagonals = write_diagonals(store, {name: _diagonal(store, name) for name in own})
        arrays = m.stored_arrays
        confirm(store.path, self.lock)
        return store.with_vectors(
            diagonals,
            digests={name: m.digests[name] for name in arrays},
            tile_summaries={name: m.tile_summaries[name] for name in arrays},
            complete=True,
        )


def _diagonal(store: KernelStore, name: str) -> Floats:
    """From tiles or lengths of samples, which have digests of their own."""
    try:
        return made_diagonal(store, name)
    except StoreGoneError:
        raise
    except DamagedStoreError as error:
        own = name in store.manifest.own_names
        changed = f"tiles of kernel {name}" if own else "the lengths of samples"
        raise DamagedStoreError(
            f"{changed} in {store.path} were changed while it was built: see who else works "
            "there, then run the same build again"
        ) from error


def stored_names(
    names: Sequence[str],
    equal: Mapping[str, str],
    nearest: Mapping[str, str],
    apart: Mapping[str, float],
    tolerance: float,
) -> tuple[str, ...]:
    """The kernel whose tiles stand for each: itself, an equal one, or one within the tolerance.

    Differences add up along a chain of kernels, so that none is replaced by one further away.
    """
    stands: dict[str, tuple[str, float]] = {}
    for name in names:
        stands[name] = stands.get(equal.get(name, ""), (name, 0.0))
        if name not in equal and name in nearest and name in apart:
            other, away = stands[nearest[name]]
            away += apart[name]
            if away <= tolerance:
                stands[name] = other, away
    return tuple(stands[name][0] for name in names)
