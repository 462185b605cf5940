"""Tables whose rows are documents: JSONL, CSV and TSV, packed or not, and Parquet."""

from __future__ import annotations

import csv
import difflib
import gzip
import io
import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, TextIO, cast

from gmkcf_dask.corpus.decode import SURROGATES, detect_encoding
from gmkcf_dask.corpus.limits import MOST_CHARACTERS, bounded_lines
from gmkcf_dask.corpus.parquet import OtherValue, count_parquet_rows, parquet_rows
from gmkcf_dask.corpus.text_options import TextOptions
from gmkcf_dask.corpus.vectorize import Document, ReadProgress
from gmkcf_dask.errors import InputError

Record = tuple[str, Mapping[str, Any]]
"""Where one document of a table is, such as "line 3", and its named fields."""

_SEPARATORS = ",;\t|"
_HEADER_LINES = 64
# of the columns in a sentence
_LONGEST_NAME, _MOST_LISTED, _MOST_COMPARED = 100, 20, 1_000
# what spreadsheet programs write before the header, and read again themselves
_SEPARATOR_LINE = re.compile(r'"?sep=([,;\t|])"?\s*', re.IGNORECASE)


@dataclass(frozen=True)
class ColumnRequest:
    """The columns to read from a table."""

    options: TextOptions
    new: bool = False
    """New documents for a model: only the text is required. Labels are ignored, and ids and titles
    may be missing, even if options name their columns."""
    named: bool = False
    """Whether the id column was named for these documents, so that it is required."""
    several: bool = False
    """Whether this is one of several tables, some of which may lack titles."""

    @property
    def columns(self) -> dict[str, str | None]:
        """Column of id, label and title; None where the default name is optional."""
        kinds = ("id", "title") if self.new else ("id", "label", "title")
        return {what: getattr(self.options, f"{what}_column") for what in kinds}

    @property
    def required(self) -> tuple[str, ...]:
        needed = [] if self.new and not self.named else ["id"]
        if not self.new:
            needed += ["label"] if self.several else ["label", "title"]
        names = (self.columns[what] for what in needed)
        return self.options.text_column, *(name for name in names if name is not None)

    def used(self, names: Sequence[str]) -> list[str]:
        """The columns of a table that are read; none may occur twice."""
        known = {self.options.text_column, *(name or what for what, name in self.columns.items())}
        counts = Counter(name for name in names if name in known)
        for name, times in counts.items():
            if times > 1:
                raise InputError(
                    f"the column {name!r} occurs {times} times: give each column its own name."
                )
        return list(counts)


def table_documents(
    files: Mapping[str, Path], request: ColumnRequest, progress: ReadProgress
) -> Iterator[Document]:
    """Documents of one table or several of one kind, file by file.

    Of several files, names are part of ids that are mere numbers. The columns for id, label and
    title are those of the first document.
    """
    request = replace(request, several=len(files) > 1)
    columns: dict[str, str] | None = None
    title = request.options.title_column
    titled = False  # few documents may have the column for titles that was named, but not none
    for name, path in files.items():
        try:
            for number, record in enumerate(_records(path, request, progress)):
                if columns is None:
                    columns = _named_columns(record, request)
                titled = titled or title in record[1]
                document = _document(record, request, columns)
                if request.several and document.id is None:
                    document = replace(document, id=f"{name}:{number}")
                yield document
        except InputError as error:
            raise (InputError(f"{name}: {error}") if request.several else error) from error
    if title is not None and columns is not None and not (titled or request.new):
        raise InputError(f"no document has a column {title!r}: give the right --title-column.")


def _document(record: Record, request: ColumnRequest, columns: Mapping[str, str]) -> Document:
    """The document of a record; other fields, which may be large, are dropped."""
    where, fields = record
    text_column = request.options.text_column
    names: dict[str, Any] = {}
    for what, column in {"text": text_column, **columns}.items():
        optional = what != "text" and (request.new or what == "title")
        if column not in fields and not optional:
            raise _no_column(where, column, fields)
        value = fields.get(column)
        missing = value is None or value == "" or (isinstance(value, float) and math.isnan(value))
        if what == "text":
            if missing:
                value = ""
            elif not isinstance(value, str):
                kind = value.type_name if isinstance(value, OtherValue) else type(value).__name__
                raise InputError(
                    f"{where} holds {kind} in column {column!r}, not text: write it as a string."
                )
        elif missing or isinstance(value, dict | list):
            if not optional:
                raise InputError(
                    f"{where} has no name or number in column {column!r}: give one to every "
                    "document."
                )
            value = None if request.new else ""  # a title may be missing here and there
        names[what] = value
    return Document(**names)


def _records(path: Path, request: ColumnRequest, progress: ReadProgress) -> Iterator[Record]:
    kind = path.name.lower().removesuffix(".gz").rpartition(".")[2]
    if kind == "parquet":
        yield from _parquet_records(path, request, progress)
        return
    before = progress.done
    with path.open("rb") as file, open_text(file, path, request.options.encoding) as lines:
        if kind == "jsonl":
            records = _json_records(lines)
        else:
            records = _csv_records(lines, "\t" if kind == "tsv" else _SEPARATORS, request)
        for record in records:
            progress.done = before + file.tell()
            yield record


def count_rows(path: Path, request: ColumnRequest, progress: ReadProgress) -> int:
    """Count the documents of a table without parsing texts or JSON lines."""
    name = path.name.lower().removesuffix(".gz")
    if name.endswith(".parquet"):
        return count_parquet_rows(path)
    if name.endswith(".jsonl"):
        with path.open("rb") as file, open_text(file, path, request.options.encoding) as lines:
            return sum(1 for line in bounded_lines(lines) if not line.isspace())
    return sum(1 for _ in _records(path, request, progress))


@contextmanager
def open_text(file: IO[bytes], path: Path, named: str) -> Iterator[TextIO]:
    """Open a text file, packed or not; undecodable bytes become surrogates.

    A byte order mark gives the encoding, else the named one is used, or UTF-8.
    """
    packed = path.name.lower().endswith(".gz")
    with gzip.GzipFile(fileobj=file) if packed else nullcontext(file) as unpacked:
        buffered = io.BufferedReader(cast(Any, unpacked))
        encoding = detect_encoding(buffered.peek(4), named)
        with io.TextIOWrapper(buffered, encoding=encoding, errors=SURROGATES, newline="") as lines:
            yield lines


def _json_records(lines: TextIO) -> Iterator[Record]:
    for number, line in enumerate(bounded_lines(lines), start=1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"line {number} is not valid JSON ({error}): fix it.") from error
        if not isinstance(fields, dict):
            raise InputError(f"line {number} is not a JSON object: write one object per line.")
        yield f"line {number}", fields


def _csv_records(lines: TextIO, separators: str, request: ColumnRequest) -> Iterator[Record]:
    bounded = bounded_lines(lines)
    header, before = _header(bounded), 0
    if header and (match := _SEPARATOR_LINE.fullmatch(header[0])):
        header, before, separators = _header(bounded), 1, match[1]
    separator = _separator(header, separators, request.options.text_column)
    # strict: a quote left open would otherwise swallow the rest of the file
    rows = csv.reader(itertools.chain(header, bounded), delimiter=separator, strict=True)
    names = _next(rows) or []
    request.used(names)
    checked = False
    while (cells := _next(rows)) is not None:
        if not cells:
            continue
        if not checked:
            _refuse_numbers(dict(zip(names, cells, strict=False)), request.options.text_column)
            _refuse_missing("the header", request, names)
            checked = True
        where = f"line {before + rows.line_num}"
        if len(cells) != len(names):
            raise InputError(
                f"{where} has {len(cells)} cells but the header names {len(names)} columns: fix or "
                "quote it."
            )
        yield where, dict(zip(names, cells, strict=True))


def _header(lines: Iterator[str]) -> list[str]:
    """The first line, and those after it that its open quotes reach."""
    header: list[str] = []
    quotes = 0
    for line in itertools.islice(lines, _HEADER_LINES):
        header.append(line)
        quotes += line.count('"')
        if quotes % 2 == 0:
            break
    return header


def _separator(header: Sequence[str], separators: str, text_column: str) -> str:
    """Detect the separator: the first that gives the header a text column.

    Some programs write ; into CSV files because their numbers contain commas. Where no separator
    gives the column, use the first that splits the header, for the error message.
    """
    cells = {separator: _cells(header, separator) for separator in separators}
    with_text = [separator for separator in separators if text_column in cells[separator]]
    parting = [separator for separator in separators if len(cells[separator]) > 1]
    return (with_text or parting or [separators[0]])[0]


def _cells(header: Sequence[str], separator: str) -> list[str]:
    try:
        return _next(csv.reader(header, delimiter=separator, strict=True)) or []
    except csv.Error:  # reported when the table is read
        return []


def _next(rows: Any) -> list[str] | None:
    """The next row; the cell size limit, which is global, is restored at once."""
    usual = csv.field_size_limit(MOST_CHARACTERS)
    try:
        return next(rows, None)
    finally:
        csv.field_size_limit(usual)


def _parquet_records(
    path: Path, request: ColumnRequest, progress: ReadProgress
) -> Iterator[Record]:
    size, before = path.stat().st_size, progress.done

    def choose(names: Sequence[str]) -> list[str]:
        _refuse_missing("the table", request, names)
        return request.used(names)

    for done, (declared, fields) in enumerate(parquet_rows(path, choose), start=1):
        progress.done = before + size * done // max(1, declared)
        yield f"row {done}", fields


def _named_columns(first: Record, request: ColumnRequest) -> dict[str, str]:
    """The columns for id, label and title, as far as there are any."""
    where, fields = first
    _refuse_numbers(fields, request.options.text_column)
    if request.new:  # of which each may have others
        _refuse_missing(where, request, fields)
    return {
        what: column or what
        for what, column in request.columns.items()
        if request.new or column is not None or what in fields
    }


def _refuse_missing(where: str, request: ColumnRequest, names: Collection[str]) -> None:
    for column in request.required:
        if column not in names:
            raise _no_column(where, column, names)


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


def _no_column(where: str, column: str, columns: Iterable[str]) -> InputError:
    names = [str(name)[:_LONGEST_NAME] for name in columns]
    close = difflib.get_close_matches(column, names[:_MOST_COMPARED], n=1, cutoff=0.4)
    hint = f" (closest match: {close[0]!r})" if close else ""
    more = [] if len(names) <= _MOST_LISTED else [f"and {len(names) - _MOST_LISTED:,} more"]
    listed = ", ".join([*map(repr, names[:_MOST_LISTED]), *more]) or "none"
    return InputError(
        f"{where} has no column {column!r}; its columns are {listed}: name one of them{hint}, by "
        "--text-column, --id-column, --label-column or --title-column, or in TextOptions."
    )
