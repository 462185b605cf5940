"""Small files written whole or not at all: the few operations a store needs of its file system."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from uuid import uuid4

from gmkcf_dask.errors import InputError


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
