"""Zarr arrays of a store other than tiles: features, diagonals, norms; and making any array."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import zarr
from scipy import sparse
from zarr.codecs import ZstdCodec
from zarr.storage import FsspecStore

from gmkcf_dask.corpus.model import Floats, Matrix
from gmkcf_dask.errors import DamagedStoreError, StoreError
from gmkcf_dask.files import put_atomic
from gmkcf_dask.kernels.features import offset_of
from gmkcf_dask.kernels.manifest import Manifest, features_header
from gmkcf_dask.kernels.metadata import (
    FILL_VALUE,
    METADATA,
    Layout,
    dense_layout,
    part_layout,
)
from gmkcf_dask.locations import filesystem, is_remote, location, remote_errors
from gmkcf_dask.plan import FEATURE_CHUNK
from gmkcf_dask.security import confined


def zarr_store(path: str) -> Any:
    """What Zarr is given for a store: a local path as it is, an object store through fsspec."""
    if not is_remote(path):
        return path
    fs = filesystem(path, asynchronous=True)
    return FsspecStore(fs, path=fs._strip_protocol(path))


@lru_cache(maxsize=512)
def open_array(path: str, name: str, store_id: str, *, write: bool = False) -> Any:
    """An array of a store, opened once per process; `store_id` keeps a rebuilt store apart."""
    if not (is_remote(path) or name.startswith("kernels/")):  # many, and not read through Zarr
        _refuse_special(Path(path, name))
    mode: Literal["r+", "r"] = "r+" if write else "r"
    return zarr.open_array(store=zarr_store(path), path=name, mode=mode, zarr_format=3)


def _refuse_special(folder: Path) -> None:
    """Zarr would wait for ever on a chunk that is a pipe."""
    for inside, _, names in os.walk(folder):
        for name in names:
            path = Path(inside, name)
            if path.exists() and not path.is_file():
                raise DamagedStoreError(f"{path} is not a regular file: remove it")


def read_array(path: str, name: str, store_id: str, where: Any = ...) -> npt.NDArray[Any]:
    """Values of an array, or which one cannot be read."""
    try:
        with remote_errors(path):
            return np.asarray(open_array(path, name, store_id)[where])
    except (OSError, RuntimeError, ValueError, KeyError) as error:
        raise DamagedStoreError(
            f"{name} in {path} cannot be read ({error}): see what else is damaged with gmkcf verify"
        ) from error


def create_array(group: Any, name: str, layout: Layout) -> Any:
    """A new, empty array in a group."""
    # zstd alone lets a flipped bit through; with its checksum it does not
    return group.create_array(
        name=name,
        shape=layout.shape,
        chunks=layout.chunks,
        dtype=layout.dtype,
        fill_value=FILL_VALUE[layout.dtype],
        compressors=[ZstdCodec(level=1, checksum=True)],
    )


def write_metadata(path: Path, where: str, fields: dict[str, Any]) -> None:
    """Write a zarr.json as it has to be; chunks beside it stay as they are.

    Versions of Zarr write the same in other words; in ours it is the same bytes from all of them.
    """
    content = json.dumps({**fields, "attributes": {}}, indent=2)
    put_atomic(confined(path / where / METADATA, path), content.encode())


def write_features(group: Any, X: Matrix, manifest: Manifest) -> None:
    """Keep features in a store: dense rows, or the parts of a CSR matrix."""
    if isinstance(X, np.ndarray):
        create_array(group, "X", dense_layout(manifest))[:] = X
        offset = offset_of(X)
        if offset is not None:
            layout = Layout(offset.shape, offset.shape, "float64")
            create_array(group, "offset", layout)[:] = offset
        return
    parts = {"data": X.data, "indices": X.indices, "indptr": X.indptr}
    for name, values in parts.items():
        layout = part_layout(values.size, "float64" if name == "data" else "int64")
        array = create_array(group, name, layout)
        for first in range(0, values.size, FEATURE_CHUNK):  # X may be larger than memory
            part = slice(first, min(first + FEATURE_CHUNK, values.size))
            array[part] = values[part].astype(layout.dtype)


@dataclass(frozen=True)
class StoredFeatures:
    """Features inside a store, read a row block at a time; travels to workers as a path."""

    path: str
    store_id: str
    n_samples: int
    n_features: int
    sparse: bool
    has_offset: bool

    def _read(self, name: str, where: Any = ...) -> npt.NDArray[Any]:
        return read_array(self.path, f"features/{name}", self.store_id, where)

    @cached_property
    def offset(self) -> Floats | None:
        return self._read("offset") if self.has_offset else None

    def rows(self, where: slice) -> Matrix:
        if not self.sparse:
            return self._whole(self._read("X", where))
        indptr = self._read("indptr", slice(where.start, where.stop + 1))
        lengths = np.diff(indptr)
        if indptr[0] < 0 or lengths.min() < 0 or lengths.max() > self.n_features:
            raise self._missing()
        entries = slice(int(indptr[0]), int(indptr[-1]))
        data = self._whole(self._read("data", entries))
        indices = self._read("indices", entries)
        if indices.size and not 0 <= indices.min() <= indices.max() < self.n_features:
            raise self._missing()
        shape = (where.stop - where.start, self.n_features)
        return sparse.csr_array((data, indices, indptr - indptr[0]), shape=shape)

    def refuse_another(self) -> None:
        """Refuse a store that was put in the place of the one these features are in."""
        if Manifest.read(location(self.path)).store_id != self.store_id:
            raise StoreError(
                f"{self.path} is not the store of this fit any more: another one was put in its "
                "place, so bring the old one back or fit again"
            )

    def digest(self) -> str:
        """Digest of all values, as of the features the store was made from; a part at a time."""
        shape = (self.n_samples, self.n_features)
        digest = hashlib.blake2b(features_header(shape, sparse=self.sparse), digest_size=16)
        for part in self._parts():
            digest.update(np.ascontiguousarray(part).data)
        return digest.hexdigest()

    def _parts(self) -> Iterator[npt.NDArray[Any]]:
        names = ("data", "indices", "indptr") if self.sparse else ("X",)
        for name in names:
            with remote_errors(self.path):
                length = open_array(self.path, f"features/{name}", self.store_id).shape[0]
            step = FEATURE_CHUNK if self.sparse else max(1, FEATURE_CHUNK // self.n_features)
            for first in range(0, length, step):
                yield self._read(name, slice(first, min(first + step, length)))

    def _whole(self, values: Floats) -> Floats:
        if np.isnan(values).any():
            raise self._missing()
        return values

    def _missing(self) -> DamagedStoreError:
        return DamagedStoreError(f"features are missing from {self.path}: build the store again")
