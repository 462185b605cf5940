"""plan → build → fit → results, as functions: what the command line and the estimators share."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gmkcf_dask.cluster import Resources
from gmkcf_dask.compute.blas import one_blas_thread
from gmkcf_dask.compute.costs import Job, dense_fit_bytes, tiled_bytes
from gmkcf_dask.compute.dense import DEFAULT_BLOCK, DenseKernels
from gmkcf_dask.compute.operators import KernelStack, refuse_extremes
from gmkcf_dask.compute.plan import (
    Plan,
    Residency,
    make_plan,
    refuse_beyond_machine,
    refuse_large_driver,
)
from gmkcf_dask.compute.tile_ops import MemoryTiles
from gmkcf_dask.compute.tiled import ResidencyMonitor, TiledKernels
from gmkcf_dask.corpus.model import Matrix
from gmkcf_dask.errors import DamagedStoreError, InputError, PlanRefused, StoreError
from gmkcf_dask.events import Listener, ignore
from gmkcf_dask.kernels.tiles import CODE_SCALE
from gmkcf_dask.kernels.tiling import Precision, Tiling
from gmkcf_dask.methods.base import (
    MEAN,
    Clustering,
    Method,
    MultipleKernelMethod,
    SingleKernelMethod,
)
from gmkcf_dask.methods.checkpointing import NO_CHECKPOINTS, Checkpoints
from gmkcf_dask.results.checkpoints import FOLDER as CHECKPOINT
from gmkcf_dask.results.checkpoints import (
    has_checkpoint,
    open_checkpoints,
    plain,
    remove_checkpoints,
)
from gmkcf_dask.results.cluster_terms import Profile, read_profile
from gmkcf_dask.results.finished_run import model_of_run, store_of_run
from gmkcf_dask.results.insight import About, Samples, explain
from gmkcf_dask.results.run_folder import (
    INSIGHT,
    REPORT,
    holds_run,
    read_insight,
    read_result,
    remove_run,
    sweep_run,
    write_run,
)
from gmkcf_dask.results.run_result import Stopwatch as Stopwatch
from gmkcf_dask.results.run_result import (
    add_insight,
    cluster_entries,
    explain_run,
    run_result,
    store_name,
    store_samples,
)
from gmkcf_dask.results.schemas import Insight, RunResult
from gmkcf_dask.store.build import BuiltTiles, build_store, build_tiles, find_store
from gmkcf_dask.store.files import exists, free_bytes, is_link, remove
from gmkcf_dask.store.kernel_store import KernelStore, delete_store
from gmkcf_dask.store.lock import owning, writing
from gmkcf_dask.store.manifest import is_own_format, package_versions
from gmkcf_dask.store.object_storage import is_remote
from gmkcf_dask.store.preflight import may_keep_scratch, refuse_blind_workers
from gmkcf_dask.store.request import KernelRequest
from gmkcf_dask.store.scratch import sweep_scratch
from gmkcf_dask.system.resources import free_memory
from gmkcf_dask.system.units import human_bytes

# fitting


def fit(
    stack: KernelStack,
    method: Method,
    seeds: Sequence[int],
    kernels: Sequence[str] = (MEAN,),
    listen: Listener = ignore,
    checkpoints: Checkpoints = NO_CHECKPOINTS,
) -> list[Clustering]:
    """Any method on any operator: one clustering per kernel (where it uses one) and seed."""
    refuse_extremes(stack)
    if isinstance(method, SingleKernelMethod):
        return method.fit(stack, seeds, kernels, listen, checkpoints)
    assert isinstance(method, MultipleKernelMethod)
    return method.fit(stack, seeds, listen, checkpoints)


def store_identity(store: KernelStore) -> dict[str, Any]:
    """What tells a store's kernels from those of any other."""
    m = store.manifest
    inputs = {f"content of {what}": digest for what, digest in m.inputs.items()}
    return {**m.content, **_kernels_identity(m.names, m.precision, m.block_size), **inputs}


def earlier_fingerprint(fingerprint: dict[str, Any], store: KernelStore) -> dict[str, Any]:
    """The same as 0.1.0 wrote it, whose fits have the same bits: a store is known by its id."""
    rest = {name: value for name, value in fingerprint.items() if name != "tiles"}
    return {**rest, "store": store.manifest.store_id, "gmkcf-dask": "0.1.0"}


def request_identity(request: KernelRequest, block: int) -> dict[str, Any]:
    """The same for kernels in memory; a function is known by its name only."""
    inputs = {f"content of {what}": digest for what, digest in request.inputs.items()}
    options = {"normalization": request.normalization, "scaling": request.scaling}
    names = tuple(spec.name for spec in request.specs)
    return {**_kernels_identity(names, request.precision, block), **options, **inputs}


def _kernels_identity(names: tuple[str, ...], precision: str, block: int) -> dict[str, Any]:
    return {"kernels of the data": ",".join(names), "precision": precision, "tile size": block}


def run_fingerprint(
    identity: dict[str, Any], method: Method, seed: int, kernels: Sequence[str]
) -> dict[str, Any]:
    """All that determines a fit: kernels, method, parameters, seed, and the program itself."""
    parameters: dict[str, Any] = asdict(method)  # type: ignore[call-overload]
    used = ",".join(kernels) if isinstance(method, SingleKernelMethod) else "all"
    version = package_versions()["gmkcf-dask"]
    rest = {"method": method.name, "seed": seed, "kernel": used, "gmkcf-dask": version}
    return {**identity, **parameters, **rest}


# planning and kernels


def request_plan(
    request: KernelRequest,
    n_clusters: int,
    resources: Resources,
    store: Path | None = None,
    disk_free: int | None = None,
    residency: Residency | None = None,
    job: Job | None = None,
) -> Plan:
    """The plan for building a store and fitting on it; an existing store sets the tile size.

    `job` says what is fitted, one run of gmkcf when not given; see `job_of`.
    """
    found = None if store is None else find_store(store, request)
    disk_free = disk_free if store is None else _room(store)
    block = request.block if found is None else found.manifest.block_size
    X = None if request.corpus is None else request.corpus.X
    with _named_worker(resources):
        plan = make_plan(
            request.n_samples,
            0 if X is None else X.shape[1],
            len(request.specs),
            n_clusters,
            feature_bytes=0 if X is None else _bytes_of(X),
            precision=request.precision,
            block=block,
            n_workers=resources.n_workers,
            threads_per_worker=resources.threads_per_worker,
            memory_per_worker=resources.memory_per_worker,
            disk_free=disk_free,
            scratch=disk_free is not None,
            remote=store is not None and is_remote(store),
            tiles_stored=0 if found is None else len(found.manifest.tiles_done),
            one_process=resources.in_this_process,
            residency=residency,
            largest_rows=None if X is None else partial(_largest_rows, X),
            signed=any(kernel.scaling == "none" for kernel in request.kernels),
            job=job,
        )
    return _on_machine(plan, resources)


def store_plan(
    store: KernelStore, n_clusters: int, resources: Resources, job: Job | None = None
) -> Plan:
    """The plan for fitting on a finished store; `job` as of `request_plan`."""
    m = store.manifest
    with _named_worker(resources):
        plan = make_plan(
            m.n_samples,
            m.n_features,
            len(m.kernels),
            n_clusters,
            feature_bytes=0,
            precision=m.precision,
            block=m.block_size,
            n_workers=resources.n_workers,
            threads_per_worker=resources.threads_per_worker,
            memory_per_worker=resources.memory_per_worker,
            disk_free=_room(store.path),
            scratch=may_keep_scratch(resources.runner, store.path),
            remote=is_remote(store.path),
            tiles_stored=m.tiling.n_tiles,
            one_process=resources.in_this_process,
            signed=min((m.stored_minima or {"": 0.0}).values()) < 0.0,
            job=job,
        )
    return _on_machine(plan, resources)


@contextmanager
def _named_worker(resources: Resources) -> Iterator[None]:
    """A refusal for want of memory names the worker that has least, where they differ."""
    try:
        yield
    except PlanRefused as error:
        if resources.smallest is None or "a worker needs" not in str(error):
            raise
        raise PlanRefused(f"{error}; {resources.smallest}") from error


def _on_machine(plan: Plan, resources: Resources) -> Plan:
    if resources.machine_memory is not None:
        refuse_beyond_machine(plan, resources.machine_memory)
    elif not resources.in_this_process:
        refuse_large_driver(plan, free_memory())
    return plan


def job_of(method: Method, kernels: Sequence[str] = (MEAN,)) -> Job:
    """What a plan has to know of a method that is fitted to some kernels, or to all at once."""
    numbers = {
        name: int(getattr(method, name))
        for name in ("n_init", "max_iter", "inner_iter")
        if hasattr(method, name)
    }
    init = getattr(method, "init", None)
    return Job(
        method.n_clusters,
        method.name,
        n_alone=len(kernels) if isinstance(method, SingleKernelMethod) else 1,
        spectral=isinstance(init, str) and init == "spectral",
        **numbers,
    )


def dense_kernels(
    request: KernelRequest, listen: Listener = ignore, job: Job | None = None
) -> DenseKernels:
    """Kernels in the memory of this process, refused where they and the job do not fit."""
    return build_dense(request, listen, job)[0]


def build_dense(
    request: KernelRequest, listen: Listener = ignore, job: Job | None = None
) -> tuple[DenseKernels, BuiltTiles]:
    """The same, with the statistics of the kernels and the norms of the samples."""
    m, n = len(request.specs), request.n_samples
    tiling = room_for(m, n, request.block, request.precision, job)
    with one_blas_thread():
        built = build_tiles(request, tiling.block, listen)
    names = [spec.name for spec in request.specs]
    each = tuple(range(len(names)))
    tiles = MemoryTiles(built.stacks, tiling, CODE_SCALE[request.precision], each)
    return DenseKernels(tiles, names), built


def room_for(
    m: int, n: int, block: int | None, precision: Precision, job: Job | None = None
) -> Tiling:
    """The tiles of m kernels of n samples, once there is memory for them in this process."""
    tiling = Tiling(n, block or DEFAULT_BLOCK)
    need, free = tiled_bytes(tiling, m, precision), free_memory()
    if need > free * 8 // 10:  # the rest is for the tiles being made, and for others
        raise PlanRefused(
            f"{m} kernels of {n:,} samples need {human_bytes(need)} of memory but "
            f"{human_bytes(free)} are free: give a store path to work out of core"
        )
    fitting = 0 if job is None else dense_fit_bytes(job, tiling, m, precision)
    if need + fitting > free:
        assert job is not None
        raise PlanRefused(
            f"{m} kernels of {n:,} samples need {human_bytes(need)} of memory and "
            f"{job.words()} with {job.n_clusters} clusters {human_bytes(fitting)}, but "
            f"{human_bytes(free)} are free: give more memory or fewer clusters, or a store path "
            "to work out of core"
        )
    return tiling


def stored_kernels(store: KernelStore, plan: Plan, resources: Resources) -> KernelStack:
    """Kernels of a store as the plan wants them, in memory or through Dask: the same bits."""
    if plan.kernels_in_memory:
        return DenseKernels.from_store(store)
    refuse_blind_workers(resources.runner, store.path, store.manifest.store_id, write=False)

    def scratch_room() -> int | None:
        return _room(store.path) if may_keep_scratch(resources.runner, store.path) else None

    watch = ResidencyMonitor(resources.runner, plan, scratch_room)
    return TiledKernels(
        store, resources.runner, plan.residency, watch.residency, plan.prefetch_bytes
    )


def free_disk(path: Path) -> int | None:
    """Free bytes on the file system a path will be on; None for object stores: they have no end."""
    return free_bytes(path)


def disk_to_fill(store: Path) -> int | None:
    """Free bytes where a new store would go; None where there is one, which may be used again."""
    return None if exists(store) else free_disk(store)


def _room(store: Path) -> int | None:
    """Free bytes where a store is, without what killed fits left there."""
    sweep_scratch(store)
    return free_disk(store)


def _largest_rows(X: Matrix, edge: int) -> int:
    """Bytes of the largest row block: some documents are books."""
    if isinstance(X, np.ndarray):
        return int(X[:edge].nbytes)
    ends = X.indptr[np.r_[0 : X.shape[0] : edge, X.shape[0]]]
    return int(16 * np.diff(ends).max() + 8 * edge)


def _bytes_of(X: Matrix) -> int:
    if isinstance(X, np.ndarray):
        return int(X.nbytes)
    return int(16 * X.nnz + 8 * X.shape[0])  # float64 values and int64 indices, as stored


# the jobs of the command line


def build(
    path: Path,
    request: KernelRequest,
    plan: Plan,
    resources: Resources,
    listen: Listener = ignore,
    *,
    force: bool = False,
    verify: bool = False,
) -> KernelStore:
    """Build, finish or reuse the store of a request; by force where another build was killed.

    What is damaged of a complete store is repaired; with `verify` all of it is read to find out.
    """
    return build_store(
        path, request, resources.runner, listen, plan.block, force=force, verify=verify
    )


def remove_store(path: Path, *, force: bool = False) -> None:
    """Delete a store, unless somebody is writing into it."""
    with writing(path, force=force):
        delete_store(path)


def is_other_store(path: Path, request: KernelRequest) -> bool:
    """Whether a path holds a store of ours, but one made for other data or parameters."""
    if is_link(path) or not is_own_format(path):
        return False
    try:
        find_store(path, request)
    except StoreError:
        return True
    return False


@dataclass(frozen=True)
class FitOptions:
    """What to fit, and into which run folder.

    Attributes
    ----------
    out : Path
        The run folder; with several kernels there is one for each inside it.
    method : Method
    seed : int
    kernels : sequence of str
        Names of kernels, or "mean", for methods that use one.
    overwrite : bool
        Replace the results of another run in `out`.
    resume : bool
        Continue from the checkpoint in `out`.
    checkpoint_every : int, optional
        Iterations between checkpoints.
    raw_ids : bool
        Do not escape ids in labels.csv against spreadsheet programs.
    command : str, optional
        Command line that makes this run, for the reader of the report.
    title : str, optional
        Name of the data; that of the store unless given.
    """

    out: Path
    method: Method
    seed: int = 0
    kernels: Sequence[str] = (MEAN,)
    overwrite: bool = False
    resume: bool = False
    checkpoint_every: int | None = None
    raw_ids: bool = False
    command: str | None = None
    title: str | None = None

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
    resumes. `notes` of reading and building become part of the results.

    Raises
    ------
    StoreBusyError
        Another process writes into the same folder.
    """
    watch = watch or Stopwatch({})
    options.method.check_samples(store.n_samples)
    samples, missing = store_samples(store)
    with owning(options.out) as confirm_lock:
        plan = store_plan(store, options.method.n_clusters, resources, options.job())
        stack = stored_kernels(store, plan, resources)
        fitted = watch.time(
            "fit",
            lambda: _fit_with_checkpoints(options, store, stack, listen, confirm_lock, notes),
        )
        if len(fitted.clusterings) > 1:
            remove_run(options.out)  # of an earlier, single run
        runs: list[FittedRun] = []
        for folder, clustering in zip(options.folders, fitted.clusterings, strict=True):
            profile, lost = watch.time("summary", partial(_profile, clustering, options, samples))
            if lost is not None:
                missing.append(lost)
                samples = replace(samples, features=None, terms=None)
            k, terms = options.method.n_clusters, samples.terms
            result = run_result(
                store,
                options.method,
                clustering,
                plan,
                resources,
                fingerprint=plain(fitted.fingerprint),
                escaped_ids=not options.raw_ids,
                clusters=cluster_entries(clustering, k, profile, terms, samples.texts),
                warnings=list(dict.fromkeys((*fitted.notes, *missing))),
                seconds=watch.rounded(),
            )
            confirm_lock()
            factors = {**clustering.factors, "w": clustering.weights}
            write_run(folder, samples.ids, clustering.labels, factors, result)
            runs.append(FittedRun(folder, clustering, result))
        remove_checkpoints(options.checkpoint)
        about = About(options.title or store_name(store.path), options.command)
        for i, run in enumerate(runs):
            insight = explain_run(
                stack, options.method, run.clustering, samples, run.result, about,
                profile if len(runs) == 1 else None, listen, watch,
            )  # fmt: skip
            if insight is not None:
                confirm_lock()
                result = add_insight(run.folder, insight, run.result)
                runs[i] = replace(run, result=result)
    return runs


@dataclass(frozen=True)
class _Fitted:
    """Clusterings, the fingerprint of the run, and the warnings on the way."""

    clusterings: list[Clustering]
    fingerprint: dict[str, Any]
    notes: list[str]


def _fit_with_checkpoints(
    options: FitOptions,
    store: KernelStore,
    stack: KernelStack,
    listen: Listener,
    confirm_lock: Callable[[], None],
    notes: Sequence[str],
) -> _Fitted:
    fingerprint = options.fingerprint(store_identity(store))
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        checkpoints = open_checkpoints(
            options.checkpoint,
            fingerprint,
            options.checkpoint_every,
            resume=options.resume,
            still_ours=confirm_lock,
            earlier=earlier_fingerprint(fingerprint, store),
        )

        def notes_so_far() -> list[str]:
            new = (str(warning.message) for warning in raised)
            return list(dict.fromkeys((*notes, *checkpoints.earlier_notes, *new)))

        checkpoints.notes = notes_so_far
        with checkpoints.until_done():
            clusterings = fit(
                stack, options.method, [options.seed], options.kernels, listen, checkpoints
            )
    return _Fitted(clusterings, fingerprint, notes_so_far())


def _profile(
    clustering: Clustering, options: FitOptions, samples: Samples
) -> tuple[Profile | None, str | None]:
    """Terms of the clusters, or why there are none: damaged features do not cost the labels."""
    k, U = options.method.n_clusters, clustering.factors.get("U")
    try:
        return read_profile(clustering.labels, k, samples.features, U), None
    except DamagedStoreError as error:
        return None, f"clusters have no terms: {error}"


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
