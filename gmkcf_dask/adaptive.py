"""A cluster that changes during a fit: who is there now, and what that means for the plan.

Tile size and tasks are fixed by the store; what can change is where fused kernels live. That has no
say in the results, so a fit goes on to the same bits.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

from gmkcf_dask.errors import ClusterWarning, UnfitWorker
from gmkcf_dask.graph import Runner, WorkerSize
from gmkcf_dask.plan import Plan, Residency, fits_worker, human_bytes, resident_bytes


class Watch:
    """Looks at the workers before every fused kernel, and thinks only where they have changed.

    Parameters
    ----------
    runner : Runner
    plan : Plan
        Made for the workers that were there at the start.
    disk_free : callable
        Free bytes where scratch space goes; None where there can be none, as in object stores.
    """

    def __init__(self, runner: Runner, plan: Plan, disk_free: Callable[[], int | None]) -> None:
        self._runner, self._plan, self._disk_free = runner, plan, disk_free
        self._seen: dict[str, WorkerSize] = {}

    def residency(self, before: Residency) -> Residency:
        """Where the next fused kernel should live, given where the last one did; never back up."""
        workers = self._runner.workers()
        if not workers or workers == self._seen:  # none: they may be on their way
            return before
        for address, worker in workers.items():
            if not fits_worker(self._plan, worker.memory, worker.threads):
                self._runner.leave_out(_too_small(address, worker))
        self._seen = {a: w for a, w in workers.items() if a not in self._runner.left_out}
        if before != "memory" or self._room_in_memory():
            return before
        after: Residency = "recompute"
        free = self._disk_free()
        if free is not None and free >= 2 * self._plan.kw_bytes:
            after = "scratch"
        words = {"scratch": "is kept on disk", "recompute": "is fused again for every product"}
        warnings.warn(
            f"{len(self._seen)} workers are left, too few to hold the fused kernel of "
            f"{human_bytes(self._plan.kw_bytes)} in memory: it {words[after]} from here on",
            ClusterWarning,
            stacklevel=2,
        )
        return after

    def _room_in_memory(self) -> bool:
        resident = resident_bytes(self._plan.kw_bytes, len(self._seen))
        return all(
            fits_worker(self._plan, worker.memory, worker.threads, resident)
            for worker in self._seen.values()
        )


def _too_small(address: str, worker: WorkerSize) -> UnfitWorker:
    error = UnfitWorker(
        f"worker {address} came with {human_bytes(worker.memory)} of memory for {worker.threads} "
        "threads, less than a task of this store needs: give it more"
    )
    error.worker = address
    return error
