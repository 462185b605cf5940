"""One chunk of a Zarr array, read or written without Zarr's event loop.

Zarr hands every chunk through an asynchronous pipeline: a hop to its loop, another to a thread, and
a copy or two. Kernels are read over and over, so their chunks are read and written here as the
metadata of our arrays says: values in C order, zstd with a checksum (`scripts/bench sweep` has both
side by side). Zarr reads what is written here, and the other way round.

A Gram matrix whose pairs have all kinds of values is kept by LZ4 instead: it decodes in about half
the time, which is most of a sweep there, and takes some 10 % more (`scripts/bench gram codecs`).
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import google_crc32c
import numpy as np
import numpy.typing as npt
from numcodecs.blosc import Blosc
from numcodecs.zstd import Zstd

from gmkcf_dask.kernels.tiling import encoded_bytes
from gmkcf_dask.store.files import READING, open_regular
from gmkcf_dask.store.object_storage import get_object, is_remote, put_object
from gmkcf_dask.system.retry import retried

Codec = Literal["zstd", "lz4"]
_ZSTD = Zstd(level=1, checksum=True)
_LZ4 = Blosc("lz4", clevel=5, shuffle=Blosc.BITSHUFFLE)
_CHECKSUM_BYTES = 4


def codec_fields(codec: Codec, itemsize: int) -> list[dict[str, Any]]:
    """What the metadata of an array says about the codecs of its chunks."""
    numbers = {"name": "bytes", "configuration": {"endian": "little"}}
    if codec == "zstd":
        return [numbers, {"name": "zstd", "configuration": {"level": 1, "checksum": True}}]
    blosc = {"typesize": itemsize, "cname": "lz4", "clevel": 5, "shuffle": "bitshuffle"}
    return [
        numbers,
        {"name": "blosc", "configuration": {**blosc, "blocksize": 0}},
        {"name": "crc32c"},
    ]


def chunk_path(array: str, *indices: int) -> str:
    """File of a chunk of a Zarr v3 array with the default key encoding."""
    return "/".join([array, "c", *map(str, indices)])


def read_encoded(path: str, n_bytes: int) -> bytes:
    """The bytes of a chunk that holds values of `n_bytes`, as they are on disk.

    Raises an OSError or ValueError where the file is not there, no regular one, or larger than such
    a chunk can be; a StorageError where the file system does not answer, or refuses.
    """
    most = encoded_bytes(n_bytes)
    if is_remote(path):
        return get_object(path, most)

    def read() -> bytes:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > most:
                raise ValueError(f"{size} bytes are too many for it")
            return file.read(size)

    return retried(read, path, "read")


def decode_chunk(encoded: bytes, into: npt.NDArray[Any], codec: Codec = "zstd") -> None:
    """Fill a whole chunk, C-contiguous; RuntimeError or ValueError where bytes are damaged."""
    if codec == "zstd":
        _ZSTD.decode(encoded, into)
        return
    content = np.frombuffer(encoded, np.uint8)[:-_CHECKSUM_BYTES]
    if encoded[-_CHECKSUM_BYTES:] != _checksum(content):
        raise ValueError("its checksum is wrong")
    _LZ4.decode(content, into)


def encode_chunk(values: npt.NDArray[Any], codec: Codec = "zstd") -> bytes:
    """The bytes of a whole chunk, C-contiguous."""
    if codec == "zstd":
        return bytes(_ZSTD.encode(values))
    content: bytes = _LZ4.encode(values)
    return content + _checksum(content)


def write_chunk(path: str, values: npt.NDArray[Any], codec: Codec = "zstd") -> bytes:
    """Write a whole chunk, C-contiguous, all of it or none; returns the bytes written."""
    encoded = encode_chunk(values, codec)
    if is_remote(path):
        put_object(path, encoded)
    else:
        _write(path, encoded)
    return encoded


def write_plain(path: str, values: npt.NDArray[Any]) -> None:
    """Values as they are, C-contiguous, and their checksum behind them, into an existing folder.

    One that is not there was deleted on purpose, and must not come back with half a kernel in it.
    """
    content = values.view(np.uint8).reshape(-1)
    _write(path, content, _checksum(content), make_folder=False)


def read_plain(path: str, into: npt.NDArray[Any]) -> None:
    """Fill an array from what `write_plain` wrote of one of the same size.

    Raises an OSError or ValueError where the file is not there, or is not what was written.
    """
    content = into.view(np.uint8).reshape(-1)

    def read() -> None:
        with open_regular(path) as file:
            view = content.data
            while view and (got := file.readinto(view)):
                view = view[got:]
            checksum = file.read(_CHECKSUM_BYTES + 1)
        if view or checksum != _checksum(content):
            raise ValueError("its checksum is wrong")

    retried(read, path, "read")


def _checksum(content: bytes | npt.NDArray[np.uint8]) -> bytes:
    return int(google_crc32c.value(content)).to_bytes(_CHECKSUM_BYTES, "little")


def _write(path: str, *parts: Any, make_folder: bool = True) -> None:
    retried(lambda: _write_once(path, *parts, make_folder=make_folder), path, "write")


def _write_once(path: str, *parts: Any, make_folder: bool) -> None:
    final = Path(path)
    beside = final.with_name(f"{final.name}.{uuid4().hex}.partial")
    try:
        try:
            file = beside.open("xb", buffering=0)
        except FileNotFoundError:  # the first chunk of its row
            if not make_folder:
                raise
            final.parent.mkdir(parents=True, exist_ok=True)
            file = beside.open("xb", buffering=0)
        with file:
            for part in parts:
                view = memoryview(part)
                while view:
                    view = view[file.write(view) :]
        beside.replace(final)
    except BaseException as error:
        if isinstance(error, OSError) and error.filename is None:
            error.filename = path  # writing does not name its file
        with suppress(OSError):  # the first error is raised
            beside.unlink(missing_ok=True)
        raise


def will_read(path: str) -> None:
    """Ask the system to bring a file into its cache while something else is computed."""
    if is_remote(path) or not hasattr(os, "posix_fadvise"):
        return
    with suppress(OSError):  # whoever reads the tile raises the error
        file = os.open(path, READING)
        try:
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_WILLNEED)
        finally:
            os.close(file)


def holds(values: npt.NDArray[Any], fill: float) -> bool:
    """Whether no corner of a tile still is the fill value: nothing of it is missing."""
    corners = (values[0, 0], values[-1, -1])
    if np.isnan(fill):
        return not any(np.isnan(corner) for corner in corners)
    return fill not in corners
