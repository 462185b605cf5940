"""Whether a store is what was written: every byte that a method could ever read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gmkcf_dask.compute.build_tasks import run_batches
from gmkcf_dask.compute.runner import Runner
from gmkcf_dask.compute.tile_ops import arrays_of
from gmkcf_dask.errors import DamagedStoreError, StoreError, StoreGoneError
from gmkcf_dask.events import Listener, ignore
from gmkcf_dask.kernels.factored import is_given
from gmkcf_dask.kernels.features import offset_of
from gmkcf_dask.kernels.gram import GRAM
from gmkcf_dask.store.digests import Summary
from gmkcf_dask.store.factors import bad_blocks
from gmkcf_dask.store.features import StoredFeatures, open_array
from gmkcf_dask.store.files import absolute, exists
from gmkcf_dask.store.kernel_store import KernelStore
from gmkcf_dask.store.layout import METADATA, BadMetadata, bad_metadata
from gmkcf_dask.store.manifest import (
    MANIFEST,
    Manifest,
    build_command,
    factors_command,
    fix_command,
)
from gmkcf_dask.store.preflight import refuse_blind_workers
from gmkcf_dask.store.tile_reader import DamagedTileError, StoreTileReader


@dataclass(frozen=True)
class BadTile:
    """A tile that is missing, damaged, or another one."""

    array: str
    """A kernel, or the Gram matrix."""
    t: int
    what: str


@dataclass(frozen=True)
class Damage:
    """Everything in a store that is not what was written."""

    metadata: tuple[BadMetadata, ...] = ()
    tiles: tuple[BadTile, ...] = ()
    vectors: tuple[str, ...] = ()
    """Diagonals and norms, by their path inside."""
    inputs: tuple[str, ...] = ()
    """Of `features`, `ids`, `labels`, `terms`, `titles`, `excerpts`, `reading`."""
    blocks: tuple[tuple[str, int], ...] = ()
    """Blocks of the arrays of factored kernels, as (array, block)."""

    def __bool__(self) -> bool:
        return bool(self.metadata or self.tiles or self.vectors or self.inputs or self.blocks)

    def command(self, store: Path) -> str:
        """The command that fixes all of it."""
        if any(is_given(name) for name, _ in self.blocks):
            return factors_command(store)
        return build_command(store) if self.inputs else fix_command(store, "")

    def lines(self, manifest: Manifest) -> list[str]:
        """One line for each part."""
        pairs = manifest.tiling.pair
        return [
            *(f"{bad.where}/{METADATA}".lstrip("/") + f" {bad.what}" for bad in self.metadata),
            *(f"{_array(bad.array)} tile {pairs(bad.t)} {bad.what}" for bad in self.tiles),
            *(f"factors/{name} block {b} is not what was written" for name, b in self.blocks),
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
        raise StoreError(
            f"{path} is {manifest.incomplete}: run the same build again, it resumes and recomputes "
            f"damaged {'tiles' if manifest.kernels else 'factors'}"
        )
    store = KernelStore(absolute(path), manifest)
    store.warn_about_format()
    return store


def find_damage(store: KernelStore, runner: Runner, listen: Listener = ignore) -> Damage:
    """Read everything and compare it with the manifest.

    Tiles are read as methods read them, on the cluster if there is one; the rest here.
    """
    tiles = find_bad_tiles(store, range(store.manifest.n_tiles), runner, listen)
    blocks = [(name, b) for name in store.manifest.factors for b in bad_blocks(store, name)]
    return replace(find_damage_beside_tiles(store), tiles=tuple(tiles), blocks=tuple(blocks))


def bad_given_blocks(store: KernelStore) -> list[tuple[str, int]]:
    """Blocks of factors that were passed in which are not what was written."""
    given = [name for name in store.manifest.factors if is_given(name)]
    return [(name, b) for name in given for b in bad_blocks(store, name)]


def find_damage_beside_tiles(store: KernelStore) -> Damage:
    """The same without reading a tile: metadata, vectors and inputs, in this process."""
    bad = tuple(bad_metadata(store.path, store.manifest))
    unreadable = {one.where for one in bad}
    # an earlier reading may have cached arrays that are there no more
    open_array.cache_clear()
    vectors = [
        name
        for name in store.manifest.vectors
        if name in unreadable or not _reads(partial(store.vector, name))
    ]
    inputs = list(store.damaged_descriptions())
    if store.manifest.n_features and not features_hold(store, unreadable):
        inputs.insert(0, "features")
    return Damage(bad, (), tuple(vectors), tuple(inputs))


def find_bad_tiles(
    store: KernelStore, tiles: Sequence[int], runner: Runner, listen: Listener = ignore
) -> list[BadTile]:
    """Those of the tiles that are not what was written, for every kernel that has tiles."""
    # a worker that does not see the store would find every tile missing
    refuse_blind_workers(runner, store.path, store.manifest.store_id, write=False)
    check = CheckTiles(store.reader)
    batches = run_batches(check, tiles, store.tiling, runner, listen, "check")
    return [bad for batch in batches for part in batch for bad in part]


@dataclass(frozen=True)
class CheckTiles:
    """Task: read tiles of every kernel that has tiles; returns the bad ones."""

    reader: StoreTileReader

    def __call__(self, tiles: npt.NDArray[np.int64]) -> list[BadTile]:
        bad, arrays = [], arrays_of(self.reader)
        buffers = {array: self.reader.buffer(array) for array in arrays}
        with self.reader.ahead(arrays, map(int, tiles)) as reader:
            for t, array in product(map(int, tiles), arrays):
                try:
                    reader.raw(array, t, buffers[array])
                except StoreGoneError:
                    raise  # of the tiles of another store nothing can be said
                except DamagedStoreError as error:
                    what = error.reason if isinstance(error, DamagedTileError) else str(error)
                    bad.append(BadTile(reader.names[array], t, what))
        return bad


@dataclass(frozen=True)
class SummarizeTiles:
    """Task: the summaries of tiles of every kernel that has tiles, by (kernel, tile), as bytes."""

    reader: StoreTileReader

    def __call__(self, tiles: npt.NDArray[np.int64]) -> dict[tuple[str, int], bytes]:
        reader = self.reader
        return {
            (reader.names[array], t): Summary.of(reader.raw(array, t)).to_bytes()
            for t, array in product(map(int, tiles), arrays_of(reader))
        }


def summarize_tiles(
    store: KernelStore, tiles: Sequence[int], runner: Runner
) -> dict[tuple[str, int], bytes]:
    """Summaries of tiles that were written by an earlier version, which kept none."""
    summaries: dict[tuple[str, int], bytes] = {}
    for batch in run_batches(SummarizeTiles(store.reader), tiles, store.tiling, runner):
        for part in batch:
            summaries |= part
    return summaries


def features_hold(store: KernelStore, unreadable: Iterable[str] = ()) -> bool:
    """Whether the features in a store are those it was made from, to the last bit.

    `unreadable` are folders whose metadata is known to be bad.
    """
    if any(where.startswith("features") for where in unreadable):
        return False
    features, wanted = store.features(), store.manifest.inputs.get("features")
    return _reads(lambda: features.offset) and _reads(lambda: _refuse_other(features, wanted))


def _array(name: str) -> str:
    return "Gram matrix" if name == GRAM else f"kernel {name}"


def _refuse_other(features: StoredFeatures, wanted: str | None) -> None:
    """Raise where features are not those of a digest, or are measured from another offset."""
    if features.digest() != wanted:
        raise DamagedStoreError(f"the features in {features.path} are not what was written")
    # the digest of values says nothing of the offset
    if not features.has_digests and not features.sparse:
        expected = offset_of(features.rows(slice(0, features.n_samples)))
        offset = features.offset
        if (offset is None) != (expected is None) or not np.array_equal(
            np.asarray(offset, np.float64), np.asarray(expected, np.float64), equal_nan=True
        ):
            raise DamagedStoreError(f"the offset in {features.path} is not what was written")


def _reads(read: Callable[[], object]) -> bool:
    try:
        read()
    except StoreGoneError:
        raise
    except (DamagedStoreError, OSError):
        return False
    return True
