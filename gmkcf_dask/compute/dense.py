"""Kernels in the memory of this process: the operator for small data, and no Dask at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from gmkcf_dask.compute.blas import on_cores, one_blas_thread
from gmkcf_dask.compute.costs import products_per_weight_step
from gmkcf_dask.compute.operators import (
    BaseFusedKernel,
    Overview,
    check_finite,
    concat_factors,
    error_floor,
    products_in_order,
)
from gmkcf_dask.compute.overview import GroupSums, overview_of
from gmkcf_dask.compute.tile_ops import (
    Errors,
    FusedTiles,
    Load,
    MemoryTiles,
    Partial,
    Product,
    ProductEach,
    TreeSum,
    arrays_of,
    as_factor,
    assemble,
    assemble_each,
    distinct_kernels,
    error_factors,
    has_tables,
    own_arrays,
    sums_of_bins,
)
from gmkcf_dask.kernels.tiling import Precision
from gmkcf_dask.system.arrays import AnyFloats, Floats

if TYPE_CHECKING:
    from gmkcf_dask.store.kernel_store import KernelStore

DEFAULT_BLOCK = 512  # a tile of the rank-2k matrix then stays in cache while m kernels pass over it
_THREADS_FROM = 400  # samples below which a product is over before a thread has started
_T = TypeVar("_T")


class DenseKernels:
    """m kernels in memory, each as the tiles of one triangle.

    Parameters
    ----------
    tiles : MemoryTiles
    names : sequence of str
    keep_fused : bool
        Whether fused kernels are kept between their products; else they are fused for each.
    """

    most_columns = 1 << 16  # wide products are the cheapest here

    def __init__(
        self, tiles: MemoryTiles, names: Sequence[str], *, keep_fused: bool = True
    ) -> None:
        self.names = tuple(names)
        self.n_samples = tiles.tiling.n
        self._reader = tiles
        self.keep_fused = keep_fused
        self.error_floor = error_floor(tiles.dtype)
        # memory of fused tiles that were released, for the next ones: no page is faulted in twice
        self.spare_tiles: dict[int, AnyFloats] = {}

    @classmethod
    def from_store(cls, store: KernelStore, *, keep_fused: bool = True) -> DenseKernels:
        """All tiles of a store, read once."""
        reader = store.reader
        arrays, every_tile = arrays_of(reader), range(reader.tiling.n_tiles)
        own, gram = own_arrays(reader), reader.gram
        with reader.ahead(arrays, every_tile) as fetched:

            def read(t: int) -> tuple[npt.NDArray[Any] | None, npt.NDArray[Any] | None]:
                shape, stack, kept = reader.tiling.shape(t), None, None
                if own:
                    stack, room = np.empty((len(own), *shape), reader.stored_dtype), reader.buffer()
                    for tile, kernel in zip(stack, own, strict=True):
                        tile[...] = fetched.raw(kernel, t, room)
                if gram is not None:
                    # edge tiles are in the corner of a larger chunk
                    kept = np.ascontiguousarray(fetched.raw(gram.number, t))
                return stack, kept

            read_tiles = on_cores(lambda: read, every_tile)
        stacks = tuple(stack for stack, _ in read_tiles if stack is not None)
        kept = tuple(tile for _, tile in read_tiles if tile is not None)
        tiles = MemoryTiles(stacks, reader.tiling, reader.code_scale, reader.stored, gram, kept)
        return cls(tiles, store.names, keep_fused=keep_fused)

    @property
    def block_size(self) -> int:
        """Edge of the tiles."""
        return self._reader.tiling.block

    @cached_property
    def traces(self) -> Floats:
        return np.array([self.diagonal(i).sum() for i in range(len(self.names))])

    semidefinite = False

    @cached_property
    def nonnegative(self) -> bool:
        gram = self._reader.gram
        if gram is not None and not gram.nonnegative:
            return False
        return all(bool(stack.min() >= 0) for stack in self._reader.stacks)

    @property
    def products_per_weight_step(self) -> int:
        gram, m = self._reader.gram, len(distinct_kernels(self._reader))
        if gram is not None:
            return products_per_weight_step(m, gram.precision)
        precision: Precision = "float64" if self._reader.dtype == np.float64 else "float32"
        if self._reader.code_scale:
            precision = "compact"
        return products_per_weight_step(m, precision)

    def diagonal(self, i: int) -> Floats:
        gram = self._reader.gram
        if gram is not None and i in gram.by_number:
            return gram.diagonal(i)
        on_diagonal = (t for t, (row, col) in enumerate(self._reader.tiling.pairs()) if row == col)
        parts = [np.diagonal(self._reader.raw(i, t)) for t in on_diagonal]
        return np.concatenate(parts).astype(np.float64) * self._reader.scale()

    def fuse(self, weights: Floats, *, keep: bool = True) -> DenseFusedKernel:
        return DenseFusedKernel(self, weights, keep=self.keep_fused)

    def single(self, i: int) -> DenseFusedKernel:
        return self.fuse(np.eye(len(self.names))[i])

    def errors(self, U: Floats, V: Floats) -> Floats:
        F = as_factor(error_factors(U, V), self._reader.dtype)
        if has_tables(self._reader):
            total = self.sum_groups(lambda: Errors(self._reader, F).with_bins)
            sums = sums_of_bins(total, self._reader)
        else:
            sums = np.sum(self.map_groups(lambda: Errors(self._reader, F)), axis=0)
        return check_finite(self.traces + sums, "the reconstruction error")

    def matmul_each(self, Zs: Floats | Sequence[Floats], *, split: bool = False) -> list[Floats]:
        Z, columns = concat_factors(Zs, len(self.names))
        factor = as_factor(Z, self._reader.dtype)
        wanted = {i: own for i, own in enumerate(columns) if own.stop > own.start}
        total = self.sum_groups(lambda: ProductEach(self._reader, wanted, factor, split=split))
        each = assemble_each(total, self._reader.tiling, wanted, split=split)
        return products_in_order(each, self.names, self.n_samples)

    def overview(self, groups: npt.NDArray[np.integer], n_groups: int) -> Overview:
        of = np.ascontiguousarray(groups, np.int32)
        return overview_of(
            self.sum_groups(lambda: GroupSums(self._reader, of, n_groups)), self._reader
        )

    @cached_property
    def _groups(self) -> list[range]:
        tiling = self._reader.tiling
        step = tiling.tiles_per_task(self._reader.dtype.itemsize)
        return [range(t, min(t + step, tiling.n_tiles)) for t in range(0, tiling.n_tiles, step)]

    def sum_groups(self, prepare: Callable[[], Callable[[range], Partial]]) -> Partial:
        """The sum of the work on all groups of tiles, added up as it is done."""
        tree, numbers = TreeSum(len(self._groups)), {g.start: i for i, g in enumerate(self._groups)}

        def adding() -> Callable[[range], None]:
            work = prepare()
            return lambda group: tree.add(numbers[group.start], work(group))

        self.map_groups(adding)
        return tree.total

    def map_groups(self, prepare: Callable[[], Callable[[range], _T]]) -> list[_T]:
        """The work on each group of tiles, prepared once per core; results in tile order."""
        groups = self._groups
        with one_blas_thread():
            if self.n_samples < _THREADS_FROM:
                return list(map(prepare(), groups))
            return on_cores(prepare, groups)


class DenseFusedKernel(BaseFusedKernel):
    """Σ weights_i K^i as tiles in memory, fused when first multiplied, or for each product."""

    def __init__(self, stack: DenseKernels, weights: Floats, *, keep: bool = True) -> None:
        super().__init__(stack, weights)
        self._stack, self._keep = stack, keep
        self._source = FusedTiles.of(stack._reader, weights)
        self._tiles: dict[int, AnyFloats] = {}

    def loader(self) -> Load:
        fuse = self._source.loader()
        if not self._keep:
            return fuse

        def load(t: int, into: AnyFloats | None) -> AnyFloats:
            if t not in self._tiles:
                self._tiles[t] = fuse(t, self._stack.spare_tiles.pop(t, None))
            return self._tiles[t]

        return load

    def release(self) -> None:
        self._stack.spare_tiles |= self._tiles
        self._tiles = {}

    def _product(self, Z: Floats, *, split: bool) -> Floats:
        reader = self._stack._reader
        factor = as_factor(Z, reader.dtype)
        total = self._stack.sum_groups(lambda: Product(self, factor, reader.tiling, split=split))
        width = Z.shape[1] * (2 if split else 1)
        return check_finite(assemble(total, reader.tiling, width), "K Z")
