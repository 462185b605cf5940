"""naive == Dense == Tiled, iterate by iterate, on every scheduler, tiling, dtype and sign."""

import warnings

import naive
import numpy as np
import pytest
from helpers.marks import mostly_slow
from helpers.problems import RUNNERS, dense, kernels, start, tiled
from helpers.trails import TOLERANCES, assert_same_trail, trail_of
from sklearn.exceptions import ConvergenceWarning

from gmkcf_dask.methods.factorize import SolverOptions, finish
from gmkcf_dask.methods.gmkcf import gmkcf

N, K = 60, 3
BLOCKS = {"divides": 20, "uneven": 27, "exceeds": 100}


CASES = [
    (p, mixed) for p in TOLERANCES for mixed in (False, True) if not (p == "compact" and mixed)
]


def case(rng, precision, mixed, **options):
    Ks = kernels(rng, N, 3, mixed)
    U, V = start(rng, N, K)
    bounds = dict(TOLERANCES[precision])
    iterations = bounds.pop("iterations")
    return Ks, U, V, iterations, naive.gmkcf(Ks, U, V, iterations, **options), bounds


@pytest.mark.parametrize(("precision", "mixed"), CASES)
@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)
def test_dense_equals_naive(rng, precision, mixed, block):
    Ks, U, V, iterations, expected, bounds = case(rng, precision, mixed)
    assert_same_trail(trail_of(dense(Ks, precision, block), U, V, iterations), expected, **bounds)


@pytest.mark.parametrize(("precision", "mixed"), CASES)
@mostly_slow("block", BLOCKS.values(), ids=BLOCKS)
@mostly_slow("scheduler", ["synchronous", "threads"])
def test_tiled_equals_naive(rng, tmp_path, runner_named, scheduler, precision, mixed, block):
    Ks, U, V, iterations, expected, bounds = case(rng, precision, mixed)
    stack = tiled(tmp_path / "s.zarr", Ks, precision, block, runner_named(scheduler))
    assert_same_trail(trail_of(stack, U, V, iterations), expected, **bounds)


@mostly_slow(
    ("scheduler", "precision", "mixed"),
    [
        ("two_workers", "float32", True),
        ("two_workers", "float64", False),
        ("two_workers", "compact", False),
        ("one_worker", "float64", True),
    ],
)
def test_cluster_equals_naive(rng, tmp_path, runner_named, scheduler, precision, mixed):
    Ks, U, V, iterations, expected, bounds = case(rng, precision, mixed)
    stack = tiled(tmp_path / "s.zarr", Ks, precision, 40, runner_named(scheduler))
    assert_same_trail(trail_of(stack, U, V, iterations), expected, **bounds)


@mostly_slow(("inner_iter", "v_steps"), [(3, 1), (1, 4), (2, 3)])
@mostly_slow("mixed", [False, True])
def test_inner_iterations_and_v_steps_equal_naive(rng, tmp_path, inner_iter, v_steps, mixed):
    options = {"inner_iter": inner_iter, "v_steps": v_steps}
    Ks, U, V, _, expected, bounds = case(rng, "float64", mixed, **options)
    for stack in (dense(Ks), tiled(tmp_path / "s.zarr", Ks, block=40)):
        assert_same_trail(trail_of(stack, U, V, 15, **options), expected[:16], **bounds)


@pytest.mark.parametrize("precision", TOLERANCES)
@mostly_slow("block", BLOCKS.values(), ids=BLOCKS)
def test_same_bits_on_every_scheduler(rng, tmp_path, runner_named, precision, block):
    """Same store, seed and tile size: the trace does not change by one bit, wherever it runs."""
    Ks = kernels(rng, N, 3)
    U, V = start(rng, N, K)
    path = tmp_path / "s.zarr"
    expected = trail_of(dense(Ks, precision, block), U, V, 2)
    for scheduler in RUNNERS:
        stack = tiled(path, Ks, precision, block, runner_named(scheduler))
        assert_bitwise(trail_of(stack, U, V, 2), expected)


@pytest.mark.parametrize("mixed", [False, True])
def test_same_bits_wherever_the_fused_kernel_lives(rng, tmp_path, two_workers, runner_named, mixed):
    Ks = kernels(rng, N, 3, mixed)
    U, V = start(rng, N, K)
    expected = trail_of(dense(Ks, "float32", 27), U, V, 2)
    for scheduler in ("threads", "two_workers"):
        for residency in ("memory", "scratch", "recompute"):
            stack = tiled(
                tmp_path / "s.zarr", Ks, "float32", 27, runner_named(scheduler), residency
            )
            assert_bitwise(trail_of(stack, U, V, 2), expected)
    assert not (tmp_path / "s.zarr.scratch").exists(), "scratch space was not given back"


def assert_bitwise(found, expected):
    assert found[0] == expected[0]
    for mine, theirs in zip(found[1], expected[1], strict=True):
        for a, b in zip(mine, theirs, strict=True):
            np.testing.assert_array_equal(a, b)


def test_many_groups_sum_in_the_same_order(rng, tmp_path, runner_named):
    """More tiles than one level of the summation tree holds."""
    Ks = kernels(rng, 90, 2)
    U, V = start(rng, 90, K)
    expected = trail_of(dense(Ks, "float32", 5), U, V, 2)
    stack = tiled(tmp_path / "s.zarr", Ks, "float32", 5, runner_named("threads"))
    assert stack.index().numblocks[0] > 8
    assert_bitwise(trail_of(stack, U, V, 2), expected)


@pytest.mark.parametrize("polish", [True, False])
def test_finish_equals_naive(rng, polish):
    Ks = kernels(rng, N, 3)
    U, V = start(rng, N, K)
    solver = SolverOptions(K, max_iter=30, tol=0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        run = gmkcf(dense(Ks), (U, V), solver)
    done = finish(run, dense(Ks).fuse(run.w**2).matmul(run.U), polish=polish)
    found = done.U, done.V
    expected = naive.finish(Ks, run.U, run.V, run.w, polish)
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-9 * theirs.max())
    Kw = naive.fuse(Ks, run.w)
    np.testing.assert_allclose(np.diag(found[0].T @ Kw @ found[0]), 1.0)
