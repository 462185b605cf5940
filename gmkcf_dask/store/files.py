"""Small files written whole or not at all: the few operations a store needs of its file system.

Each works on local paths and in object stores alike; see `object_storage`.
"""

from __future__ import annotations

import errno
import io
import os
import re
import shutil
import stat
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from gmkcf_dask.errors import InputError, StorageRefused, StoreError
from gmkcf_dask.store import object_storage
from gmkcf_dask.store.object_storage import is_remote
from gmkcf_dask.system.retry import (
    is_denied,
    is_full as is_full,
    is_trouble,
    retried,
    storage_error,
)

if TYPE_CHECKING:
    import numpy.typing as npt

_LEFTOVER = re.compile(r".+\.partial|\..+\.[0-9a-f]{32}")


def put_atomic(path: Path, content: bytes, *, mode: int = 0o666) -> None:
    """Write a file so that a reader, or a crash, sees the old content or the new, never a part.

    The file has this mode from the beginning, less what the user's umask takes away.
    """
    if is_remote(path):
        object_storage.put_object(path, content)
        return

    def put() -> None:
        temporary = path.with_name(f".{path.name}.{uuid4().hex}")
        with _removed_on_error(temporary):
            descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode)
            _write_and_sync(descriptor, content, path)
            temporary.replace(path)

    retried(put, path, "write")


def put_if_absent(path: Path, content: bytes) -> bool:
    """Create a file with this content; False, and nothing done, where there is one already.

    Of several that try at the same time one succeeds, on network file systems as well.
    """
    if is_remote(path):
        return object_storage.put_new_object(path, content)

    def put() -> bool:
        try:
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        except FileExistsError:
            return False
        with _removed_on_error(path):
            _write_and_sync(descriptor, content, path)
        return True

    return retried(put, path, "write")


@contextmanager
def _removed_on_error(path: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        with suppress(OSError):  # the first error is raised
            path.unlink(missing_ok=True)
        raise


def _write_and_sync(descriptor: int, content: bytes, path: Path) -> None:
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)  # writing does not name its file: whose disk is full?
        raise


def npz_bytes(arrays: Mapping[str, npt.NDArray[Any]], *, compressed: bool = True) -> bytes:
    """Arrays as the content of an .npz file; objects are refused, for they would be pickled."""
    import numpy as np  # not at the top: the command line imports this module

    binary = io.BytesIO()
    method = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
    with zipfile.ZipFile(binary, "w", method) as archive:
        for name, values in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.asanyarray(values), allow_pickle=False)
    return binary.getvalue()


def open_regular(path: str | Path) -> io.FileIO:
    """Open a local file to read, unbuffered; a pipe would make its reader wait for ever.

    Raises a StoreError where there is something else than a regular file.
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
_NO_LARGER = 1 << 40  # bytes; no object is


def get(path: Path, most: int = MOST_BYTES) -> bytes | None:
    """Content of a regular file of so many bytes at most, or None where there is none.

    Raises a StoreError where it is larger, or no regular file.
    """

    def read_local() -> bytes:
        with open_regular(path) as file:
            if os.fstat(file.fileno()).st_size > most:
                raise _too_large(path)
            return file.readall()

    try:
        return _get_object(path, most) if is_remote(path) else retried(read_local, path, "read")
    except (FileNotFoundError, NotADirectoryError):
        return None


def read(path: Path) -> bytes:
    """Content of a file that must be there."""
    if is_remote(path):
        return _get_object(path, _NO_LARGER)
    return retried(path.read_bytes, path, "read")


def _get_object(path: Path, most: int) -> bytes:
    try:
        return object_storage.get_object(path, min(most, _NO_LARGER))
    except ValueError as error:
        raise _too_large(path) from error


def _too_large(path: Path) -> StoreError:
    return StoreError(f"{path} is far too large: it is not ours, remove it")


def prefetched(paths: Sequence[Path], most: int) -> Callable[[Path], bytes | None]:
    """What `get` returns of small files; those of an object store are fetched side by side."""
    if not (paths and is_remote(paths[0])):
        return lambda path: get(path, most)
    contents = dict(zip(paths, object_storage.find_objects(paths, most), strict=True))

    def give(path: Path) -> bytes | None:
        content = contents[path]
        if content is not None and len(content) > most:  # raised at the same time as by `get`
            raise _too_large(path)
        return content

    return give


def exists(path: Path) -> bool:
    """Whether there is a file or a folder; a folder of an object store has something in it."""
    return object_storage.anything_at(path) if is_remote(path) else _mode(path) is not None


def is_file(path: Path) -> bool:
    """Whether there is a file."""
    if is_remote(path):
        return object_storage.object_size(path) is not None
    return stat.S_ISREG(_mode(path) or 0)


def _mode(path: Path) -> int | None:
    """Kind and rights of what a path leads to; None where there is nothing."""
    try:
        return retried(path.stat, path, "read").st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        return None


def is_no_folder(path: Path) -> bool:
    """Whether there is something else than a folder; in an object store both can be at once."""
    if is_remote(path):
        return is_file(path)
    mode = _mode(path)
    return mode is not None and not stat.S_ISDIR(mode)


def is_link(path: Path) -> bool:
    """Whether a path is a symbolic link, of which object stores have none."""
    return not is_remote(path) and path.is_symlink()


def resolved(path: Path) -> Path:
    """The path without links and dots."""
    return path if is_remote(path) else path.resolve()


def absolute(path: Path) -> Path:
    """The path from the root on; a URL is one already."""
    return path if is_remote(path) else path.absolute()


def names_in(folder: Path) -> list[str]:
    """Names of what is directly in a folder; none where there is no folder."""
    if is_remote(folder):
        return object_storage.names_below(folder)
    try:
        return retried(lambda: [entry.name for entry in folder.iterdir()], folder, "read")
    except (FileNotFoundError, NotADirectoryError):
        return []


def size_of(path: Path) -> int:
    """Bytes of a file; −1 where there is none."""
    if is_remote(path):
        size = object_storage.object_size(path)
        return -1 if size is None else size
    try:
        return retried(path.stat, path, "read").st_size
    except (FileNotFoundError, NotADirectoryError):
        return -1


def bytes_below(root: Path) -> int:
    """Bytes of all files in a folder, at any depth."""
    if is_remote(root):
        return sum(object_storage.sizes_below(root).values())

    def total() -> int:
        return sum(file.stat().st_size for file in root.rglob("*") if file.is_file())

    return retried(total, root, "read")


def remove(path: Path) -> None:
    """Delete a file, if there is one; of a link the link itself."""
    if is_remote(path):
        object_storage.delete_objects([path])
    else:
        retried(lambda: path.unlink(missing_ok=True), path, "write")


def nearest_existing(path: Path) -> Path:
    """A local path itself, or the nearest of the folders above it that is there."""
    return next(p for p in (path.absolute(), *path.absolute().parents) if p.exists())


def free_bytes(path: Path) -> int | None:
    """Free bytes on the file system a path will be on; object stores have no end."""
    if is_remote(path):
        return None
    return shutil.disk_usage(nearest_existing(path)).free


def links_inside(root: Path) -> Iterator[Path]:
    """Symbolic links in a folder, at any depth; none of them is followed."""
    if is_remote(root):
        return

    def links() -> list[Path]:
        return [
            path
            for folder, folders, names in os.walk(root, followlinks=False)
            for path in (Path(folder, name) for name in (*folders, *names))
            if path.is_symlink()
        ]

    yield from retried(links, root, "read")


def remove_leftovers(root: Path) -> int:
    """Delete what writers that were killed left half written; returns how many files.

    These are `*.partial` files of chunks and the hidden temporaries of `put_atomic`. Links are
    neither followed nor deleted. Object stores have no such things.
    """
    removed = 0
    if is_remote(root):
        return removed
    for folder, _, names in os.walk(root, followlinks=False):
        for name in names:
            path = Path(folder, name)
            if _LEFTOVER.fullmatch(name) and not path.is_symlink():
                path.unlink(missing_ok=True)
                removed += 1
    return removed


def remove_folder(root: Path, *parts: str, first: str = "", last: str = "") -> None:
    """Delete a folder inside a root with all it holds; never through a symbolic link.

    Object stores have no folders to delete: `first` and `last` name what goes first and last there.
    """
    path = root
    for part in parts:
        path = path / part
        if is_link(path):
            raise StoreError(f"{path} is a symbolic link: nothing is deleted through it, remove it")
    if not is_remote(path):
        shutil.rmtree(path, ignore_errors=True)
        return
    object_storage.delete_objects([path / first] if first else [])
    names = object_storage.sizes_below(path)
    object_storage.delete_objects([path / name for name in names if name != last])
    left = object_storage.sizes_below(path).keys() - {last}
    if left:
        raise StorageRefused(
            f"{len(left)} objects below {path} could not be deleted, such as {min(left)}: see "
            "whether the credentials allow it, and whether another process writes there"
        )
    object_storage.delete_objects([path / last] if last in names else [])


def check_writable(path: Path, what: str) -> None:
    """Refuse a folder that could not be made or written, without making it."""
    if is_remote(path):
        probe = path.with_name(f".{path.name}.{uuid4().hex}")
        try:
            object_storage.put_object(probe, b"")
            object_storage.delete_objects([probe])
        except StorageRefused as error:
            raise InputError(f"cannot write {what} at {path}: {error}") from error
        return
    folder = nearest_existing(path)
    if not folder.is_dir():
        raise InputError(f"cannot write {what} at {path}: {folder} is a file; choose another")
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        if is_full(error):
            raise  # whoever writes there says how much is needed
        if is_trouble(error):
            raise storage_error(error, folder, "write") from error
        reason = error.strerror or error
        right = f" (no permission to write in {folder})" if is_denied(error) else ""
        raise InputError(
            f"cannot write {what} at {path}: {reason}{right}; choose another path"
        ) from error


def make_folder(path: Path, what: str) -> None:
    """Create a folder and its parents, or say in one sentence why that cannot be."""
    check_writable(path, what)
    make_folders(path)


def make_folders(path: Path) -> None:
    """Create a folder and its parents; object stores have none."""
    if not is_remote(path):
        retried(lambda: path.mkdir(parents=True, exist_ok=True), path, "write")


def missing_folders(path: Path) -> list[Path]:
    """The path and those of its parents that would have to be made."""
    if is_remote(path):
        return []
    return [folder for folder in (path, *path.parents) if not folder.exists()]


def confined(path: Path, root: Path) -> Path:
    """The path, once it is known to lie below root with no symbolic link leading elsewhere."""
    if not resolved(path).is_relative_to(resolved(root)):
        raise InputError(f"{path} leads out of {root}: remove the link or choose another folder")
    return path


def refuse_link(path: Path, what: str) -> None:
    """Refuse a symbolic link where something would be deleted or replaced."""
    if is_link(path):
        raise InputError(
            f"{path} is a symbolic link, and {what} is never replaced through one: give the path "
            "it points to, or remove the link"
        )


def remove_tree(path: Path, root: Path | None = None, *, ignore_errors: bool = False) -> None:
    """Remove a folder and all in it; links inside are removed, what they point to is kept.

    Nothing happens where there is nothing; `ignore_errors` leaves what cannot be removed.
    """
    refuse_link(path, "a folder")
    if root is not None:
        confined(path, root)
    if path.exists():
        shutil.rmtree(path, ignore_errors=ignore_errors)
