"""Reads Parquet files in a process of its own: a few bytes of one can unpack to terabytes.

A script, not a module to import: ``python -P parquet_child.py FILE LIMITS``, where LIMITS is a JSON
object with `memory` (bytes of address space), `seconds` (processor time between two batches),
`rows`, `text` (bytes of all cells) and `cell` (bytes of one). It speaks JSON, one value per line:

1. It writes the names of the columns and the number of rows that the file declares.
2. It reads the names of the columns that are wanted, a list.
3. It writes one list per row, and after the last row `{"end": true}`.

Instead of any line it may write `{"refused": why}` or `{"unreadable": why}`, and end. A cell that
JSON has no value for is `{"type": name, "value": text}`; a cell of a nested column is never
unpacked and is `{"nested": true}`. This script imports nothing of the package.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

ROWS = 256
"""Rows of a batch."""


def main(arguments: list[str]) -> None:
    """Read one file; what goes wrong is written as a line."""
    limits = json.loads(arguments[1])
    _bound_memory(limits["memory"])
    _bound_time(limits["seconds"])
    try:
        import pyarrow as pa

        pa.set_cpu_count(1)
        pa.set_io_thread_count(1)
        _read(arguments[0], limits)
    except MemoryError:
        _write({"refused": "it unpacks to more memory than may be used"})
    except (BrokenPipeError, KeyboardInterrupt):  # nobody reads any more
        os._exit(0)
    except Exception as error:  # noqa: BLE001  # whatever Arrow meets in a crafted file
        cause = " ".join(str(error).split()).rstrip(".")[:300]
        _write({"unreadable": cause or type(error).__name__})


def _read(path: str, limits: dict[str, int]) -> None:
    from pyarrow import parquet as pq

    with pq.ParquetFile(path, pre_buffer=False) as table:
        schema, declared = table.schema_arrow, int(table.metadata.num_rows)
        _write({"names": [str(name) for name in schema.names], "rows": declared})
        wanted = json.loads(sys.stdin.readline())
        flat = [name for name in wanted if not _is_nested(schema.field(name).type)]
        rows = text = 0
        for batch in table.iter_batches(ROWS, columns=flat, use_threads=False):
            _bound_time(limits["seconds"])
            rows += batch.num_rows
            if rows > limits["rows"]:
                _write({"refused": f"it holds more than {limits['rows']:,} rows"})
                return
            columns = {name: batch.column(name) for name in flat}
            text += sum(_bytes_in(column) for column in columns.values())
            if text > limits["text"]:
                _write({"refused": f"its cells unpack to more than {limits['text']:,} bytes"})
                return
            cells = [
                _cells(columns[name], limits["cell"])
                if name in columns
                else [{"nested": True}] * batch.num_rows
                for name in wanted
            ]
            for row in zip(*cells, strict=True):
                _write(row)
        if not flat:  # nothing was read, so nothing was counted
            for _ in range(min(declared, limits["rows"])):
                _write([{"nested": True}] * len(wanted))
    _write({"end": True})


def _is_nested(kind: Any) -> bool:
    import pyarrow as pa

    while isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_dictionary(kind):
        return _is_nested(kind.value_type)
    return bool(pa.types.is_nested(kind)) or bool(pa.types.is_run_end_encoded(kind))


def _bytes_in(column: Any) -> int:
    """Bytes of a column as if every cell were written out."""
    import pyarrow as pa
    from pyarrow import compute

    is_dictionary = pa.types.is_dictionary(column.type)
    values = column.dictionary if is_dictionary else column
    if values.type not in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary()):
        return 8 * len(column)
    lengths = compute.binary_length(values).cast(pa.int64())
    if is_dictionary:
        lengths = lengths.take(column.indices)
    return int(compute.sum(lengths).as_py() or 0)


def _cells(column: Any, most: int) -> list[Any]:
    """The values of a column; of strings, bytes that are none as halves of characters."""
    import pyarrow as pa

    while isinstance(column, pa.ExtensionArray):
        column = column.storage
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    # Arrow believes that strings are UTF-8, and gives up on all of them where one is not
    as_binary = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}
    is_text = column.type in as_binary
    if is_text:
        column = column.view(as_binary[column.type])
    values = column.to_pylist()
    for value in values:
        if isinstance(value, bytes) and len(value) > most:
            raise ValueError(f"a cell is longer than {most:,} bytes")
    if is_text:
        return [None if v is None else v.decode("utf-8", "surrogateescape") for v in values]
    return [
        value
        if isinstance(value, str | int | float | None)
        else {
            "type": type(value).__name__,
            "value": value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value),
        }
        for value in values
    ]


def _write(value: Any) -> None:
    line = json.dumps(value, ensure_ascii=False) + "\n"
    sys.stdout.buffer.write(line.encode("utf-8", "surrogatepass"))
    if isinstance(value, dict):  # something that is waited for
        sys.stdout.buffer.flush()


def _bound_memory(most: int) -> None:
    """No more address space than is used now and `most`: a bomb ends itself."""
    with suppress(ImportError, OSError, ValueError):  # not Linux: rows and bytes are counted still
        import resource

        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        _bound(resource.RLIMIT_AS, pages * resource.getpagesize() + most)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _bound_time(seconds: int) -> None:
    """So much processor time from now on; then the system ends this process (SIGXCPU)."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        used = resource.getrusage(resource.RUSAGE_SELF)
        _bound(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime) + 1 + seconds)


def _bound(kind: int, amount: int) -> None:
    import resource

    hard = resource.getrlimit(kind)[1]
    soft = amount if hard == resource.RLIM_INFINITY else min(amount, hard)
    resource.setrlimit(kind, (soft, hard))


if __name__ == "__main__":
    main(sys.argv[1:])
