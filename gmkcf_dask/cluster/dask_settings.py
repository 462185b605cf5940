"""Dask's own settings in a cluster file: which ones are accepted, and the types of their values.

Values are checked here and passed on unchanged, for Dask to read.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import dask
from msgspec import Meta

from gmkcf_dask.cluster.schema import (
    Bytes,
    Delay,
    Positive,
    Seconds,
    Text,
    Word,
    convert,
    refuse_unknown,
    shown,
)
from gmkcf_dask.errors import InputError

SECTIONS = ("distributed", "jobqueue")
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


class TlsVersion(float):
    """1.2 or 1.3."""

    @classmethod
    def parse(cls, value: Any) -> TlsVersion:
        if not isinstance(value, float) or value not in (1.2, 1.3):
            raise ValueError(f"must be one of 1.2, 1.3, not {shown(value)}")
        return cls(value)


class Variables(dict[str, Any]):
    """Environment variables of workers."""

    @classmethod
    def parse(cls, value: Any) -> Variables:
        if not isinstance(value, dict):
            raise ValueError(f"must be a section, not {shown(value)}")
        for variable, content in value.items():
            number = isinstance(content, int) and not isinstance(content, bool)
            number = number or (isinstance(content, str) and content.isdecimal())
            if variable not in _VARIABLES or not number:
                raise ValueError(
                    f"has {str(variable)[:60]}, which is not taken from a file: it has to be a "
                    "number for the allocator or for threads of BLAS "
                    f"({', '.join(sorted(_VARIABLES))})"
                )
        return cls(value)


Share = Annotated[float, Meta(ge=0, le=1)]
Compression = Literal["auto", "lz4", "snappy", "zlib", "zstd"]
Directives = list[str] | dict[str, bool | int | float | str]  # the latter for HTCondor
_MEMORY_SHARES = tuple(
    f"worker.memory.{name}" for name in ("transfer", "target", "spill", "pause", "terminate")
)
_OR_FALSE = (
    *_MEMORY_SHARES,
    "worker.memory.max-spill",
    "worker.memory.spill-compression",
    "comm.compression",
    "comm.offload",
)
"""Settings that false switches off."""
# Of Dask's settings only numbers, times, files of certificates. Many of the others would make Dask
# import what they name: preloads, routes, policies, environments.
_DASK: dict[str, Any] = {
    "worker.memory.recent-to-old-time": Seconds,
    "worker.memory.rebalance.measure": Literal["process", "optimistic", "managed", "managed_total"],
    "worker.memory.rebalance.sender-min": Share,
    "worker.memory.rebalance.recipient-max": Share,
    "worker.memory.rebalance.sender-recipient-gap": Share,
    **dict.fromkeys(_MEMORY_SHARES, Share),
    "worker.memory.max-spill": Bytes,
    "worker.memory.spill-compression": Compression | None,
    "worker.memory.monitor-interval": Seconds,
    "worker.lifetime.duration": Seconds | None,
    "worker.lifetime.stagger": Delay,
    "worker.lifetime.restart": bool,
    "worker.connections.outgoing": Positive,
    "worker.connections.incoming": Positive,
    "worker.transfer.message-bytes-limit": Bytes,
    "scheduler.allowed-failures": Annotated[int, Meta(ge=0, le=1_000_000)],
    "scheduler.bandwidth": Bytes,
    "scheduler.default-task-durations.rechunk-split": Seconds,
    "scheduler.default-task-durations.split-shuffle": Seconds,
    "scheduler.default-task-durations.split-taskshuffle": Seconds,
    "scheduler.default-task-durations.split-stage": Seconds,
    "scheduler.idle-timeout": Seconds | None,
    "scheduler.worker-ttl": Seconds | None,
    "scheduler.no-workers-timeout": Seconds | None,
    "scheduler.work-stealing": bool,
    "scheduler.work-stealing-interval": Seconds,
    "scheduler.worker-saturation": Annotated[float, Meta(ge=0.01)],
    "comm.timeouts.connect": Seconds,
    "comm.timeouts.tcp": Seconds,
    "comm.retry.count": Annotated[int, Meta(ge=0, le=1_000_000)],
    "comm.retry.delay.min": Seconds,
    "comm.retry.delay.max": Seconds,
    "comm.tls.ciphers": Text | None,
    "comm.tls.min-version": TlsVersion | None,
    "comm.tls.max-version": TlsVersion | None,
    "comm.tls.ca-file": Text | None,
    **{
        f"comm.tls.{role}.{file}": Text | None
        for role in ("scheduler", "worker", "client")
        for file in ("cert", "key")
    },
    "comm.require-encryption": bool | None,
    "comm.default-scheme": Literal["tcp", "tls"],
    "comm.compression": Compression | None,
    "comm.offload": Bytes,
    "comm.shard": Bytes,
    "comm.socket-backlog": Positive,
    "comm.zstd.level": Annotated[int, Meta(ge=1, le=22)],
    "comm.zstd.threads": Annotated[int, Meta(ge=-1, le=1_000)],
    "admin.tick.interval": Seconds,
    "admin.tick.limit": Seconds,
    "admin.tick.cycle": Seconds,
    "deploy.lost-worker-timeout": Seconds,
    "nanny.pre-spawn-environ": Variables,
}
# by the name behind that of the batch system; what is not here is a text
_JOBS: dict[str, Any] = {
    "cores": Positive,
    "processes": Positive,
    "job-cpu": Positive,
    "ncpus": Positive,
    "memory": Bytes,
    "mem": Bytes,
    "disk": Bytes,
    "death-timeout": Seconds,
    "interface": Word,
    "local-directory": Word,
    "use-stdin": bool,
    "worker-extra-args": list[str],
    "job-script-prologue": list[str],
    "job-extra-directives": Directives,
    "job-directives-skip": list[str],
    "submit-command-extra": list[str],
    "cancel-command-extra": list[str],
    "scheduler-options.interface": Word,
    "scheduler-options.port": Annotated[int, Meta(ge=0, le=65_535)],
}


def is_accepted(name: str) -> bool:
    """Whether a setting, by its dotted name, is taken from a file.

    >>> is_accepted("distributed.worker.memory.spill")
    True
    >>> is_accepted("distributed.worker.preload")  # makes Dask import what it names
    False
    """
    section, _, rest = name.partition(".")
    return section == "jobqueue" or rest in _DASK


def check_setting(name: str, value: Any, file: str, folder: Path) -> None:
    """Refuse a value that Dask could not read; `file` is for messages."""
    section, _, rest = name.partition(".")
    if section == "jobqueue":
        schema = _JOBS.get(rest.partition(".")[2], Text) | None
    else:
        schema = _DASK[rest]
        if value is False and rest in _OR_FALSE:
            return
    if value != value:  # a NaN passes all bounds
        raise InputError(f"{file}: {name} must be a number, not {shown(value)}")
    convert(value, schema, f"{file}: {name}", folder)


def read_dask_settings(document: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The sections of Dask in a cluster file, by dotted name; Dask has to know each of them."""
    import distributed  # noqa: F401  # brings its defaults

    if document.get("jobqueue") is not None:
        try:
            import dask_jobqueue  # noqa: F401  # brings its defaults
        except ImportError as error:
            raise InputError(
                f"{path} has a section jobqueue, which needs dask-jobqueue: pip install "
                "'gmkcf-dask[jobqueue]'"
            ) from error
    known: dict[str, Any] = dask.config.merge(*dask.config.defaults)
    for system, keys in known.get("jobqueue", {}).items():
        # no old names, no other programs than Dask's worker
        dropped = ("extra", "env-extra", "job-extra", "worker-command")
        kept = {key: value for key, value in keys.items() if key not in dropped}
        options = dict.fromkeys(("host", "interface", "port"))
        known["jobqueue"][system] = kept | {"scheduler-options": options}
    settings: dict[str, Any] = {}
    for section in SECTIONS:
        if document.get(section) is not None:
            _walk(document[section], known.get(section), section, settings, path)
    return settings


def _walk(value: Any, known: Any, name: str, into: dict[str, Any], path: Path) -> None:
    if not isinstance(known, dict) or not known or name.endswith("environ"):
        if not is_accepted(name):
            raise InputError(
                f"{path}: {name} is not taken from a file, as much of Dask's configuration can run "
                "code: set it in Dask's own"
            )
        check_setting(name, value, str(path), path.parent)
        into[name] = value
        return
    if not isinstance(value, dict):
        raise InputError(f"{path}: {name} must be a section, not {shown(value)}")
    names = {str(key).replace("_", "-"): key for key in known}
    for key, part in value.items():
        plain = str(key).replace("_", "-")
        refuse_unknown({plain: part}, names, str(path), name)
        _walk(part, known[names[plain]], f"{name}.{plain}", into, path)
