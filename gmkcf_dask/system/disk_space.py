"""Free space of a file system, in bytes and in files, and errors of a full one."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gmkcf_dask.errors import DiskFullError, DiskRefused, GmkcfError, PlanRefused
from gmkcf_dask.system.retry import is_denied, is_full, is_trouble, refused, storage_error
from gmkcf_dask.system.units import human_bytes


def free_files(path: Path) -> int | None:
    """Files that can still be made where a path is; None where nobody counts them."""
    try:
        status = os.statvfs(_nearest(path))
    except (AttributeError, OSError):
        return None
    return status.f_favail if status.f_files > 0 else None


def refuse_few_files(path: Path, needed: int, what: str) -> None:
    """Raise `PlanRefused` if work makes more files than the file system of a path has inodes."""
    free = free_files(path)
    if free is not None and needed > free:
        raise PlanRefused(
            f"{what} at {path} needs about {needed:,} files, and the file system has {free:,} free "
            "inodes: remove files there, choose larger tiles with --block, or another path"
        )


def full_error(
    error: OSError,
    folder: Path,
    advice: str,
    needed: str = "",
    kind: str = "",
    needed_files: int = 0,
) -> DiskFullError:
    """A full disk in one sentence: the folder, what is needed and free, in bytes or in files.

    `needed` is a clause such as "the other tiles need up to 3.0 MiB", `kind` a prefix of the folder
    such as "the scratch folder ". Inodes are reported if fewer than `needed_files` are free.
    """
    free = 0
    with suppress(OSError):
        free = shutil.disk_usage(_nearest(folder)).free
    files = free_files(folder)
    if error.errno == errno.EDQUOT:
        what = f"your quota on the disk of {kind}{folder} is used up"
        room = f"the disk itself has {human_bytes(free)} free"
    elif files is not None and files < max(1, needed_files):
        what = f"the disk of {kind}{folder} is full: its inodes (files) are used up, not its bytes"
        room = f"{files:,} inodes and {human_bytes(free)} are free"
    else:
        what = f"the disk of {kind}{folder} is full"
        room = f"{human_bytes(free)} are free"
    return DiskFullError(f"{what}: {f'{needed} and ' if needed else ''}{room}; {advice}")


@contextmanager
def disk_full_errors(
    folder: Path, advice: str, needed: Callable[[], str] = lambda: "", needed_files: int = 0
) -> Iterator[None]:
    """Turn ENOSPC and EDQUOT into a `DiskFullError` (exit code 3) about a folder."""
    try:
        yield
    except OSError as error:
        if isinstance(error, DiskFullError) or not is_full(error):
            raise
        raise full_error(error, folder, advice, needed(), needed_files=needed_files) from error


@contextmanager
def folder_in_errors(folder: Path | None) -> Iterator[None]:
    """Add the folder to a refusal for want of disk: a plan knows sizes, not places."""
    try:
        yield
    except DiskRefused as error:
        if folder is None:
            raise
        raise DiskRefused(f"{error} (the disk of {folder})") from error


def typed_error(error: OSError, place: Path | None = None) -> GmkcfError | None:
    """The typed error for one of the system that nobody expected; None where there is none.

    `place` is what was worked on, where the error itself names no file.
    """
    if isinstance(error, GmkcfError):
        return error
    named = error.filename if isinstance(error.filename, str) else place and str(place)
    path = Path(named) if named else Path()
    if is_full(error):
        return full_error(
            error, path.parent if named else path, "make room and run the same command again"
        )
    if is_trouble(error):
        return storage_error(error, path)
    if is_denied(error) and named:
        return refused(error, path)
    return None


def _nearest(path: Path) -> Path:
    return next(p for p in (path.absolute(), *path.absolute().parents) if p.exists())
