"""Whether a store is what was written: every byte that a method could ever read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gmkcf_dask.errors import DamagedStoreError, StoreError, StoreGoneError
from gmkcf_dask.events import Listener, StageProgress, ignore
from gmkcf_dask.files import absolute, exists
from gmkcf_dask.graph import Runner
from gmkcf_dask.kernels.manifest import MANIFEST, Manifest
from gmkcf_dask.kernels.metadata import METADATA, BadMetadata, bad_metadata
from gmkcf_dask.kernels.preflight import refuse_blind_workers
from gmkcf_dask.kernels.reader import TileReader
from gmkcf_dask.kernels.store import KernelStore
from gmkcf_dask.kernels.tasks import batches, run_tasks, tiles_per_build_task
from gmkcf_dask.kernels.texts import STRINGS


@dataclass(frozen=True)
class BadTile:
    """A tile that is missing, damaged, or another one."""

    kernel: str
    t: int
    what: str


@dataclass(frozen=True)
class Damage:
    """Everything in a store that is not what was written.

    Attributes
    ----------
    vectors : tuple of str
        Diagonals and norms, by their path inside.
    inputs : tuple of str
        Of `features`, `ids`, `labels`, `terms`, `titles`, `excerpts`, `reading`.
    """

    metadata: tuple[BadMetadata, ...] = ()
    tiles: tuple[BadTile, ...] = ()
    vectors: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.metadata or self.tiles or self.vectors or self.inputs)

    def lines(self, manifest: Manifest) -> list[str]:
        """One line for each part."""
        pairs = manifest.tiling.pair
        return [
            *(f"{bad.where}/{METADATA}".lstrip("/") + f" {bad.what}" for bad in self.metadata),
            *(f"kernel {bad.kernel} tile {pairs(bad.t)} {bad.what}" for bad in self.tiles),
            *(f"{name} is not what was written" for name in self.vectors),
            *(f"{name} of the samples are not what was written" for name in self.inputs),
        ]


def open_unchecked(path: Path) -> KernelStore:
    """A finished store whatever its parts are like; only its manifest has to be whole."""
    try:
        manifest = Manifest.read(path)
    except DamagedStoreError:
        raise
    except StoreError as error:
        if not (exists(path / MANIFEST) or exists(path / "kernels")):
            raise
        raise DamagedStoreError(str(error)) from error
    if not manifest.complete:
        done, total = len(manifest.tiles_done), manifest.tiling.n_tiles
        raise StoreError(
            f"{path} is incomplete ({done} of {total} tiles): run the same build again, it goes on "
            "from there and makes bad tiles again"
        )
    return KernelStore(absolute(path), manifest)


def find_damage(store: KernelStore, runner: Runner, listen: Listener = ignore) -> Damage:
    """Read everything and compare it with the manifest.

    Tiles are read as methods read them, on the cluster if there is one; the rest here.
    """
    bad = tuple(bad_metadata(store.path, store.manifest))
    unreadable = {one.where for one in bad}
    everything = range(store.tiling.n_tiles)
    tiles = find_bad_tiles(store, everything, runner, listen)
    vectors = [
        name
        for name in store.manifest.vectors
        if name in unreadable or not _reads(lambda name=name: store.vector(name))
    ]
    inputs = [name for name in STRINGS if not _reads(lambda name=name: store.strings(name))]
    if not _reads(store.reading):
        inputs.append("reading")
    if store.manifest.n_features and not features_hold(store, unreadable):
        inputs.insert(0, "features")
    return Damage(bad, tuple(tiles), tuple(vectors), tuple(inputs))


def find_bad_tiles(
    store: KernelStore, tiles: Sequence[int], runner: Runner, listen: Listener = ignore
) -> list[BadTile]:
    """Those of the tiles that are not what was written, for every kernel that has tiles."""
    # a worker that does not see the store would find every tile missing
    refuse_blind_workers(runner, store.path, store.manifest.store_id, write=False)
    check = CheckTiles(store.reader)
    found: list[BadTile] = []
    done, per_task = 0, tiles_per_build_task(store.tiling)
    listen(StageProgress("check", 0, len(tiles)))
    for group in batches(tiles, per_task):
        for bad in run_tasks(check, group, per_task, runner):
            found += bad
        done += len(group)
        listen(StageProgress("check", done, len(tiles)))
    return found


@dataclass(frozen=True)
class CheckTiles:
    """Task: read tiles of every kernel that has tiles; returns the bad ones."""

    reader: TileReader

    def __call__(self, tiles: npt.NDArray[np.int64]) -> list[BadTile]:
        reader, room = self.reader, self.reader.buffer()
        bad = []
        for t in map(int, tiles):
            for kernel in sorted(set(reader.stored)):
                try:
                    reader.raw(kernel, t, room)
                except StoreGoneError:
                    raise  # of the tiles of another store nothing can be said
                except DamagedStoreError as error:
                    name = reader.names[kernel]
                    what = str(error).split(f" in {reader.path} ", 1)[-1].rsplit(": mend", 1)[0]
                    bad.append(BadTile(name, t, what))
        return bad


def features_hold(store: KernelStore, unreadable: Iterable[str] = ()) -> bool:
    """Whether the features in a store are those it was made from, to the last bit.

    Parameters
    ----------
    unreadable : iterable of str
        Folders whose metadata is known to be bad.
    """
    if any(where.startswith("features") for where in unreadable):
        return False
    found: list[str] = []
    return _reads(lambda: found.append(store.features().digest())) and found[
        0
    ] == store.manifest.inputs.get("features")


def _reads(read: object) -> bool:
    assert callable(read)
    try:
        read()
    except StoreGoneError:
        raise
    except (DamagedStoreError, OSError):
        return False
    return True
