"""Which process owns a file or a folder, and whether that process still runs.

A process number alone proves nothing: numbers are used again, containers count processes on their
own, and another machine has other processes. An owner is therefore described by its machine (host
name, boot id and PID namespace), its process number and the time it started.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec
import psutil
from msgspec import Meta, Struct, structs

_CLOCK_STEP = 600.0  # seconds; less between two starts may be one start and a clock that was set
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_STAT_BYTES = 4096


class ProcessState(Enum):
    """What can be said of an owner from here."""

    RUNS = "it runs"
    DEAD = "it has ended, which is proved"
    """Same host name, boot id and PID namespace, and no process of that number and start."""
    GONE = "no such process is found, but the system does not tell its boot or PID namespace"
    UNSEEN = "it belongs to another machine, boot or container, which cannot be seen from here"


ShortText = Annotated[str, Meta(max_length=512)]
Owned = TypeVar("Owned", bound="Owner")


class Owner(Struct, frozen=True, forbid_unknown_fields=True):
    """A process, described so that it can be told from any other."""

    host: ShortText
    machine: ShortText  # see `this_machine`
    pid: Annotated[int, Meta(ge=1, le=2**31 - 1)]
    started: Annotated[float, Meta(ge=0, lt=2**53)]  # seconds since 1970
    # clock ticks since the machine was started, where known: setting the clock does not change them
    ticks: Annotated[int, Meta(ge=0)] | None = None

    @classmethod
    def mine(cls) -> Owner:
        """This process."""
        pid, started = os.getpid(), 0.0
        with suppress(psutil.Error):
            started = psutil.Process(pid).create_time()
        return cls(socket.gethostname(), this_machine(), pid, started, start_ticks(pid))

    @classmethod
    def decode(cls: type[Owned], content: bytes) -> Owned | None:
        """An owner from JSON; None where that cannot be one."""
        try:
            owner = msgspec.json.decode(content, type=cls)
        except (msgspec.DecodeError, RecursionError):
            return None
        texts = (value for value in structs.astuple(owner) if isinstance(value, str))
        return owner if all(map(str.isprintable, texts)) else None

    def encode(self) -> bytes:
        """As JSON."""
        return msgspec.json.encode(self)

    def state(self) -> ProcessState:
        """Whether it still runs, as far as this process can tell."""
        if self.machine != this_machine():
            return ProcessState.UNSEEN
        if self._runs():
            return ProcessState.RUNS
        boot_and_namespace = self.machine.rsplit(" ", 2)[1:]
        return ProcessState.DEAD if all(boot_and_namespace) else ProcessState.GONE

    def _runs(self) -> bool:
        stat = _stat(self.pid)
        # ended but not yet waited for; with a thread left, that one may still be writing
        if len(stat) > 17 and stat[0] in (b"Z", b"X") and int(stat[17]) <= 1:
            return False
        ticks = _ticks(stat)
        if ticks is not None and self.ticks is not None:
            return ticks == self.ticks
        try:
            # counted from the start of the machine, which moves with the clock
            apart = abs(psutil.Process(self.pid).create_time() - self.started)
        except psutil.NoSuchProcess:
            return psutil.pid_exists(self.pid)  # it may only be hidden from us
        except psutil.Error:
            return True
        return apart <= _CLOCK_STEP


def this_machine() -> str:
    """Host name, boot id and PID namespace, as far as the system tells, separated by blanks.

    Only where all three are the same can a process be looked for by its number. A boot id that
    differs proves nothing: host names and machine ids are copied with images.
    """
    boot = space = ""
    with suppress(OSError):
        boot = _BOOT_ID.read_text(encoding="ascii").strip()
    with suppress(OSError):
        space = str(Path("/proc/self/ns/pid").readlink())
    return f"{socket.gethostname()} {boot} {space}"


def start_ticks(pid: int) -> int | None:
    """When a process began, in ticks since the machine was started; None where nobody tells."""
    return _ticks(_stat(pid))


def _stat(pid: int) -> list[bytes]:
    """Fields of /proc/PID/stat from the state on; empty where there are none to be had."""
    try:
        if Path("/proc/self").readlink() != Path(str(os.getpid())):
            return []  # /proc belongs to another PID namespace: its numbers are not ours
        with Path(f"/proc/{pid}/stat").open("rb") as file:
            content = file.read(_STAT_BYTES)
    except OSError:
        return []
    # the name of the program, in brackets, may hold anything
    return content.rpartition(b")")[2].split()


def _ticks(stat: list[bytes]) -> int | None:
    return int(stat[19]) if len(stat) > 19 else None
