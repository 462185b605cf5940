"""What clusters mean: insight and report of a run, when it is fitted and again later."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from gmkcf_dask.cluster import Resources
from gmkcf_dask.errors import DamagedStoreError, InputError
from gmkcf_dask.events import Listener, ignore
from gmkcf_dask.pipeline.kernels import stored_kernels
from gmkcf_dask.pipeline.planning import store_plan
from gmkcf_dask.results.finished_run import model_of_run, store_of_run
from gmkcf_dask.results.insight import About, Samples, explain
from gmkcf_dask.results.report.render import write_report
from gmkcf_dask.results.run_folder import (
    INSIGHT,
    REPORT,
    read_insight,
    read_result,
    sweep_run,
    write_insight,
    write_result,
)
from gmkcf_dask.results.schemas import Insight, RunResult
from gmkcf_dask.store.files import exists, remove
from gmkcf_dask.store.kernel_store import KernelStore
from gmkcf_dask.store.lock import owning

if TYPE_CHECKING:
    from gmkcf_dask.pipeline.fitting import FitOptions


def store_samples(store: KernelStore) -> tuple[Samples, list[str]]:
    """The descriptions of samples in a store, and one sentence for each that is damaged.

    Damaged ids are refused: labels without ids are of no use.
    """
    damaged = store.damaged_descriptions()
    if "ids" in damaged:
        raise DamagedStoreError(damaged["ids"])

    def strings(what: str) -> tuple[str, ...] | None:
        return None if what in damaged else store.strings(what)

    texts = "reading" in damaged or store.reading() is not None
    samples = Samples(
        store.ids,
        store.features() if store.manifest.n_features else None,
        strings("terms"),
        strings("titles"),
        strings("excerpts"),
        strings("labels"),
        texts=texts or None,
    )
    return samples, [f"the report goes without {what}: {why}" for what, why in damaged.items()]


def add_insight(folder: Path, insight: Insight, result: RunResult) -> RunResult:
    """Write insight.json and report.html into a run folder; returns result.json with its part."""
    documents = insight.documents
    names = documents.titles or documents.ids
    clusters = [
        structs.replace(
            entry,
            cohesion=cluster.cohesion,
            central=[names[j] or documents.ids[j] for j in cluster.central[:1]],
        )
        for entry, cluster in zip(result.clusters, insight.clusters, strict=True)
    ]
    result = structs.replace(result, clusters=clusters, what=insight.what, seconds=insight.seconds)
    write_insight(folder, insight)
    write_report(folder, insight)
    write_result(folder, result)
    return result


def store_name(store: Path) -> str:
    """What a person calls a store: its own name, or that of the run it was made in."""
    return store.stem if store.stem != "store" else store.parent.name


def finish_reports(
    options: FitOptions, store: KernelStore | None, resources: Resources, listen: Listener = ignore
) -> list[Path]:
    """Write the reports that a finished run lacks; returns the folders that got one."""
    insights = {folder: _usable_insight(folder) for folder in options.folders}
    lacking = [f for f, insight in insights.items() if insight is None or not exists(f / REPORT)]
    if not lacking:
        return []
    title = options.title or (None if store is None else store_name(store.path))
    with owning(options.out):
        for folder in lacking:
            sweep_run(folder)
            insight = insights[folder]
            if insight is None:
                remove(folder / INSIGHT)  # where it is damaged
                insight = explain_again(folder, resources, listen, options.command, title)
            add_insight(folder, insight, read_result(folder))
    return lacking


def _usable_insight(folder: Path) -> Insight | None:
    """insight.json of a run; None where it is missing or damaged."""
    try:
        return read_insight(folder)
    except InputError:
        return None


def explain_again(
    run: Path,
    resources: Resources,
    listen: Listener = ignore,
    command: str | None = None,
    title: str | None = None,
) -> Insight:
    """insight.json of a run that was broken off before it was written, from its store."""
    model, result = model_of_run(run), read_result(run)
    store = store_of_run(result, run)
    plan = store_plan(store, model.method.n_clusters, resources)
    stack = stored_kernels(store, plan, resources)
    samples, missing = store_samples(store)
    notes = [*result.warnings, *missing]
    about = About(title or run.name, command, result.seconds, result.bytes.shown(), notes)
    return explain(stack, model.method, model.clustering, samples, about, listen=listen)
