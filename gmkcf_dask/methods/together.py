"""Different methods on the mean of all kernels, sharing every sweep.

Runs of one method share sweeps by themselves. Here runs of several methods go in lock-step: one
product serves all that ask for one in a round.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from gmkcf_dask.compute.blas import one_blas_thread
from gmkcf_dask.compute.costs import SHARED_BYTES, run_bytes
from gmkcf_dask.compute.lockstep import (
    Multiplier,
    Products,
    Requests,
    SolverSteps,
    multiply_by,
    run_in_lockstep,
)
from gmkcf_dask.compute.operators import KernelStack
from gmkcf_dask.events import ignore
from gmkcf_dask.methods.base import (
    MEAN,
    NEW_RUN,
    Clustering,
    RunSummary,
    SingleKernelMethod,
    fused_kernel,
    kernel_weights,
    no_weights,
)

AnyMethod = SingleKernelMethod[Any, Any]


def may_share(methods: Sequence[AnyMethod], n: int) -> bool:
    """Whether the runs of several methods may be held side by side on the driver."""
    held = sum(run_bytes(m.name, n, m.n_clusters) * m.n_init for m in methods)
    return len(methods) > 1 and held <= SHARED_BYTES


def fit_together(
    stack: KernelStack, methods: Sequence[AnyMethod], seed: int
) -> list[tuple[Clustering, float]]:
    """A clustering by each method, as it finds it alone, and its seconds.

    A sweep counts for each method by its columns.
    """
    weights = kernel_weights(stack, MEAN)
    owners: list[int] = []
    seconds = [0.0] * len(methods)
    with fused_kernel(stack, weights) as kernel, one_blas_thread():
        runs = []
        for i, method in enumerate(methods):
            method.check_samples(stack.n_samples)
            for start in method.starts(stack.n_samples, seed):
                steps = method.run(kernel, start, weights, stack.error_floor, NEW_RUN)
                runs.append(_timed(steps, seconds, i))
                owners.append(i)
        multiply = _shared(multiply_by(kernel), seconds, owners)
        ends = run_in_lockstep(runs, multiply)
        found = []
        for i, method in enumerate(methods):
            own = [end for end, owner in zip(ends, owners, strict=True) if owner == i]
            best = min(own, key=lambda end: end.history[-1])
            begun = time.perf_counter()
            labels, factors = method.conclude(best, seed, ignore)
            seconds[i] += time.perf_counter() - begun
            clustering = Clustering(
                labels,
                weights,
                stack.names,
                best.history,
                best.converged,
                tuple(map(RunSummary.of, own)),
                seed,
                factors,
                MEAN,
                no_weights(len(stack.names)),
            )
            found.append((clustering, seconds[i]))
    return found


def _timed(steps: SolverSteps[Any], seconds: list[float], owner: int) -> SolverSteps[Any]:
    """The same run; the time between its products is counted."""
    products: Products | None = None
    while True:
        begun = time.perf_counter()
        try:
            request = next(steps) if products is None else steps.send(products)
        except StopIteration as end:
            return end.value
        finally:
            seconds[owner] += time.perf_counter() - begun
        products = yield request


def _shared(multiply: Multiplier, seconds: list[float], owners: Sequence[int]) -> Multiplier:
    """The same products; their time is counted for those that asked, by their columns."""

    def timed(requests: Requests) -> dict[int, Products]:
        begun = time.perf_counter()
        products = multiply(requests)
        took = time.perf_counter() - begun
        columns = sum(request.Z.shape[1] for request in requests.values())
        for number, request in requests.items():
            seconds[owners[number]] += took * request.Z.shape[1] / max(1, columns)
        return products

    return timed
