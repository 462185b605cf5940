"""What a fit leaves behind stays that of the fit: whatever becomes of stores and arrays."""

import shutil

import numpy as np
import pytest
from click.testing import CliRunner
from helpers.marks import mostly_slow
from helpers.problems import kernels
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import make_blobs

from gmkcf_dask import (
    GMKCF,
    KCF,
    FunctionKernel,
    KernelKMeans,
    KernelSpectralClustering,
    Precomputed,
    load,
)
from gmkcf_dask.cli import main
from gmkcf_dask.compute.runner import Runner
from gmkcf_dask.corpus.model import Corpus
from gmkcf_dask.errors import DamagedModelError, InputError, StoreError
from gmkcf_dask.kernels.specs import resolve_kernels
from gmkcf_dask.methods.defaults import PAPER
from gmkcf_dask.pipeline import prediction
from gmkcf_dask.results.finished_run import model_of_run
from gmkcf_dask.store.build import build_store
from gmkcf_dask.store.request import KernelRequest

pytestmark = pytest.mark.usefixtures("calm")
FEW = ["rbf_1", "cosine", "poly_a1_b2"]
OTHER = {"normalization": "none", "scaling": "none", "precision": "float64", "block": 20}


@pytest.fixture(scope="module")
def X():
    return make_blobs(60, 4, centers=3, cluster_std=1.2, random_state=0)[0]


def store_of(path, X, names=FEW, **how):
    corpus = Corpus(X, tuple(f"s{i}" for i in range(len(X))))
    return build_store(path, KernelRequest(corpus, resolve_kernels(names), **how), Runner())


def done(*words):
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == 0, result.output


def refused(*words):
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == 2, result.output
    return result.output


def cohesions(insight):
    return [cluster["cohesion"] for cluster in insight["clusters"]]


# stores that are no longer the same


def test_a_store_that_was_replaced_is_not_used(X, rng, tmp_path):
    path = tmp_path / "s.zarr"
    first = GMKCF(3, kernels=FEW, store=path, random_state=0).fit(X)
    np.testing.assert_array_equal(first.predict(X), first.labels_)
    shutil.rmtree(path)
    second = GMKCF(3, kernels=FEW, store=path, random_state=0).fit(rng.permutation(X))
    for use in (
        lambda: first.predict(X),
        lambda: first.transform(X),
        first.explain,
        first.to_local,
        lambda: first.save(tmp_path / "m"),
        lambda: prediction.predict(first._model, X),
    ):
        with pytest.raises(StoreError, match="is not the store of this fit any more"):
            use()
    assert not (tmp_path / "m").exists()
    second.predict(X)
    first.save(tmp_path / "m", features=False)


@pytest.fixture(scope="module")
def runs(tmp_path_factory, X):
    folder = tmp_path_factory.mktemp("runs")
    np.savez(folder / "x.npz", X=X)
    names = ",".join(FEW)
    done("run", folder / "x.npz", "-k", 3, "--kernels", names, "--out", folder / "run")
    how = ("--method", "kcf", "--kernel", "all", "--out", folder / "several")
    done("run", folder / "x.npz", "-k", 3, "--kernels", names, *how)
    return folder


def test_a_run_that_was_moved_takes_its_store_along(runs, X, tmp_path):
    expected = load(runs / "run").transform(X)
    shutil.copytree(runs / "run", tmp_path / "elsewhere")
    shutil.move(tmp_path / "elsewhere", tmp_path / "moved")
    shutil.copytree(runs / "several", tmp_path / "several")
    for place in (runs / "run", runs / "several"):
        (place / "store.zarr").rename(place / "hidden")
    try:
        found = load(tmp_path / "moved")
        np.testing.assert_array_equal(found.transform(X), expected)
        (tmp_path / "moved" / "insight.json").unlink()
        done("report", tmp_path / "moved")
        done("predict", tmp_path / "moved", runs / "x.npz", "--out", tmp_path / "o.csv")
        assert load(tmp_path / "several" / "cosine").predict(X).shape == (60,)
        shutil.rmtree(tmp_path / "moved" / "store.zarr")
        said = refused("predict", tmp_path / "moved", runs / "x.npz", "--out", tmp_path / "p.csv")
    finally:
        for place in (runs / "run", runs / "several"):
            (place / "hidden").rename(place / "store.zarr")
    said = " ".join(said.split())
    assert "its store is gone" in said
    for place in (runs / "run", tmp_path / "moved"):
        assert str(place / "store.zarr") in said


def test_another_store_inside_a_run_is_not_taken_for_its_own(runs, X, tmp_path):
    shutil.copytree(runs / "run", tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "store.zarr")
    store_of(tmp_path / "run" / "store.zarr", X[::-1].copy())
    (runs / "run" / "store.zarr").rename(runs / "run" / "hidden")
    try:
        with pytest.raises(InputError, match="its store is gone"):
            load(tmp_path / "run").predict(X)
    finally:
        (runs / "run" / "hidden").rename(runs / "run" / "store.zarr")


def test_a_folder_of_runs_names_them(runs, tmp_path):
    words = "holds runs of several kernels: give one of"
    with pytest.raises(InputError, match=words) as raised:
        load(runs / "several")
    assert str(runs / "several" / "cosine") in str(raised.value)
    assert words in refused("report", runs / "several")
    assert words in refused(
        "predict", runs / "several", runs / "x.npz", "--out", tmp_path / "o.csv"
    )
    assert load(runs / "several" / "cosine").labels_.shape == (60,)


# what kernels were made with


@mostly_slow("how", [OTHER, {"normalization": "degree"}, {"precision": "compact"}])
def test_a_model_of_a_store_has_the_parameters_of_the_store(X, tmp_path, how):
    X = np.abs(X) + 0.1
    store = store_of(tmp_path / "s.zarr", X, ["linear", "rbf_2"], **how)
    model = GMKCF(3, random_state=0).fit(store)
    expected = cohesions(model.explain())
    np.testing.assert_allclose(cohesions(model.to_local().explain(title="x")), expected, rtol=1e-4)
    model._model = model.to_local()._model
    model.save(tmp_path / "m")
    found = load(tmp_path / "m")
    assert found.kernels == ["linear", "rbf_2"]
    assert found.block_size == store.manifest.block_size
    np.testing.assert_allclose(cohesions(found.explain(title="x")), expected, rtol=1e-4)
    again = clone(found).fit(X)
    np.testing.assert_allclose(again.V_, model.V_, atol=1e-6 * model.V_.max())


def test_kernels_that_share_tiles_are_explained_from_memory(X, tmp_path):
    names = ["rbf_50", "rbf_100", "rbf_1"]
    model = GMKCF(3, random_state=0).fit(store_of(tmp_path / "s.zarr", X, names,
                                                  merge_duplicates=0.01))  # fmt: skip
    stored, local = model.explain(), model.to_local().explain(title="x")
    assert local["kernels"]["names"] == names
    np.testing.assert_allclose(cohesions(local), cohesions(stored), rtol=1e-5)


def near(A, B):
    return np.exp(-np.abs(A[:, None] - B[None]).sum(axis=2))


def test_functions_are_asked_for_again(X, tmp_path):
    model = GMKCF(3, kernels=[FunctionKernel(near, "lin"), "rbf_1"], random_state=0).fit(X)
    expected = cohesions(model.explain())
    model._model = clone(model).fit(X)._model  # as before anybody asked
    model.save(tmp_path / "m")
    found = load(tmp_path / "m")
    for use in (found.explain, lambda: clone(found).fit(X), lambda: found.predict(X)):
        with pytest.raises(InputError, match=r"load\(path, kernels=\{'lin': function\}\)"):
            use()
    assert cohesions(load(tmp_path / "m", kernels={"lin": near}).explain()) == expected
    single = KCF(3, kernel=near, random_state=0).fit(X)
    single.save(tmp_path / "k")
    with pytest.raises(InputError, match=r"load\(path, kernels=\{'near': function\}\)"):
        clone(load(tmp_path / "k")).fit(X)


@pytest.mark.slow
def test_matrices_with_options_of_their_own(X, rng, tmp_path):
    K = kernels(rng, 60, 1)[0] + 0.5
    mine = Precomputed(K, "mine", normalization="unit", scaling="minmax")
    model = GMKCF(3, kernels="precomputed", random_state=0).fit([mine])
    assert cohesions(model.explain([K])) == cohesions(model.explain([mine]))
    with pytest.raises(InputError, match="there are 2 kernels in X but the model was fitted on 1"):
        model.explain([K, K])
    mixed = GMKCF(3, kernels=["cosine", mine], random_state=0).fit(X)
    assert mixed.explain()["kernels"]["names"] == ["cosine", "mine"]
    mixed._model = clone(mixed).fit(X)._model
    mixed.save(tmp_path / "m")
    with pytest.raises(InputError, match="kernel mine is a matrix among kernels of features"):
        load(tmp_path / "m").explain()
    path = tmp_path / "s.zarr"
    stored = GMKCF(3, kernels=["cosine", mine], store=path, random_state=0).fit(X)
    assert cohesions(load(tmp_path / "m").explain(path)) == cohesions(stored.explain())
    with pytest.raises(InputError, match="has the kernels cosine, mine, but the model was fitted"):
        GMKCF(3, kernels="cosine").fit(X).explain(path)


@pytest.mark.slow
def test_precomputed_kernels_of_a_store(rng, tmp_path):
    Ks = kernels(rng, 40, 2)
    path = tmp_path / "s.zarr"
    GMKCF(3, kernels="precomputed", store=path, random_state=0).fit(Ks)
    for model in (GMKCF(3, random_state=0), KCF(3, random_state=0)):
        model.fit(path).save(tmp_path / model.method_name)
        found = load(tmp_path / model.method_name)
        np.testing.assert_array_equal(found.predict(Ks), model.labels_)
        assert cohesions(found.explain(path)) == cohesions(model.explain(Ks))
        np.testing.assert_array_equal(clone(found).fit(Ks).labels_, model.labels_)


# parameters and arrays that change


def test_what_is_set_after_a_fit_changes_nothing_of_it(X):
    model = GMKCF(3, kernels=FEW, random_state=0).fit(X)
    expected = cohesions(clone(model).fit(X).explain())
    model.set_params(n_clusters=5, kernels="linear", normalization="none", precision="float64")
    assert list(model.get_feature_names_out()) == ["gmkcf0", "gmkcf1", "gmkcf2"]
    assert model.transform(X).shape == (60, 3)
    assert cohesions(model.explain()) == expected


@pytest.mark.parametrize("frame", [False, True])
def test_the_callers_array_may_change_after_a_fit(X, frame):
    given = X.copy()
    if frame:
        given = pytest.importorskip("pandas").DataFrame(given)
    model = GMKCF(3, kernels=FEW, random_state=0).fit(given)
    if frame:
        given.iloc[:, :] = 0.0
    else:
        given[:] = given[::-1].copy()
    np.testing.assert_array_equal(model.predict(X), model.labels_)


def test_sparse_samples_for_a_dense_model_far_from_the_origin(X, tmp_path):
    far, thin = X + 1000, sparse.csr_array(X + 1000)
    for model in (GMKCF(3, kernels=FEW), KernelKMeans(3, kernel="rbf_1"),
                  GMKCF(3, kernels=FEW, store=tmp_path / "s.zarr")):  # fmt: skip
        model = clone(model).set_params(random_state=0).fit(far)
        np.testing.assert_array_equal(model.predict(thin), model.predict(far))
        np.testing.assert_allclose(model.transform(thin), model.transform(far), rtol=1e-9)


def test_the_client_at_hand_places_samples_of_a_store(X, tmp_path, two_workers, monkeypatch):
    store = store_of(tmp_path / "s.zarr", X)
    model, local = GMKCF(3, random_state=0).fit(store), GMKCF(3, kernels=FEW).fit(X)
    seen = []
    plain = prediction._runner

    def watched(training, resources):
        runner = plain(training, resources)
        seen.append(None if runner is None else runner.client)
        return runner

    monkeypatch.setattr(prediction, "_runner", watched)
    with two_workers.as_current():
        np.testing.assert_array_equal(model.predict(X), model.labels_)
        local.predict(X)
    assert seen == [two_workers, None]


# names and times


def test_names_that_were_given_are_kept(X, tmp_path):
    model = GMKCF(3, kernels=FEW, random_state=0).fit(X)
    ids, topics = [f"d{i}" for i in range(60)], ["a", "b"] * 30
    model.explain(ids=ids, title="mine")
    found = model.explain(topics=topics)
    assert (found["documents"]["ids"], found["title"]) == (ids, "mine")
    model.save(tmp_path / "m")
    again = load(tmp_path / "m")
    again.report(tmp_path / "page.html", titles=[f"title {i}" for i in range(60)])
    documents = again.explain()["documents"]
    assert (documents["ids"], documents["topics"]) == (ids, topics)
    assert documents["titles"][3] == "title 3"


def test_seconds_of_the_fit_are_told(X, tmp_path, runs):
    model = GMKCF(3, kernels=FEW, random_state=7).fit(X)
    found = model.explain()
    assert set(found["seconds"]) == {"kernels", "fit"}
    assert all(value >= 0 for value in found["seconds"].values())
    assert found["parameters"]["seed"] == 7
    model.save(tmp_path / "m")
    assert load(tmp_path / "m").explain(title="x")["seconds"] == found["seconds"]
    run = load(runs / "run")
    assert {"fit", "summary"} <= set(run.explain(title="x")["seconds"])
    text = (runs / "run" / "result.json").read_text()
    shutil.copytree(runs / "run", tmp_path / "run")
    (tmp_path / "run" / "result.json").write_text(
        text.replace('"summary":', '"summary": -1e3,"x":')
    )
    with pytest.raises(DamagedModelError, match=r"seconds\.summary"):
        model_of_run(tmp_path / "run")


# samples without a direction


@pytest.mark.parametrize("estimator", [GMKCF, KCF, KernelKMeans, KernelSpectralClustering])
def test_rows_of_zeros_given_again(X, estimator):
    """Their diagonal 1 belongs to themselves only: see docs/algorithm.md."""
    rows = np.abs(X)
    rows[[3, 7]] = 0.0
    which = {"kernels": "cosine"} if estimator is GMKCF else {"kernel": "cosine"}
    if estimator in (GMKCF, KCF):
        which |= PAPER  # a spectral start has a cluster for each of them
    with pytest.warns(UserWarning, match="2 of 60 samples are empty"):
        model = estimator(3, random_state=0, **which).fit(rows)
    again, others = model.predict(rows), np.setdiff1d(np.arange(60), [3, 7])
    np.testing.assert_array_equal(again[others], model.labels_[others])
    assert again[3] == again[7] == model.predict(np.zeros((1, 4)))[0]
    if estimator in (GMKCF, KCF):  # no row of V, and so their label, like any other sample
        np.testing.assert_array_equal(again, model.labels_)
    if estimator is KernelSpectralClustering:
        assert np.linalg.norm(model.embedding_[3]) == pytest.approx(1.0)
        np.testing.assert_array_equal(model.transform(rows)[[3, 7]], 0.0)


@pytest.mark.parametrize("estimator", [GMKCF, KCF])
def test_empty_sparse_rows_have_no_cluster_by_default(X, estimator):
    rows = np.abs(X)
    rows[[3, 7]] = 0.0
    rows = sparse.csr_array(rows)
    with pytest.warns(UserWarning, match="2 of 60 samples are empty"):
        model = estimator(3, random_state=0).fit(rows)
    np.testing.assert_array_equal(np.flatnonzero(model.labels_ < 0), [3, 7])
    np.testing.assert_array_equal(np.flatnonzero(model.predict(rows) < 0), [3, 7])
    assert model.predict(sparse.csr_array((1, 4))) == [-1]
    np.testing.assert_array_equal(model.sureness(rows)[[3, 7]], 0.0)


def test_a_cluster_of_zeros_alone_is_not_found_again(X):
    """Kernel k-means has a centre there, which a new row of zeros has nothing in common with."""
    rows = np.abs(X)
    rows[3] = 0.0
    with pytest.warns(UserWarning, match="1 of 60 samples are empty"):
        model = KernelKMeans(60, kernel="cosine", random_state=0).fit(rows)
    distances = model.transform(np.zeros((1, 4)))[0]
    np.testing.assert_allclose(distances[model.labels_[3]], distances.max(), rtol=1e-6)
