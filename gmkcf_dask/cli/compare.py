"""`gmkcf compare`: all methods and both presets on the same kernels."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click

from gmkcf_dask.cli.commands import main
from gmkcf_dask.cli.options import (
    Location,
    cluster_options,
    clusters_option,
    force_option,
    kernel_making_options,
    raw_ids_option,
)
from gmkcf_dask.cli.output import add_result, echo, output_options
from gmkcf_dask.cli.progress import show_progress
from gmkcf_dask.cli.reading import input_options, text_options
from gmkcf_dask.cli.signals import interruptible
from gmkcf_dask.errors import InputError, PlanRefused

COMPARISON, PICTURE = "comparison.json", "comparison.png"
_STAGES = ("reading", "statistics", "write", "fit")


@main.command()
@click.argument("given", metavar="STORE_OR_INPUT")
@clusters_option
@click.option(
    "--methods",
    default="all",
    help="Comma-separated: gmkcf, kcf, kkm, sc, coreg, rmkkm, or all.",
)
@click.option(
    "--presets",
    default="local,paper",
    help="Comma-separated: local, the default kernels and settings; paper, those of the paper.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Seed of all randomness.")
@click.option(
    "--out",
    type=Location(),
    help=f"Folder for {COMPARISON}, labels_METHOD_PRESET.csv and, with the extra [plot], "
    f"{PICTURE}.  [default: tables only]",
)
@raw_ids_option
@click.option(
    "--store",
    type=Location(),
    help="INPUT: build the kernels here, or use them again.  [default: in memory]",
)
@force_option
@kernel_making_options
@text_options
@cluster_options
@output_options
def compare(
    given: str,
    n_clusters: int,
    methods: str,
    presets: str,
    seed: int,
    out: Path | None,
    store: Path | None,
    **options: Any,
) -> None:
    """Compare all methods and both presets on INPUT, or on a finished STORE.

    The kernels are built once. For each method and preset: size of the largest cluster, contrast of
    the clusters in the kernels of both presets, agreement with the others, and scores where labels
    are known. Texts are read once, in the same way for both presets.
    """
    from gmkcf_dask.pipeline.compare import check_methods, check_presets, compare_methods
    from gmkcf_dask.store.files import check_writable

    chosen = check_methods(None if methods == "all" else _names(methods))
    wanted = check_presets(_names(presets))
    if out is not None:
        check_writable(out, "the comparison")
    options |= {"n_clusters": n_clusters}
    with _kernels(given, chosen, wanted, store, options) as (data, listen):
        comparison = compare_methods(
            data.stack,
            wanted,
            chosen,
            n_clusters,
            seed,
            labels=data.labels,
            skipped=data.skipped,
            kept=data.kept,
            listen=listen,
        )
    add_result(**comparison.as_json())
    for line in comparison.lines():
        click.echo(line)
    if out is not None:
        _write(out, comparison, given, data.ids, raw_ids=options["raw_ids"])


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


@dataclass(frozen=True)
class _Data:
    """Kernels, and what is known of their samples."""

    stack: Any
    ids: tuple[str, ...]
    labels: tuple[str, ...] | None
    skipped: tuple[str, ...] = ()
    kept: Any = None


@contextmanager
def _kernels(
    given: str,
    methods: tuple[str, ...],
    presets: tuple[str, ...],
    store: Path | None,
    options: dict[str, Any],
) -> Iterator[tuple[_Data, Any]]:
    """The kernels of a store, or of input, in a store or in memory; and a listener."""
    from gmkcf_dask import pipeline
    from gmkcf_dask.cli.cluster import CommandCluster
    from gmkcf_dask.pipeline.compare import (
        check_clusters,
        comparison_job,
        kernels_of_presets,
        without_paper,
    )
    from gmkcf_dask.pipeline.wordless import documents_with_words
    from gmkcf_dask.store.build import look_up
    from gmkcf_dask.store.kernel_store import KernelStore
    from gmkcf_dask.store.manifest import has_kernels, is_own_format
    from gmkcf_dask.store.object_storage import location

    path, k = location(given), options["n_clusters"]
    with CommandCluster(options) as cluster:
        if is_own_format(path) or has_kernels(path):
            if store is not None:
                raise InputError(f"{given} is already a store: --store is for kernels of INPUT")
            opened = KernelStore.open(path)
            n = opened.n_samples
            check_clusters(methods, k, n)
            job = comparison_job(methods, presets, k, n)
            resources, plan = pipeline.plan_fit_and_start(opened, k, cluster, job)
            with show_progress(*_STAGES[-1:]) as listen:
                stack = pipeline.stored_kernels(opened, plan, resources)
                ids, kept = tuple(opened.ids), documents_with_words(opened)
                data = _Data(stack, ids, opened.strings("labels"), kept=kept)
                yield data, interruptible(listen)
            return

        options |= {"kernels": kernels_of_presets(presets), "paper": False}
        # the local preset goes on where there is no room for the kernels of the paper
        wanted = input_options(given, options)
        with show_progress(*_STAGES) as listen:
            request = pipeline.read_request(wanted, cluster, listen)
        n = request.n_samples
        with pipeline.single_text_in_errors(given, n):
            check_clusters(methods, k, n)
        job = comparison_job(methods, presets, k, n)
        assert request.corpus is not None
        described = partial(
            _Data,
            ids=request.corpus.ids,
            labels=request.corpus.labels,
            kept=documents_with_words(request),
        )
        skipped: tuple[str, ...] = ()
        if store is None:
            with show_progress() as listen:
                try:
                    made = pipeline.memory_kernels(request, k, listen, job)
                except PlanRefused as error:
                    request, skipped = without_paper(request, error)
                    made = pipeline.memory_kernels(request, k, listen, job)
                yield described(made.stack, skipped=skipped), interruptible(listen)
            return
        place = look_up(store, request)
        try:
            resources, plan = pipeline.plan_and_start(request, k, cluster, place, job=job)
        except PlanRefused as error:
            request, skipped = without_paper(request, error)
            place = look_up(store, request)
            resources, plan = pipeline.plan_and_start(request, k, cluster, place, job=job)
        with show_progress() as listen:
            built = pipeline.build(place, request, plan, resources, listen, force=options["force"])
            stack = pipeline.stored_kernels(built, plan, resources)
            yield described(stack, skipped=skipped), interruptible(listen)


def _write(out: Path, comparison: Any, given: str, ids: tuple[str, ...], *, raw_ids: bool) -> None:
    from gmkcf_dask.errors import redacted_tree
    from gmkcf_dask.results.csv_cells import csv_lines, escaped_cell
    from gmkcf_dask.results.plots.select_k import can_draw
    from gmkcf_dask.store.files import make_folder, put_atomic

    make_folder(out, "the comparison")
    cells = list(ids) if raw_ids else [escaped_cell(name) for name in ids]
    for name, labels in comparison.labels.items():
        text = csv_lines([["id", "label"], *zip(cells, labels.tolist(), strict=True)])
        put_atomic(out / f"labels_{name}.csv", text.encode())
    content = {**comparison.as_json(), "input": given}
    put_atomic(out / COMPARISON, json.dumps(redacted_tree(content), indent=1).encode())
    written = [COMPARISON, f"{len(comparison.runs)} files labels_METHOD_PRESET.csv"]
    if can_draw():
        put_atomic(out / PICTURE, comparison.picture())
        written.insert(1, PICTURE)
    else:
        click.echo(f"{PICTURE} needs the extra [plot]: pip install 'gmkcf-dask[plot]'")
    echo(f"written: {', '.join(written)} in {shlex.quote(str(out))}")
