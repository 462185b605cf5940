"""New samples: their kernels against the oracle, training samples given again, and every door."""

import json
import subprocess
import sys
from functools import cache

import naive
import numpy as np
import pytest
from click.testing import CliRunner
from helpers.marks import mostly_slow
from helpers.problems import kernels
from hypothesis import given, settings, strategies as st
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import make_blobs
from sklearn.exceptions import NotFittedError

from gmkcf_dask import (
    GMKCF,
    KCF,
    CoregSpectralClustering,
    FunctionKernel,
    KernelKMeans,
    KernelSpectralClustering,
    Precomputed,
    RobustMultipleKernelKMeans,
    StageProgress,
    load,
    read_corpus,
)
from gmkcf_dask.cli import main
from gmkcf_dask.cluster.resources import Resources
from gmkcf_dask.compute.runner import Runner
from gmkcf_dask.corpus.model import Corpus
from gmkcf_dask.errors import InputError, WeakClustersWarning
from gmkcf_dask.kernels.cross import CrossKernels
from gmkcf_dask.kernels.specs import resolve_kernels
from gmkcf_dask.methods.assign import nearest, squared_distances, sureness
from gmkcf_dask.pipeline import prediction
from gmkcf_dask.results.metrics import scores
from gmkcf_dask.results.training import training_of_request
from gmkcf_dask.store.build import build_store, build_tiles
from gmkcf_dask.store.request import KernelRequest

pytestmark = pytest.mark.usefixtures("calm")
FEW = ["rbf_1", "cosine", "poly_a1_b2"]
METHODS = [
    GMKCF(3, kernels=FEW),
    GMKCF(3, kernels=FEW, normalization="degree"),
    KCF(3),
    KCF(3, kernel="rbf_1"),
    KernelKMeans(3, kernel="rbf_1", n_init=3),
    KernelKMeans(3, kernel="rbf_1", normalization="degree"),
    KernelSpectralClustering(3, kernel="rbf_1"),
    KernelSpectralClustering(3, kernel="rbf_0.3", laplacian="unnormalized"),
    RobustMultipleKernelKMeans(3, kernels=FEW),
]


@pytest.fixture(scope="module")
def blobs():
    return make_blobs(90, 4, centers=3, cluster_std=1.2, random_state=0)


@pytest.fixture(scope="module")
def new(blobs):
    return blobs[0][::4] + np.random.default_rng(1).normal(0, 0.3, blobs[0][::4].shape)


def cross_of(X, names, normalization, scaling):
    corpus = Corpus(X, tuple(map(str, range(X.shape[0]))))
    specs = resolve_kernels(names)
    request = KernelRequest(corpus, specs, normalization, scaling, products=False)
    built = build_tiles(request, 16)
    return training_of_request(request, built.kernels, built.norms)


# kernels against the oracle


@settings(max_examples=60)
@given(
    name=st.sampled_from(["rbf_0.1", "rbf_1", "rbf_100", "poly_a0_b2", "poly_a1_b4", "linear",
                          "cosine"]),
    normalization=st.sampled_from(["unit", "degree", "none"]),
    scaling=st.sampled_from(["minmax", "none"]),
    seed=st.integers(0, 10_000),
    edge=st.integers(1, 40),
    zeros=st.booleans(),
    thin=st.booleans(),
)  # fmt: skip
def test_kernels_of_new_samples_equal_naive(name, normalization, scaling, seed, edge, zeros, thin):
    rng = np.random.default_rng(seed)
    X, new = rng.random((23, 4)), rng.random((7, 4)) * 2
    if zeros:
        X[3], new[2] = 0, 0
    given = sparse.csr_array if thin else np.asarray
    training = cross_of(given(X), name, normalization, scaling)
    cross = CrossKernels(training.kernels, np.array([2.0]), training.features, training.norms, edge)
    found, _ = cross.products(given(new), 0, np.eye(23))
    expected = 2.0 * naive.finished_cross_kernel(X, new, name, normalization, scaling)
    scale = max(1.0, np.abs(expected).max())
    np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-9 * scale)


def test_values_of_new_samples_are_not_clipped():
    X = np.random.default_rng(0).random((20, 2))
    training = cross_of(X, "rbf_1", "unit", "minmax")
    cross = CrossKernels(training.kernels, np.ones(1), training.features, {})
    far, _ = cross.products(np.array([[50.0, 50.0]]), 0, np.eye(20))
    assert (far < 0).all()


@pytest.mark.parametrize("normalization", ["unit", "degree", "none"])
def test_rows_of_v_equal_naive(blobs, new, normalization):
    X = np.abs(blobs[0])
    how = {"precision": "float64", "random_state": 0, "normalization": normalization}
    model = GMKCF(3, kernels=FEW, **how).fit(X)
    crosses = [naive.finished_cross_kernel(X, np.abs(new), k, normalization, "minmax") for k in FEW]
    UtKU = model._model.clustering.factors["UtKU"]
    V = naive.place(crosses, model.kernel_weights_, model.U_, UtKU)
    np.testing.assert_allclose(model.transform(np.abs(new)), V, rtol=1e-6, atol=1e-8 * V.max())
    expected = ((V[:, None] - model.cluster_centers_) ** 2).sum(axis=2).argmin(axis=1)
    np.testing.assert_array_equal(model.predict(np.abs(new)), expected)


# training samples given again


@pytest.mark.parametrize("model", METHODS, ids=str)
def test_training_samples_get_their_labels_back(blobs, model):
    X = blobs[0]
    model = clone(model).set_params(random_state=0).fit(X)
    np.testing.assert_array_equal(model.predict(X), model.labels_)
    rows = getattr(model, "V_", getattr(model, "embedding_", None))
    if rows is not None:
        np.testing.assert_allclose(model.transform(X), rows, atol=1e-4 * np.abs(rows).max())
    alone = np.concatenate([model.predict(x[None]) for x in X[:9]])
    np.testing.assert_array_equal(alone, model.labels_[:9])


def test_distances_of_the_k_means_methods_are_squared_distances_in_kernel_space(blobs, new):
    X = blobs[0]
    model = KernelKMeans(3, kernel="rbf_1", precision="float64", random_state=0).fit(X)
    both = np.vstack([X, new])
    K = naive.finished_kernel(X, "rbf_1", "unit", "minmax")
    cross = naive.finished_cross_kernel(X, both, "rbf_1", "unit", "minmax")
    C = np.array([(model.labels_ == c) / (model.labels_ == c).sum() for c in range(3)]).T
    expected = 1 - 2 * cross @ C + np.diag(C.T @ K @ C)
    np.testing.assert_allclose(model.transform(both), expected, atol=1e-9)
    np.testing.assert_allclose(clone(model).fit_transform(X), expected[:90], atol=1e-9)


@pytest.mark.parametrize("k", [8, 20])
def test_more_concepts_than_the_kernel_can_tell_apart(k):
    X = make_blobs(60, 2, centers=3, cluster_std=0.3, random_state=0)[0]
    for kernel in ("linear", "poly_a0_b2"):
        model = KCF(k, kernel=kernel, normalization="none", random_state=0).fit(X)
        np.testing.assert_array_equal(model.predict(X), model.labels_)
        np.testing.assert_allclose(model.transform(X), model.V_, atol=0.02 * model.V_.max())


def test_centres_give_the_labels_exactly(blobs):
    for model in (GMKCF(3, kernels=FEW), CoregSpectralClustering(3, kernels=FEW)):
        model = clone(model).set_params(random_state=0).fit(blobs[0])
        rows = getattr(model, "V_", getattr(model, "embedding_", None))
        found = nearest(squared_distances(rows, model.cluster_centers_))
        np.testing.assert_array_equal(found, model.labels_)


def test_sureness_is_one_in_a_centre_and_nothing_half_way():
    squared = np.array([[0.0, 4.0], [1.0, 1.0], [1.0, 4.0], [0.0, 0.0]])
    np.testing.assert_allclose(sureness(squared), [1, 0, 0.5, 0])
    np.testing.assert_allclose(sureness(squared[:, :1]), 1)


def test_bbc_returns_training_labels(paper_data):
    corpus = read_corpus(paper_data / "bbc.mat")
    for seed in range(2):
        model = GMKCF(5, random_state=seed, tol=1e-4).fit(corpus.X)
        assert (model.predict(corpus.X) == model.labels_).mean() >= 0.99


@pytest.mark.once
@pytest.mark.parametrize(("name", "seeds"), [("bbc", 2), ("tr31", 2), ("k1b", 1), ("webkb", 1)])
@pytest.mark.slow
def test_all_sets_return_training_labels(paper_data, name, seeds):
    corpus = read_corpus(paper_data / f"{name}.mat")
    for seed in range(seeds):
        how = {"solver": "accelerated", "tol": 1e-3, "random_state": seed}
        model = GMKCF(len(set(corpus.labels)), **how).fit(corpus.X)
        some = slice(None, None, max(1, corpus.n_samples // 1000))  # of large sets a part is enough
        assert (model.predict(corpus.X[some]) == model.labels_[some]).mean() >= 0.99


@pytest.mark.once
@pytest.mark.parametrize("name", ["bbc", "tr31"])
@pytest.mark.slow
def test_held_samples_are_placed_as_well_as_the_others(paper_data, name):
    """70 % fitted, 30 % predicted, in the setting of the paper as scripts/predictions does it, with
    another solver.

    Against the samples fitted with them only counting noise is left: three standard errors of the
    difference of two shares, over three seeds. Against a fit of all samples two random starts
    differ, by 0.13 (one standard deviation of six seeds on BBC, more than on TR31): the line of
    docs/algorithm.md, 0.05, and two standard errors of a mean of three.
    """
    corpus = read_corpus(paper_data / f"{name}.mat")
    model = GMKCF.paper(len(set(corpus.labels)), solver="accelerated", tol=1e-4)
    new, fitted, whole = held_accuracies(corpus, model)
    n_held = round(0.3 * corpus.n_samples)
    shares = 1 / n_held + 1 / (corpus.n_samples - n_held)
    noise = np.sqrt(fitted * (1 - fitted) * shares / 3)
    assert abs(new - fitted) <= 3 * noise, (new, fitted, noise)
    assert abs(new - whole) <= 0.05 + 2 * 0.13 / np.sqrt(3), (new, whole)


@pytest.mark.once
@pytest.mark.parametrize("name", ["bbc", "tr31"])
@pytest.mark.slow
def test_held_samples_are_placed_by_default_as_in_a_fit_of_all(paper_data, name):
    """The same samples and a start without a seed: of the bound above only 0.05 is left."""
    corpus = read_corpus(paper_data / f"{name}.mat")
    new, _, whole = held_accuracies(corpus, GMKCF(len(set(corpus.labels))))
    assert abs(new - whole) <= 0.05, (new, whole)


def held_accuracies(corpus, model):
    """Mean ACC over three seeds: of 30 % held and predicted, of the others, of these 30 % in a
    fit of all."""
    known, n = np.array(corpus.labels), corpus.n_samples
    found = []
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(n)
        held, kept = order[: round(0.3 * n)], order[round(0.3 * n) :]
        model = clone(model).set_params(random_state=seed)
        together = clone(model).fit(corpus.X).labels_
        model.fit(corpus.X[kept])
        pairs = [
            (held, model.predict(corpus.X[held])),
            (kept, model.labels_),
            (held, together[held]),
        ]
        found.append([scores(known[i].tolist(), labels.tolist())["ACC"] for i, labels in pairs])
    return np.mean(found, axis=0)


# any tiling, any place


@cache
def fitted(which):
    X = make_blobs(90, 4, centers=3, cluster_std=1.2, random_state=0)[0]
    return clone(METHODS[which]).set_params(random_state=0).fit(X)


@settings(max_examples=25)
@given(own=st.integers(1, 40), edge=st.integers(1, 120), which=st.integers(0, 8))
def test_any_tiling_gives_the_same(own, edge, which):
    model = fitted(which)._model
    new = model.training.features.X[::3] + 0.1
    plain, other = (
        prediction.predict(model, new),
        prediction.predict(model, new, tiling=(own, edge)),
    )
    np.testing.assert_array_equal(other.labels, plain.labels)
    np.testing.assert_allclose(other.rows, plain.rows, rtol=1e-6, atol=1e-9)


@mostly_slow("where", ["two_workers", "synchronous", "threads"])
@mostly_slow("model", METHODS[1:6:2], ids=str)
def test_memory_threads_and_clusters_give_the_same_bits(
    blobs, new, tmp_path, runner_named, where, model
):
    X = blobs[0]
    model = clone(model).set_params(random_state=0, block_size=32)
    here = model.fit(X)
    stored = clone(model).set_params(store=tmp_path / "s.zarr").fit(X)
    place = Resources(runner_named(where), 2, 1, 1 << 30, where)
    for tiling in (None, (5, 40)):
        mine = prediction.predict(here._model, new, tiling=tiling)
        theirs = prediction.predict(stored._model, new, place, tiling=tiling)
        np.testing.assert_array_equal(mine.rows, theirs.rows)
        np.testing.assert_array_equal(mine.labels, theirs.labels)


def test_a_client_is_used_for_a_store(blobs, new, tmp_path, two_workers):
    how = {"kernels": FEW, "random_state": 0, "block_size": 50, "max_iter": 4}
    far = GMKCF(3, store=tmp_path / "s.zarr", client=two_workers, **how).fit(blobs[0])
    near = GMKCF(3, **how).fit(blobs[0])
    np.testing.assert_array_equal(far.transform(new), near.transform(new))
    np.testing.assert_array_equal(far.predict(new), near.predict(new))


def test_sparse_samples(blobs):
    X = np.abs(blobs[0]) * (np.random.default_rng(0).random(blobs[0].shape) > 0.3)
    dense = GMKCF(3, kernels=FEW, random_state=0).fit(X)
    thin = GMKCF(3, kernels=FEW, random_state=0).fit(sparse.csr_matrix(X))
    np.testing.assert_array_equal(dense.predict(X), thin.predict(sparse.coo_array(X)))
    np.testing.assert_array_equal(dense.predict(sparse.csc_matrix(X)), dense.labels_)


def test_kernels_that_others_stand_for(blobs, new, tmp_path):
    X = blobs[0]
    names = resolve_kernels(["rbf_50", "rbf_100", "rbf_1"])
    corpus = Corpus(X, tuple(map(str, range(90))))
    request = KernelRequest(corpus, names, merge_duplicates=0.01)
    store = build_store(tmp_path / "s.zarr", request, Runner(), block=32)
    assert store.manifest.stored_as[:2] == ("rbf_50", "rbf_50")
    model = GMKCF(3, random_state=0).fit(store)
    np.testing.assert_array_equal(model.predict(X), model.labels_)
    np.testing.assert_allclose(model.transform(X), model.V_, atol=1e-4 * model.V_.max())


def test_progress_is_told(blobs):
    heard = []
    model = GMKCF(3, kernels=FEW, random_state=0, callbacks=[heard.append]).fit(blobs[0])
    heard.clear()
    model.predict(np.tile(blobs[0], (3, 1)))
    assert all(isinstance(event, StageProgress) and event.stage == "predict" for event in heard)
    assert (heard[0].done, heard[-1].done, heard[-1].total) == (0, 270, 270)


def test_samples_without_a_direction(blobs):
    X = np.abs(blobs[0])
    model = GMKCF(3, kernels=["cosine", "poly_a0_b2"], random_state=0).fit(X)
    np.testing.assert_array_equal(model.transform(np.zeros((2, 4))), 0)
    assert model.predict(np.zeros((2, 4))).shape == (2,)


# precomputed kernels, functions


def test_precomputed_kernels_between_new_and_training_samples(rng):
    Ks = np.array(kernels(rng, 40, 3))
    train, held = slice(0, 30), slice(30, 40)
    for estimator in (GMKCF(3, kernels="precomputed"), KCF(3, kernel="precomputed"),
                      KernelKMeans(3, kernel="precomputed"),
                      KernelSpectralClustering(3, kernel="precomputed"),
                      RobustMultipleKernelKMeans(3, kernels="precomputed")):  # fmt: skip
        model = clone(estimator).set_params(random_state=0).fit(Ks[:, train, train])
        np.testing.assert_array_equal(model.predict(Ks[:, train, train]), model.labels_)
        new = model.predict(list(Ks[:, held, train]))
        np.testing.assert_array_equal(new, model.predict(Ks[:, held, train]))
        assert new.shape == (10,)
    single = KCF(3, kernel="precomputed", random_state=0).fit(Ks[0][train, train])
    np.testing.assert_array_equal(single.predict(Ks[0][train, train]), single.labels_)


@pytest.mark.parametrize("how", [{"scaling": "minmax"}, {"normalization": "degree"}])
def test_precomputed_kernels_are_normalised_and_scaled_as_asked(rng, how):
    K = kernels(rng, 30, 1)[0] + 0.5
    model = GMKCF(3, kernels="precomputed", random_state=0).fit([Precomputed(K, "mine", **how)])
    np.testing.assert_array_equal(model.predict(K), model.labels_)
    np.testing.assert_allclose(model.transform(K), model.V_, atol=1e-4 * model.V_.max())


def test_what_precomputed_kernels_cannot_do(rng):
    K = kernels(rng, 30, 2)
    unit = GMKCF(3, kernels="precomputed").fit([Precomputed(K[0], "mine", normalization="unit")])
    with pytest.raises(InputError, match="kernel mine was normalised to a unit diagonal"):
        unit.predict(K[0])
    model = GMKCF(3, kernels="precomputed", random_state=0).fit(K)
    with pytest.raises(InputError, match="1 kernels of new samples, but the model has 2"):
        model.predict(K[0])
    with pytest.raises(InputError, match="X has 20 features, but GMKCF is expecting 30"):
        model.predict([K[0][:, :20], K[1][:, :20]])
    with pytest.raises(InputError, match="all be of the same samples"):
        model.predict([K[0], K[1][:5]])
    centres = KernelKMeans(3, kernel="precomputed", random_state=0).fit(K)
    with pytest.raises(InputError, match=r"need k\(x,x\) of the new samples"):
        centres.transform(K)


def near(A, B):
    return np.exp(-np.abs(np.asarray(A)[:, None] - np.asarray(B)[None]).sum(axis=2))


@pytest.mark.parametrize("normalization", ["unit", "degree", "none"])
def test_functions_are_called_again(blobs, new, normalization):
    how = {"random_state": 0, "normalization": normalization}
    model = GMKCF(3, kernels=[near, "rbf_1"], **how).fit(blobs[0])
    np.testing.assert_array_equal(model.predict(blobs[0]), model.labels_)
    some = prediction.predict(model._model, new, tiling=(3, 17)).rows
    np.testing.assert_allclose(some, model.transform(new), rtol=1e-6, atol=1e-9)


def test_a_store_knows_functions_by_name_only(blobs, new, tmp_path):
    path = tmp_path / "s.zarr"
    built = GMKCF(3, kernels=[near, "rbf_1"], store=path, random_state=0).fit(blobs[0])
    named = GMKCF(3, random_state=0).fit(path)
    with pytest.raises(InputError, match="kernel near is a user function or matrix"):
        named.predict(new)
    again = GMKCF(3, kernels=[near, "rbf_1"], random_state=0).fit(path)
    np.testing.assert_array_equal(again.predict(new), built.predict(new))


def test_matrices_among_features_have_nothing_to_come_from(blobs, new):
    K = naive.finished_kernel(blobs[0], "rbf_1", "unit", "minmax")
    model = GMKCF(3, kernels=["cosine", Precomputed(K, "mine")], random_state=0).fit(blobs[0])
    with pytest.raises(InputError, match="kernel mine is a matrix and others are computed"):
        model.predict(new)


# what cannot be


def test_coreg_says_that_it_has_no_place_for_new_samples(blobs, new):
    model = CoregSpectralClustering(3, kernels=FEW, random_state=0).fit(blobs[0])
    assert not hasattr(model, "predict")
    with pytest.raises(InputError, match=r"coreg cannot assign new samples.*use sc"):
        model.predict(new)
    with pytest.raises(InputError, match="coreg cannot assign"):
        model.transform(new)


def test_bad_new_samples(blobs):
    model = GMKCF(3, kernels=FEW, random_state=0)
    with pytest.raises(NotFittedError):
        model.predict(blobs[0])
    model.fit(blobs[0])
    with pytest.raises(InputError, match="X has 3 features, but GMKCF is expecting 4 features"):
        model.predict(blobs[0][:, :3])
    with pytest.raises(InputError, match="NaN in row 1"):
        model.predict([[0, 0, 0, 0], [0, 0, 0, np.nan]])
    with pytest.raises(InputError, match="0 sample"):
        model.predict(np.empty((0, 4)))
    with pytest.raises(InputError, match="needs 2"):
        model.predict(blobs[0][0])


def test_a_new_sample_that_is_too_large(blobs):
    model = KCF(3, kernel="poly_a1_b4", normalization="none", random_state=0).fit(blobs[0])
    new = np.array([[0.0, 0, 0, 0], [1e200, 0, 0, 0]])
    with pytest.raises(InputError, match="kernel poly_a1_b4 is not finite at sample 1"):
        model.predict(new)


def test_a_row_sum_below_zero(rng):
    X = rng.random((30, 3)) + 0.5
    model = KCF(2, kernel="linear", normalization="degree", random_state=0).fit(X)
    with pytest.raises(InputError, match=r"its row sum is -.* at sample 70"):
        model.predict(np.vstack([np.tile(X, (3, 1))[:70], -X[:1]]))


def test_scikit_learn_habits(blobs, new):
    model = GMKCF(3, kernels=FEW, random_state=0).set_output(transform="pandas").fit(blobs[0])
    frame = model.transform(new)
    assert list(frame.columns) == ["gmkcf0", "gmkcf1", "gmkcf2"]
    assert list(model.get_feature_names_out()) == list(frame.columns)
    assert clone(model).fit_transform(blobs[0]).shape == (90, 3)


# the command


@pytest.fixture(scope="module")
def a_run(tmp_path_factory, blobs):
    folder = tmp_path_factory.mktemp("predict")
    np.savez(folder / "x.npz", X=blobs[0])
    done("run", folder / "x.npz", "-k", 3, "--kernels", ",".join(FEW), "--out", folder / "run")
    return folder


def asked(*words):
    return CliRunner().invoke(main, [str(word) for word in words])


def done(*words):
    result = asked(*words)
    assert result.exit_code == 0, result.output
    return result.output


def refused(*words):
    result = asked(*words)
    assert result.exit_code == 2, result.output
    return result.output


def rows_of(path):
    return [line.split(",") for line in path.read_text().splitlines()]


@mostly_slow("cluster", ["threads", "local"])
def test_command_gives_training_samples_their_labels(a_run, tmp_path, cluster):
    how = ("--workers", 1) if cluster == "local" else ()
    out = tmp_path / "n.csv"
    said = done("predict", a_run / "run", a_run / "x.npz", "--out", out, "--cluster", cluster, *how)
    assert "90 samples in 3 clusters" in said
    header, *rows = rows_of(out)
    assert header == ["id", "label", "sure"]
    assert [row[:2] for row in rows] == rows_of(a_run / "run" / "labels.csv")[1:]
    assert all(0 <= float(row[2]) <= 1 for row in rows)


def test_command_tells_what_clusters_are_called(tmp_path):
    texts = ["tea pot cup kettle"] * 3 + ["red rose garden"] * 3
    lines = [json.dumps({"text": f"{text} {'abc'[i % 3]}x"}) for i, text in enumerate(texts)]
    (tmp_path / "t.jsonl").write_text("\n".join(lines) + "\n")
    run, out = tmp_path / "run", tmp_path / "n.csv"
    done("run", tmp_path / "t.jsonl", "-k", 2, "--kernels", "cosine", "--out", run)
    insight = json.loads((run / "insight.json").read_text())
    names = {str(cluster["label"]): cluster["name"] for cluster in insight["clusters"]}
    predict = ("predict", run, tmp_path / "t.jsonl", "--out", out, "--overwrite")
    said = done(*predict).splitlines()
    assert said[-2:] == [f"    {label}        3  {name}" for label, name in names.items()]
    told = json.loads(done(*predict, "--json").splitlines()[-1])
    assert told["names"] == names
    # whoever wrote the words commands no terminal
    insight["clusters"][0]["name"] = "a\x1b[31mb"
    insight["clusters"][1]["name"] = "cluster 1"
    (run / "insight.json").write_text(json.dumps(insight))
    assert done(*predict).splitlines()[-2:] == ["    0        3  a [31mb", "    1        3"]
    (run / "insight.json").unlink()
    assert done(*predict).splitlines()[-2:] == ["    0        3", "    1        3"]


def test_command_reads_other_forms_and_saved_models(a_run, tmp_path, new):
    np.save(tmp_path / "n.npy", new)
    lines = ["0 " + " ".join(f"{j + 1}:{value:.17g}" for j, value in enumerate(x)) for x in new]
    (tmp_path / "n.svmlight").write_text("\n".join(lines) + "\n")
    load(a_run / "run").save(tmp_path / "model")
    found = []
    for run, name in (("run", "n.npy"), ("run", "n.svmlight"), ("model", "n.npy")):
        folder = tmp_path if run == "model" else a_run
        done("predict", folder / run, tmp_path / name, "--out", tmp_path / "o", "--overwrite")
        found.append((tmp_path / "o").read_text())
    assert found[0] == found[1] == found[2]
    expected = load(a_run / "run").predict(new)
    assert [int(row[1]) for row in rows_of(tmp_path / "o")[1:]] == expected.tolist()


def test_columns_that_are_0_in_all_rows_of_a_file_without_width(a_run, tmp_path):
    (tmp_path / "n.svmlight").write_text("0 1:1.5 2:2\n")
    done("predict", a_run / "run", tmp_path / "n.svmlight", "--out", tmp_path / "o.csv")
    assert len(rows_of(tmp_path / "o.csv")) == 2


def test_command_refuses(a_run, tmp_path):
    np.save(tmp_path / "wide.npy", np.ones((2, 7)))
    out, x = tmp_path / "o.csv", a_run / "x.npz"
    said = refused("predict", a_run / "run", tmp_path / "wide.npy", "--out", out)
    assert "X has 7 features, but the model is expecting 4" in said
    (tmp_path / "t.jsonl").write_text('{"text": "a word"}\n')
    said = refused("predict", a_run / "run", tmp_path / "t.jsonl", "--out", out)
    assert "give a matrix with 4 columns" in said
    assert "has no result.json" in refused("predict", tmp_path, x, "--out", out)
    assert "does not exist" in refused("predict", a_run / "run", tmp_path / "no.npy", "--out", out)
    out.write_text("mine")
    assert "is there already" in refused("predict", a_run / "run", x, "--out", out)
    assert "is a folder" in refused("predict", a_run / "run", x, "--out", tmp_path)
    assert out.read_text() == "mine"


def test_command_without_the_store_of_the_run(a_run, tmp_path):
    done("fit", a_run / "run" / "store.zarr", "-k", 3, "--out", tmp_path / "r", "--method", "sc")
    done("predict", tmp_path / "r", a_run / "x.npz", "--out", tmp_path / "o.csv")
    done("fit", a_run / "run" / "store.zarr", "-k", 3, "--out", tmp_path / "c", "--method", "coreg")
    said = refused("predict", tmp_path / "c", a_run / "x.npz", "--out", tmp_path / "c.csv")
    assert "coreg cannot assign new samples" in said
    result = (tmp_path / "r" / "result.json").read_text()
    (tmp_path / "r" / "result.json").write_text(result.replace("store.zarr", "gone.zarr"))
    said = refused("predict", tmp_path / "r", a_run / "x.npz", "--out", tmp_path / "p.csv")
    assert "its store is gone" in said


TEXTS = [f"{words} nr{i:02}" for i, words in enumerate(
    ["roses tulips garden soil", "flour butter oven cake"] * 12)]  # fmt: skip


def test_texts_are_read_as_those_of_the_run(tmp_path):
    table = tmp_path / "texts.csv"
    table.write_text("body,name\n" + "".join(f"{t},d{i}\n" for i, t in enumerate(TEXTS)))
    how = ("--text-column", "body", "--id-column", "name", "--cluster", "threads")
    assert asked("run", table, "-k", "2", "--out", tmp_path / "run", *how).exit_code == 0
    new = tmp_path / "new.jsonl"
    new.write_text('{"text": "tulips in the garden"}\n{"text": "an oven for the cake"}\n')
    out = tmp_path / "new.csv"
    columns = ("--text-column", "text", "--cluster", "threads")
    done = asked("predict", tmp_path / "run", new, "--out", out, *columns)
    assert done.exit_code == 0, done.output
    labels = load(tmp_path / "run").labels_
    rows = out.read_text().splitlines()[1:]
    assert [int(row.split(",")[1]) for row in rows] == labels[:2].tolist()


def test_texts_from_python(tmp_path):
    model = GMKCF(2, random_state=0).fit(TEXTS)
    new = ["tulips in the garden", "an oven for the cake"]
    np.testing.assert_array_equal(model.predict(TEXTS), model.labels_)
    np.testing.assert_array_equal(model.predict(new), model.labels_[:2])
    assert (model.sureness([*new, "oven garden"]) > [0.5, 0.5, 0.0]).all()
    assert (model.sureness(TEXTS) <= 1.0).all()
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert again.terms_ == model.terms_
    np.testing.assert_array_equal(again.transform(new), model.transform(new))
    with pytest.warns(WeakClustersWarning):
        numbers = GMKCF(2, random_state=0, kernels="rbf_1").fit(np.eye(6))
    with pytest.raises(InputError, match="fitted on numbers"):
        numbers.predict(new)


@pytest.mark.once
@pytest.mark.slow
def test_prediction_in_memory_never_starts_a_cluster():
    code = (
        "import sys, numpy as np; from gmkcf_dask import GMKCF; "
        "X = np.random.default_rng(0).random((20, 3)); "
        "GMKCF(2, kernels='rbf_1', max_iter=2).fit(X).predict(X); "
        "sys.exit('distributed' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=False)
    assert ran.returncode == 0


def test_function_kernels_by_name(blobs):
    model = GMKCF(3, kernels=[FunctionKernel(near, "mine")], random_state=0).fit(blobs[0])
    np.testing.assert_array_equal(model.predict(blobs[0]), model.labels_)
