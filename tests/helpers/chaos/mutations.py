"""Small changes to valid files: bytes, members of archives, and values in trees of JSON.

Pure functions of the content and of `Mutation`s, which hypothesis can draw as well.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import random
import re
import warnings
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

NUMBERS = (
    b"0", b"-1", b"1e999", b"nan", b"inf", b"2147483648", b"9223372036854775807",
    b"99999999999999999999999999", b"1000000000", b"1e-320", b"0x10", b"1_0", b"", b"3000000",
)  # fmt: skip
TREES = (".zarr.json", ".manifest", ".checkpoint", ".insight")
"""Kinds of files that are JSON, and are read for what they say."""
ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 1.5, 10**15, 10**400, 2**63, 1 << 40, 1e308, math.nan, math.inf,
    -math.inf, "", "x", "../x", "NaN", "0" * 32, "a\n\u0000b", "\ud800", "y" * 300_000, [], {},
    [[]], [None], {"": 0}, "array:a0", "array:zz", list(range(1000)), "DEEP",
)  # fmt: skip
PATHS = ("../../x", "{}/../../../x", "norms/../../x", "diagonals/nope", "/tmp/x", "{}/..", "..")
"""Keys like paths; the key that is there takes the place of the brackets."""
WORDS = (0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1, 1 << 40)


@dataclass(frozen=True)
class Mutation:
    """One change: what, where (a share of the length), how much, and a number to draw from."""

    kind: int
    where: float
    length: int
    value: int


def mutate(content: bytes, ending: str, mutations: Iterable[Mutation]) -> bytes:
    """The content after all changes; inside a container, as often as not its parts are changed."""
    for mutation in mutations:
        if mutation.value % 4 == 0:
            content = _change(content, mutation)
        elif content.startswith(b"PK"):
            content = _inside_zip(content, mutation)
        elif ending == ".mtx.gz":
            content = _inside_gzip(content, mutation)
        elif ending in TREES:
            content = _inside_tree(content, mutation)
        else:
            content = _change(content, mutation)
    return content


def _inside_zip(content: bytes, mutation: Mutation) -> bytes:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            entries = archive.infolist()
            members = [(entry.filename, archive.read(entry)) for entry in entries]
    except Exception:  # an earlier change has spoilt the container itself  # noqa: BLE001
        return _change(content, mutation)
    if not members:
        return _change(content, mutation)
    chosen = mutation.value // 4 % len(members)
    file = io.BytesIO()
    how = entries[0].compress_type if entries[0].compress_type in (0, 8) else zipfile.ZIP_DEFLATED
    with warnings.catch_warnings(), zipfile.ZipFile(file, "w", how) as archive:
        warnings.simplefilter("ignore")  # of a name that is there twice
        for number, (name, data) in enumerate(members):
            archive.writestr(name, _change(data, mutation) if number == chosen else data)
    return file.getvalue()


def _inside_gzip(content: bytes, mutation: Mutation) -> bytes:
    try:
        return gzip.compress(_change(gzip.decompress(content), mutation), 1)
    except Exception:  # noqa: BLE001
        return _change(content, mutation)


def _inside_tree(content: bytes, m: Mutation) -> bytes:
    """One value of a JSON file changed, moved, taken away or doubled; still JSON afterwards."""
    try:
        tree = json.loads(content)
    except (ValueError, RecursionError):  # an earlier change has spoilt it
        return _change(content, m)
    places = list(_places(tree))
    if not places:
        return _change(content, m)
    inside, key = places[min(int(m.where * len(places)), len(places) - 1)]
    other_inside, other_key = places[m.value // 4 % len(places)]
    value = inside[key]
    match m.kind % 10:
        case 0 if isinstance(inside, dict) and m.value // 4 % 2:
            # a name that leads elsewhere, beside the others
            inside[PATHS[m.value // 8 % len(PATHS)].format(key)] = value
        case 0:
            del inside[key]
        case 1 if isinstance(inside, list):
            inside.insert(key, value)
        case 1:
            inside[f"{key}x"] = inside.pop(key)
        case 2:
            inside[key] = other_inside[other_key]
        case 3:
            inside[key], other_inside[other_key] = other_inside[other_key], value
        case 4 | 5 | 6:
            inside[key] = _a_little_different(value, m)
        case _:
            inside[key] = ODD_VALUES[m.value // 4 % len(ODD_VALUES)]
    try:
        # deeper than any parser goes, and so written as text
        text = json.dumps(tree, indent=1).encode()
    except (ValueError, RecursionError):  # a value that was put into itself
        return _change(content, m)
    return text.replace(b'"DEEP"', b"[" * 100_000 + b"]" * 100_000)


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Every value of a tree, as what it is in and its key there."""
    if isinstance(tree, dict | list):
        for key in list(tree) if isinstance(tree, dict) else range(len(tree)):
            yield tree, key
            yield from _places(tree[key])


def _a_little_different(value: Any, m: Mutation) -> Any:
    """Another value of the same type: what a check of types lets through."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + (1, -1, value, -2 * value, 17, 2**31, 10**15)[m.value // 4 % 7]
    if isinstance(value, float):
        return (-value, value * 2, value + 1e-9, 1e300, 5e-324, 0.0)[m.value // 4 % 6]
    if isinstance(value, str):
        at = m.value // 4 % (len(value) + 1)
        return (value[:at] + value[at + 1 :], value[:at] + "0" + value[at:], value[::-1])[
            m.kind % 3
        ]
    if isinstance(value, list):
        return (value[::-1], value[:-1], value * 2)[m.kind % 3]
    if isinstance(value, dict):
        return dict(zip(value, [*value.values()][::-1], strict=True))
    return m.value


def _change(content: bytes, m: Mutation) -> bytes:
    at = int(m.where * len(content))
    end = min(at + m.length, len(content))
    noise = random.Random(m.value).randbytes(m.length)
    word = WORDS[m.value % len(WORDS)].to_bytes(8, "little")[: 4 + 4 * (m.value // 8 % 2)]
    changes = (
        lambda: _flip(content, at, m.value),
        lambda: content[:at] + noise + content[end:],
        lambda: content[:at],
        lambda: content[:at] + content[end:],
        lambda: content[:at] + content[at:end] * (1 + m.value % 5) + content[end:],
        lambda: content[:at] + noise + content[at:],
        lambda: content[: at // 4 * 4] + word + content[at // 4 * 4 + len(word) :],
        lambda: _other_number(content, at, m.value),
        lambda: content[:at] + b"\n" * (1 + m.value % 3) + content[at:],
        lambda: content[at:] + content[:at],
    )
    return changes[m.kind % len(changes)]()


def _flip(content: bytes, at: int, value: int) -> bytes:
    if not content:
        return content
    at = min(at, len(content) - 1)
    return content[:at] + bytes([content[at] ^ (1 << value % 8)]) + content[at + 1 :]


def _other_number(content: bytes, at: int, value: int) -> bytes:
    """A number at or after a place becomes another: in headers these are the sizes."""
    found = re.compile(rb"\d+(\.\d+)?").search(content, at) or re.search(rb"\d+", content)
    if found is None:
        return content
    return content[: found.start()] + NUMBERS[value % len(NUMBERS)] + content[found.end() :]


def random_mutations(rng: random.Random) -> list[Mutation]:
    """One to four changes, small ones and those near the beginning preferred."""
    return [
        Mutation(
            rng.randrange(10),
            rng.random() ** rng.choice((1, 1, 3)),
            min(int(rng.expovariate(1 / 8)) + 1, 200),
            rng.randrange(1 << 16),
        )
        for _ in range(min(4, 1 + int(rng.expovariate(1.0))))
    ]
