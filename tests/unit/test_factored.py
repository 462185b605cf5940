"""Kernels in factored form answer like the matrices they stand for."""

import warnings

import naive
import numpy as np
import pytest
from helpers.problems import dense
from hypothesis import given, settings, strategies as st
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning

from gmkcf_dask.compute import factored
from gmkcf_dask.compute.combined import CombinedKernels
from gmkcf_dask.compute.factored import FactoredKernels, MemoryFactors, factor_blocks
from gmkcf_dask.compute.runner import Runner
from gmkcf_dask.compute.subset import SubsetKernels
from gmkcf_dask.methods.gmkcf import Gmkcf, gmkcf
from gmkcf_dask.methods.kcf import Kcf

N, C = 57, 4
RANKS = (3, 7, 5)


def factors(rng, signed, dtype=np.float64, n=N):
    made = [rng.normal(size=(n, r)) if signed else rng.random((n, r)) for r in RANKS]
    return [Z.astype(dtype) for Z in made]


def stack_of(Zs, runner=None):
    return FactoredKernels(MemoryFactors.of(Zs, [f"z{i}" for i in range(len(Zs))]), runner)


@pytest.fixture(params=["dense", "sparse"])
def form(request):
    return (lambda Z: Z) if request.param == "dense" else sparse.csr_array


@pytest.fixture(params=[False, True], ids=["nonnegative", "mixed"])
def Zs(request, rng):
    return factors(rng, request.param)


@pytest.fixture(params=[None, "threads"], ids=["memory", "tasks"])
def stack(request, Zs, form, monkeypatch):
    monkeypatch.setattr(factored, "BLOCK_ROWS", 10)
    runner = None if request.param is None else Runner(scheduler="threads")
    return stack_of([form(Z) for Z in Zs], runner)


def close(a, b):
    np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-10)


def test_a_subset_and_a_sum_make_the_first_columns_of_the_positive_part_alone(rng):
    Zs = factors(rng, True)
    made, Y, kept = [], rng.random((N, C)), np.arange(N) % 5 > 0

    class Counted(FactoredKernels):
        def product(self, weights, Y, positive=0):
            made.append(positive)
            return super().product(weights, Y, positive)

    both = Counted(MemoryFactors.of(Zs, ["a", "b", "c"]))
    K = rng.random((N, N))
    mixed = CombinedKernels(dense([K + K.T]), both)
    for stack, rows in ((SubsetKernels(both, kept), kept), (mixed, slice(None))):
        fused = stack.fuse(np.full(len(stack.names), 0.3))
        whole, first = fused.split_matmul(Y[rows]), fused.split_matmul(Y[rows], 2)
        close(first[0], whole[0])
        close(first[1], whole[1][:, :2])
    assert made == [C, 2, C, 2]


def split_kernel(Zs, w):
    """Σ w (PPᵀ + NNᵀ): what stands for K⁺."""
    return sum(
        wi * (np.maximum(Z, 0) @ np.maximum(Z, 0).T + np.maximum(-Z, 0) @ np.maximum(-Z, 0).T)
        for wi, Z in zip(w, Zs, strict=True)
    )


def test_answers_like_its_matrices(stack, Zs, rng):
    Ks = [Z @ Z.T for Z in Zs]
    w, Y = rng.random(3), rng.normal(size=(N, C))
    K = sum(wi * Ki for wi, Ki in zip(w, Ks, strict=True))
    fused = stack.fuse(w)
    assert stack.nonnegative == fused.nonnegative == (min(Z.min() for Z in Zs) >= 0)
    close(stack.traces, [np.trace(Ki) for Ki in Ks])
    close(stack.diagonal(1), np.diag(Ks[1]))
    close(fused.matmul(Y), K @ Y)
    KY, KposY = fused.split_matmul(Y)
    close(KY, K @ Y)
    close(KposY, split_kernel(Zs, w) @ Y)
    close(fused.row_sums(), K.sum(axis=1))
    close(fused.diagonal(), np.diag(K))
    close(stack.single(2).matmul(Y), Ks[2] @ Y)
    U, V = rng.random((N, C)), rng.random((N, C))
    close(stack.errors(U, V), [naive.error(Ki, U, V) for Ki in Ks])
    own = [rng.random((N, c)) for c in (2, 0, 3)]
    for found, Ki, Z in zip(stack.matmul_each(own), Ks, own, strict=True):
        close(found, Ki @ Z)
    groups = rng.integers(0, 5, N)
    overview, wanted = stack.overview(groups, 5), dense(Ks, block=20).overview(groups, 5)
    close(overview.sums, wanted.sums)
    close(overview.products, wanted.products)
    close(overview.compared, wanted.compared)
    assert overview.entries == wanted.entries


@pytest.mark.parametrize("w", [[0.2, 0.5, 0.3], [0.0, 0.5, 0.0]], ids=["all", "one"])
def test_leading_eigenpairs(stack, Zs, w):
    w = np.array(w)
    K = sum(wi * Z @ Z.T for wi, Z in zip(w, Zs, strict=True))
    values, vectors = stack.fuse(w).leading_eigenpairs(4)
    close(values, np.linalg.eigvalsh(K)[::-1][:4])
    close(vectors.T @ vectors, np.eye(4))
    close(K @ vectors, vectors * values)


def test_a_rank_below_the_wanted_one_gives_no_noise():
    Z = np.ones((20, 1))
    values, vectors = stack_of([Z]).fuse(np.ones(1)).leading_eigenpairs(3)
    close(values, [20.0])
    assert vectors.shape == (20, 1)


@pytest.mark.parametrize(
    ("dtype", "of_J", "of_factors"), [(np.float64, 1e-10, 1e-10), (np.float32, 1e-6, 2e-4)]
)
def test_nonnegative_factors_iterate_like_dense_kernels(rng, dtype, of_J, of_factors):
    Zs = factors(rng, signed=False, dtype=dtype)
    Ks = [Z.astype(float) @ Z.T.astype(float) for Z in Zs]
    U0, V0 = rng.random((N, C)), rng.random((N, C))
    trail, stack = naive.gmkcf(Ks, U0, V0, 20), stack_of(Zs)
    for n_iter in range(1, 21):
        options = Gmkcf(C, max_iter=n_iter, tol=0.0, init=(U0, V0))
        with pytest.warns(ConvergenceWarning):
            run = gmkcf(stack, (U0, V0), options)
        U, V, w, J = trail[n_iter]
        np.testing.assert_allclose(run.objective, J, rtol=of_J)
        np.testing.assert_allclose(run.w, w, rtol=of_J)
        for factor, expected in ((run.U, U), (run.V, V)):
            np.testing.assert_allclose(factor, expected, rtol=0, atol=of_factors * expected.max())


@pytest.mark.usefixtures("calm")
@pytest.mark.parametrize("method", [Gmkcf, Kcf])
def test_factors_that_concepts_reproduce_exactly_have_an_objective_around_zero(method):
    """Rounding may take it below, which tells nothing about the kernels."""
    rng = np.random.default_rng(0)
    rows = np.linalg.qr(rng.normal(size=(9, 3)))[0].T[np.repeat(np.arange(3), 400)]
    stack = stack_of([rows.astype(np.float32), (-rows).astype(np.float32)])
    options = method(3, init="spectral", solver="accelerated", tol=0.0, max_iter=30)
    kernels = [] if method is Gmkcf else [["mean"]]
    (made,) = options.fit(stack, [0], *kernels)
    assert made.objective <= 1e-4 * stack.traces.sum()
    assert len(np.unique(made.labels)) == 3


def test_mixed_signs_iterate_like_the_oracle_with_the_same_split(rng):
    Zs = factors(rng, signed=True)
    U, V, w = rng.random((N, C)), rng.random((N, C)), np.full(3, 1 / 3)
    stack = stack_of(Zs)
    with pytest.warns(ConvergenceWarning):
        found = gmkcf(stack, (U, V), Gmkcf(C, max_iter=10, tol=0.0, init=(U, V)))
    for _ in range(10):
        K = naive.fuse([Z @ Z.T for Z in Zs], w)
        positive = split_kernel(Zs, w**2)
        U, V = naive.step_split(positive, positive - K, U, V)
        w = naive.weights(np.array([naive.error(Z @ Z.T, U, V) for Z in Zs]))
    np.testing.assert_allclose(found.w, w, rtol=1e-9)
    np.testing.assert_allclose(found.V, V, rtol=0, atol=1e-8 * V.max())


@settings(max_examples=20)
@given(st.integers(0, 2**16), st.booleans(), st.sampled_from(["paper", "accelerated"]))
def test_the_objective_never_rises(seed, signed, solver):
    rng = np.random.default_rng(seed)
    Zs = [rng.normal(size=(30, r)) if signed else rng.random((30, r)) for r in (2, 6)]
    start = rng.random((30, 3)), rng.random((30, 3))
    options = Gmkcf(3, max_iter=40, tol=0.0, init=start, solver=solver)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a factor of rank 2 may be reproduced exactly
        history = np.array(gmkcf(stack_of(Zs), start, options).history)
    assert (np.diff(history) <= 1e-9 * history[0]).all()


def test_the_same_bits_in_memory_and_on_any_scheduler(rng, monkeypatch):
    monkeypatch.setattr(factored, "BLOCK_ROWS", 7)
    monkeypatch.setattr(factored, "MIN_TASKS", 2)
    Zs = factors(rng, signed=True, dtype=np.float32)
    Y, w = rng.normal(size=(N, C)), rng.random(3)
    runners = [None, Runner(scheduler="threads"), Runner(scheduler="synchronous")]
    results = [stack_of(Zs, runner).fuse(w).split_matmul(Y) for runner in runners]
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)


def test_blocks_cover_all_rows():
    assert [block.stop - block.start for block in factor_blocks(2 * factored.BLOCK_ROWS + 1)] == [
        factored.BLOCK_ROWS,
        factored.BLOCK_ROWS,
        1,
    ]


def test_tiles_and_factors_in_one_stack(rng):
    Zs = factors(rng, signed=True)[:2]
    tiles = [np.abs(Z) @ np.abs(Z).T for Z in factors(rng, signed=True)[:2]]
    stack = CombinedKernels(dense(tiles, block=20), stack_of(Zs))
    Ks = [*tiles, *(Z @ Z.T for Z in Zs)]
    w, Y, groups = rng.random(4), rng.normal(size=(N, C)), rng.integers(0, 4, N)
    K = sum(wi * Ki for wi, Ki in zip(w, Ks, strict=True))
    assert stack.names == ("kernel_0", "kernel_1", "z0", "z1")
    fused = stack.fuse(w)
    close(fused.matmul(Y), K @ Y)
    close(fused.diagonal(), np.diag(K))
    KY, KposY = fused.split_matmul(Y)
    close(KY, K @ Y)
    tiled = w[0] * tiles[0] + w[1] * tiles[1]
    close(KposY, (tiled + split_kernel(Zs, w[2:])) @ Y)
    U, V = rng.random((N, C)), rng.random((N, C))
    close(stack.errors(U, V), [naive.error(Ki, U, V) for Ki in Ks])
    for found, Ki in zip(stack.matmul_each(Y), Ks, strict=True):
        close(found, Ki @ Y)
    overview, wanted = stack.overview(groups, 4), dense(Ks, block=20).overview(groups, 4)
    close(overview.sums, wanted.sums)
    close(overview.products, wanted.products)
    close(stack.single(3).matmul(Y), Ks[3] @ Y)
