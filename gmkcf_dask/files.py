"""Small files written whole or not at all: the few operations a store needs of its file system."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from gmkcf_dask.errors import InputError


def put_atomic(path: Path, content: bytes) -> None:
    """Write a file so that a reader, or a crash, sees the old content or the new, never a part."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def get(path: Path) -> bytes | None:
    """Content of a file, or None where there is none."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None


def check_writable(path: Path, what: str) -> None:
    """Refuse a folder that could not be made or written, without making it."""
    existing = next(p for p in (path.absolute(), *path.absolute().parents) if p.exists())
    if not existing.is_dir():
        raise InputError(f"cannot write {what} at {path}: {existing} is a file; choose another")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise InputError(f"cannot write {what} at {path}: permission denied; choose another path")


def make_folder(path: Path, what: str) -> None:
    """Create a folder and its parents, or say in one sentence why that cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"cannot write {what} at {path}: {reason}; choose another path") from error
