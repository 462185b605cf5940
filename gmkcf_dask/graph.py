"""The one place that hands a Dask graph to a scheduler.

Every graph of the package goes through a `Runner`, so what is true of one is true of all: BLAS runs
on one thread per task (results are then the same bits on every scheduler), U and V may travel
inside the graph without a warning about its size, what was lost with a worker or a connection is
tried again a few times, and a cluster on which nothing moves is given up instead of waited for.
"""

from __future__ import annotations

import re
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

import dask
from threadpoolctl import threadpool_limits

from gmkcf_dask.blas import one_blas_thread
from gmkcf_dask.errors import (
    ClusterLost,
    ClusterStalled,
    ClusterWarning,
    UnfitWorker,
    WorkersKilled,
)
from gmkcf_dask.versions import ANSWER_SECONDS, Need, OnlyWhereFit, ask_workers

if TYPE_CHECKING:
    from distributed import Client

_T = TypeVar("_T")
STALL_SECONDS = 600.0
"""Longer than the five minutes after which a scheduler drops a silent worker and moves on."""
_POLL_SECONDS = 5.0


def large_graphs() -> AbstractContextManager[Any]:
    """No word of Dask about n×2k numbers in a graph: they can be sent again, others be lost."""
    bound = {"distributed.admin.large-graph-warning-threshold": "1 GiB"}
    return cast(AbstractContextManager[Any], dask.config.set(bound))


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
    left_out : set of str
        Addresses of workers that get no work of ours: they came with other versions, are small, or
        do not see the store.
    needs : set of callable
        What tasks look for where they run, such as the store: workers may come after all were
        asked.
    """

    client: Client | None = None
    scheduler: Literal["threads", "synchronous"] = "threads"
    n_threads: int | None = None
    stall_timeout: float = STALL_SECONDS
    left_out: set[str] = field(default_factory=set)
    needs: set[Need] = field(default_factory=set)

    def task(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function as graphs should hold it: on a cluster it looks where it is first."""
        return function if self.client is None else OnlyWhereFit.as_here(function, self.needs)

    def workers(self) -> dict[str, WorkerSize]:
        """The workers that are there and get work; none where the scheduler does not say."""
        return self._workers() or {}

    def _workers(self) -> dict[str, WorkerSize] | None:
        """The same; None where the scheduler does not say."""
        if self.client is None:
            return {}
        found = self._ask_scheduler(workers_there)
        return found and {
            address: WorkerSize(*size)
            for address, size in found.items()
            if address not in self.left_out
        }

    def _ask_scheduler(self, function: Any, *args: Any, seconds: float = _POLL_SECONDS) -> Any:
        """What a function finds on the scheduler; None where that does not answer, or is lost."""
        assert self.client is not None
        try:
            return self.client.run_on_scheduler(function, *args, callback_timeout=seconds)
        # CommClosedError is an OSError; a client that has given up says it by a RuntimeError
        except (OSError, TimeoutError, RuntimeError):
            return None

    def leave_out(self, unfit: UnfitWorker) -> None:
        """Give a worker no more work, and say so; not where no other is known to be left."""
        there = self._workers()
        if unfit.worker is None or (there is not None and not there.keys() - {unfit.worker}):
            raise unfit
        self.left_out.add(unfit.worker)
        warnings.warn(f"{unfit}; it gets no work, the others go on", ClusterWarning, stacklevel=3)

    def retry(self, work: Callable[[], _T], forget: Callable[[], object] = lambda: None) -> _T:
        """Do work that hands graphs to a cluster; again, a few times, where the cluster lost some.

        Parameters
        ----------
        work : callable
            Makes its graphs anew in every call: a result that was lost, or ended in an error, keeps
            its name and would be met again.
        forget : callable
            Drops what earlier graphs left on the workers.
        """
        lost = 0
        while True:
            try:
                return work()
            except UnfitWorker as error:
                forget()
                self.leave_out(error)
            except ClusterLost as error:
                forget()
                lost += 1
                if lost > error.retries:
                    raise
                self._wait_for_connection(error)

    def _wait_for_connection(self, lost: ClusterLost) -> None:
        """A client that lost its scheduler tries to find it again, or closes."""
        assert self.client is not None
        until = time.monotonic() + self.stall_timeout
        while self.client.status == "connecting" and time.monotonic() < until:
            time.sleep(0.1)
        if self.client.status != "running":
            raise lost

    @contextmanager
    def _context(self) -> Iterator[None]:
        with self._settings(), self._told_in_a_sentence():
            yield

    @contextmanager
    def _told_in_a_sentence(self) -> Iterator[None]:
        if self.client is None:
            yield
            return
        from distributed import CancelledError, KilledWorker
        from distributed.comm import CommClosedError

        try:
            yield
        except KilledWorker as error:
            raise WorkersKilled(
                "workers died while computing, most likely for want of memory: give more memory "
                "per worker, or build with a smaller block"
            ) from error
        except (CancelledError, CommClosedError) as error:
            raise ClusterLost(
                f"the connection to the Dask cluster was lost: {in_short(error)}"
            ) from error
        except (ImportError, AttributeError) as error:
            loading = isinstance(error, ImportError) or str(error).startswith("Can't get attribute")
            if not loading:
                raise
            raise UnfitWorker(
                f"a worker that came late cannot load its work ({error}): install the same "
                "versions everywhere"
            ) from error
        except (OSError, TimeoutError) as error:
            # the same kinds of error can come from a task, and then say nothing about the cluster
            if isinstance(error, ClusterLost) or self.client.status == "running":
                raise
            raise ClusterLost(f"the Dask cluster does not answer: {error}") from error

    def _settings(self) -> AbstractContextManager[Any]:
        stack = ExitStack()
        if self.client is not None:
            # only with distributed loaded: undoing a setting made earlier would drop its defaults
            stack.enter_context(large_graphs())
            stack.enter_context(self.client.as_current())
            others = sorted(self.workers()) if self.left_out else []
            if others:  # any of them: work is bound to none
                stack.enter_context(dask.annotate(workers=others))
        else:
            stack.enter_context(
                dask.config.set(scheduler=self.scheduler, num_workers=self.n_threads)
            )
            stack.enter_context(one_blas_thread())
        return stack

    def everywhere(self, function: Callable[..., Any], *args: Any, **named: Any) -> dict[str, Any]:
        """Call a function on every worker; by address, what it gave or the error it ended in.

        On threads of this process there are none to ask; those that get no work are left out.
        """
        if self.client is None:
            return {}
        seconds = min(ANSWER_SECONDS, self.stall_timeout)
        with self._told_in_a_sentence():
            found = ask_workers(self.client, function, *args, seconds=seconds, **named)
        return {address: one for address, one in found.items() if address not in self.left_out}

    def compute(self, collection: Any) -> Any:
        """Run one graph and bring its result to the driver."""
        with self._context():
            return self._result(collection)

    def keep(self, *collections: Any) -> tuple[Any, ...]:
        """Run one graph for all collections and leave the results where they were made."""
        with self._context():
            return tuple(dask.persist(*collections))

    @contextmanager
    def near(self, kept: Any, first: str) -> Iterator[None]:
        """Graphs inside work on blocks of a kept array by preference where these are.

        Dask would move a block of megabytes whenever its worker seems a little busier than another.

        Parameters
        ----------
        kept : dask array
        first : str
            How the names of the tasks that take these blocks begin.
        """
        held = None if self.client is None or self.left_out else self._holders(kept)
        if held is None:
            yield
            return
        # a preference: where a worker has left, any other takes its tasks
        with dask.annotate(workers=Beside(first, held), allow_other_workers=True):
            yield

    def _holders(self, kept: Any) -> tuple[str | None, ...] | None:
        keys = [(kept.name, number, *(0,) * (kept.ndim - 1)) for number in range(kept.numblocks[0])]
        found = self._ask_scheduler(holders, keys)
        return None if found is None else tuple(found)

    def fetch(self, kept: Any) -> Any:
        """Bring a kept result to the driver: no work is done, only a transfer."""
        with self._context():
            return self._result(kept)

    def _result(self, collection: Any) -> Any:
        if self.client is None:
            return collection.compute()
        future = self.client.compute(collection)
        try:
            self._watch(future)
            # done: what remains is a transfer, from a worker that may have stopped meanwhile
            return future.result(timeout=self.stall_timeout)
        except TimeoutError as error:
            if future.status == "error":  # the task's own
                raise
            raise self._stalled("a result was not to be had") from error
        finally:
            future.release()

    def _watch(self, future: Any) -> None:
        """Wait for a result as long as tasks come to their ends."""
        from distributed import wait

        pause = min(_POLL_SECONDS, self.stall_timeout / 4)
        left, since = -1, time.monotonic()
        while True:
            try:
                wait(future, timeout=pause)
            except TimeoutError:
                left_now = self._tasks_left(future.key, pause)
                if left_now is not None and left_now != left:
                    left, since = left_now, time.monotonic()
                elif time.monotonic() - since > self.stall_timeout:
                    raise self._stalled("no task came to its end") from None
            else:
                return

    def _stalled(self, what: str) -> ClusterStalled:
        """Tried once more where workers still answer: one may wait for another that does not."""
        stalled = ClusterStalled(
            f"{what} for {self.stall_timeout:g} s: workers are gone, stopped, or paused for want "
            "of memory"
        )
        stalled.retries = 1 if self._workers_answer() else 0
        return stalled

    def _workers_answer(self) -> bool:
        recent = self.stall_timeout / 2
        return bool(self._ask_scheduler(workers_seen, recent, seconds=min(_POLL_SECONDS, recent)))

    def _tasks_left(self, key: str, timeout: float) -> int | None:
        """How many tasks a result still waits for; None where the scheduler does not say."""
        left: int | None = self._ask_scheduler(tasks_left, key, seconds=timeout)
        return left


def in_short(error: BaseException) -> str:
    """An error of Dask in one line.

    >>> in_short(ValueError("1 Future cancelled:\\n1 cancelled for reason: lost.\\nMessage"))
    'lost'
    """
    reason = re.search(r"for reason: ([\w -]+)", str(error))
    return reason[1] if reason else " ".join(str(error).split())


@dataclass(frozen=True)
class Beside:
    """On the scheduler: from the name of a task to the worker it should be on, if any."""

    first: str
    workers: tuple[str | None, ...]

    def __call__(self, key: Any) -> list[str]:
        if not isinstance(key, tuple) or not str(key[0]).startswith(self.first):
            return []
        worker = self.workers[key[1]]
        return [] if worker is None else [worker]


def holders(keys: list[Any], dask_scheduler: Any = None) -> list[str | None]:
    """On the scheduler: a worker that has each of these results, None where nobody has."""
    found = (dask_scheduler.tasks.get(key) for key in keys)
    return [
        next((state.address for state in task.who_has or ()), None) if task is not None else None
        for task in found
    ]


def workers_there(dask_scheduler: Any = None) -> dict[str, tuple[int, int]]:
    """On the scheduler: memory limit and threads of every worker."""
    return {
        address: (int(state.memory_limit or 0), int(state.nthreads))
        for address, state in dask_scheduler.workers.items()
    }


def tasks_left(key: str, dask_scheduler: Any = None) -> int:
    """On the scheduler: the tasks that have to end before this one can, itself included."""
    asked, found = [dask_scheduler.tasks.get(key)], set()
    while asked:
        task = asked.pop()
        if task is not None and task not in found and task.state not in ("memory", "erred"):
            found.add(task)
            asked.extend(task.waiting_on or ())
    return len(found)


def workers_seen(seconds: float, dask_scheduler: Any = None) -> int:
    """On the scheduler: how many workers gave a sign of life within this time."""
    now = time.time()
    return sum(now - state.last_seen < seconds for state in dask_scheduler.workers.values())


def pin_worker_threads(client: Client) -> None:
    """Keep BLAS and OpenMP at one thread on every worker of a cluster, late comers included."""
    client.register_plugin(_single_thread_plugin(), name="gmkcf-single-blas-thread")


def ignore_interrupts(client: Client) -> None:
    """Workers started here hear a terminal's Ctrl-C too; ending them is for the driver to do."""
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
