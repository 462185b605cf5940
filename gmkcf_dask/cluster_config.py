"""A cluster described by a YAML file: read without believing it, every key known, every value fit.

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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dask
import yaml

from gmkcf_dask import cluster_values as values
from gmkcf_dask.cluster_values import (
    Adaptive,
    Connect,
    Reader,
    refuse_unknown,
    shown,
)
from gmkcf_dask.dask_values import dask_reader
from gmkcf_dask.errors import InputError
from gmkcf_dask.security import Certificates

LARGEST_FILE = 1 << 20
_DEEPEST = 20
SECTIONS = ("gmkcf", "distributed", "jobqueue")


@dataclass(frozen=True)
class ClusterConfig:
    """What a file says; None where it is silent.

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
    address: str | None = None
    path: Path | None = None
    hosts: tuple[str, ...] = ()
    connect: Connect = field(default_factory=Connect)
    python: str | None = None
    system: str | None = None
    workers: int | None = None
    adaptive: Adaptive | None = None
    minimum: int | None = None
    wait: float | None = None
    memory: int | None = None
    threads: int | None = None
    interface: str | None = None
    local_directory: str | None = None
    certificates: Certificates | None = None
    insecure: bool = False
    dashboard: bool = False
    storage: str | None = None
    stall_timeout: float | None = None
    settings: dict[str, Any] = field(default_factory=dict)

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


def read_config(path: Path) -> ClusterConfig:
    """The cluster that a YAML file describes."""
    return parse_config(_content(path), path)


def kind_said(path: Path) -> str | None:
    """The kind that a file names, whatever else is wrong with it; None where it cannot be read."""
    try:
        ours = _load(_content(path), path).get("gmkcf")
    except InputError:
        return None
    kind = ours.get("kind") if isinstance(ours, dict) else None
    return kind if isinstance(kind, str) else None


def parse_config(content: bytes, path: Path) -> ClusterConfig:
    """The same from the content of a file; `path` is for sentences and relative paths."""
    found = _load(content, path)
    refuse_unknown(found, SECTIONS, str(path))
    ours = found.get("gmkcf")
    if not isinstance(ours, dict):
        raise InputError(f"{path} has no section gmkcf with the kind of the cluster in it")
    kind = ours.get("kind")
    if not isinstance(kind, str) or kind not in _KEYS:
        raise InputError(f"{path}: gmkcf.kind must be one of {', '.join(_KEYS)}, not {shown(kind)}")
    needed, known = _KEYS[kind]
    refuse_unknown(ours, (*needed, *known, *_EVERYWHERE), str(path), f"gmkcf (kind {kind})")
    for key in needed:
        if ours.get(key) is None:
            raise InputError(f"{path}: gmkcf.{key} is missing, and kind {kind} needs it")
    said = {
        key.replace("-", "_"): _READERS[key](value, f"{path}: gmkcf.{key}", path.parent)
        for key, value in ours.items()
        if key != "kind" and value is not None
    }
    if "tls" in said:
        said["certificates"] = said.pop("tls")
    if "workers" in said and "adaptive" in said:
        raise InputError(f"{path}: gmkcf has workers and adaptive: say one of them")
    if "certificates" in said and said.get("insecure"):
        raise InputError(f"{path}: gmkcf has tls and insecure: say one of them")
    return ClusterConfig(kind, **said, settings=_dask_settings(found, path))


_READERS: dict[str, Reader] = {
    "address": values.text,
    "path": values.path,
    "hosts": values.hosts,
    "connect": values.connect,
    "python": values.word,
    "system": values.system,
    "workers": values.count,
    "adaptive": values.adaptive,
    "minimum": values.count,
    "wait": values.seconds,
    "memory": values.amount,
    "threads": values.count,
    "interface": values.word,
    "local-directory": values.word,
    "tls": values.certificates,
    "insecure": values.flag,
    "dashboard": values.flag,
    "storage": values.location,
    "stall-timeout": values.seconds,
}
_EVERYWHERE = ("kind", "storage", "stall-timeout")
_ELSEWHERE = ("tls", "insecure", "wait", "minimum")
_STARTED = ("memory", "threads", "interface", "local-directory", "dashboard", *_ELSEWHERE)
_KEYS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
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


# Dask's own settings


def _dask_settings(found: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Sections of Dask as dotted names; each has to be one that Dask knows."""
    import distributed  # noqa: F401  # brings its defaults

    if found.get("jobqueue") is not None:
        _need_jobqueue(path)
    known: dict[str, Any] = dask.config.merge(*dask.config.defaults)
    if "jobqueue" in known:
        known["jobqueue"] = {
            system: _jobqueue_keys(keys) for system, keys in known["jobqueue"].items()
        }
    settings: dict[str, Any] = {}
    for section in SECTIONS[1:]:
        if found.get(section) is not None:
            _walk(found[section], known.get(section), section, settings, path)
    return settings


def _need_jobqueue(path: Path) -> None:
    try:
        import dask_jobqueue  # noqa: F401  # brings its defaults
    except ImportError as error:
        raise InputError(
            f"{path} has a section jobqueue, which needs dask-jobqueue: pip install "
            "'gmkcf-dask[jobqueue]'"
        ) from error


def _jobqueue_keys(keys: Mapping[str, Any]) -> dict[str, Any]:
    """What may be said of one batch system: no old names, no other programs than Dask's worker."""
    dropped = ("extra", "env-extra", "job-extra", "worker-command")
    kept = {key: value for key, value in keys.items() if key not in dropped}
    return kept | {"scheduler-options": dict.fromkeys(("host", "interface", "port"))}


def _walk(value: Any, known: Any, name: str, into: dict[str, Any], path: Path) -> None:
    if not isinstance(known, dict) or not known or name.endswith("environ"):
        read = dask_reader(name)
        if read is None:
            raise InputError(
                f"{path}: {name} is not taken from a file, as much of Dask's configuration can run "
                "code: set it in Dask's own"
            )
        read(value, f"{path}: {name}", path.parent)
        into[name] = value
        return
    if not isinstance(value, dict):
        raise InputError(f"{path}: {name} must be a section, not {shown(value)}")
    names = {str(key).replace("_", "-"): key for key in known}
    for key, part in value.items():
        plain = str(key).replace("_", "-")
        refuse_unknown({plain: part}, names, str(path), name)
        _walk(part, known[names[plain]], f"{name}.{plain}", into, path)


# reading


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise InputError(
            f"cannot read the cluster file {path}: {error.strerror or error}"
        ) from error
    if len(content) > LARGEST_FILE:
        raise InputError(f"{path} has more than {LARGEST_FILE:,} bytes: it is no cluster file")
    return content


class _Loader(yaml.SafeLoader):
    """Plain values only: no tags of Python, nothing twice, nothing that refers to another part."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise yaml.constructor.ConstructorError(
                None, None, "references (& and *) are not taken", event.start_mark
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        names = [key.value for key, _ in node.value]
        twice = [key for key, _ in node.value if names.count(key.value) > 1]
        if twice:
            raise yaml.constructor.ConstructorError(
                None, None, "a key is there twice", twice[-1].start_mark
            )
        return dict(super().construct_mapping(node, deep))


def _load(content: bytes, path: Path) -> dict[str, Any]:
    try:
        found = yaml.load(content, _Loader)  # noqa: S506  # a SafeLoader that takes even less
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f"line {mark.line + 1}: "
        what = getattr(error, "problem", None) or getattr(error, "reason", None) or "not YAML"
        raise InputError(f"{path} cannot be read: {line}{_one_line(what)}") from error
    except (RecursionError, ValueError, OverflowError, TypeError) as error:
        raise InputError(f"{path} cannot be read: {_one_line(error)}") from error
    if not isinstance(found, dict) or _depth(found) > _DEEPEST:
        raise InputError(f"{path} is not a cluster file: it must begin with a section gmkcf")
    return found


def _depth(value: Any) -> int:
    """Levels of a tree, counted no further than it may have."""
    level, parts = 0, [value]
    while parts and level <= _DEEPEST:
        level += 1
        tables = [part for part in parts if isinstance(part, dict | list)]
        parts = [x for part in tables for x in (part.values() if isinstance(part, dict) else part)]
    return level


def _one_line(what: object) -> str:
    return " ".join(str(what).split())[:200]
