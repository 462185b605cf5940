"""Small files written whole or not at all: the few operations a store needs of its file system."""

from __future__ import annotations

import errno
import io
import os
import re
import shutil
import stat
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from gmkcf_dask.errors import InputError, StoreError

_LEFTOVER = re.compile(r".+\.partial|\..+\.[0-9a-f]{32}")


def put_atomic(path: Path, content: bytes) -> None:
    """Write a file so that a reader, or a crash, sees the old content or the new, never a part."""
    # opened the ordinary way, so that the file's mode is what the user's umask says
    temporary = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def put_if_absent(path: Path, content: bytes) -> bool:
    """Create a file with this content; False, and nothing done, where there is one already.

    Of several that try at the same time one succeeds, on network file systems as well.
    """
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    except FileExistsError:
        return False
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return True


def is_full(error: OSError) -> bool:
    """Whether it says that a disk, or what one may use of it, has no room left."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def npz_bytes(arrays: Mapping[str, npt.NDArray[Any]], *, compressed: bool = True) -> bytes:
    """Arrays as the content of an .npz file; objects are refused, for they would be pickled."""
    binary = io.BytesIO()
    how = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
    with zipfile.ZipFile(binary, "w", how) as archive:
        for name, values in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.asanyarray(values), allow_pickle=False)
    return binary.getvalue()


def open_regular(path: str | Path) -> io.FileIO:
    """Open a file to read, unbuffered; a pipe would make its reader wait for ever.

    Raises
    ------
    StoreError
        There is something else than a regular file.
    """
    try:
        descriptor = os.open(path, READING)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return io.FileIO(descriptor, "rb")
        os.close(descriptor)
    except OSError as error:
        if error.errno != errno.ENXIO:  # of a socket
            raise
    raise StoreError(f"{path} is not a regular file: remove it, or put the file back")


READING = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
"""Flags with which opening never waits."""
MOST_BYTES = 1 << 30
"""Of a small file: more than any of ours has."""


def get(path: Path, most: int = MOST_BYTES) -> bytes | None:
    """Content of a regular file of so many bytes at most, or None where there is none.

    Raises
    ------
    StoreError
        It is larger, or no regular file.
    """
    try:
        with open_regular(path) as file:
            if os.fstat(file.fileno()).st_size > most:
                raise StoreError(f"{path} is far too large: it is not ours, remove it")
            return file.readall()
    except (FileNotFoundError, NotADirectoryError):
        return None


def links_inside(root: Path) -> Iterator[Path]:
    """Symbolic links in a folder, at any depth; none of them is followed."""
    for folder, folders, names in os.walk(root, followlinks=False):
        for name in (*folders, *names):
            path = Path(folder, name)
            if path.is_symlink():
                yield path


def remove_leftovers(root: Path) -> int:
    """Delete what writers that were killed left half written; returns how many files.

    These are `*.partial` files of chunks and the hidden temporaries of `put_atomic`. Links are
    neither followed nor deleted.
    """
    removed = 0
    for folder, _, names in os.walk(root, followlinks=False):
        for name in names:
            path = Path(folder, name)
            if _LEFTOVER.fullmatch(name) and not path.is_symlink():
                path.unlink(missing_ok=True)
                removed += 1
    return removed


def remove_folder(root: Path, *parts: str) -> None:
    """Delete a folder inside a root with all it holds; never through a symbolic link."""
    path = root
    for part in parts:
        path = path / part
        if path.is_symlink():
            raise StoreError(f"{path} is a symbolic link: nothing is deleted through it, remove it")
    shutil.rmtree(path, ignore_errors=True)


def check_writable(path: Path, what: str) -> None:
    """Refuse a folder that could not be made or written, without making it."""
    existing = next(p for p in (path.absolute(), *path.absolute().parents) if p.exists())
    if not existing.is_dir():
        raise InputError(f"cannot write {what} at {path}: {existing} is a file; choose another")
    _probe(existing, path, what)


def make_folder(path: Path, what: str) -> None:
    """Create a folder and its parents, or say in one sentence why that cannot be."""
    check_writable(path, what)
    path.mkdir(parents=True, exist_ok=True)


def _probe(folder: Path, path: Path, what: str) -> None:
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"cannot write {what} at {path}: {reason}; choose another path") from error
