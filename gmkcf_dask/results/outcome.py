"""From a clustering to what its run folder says: result.json, and what the clusters mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from gmkcf_dask.cluster import Resources
from gmkcf_dask.engine.operators import KernelStack
from gmkcf_dask.errors import GmkcfError
from gmkcf_dask.events import Listener
from gmkcf_dask.files import resolved
from gmkcf_dask.graph import in_short
from gmkcf_dask.kernels.manifest import package_versions
from gmkcf_dask.kernels.store import KernelStore
from gmkcf_dask.methods.base import Clustering, Method
from gmkcf_dask.plan import Plan
from gmkcf_dask.redact import redacted
from gmkcf_dask.results.insight import About, Samples, explain
from gmkcf_dask.results.meaning import Profile, cluster_terms
from gmkcf_dask.results.report import write_report
from gmkcf_dask.results.run import write_insight, write_result
from gmkcf_dask.results.stopwatch import Stopwatch


def run_result(
    store: KernelStore, method: Method, found: Clustering, plan: Plan, resources: Resources
) -> dict[str, Any]:
    """What result.json says about one clustering of a store."""
    return {
        "method": method.name,
        "parameters": asdict(method),  # type: ignore[call-overload]
        "kernel": found.kernel,
        "seed": found.seed,
        "store": str(resolved(store.path)),
        "n_samples": store.n_samples,
        "precision": store.manifest.precision,
        "block_size": store.manifest.block_size,
        "kernels": [asdict(kernel) for kernel in store.manifest.kernels],
        "kernel_weights": dict(zip(found.kernel_names, found.weights.tolist(), strict=True)),
        "weights_history": found.weights_history.tolist(),
        "objective_history": list(found.history),
        "n_iter": found.n_iter,
        "converged": found.converged,
        "runs": [asdict(run) for run in found.runs],
        "bytes": {
            "stored": store.stored_bytes(),
            "touched_per_iteration": plan.read_per_iteration if method.name == "gmkcf" else None,
            "planned_worker_peak": plan.worker_peak_bytes,
            "worker_peaks": list(resources.worker_peaks().values()),
        },
        "plan": asdict(plan),
        "versions": package_versions(),
    }


def store_samples(store: KernelStore) -> Samples:
    """What a store knows of its samples."""
    return Samples(
        store.ids,
        store.features() if store.manifest.n_features else None,
        store.strings("terms"),
        store.strings("titles"),
        store.strings("excerpts"),
        store.strings("labels"),
        texts=store.reading() is not None or None,
    )


def cluster_entries(
    found: Clustering,
    n_clusters: int,
    profile: Profile | None,
    terms: Sequence[str] | None,
    texts: bool | None = None,
) -> list[dict[str, Any]]:
    """Size and most telling terms of every cluster, for result.json."""
    named = cluster_terms(profile, None if terms is None else tuple(terms), texts)
    sizes = [int((found.labels == c).sum()) for c in range(n_clusters)]
    return [
        {"label": c, "size": size, "terms": [t.in_words for t in named[c]] if named else []}
        for c, size in enumerate(sizes)
    ]


def result_bytes(result: dict[str, Any]) -> dict[str, int]:
    """Sizes of a run as a report shows them."""
    held = dict(result["bytes"])
    peaks = held.pop("worker_peaks")
    largest = {"largest_worker_peak": max(peaks)} if peaks else {}
    return {name: int(value) for name, value in held.items() if value is not None} | largest


def add_insight(folder: Path, insight: dict[str, Any], result: dict[str, Any]) -> None:
    """Write what clusters mean beside a finished run, as data and as a page, and the short of it
    into its result.json."""
    documents = insight["documents"]
    names = documents["titles"] or documents["ids"]
    for entry, cluster in zip(result["clusters"], insight["clusters"], strict=True):
        entry["cohesion"] = cluster["cohesion"]
        entry["central"] = [names[j] or documents["ids"][j] for j in cluster["central"][:1]]
    result["seconds"] = insight["seconds"]
    write_insight(folder, insight)
    write_report(folder, insight)
    write_result(folder, result)


def explain_run(
    stack: KernelStack,
    method: Method,
    found: Clustering,
    samples: Samples,
    result: dict[str, Any],
    about: About,
    profile: Profile | None,
    listen: Listener,
    watch: Stopwatch,
) -> dict[str, Any] | None:
    """What `explain` gives for a run that is written already.

    Nothing that goes wrong here may cost its labels: it becomes a warning of the result, and None.
    """
    how = replace(
        about, seconds=watch.seconds, bytes=result_bytes(result), warnings=result["warnings"]
    )
    try:
        insight: dict[str, Any] = watch.time(
            "insight",
            lambda: explain(stack, method, found, samples, how, profile=profile, listen=listen),
        )
    except (GmkcfError, OSError, ArithmeticError, MemoryError, np.linalg.LinAlgError) as error:
        result["warnings"].append(
            "the clusters are found, but what they mean could not be worked out: "
            f"{redacted(in_short(error)) or type(error).__name__}"
        )
        return None
    insight["seconds"] = watch.rounded()
    return insight


def store_name(store: Path) -> str:
    """What a person calls a store: its own name, or that of the run it was made in."""
    return store.stem if store.stem != "store" else store.parent.name
