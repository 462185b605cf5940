"""What a method is: parameters that can be fitted to an operator for one seed or many."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np

from gmkcf_dask.compute.blas import one_blas_thread
from gmkcf_dask.compute.costs import runs_together
from gmkcf_dask.compute.operators import FusedKernel, KernelStack
from gmkcf_dask.errors import InputError, NumericsWarning
from gmkcf_dask.events import Listener, StageProgress, ignore
from gmkcf_dask.methods import checkpointing
from gmkcf_dask.methods.checkpointing import (
    NO_CHECKPOINTS,
    SUMMARY,
    Checkpoints,
    CheckpointSlot,
    Schema,
    SharedCheckpoints,
    State,
    as_state,
    from_state,
    validate_state,
)
from gmkcf_dask.methods.lockstep import (
    SolverSteps,
    finished,
    multiply_by,
    multiply_by_each,
    run_in_lockstep,
)
from gmkcf_dask.system.arrays import Floats, Labels

S = TypeVar("S")
MEAN = "mean"
"""The name of the equal-weight mean of all kernels."""


def no_weights(m: int) -> Floats:
    """The history of weights that are not learned, shape (0, m)."""
    return np.empty((0, m))


class Run(Protocol):
    """Where one run from one start ended."""

    @property
    def history(self) -> tuple[float, ...]:
        """Objective of the start, then after every iteration."""

    @property
    def converged(self) -> bool: ...


R = TypeVar("R", bound=Run)


@dataclass(frozen=True)
class RunSummary:
    """One restart: its objective, iterations, whether it converged, and all objectives."""

    objective: float
    n_iter: int
    converged: bool
    history: tuple[float, ...] = ()

    @classmethod
    def of(cls, run: Run) -> RunSummary:
        return cls(run.history[-1], len(run.history) - 1, run.converged, tuple(run.history))


@dataclass(frozen=True)
class Clustering:
    """Labels and all they came from.

    Attributes
    ----------
    labels : ndarray of int, shape (n,)
    weights : ndarray, shape (m,)
        Of the kernels, learned or given.
    kernel_names : tuple of str
    history : tuple of float
        Objective of the best run: of the start, then after every iteration.
    converged : bool
    runs : tuple of RunSummary
        Every restart, in order.
    seed : int
    factors : mapping of str to ndarray
        What the labels came from and new samples are placed with. U and V of a factorization,
        shape (n, k), scaled so that diag(UᵀK_wU) = 1, `UtKU`, that matrix, (k, k), and the
        `diagonal` of K_w, (n,); or the
        `embedding`, `eigenvalues` and `extension` of spectral clustering; with either the K-means
        `centres` in that representation, (k, r). Or the centres `C` of kernel k-means as weights
        of samples, (n, k), with `norms` and `fused_weights`; see `kmeans_steps.KMeansRun`.
    kernel : str or None
        The one kernel that was used, or "mean"; None where all were.
    weights_history : ndarray, shape (n_iter + 1, m)
        Weights of the best run: of the start, then after every iteration; shape (0, m) where they
        are not learned.
    """

    labels: Labels
    weights: Floats
    kernel_names: tuple[str, ...]
    history: tuple[float, ...]
    converged: bool
    runs: tuple[RunSummary, ...]
    seed: int
    factors: Mapping[str, Floats] = field(default_factory=dict)
    kernel: str | None = None
    weights_history: Floats = field(default_factory=partial(no_weights, 0))

    @property
    def n_iter(self) -> int:
        return len(self.history) - 1

    @property
    def objective(self) -> float:
        return self.history[-1]

    @property
    def U(self) -> Floats:
        return self.factors["U"]

    @property
    def V(self) -> Floats:
        return self.factors["V"]


class Method(ABC):
    """A clustering method with its parameters; subclasses are frozen dataclasses."""

    name: ClassVar[str]
    run_type: ClassVar[type[Any] | None] = None
    """What a run ends in; None for a method that keeps no checkpoints."""
    n_clusters: int

    def check_samples(self, n: int) -> None:
        """Refuse, before any work, what cannot be done with n samples."""
        if n < self.n_clusters:
            raise InputError(
                f"n_samples={n} should be >= n_clusters={self.n_clusters}: ask for fewer clusters"
            )


class MultipleKernelMethod(Method):
    """A method that uses all kernels at once."""

    @abstractmethod
    def fit(
        self,
        stack: KernelStack,
        seeds: Sequence[int],
        listen: Listener = ignore,
        checkpoints: Checkpoints = NO_CHECKPOINTS,
    ) -> list[Clustering]:
        """One clustering per seed; checkpoints are for a single seed."""


class SingleKernelMethod(Method, Generic[S, R]):
    """A method that uses one kernel; runs on many kernels and from many seeds share sweeps."""

    @property
    def seeded(self) -> bool:
        """Whether runs, and not only the K-means after them, depend on the seed."""
        return True

    @abstractmethod
    def starts(self, n: int, seed: int) -> Iterable[S]:
        """Where the restarts of a seed begin."""

    @abstractmethod
    def run(
        self,
        kernel: FusedKernel,
        start: S,
        weights: Floats,
        rounding: float,
        listen: Listener,
        restart: tuple[int, int],
        slot: CheckpointSlot,
    ) -> SolverSteps[R]:
        """One run. The kernel is asked for what is known without a sweep; products are yielded."""

    def state_schemas(self, n: int, m: int) -> tuple[Schema, Schema]:
        """Of the state of a run with n samples and m kernels, and of its result."""
        return checkpointing.nothing, checkpointing.nothing

    @abstractmethod
    def conclude(self, run: R, seed: int) -> tuple[Labels, dict[str, Floats]]:
        """Labels and factors of the best run of a seed."""

    def fit(
        self,
        stack: KernelStack,
        seeds: Sequence[int],
        kernels: Sequence[str],
        listen: Listener = ignore,
        checkpoints: Checkpoints = NO_CHECKPOINTS,
    ) -> list[Clustering]:
        """One clustering per kernel and seed, the seeds of the first kernel first.

        Kernels by name share every sweep, and so do seeds and restarts; the mean is a matrix of its
        own, with sweeps of its own. Checkpoints are for the one or the others.
        """
        self.check_samples(stack.n_samples)
        weights = {name: kernel_weights(stack, name) for name in kernels}
        mean = [name for name in weights if name == MEAN]
        named = [name for name in weights if name != MEAN]
        if mean and named and checkpoints is not NO_CHECKPOINTS:
            raise InputError("checkpoints are for the mean or for kernels by name, not for both")
        with one_blas_thread():
            found = self._fit_some(stack, seeds, mean, listen, checkpoints)
            found |= self._fit_some(stack, seeds, named, listen, checkpoints)
        return [found[kernel, seed] for kernel in kernels for seed in seeds]

    def _fit_some(
        self,
        stack: KernelStack,
        seeds: Sequence[int],
        kernels: Sequence[str],
        listen: Listener,
        checkpoints: Checkpoints,
    ) -> dict[tuple[str, int], Clustering]:
        """Fit on kernels that one kind of sweep can serve: several by name, or a single one."""
        if not kernels:
            return {}
        n = stack.n_samples
        facts = {name: _kernel(stack, name) for name in kernels}
        n_starts = {s: sum(1 for _ in self.starts(n, s)) for s in self._seeds_that_matter(seeds)}
        jobs = [(name, s, r) for name in kernels for s in n_starts for r in range(n_starts[s])]
        most = runs_together(self.name, n, self.n_clusters, len(jobs))
        schemas = self.state_schemas(n, len(stack.names))
        states = SharedCheckpoints(checkpoints, len(jobs), most, *schemas)
        ends: dict[int, R | RunSummary] = {
            number: from_state(RunSummary, state)
            if "objective" in state
            else from_state(self._run_type, state)
            for number, state in states.ended.items()
        }
        try:
            for first in range(0, len(jobs), most):
                batch = range(first, min(first + most, len(jobs)))
                self._run_batch(stack, facts, jobs, n_starts, batch, states, ends, listen)
                if len(batch) < len(jobs):
                    _keep_best(jobs, batch, ends)
        finally:
            for kernel in facts.values():
                kernel.release()
        found = {}
        for name in kernels:
            for seed in seeds:
                s = seed if self.seeded else next(iter(n_starts))
                numbers = (number for number, job in enumerate(jobs) if job[:2] == (name, s))
                restarts = [ends[number] for number in numbers]
                best = min(restarts, key=lambda run: run.history[-1])
                validate_state(best, lambda run: not isinstance(run, RunSummary))
                assert not isinstance(best, RunSummary)
                labels, factors = self.conclude(best, seed)
                found[name, seed] = Clustering(
                    labels,
                    kernel_weights(stack, name),
                    stack.names,
                    best.history,
                    best.converged,
                    tuple(_summary(run) for run in restarts),
                    seed,
                    factors,
                    name,
                    no_weights(len(stack.names)),
                )
        return found

    def _run_batch(
        self,
        stack: KernelStack,
        facts: Mapping[str, FusedKernel],
        jobs: Sequence[tuple[str, int, int]],
        n_starts: Mapping[int, int],
        batch: range,
        states: SharedCheckpoints,
        ends: dict[int, R | RunSummary],
        listen: Listener,
    ) -> None:
        """Runs that share sweeps, to their ends, which are put into `ends`.

        A job is a kernel, a seed and the number of a restart. Starts are made here and let go with
        their runs: those of other batches would only take memory.
        """
        todo = [number for number in batch if number not in ends]
        wanted = {jobs[number][1:] for number in todo}
        starts = {
            (s, r): start
            for s in n_starts
            for r, start in enumerate(self.starts(stack.n_samples, s) if wanted else ())
            if (s, r) in wanted
        }
        before, total = batch.start, len(jobs)

        def report(event: object) -> None:
            if isinstance(event, StageProgress):
                listen(StageProgress(event.stage, before + event.done, total, unit=event.unit))

        def start_run(number: int) -> SolverSteps[R]:
            name, s, r = jobs[number]
            return self.run(
                facts[name],
                starts[s, r],
                kernel_weights(stack, name),
                stack.error_floor,
                listen if total == 1 else ignore,
                (r, n_starts[s]),
                states.slot(number),
            )

        runs = [start_run(i) if i in todo else finished(ends[i]) for i in batch]
        starts.clear()
        if len(facts) == 1:
            multiply = multiply_by(next(iter(facts.values())))
        else:
            multiply = multiply_by_each(stack, [stack.names.index(jobs[i][0]) for i in batch])

        def before_round(results: Mapping[int, R | RunSummary]) -> None:
            states.before_round(ends | {before + i: end for i, end in results.items()}, batch)

        every: list[R | RunSummary] = run_in_lockstep(
            runs, multiply, report if total > 1 else listen, self.name, before_round
        )
        ends.update(zip(batch, every, strict=True))
        if total > 1 and len(batch) == 1:  # else said already
            listen(StageProgress(self.name, batch.stop, total, unit="runs"))

    @property
    def _run_type(self) -> type[R]:
        assert self.run_type is not None
        return self.run_type

    def _seeds_that_matter(self, seeds: Sequence[int]) -> Sequence[int]:
        return seeds if self.seeded else seeds[:1]


def _keep_best(jobs: Sequence[tuple[str, int, int]], batch: range, ends: dict[int, Any]) -> None:
    """Of every kernel and seed keep the best run so far, and of the others what is told of them."""
    best: dict[tuple[str, int], int] = {}
    for number in sorted(ends):
        of = jobs[number][:2]
        if of not in best or ends[number].history[-1] < ends[best[of]].history[-1]:
            best[of] = number
    for number in set(ends) - set(best.values()):
        if not isinstance(ends[number], RunSummary):
            ends[number] = RunSummary.of(ends[number])


def _summary(run: Run | RunSummary) -> RunSummary:
    return run if isinstance(run, RunSummary) else RunSummary.of(run)


def best_restart(
    starts: Iterable[S],
    run: Callable[[int, S, CheckpointSlot], R],
    run_type: type[R],
    checkpoints: Checkpoints,
    running: Schema,
    result: Schema,
) -> tuple[R, tuple[RunSummary, ...]]:
    """One run after the other, from every start: the one of lowest objective, and all in brief.

    `running` and `result` are the schemas of a run's state and of its result.
    """
    state = checkpoints.resumed
    ended: list[RunSummary] = []
    best: R | None = None
    if state is not None:
        validate_state(state, {"ended": [SUMMARY], "best": (None, result), "run": running})
        validate_state(state, lambda state: bool(state["ended"]) == (state["best"] is not None))
        ended = [from_state(RunSummary, summary) for summary in state["ended"]]
        best = None if state["best"] is None else from_state(run_type, state["best"])
    skipped = len(ended)
    for number, start in enumerate(starts):
        if number < skipped:
            continue

        def keep(
            inside: State, ended: Sequence[RunSummary] = tuple(ended), best: R | None = best
        ) -> None:
            checkpoints.keep(
                {
                    "ended": [asdict(summary) for summary in ended],
                    "best": None if best is None else as_state(best),
                    "run": inside,
                }
            )

        resumed = state["run"] if state is not None and number == skipped else None
        ending = run(number, start, CheckpointSlot(resumed, keep))
        ended.append(RunSummary.of(ending))
        if best is None or ending.history[-1] < best.history[-1]:
            best = ending
    assert best is not None
    return best, tuple(ended)


def refuse_many_seeds(seeds: Sequence[int], checkpoints: Checkpoints) -> None:
    """Runs of many seeds come one after the other here, and only the last would be kept."""
    if len(seeds) > 1 and checkpoints is not NO_CHECKPOINTS:
        raise InputError("checkpoints are for one seed at a time")


def kernel_weights(stack: KernelStack, kernel: str) -> Floats:
    """Fixed weights that stand for one kernel by name, or for the mean of all. Shape (m,)."""
    m = len(stack.names)
    if kernel == MEAN:
        return np.full(m, 1.0 / m)
    if kernel in stack.names:
        return np.asarray(np.eye(m)[stack.names.index(kernel)])
    raise InputError(
        f"there is no kernel {kernel!r} here: choose mean or one of {', '.join(stack.names)}"
    )


def _kernel(stack: KernelStack, name: str) -> FusedKernel:
    if name == MEAN:
        return stack.fuse(kernel_weights(stack, MEAN))
    return stack.single(stack.names.index(name))


def warn_if_one_kernel_has_it_all(names: Sequence[str], w: Floats, method: str) -> None:
    """Say so when the others hardly count."""
    top = int(w.argmax())
    if len(w) > 1 and w[top] > 0.9:
        warnings.warn(
            f"kernel {names[top]} has {w[top]:.0%} of the weight: {method} favours the kernel that "
            "is easiest to reproduce, which need not be the best; compare with KCF on the mean of "
            "the kernels, or leave it out",
            NumericsWarning,
            stacklevel=4,
        )


def check_whole(**numbers: object) -> None:
    """Refuse what is not a whole number of at least 1."""
    for name, value in numbers.items():
        if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
            raise InputError(f"{name} must be a whole number of at least 1, not {value!r}")


def check_positive(**numbers: object) -> None:
    """Refuse what is not a finite number above 0."""
    for name, value in numbers.items():
        number = isinstance(value, int | float | np.floating) and not isinstance(value, bool)
        if not number or not 0 < float(value) < np.inf:  # type: ignore[arg-type]
            raise InputError(f"{name} must be a number above 0, not {value!r}")
