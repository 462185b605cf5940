"""Types of the values in a cluster file, and their conversion with msgspec.

The method `parse` of a type raises ValueError with the rest of a sentence ("must be ...").
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from dask.utils import parse_bytes, parse_timedelta
from msgspec import Meta

from gmkcf_dask.errors import InputError

Positive = Annotated[int, Meta(ge=1, le=100_000)]
Port = Annotated[int, Meta(ge=1, le=65_535)]
# Dask puts these words into the command line of a shell: nothing in them may end a word
Word = Annotated[str, Meta(pattern=r"\A[\w@%+=:,./~$\{\}-]{1,500}\Z")]
Host = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_.:-]{1,255}\Z")]
System = Literal["slurm", "pbs", "lsf", "sge", "htcondor", "oar"]
"""Batch systems that dask-jobqueue knows and that there is a file for."""
_NAMES = {
    "array": "a list",
    "bool": "true or false",
    "float": "a number",
    "int": "a whole number",
    "object": "a section",
    "str": "a text, in quotes if need be",
}
"""Types of JSON, as msgspec names them, in words."""
_T = TypeVar("_T")


class Bytes(int):
    """An amount of memory, such as 4GiB."""

    @classmethod
    def parse(cls, value: Any) -> Bytes:
        amount = 0.0
        if isinstance(value, str | int) and not isinstance(value, bool) and len(str(value)) < 40:
            with suppress(ValueError, OverflowError):
                amount = parse_bytes(value)
        if not 1 <= amount < 1 << 60:
            raise ValueError(f"must be an amount of memory such as 4GiB, not {shown(value)}")
        return cls(amount)


class Delay(float):
    """Seconds, or a text such as 10m; 0 is allowed."""

    least = 0.0

    @classmethod
    def parse(cls, value: Any) -> Delay:
        seconds = -1.0
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            with suppress(ValueError, KeyError, OverflowError):
                seconds = float(parse_timedelta(value if isinstance(value, str) else float(value)))
        if not cls.least <= seconds < 1e9:
            raise ValueError(f"must be a time such as 600 or 10m, not {shown(value)}")
        return cls(seconds)


class Seconds(Delay):
    """The same above 0."""

    least = math.ulp(0.0)


class Text(str):
    """A text in one line."""

    @classmethod
    def parse(cls, value: Any) -> Text:
        if not isinstance(value, str) or not value.strip() or not value.isprintable():
            raise ValueError(f"must be a text in one line, not {shown(value)}")
        return cls(value)


class PathOrUrl(str):
    """A path, relative to the cluster file, or a URL."""


def convert(value: Any, schema: type[_T] | Any, name: str, folder: Path) -> _T:
    """A value of YAML as a type of this module or a Struct of them.

    `name` is file and key, for messages; relative paths begin in `folder`.
    """
    try:
        converted: _T = msgspec.convert(value, schema, dec_hook=partial(_parse, folder=folder))
    except msgspec.ValidationError as error:
        raise InputError(_message(error, value, schema, name)) from error
    return converted


def builtin_scalar(value: Any) -> Any:
    """A scalar as the builtin type that it extends, for YAML and pickle."""
    for base in (int, float, str):
        if isinstance(value, base) and not isinstance(value, bool):
            return base(value)
    return value


def refuse_unknown(
    section: Mapping[Any, Any], known: Iterable[str], file: str, name: str = ""
) -> None:
    """Refuse an unknown key, and suggest the one that is probably meant."""
    names = list(known)
    for key in section:
        if key not in names:
            near = [name for name in names if name.startswith(f"{key}-")]
            near = near or difflib.get_close_matches(str(key)[:100], names, 1, 0.5)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(names))}"
            inside = f" in {name}" if name else ""
            raise InputError(f"{file}: there is no key {shown(key)}{inside}: {hint}")


def shown(value: Any) -> str:
    """A value for a message."""
    scalar = isinstance(value, str | int | float | None)
    text = repr(value) if scalar else f"a {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}..."


def _message(error: msgspec.ValidationError, value: Any, schema: Any, name: str) -> str:
    """The message of msgspec with the key and the value that are wrong."""
    text, _, inside = str(error).partition(" - at `")
    inside = inside.rpartition("$")[2].rstrip("`")
    for key in re.findall(r"\.([^.\[]+)|\[(\d+)\]", inside):
        value = value[key[0]] if key[0] else list(value)[int(key[1])]
    missing = re.fullmatch(r"Object missing required field `(.+)`", text)
    if missing:
        return f"{name}{inside}.{missing[1]} is missing"
    if "matching regex" in text:
        text = f"must be a name or path without spaces and special characters, not {shown(value)}"
    elif text.startswith("Expected "):
        expected = text.removeprefix("Expected ").partition(", got ")[0]
        expected = re.sub(r"\w+", lambda word: _NAMES.get(word[0], word[0]), expected)
        expected = expected.replace("`", "").replace(" | null", "").replace(" | ", " or ")
        text = f"must be {expected}, not {shown(value)}"
    elif text.startswith("Invalid enum"):
        options = _literals(schema, inside)
        near = difflib.get_close_matches(str(value)[:100].lower(), options, 1, 0.5)
        hint = f": did you mean {near[0]}?" if near else ""
        text = f"must be one of {', '.join(options)}, not {shown(value)}{hint}"
    return f"{name}{inside} {text}"


def _literals(schema: Any, inside: str) -> list[str]:
    """The values of a Literal, or of one in a field of a Struct."""
    if inside:
        schema = get_type_hints(schema)[inside.removeprefix(".").replace("-", "_")]
    literals = [part for part in (schema, *get_args(schema)) if get_origin(part) is Literal]
    return [value for literal in literals for value in get_args(literal)]


def _parse(schema: Any, value: Any, *, folder: Path) -> Any:
    """The hook of msgspec for types that it does not know."""
    if not issubclass(schema, Path | PathOrUrl):
        return schema.parse(value)
    text = Text.parse(value)
    is_url = schema is PathOrUrl and "://" in text
    return schema(text if is_url else folder / Path(text).expanduser())
