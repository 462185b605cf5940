"""One chunk of a Zarr array, read or written without Zarr's event loop.

Zarr hands every chunk through an asynchronous pipeline: a hop to its loop, another to a thread, and
a copy or two. Kernels are read over and over, so their chunks are read and written here as the
metadata of our arrays says: values in C order, zstd with a checksum (`scripts/bench sweep` has both
side by side). Zarr reads what is written here, and the other way round.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import numpy.typing as npt
from numcodecs.zstd import Zstd

_ZSTD = Zstd(level=1, checksum=True)


def chunk_path(array: str, *indices: int) -> str:
    """File of a chunk of a Zarr v3 array with the default key encoding."""
    return "/".join([array, "c", *map(str, indices)])


def read_chunk(path: str, into: npt.NDArray[Any]) -> None:
    """Fill a whole chunk, C-contiguous, from its file.

    Raises
    ------
    OSError, RuntimeError, ValueError
        The file is not there, or is not what was written.
    """
    _ZSTD.decode(Path(path).read_bytes(), into)


def write_chunk(path: str, values: npt.NDArray[Any]) -> None:
    """Write a whole chunk, C-contiguous, so that a reader finds all of it or none."""
    encoded = _ZSTD.encode(values)
    final = Path(path)
    beside = final.with_name(f"{final.name}.{uuid4().hex}.partial")
    try:
        try:
            beside.write_bytes(encoded)
        except FileNotFoundError:  # the first chunk of its row
            final.parent.mkdir(parents=True, exist_ok=True)
            beside.write_bytes(encoded)
        beside.replace(final)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def will_read(path: str) -> None:
    """Ask the system to bring a file into its cache while something else is computed."""
    if not hasattr(os, "posix_fadvise"):
        return
    with suppress(OSError):  # whoever reads it will find out, and say which tile it is
        file = os.open(path, os.O_RDONLY)
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
