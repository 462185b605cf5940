"""plan → build → fit → results, as functions: what the command line and the estimators share.

One `gmkcf run` calls, in this order: `request_plan` (on the described cluster, then on the started
one), `build`, and `fit_into`, which continues with `store_plan`, `stored_kernels`, `fit`, the run
folder and the report.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import structs

from gmkcf_dask.cluster import Resources
from gmkcf_dask.compute.blas import one_blas_thread
from gmkcf_dask.compute.build_tasks import BuiltTiles, tiles_of
from gmkcf_dask.compute.combined import CombinedKernels
from gmkcf_dask.compute.costs import Job, dense_fit_bytes, tiled_bytes
from gmkcf_dask.compute.dense import DEFAULT_BLOCK, DenseKernels
from gmkcf_dask.compute.factor_plan import FactorPlan, FactorSizes, factor_sizes, make_factor_plan
from gmkcf_dask.compute.factored import FactoredKernels, MemoryFactors
from gmkcf_dask.compute.operators import KernelStack, refuse_extremes
from gmkcf_dask.compute.plan import (
    Plan,
    Residency,
    make_plan,
    refuse_beyond_machine,
    refuse_large_driver,
)
from gmkcf_dask.compute.runner import short_reason
from gmkcf_dask.compute.tile_ops import MemoryTiles
from gmkcf_dask.compute.tiled import ResidencyMonitor, TiledKernels
from gmkcf_dask.corpus.model import Matrix
from gmkcf_dask.errors import (
    DamagedStoreError,
    GmkcfError,
    InputError,
    PlanRefused,
    StoreError,
    redacted,
)
from gmkcf_dask.events import Listener, ignore
from gmkcf_dask.kernels.factor_cross import Arrays, views_of
from gmkcf_dask.kernels.factored import FactorKind, array_of, most_clusters
from gmkcf_dask.kernels.features import Features
from gmkcf_dask.kernels.tiles import CODE_SCALE, ResolvedKernel
from gmkcf_dask.kernels.tiling import FACTOR_ROWS, Precision, Tiling, default_block
from gmkcf_dask.methods.base import (
    MEAN,
    Clustering,
    Method,
    MultipleKernelMethod,
    SingleKernelMethod,
)
from gmkcf_dask.methods.checkpointing import NO_CHECKPOINTS, Checkpoints
from gmkcf_dask.methods.contrast import add_contrast
from gmkcf_dask.methods.factorize import FactorizationMethod
from gmkcf_dask.methods.members import NO_CLUSTER
from gmkcf_dask.results.checkpoints import (
    FOLDER as CHECKPOINT,
    RunCheckpoints,
    has_checkpoint,
    open_checkpoints,
    remove_checkpoints,
)
from gmkcf_dask.results.cluster_terms import Profile, cluster_terms, read_profile
from gmkcf_dask.results.finished_run import model_of_run, store_of_run
from gmkcf_dask.results.insight import About, Samples, explain
from gmkcf_dask.results.report.render import write_report
from gmkcf_dask.results.run_folder import (
    INSIGHT,
    REPORT,
    holds_run,
    read_insight,
    read_result,
    remove_run,
    sweep_run,
    write_insight,
    write_result,
    write_run,
)
from gmkcf_dask.results.schemas import ClusterEntry, Insight, RunBytes, RunResult
from gmkcf_dask.results.serialize import jsonable
from gmkcf_dask.store.build import build_store, find_store
from gmkcf_dask.store.factors import MemoryArrays, StoredFactorSource, factor_stages
from gmkcf_dask.store.files import exists, free_bytes, is_link, remove, resolved
from gmkcf_dask.store.kernel_store import KernelStore, delete_store
from gmkcf_dask.store.lock import owning, writing
from gmkcf_dask.store.manifest import is_own_format, package_versions
from gmkcf_dask.store.object_storage import is_remote
from gmkcf_dask.store.preflight import may_keep_scratch, refuse_blind_workers
from gmkcf_dask.store.request import KernelRequest
from gmkcf_dask.store.scratch import sweep_scratch
from gmkcf_dask.system.arrays import Floats
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
    """Any method on any operator: one clustering per kernel (where it uses one) and seed.

    Of factorizations each clustering is judged, for one product more: see `contrast`.
    """
    refuse_extremes(stack)
    if isinstance(method, SingleKernelMethod):
        clusterings = method.fit(stack, seeds, kernels, listen, checkpoints)
    else:
        assert isinstance(method, MultipleKernelMethod)
        clusterings = method.fit(stack, seeds, listen, checkpoints)
    if isinstance(method, FactorizationMethod):
        return [add_contrast(stack, method, clustering) for clustering in clusterings]
    return clusterings


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
    if request.factored:
        options["largest number of clusters"] = str(request.max_clusters)
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


# planning and kernels


def request_plan(
    request: KernelRequest,
    n_clusters: int,
    resources: Resources,
    store: Path | None = None,
    disk_free: int | None = None,
    residency: Residency | None = None,
    job: Job | None = None,
) -> Plan | FactorPlan:
    """The plan for building a store and fitting on it; an existing store sets the tile size.

    `job` says what is fitted, one run of gmkcf when not given; see `job_of`.
    """
    existing = None if store is None else find_store(store, request)
    disk_free = disk_free if store is None else _room(store)
    X = None if request.corpus is None else request.corpus.X
    built = existing is not None and existing.manifest.complete
    tiles = None
    if request.tiled:
        tiles = _request_tiles_plan(
            request, n_clusters, resources, store, disk_free, residency, job, existing
        )
    if not request.factored:
        assert tiles is not None
        return tiles
    refuse_more_clusters(request.names, n_clusters, request.max_clusters)
    columns = 0 if X is None else X.shape[1]
    sizes = factor_sizes(
        request.factored, request.n_samples, columns, n_clusters, request.max_clusters,
        0 if X is None else _bytes_of(X), sum(s.factor.shape[1] for s in request.given_factors),
    )  # fmt: skip
    block = existing.manifest.block_size if existing else request.block
    return _factor_plan(resources, sizes, disk_free, job, block, tiles, built=built)


def _request_tiles_plan(
    request: KernelRequest,
    n_clusters: int,
    resources: Resources,
    store: Path | None,
    disk_free: int | None,
    residency: Residency | None,
    job: Job | None,
    existing: KernelStore | None,
) -> Plan:
    X = None if request.corpus is None else request.corpus.X
    return _plan(
        resources,
        (request.n_samples, 0 if X is None else X.shape[1], len(request.tiled), n_clusters),
        feature_bytes=0 if X is None else _bytes_of(X),
        precision=request.precision,
        block=request.block if existing is None else existing.manifest.block_size,
        disk_free=disk_free,
        scratch=disk_free is not None,
        remote=store is not None and is_remote(store),
        tiles_stored=0 if existing is None else len(existing.manifest.tiles_done),
        residency=residency,
        largest_rows=None if X is None else partial(_largest_rows, X),
        signed=any(kernel.scaling == "none" for kernel in request.kernels),
        job=job,
    )


def store_plan(
    store: KernelStore, n_clusters: int, resources: Resources, job: Job | None = None
) -> Plan | FactorPlan:
    """The plan for fitting on a finished store; `job` as of `request_plan`."""
    m = store.manifest
    tiles = _store_tiles_plan(store, n_clusters, resources, job) if m.kernels else None
    if not m.factored:
        assert tiles is not None
        return tiles
    assert m.factor_options is not None
    most = m.factor_options.max_clusters
    refuse_more_clusters(m.kernel_names, n_clusters, most)
    kinds = {record.name: record.kind for record in m.factored}
    given = sum(
        m.factors[array_of(n, kind)].shape[1] for n, kind in kinds.items() if kind == "given"
    )
    sizes = factor_sizes(kinds, m.n_samples, m.n_features, n_clusters, most, 0, given)
    return _factor_plan(resources, sizes, None, job, m.block_size, tiles, built=True)


def refuse_more_clusters(names: Sequence[str], n_clusters: int, most: int) -> None:
    """Local kernels have columns for so many clusters only."""
    if n_clusters > most:
        raise InputError(most_clusters(names, most))


def _factor_plan(
    resources: Resources,
    sizes: FactorSizes,
    disk_free: int | None,
    job: Job | None,
    block: int | None,
    tiles: Plan | None,
    *,
    built: bool,
) -> FactorPlan:
    plan = make_factor_plan(
        sizes,
        n_workers=resources.n_workers,
        threads_per_worker=resources.threads_per_worker,
        memory_per_worker=resources.memory_per_worker,
        one_process=resources.in_this_process,
        free_memory=free_memory(),
        disk_free=disk_free,
        built=built,
        job=job,
        block=block or default_block(sizes.n),
        tiles=tiles,
    )
    if resources.machine_memory is not None:
        refuse_beyond_machine(plan, resources.machine_memory)
    return plan


def _store_tiles_plan(
    store: KernelStore, n_clusters: int, resources: Resources, job: Job | None
) -> Plan:
    m = store.manifest
    return _plan(
        resources,
        (m.n_samples, m.n_features, len(m.kernels), n_clusters),
        feature_bytes=0,
        precision=m.precision,
        block=m.block_size,
        disk_free=_room(store.path),
        scratch=may_keep_scratch(resources.runner, store.path),
        remote=is_remote(store.path),
        tiles_stored=m.n_tiles,
        signed=min((m.stored_minima or {"": 0.0}).values()) < 0.0,
        job=job,
    )


def _plan(resources: Resources, sizes: tuple[int, int, int, int], **options: Any) -> Plan:
    """The plan for samples, features, kernels and clusters, checked against this machine."""
    try:
        plan = make_plan(
            *sizes,
            n_workers=resources.n_workers,
            threads_per_worker=resources.threads_per_worker,
            memory_per_worker=resources.memory_per_worker,
            one_process=resources.in_this_process,
            **options,
        )
    except PlanRefused as error:
        if resources.smallest is None or "a worker needs" not in str(error):
            raise
        raise PlanRefused(f"{error}; {resources.smallest}") from error
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
    names = tuple(spec.name for spec in request.tiled)
    return dense_tiles(
        names, request.kernels, request.features, request.block, request.precision, listen, job=job
    )


def dense_tiles(
    names: tuple[str, ...],
    kernels: tuple[ResolvedKernel, ...],
    features: Features,
    block: int | None,
    precision: Precision,
    listen: Listener,
    *,
    stored: tuple[int, ...] | None = None,
    job: Job | None = None,
) -> tuple[DenseKernels, BuiltTiles]:
    """The same for resolved kernels; refused where there is no memory for them in this process.

    `stored` gives for every name the index of its kernel, where one kernel stands for others.
    """
    tiling = _tiling_in_memory(len(kernels), features.n_samples, block, precision, job)
    with one_blas_thread():
        built = tiles_of(kernels, features, tiling.block, precision, listen)
    each = tuple(range(len(kernels))) if stored is None else stored
    tiles = MemoryTiles(built.stacks, tiling, CODE_SCALE[precision], each)
    return DenseKernels(tiles, names), built


def _tiling_in_memory(
    m: int, n: int, block: int | None, precision: Precision, job: Job | None
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


@dataclass(frozen=True)
class MemoryKernels:
    """Kernels of a request in the memory of this process, and what they were made of."""

    stack: KernelStack
    block_size: int
    kernels: tuple[ResolvedKernel, ...] = ()
    """Those in tiles, with their statistics."""
    norms: Mapping[str, Floats] = field(default_factory=dict)
    arrays: Mapping[str, npt.NDArray[Any]] | None = None
    """Of factored kernels."""


def memory_kernels(
    request: KernelRequest, n_clusters: int, listen: Listener = ignore, job: Job | None = None
) -> MemoryKernels:
    """Kernels in the memory of this process, refused where they and the job do not fit."""
    dense = built = None
    if request.tiled:
        dense, built = build_dense(request, listen, job)
        if not request.factored:
            return MemoryKernels(dense, dense.block_size, built.kernels, built.norms)
    refuse_more_clusters(request.names, n_clusters, request.max_clusters)
    arrays = MemoryArrays()
    arrays.build(factor_stages(request.factors, request.features, arrays), listen)
    sparse = {
        s.name: s.factor for s in request.given_factors if not isinstance(s.factor, np.ndarray)
    }
    arrays.arrays |= {array_of(name, "given"): Z for name, Z in sparse.items()}
    factored = FactoredKernels(memory_factors(request.factored, arrays, n_clusters, sparse))
    if dense is None or built is None:
        return MemoryKernels(factored, FACTOR_ROWS, arrays=arrays.arrays)
    both = CombinedKernels(dense, factored)
    return MemoryKernels(both, dense.block_size, built.kernels, built.norms, arrays.arrays)


def memory_factors(
    kinds: Mapping[str, FactorKind],
    arrays: Arrays,
    n_clusters: int,
    sparse: Mapping[str, Any] | None = None,
) -> MemoryFactors:
    """The factors of kernels for so many clusters; sparse ones as they were given."""
    kept = dict(sparse or {})
    dense = {name: kind for name, kind in kinds.items() if name not in kept}
    for view in views_of(dense, arrays, n_clusters):
        kept[view.name] = view.rows(arrays.read(view.array))
    return MemoryFactors.of([kept[name] for name in kinds], list(kinds))


def stored_kernels(
    store: KernelStore, plan: Plan | FactorPlan, resources: Resources
) -> KernelStack:
    """Kernels of a store as the plan wants them, in memory or through Dask: the same bits."""
    if isinstance(plan, FactorPlan):
        factored = _stored_factors(store, plan, resources)
        if plan.tiles is None:
            return factored
        return CombinedKernels(stored_kernels(store, plan.tiles, resources), factored)
    if plan.kernels_in_memory:
        return DenseKernels.from_store(store)
    refuse_blind_workers(resources.runner, store.path, store.manifest.store_id, write=False)

    def scratch_room() -> int | None:
        return _room(store.path) if may_keep_scratch(resources.runner, store.path) else None

    watch = ResidencyMonitor(resources.runner, plan, scratch_room)
    return TiledKernels(
        store, resources.runner, plan.residency, watch.residency, plan.prefetch_bytes
    )


def _stored_factors(store: KernelStore, plan: FactorPlan, resources: Resources) -> FactoredKernels:
    kinds = {record.name: record.kind for record in store.manifest.factored}
    arrays = store.factors()
    if plan.kernels_in_memory:
        return FactoredKernels(memory_factors(kinds, arrays, plan.n_clusters))
    refuse_blind_workers(resources.runner, store.path, store.manifest.store_id, write=False)
    views = views_of(kinds, arrays, plan.n_clusters)
    return FactoredKernels(StoredFactorSource.of(arrays, views), resources.runner)


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
    plan: Plan | FactorPlan,
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
    samples, missing = _store_samples(store)
    with owning(options.out) as confirm_lock:
        plan = store_plan(store, options.method.n_clusters, resources, options.job())
        stack = stored_kernels(store, plan, resources)
        fingerprint = options.fingerprint(store_identity(store))
        start_checkpoints = partial(
            open_checkpoints,
            options.checkpoint,
            fingerprint,
            options.checkpoint_every,
            resume=options.resume,
            still_ours=confirm_lock,
            earlier=earlier_fingerprint(fingerprint, store),
        )
        with watch.time("fit"):
            clusterings, notes = _fit_noted(options, stack, listen, start_checkpoints, notes)
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
        title = options.title or _store_name(store.path)
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
            runs[i] = replace(run, result=_add_insight(run.folder, insight, run.result))
    return runs


_NOT_EXPLAINED = (GmkcfError, OSError, ArithmeticError, MemoryError, np.linalg.LinAlgError)
"""What describing clusters that are written already may fail with."""


def _fit_noted(
    options: FitOptions,
    stack: KernelStack,
    listen: Listener,
    start_checkpoints: Callable[[], RunCheckpoints],
    notes: Sequence[str],
) -> tuple[list[Clustering], list[str]]:
    """Clusterings, and the notes with the warnings of reading checkpoints and of the fit."""
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        checkpoints = start_checkpoints()

        def notes_so_far() -> list[str]:
            new = (str(warning.message) for warning in raised)
            return list(dict.fromkeys((*notes, *checkpoints.earlier_notes, *new)))

        checkpoints.notes = notes_so_far
        with checkpoints.until_done():
            clusterings = fit(
                stack, options.method, [options.seed], options.kernels, listen, checkpoints
            )
    return clusterings, notes_so_far()


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


def _store_samples(store: KernelStore) -> tuple[Samples, list[str]]:
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


def _add_insight(folder: Path, insight: Insight, result: RunResult) -> RunResult:
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


def _store_name(store: Path) -> str:
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
    title = options.title or (None if store is None else _store_name(store.path))
    with owning(options.out):
        for folder in lacking:
            sweep_run(folder)
            insight = insights[folder]
            if insight is None:
                remove(folder / INSIGHT)  # where it is damaged
                insight = explain_again(folder, resources, listen, options.command, title)
            _add_insight(folder, insight, read_result(folder))
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
    """insight.json of a run that was interrupted before it was written, from its store."""
    model, result = model_of_run(run), read_result(run)
    store = store_of_run(result, run)
    plan = store_plan(store, model.method.n_clusters, resources)
    stack = stored_kernels(store, plan, resources)
    samples, missing = _store_samples(store)
    notes = [*result.warnings, *missing]
    about = About(title or run.name, command, result.seconds, result.bytes.shown(), notes)
    return explain(stack, model.method, model.clustering, samples, about, listen=listen)
