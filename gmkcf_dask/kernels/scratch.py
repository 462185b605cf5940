"""A fused kernel on disk, for when it does not fit the workers' memory."""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import zarr
from zarr.codecs import Crc32cCodec

from gmkcf_dask.errors import DamagedStoreError
from gmkcf_dask.files import make_folder
from gmkcf_dask.kernels.store import _open_array
from gmkcf_dask.plan import Tiling


@dataclass(frozen=True)
class ScratchTiles:
    """One generation of fused tiles; its name is never used again."""

    path: str
    tiling: Tiling

    @classmethod
    def create(cls, folder: Path, tiling: Tiling, dtype: np.dtype[Any]) -> ScratchTiles:
        """A new, empty generation inside a folder."""
        make_folder(folder, "scratch space")
        path = folder / f"fused-{uuid4().hex}"
        block = tiling.block
        zarr.create_array(
            store=str(path),
            shape=(tiling.n_tiles, block, block),
            chunks=(1, block, block),
            dtype=dtype,
            fill_value=np.nan,
            compressors=[Crc32cCodec()],  # fused kernels hardly compress, but must not rot
            zarr_format=3,
        )
        return cls(str(path), tiling)

    def _array(self) -> Any:
        return _open_array(self.path, "", self.path)

    def write(self, t: int, tile: npt.NDArray[Any]) -> None:
        """Keep tile t; edge tiles are padded with zeros."""
        padded = np.zeros((1, self.tiling.block, self.tiling.block), tile.dtype)
        padded[0, : tile.shape[0], : tile.shape[1]] = tile
        self._array()[t : t + 1] = padded

    def loader(self) -> Any:
        """How later products read it; see `engine.tiles.TileSource`."""
        return self.load

    def load(self, t: int, into: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Tile t in its own shape."""
        i, j = self.tiling.pair(t)
        rows, cols = self.tiling.rows(i), self.tiling.rows(j)
        shape = (rows.stop - rows.start, cols.stop - cols.start)
        tile = np.asarray(self._array()[t, : shape[0], : shape[1]])
        if np.isnan(tile[0, 0]):
            raise DamagedStoreError(f"tile ({i}, {j}) is missing from scratch at {self.path}")
        return tile

    def delete(self) -> None:
        """Give the space back."""
        shutil.rmtree(self.path, ignore_errors=True)
        with suppress(OSError):  # other generations still live there
            Path(self.path).parent.rmdir()
