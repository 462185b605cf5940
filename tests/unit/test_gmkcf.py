"""What must be true of every run: J never rises, weights are the closed form, order is free."""

import itertools
import warnings

import naive
import numpy as np
import pytest
from helpers.problems import Recorder, dense, fit_gmkcf, fit_kcf, kernels, start
from hypothesis import given, strategies as st
from sklearn.exceptions import ConvergenceWarning

from gmkcf_dask.compute.lockstep import run_solver
from gmkcf_dask.errors import InputError, NotPositiveError, NumericsWarning
from gmkcf_dask.methods import updates
from gmkcf_dask.methods.assign import kmeans_labels
from gmkcf_dask.methods.base import RunContext
from gmkcf_dask.methods.factorize import SolverOptions, finish
from gmkcf_dask.methods.gmkcf import gmkcf
from gmkcf_dask.methods.init import given_start, random_starts
from gmkcf_dask.methods.kcf import kcf


def quiet(work):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.simplefilter("ignore", NumericsWarning)
        return work()


problem = st.fixed_dictionaries(
    {
        "n": st.integers(2, 30),
        "m": st.integers(1, 4),
        "k": st.integers(1, 6),
        "mixed": st.booleans(),
        "inner_iter": st.integers(1, 4),
        "v_steps": st.integers(1, 5),
        "seed": st.integers(0, 2**31),
        "zeros": st.booleans(),
    }
)


def assert_falls(history, rounding):
    for earlier, later in itertools.pairwise(history):
        assert later <= earlier + rounding * abs(earlier)


# rounding of J relative to J, and below which share of the trace J is rounding only
ROUNDING = {"float64": (1e-9, 1e-10), "float32": (2e-6, 1e-3), "compact": (2e-6, 1e-3)}


@given(problem, st.sampled_from(list(ROUNDING)))
def test_objective_never_rises(p, precision):
    rng = np.random.default_rng(p["seed"])
    Ks = kernels(rng, p["n"], p["m"], p["mixed"] and precision != "compact")
    U, V = start(rng, p["n"], p["k"])
    if p["zeros"]:
        U[rng.random(U.shape) < 0.3] = 0
        V[rng.random(V.shape) < 0.3] = 0
    options = SolverOptions(
        p["k"], inner_iter=p["inner_iter"], v_steps=p["v_steps"], max_iter=15, tol=0.0
    )
    stack = dense(Ks, precision)
    run = quiet(lambda: gmkcf(stack, (U, V), options))
    rounding, share = ROUNDING[precision]
    # where the fit is exact, J is a difference of equal numbers: its rounding is that of the trace
    floor = share * naive.objective(Ks, run.w, 0 * U, V)
    assert_falls([J for J in run.history if floor < J], rounding)
    assert np.isfinite(run.U).all()
    assert np.isfinite(run.V).all()
    assert run.U.min() >= 0
    assert run.V.min() >= 0


@given(problem)
def test_objective_of_one_kernel_never_rises(p):
    rng = np.random.default_rng(p["seed"])
    Ks = kernels(rng, p["n"], 1, p["mixed"])
    options = SolverOptions(
        p["k"], inner_iter=p["inner_iter"], v_steps=p["v_steps"], max_iter=15, tol=0.0
    )
    stack = dense(Ks)
    fused = stack.single(0)
    run = quiet(
        lambda: run_solver(
            kcf(fused, start(rng, p["n"], p["k"]), options, np.ones(1), stack.error_floor), fused
        )
    )
    assert_falls([J for J in run.history if 1e-10 * p["n"] < J], 1e-9)


@given(problem)
def test_weights_sum_to_one_and_equal_the_closed_form(p):
    rng = np.random.default_rng(p["seed"])
    Ks = kernels(rng, p["n"], p["m"])
    stack, events = Recorder(dense(Ks)), []
    options = SolverOptions(p["k"], max_iter=4, tol=0.0)
    quiet(lambda: gmkcf(stack, start(rng, p["n"], p["k"]), options, RunContext(events.append)))
    for (U, V), event in zip(stack.factors, events, strict=True):
        e = np.array([max(naive.error(K, U, V), 1e-12 * np.trace(K)) for K in Ks])
        assert sum(event.weights) == pytest.approx(1)
        if e.min() > 1e-8 * p["n"]:  # else the errors are rounding only
            np.testing.assert_allclose(event.weights, naive.weights(e), rtol=1e-6)
            # no other weights on the simplex do better
            assert event.objective <= sum((1 / p["m"]) ** 2 * e) * (1 + 1e-9)


def test_permuting_kernels_permutes_weights(rng):
    Ks = kernels(rng, 40, 4)
    begin, order = start(rng, 40, 3), [2, 0, 3, 1]
    options = SolverOptions(3, max_iter=30, tol=0.0)
    run = quiet(lambda: gmkcf(dense(Ks), begin, options))
    permuted = quiet(lambda: gmkcf(dense([Ks[i] for i in order]), begin, options))
    np.testing.assert_allclose(permuted.w, run.w[order], rtol=1e-9)
    np.testing.assert_allclose(permuted.U, run.U, rtol=0, atol=1e-9 * run.U.max())


def test_permuting_samples_permutes_labels(rng):
    n, k = 60, 3
    Ks = kernels(rng, n, 3)
    U, V = start(rng, n, k)
    order = rng.permutation(n)
    options = SolverOptions(k, tol=1e-3)
    labels = fit_gmkcf(dense(Ks), options, seed=0, init=(U, V)).labels
    shuffled = fit_gmkcf(
        dense([K[np.ix_(order, order)] for K in Ks]), options, seed=0, init=(U[order], V[order])
    ).labels
    # the same groups, whatever K-means calls them
    pairs = set(zip(labels[order].tolist(), shuffled.tolist(), strict=True))
    assert len(pairs) == len(set(labels.tolist()))


def test_identical_kernels_share_the_weight(rng):
    K = kernels(rng, 30, 1)[0]
    run = quiet(lambda: gmkcf(dense([K] * 5), start(rng, 30, 3), SolverOptions(3, max_iter=20)))
    np.testing.assert_allclose(run.w, 0.2)


def test_one_kernel_is_kcf(rng):
    Ks = kernels(rng, 30, 1)
    begin, options = start(rng, 30, 3), SolverOptions(3, max_iter=20, tol=0.0)
    stack = dense(Ks)
    one = quiet(lambda: gmkcf(stack, begin, options))
    other = quiet(
        lambda: run_solver(kcf(stack.single(0), begin, options, np.ones(1), 1e-12), stack.single(0))
    )
    np.testing.assert_allclose(finish(one, Ks[0] @ one.U, polish=True).U, other.U, rtol=1e-9)
    np.testing.assert_allclose(one.history, other.history, rtol=1e-9)


@pytest.mark.parametrize("k", [1, 12])
def test_one_cluster_and_as_many_as_samples(rng, k):
    found = quiet(lambda: fit_gmkcf(dense(kernels(rng, 12, 3)), SolverOptions(k), seed=0))
    assert found.labels.shape == (12,)
    assert np.isfinite(found.V).all()
    assert len(set(found.labels.tolist())) <= k


def test_exact_fit_stops(rng):
    """Duplicates of k samples are reproduced exactly: the run ends, with everything finite."""
    X = np.eye(3)[rng.integers(0, 3, 24)]
    found = quiet(
        lambda: fit_gmkcf(dense([X @ X.T]), SolverOptions(3, max_iter=5000, tol=0.0), seed=1)
    )
    assert found.n_iter < 5000
    assert found.converged
    assert len(set(zip(X.argmax(axis=1).tolist(), found.labels.tolist(), strict=True))) == 3


def test_history_begins_with_the_start(rng):
    Ks = kernels(rng, 25, 3)
    U, V = start(rng, 25, 2)
    found = quiet(lambda: fit_gmkcf(dense(Ks), SolverOptions(2, max_iter=7), seed=0, init=(U, V)))
    assert len(found.history) == found.n_iter + 1 == 8
    assert found.history[0] == pytest.approx(naive.objective(Ks, np.full(3, 1 / 3), U, V))
    assert not found.converged


def test_running_out_of_iterations_warns(rng):
    with pytest.warns(ConvergenceWarning, match=r"max_iter=3 .* raise max_iter or tol"):
        gmkcf(dense(kernels(rng, 25, 3)), start(rng, 25, 2), SolverOptions(2, max_iter=3))


def test_stops_by_the_papers_rule(rng):
    found = fit_gmkcf(dense(kernels(rng, 40, 3)), SolverOptions(3, tol=1e-3), seed=0)
    changes = [(a - b) / b for a, b in itertools.pairwise(found.history)]
    assert found.converged
    assert changes[-1] <= 1e-3
    assert min(changes[:-1]) > 1e-3


def test_restarts_keep_the_lowest_objective(rng):
    stack = dense(kernels(rng, 40, 3))
    found = fit_gmkcf(stack, SolverOptions(3, tol=1e-3), seed=5, n_init=4)
    assert len(found.runs) == 4
    assert found.history[-1] == min(run.objective for run in found.runs)
    for r, begin in enumerate(random_starts(40, 3, 5, 4)):
        assert gmkcf(stack, begin, SolverOptions(3, tol=1e-3)).objective == found.runs[r].objective


def test_starts_are_pinned():
    streams = np.random.SeedSequence(7).spawn(3)
    for stream, (U, V) in zip(streams, random_starts(6, 2, 7, 3), strict=True):
        rng = np.random.default_rng(stream)
        np.testing.assert_array_equal(U, rng.random((6, 2)))
        np.testing.assert_array_equal(V, rng.random((6, 2)))


def test_polished_v_is_the_best_for_its_u(rng):
    Ks = kernels(rng, 40, 3)
    found = fit_gmkcf(dense(Ks), SolverOptions(3, tol=1e-3), seed=0)
    Kw = naive.fuse(Ks, found.weights)
    best = naive.error(Kw, found.U, found.V)
    gradient = 2 * (found.V @ (found.U.T @ Kw @ found.U) - Kw @ found.U)
    assert gradient[found.V > 0] == pytest.approx(0, abs=1e-9)
    assert gradient.min() >= -1e-9
    assert best <= found.history[-1] * (1 + 1e-9)


def test_unpolished_v_is_the_iterate(rng):
    Ks = kernels(rng, 40, 3)
    options = SolverOptions(3, polish=False, tol=1e-3)
    found = fit_gmkcf(dense(Ks), options, seed=0)
    run = gmkcf(dense(Ks), next(random_starts(40, 3, 0, 1)), options)
    np.testing.assert_allclose(
        found.V / np.linalg.norm(found.V, axis=0), run.V / np.linalg.norm(run.V, axis=0)
    )


def test_mixed_signs_that_are_not_psd_stop_with_one_sentence(rng):
    K = rng.normal(size=(30, 30))
    K = K + K.T
    with pytest.raises(NotPositiveError, match="not positive semi-definite"):
        quiet(lambda: fit_gmkcf(dense([K, K]), SolverOptions(3), seed=0))
    with pytest.raises(NotPositiveError, match="not positive semi-definite"):
        quiet(lambda: fit_kcf(dense([K]), SolverOptions(3), kernel="mean", seed=0))


def test_reaching_the_error_floor_is_reported(rng):
    ones = np.ones((20, 20))
    with (
        pytest.warns(NumericsWarning, match=r"kernel_1 fell to its floor"),
        pytest.warns(NumericsWarning, match=r"kernel_1 has 100% of the weight"),
    ):
        fit_gmkcf(dense([kernels(rng, 20, 1)[0], ones]), SolverOptions(2), seed=0)


def test_kernels_that_are_all_reproduced_draw_no_weight_from_one_another():
    blocks = np.kron(np.eye(2), np.ones((10, 10)))
    found = fit_gmkcf(dense([blocks, blocks]), SolverOptions(2), seed=0)
    assert found.weights.tolist() == [0.5, 0.5]


def test_a_rise_of_the_objective_stops_the_run_and_is_said(rng, monkeypatch):
    """It cannot happen with true kernels: an operator that lies about its errors shows it."""
    stack = dense(kernels(rng, 20, 2))
    true_errors, calls = stack.errors, []

    def lying(U, V):
        calls.append(1)
        return true_errors(U, V) * (1 if len(calls) < 3 else 2)

    monkeypatch.setattr(stack, "errors", lying)
    with pytest.warns(NumericsWarning, match="the objective of GMKCF rose from"):
        run = gmkcf(stack, start(rng, 20, 2), SolverOptions(2, tol=0.0))
    assert not run.converged
    assert run.n_iter == 3


def test_rows_without_a_positive_entry_keep_the_objective_falling():
    """The printed root is 0/0 here; the stable form is not."""
    X = np.array([[1.0, 0.0], [0.9, 0.1], [-1.0, 0.05], [-0.8, -0.1], [0.0, 1.0]])
    Ks = [X @ X.T]
    rng = np.random.default_rng(0)
    run = quiet(lambda: gmkcf(dense(Ks), start(rng, 5, 2), SolverOptions(2, max_iter=100, tol=0.0)))
    assert_falls([J for J in run.history if J > 1e-10], 1e-9)


def test_exact_v_where_there_is_no_unique_one():
    """Two equal concepts, or an empty one: the best row that is nearest to the one there was."""
    V = np.array([[0.2, 0.8], [0.8, 0.2], [3.0, 3.0]])
    equal = updates.solve_V(np.ones((3, 2)), np.ones((2, 2)), V)
    np.testing.assert_allclose(equal, [[0.2, 0.8], [0.8, 0.2], [0.5, 0.5]], atol=1e-5)
    empty = updates.solve_V(np.eye(3, 2) * [1, 0], np.diag([1.0, 0.0]), V)
    np.testing.assert_allclose(empty[:, 0], [1, 0, 0], atol=1e-5)
    indefinite = np.diag([1.0, -0.5])
    assert updates.is_indefinite(indefinite)
    assert not updates.is_indefinite(np.ones((2, 2)))
    given = updates.solve_V(np.ones((3, 2)), indefinite, V)
    np.testing.assert_allclose(given, [[1, 0.8], [1, 0.2], [1, 3]], atol=1e-5)
    # a row that would get worse stays: here the solved one loses what the negative direction gives
    mixed = np.array([[1.0, 2.0], [2.0, 1.0]])
    kept = updates.solve_V(np.ones((3, 2)), mixed, V)
    values = [np.sum(W * (W @ mixed - 2.0), axis=1) for W in (kept, V)]
    assert (values[0] <= values[1] + 1e-12).all()


def test_polish_gives_the_best_v_beyond_the_rank(rng):
    X = rng.random((40, 3))
    K = X @ X.T
    U, V = start(rng, 40, 8)
    KU = K @ U
    polished = updates.solve_V(KU, U.T @ KU, V)
    gradient = polished @ (U.T @ KU) - KU
    scale = np.abs(KU).max()
    assert np.abs(gradient[polished > 0]).max() <= 1e-4 * scale
    assert gradient.min() >= -1e-4 * scale


def test_kmeans_says_when_clusters_are_missing():
    with pytest.warns(NumericsWarning, match="only 2 of 3 clusters are used"):
        kmeans_labels(np.repeat([[0.0], [1.0]], 5, axis=0), 3, seed=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_clusters": 0}, "n_clusters must be a whole number of at least 1, not 0"),
        ({"n_clusters": 2.5}, "n_clusters must be a whole number"),
        ({"n_clusters": 2, "inner_iter": 0}, "inner_iter"),
        ({"n_clusters": 2, "v_steps": True}, "v_steps"),
        ({"n_clusters": 2, "tol": -1.0}, "tol must be 0 or more"),
        ({"n_clusters": 2, "tol": float("nan")}, "tol must be 0 or more"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(InputError, match=message):
        SolverOptions(**options)


def test_given_starts_are_checked(rng):
    with pytest.raises(InputError, match=r"U0 has shape \(3, 2\), it must be \(4, 2\)"):
        given_start(np.ones((3, 2)), np.ones((4, 2)), 4, 2)
    with pytest.raises(InputError, match="V0 must be finite and non-negative"):
        given_start(np.ones((4, 2)), -np.ones((4, 2)), 4, 2)
    stack = dense(kernels(rng, 10, 1))
    with pytest.raises(InputError, match="n_init must be 1 with a spectral or given start"):
        fit_gmkcf(stack, SolverOptions(2), seed=0, n_init=2, init=start(rng, 10, 2))
    with pytest.raises(InputError, match="init must be 'random', 'spectral' or a pair"):
        fit_gmkcf(stack, SolverOptions(2), seed=0, init="magic")


def test_kcf_by_name_and_mean(rng):
    Ks = kernels(rng, 30, 3)
    stack = dense(Ks)
    by_name = fit_kcf(stack, SolverOptions(3, tol=1e-3), kernel="kernel_1", seed=0)
    alone = fit_kcf(dense([Ks[1]]), SolverOptions(3, tol=1e-3), kernel="mean", seed=0)
    np.testing.assert_allclose(by_name.V, alone.V, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(by_name.weights, [0, 1, 0])
    mean = fit_kcf(stack, SolverOptions(3, tol=1e-3), kernel="mean", seed=0)
    whole = fit_kcf(dense([sum(Ks) / 3]), SolverOptions(3, tol=1e-3), kernel="mean", seed=0)
    np.testing.assert_allclose(mean.history, whole.history, rtol=1e-9)
    with pytest.raises(InputError, match="no kernel 'rbf_7' here"):
        fit_kcf(stack, SolverOptions(3, tol=1e-3), kernel="rbf_7", seed=0)
