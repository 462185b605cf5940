"""`Runner`: the one place that hands Dask graphs to a scheduler.

Rules for every graph of the package: BLAS runs on one thread per task, so results are the same bits
on every scheduler; U and V travel inside the graph without a warning about its size; work lost with
a worker or a connection is retried a few times; a cluster without progress is given up.
"""

from __future__ import annotations

import logging
import re
import signal
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast
from uuid import uuid4

import dask
from threadpoolctl import threadpool_limits

from gmkcf_dask.compute import STALL_SECONDS
from gmkcf_dask.compute.blas import one_blas_thread
from gmkcf_dask.compute.worker_checks import ANSWER_SECONDS, CheckedTask, WorkerCheck, ask_workers
from gmkcf_dask.errors import (
    ClusterLost,
    ClusterStalled,
    ClusterWarning,
    UnfitWorker,
    WorkersKilled,
)

if TYPE_CHECKING:
    from distributed import Client

_T = TypeVar("_T")
_LOG = logging.getLogger(__name__)
_POLL_SECONDS = 5.0


def large_graphs() -> AbstractContextManager[Any]:
    """Silence Dask's warning about n×2k numbers in a graph: scattered data could be lost."""
    bound = {"distributed.admin.large-graph-warning-threshold": "1 GiB"}
    return cast(AbstractContextManager[Any], dask.config.set(bound))


def graph_value(value: Any) -> Any:
    """A value of its own in a graph, under a new name; Dask does not look into it."""
    from dask.delayed import delayed

    return delayed(value, name=f"gmkcf-value-{uuid4().hex}", traverse=False)


def as_list(*parts: Any) -> list[Any]:
    """A task that gathers results."""
    return list(parts)


@dataclass(frozen=True)
class WorkerSize:
    """What one worker of a cluster has. Memory in bytes, 0 where it has no limit."""

    memory: int
    threads: int


@dataclass(frozen=True)
class Runner:
    """Where graphs run: on a Dask cluster, or on threads of this process.

    Parameters
    ----------
    client : distributed.Client, optional
        Connection to a cluster; without one, `scheduler` is used.
    scheduler : {"threads", "synchronous"}
    n_threads : int, optional
        Threads of the local scheduler; all cores when not given.
    stall_timeout : float
        Seconds without any progress of a graph after which a cluster is given up.
    excluded : set of str
        Addresses of workers that get no work: other versions, too little memory, or no access to
        the store.
    checks : set of callable
        What tasks check where they run, such as access to the store: workers may join late.
    """

    client: Client | None = None
    scheduler: Literal["threads", "synchronous"] = "threads"
    n_threads: int | None = None
    stall_timeout: float = STALL_SECONDS
    excluded: set[str] = field(default_factory=set)
    checks: set[WorkerCheck] = field(default_factory=set)

    def task(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function for use in graphs: on a cluster it checks its worker first."""
        return function if self.client is None else CheckedTask.for_driver(function, self.checks)

    def workers(self) -> dict[str, WorkerSize]:
        """The connected workers that get work; none where the scheduler does not answer."""
        return self._workers() or {}

    def _workers(self) -> dict[str, WorkerSize] | None:
        if self.client is None:
            return {}
        sizes = self._ask_scheduler(worker_sizes)
        return sizes and {
            address: WorkerSize(*size)
            for address, size in sizes.items()
            if address not in self.excluded
        }

    def _ask_scheduler(self, function: Any, *args: Any, seconds: float = _POLL_SECONDS) -> Any:
        """Run a function on the scheduler; None where it does not answer or is lost."""
        assert self.client is not None
        try:
            return self.client.run_on_scheduler(function, *args, callback_timeout=seconds)
        # CommClosedError is an OSError; a client that has given up raises RuntimeError
        except (OSError, TimeoutError, RuntimeError):
            return None

    def exclude(self, unfit: UnfitWorker) -> None:
        """Give a worker no more work and warn; raise where no other worker is left."""
        workers = self._workers()
        if unfit.worker is None or (workers is not None and not workers.keys() - {unfit.worker}):
            raise unfit
        self.excluded.add(unfit.worker)
        warnings.warn(f"{unfit}; work continues on the other workers", ClusterWarning, stacklevel=3)

    def retry(self, work: Callable[[], _T], reset: Callable[[], object] = lambda: None) -> _T:
        """Run work that submits graphs; retry it a few times where the cluster lost some.

        Parameters
        ----------
        work : callable
            Builds new graphs in every call: a lost or failed result keeps its name.
        reset : callable
            Drops what earlier graphs left on the workers.
        """
        lost = 0
        while True:
            try:
                return work()
            except UnfitWorker as error:
                reset()
                self.exclude(error)
            except ClusterLost as error:
                reset()
                lost += 1
                if lost > error.retries:
                    raise
                _LOG.info("%s; retrying", error)
                self._wait_for_connection(error)

    def _wait_for_connection(self, lost: ClusterLost) -> None:
        """Wait while a client that lost its scheduler reconnects; raise where it does not."""
        assert self.client is not None
        until = time.monotonic() + self.stall_timeout
        while self.client.status == "connecting" and time.monotonic() < until:
            time.sleep(0.1)
        if self.client.status != "running":
            raise lost

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        if self.client is None:
            yield
            return
        from distributed import CancelledError, KilledWorker
        from distributed.comm import CommClosedError

        try:
            yield
        except KilledWorker as error:
            raise WorkersKilled(
                "workers died while computing, most likely out of memory: give more memory "
                "per worker, or build with a smaller block"
            ) from error
        except (CancelledError, CommClosedError) as error:
            raise ClusterLost(
                f"the connection to the Dask cluster was lost: {short_reason(error)}"
            ) from error
        except (ImportError, AttributeError) as error:
            loading = isinstance(error, ImportError) or str(error).startswith("Can't get attribute")
            if not loading:
                raise
            raise UnfitWorker(
                f"a worker that joined late cannot load its tasks ({error}): install the same "
                "versions everywhere"
            ) from error
        except (OSError, TimeoutError) as error:
            # a task may raise the same kinds of error, which do not concern the cluster
            if isinstance(error, ClusterLost) or self.client.status == "running":
                raise
            raise ClusterLost(f"the Dask cluster does not answer: {error}") from error

    def _settings(self) -> AbstractContextManager[Any]:
        stack = ExitStack()
        if self.client is not None:
            # only once distributed is loaded: restoring an earlier setting would drop its defaults
            stack.enter_context(large_graphs())
            stack.enter_context(self.client.as_current())
            allowed = sorted(self.workers()) if self.excluded else []
            if allowed:
                stack.enter_context(dask.annotate(workers=allowed))
        else:
            stack.enter_context(
                dask.config.set(scheduler=self.scheduler, num_workers=self.n_threads)
            )
            stack.enter_context(one_blas_thread())
        return stack

    def run_on_workers(
        self, function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> dict[str, Any]:
        """Call a function on every worker that gets work; by address, its result or its error.

        Empty on threads of this process.
        """
        if self.client is None:
            return {}
        seconds = min(ANSWER_SECONDS, self.stall_timeout)
        with self._translated_errors():
            answers = ask_workers(self.client, function, *args, seconds=seconds, **kwargs)
        return {address: a for address, a in answers.items() if address not in self.excluded}

    def compute(self, collection: Any) -> Any:
        """Run one graph and bring its result to the driver."""
        with self._settings(), self._translated_errors():
            return self._result(collection)

    def persist(self, *collections: Any) -> tuple[Any, ...]:
        """Run one graph for all collections and leave the results on the workers."""
        with self._settings(), self._translated_errors():
            return tuple(dask.persist(*collections))

    @contextmanager
    def prefer_holders(self, kept: Any, prefix: str) -> Iterator[None]:
        """Graphs inside prefer the workers that hold the blocks of a persisted array.

        Dask would move a block of megabytes whenever its worker seems a little busier than another.
        The names of the tasks that use these blocks begin with `prefix`.
        """
        workers = None if self.client is None or self.excluded else self._holders(kept)
        if workers is None:
            yield
            return
        # only a preference: where a worker has left, any other takes its tasks
        with dask.annotate(workers=WorkerPreference(prefix, workers), allow_other_workers=True):
            yield

    def _holders(self, kept: Any) -> tuple[str | None, ...] | None:
        keys = [(kept.name, number, *(0,) * (kept.ndim - 1)) for number in range(kept.numblocks[0])]
        addresses = self._ask_scheduler(holders, keys)
        return None if addresses is None else tuple(addresses)

    def fetch(self, kept: Any) -> Any:
        """Transfer a persisted result to the driver."""
        with self._settings(), self._translated_errors():
            return self._result(kept)

    def _result(self, collection: Any) -> Any:
        if self.client is None:
            return collection.compute()
        future = self.client.compute(collection)
        try:
            self._watch(future)
            # what remains is a transfer, from a worker that may have stopped meanwhile
            return future.result(timeout=self.stall_timeout)
        except TimeoutError as error:
            if future.status == "error":  # the task's own
                raise
            raise self._stalled("a result could not be fetched", future.key) from error
        finally:
            future.release()

    def _watch(self, future: Any) -> None:
        """Wait for a result as long as tasks finish."""
        from distributed import wait

        pause = min(_POLL_SECONDS, self.stall_timeout / 4)
        pending, since = -1, time.monotonic()
        while True:
            try:
                wait(future, timeout=pause)
            except TimeoutError:
                now = self._ask_scheduler(count_pending_tasks, future.key, seconds=pause)
                if now is not None and now != pending:
                    pending, since = now, time.monotonic()
                elif time.monotonic() - since > self.stall_timeout:
                    raise self._stalled("no task finished", future.key) from None
            else:
                return

    def _stalled(self, what: str, key: str) -> ClusterStalled:
        """Retried once where workers still answer: one may wait for another that does not."""
        recent = self.stall_timeout / 2
        timeout = min(_POLL_SECONDS, recent)
        state = self._ask_scheduler(describe_pending, key, seconds=timeout)
        stalled = ClusterStalled(
            f"{what} for {self.stall_timeout:g} s: workers are gone, stopped, or paused for lack "
            f"of memory ({state or 'the scheduler does not answer'})"
        )
        answer = self._ask_scheduler(count_recent_workers, recent, seconds=timeout)
        stalled.retries = 1 if answer else 0
        return stalled


def short_reason(error: BaseException) -> str:
    """An error of Dask in one line.

    >>> short_reason(ValueError("1 Future cancelled:\\n1 cancelled for reason: lost.\\nMessage"))
    'lost'
    """
    reason = re.search(r"for reason: ([\w -]+)", str(error))
    return reason[1] if reason else " ".join(str(error).split())


@dataclass(frozen=True)
class WorkerPreference:
    """On the scheduler: the worker that should run a task, if any, by the task's name."""

    prefix: str
    workers: tuple[str | None, ...]

    def __call__(self, key: Any) -> list[str]:
        if not isinstance(key, tuple) or not str(key[0]).startswith(self.prefix):
            return []
        worker = self.workers[key[1]]
        return [] if worker is None else [worker]


def holders(keys: list[Any], dask_scheduler: Any = None) -> list[str | None]:
    """On the scheduler: a worker that has each of these results, None where nobody has."""
    tasks = (dask_scheduler.tasks.get(key) for key in keys)
    return [
        next((state.address for state in task.who_has or ()), None) if task is not None else None
        for task in tasks
    ]


def worker_sizes(dask_scheduler: Any = None) -> dict[str, tuple[int, int]]:
    """On the scheduler: memory limit and threads of every worker."""
    return {
        address: (int(state.memory_limit or 0), int(state.nthreads))
        for address, state in dask_scheduler.workers.items()
    }


def pending_tasks(scheduler: Any, key: str) -> set[Any]:
    """The tasks that must finish before this one can, itself included."""
    stack, pending = [scheduler.tasks.get(key)], set()
    while stack:
        task = stack.pop()
        if task is not None and task not in pending and task.state not in ("memory", "erred"):
            pending.add(task)
            stack.extend(task.waiting_on or ())
    return pending


def count_pending_tasks(key: str, dask_scheduler: Any = None) -> int:
    """On the scheduler: how many tasks must finish before this one can, itself included."""
    return len(pending_tasks(dask_scheduler, key))


def describe_pending(key: str, dask_scheduler: Any = None) -> str:
    """On the scheduler: how many of these tasks are in which state, and how many workers."""
    tasks = Counter(task.state for task in pending_tasks(dask_scheduler, key))
    workers = Counter(state.status.name for state in dask_scheduler.workers.values())

    def listed(counts: Counter[str]) -> str:
        return ", ".join(f"{n} {name}" for name, n in sorted(counts.items())) or "none"

    return f"tasks: {listed(tasks)}; workers: {listed(workers)}"


def count_recent_workers(seconds: float, dask_scheduler: Any = None) -> int:
    """On the scheduler: how many workers sent a heartbeat within this time."""
    now = time.time()
    return sum(now - state.last_seen < seconds for state in dask_scheduler.workers.values())


def pin_worker_threads(client: Client) -> None:
    """Keep BLAS and OpenMP at one thread on every worker of a cluster, late ones included."""
    client.register_plugin(_single_thread_plugin(), name="gmkcf-single-blas-thread")


def ignore_interrupts(client: Client) -> None:
    """Workers started here receive a terminal's Ctrl-C too; only the driver should end them."""
    client.register_plugin(_ignore_interrupts_plugin(), name="gmkcf-ignore-interrupts")


def _ignore_interrupts_plugin() -> Any:
    from distributed import WorkerPlugin

    class IgnoreInterrupts(WorkerPlugin):  # type: ignore[misc]
        """In processes of their own only: a thread cannot, and must not, change this."""

        def setup(self, worker: Any) -> None:
            with suppress(ValueError):
                signal.signal(signal.SIGINT, signal.SIG_IGN)

    return IgnoreInterrupts()


def _single_thread_plugin() -> Any:
    from distributed import WorkerPlugin

    class SingleBlasThread(WorkerPlugin):  # type: ignore[misc]
        """Parallelism comes from tasks; a threaded BLAS would also sum in another order."""

        def setup(self, worker: Any) -> None:
            self.limits = threadpool_limits(1)

        def teardown(self, worker: Any) -> None:
            self.limits.restore_original_limits()

    return SingleBlasThread()
