"""What tasks do on workers: tiles by number in, boxed partial products out. Plain NumPy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gmkcf_dask.compute.overview import Groups, GroupSums
from gmkcf_dask.compute.tile_ops import (
    Errors,
    FusedTiles,
    Load,
    Partial,
    Product,
    ProductEach,
    StoredSource,
    TileReader,
)
from gmkcf_dask.kernels.tiling import Tiling
from gmkcf_dask.system.arrays import AnyFloats, Floats

if TYPE_CHECKING:
    from gmkcf_dask.store.scratch import ScratchTiles

Indices = npt.NDArray[np.int64]
Boxes = npt.NDArray[np.object_]


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
        return plain(self.block[t - self.first, :rows, :cols])


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
    return block, box(Product(tiles_of_block, plain(Z), tiling, split=split)(map(int, tiles)))


def first_of(pair: tuple[AnyFloats, Boxes]) -> AnyFloats:
    """The fused tiles."""
    return pair[0]


def second_of(pair: tuple[AnyFloats, Boxes]) -> Boxes:
    """The partial product."""
    return pair[1]


def plain(values: AnyFloats) -> AnyFloats:
    """In C order and aligned: what came over a network may be neither, and NumPy then sums the
    same numbers in another order."""
    return np.require(values, requirements=["C_CONTIGUOUS", "ALIGNED"])


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
    return box(Product(source, plain(Z), tiling, split=split)(map(int, tiles)), kw.ndim)


def product_task(
    tiles: Indices, Z: AnyFloats, source: StoredSource, tiling: Tiling, split: bool
) -> Boxes:
    """What tiles of a source give for Z."""
    with source.ahead(map(int, tiles)) as fetched:
        return box(Product(fetched, plain(Z), tiling, split=split)(map(int, tiles)))


def product_each_task(
    tiles: Indices, Z: AnyFloats, reader: TileReader, columns: dict[int, slice], split: bool
) -> Boxes:
    """What tiles of several kernels give, each for its own columns of Z."""
    with reader.ahead(columns, map(int, tiles)) as fetched:
        return box(ProductEach(fetched, columns, plain(Z), split=split)(map(int, tiles)))


def errors_task(tiles: Indices, F: AnyFloats, reader: TileReader) -> Floats:
    """What tiles add to the errors of all kernels, shape (1, m)."""
    with reader.ahead(with_tiles(reader), map(int, tiles)) as fetched:
        return Errors(fetched, plain(F))(map(int, tiles))[None]


def overview_task(tiles: Indices, Z: Groups, reader: TileReader, n_groups: int) -> Boxes:
    """What tiles add to the sums over groups of samples, and to the products between kernels."""
    groups = np.require(Z, requirements=["C_CONTIGUOUS", "ALIGNED"])
    with reader.ahead(with_tiles(reader), map(int, tiles)) as fetched:
        return box(GroupSums(fetched, groups, n_groups)(map(int, tiles)))


def with_tiles(reader: TileReader) -> list[int]:
    """Kernels that have tiles of their own, in the order of a sweep over all."""
    return sorted(set(reader.stored))


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
