"""All methods and both presets on the same kernels: the same labels as each has alone, measured."""

import json
import warnings

import numpy as np
import pytest
from helpers.counting import Counter
from helpers.html_text import read
from helpers.problems import dense, kernels
from sklearn.metrics import adjusted_rand_score, silhouette_score

import gmkcf_dask
from gmkcf_dask import (
    GMKCF,
    KCF,
    Comparison,
    CoregSpectralClustering,
    KernelKMeans,
    KernelSpectralClustering,
    RobustMultipleKernelKMeans,
    compare,
    pipeline,
    scores,
)
from gmkcf_dask.cluster import threads
from gmkcf_dask.compute.combined import CombinedKernels
from gmkcf_dask.compute.tiled import TiledKernels
from gmkcf_dask.errors import HopelessInputError, InputError, PlanRefused, StoreError
from gmkcf_dask.methods.contrast import add_contrast, contrasts
from gmkcf_dask.methods.kcf import Kcf
from gmkcf_dask.methods.kkm import Kkm
from gmkcf_dask.methods.registry import METHODS
from gmkcf_dask.methods.spectral import Sc
from gmkcf_dask.methods.together import fit_together
from gmkcf_dask.pipeline import compare as comparing
from gmkcf_dask.results.plots import compare as drawing
from gmkcf_dask.store.kernel_store import KernelStore

FEW = ("gmkcf", "kcf", "sc")


@pytest.fixture(scope="module")
def data():
    """Three blobs that touch."""
    y = np.repeat([0, 1, 2], 30)
    centres = np.array([[0, 0, 0], [4, 0, 0], [0, 4, 1]])
    return centres[y] + np.random.default_rng(0).standard_normal((90, 3)), y


@pytest.fixture(scope="module")
def found(data):
    X, y = data
    return compare(X, 3, labels=y)


def test_every_method_runs_with_both_presets(found, data):
    assert [run.name for run in found.runs] == [
        f"{method}_{preset}" for preset in ("local", "paper") for method in METHODS
    ]
    assert found.skipped == ()
    assert found.kernels["local"] == ("heat_s", "heat_m", "heat_l")
    assert len(found.kernels["paper"]) == 12
    for run in found.runs:
        assert run.labels.shape == (90,)
        assert run.scores == scores(data[1], run.labels)
        assert 1 / 3 <= run.largest <= 1
        assert set(run.contrast) == {"local", "paper"}


def test_methods_of_one_kernel_share_sweeps(rng):
    made = kernels(rng, n=60, m=3)
    methods = [Kcf(3, max_iter=6, tol=0.0), Kkm(3, n_init=2), Sc(3)]

    def products(chosen):
        counter = Counter(dense(made, block=20))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = fit_together(counter, chosen, seed=0)
        assert counter.fused == 1
        return found, counter.products

    together, shared = products(methods)
    alone = [products([method]) for method in methods]
    for (one, seconds), ([(other, _)], _) in zip(together, alone, strict=True):
        np.testing.assert_array_equal(one.labels, other.labels)
        np.testing.assert_allclose(one.history, other.history, rtol=1e-9)
        assert seconds > 0
    assert len(shared) == max(len(own) for _, own in alone)


def test_methods_that_do_not_fit_together_run_alone(data, monkeypatch, found):
    monkeypatch.setattr("gmkcf_dask.methods.together.SHARED_BYTES", 1)
    monkeypatch.setattr(comparing, "fit_together", None)
    X, y = data
    alone = compare(X, 3, methods=["kcf", "kkm", "sc"], labels=y)
    for run in alone.runs:
        np.testing.assert_array_equal(run.labels, found.labels[run.name], run.name)


def test_the_silhouette_is_that_of_the_mean_of_the_kernels(found, data):
    X, _ = data
    stack = pipeline.memory_kernels(GMKCF.paper(3)._request(X, lambda event: None), 3).stack
    K = stack.fuse(np.full(12, 1 / 12)).matmul(np.eye(len(X)))
    unit = K / np.sqrt(np.outer(np.diag(K), np.diag(K)))
    squares = np.maximum(2.0 - 2.0 * unit, 0.0)
    np.fill_diagonal(squares, 0.0)
    for run in found.runs:
        expected = silhouette_score(squares, run.labels, metric="precomputed")
        assert run.silhouette["paper"] == pytest.approx(expected, abs=1e-4)
        assert set(run.silhouette) == {"local", "paper"}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore::gmkcf_dask.errors.NumericsWarning")
def test_labels_are_those_that_each_estimator_finds_alone(found, data):
    X, _ = data
    alone = {
        "gmkcf_local": GMKCF(3, random_state=0),
        "kcf_local": KCF(3, random_state=0),
        "kkm_local": KernelKMeans(3, random_state=0),
        "sc_local": KernelSpectralClustering(3, random_state=0),
        "coreg_local": CoregSpectralClustering(3, random_state=0),
        "rmkkm_local": RobustMultipleKernelKMeans(3, random_state=0),
        "gmkcf_paper": GMKCF.paper(3, random_state=0),
    }
    for name, estimator in alone.items():
        np.testing.assert_array_equal(found.labels[name], estimator.fit_predict(X), name)


def test_agreement_is_the_adjusted_rand_index_of_every_two(found):
    labelings = list(found.labels.values())
    expected = [[adjusted_rand_score(a, b) for b in labelings] for a in labelings]
    np.testing.assert_allclose(found.agreement, expected)
    others = [(sum(row) - 1) / (len(row) - 1) for row in expected]
    np.testing.assert_allclose(found.mean_agreement, others)


def test_contrasts_are_those_a_fit_is_judged_by(data, monkeypatch):
    X, y = data
    stack = pipeline.dense_kernels(GMKCF(3, kernels=["rbf_1", "cosine"])._kernel_data(X))
    method = Kcf(3, max_iter=30, tol=1e-3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (fitted,) = method.fit(stack, [0], ["mean"])
        judged = add_contrast(stack, method, fitted).contrast
    labelings = [fitted.labels, y, np.zeros(len(y), int)]
    kernel = stack.fuse(np.full(2, 0.5))
    together = contrasts(kernel, labelings, 3, stack.error_floor)
    assert together[0] == pytest.approx(judged)
    assert together[2] is None
    monkeypatch.setattr("gmkcf_dask.methods.contrast.SHARED_BYTES", 1)  # one at a time
    assert contrasts(kernel, labelings, 3, stack.error_floor) == pytest.approx(together)


def test_a_store_has_the_kernels_of_both_and_is_used_again(data, found, tmp_path):
    X, y = data
    path = tmp_path / "both.zarr"
    first = compare(X, 3, methods=FEW, labels=y, store=path)
    again = compare(path, 3, methods=FEW)
    assert not again.runs[0].scores
    for name, labels in first.labels.items():
        assert adjusted_rand_score(labels, found.labels[name]) > 0.95
        np.testing.assert_array_equal(labels, again.labels[name])


def test_tiles_through_dask_give_the_same_labels(data, tmp_path):
    X, _ = data
    names, presets, resources = ("kcf", "sc", "rmkkm"), ("local", "paper"), threads()
    compare(X, 3, methods=["kkm"], store=tmp_path / "s.zarr", block_size=40)
    store = KernelStore.open(tmp_path / "s.zarr")
    stack = pipeline.stored_kernels(store, pipeline.store_plan(store, 3, resources), resources)
    tiled = CombinedKernels(TiledKernels(store, resources.runner), stack.factored)
    here = comparing.compare_methods(stack, presets, names, 3)
    there = comparing.compare_methods(tiled, presets, names, 3)
    for one, other in zip(here.runs, there.runs, strict=True):
        np.testing.assert_array_equal(one.labels, other.labels, one.name)
        assert one.contrast == pytest.approx(other.contrast)


def test_what_is_no_store_is_told_where_to_go():
    with pytest.raises(StoreError, match="files through read_corpus"):
        compare("nofile.csv", 2)


def test_a_store_of_one_preset_is_compared_with_that_one(data, tmp_path):
    X, _ = data
    path = tmp_path / "local.zarr"
    GMKCF(3, store=path).fit(X)
    found = compare(path, 3, methods=["sc"])
    assert list(found.labels) == ["sc_local"]
    assert found.skipped == ("paper: the store does not have its kernels",)


def test_a_store_of_other_kernels_is_refused(data, tmp_path):
    X, _ = data
    GMKCF(3, kernels=["rbf_1", "linear"], max_iter=3, tol=0.1, store=tmp_path / "s.zarr").fit(X)
    with pytest.raises(InputError, match="only the kernels rbf_1, linear"):
        compare(tmp_path / "s.zarr", 3)


def test_without_room_for_the_papers_kernels_the_local_ones_are_compared(data, monkeypatch):
    X, _ = data
    monkeypatch.setattr("gmkcf_dask.pipeline.kernels.free_memory", lambda: 100_000)
    found = compare(X, 3, methods=["sc"])
    assert list(found.labels) == ["sc_local"]
    (sentence,) = found.skipped
    assert "12 kernels of 90 samples need" in sentence
    assert f"skipped: {sentence}" in str(found)
    with pytest.raises(PlanRefused):
        compare(X, 3, methods=["sc"], presets=["paper"])


def test_a_method_that_cannot_run_is_left_out_with_one_sentence(data, monkeypatch):
    X, _ = data
    real = comparing.fit

    def fit(stack, method, *rest, **more):
        if method.name == "sc":
            raise HopelessInputError("row 3 sums to -1")
        return real(stack, method, *rest, **more)

    def fit_together(*rest):
        raise HopelessInputError("row 3 sums to -1")

    monkeypatch.setattr(comparing, "fit", fit)
    monkeypatch.setattr(comparing, "fit_together", fit_together)
    found = compare(X, 3, methods=["kkm", "sc"], presets=["local"])
    assert list(found.labels) == ["kkm_local"]
    assert found.skipped == ("sc_local: row 3 sums to -1",)
    with pytest.raises(HopelessInputError):
        compare(X, 3, methods=["sc"], presets=["local"])


def test_texts_are_compared():
    texts = ["tea cup pot", "tea milk cup", "rose red leaf", "rose leaf thorn"] * 6
    texts = [f"{text} n{i}" for i, text in enumerate(texts)]
    found = compare(texts, 2, methods=["gmkcf"])
    assert found.kernels["local"][0] == "local_0"
    assert [run.n_clusters for run in found.runs] == [2, 2]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"methods": ["kmeans"]}, "methods has 'kmeans': choose from gmkcf, kcf"),
        ({"methods": []}, "methods is empty"),
        ({"methods": "gmkcf"}, "methods must be a list"),
        ({"presets": ["papers"]}, "presets has 'papers': choose from local, paper"),
        ({"n_clusters": 91}, "n_samples=90 should be >= n_clusters=91"),
        ({"labels": [1, 2]}, "2 labels for 90 samples"),
    ],
)
def test_wrong_wishes_are_refused(data, wrong, said):
    with pytest.raises(InputError, match=said):
        compare(data[0], **{"n_clusters": 3, "methods": ["sc"], "presets": ["local"], **wrong})


def test_a_comparison_is_a_table_in_notebooks_and_one_line_elsewhere(found):
    assert repr(found).startswith("Comparison(12 runs, 90 samples, k=3, mean agreement ")
    page = read(found._repr_html_())
    assert page.addresses == []
    for line in filter(None, found.lines()):
        assert "".join(line.split()).rstrip(":") in page.text.replace(" ", "")


def test_lines_fit_a_terminal_and_name_the_best_together(found):
    lines = found.lines()
    assert max(map(len, lines)) <= 120
    ways = [line for line in lines if line.startswith("closest to the known labels: ")]
    best = max(run.scores["NMI"] for run in found.runs)
    named = [run.name for run in found.runs if best - run.scores["NMI"] < 0.005]
    assert ways == [f"closest to the known labels: {', '.join(named)} (NMI {best:.2f})"]


def test_json_has_all_but_the_labels(found):
    content = json.loads(json.dumps(found.as_json(), allow_nan=False))
    assert content["version"] == 1
    assert [run["name"] for run in content["runs"]] == list(found.labels)
    assert np.array(content["agreement"]).shape == (12, 12)
    assert content["runs"][0]["scores"]["ACC"] == found.runs[0].scores["ACC"]


def test_the_picture_is_a_png(found, data, monkeypatch):
    pytest.importorskip("matplotlib")
    assert found.picture().startswith(b"\x89PNG")
    single = compare(data[0], 1, methods=["kkm"], presets=["local"])
    assert single.runs[0].contrast == {"local": None}
    assert single.picture().startswith(b"\x89PNG")
    monkeypatch.setattr(drawing, "can_draw", lambda: False)
    with pytest.raises(InputError, match=r"extra \[plot\]"):
        found.picture()


def test_the_names_are_public():
    assert gmkcf_dask.Comparison is Comparison
    assert gmkcf_dask.compare is compare
