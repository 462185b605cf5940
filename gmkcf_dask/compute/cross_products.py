"""Products of new samples' kernel rows as a Dask graph: a task for every block of new samples.

Each task goes over all training samples, a block at a time in a fixed order, and gives back a few
numbers for each of its samples; nothing of the size of the kernels is ever kept or moved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from dask.delayed import delayed

from gmkcf_dask.compute.blas import on_cores, one_blas_thread
from gmkcf_dask.compute.runner import Runner, as_list, graph_value
from gmkcf_dask.compute.tile_ops import contiguous
from gmkcf_dask.corpus.model import Matrix
from gmkcf_dask.errors import InputError
from gmkcf_dask.events import Listener, StageProgress, ignore
from gmkcf_dask.system.arrays import Floats
from gmkcf_dask.system.units import ceil_div


@dataclass(frozen=True)
class CrossProducts:
    """Results of a task for its block of new samples."""

    products: Floats
    """k_w(x, ·) B, shape (len, r)."""
    diagonal: Floats | None = None
    """k_w(x, x), shape (len,), if requested."""
    nearest: Floats | None = None
    """Rows of V of the nearest training samples, shape (len, k), if requested."""


@dataclass(frozen=True)
class ExtensionBasis:
    """Data of the training samples, sent once with a graph."""

    B: Floats
    """What rows of the kernel are multiplied by, shape (n, r)."""
    diagonal: Floats | None = None
    """k_w of each with itself, shape (n,); None where nearest samples are not requested."""
    V: Floats | None = None
    """Their rows, shape (n, k), likewise."""


Finish = Callable[[CrossProducts], Floats]
"""From the products of new samples to rows of results."""
_BATCHES, _LEAST_TASKS = 32, 8


class NewSampleKernels(Protocol):
    """Kernels between new samples and the training samples."""

    def products(
        self, new: Matrix, first: int, B: Floats, diagonal: Floats | None = None
    ) -> tuple[Floats, npt.NDArray[np.int64]]:
        """k_w(x, ·) B, and the nearest training samples where a diagonal is given."""

    def diagonal(self, new: Matrix, first: int) -> Floats:
        """k_w(x, x), shape (len,)."""


@dataclass(frozen=True)
class PredictBlock:
    """What a task does with a block of new samples; see `map_new_samples`."""

    training: ExtensionBasis
    cross: NewSampleKernels
    finish: Finish
    diagonal: bool

    def __call__(self, new: Matrix, first: int) -> Floats | InputError:
        try:
            B = np.asarray(contiguous(self.training.B), dtype=np.float64)
            new = np.asarray(contiguous(new)) if isinstance(new, np.ndarray) else new
            products, nearest = self.cross.products(new, first, B, self.training.diagonal)
            own = self.cross.diagonal(new, first) if self.diagonal else None
            V = self.training.V
            return self.finish(CrossProducts(products, own, None if V is None else V[nearest]))
        except InputError as error:
            # returned, not raised: the other tasks finish, and no worker logs a traceback
            return error


def map_new_samples(
    new: Matrix,
    cross: NewSampleKernels,
    training: ExtensionBasis,
    finish: Finish,
    runner: Runner | None,
    listen: Listener = ignore,
    *,
    edge: int,
    diagonal: bool = False,
) -> Floats:
    """What `finish` makes of new samples, in their order.

    Parameters
    ----------
    new : ndarray or csr_array, shape (n_new, d)
    cross : NewSampleKernels
        Travels with the tasks: its training samples are in a store, or all is in this process.
    training : ExtensionBasis
    finish : callable
        On the workers, block by block.
    runner : Runner or None
        None where the training samples are in this process: then it works alone, on all its cores.
    edge : int
        New samples in a task.
    diagonal : bool
        Whether `finish` is to get k_w(x, x).

    Returns
    -------
    ndarray, shape (n_new, width)
    """
    n = new.shape[0]
    starts, work = range(0, n, edge), PredictBlock(training, cross, finish, diagonal)
    rows: list[Floats] = []

    def graph(some: range) -> Any:
        assert runner is not None
        shared = graph_value(work)  # one for all tasks
        task = delayed(runner.task(_run_block), pure=False, traverse=False)
        parts = [task(graph_value(new[first : first + edge]), first, shared) for first in some]
        return delayed(as_list, pure=False)(*parts)

    def here(first: int) -> Floats | InputError:
        return work(new[first : first + edge], first)

    def results(some: range) -> list[Floats | InputError]:
        if runner is None:
            with one_blas_thread():
                return on_cores(lambda: here, some)
        return list(runner.retry(lambda: runner.compute(graph(some))))

    listen(StageProgress("predict", 0, n, unit="samples"))
    for some in _batches(starts):
        for result in results(some):
            if isinstance(result, InputError):
                raise result
            rows.append(result)
        done = min(n, some[-1] + edge)
        listen(StageProgress("predict", done, n, unit="samples"))
    return np.concatenate(rows)


def _batches(starts: range) -> Iterator[range]:
    """A few dozen graphs: between two of them progress shows."""
    step = max(_LEAST_TASKS, ceil_div(len(starts), _BATCHES))
    for first in range(0, len(starts), step):
        yield starts[first : first + step]


def _run_block(new: Matrix, first: int, work: PredictBlock) -> Floats | InputError:
    return work(new, first)
