"""Dask tasks on tiles: compute and write them in a few dozen batches of tile groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import dask.array as da
import numpy as np
import numpy.typing as npt
from msgspec import structs

from gmkcf_dask.compute.runner import Runner
from gmkcf_dask.errors import InputError
from gmkcf_dask.kernels.duplicates import Comparison, Differences
from gmkcf_dask.kernels.features import Features, PairTile
from gmkcf_dask.kernels.statistics import Summary
from gmkcf_dask.kernels.tiles import Norms, ResolvedKernel, stored_tiles
from gmkcf_dask.kernels.tiling import Tiling
from gmkcf_dask.store.kernel_store import KernelStore
from gmkcf_dask.system.units import ceil_div

_BATCHES = 32


def tiles_per_build_task(tiling: Tiling) -> int:
    """Tiles that one task makes."""
    # a task reads its features and opens its arrays once: worth a few small tiles, not many large
    return tiling.tiles_per_task(8)


def batches(tiles: Sequence[int], per_task: int) -> Iterator[npt.NDArray[np.int64]]:
    """Tiles in a few dozen batches: between batches progress shows and the manifest is kept."""
    n_tasks = ceil_div(len(tiles), per_task)
    step = per_task * max(4, ceil_div(n_tasks, _BATCHES))
    for start in range(0, len(tiles), step):
        yield np.asarray(tiles[start : start + step], dtype=np.int64)


def run_tasks(
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

    def graph() -> da.Array:
        index = da.from_array(tiles, chunks=per_task)
        return index.map_blocks(
            runner.task(boxed),
            dtype=object,
            chunks=((1,) * index.numblocks[0],),
            meta=np.empty(0, object),
            name=f"gmkcf-build-{uuid4().hex}",  # else Dask would hash all a task holds for a name
        )

    # a tile that is made twice is the same tile
    found = list(runner.retry(lambda: runner.compute(graph())))
    for result in found:
        if isinstance(result, InputError):
            raise result
    return found


@dataclass(frozen=True)
class Written:
    """What a task wrote.

    Attributes
    ----------
    minima : dict of float
        Each kernel's smallest value.
    differences : dict of float
        How far kernels are from those they are compared with.
    tiles : dict
        By (kernel, tile), the digest and the size of its chunk.
    summaries : dict
        By (kernel, tile), the `Summary` of its stored values, as bytes.
    """

    minima: dict[str, float]
    differences: Differences
    tiles: dict[tuple[str, int], tuple[bytes, int]]
    summaries: dict[tuple[str, int], bytes]


@dataclass(frozen=True)
class WriteTiles:
    """Task: compute and write the tiles of every kernel, or of those wanted."""

    store: KernelStore
    features: Features
    kernels: tuple[ResolvedKernel, ...]
    comparison: Comparison
    wanted: Mapping[int, frozenset[str]] | None = None
    """By tile, the kernels to write; None for all."""

    def __call__(self, tiles: npt.NDArray[np.int64]) -> Written:
        norms: Norms = self.store.norms()
        written = Written(dict.fromkeys(self.store.names, np.inf), {}, {}, {})
        for t in map(int, tiles):
            tile = pair_tile(self.features, self.store.tiling, t)
            kernels = self.kernels
            if self.wanted is not None:
                kernels = tuple(k for k in kernels if k.name in self.wanted[t])
            made = stored_tiles(kernels, tile, norms, self.store.manifest.precision)
            # one kernel is compressed and written while the next is computed
            with ThreadPoolExecutor(1) as writer:
                last: Future[None] | None = None
                for name, stored, smallest in self.comparison.watch(made, written.differences):
                    if last is not None:
                        last.result()
                    last = writer.submit(self._keep, t, name, stored, written)
                    written.minima[name] = min(written.minima[name], smallest)
                if last is not None:
                    last.result()
        return written

    def _keep(self, t: int, name: str, stored: npt.NDArray[Any], written: Written) -> None:
        written.tiles[name, t] = self.store.reader.write(name, t, stored)
        written.summaries[name, t] = Summary.of(stored).to_bytes()


def for_tasks(store: KernelStore) -> KernelStore:
    """A store to travel inside tasks: without what the manifest has for each of its tiles."""
    manifest = structs.replace(
        store.manifest, digests={}, tiles_done=(), features={}, tile_summaries={}
    )
    return replace(store, manifest=manifest)


def resolved_kernels(store: KernelStore, specs: Any) -> tuple[ResolvedKernel, ...]:
    """Specs with the options and statistics that the store has of them."""
    by_name = {record.name: record for record in store.manifest.kernels}
    return tuple(ResolvedKernel(spec=spec, **by_name[spec.name].options) for spec in specs)


def diagonal_from_tiles(store: KernelStore, name: str) -> npt.NDArray[np.float64]:
    """The diagonal of a kernel, from its tiles."""
    kernel, room = store.names.index(name), store.reader.buffer()
    on_diagonal = [t for t, (i, j) in enumerate(store.tiling.pairs()) if i == j]
    with store.reader.ahead([kernel], on_diagonal) as reader:
        parts = [
            np.diagonal(reader.raw(kernel, t, room)).astype(np.float64) * reader.scale()
            for t in on_diagonal
        ]
    return np.concatenate(parts)


def pair_tile(features: Features, tiling: Tiling, t: int) -> PairTile:
    """The samples of tile t."""
    i, j = tiling.pair(t)
    return PairTile(features, tiling.rows(i), tiling.rows(j))
