"""Kernels in a store, multiplied by Dask: the operator for everything larger than memory.

Graphs are Dask arrays over the numbers of the upper-triangle tiles, g tiles per block. Every task
returns only the rows its tiles touch, and a tree whose shape follows from n and the tile size alone
sums them in tile order: the result is the same bits on every scheduler.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import dask.array as da
import numpy as np
import numpy.typing as npt
from dask.delayed import Delayed, delayed

from gmkcf_dask.compute.costs import (
    FEW_COLUMNS,
    SUM_BYTES,
    SUMMED_AT_ONCE,
    products_per_weight_step,
    resident_bytes,
)
from gmkcf_dask.compute.operators import (
    BaseFusedKernel,
    Overview,
    check_finite,
    concat_factors,
    error_floor,
    products_in_order,
)
from gmkcf_dask.compute.overview import Groups, GroupSums, overview_of
from gmkcf_dask.compute.plan import Plan, Residency, fits_worker
from gmkcf_dask.compute.runner import Runner, WorkerSize
from gmkcf_dask.compute.tile_ops import (
    Errors,
    FusedTiles,
    Load,
    Partial,
    Product,
    ProductEach,
    StoredSource,
    TileReader,
    arrays_of,
    as_factor,
    assemble,
    assemble_each,
    contiguous,
    distinct_kernels,
    error_factors,
    has_tables,
    sums_of_bins,
)
from gmkcf_dask.errors import ClusterWarning, UnfitWorker
from gmkcf_dask.kernels.tiling import Tiling
from gmkcf_dask.system.arrays import AnyFloats, Floats
from gmkcf_dask.system.units import human_bytes

if TYPE_CHECKING:
    from gmkcf_dask.store.kernel_store import KernelStore
    from gmkcf_dask.store.scratch import ScratchTiles


Indices = npt.NDArray[np.int64]
Boxes = npt.NDArray[np.object_]


class TiledKernels:
    """m kernels of a store.

    Parameters
    ----------
    store : KernelStore
    runner : Runner
        Where the graphs run.
    residency : {"memory", "scratch", "recompute"}
        Where a fused kernel lives between its products; the plan decides.
    reconsider : callable
        From where fused kernels lived so far to where the next one shall: asked before each.
    prefetch_bytes : int, optional
        Memory of a process for tiles of an object store that are fetched ahead; the plan decides.
    """

    def __init__(
        self,
        store: KernelStore,
        runner: Runner,
        residency: Residency = "memory",
        reconsider: Callable[[Residency], Residency] = lambda residency: residency,
        prefetch_bytes: int | None = None,
    ) -> None:
        self.names = store.names
        self.n_samples = store.n_samples
        if residency == "scratch" and not store.keeps_scratch:
            residency = "recompute"
        self.residency = residency
        self._reconsider = reconsider
        self._store = store
        self._runner = runner
        self._reader = store.reader
        if prefetch_bytes is not None:
            self._reader = replace(self._reader, prefetch_bytes=prefetch_bytes)
        self._scratch = store.new_scratch_folder()
        self.error_floor = error_floor(self._reader.dtype)

    @property
    def most_columns(self) -> int:
        return max(FEW_COLUMNS, SUM_BYTES // ((SUMMED_AT_ONCE + 1) * 8 * self.n_samples))

    @cached_property
    def traces(self) -> Floats:
        return np.array([self.diagonal(i).sum() for i in range(len(self.names))])

    semidefinite = False

    @property
    def nonnegative(self) -> bool:
        minima = self._store.manifest.stored_minima
        assert minima is not None
        return min(minima[self.names[i]] for i in distinct_kernels(self._reader)) >= 0.0

    @property
    def products_per_weight_step(self) -> int:
        kernels = len(distinct_kernels(self._reader))
        return products_per_weight_step(kernels, self._store.manifest.precision)

    def diagonal(self, i: int) -> Floats:
        return self._store.diagonal(i)

    def fuse(self, weights: Floats, *, keep: bool = True) -> TiledFusedKernel:
        return TiledFusedKernel(self, weights, self.residency_now() if keep else "recompute")

    def residency_now(self) -> Residency:
        """Where the next fused kernel lives: workers may have left since the last one."""
        self.residency = self._reconsider(self.residency)
        return self.residency

    def single(self, i: int) -> TiledFusedKernel:
        # reading one kernel again costs no more than reading a copy of it from disk
        return self.fuse(np.eye(len(self.names))[i], keep=self.residency == "memory")

    def errors(self, U: Floats, V: Floats) -> Floats:
        F = error_factors(U, V)
        if has_tables(self._reader):
            total = self._computed(
                lambda: self.summed(errors_with_bins_task, self.factor(F), reader=self._reader)
            )
            sums = sums_of_bins(unbox(total), self._reader)
        else:
            sums = np.sum(self._computed(lambda: self._error_sums(F)), axis=0)
        return check_finite(self.traces + sums, "the reconstruction error")

    def matmul_each(self, Zs: Floats | Sequence[Floats], *, split: bool = False) -> list[Floats]:
        Z, columns = concat_factors(Zs, len(self.names))
        each: dict[int, Floats] = {}
        for kernels in self._within_memory(columns, split=split):
            needed = np.unique(np.concatenate([np.r_[columns[i]] for i in kernels]))
            first = int(needed[0])
            own = {i: slice(columns[i].start - first, columns[i].stop - first) for i in kernels}
            products = partial(
                self.summed,
                product_each_task,
                self.factor(Z[:, needed]),
                reader=self._reader,
                columns=own,
                split=split,
            )
            summed = unbox(self._computed(products))
            each |= assemble_each(summed, self._reader.tiling, own, split=split)
        return products_in_order(each, self.names, self.n_samples)

    def overview(self, groups: npt.NDArray[np.integer], n_groups: int) -> Overview:
        of = np.ascontiguousarray(groups, np.int32)

        def sums() -> da.Array:
            rides = delayed(of, name=_unique("groups"), traverse=False)
            return self.summed(overview_task, rides, reader=self._reader, n_groups=n_groups)

        return overview_of(unbox(self._computed(sums)), self._reader)

    def _within_memory(self, columns: Sequence[slice], *, split: bool) -> Iterator[list[int]]:
        """Kernels whose products are summed in one graph; a kernel is in one only, so read once."""
        group: list[int] = []
        size = 0
        for kernel, own in enumerate(columns):
            width = (own.stop - own.start) * (2 if split else 1)
            need = (SUMMED_AT_ONCE + 1) * 8 * self.n_samples * width
            if group and need and size + need > SUM_BYTES:
                yield group
                group, size = [], 0
            if need:
                group.append(kernel)
                size += need
        if group:
            yield group

    def _computed(self, graph: Callable[[], da.Array]) -> Any:
        """The result of a graph, made anew where workers or the connection were lost."""
        return self._runner.retry(lambda: self._runner.compute(graph()))

    # graph pieces

    def _error_sums(self, F: Floats) -> da.Array:
        """What every group of tiles adds to the m errors, shape (groups, m)."""
        return da.blockwise(
            self._runner.task(errors_task),
            "im",
            self.index(),
            "i",
            new_axes={"m": len(self.names)},
            adjust_chunks={"i": 1},
            F=self.factor(F),
            reader=self._reader,
            dtype=np.float64,
            meta=np.empty((0, 0)),
            name=_unique("errors"),
        )

    def index(self) -> da.Array:
        """Tile numbers, g per block, made inside the tasks that use them."""
        tiling = self._reader.tiling
        per_task = tiling.tiles_per_task(self._reader.dtype.itemsize)
        starts = range(0, tiling.n_tiles, per_task)
        return da.map_blocks(
            tile_numbers,
            chunks=(tuple(min(per_task, tiling.n_tiles - t) for t in starts),),
            dtype=np.int64,
            meta=np.empty(0, np.int64),
            name=_unique("index"),
            per_task=per_task,
            n_tiles=tiling.n_tiles,
        )

    def factor(self, Z: Floats) -> Delayed:
        """A factor as a value that rides in the graph: recomputable, unlike scattered data."""
        values = as_factor(Z, self._reader.dtype)
        return delayed(values, name=_unique("factor"), traverse=False)

    def riding(self, source: Any) -> Any:
        """Tables ride in the graph as factors do: once for each worker, not in every task."""
        if self._reader.gram is None:
            return source
        return delayed(source, name=_unique("source"), traverse=False)

    def summed(
        self, task: Any, factor: Delayed, kw: da.Array | None = None, **kwargs: Any
    ) -> da.Array:
        """The sum over all blocks of what a task makes of tile numbers, or fused tiles, and Z."""
        source = self.index() if kw is None else kw
        boxes = da.map_blocks(
            self._runner.task(task),
            source,
            # a box for each block, of as many dimensions: dropping any would add tasks
            chunks=((1,) * source.numblocks[0], *((1,) for _ in source.shape[1:])),
            Z=factor,
            dtype=object,
            meta=np.empty((0,) * source.ndim, object),
            name=_unique("partial"),
            **kwargs,
        )
        return _tree_sum(boxes)

    def fused_and_summed(
        self, source: FusedTiles, factor: Delayed, split: bool
    ) -> tuple[da.Array, da.Array]:
        """Fused tiles, shape (n_tiles, b, b), g tiles per block, and the sum of their products.

        One task makes both of a block: between two, Dask would move blocks from worker to worker.
        """
        tiling, index = self._reader.tiling, self.index()
        boxed: dict[str, Any] = {"dtype": object, "meta": np.empty(0, object)}
        boxed["chunks"] = ((1,) * index.numblocks[0],)
        pairs = da.map_blocks(
            self._runner.task(fuse_and_multiply_task),
            index,
            Z=factor,
            source=self.riding(source),
            tiling=tiling,
            split=split,
            name=_unique("fused"),
            **boxed,
        )
        kw = da.map_blocks(
            itemgetter(0),
            pairs,
            new_axis=[1, 2],
            chunks=(index.chunks[0], (tiling.block,), (tiling.block,)),
            dtype=self._reader.dtype,
            meta=np.empty((0, 0, 0), self._reader.dtype),
            name=_unique("kept"),
        )
        boxes = da.map_blocks(itemgetter(1), pairs, name=_unique("partial"), **boxed)
        return kw, _tree_sum(boxes)


class TiledFusedKernel(BaseFusedKernel):
    """Σ weights_i K^i over a store; fused and multiplied for the first time in one graph."""

    def __init__(self, stack: TiledKernels, weights: Floats, residency: Residency) -> None:
        super().__init__(stack, weights)
        self.residency = residency
        self._stack = stack
        self._fused = FusedTiles.of(stack._reader, weights)
        self._kept: da.Array | None = None
        self._scratch: ScratchTiles | None = None

    def release(self) -> None:
        self._kept = None
        if self._scratch is not None:
            self._stack._scratch.delete(self._scratch)
            self._scratch = None

    def _product(self, Z: Floats, *, split: bool) -> Floats:
        # a kept collection with a lost task stays lost: it is dropped, and fused again from w
        result = self._stack._runner.retry(lambda: self._summed_product(Z, split), self._start_over)
        width = Z.shape[1] * (2 if split else 1)
        return check_finite(assemble(unbox(result), self._stack._reader.tiling, width), "K Z")

    def _start_over(self) -> None:
        self.release()
        if self.residency == "memory":
            self.residency = self._stack.residency_now()

    def _summed_product(self, Z: Floats, split: bool) -> Any:
        stack, runner = self._stack, self._stack._runner
        factor = stack.factor(Z)
        options: dict[str, Any] = {"tiling": stack._reader.tiling, "split": split}
        if self.residency != "memory":
            with stack._scratch.disk_full_errors(self.release):
                source = stack.riding(self._tile_source())
                return runner.compute(stack.summed(product_task, factor, source=source, **options))
        if self._kept is None:
            self._kept, total = runner.persist(*stack.fused_and_summed(self._fused, factor, split))
            return runner.fetch(total)
        total = stack.summed(product_of_blocks_task, factor, self._kept, **options)
        with runner.prefer_holders(self._kept, as_is.__name__):
            return runner.compute(total)

    def _tile_source(self) -> StoredSource:
        """Where later products read from; the first one writes scratch as it goes."""
        if self.residency == "recompute":
            return self._fused
        if self._scratch is not None:
            return self._scratch
        self._scratch = self._stack._scratch.create()
        return WriteThrough(self._fused, self._scratch)


class ResidencyMonitor:
    """Checks before every fused kernel whether the workers still have room for it.

    Workers may join or leave during a fit. Tile size and tasks are fixed by the store; only where
    fused kernels live can change, which does not change the results.

    Parameters
    ----------
    runner : Runner
    plan : Plan
        Made for the workers at the start.
    disk_free : callable
        Free bytes for scratch space; None where there can be none, as in object stores.
    """

    def __init__(self, runner: Runner, plan: Plan, disk_free: Callable[[], int | None]) -> None:
        self._runner, self._plan, self._disk_free = runner, plan, disk_free
        self._workers: dict[str, WorkerSize] = {}

    def residency(self, previous: Residency) -> Residency:
        """Where the next fused kernel should live; never back to memory."""
        workers = self._runner.workers()
        if not workers or workers == self._workers:  # none: they may be starting
            return previous
        for address, worker in workers.items():
            if not fits_worker(self._plan, worker.memory, worker.threads):
                self._runner.exclude(_too_small(address, worker))
        self._workers = {a: w for a, w in workers.items() if a not in self._runner.excluded}
        if previous != "memory" or self._room_in_memory():
            return previous
        residency: Residency = "recompute"
        free = self._disk_free()
        if not self._plan.fuses_cheaply and free is not None and free >= 2 * self._plan.kw_bytes:
            residency = "scratch"
        words = {"scratch": "is kept on disk", "recompute": "is fused again for every product"}
        warnings.warn(
            f"{len(self._workers)} workers are left, too few to hold the fused kernel of "
            f"{human_bytes(self._plan.kw_bytes)} in memory: it {words[residency]} from here on",
            ClusterWarning,
            stacklevel=2,
        )
        return residency

    def _room_in_memory(self) -> bool:
        resident = resident_bytes(self._plan.kw_bytes, len(self._workers))
        return all(
            fits_worker(self._plan, worker.memory, worker.threads, resident)
            for worker in self._workers.values()
        )


def _too_small(address: str, worker: WorkerSize) -> UnfitWorker:
    error = UnfitWorker(
        f"worker {address} joined with {human_bytes(worker.memory)} of memory for {worker.threads} "
        "threads, less than a task of this store needs: give it more"
    )
    error.worker = address
    return error


def _tree_sum(boxes: da.Array) -> da.Array:
    """The sum of boxed partial products, eight at a time in tile order."""
    return da.reduction(
        boxes,
        chunk=as_is,
        combine=merge_boxes,
        aggregate=merge_boxes,
        axis=0,
        dtype=object,
        meta=np.empty((0,) * (boxes.ndim - 1), object),
        concatenate=False,
        split_every=SUMMED_AT_ONCE,
    )


def _unique(name: str) -> str:
    # a name used once can never meet an old failed or released result of the same name
    return f"gmkcf-{name}-{uuid4().hex}"


# tasks: tiles by number in, boxed partial products out


@dataclass(frozen=True)
class WriteThrough:
    """Tiles of a source, written to scratch space when they are loaded."""

    source: FusedTiles
    scratch: ScratchTiles

    @contextmanager
    def ahead(self, tiles: Iterable[int]) -> Iterator[WriteThrough]:
        with self.source.ahead(tiles) as source:
            yield replace(self, source=source)

    def loader(self) -> Load:
        fuse = self.source.loader()

        def load(t: int, into: AnyFloats | None) -> AnyFloats:
            tile = fuse(t, into)
            self.scratch.write(t, tile)
            return tile

        return load


@dataclass(frozen=True)
class BlockTiles:
    """Tiles inside a block of fused tiles."""

    block: AnyFloats
    first: int
    tiling: Tiling

    def loader(self) -> Load:
        return self._tile

    def _tile(self, t: int, into: AnyFloats | None) -> AnyFloats:
        rows, cols = self.tiling.shape(t)
        # edge tiles are padded: copied, BLAS gives the bits it gives for tiles in memory
        return contiguous(self.block[t - self.first, :rows, :cols])


def fuse_task(tiles: Indices, source: FusedTiles, tiling: Tiling) -> AnyFloats:
    """A block of fused tiles, shape (g, b, b)."""
    block = np.empty((len(tiles), tiling.block, tiling.block), source.reader.dtype)
    with source.ahead(map(int, tiles)) as fetched:
        load = fetched.loader()
        for out, t in zip(block, tiles, strict=True):
            rows, cols = tiling.shape(int(t))
            if (rows, cols) == out.shape:
                load(int(t), out)
            else:
                out[:rows, :cols] = load(int(t), None)
    return block


def fuse_and_multiply_task(
    tiles: Indices, Z: AnyFloats, source: FusedTiles, tiling: Tiling, split: bool
) -> tuple[AnyFloats, Boxes]:
    """A block of fused tiles, and what it gives for Z."""
    block = fuse_task(tiles, source, tiling)
    tiles_of_block = BlockTiles(block, int(tiles[0]), tiling)
    return block, box(Product(tiles_of_block, contiguous(Z), tiling, split=split)(map(int, tiles)))


def tile_numbers(block_id: tuple[int, ...], per_task: int, n_tiles: int) -> Indices:
    """Tiles of one block of a graph."""
    first = block_id[0] * per_task
    return np.arange(first, min(first + per_task, n_tiles))


def product_of_blocks_task(
    kw: AnyFloats, Z: AnyFloats, tiling: Tiling, split: bool, block_id: tuple[int, ...]
) -> Boxes:
    """What a block of fused tiles gives for Z."""
    tiles = tile_numbers(block_id, tiling.tiles_per_task(kw.itemsize), tiling.n_tiles)
    source = BlockTiles(kw, int(tiles[0]), tiling)
    return box(Product(source, contiguous(Z), tiling, split=split)(map(int, tiles)), kw.ndim)


def product_task(
    tiles: Indices, Z: AnyFloats, source: StoredSource, tiling: Tiling, split: bool
) -> Boxes:
    """What tiles of a source give for Z."""
    with source.ahead(map(int, tiles)) as fetched:
        return box(Product(fetched, contiguous(Z), tiling, split=split)(map(int, tiles)))


def product_each_task(
    tiles: Indices, Z: AnyFloats, reader: TileReader, columns: dict[int, slice], split: bool
) -> Boxes:
    """What tiles of several kernels give, each for its own columns of Z."""
    with reader.ahead(columns, map(int, tiles)) as fetched:
        return box(ProductEach(fetched, columns, contiguous(Z), split=split)(map(int, tiles)))


def errors_task(tiles: Indices, F: AnyFloats, reader: TileReader) -> Floats:
    """What tiles add to the errors of all kernels, shape (1, m)."""
    with reader.ahead(arrays_of(reader), map(int, tiles)) as fetched:
        return Errors(fetched, contiguous(F))(map(int, tiles))[None]


def errors_with_bins_task(tiles: Indices, Z: AnyFloats, reader: TileReader) -> Boxes:
    """The same where kernels have tables: what is summed by entry of them, besides."""
    with reader.ahead(arrays_of(reader), map(int, tiles)) as fetched:
        return box(Errors(fetched, contiguous(Z)).with_bins(map(int, tiles)))


def overview_task(tiles: Indices, Z: Groups, reader: TileReader, n_groups: int) -> Boxes:
    """What tiles add to the sums over groups of samples, and to the products between kernels."""
    with reader.ahead(distinct_kernels(reader), map(int, tiles)) as fetched:
        return box(GroupSums(fetched, contiguous(Z), n_groups)(map(int, tiles)))


def box(partial: Partial, ndim: int = 1) -> Boxes:
    """A partial product as a one-element array, which is what a Dask array is made of."""
    boxed = np.empty((1,) * ndim, dtype=object)
    boxed[(0,) * ndim] = partial
    return boxed


def unbox(boxed: Any) -> Partial:
    """The partial product inside."""
    return boxed if isinstance(boxed, Partial) else next(iter(np.ravel(boxed)))


def as_is(boxes: Boxes, axis: Any, keepdims: bool) -> Boxes:
    """The first step of a reduction, which has nothing to do here."""
    return boxes


def merge_boxes(boxes: Any, axis: Any, keepdims: bool) -> Boxes:
    """The sum of a few boxed partial products, in their order."""
    parts = boxes if isinstance(boxes, list) else [boxes]
    ndim = np.ndim(parts[0]) if keepdims else np.ndim(parts[0]) - 1
    return box(Partial.merge(unbox(part) for part in parts), ndim)
