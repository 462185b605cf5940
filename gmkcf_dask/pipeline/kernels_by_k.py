"""Kernels for several numbers of clusters, where they depend on that: the heat kernels.

Local kernels use the same columns for all k up to 50, and tiles are the same for every k.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gmkcf_dask.cluster import Resources
from gmkcf_dask.compute.combined import CombinedKernels
from gmkcf_dask.compute.factor_plan import FactorPlan
from gmkcf_dask.compute.factored import FactoredKernels
from gmkcf_dask.compute.operators import KernelStack
from gmkcf_dask.compute.plan import Plan
from gmkcf_dask.methods.select_k import StackOf
from gmkcf_dask.pipeline.kernels import (
    MemoryKernels,
    memory_factors,
    readable_arrays,
    stored_factors,
)
from gmkcf_dask.store.kernel_store import KernelStore
from gmkcf_dask.store.request import KernelRequest


def memory_kernels_by_k(request: KernelRequest, made: MemoryKernels) -> StackOf | None:
    """Kernels in memory for k clusters; None where they are the same for every k."""
    if made.arrays is None or "heat" not in request.factored.values():
        return None
    arrays, wide = readable_arrays(request, made.arrays), request.precision == "float64"

    def factors(k: int) -> FactoredKernels:
        return FactoredKernels(memory_factors(request.factored, arrays, k, wide=wide))

    return _beside_tiles(made.stack, factors)


def stored_kernels_by_k(
    store: KernelStore, plan: Plan | FactorPlan, resources: Resources, stack: KernelStack
) -> StackOf | None:
    """The same for a store, whose kernels for the clusters of the plan are `stack`."""
    kinds = {record.kind for record in store.manifest.factored}
    if not isinstance(plan, FactorPlan) or "heat" not in kinds:
        return None

    def factors(k: int) -> FactoredKernels:
        return stored_factors(store, replace(plan, n_clusters=k), resources)

    return _beside_tiles(stack, factors)


def _beside_tiles(stack: KernelStack, factors: Callable[[int], FactoredKernels]) -> StackOf:
    """Tiles stay where they are."""
    if isinstance(stack, CombinedKernels):
        tiled = stack.tiled
        return lambda k: CombinedKernels(tiled, factors(k))
    return factors
