"""Tables whose rows are documents: JSONL, CSV and TSV, packed or not, and Parquet."""

from __future__ import annotations

import codecs
import csv
import difflib
import gzip
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TextIO, cast

from gmkcf_dask.corpus.counts import Document
from gmkcf_dask.corpus.limits import MOST_CHARACTERS, bounded_lines, refuse_shape
from gmkcf_dask.corpus.options import TextOptions
from gmkcf_dask.corpus.passes import Meter
from gmkcf_dask.errors import InputError

Record = tuple[str, Mapping[str, Any]]
"""Where one document of a table is, such as "line 3", and its named fields."""

_PARQUET_ROWS = 256


@dataclass
class _Columns:
    """The columns for id, label and title, as the first document of all has them."""

    options: TextOptions
    lenient: bool
    named: dict[str, str] | None = None

    def document(self, record: Record) -> Document:
        """The document of a record; other fields are dropped, they may be many times as large."""
        if self.named is None:
            self.named = _named_columns(record, self.options, lenient=self.lenient)
        text = _text(record, self.options.text_column)
        names = {
            what: (_title if what == "title" else _name)(record, column)
            for what, column in self.named.items()
        }
        return Document(text, names.get("id"), names.get("label"), names.get("title"))


def table_documents(
    files: Mapping[str, Path], options: TextOptions, meter: Meter, *, lenient: bool = False
) -> Iterator[Document]:
    """Documents of one table or several of one kind, file by file.

    Parameters
    ----------
    files : mapping of str to Path
        By name, in order. Of several, names are part of ids that are mere numbers.
    lenient : bool
        Columns for id, label and title may be missing, even those that options name.
    """
    columns = _Columns(options, lenient)
    for name, path in files.items():
        try:
            for number, record in enumerate(_records(path, options, meter, lenient)):
                document = columns.document(record)
                if len(files) > 1 and document.id is None:
                    where = f"{name}:{number}"
                    document = Document(document.text, where, document.label, document.title)
                yield document
        except InputError as error:
            raise (InputError(f"{name}: {error}") if len(files) > 1 else error) from error


def _records(path: Path, options: TextOptions, meter: Meter, lenient: bool) -> Iterator[Record]:
    kind = path.name.lower().removesuffix(".gz").rpartition(".")[2]
    if kind == "parquet":
        yield from _parquet_records(path, options, meter, lenient)
        return
    read: Callable[[TextIO], Iterator[Record]] = _json_records
    if kind != "jsonl":
        delimiter = "\t" if kind == "tsv" else ","
        read = lambda lines: _csv_records(lines, delimiter)  # noqa: E731
    with path.open("rb") as file:
        before = meter.done
        with opened(file, path) as lines:
            for record in read(lines):
                meter.done = before + file.tell()
                yield record


@contextmanager
def opened(file: IO[bytes], path: Path) -> Iterator[TextIO]:
    """The text of a file, unpacked on the way; bytes that are none come as halves of characters."""
    packed = path.name.lower().endswith(".gz")
    with gzip.GzipFile(fileobj=file) if packed else nullcontext(file) as unpacked:
        buffered = io.BufferedReader(cast(Any, unpacked))
        utf16 = buffered.peek(2)[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
        encoding, errors = ("utf-16", "replace") if utf16 else ("utf-8-sig", "surrogateescape")
        with io.TextIOWrapper(buffered, encoding=encoding, errors=errors, newline="") as lines:
            yield lines


def _json_records(lines: TextIO) -> Iterator[Record]:
    for number, line in enumerate(bounded_lines(lines), start=1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"line {number} is not valid JSON ({error}): mend it.") from error
        if not isinstance(fields, dict):
            raise InputError(f"line {number} is not a JSON object: write one object per line.")
        yield f"line {number}", fields


def _csv_records(lines: TextIO, delimiter: str) -> Iterator[Record]:
    # strict: a quote left open would otherwise swallow the rest of the file
    rows = csv.reader(bounded_lines(lines), delimiter=delimiter, strict=True)
    header = _next(rows) or []
    while (cells := _next(rows)) is not None:
        if cells and len(cells) != len(header):
            raise InputError(
                f"line {rows.line_num} has {len(cells)} cells but the header names {len(header)} "
                "columns: mend or quote it."
            )
        if cells:
            yield f"line {rows.line_num}", dict(zip(header, cells, strict=True))


def _next(rows: Any) -> list[str] | None:
    """The next row; the limit of its cells, which all of Python shares, is put back at once."""
    usual = csv.field_size_limit(MOST_CHARACTERS)
    try:
        return next(rows, None)
    finally:
        csv.field_size_limit(usual)


def _parquet_records(
    path: Path, options: TextOptions, meter: Meter, lenient: bool
) -> Iterator[Record]:
    try:
        from pyarrow import ArrowException
        from pyarrow import parquet as pq
    except ImportError as error:
        raise InputError(
            "Parquet is read with pyarrow, which is not installed: pip install "
            "'gmkcf-dask[parquet]'."
        ) from error
    size, before, done = path.stat().st_size, meter.done, 0
    try:
        with pq.ParquetFile(path) as table:
            names = [str(name) for name in table.schema_arrow.names]
            wanted = _wanted(names, options, lenient)
            refuse_shape((table.metadata.num_rows,))
            for batch in table.iter_batches(_PARQUET_ROWS, columns=wanted, use_threads=False):
                for fields in batch.to_pylist():
                    done += 1
                    meter.done = before + size * done // max(1, table.metadata.num_rows)
                    yield f"row {done}", fields
    except ArrowException as error:
        raise ValueError(str(error)) from error


def _wanted(names: list[str], options: TextOptions, lenient: bool) -> list[str]:
    """The columns that are read; refused where one that was asked for is not there."""
    others = [column for column in _asked(options).values() if column is not None]
    for column in (options.text_column, *(() if lenient else others)):
        if column not in names:
            raise _no_column("the table", column, names)
    known = {options.text_column, *others, *_asked(options)}
    return [name for name in dict.fromkeys(names) if name in known]


def _asked(options: TextOptions) -> dict[str, str | None]:
    return {
        "id": options.id_column,
        "label": options.label_column,
        "title": options.title_column,
    }


def _named_columns(first: Record, options: TextOptions, *, lenient: bool) -> dict[str, str]:
    """The columns for id, label and title, as far as there are any."""
    _, fields = first
    _refuse_numbers(fields, options.text_column)
    named = {}
    for what, column in _asked(options).items():
        there = column in fields if column is not None else what in fields
        if there or (column is not None and not lenient):
            named[what] = column or what
    return named


def _refuse_numbers(fields: Mapping[str, Any], text_column: str) -> None:
    if fields and text_column not in fields and all(map(_is_number, fields.values())):
        raise InputError(
            f"there is no column {text_column!r} and every cell is a number: save a table of "
            "numbers as .npy or .npz."
        )


def _is_number(cell: object) -> bool:
    try:
        float(str(cell))
    except ValueError:
        return False
    return True


def _text(record: Record, column: str) -> str:
    where, _ = record
    value = _field(record, column)
    if value is not None and not isinstance(value, str):
        raise InputError(
            f"{where} holds {type(value).__name__} in column {column!r}, not text: write it as a "
            "string."
        )
    return value or ""


def _name(record: Record, column: str) -> object:
    where, _ = record
    value = _field(record, column)
    if value in (None, "") or isinstance(value, dict | list):
        raise InputError(
            f"{where} has no name or number in column {column!r}: give one to every document."
        )
    return value


def _title(record: Record, column: str) -> object:
    """A title may be missing here and there."""
    value = record[1].get(column)
    return "" if value is None or isinstance(value, dict | list) else value


def _field(record: Record, column: str) -> Any:
    where, fields = record
    if column not in fields:
        raise _no_column(where, column, fields)
    return fields[column]


def _no_column(where: str, column: str, there: Iterable[str]) -> InputError:
    names = [str(name) for name in there]
    close = difflib.get_close_matches(column, names, n=1, cutoff=0.4)
    hint = f" (closest match: {close[0]!r})" if close else ""
    listed = ", ".join(map(repr, names)) or "none"
    return InputError(
        f"{where} has no column {column!r}; its columns are {listed}: name one of them{hint}."
    )
