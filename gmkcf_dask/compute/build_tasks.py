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
from gmkcf_dask.compute.tile_ops import MemoryTiles
from gmkcf_dask.errors import InputError, PlanRefused
from gmkcf_dask.events import Listener, StageProgress, ignore
from gmkcf_dask.kernels.features import Features, PairTile
from gmkcf_dask.kernels.gram import (
    GramKernels,
    GramMatrix,
    encode_gram,
    is_function_of_gram,
    lowest_product,
    lowest_value,
    row_vectors,
    with_statistics,
)
from gmkcf_dask.kernels.statistics import Kernels, Resolved, TileStatistics, resolve, run_here
from gmkcf_dask.kernels.tiles import CODE_SCALE, STORED_DTYPE, stored_tiles
from gmkcf_dask.kernels.tiling import Precision, Tiling
from gmkcf_dask.system.arrays import Floats
from gmkcf_dask.system.resources import free_memory
from gmkcf_dask.system.units import ceil_div, human_bytes

Tiles = npt.NDArray[np.int64]
_BATCHES = 32


@dataclass(frozen=True)
class BuiltTiles:
    """Kernels in memory, as they would be stored, with their statistics."""

    stacks: tuple[npt.NDArray[Any], ...]
    """One per tile, each of shape (m', len I, len J); of kernels with tiles of their own."""
    kernels: Kernels
    norms: dict[str, Floats]
    """By kernel, what normalisation divides by, shape (n,)."""
    gram: GramKernels | None = None
    gram_tiles: tuple[npt.NDArray[Any], ...] = ()
    """Of the Gram matrix, where kernels are evaluated from it."""

    def tiles(
        self, tiling: Tiling, precision: Precision, stored: tuple[int, ...] | None = None
    ) -> MemoryTiles:
        """The same for operators; `stored` is by kernel the number whose tiles stand for it."""
        m = len(self.kernels)
        each = tuple(range(m)) if stored is None else stored
        if self.gram is not None:
            each = (*(m if i in self.gram.by_number else own for i, own in enumerate(each)), m)
        scale = CODE_SCALE[precision]
        return MemoryTiles(self.stacks, tiling, scale, each, self.gram, self.gram_tiles)


def tiles_of(
    kernels: Kernels,
    features: Features,
    block: int,
    precision: Precision,
    listen: Listener = ignore,
    matrix: GramMatrix | None = None,
) -> BuiltTiles:
    """Compute the tiles of kernels in this process; each kernel may have options of its own.

    With `matrix` kernels that are functions of it have no tiles of their own.
    """
    tiling = Tiling(features.n_samples, block, gram=matrix is not None)
    everything, step = range(tiling.n_tiles), tiles_per_build_task(tiling)
    lock, done = Lock(), count(1)

    def sweep(gather: Callable[[PairTile], TileStatistics], what: str) -> TileStatistics:
        groups = [everything[t : t + step] for t in range(0, tiling.n_tiles, step)]
        listen(StageProgress(what, 0, tiling.n_tiles))
        parts = on_cores(lambda: partial(run_here, gather, features, tiling), groups)
        listen(StageProgress(what, tiling.n_tiles, tiling.n_tiles))
        return reduce(add, parts)

    found = resolve(kernels, features, tiling, sweep, distances=matrix is not None)
    kernels, norms, least = found.kernels, found.norms, []
    own = tuple(k for k in kernels if matrix is None or not is_function_of_gram(k.spec))
    if matrix is not None:
        chosen, matrix = matrix, with_statistics(matrix, found, features)
        _refuse_larger(chosen, matrix, tiling)

    def make(t: int) -> tuple[npt.NDArray[Any] | None, npt.NDArray[Any] | None]:
        stack, kept, tile = None, None, PairTile.at(features, tiling, t)
        if own:
            stack = np.empty((len(own), *tile.shape), STORED_DTYPE[precision])
            for out, (_, stored, _) in zip(
                stack, stored_tiles(own, tile, norms, precision), strict=True
            ):
                out[...] = stored
        if matrix is not None:
            kept = np.empty(tile.shape, matrix.dtype)
            encode_gram(matrix, tile, kept)
            least.append(lowest_product(matrix, tile))
        with lock:
            listen(StageProgress("kernels", next(done), tiling.n_tiles))
        return stack, kept

    made = on_cores(lambda: make, everything)
    stacks = tuple(stack for stack, _ in made if stack is not None)
    if matrix is None:
        return BuiltTiles(stacks, kernels, norms)
    vectors = {f"norms/{name}": values for name, values in norms.items()}
    vectors |= row_vectors(features)
    numbered = [(i, kernel) for i, kernel in enumerate(kernels) if kernel not in own]
    gram = GramKernels(
        matrix,
        precision,
        len(kernels),
        tuple(numbered),
        vectors.__getitem__,
        all(lowest_value(kernel, min(least)) >= 0.0 for _, kernel in numbered),
    )
    kept = tuple(tile for _, tile in made if tile is not None)
    return BuiltTiles(stacks, kernels, norms, gram, kept)


def _refuse_larger(chosen: GramMatrix, needed: GramMatrix, tiling: Tiling) -> None:
    """Refuse a matrix that turns out to be larger than was planned, and does not fit."""
    need = tiling.n_tiles * tiling.block**2 * needed.itemsize
    if needed.itemsize > chosen.itemsize and need > free_memory() * 8 // 10:
        raise PlanRefused(
            f"these kernels need {needed.itemsize} bytes of each pair of samples, "
            f"{human_bytes(need)} of memory, and {human_bytes(free_memory())} are free: give a "
            "store path to work out of core"
        )


def resolve_by_tasks(
    kernels: Kernels,
    features: Features,
    tiling: Tiling,
    runner: Runner,
    listen: Listener,
    *,
    distances: bool = False,
) -> Resolved:
    """What `statistics.resolve` returns, its sweeps made by tasks."""

    def sweep(gather: Callable[[PairTile], TileStatistics], what: str) -> TileStatistics:
        return sweep_tiles(gather, features, tiling, runner, listen, what)

    return resolve(kernels, features, tiling, sweep, distances=distances)


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
