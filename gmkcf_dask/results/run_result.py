"""From a clustering to its run folder: result.json, and what the clusters mean."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import structs

from gmkcf_dask.cluster import Resources
from gmkcf_dask.compute.operators import KernelStack
from gmkcf_dask.compute.plan import Plan
from gmkcf_dask.compute.runner import short_reason
from gmkcf_dask.errors import DamagedStoreError, GmkcfError, redacted
from gmkcf_dask.events import Listener
from gmkcf_dask.methods.base import Clustering, Method
from gmkcf_dask.results.cluster_terms import Profile, cluster_terms
from gmkcf_dask.results.insight import About, Samples, explain
from gmkcf_dask.results.report.render import write_report
from gmkcf_dask.results.run_folder import write_insight, write_result
from gmkcf_dask.results.schemas import ClusterEntry, Insight, RunBytes, RunResult
from gmkcf_dask.store.files import resolved
from gmkcf_dask.store.kernel_store import KernelStore
from gmkcf_dask.store.manifest import package_versions


@dataclass(frozen=True)
class Stopwatch:
    """Seconds by stage."""

    seconds: dict[str, float]

    def time(self, stage: str, work: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        try:
            return work()
        finally:
            elapsed = time.perf_counter() - start
            self.seconds[stage] = self.seconds.get(stage, 0.0) + elapsed

    def rounded(self) -> dict[str, float]:
        """To milliseconds."""
        return {stage: round(value, 3) for stage, value in self.seconds.items()}


def run_result(
    store: KernelStore,
    method: Method,
    clustering: Clustering,
    plan: Plan,
    resources: Resources,
    *,
    fingerprint: Mapping[str, Any],
    escaped_ids: bool,
    clusters: list[ClusterEntry],
    warnings: list[str],
    seconds: dict[str, float],
) -> RunResult:
    """What result.json says about one clustering of a store."""
    names = clustering.kernel_names
    return RunResult(
        method=method.name,
        parameters=asdict(method),  # type: ignore[call-overload]
        kernel=clustering.kernel,
        seed=clustering.seed,
        store=str(resolved(store.path)),
        n_samples=store.n_samples,
        precision=store.manifest.precision,
        block_size=store.manifest.block_size,
        kernels=list(store.manifest.kernels),
        kernel_weights=dict(zip(names, clustering.weights.tolist(), strict=True)),
        weights_history=clustering.weights_history.tolist(),
        objective_history=list(clustering.history),
        n_iter=clustering.n_iter,
        converged=clustering.converged,
        runs=list(clustering.runs),
        bytes=RunBytes(
            stored=store.stored_bytes(),
            touched_per_iteration=plan.read_per_iteration if method.name == "gmkcf" else None,
            planned_worker_peak=plan.worker_peak_bytes,
            worker_peaks=list(resources.worker_peaks().values()),
        ),
        plan=asdict(plan),
        versions=package_versions(),
        fingerprint=dict(fingerprint),
        escaped_ids=escaped_ids,
        clusters=clusters,
        warnings=warnings,
        seconds=seconds,
    )


def store_samples(store: KernelStore) -> tuple[Samples, list[str]]:
    """The descriptions of samples in a store, and one sentence for each that is damaged.

    Raises
    ------
    DamagedStoreError
        The ids are damaged: labels without ids are of no use.
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


def cluster_entries(
    clustering: Clustering,
    n_clusters: int,
    profile: Profile | None,
    terms: Sequence[str] | None,
    texts: bool | None = None,
) -> list[ClusterEntry]:
    """Size and most telling terms of every cluster, for result.json."""
    named = cluster_terms(profile, None if terms is None else tuple(terms), texts)
    return [
        ClusterEntry(
            label=c,
            size=int((clustering.labels == c).sum()),
            terms=[term.in_words for term in named[c]] if named else [],
        )
        for c in range(n_clusters)
    ]


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
    result = structs.replace(result, clusters=clusters, seconds=insight.seconds)
    write_insight(folder, insight)
    write_report(folder, insight)
    write_result(folder, result)
    return result


def explain_run(
    stack: KernelStack,
    method: Method,
    clustering: Clustering,
    samples: Samples,
    result: RunResult,
    about: About,
    profile: Profile | None,
    listen: Listener,
    watch: Stopwatch,
) -> Insight | None:
    """What `explain` gives for a run that is written already.

    An error here must not cost the labels: it becomes a warning of the result, and None.
    """
    about = replace(
        about, seconds=watch.seconds, bytes=result.bytes.shown(), warnings=result.warnings
    )
    try:
        insight: Insight = watch.time(
            "insight",
            lambda: explain(
                stack, method, clustering, samples, about, profile=profile, listen=listen
            ),
        )
    except (GmkcfError, OSError, ArithmeticError, MemoryError, np.linalg.LinAlgError) as error:
        result.warnings.append(
            "the clusters are written, but what they mean could not be worked out: "
            f"{redacted(short_reason(error)) or type(error).__name__}"
        )
        return None
    return structs.replace(insight, seconds=watch.rounded())


def store_name(store: Path) -> str:
    """What a person calls a store: its own name, or that of the run it was made in."""
    return store.stem if store.stem != "store" else store.parent.name
