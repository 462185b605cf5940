"""Guards inside the updates, and concepts or clusters that lose all their samples."""

import warnings

import numpy as np
import pytest
from helpers.entries import ESTIMATORS, on_kernels
from helpers.refusals import N, features, kernel, raised
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as hnp

from gmkcf_dask import GMKCF, KCF
from gmkcf_dask.compute.lockstep import ProductRequest, Products, refuse_nonfinite
from gmkcf_dask.errors import NumericsError, NumericsWarning
from gmkcf_dask.methods import updates
from gmkcf_dask.methods.factorize import Factorization, Iterate, finish, refuse_unbounded

SIZES = st.sampled_from([0.0, 1e-320, 1e-300, 1e-160, 1e-30, 1.0, 3.0, 1e30, 1e75])
FACTORS = hnp.arrays(np.float64, (5, 2), elements=SIZES)


def symmetric(values: np.ndarray) -> np.ndarray:
    return np.triu(values) + np.triu(values, 1).T


KERNELS = hnp.arrays(np.float64, (5, 5), elements=SIZES).map(symmetric)


def assert_usable(before: np.ndarray, after: np.ndarray) -> None:
    assert np.isfinite(after).all()
    assert (after >= updates.SMALLEST).all()
    bound = np.maximum(updates.LARGEST_STEP * before, updates.SMALLEST)
    assert (after <= bound).all()


@given(K=KERNELS, U=FACTORS, V=FACTORS)
def test_steps_on_numbers_of_any_size(K, U, V):
    """Zeros, denormals and large numbers, in any mixture: a finite step within its bounds."""
    KU, KV = K @ U, K @ V
    assert_usable(U, updates.update_U(U, KU, KV, V.T @ V))
    assert_usable(V, updates.update_V(V, KU, U.T @ KU))


@given(K=KERNELS, signs=hnp.arrays(np.bool_, (5, 5)).map(symmetric), U=FACTORS, V=FACTORS)
def test_steps_of_mixed_signs_on_numbers_of_any_size(K, signs, U, V):
    K = np.where(signs, K, -K)
    KU, KV, KposU = K @ U, K @ V, np.maximum(K, 0) @ U
    assert_usable(U, updates.update_U_mixed(U, KU, KposU, KV, V.T @ V))
    assert_usable(V, updates.update_V_mixed(V, U, KU, KposU))


def test_a_zero_denominator_is_a_bounded_step():
    U, V = np.array([[1.0], [0.0]]), np.array([[1.0], [1.0]])
    after = updates.update_U(U, np.zeros((2, 1)), np.ones((2, 1)), V.T @ V)
    assert after[0, 0] == updates.LARGEST_STEP
    assert after[1, 0] == updates.SMALLEST


def test_zeros_are_not_locked():
    """A start with zeros in it goes where one without goes: they grow if that lowers J."""
    V0 = np.eye(3)[np.arange(N) % 3]
    wrong = np.roll(V0, 1, axis=0) * np.random.default_rng(0).uniform(0.5, 1, (N, 3))
    model = KCF(3, kernel="precomputed", init=(wrong, V0), max_iter=200, tol=0, polish=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        locked = model.fit([kernel()])
        free = KCF(3, kernel="precomputed", random_state=0, max_iter=200, tol=0).fit([kernel()])
    assert locked.objective_history_[-1] <= 1.05 * free.objective_history_[-1]


def test_steps_keep_what_is_not_at_a_bound_bit_for_bit():
    rng = np.random.default_rng(0)
    K, U, V = kernel(), rng.random((N, 3)), rng.random((N, 3))
    KU, KV, VtV = K @ U, K @ V, V.T @ V
    assert (updates.update_U(U, KU, KV, VtV) == U * KV / (KU @ VtV)).all()
    assert (updates.update_V(V, KU, U.T @ KU) == V * KU / (V @ (U.T @ KU))).all()


@pytest.mark.parametrize("part", ["U", "V"])
@pytest.mark.parametrize("estimator", [GMKCF, KCF])
@pytest.mark.parametrize("solver", ["paper", "accelerated"])
def test_a_concept_that_starts_empty(part, estimator, solver):
    """An all-zero column of U or V: the result is finite, and an empty concept is reported."""
    rng = np.random.default_rng(0)
    start = {"U": rng.random((N, 3)), "V": rng.random((N, 3))}
    start[part][:, 1] = 0
    model = on_kernels(
        estimator, 3, "precomputed", init=(start["U"], start["V"]), solver=solver, max_iter=30
    )
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        model.fit([kernel()])
    assert np.isfinite(model.U_).all()
    assert np.isfinite(model.V_).all()
    assert len(model.labels_) == N
    empty = not model.V_[:, 1].any() or not model.U_[:, 1].any()
    assert not empty or any("concepts are empty" in str(one.message) for one in said)


def test_an_emptied_concept_is_reported():
    """A column that has sunk to the floor counts as empty; it is scaled by 1, not by 1/0."""
    U, V = np.random.default_rng(0).random((2, N, 3))
    U[:, 1] = V[:, 2] = updates.SMALLEST
    run = Factorization(U, V, np.ones(1), (2.0, 1.0), converged=True)
    for polish in (False, True):
        with pytest.warns(NumericsWarning, match=r"\d of 3 concepts are empty"):
            done = finish(run, kernel() @ U, polish=polish)
        assert np.isfinite(done.U).all()
        assert np.isfinite(done.V).all()


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("seed", range(3))
def test_more_clusters_than_groups(estimator, seed):
    """Clusters that lose their samples are filled again, or reported; labels are never lost."""
    X = np.repeat(np.eye(3), 4, axis=0) + 1e-9 * features(12)[:, :3]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = on_kernels(estimator, 7, "cosine").set_params(random_state=seed).fit(X)
    assert set(model.labels_) <= set(range(7))
    assert len(model.labels_) == 12
    assert np.isfinite(model.objective_history_).all()


# --- the one check of everything that leaves an update ----------------------------------------

BROKEN = np.array([[1.0, 1.0], [np.nan, 1.0], [1.0, np.inf]])
FINE = np.ones((3, 2))


@pytest.mark.parametrize(
    "make",
    [
        lambda: ProductRequest(BROKEN),
        lambda: Iterate(BROKEN, FINE, Products(FINE), None, FINE),
        lambda: Iterate(FINE, BROKEN, Products(FINE), None, FINE),
        lambda: Factorization(FINE, BROKEN, np.ones(1), (1.0,), converged=True),
        lambda: refuse_nonfinite(V=BROKEN),
    ],
)
def test_what_is_not_finite_goes_no_further(make):
    sentence = raised(make, NumericsError)
    assert "no longer finite (sample 1)" in sentence


@pytest.mark.parametrize("J", [np.nan, np.inf, -np.inf])
def test_an_objective_that_is_not_finite_ends_the_run(J):
    raised(lambda: refuse_unbounded(J, 1.0, bounded=True), NumericsError)
