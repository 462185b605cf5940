"""What the values of a cluster file may be: each is read by a small function, or refused."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dask.utils import parse_bytes, parse_timedelta

from gmkcf_dask.errors import InputError
from gmkcf_dask.security import Certificates

SYSTEMS = ("slurm", "pbs", "lsf", "sge", "htcondor", "oar")
"""Batch systems that dask-jobqueue knows and that there is a file for."""
# Dask puts these words into the command line of a shell: nothing in them may end a word
_WORD = re.compile(r"[\w@%+=:,./~$\{\}-]{1,500}")
_HOST = re.compile(r"[A-Za-z0-9_.:-]{1,255}")
# what the allocator and the mathematical libraries count by. The list is closed, as others of the
# same families load libraries or write files (OMP_TOOL_LIBRARIES, MALLOC_TRACE).
_VARIABLES = frozenset(
    {
        "MALLOC_ARENA_MAX",
        "MALLOC_ARENA_TEST",
        "MALLOC_MMAP_MAX_",
        "MALLOC_MMAP_THRESHOLD_",
        "MALLOC_TOP_PAD_",
        "MALLOC_TRIM_THRESHOLD_",
        "BLIS_NUM_THREADS",
        "MKL_NUM_THREADS",
        "NUMEXPR_MAX_THREADS",
        "NUMEXPR_NUM_THREADS",
        "OMP_NUM_THREADS",
        "OMP_THREAD_LIMIT",
        "OPENBLAS_NUM_THREADS",
        "VECLIB_MAXIMUM_THREADS",
    }
)


@dataclass(frozen=True)
class Adaptive:
    """Bounds between which a cluster grows and shrinks with its work, in workers."""

    minimum: int
    maximum: int


@dataclass(frozen=True)
class Connect:
    """How to log in by SSH. Host keys are always checked.

    Attributes
    ----------
    known_hosts : Path, optional
        Keys of the hosts; `~/.ssh/known_hosts` when not given.
    client_keys : tuple of Path
        Our own; the agent and the usual files when there are none.
    """

    username: str | None = None
    port: int | None = None
    known_hosts: Path | None = None
    client_keys: tuple[Path, ...] = ()


Reader = Callable[[Any, str, Path], Any]
"""From a value, its name for sentences, and the folder that relative paths begin at."""


def count(value: Any, where: str, _: Path) -> int:
    """A number of workers or threads."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 100_000:
        raise InputError(f"{where} must be a number from 1 to 100,000, not {shown(value)}")
    return value


def amount(value: Any, where: str, _: Path) -> int:
    """Bytes."""
    found = 0.0
    if isinstance(value, str | int) and not isinstance(value, bool) and len(str(value)) < 40:
        try:
            found = parse_bytes(value)
        except (ValueError, OverflowError):
            found = 0.0
    if not 1 <= found < 1 << 60:
        raise InputError(f"{where} must be an amount of memory such as 4GiB, not {shown(value)}")
    return int(found)


def seconds(value: Any, where: str, folder: Path) -> float:
    """A time."""
    found = delay(value, where, folder)
    if found == 0:
        raise InputError(f"{where} must be a time such as 600 or 10m, not {shown(value)}")
    return found


def delay(value: Any, where: str, _: Path) -> float:
    """A time, which may be none at all."""
    found = -1.0
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        try:
            found = float(parse_timedelta(value if isinstance(value, str) else float(value)))
        except (ValueError, KeyError, OverflowError):
            found = -1.0
    if not 0 <= found < 1e9:
        raise InputError(f"{where} must be a time such as 600 or 10m, not {shown(value)}")
    return found


def flag(value: Any, where: str, _: Path) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise InputError(f"{where} must be true or false, not {shown(value)}")
    return value


def text(value: Any, where: str, _: Path) -> str:
    """Some words in one line."""
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise InputError(f"{where} must be a text in one line, not {shown(value)}")
    return value


def word(value: Any, where: str, _: Path) -> str:
    """A word that stays one in the command line of a shell; variables may stand in it."""
    if not isinstance(value, str) or not _WORD.fullmatch(value):
        raise InputError(
            f"{where} must be a path or a name without spaces, quotes and signs that mean "
            f"something to a shell, not {shown(value)}"
        )
    return value


def path(value: Any, where: str, folder: Path) -> Path:
    """A file; relative to the cluster file."""
    return folder / Path(text(value, where, folder)).expanduser()


def location(value: Any, where: str, folder: Path) -> str:
    """A path, relative to the cluster file, or a URL."""
    found = text(value, where, folder)
    return found if "://" in found else str(path(found, where, folder))


def hosts(value: Any, where: str, _: Path) -> tuple[str, ...]:
    """Names or addresses of machines."""
    good = isinstance(value, list) and all(
        isinstance(host, str) and _HOST.fullmatch(host) for host in value
    )
    if not good or len(value) < 2:
        raise InputError(
            f"{where} must be a list of two hosts or more: the first runs the scheduler, the "
            "others workers, and one that is to do both is there twice"
        )
    return tuple(value)


def system(value: Any, where: str, _: Path) -> str:
    """A batch system by its name."""
    if value not in SYSTEMS:
        near = difflib.get_close_matches(str(value)[:100].lower(), SYSTEMS, 1, 0.5)
        hint = f": did you mean {near[0]}?" if near else ""
        raise InputError(f"{where} must be one of {', '.join(SYSTEMS)}, not {shown(value)}{hint}")
    return str(value)


def adaptive(value: Any, where: str, folder: Path) -> Adaptive:
    """Two bounds."""
    found = table(value, where, folder, {"minimum": count, "maximum": count}, needed=2)
    if found["minimum"] > found["maximum"]:
        raise InputError(f"{where}: minimum must not be more than maximum")
    return Adaptive(**found)


def connect(value: Any, where: str, folder: Path) -> Connect:
    """Options of SSH."""
    known: dict[str, Reader] = {
        "username": text,
        "port": _port,
        "known-hosts": path,
        "client-keys": _paths,
    }
    found = table(value, where, folder, known)
    return Connect(**{key.replace("-", "_"): part for key, part in found.items()})


def certificates(value: Any, where: str, folder: Path) -> Certificates:
    """Three files."""
    parts = ("ca", "cert", "key")
    if not isinstance(value, dict) or sorted(map(str, value)) != sorted(parts):
        raise InputError(f"{where} must name three files, ca, cert and key, not {shown(value)}")
    return Certificates(*(path(value[part], f"{where}.{part}", folder) for part in parts))


def environment(value: Any, where: str, _: Path) -> dict[str, int]:
    """Variables of workers."""
    if not isinstance(value, dict):
        raise InputError(f"{where} must be a section, not {shown(value)}")
    for variable, content in value.items():
        number = isinstance(content, int) and not isinstance(content, bool)
        number = number or (isinstance(content, str) and content.isdecimal())
        if variable not in _VARIABLES or not number:
            raise InputError(
                f"{where}.{str(variable)[:60]} is not taken from a file: it has to be a number "
                f"for the allocator or for threads of BLAS ({', '.join(sorted(_VARIABLES))})"
            )
    return value


def table(
    value: Any, where: str, folder: Path, known: Mapping[str, Reader], needed: int = 0
) -> dict[str, Any]:
    """A section whose keys are known; the first ones of these may be needed."""
    if not isinstance(value, dict):
        raise InputError(f"{where} must be a section with {', '.join(known)}, not {shown(value)}")
    refuse_unknown(value, known, *where.rsplit(": ", 1))
    missing = [key for key in list(known)[:needed] if value.get(key) is None]
    if missing:
        raise InputError(f"{where}.{missing[0]} is missing")
    return {
        key: known[key](part, f"{where}.{key}", folder)
        for key, part in value.items()
        if part is not None
    }


def refuse_unknown(
    found: Mapping[Any, Any], known: Iterable[str], file: str, section: str = ""
) -> None:
    """Refuse a key that is not known, and say which one was probably meant."""
    names = list(known)
    for key in found:
        if key not in names:
            near = [name for name in names if name.startswith(f"{key}-")]  # the beginning of one
            near = near or difflib.get_close_matches(str(key)[:100], names, 1, 0.5)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(names))}"
            inside = f" in {section}" if section else ""
            raise InputError(f"{file}: there is no key {shown(key)}{inside}: {hint}")


def shown(value: Any) -> str:
    """A value for a sentence."""
    plain = isinstance(value, str | int | float | None)
    words = repr(value) if plain else f"a {type(value).__name__}"
    return words if len(words) <= 60 else f"{words[:57]}..."


def _port(value: Any, where: str, folder: Path) -> int:
    found = count(value, where, folder)
    if found > 65_535:
        raise InputError(f"{where} must be a port, from 1 to 65,535, not {shown(value)}")
    return found


def _paths(value: Any, where: str, folder: Path) -> tuple[Path, ...]:
    values = value if isinstance(value, list) else [value]
    return tuple(path(one, where, folder) for one in values)


# Dask's own settings: each is looked at here and then left as it is, for Dask to read


def dask_reader(name: str) -> Reader | None:
    """For a setting of Dask by its dotted name; None where it is not taken from a file.

    >>> dask_reader("distributed.worker.memory.spill") is None
    False
    >>> dask_reader("distributed.worker.preload") is None  # makes Dask import what it names
    True
    """
    section, _, rest = name.partition(".")
    if section == "jobqueue":
        return or_off(_JOBS.get(rest.partition(".")[2], text))
    return _DASK.get(rest)


def number(low: float, high: float) -> Reader:
    """A reader of numbers between two bounds."""

    def read(value: Any, where: str, _: Path) -> float:
        right = isinstance(value, int | float) and not isinstance(value, bool)
        if not right or not low <= value <= high:
            raise InputError(
                f"{where} must be a number from {low:g} to {high:g}, not {shown(value)}"
            )
        return float(value)

    return read


def whole(low: int, high: int) -> Reader:
    """A reader of whole numbers between two bounds."""

    def read(value: Any, where: str, _: Path) -> int:
        right = isinstance(value, int) and not isinstance(value, bool)
        if not right or not low <= value <= high:
            raise InputError(
                f"{where} must be a whole number from {low:,} to {high:,}, not {shown(value)}"
            )
        return int(value)

    return read


def or_off(read: Reader, off: bool | None = None) -> Reader:
    """A reader that also takes null, or false, for none at all."""

    def either(value: Any, where: str, folder: Path) -> Any:
        return value if value is off else read(value, where, folder)

    return either


def one_of(*words: Any) -> Reader:
    """A reader of words out of a list."""

    def read(value: Any, where: str, _: Path) -> Any:
        if not any(type(value) is type(word) and value == word for word in words):
            known = ", ".join(map(str, words))
            raise InputError(f"{where} must be one of {known}, not {shown(value)}")
        return value

    return read


def walltime(value: Any, where: str, folder: Path) -> str:
    """How long a job may take, in the words of its batch system."""
    if not isinstance(value, str):
        raise InputError(
            f'{where} must be in quotes, such as "12:00:00", not {shown(value)}: without them YAML '
            "makes a number of it"
        )
    return text(value, where, folder)


def texts(value: Any, where: str, folder: Path) -> list[str]:
    """Lines of a job script, or words of a command."""
    if not isinstance(value, list) or not all(isinstance(line, str) for line in value):
        raise InputError(f"{where} must be a list of texts, not {shown(value)}")
    return value


def directives(value: Any, where: str, folder: Path) -> Any:
    """More lines for a batch system; names and values for HTCondor."""
    if not isinstance(value, dict):
        return texts(value, where, folder)
    if not all(isinstance(part, str | int | float) for part in value.values()):
        raise InputError(f"{where} must be a section of texts and numbers")
    return value


_share = or_off(number(0, 1), off=False)
_compression = or_off(one_of("auto", "lz4", "snappy", "zlib", "zstd", False))
_some = whole(0, 1_000_000)
# Of Dask's settings only numbers, times, files of certificates. Many of the others would make Dask
# import what they name: preloads, routes, policies, environments.
_DASK: dict[str, Reader] = {
    "worker.memory.recent-to-old-time": seconds,
    "worker.memory.rebalance.measure": one_of("process", "optimistic", "managed", "managed_total"),
    "worker.memory.rebalance.sender-min": number(0, 1),
    "worker.memory.rebalance.recipient-max": number(0, 1),
    "worker.memory.rebalance.sender-recipient-gap": number(0, 1),
    "worker.memory.transfer": _share,
    "worker.memory.target": _share,
    "worker.memory.spill": _share,
    "worker.memory.pause": _share,
    "worker.memory.terminate": _share,
    "worker.memory.max-spill": or_off(amount, off=False),
    "worker.memory.spill-compression": _compression,
    "worker.memory.monitor-interval": seconds,
    "worker.lifetime.duration": or_off(seconds),
    "worker.lifetime.stagger": delay,
    "worker.lifetime.restart": flag,
    "worker.connections.outgoing": count,
    "worker.connections.incoming": count,
    "worker.transfer.message-bytes-limit": amount,
    "scheduler.allowed-failures": _some,
    "scheduler.bandwidth": amount,
    "scheduler.default-task-durations.rechunk-split": seconds,
    "scheduler.default-task-durations.split-shuffle": seconds,
    "scheduler.default-task-durations.split-taskshuffle": seconds,
    "scheduler.default-task-durations.split-stage": seconds,
    "scheduler.idle-timeout": or_off(seconds),
    "scheduler.worker-ttl": or_off(seconds),
    "scheduler.no-workers-timeout": or_off(seconds),
    "scheduler.work-stealing": flag,
    "scheduler.work-stealing-interval": seconds,
    "scheduler.worker-saturation": number(0.01, float("inf")),
    "comm.timeouts.connect": seconds,
    "comm.timeouts.tcp": seconds,
    "comm.retry.count": _some,
    "comm.retry.delay.min": seconds,
    "comm.retry.delay.max": seconds,
    "comm.tls.ciphers": or_off(text),
    "comm.tls.min-version": or_off(one_of(1.2, 1.3)),
    "comm.tls.max-version": or_off(one_of(1.2, 1.3)),
    "comm.tls.ca-file": or_off(text),
    "comm.tls.scheduler.cert": or_off(text),
    "comm.tls.scheduler.key": or_off(text),
    "comm.tls.worker.cert": or_off(text),
    "comm.tls.worker.key": or_off(text),
    "comm.tls.client.cert": or_off(text),
    "comm.tls.client.key": or_off(text),
    "comm.require-encryption": or_off(flag),
    "comm.default-scheme": one_of("tcp", "tls"),
    "comm.compression": _compression,
    "comm.offload": or_off(amount, off=False),
    "comm.shard": amount,
    "comm.socket-backlog": count,
    "comm.zstd.level": whole(1, 22),
    "comm.zstd.threads": whole(-1, 1_000),
    "admin.tick.interval": seconds,
    "admin.tick.limit": seconds,
    "admin.tick.cycle": seconds,
    "deploy.lost-worker-timeout": seconds,
    "nanny.pre-spawn-environ": environment,
}
# by the name behind that of the batch system; what is not here is a text
_JOBS: dict[str, Reader] = {
    "cores": count,
    "processes": count,
    "job-cpu": count,
    "ncpus": count,
    "memory": amount,
    "mem": amount,
    "disk": amount,
    "walltime": walltime,
    "death-timeout": seconds,
    "interface": word,
    "local-directory": word,
    "use-stdin": flag,
    "worker-extra-args": texts,
    "job-script-prologue": texts,
    "job-extra-directives": directives,
    "job-directives-skip": texts,
    "submit-command-extra": texts,
    "cancel-command-extra": texts,
    "scheduler-options.interface": word,
    "scheduler-options.port": whole(0, 65_535),
}
