"""Fit a method on kernels, and write the run folders of a fit on a store."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import UNSET, structs

from gmkcf_dask.cluster import Resources
from gmkcf_dask.compute.costs import Job
from gmkcf_dask.compute.factor_plan import FactorPlan
from gmkcf_dask.compute.operators import KernelStack, refuse_extremes
from gmkcf_dask.compute.plan import Plan
from gmkcf_dask.compute.runner import short_reason
from gmkcf_dask.errors import DamagedStoreError, GmkcfError, redacted
from gmkcf_dask.events import Listener, ignore
from gmkcf_dask.methods.base import (
    MEAN,
    Clustering,
    Method,
    MultipleKernelMethod,
    SingleKernelMethod,
)
from gmkcf_dask.methods.checkpointing import NO_CHECKPOINTS, Checkpoints
from gmkcf_dask.methods.contrast import add_contrast
from gmkcf_dask.methods.members import NO_CLUSTER
from gmkcf_dask.pipeline.kernels import stored_kernels
from gmkcf_dask.pipeline.planning import job_of, store_plan
from gmkcf_dask.pipeline.reports import add_insight, store_name, store_samples
from gmkcf_dask.pipeline.wordless import Mask, documents_with_words, for_all, for_only, only
from gmkcf_dask.results.checkpoints import (
    FOLDER as CHECKPOINT,
    has_checkpoint,
    open_checkpoints,
    remove_checkpoints,
)
from gmkcf_dask.results.cluster_terms import Profile, cluster_terms, read_profile
from gmkcf_dask.results.insight import About, Samples, explain
from gmkcf_dask.results.run_folder import holds_run, remove_run, write_run
from gmkcf_dask.results.schemas import ClusterEntry, RunBytes, RunResult
from gmkcf_dask.results.serialize import jsonable
from gmkcf_dask.store.files import resolved
from gmkcf_dask.store.kernel_store import KernelStore
from gmkcf_dask.store.lock import owning
from gmkcf_dask.store.manifest import package_versions
from gmkcf_dask.store.request import KernelRequest


def fit(
    stack: KernelStack,
    method: Method,
    seeds: Sequence[int],
    kernels: Sequence[str] = (MEAN,),
    listen: Listener = ignore,
    checkpoints: Checkpoints = NO_CHECKPOINTS,
    kept: Mask | None = None,
) -> list[Clustering]:
    """Any method on any operator: one clustering per kernel (where it uses one) and seed.

    Each clustering is judged, for one product more: see `contrast`. Samples that are not `kept`
    take no part: see `wordless`.
    """
    stack, method = only(stack, kept), for_only(method, kept)
    refuse_extremes(stack)
    if isinstance(method, SingleKernelMethod):
        clusterings = method.fit(stack, seeds, kernels, listen, checkpoints)
    else:
        assert isinstance(method, MultipleKernelMethod)
        clusterings = method.fit(stack, seeds, listen, checkpoints)
    return [for_all(add_contrast(stack, method, clustering), kept) for clustering in clusterings]


def store_identity(store: KernelStore) -> dict[str, Any]:
    """What tells a store's kernels from those of any other."""
    m = store.manifest
    inputs = {f"content of {what}": digest for what, digest in m.inputs.items()}
    return {**m.content, **_kernels_identity(m.kernel_names, m.precision, m.block_size), **inputs}


def earlier_fingerprint(fingerprint: dict[str, Any], store: KernelStore) -> dict[str, Any]:
    """The same as 0.1.0 wrote it, whose fits have the same bits: a store is known by its id."""
    rest = {name: value for name, value in fingerprint.items() if name != "tiles"}
    return {**rest, "store": store.manifest.store_id, "gmkcf-dask": "0.1.0"}


def request_identity(request: KernelRequest, block: int) -> dict[str, Any]:
    """The same for kernels in memory; a function is known by its name only."""
    inputs = {f"content of {what}": digest for what, digest in request.inputs.items()}
    options: dict[str, str] = {
        "normalization": request.normalization,
        "scaling": request.scaling,
    }
    if request.limits_clusters:
        options["largest number of clusters"] = str(request.max_clusters)
    if request.gram is not None:
        options["layout"] = "gram"
    return {**_kernels_identity(request.names, request.precision, block), **options, **inputs}


def _kernels_identity(names: tuple[str, ...], precision: str, block: int) -> dict[str, Any]:
    return {"kernels of the data": ",".join(names), "precision": precision, "tile size": block}


def run_fingerprint(
    identity: dict[str, Any], method: Method, seed: int, kernels: Sequence[str]
) -> dict[str, Any]:
    """All that determines a fit: kernels, method, parameters, seed, and the program itself."""
    used = ",".join(kernels) if isinstance(method, SingleKernelMethod) else "all"
    version = package_versions()["gmkcf-dask"]
    rest = {"method": method.name, "seed": seed, "kernel": used, "gmkcf-dask": version}
    return {**identity, **method.parameters(), **rest}


@dataclass(frozen=True)
class FitOptions:
    """What to fit, and into which run folder."""

    out: Path
    """The run folder; with several kernels there is one for each inside it."""
    method: Method
    seed: int = 0
    kernels: Sequence[str] = (MEAN,)
    """Names of kernels, or "mean", for methods that use one."""
    overwrite: bool = False  # replace the results of another run in `out`
    resume: bool = False  # continue from the checkpoint in `out`
    checkpoint_every: int | None = None  # iterations between checkpoints
    raw_ids: bool = False  # do not escape ids in labels.csv against spreadsheet programs
    command: str | None = None  # command line that makes this run, for the reader of the report
    title: str | None = None  # name of the data; that of the store unless given

    @property
    def checkpoint(self) -> Path:
        return self.out / CHECKPOINT

    @property
    def folders(self) -> list[Path]:
        """The run folders, one per clustering."""
        return [self.out / name for name in self.kernels] if len(self.kernels) > 1 else [self.out]

    def job(self) -> Job:
        return job_of(self.method, self.kernels)

    def fingerprint(self, identity: dict[str, Any]) -> dict[str, Any]:
        return run_fingerprint(identity, self.method, self.seed, self.kernels)


@dataclass(frozen=True)
class Stopwatch:
    """Seconds by stage."""

    seconds: dict[str, float]

    @contextmanager
    def time(self, stage: str) -> Iterator[None]:
        """Count the time of a block to a stage."""
        start = time.perf_counter()
        try:
            yield
        finally:
            elapsed = time.perf_counter() - start
            self.seconds[stage] = self.seconds.get(stage, 0.0) + elapsed

    def rounded(self) -> dict[str, float]:
        """To milliseconds."""
        return {stage: round(value, 3) for stage, value in self.seconds.items()}


@dataclass(frozen=True)
class FittedRun:
    """A clustering, its folder, and what result.json there holds."""

    folder: Path
    clustering: Clustering
    result: RunResult


def is_finished(options: FitOptions, store: KernelStore | None) -> bool:
    """Whether the run of these options is complete; raises where `out` holds another run.

    Without a store there can be no run of it.
    """
    if has_checkpoint(options.checkpoint):
        return False
    identity = {"store": None} if store is None else store_identity(store)
    fingerprint = options.fingerprint(identity)
    earlier = () if store is None else (earlier_fingerprint(fingerprint, store),)
    several = options.folders if len(options.folders) > 1 else []
    complete = [holds_run(folder, fingerprint, *earlier) for folder in several]
    return holds_run(options.out, fingerprint, *earlier) or (bool(complete) and all(complete))


def fit_into(
    options: FitOptions,
    store: KernelStore,
    resources: Resources,
    *,
    listen: Listener = ignore,
    watch: Stopwatch | None = None,
    notes: Sequence[str] = (),
) -> list[FittedRun]:
    """Fit on a store and write the run folders: labels and factors first, then the reports.

    Until all labels are written there is a checkpoint in `options.out`, from which a later call
    resumes. `notes` of reading and building become part of the results. A folder that another
    process writes into is refused with StoreBusyError.
    """
    watch = watch or Stopwatch({})
    options.method.check_samples(store.n_samples)
    samples, missing = store_samples(store)
    with owning(options.out) as confirm_lock:
        plan = store_plan(store, options.method.n_clusters, resources, options.job())
        stack = stored_kernels(store, plan, resources)
        fingerprint = options.fingerprint(store_identity(store))
        with watch.time("fit"), warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            checkpoints = open_checkpoints(
                options.checkpoint,
                fingerprint,
                options.checkpoint_every,
                resume=options.resume,
                still_ours=confirm_lock,
                earlier=earlier_fingerprint(fingerprint, store),
                notes=notes,
                warned=warned,
            )
            kept = documents_with_words(store)
            with checkpoints.until_done():
                clusterings = fit(
                    stack,
                    options.method,
                    [options.seed],
                    options.kernels,
                    listen,
                    checkpoints,
                    kept,
                )
        notes = checkpoints.notes
        if len(clusterings) > 1:
            remove_run(options.out)  # of an earlier, single run
        runs: list[FittedRun] = []
        for folder, clustering in zip(options.folders, clusterings, strict=True):
            with watch.time("summary"):
                profile, lost = _profile(clustering, options, samples)
            if lost is not None:
                missing.append(lost)
                samples = replace(samples, features=None, terms=None)
            result = _run_result(
                options,
                store,
                plan,
                resources,
                clustering,
                fingerprint=jsonable(fingerprint),
                clusters=_cluster_entries(options, clustering, profile, samples),
                n_without_cluster=int((clustering.labels == NO_CLUSTER).sum()),
                what="documents" if samples.texts else "samples",
                warnings=list(dict.fromkeys((*notes, *missing))),
                seconds=watch.rounded(),
            )
            confirm_lock()
            factors = {**clustering.factors, "w": clustering.weights}
            write_run(folder, samples.ids, clustering.labels, factors, result)
            runs.append(FittedRun(folder, clustering, result))
        remove_checkpoints(options.checkpoint)
        title = options.title or store_name(store.path)
        for i, run in enumerate(runs):
            about = About(
                title, options.command, watch.seconds, run.result.bytes.shown(), run.result.warnings
            )
            known = profile if len(runs) == 1 else None
            try:
                with watch.time("insight"):
                    insight = explain(
                        stack, options.method, run.clustering, samples, about,
                        profile=known, listen=listen,
                    )  # fmt: skip
            except _NOT_EXPLAINED as error:  # must not cost the labels
                run.result.warnings.append(
                    "the clusters are written, but what they mean could not be worked out: "
                    f"{redacted(short_reason(error)) or type(error).__name__}"
                )
                continue
            confirm_lock()
            insight = structs.replace(insight, seconds=watch.rounded())
            runs[i] = replace(run, result=add_insight(run.folder, insight, run.result))
    return runs


_NOT_EXPLAINED = (GmkcfError, OSError, ArithmeticError, MemoryError, np.linalg.LinAlgError)
"""What describing clusters that are written already may fail with."""


def _profile(
    clustering: Clustering, options: FitOptions, samples: Samples
) -> tuple[Profile | None, str | None]:
    """Terms of the clusters, or why there are none: damaged features do not cost the labels."""
    k, U = options.method.n_clusters, clustering.factors.get("U")
    try:
        return read_profile(clustering.labels, k, samples.features, U), None
    except DamagedStoreError as error:
        return None, f"clusters have no terms: {error}"


def _run_result(
    options: FitOptions,
    store: KernelStore,
    plan: Plan | FactorPlan,
    resources: Resources,
    clustering: Clustering,
    **rest: Any,
) -> RunResult:
    """What result.json says about one clustering of a store."""
    names, method = clustering.kernel_names, options.method
    return RunResult(
        method=method.name,
        parameters=method.parameters(),
        kernel=clustering.kernel,
        seed=clustering.seed,
        store=str(resolved(store.path)),
        n_samples=store.n_samples,
        precision=store.manifest.precision,
        block_size=store.manifest.block_size,
        kernels=list(store.manifest.kernels),
        factored=list(store.manifest.factored) or UNSET,
        layout=UNSET if store.manifest.gram is None else "gram",
        kernel_weights=dict(zip(names, clustering.weights.tolist(), strict=True)),
        weights_history=clustering.weights_history.tolist(),
        objective_history=list(clustering.history),
        n_iter=clustering.n_iter,
        converged=clustering.converged,
        contrast=clustering.contrast,
        runs=list(clustering.runs),
        bytes=RunBytes(
            stored=store.stored_bytes(),
            touched_per_iteration=plan.read_per_iteration if method.name == "gmkcf" else None,
            planned_worker_peak=plan.worker_peak_bytes,
            worker_peaks=list(resources.worker_peaks().values()),
        ),
        plan=asdict(plan),
        versions=package_versions(),
        escaped_ids=not options.raw_ids,
        **rest,
    )


def _cluster_entries(
    options: FitOptions, clustering: Clustering, profile: Profile | None, samples: Samples
) -> list[ClusterEntry]:
    """Size and most telling terms of every cluster."""
    named = cluster_terms(profile, samples.terms, samples.texts)
    return [
        ClusterEntry(
            label=c,
            size=int((clustering.labels == c).sum()),
            terms=[term.in_words for term in named[c]] if named else [],
        )
        for c in range(options.method.n_clusters)
    ]
