"""Kernels for a fit: in the memory of this process, or in a store, as the plan wants them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from gmkcf_dask.cluster import Resources
from gmkcf_dask.compute.blas import one_blas_thread
from gmkcf_dask.compute.build_tasks import BuiltTiles, tiles_of
from gmkcf_dask.compute.combined import CombinedKernels
from gmkcf_dask.compute.costs import (
    Job,
    StoredGram,
    dense_fit_bytes,
    expected_gram,
    tiled_bytes,
)
from gmkcf_dask.compute.dense import DEFAULT_BLOCK, DenseKernels
from gmkcf_dask.compute.factor_plan import FactorPlan
from gmkcf_dask.compute.factored import FactoredKernels, MemoryFactors, of_dtype
from gmkcf_dask.compute.operators import KernelStack
from gmkcf_dask.compute.plan import Plan
from gmkcf_dask.compute.tiled import ResidencyMonitor, TiledKernels
from gmkcf_dask.errors import PlanRefused
from gmkcf_dask.events import Listener, ignore
from gmkcf_dask.kernels.factor_cross import Arrays, views_of
from gmkcf_dask.kernels.factored import FEATURES, FactorKind, FactorView
from gmkcf_dask.kernels.features import Features
from gmkcf_dask.kernels.gram import gram_for, is_function_of_gram
from gmkcf_dask.kernels.specs import Layout
from gmkcf_dask.kernels.tiles import ResolvedKernel
from gmkcf_dask.kernels.tiling import FACTOR_ROWS, Precision, Tiling
from gmkcf_dask.pipeline.planning import (
    refuse_large_factors,
    refuse_more_clusters,
    usable_disk,
)
from gmkcf_dask.store.factors import MemoryArrays, StoredFactorSource, factor_stages
from gmkcf_dask.store.kernel_store import KernelStore
from gmkcf_dask.store.preflight import may_keep_scratch, refuse_blind_workers
from gmkcf_dask.store.request import KernelRequest
from gmkcf_dask.system.arrays import Floats
from gmkcf_dask.system.resources import free_memory
from gmkcf_dask.system.units import human_bytes


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
        names,
        request.kernels,
        request.features,
        request.block,
        request.precision,
        listen,
        layout="each" if request.gram is None else "gram",
        job=job,
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
    layout: Layout = "each",
    job: Job | None = None,
) -> tuple[DenseKernels, BuiltTiles]:
    """The same for resolved kernels; refused where there is no memory for them in this process.

    `stored` gives for every name the index of its kernel, where one kernel stands for others.
    """
    X = None if layout == "each" else features.rows(slice(0, features.n_samples))
    matrix = gram_for(kernels, X, precision, layout)
    m, in_gram = len(kernels), sum(is_function_of_gram(kernel.spec) for kernel in kernels)
    tiling, keep_fused = _tiling_in_memory(
        m,
        features.n_samples,
        block,
        precision,
        job,
        None if matrix is None else StoredGram(matrix.itemsize, matrix.tabulated, m - in_gram),
        expected_gram(in_gram, m, precision) if matrix is None else None,
    )
    with one_blas_thread():
        built = tiles_of(kernels, features, tiling.block, precision, listen, matrix)
    each = tuple(range(len(kernels))) if stored is None else stored
    tiles = built.tiles(tiling, precision, each)
    return DenseKernels(tiles, names, keep_fused=keep_fused), built


def _tiling_in_memory(
    m: int,
    n: int,
    block: int | None,
    precision: Precision,
    job: Job | None,
    gram: StoredGram | None = None,
    gram_instead: StoredGram | None = None,
) -> tuple[Tiling, bool]:
    """The tiles of m kernels of n samples, once there is memory for them in this process.

    And whether there is room for the fused kernel: from a Gram matrix it can be fused for every
    product. Where each kernel has its tiles, `gram_instead` is what layout gram would take.
    """
    tiling, free = Tiling(n, block or DEFAULT_BLOCK, gram=gram is not None), free_memory()
    fitting = _fitting_bytes(m, tiling, precision, job, gram)
    need = tiled_bytes(tiling, m, precision, gram)
    if _fits(need, fitting, free):
        return tiling, True
    if gram is not None:
        need = tiled_bytes(tiling, m, precision, gram, keep_fused=False)
        if _fits(need, fitting, free):
            return tiling, False
    ways = "give a store path to work out of core"
    if gram_instead is not None:
        smaller = tiled_bytes(tiling, m, precision, gram_instead, keep_fused=False)
        if _fits(smaller, _fitting_bytes(m, tiling, precision, job, gram_instead), free):
            ways = f"choose layout gram, which takes about {human_bytes(smaller)}, or {ways}"
    needs = f"{m} kernels of {n:,} samples need {human_bytes(need)} of memory"
    if _fits(need, 0, free):
        assert job is not None
        raise PlanRefused(
            f"{needs} and {job.words()} with {job.n_clusters} clusters {human_bytes(fitting)}, but "
            f"{human_bytes(free)} are free: give more memory or fewer clusters, or {ways}"
        )
    raise PlanRefused(f"{needs} but {human_bytes(free)} are free: {ways}")


def _fits(need: int, fitting: int, free: int) -> bool:
    """Whether kernels fit, and a fit beside them; what is left is for the tiles being made."""
    return need <= free * 8 // 10 and need + fitting <= free


def _fitting_bytes(
    m: int, tiling: Tiling, precision: Precision, job: Job | None, gram: StoredGram | None
) -> int:
    return 0 if job is None else dense_fit_bytes(job, tiling, m, precision, gram=gram)


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
    if request.limits_clusters:
        refuse_more_clusters(request.names, n_clusters, request.max_clusters)
    refuse_large_factors(request, n_clusters, job)
    arrays = MemoryArrays()
    arrays.build(factor_stages(request.factors, request.features, arrays), listen)
    read = readable_arrays(request, arrays.arrays)
    wide = request.precision == "float64"
    factored = FactoredKernels(memory_factors(request.factored, read, n_clusters, wide=wide))
    if dense is None or built is None:
        return MemoryKernels(factored, FACTOR_ROWS, arrays=arrays.arrays)
    both = CombinedKernels(dense, factored)
    return MemoryKernels(both, dense.block_size, built.kernels, built.norms, arrays.arrays)


def readable_arrays(request: KernelRequest, arrays: Mapping[str, npt.NDArray[Any]]) -> MemoryArrays:
    """What factors are read from: arrays that were made, and the features."""
    features = {} if request.corpus is None else {FEATURES: request.corpus.X}
    return MemoryArrays({**arrays, **features})


def memory_factors(
    kinds: Mapping[str, FactorKind],
    arrays: Arrays,
    n_clusters: int,
    *,
    wide: bool,
) -> MemoryFactors:
    """The factors of kernels for so many clusters; `wide` keeps features in float64."""

    def factor(view: FactorView) -> Any:
        Z = view.rows(arrays.read(view.array))
        return Z if wide or view.array != FEATURES else of_dtype(Z, np.dtype("f4"))

    return MemoryFactors.of(list(map(factor, views_of(kinds, arrays, n_clusters))), list(kinds))


def stored_kernels(
    store: KernelStore, plan: Plan | FactorPlan, resources: Resources
) -> KernelStack:
    """Kernels of a store as the plan wants them, in memory or through Dask: the same bits."""
    if isinstance(plan, FactorPlan):
        factored = stored_factors(store, plan, resources)
        if plan.tiles is None:
            return factored
        return CombinedKernels(stored_kernels(store, plan.tiles, resources), factored)
    if plan.kernels_in_memory:
        return DenseKernels.from_store(store, keep_fused=plan.residency == "memory")
    refuse_blind_workers(resources.runner, store.path, store.manifest.store_id, write=False)

    def scratch_room() -> int | None:
        return usable_disk(store.path) if may_keep_scratch(resources.runner, store.path) else None

    watch = ResidencyMonitor(resources.runner, plan, scratch_room)
    return TiledKernels(
        store, resources.runner, plan.residency, watch.residency, plan.prefetch_bytes
    )


def stored_factors(store: KernelStore, plan: FactorPlan, resources: Resources) -> FactoredKernels:
    """The factored kernels of a store for the clusters of a plan."""
    kinds = {record.name: record.kind for record in store.manifest.factored}
    arrays, wide = store.factors(), store.manifest.precision == "float64"
    if plan.kernels_in_memory:
        return FactoredKernels(memory_factors(kinds, arrays, plan.n_clusters, wide=wide))
    refuse_blind_workers(resources.runner, store.path, store.manifest.store_id, write=False)
    views = views_of(kinds, arrays, plan.n_clusters)
    return FactoredKernels(StoredFactorSource.of(arrays, views, wide=wide), resources.runner)
