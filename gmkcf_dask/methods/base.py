"""What a method is: parameters that can be fitted to an operator for one seed or many."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from itertools import product
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np

from gmkcf_dask.compute.blas import one_blas_thread
from gmkcf_dask.compute.costs import runs_together
from gmkcf_dask.compute.lockstep import (
    SolverSteps,
    finished,
    multiply_by,
    multiply_by_each,
    run_in_lockstep,
)
from gmkcf_dask.compute.operators import FusedKernel, KernelStack
from gmkcf_dask.errors import InputError, NumericsWarning
from gmkcf_dask.events import IterationDone, Listener, StageProgress, ignore
from gmkcf_dask.methods import checkpointing
from gmkcf_dask.methods.checkpointing import (
    NO_CHECKPOINTS,
    SUMMARY,
    Checkpoints,
    Schema,
    SharedCheckpoints,
    State,
    as_state,
    from_state,
    validate_state,
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


class WeightedRun(Run, Protocol):
    """A run that has learned the weights of the kernels."""

    @property
    def weights(self) -> Floats: ...

    @property
    def weights_history(self) -> Floats: ...


R = TypeVar("R", bound=Run)
W = TypeVar("W", bound=WeightedRun)


@dataclass(frozen=True)
class RunSummary:
    """One restart: its objective, iterations, whether it converged, and all objectives."""

    objective: float
    n_iter: int
    converged: bool
    history: tuple[float, ...] = ()

    @classmethod
    def of(cls, run: Run | RunSummary) -> RunSummary:
        if isinstance(run, RunSummary):
            return run
        return cls(run.history[-1], len(run.history) - 1, run.converged, tuple(run.history))


@dataclass(frozen=True)
class Clustering:
    """Labels and all they came from.

    Attributes
    ----------
    labels : ndarray of int, shape (n,)
        −1 for a sample without a direction, see `assign`.
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
        `diagonal` of K_w, (n,); or the `embedding`, `eigenvalues` and `extension` of spectral
        clustering; with either the `centres` in that representation, (k, r), which are of unit
        length with assign="spherical" and not there with "argmax". Or the centres `C` of kernel
        k-means as weights of samples, (n, k), with `norms` and `fused_weights`; see
        `kmeans_steps.KMeansRun`.
    kernel : str or None
        The one kernel that was used, or "mean"; None where all were.
    weights_history : ndarray, shape (n_iter + 1, m)
        Weights of the best run: of the start, then after every iteration; shape (0, m) where they
        are not learned.
    contrast : float or None
        How much closer samples of one cluster are than any two, see `contrast`; None where nobody
        asked, or where there is no telling.
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
    contrast: float | None = None

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

    def parameters(self) -> dict[str, Any]:
        """Parameters by name, as files and fingerprints hold them.

        assign="kmeans" is left out: earlier versions had nothing else, and no word for it.
        """
        values = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        if values.get("assign") == "kmeans":
            del values["assign"]
        return values

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


@dataclass(frozen=True)
class RunContext:
    """What a run reports to, and what it resumes from.

    Attributes
    ----------
    listen : Listener
    restart : (number, total)
        Which of several runs this is, for the events.
    resumed : State or None
        Where the run resumes; None at its start.
    keep : callable
        Gets the run's state after every iteration that was not the last.
    """

    listen: Listener = ignore
    restart: tuple[int, int] = (0, 1)
    resumed: State | None = None
    keep: Callable[[State], object] = NO_CHECKPOINTS.keep

    def report(
        self, history: Sequence[float], max_iter: int, weights: Floats, tol: float = 0.0
    ) -> None:
        """Report the iteration that the last objective of the history belongs to."""
        J_old, J = history[-2:]
        change = (J_old - J) / J if J > 0 else 0.0
        number = len(history) - 1
        w = tuple(map(float, weights))
        self.listen(IterationDone(*self.restart, number, max_iter, J, change, tol, w))


NEW_RUN = RunContext()


class RestartedMethod(Method, Generic[S, R]):
    """A method whose runs begin at one start or several; the run of lowest objective counts."""

    n_init: int = 1

    @property
    def seeded(self) -> bool:
        """Whether runs, and not only the K-means after them, depend on the seed."""
        return True

    @abstractmethod
    def starts(self, n: int, seed: int) -> Iterable[S]:
        """Where the `n_init` restarts of a seed begin."""

    def state_schemas(self, n: int, names: Sequence[str]) -> tuple[Schema, Schema]:
        """Of the state of a run with n samples and these kernels, and of its result."""
        return checkpointing.nothing, checkpointing.nothing

    @abstractmethod
    def conclude(self, run: R, seed: int, listen: Listener) -> tuple[Labels, dict[str, Floats]]:
        """Labels and factors of the best run of a seed."""


class WeightLearningMethod(MultipleKernelMethod, RestartedMethod[S, W]):
    """A method that learns kernel weights; its restarts run one after the other."""

    @abstractmethod
    def run(self, stack: KernelStack, start: S, context: RunContext) -> W:
        """One run from one start."""

    def finish(self, stack: KernelStack, run: W) -> W:
        """What is left to do with the best run only."""
        return run

    def fit(
        self,
        stack: KernelStack,
        seeds: Sequence[int],
        listen: Listener = ignore,
        checkpoints: Checkpoints = NO_CHECKPOINTS,
    ) -> list[Clustering]:
        self.check_samples(stack.n_samples)
        if len(seeds) > 1 and checkpoints is not NO_CHECKPOINTS:
            raise InputError("checkpoints are for one seed at a time")
        clusterings = []
        for number, seed in enumerate(seeds):
            if number == 0 or self.seeded:
                with one_blas_thread():
                    best, runs = self._best_restart(stack, seed, listen, checkpoints)
                    best = self.finish(stack, best)
                _warn_if_one_kernel_has_it_all(stack.names, best.weights, self.name.upper())
            labels, factors = self.conclude(best, seed, listen)
            clusterings.append(
                Clustering(
                    labels,
                    best.weights,
                    stack.names,
                    best.history,
                    best.converged,
                    runs,
                    seed,
                    factors,
                    weights_history=best.weights_history,
                )
            )
        return clusterings

    def _best_restart(
        self, stack: KernelStack, seed: int, listen: Listener, checkpoints: Checkpoints
    ) -> tuple[W, tuple[RunSummary, ...]]:
        """The run of lowest objective, and all in brief."""
        state = checkpoints.resumed
        ended: list[RunSummary] = []
        best: W | None = None
        if state is not None:
            run_type: Any = self.run_type
            running, result = self.state_schemas(stack.n_samples, stack.names)
            validate_state(state, {"ended": [SUMMARY], "best": (None, result), "run": running})
            validate_state(state, lambda state: bool(state["ended"]) == (state["best"] is not None))
            ended = [from_state(RunSummary, summary) for summary in state["ended"]]
            best = None if state["best"] is None else from_state(run_type, state["best"])
        first = len(ended)

        def keep(run: State) -> None:
            checkpoints.keep(
                {
                    "ended": [asdict(summary) for summary in ended],
                    "best": None if best is None else as_state(best),
                    "run": run,
                }
            )

        for number, start in enumerate(self.starts(stack.n_samples, seed)):
            if number < first:
                continue
            resumed = state["run"] if state is not None and number == first else None
            context = RunContext(listen, (number, self.n_init), resumed, keep)
            run = self.run(stack, start, context)
            ended.append(RunSummary.of(run))
            if best is None or run.history[-1] < best.history[-1]:
                best = run
        assert best is not None
        return best, tuple(ended)


class SingleKernelMethod(RestartedMethod[S, R]):
    """A method that uses one kernel; runs on many kernels and from many seeds share sweeps."""

    @abstractmethod
    def run(
        self, kernel: FusedKernel, start: S, weights: Floats, rounding: float, context: RunContext
    ) -> SolverSteps[R]:
        """One run. The kernel is asked for what is known without a sweep; products are yielded."""

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
        clusterings: dict[tuple[str, int], Clustering] = {}
        with one_blas_thread():
            for group in filter(None, (mean, named)):
                clusterings |= self._fit_group(stack, seeds, group, listen, checkpoints)
        return [clusterings[kernel, seed] for kernel in kernels for seed in seeds]

    def _fit_group(
        self,
        stack: KernelStack,
        seeds: Sequence[int],
        kernels: Sequence[str],
        listen: Listener,
        checkpoints: Checkpoints,
    ) -> dict[tuple[str, int], Clustering]:
        """Fit on kernels that one kind of sweep can serve: several by name, or a single one."""
        n = stack.n_samples
        run_seeds = dict.fromkeys(seeds if self.seeded else seeds[:1])
        jobs = list(product(kernels, run_seeds, range(self.n_init)))
        batch_size = runs_together(self.name, n, self.n_clusters, len(jobs))
        schemas = self.state_schemas(n, stack.names)
        states = SharedCheckpoints(checkpoints, len(jobs), batch_size, *schemas)
        run_type: Any = self.run_type
        ends: dict[int, R | RunSummary] = {
            number: from_state(RunSummary if "objective" in state else run_type, state)
            for number, state in states.ended.items()
        }
        fused = {name: _kernel(stack, name) for name in kernels}
        try:
            for first in range(0, len(jobs), batch_size):
                batch = range(first, min(first + batch_size, len(jobs)))
                self._run_batch(stack, fused, jobs, batch, states, ends, listen)
                if len(batch) < len(jobs):
                    _keep_best(jobs, ends)
        finally:
            for kernel in fused.values():
                kernel.release()

        clusterings = {}
        for name, seed in product(kernels, seeds):
            job_seed = seed if self.seeded else seeds[0]
            restarts = [ends[i] for i, job in enumerate(jobs) if job[:2] == (name, job_seed)]
            best = min(restarts, key=lambda run: run.history[-1])
            validate_state(best, lambda run: not isinstance(run, RunSummary))
            assert not isinstance(best, RunSummary)
            labels, factors = self.conclude(best, seed, ignore)
            clusterings[name, seed] = Clustering(
                labels,
                kernel_weights(stack, name),
                stack.names,
                best.history,
                best.converged,
                tuple(map(RunSummary.of, restarts)),
                seed,
                factors,
                name,
                no_weights(len(stack.names)),
            )
        return clusterings

    def _run_batch(
        self,
        stack: KernelStack,
        fused: Mapping[str, FusedKernel],
        jobs: Sequence[tuple[str, int, int]],
        batch: range,
        states: SharedCheckpoints,
        ends: dict[int, R | RunSummary],
        listen: Listener,
    ) -> None:
        """Runs that share sweeps, to their ends, which are put into `ends`.

        A job is a kernel, a seed and the number of a restart. Starts are made here and let go with
        their runs: those of other batches would only take memory.
        """
        needed = {jobs[number][1:] for number in batch if number not in ends}
        starts = {
            (seed, restart): start
            for seed in {seed for seed, _ in needed}
            for restart, start in enumerate(self.starts(stack.n_samples, seed))
            if (seed, restart) in needed
        }
        total = len(jobs)

        def report(event: object) -> None:
            if isinstance(event, StageProgress):
                done = batch.start + event.done
                listen(StageProgress(event.stage, done, total, unit=event.unit))

        def start_run(number: int) -> SolverSteps[R | RunSummary]:
            if number in ends:
                return finished(ends[number])
            name, seed, restart = jobs[number]
            context = RunContext(
                listen if total == 1 else ignore, (restart, self.n_init), *states.slot(number)
            )
            start, weights = starts[seed, restart], kernel_weights(stack, name)
            return self.run(fused[name], start, weights, stack.error_floor, context)

        runs = [start_run(number) for number in batch]
        starts.clear()
        if len(fused) == 1:
            multiply = multiply_by(next(iter(fused.values())))
        else:
            multiply = multiply_by_each(stack, [stack.names.index(jobs[i][0]) for i in batch])

        def before_round(results: Mapping[int, R | RunSummary]) -> None:
            states.before_round(ends | {batch[i]: end for i, end in results.items()}, batch)

        results = run_in_lockstep(
            runs, multiply, report if total > 1 else listen, self.name, before_round
        )
        ends.update(zip(batch, results, strict=True))
        if total > 1 and len(batch) == 1:  # else reported already
            listen(StageProgress(self.name, batch.stop, total, unit="runs"))


def _keep_best(jobs: Sequence[tuple[str, int, int]], ends: dict[int, Any]) -> None:
    """Of every kernel and seed keep the best run so far, and summaries of the others."""
    best: dict[tuple[str, int], int] = {}
    for number in sorted(ends):
        group = jobs[number][:2]
        if group not in best or ends[number].history[-1] < ends[best[group]].history[-1]:
            best[group] = number
    for number in set(ends) - set(best.values()):
        ends[number] = RunSummary.of(ends[number])


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


@contextmanager
def fused_kernel(stack: KernelStack, weights: Floats) -> Iterator[FusedKernel]:
    """Σ weights_i K^i, for as long as it is needed."""
    kernel = stack.fuse(weights)
    try:
        yield kernel
    finally:
        kernel.release()


def _kernel(stack: KernelStack, name: str) -> FusedKernel:
    if name == MEAN:
        return stack.fuse(kernel_weights(stack, MEAN))
    return stack.single(stack.names.index(name))


def _warn_if_one_kernel_has_it_all(names: Sequence[str], weights: Floats, method: str) -> None:
    shares = weights / weights.sum()
    top = int(shares.argmax())
    if len(shares) > 1 and shares[top] > 0.9:
        warnings.warn(
            f"kernel {names[top]} has {shares[top]:.0%} of the weight: {method} favours the kernel "
            "that is easiest to reproduce, which need not be the best; compare with KCF on the "
            "mean of the kernels, or leave it out",
            NumericsWarning,
            stacklevel=3,
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
