"""Kernels computed tile by tile: in this process for small data, in batches of Dask tasks else.

Both group tiles in the same way and use the same functions, so that both give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import chain, count
from operator import add
from threading import Lock
from typing import Any
from uuid import uuid4

import dask.array as da
import numpy as np
import numpy.typing as npt

from gmkcf_dask.compute.blas import on_cores
from gmkcf_dask.compute.runner import Runner
from gmkcf_dask.errors import InputError
from gmkcf_dask.events import Listener, StageProgress, ignore
from gmkcf_dask.kernels.features import Features, PairTile
from gmkcf_dask.kernels.statistics import Kernels, TileStatistics, resolve, run_here
from gmkcf_dask.kernels.tiles import STORED_DTYPE, stored_tiles
from gmkcf_dask.kernels.tiling import Precision, Tiling
from gmkcf_dask.system.arrays import Floats
from gmkcf_dask.system.units import ceil_div

Tiles = npt.NDArray[np.int64]
_BATCHES = 32


@dataclass(frozen=True)
class BuiltTiles:
    """Kernels in memory, as they would be stored, with their statistics."""

    stacks: tuple[npt.NDArray[Any], ...]
    """One per tile, each of shape (m, len I, len J)."""
    kernels: Kernels
    norms: dict[str, Floats]
    """By kernel, what normalisation divides by, shape (n,)."""


def tiles_of(
    kernels: Kernels,
    features: Features,
    block: int,
    precision: Precision,
    listen: Listener = ignore,
) -> BuiltTiles:
    """Compute the tiles of kernels in this process; each kernel may have options of its own."""
    tiling = Tiling(features.n_samples, block)
    everything, step = range(tiling.n_tiles), tiles_per_build_task(tiling)
    lock, done = Lock(), count(1)

    def sweep(gather: Callable[[PairTile], TileStatistics], what: str) -> TileStatistics:
        groups = [everything[t : t + step] for t in range(0, tiling.n_tiles, step)]
        listen(StageProgress(what, 0, tiling.n_tiles))
        parts = on_cores(lambda: partial(run_here, gather, features, tiling), groups)
        listen(StageProgress(what, tiling.n_tiles, tiling.n_tiles))
        return reduce(add, parts)

    def make(t: int) -> npt.NDArray[Any]:
        stack = np.empty((len(kernels), *tiling.shape(t)), STORED_DTYPE[precision])
        tile = PairTile.at(features, tiling, t)
        for out, (_, stored, _) in zip(
            stack, stored_tiles(kernels, tile, norms, precision), strict=True
        ):
            out[...] = stored
        with lock:
            listen(StageProgress("kernels", next(done), tiling.n_tiles))
        return stack

    kernels, norms = resolve(kernels, features, tiling, sweep)
    return BuiltTiles(tuple(on_cores(lambda: make, everything)), kernels, norms)


def resolve_by_tasks(
    kernels: Kernels, features: Features, tiling: Tiling, runner: Runner, listen: Listener
) -> tuple[Kernels, dict[str, Floats]]:
    """What `statistics.resolve` returns, its sweeps made by tasks."""

    def sweep(gather: Callable[[PairTile], TileStatistics], what: str) -> TileStatistics:
        return sweep_tiles(gather, features, tiling, runner, listen, what)

    return resolve(kernels, features, tiling, sweep)


def sweep_tiles(
    gather: Callable[[PairTile], TileStatistics],
    features: Features,
    tiling: Tiling,
    runner: Runner,
    listen: Listener = ignore,
    stage: str = "",
) -> TileStatistics:
    """Gather statistics over all tiles, merged in tile order batch by batch, to stay small."""
    task = partial(run_here, gather, features, tiling)
    batches = run_batches(task, range(tiling.n_tiles), tiling, runner, listen, stage)
    total: TileStatistics = reduce(add, chain.from_iterable(batches))
    return total


def tiles_per_build_task(tiling: Tiling) -> int:
    """Tiles that one task makes."""
    # a task reads its features and opens its arrays once: worth a few small tiles, not many large
    return tiling.tiles_per_task(8)


def run_batches(
    task: Callable[[Tiles], Any],
    tiles: Sequence[int],
    tiling: Tiling,
    runner: Runner,
    listen: Listener = ignore,
    stage: str = "",
) -> Iterator[list[Any]]:
    """Run a task on groups of tiles, in a few dozen graphs; yields the results of each, in order.

    Between graphs progress shows, and the caller can save its own.
    """
    per_task = tiles_per_build_task(tiling)
    step = per_task * max(4, ceil_div(ceil_div(len(tiles), per_task), _BATCHES))
    listen(StageProgress(stage, 0, len(tiles)))
    for start in range(0, len(tiles), step):
        batch = np.asarray(tiles[start : start + step], dtype=np.int64)
        yield run_tasks(task, batch, per_task, runner)
        listen(StageProgress(stage, start + len(batch), len(tiles)))


def run_tasks(
    task: Callable[[Tiles], Any], tiles: Tiles, per_task: int, runner: Runner
) -> list[Any]:
    """One graph: the task on each group of tiles, results in order."""

    def boxed(block: Tiles) -> npt.NDArray[np.object_]:
        box = np.empty(1, dtype=object)
        try:
            box[0] = task(block)
        except InputError as error:
            # as a value: the other tasks finish, and no worker logs a traceback
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
    results = list(runner.retry(lambda: runner.compute(graph())))
    for result in results:
        if isinstance(result, InputError):
            raise result
    return results
