"""One writer at a time: a lock file beside the store says who writes into it.

Readers never look at it. A lock whose owner is provably dead (see `processes`) is taken over with
a note. One of an owner that cannot be seen from here stays until it is taken over by force:
whether that writer is gone is for the user to judge.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

from msgspec import structs

from gmkcf_dask.errors import (
    InputError,
    StorageError,
    StorageRefused,
    StoreBusyError,
    StoreError,
    StoreWarning,
)
from gmkcf_dask.store import files, object_storage
from gmkcf_dask.store.object_storage import is_remote
from gmkcf_dask.system.processes import Owner, ProcessState, ShortText
from gmkcf_dask.system.retry import is_full, is_trouble

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

RENEWED_EVERY = 60.0
"""Seconds between signs of life of a writer."""
STALE_AFTER = 900.0
"""Seconds without one after which a writer on another machine counts as gone."""
_MOST_BYTES = 1 << 16
_UNREADABLE_AFTER = 10.0  # a lock is written at once: half a lock this old has no owner


class LockInfo(Owner, frozen=True, kw_only=True, omit_defaults=True):
    """Content of a lock file: the process that writes, its run, and since when."""

    run: ShortText
    since: ShortText
    renewed: int = 0
    """Heartbeats in an object store: one that was renewed is another object."""

    @classmethod
    def mine(cls) -> LockInfo:
        """A new lock of this process."""
        since = datetime.now(UTC).isoformat(timespec="seconds")
        return cls(**structs.asdict(Owner.mine()), run=uuid4().hex, since=since)

    @classmethod
    def read(cls, path: Path) -> LockInfo | None:
        """The content of a lock file; None where it is torn, of another kind, or cannot be one."""
        try:
            info = cls.decode(files.get(path, _MOST_BYTES) or b"")
        except StoreError:  # not a regular file, or far too large
            return None
        return info and structs.replace(info, renewed=0)

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} since {self.since} (run {self.run[:8]})"


def lock_path(store: Path) -> Path:
    """Where the lock of a store is: beside it, so that it can be had before there is a store."""
    real = files.resolved(store)
    return real.with_name(f".{real.name}.lease")


def holder(store: Path) -> str | None:
    """Who writes into a store now, or did when it was killed, in words; None without a writer."""
    path = lock_path(store)
    if not files.exists(path):
        return None
    lock, gone = LockInfo.read(path), is_gone(path)
    who = str(lock) if lock else "an unknown process"
    return f"{who}, which is gone" if gone else who


@contextmanager
def writing(store: Path, *, force: bool = False) -> Iterator[LockInfo]:
    """Hold the lock of a store, and begin by removing what killed writers left half written.

    Parameters
    ----------
    force : bool
        Take over the lock of a writer that cannot be seen from here and has been silent for long.
        That of a provably dead writer is taken over without it; one that lives keeps it.

    Raises
    ------
    StoreBusyError
        Another writer holds it; says who and since when.
    """
    with _held(store, force=force, warn=True) as lock:
        _sweep(store)
        yield lock


@contextmanager
def owning(folder: Path) -> Iterator[Callable[[], None]]:
    """Be the only one who writes results into a folder; from an owner that is gone it is taken.

    Yields what to call before writing: it raises where the folder was taken over meanwhile.

    Raises
    ------
    StoreBusyError
        Another process does; says which and since when.
    """
    files.make_folders(folder.parent)
    with _held(folder, force=True) as lock:
        yield partial(confirm, folder, lock)


@contextmanager
def _held(place: Path, *, force: bool, warn: bool = False) -> Iterator[LockInfo]:
    path, lock = lock_path(place), LockInfo.mine()
    taken_from = _acquire(path, lock, place, force=force)
    if taken_from is not None and warn:
        warnings.warn(
            f"the lock of {place} was taken over from {taken_from}, which has ended",
            StoreWarning,
            stacklevel=5,
        )
    heartbeat = Heartbeat(path, lock)
    try:
        with _signals_as_exceptions():
            yield lock
    except BaseException:
        with suppress(StorageError):  # the lock stays; the error that ended the work is raised
            _give_back(path, lock, heartbeat)
        raise
    _give_back(path, lock, heartbeat)


def _give_back(path: Path, lock: LockInfo, heartbeat: Heartbeat) -> None:
    heartbeat.stop()
    if LockInfo.read(path) == lock:
        files.remove(path)


class Heartbeat:
    """Signs of life of this process in a file of its own, until it is told to stop."""

    def __init__(self, path: Path, lock: LockInfo) -> None:
        self._stopped = threading.Event()
        args = (path, lock, self._stopped)
        self._thread = threading.Thread(target=_renew, args=args, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()


def claim_folder(path: Path) -> Heartbeat:
    """Say in a new file that this process owns the folder it is in, and that it lives."""
    lock = LockInfo.mine()
    if not files.put_if_absent(path, lock.encode()):
        raise StoreError(f"{path} exists: another process owns this folder")
    return Heartbeat(path, lock)


def confirm(store: Path, lock: LockInfo) -> None:
    """Stop a writer whose lock was taken over: two would undo each other's work."""
    if LockInfo.read(lock_path(store)) != lock:
        raise StoreBusyError(
            f"the lock of {store} was taken over by {holder(store) or 'a process that has ended'}: "
            "this writer stops, what it wrote is kept"
        )


def _acquire(path: Path, lock: LockInfo, store: Path, *, force: bool) -> LockInfo | None:
    """Put a lock in place; returns that of a provably dead owner it was taken over from."""
    content = lock.encode()
    try:
        # a request whose answer was lost is repeated, and then meets its own lock
        if files.put_if_absent(path, content) or LockInfo.read(path) == lock:
            return None
        tag, previous, state = _tag(path), LockInfo.read(path), _owner_state(path)
        if state not in (ProcessState.DEAD, ProcessState.GONE):
            raise StoreBusyError(
                f"{store} is being written by {holder(store) or 'another process'}: wait until it "
                "is done; reading is possible meanwhile"
            )
        if state is ProcessState.GONE and not force:
            raise StoreBusyError(
                f"{store} was being written by {holder(store) or 'a process that just ended'}: if "
                f"that is so, take over with --force (from Python, remove {path})"
            )
        if not _take_over(path, content, tag) and LockInfo.read(path) != lock:
            raise StoreBusyError(f"{store} is being written by {holder(store)}: wait for it")
    except StorageRefused as error:
        raise InputError(f"cannot write the store at {store}: {error}") from error
    except OSError as error:
        if is_full(error) or is_trouble(error):
            raise
        raise InputError(
            f"cannot write the store at {store}: {error.strerror}; choose another path"
        ) from error
    return previous if state is ProcessState.DEAD else None


def _tag(path: Path) -> str | None:
    """Which object a lock is, before it is judged; files are told apart by moving them."""
    if not is_remote(path):
        return None
    try:
        return object_storage.object_tag(path)
    except FileNotFoundError:
        return None


def _take_over(path: Path, content: bytes, tag: str | None) -> bool:
    """Put a lock in the place of one that is gone, unless another process was faster."""
    if is_remote(path):
        if tag is not None and object_storage.put_same_object(path, content, tag):
            return True
        return files.put_if_absent(path, content)
    taken = _take_over_locked(path, content)
    return _take_over_claimed(path, content) if taken is None else taken


def _take_over_claimed(path: Path, content: bytes) -> bool:
    """Replace a lock file where files cannot be locked: first claim to be its successor.

    A lock has one successor, the first to create the file named after its content. The claim of
    a successor that ended before it replaced the lock is succeeded in the same way.
    """
    lock = files.get(path, _MOST_BYTES)
    if lock is None:
        return files.put_if_absent(path, content)
    claims, last = [], lock
    while True:
        claim = path.with_name(f"{path.name}.{sha256(last).hexdigest()[:32]}")
        if claim in claims:
            return False  # a copy of the lock is no claim of a successor
        claims.append(claim)
        if files.put_if_absent(claim, content):
            break
        earlier = files.get(claim, _MOST_BYTES)
        if earlier is None or not is_gone(claim):
            return False  # another process takes it over right now
        last = earlier
    # the lock may have been replaced, and its claim removed, before this claim was made
    first = files.get(path, _MOST_BYTES) == lock and is_gone(path)
    if first:
        files.put_atomic(path, content)
    for claim in claims if first else claims[-1:]:
        files.remove(claim)
    return first


def _take_over_locked(path: Path, content: bytes) -> bool | None:
    """Replace a lock file under a lock on that very file; None where it cannot be locked.

    The file is replaced by renaming, so there is no moment without a lock. Whoever waits for the
    lock finds another file in its place afterwards, and has lost.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
    except FileNotFoundError:
        return files.put_if_absent(path, content)
    except OSError:  # of another user, or no regular file
        return None
    try:
        if fcntl is None:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False  # another process is taking it over right now
        except OSError:  # a file system without locks
            return None
        if not _is_file_of(descriptor, path) or not is_gone(path):
            return False
        files.put_atomic(path, content)
        return True
    finally:
        os.close(descriptor)  # and with it the lock


def _is_file_of(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat(follow_symlinks=False))
    except FileNotFoundError:
        return False


def is_gone(path: Path) -> bool:
    """Whether the owner of a lock cannot be writing any more; no file says nothing of one."""
    return _owner_state(path) in (ProcessState.DEAD, ProcessState.GONE)


def _owner_state(path: Path) -> ProcessState:
    """That of the owner of a lock; one that cannot be seen is gone after a long silence."""
    lock = LockInfo.read(path)
    if lock is None:
        return ProcessState.GONE if _age(path) > _UNREADABLE_AFTER else ProcessState.UNSEEN
    state = lock.state()
    if state is ProcessState.UNSEEN and _age(path) > STALE_AFTER:
        return ProcessState.GONE
    return state


def _age(path: Path) -> float:
    """Seconds since a file was touched, by the clock of its file system."""
    probe = path.with_name(f"{path.name}.{uuid4().hex}")
    try:
        touched = _touched(path)
    except FileNotFoundError:
        return 0.0
    try:
        files.put_if_absent(probe, b"")
        return _touched(probe) - touched
    except (OSError, StorageRefused):  # one who only reads may not write there
        return time.time() - touched
    finally:
        with suppress(OSError, StorageError):
            files.remove(probe)


def _touched(path: Path) -> float:
    return object_storage.modified(path) if is_remote(path) else path.stat().st_mtime


def _renew(path: Path, lock: LockInfo, stop: threading.Event) -> None:
    times = 0
    while not stop.wait(RENEWED_EVERY):
        times += 1
        with suppress(OSError, StorageError):  # the next manifest finds out, and says so
            if is_remote(path):
                _renew_object(path, lock, times)
            elif LockInfo.read(path) == lock:  # that of a successor is not ours to renew
                os.utime(path)


def _renew_object(path: Path, lock: LockInfo, times: int) -> None:
    """Objects cannot be touched: written anew, unless it was taken over meanwhile."""
    tag = object_storage.object_tag(path)
    if LockInfo.read(path) == lock:
        object_storage.put_same_object(path, structs.replace(lock, renewed=times).encode(), tag)


def _sweep(store: Path) -> None:
    """Under the lock: remove what killed writers left, inside the store and beside it.

    In an object store they leave nothing half written.
    """
    if is_remote(store):
        return
    for link in files.links_inside(store):
        raise StoreError(
            f"{link} is a symbolic link: stores are not written through links, put the folder "
            "itself in its place"
        )
    files.remove_leftovers(store)
    real = store.resolve()
    left = re.compile(rf"\.{re.escape(real.name)}\.(lease\.)?[0-9a-f]{{32}}")
    for entry in list(os.scandir(real.parent)):
        if left.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
            files.remove_folder(real.parent, entry.name)
        elif left.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
            Path(entry.path).unlink(missing_ok=True)


@contextmanager
def _signals_as_exceptions() -> Iterator[None]:
    """While something is held, being asked to end unwinds the stack instead of cutting it."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may say what signals do
        return

    def leave(number: int, frame: Any) -> None:
        raise SystemExit(128 + number)

    signals = (signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else []))
    # signals that are handled already keep their handlers
    ours = [number for number in signals if signal.getsignal(number) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)
