"""Single-kernel methods as generators, so that many of them can share each sweep.

A method yields an `Ask`, a block to be multiplied by its kernel, and gets the `Products` back; when
it ends it returns its result. `alone` runs one of them. `together` runs many, on one kernel or each
on a kernel of its own: in every round all that were asked are answered by one sweep, or by a few
where so many blocks would not fit into the workers' memory.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from gmkcf_dask.engine.operators import FusedKernel, KernelStack
from gmkcf_dask.errors import NumericsError
from gmkcf_dask.events import Listener, StageProgress, ignore

Floats = npt.NDArray[np.float64]
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
class Ask:
    """Z to be multiplied by the kernel, shape (n, c); with `split` K⁺ Z is wanted as well."""

    Z: Floats
    split: bool = False

    def __post_init__(self) -> None:
        refuse_nonfinite(Z=self.Z)


@dataclass(frozen=True)
class Products:
    """K Z, and K⁺ Z where it was asked for. Shapes (n, c)."""

    full: Floats
    positive: Floats | None = None

    def columns(self, where: slice) -> Products:
        positive = None if self.positive is None else self.positive[:, where]
        return Products(self.full[:, where], positive)


T = TypeVar("T")
Steps = Generator[Ask, Products, T]
Multiply = Callable[[Mapping[int, Ask]], dict[int, Products]]
"""From the questions of some runs, by number, to their answers."""


def alone(steps: Steps[T], kernel: FusedKernel) -> T:
    """Run one method to its end."""
    return together([steps], on_kernel(kernel))[0]


def together(
    runs: Sequence[Steps[T]],
    multiply: Multiply,
    listen: Listener = ignore,
    stage: str = "fit",
    before_round: Callable[[Mapping[int, T]], object] = lambda ended: None,
) -> list[T]:
    """Run methods to their ends, one sweep per round for all that are not done yet.

    A listener hears how many have ended, if there is more than one; `before_round` gets the results
    of those that have, by number, before every sweep.
    """
    results: dict[int, T] = {}
    asked: dict[int, Ask] = {}

    def advance(number: int, answer: Products | None) -> None:
        run = runs[number]
        try:
            asked[number] = next(run) if answer is None else run.send(answer)
        except StopIteration as end:
            asked.pop(number, None)
            results[number] = end.value

    try:
        for number in range(len(runs)):
            advance(number, None)
        while asked:
            before_round(results)
            if len(runs) > 1:
                listen(StageProgress(stage, len(results), len(runs), unit="runs"))
            for number, answer in multiply(dict(asked)).items():
                advance(number, answer)
    finally:
        for run in runs:
            run.close()
    if len(runs) > 1:
        listen(StageProgress(stage, len(results), len(runs), unit="runs"))
    return [results[number] for number in range(len(runs))]


def ended(result: T) -> Steps[T]:
    """A run that has nothing left to ask."""
    return result
    yield  # what makes it a generator


def on_kernel(kernel: FusedKernel) -> Multiply:
    """All runs use the same kernel."""

    def multiply(asked: Mapping[int, Ask]) -> dict[int, Products]:
        answers: dict[int, Products] = {}
        for split, numbers in _by_split(asked).items():
            for runs in _within(kernel.most_columns, numbers, asked):
                Z = np.hstack([asked[r].Z for r in runs])
                found = Products(*kernel.split_matmul(Z)) if split else Products(kernel.matmul(Z))
                _deal(found, runs, asked, answers)
        return answers

    return multiply


def on_each(stack: KernelStack, kernel_of: Sequence[int]) -> Multiply:
    """Run r uses kernel `kernel_of[r]` of the stack."""

    def multiply(asked: Mapping[int, Ask]) -> dict[int, Products]:
        answers: dict[int, Products] = {}
        nothing = np.empty((stack.n_samples, 0))
        for split, numbers in _by_split(asked).items():
            of = [[r for r in numbers if kernel_of[r] == i] for i in range(len(stack.names))]
            groups = [_within(stack.most_columns, runs, asked) for runs in of]
            for turn in zip_longest(*groups, fillvalue=[]):
                Zs = [np.hstack([nothing, *(asked[r].Z for r in runs)]) for runs in turn]
                found = stack.matmul_each(Zs, split=split)
                for runs, Z, product in zip(turn, Zs, found, strict=True):
                    c = Z.shape[1]
                    positive = product[:, c:] if split else None
                    _deal(Products(product[:, :c], positive), runs, asked, answers)
        return answers

    return multiply


def _within(most: int, numbers: Sequence[int], asked: Mapping[int, Ask]) -> list[list[int]]:
    """Runs whose blocks go into one product: as many as fit, at least one."""
    groups: list[list[int]] = []
    width = 0
    for number in numbers:
        columns = asked[number].Z.shape[1]
        if not groups or width + columns > most:
            groups.append([])
            width = 0
        groups[-1].append(number)
        width += columns
    return groups


def _by_split(asked: Mapping[int, Ask]) -> dict[bool, list[int]]:
    groups: dict[bool, list[int]] = {}
    for number, ask in asked.items():
        groups.setdefault(ask.split, []).append(number)
    return groups


def _deal(
    found: Products, numbers: Sequence[int], asked: Mapping[int, Ask], answers: dict[int, Products]
) -> None:
    """Give every run its own columns."""
    begin = 0
    for number in numbers:
        end = begin + asked[number].Z.shape[1]
        answers[number] = found.columns(slice(begin, end))
        begin = end
