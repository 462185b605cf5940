"""INPUT as the commands read it: options for texts, and where large ones are taken apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import click

from gmkcf_dask.cli.options import COUNT, FILE, options_in_a_row, with_defaults
from gmkcf_dask.errors import DamagedStoreError, InputError
from gmkcf_dask.system.units import MIB

PROCESSES_FROM = 32 * MIB
"""Bytes of text from which worker processes pay for their start."""
_MOST_STOP_WORDS = 16 * MIB
T = TypeVar("T")


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
    if value in (None, "english", "none"):
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
        help="Encoding of text files that do not declare one, such as cp1252; auto is UTF-8.",
    ),
    click.option(
        "--stop-words",
        callback=_stop_words,
        metavar="[english|none]",
        help="Words to leave out.  [default: none]",
    ),
    click.option(
        "--stop-words-file", type=FILE, help="Words to leave out, one per line.  [default: none]"
    ),
    click.option(
        "--tokens",
        type=click.Choice(["words", "chars"]),
        help="What terms are made of; chars for scripts without spaces, such as Chinese.  "
        "[default: words]",
    ),
    click.option(
        "--ngrams",
        type=click.IntRange(min=1, max=10),
        help="Up to so many tokens in a row make a term.  [default: 1 word, 2 to 3 chars]",
    ),
    click.option(
        "--min-df",
        type=COUNT,
        help="Documents a word must appear in.  [default: 2, 1 below 50 documents]",
    ),
    click.option(
        "--max-df",
        callback=_documents,
        metavar="COUNT|SHARE",
        help="Documents a word may appear in; with a point a share of them.  [default: 1.0]",
    ),
    click.option("--max-features", type=COUNT, help="Keep this many words only.  [default: all]"),
    click.option(
        "--sublinear-tf/--no-sublinear-tf",
        default=None,
        help="Count words as 1 + log(count).  [default: no]",
    ),
    click.option("--keep-case", is_flag=True, help="Tea and tea are two words."),
    click.option(
        "--features",
        type=click.Choice(["tfidf", "hashing"]),
        default="tfidf",
        help="TF-IDF, or counts in hashed columns: one pass, no IDF, no names of terms.",
    ),
    click.option(
        "--text-preset",
        "preset",
        type=click.Choice(["auto", "plain"]),
        help="Of options for texts that are not given, auto chooses stop words, tokens, df bounds "
        "and tf by the first documents; plain takes the defaults named here.  [default: auto, or "
        "plain with --paper]",
    ),
)


def text_options_of(options: dict[str, Any]) -> Any:
    """The `TextOptions` of the command line."""
    from gmkcf_dask.corpus import TextOptions

    words, file = options["stop_words"], options["stop_words_file"]
    if words is not None and file is not None:
        raise InputError("--stop-words and --stop-words-file are both given: choose one")
    names = TextOptions.__dataclass_fields__
    if options.get("paper") and options.get("preset") is None:
        options = options | {"preset": "plain"}
    values = {name: options[name] for name in names if options.get(name) is not None}
    values["lowercase"] = not options["keep_case"]
    if file is not None:
        values["stop_words"] = _words_in(file)
    elif words == "none":
        values["stop_words"] = None
    return TextOptions(**values)


def _words_in(path: Path) -> tuple[str, ...]:
    try:
        size = path.stat().st_size
        lines = path.read_text("utf-8-sig").splitlines() if size <= _MOST_STOP_WORDS else None
    except (OSError, ValueError) as error:
        cause = getattr(error, "strerror", None) or "it is not UTF-8"
        raise InputError(f"{path} cannot be read as stop words ({cause}): give another") from error
    if lines is None:
        raise InputError(f"{path} is too large for a list of stop words: give another file")
    return tuple(word for line in lines if (word := line.strip()))


_OTHER_NAMES = {"stop_words_file": "stop_words", "keep_case": "lowercase"}
"""Options whose name is not that of the `TextOptions` they set."""


def options_of_store(store: Path, options: dict[str, Any]) -> dict[str, Any]:
    """Options that are not given, as a store was made that is there already.

    So `gmkcf build INPUT STORE` finishes or repairs a store whatever options it was made with.
    """
    from dataclasses import replace

    from gmkcf_dask.corpus.text_options import CHOSEN
    from gmkcf_dask.store.kernel_store import KernelStore, is_store
    from gmkcf_dask.store.manifest import Manifest

    if not is_store(store):
        return options
    context, manifest = click.get_current_context(), Manifest.read(store)
    default = click.core.ParameterSource.DEFAULT
    given = {name for name in options if context.get_parameter_source(name) != default}
    shared = [kernel for kernel in manifest.kernels if kernel.name in manifest.formulas]
    own = [name for name in manifest.names if name not in manifest.formulas]
    own += [record.name for record in manifest.factored if record.kind == "given"]
    if own and "kernels" not in given:
        raise InputError(
            f"{store} has kernels that were passed in from Python ({', '.join(own)}): run the same "
            "build from Python again, it repairs the store"
        )
    made: dict[str, Any] = {
        "precision": manifest.precision,
        "merge_duplicates": manifest.merge_tolerance,
    }
    if manifest.factor_options is not None:
        made["max_clusters"] = manifest.factor_options.max_clusters
        made["kernels"] = ",".join(manifest.kernel_names)
    if shared:
        made["kernels"] = ",".join(manifest.kernel_names)
        made |= {name: getattr(shared[0], name) for name in ("normalization", "scaling")}
    merged = options | {name: value for name, value in made.items() if name not in given}
    stored = manifest.text_options
    if stored is None and manifest.inputs.get("reading") is not None:  # of an earlier format
        with suppress(DamagedStoreError):
            reading = KernelStore(store, manifest).reading()
            stored = None if reading is None else reading.options
    if stored is not None:
        typed = text_options_of(options)
        names = {_OTHER_NAMES.get(name, name) for name in given}
        names |= CHOSEN if "preset" in names else set()
        names &= {*typed.__dataclass_fields__}
        merged["text"] = replace(stored, **{name: getattr(typed, name) for name in names})
    return merged


def request_of(
    input_path: str, options: dict[str, Any], listen: Any, disk_free: int | None = None
) -> Any:
    """INPUT with the kernels to compute.

    Samples are counted before they are read: if `disk_free`, the bytes free for kernels, is too
    small for so many, the error comes at once.
    """
    from gmkcf_dask.compute.plan import refuse_by_count
    from gmkcf_dask.corpus import read_corpus, refuse_equal_rows, warn_about_zero_rows
    from gmkcf_dask.corpus.read import count_samples
    from gmkcf_dask.kernels.specs import TileSpec, resolve_kernels
    from gmkcf_dask.store.request import MAX_CLUSTERS, KernelRequest

    specs = resolve_kernels(with_defaults(options)["kernels"])
    text = options.get("text") or text_options_of(options)
    if disk_free is not None:
        n = count_samples(input_path, text)
        tiled = sum(isinstance(spec, TileSpec) for spec in specs)
        refuse_by_count(n or 0, tiled, options["precision"], disk_free)
    with reading_runner(input_path, options) as runner:
        corpus = read_corpus(input_path, text=text, runner=runner, listen=listen)
    refuse_equal_rows(corpus.X)
    if corpus.reading is None:  # else reading has warned, by name
        warn_about_zero_rows(corpus.X)
    names = ("normalization", "scaling", "precision", "block", "merge_duplicates")
    most = options["max_clusters"] or max(MAX_CLUSTERS, options.get("n_clusters") or 0)
    given = {name: options[name] for name in names}
    return KernelRequest(corpus, specs, **given, max_clusters=most)


def check_samples(check: Callable[[int], T], n_samples: int, input_path: str) -> T:
    """Check a number of samples; an error says where a file was given instead of a corpus."""
    try:
        return check(n_samples)
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

    with suppress(OSError, ValueError):  # a store
        texts = text_files(input_path)
        return texts is not None and not texts.tables and len(texts.files) == 1
    return False


@contextmanager
def reading_runner(input_path: str, options: dict[str, Any]) -> Iterator[Any]:
    """Where texts are taken apart: large ones by worker processes of this machine.

    Python reads words with one core of a process. What the cluster options name is opened later,
    when the number of samples is known; `--cluster threads` asks for no processes at all.
    """
    from gmkcf_dask.cluster import local_cluster
    from gmkcf_dask.compute.blas import own_cores
    from gmkcf_dask.compute.runner import Runner

    config = options["cluster_config"]
    workers = (config.workers if config.where in ("", "local") else None) or own_cores()
    if config.where == "threads" or workers < 2 or _text_bytes(input_path) < PROCESSES_FROM:
        yield None
        return
    with local_cluster(workers) as client:
        yield Runner(client)


def _text_bytes(input_path: str) -> int:
    """Bytes of texts on disk; 0 for a matrix, and for wrong input, which reading reports."""
    from gmkcf_dask.corpus.folders import text_files

    with suppress(OSError, ValueError):
        texts = text_files(input_path)
        return 0 if texts is None else texts.size
    return 0
