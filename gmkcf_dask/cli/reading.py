"""INPUT as the commands read it: options for texts and kernels."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gmkcf_dask.cli.options import COUNT, FILE, FactorFiles, options_in_a_row, with_defaults
from gmkcf_dask.errors import DamagedStoreError, InputError
from gmkcf_dask.system.units import MIB

if TYPE_CHECKING:
    from gmkcf_dask.pipeline import InputOptions

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
        help="Words to leave out.  [default: by the text preset; plain: none]",
    ),
    click.option(
        "--stop-words-file", type=FILE, help="Words to leave out, one per line.  [default: none]"
    ),
    click.option(
        "--tokens",
        type=click.Choice(["words", "chars"]),
        help="What terms are made of; chars for scripts without spaces, such as Chinese.  "
        "[default: by the text preset; plain: words]",
    ),
    click.option(
        "--ngrams",
        type=click.IntRange(min=1, max=10),
        help="Up to so many tokens in a row make a term.  [default: 1 word, 2 to 3 chars]",
    ),
    click.option(
        "--min-df",
        type=COUNT,
        help="Documents a word must appear in.  [default: by the text preset; plain: 2, 1 below 50 "
        "documents]",
    ),
    click.option(
        "--max-df",
        callback=_documents,
        metavar="COUNT|SHARE",
        help="Documents a word may appear in; with a point a share of them.  [default: by "
        "the text preset; plain: 1.0]",
    ),
    click.option("--max-features", type=COUNT, help="Keep this many words only.  [default: all]"),
    click.option(
        "--sublinear-tf/--no-sublinear-tf",
        default=None,
        help="Count words as 1 + log(count).  [default: by the text preset; plain: no]",
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
        "and tf by the first documents; plain takes what is named so here.  [default: auto, or "
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
    shared: list[Any] = [k for k in manifest.kernels if k.name in manifest.formulas]
    own = [name for name in manifest.names if name not in manifest.formulas]
    given_factors = [record.name for record in manifest.factored if record.kind == "given"]
    only_factors = not own and len(given_factors) == len(manifest.kernel_names)
    own += [] if only_factors else given_factors
    if own and "kernels" not in given:
        raise InputError(
            f"{store} has kernels that were passed in from Python ({', '.join(own)}): run the same "
            "build from Python again, it repairs the store"
        )
    made: dict[str, Any] = {
        "precision": manifest.precision,
        "layout": manifest.layout,
        "merge_duplicates": manifest.merge_tolerance,
    }
    if manifest.factor_options is not None:
        made["max_clusters"] = manifest.factor_options.max_clusters
        made["kernels"] = FACTORED if only_factors else ",".join(manifest.kernel_names)
    shared += [record for record in manifest.factored if record.normalization is not None]
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


def input_options(input_path: str, options: dict[str, Any]) -> InputOptions:
    """INPUT and its kernels as the options of a command describe them."""
    from gmkcf_dask.kernels.specs import resolve_kernels
    from gmkcf_dask.pipeline import InputOptions
    from gmkcf_dask.store.request import MAX_CLUSTERS

    options = with_defaults(options)
    kernels = options["kernels"]
    if kernels != FACTORED and isinstance(input_path, FactorFiles):
        raise InputError(
            f"NAME=FILE gives factors ({input_path}): add --kernels factored, or give one INPUT"
        )
    names = ("normalization", "scaling", "precision", "layout", "block", "merge_duplicates")
    return InputOptions(
        input_path,
        () if kernels == FACTORED else resolve_kernels(kernels),
        options.get("text") or text_options_of(options),
        **{name: options[name] for name in names},
        max_clusters=options["max_clusters"] or max(MAX_CLUSTERS, options.get("n_clusters") or 0),
        factors=factor_files(input_path) if kernels == FACTORED else None,
    )


FACTORED = "factored"


def factor_files(input_path: str) -> dict[str, str]:
    """Files of factors by name; a single one is called as in Python."""
    return input_path.files if isinstance(input_path, FactorFiles) else {"factor_0": input_path}
