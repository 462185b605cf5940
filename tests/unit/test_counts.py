"""Speed by counting: graphs, sweeps over the kernels, tiles read, and the memory of a task."""

import warnings

import numpy as np
import pytest
from dask.callbacks import Callback
from helpers.counting import BLOCK, Counter, CountingRunner, K, M, N, cost_of_one_iteration
from helpers.marks import mostly_slow
from helpers.peaks import peak_of
from helpers.problems import dense, kernels, start, tiled
from sklearn.exceptions import ConvergenceWarning

from gmkcf_dask.compute import tiled as tiled_module
from gmkcf_dask.compute.costs import fit_task_bytes
from gmkcf_dask.compute.lockstep import run_solver
from gmkcf_dask.compute.tile_ops import FusedTiles, as_factor, error_factors
from gmkcf_dask.methods.coreg import Coreg
from gmkcf_dask.methods.factorize import SolverOptions
from gmkcf_dask.methods.gmkcf import gmkcf
from gmkcf_dask.methods.kcf import Kcf
from gmkcf_dask.methods.kkm import Kkm
from gmkcf_dask.methods.rmkkm import Rmkkm
from gmkcf_dask.methods.spectral import Sc, embed


@pytest.fixture
def counter(rng):
    return Counter(dense(kernels(rng, N, M), block=BLOCK))


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


@pytest.mark.usefixtures("calm")
class TestSweepsOfMethods:
    """What the docstrings of the methods say they cost."""

    def test_kkm_takes_one_sweep_per_iteration(self, counter):
        (found,) = Kkm(K).fit(counter, [0], ["kernel_1"])
        assert len(counter.products) == found.n_iter + 1
        assert counter.each == []

    def test_kcf_takes_two_sweeps_per_iteration_and_none_to_finish(self, counter):
        (found,) = Kcf(K, tol=1e-3).fit(counter, [0], ["kernel_1"])
        assert len(counter.products) == 2 * found.n_iter

    def test_all_kernels_and_seeds_share_each_sweep(self, counter):
        names = counter.names
        found = Kkm(K).fit(counter, [0, 1, 2], names)
        assert len(counter.each) == max(one.n_iter for one in found) + 1
        assert counter.each[0] == [3 * K] * M  # three seeds in one product with every kernel
        for name, last in zip(names, counter.each[-1], strict=True):
            longest = max(one.n_iter for one in found if one.kernel == name)
            assert bool(last) == (longest + 1 == len(counter.each)), "what is done is not read"
        assert counter.products == []

    def test_restarts_share_each_sweep(self, counter):
        (found,) = Kkm(K, n_init=5).fit(counter, [0], ["kernel_0"])
        assert len(counter.products) == max(run.n_iter for run in found.runs) + 1
        assert counter.products[0] == 5 * K

    def test_sc_takes_the_degrees_and_the_eigenproblem(self, counter):
        Sc(K).fit(counter, [0, 1, 2], counter.names)
        assert counter.each == [[1] * M, [N] * M]  # few samples: the matrix itself
        small = Counter(counter._stack)
        kernel = small.single(0)
        found = run_solver(embed(kernel, K, "symmetric", 1e-12, direct=0), kernel)
        assert len(small.products) == 1 + len(found.history) <= 61

    def test_coreg_shares_sweeps_between_kernels_and_seeds(self, counter):
        found = Coreg(K, lam=1.0).fit(counter, range(5))
        rounds = found[0].n_iter
        assert 2 + rounds <= len(counter.each) <= 2 + 60 * rounds
        again = Counter(counter._stack)
        Coreg(K, lam=1.0).fit(again, [0])
        assert len(again.each) == len(counter.each)

    def test_rmkkm_fuses_once_and_measures_once_per_iteration(self, counter):
        (found,) = Rmkkm(K).fit(counter, [0])
        assert counter.fused == found.n_iter
        assert counter.each == [2 * K] * found.n_iter  # for the last two centres of each cluster
        assert len(counter.products) <= 30 * found.n_iter

    def test_the_spectral_start_costs_the_eigenproblem_only(self, counter):
        (spectral,) = Kcf(K, tol=1e-3, init="spectral").fit(counter, [0, 1], ["kernel_0"])[:1]
        assert len(counter.products) == 2 + 2 * spectral.n_iter


@pytest.mark.usefixtures("calm")
@pytest.mark.parametrize("names", [["kernel_0"], ["kernel_0", "kernel_2"]])
def test_too_many_blocks_for_one_product_take_turns(counter, names):
    """Out of core, runs that would not fit into memory together are answered by further sweeps."""
    together = Kkm(K, n_init=5).fit(counter, [0], names)
    cut = Counter(counter._stack)
    cut._stack.most_columns = 2 * K
    turns = Kkm(K, n_init=5).fit(cut, [0], names)
    for one, other in zip(together, turns, strict=True):
        np.testing.assert_array_equal(one.labels, other.labels)
    widths = cut.products if len(names) == 1 else [max(each) for each in cut.each]
    assert max(widths) == 2 * K
    assert widths[:3] == [2 * K, 2 * K, K]


@pytest.mark.usefixtures("calm")
@pytest.mark.parametrize(("sum_bytes", "graphs"), [(32 << 20, 1), (1, M)])
def test_a_sweep_reads_every_tile_once_however_it_is_cut(
    rng, tmp_path, reads, monkeypatch, sum_bytes, graphs
):
    """Products of many kernels are summed in bounded memory: more graphs, no more reading."""
    runner = CountingRunner(scheduler="synchronous")
    stack = tiled(tmp_path / "s.zarr", kernels(rng, N, M), "float32", BLOCK, runner)
    Z = rng.random((N, K))
    expected = stack.matmul_each(Z)
    monkeypatch.setattr(tiled_module, "SUM_BYTES", sum_bytes)
    reads.clear()
    runner.graphs.clear()
    found = stack.matmul_each([Z, Z[:, :0], Z])
    assert len(runner.graphs) == max(1, graphs - 1)
    assert sorted(reads) == [(i, t) for i in (0, 2) for t in range(stack._reader.tiling.n_tiles)]
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_array_equal(found[2], expected[2])
    assert found[1].shape == (N, 0)


def test_an_overview_is_one_graph_and_one_sweep(rng, tmp_path, reads):
    runner = CountingRunner(scheduler="synchronous")
    Ks = kernels(rng, N, M)
    stack = tiled(tmp_path / "s.zarr", [*Ks, Ks[1]], "float32", BLOCK, runner)
    assert stack._reader.stored == (0, 1, 2, 1)  # merged when they were written
    reads.clear()
    runner.graphs.clear()
    found = stack.overview(rng.integers(0, 5, N), 5)
    assert runner.graphs == ["compute"]
    assert sorted(reads) == [(i, t) for i in range(M) for t in range(stack._reader.tiling.n_tiles)]
    np.testing.assert_array_equal(found.sums[1], found.sums[3])
    assert found.correlation()[1, 3] == pytest.approx(1.0)


@mostly_slow("precision", ["float32", "compact"])
def test_peak_of_a_task_does_not_grow_with_the_kernels(rng, tmp_path, precision, monkeypatch):
    n, block, k = 1200, 300, 4
    U, V, groups = rng.random((n, k)), rng.random((n, k)), np.arange(n, dtype=np.int32) % k
    peaks = {}
    # beyond what is always compared as a whole
    monkeypatch.setattr("gmkcf_dask.kernels.tiling.COMPARED_BYTES", 0)
    for m in (2, 12):
        stack = tiled(tmp_path / f"{m}.zarr", kernels(rng, n, m), precision, block)
        reader = stack._reader
        tiles = np.arange(reader.tiling.tiles_per_task(4))
        F = as_factor(error_factors(U, V), reader.dtype)
        Z = as_factor(np.hstack([U, V]), reader.dtype)
        source = FusedTiles(reader, (1.0,) * m)
        peaks[m] = (
            peak_of(lambda t=tiles, f=F, r=reader: tiled_module.errors_task(t, f, r)),
            peak_of(
                lambda t=tiles, z=Z, s=source, r=reader: tiled_module.product_task(
                    t, z, s, r.tiling, split=False
                )
            ),
            peak_of(lambda t=tiles, s=source, r=reader: tiled_module.fuse_task(t, s, r.tiling)),
            peak_of(lambda t=tiles, r=reader: tiled_module.overview_task(t, groups, r, k)),
        )
        planned = fit_task_bytes(reader.tiling, 2 * k, precision)
        assert max(peaks[m]) <= planned
    for few, many in zip(peaks[2], peaks[12], strict=True):
        assert many <= few + block * block * 4  # ten more kernels, less than one more tile


@pytest.mark.parametrize("m", [2, 12, 20])
@mostly_slow("precision", ["float32", "compact"])
def test_peak_of_comparing_kernels_is_planned(rng, tmp_path, precision, m, monkeypatch):
    n, block, k = 600, 300, 4
    monkeypatch.setattr("gmkcf_dask.kernels.tiling.COMPARED_BYTES", 5 << 20)
    reader = tiled(tmp_path / "s.zarr", kernels(rng, n, m), precision, block)._reader
    tiles, groups = np.arange(3), np.arange(n, dtype=np.int32) % k
    peak = peak_of(lambda: tiled_module.overview_task(tiles, groups, reader, k))
    assert peak <= fit_task_bytes(reader.tiling, 2 * k, precision, m)
