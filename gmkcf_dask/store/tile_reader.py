"""Tiles of a store: how they are read, and what is said where one is not what was written."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gmkcf_dask.compute.tile_ops import FloatTiles
from gmkcf_dask.errors import DamagedStoreError, StoreGoneError
from gmkcf_dask.kernels.gram import GRAM, GramKernels
from gmkcf_dask.kernels.tiles import decode_tile
from gmkcf_dask.kernels.tiling import Tiling, encoded_bytes
from gmkcf_dask.store.chunks import (
    Codec,
    chunk_path,
    decode_chunk,
    holds,
    read_encoded,
    will_read,
    write_chunk,
)
from gmkcf_dask.store.digests import ledger_of, tile_digest
from gmkcf_dask.store.files import exists, size_of
from gmkcf_dask.store.layout import FILL_VALUE, gram_codec
from gmkcf_dask.store.manifest import MANIFEST
from gmkcf_dask.store.object_storage import is_remote, location
from gmkcf_dask.store.prefetch import Read, window


@dataclass(frozen=True)
class StoreTileReader:
    """Reads tiles of a store; small enough to travel inside every task."""

    path: str
    store_id: str
    names: tuple[str, ...]
    tiling: Tiling
    stored_dtype: str
    code_scale: float | None
    stored: tuple[int, ...]
    """By array, the number of the one whose tiles stand for it: arrays are kernels, and behind them
    the Gram matrix, if kernels are evaluated from it."""
    run: str
    """Each process compares a tile with its digest when it first reads it in a run."""
    prefetch_bytes: int = 0
    """Of an object store: memory of a process for tiles that are fetched ahead of their use."""
    fetched: Read | None = field(default=None, repr=False, compare=False)
    """Reads the bytes of tiles that were requested ahead; never sent to another process."""
    gram: GramKernels | None = None
    """The kernels that are evaluated from the Gram matrix."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of tiles once decoded."""
        if self.code_scale is not None:
            return np.dtype(np.float32)
        return np.dtype(self.stored_dtype)

    def dtype_of(self, array: int) -> str:
        """Dtype of an array as it is stored."""
        if self.gram is not None and array == self.gram.number:
            return self.gram.matrix.dtype
        return self.stored_dtype

    def buffer(self, array: int = 0) -> npt.NDArray[Any]:
        """Room for one tile of an array, to be used again and again."""
        return np.empty((self.tiling.block, self.tiling.block), self.dtype_of(array))

    def raw(self, kernel: int, t: int, into: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Tile t of a kernel as it is stored; with `into` it lives there until the next one.

        Raises a DamagedStoreError where the tile is missing, damaged, or another one.
        """
        rows, cols = self.tiling.shape(t)
        array = self.stored[kernel]
        name, fill = self.names[array], FILL_VALUE[self.dtype_of(array)]
        chunk = self.buffer(array) if into is None else into
        tile = chunk[:rows, :cols]
        # decoding runs from the first value to the last: if that is there, so are all
        tile[-1, -1] = fill
        encoded = self._encoded(name, t, chunk.nbytes)
        ledger = ledger_of(self.path, self.store_id, self.run)
        if not ledger.agrees(name, t, *self.tiling.pair(t), encoded):
            raise self._damaged(name, t, "is not what was written there")
        try:
            decode_chunk(encoded, chunk, self._codec(name))
        except (RuntimeError, ValueError) as error:
            raise self._damaged(name, t, f"cannot be read ({error})") from error
        if not holds(tile, fill):
            raise self._damaged(name, t, "is missing")
        return tile

    def _encoded(self, name: str, t: int, n_bytes: int) -> bytes:
        try:
            return (self.fetched or read_encoded)(self.file(name, t), n_bytes)
        except FileNotFoundError as error:
            if not exists(location(self.path) / MANIFEST):
                raise gone(self.path) from error
            raise self._damaged(name, t, "is missing") from error
        except (OSError, ValueError) as error:
            raise self._damaged(name, t, f"cannot be read ({error})") from error

    def write(self, name: str, t: int, tile: npt.NDArray[Any]) -> tuple[bytes, int]:
        """Write tile t of a kernel; returns the digest and the size of its chunk.

        Edge tiles are padded with the fill value, as Zarr has it.
        """
        if tile.shape != (self.tiling.block, self.tiling.block):
            fill = FILL_VALUE[tile.dtype.name]
            chunk = np.full_like(tile, fill, shape=(self.tiling.block, self.tiling.block))
            chunk[: tile.shape[0], : tile.shape[1]] = tile
            tile = chunk
        encoded = write_chunk(self.file(name, t), tile, self._codec(name))
        return tile_digest(name, *self.tiling.pair(t), encoded), len(encoded)

    def _codec(self, name: str) -> Codec:
        return "zstd" if self.gram is None or name != GRAM else gram_codec(self.gram.matrix)

    def size(self, name: str, t: int) -> int:
        """Bytes of a tile on disk; −1 where there is none."""
        return size_of(location(self.file(name, t)))

    def file(self, name: str, t: int) -> str:
        """Where tile t of a kernel lies."""
        return chunk_path(f"{self.path}/{array_folder(name)}", *self.tiling.pair(t))

    def expect(self, kernel: int, t: int) -> None:
        """Tile t of a kernel will be read next: the disk can begin with it."""
        will_read(self.file(self.names[self.stored[kernel]], t))

    @contextmanager
    def ahead(self, kernels: Iterable[int], tiles: Iterable[int]) -> Iterator[StoreTileReader]:
        """A reader for one task that reads tiles of these kernels, tile by tile in this order.

        From an object store many are fetched at once. What is not read is dropped at the end.
        """
        if not (self.prefetch_bytes and is_remote(self.path)):
            yield self
            return
        kernels = list(kernels)
        names = list(dict.fromkeys(self.names[self.stored[kernel]] for kernel in kernels))
        files = [self.file(name, int(t)) for t in tiles for name in names]
        sizes = [np.dtype(self.dtype_of(self.stored[kernel])).itemsize for kernel in kernels]
        most = encoded_bytes(self.tiling.block**2 * max(sizes, default=8))
        # the plan counts one tile more: the pieces of an answer are joined
        with window().reading(files, most, self.prefetch_bytes - most) as read:
            yield replace(self, fetched=read)

    def stack(self, t: int) -> None:
        """Tiles of a store come one by one."""
        return

    def scale(self) -> float:
        """What a stored value is multiplied by to get the kernel's value."""
        return self.code_scale or 1.0

    def decoded(self, kernel: int, t: int) -> npt.NDArray[Any]:
        """Tile t of a kernel as numbers, float32 or float64."""
        if self.gram is not None and kernel in self.gram.by_number:
            return FloatTiles(self).load(kernel, t)
        return decode_tile(self.raw(kernel, t), self.code_scale)

    def _damaged(self, name: str, t: int, what: str) -> DamagedStoreError:
        what_of = "the Gram matrix" if name == GRAM else f"kernel {name}"
        error = DamagedTileError(
            f"tile {self.tiling.pair(t)} of {what_of} in {self.path} {what}: repair it with "
            f"gmkcf repair {shlex.quote(self.path)}"
        )
        error.reason = what
        return error


class DamagedTileError(DamagedStoreError):
    """A tile is missing, unreadable, or not what was written; `reason` says which."""

    reason = ""


def array_folder(name: str) -> str:
    """Where an array of tiles lies in a store: kernels together, the Gram matrix beside them."""
    return name if name == GRAM else f"kernels/{name}"


def gone(path: str) -> StoreGoneError:
    """The error of a store that is not there any more."""
    return StoreGoneError(
        f"the store at {path} has vanished: bring it back and run the same command again"
    )
