"""The scikit-learn face: its own checks, and what users of scikit-learn will try."""

import inspect
import json
import pickle
import subprocess
import sys

import numpy as np
import pytest
from helpers.marks import mostly_slow
from helpers.problems import kernels
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import make_blobs
from sklearn.utils.estimator_checks import parametrize_with_checks

from gmkcf_dask import (
    GMKCF,
    KCF,
    CoregSpectralClustering,
    IterationDone,
    KernelKMeans,
    KernelSpectralClustering,
    KernelStore,
    Precomputed,
    RobustMultipleKernelKMeans,
    compare,
    load,
    suggest_k,
)
from gmkcf_dask.errors import DataWarning, InputError, StoreError
from gmkcf_dask.kernels.specs import LAYOUTS
from gmkcf_dask.results.serialize import digest, dump
from gmkcf_dask.store.request import KernelRequest

FEW = ["rbf_1", "cosine", "poly_a1_b2"]


pytestmark = pytest.mark.usefixtures("calm")


@parametrize_with_checks([KernelKMeans(), KernelSpectralClustering(), RobustMultipleKernelKMeans()])
@pytest.mark.filterwarnings("ignore::gmkcf_dask.errors.DataWarning")
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@parametrize_with_checks([GMKCF(), KCF(), CoregSpectralClustering()])
@pytest.mark.filterwarnings("ignore::gmkcf_dask.errors.DataWarning")
@pytest.mark.slow
def test_scikit_learn_checks_of_the_slower_ones(estimator, check):
    check(estimator)


@parametrize_with_checks(
    [GMKCF(kernels="precomputed"), KCF(kernel="precomputed")],
    expected_failed_checks=lambda estimator: {
        "check_clustering": "feeds features of shape (50, 2) to estimators of kernels too",
        "check_positive_only_tag_during_fit": "its kernel has large negative eigenvalues",
    },
)
@pytest.mark.slow
def test_scikit_learn_checks_with_precomputed_kernels(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def blobs():
    return make_blobs(90, 4, centers=3, cluster_std=0.6, random_state=0)


def same_groups(a, b):
    return len(set(zip(a, b, strict=True))) == len(set(a)) == len(set(b))


@pytest.mark.parametrize(
    "model", [GMKCF(3, kernels=FEW), KCF(3, kernel="rbf_1"), KCF(3, kernel="mean")], ids=str
)
def test_finds_blobs(blobs, model):
    X, y = blobs
    model = clone(model).set_params(random_state=0)
    labels = model.fit_predict(X)
    assert same_groups(labels, y)
    assert model.V_.shape == model.U_.shape == (90, 3)
    assert model.kernel_weights_.sum() == pytest.approx(1)
    assert len(model.kernel_names_) == len(model.kernel_weights_)
    assert len(model.objective_history_) == model.n_iter_ + 1
    assert isinstance(model.converged_, bool)
    np.testing.assert_array_equal(clone(model).fit_transform(X), model.V_)


@pytest.mark.parametrize(
    "model",
    [
        KernelKMeans(3, kernel="rbf_1", n_init=4),
        KernelKMeans(3, n_init=4),
        KernelSpectralClustering(3, kernel="rbf_1"),
        KernelSpectralClustering(3, laplacian="unnormalized", kernel="rbf_0.3"),
        CoregSpectralClustering(3, kernels=["rbf_1", "rbf_10"]),
        RobustMultipleKernelKMeans(3, kernels=FEW, n_init=4),
        GMKCF(3, kernels=FEW, init="spectral"),
        KCF(3, kernel="rbf_1", init="spectral"),
    ],
    ids=str,
)
def test_every_method_finds_blobs_in_memory_and_on_a_store(blobs, tmp_path, model):
    X, y = blobs
    tiled = getattr(model, "kernel", "") != "mean"
    model = clone(model).set_params(random_state=0, block_size=32 if tiled else "auto")
    labels = model.fit_predict(X)
    assert same_groups(labels, y)
    assert len(model.objective_history_) == model.n_iter_ + 1
    assert len(model.kernel_names_) == len(model.kernel_weights_)
    stored = clone(model).set_params(store=tmp_path / "s.zarr").fit(X)
    np.testing.assert_array_equal(stored.labels_, labels)
    np.testing.assert_array_equal(stored.objective_history_, model.objective_history_)


def test_spectral_methods_show_their_embedding(blobs):
    model = KernelSpectralClustering(3, kernel="rbf_1", random_state=0).fit(blobs[0])
    np.testing.assert_allclose(np.linalg.norm(model.embedding_, axis=1), 1)
    assert model.eigenvalues_[0] == pytest.approx(0, abs=1e-6)
    assert (np.diff(model.eigenvalues_) >= 0).all()
    assert not hasattr(model, "V_")


def test_sparse_and_dense_agree(blobs):
    X = np.abs(blobs[0])
    dense = GMKCF(3, kernels="paper12", random_state=0).fit(X)
    thin = GMKCF(3, kernels="paper12", random_state=0).fit(sparse.coo_matrix(X))
    np.testing.assert_allclose(dense.V_, thin.V_, rtol=1e-3, atol=1e-3 * dense.V_.max())


@mostly_slow("precision", ["float32", "float64", "compact"])
def test_a_store_gives_the_same_bits_as_memory(blobs, tmp_path, precision):
    how = {"kernels": FEW, "random_state": 0, "precision": precision, "block_size": 32}
    memory = GMKCF(3, **how).fit(blobs[0])
    path = tmp_path / "s.zarr"
    for source in (
        GMKCF(3, store=path, **how).fit(blobs[0]),
        GMKCF(3, store=str(path), **how).fit(blobs[0]),  # used again
        GMKCF(3, **how).fit(str(path)),
        GMKCF(3, **how).fit(KernelStore.open(path)),
    ):
        np.testing.assert_array_equal(source.V_, memory.V_)
        np.testing.assert_array_equal(source.labels_, memory.labels_)


def test_a_client_gives_the_same_bits(blobs, tmp_path, two_workers):
    how = {"kernels": FEW, "random_state": 0, "block_size": 50, "max_iter": 5}
    memory = GMKCF(3, **how).fit(blobs[0])
    far = GMKCF(3, store=tmp_path / "s.zarr", client=two_workers, **how).fit(blobs[0])
    np.testing.assert_array_equal(far.V_, memory.V_)
    with two_workers.as_current():
        current = GMKCF(3, **how).fit(str(tmp_path / "s.zarr"))
    np.testing.assert_array_equal(current.V_, memory.V_)


def test_kcf_on_a_store(blobs, tmp_path):
    path = tmp_path / "s.zarr"
    GMKCF(3, kernels=FEW, store=path, random_state=0).fit(blobs[0])
    one = KCF(3, kernel="rbf_1", random_state=0).fit(path)
    np.testing.assert_array_equal(one.kernel_weights_, [1, 0, 0])
    assert one.kernel_names_ == tuple(FEW)
    with pytest.raises(InputError, match="no kernel 'rbf_2' here"):
        KCF(3, kernel="rbf_2").fit(path)


def test_one_precomputed_kernel_of_a_store_by_name(rng, tmp_path):
    Ks, path = kernels(rng, 40, 3), tmp_path / "s.zarr"
    GMKCF(3, kernels="precomputed", store=path, random_state=0).fit(Ks)
    chosen = KernelKMeans(3, kernel="kernel_1", random_state=0).fit(path)
    alone = KernelKMeans(3, kernel="precomputed", random_state=0).fit(Ks[1])
    np.testing.assert_array_equal(chosen.labels_, alone.labels_)
    assert chosen.kernel_weights_.tolist() == [0, 1, 0]


def test_precomputed(rng):
    Ks = kernels(rng, 40, 3)
    stacked = GMKCF(3, kernels="precomputed", random_state=0).fit(np.array(Ks))
    listed = GMKCF(3, kernels="precomputed", random_state=0).fit(Ks)
    np.testing.assert_array_equal(stacked.V_, listed.V_)
    assert stacked.kernel_names_ == ("kernel_0", "kernel_1", "kernel_2")
    named = GMKCF(3, kernels="precomputed").fit([Precomputed(Ks[0], "mine", scaling="minmax")])
    assert named.kernel_names_ == ("mine",)
    assert KCF(3, kernel="precomputed").fit(Ks[0]).labels_.shape == (40,)


def test_callables_and_own_parameters(blobs):
    def near(A, B):
        return np.exp(-np.abs(A[:, None] - B[None]).sum(axis=2))

    model = GMKCF(3, kernels=[near, "rbf_0.3", "poly_a2_b3"], random_state=0).fit(blobs[0])
    assert model.kernel_names_ == ("near", "rbf_0.3", "poly_a2_b3")


def test_restarts_and_given_start(blobs, rng):
    X = blobs[0]
    model = GMKCF(3, kernels=FEW, init="random", n_init=3, random_state=0).fit(X)
    assert len(model.runs_) == 3
    assert model.objective_history_[-1] == min(run.objective for run in model.runs_)
    begin = rng.random((90, 3)), rng.random((90, 3))
    one, two = (GMKCF(3, kernels=FEW, init=begin, random_state=0).fit(X) for _ in range(2))
    np.testing.assert_array_equal(one.V_, two.V_)


def test_callbacks_hear_every_iteration(blobs):
    heard = []
    model = GMKCF(3, kernels=FEW, callbacks=[heard.append], random_state=0).fit(blobs[0])
    iterations = [event for event in heard if isinstance(event, IterationDone)]
    assert [event.iteration for event in iterations] == list(range(1, model.n_iter_ + 1))
    assert [event.objective for event in iterations] == model.objective_history_[1:].tolist()


def test_verbose_draws_progress(blobs, capsys):
    GMKCF(3, kernels=FEW, verbose=1, random_state=0).fit(blobs[0])
    out, err = capsys.readouterr()
    assert out == ""
    assert "iteration" in err


def test_fitted_models_pickle(blobs):
    model = GMKCF(3, kernels=FEW, random_state=0).fit(blobs[0])
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).labels_, model.labels_)


def test_empty_documents_are_kept_and_counted(blobs):
    X = np.abs(blobs[0])
    X[[4, 7]] = 0
    with pytest.warns(DataWarning, match=r"2 of 90 samples are empty .*row 4"):
        labels = GMKCF(3, kernels=FEW, random_state=0).fit_predict(X)
    assert labels.shape == (90,)


def test_random_state_forms(blobs):
    X = blobs[0]
    for state in (None, 3, np.int64(3), np.random.RandomState(3)):
        assert GMKCF(3, kernels=FEW, max_iter=2, random_state=state).fit(X).labels_.shape == (90,)
    with pytest.raises(InputError, match="random_state must be 0 or more"):
        GMKCF(3, random_state=-1).fit(X)


@pytest.mark.slow
def test_small_data_never_start_a_cluster():
    """Not even distributed is imported for an ordinary fit."""
    code = (
        "import sys, numpy as np; from gmkcf_dask import GMKCF; "
        "GMKCF(2, kernels='rbf_1', max_iter=2).fit(np.random.default_rng(0).random((20, 3))); "
        "sys.exit('distributed' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=False)
    assert ran.returncode == 0


# layout

EVERY = [
    GMKCF,
    KCF,
    KernelKMeans,
    KernelSpectralClustering,
    CoregSpectralClustering,
    RobustMultipleKernelKMeans,
]


@pytest.fixture
def layouts(monkeypatch):
    """Layouts of the requests of estimators."""
    asked, check = [], KernelRequest.__post_init__

    def noted(request):
        asked.append(request.layout)
        check(request)

    monkeypatch.setattr(KernelRequest, "__post_init__", noted)
    return asked


def without_layout(folder):
    """A saved model as earlier versions wrote it."""
    body = json.loads((folder / "model.json").read_text())
    body.pop("digest")
    body["format_version"] = 1
    del body["content"]["parameters"]["layout"]
    (folder / "model.json").write_bytes(dump({"digest": digest(dump(body)), **body}))


@pytest.mark.parametrize("cls", EVERY)
def test_layout_is_a_parameter(cls):
    assert cls().get_params()["layout"] == "auto"
    assert clone(cls(layout="gram")).layout == "gram"
    assert cls().set_params(layout="each").layout == "each"
    assert cls(layout="both").layout == "both"  # a fit refuses it


def test_functions_have_the_same_default():
    for function in (suggest_k, compare):
        assert inspect.signature(function).parameters["layout"].default == "auto"
    assert GMKCF.paper(3).layout == "each"
    assert GMKCF.paper(3, layout="auto").layout == "auto"


def test_layout_reaches_the_request(blobs, layouts):
    X = blobs[0]
    for layout in LAYOUTS:
        GMKCF(3, kernels=FEW, layout=layout)._kernel_data(X)
        KCF(3, kernel="rbf_1", layout=layout)._kernel_data(X)
    assert layouts == [layout for layout in LAYOUTS for _ in range(2)]
    layouts.clear()
    suggest_k(X, [2, 3], kernels=FEW, layout="each")
    compare(X, 3, methods=["kcf"], presets=["local"], layout="each")
    assert layouts == ["each", "each"]


def test_a_layout_that_is_none_is_refused(blobs, layouts):
    X = blobs[0]
    for use in (
        lambda: GMKCF(3, kernels=FEW, layout="both").fit(X),
        lambda: KernelKMeans(3, layout=None).fit(X),
        lambda: suggest_k(X, [2, 3], layout="both"),
        lambda: compare(X, 3, layout="both"),
    ):
        with pytest.raises(InputError, match="layout"):
            use()
    assert layouts == []


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_saved_model_keeps_its_layout(blobs, tmp_path, layout):
    X = blobs[0]
    model = GMKCF(3, kernels=FEW, layout=layout, random_state=0, max_iter=5).fit(X)
    model.save(tmp_path / "m")
    found = load(tmp_path / "m")
    assert found.layout == layout
    np.testing.assert_array_equal(clone(found).fit(X).V_, model.V_)
    shown, again = model.explain(title="x"), found.explain(title="x")
    assert again["clusters"] == shown["clusters"]
    without_layout(tmp_path / "m")
    assert load(tmp_path / "m").layout == "each"


@pytest.mark.parametrize("layout", ["each", "gram"])
def test_a_store_keeps_its_layout(blobs, tmp_path, layout):
    X, path = blobs[0], tmp_path / "s.zarr"
    other = {"each": "gram", "gram": "each"}[layout]
    options = {"kernels": FEW, "random_state": 0, "max_iter": 5}
    made = GMKCF(3, store=path, layout=layout, **options).fit(X)
    with pytest.raises(StoreError, match=rf"layout \(store: {layout}, requested: {other}\)"):
        GMKCF(3, store=path, layout=other, **options).fit(X)
    again = GMKCF(3, store=path, **options).fit(X)
    np.testing.assert_array_equal(again.V_, made.V_)
    with pytest.raises(StoreError, match=rf"layout \(store: {layout}, parameter: {other}\)"):
        GMKCF(3, layout=other).fit(path)
    model = GMKCF(3, random_state=0, max_iter=5).fit(path)
    model.save(tmp_path / "m")
    assert load(tmp_path / "m").layout == layout


def test_layout_gram_has_no_meaning_without_tiles(blobs):
    with pytest.raises(InputError, match=r"layout='gram' has no meaning for the kernels heat_"):
        GMKCF(3, kernels="local", layout="gram").fit(blobs[0])


def test_without_tiles_any_layout_will_do(blobs, tmp_path):
    X, path = blobs[0], tmp_path / "s.zarr"
    GMKCF(3, kernels="local", store=path, random_state=0, max_iter=5).fit(X)
    for layout in ("auto", "each"):
        GMKCF(3, kernels="local", store=path, layout=layout, max_iter=5).fit(X)
        model = GMKCF(3, layout=layout, max_iter=5).fit(path)
        model.save(tmp_path / "m", overwrite=True)
        assert load(tmp_path / "m").layout == "auto"
