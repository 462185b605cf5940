"""Kernels on disk: a Zarr v3 group with one array per kernel, one chunk per tile.

Only tiles on and above the diagonal are written. The fill value can never be data (NaN, or the
reserved code of compact), so a tile that is not there cannot pass for zeros.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any
from uuid import uuid4

import dask.array as da
import numpy as np
import numpy.typing as npt
import zarr
from scipy import sparse
from zarr.codecs import ZstdCodec

from gmkcf_dask.corpus.model import Corpus, Floats, Matrix
from gmkcf_dask.errors import DamagedStoreError, StoreError
from gmkcf_dask.files import check_writable, get, put_atomic
from gmkcf_dask.kernels.duplicates import in_words
from gmkcf_dask.kernels.features import offset_of
from gmkcf_dask.kernels.manifest import MANIFEST, KernelRecord, Manifest
from gmkcf_dask.kernels.reader import FILL_VALUE, TileReader
from gmkcf_dask.kernels.tiles import CODE_SCALE, STORED_DTYPE
from gmkcf_dask.plan import FEATURE_CHUNK, Tiling


@lru_cache(maxsize=512)
def _open_array(path: str, name: str, store_id: str) -> Any:
    """An array of a store, opened once per process; `store_id` keeps a rebuilt store apart."""
    return zarr.open_array(store=path, path=name, mode="r+", zarr_format=3)


@dataclass(frozen=True)
class StoredFeatures:
    """Features inside a store, read a row block at a time; travels to workers as a path."""

    path: str
    store_id: str
    n_samples: int
    n_features: int
    sparse: bool
    has_offset: bool

    def _array(self, name: str) -> Any:
        return _open_array(self.path, f"features/{name}", self.store_id)

    @cached_property
    def offset(self) -> Floats | None:
        return np.asarray(self._array("offset")[:]) if self.has_offset else None

    def rows(self, where: slice) -> Matrix:
        if not self.sparse:
            return self._whole(np.asarray(self._array("X")[where]))
        indptr = np.asarray(self._array("indptr")[where.start : where.stop + 1])
        entries = slice(int(indptr[0]), int(indptr[-1]))
        data = self._whole(np.asarray(self._array("data")[entries]))
        indices = np.asarray(self._array("indices")[entries])
        shape = (where.stop - where.start, self.n_features)
        return sparse.csr_array((data, indices, indptr - indptr[0]), shape=shape)

    def _whole(self, values: Floats) -> Floats:
        if np.isnan(values).any():
            raise DamagedStoreError(f"features are missing from {self.path}: build the store again")
        return values


@dataclass(frozen=True)
class KernelStore:
    """An opened store.

    >>> KernelStore.open("no/such/place")
    Traceback (most recent call last):
    gmkcf_dask.errors.StoreError: there is no kernel store at no/such/place: check the path
    """

    path: Path
    manifest: Manifest

    @classmethod
    def open(cls, path: str | Path, *, incomplete: bool = False) -> KernelStore:
        """Open a store for reading; an unfinished one only where that is asked for."""
        path = Path(path)
        store = cls(path, Manifest.read(path))
        if not (store.manifest.complete or incomplete):
            done, total = len(store.manifest.tiles_done), store.manifest.tiling.n_tiles
            raise StoreError(
                f"{path} is incomplete ({done} of {total} tiles): run the same build again, it "
                "goes on from there"
            )
        return store

    @classmethod
    def create(cls, path: Path, manifest: Manifest, corpus: Corpus | None) -> KernelStore:
        """Make an empty store with the features and names inside; no kernel values yet."""
        if path.is_file():
            raise StoreError(f"{path} is a file: choose another path for the store")
        if path.exists() and any(path.iterdir()):
            raise StoreError(f"{path} holds other files: choose another path for the store")
        check_writable(path, "the store")
        path.parent.mkdir(parents=True, exist_ok=True)
        # made beside and moved into place: a store that exists has its features and its manifest
        beside = path.with_name(f".{path.name}.{uuid4().hex}")
        try:
            beside.mkdir()
            _write_skeleton(beside, manifest, corpus)
            beside.replace(path)
        except BaseException:
            shutil.rmtree(beside, ignore_errors=True)
            raise
        return cls(path, manifest)

    def with_manifest(self, **changes: Any) -> KernelStore:
        """Write a changed manifest and return the store that has it."""
        manifest = replace(self.manifest, **changes)
        manifest.write(self.path)
        return replace(self, manifest=manifest)

    # reading

    @property
    def names(self) -> tuple[str, ...]:
        """Kernel names, in order."""
        return self.manifest.names

    @property
    def n_samples(self) -> int:
        return self.manifest.n_samples

    @property
    def tiling(self) -> Tiling:
        return self.manifest.tiling

    @cached_property
    def reader(self) -> TileReader:
        m = self.manifest
        return TileReader(
            str(self.path),
            m.store_id,
            m.names,
            m.tiling,
            STORED_DTYPE[m.precision],
            CODE_SCALE[m.precision],
            m.stored,
        )

    def drop_merged(self) -> None:
        """Remove the arrays of kernels that others stand for: nobody shall read them as empty."""
        for kernel, other in enumerate(self.manifest.stored):
            if kernel != other:
                shutil.rmtree(self.path / "kernels" / self.names[kernel], ignore_errors=True)

    def equal_kernels(self) -> dict[str, str]:
        """By name, the first kernel whose files are the same to the last byte."""
        alike: dict[tuple[int, ...], list[str]] = {}
        equal = {}
        for name in self.names:
            files = self._files(name)
            earlier = alike.setdefault(tuple(file.stat().st_size for file in files), [])
            same = (other for other in earlier if _same_content(files, self._files(other)))
            other = next(same, None)
            if other is None:
                earlier.append(name)
            else:
                equal[name] = other
        return equal

    def _files(self, name: str) -> list[Path]:
        return [Path(self.reader.file(name, t)) for t in range(self.tiling.n_tiles)]

    def duplicates(self) -> list[str]:
        """Kernels that are nearly the same as an earlier one, in words."""
        merged = {
            name: f", and {other} stands for it"
            for name, other in zip(self.names, self.manifest.stored_as, strict=False)
            if name != other
        }
        return [
            sentence + merged.get(sentence.split()[0], "")
            for sentence in in_words(self.manifest.nearest or {}, self.manifest.differences)
        ]

    def features(self) -> StoredFeatures:
        """The features the kernels were made from."""
        m = self.manifest
        if m.n_features == 0:
            raise StoreError(f"{self.path} was made from precomputed kernels: it has no features")
        held = {entry.name for entry in (self.path / "features").iterdir()}
        return StoredFeatures(
            str(self.path),
            m.store_id,
            m.n_samples,
            m.n_features,
            sparse="indptr" in held,
            has_offset="offset" in held,
        )

    def strings(self, what: str) -> tuple[str, ...] | None:
        """`ids`, `labels` or `terms` of the corpus, or None where there are none."""
        content = get(self.path / f"{what}.json")
        try:
            found = None if content is None else json.loads(content)
            return None if found is None else tuple(map(str, found))
        except (ValueError, TypeError) as error:
            raise DamagedStoreError(
                f"{what}.json of {self.path} is damaged: build the store again"
            ) from error

    @property
    def ids(self) -> tuple[str, ...]:
        return self.strings("ids") or tuple(str(i) for i in range(self.n_samples))

    def diagonal(self, kernel: int) -> Floats:
        """k(x,x) of every sample, shape (n,)."""
        name = self.names[self.manifest.stored[kernel]]  # of the tiles that stand for it
        values = np.asarray(self.array(f"diagonals/{name}")[:])
        if np.isnan(values).any():
            raise DamagedStoreError(f"the diagonal of kernel {name} in {self.path} is missing")
        return values

    def array(self, name: str) -> Any:
        """A Zarr array of the store by its path inside."""
        return _open_array(str(self.path), name, self.manifest.store_id)

    def norms(self) -> dict[str, Floats]:
        """Vectors (n,) that normalisation divides by, where the store keeps them."""
        folder = self.path / "norms"
        names = [name for name in self.names if (folder / name).exists()]
        return {name: np.asarray(self.array(f"norms/{name}")[:]) for name in names}

    def write_norms(self, norms: dict[str, Floats]) -> None:
        """Keep normalisation vectors in the store, where tile tasks find them."""
        if norms:
            group = zarr.open_group(store=str(self.path), mode="r+").require_group("norms")
            for name, values in norms.items():
                if name in group:
                    del group[name]
                _create(group, name, values.shape, values.shape, "float64", np.nan)[:] = values

    def to_dask(self, kernel: str | int) -> da.Array:
        """The full symmetric kernel, shape (n, n), lazily: tiles below the diagonal are mirrored.

        Parameters
        ----------
        kernel : str or int
            Name or number of the kernel.
        """
        number = self.names.index(kernel) if isinstance(kernel, str) else kernel
        tiling, reader = self.tiling, self.reader
        edges = tuple(r.stop - r.start for r in map(tiling.rows, range(tiling.n_blocks)))
        return da.map_blocks(
            _symmetric_block,
            reader=reader,
            kernel=number,
            chunks=(edges, edges),
            dtype=reader.dtype,
            meta=np.empty((0, 0), reader.dtype),
        )

    def stored_bytes(self) -> int:
        """Bytes on disk, compressed."""
        return sum(f.stat().st_size for f in self.path.rglob("*") if f.is_file())


def _same_content(files: Sequence[Path], others: Sequence[Path]) -> bool:
    pairs = zip(files, others, strict=True)
    return all(one.read_bytes() == other.read_bytes() for one, other in pairs)


def new_manifest_id() -> str:
    """A name no other store has."""
    return uuid4().hex


def is_store(path: Path) -> bool:
    """Whether there is a store, finished or not, at a path."""
    return (path / MANIFEST).is_file()


def records(kernels: Any) -> tuple[KernelRecord, ...]:
    """Manifest records of resolved kernels."""
    return tuple(KernelRecord.of(kernel) for kernel in kernels)


def _write_skeleton(path: Path, manifest: Manifest, corpus: Corpus | None) -> None:
    root = zarr.create_group(store=str(path), zarr_format=3)
    kernels, diagonals = root.create_group("kernels"), root.create_group("diagonals")
    n, block = manifest.n_samples, manifest.block_size
    dtype = STORED_DTYPE[manifest.precision]
    for name in manifest.names:
        _create(kernels, name, (n, n), (block, block), dtype, FILL_VALUE[dtype])
        _create(diagonals, name, (n,), (block,), "float64", np.nan)
    if corpus is not None:
        _write_features(root.create_group("features"), corpus.X, block)
        for what in ("ids", "labels", "terms"):
            content = json.dumps(getattr(corpus, what), ensure_ascii=False)
            put_atomic(path / f"{what}.json", content.encode())
    manifest.write(path)


def _symmetric_block(reader: TileReader, kernel: int, block_info: Any = None) -> npt.NDArray[Any]:
    row, col = block_info[None]["chunk-location"]
    i, j = min(row, col), max(row, col)
    n_blocks = reader.tiling.n_blocks
    t = i * n_blocks - i * (i - 1) // 2 + j - i
    tile = reader.decoded(kernel, t)
    return tile if row <= col else tile.T


def _create(group: Any, name: str, shape: Any, chunks: Any, dtype: str, fill: float | int) -> Any:
    # zstd alone lets a flipped bit through; with its checksum it does not
    return group.create_array(
        name=name,
        shape=shape,
        chunks=tuple(max(1, c) for c in chunks),
        dtype=dtype,
        fill_value=fill,
        compressors=[ZstdCodec(level=1, checksum=True)],
    )


def _write_features(group: Any, X: Matrix, block: int) -> None:
    if isinstance(X, np.ndarray):
        chunks = (min(block, X.shape[0]), X.shape[1])
        _create(group, "X", X.shape, chunks, "float64", np.nan)[:] = X
        offset = offset_of(X)
        if offset is not None:
            _create(group, "offset", offset.shape, offset.shape, "float64", np.nan)[:] = offset
        return
    parts = {"data": X.data, "indices": X.indices, "indptr": X.indptr}
    for name, values in parts.items():
        dtype, fill = ("float64", np.nan) if name == "data" else ("int64", -1)
        array = _create(group, name, values.shape, (min(FEATURE_CHUNK, values.size),), dtype, fill)
        array[:] = values.astype(dtype)
