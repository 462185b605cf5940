"""One writer at a time: a lease file beside the store says who writes into it.

Readers never look at it. A lease that its owner no longer renews stays until somebody takes it over
by force: whether a writer is gone is for the user to judge, with what is said here.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil

from gmkcf_dask import locations
from gmkcf_dask.errors import InputError, StorageError, StorageRefused, StoreBusyError, StoreError
from gmkcf_dask.files import (
    exists,
    get,
    is_full,
    links_inside,
    make_folders,
    put_if_absent,
    remove,
    remove_folder,
    remove_leftovers,
    resolved,
)
from gmkcf_dask.locations import is_remote

RENEWED_EVERY = 60.0
"""Seconds between signs of life of a writer."""
STALE_AFTER = 900.0
"""Seconds without one after which a writer on another machine counts as gone."""
_MOST_BYTES = 1 << 16
_MOST_CHARACTERS = 512
_CLOCK_STEP = 600.0  # seconds; less between two starts may be one start and a clock that was set
_RENEWED = "renewed"
_UNREADABLE_AFTER = 10.0  # a lease is written at once: half a lease this old has no owner


@dataclass(frozen=True)
class Lease:
    """Who writes into a store.

    Attributes
    ----------
    machine : str
        Host name, the time since it was last started, and the space of its process numbers, as far
        as the system tells: only where all are the same can a process be looked for by its number.
    started : float
        When the process began: a number that is used again by the system is another process.
    ticks : int or None
        The same in clock ticks since the machine was started, where the system tells: this does
        not change when somebody sets the clock.
    """

    host: str
    machine: str
    pid: int
    started: float
    run: str
    since: str
    ticks: int | None = None

    @classmethod
    def mine(cls) -> Lease:
        """A new lease for this process."""
        return cls(
            host=socket.gethostname(),
            machine=_machine(),
            pid=os.getpid(),
            started=psutil.Process().create_time(),
            run=uuid4().hex,
            since=datetime.now(UTC).isoformat(timespec="seconds"),
            ticks=_start_ticks(os.getpid()),
        )

    @classmethod
    def read(cls, path: Path) -> Lease | None:
        """The lease in a file; None where it is torn, of another kind, or cannot be one."""
        try:
            found = json.loads(get(path, _MOST_BYTES) or b"null")
            if is_remote(path):
                found.pop(_RENEWED, None)
            lease = cls(**found)
        # what is no regular file among them
        except (ValueError, TypeError, AttributeError, RecursionError):
            return None
        texts = (lease.host, lease.machine, lease.run, lease.since)
        right = (
            all(isinstance(text, str) and text.isprintable() for text in texts)
            and max(map(len, texts)) <= _MOST_CHARACTERS
            and _whole(lease.pid, 1, 2**31 - 1)
            and isinstance(lease.started, int | float)
            and 0 <= lease.started < 2**53  # neither NaN nor infinite
            and (lease.ticks is None or _whole(lease.ticks, 0, 2**63))
        )
        return lease if right else None

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} since {self.since} (run {self.run[:8]})"


def lease_path(store: Path) -> Path:
    """Where the lease of a store is: beside it, so that it can be had before there is a store."""
    real = resolved(store)
    return real.with_name(f".{real.name}.lease")


def holder(store: Path) -> str | None:
    """Who writes into a store now, or did when it was killed, in words; None for nobody."""
    path = lease_path(store)
    if not exists(path):
        return None
    lease, gone = Lease.read(path), is_gone(path)
    who = str(lease) if lease else "an unknown process"
    return f"{who}, which is gone" if gone else who


@contextmanager
def writing(store: Path, *, force: bool = False) -> Iterator[Lease]:
    """Hold the lease of a store, and begin by removing what killed writers left half written.

    Parameters
    ----------
    force : bool
        Take over the lease of a writer that is gone. One that lives keeps it.

    Raises
    ------
    StoreBusyError
        Another writer holds it; says who and since when.
    """
    with _held(store, force=force) as lease:
        _sweep(store)
        yield lease


@contextmanager
def owning(folder: Path) -> Iterator[Callable[[], None]]:
    """Be the only one who writes results into a folder; from an owner that is gone it is taken.

    Yields what to call before writing: it raises where the folder was taken over meanwhile.

    Raises
    ------
    StoreBusyError
        Another process does; says which and since when.
    """
    make_folders(folder.parent)
    with _held(folder, force=True) as lease:
        yield partial(confirm, folder, lease)


@contextmanager
def _held(place: Path, *, force: bool) -> Iterator[Lease]:
    path, lease = lease_path(place), Lease.mine()
    _acquire(path, lease, place, force=force)
    alive = Alive(path, lease)
    try:
        with _signals_as_exceptions():
            yield lease
    except BaseException:
        with suppress(StorageError):  # the lease stays; what ended the work is told
            _give_back(path, lease, alive)
        raise
    _give_back(path, lease, alive)


def _give_back(path: Path, lease: Lease, alive: Alive) -> None:
    alive.stop()
    if Lease.read(path) == lease:
        remove(path)


class Alive:
    """Signs of life of this process in a file of its own, until it is told to stop."""

    def __init__(self, path: Path, lease: Lease) -> None:
        self._stopped = threading.Event()
        args = (path, lease, self._stopped)
        self._thread = threading.Thread(target=_renew, args=args, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()


def claim(path: Path) -> Alive:
    """Say in a new file that this process owns the folder it is in, and that it lives."""
    lease = Lease.mine()
    if not put_if_absent(path, _content(lease)):
        raise StoreError(f"{path} is there already: somebody else owns this folder")
    return Alive(path, lease)


def confirm(store: Path, lease: Lease) -> None:
    """Stop a writer whose lease was taken over: two would undo each other's work."""
    if Lease.read(lease_path(store)) != lease:
        raise StoreBusyError(
            f"the lease of {store} was taken over by {holder(store) or 'somebody who is done'}: "
            "this writer stops, what it wrote is kept"
        )


def _acquire(path: Path, lease: Lease, store: Path, *, force: bool) -> None:
    content = _content(lease)
    try:
        # a request whose answer was lost is repeated, and then meets its own lease
        if put_if_absent(path, content) or Lease.read(path) == lease:
            return
        seen = _seen(path)
        if not is_gone(path):
            raise StoreBusyError(
                f"{store} is being written by {holder(store) or 'another process'}: wait until it "
                "is done; reading is possible meanwhile"
            )
        if not force:
            raise StoreBusyError(
                f"{store} was being written by {holder(store) or 'a process that just ended'}: if "
                f"that is so, take over with --force (from Python, remove {path})"
            )
        if not _take_over(path, content, seen) and Lease.read(path) != lease:
            raise StoreBusyError(f"{store} is being written by {holder(store)}: wait for it")
    except StorageRefused as error:
        raise InputError(f"cannot write the store at {store}: {error}") from error
    except OSError as error:
        if is_full(error):
            raise
        raise InputError(
            f"cannot write the store at {store}: {error.strerror}; choose another path"
        ) from error


def _content(lease: Lease, renewed: int = 0) -> bytes:
    # a number, so that a lease that was renewed in an object store is another object
    return json.dumps(asdict(lease) | ({_RENEWED: renewed} if renewed else {})).encode()


def _seen(path: Path) -> str | None:
    """Which object a lease is, before it is judged; files are told apart by moving them."""
    if not is_remote(path):
        return None
    try:
        return locations.object_tag(path)
    except FileNotFoundError:
        return None


def _take_over(path: Path, content: bytes, seen: str | None) -> bool:
    """Put a lease in the place of one that is gone, unless somebody else was faster."""
    if is_remote(path):
        if seen is not None and locations.put_same_object(path, content, seen):
            return True
        return put_if_absent(path, content)
    # by renaming, which only one can do; and looked at again, as it may be a new one by now
    aside = path.with_name(f"{path.name}.{uuid4().hex}")
    with suppress(FileNotFoundError):
        path.rename(aside)
        if not is_gone(aside):
            put_if_absent(path, get(aside, _MOST_BYTES) or b"")
        aside.unlink()
    return put_if_absent(path, content)


def is_gone(path: Path) -> bool:
    """Whether the owner of a lease cannot be writing any more; no file says nothing of one."""
    lease = Lease.read(path)
    if lease is None:
        return _age(path) > _UNREADABLE_AFTER
    if lease.machine != _machine():
        return _age(path) > STALE_AFTER
    ticks = _start_ticks(lease.pid)
    if ticks is not None and lease.ticks is not None:
        return ticks != lease.ticks
    try:
        # the time a process began is counted from that of the machine, which moves with the clock
        return abs(psutil.Process(lease.pid).create_time() - lease.started) > _CLOCK_STEP
    except psutil.NoSuchProcess:
        return not psutil.pid_exists(lease.pid)  # it may only be hidden from us
    except psutil.Error:
        return False


def _start_ticks(pid: int) -> int | None:
    """When a process began, in ticks since the machine was started; None where nobody tells."""
    try:
        content = get(Path(f"/proc/{pid}/stat"), _MOST_BYTES) or b""
        # the name of the program, in brackets, may hold anything
        return int(content.rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


def _whole(value: object, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _age(path: Path) -> float:
    """Seconds since a file was touched, by the clock of its file system."""
    probe = path.with_name(f"{path.name}.{uuid4().hex}")
    try:
        touched = _touched(path)
    except FileNotFoundError:
        return 0.0
    try:
        put_if_absent(probe, b"")
        return _touched(probe) - touched
    except (OSError, StorageRefused):  # one who only reads may not write there
        return time.time() - touched
    finally:
        with suppress(OSError, StorageError):
            remove(probe)


def _touched(path: Path) -> float:
    return locations.modified(path) if is_remote(path) else path.stat().st_mtime


def _renew(path: Path, lease: Lease, stop: threading.Event) -> None:
    times = 0
    while not stop.wait(RENEWED_EVERY):
        times += 1
        with suppress(OSError, StorageError):  # the next manifest finds out, and says so
            if is_remote(path):
                _renew_object(path, lease, times)
            elif Lease.read(path) == lease:  # that of a successor is not ours to renew
                os.utime(path)


def _renew_object(path: Path, lease: Lease, times: int) -> None:
    """Objects cannot be touched: written anew, unless it was taken over meanwhile."""
    tag = locations.object_tag(path)
    if Lease.read(path) == lease:
        locations.put_same_object(path, _content(lease, times), tag)


def _sweep(store: Path) -> None:
    """Under the lease: remove what killed writers left, inside the store and beside it.

    In an object store they leave nothing half written.
    """
    if is_remote(store):
        return
    for link in links_inside(store):
        raise StoreError(
            f"{link} is a symbolic link: stores are not written through links, put the folder "
            "itself in its place"
        )
    remove_leftovers(store)
    real = store.resolve()
    left = re.compile(rf"\.{re.escape(real.name)}\.(lease\.)?[0-9a-f]{{32}}")
    for entry in list(os.scandir(real.parent)):
        if left.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
            remove_folder(real.parent, entry.name)
        elif left.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
            Path(entry.path).unlink(missing_ok=True)


def _machine() -> str:
    boot = (get(Path("/proc/sys/kernel/random/boot_id")) or b"").decode().strip()
    space = ""
    with suppress(OSError):
        space = str(Path("/proc/self/ns/pid").readlink())
    return f"{socket.gethostname()} {boot} {space}"


@contextmanager
def _signals_as_exceptions() -> Iterator[None]:
    """While something is held, being asked to end unwinds the stack instead of cutting it."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may say what signals do
        return

    def leave(number: int, frame: Any) -> None:
        raise SystemExit(128 + number)

    asked = (signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else []))
    # somebody who handles signals already knows better
    ours = [number for number in asked if signal.getsignal(number) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)
