"""A cluster described by a YAML file: read without believing it, every key known, every value fit.

A file has a section of ours and, if wanted, Dask's own:

    gmkcf:
      kind: local
      workers: 4
      memory: 4GiB
    distributed:
      worker:
        memory: {spill: 0.8}

so that the same file also serves as a Dask configuration (DASK_CONFIG). Nothing in it names code:
there are no Python tags, and of Dask's settings only those are taken that are numbers, times and
files of certificates.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dask
import yaml
from dask.utils import parse_bytes, parse_timedelta

from gmkcf_dask.errors import InputError
from gmkcf_dask.security import Certificates

LARGEST_FILE = 1 << 20
_DEEPEST = 20
SECTIONS = ("gmkcf", "distributed")
# Many others would make Dask import what they name: preloads, routes, policies, environments
_TAKEN = re.compile(
    r"distributed\.("
    r"worker\.(memory|lifetime|connections|transfer|http\.max_header_size)\b"
    r"|scheduler\.(allowed-failures|bandwidth|default-task-durations|idle-timeout|worker-ttl"
    r"|no-workers-timeout|work-stealing|work-stealing-interval|worker-saturation)$"
    r"|comm\.(timeouts|retry|tls|require-encryption|default-scheme|compression|offload|shard"
    r"|socket-backlog|zstd)\b"
    r"|admin\.tick\b|deploy\.lost-worker-timeout$|nanny\.pre-spawn-environ$)"
)
# what the allocator and the mathematical libraries read; PYTHONPATH or LD_PRELOAD would be code
_VARIABLE = re.compile(
    r"(MALLOC_[A-Z_]+|(OMP|OPENBLAS|MKL|BLIS|NUMEXPR|VECLIB_MAXIMUM)_(NUM_)?THREADS|OMP_[A-Z_]+)"
)


@dataclass(frozen=True)
class ClusterConfig:
    """What a file says; None where it is silent.

    Attributes
    ----------
    kind : {"threads", "local", "address"}
    address : str, optional
        Of a scheduler, for kind "address".
    workers, memory : int, optional
        How many, and bytes for each.
    certificates : Certificates, optional
        Paths as written; relative ones are relative to the file.
    settings : dict
        Dask's own, by dotted name.
    """

    kind: str
    address: str | None = None
    workers: int | None = None
    memory: int | None = None
    certificates: Certificates | None = None
    insecure: bool = False
    dashboard: bool = False
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


def parse_config(content: bytes, path: Path) -> ClusterConfig:
    """The same from the content of a file; `path` is for sentences and relative paths."""
    found = _load(content, path)
    _refuse_unknown(found, SECTIONS, path)
    ours = found.get("gmkcf")
    if not isinstance(ours, dict):
        raise InputError(f"{path} has no section gmkcf with the kind of the cluster in it")
    kind = ours.get("kind")
    if not isinstance(kind, str) or kind not in _KEYS:
        raise InputError(
            f"{path}: gmkcf.kind must be one of {', '.join(_KEYS)}, not {_shown(kind)}"
        )
    needed, known = _KEYS[kind]
    _refuse_unknown(ours, (*needed, *known, "kind", "stall-timeout"), path, f"gmkcf (kind {kind})")
    for key in needed:
        if ours.get(key) is None:
            raise InputError(f"{path}: gmkcf.{key} is missing, and kind {kind} needs it")
    values = {
        key.replace("-", "_"): _READERS[key](value, f"{path}: gmkcf.{key}", path.parent)
        for key, value in ours.items()
        if key != "kind" and value is not None
    }
    if "tls" in values:
        values["certificates"] = values.pop("tls")
    return ClusterConfig(kind, **values, settings=_dask_settings(found, path))


# values


def _count(value: Any, where: str, _: Path) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 100_000:
        raise InputError(f"{where} must be a number from 1 to 100,000, not {_shown(value)}")
    return value


def _amount(value: Any, where: str, _: Path) -> int:
    amount = 0.0
    if isinstance(value, str | int) and not isinstance(value, bool) and len(str(value)) < 40:
        try:
            amount = parse_bytes(value)
        except (ValueError, OverflowError):
            amount = 0.0
    if not 1 <= amount < 1 << 60:
        raise InputError(f"{where} must be an amount of memory such as 4GiB, not {_shown(value)}")
    return int(amount)


def _seconds(value: Any, where: str, _: Path) -> float:
    seconds = 0.0
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        try:
            seconds = float(parse_timedelta(value if isinstance(value, str) else float(value)))
        except (ValueError, KeyError, OverflowError):
            seconds = 0.0
    if not 0 < seconds < 1e9:
        raise InputError(f"{where} must be a time such as 600 or 10m, not {_shown(value)}")
    return seconds


def _flag(value: Any, where: str, _: Path) -> bool:
    if not isinstance(value, bool):
        raise InputError(f"{where} must be true or false, not {_shown(value)}")
    return value


def _text(value: Any, where: str, _: Path) -> str:
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise InputError(f"{where} must be a text in one line, not {_shown(value)}")
    return value


def _certificates(value: Any, where: str, folder: Path) -> Certificates:
    parts = ("ca", "cert", "key")
    if not isinstance(value, dict) or sorted(map(str, value)) != sorted(parts):
        raise InputError(f"{where} must name three files, ca, cert and key, not {_shown(value)}")
    paths = (_text(value[part], f"{where}.{part}", folder) for part in parts)
    return Certificates(*(folder / Path(path).expanduser() for path in paths))


_Reader = Callable[[Any, str, Path], Any]
_READERS: dict[str, _Reader] = {
    "workers": _count,
    "memory": _amount,
    "address": _text,
    "tls": _certificates,
    "insecure": _flag,
    "dashboard": _flag,
    "stall-timeout": _seconds,
}
_KEYS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "threads": ((), ("workers", "memory")),
    "local": ((), ("workers", "memory", "tls", "dashboard")),
    "address": (("address",), ("tls", "insecure")),
}
"""By kind, the keys it needs and those it may have."""


# Dask's own settings


def _dask_settings(found: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Sections of Dask as dotted names; each has to be one that Dask knows."""
    import distributed  # noqa: F401  # brings its defaults

    known: dict[str, Any] = dask.config.merge(*dask.config.defaults)
    settings: dict[str, Any] = {}
    for section in SECTIONS[1:]:
        if found.get(section) is not None:
            _walk(found[section], known.get(section), section, settings, path)
    return settings


def _walk(value: Any, known: Any, name: str, into: dict[str, Any], path: Path) -> None:
    if not isinstance(known, dict) or not known or name.endswith("environ"):
        _refuse_code(name, value, path)
        into[name] = value
        return
    if not isinstance(value, dict):
        raise InputError(f"{path}: {name} must be a section, not {_shown(value)}")
    names = {str(key).replace("_", "-"): key for key in known}
    for key, part in value.items():
        plain = str(key).replace("_", "-")
        _refuse_unknown({plain: part}, names, path, name)
        _walk(part, known[names[plain]], f"{name}.{plain}", into, path)


def _refuse_code(name: str, value: Any, path: Path) -> None:
    if not _TAKEN.match(name):
        raise InputError(
            f"{path}: {name} is not taken from a file, as much of Dask's configuration can run "
            "code: set it in Dask's own"
        )
    if name.endswith("environ"):
        if not isinstance(value, dict):
            raise InputError(f"{path}: {name} must be a section, not {_shown(value)}")
        for variable, content in value.items():
            if not _VARIABLE.fullmatch(str(variable)) or not isinstance(content, str | int):
                raise InputError(
                    f"{path}: {name}.{str(variable)[:60]} is not taken from a file: it has to be a "
                    "number for the allocator or for threads of BLAS"
                )


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


def _refuse_unknown(
    found: Mapping[Any, Any], known: Iterable[str], path: Path, section: str = ""
) -> None:
    names = list(known)
    for key in found:
        if key not in names:
            near = difflib.get_close_matches(str(key)[:100], names, 1, 0.5)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(names))}"
            inside = f" in {section}" if section else ""
            raise InputError(f"{path}: there is no key {_shown(key)}{inside}: {hint}")


def _shown(value: Any) -> str:
    plain = isinstance(value, str | int | float | None)
    words = repr(value) if plain else f"a {type(value).__name__}"
    return words if len(words) <= 60 else f"{words[:57]}..."


def _one_line(what: object) -> str:
    return " ".join(str(what).split())[:200]
