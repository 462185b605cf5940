"""A fused kernel on disk, for when it does not fit the workers' memory."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from gmkcf_dask.errors import DamagedStoreError
from gmkcf_dask.files import make_folder
from gmkcf_dask.kernels.chunks import read_plain, write_plain
from gmkcf_dask.plan import Tiling


@dataclass(frozen=True)
class ScratchTiles:
    """One generation of fused tiles, a file each; its name is never used again.

    Fused kernels hardly compress, and nobody else reads them: the values as they are, and a
    checksum, because they must not rot.
    """

    path: str
    tiling: Tiling
    dtype: np.dtype[Any]

    @classmethod
    def create(cls, folder: Path, tiling: Tiling, dtype: np.dtype[Any]) -> ScratchTiles:
        """A new, empty generation inside a folder."""
        make_folder(folder, "scratch space")
        path = folder / f"fused-{uuid4().hex}"
        path.mkdir()
        return cls(str(path), tiling, dtype)

    def _file(self, t: int) -> str:
        return f"{self.path}/{t}"

    def write(self, t: int, tile: npt.NDArray[Any]) -> None:
        """Keep tile t."""
        write_plain(self._file(t), tile)

    def loader(self) -> Callable[[int, npt.NDArray[Any] | None], npt.NDArray[Any]]:
        """How later products read it; see `engine.tiles.TileSource`."""
        return self.load

    def load(self, t: int, into: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Tile t in its own shape, in the room given for it or in new memory."""
        tile = np.empty(self.tiling.shape(t), self.dtype) if into is None else into
        try:
            read_plain(self._file(t), tile)
        except (OSError, ValueError) as error:
            raise DamagedStoreError(
                f"tile {self.tiling.pair(t)} of the fused kernel at {self.path} cannot be read "
                f"({error}): run again"
            ) from error
        return tile

    def delete(self) -> None:
        """Give the space back."""
        shutil.rmtree(self.path, ignore_errors=True)
        with suppress(OSError):  # other generations still live there
            Path(self.path).parent.rmdir()
