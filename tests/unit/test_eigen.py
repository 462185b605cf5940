"""Eigenvectors from products alone: right where there is a gap, usable where there is none."""

import naive
import numpy as np
import pytest
from helpers.marks import mostly_slow
from hypothesis import given, settings, strategies as st
from scipy.linalg import eigh

from gmkcf_dask.compute.eigen import (
    MAX_SWEEPS,
    ShiftedKernel,
    fix_signs,
    leading_eigenpairs,
    orthonormal,
)
from gmkcf_dask.compute.lockstep import Products

FLOAT64, FLOAT32 = 1e-12, 1e-7


def solve(A, k, *, rounding=FLOAT64, start=None, direct=0, dtype=np.float64):
    """Run the solver on a matrix at hand, and count the products it asked for."""
    n, A = len(A), A.astype(dtype)
    matrix = ShiftedKernel(np.ones(n), np.zeros(n), np.diag(A).astype(float))
    begin = np.empty((n, 0)) if start is None else start
    steps, sweeps = leading_eigenpairs(matrix, k, begin, rounding, direct=direct), 0
    ask = next(steps)
    try:
        while True:
            sweeps += 1
            ask = steps.send(Products((A @ ask.Z.astype(dtype)).astype(float)))
    except StopIteration as end:
        return end.value, sweeps


def with_spectrum(rng, values):
    Q = np.linalg.qr(rng.normal(size=(len(values), len(values))))[0]
    return (Q * values) @ Q.T


def sine(found, exact):
    np.testing.assert_allclose(found.T @ found, np.eye(found.shape[1]), atol=1e-10)
    return np.linalg.norm(exact - found @ (found.T @ exact), 2)


@settings(max_examples=15)
@given(n=st.integers(2, 60), k=st.integers(1, 60), seed=st.integers(0, 2**31))
def test_any_size_and_number_equals_eigh(n, k, seed):
    k = min(k, n)
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(n, n))
    A = (A + A.T) / 2
    found, _ = solve(A, k)
    np.testing.assert_allclose(found.values, eigh(A)[0][::-1][:k], atol=1e-8 * abs(A).max() * n)
    np.testing.assert_allclose(found.vectors.T @ found.vectors, np.eye(k), atol=1e-9)


@pytest.mark.once
@pytest.mark.slow
@pytest.mark.parametrize("gap", [1e-2, 1e-3])
def test_a_gap_gives_the_subspace(rng, gap):
    """Values that fall slowly, but for one gap after the k-th, relative to the largest."""
    n, k = 1600, 5
    values = np.concatenate([1.0 - 0.01 * np.arange(k), np.linspace(0.96 - gap, 0.0, n - k)])
    Q = np.linalg.qr(rng.normal(size=(n, n)))[0]
    found, sweeps = solve((Q * values) @ Q.T, k)
    assert sweeps <= MAX_SWEEPS
    assert sine(found.vectors, Q[:, :k]) < 1e-6
    assert (np.diff(found.sums) >= -1e-12).all()


def test_eigenvectors_on_few_samples_are_not_missed(rng):
    """A low-degree sample is nearly an eigenvector of D − K by itself."""
    n, k = 400, 4
    K = rng.random((n, n)) * 0.1
    K = K + K.T
    weak = rng.choice(n, 3, replace=False)
    K[weak] *= 0.05
    K[:, weak] *= 0.05
    L = naive.laplacian(K, "unnormalized")
    found, sweeps = solve(-L, k)
    assert sine(found.vectors, naive.smallest(L, k)[1]) < 1e-6
    assert sweeps < 30


@mostly_slow("noise", [0.0, 1e-8, 1e-5, 1e-3])
@pytest.mark.parametrize(("rounding", "dtype"), [(FLOAT64, np.float64), (FLOAT32, np.float32)])
def test_near_identity_ends_orthonormal(rng, noise, rounding, dtype):
    """No gap anywhere: any orthonormal set is right, and it must come within the sweeps."""
    n, k = 600, 7
    B = rng.random((n, n)) * noise
    A = np.eye(n) + (B + B.T) / 2
    found, sweeps = solve(A, k, rounding=rounding, dtype=dtype)
    assert sweeps <= MAX_SWEEPS
    np.testing.assert_allclose(found.vectors.T @ found.vectors, np.eye(k), atol=1e-10)
    # at the larger levels random vectors would miss this by far
    exact = eigh(A)[0][::-1][:k].sum()
    assert found.values.sum() == pytest.approx(exact, rel=1e-6)


def test_the_exact_identity_costs_one_sweep_whatever_the_rounding():
    for kernel, shift in ((np.eye(300), 0.0), (np.eye(300), 1.0)):
        matrix = ShiftedKernel(np.ones(300), np.full(300, shift + 1e-8), np.ones(300))
        steps = leading_eigenpairs(matrix, 5, np.empty((300, 0)), FLOAT32, direct=0)
        ask = next(steps)
        with pytest.raises(StopIteration):
            steps.send(
                Products((kernel.astype(np.float32) @ ask.Z.astype(np.float32)).astype(float))
            )


def test_warm_starts_cost_few_sweeps(rng):
    A = with_spectrum(rng, np.linspace(1, 0, 300) ** 4)
    cold, sweeps = solve(A, 3)
    _, warm = solve(A + 1e-6 * np.eye(300), 3, start=cold.vectors)
    assert warm <= 2 < sweeps


def test_pull_and_scale_are_part_of_the_matrix(rng):
    n, k = 40, 3
    B = rng.random((n, n))
    K = B + B.T
    scale, shift, P = rng.random(n) + 0.5, rng.random(n), np.linalg.qr(rng.normal(size=(n, 2)))[0]
    matrix = ShiftedKernel(scale, shift, np.diag(K), P, 3.0)
    steps = leading_eigenpairs(matrix, k, np.empty((n, 0)), FLOAT64, direct=0)
    ask = next(steps)
    try:
        while True:
            ask = steps.send(Products(K @ ask.Z))
    except StopIteration as end:
        found = end.value
    A = scale[:, None] * K * scale - np.diag(shift) + 3.0 * P @ P.T
    np.testing.assert_allclose(matrix.diagonal, np.diag(A))
    np.testing.assert_allclose(found.values, eigh(A)[0][::-1][:k], rtol=1e-9)


def test_signs_and_order_repeat(rng):
    A = with_spectrum(rng, np.linspace(1, 0, 200))
    one, other = solve(A, 4)[0], solve(A, 4)[0]
    np.testing.assert_array_equal(one.vectors, other.vectors)
    direct = solve(A, 4, direct=200)[0]
    np.testing.assert_allclose(one.vectors, direct.vectors, atol=1e-6)
    assert (np.diff(one.values) <= 0).all()
    assert (fix_signs(-one.vectors) == one.vectors).all()


def test_directions_that_add_nothing_are_dropped(rng):
    basis = np.linalg.qr(rng.normal(size=(20, 3)))[0]
    assert orthonormal(basis, basis @ rng.normal(size=(3, 2))).shape == (20, 0)
    assert orthonormal(basis, np.zeros((20, 2))).shape == (20, 0)
    new = orthonormal(basis, rng.normal(size=(20, 4)))
    np.testing.assert_allclose(new.T @ new, np.eye(4), atol=1e-12)
    np.testing.assert_allclose(basis.T @ new, 0, atol=1e-12)
