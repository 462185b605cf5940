"""The paper's other methods: against literal oracles, on every operator, and at the edges."""

import warnings
from dataclasses import replace

import naive
import numpy as np
import pytest
from helpers.marks import mostly_slow
from helpers.problems import dense, kernels, tiled
from hypothesis import assume, example, given, settings, strategies as st
from sklearn.datasets import make_blobs
from sklearn.exceptions import ConvergenceWarning

from gmkcf_dask import pipeline
from gmkcf_dask.compute import eigen
from gmkcf_dask.compute.lockstep import run_solver
from gmkcf_dask.compute.runner import Runner
from gmkcf_dask.errors import InputError, NumericsWarning, WeakClustersWarning
from gmkcf_dask.events import StageProgress
from gmkcf_dask.methods import coreg as coreg_module
from gmkcf_dask.methods.coreg import Coreg, consensus
from gmkcf_dask.methods.factorize import SolverOptions
from gmkcf_dask.methods.gmkcf import Gmkcf
from gmkcf_dask.methods.init import start_from_vectors
from gmkcf_dask.methods.kcf import Kcf
from gmkcf_dask.methods.kkm import Kkm
from gmkcf_dask.methods.kmeans_steps import assign, random_centres
from gmkcf_dask.methods.registry import METHODS, make_method, parameters_of
from gmkcf_dask.methods.rmkkm import Rmkkm
from gmkcf_dask.methods.spectral import Sc, embed

pytestmark = pytest.mark.usefixtures("calm")
RISE = 1e-10  # of the objective, relative: float64 kernels


def blob_kernels(n=60, seed=0, centers=3, **how):
    """Separated groups seen through a narrow, a wide and a linear kernel; and the true groups."""
    X, y = make_blobs(n, 3, centers=centers, cluster_std=0.4, random_state=seed, **how)
    D2 = naive.distances_squared(X)
    return [np.exp(-D2 / D2.mean()), np.exp(-D2 / (4 * D2.mean())), (1 + X @ X.T) / 100], y


def fit_one(method, stack, seed=0, kernel="mean"):
    return pipeline.fit(stack, method, [seed], [kernel])[0]


def chosen(C):
    """Which samples are the centres of a start."""
    return C.argmax(axis=0)


def same_groups(a, b):
    return len(set(zip(a, b, strict=True))) == len(set(a)) == len(set(b))


def never_rises(history):
    values = np.asarray(history)
    return (np.diff(values) <= RISE * np.abs(values).max()).all()


EVERY_METHOD = [
    Gmkcf(3, tol=1e-3),
    Kcf(3, tol=1e-3),
    Kcf(3, tol=1e-3, init="spectral"),
    Gmkcf(3, tol=1e-3, init="spectral"),
    Kkm(3, n_init=4),
    Sc(3),
    Sc(3, "unnormalized"),
    Coreg(3),
    Coreg(3, lam=100.0),
    Rmkkm(3, n_init=4),
    Rmkkm(3, restart_inner=True, max_iter=3, n_init=2),
]


# --- oracles ------------------------------------------------------------------------------------


@settings(max_examples=15)
@given(n=st.integers(6, 20), k=st.integers(1, 5), seed=st.integers(0, 2**31), mixed=st.booleans())
def test_kkm_equals_the_literal_one(n, k, seed, mixed):
    rng = np.random.default_rng(seed)
    (K,) = kernels(rng, n, 1, mixed)
    found = fit_one(Kkm(k), dense([K], block=7), seed)
    labels, trail = naive.kkm(K, chosen(next(random_centres(n, k, seed, 1))))
    np.testing.assert_array_equal(found.labels, labels)
    np.testing.assert_allclose(found.history, trail, rtol=1e-9, atol=1e-12)
    assert never_rises(found.history)


@settings(max_examples=15)
@given(
    n=st.integers(8, 16),
    m=st.integers(1, 3),
    k=st.integers(1, 4),
    gamma=st.sampled_from([0.2, 0.3, 0.4, 0.7]),
    seed=st.integers(0, 2**31),
)
@example(n=8, m=1, k=3, gamma=0.2, seed=10053718)
def test_rmkkm_equals_the_literal_one(n, m, k, gamma, seed):
    rng = np.random.default_rng(seed)
    Ks = kernels(rng, n, m)
    found = fit_one(Rmkkm(k, gamma=gamma), dense(Ks, block=7), seed)
    centres = chosen(next(random_centres(n, k, seed, 1)))
    labels, w, trail, lowered = naive.rmkkm(Ks, centres, gamma)
    assert never_rises(found.history)
    assume(lowered)  # ours takes a bad step back
    np.testing.assert_array_equal(found.labels, labels)
    np.testing.assert_allclose(found.weights, w, rtol=1e-6)
    np.testing.assert_allclose(found.history, trail, rtol=1e-7)
    assert np.sum(found.weights**gamma) == pytest.approx(1)
    assert never_rises(found.history)


def test_kcf_with_the_linear_kernel_is_cf(rng):
    X = rng.random((30, 5))
    W, V = rng.random((30, 3)), rng.random((30, 3))
    method = Kcf(3, max_iter=12, tol=0.0, init=(W, V), polish=False)
    found = fit_one(method, dense([X @ X.T]))
    trail = naive.cf(X, W, V, 12)
    np.testing.assert_allclose(found.history[1:], [J for *_, J in trail], rtol=1e-9)
    scale = np.sqrt(np.diag(trail[-1][0].T @ X @ X.T @ trail[-1][0]))
    np.testing.assert_allclose(found.V, trail[-1][1] * scale, rtol=1e-7)


@pytest.fixture
def small_basis(monkeypatch):
    """A basis of few columns, as at large n: far from spanning everything."""
    monkeypatch.setattr(eigen, "BASIS_BYTES", 1)


@pytest.mark.usefixtures("small_basis")
@pytest.mark.parametrize("laplacian", ["symmetric", "unnormalized"])
@mostly_slow("direct", [0, 1500], ids=["block", "lapack"])
@pytest.mark.parametrize("mixed", [False, True])
def test_spectral_embedding_equals_eigh(rng, laplacian, direct, mixed):
    K = blob_kernels(300)[0][1] - (0.05 if mixed else 0.0)
    kernel = dense([K]).single(0)
    found = run_solver(embed(kernel, 4, laplacian, 1e-12, direct=direct), kernel)
    values, vectors = naive.smallest(naive.laplacian(K, laplacian), 4)
    np.testing.assert_allclose(found.eigenvalues, values, atol=1e-9 * abs(K).sum(axis=1).max())
    assert angle(found.vectors, vectors) < 1e-6
    assert found.history[-1] == pytest.approx(values.sum(), rel=1e-6)
    assert (np.diff(found.history) <= 1e-10).all()


def angle(found, exact):
    """Sine of the largest angle between two subspaces with orthonormal bases."""
    np.testing.assert_allclose(found.T @ found, np.eye(found.shape[1]), atol=1e-10)
    return np.linalg.norm(exact - found @ (found.T @ exact), 2)


@pytest.mark.usefixtures("small_basis")
@mostly_slow("lam", [0.1, 1.0, 100.0])
@mostly_slow("direct", [0, 1000], ids=["block", "lapack"])
def test_coreg_equals_eigh(monkeypatch, lam, direct):
    monkeypatch.setattr(coreg_module, "DIRECT", direct)
    Ks = blob_kernels(150)[0][:2]
    trail = naive.coreg(Ks, 3, lam, 10)
    found = consensus(dense(Ks), 3, lam, 10)
    expected = trail[len(found.history) - 1]
    assert angle(found.vectors, expected[0]) < 1e-6
    np.testing.assert_allclose(
        found.history, [-value for _, value in trail[: len(found.history)]], rtol=1e-9
    )
    # a run that ended early ended because nothing changed any more
    assert trail[-1][1] == pytest.approx(expected[1], rel=1e-8)
    assert never_rises(found.history)


@pytest.mark.usefixtures("small_basis")
def test_coreg_without_a_gap_reaches_the_same_sum(rng, monkeypatch):
    """A nearly flat spectrum beside a real one: no unique vectors, but a unique sum."""
    monkeypatch.setattr(coreg_module, "DIRECT", 0)
    noise = rng.random((200, 200)) * 1e-4
    Ks = [np.eye(200) + noise + noise.T, blob_kernels(200)[0][1]]
    found = consensus(dense(Ks), 3, 0.1, 10)
    trail = naive.coreg(Ks, 3, 0.1, 10)
    assert -found.history[0] == pytest.approx(trail[0][1], rel=1e-6)
    assert angle(found.vectors, found.vectors) < 1e-10
    assert never_rises(found.history)


def test_rmkkm_with_tiny_weights_is_the_same_in_float32():
    """Equal weights are m^(-1/γ): far below what float32 holds, but only their ratios matter."""
    Ks = 4 * blob_kernels(90)[0]
    method = Rmkkm(3, gamma=0.02, n_init=4)
    in_float32 = fit_one(method, dense(Ks, "float32"))
    np.testing.assert_array_equal(in_float32.labels, fit_one(method, dense(Ks)).labels)
    assert np.sum(in_float32.weights**0.02) == pytest.approx(1)
    with pytest.raises(InputError, match=r"gamma=0\.003 is too small for 12 kernels"):
        fit_one(replace(method, gamma=0.003), dense(Ks))
    assert np.isfinite(fit_one(replace(method, gamma=0.999), dense(Ks)).weights).all()


# --- every operator -----------------------------------------------------------------------------


@pytest.mark.once
@mostly_slow(
    "method",
    [
        Sc(3),
        Coreg(3, max_iter=2),
        Kkm(3),
        *(kind(3, tol=1e-3, init="spectral", max_iter=2) for kind in (Kcf, Gmkcf)),
    ],
    ids=repr,
    plain=2,
)
def test_above_lapack_every_operator_gives_the_same_bits(tmp_path, method):
    Ks, _ = blob_kernels(1030)
    inside = fit_one(method, dense(Ks[:2], "float32", 300))
    stack = tiled(tmp_path / "s.zarr", Ks[:2], "float32", 300, Runner(n_threads=2))
    outside = fit_one(method, stack)
    assert inside.history == outside.history
    np.testing.assert_array_equal(inside.labels, outside.labels)
    for name, values in inside.factors.items():
        np.testing.assert_array_equal(values, outside.factors[name])


@pytest.mark.once
@pytest.mark.parametrize("method", EVERY_METHOD, ids=repr)
@mostly_slow("scheduler", ["threads", "two_workers"])
def test_tiled_equals_dense(tmp_path, runner_named, method, scheduler):
    Ks, y = blob_kernels()
    memory = dense(Ks, "float32", 16)
    assert same_groups(fit_one(method, memory, seed=1).labels, y)
    if isinstance(method, SolverOptions):
        method = replace(method, max_iter=4)  # on a cluster every product takes its time
    inside = fit_one(method, memory, seed=1)
    stack = tiled(tmp_path / "s.zarr", Ks, "float32", 16, runner_named(scheduler))
    outside = fit_one(method, stack, seed=1)
    np.testing.assert_array_equal(inside.labels, outside.labels)
    np.testing.assert_allclose(inside.history, outside.history, rtol=1e-6)


# restarting the inner clustering may raise it, as its docstring says
@pytest.mark.parametrize(
    "method", [m for m in EVERY_METHOD if not getattr(m, "restart_inner", False)], ids=repr
)
def test_the_objective_never_rises(method):
    for seed in range(5):
        Ks, _ = blob_kernels(40, seed, centers=5)
        found = fit_one(method, dense(Ks[:2]), seed)
        assert never_rises(found.history)
        assert found.n_iter == len(found.history) - 1


@pytest.mark.parametrize("method", [Kcf(3, tol=1e-3), Kkm(3), Sc(3)], ids=repr)
@mostly_slow("mixed", [False, True])
@mostly_slow("out_of_core", [False, True])
def test_all_kernels_and_seeds_together_equal_each_alone(rng, tmp_path, method, mixed, out_of_core):
    Ks = [K + 1.5 * np.eye(40) for K in kernels(rng, 40, 3, mixed)]
    if mixed:  # degrees must be positive for the symmetric Laplacian
        Ks = [K + 0.2 for K in Ks]
    stack = tiled(tmp_path / "s.zarr", Ks) if out_of_core else dense(Ks)
    names = (*stack.names, "mean")
    together = pipeline.fit(stack, method, [0, 1], names)
    assert [(one.kernel, one.seed) for one in together] == [(n, s) for n in names for s in (0, 1)]
    for one in together:
        alone_ = fit_one(method, stack, one.seed, one.kernel)
        np.testing.assert_allclose(one.history, alone_.history, rtol=1e-7)
        np.testing.assert_array_equal(one.labels, alone_.labels)
        np.testing.assert_array_equal(one.weights, alone_.weights)


def test_runs_that_share_sweeps_tell_how_many_have_ended(rng):
    heard = []
    pipeline.fit(dense(kernels(rng, 30, 2)), Kkm(3), [0, 1], ["kernel_0", "kernel_1"], heard.append)
    assert {type(event) for event in heard} == {StageProgress}
    assert (heard[0].done, heard[-1].done, heard[-1].total) == (0, 4, 4)
    assert {event.unit for event in heard} == {"runs"}


# --- edges --------------------------------------------------------------------------------------


def clusters_of(found, k):
    assert found.labels.min() >= 0
    assert found.labels.max() < k
    assert np.isfinite(found.history).all()
    assert all(np.isfinite(values).all() for values in found.factors.values())
    return len(set(found.labels.tolist()))


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("k", [1, 12])
def test_one_cluster_and_as_many_as_samples(rng, name, k):
    found = fit_one(make_method(name, n_clusters=k), dense(kernels(rng, 12, 3), block=5))
    assert clusters_of(found, k) == k or name in ("gmkcf", "kcf")


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(
    "Ks",
    [
        [np.eye(20)],
        [np.ones((20, 20))],
        [np.eye(20), np.ones((20, 20))],
        [blob_kernels(20)[0][0]] * 3,
        [np.kron(np.eye(2), np.ones((10, 10)))],
    ],
    ids=["identity", "all ones", "both", "identical", "two blocks"],
)
def test_degenerate_kernels(name, Ks):
    found = fit_one(make_method(name, n_clusters=3), dense(Ks, block=7))
    clusters_of(found, 3)
    if name in ("kkm", "rmkkm"):
        assert len(set(found.labels.tolist())) == 3, "an emptied cluster takes the farthest sample"


@mostly_slow("name", METHODS)
@pytest.mark.slow
def test_one_kernel_or_the_same_one_twice(name):
    (K, *_), y = blob_kernels(30)
    parameters = {"n_init": 4} if "n_init" in parameters_of(name) else {}
    method = make_method(name, n_clusters=3, **parameters)
    once, twice = (fit_one(method, dense(Ks)) for Ks in ([K], [K, K]))
    assert same_groups(once.labels, y)
    assert same_groups(twice.labels, y)
    if method.name not in ("sc", "kkm", "kcf"):
        np.testing.assert_allclose(twice.weights[0], twice.weights[1])


@pytest.mark.parametrize("name", METHODS)
def test_mixed_signs(name):
    """Centred kernels: k-means methods do not mind, spectral ones need positive degrees."""
    (K, *_), y = blob_kernels(40)
    H = np.eye(40) - 1 / 40
    Ks = [(H @ K @ H + (H @ K @ H).T) / 2]
    parameters = {"n_init": 4} if name in ("kkm", "rmkkm") else {}
    method = make_method(name, n_clusters=3, **parameters)
    if name in ("sc", "coreg"):
        with pytest.raises(
            InputError, match=r"row \d+ of kernel kernel_0 sums to .* positive degrees"
        ):
            fit_one(method, dense(Ks))
        return
    found = fit_one(method, dense(Ks))
    clusters_of(found, 3)
    if name in ("kkm", "rmkkm"):
        assert same_groups(found.labels, y)


def test_the_unnormalized_laplacian_allows_any_signs(rng):
    (K,) = kernels(rng, 30, 1, mixed=True)
    clusters_of(fit_one(Sc(3, "unnormalized"), dense([K])), 3)


def test_rmkkm_never_rises_where_samples_sit_on_their_centres():
    """Duplicates do: a centre on four equal samples must not leave them for a worse place."""
    for seed in range(12):
        rng = np.random.default_rng(seed)
        X = np.vstack([np.repeat(rng.normal(size=(4, 3)), 6, axis=0), rng.normal(size=(10, 3))])
        D2 = naive.distances_squared(X)
        stack = dense([np.exp(-D2 / s) for s in (0.5, 2.0, 8.0)])
        for gamma in (0.05, 0.3):
            found = fit_one(Rmkkm(4, gamma=gamma), stack, seed)
            assert never_rises(found.history), (seed, gamma)


def test_rmkkm_says_when_one_kernel_has_it_all():
    (K, *_), _ = blob_kernels(40)
    with pytest.warns(NumericsWarning, match=r"kernel kernel_1 has .* RMKKM favours the kernel"):
        fit_one(Rmkkm(3), dense([K, np.ones((40, 40))], "float32"))


def test_an_emptied_cluster_never_empties_another():
    d = np.array([[-5.0, -4.0, -4.5], [-3.0, -2.0, -2.0], [-2.0, -5.0, -1.0]])
    labels, _ = assign(d)
    assert sorted(labels.tolist()) == [0, 1, 2]


@pytest.mark.parametrize("name", ["kkm", "rmkkm"])
def test_indefinite_kernels_end_with_a_partition(name):
    for seed in range(10):
        B = np.random.default_rng(seed).normal(size=(20, 20))
        K = (B + B.T) / 2 + np.diag(np.full(20, 0.5))
        if np.trace(K) > 0:
            found = fit_one(make_method(name, n_clusters=8), dense([K]), seed)
            assert clusters_of(found, 8) == 8


def test_no_warning_filter_is_left_behind(rng):
    before = list(warnings.filters)
    stack = dense(kernels(rng, 30, 3))
    with pytest.warns(ConvergenceWarning, match="max_iter=2"):
        pipeline.fit(stack, Kcf(3, max_iter=2, init="spectral"), [0], stack.names)
    assert warnings.filters == before


def test_kkm_says_when_a_kernel_is_not_positive(rng):
    """Each half has negative distances inside: moving to the nearest mean makes things worse."""
    B = rng.normal(size=(20, 20))
    stack = dense([(B + B.T) / 2 + np.eye(20)])
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        for seed in range(20):
            fit_one(Kkm(3), stack, seed)
    assert any("not positive semi-definite" in str(w.message) for w in raised)
    assert {w.category for w in raised} <= {NumericsWarning, WeakClustersWarning}


def test_a_sample_without_neighbours_is_no_obstacle(rng):
    (K,) = kernels(rng, 20, 1)
    K[3], K[:, 3] = 0, 0
    clusters_of(fit_one(Sc(2), dense([K])), 2)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"method": "scc"}, r"no method 'scc' \(did you mean sc\?\)"),
        ({"method": "gmkcf", "lam": 1.0}, "lam is not a parameter of gmkcf, only of coreg"),
        ({"method": "kkm", "laplacian": "symmetric"}, "laplacian is not a parameter of kkm"),
        ({"method": "sc", "laplacian": "other"}, "laplacian must be one of"),
        ({"method": "coreg", "lam": 0.0}, "lam must be a number above 0"),
        ({"method": "coreg", "max_iter": 0}, "max_iter must be a whole number"),
        ({"method": "rmkkm", "gamma": 1.0}, "gamma must be a number between 0 and 1"),
        ({"method": "rmkkm", "gamma": "x"}, "gamma must be a number between 0 and 1"),
        ({"method": "kkm", "n_init": 0}, "n_init must be a whole number"),
    ],
)
def test_bad_parameters_are_one_sentence(parameters, message):
    parameters = dict(parameters)
    with pytest.raises(InputError, match=message):
        make_method(parameters.pop("method"), n_clusters=2, **parameters)


@pytest.mark.parametrize("name", METHODS)
def test_more_clusters_than_samples_are_refused(rng, name):
    with pytest.raises(InputError, match="n_samples=5 should be >= n_clusters=6"):
        fit_one(make_method(name, n_clusters=6), dense(kernels(rng, 5, 2)))


# --- the spectral start -------------------------------------------------------------------------


def test_the_spectral_start_is_positive_and_no_matter_of_seeds():
    Ks, y = blob_kernels(50)
    stack = dense(Ks)
    one, other = Gmkcf(3, init="spectral").fit(stack, [0, 7])
    np.testing.assert_array_equal(one.V, other.V)
    assert same_groups(one.labels, y)
    U, V = start_from_vectors(np.linalg.qr(np.eye(3)[y].astype(float))[0])
    assert min(U.min(), V.min()) > 0
    np.testing.assert_allclose(U.sum(axis=0), 1)
    with pytest.raises(InputError, match="n_init must be 1"):
        Gmkcf(3, init="spectral", n_init=2).fit(stack, [0])


@pytest.mark.once
@pytest.mark.slow
def test_the_spectral_start_needs_fewer_iterations_and_ends_as_low(paper_data):
    """All four sets in docs/reproduction.md; the smallest here."""
    from gmkcf_dask import read_corpus
    from gmkcf_dask.kernels.specs import PAPER12
    from gmkcf_dask.store.request import KernelRequest

    stack = pipeline.dense_kernels(KernelRequest(read_corpus(paper_data / "bbc.mat"), PAPER12))
    (spectral,) = Gmkcf(5, init="spectral").fit(stack, [0])
    random = Gmkcf(5).fit(stack, range(3))
    assert spectral.n_iter <= 0.75 * np.mean([run.n_iter for run in random])
    assert spectral.objective <= np.mean([run.objective for run in random])
