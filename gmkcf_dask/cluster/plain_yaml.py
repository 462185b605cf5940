"""A YAML loader for small files that are not trusted: plain values of YAML 1.2, within bounds."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import yaml

from gmkcf_dask.errors import InputError

LARGEST_FILE = 1 << 16
MOST_PARTS = 5_000
"""Keys and values of a file."""
_DEEPEST = 20


def load_file(path: Path) -> dict[str, Any]:
    """Load a YAML file without looking at its keys."""
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise InputError(
            f"cannot read the cluster file {path}: {error.strerror or error}"
        ) from error
    if len(content) > LARGEST_FILE:
        raise InputError(f"{path} has more than {LARGEST_FILE:,} bytes: it is not a cluster file")
    return parse_yaml(content, path)


def parse_yaml(content: bytes, path: Path) -> dict[str, Any]:
    """The same from the content of a file; `path` is for messages."""
    try:
        document = yaml.load(content, PlainLoader)  # noqa: S506  # stricter than a SafeLoader
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f"line {mark.line + 1}: "
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "not YAML"
        raise InputError(f"{path} cannot be read: {line}{_one_line(problem)}") from error
    except (RecursionError, ValueError, OverflowError, TypeError) as error:
        raise InputError(f"{path} cannot be read: {_one_line(error)}") from error
    if not isinstance(document, dict):
        raise InputError(f"{path} is not a cluster file: it must begin with a section gmkcf")
    return document


def _one_line(text: object) -> str:
    return " ".join(str(text).split())[:200]


class PlainLoader(yaml.SafeLoader):
    """Plain values of YAML 1.2 only: no tags of Python, nothing twice, no references.

    What YAML 1.1 and 1.2 read differently (1:30, yes, 010, 1_000, dates) stays text, which is
    refused where a number or true and false are wanted.
    """

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  # filled below
    yaml_constructors: ClassVar[dict[Any, Any]] = {}

    def __init__(self, stream: bytes) -> None:
        super().__init__(stream)
        self._parts = self._level = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise _yaml_error("references (& and *) are not supported", event)
        self._parts += 1
        if self._parts > MOST_PARTS:
            raise _yaml_error(f"there are more than {MOST_PARTS:,} keys and values", event)
        if self._level >= _DEEPEST:
            raise _yaml_error(f"there are more than {_DEEPEST} levels", event)
        self._level += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self._level -= 1

    def construct_scalar(self, node: Any) -> str:
        value = str(super().construct_scalar(node))
        if re.search("[\ud800-\udfff]", value):  # an escape, which UTF-8 cannot hold
            raise _yaml_error("a text has half a character", node)
        return value

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys: set[str] = set()
        for key, _ in getattr(node, "value", ()):
            if not isinstance(key, yaml.ScalarNode):
                raise _yaml_error("a key is not plain text", key)
            if key.value in keys:
                raise _yaml_error("a key is there twice", key)
            keys.add(key.value)
        return dict(super().construct_mapping(node, deep))


def _yaml_error(what: str, there: Any) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, what, there.start_mark)


def _plain(kind: str, pattern: str, read: Callable[[str], Any], first: str | None) -> None:
    """Teach the loader one kind of plain value; `first` holds the characters it may begin with."""
    tag, known = f"tag:yaml.org,2002:{kind}", re.compile(rf"(?:{pattern})\Z")

    def construct(loader: PlainLoader, node: Any) -> Any:
        value = loader.construct_scalar(node)
        if not known.match(value):
            raise _yaml_error(f"this is not a valid {kind} of YAML 1.2", node)
        return read(value)

    PlainLoader.yaml_constructors[tag] = construct
    for character in [""] if first is None else first:
        PlainLoader.yaml_implicit_resolvers.setdefault(character, []).append((tag, known))


_WORDS = {"true": True, "false": False}
_plain("bool", "true|True|TRUE|false|False|FALSE", lambda text: _WORDS[text.lower()], "tTfF")
_plain("null", "~|null|Null|NULL|", lambda _: None, "~nN")
PlainLoader.yaml_implicit_resolvers[""] = PlainLoader.yaml_implicit_resolvers["~"]
_plain("int", r"[-+]?(?:0|[1-9][0-9]{0,99})", int, "-+0123456789")
_plain(
    "float",
    r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]{0,99})(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]{1,3})?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
    lambda text: float(text.lower().replace(".inf", "inf").replace(".nan", "nan")),
    "-+.0123456789",
)
for _kind in ("str", "seq", "map"):
    _tag = f"tag:yaml.org,2002:{_kind}"
    PlainLoader.yaml_constructors[_tag] = yaml.SafeLoader.yaml_constructors[_tag]
PlainLoader.yaml_constructors[None] = yaml.SafeLoader.yaml_constructors[None]
