"""Dask's own settings in a cluster file: which are taken, and what their values may be.

Each is looked at here and then left as it is, for Dask to read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gmkcf_dask.cluster_values import Reader, amount, count, delay, flag, seconds, shown, text, word
from gmkcf_dask.errors import InputError

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
