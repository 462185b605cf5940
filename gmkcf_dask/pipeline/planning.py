"""Plans of builds and fits: what a request or a store needs of the resources that are there."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gmkcf_dask.cluster import LazyCluster, Resources, threads
from gmkcf_dask.compute.costs import Job, StoredGram, expected_gram
from gmkcf_dask.compute.factor_plan import (
    FactorPlan,
    FactorSizes,
    OwnFactor,
    factor_sizes,
    make_factor_plan,
)
from gmkcf_dask.compute.plan import (
    Plan,
    Residency,
    make_plan,
    refuse_beyond_machine,
    refuse_large_driver,
)
from gmkcf_dask.corpus.model import Matrix
from gmkcf_dask.errors import InputError, PlanRefused
from gmkcf_dask.kernels.factored import (
    FOR_CLUSTERS,
    PRODUCTS,
    array_of,
    most_clusters,
    parts_of,
)
from gmkcf_dask.kernels.gram import is_function_of_gram
from gmkcf_dask.kernels.neighbours import choose_terms, exact_work
from gmkcf_dask.kernels.specs import is_thin
from gmkcf_dask.kernels.tiling import default_block
from gmkcf_dask.methods.base import MEAN, Method, SingleKernelMethod
from gmkcf_dask.store.build import StorePlace
from gmkcf_dask.store.factors import document_frequencies
from gmkcf_dask.store.files import exists, free_bytes
from gmkcf_dask.store.kernel_store import KernelStore
from gmkcf_dask.store.object_storage import is_remote
from gmkcf_dask.store.preflight import may_keep_scratch
from gmkcf_dask.store.request import KernelRequest
from gmkcf_dask.store.scratch import sweep_scratch
from gmkcf_dask.system.disk_space import folder_in_errors
from gmkcf_dask.system.resources import free_memory


def request_plan(
    request: KernelRequest,
    n_clusters: int,
    resources: Resources,
    place: StorePlace | None = None,
    disk_free: int | None = None,
    residency: Residency | None = None,
    job: Job | None = None,
) -> Plan | FactorPlan:
    """The plan for building a store and fitting on it; an existing store sets the tile size.

    `job` says what is fitted, one run of gmkcf when not given; see `job_of`.
    """
    existing = None if place is None else place.store
    if existing is not None:
        request = request.as_stored(existing.manifest)
    disk_free = disk_free if place is None else usable_disk(place.path)
    built = existing is not None and existing.manifest.complete
    tiles = None
    if request.tiled:
        tiles = _request_tiles_plan(
            request, n_clusters, resources, place, disk_free, residency, job
        )
    if not request.factored:
        assert tiles is not None
        return tiles
    if request.limits_clusters:
        refuse_more_clusters(request.names, n_clusters, request.max_clusters)
    sizes = _request_sizes(request, n_clusters)
    block = existing.manifest.block_size if existing else request.block
    return _factor_plan(resources, sizes, disk_free, job, block, tiles, built=built)


def refuse_large_factors(request: KernelRequest, n_clusters: int, job: Job | None = None) -> None:
    """Refuse factored kernels that do not fit into the memory of this process, with a job."""
    block = request.block
    _factor_plan(
        threads(), _request_sizes(request, n_clusters), None, job, block, None, built=False
    )


def _request_sizes(request: KernelRequest, n_clusters: int) -> FactorSizes:
    X = None if request.corpus is None else request.corpus.X
    additions = terms = None
    if "local" in request.factored.values() and X is not None and not isinstance(X, np.ndarray):
        frequencies = document_frequencies(request.features, X.shape[1])
        additions, terms = int(exact_work(frequencies)), choose_terms(frequencies)
    return factor_sizes(
        request.factored,
        request.n_samples,
        0 if X is None else X.shape[1],
        n_clusters,
        request.max_clusters,
        0 if X is None else _bytes_of(X),
        own=_own_sizes(request),
        additions=additions,
        index_terms=terms,
    )


def plan_and_start(
    request: KernelRequest,
    n_clusters: int,
    cluster: LazyCluster,
    place: StorePlace,
    *,
    residency: Residency | None = None,
    job: Job | None = None,
) -> tuple[Resources, Plan | FactorPlan]:
    """Start the cluster once a plan on its description is good, and plan on what runs."""
    n = request.n_samples
    with folder_in_errors(place.path):
        if (described := cluster.describe(n)) is not None:
            request_plan(request, n_clusters, described, place, residency=residency, job=job)
    resources = cluster.start(n)
    with folder_in_errors(place.path):
        plan = request_plan(request, n_clusters, resources, place, residency=residency, job=job)
    return resources, plan


def _request_tiles_plan(
    request: KernelRequest,
    n_clusters: int,
    resources: Resources,
    place: StorePlace | None,
    disk_free: int | None,
    residency: Residency | None,
    job: Job | None,
) -> Plan:
    existing = None if place is None else place.store
    X = None if request.corpus is None else request.corpus.X
    return _plan(
        resources,
        (request.n_samples, 0 if X is None else X.shape[1], len(request.tiled), n_clusters),
        feature_bytes=0 if X is None else _bytes_of(X),
        precision=request.precision,
        block=request.block if existing is None else existing.manifest.block_size,
        disk_free=disk_free,
        scratch=disk_free is not None,
        remote=place is not None and is_remote(place.path),
        tiles_stored=0 if existing is None else len(existing.manifest.tiles_done),
        residency=residency,
        largest_rows=None if X is None else partial(_largest_rows, X),
        signed=any(kernel.scaling == "none" for kernel in request.kernels),
        job=job,
        gram=_gram_of_request(request),
        gram_instead=_gram_instead(request),
    )


def _gram_of_request(request: KernelRequest) -> StoredGram | None:
    """What the kernels of a request will be evaluated from."""
    if request.gram is None:
        return None
    beside = len(request.tiled) - len(request.in_gram)
    return StoredGram(request.gram.itemsize, request.gram.tabulated, beside)


def _gram_instead(request: KernelRequest) -> StoredGram | None:
    """What they could be evaluated from, where each is to have an array."""
    if request.gram is not None or request.merge_duplicates:
        return None
    in_gram = sum(map(is_function_of_gram, request.tiled))
    return expected_gram(in_gram, len(request.tiled), request.precision)


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
    kinds = {record.name: record.kind for record in m.factored}
    if any(kind in FOR_CLUSTERS for kind in kinds.values()):
        refuse_more_clusters(m.kernel_names, n_clusters, most)
    own = _stored_own_sizes(store)
    sizes = factor_sizes(kinds, m.n_samples, m.n_features, n_clusters, most, 0, own=own)
    return _factor_plan(resources, sizes, None, job, m.block_size, tiles, built=True)


def plan_fit_and_start(
    store: KernelStore, n_clusters: int, cluster: LazyCluster, job: Job | None = None
) -> tuple[Resources, Plan | FactorPlan]:
    """The same as `plan_and_start` for a finished store."""
    if (described := cluster.describe(store.n_samples)) is not None:
        store_plan(store, n_clusters, described, job)
    resources = cluster.start(store.n_samples)
    return resources, store_plan(store, n_clusters, resources, job)


def _own_sizes(request: KernelRequest) -> list[OwnFactor]:
    """Factors that are given, and features that are factors."""
    n, size = request.n_samples, np.dtype(_factor_dtype(request.precision)).itemsize
    own = [
        OwnFactor.of(s.factor.shape, s.factor.nnz if is_thin(s.factor) else None,
                     s.factor.dtype.itemsize, written=True)
        for s in request.given_factors
    ]  # fmt: skip
    if request.corpus is not None:
        X = request.corpus.X
        entries = None if isinstance(X, np.ndarray) else X.nnz
        products = [kind for kind in request.factored.values() if kind in PRODUCTS]
        own += [OwnFactor.of((n, X.shape[1]), entries, size, written=False)] * len(products)
    return own


def _stored_own_sizes(store: KernelStore) -> list[OwnFactor]:
    m, own = store.manifest, []
    for one in m.factored:
        if one.kind in PRODUCTS:
            data = m.features.get("data")
            entries = None if data is None else data.shape[0]
            size = np.dtype(_factor_dtype(m.precision)).itemsize
            own.append(OwnFactor.of((m.n_samples, m.n_features), entries, size, written=False))
        elif one.kind == "given" and one.columns is not None:
            values = m.factors[parts_of(one.name)[2]]
            entries, size = values.shape[0] * values.shape[1], np.dtype(values.dtype).itemsize
            shape = (m.n_samples, one.columns)
            own.append(OwnFactor.of(shape, entries, size, written=False))
        elif one.kind == "given":
            array = m.factors[array_of(one.name, one.kind)]
            rows, columns = array.shape
            size = np.dtype(array.dtype).itemsize
            own.append(OwnFactor.of((rows, columns), None, size, written=False))
    return own


def _factor_dtype(precision: str) -> str:
    return "float64" if precision == "float64" else "float32"


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
        disk_free=usable_disk(store.path),
        scratch=may_keep_scratch(resources.runner, store.path),
        remote=is_remote(store.path),
        tiles_stored=m.n_tiles,
        signed=min((m.stored_minima or {"": 0.0}).values()) < 0.0,
        job=job,
        gram=m.stored_gram,
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


def free_disk(path: Path) -> int | None:
    """Free bytes on the file system a path will be on; None for object stores: they have no end."""
    return free_bytes(path)


def disk_to_fill(store: Path) -> int | None:
    """Free bytes where a new store would go; None where there is one, which may be used again."""
    return None if exists(store) else free_disk(store)


def usable_disk(store: Path) -> int | None:
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
