"""Fused kernels on disk, for when they do not fit the workers' memory.

Those of a fit live in a hidden folder beside its store, `.NAME.scratch-…`, with a file that says
whose it is. A fit that is killed leaves it behind; the next one on the store removes it.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from gmkcf_dask.errors import DamagedStoreError, ScratchError, StorageError
from gmkcf_dask.kernels.tiling import Tiling
from gmkcf_dask.store.chunks import read_plain, write_plain
from gmkcf_dask.store.files import links_inside, remove_folder, resolved
from gmkcf_dask.store.lock import Heartbeat, claim_folder, is_gone
from gmkcf_dask.store.object_storage import is_remote
from gmkcf_dask.system.disk_space import full_error
from gmkcf_dask.system.retry import is_full
from gmkcf_dask.system.units import human_bytes

OWNER = "owner"


def can_keep_scratch(store: Path) -> bool:
    """Whether fused kernels can be kept beside a store.

    Not in an object store: a task that comes late could write into what was deleted, and nobody
    would find it. There they are fused again for every product.
    """
    return not is_remote(store)


class ScratchFolder:
    """Where the fused kernels of a fit live on disk; it exists only while something is in it."""

    def __init__(self, path: Path, tiling: Tiling, dtype: np.dtype[Any]) -> None:
        self.path = path
        self._tiling = tiling
        self._dtype = dtype
        self._held: set[ScratchTiles] = set()
        self._heartbeat: Heartbeat | None = None

    @classmethod
    def beside(cls, store: Path, tiling: Tiling, dtype: np.dtype[Any]) -> ScratchFolder:
        """A new one for a fit on a store."""
        real = resolved(store)
        return cls(real.with_name(f".{real.name}.scratch-{uuid4().hex}"), tiling, dtype)

    def create(self) -> ScratchTiles:
        """A new, empty generation."""
        tiles = ScratchTiles(str(self.path / f"fused-{uuid4().hex}"), self._tiling, self._dtype)
        try:
            if self._heartbeat is None:
                self._open()
            Path(tiles.path).mkdir()
        except OSError as error:
            if is_full(error):
                raise
            # not bad input: a fit that ran until now can resume once the place is back
            raise ScratchError(
                f"cannot write scratch space at {self.path}: {error.strerror or error}; make it "
                "writable and resume, put the store elsewhere, or give more memory"
            ) from error
        self._held.add(tiles)
        return tiles

    def delete(self, tiles: ScratchTiles) -> None:
        """Give the space of a generation back, and with the last one the folder."""
        tiles.delete()
        self._held.discard(tiles)
        if not self._held:
            self._close()

    @contextmanager
    def disk_full_errors(self, release: Callable[[], object]) -> Iterator[None]:
        """A disk without room for a fused kernel: what is there of it goes, the rest is said."""
        try:
            yield
        except OSError as error:
            if not is_full(error):
                raise
            release()
            self._close()
            need = self._tiling.n_tiles * self._tiling.block**2 * self._dtype.itemsize
            raise full_error(
                error,
                self.path,
                "make room and resume, or give more memory",
                f"the fused kernel needs up to {human_bytes(need)}",
                "the scratch folder ",
            ) from error

    def _open(self) -> None:
        self.path.mkdir(exist_ok=True)
        self._heartbeat = claim_folder(self.path / OWNER)

    def _close(self) -> None:
        if self._held:
            return
        if self._heartbeat is not None:
            self._heartbeat.stop()
            self._heartbeat = None
        with suppress(OSError):  # never made, or something in it cannot be removed
            _remove(self.path)


def sweep_scratch(store: Path) -> None:
    """Remove what killed fits left beside a store; never what one has that lives, or may live.

    On this machine an owner is gone when its process is, on others after a long silence. What has
    no owner, or a link inside, is left alone. Where it cannot be removed it stays.
    """
    if not can_keep_scratch(store):
        return
    real = resolved(store)
    ours = re.compile(rf"\.{re.escape(real.name)}\.scratch-[0-9a-f]{{32}}")
    with suppress(OSError):
        for entry in list(os.scandir(real.parent)):
            if ours.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                folder = Path(entry.path)
                # one that belongs to somebody else may not be ours to look into
                with suppress(OSError, StorageError):
                    if is_gone(folder / OWNER) and not any(links_inside(folder)):
                        _remove(folder)


def _remove(folder: Path) -> None:
    """The owner's file goes last: what stays here is removed by the next one."""
    for entry in list(os.scandir(folder)):
        if entry.is_dir(follow_symlinks=False):
            remove_folder(folder, entry.name)
        elif entry.name != OWNER:
            Path(entry.path).unlink(missing_ok=True)
    if any(path.name != OWNER for path in list(folder.iterdir())):
        return
    (folder / OWNER).unlink(missing_ok=True)
    folder.rmdir()


@dataclass(frozen=True)
class ScratchTiles:
    """One generation of fused tiles, a file each; its name is never used again.

    Fused kernels hardly compress, and nobody else reads them: the values as they are, and a
    checksum, because they must not rot.
    """

    path: str
    tiling: Tiling
    dtype: np.dtype[Any]

    def _file(self, t: int) -> str:
        return f"{self.path}/{t}"

    def write(self, t: int, tile: npt.NDArray[Any]) -> None:
        """Keep tile t."""
        write_plain(self._file(t), tile)

    def loader(self) -> Callable[[int, npt.NDArray[Any] | None], npt.NDArray[Any]]:
        """How later products read it; see `tile_ops.TileSource`."""
        return self.load

    def ahead(self, tiles: Iterable[int]) -> AbstractContextManager[ScratchTiles]:
        """Scratch space is on a disk: nothing is fetched ahead."""
        return nullcontext(self)

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
        # moved first: a task that still writes must not put a file into what is being removed
        gone = f"{self.path}.gone"
        with suppress(OSError):
            Path(self.path).rename(gone)
        shutil.rmtree(gone, ignore_errors=True)
