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
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, TextIO, cast

from gmkcf_dask.corpus.counts import Document
from gmkcf_dask.corpus.limits import MOST_CHARACTERS, bounded_lines, refuse_shape
from gmkcf_dask.corpus.markup import LOST, encoding_of
from gmkcf_dask.corpus.options import TextOptions
from gmkcf_dask.corpus.passes import Meter
from gmkcf_dask.errors import InputError

Record = tuple[str, Mapping[str, Any]]
"""Where one document of a table is, such as "line 3", and its named fields."""

_PARQUET_ROWS = 256
_SEPARATORS = ",;\t|"
_HEADER_LINES = 64
# what spreadsheet programs write before the header, and read again themselves
_SEPARATOR_SAID = re.compile(r'"?sep=([,;\t|])"?\s*', re.IGNORECASE)


@dataclass(frozen=True)
class Wanted:
    """What is looked for in a table.

    Attributes
    ----------
    options : TextOptions
    new : bool
        New documents of a corpus that was read before: there only the text has to be. Labels are
        not looked for, and ids and titles may be missing, even in the columns that options name.
    named : bool
        Whether the column for ids was named for these very documents, so that it has to be there.
    several : bool
        Whether this is one of several tables, of which some may be without titles.
    """

    options: TextOptions
    new: bool = False
    named: bool = False
    several: bool = False

    @property
    def columns(self) -> dict[str, str | None]:
        """By what they hold beside the text; None for those that go by that name, if there."""
        options = self.options
        labels = {} if self.new else {"label": options.label_column}
        return {"id": options.id_column, **labels, "title": options.title_column}

    @property
    def needed(self) -> tuple[str, ...]:
        """Columns without which the table is not read."""
        names = self.columns
        if self.several:
            names.pop("title")
        needed = [names["id"]] if self.named else [] if self.new else [*names.values()]
        return self.options.text_column, *(name for name in needed if name is not None)

    def used(self, there: Sequence[str]) -> list[str]:
        """Those of a table's columns that are read; none of them may be there twice."""
        known = {self.options.text_column, *(name or what for what, name in self.columns.items())}
        counts = Counter(name for name in there if name in known)
        for name, times in counts.items():
            if times > 1:
                raise InputError(
                    f"the column {name!r} is there {times} times: give each its own name."
                )
        return list(counts)


@dataclass
class _Columns:
    """The columns for id, label and title, as the first document of all has them."""

    wanted: Wanted
    named: dict[str, str] | None = None
    titled: bool = False
    """Whether any document has the column for titles that was named: few may, but not none."""

    def document(self, record: Record) -> Document:
        """The document of a record; other fields are dropped, they may be many times as large."""
        if self.named is None:
            self.named = _named_columns(record, self.wanted)
        self.titled = self.titled or self.wanted.options.title_column in record[1]
        text = _text(record, self.wanted.options.text_column)
        names = {
            what: (_if_there if self.wanted.new else _title if what == "title" else _name)(
                record, column
            )
            for what, column in self.named.items()
        }
        return Document(text, names.get("id"), names.get("label"), names.get("title"))


def table_documents(files: Mapping[str, Path], wanted: Wanted, meter: Meter) -> Iterator[Document]:
    """Documents of one table or several of one kind, file by file.

    Parameters
    ----------
    files : mapping of str to Path
        By name, in order. Of several, names are part of ids that are mere numbers.
    wanted : Wanted
    """
    wanted = replace(wanted, several=len(files) > 1)
    columns = _Columns(wanted)
    for name, path in files.items():
        try:
            for number, record in enumerate(_records(path, wanted, meter)):
                document = columns.document(record)
                if len(files) > 1 and document.id is None:
                    where = f"{name}:{number}"
                    document = Document(document.text, where, document.label, document.title)
                yield document
        except InputError as error:
            raise (InputError(f"{name}: {error}") if len(files) > 1 else error) from error
    title = wanted.options.title_column
    if title is not None and columns.named is not None and not (columns.titled or wanted.new):
        raise InputError(f"no document has a column {title!r}: give the right --title-column.")


def _records(path: Path, wanted: Wanted, meter: Meter) -> Iterator[Record]:
    kind = path.name.lower().removesuffix(".gz").rpartition(".")[2]
    if kind == "parquet":
        yield from _parquet_records(path, wanted, meter)
        return
    read: Callable[[TextIO], Iterator[Record]] = _json_records
    if kind != "jsonl":
        separators = "\t" if kind == "tsv" else _SEPARATORS
        read = lambda lines: _csv_records(lines, separators, wanted)  # noqa: E731
    with path.open("rb") as file:
        before = meter.done
        with opened(file, path, wanted.options.encoding) as lines:
            for record in read(lines):
                meter.done = before + file.tell()
                yield record


@contextmanager
def opened(file: IO[bytes], path: Path, named: str) -> Iterator[TextIO]:
    """The text of a file, unpacked on the way; bytes that are none come as halves of characters.

    Its first bytes tell its encoding, or else it has the named one, or UTF-8.
    """
    packed = path.name.lower().endswith(".gz")
    with gzip.GzipFile(fileobj=file) if packed else nullcontext(file) as unpacked:
        buffered = io.BufferedReader(cast(Any, unpacked))
        encoding = encoding_of(buffered.peek(4), named)
        with io.TextIOWrapper(buffered, encoding=encoding, errors=LOST, newline="") as lines:
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


def _csv_records(lines: TextIO, separators: str, wanted: Wanted) -> Iterator[Record]:
    bounded = bounded_lines(lines)
    header, before = _header(bounded), 0
    if header and (said := _SEPARATOR_SAID.fullmatch(header[0])):
        header, before, separators = _header(bounded), 1, said[1]
    separator = _separator(header, separators, wanted.options.text_column)
    # strict: a quote left open would otherwise swallow the rest of the file
    rows = csv.reader(itertools.chain(header, bounded), delimiter=separator, strict=True)
    names = _next(rows) or []
    wanted.used(names)
    checked = False
    while (cells := _next(rows)) is not None:
        if cells and not checked:
            _refuse_numbers(dict(zip(names, cells, strict=False)), wanted.options.text_column)
            _refuse_missing("the header", wanted, names)
            checked = True
        if cells and len(cells) != len(names):
            raise InputError(
                f"line {before + rows.line_num} has {len(cells)} cells but the header names "
                f"{len(names)} columns: mend or quote it."
            )
        if cells:
            yield f"line {before + rows.line_num}", dict(zip(names, cells, strict=True))


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
    """What parts the cells: the first by which the header has the column with the text.

    Programs write ; where a comma is part of numbers, and call the table CSV all the same. Where
    none gives the column, the first that parts the header at all: the cells are told then.
    """
    cells = {separator: _cells(header, separator) for separator in separators}
    with_text = [separator for separator in separators if text_column in cells[separator]]
    parting = [separator for separator in separators if len(cells[separator]) > 1]
    return (with_text or parting or [separators[0]])[0]


def _cells(header: Sequence[str], separator: str) -> list[str]:
    try:
        return _next(csv.reader(header, delimiter=separator, strict=True)) or []
    except csv.Error:  # said when the table is read
        return []


def _next(rows: Any) -> list[str] | None:
    """The next row; the limit of its cells, which all of Python shares, is put back at once."""
    usual = csv.field_size_limit(MOST_CHARACTERS)
    try:
        return next(rows, None)
    finally:
        csv.field_size_limit(usual)


def _parquet_records(path: Path, wanted: Wanted, meter: Meter) -> Iterator[Record]:
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
            _refuse_missing("the table", wanted, names)
            used = wanted.used(names)
            refuse_shape((table.metadata.num_rows,))
            for batch in table.iter_batches(_PARQUET_ROWS, columns=used, use_threads=False):
                columns = {name: _values(batch.column(name)) for name in used}
                for values in zip(*columns.values(), strict=True):
                    done += 1
                    meter.done = before + size * done // max(1, table.metadata.num_rows)
                    yield f"row {done}", dict(zip(used, values, strict=True))
    except ArrowException as error:
        raise ValueError(str(error)) from error


def _values(column: Any) -> list[Any]:
    """The values of an Arrow column; of strings, bytes that are none as halves of characters."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    # Arrow believes that strings are UTF-8, and gives up on all of them where one is not
    if pa.types.is_string(column.type):
        column = column.view(pa.binary())
    elif pa.types.is_large_string(column.type):
        column = column.view(pa.large_binary())
    else:
        return cast(list[Any], column.to_pylist())
    return [None if v is None else v.decode("utf-8", "surrogateescape") for v in column.to_pylist()]


def _named_columns(first: Record, wanted: Wanted) -> dict[str, str]:
    """The columns for id, label and title, as far as there are any."""
    where, fields = first
    _refuse_numbers(fields, wanted.options.text_column)
    if wanted.new:  # of which each may have others
        _refuse_missing(where, wanted, fields)
        return {what: column or what for what, column in wanted.columns.items()}
    return {
        what: column or what
        for what, column in wanted.columns.items()
        if column is not None or what in fields
    }


def _refuse_missing(where: str, wanted: Wanted, there: Collection[str]) -> None:
    for column in wanted.needed:
        if column not in there:
            raise _no_column(where, column, there)


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
    if _is_missing(value):
        return ""
    if not isinstance(value, str):
        raise InputError(
            f"{where} holds {type(value).__name__} in column {column!r}, not text: write it as a "
            "string."
        )
    return value


def _name(record: Record, column: str) -> object:
    where, _ = record
    value = _field(record, column)
    if _is_missing(value) or isinstance(value, dict | list):
        raise InputError(
            f"{where} has no name or number in column {column!r}: give one to every document."
        )
    return value


def _title(record: Record, column: str) -> object:
    """A title may be missing here and there."""
    value = _if_there(record, column)
    return "" if value is None else value


def _if_there(record: Record, column: str) -> object:
    value = record[1].get(column)
    return None if _is_missing(value) or isinstance(value, dict | list) else value


def _is_missing(value: object) -> bool:
    """Tables of numbers have no other word for it than NaN."""
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))


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
        f"{where} has no column {column!r}; its columns are {listed}: name one of them{hint}, by "
        "--text-column, --id-column, --label-column or --title-column, or in TextOptions."
    )
