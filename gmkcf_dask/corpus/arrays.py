"""NumPy files, read with their headers checked first, and never a pickle among them."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import IO, Any

import numpy.typing as npt
from numpy.lib import format as npy

from gmkcf_dask.corpus.limits import refuse_array, refuse_bytes
from gmkcf_dask.errors import InputError

AnyArray = npt.NDArray[Any]
_KNOWN = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


def read_npy(path: Path) -> AnyArray:
    """The array of an .npy file."""
    with path.open("rb") as file:
        _check_header(file, path.stat().st_size, "X")
        file.seek(0)
        return npy.read_array(file, allow_pickle=False)


def npz_names(path: Path | IO[bytes]) -> list[str]:
    """Names of the arrays in an .npz file."""
    with zipfile.ZipFile(path) as archive:
        return [name.removesuffix(".npy") for name in archive.namelist()]


def read_npz(path: Path | IO[bytes], names: tuple[str, ...]) -> dict[str, AnyArray]:
    """The arrays of these names, as far as the file has them.

    A member is unpacked only as far as the archive's directory says (zipfile stops there), so that
    number is checked against memory, and each array's header against that number.
    """
    found: dict[str, AnyArray] = {}
    with zipfile.ZipFile(path) as archive:
        members = {f"{name}.npy": name for name in names}
        listed = [info for info in archive.infolist() if info.filename in members]
        if len({info.filename for info in listed}) < len(listed):
            raise InputError("an array is there twice under one name: write the file again.")
        if any(info.compress_type not in _KNOWN for info in listed):
            raise InputError("it is packed in a way that NumPy does not use: write the file again.")
        refuse_bytes(sum(info.file_size for info in listed), "unpacking this file")
        for info in listed:
            name = members[info.filename]
            with archive.open(info) as file:
                _check_header(file, info.file_size, name)
            with archive.open(info) as file:
                found[name] = npy.read_array(file, allow_pickle=False)
    return found


def _check_header(file: IO[bytes], size: int, name: str) -> None:
    version = npy.read_magic(file)
    if version == (1, 0):
        shape, _, dtype = npy.read_array_header_1_0(file)
    elif version == (2, 0):
        shape, _, dtype = npy.read_array_header_2_0(file)
    else:  # 3.0 is for named fields in other scripts, which are no matrix
        raise InputError(
            f"{name} is of .npy version {version}, which is not read: save it plainly."
        )
    if not dtype.hasobject:  # those are refused when read, in NumPy's own words
        refuse_array(shape, dtype, size - file.tell(), name)
