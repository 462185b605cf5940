"""Building kernels: in memory for small data, into a store through Dask for the rest.

Both walk the same tiles with the same functions; only who holds the result differs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial, reduce
from itertools import count
from operator import add
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from gmkcf_dask.blas import on_cores
from gmkcf_dask.corpus.model import Floats
from gmkcf_dask.errors import (
    BlindWorkersError,
    DamagedStoreError,
    DiskFullError,
    InputError,
    StoreError,
    StoreGoneError,
)
from gmkcf_dask.events import Listener, StageProgress, ignore
from gmkcf_dask.files import exists, free_bytes, is_full, make_folders, missing_folders
from gmkcf_dask.graph import Runner
from gmkcf_dask.kernels.check import features_hold, find_bad_tiles
from gmkcf_dask.kernels.digests import DigestTable
from gmkcf_dask.kernels.duplicates import Comparison, stored_names
from gmkcf_dask.kernels.features import Features, PairTile
from gmkcf_dask.kernels.lease import Lease, confirm, writing
from gmkcf_dask.kernels.manifest import Manifest, differences, vector_digest
from gmkcf_dask.kernels.preflight import refuse_blind_workers
from gmkcf_dask.kernels.request import KernelRequest
from gmkcf_dask.kernels.statistics import Gathered, resolve, run_here
from gmkcf_dask.kernels.store import KernelStore, delete_store, is_store, records
from gmkcf_dask.kernels.tasks import batches, run_tasks, tiles_per_build_task
from gmkcf_dask.kernels.tiles import CODE_SCALE, STORED_DTYPE, ResolvedKernel, stored_tiles
from gmkcf_dask.kernels.writing import (
    WriteTiles,
    diagonal_from_tiles,
    for_tasks,
    pair_tile,
    resolved_kernels,
)
from gmkcf_dask.plan import STORED_BYTES, Precision, Tiling, default_block, human_bytes
from gmkcf_dask.security import refuse_link

_SECONDS_BETWEEN_MANIFESTS = 2.0


Tell = Callable[[tuple[ResolvedKernel, ...], dict[str, Floats]], object]


def tell_nobody(kernels: tuple[ResolvedKernel, ...], norms: dict[str, Floats]) -> None:
    """Of those who want nothing but tiles."""


def build_tiles(
    request: KernelRequest, block: int, listen: Listener = ignore, tell: Tell = tell_nobody
) -> tuple[npt.NDArray[Any], ...]:
    """The tiles of every kernel, in this process, as they would be stored.

    `tell` is told what was found on the way: the kernels' statistics, and the norms of samples.

    Returns
    -------
    tuple of ndarray, one per tile, each of shape (m, len I, len J)
    """
    return tiles_of(request.kernels, request.features, block, request.precision, listen, tell)


def tiles_of(
    kernels: tuple[ResolvedKernel, ...],
    features: Features,
    block: int,
    precision: Precision,
    listen: Listener = ignore,
    tell: Tell = tell_nobody,
) -> tuple[npt.NDArray[Any], ...]:
    """The same for kernels that may have options of their own each; see `build_tiles`."""
    tiling = Tiling(features.n_samples, block)
    everything, step = range(tiling.n_tiles), tiles_per_build_task(tiling)
    lock, done = Lock(), count(1)

    def sweep(gather: Callable[[PairTile], Gathered], what: str) -> Gathered:
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
    tell(kernels, norms)
    return tuple(on_cores(lambda: make, everything))


def find_store(path: Path, request: KernelRequest) -> KernelStore | None:
    """The store at a path if it is, finished or not, the one requested; refused if another.

    Returns None where there is nothing yet.
    """
    if not is_store(path):
        return None
    store = KernelStore.open(path, incomplete=True)
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
) -> KernelStore:
    """Write all kernels of a request into a store, or finish one that was begun.

    Parameters
    ----------
    path : Path
    request : KernelRequest
    runner : Runner
        Where tile tasks run. Precomputed matrices live in this process, and so do their tasks.
    block : int, optional
        The plan's tile edge for a new store.
    force : bool
        Take over the lease of a writer that is gone.
    """
    store = find_store(path, request)
    if store is not None and store.manifest.complete:
        return store  # read only: what is merged was removed before it was marked
    if request.precomputed:
        runner = Runner(n_threads=runner.n_threads)
    refuse_link(path, "a store")
    KernelStore.check_place(path)
    missing = missing_folders(path)
    make_folders(path.parent)
    try:
        with _told_when_full(path, request), writing(path, force=force) as lease:
            store = find_store(path, request)  # another writer may have been here meanwhile
            if store is not None:
                return _fill(store, request, runner, listen, lease, found_there=True)
            edge = block or request.block or default_block(request.n_samples)
            return _make(path, request, edge, runner, listen, lease)
    except InputError:
        for folder in missing[1:]:
            with suppress(OSError):  # somebody put something there meanwhile
                folder.rmdir()
        raise


def _make(
    path: Path, request: KernelRequest, edge: int, runner: Runner, listen: Listener, lease: Lease
) -> KernelStore:
    """A new store; where the data themselves cannot be used, nothing is left of it."""
    empty_before = exists(path)
    try:
        store = KernelStore.create(path, request.manifest(edge), request.corpus)
        return _fill(store, request, runner, listen, lease)
    except (InputError, BlindWorkersError):
        # no later try could finish this store
        delete_store(path, ignore_errors=True)
        if empty_before:
            make_folders(path)
        raise


@contextmanager
def _told_when_full(path: Path, request: KernelRequest) -> Iterator[None]:
    """A disk without room: said with what is still needed. What is there stays."""
    try:
        yield
    except OSError as error:
        if not is_full(error):
            raise
        done, edge = 0, request.block or default_block(request.n_samples)
        if is_store(path):
            manifest = Manifest.read(path)
            done, edge = len(manifest.tiles_done), manifest.block_size
        tiles = Tiling(request.n_samples, edge).n_tiles
        size = edge * edge * STORED_BYTES[request.precision] * len(request.specs)
        free = free_bytes(path.parent) or 0
        raise DiskFullError(
            f"the disk of {path} is full: {done} of {tiles} tiles are kept, the others need up to "
            f"{human_bytes((tiles - done) * size)} and {human_bytes(free)} are free; make room and "
            "run the same again, it goes on from there"
        ) from error


def _fill(
    store: KernelStore,
    request: KernelRequest,
    runner: Runner,
    listen: Listener,
    lease: Lease,
    *,
    found_there: bool = False,
) -> KernelStore:
    if store.manifest.complete:
        return store
    refuse_blind_workers(runner, store.path, store.manifest.store_id, write=True)
    features: Features = request.features if request.corpus is None else store.features()
    if found_there:
        _refuse_other_features(store, features, request)
    if not store.manifest.resolved:
        store = _resolve_into(store, request, features, runner, listen, lease)
    return _write_tiles(store, request, features, runner, listen, lease)


def _refuse_other_features(store: KernelStore, features: Features, request: KernelRequest) -> None:
    """Tiles of damaged features would be wrong and carry digests that say they are right."""
    if request.corpus is None:
        return
    # the offset is no part of the digest, but known from the features that are asked for
    same = features_hold(store) and np.array_equal(
        np.asarray(features.offset, np.float64),
        np.asarray(request.features.offset, np.float64),
        equal_nan=True,
    )
    if not same:
        raise DamagedStoreError(
            f"the features in {store.path}, a build that broke off, are not what was written "
            "there: remove the store and build it again, or build it at another path"
        )


def _resolve_into(
    store: KernelStore,
    request: KernelRequest,
    features: Features,
    runner: Runner,
    listen: Listener,
    lease: Lease,
) -> KernelStore:
    tiling, per_task = store.tiling, tiles_per_build_task(store.tiling)

    def sweep(gather: Callable[[PairTile], Gathered], what: str) -> Gathered:
        def run(block: npt.NDArray[np.int64]) -> Gathered:
            return run_here(gather, features, tiling, (int(t) for t in block))

        total: list[Gathered] = []  # nothing or one: folded batch by batch, to stay small
        listen(StageProgress(what, 0, tiling.n_tiles))
        for group in batches(range(tiling.n_tiles), per_task):
            total = [reduce(add, total + run_tasks(run, group, per_task, runner))]
            done = int(group[-1]) + 1
            listen(StageProgress(what, done, tiling.n_tiles))
        return total[0]

    kernels, norms = resolve(request.kernels, features, tiling, sweep)
    confirm(store.path, lease)
    vectors = store.write_norms(norms)
    return store.with_manifest(kernels=records(kernels), resolved=True, vectors=vectors)


def _write_tiles(
    store: KernelStore,
    request: KernelRequest,
    features: Features,
    runner: Runner,
    listen: Listener,
    lease: Lease,
) -> KernelStore:
    kernels = resolved_kernels(store, request.specs)
    tiling, per_task = store.tiling, tiles_per_build_task(store.tiling)
    if store.manifest.nearest is None:  # what was compared so far must be what is compared on
        sample = pair_tile(features, tiling, min(1, tiling.n_tiles - 1)).corner()
        planned = Comparison.plan(kernels, sample, store.norms(), request.precision)
        confirm(store.path, lease)
        store = store.with_manifest(nearest=dict(planned.nearest))
    nearest = store.manifest.nearest or {}
    comparison = Comparison(nearest, CODE_SCALE[request.precision] or 1.0)
    write = WriteTiles(for_tasks(store), features, kernels, comparison)
    done = _tiles_that_hold(store, runner, listen)
    table = DigestTable(store.names, tiling.n_tiles, store.manifest.digests)
    minima = dict(store.manifest.stored_minima or dict.fromkeys(store.names, np.inf))
    apart = dict(store.manifest.differences)
    sizes: dict[tuple[str, int], int] = {}
    todo = [t for t in range(tiling.n_tiles) if t not in done]
    tile_bytes = len(kernels) * tiling.block**2 * STORED_BYTES[request.precision]

    def keep(**changes: Any) -> KernelStore:
        confirm(store.path, lease)
        return store.with_manifest(
            tiles_done=tuple(sorted(done)),
            stored_minima=minima,
            differences=apart,
            digests=table.as_text(store.names),
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
    return _complete(store, sizes, lease)


def _tiles_that_hold(store: KernelStore, runner: Runner, listen: Listener) -> set[int]:
    """Marked tiles of a build that broke off which are there to the last bit.

    A mark is on the disk before its tiles are: after a power cut they may be missing.
    """
    marked = store.manifest.tiles_done
    if not marked:
        return set()
    bad = find_bad_tiles(store, marked, runner, listen)
    return set(marked) - {tile.t for tile in bad}


def _complete(store: KernelStore, sizes: dict[tuple[str, int], int], lease: Lease) -> KernelStore:
    """Mark a store complete once every chunk is known to be there.

    What an earlier process wrote was read and compared when this one began; what this one wrote is
    there in its full length. Bytes are compared when they are first used.
    """
    size_of, stored = store.tile_sizes(), set(store.manifest.stored_as)
    lost = {t for (name, t), size in sizes.items() if name in stored and size_of(name, t) != size}
    if lost:
        confirm(store.path, lease)
        left = tuple(t for t in store.manifest.tiles_done if t not in lost)
        store.with_manifest(tiles_done=left)
        raise DamagedStoreError(
            f"{len(lost)} tiles of {store.path} were changed or removed while it was built: see "
            "who else works there, then run the same build again"
        )
    vectors = {**store.manifest.vectors, **_write_diagonals(store)}
    confirm(store.path, lease)
    digests = {name: store.manifest.digests[name] for name in store.names if name in stored}
    return store.with_manifest(vectors=vectors, digests=digests, complete=True)


def _write_diagonals(store: KernelStore) -> dict[str, str]:
    """Diagonals from tiles, which have digests of their own; returns those of the diagonals."""
    digests = {}
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
                digests[f"diagonals/{name}"] = vector_digest(values)
    return {f"diagonals/{name}": digests[f"diagonals/{name}"] for name in store.names}
