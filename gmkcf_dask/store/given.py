"""Factors that users bring: from arrays, or from the files they are in."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import zarr

from gmkcf_dask.corpus.arrays import RowArray, map_npy, refuse_array, unreadable
from gmkcf_dask.corpus.limits import refuse_bytes
from gmkcf_dask.corpus.matrices import READERS
from gmkcf_dask.corpus.read import UNREADABLE
from gmkcf_dask.errors import GmkcfError, InputError
from gmkcf_dask.kernels.specs import GivenFactor, factor_specs

_ZARR_FILES = ("zarr.json", ".zarray")
_LARGEST_METADATA = 1 << 20
_CODECS = {"bytes", "zstd", "gzip", "blosc", "crc32c", "transpose", "sharding_indexed"}
_COMPRESSORS = {"zstd", "gzip", "zlib", "bz2", "lzma", "blosc", "lz4"}
"""Others may run code that a file names."""


def given_factors(factors: object) -> tuple[GivenFactor, ...]:
    """Specs from a mapping of names to factors or their paths, one of them, or a list."""
    if isinstance(factors, Mapping):
        return factor_specs({name: _opened(Z) for name, Z in factors.items()})
    if isinstance(factors, list | tuple):
        return factor_specs([_opened(Z) for Z in factors])
    return factor_specs(_opened(factors))


def _opened(given: Any) -> Any:
    return open_array_file(given) if isinstance(given, str | os.PathLike) else given


def open_array_file(given: str | os.PathLike[str]) -> Any:
    """The matrix in a file or folder: `.npy` and Zarr stay there, `.npz` is read (CSR stays CSR).

    Raises
    ------
    InputError
        There is none, it is damaged, or reading it could run code.
    """
    path = Path(given)
    try:
        if not path.exists():
            raise InputError(f"{given} does not exist: check the path.")
        name = path.name.lower()
        if path.is_dir():
            return RowArray(_open_zarr(path), str(given))
        if not path.is_file():
            raise InputError(f"{given} is not a regular file: give a file or a folder.")
        if name.endswith(".npy"):
            return RowArray(map_npy(path), str(given))
        if name.endswith(".npz"):
            return READERS[".npz"](path).X
    except GmkcfError as error:
        named = str(error).startswith(str(given))
        raise error if named else type(error)(f"{given}: {error}") from error
    except UNREADABLE as error:
        raise unreadable(str(given), error) from error
    raise InputError(f"{given} is no array: give a .npy or .npz file, or a Zarr array")


def _open_zarr(path: Path) -> Any:
    for inside, _, names in os.walk(path):
        special = [name for name in names if not Path(inside, name).is_file()]
        if special:  # Zarr would wait for ever on a pipe
            raise InputError(f"{Path(inside, special[0])} is not a regular file: remove it")
    _refuse_foreign_codecs(path)
    array = zarr.open_array(store=str(path), mode="r")
    refuse_array(array.shape, array.dtype)
    refuse_bytes(math.prod(array.chunks) * array.dtype.itemsize, "a chunk of this array")
    return array


def _refuse_foreign_codecs(path: Path) -> None:
    metadata = next((path / name for name in _ZARR_FILES if (path / name).is_file()), None)
    if metadata is None:
        raise InputError(f"{path} is a folder but no Zarr array: give a .npy file or a Zarr array")
    if metadata.stat().st_size > _LARGEST_METADATA:
        raise InputError(f"{metadata} is far too large: the array is damaged.")
    content = json.loads(metadata.read_text("utf-8"))
    if metadata.name == ".zarray":
        filters, compressor = content.get("filters") or [], content.get("compressor")
        used = {one["id"] for one in [*filters, *([compressor] if compressor else [])]}
        unknown = used - _COMPRESSORS
    else:
        if content.get("node_type") != "array":
            raise InputError(f"{path} is a group of arrays: give the path of one array inside")
        unknown = _codecs_in(content["codecs"]) - _CODECS
    if unknown:
        raise InputError(
            f"{path} uses the codec {min(map(str, unknown))[:40]!r}, which is not read: save it "
            "with Zarr's own codecs."
        )


def _codecs_in(codecs: list[Mapping[str, Any]]) -> set[str]:
    """Names of codecs, those inside shards as well."""
    names = set()
    for codec in codecs:
        names.add(codec["name"])
        inside = codec.get("configuration") or {}
        for key in ("codecs", "index_codecs"):
            names |= _codecs_in(inside.get(key) or [])
    return names
