"""Linear and cosine kernels as factors: where they are, that they iterate alike, and their size."""

import tracemalloc

import naive
import numpy as np
import pytest
from click.testing import CliRunner
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning

from gmkcf_dask import GMKCF, KCF, KernelKMeans, KernelSpectralClustering, load
from gmkcf_dask.cli import main
from gmkcf_dask.cluster import threads
from gmkcf_dask.compute import factored
from gmkcf_dask.compute.runner import Runner
from gmkcf_dask.corpus.model import Corpus
from gmkcf_dask.corpus.validate import as_features
from gmkcf_dask.kernels.products import has_orthogonal_pair
from gmkcf_dask.kernels.specs import PAPER12, resolve_kernels
from gmkcf_dask.pipeline import memory_kernels, request_plan, store_plan, stored_kernels
from gmkcf_dask.store.build import build_store, find_store, look_up
from gmkcf_dask.store.kernel_store import KernelStore
from gmkcf_dask.store.request import KernelRequest


@pytest.mark.usefixtures("calm")
@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--kernels", "linear", "--scaling", "none", "--normalization", "none"],
        ["--kernels", "local,rbf_1", "--block", "64"],
    ],
    ids=["local", "linear", "mixed"],
)
def test_a_run_that_is_loaded_is_fitted_again_to_the_same_clusters(tmp_path, rng, options):
    X = np.vstack([rng.normal(size=(20, 4)) + 5 * np.eye(4)[c] for c in range(3)])
    np.save(tmp_path / "x.npy", X)
    out = tmp_path / "run"
    words = ["run", tmp_path / "x.npy", "-k", 3, "--out", out, "--cluster", "threads", *options]
    assert CliRunner().invoke(main, list(map(str, words))).exit_code == 0
    model = load(out)
    labels, objective = model.labels_, model.objective_history_
    model.fit(X)
    np.testing.assert_array_equal(model.labels_, labels)
    np.testing.assert_allclose(model.objective_history_, objective, rtol=1e-6)


@pytest.mark.usefixtures("calm")
@pytest.mark.parametrize("kernels", [["heat_s", "rbf_1"], ["local", "rbf_1"]])
def test_a_store_of_tiles_and_factors_is_that_of_its_kernels_in_any_order(tmp_path, rng, kernels):
    X = rng.normal(size=(40, 3))
    model = GMKCF(2, kernels=kernels, random_state=0, store=tmp_path / "s.zarr")
    labels = model.fit(X).labels_
    model.set_params(store=None)
    np.testing.assert_array_equal(model.fit(tmp_path / "s.zarr").labels_, labels)


pytestmark = pytest.mark.usefixtures("calm")
N, D, K = 60, 40, 3


def documents(n=N, d=D, terms=6, seed=0):
    """Rows about three topics with terms of their own, at unit length."""
    rng = np.random.default_rng(seed)
    topic = np.arange(n) % K
    own = d // K
    columns = topic[:, None] * own + (rng.random((n, terms)) ** 2 * own).astype(int)
    entries = (rng.random(columns.shape) + 0.2).ravel()
    X = sparse.csr_array((entries, (np.repeat(np.arange(n), terms), columns.ravel())), (n, d))
    X.sum_duplicates()
    lengths = np.sqrt(X.power(2).sum(axis=1))
    return as_features(sparse.diags_array(1.0 / lengths) @ X)


@pytest.fixture
def X():
    return documents()


def request_of(X, kernels, **options):
    corpus = Corpus(X, tuple(str(i) for i in range(X.shape[0])))
    return KernelRequest(corpus, resolve_kernels(kernels), **options)


AS_THEY_ARE = {"normalization": "none", "scaling": "none"}


@pytest.mark.parametrize(
    ("kernels", "options", "kinds"),
    [
        ("linear", AS_THEY_ARE, {"linear": "rows"}),
        ("linear", {"scaling": "none"}, {"linear": "unit"}),
        ("cosine", AS_THEY_ARE, {"cosine": "unit"}),
        ("linear,cosine", AS_THEY_ARE, {"linear": "rows", "cosine": "unit"}),
        ("cosine", {}, {"cosine": "unit"}),
        ("linear", {"normalization": "none"}, {"linear": "rows"}),
        ("cosine", {"normalization": "degree", "scaling": "none"}, {}),
        ("cosine", {"precision": "compact"}, {}),
        ("cosine", {"merge_duplicates": 0.1}, {}),
        ("cosine,rbf_1", {"scaling": "none"}, {}),
        ("paper12", {"scaling": "none"}, {}),
    ],
)
def test_where_they_are_factored(X, kernels, options, kinds):
    request = request_of(X, kernels, **options)
    assert request.factored == kinds
    assert set(request.names) == {spec.name for spec in request.specs}


def test_the_kernels_of_the_paper_stay_tiles(X):
    assert not request_of(X, PAPER12, normalization="none", scaling="none").factored


@pytest.mark.parametrize(
    "change",
    [
        lambda X: -X,  # products below 0
        lambda X: 1.0 + X.toarray(),  # no product is 0
        lambda X: sparse.csr_array(sparse.vstack([X, sparse.csr_array((1, D))])),  # a row of zeros
    ],
    ids=["signs", "no zero", "empty row"],
)
def test_other_ranges_stay_tiles(X, change):
    assert not request_of(change(X), "cosine").factored


def test_a_row_of_zeros_matters_where_lengths_do(X):
    X = sparse.csr_array(sparse.vstack([X, sparse.csr_array((1, D))]))
    assert not request_of(X, "cosine", scaling="none").factored
    assert request_of(X, "linear", **AS_THEY_ARE).factored


def test_orthogonal_pairs(rng):
    assert has_orthogonal_pair(np.eye(3))
    assert not has_orthogonal_pair(1.0 + rng.random((5, 3)))
    assert not has_orthogonal_pair(np.ones((1, 2)))


@pytest.mark.parametrize("thin", [True, False], ids=["sparse", "dense"])
@pytest.mark.parametrize("kernel", ["linear", "cosine"])
@pytest.mark.parametrize(
    "options", [AS_THEY_ARE, {"scaling": "none"}, {}], ids=["as they are", "unit", "default"]
)
def test_iterates_equal_those_of_the_matrices(X, thin, kernel, options, rng):
    U, V = rng.random((N, K)), rng.random((N, K))
    given = X if thin else X.toarray()
    how = {"init": (U, V), "solver": "paper", "polish": False, "tol": 0.0, "max_iter": 12}
    with pytest.warns(ConvergenceWarning):
        model = KCF(K, kernel=kernel, precision="float64", random_state=0, **how, **options).fit(
            given
        )
    assert model._model.training.factors is not None
    dense = X.toarray()
    trail = naive.cf(dense, U, V, 12)  # rows have unit length: both kernels are the linear one
    np.testing.assert_allclose(model.objective_history_[1:], [J for *_, J in trail], rtol=1e-9)
    W, H, _ = trail[-1]
    norm = np.sqrt(np.diag(W.T @ dense @ dense.T @ W))
    np.testing.assert_allclose(model.V_, H * norm, atol=1e-9 * np.abs(H * norm).max())


def test_mixed_signs_answer_like_the_matrix(rng):
    X = rng.normal(size=(N, 5))
    made = memory_kernels(request_of(X, "linear", precision="float64", **AS_THEY_ARE), K)
    Y = rng.random((N, 2))
    np.testing.assert_allclose(made.stack.single(0).matmul(Y), X @ (X.T @ Y), atol=1e-10)
    assert made.stack.single(0).signed_factors


@pytest.mark.parametrize("estimator", [KCF, KernelKMeans, KernelSpectralClustering])
@pytest.mark.parametrize("kernel", ["linear", "cosine"])
def test_training_rows_get_their_labels_back(X, tmp_path, estimator, kernel):
    model = estimator(K, kernel=kernel, random_state=0, scaling="none").fit(X)
    np.testing.assert_array_equal(model.predict(X), model.labels_)
    alone = np.concatenate([model.predict(X[[i]]) for i in range(9)])
    np.testing.assert_array_equal(alone, model.labels_[:9])
    stored = estimator(K, kernel=kernel, random_state=0, scaling="none", store=tmp_path / "s.zarr")
    stored.fit(X)
    np.testing.assert_array_equal(stored.labels_, model.labels_)
    np.testing.assert_array_equal(stored.predict(X), model.labels_)
    np.testing.assert_array_equal(stored.to_local().predict(X), model.labels_)
    model.save(tmp_path / "m")
    loaded = load(tmp_path / "m")
    np.testing.assert_array_equal(loaded.predict(X), model.labels_)
    loaded.explain()
    again = estimator(K, kernel=kernel, scaling="none", random_state=0).fit(tmp_path / "s.zarr")
    np.testing.assert_array_equal(again.labels_, model.labels_)


@pytest.mark.filterwarnings("ignore:precision.*is for linear alone")
@pytest.mark.parametrize("kernels", ["linear,cosine", "local,linear"])
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_the_same_bits_in_memory_and_from_a_store(tmp_path, X, monkeypatch, kernels, precision):
    monkeypatch.setattr(factored, "BLOCK_ROWS", 16)
    request = request_of(X, kernels, precision=precision)
    store = build_store(tmp_path / "s.zarr", request, Runner())
    assert not store.names
    plan = store_plan(store, K, threads(2))
    by_tasks = type(plan)(**{**vars(plan), "kernels_in_memory": False})
    U = np.random.default_rng(0).random((N, K))
    stacks = [
        memory_kernels(request, K).stack,
        stored_kernels(store, plan, threads(2)),
        stored_kernels(store, by_tasks, threads(2)),
    ]
    results = [stack.fuse(np.full(len(stack.names), 0.3)).matmul(U) for stack in stacks]
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)


def test_a_store_that_has_tiles_keeps_them(tmp_path, X):
    tiles = request_of(X, "linear", products=False)
    assert build_store(tmp_path / "s.zarr", tiles, Runner()).names == ("linear",)
    request = request_of(X, "linear")
    assert request.factored
    assert find_store(tmp_path / "s.zarr", request).names == ("linear",)
    place = look_up(tmp_path / "s.zarr", request)
    assert request_plan(request, K, threads(), place).precision == "float32"
    again = build_store(tmp_path / "s.zarr", request, Runner(), verify=True)
    assert again.names == ("linear",)
    KCF(K, kernel="linear", store=tmp_path / "s.zarr", random_state=0).fit(X)
    assert KernelStore.open(tmp_path / "s.zarr").names == ("linear",)


def test_a_wide_factor_is_compared_on_a_sample(X, monkeypatch):
    request = request_of(X, "linear,cosine", scaling="none")
    groups = np.arange(N) % K
    whole = memory_kernels(request, K).stack.overview(groups, K)
    monkeypatch.setattr(factored, "WIDE", 8)
    some = memory_kernels(request, K).stack.overview(groups, K)
    np.testing.assert_allclose(some.products, whole.products, rtol=1e-4)
    np.testing.assert_allclose(some.compared, whole.compared, rtol=1e-4)
    signed = X.toarray() - X.toarray().mean(axis=0)
    with_solver = KernelSpectralClustering(K, kernel="linear", random_state=0, scaling="none")
    assert len(set(with_solver.fit(signed).labels_)) == K


def test_partial_products_of_wide_factors_are_added_in_turn(X, monkeypatch):
    monkeypatch.setattr(factored, "BLOCK_ROWS", 4)
    Y = np.random.default_rng(0).random((N, 2))
    request = request_of(X, "linear", scaling="none")
    at_once = memory_kernels(request, K).stack.single(0).matmul(Y)
    monkeypatch.setattr(factored, "PARTIAL_BYTES", 1)
    np.testing.assert_array_equal(memory_kernels(request, K).stack.single(0).matmul(Y), at_once)


def test_cf_of_many_documents_takes_little_memory(tmp_path):
    n, d = 12_000, 6_000  # n x n in float32 would be 549 MiB, n x d 275 MiB
    X = documents(n, d, terms=12)
    tracemalloc.start()
    try:
        model = KCF(K, kernel="linear", random_state=0, max_iter=4).fit(X)
        stored = KCF(K, kernel="linear", random_state=0, max_iter=4, store=tmp_path / "s.zarr")
        stored.fit(X)
        stored.predict(X[:50])
        stored.explain()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 200 << 20
    np.testing.assert_array_equal(stored.V_, model.V_)


def test_a_fit_of_several_factors_learns_weights(X):
    model = GMKCF(K, kernels="local,linear", random_state=0).fit(X)
    assert model.kernel_names_ == ("local_0", "local_1", "local_2", "local_4", "linear")
    np.testing.assert_array_equal(model.predict(X), model.labels_)


@pytest.mark.parametrize("kernels", [["rbf_1", "local_1"], ["rbf_1", "poly_a1_b2", "local"]])
@pytest.mark.parametrize("estimator", ["gmkcf", "kkm"])
def test_tiles_and_factors_place_new_samples(tmp_path, X, kernels, estimator):
    if estimator == "gmkcf":
        model, stored = (GMKCF(K, kernels=kernels, random_state=0, store=store)
                         for store in (None, tmp_path / "s.zarr"))  # fmt: skip
    else:
        from gmkcf_dask import RobustMultipleKernelKMeans

        model, stored = (RobustMultipleKernelKMeans(K, kernels=kernels, random_state=0, store=store)
                         for store in (None, tmp_path / "s.zarr"))  # fmt: skip
    model.fit(X)
    assert model._model.training.kernels
    assert model._model.training.factors is not None
    np.testing.assert_array_equal(model.predict(X), model.labels_)
    stored.fit(X)
    np.testing.assert_array_equal(stored.predict(X), stored.labels_)
    model.save(tmp_path / "m")
    loaded = load(tmp_path / "m")
    np.testing.assert_array_equal(loaded.transform(X[:7]), model.transform(X[:7]))
    loaded.explain()
    # more concepts than there are directions: the nearest training sample decides
    many = GMKCF(12, kernels=kernels, random_state=0, init="random").fit(X)
    assert (many.predict(X) == many.labels_).mean() > 0.9
