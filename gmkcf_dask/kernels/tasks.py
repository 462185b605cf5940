"""Work on tiles as Dask graphs: a function on groups of tiles, a few dozen batches of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any
from uuid import uuid4

import dask.array as da
import numpy as np
import numpy.typing as npt

from gmkcf_dask.errors import InputError
from gmkcf_dask.graph import Runner
from gmkcf_dask.plan import Tiling, ceil_div

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
