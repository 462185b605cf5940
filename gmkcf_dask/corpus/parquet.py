"""The parent's side of reading Parquet; `parquet_child` does the reading, within limits.

Rows and bytes may grow with the size of the file: a file of 4 KB that holds a million rows, or a
text that is repeated without end, is refused after a counted amount of work.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gmkcf_dask.corpus.limits import (
    MOST_CHARACTERS,
    MOST_SAMPLES,
    exit_reason,
    most_bytes,
    refuse_shape,
)
from gmkcf_dask.errors import InputError
from gmkcf_dask.system.units import MIB

FEWEST_ROWS, ROWS_PER_BYTE = 100_000, 8
"""Rows that any file may hold, and those of a larger one: rows that differ take bytes."""
LEAST_TEXT, TEXT_PER_BYTE = 16 * MIB, 256
"""Bytes that the cells of any file may unpack to, and those of a larger one."""
BATCH_SECONDS = 20
"""Processor time from one batch of rows to the next."""
_CHILD = Path(__file__).with_name("parquet_child.py")
_CHILD_MEMORY = 512 * MIB
"""Address space for Arrow itself."""
_ADVICE = "save it again as .jsonl or .csv if it is yours, else do not use it."


@dataclass(frozen=True)
class Limits:
    """What reading one file may cost; see `parquet_child`."""

    memory: int
    seconds: int
    rows: int
    text: int
    cell: int = MOST_CHARACTERS


@dataclass(frozen=True)
class OtherValue:
    """A cell that is neither text nor a plain number, such as a date: its type, and how it reads.

    >>> str(OtherValue("date", "2026-01-31"))
    '2026-01-31'
    """

    type_name: str
    text: str

    def __str__(self) -> str:
        return self.text


def limits_of(size: int) -> Limits:
    """The limits for a file of so many bytes.

    >>> limits_of(4096).rows, limits_of(4096).text
    (100000, 16777216)
    """
    text = max(LEAST_TEXT, TEXT_PER_BYTE * size)
    return Limits(
        memory=_CHILD_MEMORY + min(most_bytes(), 4 * (text + size)),
        seconds=BATCH_SECONDS,
        rows=min(MOST_SAMPLES, max(FEWEST_ROWS, ROWS_PER_BYTE * size)),
        text=text,
    )


def parquet_rows(
    path: Path, choose: Callable[[Sequence[str]], list[str]]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows of a table: how many the file declares, and the cells by column.

    `choose` gets the names of all columns and returns those that are read.
    """
    if find_spec("pyarrow") is None:
        raise InputError(
            "Parquet is read with pyarrow, which is not installed: pip install "
            "'gmkcf-dask[parquet]'."
        )
    size = path.stat().st_size
    limits = limits_of(size)
    with _reader(path, limits) as child:
        assert child.stdin is not None
        header = _line(child)
        names = choose(header["names"])
        declared: int = header["rows"]
        refuse_shape((declared,))
        if declared > limits.rows:
            raise InputError(
                f"it declares {declared:,} rows in {size:,} bytes, and a file of this size may "
                f"hold {limits.rows:,}: {_ADVICE}"
            )
        with suppress(BrokenPipeError):  # reported by the next line
            child.stdin.write(json.dumps(names).encode() + b"\n")
            child.stdin.flush()
        while isinstance(row := _line(child), list):
            yield declared, dict(zip(names, map(_value, row), strict=True))


def count_parquet_rows(path: Path) -> int:
    """Rows that a table declares, by the same bounded process."""
    with _reader(path, limits_of(path.stat().st_size)) as child:
        return int(_line(child)["rows"])


@contextmanager
def _reader(path: Path, limits: Limits) -> Iterator[subprocess.Popen[bytes]]:
    child = _start(path, limits)
    try:
        yield child
    finally:
        child.kill()
        child.wait()
        for stream in (child.stdin, child.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()


def _start(path: Path, limits: Limits) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", str(_CHILD), str(path.absolute()), json.dumps(asdict(limits))]
    # one thread and the plain allocator: others reserve address space, which is bounded
    plain = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    environment = {**os.environ, **plain, "ARROW_DEFAULT_MEMORY_POOL": "system"}
    return subprocess.Popen(  # noqa: S603  # our own script; the path is an argument, not code
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
    )


def _line(child: subprocess.Popen[bytes]) -> Any:
    """The next answer of the child; an error where it refuses or ends."""
    assert child.stdout is not None
    line = child.stdout.readline()
    if not line.endswith(b"\n"):
        code = child.wait()
        slow = f"took more than {BATCH_SECONDS} s for one batch of rows"
        ended = slow if code == -signal.SIGXCPU else exit_reason(code)
        raise InputError(f"the reader of Parquet files {ended}: {_ADVICE}")
    answer = json.loads(line.decode("utf-8", "surrogatepass"))
    if isinstance(answer, dict) and "refused" in answer:
        raise InputError(
            f"{answer['refused']}, which is too much for a file of its size: {_ADVICE}"
        )
    if isinstance(answer, dict) and "unreadable" in answer:
        raise ValueError(answer["unreadable"])
    return answer


def _value(cell: Any) -> Any:
    if not isinstance(cell, dict):
        return cell
    return [] if "nested" in cell else OtherValue(cell["type"], cell["value"])
