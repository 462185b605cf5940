"""Limits for input files, checked on declared sizes before memory is allocated.

Absolute limits are far above what exact kernels allow: samples, features, the length of a line.
Others are a share of the free memory: half of it for numbers, a sixteenth for text held at a time,
because words and records take many times their text.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Iterator
from typing import Any, TextIO

import numpy as np

from gmkcf_dask.errors import InputError, PlanRefused
from gmkcf_dask.system.resources import free_memory
from gmkcf_dask.system.units import MIB, human_bytes

MOST_SAMPLES = 2_000_000
"""One kernel of so many samples would take 7 TiB in float32."""
MOST_FEATURES = 100_000_000
MOST_CHARACTERS = 64 * MIB
"""Of one line of a table: one document."""


def most_bytes() -> int:
    """What a file may take as numbers: half of the memory that is free now."""
    return free_memory() // 2


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
    """Refuse input that would not leave enough memory for the work itself."""
    most = most_bytes() if most is None else most
    if need > most:
        raise PlanRefused(
            f"{what} needs {human_bytes(need)} of memory and {human_bytes(most)} may be used: give "
            "fewer or smaller samples, or more memory."
        )


def refuse_array(shape: tuple[int, ...], dtype: np.dtype[Any], available: int, name: str) -> None:
    """Refuse an array whose header declares more than the file or the memory holds.

    Counts the array as stored and as float64. A file that is too short is a ValueError, which
    `read_corpus` reports as a file that cannot be read.
    """
    if any(side < 0 for side in shape):
        raise InputError(f"{name} declares the shape {shape}: the header is damaged.")
    count = math.prod(shape)
    if count * dtype.itemsize > available:
        raise ValueError(
            f"{name} declares {count:,} entries, {human_bytes(count * dtype.itemsize)}, but the "
            f"file holds {human_bytes(available)} for it"
        )
    refuse_bytes(count * (max(dtype.itemsize, 1) + 8), f"{name} of shape {shape}")


def exit_reason(code: int) -> str:
    """How a child process that parses a file ended, by its return code."""
    if code < 0:
        return f"crashed ({signal.Signals(-code).name})"
    return f"ended with exit code {code}"


def bounded_lines(file: TextIO) -> Iterator[str]:
    """Lines of a text file, with a limit on their length."""
    lines = iter(lambda: file.readline(MOST_CHARACTERS + 1), "")
    for number, line in enumerate(lines, start=1):
        if len(line) > MOST_CHARACTERS:
            raise InputError(
                f"line {number} is longer than {MOST_CHARACTERS:,} characters: write one document "
                "per line."
            )
        yield line
