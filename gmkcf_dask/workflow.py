"""plan → build → fit → results, as functions: what the command line and the estimators share."""

from __future__ import annotations

import shutil
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil

from gmkcf_dask.blas import one_blas_thread
from gmkcf_dask.cluster import Resources
from gmkcf_dask.corpus.model import Matrix
from gmkcf_dask.engine.dense import DEFAULT_BLOCK, DenseKernels
from gmkcf_dask.engine.operators import FusedKernel, KernelStack
from gmkcf_dask.engine.tiled import TiledKernels
from gmkcf_dask.engine.tiles import MemoryTiles
from gmkcf_dask.errors import InputError, NumericsWarning, PlanRefused, StoreError
from gmkcf_dask.events import Listener, ignore
from gmkcf_dask.kernels.build import KernelRequest, build_store, build_tiles, find_store
from gmkcf_dask.kernels.manifest import is_own_format, package_versions
from gmkcf_dask.kernels.store import KernelStore
from gmkcf_dask.kernels.tiles import CODE_SCALE
from gmkcf_dask.methods.assign import kmeans_labels
from gmkcf_dask.methods.factorize import Factorization, SolverOptions, finish
from gmkcf_dask.methods.gmkcf import gmkcf
from gmkcf_dask.methods.init import Init, Start, make_starts
from gmkcf_dask.methods.kcf import kcf
from gmkcf_dask.plan import Plan, Residency, Tiling, human_bytes, make_plan, tiled_bytes
from gmkcf_dask.results.run import write_run
from gmkcf_dask.results.summary import summarize_clusters

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class RunSummary:
    """One restart: its objective, iterations, and whether it converged."""

    objective: float
    n_iter: int
    converged: bool


@dataclass(frozen=True)
class Clustering:
    """Labels and all they came from.

    Attributes
    ----------
    labels : ndarray of int, shape (n,)
    U, V : ndarray, shape (n, k)
        Scaled so that diag(UᵀK_wU) = 1.
    weights : ndarray, shape (m,)
    history : tuple of float
        Objective of the best run: of the start, then after every iteration.
    runs : tuple of RunSummary
        Every restart, in order.
    """

    labels: npt.NDArray[np.int32]
    U: Floats
    V: Floats
    weights: Floats
    kernel_names: tuple[str, ...]
    history: tuple[float, ...]
    converged: bool
    runs: tuple[RunSummary, ...]
    seed: int

    @property
    def n_iter(self) -> int:
        return len(self.history) - 1


# fitting


def fit_gmkcf(
    stack: KernelStack,
    options: SolverOptions,
    *,
    seed: int,
    n_init: int = 1,
    init: Init = "random",
    listen: Listener = ignore,
) -> Clustering:
    """GMKCF on any operator; the restart of lowest objective wins."""

    def run(start: Start, restart: tuple[int, int]) -> Factorization:
        return gmkcf(stack, start, options, listen, restart)

    def final_kernel(w: Floats) -> FusedKernel:
        return stack.fuse(w**2, keep=False)

    found = _fit(stack, options, run, final_kernel, seed=seed, n_init=n_init, init=init)
    _warn_if_one_kernel_has_it_all(found)
    return found


def _warn_if_one_kernel_has_it_all(found: Clustering) -> None:
    top = int(found.weights.argmax())
    if len(found.weights) > 1 and found.weights[top] > 0.9:
        warnings.warn(
            f"kernel {found.kernel_names[top]} has {found.weights[top]:.0%} of the weight: GMKCF "
            "favours the kernel that is easiest to reproduce, which need not be the best; compare "
            "with KCF on the mean of the kernels, or leave it out",
            NumericsWarning,
            stacklevel=4,
        )


def fit_kcf(
    stack: KernelStack,
    options: SolverOptions,
    *,
    kernel: str,
    seed: int,
    n_init: int = 1,
    init: Init = "random",
    listen: Listener = ignore,
) -> Clustering:
    """KCF on one kernel of the operator by name, or on the mean of all."""
    m = len(stack.names)
    if kernel == "mean":
        weights = np.full(m, 1.0 / m)
    elif kernel in stack.names:
        weights = np.eye(m)[stack.names.index(kernel)]
    else:
        raise InputError(
            f"there is no kernel {kernel!r} here: choose mean or one of {', '.join(stack.names)}"
        )
    fused = stack.fuse(weights)

    def run(start: Start, restart: tuple[int, int]) -> Factorization:
        return kcf(fused, start, options, weights, stack.error_floor, listen, restart)

    try:
        return _fit(stack, options, run, lambda w: fused, seed=seed, n_init=n_init, init=init)
    finally:
        fused.release()


def _fit(
    stack: KernelStack,
    options: SolverOptions,
    run: Callable[[Start, tuple[int, int]], Factorization],
    final_kernel: Callable[[Floats], FusedKernel],
    *,
    seed: int,
    n_init: int,
    init: Init,
) -> Clustering:
    options.check_samples(stack.n_samples)
    starts = make_starts(stack.n_samples, options.n_clusters, seed, n_init, init)
    best: Factorization | None = None
    runs: list[RunSummary] = []
    with one_blas_thread():
        for r, start in enumerate(starts):
            found = run(start, (r, n_init))
            runs.append(RunSummary(found.objective, found.n_iter, found.converged))
            if best is None or found.objective < best.objective:
                best = found
        assert best is not None
        fused = final_kernel(best.w)
        U, V = finish(fused, best, polish=options.polish)
    labels = kmeans_labels(V, options.n_clusters, seed)
    return Clustering(
        labels, U, V, best.w, stack.names, best.history, best.converged, tuple(runs), seed
    )


# planning and kernels


def request_plan(
    request: KernelRequest,
    n_clusters: int,
    resources: Resources,
    store: Path | None = None,
    disk_free: int | None = None,
    residency: Residency | None = None,
) -> Plan:
    """The plan for building a store and fitting on it; an existing store sets the tile size."""
    found = None if store is None else find_store(store, request)
    disk_free = disk_free if store is None else free_disk(store)
    block = request.block if found is None else found.manifest.block_size
    X = None if request.corpus is None else request.corpus.X
    return make_plan(
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
        tiles_stored=0 if found is None else len(found.manifest.tiles_done),
        one_process=resources.in_this_process,
        residency=residency,
    )


def store_plan(store: KernelStore, n_clusters: int, resources: Resources) -> Plan:
    """The plan for fitting on a finished store."""
    m = store.manifest
    return make_plan(
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
        disk_free=free_disk(store.path),
        tiles_stored=m.tiling.n_tiles,
        one_process=resources.in_this_process,
    )


def dense_kernels(request: KernelRequest, listen: Listener = ignore) -> DenseKernels:
    """Kernels in the memory of this process, refused where they do not fit."""
    tiling = Tiling(request.n_samples, request.block or DEFAULT_BLOCK)
    need = tiled_bytes(tiling, len(request.specs), request.precision)
    free = int(psutil.virtual_memory().available)
    if need > free * 8 // 10:  # the rest is for the tiles being made, and for others
        raise PlanRefused(
            f"{len(request.specs)} kernels of {request.n_samples:,} samples need "
            f"{human_bytes(need)} of memory but {human_bytes(free)} are free: give a store path "
            "to work out of core"
        )
    with one_blas_thread():
        tiles = build_tiles(request, tiling.block, listen)
    names = [spec.name for spec in request.specs]
    return DenseKernels(MemoryTiles(tiles, tiling, CODE_SCALE[request.precision]), names)


def stored_kernels(store: KernelStore, plan: Plan, resources: Resources) -> KernelStack:
    """Kernels of a store as the plan wants them: in memory, or tile by tile through Dask.

    Both give the same bits; only speed and memory differ.
    """
    if plan.kernels_in_memory:
        return DenseKernels.from_store(store)
    return TiledKernels(store, resources.runner, plan.residency)


def free_disk(path: Path) -> int:
    """Free bytes on the file system a path will be on."""
    existing = next(p for p in (path, *path.absolute().parents) if p.exists())
    return shutil.disk_usage(existing).free


def refuse_equal_rows(X: Matrix) -> None:
    """All samples equal: there is nothing to tell apart."""
    if X.shape[0] > 1 and _all_rows_equal(X):
        raise InputError(
            f"all {X.shape[0]} samples are equal: there is nothing to cluster, check that the rows "
            "are the samples"
        )


def _all_rows_equal(X: Matrix) -> bool:
    if isinstance(X, np.ndarray):
        return bool((X[0] == X).all())
    n, counts = X.shape[0], np.diff(X.indptr)
    if (counts != counts[0]).any():
        return False
    rows = X.indices.reshape(n, counts[0]), X.data.reshape(n, counts[0])
    return all(bool((part == part[0]).all()) for part in rows)


def _bytes_of(X: Matrix) -> int:
    if isinstance(X, np.ndarray):
        return int(X.nbytes)
    return int(16 * X.nnz + 8 * X.shape[0])  # float64 values and int64 indices, as stored


# the jobs of the command line


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


def build(
    path: Path,
    request: KernelRequest,
    plan: Plan,
    resources: Resources,
    listen: Listener = ignore,
) -> KernelStore:
    """Build, finish or reuse the store of a request."""
    return build_store(path, request, resources.runner, listen, plan.block)


def is_other_store(path: Path, request: KernelRequest) -> bool:
    """Whether a path holds a store of ours, but one made for other data or parameters."""
    if path.is_symlink() or not is_own_format(path):
        return False
    try:
        find_store(path, request)
    except StoreError:
        return True
    return False


def fit_into(
    out: Path,
    store: KernelStore,
    options: SolverOptions,
    resources: Resources,
    *,
    seed: int,
    n_init: int,
    listen: Listener = ignore,
    watch: Stopwatch | None = None,
) -> tuple[Clustering, dict[str, Any]]:
    """Fit on a store and write the run folder; returns the clustering and result.json's content."""
    watch = watch or Stopwatch({})
    options.check_samples(store.n_samples)
    plan = store_plan(store, options.n_clusters, resources)
    stack = stored_kernels(store, plan, resources)
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        found: Clustering = watch.time(
            "fit",
            lambda: fit_gmkcf(stack, options, seed=seed, n_init=n_init, listen=listen),
        )
    notes = list(dict.fromkeys(str(warning.message) for warning in raised))
    features = store.features() if store.manifest.n_features else None
    clusters = watch.time(
        "summary",
        lambda: summarize_clusters(found.labels, features, store.strings("terms")),
    )
    result = {
        "method": "gmkcf",
        "parameters": {**asdict(options), "n_init": n_init, "init": "random"},
        "seed": seed,
        "store": str(store.path.resolve()),
        "n_samples": store.n_samples,
        "precision": store.manifest.precision,
        "block_size": store.manifest.block_size,
        "kernels": [asdict(kernel) for kernel in store.manifest.kernels],
        "kernel_weights": dict(zip(found.kernel_names, found.weights.tolist(), strict=True)),
        "objective_history": list(found.history),
        "n_iter": found.n_iter,
        "converged": found.converged,
        "runs": [asdict(run) for run in found.runs],
        "clusters": [asdict(cluster) for cluster in clusters],
        "warnings": notes,
        "seconds": {stage: round(value, 3) for stage, value in watch.seconds.items()},
        "bytes": {
            "stored": store.stored_bytes(),
            "touched_per_iteration": plan.read_per_iteration,
            "planned_worker_peak": plan.worker_peak_bytes,
            "worker_peaks": list(resources.worker_peaks().values()),
        },
        "plan": asdict(plan),
        "versions": package_versions(),
    }
    factors = {"U": found.U, "V": found.V, "w": found.weights}
    write_run(out, store.ids, found.labels, factors, result)
    return found, result
