"""Private temporary folders: one per run, removed at its end or, if it is killed, by the next run.

Each is a new folder of mode 0700 in TMPDIR with a file that says which process owns it. A folder
whose owner is provably dead (see `processes`) is removed by the next run of the same user.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gmkcf_dask.errors import DiskFullError, InputError
from gmkcf_dask.system.processes import Owner, ProcessState

OWNER_FILE = "owner.json"
_NAME = re.compile(r"gmkcf-[a-z0-9]+-[A-Za-z0-9_]{8}")
_MOST_BYTES = 1 << 16
_EMPTY_AFTER = 3600.0  # seconds; a folder gets its owner at once: an empty one this old has none


def temporary_root() -> Path:
    """Where temporary folders are made: TMPDIR if it is a folder, else the system's own.

    Raises `DiskFullError` if no folder for temporary files can be written.
    """
    given = os.environ.get("TMPDIR")
    if given and Path(given).is_dir():
        return Path(given).absolute()
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError as error:
        raise DiskFullError(
            f"there is no folder for temporary files ({error.strerror or error}): make "
            "room, or set TMPDIR to a folder that can be written"
        ) from error


@contextmanager
def run_folder(purpose: str, within: Path | None = None) -> Iterator[Path]:
    """A new private folder until the end of the block; what killed runs left is swept first.

    It is made in `within`, an existing folder, by default `temporary_root`. `purpose` is part of
    its name: lower-case letters and digits. Raises `InputError` if it cannot be made there, OSError
    if the disk is full.
    """
    folder = make_run_folder(purpose, within)
    try:
        yield folder
    finally:
        remove_run_folder(folder)


def make_run_folder(purpose: str, within: Path | None = None) -> Path:
    """The same without an end: `remove_run_folder` removes it, or the next run of this user."""
    root = temporary_root() if within is None else within
    sweep(root)
    try:
        folder = Path(tempfile.mkdtemp(prefix=f"gmkcf-{purpose}-", dir=root))  # 0700 from mkdtemp
    except (PermissionError, FileNotFoundError, NotADirectoryError) as error:
        raise InputError(
            f"cannot make a folder for temporary files in {root}: {error.strerror}; set TMPDIR to "
            "a folder that can be written"
        ) from error
    try:
        (folder / OWNER_FILE).write_bytes(Owner.mine().encode())
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


def remove_run_folder(folder: Path) -> None:
    """Remove a folder with all it holds; the owner's file goes last, so that a sweep finds it."""
    with suppress(OSError):
        for entry in list(os.scandir(folder)):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            elif entry.name != OWNER_FILE:
                Path(entry.path).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def sweep(within: Path | None = None) -> list[Path]:
    """Remove the folders of runs of this user that were killed; returns which.

    Folders of other users, of owners that run or cannot be seen from here, and those whose name is
    not one of ours stay. Nothing is followed or removed through a symbolic link.
    """
    root = temporary_root() if within is None else within
    swept = []
    with suppress(OSError):
        for entry in list(os.scandir(root)):
            if _NAME.fullmatch(entry.name) and _is_left(entry):
                remove_run_folder(Path(entry.path))
                swept.append(Path(entry.path))
    return swept


def _is_left(entry: os.DirEntry[str]) -> bool:
    try:
        status = entry.stat(follow_symlinks=False)
        private = stat.S_ISDIR(status.st_mode) and not stat.S_IMODE(status.st_mode) & 0o077
        if not private or status.st_uid != os.geteuid():
            return False
        if not any(Path(entry.path).iterdir()):  # killed before it wrote who it was
            return time.time() - status.st_mtime > _EMPTY_AFTER
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        path = Path(entry.path, OWNER_FILE)
        with open(os.open(path, flags), "rb") as file:  # noqa: PTH123  # pathlib has no such flags
            owner = Owner.decode(file.read(_MOST_BYTES))
    except OSError:
        return False
    return owner is not None and owner.state() is ProcessState.DEAD
