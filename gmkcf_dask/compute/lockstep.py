"""Solvers as generators, so that many of them can share each sweep over a kernel.

A solver yields a `ProductRequest`, a block to be multiplied by its kernel, and gets the `Products`
back; it returns its result. `run_solver` runs one of them. `run_in_lockstep` runs many, on one
kernel or each on its own: one sweep serves all requests of a round, or a few sweeps where so many
blocks would not fit into the workers' memory.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TypeVar

import numpy as np

from gmkcf_dask.compute.operators import FusedKernel, KernelStack
from gmkcf_dask.errors import NumericsError
from gmkcf_dask.events import Listener, StageProgress, ignore
from gmkcf_dask.system.arrays import Floats

SCALE_THEM = (
    "scale them to [0, 1] with scaling minmax, matrices with "
    "Precomputed(matrix, name, scaling='minmax')"
)
"""The estimator's `scaling` is for kernels that are computed: matrices have their own."""


def refuse_nonfinite(**factors: Floats) -> None:
    """The one check of n×k matrices that leave an update: NaN must not spread, nor be saved."""
    for name, values in factors.items():
        if not np.isfinite(values).all():
            row = int(np.argmin(np.isfinite(values).all(axis=1)))
            raise NumericsError(
                f"{name} is no longer finite (sample {row}): the kernels hold numbers too large or "
                f"too small to multiply; {SCALE_THEM}"
            )


@dataclass(frozen=True)
class ProductRequest:
    """Z to be multiplied by the kernel, shape (n, c).

    With `split` K⁺ Z is needed as well, or only its `first` columns.
    """

    Z: Floats
    split: bool = False
    first: int | None = None

    def __post_init__(self) -> None:
        refuse_nonfinite(Z=self.Z)


@dataclass(frozen=True)
class Products:
    """K Z, and K⁺ Z where it was requested. Shapes (n, c)."""

    full: Floats
    positive: Floats | None = None

    def columns(self, where: slice) -> Products:
        positive = None if self.positive is None else self.positive[:, where]
        return Products(self.full[:, where], positive)


T = TypeVar("T")
SolverSteps = Generator[ProductRequest, Products, T]
Requests = Mapping[int, ProductRequest]
"""What some runs want multiplied, by the number of the run."""
Multiplier = Callable[[Requests], dict[int, Products]]


def run_solver(steps: SolverSteps[T], kernel: FusedKernel) -> T:
    """Run one solver to its end."""
    return run_in_lockstep([steps], multiply_by(kernel))[0]


def run_in_lockstep(
    runs: Sequence[SolverSteps[T]],
    multiply: Multiplier,
    listen: Listener = ignore,
    stage: str = "fit",
    before_round: Callable[[Mapping[int, T]], object] = lambda results: None,
) -> list[T]:
    """Run solvers to their ends, one sweep per round for all that are not done yet.

    With more than one run a listener gets the number that have ended; `before_round` gets their
    results, by number, before every sweep.
    """
    results: dict[int, T] = {}
    requests: dict[int, ProductRequest] = {}

    def advance(number: int, products: Products | None) -> None:
        run = runs[number]
        try:
            requests[number] = next(run) if products is None else run.send(products)
        except StopIteration as end:
            requests.pop(number, None)
            results[number] = end.value

    def report() -> None:
        if len(runs) > 1:
            listen(StageProgress(stage, len(results), len(runs), unit="runs"))

    try:
        for number in range(len(runs)):
            advance(number, None)
        while requests:
            before_round(results)
            report()
            for number, products in multiply(dict(requests)).items():
                advance(number, products)
    finally:
        for run in runs:
            run.close()
    report()
    return [results[number] for number in range(len(runs))]


def finished(result: T) -> SolverSteps[T]:
    """A run that has ended already."""
    return result
    yield  # makes it a generator


def multiply_by(kernel: FusedKernel) -> Multiplier:
    """All runs use the same kernel."""

    def multiply(requests: Requests) -> dict[int, Products]:
        products: dict[int, Products] = {}
        for split in (False, True):
            numbers = [r for r, request in requests.items() if request.split == split]
            for group in _group(kernel.most_columns, numbers, requests):
                Z = np.hstack([requests[r].Z for r in group])
                # blocks of several runs lie side by side: all of their columns then
                first = requests[group[0]].first if len(group) == 1 else None
                if split:
                    both = Products(*kernel.split_matmul(Z, first))
                else:
                    both = Products(kernel.matmul(Z))
                products |= _columns_of_each(both, group, requests)
        return products

    return multiply


def multiply_by_each(stack: KernelStack, kernel_of: Sequence[int]) -> Multiplier:
    """Run r uses kernel `kernel_of[r]` of the stack."""

    def multiply(requests: Requests) -> dict[int, Products]:
        products: dict[int, Products] = {}
        empty = np.empty((stack.n_samples, 0))
        for split in (False, True):
            numbers = [r for r, request in requests.items() if request.split == split]
            runs_of = [[r for r in numbers if kernel_of[r] == i] for i in range(len(stack.names))]
            groups = [_group(stack.most_columns, runs, requests) for runs in runs_of]
            for each in zip_longest(*groups, fillvalue=[]):
                Zs = [np.hstack([empty, *(requests[r].Z for r in group)]) for group in each]
                blocks = stack.matmul_each(Zs, split=split)
                for group, Z, block in zip(each, Zs, blocks, strict=True):
                    c = Z.shape[1]
                    both = Products(block[:, :c], block[:, c:] if split else None)
                    products |= _columns_of_each(both, group, requests)
        return products

    return multiply


def _group(max_columns: int, numbers: Sequence[int], requests: Requests) -> list[list[int]]:
    """Runs whose blocks go into one product: as many as fit, at least one."""
    groups: list[list[int]] = []
    width = 0
    for number in numbers:
        columns = requests[number].Z.shape[1]
        if not groups or width + columns > max_columns:
            groups.append([])
            width = 0
        groups[-1].append(number)
        width += columns
    return groups


def _columns_of_each(
    products: Products, numbers: Sequence[int], requests: Requests
) -> dict[int, Products]:
    """Every run's own columns of a product."""
    ends = np.cumsum([requests[number].Z.shape[1] for number in numbers])
    return {
        number: products.columns(slice(end - requests[number].Z.shape[1], end))
        for number, end in zip(numbers, ends.tolist(), strict=True)
    }
