"""Zarr arrays of a store other than tiles: features, diagonals, norms; and making any array."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
import numpy.typing as npt
import zarr
from scipy import sparse
from zarr.codecs import ZstdCodec
from zarr.storage import FsspecStore, LocalStore

from gmkcf_dask.corpus.model import Matrix
from gmkcf_dask.errors import DamagedStoreError, StoreError
from gmkcf_dask.kernels.factored import FEATURES, is_given
from gmkcf_dask.kernels.features import offset_of
from gmkcf_dask.store.chunks import chunk_path, decode_chunk, read_encoded, write_chunk
from gmkcf_dask.store.digests import array_digest, ledger_of
from gmkcf_dask.store.files import confined, exists, is_file, make_folders, put_atomic
from gmkcf_dask.store.layout import FILL_VALUE, GROUP, METADATA, Layout, feature_layout
from gmkcf_dask.store.manifest import (
    MANIFEST,
    FeatureArray,
    Manifest,
    build_command,
    factors_command,
    features_header,
    fix_command,
    vector_digest,
)
from gmkcf_dask.store.object_storage import (
    filesystem,
    find_objects,
    is_remote,
    location,
    remote_errors,
)
from gmkcf_dask.store.tile_reader import gone
from gmkcf_dask.system.arrays import Floats
from gmkcf_dask.system.retry import is_trouble, retried, retried_async, storage_error
from gmkcf_dask.system.units import ceil_div


def zarr_store(path: str) -> Any:
    """What Zarr is given for a store: files that are read again, an object store by fsspec."""
    if not is_remote(path):
        return RetryingStore(path)
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
            if exists(path) and not is_file(path):
                raise DamagedStoreError(f"{path} is not a regular file: remove it")


def read_array(path: str, name: str, store_id: str, where: Any = ...) -> npt.NDArray[Any]:
    """Values of an array, or which one cannot be read."""
    try:
        with remote_errors(path):
            return np.asarray(open_array(path, name, store_id)[where])
    except (OSError, RuntimeError, ValueError, KeyError) as error:
        if isinstance(error, OSError) and is_trouble(error):
            raise storage_error(error, path, "read") from error
        raise DamagedStoreError(
            f"{name} in {path} cannot be read ({error}): repair it with {fix_command(path, name)}"
        ) from error


@dataclass(frozen=True)
class StoredVectors:
    """Vectors (n,) of a store by their path inside, for tasks; compared with their digests."""

    path: str
    store_id: str
    run: str
    """Another run in the same process reads them again."""
    digests: tuple[tuple[str, str], ...]

    def __call__(self, name: str) -> Floats:
        kept = _kept_vectors(self.path, self.store_id, self.run)
        if name not in kept:
            known = dict(self.digests).get(name, "")
            kept[name] = checked_vector(self.path, name, self.store_id, known)
        return kept[name]


@lru_cache(maxsize=4)
def _kept_vectors(path: str, store_id: str, run: str) -> dict[str, Floats]:
    """What a run has read; of the last runs in this process only, for they are of n values."""
    return {}


def checked_vector(path: str, name: str, store_id: str, known: str | None) -> Floats:
    """A vector (n,) of a store; refused where it is not the one of a digest."""
    values: Floats = read_array(path, name, store_id)
    if np.isnan(values).any() or (known is not None and vector_digest(values) != known):
        raise DamagedStoreError(
            f"{name} in {path} is not what was written there: repair it with "
            f"{fix_command(path, name)}"
        )
    return values


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
    file = confined(path / where / METADATA, path)
    make_folders(file.parent)
    put_atomic(file, content.encode())


def write_features(path: Path, X: Matrix, m: Manifest) -> dict[str, FeatureArray]:
    """Keep features in a store: dense rows, or the parts of a CSR matrix; returns what was written.

    Chunks are written as tiles are, so that each has the digest of its bytes.
    """
    parts: dict[str, npt.NDArray[Any]]
    if isinstance(X, np.ndarray):
        offset = offset_of(X)
        parts = {"X": X} if offset is None else {"X": X, "offset": offset}
    else:
        parts = {"data": X.data, "indices": X.indices, "indptr": X.indptr}
    written = {}
    for name, values in parts.items():
        layout = feature_layout(name, values.shape, m)
        # X may be larger than memory: a few chunks at a time
        with ThreadPoolExecutor(_WRITERS if is_remote(path) else 1) as writers:
            digests = writers.map(
                partial(_write_feature_chunk, path, name, values, layout),
                range(ceil_div(values.shape[0], layout.chunks[0])),
            )
            written[name] = FeatureArray(tuple(values.shape), b"".join(digests).hex())
        write_metadata(path, f"features/{name}", layout.fields())
    write_metadata(path, "features", GROUP)
    return written


_WRITERS = 8
"""Chunks of features on their way to an object store at once."""


def _write_feature_chunk(
    path: Path, name: str, values: npt.NDArray[Any], layout: Layout, chunk: int
) -> bytes:
    rows = layout.chunks[0]
    part = values[chunk * rows : (chunk + 1) * rows]
    return write_array_chunk(str(path), f"features/{name}", layout, chunk, part)


def write_array_chunk(
    path: str, where: str, layout: Layout, chunk: int, part: npt.NDArray[Any]
) -> bytes:
    """Write the rows of one chunk, the last one padded as Zarr has it; returns its digest."""
    whole = np.full(layout.chunks, FILL_VALUE[layout.dtype], layout.dtype)
    whole[: len(part)] = part
    return array_digest(where, chunk, write_chunk(_chunk_file(path, where, layout, chunk), whole))


def _chunk_file(path: str, where: str, layout: Layout, chunk: int) -> str:
    return chunk_path(f"{path}/{where}", chunk, *[0] * (len(layout.shape) - 1))


@dataclass(frozen=True)
class StoredArrays:
    """Arrays inside a store, read some rows at a time; travels to workers as a path.

    Every process compares a chunk with its digest when it first reads it in a run.
    """

    group: ClassVar[str]
    """The folder the arrays are in."""

    path: str
    store_id: str
    layouts: Mapping[str, Layout]
    run: str

    def read(self, name: str, where: slice | None = None) -> npt.NDArray[Any]:
        """Some rows of an array, from whole chunks."""
        layout = self.layouts[name]
        begin, end = (0, layout.shape[0]) if where is None else (where.start, where.stop)
        end = max(begin, min(end, layout.shape[0]))
        values = np.empty((end - begin, *layout.shape[1:]), layout.dtype)
        rows = layout.chunks[0]
        chunks = range(begin // rows, ceil_div(end, rows) if end > begin else begin // rows)
        buffer = np.empty(layout.chunks, layout.dtype)
        for chunk, encoded in zip(chunks, self._encoded(name, chunks, buffer.nbytes), strict=True):
            self._decode(name, chunk, encoded, buffer)
            first, last = max(begin, chunk * rows), min(end, (chunk + 1) * rows)
            part = buffer[first - chunk * rows : last - chunk * rows]
            values[first - begin : last - begin] = part
        return values

    def _encoded(self, name: str, chunks: range, n_bytes: int) -> Iterator[bytes]:
        """The bytes of chunks; those of an object store are fetched some at a time."""
        where, layout = f"{self.group}/{name}", self.layouts[name]
        for first in range(0, len(chunks), _FETCHED):
            some = chunks[first : first + _FETCHED]
            files = [_chunk_file(self.path, where, layout, chunk) for chunk in some]
            if is_remote(self.path):
                fetched = find_objects(files, 2 * n_bytes)
            else:
                fetched = [self._local(file, name, n_bytes) for file in files]
            for encoded in fetched:
                if encoded is None:
                    if not exists(location(self.path) / MANIFEST):
                        raise gone(self.path)
                    raise self._damaged(name, "is missing")
                yield encoded

    def _local(self, file: str, name: str, n_bytes: int) -> bytes | None:
        try:
            return read_encoded(file, n_bytes)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            raise self._damaged(name, f"cannot be read ({error})") from error

    def _decode(self, name: str, chunk: int, encoded: bytes, buffer: npt.NDArray[Any]) -> None:
        ledger = ledger_of(self.path, self.store_id, self.run)
        if not ledger.array_agrees(f"{self.group}/{name}", chunk, encoded):
            raise self._damaged(name, "is not what was written there")
        try:
            decode_chunk(encoded, buffer)
        except (RuntimeError, ValueError) as error:
            raise self._damaged(name, f"cannot be read ({error})") from error

    def refuse_another(self) -> None:
        """Refuse a store that was put in the place of the one these arrays are in."""
        if Manifest.read(location(self.path)).store_id != self.store_id:
            raise StoreError(
                f"{self.path} is not the store of this fit any more: another one was put in its "
                "place, so bring the old one back or fit again"
            )

    def _damaged(self, name: str, what: str) -> DamagedStoreError:
        where = f"{self.group}/{name}"
        return DamagedStoreError(
            f"{where} in {self.path} {what}: repair it with {fix_command(self.path, where)}"
        )


@dataclass(frozen=True)
class StoredFeatures(StoredArrays):
    """Features inside a store: `X` and perhaps `offset`, or `data`, `indices` and `indptr`."""

    group: ClassVar[str] = "features"

    n_samples: int
    n_features: int

    @property
    def sparse(self) -> bool:
        return "indptr" in self.layouts

    @property
    def has_digests(self) -> bool:
        """Whether the store keeps a digest of every chunk; those of format 3 do not."""
        return ledger_of(self.path, self.store_id, self.run).has_features

    @cached_property
    def offset(self) -> Floats | None:
        return self._whole("offset", self.read("offset")) if "offset" in self.layouts else None

    def rows(self, where: slice) -> Matrix:
        if not self.sparse:
            return self._whole("X", self.read("X", where))
        indptr = self.read("indptr", slice(where.start, where.stop + 1))
        lengths = np.diff(indptr)
        if indptr[0] < 0 or lengths.min() < 0 or lengths.max() > self.n_features:
            raise self._damaged("indptr", "holds invalid values")
        entries = slice(int(indptr[0]), int(indptr[-1]))
        data, indices = self.read("data", entries), self.read("indices", entries)
        if len(data) != entries.stop - entries.start:
            raise self._damaged("indptr", "holds invalid values")
        if indices.size and not 0 <= indices.min() <= indices.max() < self.n_features:
            raise self._damaged("indices", "holds invalid values")
        shape = (where.stop - where.start, self.n_features)
        parts = (self._whole("data", data), indices, indptr - indptr[0])
        return sparse.csr_array(parts, shape=shape)

    def digest(self) -> str:
        """Digest of all values, as of the features the store was made from; a part at a time."""
        shape = (self.n_samples, self.n_features)
        digest = hashlib.blake2b(features_header(shape, sparse=self.sparse), digest_size=16)
        for name in ("data", "indices", "indptr") if self.sparse else ("X",):
            layout = self.layouts[name]
            for first in range(0, layout.shape[0], layout.chunks[0]):
                part = self.read(name, slice(first, first + layout.chunks[0]))
                digest.update(np.ascontiguousarray(part).data)
        return digest.hexdigest()

    def _whole(self, name: str, values: Floats) -> Floats:
        if np.isnan(values).any():
            raise self._damaged(name, "is missing in part")
        return values

    def _damaged(self, name: str, what: str) -> DamagedStoreError:
        return DamagedStoreError(
            f"features/{name} in {self.path} {what}: write it again from the input with "
            f"{build_command(self.path)}"
        )


@dataclass(frozen=True)
class StoredFactors(StoredArrays):
    """Arrays of factored kernels inside a store; `given_NAME` may be sparse rows, as CSR.

    Attributes
    ----------
    thin : mapping
        By such an array, the arrays of its parts, and its columns.
    features : StoredFeatures or None
        What linear and cosine kernels have in place of an array.
    """

    group: ClassVar[str] = "factors"

    n_samples: int = 0
    thin: Mapping[str, tuple[tuple[str, str, str], int]] = field(default_factory=dict)
    features: StoredFeatures | None = None

    def columns(self, name: str) -> int:
        """Columns of an array, without reading it."""
        if name == FEATURES:
            assert self.features is not None
            return self.features.n_features
        return self.thin[name][1] if name in self.thin else self.layouts[name].shape[1]

    def dtype(self, name: str) -> str:
        """The stored type of an array."""
        return self.layouts[self.thin[name][0][2] if name in self.thin else name].dtype

    def read(self, name: str, where: slice | None = None) -> Any:
        """Some rows of an array, from whole chunks: dense, or CSR where it is sparse."""
        rows = slice(0, self.n_samples) if where is None else where
        if name == FEATURES:
            assert self.features is not None
            return self.features.rows(slice(rows.start, min(rows.stop, self.n_samples)))
        return self._thin_rows(name, rows) if name in self.thin else super().read(name, where)

    def _thin_rows(self, name: str, rows: slice) -> Any:
        (lengths_of, columns_of, values_of), width = self.thin[name]
        n, block = self.n_samples, self.layouts[lengths_of].chunks[0]
        begin, end = rows.start, min(rows.stop, n)
        parts = []
        for b in range(begin // block, ceil_div(end, block)):
            first = b * block
            lengths = super().read(lengths_of, slice(first, min(n, first + block)))
            columns = super().read(columns_of, slice(b, b + 1))[0]
            values = super().read(values_of, slice(b, b + 1))[0]
            ends = np.cumsum(lengths, dtype=np.int64)
            count = int(ends[-1])
            if lengths.min() < 0 or count > columns.size:
                raise self._damaged(lengths_of, "holds invalid values")
            if count and not 0 <= columns[:count].min() <= columns[:count].max() < width:
                raise self._damaged(columns_of, "holds invalid values")
            entries = (values[:count], columns[:count], np.concatenate([[0], ends]))
            made = sparse.csr_array(entries, shape=(len(lengths), width))
            parts.append(made[max(begin, first) - first : end - first])
        return parts[0] if len(parts) == 1 else sparse.csr_array(sparse.vstack(parts, "csr"))

    def _damaged(self, name: str, what: str) -> DamagedStoreError:
        if not is_given(name):
            return super()._damaged(name, what)
        return DamagedStoreError(
            f"{self.group}/{name} in {self.path} {what}: it was passed in, so write it again with "
            f"{factors_command(self.path)}"
        )


_FETCHED = 8
"""Chunks of features that are fetched from an object store at once."""


T = TypeVar("T")


class RetryingStore(LocalStore):
    """Reads and writes that fail with EIO, ESTALE and the like are tried again.

    What fails in the end is a `StorageError`, not an OSError that could pass for damage. A folder
    that is not there is never made: a store that vanished must not come back empty.
    """

    async def _open(self, *, mode: Any = None) -> None:
        if not exists(self.root):
            raise FileNotFoundError(f"{self.root} does not exist")
        opened = super()._open
        await retried_async(lambda: opened(), self.root, "read")

    async def get(self, key: str, prototype: Any = None, byte_range: Any = None) -> Any:
        get = super().get
        return await self._retried(lambda: get(key, prototype, byte_range), key, "read")

    async def set(self, key: str, value: Any) -> None:
        put = super().set
        await self._retried(lambda: put(key, value), key, "write")

    async def exists(self, key: str) -> bool:
        exists = super().exists
        return await self._retried(lambda: exists(key), key, "read")

    async def _retried(self, work: Callable[[], Awaitable[T]], key: str, verb: str) -> T:
        return await retried_async(work, self.root / key, verb)

    # newer versions of Zarr read and write without an event loop where they can

    def get_sync(self, key: str, **options: Any) -> Any:
        get: Any = getattr(super(), "get_sync")  # noqa: B009  # not in every version
        return retried(lambda: get(key, **options), self.root / key, "read")

    def set_sync(self, key: str, value: Any) -> None:
        put: Any = getattr(super(), "set_sync")  # noqa: B009
        retried(lambda: put(key, value), self.root / key, "write")
