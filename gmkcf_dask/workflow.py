"""plan → build → fit → results, as functions: what the command line and the estimators share."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil

from gmkcf_dask.adaptive import Watch
from gmkcf_dask.blas import one_blas_thread
from gmkcf_dask.cluster import Resources
from gmkcf_dask.corpus.model import Matrix
from gmkcf_dask.engine.dense import DEFAULT_BLOCK, DenseKernels
from gmkcf_dask.engine.operators import KernelStack, error_floor
from gmkcf_dask.engine.tiled import TiledKernels
from gmkcf_dask.engine.tiles import MemoryTiles
from gmkcf_dask.errors import HopelessInputError, PlanRefused, StoreError
from gmkcf_dask.events import Listener, ignore
from gmkcf_dask.files import free_bytes, is_link
from gmkcf_dask.kernels.build import Tell, build_store, build_tiles, find_store, tell_nobody
from gmkcf_dask.kernels.lease import writing
from gmkcf_dask.kernels.magnitudes import LARGEST_TRACE, SMALLEST_DIAGONAL
from gmkcf_dask.kernels.manifest import is_own_format, package_versions
from gmkcf_dask.kernels.preflight import may_keep_scratch, refuse_blind_workers
from gmkcf_dask.kernels.request import KernelRequest
from gmkcf_dask.kernels.scratch import sweep_scratch
from gmkcf_dask.kernels.store import KernelStore, delete_store
from gmkcf_dask.kernels.tiles import CODE_SCALE
from gmkcf_dask.methods.base import (
    MEAN,
    Clustering,
    Method,
    MultipleKernelMethod,
    SingleKernelMethod,
)
from gmkcf_dask.methods.checkpoints import NO_CHECKPOINTS, Checkpoints
from gmkcf_dask.plan import (
    Plan,
    Precision,
    Residency,
    Tiling,
    human_bytes,
    make_plan,
    refuse_beyond_machine,
    tiled_bytes,
)
from gmkcf_dask.results.checkpoints import FOLDER as CHECKPOINT
from gmkcf_dask.results.checkpoints import (
    has_checkpoint,
    open_checkpoints,
    plain,
    remove_checkpoints,
)
from gmkcf_dask.results.insight import About, explain
from gmkcf_dask.results.meaning import Profile, read_profile
from gmkcf_dask.results.outcome import (
    add_insight,
    cluster_entries,
    explain_run,
    result_bytes,
    run_result,
    store_name,
    store_samples,
)
from gmkcf_dask.results.past import model_of_run, store_of_run
from gmkcf_dask.results.run import holds_run, read_result, remove_run, write_run
from gmkcf_dask.results.stopwatch import Stopwatch as Stopwatch

Floats = npt.NDArray[np.float64]


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
    return {"store": m.store_id, **_kernels_identity(m.names, m.precision, m.block_size), **inputs}


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


def refuse_extremes(stack: KernelStack) -> None:
    """A kernel of hardly any size would take all the weight, products of a huge one overflow."""
    precision: Precision = (
        "float64" if stack.error_floor < error_floor(np.dtype("f4")) else "float32"
    )
    for name, trace in zip(stack.names, stack.traces, strict=True):
        mean = trace / stack.n_samples
        if not (mean > SMALLEST_DIAGONAL[precision] and trace < LARGEST_TRACE[precision]):
            raise HopelessInputError(
                f"kernel {name} has a mean diagonal of {mean:.3g}, which must be positive and "
                f"neither too small nor too large for products in {precision}: scale it to [0, 1], "
                "or leave it out"
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
    disk_free = disk_free if store is None else _room(store)
    block = request.block if found is None else found.manifest.block_size
    X = None if request.corpus is None else request.corpus.X
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
        tiles_stored=0 if found is None else len(found.manifest.tiles_done),
        one_process=resources.in_this_process,
        residency=residency,
        largest_rows=None if X is None else partial(_largest_rows, X),
        signed=any(kernel.scaling == "none" for kernel in request.kernels),
    )
    return _on_machine(plan, resources)


def store_plan(store: KernelStore, n_clusters: int, resources: Resources) -> Plan:
    """The plan for fitting on a finished store."""
    m = store.manifest
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
        tiles_stored=m.tiling.n_tiles,
        one_process=resources.in_this_process,
        signed=min((m.stored_minima or {"": 0.0}).values()) < 0.0,
    )
    return _on_machine(plan, resources)


def _on_machine(plan: Plan, resources: Resources) -> Plan:
    if resources.machine_memory is not None:
        refuse_beyond_machine(plan, resources.machine_memory)
    return plan


def dense_kernels(
    request: KernelRequest, listen: Listener = ignore, tell: Tell = tell_nobody
) -> DenseKernels:
    """Kernels in the memory of this process, refused where they do not fit."""
    tiling = room_for(len(request.specs), request.n_samples, request.block, request.precision)
    with one_blas_thread():
        stacks = build_tiles(request, tiling.block, listen, tell)
    names = [spec.name for spec in request.specs]
    each = tuple(range(len(names)))
    return DenseKernels(MemoryTiles(stacks, tiling, CODE_SCALE[request.precision], each), names)


def room_for(m: int, n: int, block: int | None, precision: Precision) -> Tiling:
    """The tiles of m kernels of n samples, once there is memory for them in this process."""
    tiling = Tiling(n, block or DEFAULT_BLOCK)
    need, free = tiled_bytes(tiling, m, precision), int(psutil.virtual_memory().available)
    if need > free * 8 // 10:  # the rest is for the tiles being made, and for others
        raise PlanRefused(
            f"{m} kernels of {n:,} samples need {human_bytes(need)} of memory but "
            f"{human_bytes(free)} are free: give a store path to work out of core"
        )
    return tiling


def stored_kernels(store: KernelStore, plan: Plan, resources: Resources) -> KernelStack:
    """Kernels of a store as the plan wants them, in memory or through Dask: the same bits."""
    if plan.kernels_in_memory:
        return DenseKernels.from_store(store)
    refuse_blind_workers(resources.runner, store.path, store.manifest.store_id, write=False)

    def scratch_room() -> int | None:
        return _room(store.path) if may_keep_scratch(resources.runner, store.path) else None

    watch = Watch(resources.runner, plan, scratch_room)
    return TiledKernels(store, resources.runner, plan.residency, watch.residency)


def free_disk(path: Path) -> int | None:
    """Free bytes on the file system a path will be on; None for object stores: they have no end."""
    return free_bytes(path)


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
) -> KernelStore:
    """Build, finish or reuse the store of a request; by force where another build was killed."""
    return build_store(path, request, resources.runner, listen, plan.block, force=force)


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


def is_finished(
    out: Path,
    store: KernelStore | None,
    method: Method,
    *,
    seed: int,
    kernels: Sequence[str] = (MEAN,),
) -> bool:
    """Whether `fit_into` of the same has come to its end; refused where another run has.

    Without a store there can be no run of it.
    """
    if has_checkpoint(out / CHECKPOINT):
        return False
    identity = {"store": None} if store is None else store_identity(store)
    fingerprint = run_fingerprint(identity, method, seed, kernels)
    inside = [holds_run(out / name, fingerprint) for name in kernels if len(kernels) > 1]
    return holds_run(out, fingerprint) or (bool(inside) and all(inside))


def fit_into(
    out: Path,
    store: KernelStore,
    method: Method,
    resources: Resources,
    *,
    seed: int,
    kernels: Sequence[str] = (MEAN,),
    listen: Listener = ignore,
    watch: Stopwatch | None = None,
    checkpoint_every: int | None = None,
    resume: bool = False,
    still_ours: Callable[[], None] = lambda: None,
    command: str | None = None,
    title: str | None = None,
    said_before: Sequence[str] = (),
) -> list[tuple[Clustering, dict[str, Any]]]:
    """Fit on a store and write the run folder; returns clusterings and what result.json holds.

    With several kernels there is a run folder for each inside `out`. Until all are written there
    is a checkpoint in `out`, from which a later call goes on with `resume`. Of two that write to
    one folder the second is refused by `kernels.lease.owning`, for the caller to hold; `still_ours`
    is what it yields. `command` and `title`, the name of the store unless given, are for the reader
    of insight.json, which is written when all else is. `said_before` are notes of reading and
    building, which belong to the results.
    """
    watch = watch or Stopwatch({})
    method.check_samples(store.n_samples)
    fingerprint = run_fingerprint(store_identity(store), method, seed, kernels)
    plan = store_plan(store, method.n_clusters, resources)
    stack = stored_kernels(store, plan, resources)
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        checkpoints = open_checkpoints(
            out / CHECKPOINT,
            fingerprint,
            checkpoint_every,
            resume=resume,
            still_ours=still_ours,
        )

        def notes() -> list[str]:
            here = (str(warning.message) for warning in raised)
            said = (*said_before, *checkpoints.earlier_notes, *here)
            return list(dict.fromkeys(said))

        checkpoints.notes = notes
        with checkpoints.until_done():
            clusterings: list[Clustering] = watch.time(
                "fit", lambda: fit(stack, method, [seed], kernels, listen, checkpoints)
            )
    samples, k = store_samples(store), method.n_clusters
    results, folders = [], []
    profile: Profile | None = None
    for found in clusterings:
        U = found.factors.get("U")
        profile = watch.time("summary", partial(read_profile, found.labels, k, samples.features, U))
        result = run_result(store, method, found, plan, resources)
        result |= {
            "fingerprint": plain(fingerprint),
            "clusters": cluster_entries(found, k, profile, samples.terms, samples.texts),
            "warnings": notes(),
            "seconds": watch.rounded(),
        }
        folder = out
        if len(clusterings) > 1:
            remove_run(out)  # of an earlier, single run
            folder = out / str(found.kernel)
        factors = {**found.factors, "w": found.weights}
        still_ours()
        write_run(folder, store.ids, found.labels, factors, result)
        results.append((found, result))
        folders.append(folder)
    remove_checkpoints(checkpoints.folder)
    about = About(title or store_name(store.path), command)
    profile = profile if len(results) == 1 else None
    for folder, (found, result) in zip(folders, results, strict=True):
        insight = explain_run(stack, method, found, samples, result, about, profile, listen, watch)
        if insight is not None:
            still_ours()
            add_insight(folder, insight, result)
    return results


def explain_again(run: Path, resources: Resources, listen: Listener = ignore) -> dict[str, Any]:
    """insight.json of a run that was broken off before it was written, from its store."""
    model, result = model_of_run(run), read_result(run)
    store = store_of_run(result, run)
    plan = store_plan(store, model.method.n_clusters, resources)
    stack = stored_kernels(store, plan, resources)
    about = About(run.name, None, result["seconds"], result_bytes(result), result["warnings"])
    return explain(stack, model.method, model.found, store_samples(store), about, listen=listen)
