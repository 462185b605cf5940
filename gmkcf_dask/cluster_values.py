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
    found = table(value, where, folder, dict.fromkeys(parts, path))
    missing = [part for part in parts if part not in found]
    if missing:
        raise InputError(
            f"{where} must name three files, ca, cert and key: {missing[0]} is missing"
        )
    return Certificates(*(found[part] for part in parts))


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
