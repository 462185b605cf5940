"""Speed by counting: graphs, sweeps over the kernels, tiles read, and the memory of a task."""

import tracemalloc
import warnings
from dataclasses import dataclass, field

import numpy as np
import pytest
from dask.callbacks import Callback
from problems import kernels, start, tiled
from sklearn.exceptions import ConvergenceWarning

from gmkcf_dask.engine import tiled as tiled_module
from gmkcf_dask.engine.tiles import FusedTiles, as_factor, error_factors
from gmkcf_dask.graph import Runner
from gmkcf_dask.kernels.store import TileReader
from gmkcf_dask.methods.factorize import SolverOptions
from gmkcf_dask.methods.gmkcf import gmkcf
from gmkcf_dask.plan import fit_task_bytes

N, M, K, BLOCK = 60, 3, 2, 20


@dataclass(frozen=True)
class CountingRunner(Runner):
    """Counts graphs that do work; fetching what is already computed is none."""

    graphs: list = field(default_factory=list)

    def compute(self, collection):
        self.graphs.append("compute")
        return super().compute(collection)

    def keep(self, *collections):
        self.graphs.append("keep")
        return super().keep(*collections)


@pytest.fixture
def reads(monkeypatch):
    seen = []
    original = TileReader.raw
    monkeypatch.setattr(
        TileReader,
        "raw",
        lambda self, kernel, t: seen.append((kernel, t)) or original(self, kernel, t),
    )
    return seen


def cost_of_one_iteration(stack, runner, reads, **options):
    """Graphs and tile reads that one more iteration adds."""
    begin = start(np.random.default_rng(1), N, K)
    totals = []
    for iterations in (3, 4):
        runner.graphs.clear()
        reads.clear()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            gmkcf(stack, begin, SolverOptions(K, max_iter=iterations, tol=0.0, **options))
        totals.append((len(runner.graphs), len(reads)))
    return totals[1][0] - totals[0][0], totals[1][1] - totals[0][1]


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize(("residency", "sweeps"), [("memory", 2), ("scratch", 2), ("recompute", 3)])
def test_graphs_and_sweeps_of_an_iteration(rng, tmp_path, reads, mixed, residency, sweeps):
    runner = CountingRunner(scheduler="synchronous")
    stack = tiled(
        tmp_path / "s.zarr", kernels(rng, N, M, mixed), "float32", BLOCK, runner, residency
    )
    graphs, tiles = cost_of_one_iteration(stack, runner, reads)
    assert graphs == 3
    assert tiles == sweeps * M * stack._reader.tiling.n_tiles


def test_inner_iterations_read_only_the_fused_kernel(rng, tmp_path, reads):
    runner = CountingRunner(scheduler="synchronous")
    stack = tiled(tmp_path / "s.zarr", kernels(rng, N, M), "float32", BLOCK, runner)
    graphs, tiles = cost_of_one_iteration(stack, runner, reads, inner_iter=4, v_steps=5)
    assert graphs == 3 + 2 * 3  # K_wV and K_wU of the three further rounds
    assert tiles == 2 * M * stack._reader.tiling.n_tiles


def test_no_dask_graph_runs_beside_the_counted_ones(rng, tmp_path):
    """The scheduler itself sees three graphs with work in them per iteration."""
    sizes = []
    stack = tiled(tmp_path / "s.zarr", kernels(rng, N, M), "float32", BLOCK)
    begin = start(rng, N, K)
    with Callback(start=lambda graph: sizes.append(len(graph))), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        gmkcf(stack, begin, SolverOptions(K, max_iter=1))
    fetches = [size for size in sizes if size <= 3]
    assert len(sizes) - len(fetches) == 3
    assert len(fetches) <= 1


def peak_of(work):
    work()  # caches of opened arrays are not part of the task
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        work()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("precision", ["float32", "compact"])
def test_peak_of_a_task_does_not_grow_with_the_kernels(rng, tmp_path, precision):
    n, block, k = 1200, 300, 4
    U, V = rng.random((n, k)), rng.random((n, k))
    peaks = {}
    for m in (2, 12):
        stack = tiled(tmp_path / f"{m}.zarr", kernels(rng, n, m), precision, block)
        reader = stack._reader
        tiles = np.arange(reader.tiling.tiles_per_task(4))
        F = as_factor(error_factors(U, V), reader.dtype)
        Z = as_factor(np.hstack([U, V]), reader.dtype)
        source = FusedTiles(reader, (1.0,) * m)
        peaks[m] = (
            peak_of(lambda t=tiles, f=F, r=reader: tiled_module._errors_task(t, f, r)),
            peak_of(
                lambda t=tiles, z=Z, s=source, r=reader: tiled_module._product_task(
                    t, z, s, r.tiling, split=False
                )
            ),
            peak_of(lambda t=tiles, s=source, r=reader: tiled_module._fuse_task(t, s, r.tiling)),
        )
        planned = fit_task_bytes(reader.tiling, 2 * k, precision)
        assert max(peaks[m]) <= planned
    for few, many in zip(peaks[2], peaks[12], strict=True):
        assert many <= few + block * block * 4  # ten more kernels, less than one more tile
