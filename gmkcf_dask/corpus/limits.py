"""What a file may ask for. Sizes it declares are checked before any memory is given to them.

Two kinds of bounds. Absolute ones, far above what exact kernels allow: samples, features, the
length of a line. And a share of the memory that is free: a file that would need more than half of
it as numbers, or of whose text more than a sixteenth would be held at a time (words and records
take many times their text), is refused in one sentence instead of taking the machine down.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import psutil

from gmkcf_dask.errors import InputError, PlanRefused
from gmkcf_dask.plan import MIB, human_bytes

MOST_SAMPLES = 2_000_000
"""One kernel of so many samples would take 7 TiB in float32."""
MOST_FEATURES = 100_000_000
MOST_CHARACTERS = 64 * MIB
"""Of one line of a table: one document."""


def most_bytes() -> int:
    """What a file may take as numbers: half of the memory that is free now."""
    return int(psutil.virtual_memory().available // 2)


def most_text() -> int:
    """What a file may take as text."""
    return most_bytes() // 8


def refuse_shape(shape: tuple[int, ...]) -> None:
    """Refuse more samples or features than this program could ever use."""
    for what, count, most in zip(
        ("samples", "features"), shape, (MOST_SAMPLES, MOST_FEATURES), strict=False
    ):
        if count < 0:
            raise InputError(f"X declares {count} {what}: the header is damaged.")
        if count > most:
            raise InputError(f"X has {count:,} {what}, and at most {most:,} are read: give fewer.")


def refuse_bytes(need: int, what: str, most: int | None = None) -> None:
    """Refuse what would not leave enough memory for the work itself."""
    most = most_bytes() if most is None else most
    if need > most:
        raise PlanRefused(
            f"{what} needs {human_bytes(need)} of memory and {human_bytes(most)} may be used: give "
            "fewer or smaller samples, or more memory."
        )


def refuse_large_text(path: Path) -> None:
    """Refuse a text file that could not be taken apart in the memory there is."""
    refuse_bytes(path.stat().st_size, "reading this text", most_text())


def refuse_array(shape: tuple[int, ...], dtype: np.dtype[Any], held: int, name: str) -> None:
    """Refuse an array whose header promises more than `held` bytes have, or than memory has.

    Counted are the array as it is and as float64, which is what it becomes. What the file lacks is
    a ValueError, of which `read_corpus` makes its sentence about files that cannot be read.
    """
    if any(side < 0 for side in shape):
        raise InputError(f"{name} declares the shape {shape}: the header is damaged.")
    count = math.prod(shape)
    if count * dtype.itemsize > held:
        raise ValueError(
            f"{name} declares {count:,} entries, {human_bytes(count * dtype.itemsize)}, but the "
            f"file holds {human_bytes(held)} for it"
        )
    refuse_bytes(count * (max(dtype.itemsize, 1) + 8), f"{name} of shape {shape}")


def bounded_lines(file: TextIO) -> Iterator[str]:
    """Lines of a text file, none of them without end."""
    number = 0
    while line := file.readline(MOST_CHARACTERS + 1):
        number += 1
        if len(line) > MOST_CHARACTERS:
            raise InputError(
                f"line {number} is longer than {MOST_CHARACTERS:,} characters: write one document "
                "per line."
            )
        yield line
