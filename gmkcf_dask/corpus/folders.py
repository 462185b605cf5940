"""Find the text files of a path, folder or pattern, and read files that are one document each."""

from __future__ import annotations

import glob
import gzip
import itertools
import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gmkcf_dask.corpus.decode import AUTO, decode
from gmkcf_dask.corpus.documents import WarningLog
from gmkcf_dask.corpus.limits import MOST_CHARACTERS, most_text, refuse_bytes, refuse_shape
from gmkcf_dask.corpus.tables import ColumnRequest, table_documents
from gmkcf_dask.corpus.vectorize import BATCH_CHARACTERS, Document, ReadProgress
from gmkcf_dask.errors import InputError, StorageRefused
from gmkcf_dask.system.retry import retried

TEXT_ENDINGS = (".txt", ".text", ".md", ".html", ".htm")
TABLE_ENDINGS = (".jsonl", ".csv", ".tsv", ".parquet")

_SENTENCES = {
    "binary": "{count} of {total} files are not text files, or have an unknown encoding (first: "
    "{first}); they are left out",
    "damaged": "{count} of {total} files are damaged or may not be read (first: {first}); they are "
    "left out",
    "long": "{count} of {total} files are longer than {most} bytes (first: {first}); they are left "
    "out",
    "repaired": "{count} of {total} files are not {encoding} (first: {first}); their unreadable "
    "characters are replaced: name the encoding they have, by --encoding or in TextOptions",
}


@dataclass(frozen=True)
class TextFiles:
    """Files with texts, all of one kind."""

    files: Mapping[str, Path]  # by the name that ids begin with, in order
    tables: bool  # whether each holds many documents

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(path.stat().st_size for path in self.files.values())

    def documents(self, request: ColumnRequest, progress: ReadProgress) -> Iterator[Document]:
        """Every document, read lazily."""
        # a batch of text takes many times its size in memory
        refuse_bytes(min(progress.total, BATCH_CHARACTERS), "reading these texts", most_text())
        if self.tables:
            return table_documents(self.files, request, progress)
        refuse_shape((len(self.files),))
        return _file_documents(self.files, request.options.encoding, progress)


def text_files(path: str | Path) -> TextFiles | None:
    """The texts at a path, in a folder, or that a pattern matches; None where it is a matrix."""
    file = Path(path)
    if file.is_dir():
        return TextFiles(_in_folder(file), tables=False)
    if not file.exists() and glob.has_magic(str(path)):
        return _matching(str(path))
    kind = kind_of(file)
    return TextFiles({file.name: file}, tables=kind != "text") if kind else None


def kind_of(path: Path) -> str | None:
    """ "text", or the ending of a table; None for other files."""
    name = path.name.lower().removesuffix(".gz")
    if name.endswith(TEXT_ENDINGS):
        return "text"
    if name.endswith(".parquet") and name != path.name.lower():  # packed inside already
        return None
    return next((ending for ending in TABLE_ENDINGS if name.endswith(ending)), None)


def _in_folder(folder: Path) -> dict[str, Path]:
    files = [file for file in folder.rglob("*") if file.is_file() and not _is_report(file)]
    texts = {_printable(f.relative_to(folder).as_posix()): f for f in files if kind_of(f) == "text"}
    if texts:
        return {name: texts[name] for name in sorted(texts)}
    if (folder / "manifest.json").exists():
        raise InputError("this is a store of kernels, not a corpus: use gmkcf fit on it.")
    if (folder / "result.json").exists():
        store = folder / "store.zarr"
        hint = f"its kernels are in {store}" if store.exists() else "give what it was made of"
        raise InputError(f"this is the folder of a run, not a corpus: {hint}.")
    tables = [kind for file in files if (kind := kind_of(file))]
    others = ", ".join(TEXT_ENDINGS[1:])
    hint = f", or '{folder}/*{tables[0]}' for the tables in it" if tables else ""
    raise InputError(
        f"the folder holds no .txt files (nor {others}): give a folder that does{hint}."
    )


def _is_report(file: Path) -> bool:
    """Whether a page is the report of a run that was written into the folder of its texts."""
    return file.name == "report.html" and (file.parent / "insight.json").exists()


def _matching(pattern: str) -> TextFiles | None:
    paths = sorted(Path(p) for p in glob.glob(pattern, recursive=True) if os.path.isfile(p))  # noqa: PTH113, PTH207
    if "report.html" not in pattern:
        paths = [path for path in paths if not _is_report(path)]
    if not paths:
        raise InputError("no file matches this pattern: check it, and quote it for the shell.")
    kinds = {kind_of(path) for path in paths}
    if None in kinds:
        if len(paths) == 1:
            return None
        other = next(path for path in paths if kind_of(path) is None)
        raise InputError(
            f"the pattern matches {other.name}, which is not a text file: let it match "
            f"{', '.join(TEXT_ENDINGS + TABLE_ENDINGS)} files of one kind."
        )
    if len(kinds) > 1:
        listed = ", ".join(sorted({"".join(path.suffixes[-1:]) for path in paths}))
        raise InputError(f"the pattern matches files of several kinds ({listed}): name one kind.")
    parts = itertools.takewhile(lambda part: not glob.has_magic(part), Path(pattern).parts)
    root = Path(*parts)  # the folder before the first wildcard
    named = {_printable(Path(os.path.relpath(path, root)).as_posix()): path for path in paths}
    return TextFiles({name: named[name] for name in sorted(named)}, tables=kinds != {"text"})


def _file_documents(
    files: Mapping[str, Path], encoding: str, progress: ReadProgress
) -> Iterator[Document]:
    log, why = WarningLog(), ""
    topics = all("/" in name for name in files)
    texts = 0
    for name, path in files.items():
        page = path.name.lower().removesuffix(".gz").endswith((".html", ".htm"))
        text, state = "", "long"
        try:
            content = retried(partial(_content, path), path, "read")
            progress.done += path.stat().st_size
            if content is not None:
                text, state = decode(content, encoding, page=page)
        except (StorageRefused, OSError, EOFError, zlib.error) as error:
            state = "damaged"
            why = why or " ".join((getattr(error, "strerror", None) or str(error)).split())
        if state != "whole":
            log.add(state, name)
        if state not in ("whole", "repaired"):
            continue
        texts += 1
        folder, _, short = name.rpartition("/")
        yield Document(text, name, folder if topics else None, short, page)
    if not texts:
        raise _no_text_error(files, log, why)
    words = {"most": f"{MOST_CHARACTERS:,}", "encoding": "UTF-8" if encoding == AUTO else encoding}
    log.warn(_SENTENCES, len(files), **words)


def _no_text_error(files: Mapping[str, Path], log: WarningLog, why: str) -> InputError:
    """The error for a folder without any text, with the common reason if there is one."""
    count = len(files)
    if log.count["long"] == count:
        return InputError(
            f"{log.first['long']} is longer than {MOST_CHARACTERS:,} bytes: split it into "
            "documents, or write a table with one document per line."
        )
    if log.count["damaged"]:
        return InputError(
            f"none of the {count} files can be read as text (first that cannot be read at all: "
            f"{log.first['damaged']}, {why}): check that they are complete and may be read."
        )
    return InputError(
        f"none of the {count} files is text (first: {next(iter(files))}): give plain text, and "
        "name its encoding if it is not UTF-8, by --encoding or in TextOptions."
    )


def _content(path: Path) -> bytes | None:
    """The unpacked content of a file; None where it is too long for one document."""
    opened = gzip.open if path.name.lower().endswith(".gz") else open
    with opened(path, "rb") as file:
        content: bytes = file.read(MOST_CHARACTERS + 1)  # never more, however much is packed
    return content if len(content) <= MOST_CHARACTERS else None


def _printable(name: str) -> str:
    """A file name as text: bytes that are not UTF-8 are escaped, so that it can be stored."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
