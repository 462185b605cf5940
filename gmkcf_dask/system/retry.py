"""Transient errors of a file system: retried for a moment, and never taken for damage.

A shared file system that answers EIO or ESTALE says nothing about what is in a file. Only what was
read, or is known not to be there, can be damaged.
"""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from gmkcf_dask.errors import StorageError, StorageRefused

T = TypeVar("T")

PAUSES = (0.1, 0.4, 1.6)
"""Seconds between four tries of one operation; as many as of a request to an object store."""
_NAMES = (
    "EIO", "ESTALE", "EREMOTEIO", "ETIMEDOUT", "EHOSTDOWN", "EHOSTUNREACH", "ENETDOWN",
    "ENETUNREACH", "ENETRESET", "ENOTCONN", "ECONNRESET", "ECONNABORTED", "ECONNREFUSED",
    "ESHUTDOWN", "ENODEV", "ENOMEDIUM", "ENOLINK", "ECOMM", "EPROTO", "EAGAIN", "EBUSY", "ENOLCK",
    "EUCLEAN", "EBADMSG", "EMFILE", "ENFILE", "ENOMEM",
)  # fmt: skip
TROUBLE = frozenset(getattr(errno, name) for name in _NAMES if hasattr(errno, name))
"""Error numbers that say nothing of a file, only of the way to it."""
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
DENIED = frozenset({errno.EACCES, errno.EPERM})


def is_trouble(error: BaseException) -> bool:
    """Whether an error is of the system or the way to a file, not of what is in it."""
    return isinstance(error, OSError) and error.errno in TROUBLE


def is_denied(error: BaseException) -> bool:
    """Whether an error says that a right is missing."""
    return isinstance(error, OSError) and error.errno in DENIED


def is_full(error: BaseException) -> bool:
    """Whether it says that a disk, or what one may use of it, has no room left."""
    return isinstance(error, OSError) and error.errno in FULL


def retried(work: Callable[[], T], path: str | os.PathLike[str], verb: str) -> T:
    """The result of an operation on a file; tried again after a transient error.

    `work` opens the file itself, as a stale handle does not become fresh. `verb` is "read" or
    "write", for the error.

    Raises
    ------
    StorageError
        It failed every time (exit code 5).
    StorageRefused
        The right to read is missing (exit code 2). Who writes finds out by a PermissionError.
    OSError
        Anything else, such as a file that is not there, or a full disk.
    """
    for pause in (*PAUSES, None):
        try:
            return work()
        except OSError as error:
            trouble = _only_trouble(error, path, verb)
        if pause is not None:
            time.sleep(pause)
    raise storage_error(trouble, path, verb, tries=len(PAUSES) + 1) from trouble


async def retried_async(
    work: Callable[[], Awaitable[T]], path: str | os.PathLike[str], verb: str
) -> T:
    """The same for a coroutine."""
    for pause in (*PAUSES, None):
        try:
            return await work()
        except OSError as error:
            trouble = _only_trouble(error, path, verb)
        if pause is not None:
            await asyncio.sleep(pause)
    raise storage_error(trouble, path, verb, tries=len(PAUSES) + 1) from trouble


def _only_trouble(error: OSError, path: str | os.PathLike[str], verb: str) -> OSError:
    if is_denied(error) and verb == "read":
        raise refused(error, path, verb) from error
    if not is_trouble(error):
        raise error
    return error


def storage_error(
    error: OSError, path: str | os.PathLike[str], verb: str = "use", *, tries: int = 1
) -> StorageError:
    """Trouble in one sentence, with the system's words."""
    tried = f", tried {tries} times" if tries > 1 else ""
    return StorageError(
        f"the file system cannot {verb} {os.fspath(path)} ({error.strerror or error}{tried}): what "
        "is stored is kept, run the same command again later"
    )


def refused(error: OSError, path: str | os.PathLike[str], verb: str = "use") -> StorageRefused:
    """A missing right in one sentence."""
    return StorageRefused(
        f"no permission to {verb} {os.fspath(path)} ({error.strerror or error}): ask its owner for "
        f"the permission to {verb} it and to enter the folders above it"
    )
