"""Tiles of a store: how they are read and written, and what is said where one is damaged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gmkcf_dask.errors import DamagedStoreError
from gmkcf_dask.kernels.chunks import chunk_path, holds, read_chunk, will_read, write_chunk
from gmkcf_dask.kernels.tiles import COMPACT_MAX, decode
from gmkcf_dask.plan import Tiling

FILL_VALUE: dict[str, float] = {"float32": np.nan, "float64": np.nan, "uint16": COMPACT_MAX + 1}
"""By stored dtype, a value that cannot be data."""


@dataclass(frozen=True)
class TileReader:
    """Reads tiles of a store; small enough to travel inside every task."""

    path: str
    store_id: str
    names: tuple[str, ...]
    tiling: Tiling
    stored_dtype: str
    code_scale: float | None
    stored: tuple[int, ...]
    """By kernel, the number of the one whose tiles stand for it."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of tiles once decoded."""
        if self.code_scale is not None:
            return np.dtype(np.float32)
        return np.dtype(self.stored_dtype)

    @property
    def fill(self) -> float:
        """What stands where nothing was written."""
        return FILL_VALUE[self.stored_dtype]

    def buffer(self) -> npt.NDArray[Any]:
        """Room for one stored tile, to be used again and again."""
        return np.empty((self.tiling.block, self.tiling.block), self.stored_dtype)

    def raw(self, kernel: int, t: int, into: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Tile t of a kernel as it is stored; with `into` it lives there until the next one."""
        i, j = self.tiling.pair(t)
        rows, cols = self.tiling.rows(i), self.tiling.rows(j)
        chunk = self.buffer() if into is None else into
        tile = chunk[: rows.stop - rows.start, : cols.stop - cols.start]
        # decoding runs from the first value to the last: if that is there, so are all
        tile[-1, -1] = self.fill
        name = self.names[self.stored[kernel]]
        try:
            read_chunk(self.file(name, t), chunk)
        except FileNotFoundError as error:
            raise self._damaged(name, i, j, "is missing") from error
        except (OSError, RuntimeError, ValueError) as error:
            raise self._damaged(name, i, j, f"cannot be read ({error})") from error
        if not holds(tile, self.fill):
            raise self._damaged(name, i, j, "is missing")
        return tile

    def write(self, name: str, t: int, tile: npt.NDArray[Any]) -> None:
        """Keep tile t of a kernel; edge tiles are padded with the fill value, as Zarr has it."""
        if tile.shape != (self.tiling.block, self.tiling.block):
            chunk = np.full_like(tile, self.fill, shape=(self.tiling.block, self.tiling.block))
            chunk[: tile.shape[0], : tile.shape[1]] = tile
            tile = chunk
        write_chunk(self.file(name, t), tile)

    def file(self, name: str, t: int) -> str:
        """Where tile t of a kernel lies."""
        return chunk_path(f"{self.path}/kernels/{name}", *self.tiling.pair(t))

    def expect(self, kernel: int, t: int) -> None:
        """Tile t of a kernel will be read next: the disk can begin with it."""
        will_read(self.file(self.names[self.stored[kernel]], t))

    def stack(self, t: int) -> None:
        """Tiles of a store come one by one."""
        return

    def scale(self) -> float:
        """What a stored value is multiplied by to get the kernel's value."""
        return self.code_scale or 1.0

    def decoded(self, kernel: int, t: int) -> npt.NDArray[Any]:
        """Tile t of a kernel as numbers, float32 or float64."""
        return decode(self.raw(kernel, t), self.code_scale)

    def _damaged(self, name: str, i: int, j: int, what: str) -> DamagedStoreError:
        return DamagedStoreError(
            f"tile ({i}, {j}) of kernel {name} in {self.path} {what}: build the store again"
        )
