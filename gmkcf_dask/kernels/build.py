"""Building kernels: in memory for small data, into a store through Dask for the rest.

Both walk the same tiles with the same functions; only who holds the result differs.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial, reduce
from itertools import count
from operator import add
from pathlib import Path
from threading import Lock
from typing import Any
from uuid import uuid4

import dask.array as da
import numpy as np
import numpy.typing as npt

from gmkcf_dask.blas import on_cores
from gmkcf_dask.corpus.model import Corpus
from gmkcf_dask.errors import InputError, StoreError
from gmkcf_dask.events import Listener, StageProgress, ignore
from gmkcf_dask.graph import Runner
from gmkcf_dask.kernels.duplicates import Comparison, Differences, stored_names
from gmkcf_dask.kernels.features import ArrayFeatures, Features, NoFeatures, PairTile
from gmkcf_dask.kernels.manifest import (
    Manifest,
    corpus_digests,
    differences,
    matrices_digest,
    package_versions,
)
from gmkcf_dask.kernels.specs import (
    NORMALIZATIONS,
    SCALINGS,
    KernelSpec,
    Normalization,
    Precomputed,
    Scaling,
    check_matrix,
    check_names,
    check_option,
)
from gmkcf_dask.kernels.statistics import Gathered, resolve, run_here
from gmkcf_dask.kernels.store import KernelStore, is_store, new_manifest_id, records
from gmkcf_dask.kernels.tiles import (
    CODE_SCALE,
    STORED_DTYPE,
    Norms,
    ResolvedKernel,
    resolve_options,
    stored_tiles,
)
from gmkcf_dask.plan import STORED_BYTES, Precision, Tiling, ceil_div, default_block

_BATCHES = 32
_SECONDS_BETWEEN_MANIFESTS = 2.0


@dataclass(frozen=True)
class KernelRequest:
    """Which kernels are wanted of which data, with every option that changes their values.

    Parameters
    ----------
    corpus : Corpus or None
        None where every kernel is precomputed.
    specs : tuple of KernelSpec
    block : int or None
        Tile edge; None leaves the choice to the plan, and lets any existing store do.
    merge_duplicates : float
        Kernels of a store that differ nowhere by more than this share their tiles.
    """

    corpus: Corpus | None
    specs: tuple[KernelSpec, ...]
    normalization: Normalization = "unit"
    scaling: Scaling = "minmax"
    precision: Precision = "float32"
    block: int | None = None
    merge_duplicates: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.merge_duplicates < 1.0:
            raise InputError(
                f"merge_duplicates must be a tolerance from 0 to 1, not {self.merge_duplicates}"
            )
        check_option("normalization", self.normalization, NORMALIZATIONS)
        check_option("scaling", self.scaling, SCALINGS)
        check_option("precision", self.precision, tuple(STORED_BYTES))
        check_names(self.specs)
        for spec in self.precomputed:
            check_matrix(spec, self.n_samples)

    @property
    def n_samples(self) -> int:
        if self.corpus is not None:
            return self.corpus.n_samples
        first = self.specs[0]
        assert isinstance(first, Precomputed)
        return int(first.matrix.shape[0])

    @property
    def kernels(self) -> tuple[ResolvedKernel, ...]:
        """Kernels with their options, statistics not yet known."""
        return tuple(resolve_options(s, self.normalization, self.scaling) for s in self.specs)

    @property
    def features(self) -> Features:
        if self.corpus is None:
            return NoFeatures(self.n_samples)
        return ArrayFeatures(self.corpus.X)

    @property
    def precomputed(self) -> tuple[Precomputed, ...]:
        return tuple(spec for spec in self.specs if isinstance(spec, Precomputed))

    @cached_property
    def inputs(self) -> dict[str, str]:
        """Digests of all that comes in."""
        inputs = {} if self.corpus is None else corpus_digests(self.corpus)
        if self.precomputed:
            inputs["precomputed kernels"] = matrices_digest(self.precomputed)
        return inputs

    def manifest(self, block: int) -> Manifest:
        """The manifest of a new store for this request."""
        return Manifest(
            store_id=new_manifest_id(),
            n_samples=self.n_samples,
            n_features=0 if self.corpus is None else self.corpus.n_features,
            block_size=block,
            precision=self.precision,
            kernels=records(self.kernels),
            inputs=self.inputs,
            versions=package_versions(),
            merge_tolerance=self.merge_duplicates,
        )


def build_tiles(
    request: KernelRequest, block: int, listen: Listener = ignore
) -> tuple[npt.NDArray[Any], ...]:
    """The tiles of every kernel, in this process, as they would be stored.

    Returns
    -------
    tuple of ndarray, one per tile, each of shape (m, len I, len J)
    """
    features, tiling = request.features, Tiling(request.n_samples, block)
    everything, step = range(tiling.n_tiles), _tiles_per_build_task(tiling)
    lock, done = Lock(), count(1)

    def sweep(gather: Callable[[PairTile], Gathered], what: str) -> Gathered:
        # grouped as the tasks of a store are, so that both get the same bits
        groups = [everything[t : t + step] for t in range(0, tiling.n_tiles, step)]
        return reduce(add, on_cores(lambda: partial(run_here, gather, features, tiling), groups))

    def make(t: int) -> npt.NDArray[Any]:
        stack = np.empty((len(kernels), *tiling.shape(t)), STORED_DTYPE[request.precision])
        tile = _pair_tile(features, tiling, t)
        for room, (_, stored, _) in zip(
            stack, stored_tiles(kernels, tile, norms, request.precision), strict=True
        ):
            room[...] = stored
        with lock:
            listen(StageProgress("kernels", next(done), tiling.n_tiles))
        return stack

    kernels, norms = resolve(request.kernels, features, tiling, sweep)
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
    """
    store = find_store(path, request)
    if store is not None and store.manifest.complete:
        store.drop_merged()  # where that was broken off
        return store
    if request.precomputed:
        runner = Runner(n_threads=runner.n_threads)
    if store is not None:
        return _fill(store, request, runner, listen)
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    empty_before = path.exists()
    try:
        edge = block or request.block or default_block(request.n_samples)
        store = KernelStore.create(path, request.manifest(edge), request.corpus)
        return _fill(store, request, runner, listen)
    except InputError:
        # the data themselves cannot be used: no later try could finish this store
        shutil.rmtree(path, ignore_errors=True)
        if empty_before:
            path.mkdir()
        for folder in missing[1:]:
            with suppress(OSError):  # somebody put something there meanwhile
                folder.rmdir()
        raise


def _fill(
    store: KernelStore, request: KernelRequest, runner: Runner, listen: Listener
) -> KernelStore:
    features: Features = request.features if request.corpus is None else store.features()
    if not store.manifest.resolved:
        store = _resolve_into(store, request, features, runner, listen)
    return _write_tiles(store, request, features, runner, listen)


def _resolve_into(
    store: KernelStore,
    request: KernelRequest,
    features: Features,
    runner: Runner,
    listen: Listener,
) -> KernelStore:
    tiling, per_task = store.tiling, _tiles_per_build_task(store.tiling)

    def sweep(gather: Callable[[PairTile], Gathered], what: str) -> Gathered:
        def run(block: npt.NDArray[np.int64]) -> Gathered:
            return run_here(gather, features, tiling, (int(t) for t in block))

        total: list[Gathered] = []  # nothing or one: folded batch by batch, to stay small
        listen(StageProgress(what, 0, tiling.n_tiles))
        for group in _batches(range(tiling.n_tiles), per_task):
            total = [reduce(add, total + _run_tasks(run, group, per_task, runner))]
            done = int(group[-1]) + 1
            listen(StageProgress(what, done, tiling.n_tiles))
        return total[0]

    kernels, norms = resolve(request.kernels, features, tiling, sweep)
    store.write_norms(norms)
    return store.with_manifest(kernels=records(kernels), resolved=True)


def _write_tiles(
    store: KernelStore,
    request: KernelRequest,
    features: Features,
    runner: Runner,
    listen: Listener,
) -> KernelStore:
    kernels = tuple(
        ResolvedKernel(spec=spec, **{k: v for k, v in vars(record).items() if k != "name"})
        for spec, record in zip(request.specs, store.manifest.kernels, strict=True)
    )
    tiling = store.tiling
    if store.manifest.nearest is None:  # what was compared so far must be what is compared on
        sample = _pair_tile(features, tiling, min(1, tiling.n_tiles - 1)).corner()
        planned = Comparison.plan(kernels, sample, store.norms(), request.precision)
        store = store.with_manifest(nearest=dict(planned.nearest))
    nearest = store.manifest.nearest or {}
    comparison = Comparison(nearest, CODE_SCALE[request.precision] or 1.0)
    write = _WriteTiles(store, features, kernels, comparison)
    tiling, per_task = store.tiling, _tiles_per_build_task(store.tiling)
    done = set(store.manifest.tiles_done)
    minima = dict(store.manifest.stored_minima or dict.fromkeys(store.names, np.inf))
    apart = dict(store.manifest.differences)
    todo = [t for t in range(tiling.n_tiles) if t not in done]
    last_written = time.monotonic()
    tile_bytes = len(kernels) * tiling.block**2 * STORED_BYTES[request.precision]
    listen(StageProgress("write", len(done), tiling.n_tiles, len(done) * tile_bytes))
    for group in _batches(todo, per_task):
        for lowest, found in _run_tasks(write, group, per_task, runner):
            minima = {name: min(minima[name], lowest[name]) for name in minima}
            apart |= {name: max(apart.get(name, 0.0), value) for name, value in found.items()}
        done.update(int(t) for t in group)
        listen(StageProgress("write", len(done), tiling.n_tiles, len(done) * tile_bytes))
        if time.monotonic() - last_written > _SECONDS_BETWEEN_MANIFESTS:
            store = store.with_manifest(
                tiles_done=tuple(sorted(done)), stored_minima=minima, differences=apart
            )
            last_written = time.monotonic()
    equal = store.equal_kernels()
    store = store.with_manifest(
        tiles_done=tuple(sorted(done)),
        stored_minima=minima,
        differences=apart,
        stored_as=stored_names(store.names, equal, nearest, apart, request.merge_duplicates),
        complete=True,
    )
    store.drop_merged()
    return store


@dataclass(frozen=True)
class _WriteTiles:
    """Task: compute and write the tiles of every kernel.

    Returns each kernel's smallest value, and how far kernels are from those they are compared with.
    """

    store: KernelStore
    features: Features
    kernels: tuple[ResolvedKernel, ...]
    comparison: Comparison

    def __call__(self, tiles: npt.NDArray[np.int64]) -> tuple[dict[str, float], Differences]:
        norms: Norms = self.store.norms()
        minima: dict[str, float] = dict.fromkeys(self.store.names, np.inf)
        differences: Differences = {}
        for t in tiles:
            tile = _pair_tile(self.features, self.store.tiling, int(t))
            made = stored_tiles(self.kernels, tile, norms, self.store.manifest.precision)
            # one kernel is compressed and written while the next is computed
            with ThreadPoolExecutor(1) as writer:
                last: Future[None] | None = None
                for name, stored, smallest in self.comparison.watch(made, differences):
                    if last is not None:
                        last.result()
                    last = writer.submit(self._write, int(t), tile, name, stored)
                    minima[name] = min(minima[name], smallest)
                if last is not None:
                    last.result()
        return minima, differences

    def _write(self, t: int, tile: PairTile, name: str, stored: npt.NDArray[Any]) -> None:
        self.store.reader.write(name, t, stored)
        if tile.on_diagonal:
            diagonal = np.diagonal(stored).astype(np.float64) * self.store.reader.scale()
            self.store.array(f"diagonals/{name}")[tile.rows] = diagonal


def _pair_tile(features: Features, tiling: Tiling, t: int) -> PairTile:
    i, j = tiling.pair(t)
    return PairTile(features, tiling.rows(i), tiling.rows(j))


def _tiles_per_build_task(tiling: Tiling) -> int:
    # a task reads its features and opens its arrays once: worth a few small tiles, not many large
    return tiling.tiles_per_task(8)


def _batches(tiles: Sequence[int], per_task: int) -> Iterator[npt.NDArray[np.int64]]:
    """Tiles in a few dozen batches: between batches progress shows and the manifest is kept."""
    n_tasks = ceil_div(len(tiles), per_task)
    step = per_task * max(4, ceil_div(n_tasks, _BATCHES))
    for start in range(0, len(tiles), step):
        yield np.asarray(tiles[start : start + step], dtype=np.int64)


def _run_tasks(
    task: Callable[[npt.NDArray[np.int64]], Any],
    tiles: npt.NDArray[np.int64],
    per_task: int,
    runner: Runner,
) -> list[Any]:
    """One graph: the task on each group of tiles, results in order."""

    def boxed(block: npt.NDArray[np.int64]) -> npt.NDArray[np.object_]:
        box = np.empty(1, dtype=object)
        try:
            box[0] = task(block)
        except InputError as error:
            # as a value: the other tasks come to their end, and no worker logs a traceback
            box[0] = error
        return box

    index = da.from_array(tiles, chunks=per_task)
    chunks = ((1,) * index.numblocks[0],)
    results = index.map_blocks(
        boxed,
        dtype=object,
        chunks=chunks,
        meta=np.empty(0, object),
        name=f"gmkcf-build-{uuid4().hex}",  # else Dask would hash all a task holds for a name
    )
    found = list(runner.compute(results))
    for result in found:
        if isinstance(result, InputError):
            raise result
    return found
