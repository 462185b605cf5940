"""solver="accelerated": J never rises, sweeps are as stated, the paper's solver is untouched."""

import itertools
import json

import naive
import numpy as np
import pytest
from click.testing import CliRunner
from helpers.marks import mostly_slow
from helpers.problems import dense, fit_gmkcf, kernels, start, tiled
from hypothesis import example, given, strategies as st
from scipy.optimize import nnls

from gmkcf_dask import GMKCF, KCF
from gmkcf_dask.cli import main
from gmkcf_dask.compute.costs import products_per_weight_step
from gmkcf_dask.compute.lockstep import run_solver
from gmkcf_dask.corpus import read_corpus
from gmkcf_dask.errors import InputError, NotPositiveError
from gmkcf_dask.kernels.specs import PAPER12
from gmkcf_dask.methods import accelerate, updates
from gmkcf_dask.methods.factorize import SolverOptions
from gmkcf_dask.methods.gmkcf import Gmkcf, gmkcf
from gmkcf_dask.methods.kcf import Kcf, kcf
from gmkcf_dask.methods.registry import make_method
from gmkcf_dask.pipeline import dense_kernels
from gmkcf_dask.store.request import KernelRequest

pytestmark = pytest.mark.usefixtures("calm")
N, M, K = 60, 3, 2


def fast(k, **how):
    return SolverOptions(k, solver="accelerated", **how)


def run_kcf(K_, begin, options):
    stack = dense([K_])
    kernel = stack.single(0)
    return run_solver(kcf(kernel, begin, options, np.ones(1), stack.error_floor), kernel)


def assert_falls(history, floor, rounding=1e-9):
    """Where the fit is exact, J is a difference of equal numbers: its rounding is the trace's."""
    seen = [J for J in history if floor < J]
    for earlier, later in itertools.pairwise(seen):
        assert later <= earlier * (1 + rounding)


# --- J never rises ----------------------------------------------------------------------------

problem = st.fixed_dictionaries(
    {
        "n": st.integers(2, 25),
        "m": st.integers(1, 4),
        "k": st.integers(1, 6),
        "mixed": st.booleans(),
        "inner_iter": st.integers(1, 4),
        "v_steps": st.integers(1, 12),
        "seed": st.integers(0, 2**31),
        "zeros": st.booleans(),
        "tol": st.sampled_from([0.0, 1e-3]),
    }
)


@given(problem, st.sampled_from(["float64", "float32", "compact"]))
def test_objective_never_rises(p, precision):
    rng = np.random.default_rng(p["seed"])
    Ks = kernels(rng, p["n"], p["m"], p["mixed"] and precision != "compact")
    U, V = start(rng, p["n"], p["k"])
    if p["zeros"]:
        U[rng.random(U.shape) < 0.3] = 0
        V[rng.random(V.shape) < 0.3] = 0
    how = {name: p[name] for name in ("inner_iter", "v_steps", "tol")}
    run = gmkcf(dense(Ks, precision), (U, V), fast(p["k"], max_iter=10, **how))
    trace = naive.objective(Ks, run.w, 0 * U, V)
    if precision == "float64":
        assert_falls(run.history, 1e-10 * trace)
    else:
        assert_falls(run.history, 1e-3 * trace, 2e-6)
    for factor in (run.U, run.V):
        assert np.isfinite(factor).all()
        assert factor.min() >= 0


def special(name, rng, n):
    if name == "identity":
        return np.eye(n)
    if name == "duplicates":
        return kernels(rng, n, 1)[0][np.ix_(np.arange(n) // 2, np.arange(n) // 2)]
    if name == "ones":
        return np.ones((n, n))
    return kernels(rng, n, 1, mixed=name == "mixed")[0]


@given(
    st.sampled_from(["plain", "mixed", "identity", "duplicates", "ones"]),
    st.integers(2, 20),
    st.floats(0, 1),
    st.integers(0, 2**31),
)
@example("identity", 12, 1.0, 0)  # k = n
@example("duplicates", 20, 1.0, 0)
@example("mixed", 20, 0.0, 0)  # k = 1
def test_objective_of_one_kernel_never_rises(name, n, share, seed):
    rng = np.random.default_rng(seed)
    K_, k = special(name, rng, n), 1 + round(share * (n - 1))
    run = run_kcf(K_, start(rng, n, k), fast(k, max_iter=60, tol=0.0))
    assert_falls(run.history, 1e-10 * n)
    assert run.history[-1] >= -1e-9 * n
    assert np.isfinite(run.U).all()
    assert np.isfinite(run.V).all()


def test_mixed_signs_that_are_not_psd_stop_with_one_sentence(rng):
    K_ = rng.normal(size=(30, 30))
    with pytest.raises(NotPositiveError, match="not positive semi-definite"):
        fit_gmkcf(dense([K_ + K_.T]), fast(3), seed=0)
    with pytest.raises(NotPositiveError, match="not positive semi-definite"):
        run_kcf(K_ + K_.T, start(rng, 30, 3), fast(3))


def test_a_concept_that_no_sample_has_can_come_back(rng):
    """U of an unused concept stays: HALS can use it again, a zero column would be lost."""
    K_ = kernels(rng, 30, 1)[0]
    U, V = start(rng, 30, 3)
    V[:, 1] = 0
    run = run_kcf(K_, (U, V), fast(3, polish=False))
    assert run.V[:, 1].any()
    assert_falls(run.history, 0.0)


# --- the steps --------------------------------------------------------------------------------


@pytest.mark.parametrize("mixed", [False, True])
def test_hals_ends_at_the_exact_solution(rng, mixed):
    K_ = kernels(rng, 40, 1, mixed)[0] + 0.1 * np.eye(40)
    U, V = start(rng, 40, 4)
    KU = K_ @ U
    G = U.T @ KU
    L = np.linalg.cholesky(G)
    exact = np.array([nnls(L.T, np.linalg.solve(L, b))[0] for b in KU])
    np.testing.assert_allclose(updates.hals_V(V, KU, G, 3000), exact, atol=1e-7)
    values = [
        updates.objective(np.trace(K_), updates.hals_V(V, KU, G, passes), KU, G)
        for passes in range(8)
    ]
    assert values == sorted(values, reverse=True)


def test_hals_leaves_what_it_was_given(rng):
    U, V = start(rng, 10, 3)
    copy = V.copy()
    G = np.diag([1.0, 0.0, 2.0])  # the second concept is empty
    found = updates.hals_V(V, U, G, 2)
    np.testing.assert_array_equal(V, copy)
    np.testing.assert_array_equal(found[:, 1], V[:, 1])
    np.testing.assert_allclose(found[:, [0, 2]], U[:, [0, 2]] / [1, 2])


def test_compiled_steps_of_many_rows_are_the_same(rng, monkeypatch):
    V, KU = rng.random((70, 4)), rng.normal(size=(70, 4))
    G = rng.random((4, 4))
    G = G @ G.T
    G[2] = G[:, 2] = 0.0  # an empty concept
    wanted = updates.hals_V(V, KU, G, 5)
    monkeypatch.setattr(updates, "COMPILED_ROWS", 50)
    np.testing.assert_allclose(updates.hals_V(V, KU, G, 5), wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("size", [1e-180, 1.0, 1e140])
def test_a_compiled_U_step_of_many_rows_is_the_same(rng, monkeypatch, size):
    U, KV = rng.random((70, 4)), size * rng.normal(size=(70, 4))
    KU = size * rng.normal(size=(70, 4))
    KposU = np.maximum(KU, 0.0) + size * rng.random((70, 4))
    U[3, 1], KposU[5], KU[5], KV[6] = updates.SMALLEST, 0.0, 0.0, 0.0
    C = rng.random((4, 4))
    C = C @ C.T
    wanted = updates.update_U_mixed(U, KU, KposU, KV, C)
    monkeypatch.setattr(updates, "COMPILED_ROWS", 50)
    compiled = updates.update_U_mixed(U, KU, KposU, KV, C)
    np.testing.assert_allclose(compiled, wanted, rtol=1e-12)


@pytest.mark.parametrize("mixed", [False, True])
def test_equals_naive(rng, mixed):
    Ks = kernels(rng, 40, 4, mixed)
    begin, iterations = start(rng, 40, 3), 5
    expected = naive.accelerated(Ks, *begin, iterations, 1e-6, per_weight_step=8)
    run = gmkcf(dense(Ks), begin, fast(3, max_iter=iterations, tol=1e-6))
    np.testing.assert_allclose(run.history, [J for *_, J in expected[: run.n_iter + 1]], rtol=1e-8)
    U, V, w, _ = expected[run.n_iter]
    np.testing.assert_allclose(run.w, w, rtol=1e-6)
    np.testing.assert_allclose(run.U, U, atol=1e-5 * U.max())
    np.testing.assert_allclose(run.V, V, atol=1e-5 * V.max())


@pytest.mark.parametrize(("precision", "mixed"), [("float32", False), ("float64", True)])
@pytest.mark.parametrize("residency", ["memory", "scratch", "recompute"])
def test_same_bits_in_memory_and_on_dask(rng, tmp_path, precision, mixed, residency):
    Ks, begin = kernels(rng, N, M, mixed), start(rng, N, K)
    options = fast(K, max_iter=3)
    one = gmkcf(dense(Ks, precision, 25), begin, options)
    stack = tiled(tmp_path / "s.zarr", Ks, precision, 25, residency=residency)
    other = gmkcf(stack, begin, options)
    assert one.history == other.history
    for mine, theirs in ((one.U, other.U), (one.V, other.V), (one.w, other.w)):
        np.testing.assert_array_equal(mine, theirs)


def test_the_papers_solver_is_the_default_and_takes_no_accelerated_step(rng, monkeypatch):
    Ks = kernels(rng, N, M)
    expected = naive.gmkcf(Ks, *start(np.random.default_rng(1), N, K), 5)

    def forbidden(*_):
        raise AssertionError

    monkeypatch.setattr(accelerate, "accelerated", forbidden)
    for options in (SolverOptions(K, max_iter=5), SolverOptions(K, max_iter=5, solver="paper")):
        run = gmkcf(dense(Ks), start(np.random.default_rng(1), N, K), options)
        np.testing.assert_allclose(run.history, [J for *_, J in expected], rtol=1e-12)


# --- when it stops, and what it costs ---------------------------------------------------------


class Sweeps:
    """An operator that counts sweeps over all kernels, and the columns of products with K_w."""

    def __init__(self, stack, per_weight_step=None):
        self._stack = stack
        self.all, self.columns = 0, []
        self.products_per_weight_step = per_weight_step or stack.products_per_weight_step

    def __getattr__(self, name):
        return getattr(self._stack, name)

    def errors(self, U, V):
        self.all += 1
        return self._stack.errors(U, V)

    def fuse(self, weights, *, keep=True):
        self.all += 1
        return _Fused(self._stack.fuse(weights, keep=keep), self.columns)

    def single(self, i):
        return _Fused(self._stack.single(i), self.columns)


class _Fused:
    def __init__(self, kernel, columns):
        self._kernel, self._columns = kernel, columns

    def __getattr__(self, name):
        return getattr(self._kernel, name)

    def matmul(self, Z):
        self._columns.append(Z.shape[1])
        return self._kernel.matmul(Z)


@pytest.fixture
def sweeps(rng):
    return Sweeps(dense(kernels(rng, N, M), block=20))


def test_kcf_takes_one_sweep_per_iteration_or_two(sweeps):
    (found,) = Kcf(K, tol=1e-5, solver="accelerated").fit(sweeps, [0], ["kernel_1"])
    assert sweeps.columns[0] == 2 * K
    assert sweeps.columns.count(2 * K) == 1 + found.n_iter
    assert sweeps.columns.count(K) < found.n_iter / 2  # second sweeps, of K_wU alone
    assert set(sweeps.columns) == {K, 2 * K}


def test_gmkcf_takes_two_sweeps_over_the_kernels_per_iteration(sweeps):
    (found,) = Gmkcf(K, tol=1e-5, solver="accelerated").fit(sweeps, [0])
    assert sweeps.all == 2 * found.n_iter + 1
    # per iteration the first products, and at least one round; K_wU of the final weights ends it
    assert sweeps.columns.count(2 * K) >= 2 * found.n_iter
    assert set(sweeps.columns[:-1]) <= {K, 2 * K}
    assert sweeps.columns[-1] == K


def test_rounds_follow_the_cost_of_a_weight_step(rng):
    Ks = kernels(rng, N, M)
    first = gmkcf(dense(Ks), start(rng, N, K), SolverOptions(K, max_iter=3))
    begin, rounds = (first.U, first.V), {}
    for cost in (1, 6, 24, 10**6):
        sweeps = Sweeps(dense(Ks), cost)
        gmkcf(sweeps, begin, fast(K, max_iter=1, tol=1e-4))
        rounds[cost] = sweeps.columns.count(2 * K) - 1
    assert list(rounds.values()) == sorted(rounds.values())
    assert rounds[1] < rounds[24]
    sweeps = Sweeps(dense(Ks), 1)
    gmkcf(sweeps, begin, fast(K, max_iter=1, tol=0.0, inner_iter=7))
    assert sweeps.columns.count(2 * K) - 1 >= 7


@pytest.mark.parametrize(
    ("precision", "expected"), [("float32", 6), ("float64", 6), ("compact", 3)]
)
def test_the_cost_of_a_weight_step_is_in_bytes(rng, tmp_path, precision, expected):
    Ks = kernels(rng, 20, 3)
    stacks = [dense(Ks, precision)]
    stacks += [
        tiled(tmp_path / residency, Ks, precision, residency=residency)
        for residency in ("memory", "scratch")
    ]
    assert [stack.products_per_weight_step for stack in stacks] == [expected] * 3
    again = tiled(tmp_path / "memory", Ks, precision, residency="recompute")
    assert again.products_per_weight_step == expected, "results do not depend on memory"
    assert products_per_weight_step(1, "compact") == 1


def test_stops_by_the_papers_rule(rng):
    begin = start(rng, N, K)
    run = run_kcf(kernels(rng, N, 1)[0], begin, fast(K, tol=1e-4))
    changes = [(a - b) / b for a, b in itertools.pairwise(run.history)]
    assert run.converged
    assert changes[-1] <= 1e-4 < min(changes[:-1])


@mostly_slow("init", ["random", "spectral"])
def test_ends_no_higher_and_with_fewer_sweeps(rng, init):
    stack = dense(kernels(rng, 120, 3))
    found, swept = {}, {}
    for solver in ("paper", "accelerated"):
        sweeps = Sweeps(stack)
        (found[solver],) = Gmkcf(3, init=init, solver=solver).fit(sweeps, [0])
        swept[solver] = len(sweeps.columns), sweeps.all
    assert found["accelerated"].objective <= found["paper"].objective * (1 + 1e-3)
    assert swept["accelerated"][0] < swept["paper"][0]
    assert swept["accelerated"][1] < swept["paper"][1] / 3


@pytest.mark.slow
def test_fewer_sweeps_on_bbc(paper_data):
    corpus = read_corpus(paper_data / "bbc.mat")
    stack = dense_kernels(KernelRequest(corpus, PAPER12))
    J = Gmkcf(5, init="spectral", solver="accelerated", tol=1e-7).fit(stack, [0])[0].objective
    needed = {}
    for solver in ("paper", "accelerated"):
        sweeps, reached = Sweeps(stack), []

        def listen(event, sweeps=sweeps, reached=reached):
            if getattr(event, "objective", np.inf) <= J * (1 + 1e-3):
                reached.append(len(sweeps.columns))

        Gmkcf(5, init="spectral", solver=solver).fit(sweeps, [0], listen)
        needed[solver] = reached[0]
    assert needed["accelerated"] * 1.5 <= needed["paper"]


# --- options and faces ------------------------------------------------------------------------


@pytest.mark.parametrize("solver", ["fast", "", None, 1, ["paper"]])
def test_unknown_solvers_are_refused_in_one_sentence(solver):
    with pytest.raises(InputError, match=r"^solver must be 'paper' or 'accelerated', not [^\n]+$"):
        SolverOptions(2, solver=solver)


def test_other_methods_have_no_solver():
    with pytest.raises(InputError, match="solver is not a parameter of kkm, only of gmkcf, kcf"):
        make_method("kkm", n_clusters=2, solver="accelerated")


@pytest.mark.parametrize("estimator", [GMKCF, KCF])
@pytest.mark.parametrize("init", ["random", "spectral"])
def test_estimators_take_it(estimator, init):
    rng = np.random.default_rng(0)
    X = np.vstack([rng.normal(c, 0.3, (20, 2)) for c in ([0, 3], [3, 0])])
    model = estimator(2, solver="accelerated", init=init, random_state=0).fit(X)
    assert sorted(np.bincount(model.labels_).tolist()) == [20, 20]
    assert model.objective_history_.shape == (model.n_iter_ + 1,)
    assert model.converged_
    with pytest.raises(InputError, match="solver must be"):
        estimator(2, solver="quick").fit(X)


def test_the_command_line_takes_it(rng, tmp_path):
    np.save(tmp_path / "x.npy", rng.random((30, 4)))
    where = [str(tmp_path / "x.npy"), "-k", "2", "--out", str(tmp_path / "run")]
    common = ["run", *where, "--cluster", "threads", "--kernels", "rbf_1,cosine"]
    done = CliRunner().invoke(main, [*common, "--solver", "accelerated"])
    assert done.exit_code == 0, done.output
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["parameters"]["solver"] == "accelerated"
    refused = CliRunner().invoke(main, [*common, "--overwrite", "--solver", "quick"])
    assert refused.exit_code == 2
    assert "'quick' is not one of 'paper', 'accelerated'" in refused.output


def test_restarts_keep_the_lowest_objective(rng):
    stack = dense(kernels(rng, 40, 3))
    for found in (
        Gmkcf(3, n_init=4, solver="accelerated").fit(stack, [5])[0],
        Kcf(3, n_init=4, solver="accelerated").fit(stack, [5], ["kernel_1", "mean"])[1],
    ):
        assert len(found.runs) == 4
        assert found.objective == min(run.objective for run in found.runs)


def test_polished_v_is_the_best_for_its_u(rng):
    Ks = kernels(rng, 40, 3)
    found = fit_gmkcf(dense(Ks), fast(3), seed=0)
    Kw = naive.fuse(Ks, found.weights)
    gradient = found.V @ (found.U.T @ Kw @ found.U) - Kw @ found.U
    assert gradient[found.V > 0] == pytest.approx(0, abs=1e-9)
    assert gradient.min() >= -1e-9
    np.testing.assert_allclose(np.diagonal(found.U.T @ Kw @ found.U), 1)
