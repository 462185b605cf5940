"""A cluster described by a YAML file that is not trusted: every key and value is validated.

A file has a section of ours and, if wanted, Dask's own:

    gmkcf:
      kind: local
      workers: 4
      memory: 4GiB
    distributed:
      worker:
        memory: {spill: 0.8}

so that the same file also serves as a Dask configuration (DASK_CONFIG); a third section,
`jobqueue:`, is dask-jobqueue's. Nothing in the first two names code: there are no Python tags, and
of Dask's settings only those are taken that are numbers, times and files of certificates.
Interpreters and what a job script runs before its worker (`python`, `job-script-prologue`) are as
much the user's own as the job script would be.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from gmkcf_dask.cluster.dask_settings import SECTIONS as DASK_SECTIONS, read_dask_settings
from gmkcf_dask.cluster.plain_yaml import load_file
from gmkcf_dask.cluster.schema import (
    Bytes,
    Host,
    PathOrUrl,
    Port,
    Positive,
    Seconds,
    System,
    Text,
    Word,
    builtin_scalar,
    convert,
    refuse_unknown,
    shown,
)
from gmkcf_dask.cluster.tls import Certificates
from gmkcf_dask.errors import InputError


class Adaptive(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds between which a cluster grows and shrinks with its work, in workers."""

    minimum: Positive
    maximum: Positive

    def __post_init__(self) -> None:
        if self.minimum > self.maximum:
            raise ValueError("has a minimum that is more than its maximum")


class Connect(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """How to log in by SSH. Host keys are always checked.

    Attributes
    ----------
    known_hosts : Path, optional
        Keys of the hosts; `~/.ssh/known_hosts` when not given.
    client_keys : tuple of Path
        Our own; the agent and the usual files when there are none.
    """

    username: Text | None = None
    port: Port | None = None
    known_hosts: Path | None = None
    client_keys: tuple[Path, ...] = ()


class ClusterConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="kebab"):
    """A cluster as a file describes it; None where the file has no value.

    Attributes
    ----------
    kind : {"threads", "local", "address", "scheduler-file", "ssh", "jobqueue", "mpi"}
    address : str, optional
        Of a scheduler, for kind "address".
    path : Path, optional
        The file in which a scheduler left its address, for kind "scheduler-file".
    hosts, connect, python : optional
        For kind "ssh": machines, the first for the scheduler; how to log in; the interpreter there.
    system : str, optional
        For kind "jobqueue": the batch system.
    workers : int, optional
        How many; for kind "ssh" on each host.
    adaptive : Adaptive, optional
        Bounds instead of a number.
    minimum : int, optional
        Workers that have to be there before work begins.
    wait : float, optional
        Seconds that these are waited for.
    memory, threads : int, optional
        Bytes and threads of each worker.
    interface, local_directory : str, optional
        The network to talk over, and where workers spill to; as words of a shell.
    certificates : Certificates, optional
        Relative paths are relative to the file.
    insecure, dashboard : bool
        Talk in the open; serve Dask's dashboard, on loopback.
    storage : str, optional
        A folder or URL that stores are put into.
    settings : dict
        Dask's own, by dotted name.
    """

    kind: str
    address: Text | None = None
    path: Path | None = None
    hosts: Annotated[tuple[Host, ...], Meta(min_length=2)] = ()
    connect: Connect = Connect()
    python: Word | None = None
    system: System | None = None
    workers: Positive | None = None
    adaptive: Adaptive | None = None
    minimum: Positive | None = None
    wait: Seconds | None = None
    memory: Bytes | None = None
    threads: Positive | None = None
    interface: Word | None = None
    local_directory: Word | None = None
    certificates: Certificates | None = msgspec.field(default=None, name="tls")
    insecure: bool = False
    dashboard: bool = False
    storage: PathOrUrl | None = None
    stall_timeout: Seconds | None = None
    settings: dict[str, Any] = msgspec.field(default_factory=dict)

    @property
    def where(self) -> str:
        """As `--cluster` takes it."""
        return self.address or self.kind


def is_config_path(where: str | None) -> bool:
    """Whether `--cluster` names a file.

    >>> is_config_path("slurm.yaml"), is_config_path("tls://host:8786"), is_config_path(None)
    (True, False, False)
    """
    return where is not None and where.lower().endswith((".yaml", ".yml"))


_EVERYWHERE = ("kind", "storage", "stall-timeout")
_ELSEWHERE = ("tls", "insecure", "wait", "minimum")
_STARTED = ("memory", "threads", "interface", "local-directory", "dashboard", *_ELSEWHERE)
KEYS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "threads": ((), ("workers", "memory")),
    "local": (
        (),
        ("workers", "adaptive", "memory", "threads", "local-directory", "tls", "dashboard"),
    ),
    "address": (("address",), _ELSEWHERE),
    "scheduler-file": (("path",), _ELSEWHERE),
    "ssh": (("hosts",), ("workers", "python", "connect", *_STARTED)),
    "jobqueue": (("system",), ("workers", "adaptive", *_STARTED)),
    "mpi": ((), _STARTED),
}
"""By kind, the keys it needs and those it may have."""
_INNER: dict[str, Any] = {"adaptive": Adaptive, "connect": Connect, "tls": Certificates}


def read_config(path: Path) -> ClusterConfig:
    """Read the cluster that a YAML file describes."""
    return parse_document(load_file(path), path)


def is_mpi(document: Mapping[str, Any]) -> bool:
    """Whether a cluster file is of kind mpi, whatever else is wrong with it."""
    section = document.get("gmkcf")
    return isinstance(section, dict) and section.get("kind") == "mpi"


def parse_document(document: Mapping[str, Any], path: Path) -> ClusterConfig:
    """Validate a document that is loaded already."""
    refuse_unknown(document, ("gmkcf", *DASK_SECTIONS), str(path))
    section = document.get("gmkcf")
    if not isinstance(section, dict):
        raise InputError(f"{path} has no section gmkcf with the kind of the cluster in it")
    kind = section.get("kind")
    if not isinstance(kind, str) or kind not in KEYS:
        raise InputError(f"{path}: gmkcf.kind must be one of {', '.join(KEYS)}, not {shown(kind)}")
    needed, optional = KEYS[kind]
    refuse_unknown(section, (*needed, *optional, *_EVERYWHERE), str(path), f"gmkcf (kind {kind})")
    for key in needed:
        if section.get(key) is None:
            raise InputError(f"{path}: gmkcf.{key} is missing, and kind {kind} needs it")
    for first, second in (("workers", "adaptive"), ("tls", "insecure")):
        if section.get(first) is not None and section.get(second) not in (None, False):
            raise InputError(f"{path}: gmkcf has {first} and {second}: give one of them")
    for key, schema in _INNER.items():
        if isinstance(section.get(key), dict):
            names = schema.__struct_encode_fields__
            refuse_unknown(section[key], names, str(path), f"gmkcf.{key}")
    config: ClusterConfig = convert(_normal(section), ClusterConfig, f"{path}: gmkcf", path.parent)
    values = {name: builtin_scalar(getattr(config, name)) for name in config.__struct_fields__}
    return ClusterConfig(**values | {"settings": read_dask_settings(document, path)})


def _normal(section: Mapping[str, Any]) -> dict[str, Any]:
    """A section without empty keys, and with a list where one path may stand for it."""
    normal = {
        key: _normal(value) if isinstance(value, dict) else value
        for key, value in section.items()
        if value is not None
    }
    if isinstance(normal.get("client-keys"), str):
        normal["client-keys"] = [normal["client-keys"]]
    return normal
