"""`gmkcf suggest-k`: choose the number of clusters."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from gmkcf_dask.cli.commands import main
from gmkcf_dask.cli.options import (
    Location,
    cluster_options,
    force_option,
    kernel_making_options,
    kernels_option,
    one_or_named,
    paper_option,
    with_defaults,
)
from gmkcf_dask.cli.output import add_result, current_output, echo, output_options
from gmkcf_dask.cli.paper import refuse_other_kernels
from gmkcf_dask.cli.progress import show_progress
from gmkcf_dask.cli.reading import input_options, text_options
from gmkcf_dask.cli.signals import interruptible
from gmkcf_dask.errors import InputError
from gmkcf_dask.methods.defaults import DEFAULT_KERNELS

SUGGESTION, PICTURE = "suggest_k.json", "suggest_k.png"
MOST_KS = 1000
_STAGES = ("reading", "statistics", "write", "suggest")


@main.command("suggest-k")
@click.argument("given", metavar="STORE_OR_INPUT", nargs=-1, required=True, callback=one_or_named)
@click.option("--ks", default="2-15", help="Numbers to choose from: 2-12, or 2,3,5,8, or both.")
@click.option("--restarts", type=int, default=5, help="Runs for every k, at least 2.")
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Seed of all randomness.")
@click.option(
    "--weights-of",
    type=Location(),
    metavar="RUN",
    help="Fuse the kernels with the weights that a run of gmkcf learned.  [default: equal weights]",
)
@click.option(
    "--out",
    type=Location(),
    help=f"Folder for {SUGGESTION} and, with the extra [plot], {PICTURE}.  [default: table only]",
)
@click.option(
    "--store",
    type=Location(),
    help="INPUT: build the kernels here, or use them again.  [default: in memory]",
)
@force_option
@paper_option
@kernels_option(DEFAULT_KERNELS)
@kernel_making_options
@text_options
@cluster_options
@output_options
def suggest_k(
    given: str,
    ks: str,
    restarts: int,
    seed: int,
    weights_of: Path | None,
    out: Path | None,
    store: Path | None,
    **options: Any,
) -> None:
    """Suggest a number of clusters for a finished STORE, or for INPUT.

    All ks share every pass over the kernels, but for dense tables, whose kernels depend on k.
    Each has an eigengap, a stability over restarts and a silhouette. The kernel options are for
    INPUT; a store has its own.
    """
    from gmkcf_dask.methods.select_k import suggest, validate_restarts
    from gmkcf_dask.store.files import check_writable

    numbers = parse_ks(ks)
    validate_restarts(restarts)
    weights = None if weights_of is None else _learned_weights(weights_of)
    if out is not None:
        check_writable(out, "the suggestion")
    assign = with_defaults(options)["assign"]
    with _kernels(given, numbers, restarts, store, options) as (stack, stack_of, listen):
        suggestion = suggest(
            stack, numbers, n_restarts=restarts, seed=seed, weights=weights, assign=assign,
            stack_of=stack_of, listen=listen,
        )  # fmt: skip
    add_result(**suggestion.as_json())
    for line in suggestion.lines():
        click.echo(line)
    current_output().answer(str(suggestion.k))
    if out is not None:
        _write(out, suggestion, given, {"restarts": restarts, "seed": seed})


def parse_ks(text: str) -> range | tuple[int, ...]:
    """Ks as they are typed: a range, a list, or both.

    >>> parse_ks("2-5"), parse_ks("2,3, 8-10")
    (range(2, 6), (2, 3, 8, 9, 10))
    """
    ks: list[int] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = re.fullmatch(r"(\d{1,9})(?:\s*-\s*(\d{1,9}))?", part, re.ASCII)
        if match is None:
            raise InputError(f"--ks has {part!r}: give whole numbers such as 2-12, or 2,3,5,8")
        first, last = int(match[1]), int(match[2] or match[1])
        if first > last:
            raise InputError(f"--ks has {part!r}, an empty range: give the smaller number first")
        if len(ks) + last - first >= MOST_KS:
            raise InputError(f"--ks names more than {MOST_KS} numbers: choose from fewer")
        if part == text.strip() and match[2]:
            return range(first, last + 1)
        ks.extend(range(first, last + 1))
    return tuple(ks)


@contextmanager
def _kernels(
    given: str, ks: Iterable[int], restarts: int, store: Path | None, options: dict[str, Any]
) -> Iterator[tuple[Any, Any, Any]]:
    """The kernels of a store, or of input, in a store or in memory; and a listener.

    In the middle is what makes them for other ks, where they are not the same for all.
    """
    from gmkcf_dask import pipeline
    from gmkcf_dask.cli.cluster import CommandCluster
    from gmkcf_dask.methods.select_k import suggestion_job, validate_ks
    from gmkcf_dask.pipeline.kernels_by_k import memory_kernels_by_k, stored_kernels_by_k
    from gmkcf_dask.pipeline.wordless import documents_with_words, only
    from gmkcf_dask.store.build import look_up
    from gmkcf_dask.store.kernel_store import KernelStore
    from gmkcf_dask.store.manifest import has_kernels, is_own_format
    from gmkcf_dask.store.object_storage import location

    path = location(given)
    with CommandCluster(options) as cluster:
        if is_own_format(path) or has_kernels(path):
            if store is not None:
                raise InputError(f"{given} is already a store: --store is for kernels of INPUT")
            opened = KernelStore.open(path)
            if options["paper"]:
                refuse_other_kernels(opened)
            numbers = validate_ks(ks, opened.n_samples)
            job = suggestion_job(numbers, opened.n_samples, restarts)
            resources, plan = pipeline.plan_fit_and_start(opened, max(numbers), cluster, job)
            with show_progress(*_STAGES[-1:]) as listen:
                stack = pipeline.stored_kernels(opened, plan, resources)
                stack_of = stored_kernels_by_k(opened, plan, resources, stack)
                yield only(stack, documents_with_words(opened)), stack_of, interruptible(listen)
            return

        wanted = input_options(given, options)
        with show_progress(*_STAGES) as listen:
            room = None if store is None else pipeline.disk_to_fill(store)
            request = pipeline.read_request(wanted, cluster, listen, room)
        with pipeline.single_text_in_errors(given, request.n_samples):
            numbers = validate_ks(ks, request.n_samples)
        job = suggestion_job(numbers, request.n_samples, restarts)
        if options["max_clusters"] is None:
            request = request.for_clusters(max(numbers))
        if store is None:
            with show_progress() as listen:
                made = pipeline.memory_kernels(request, max(numbers), listen, job)
                stack = only(made.stack, documents_with_words(request))
                yield stack, memory_kernels_by_k(request, made), interruptible(listen)
            return
        place = look_up(store, request)
        resources, plan = pipeline.plan_and_start(request, max(numbers), cluster, place, job=job)
        with show_progress() as listen:
            opened = pipeline.build(place, request, plan, resources, listen, force=options["force"])
            stack = pipeline.stored_kernels(opened, plan, resources)
            stack_of = stored_kernels_by_k(opened, plan, resources, stack)
            yield only(stack, documents_with_words(opened)), stack_of, interruptible(listen)


def _learned_weights(run: Path) -> Mapping[str, float]:
    from gmkcf_dask.results.run_folder import read_result

    result = read_result(run)
    if result.method != "gmkcf":
        raise InputError(f"{run} is not a run of gmkcf: only gmkcf learns weights for K_w")
    return result.kernel_weights


def _write(out: Path, suggestion: Any, given: str, about: dict[str, Any]) -> None:
    from gmkcf_dask.errors import redacted_tree
    from gmkcf_dask.results.plots.select_k import can_draw, draw_suggestion
    from gmkcf_dask.store.files import make_folder, put_atomic

    make_folder(out, "the suggestion")
    content = {**suggestion.as_json(), "input": given, **about}
    put_atomic(out / SUGGESTION, json.dumps(redacted_tree(content), indent=1).encode())
    written = [SUGGESTION]
    if can_draw():
        put_atomic(out / PICTURE, draw_suggestion(suggestion))
        written.append(PICTURE)
    else:
        click.echo(f"{PICTURE} needs the extra [plot]: pip install 'gmkcf-dask[plot]'")
    echo(f"written: {', '.join(written)} in {shlex.quote(str(out))}")
