"""The one place that hands a Dask graph to a scheduler.

Every graph of the package goes through a `Runner`, so what is true of one is true of all: BLAS runs
on one thread per task (results are then the same bits on every scheduler), and U and V may travel
inside the graph without a warning about its size.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import dask
from threadpoolctl import threadpool_limits

from gmkcf_dask.blas import one_blas_thread
from gmkcf_dask.errors import ClusterError

if TYPE_CHECKING:
    from distributed import Client

# n×2k numbers ride in the graph on purpose: they can be sent again, scattered data can be lost
_GRAPH_SETTINGS = {"distributed.admin.large-graph-warning-threshold": "1 GiB"}


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
    """

    client: Client | None = None
    scheduler: Literal["threads", "synchronous"] = "threads"
    n_threads: int | None = None

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
            raise ClusterError(
                "workers died while computing, most likely for want of memory: give more memory "
                "per worker, or build with a smaller block"
            ) from error
        except (CancelledError, CommClosedError) as error:
            raise ClusterError(f"the connection to the Dask cluster was lost: {error}") from error

    def _settings(self) -> AbstractContextManager[Any]:
        stack = ExitStack()
        if self.client is not None:
            # only with distributed loaded: undoing a setting made earlier would drop its defaults
            stack.enter_context(dask.config.set(_GRAPH_SETTINGS))
            stack.enter_context(self.client.as_current())
        else:
            stack.enter_context(
                dask.config.set(scheduler=self.scheduler, num_workers=self.n_threads)
            )
            stack.enter_context(one_blas_thread())
        return stack

    def compute(self, collection: Any) -> Any:
        """Run one graph and bring its result to the driver."""
        with self._context():
            return collection.compute()

    def keep(self, *collections: Any) -> tuple[Any, ...]:
        """Run one graph for all collections and leave the results where they were made."""
        with self._context():
            return tuple(dask.persist(*collections))

    def fetch(self, kept: Any) -> Any:
        """Bring a kept result to the driver: no work is done, only a transfer."""
        with self._context():
            return kept.compute()


def pin_worker_threads(client: Client) -> None:
    """Keep BLAS and OpenMP at one thread on every worker of a cluster, late comers included."""
    client.register_plugin(_single_thread_plugin(), name="gmkcf-single-blas-thread")


def _single_thread_plugin() -> Any:
    from distributed import WorkerPlugin

    class SingleBlasThread(WorkerPlugin):  # type: ignore[misc]
        """Parallelism comes from tasks; a threaded BLAS would also sum in another order."""

        def setup(self, worker: Any) -> None:
            self.limits = threadpool_limits(1)

        def teardown(self, worker: Any) -> None:
            self.limits.restore_original_limits()

    return SingleBlasThread()
