"""A fit says when it failed: clusters that are barely more similar than random groups."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from helpers.counting import Counter
from helpers.html_text import read
from helpers.problems import dense, kernels, tiled
from sklearn.datasets import load_digits, load_iris, make_blobs
from sklearn.preprocessing import StandardScaler

from gmkcf_dask import (
    GMKCF,
    KCF,
    CoregSpectralClustering,
    KernelKMeans,
    KernelSpectralClustering,
    RobustMultipleKernelKMeans,
    load,
    pipeline,
)
from gmkcf_dask.compute.factored import FactoredKernels, MemoryFactors
from gmkcf_dask.errors import WeakClustersWarning
from gmkcf_dask.methods.base import MEAN
from gmkcf_dask.methods.contrast import (
    LEAST_CONTRAST,
    add_contrast,
    contrast,
    one_concept_objective,
    unit_scale,
)
from gmkcf_dask.methods.gmkcf import Gmkcf
from gmkcf_dask.methods.kcf import Kcf
from gmkcf_dask.methods.members import member_matrix

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
N, M, K = 60, 3, 3


def naive_contrast(K_w, labels):
    """The definition, spelled out over all pairs."""
    length = np.sqrt(K_w.diagonal())
    r = K_w / np.outer(length, length)
    pairs = [(j, c) for j in range(len(r)) for c in np.unique(labels[labels >= 0])]
    pairs = [(j, c) for j, c in pairs if labels[j] >= 0]
    others = {(j, c): [i for i in np.flatnonzero(labels == c) if i != j] for j, c in pairs}
    inside = np.concatenate([r[j, others[j, c]] for j, c in pairs if labels[j] == c])
    every = np.concatenate([r[j, others[j, c]] for j, c in pairs])
    squares = [
        len(others[j, c]) * (r[j, others[j, c]].mean() - every.mean()) ** 2
        for j, c in pairs
        if others[j, c]
    ]
    return (inside.mean() - every.mean()) / np.sqrt(sum(squares) / len(every))


def contrast_of(K_w, labels):
    scale = unit_scale(K_w.diagonal())
    H = member_matrix(labels, int(labels.max()) + 1)
    similar = scale[:, None] * (K_w @ (scale[:, None] * H))
    return contrast(similar, scale**2 * K_w.diagonal(), labels, 1e-12)


def fused(Ks, found, method):
    weights = found.weights**2 if method.name == "gmkcf" else found.weights
    return sum(w * one for w, one in zip(weights, Ks, strict=True))


@pytest.mark.parametrize("mixed", [False, True], ids=["nonnegative", "mixed"])
@pytest.mark.parametrize("method", [Gmkcf(K, max_iter=5), Kcf(K, max_iter=5)], ids=lambda m: m.name)
def test_every_operator_finds_what_the_definition_says(rng, tmp_path, method, mixed):
    Zs = [rng.normal(size=(N, 5)) if mixed else rng.random((N, 5)) for _ in range(M)]
    Ks = [Z @ Z.T for Z in Zs]
    for stack in (
        dense(Ks),
        tiled(tmp_path / "s.zarr", Ks),
        FactoredKernels(MemoryFactors.of(Zs, ["a", "b", "c"])),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            (found,) = pipeline.fit(stack, method, [0], [MEAN])
        wanted = naive_contrast(fused(Ks, found, method), found.labels)
        assert found.contrast == pytest.approx(wanted, rel=1e-6)


@pytest.fixture
def two_groups(rng):
    labels = np.repeat([0, 1], 20)
    X = rng.normal(size=(40, 6)) + 2.0 * np.eye(6)[labels]
    return X @ X.T, labels


def test_numbers_added_and_multiplied_do_not_matter(rng, two_groups):
    K_w, labels = two_groups
    unit = unit_scale(K_w.diagonal())
    r = K_w * np.outer(unit, unit)
    clear = contrast_of(r, labels)
    assert clear > 0.5
    length = rng.uniform(0.1, 10.0, 40)
    assert contrast_of(7.0 * r * np.outer(length, length), labels) == pytest.approx(clear)
    flat, narrow = 0.99 + 0.01 * r, 0.01 * r  # between different samples
    for one in (flat, narrow):
        np.fill_diagonal(one, 1.0)
        assert contrast_of(one, labels) == pytest.approx(clear)


def test_labels_drawn_at_random_have_none(rng, two_groups):
    K_w, labels = two_groups
    drawn = [contrast_of(K_w, rng.permutation(labels)) for _ in range(200)]
    assert abs(np.mean(drawn)) < 0.03


def test_samples_without_a_cluster_have_no_part(two_groups):
    K_w, labels = two_groups
    labels = labels.copy()
    labels[[0, 7, 30]] = -1
    kept = labels >= 0
    assert contrast_of(K_w, labels) == pytest.approx(
        contrast_of(K_w[np.ix_(kept, kept)], labels[kept])
    )
    assert contrast_of(K_w, labels) == pytest.approx(naive_contrast(K_w, labels))


def test_samples_of_no_length_are_like_no_other(two_groups):
    K_w, labels = two_groups
    K_w = K_w.copy()
    K_w[0], K_w[:, 0] = 0.0, 0.0
    assert 0.0 < contrast_of(K_w, labels) < np.inf


@pytest.mark.parametrize("labels", [[0, 0, 0, 0], [0, 1, 2, 3], [-1, -1, 0, 0], [-1] * 4])
def test_one_cluster_and_clusters_of_one_cannot_be_told(labels):
    labels = np.array(labels)
    assert contrast(np.ones((4, 4)), np.ones(4), labels, 1e-12) is None


def test_a_constant_kernel_has_no_contrast():
    assert contrast_of(np.ones((6, 6)), np.array([0, 0, 0, 1, 1, 1])) == 0.0


# fits


@pytest.mark.parametrize("method", [Gmkcf(K, max_iter=5), Kcf(K, max_iter=5)], ids=lambda m: m.name)
def test_one_product_more_and_the_same_bits(rng, method):
    Ks = kernels(rng, N, M)
    plain, judged = Counter(dense(Ks)), Counter(dense(Ks))
    alone = (method.fit(plain, [0]) if method.name == "gmkcf" else method.fit(plain, [0], [MEAN]))[
        0
    ]
    (found,) = pipeline.fit(judged, method, [0], [MEAN])
    assert judged.products == [*plain.products, K + 1]
    assert judged.fused == plain.fused + 1
    assert (alone.history, alone.converged) == (found.history, found.converged)
    np.testing.assert_array_equal(alone.labels, found.labels)
    for name, factor in alone.factors.items():
        np.testing.assert_array_equal(factor, found.factors[name])
    assert (alone.contrast, found.contrast is None) == (None, False)


def test_standardised_digits_with_the_setting_of_the_paper_warn():
    X = StandardScaler().fit_transform(load_digits().data)
    with pytest.warns(WeakClustersWarning, match="barely more similar than random groups"):
        model = GMKCF.paper(10, random_state=0).fit(X)
    assert model.contrast_ < LEAST_CONTRAST
    assert (model.n_iter_, model.converged_) == (3, True)  # the paper's rule, as it is
    with warnings.catch_warnings():
        warnings.simplefilter("error", WeakClustersWarning)
        better = GMKCF.paper(10, solver="accelerated", random_state=0).fit(X)
    assert better.contrast_ > 3 * LEAST_CONTRAST


@pytest.mark.parametrize(("solver", "converged"), [("paper", True), ("accelerated", False)])
def test_a_plateau_is_no_convergence_outside_the_paper(solver, converged):
    X = StandardScaler().fit_transform(load_iris().data)
    how = {"kernel": "rbf_100", "scaling": "none", "random_state": 0, "init": "random"}
    with pytest.warns(WeakClustersWarning):
        model = KCF(3, **how, solver=solver).fit(X)
    assert model.n_iter_ < 10
    assert model.converged_ is converged
    assert [run.converged for run in model.runs_] == [converged]


def test_only_the_kept_restart_stopped_on_the_plateau(rng):
    method, Ks = Kcf(2, solver="accelerated", tol=1.0, max_iter=3), [np.eye(40) * 0.01 + 0.99]
    (found,) = method.fit(dense(Ks), [0], [MEAN])
    assert found.converged
    better = replace(found.runs[0], objective=found.objective + 1.0)
    with pytest.warns(WeakClustersWarning):
        judged = add_contrast(dense(Ks), method, replace(found, runs=(better, found.runs[0])))
    assert [run.converged for run in judged.runs] == [True, False]


def test_the_objective_of_one_concept(rng):
    K_w = kernels(rng, 20, 1)[0]
    ones = np.ones((20, 1))
    V = np.linalg.lstsq(ones.T @ K_w @ ones, ones.T @ K_w, rcond=None)[0].T
    J = np.trace(K_w) - 2 * np.trace(V.T @ K_w @ ones) + np.trace(ones.T @ K_w @ ones @ V.T @ V)
    found = one_concept_objective(float(np.trace(K_w)), K_w.sum(axis=1))
    assert found == pytest.approx(J)
    assert one_concept_objective(3.0, -np.ones(4)) == 3.0


def test_notebook_report_and_saved_model_say_so(tmp_path):
    X = make_blobs(60, 4, centers=3, random_state=0)[0]
    with pytest.warns(WeakClustersWarning) as caught:
        model = KCF(3, kernel="rbf_0.01", random_state=0).fit(X)
    (sentence,) = {str(one.message) for one in caught if one.category is WeakClustersWarning}
    assert sentence[4:] in read(model._repr_html_()).text
    assert model.explain()["warnings"].count(sentence) == 1
    model.report(tmp_path / "report.html")
    assert "barely more similar than random groups" in (tmp_path / "report.html").read_text()
    model.save(tmp_path / "model")
    assert load(tmp_path / "model").contrast_ == model.contrast_


@pytest.mark.parametrize(
    "estimator",
    [
        GMKCF(3, kernels=["rbf_1", "cosine"], random_state=0),
        KCF(3, kernel="rbf_1", random_state=0),
        KernelKMeans(3, kernel="rbf_1", n_init=5, random_state=0),
        KernelSpectralClustering(3, kernel="rbf_1", random_state=0),
        CoregSpectralClustering(3, kernels=["rbf_1", "cosine"], random_state=0),
        RobustMultipleKernelKMeans(3, kernels=["rbf_1", "cosine"], n_init=5, random_state=0),
    ],
    ids=lambda estimator: estimator.method_name,
)
def test_clear_clusters_say_nothing(estimator):
    X = make_blobs(60, 4, centers=3, random_state=0)[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error", WeakClustersWarning)
        model = estimator.fit(X)
    assert model.contrast_ > 0.5
    assert not any("hardly closer" in note for note in model.explain()["warnings"])


@pytest.mark.parametrize(
    "estimator",
    [
        KernelKMeans(3, kernel="rbf_0.01", random_state=0),
        KernelSpectralClustering(3, kernel="rbf_0.01", random_state=0),
        CoregSpectralClustering(3, kernels=["rbf_0.01"], random_state=0),
        RobustMultipleKernelKMeans(3, kernels=["rbf_0.01", "rbf_0.02"], random_state=0),
    ],
    ids=lambda estimator: estimator.method_name,
)
def test_every_method_is_judged(estimator):
    X = make_blobs(60, 4, centers=3, random_state=0)[0]
    with pytest.warns(WeakClustersWarning, match=f"of {estimator.method_name.upper()}"):
        model = estimator.fit(X)
    assert model.contrast_ < 0.1
