"""INPUT as the commands read it: options for texts, and where large ones are taken apart."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from gmkcf_dask.cli.options import asked_place, options_in_a_row
from gmkcf_dask.errors import InputError
from gmkcf_dask.plan import MIB

PROCESSES_FROM = 32 * MIB
"""Bytes of text from which worker processes pay for their start."""
_MOST_STOP_WORDS = 16 * MIB


def _documents(ctx: click.Context, param: click.Parameter, value: str | None) -> int | float | None:
    """A count, or with a point a share of the documents."""
    if value is None:
        return None
    try:
        return float(value) if "." in value else int(value)
    except ValueError:
        raise click.BadParameter(
            f"{value!r} is neither a count of documents nor a share of them, such as 0.5"
        ) from None


def _stop_words(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """The one list that is here; of others it is said where they come from."""
    if value in (None, "english"):
        return value
    raise click.BadParameter(
        f"{value!r} is not 'english': lists of other languages are given by --stop-words-file (one "
        "word per line), or leave out what is in most documents with --max-df 0.3"
    )


text_options = options_in_a_row(
    click.option("--text-column", default="text", help="Tables: the column with the text."),
    click.option("--id-column", help="Tables: sample ids.  [default: id, if there]"),
    click.option("--label-column", help="Tables: known topics.  [default: label, if there]"),
    click.option("--title-column", help="Tables: titles.  [default: title, if there]"),
    click.option(
        "--encoding",
        default="auto",
        help="Of text files that do not tell theirs, such as cp1252; auto is UTF-8.",
    ),
    click.option(
        "--stop-words",
        callback=_stop_words,
        metavar="[english]",
        help="Words to leave out.  [default: none]",
    ),
    click.option(
        "--stop-words-file",
        type=click.Path(path_type=Path),
        help="Words to leave out, one per line.  [default: none]",
    ),
    click.option(
        "--tokens",
        type=click.Choice(["words", "chars"]),
        default="words",
        help="What terms are made of; chars for scripts without spaces, such as Chinese.",
    ),
    click.option(
        "--ngrams",
        type=click.IntRange(min=1, max=10),
        help="Up to so many tokens in a row make a term.  [default: 1 word, 2 to 3 chars]",
    ),
    click.option(
        "--min-df",
        type=click.IntRange(min=1),
        help="Documents a word must appear in.  [default: 2, 1 below 50 documents]",
    ),
    click.option(
        "--max-df",
        callback=_documents,
        metavar="COUNT|SHARE",
        help="Documents a word may appear in; with a point a share of them.  [default: 1.0]",
    ),
    click.option(
        "--max-features",
        type=click.IntRange(min=1),
        help="Keep this many words only.  [default: all]",
    ),
    click.option("--sublinear-tf", is_flag=True, help="Count words as 1 + log(count)."),
    click.option("--keep-case", is_flag=True, help="Tea and tea are two words."),
    click.option(
        "--features",
        type=click.Choice(["tfidf", "hashing"]),
        default="tfidf",
        help="TF-IDF, or counts in hashed columns: one pass, no IDF, no names of terms.",
    ),
)
_AS_THEY_ARE = (
    "text_column", "id_column", "label_column", "title_column", "max_features", "sublinear_tf",
    "tokens", "ngrams", "features", "encoding",
)  # fmt: skip


def text_options_of(options: dict[str, Any]) -> Any:
    """The `TextOptions` that were asked for."""
    from gmkcf_dask.corpus import TextOptions

    words, file = options["stop_words"], options["stop_words_file"]
    if words is not None and file is not None:
        raise InputError("--stop-words and --stop-words-file are both given: choose one")
    return TextOptions(
        **{name: options[name] for name in _AS_THEY_ARE},
        min_df=options["min_df"] or "auto",
        max_df=1.0 if options["max_df"] is None else options["max_df"],
        lowercase=not options["keep_case"],
        stop_words=words if file is None else _words_in(file),
    )


def _words_in(path: Path) -> tuple[str, ...]:
    try:
        if path.stat().st_size > _MOST_STOP_WORDS:
            raise InputError(f"{path} is too large for a list of stop words: give another file")
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        cause = getattr(error, "strerror", None) or "it is not UTF-8"
        raise InputError(f"{path} cannot be read as stop words ({cause}): give another") from error
    return tuple(word for line in lines if (word := line.strip()))


def request_of(input_path: str, options: dict[str, Any], listen: Any) -> Any:
    """INPUT with the kernels that are wanted of it."""
    from gmkcf_dask.corpus import read_corpus, refuse_equal_rows, warn_about_zero_rows
    from gmkcf_dask.kernels.request import KernelRequest
    from gmkcf_dask.kernels.specs import resolve_kernels

    specs, text = resolve_kernels(options["kernels"]), text_options_of(options)
    with reading_runner(input_path, options) as runner:
        corpus = read_corpus(input_path, text=text, runner=runner, listen=listen)
    refuse_equal_rows(corpus.X)
    if corpus.reading is None:  # else said already, by name
        warn_about_zero_rows(corpus.X)
    names = ("normalization", "scaling", "precision", "block", "merge_duplicates")
    how = {name: options[name] for name in names}
    return KernelRequest(corpus, specs, **how)


def check_samples(method: Any, n_samples: int, input_path: str) -> None:
    """As the method does; where a file was given for a whole corpus, that is said instead."""
    try:
        method.check_samples(n_samples)
    except InputError as error:
        if n_samples > 1 or not _is_one_text(input_path):
            raise
        wrong = str(error).partition(":")[0]
        raise InputError(
            f"{wrong}: one file is one document, so give a folder of them, or a table (.csv, "
            ".jsonl) with one document per row"
        ) from error


def _is_one_text(input_path: str) -> bool:
    from gmkcf_dask.corpus.folders import text_files

    try:
        found = text_files(input_path)
    except (OSError, ValueError):  # a store
        return False
    return found is not None and not found.tables and len(found.files) == 1


@contextmanager
def reading_runner(input_path: str, options: dict[str, Any]) -> Iterator[Any]:
    """Where texts are taken apart: large ones by worker processes of this machine.

    Python reads words with one core of a process. What the cluster options name is opened later,
    when the number of samples is known; `--cluster threads` asks for no processes at all.
    """
    from gmkcf_dask.blas import cores
    from gmkcf_dask.cluster import local_cluster
    from gmkcf_dask.graph import Runner

    place = asked_place(options)
    workers = (place.workers if place.where in ("", "local") else None) or cores()
    if place.where == "threads" or workers < 2 or _text_bytes(input_path) < PROCESSES_FROM:
        yield None
        return
    with local_cluster(workers) as client:
        yield Runner(client)


def _text_bytes(input_path: str) -> int:
    """Bytes of texts on disk; none where INPUT is a matrix, or wrong, which is said elsewhere."""
    from gmkcf_dask.corpus.folders import text_files

    try:
        found = text_files(input_path)
        return 0 if found is None else found.size
    except (OSError, ValueError):
        return 0
