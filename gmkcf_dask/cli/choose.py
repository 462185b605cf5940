"""`gmkcf suggest-k`: how many clusters there are, before they are looked for."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import click

from gmkcf_dask.cli.commands import main
from gmkcf_dask.cli.options import (
    Location,
    cluster_options,
    force_option,
    kernel_options,
    open_place,
)
from gmkcf_dask.cli.reading import check_samples, request_of, text_options
from gmkcf_dask.cli.signals import or_interrupt
from gmkcf_dask.cli.watching import (
    reading,
    showing_notes,
    tell,
    the_voice,
    watch_options,
    watching,
)
from gmkcf_dask.errors import InputError

SUGGESTION, PICTURE = "suggest_k.json", "suggest_k.png"
MOST_KS = 1000
_STAGES = ("reading", "statistics", "write", "suggest")


@main.command("suggest-k")
@click.argument("given", metavar="STORE_OR_INPUT")
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
@kernel_options
@text_options
@cluster_options
@watch_options
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
    """Suggest a number of clusters for a finished STORE, or for INPUT, and say how sure it is.

    Several ks share every pass over the kernels; each has an eigengap, a stability over restarts
    and a silhouette. The kernel options are for INPUT; a store has its own.
    """
    from gmkcf_dask import choosing
    from gmkcf_dask.files import check_writable

    choice = choosing.Choice(parse_ks(ks))
    weights = None if weights_of is None else _learned_weights(weights_of)
    if out is not None:
        check_writable(out, "the suggestion")
    how: dict[str, Any] = {"n_restarts": restarts, "seed": seed, "weights": weights}
    found = _suggest(given, choice, store, how, options)
    tell(**found.as_json())
    for line in found.lines():
        click.echo(line)
    the_voice().answer(str(found.k))
    if out is not None:
        _write(out, found, given, {"restarts": restarts, "seed": seed})


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
            raise InputError(f"--ks has {part!r}, which is empty: give the smaller number first")
        if len(ks) + last - first >= MOST_KS:
            raise InputError(f"--ks names more than {MOST_KS} numbers: choose from fewer")
        if part == text.strip() and match[2]:
            return range(first, last + 1)
        ks.extend(range(first, last + 1))
    return tuple(ks)


def _suggest(
    given: str, choice: Any, store: Path | None, how: dict[str, Any], options: dict[str, Any]
) -> Any:
    """From a store, or from input by way of one or in memory."""
    from gmkcf_dask import choosing, workflow
    from gmkcf_dask.kernels.manifest import is_own_format
    from gmkcf_dask.kernels.store import KernelStore
    from gmkcf_dask.locations import location

    path = location(given)
    request = None
    if is_own_format(path):
        if store is not None:
            raise InputError(f"{given} is a store: --store is for kernels that are to be made")
        opened: Any = KernelStore.open(path)
        n = opened.n_samples
    else:
        with showing_notes():
            request = reading(partial(request_of, given, options), *_STAGES)
        n = request.n_samples
    check_samples(choice, n, given)
    if request is not None and store is None:
        with showing_notes(), watching() as listen:
            stack: Any = workflow.dense_kernels(request, listen)
            return choosing.suggest(stack, choice.ks, listen=or_interrupt(listen), **how)

    def planned(place: Any) -> Any:
        if request is None:
            return workflow.store_plan(opened, choice.n_clusters, place)
        return workflow.request_plan(request, choice.n_clusters, place, store)

    with (
        open_place(n, options, check=planned) as resources,
        showing_notes(),
        watching(*_STAGES[-1:]) as listen,
    ):
        plan = planned(resources)
        if request is not None:
            assert store is not None
            opened = workflow.build(store, request, plan, resources, listen, force=options["force"])
        stack = workflow.stored_kernels(opened, plan, resources)
        return choosing.suggest(stack, choice.ks, listen=or_interrupt(listen), **how)


def _learned_weights(run: Path) -> Mapping[str, float]:
    from gmkcf_dask.results.run import read_result

    result = read_result(run)
    if result.get("method") != "gmkcf":
        raise InputError(f"{run} is no run of gmkcf: only that learns weights for K_w")
    weights = result.get("kernel_weights")
    if not isinstance(weights, dict) or not all(
        isinstance(w, int | float) for w in weights.values()
    ):
        raise InputError(f"{run} does not say its kernel weights: run it again with --overwrite")
    return weights


def _write(out: Path, found: Any, given: str, about: dict[str, Any]) -> None:
    from gmkcf_dask.files import make_folder, put_atomic
    from gmkcf_dask.redact import redacted_tree
    from gmkcf_dask.results.k_picture import can_draw, draw_suggestion

    make_folder(out, "the suggestion")
    content = {**found.as_json(), "input": given, **about}
    put_atomic(out / SUGGESTION, json.dumps(redacted_tree(content), indent=1).encode())
    written = [SUGGESTION]
    if can_draw():
        put_atomic(out / PICTURE, draw_suggestion(found))
        written.append(PICTURE)
    else:
        click.echo("no picture: it needs the extra [plot] (pip install 'gmkcf-dask[plot]')")
    click.echo(f"written: {', '.join(written)} in {shlex.quote(str(out))}")
