"""Samples with the label −1 belong to no cluster: they are counted and listed, and in no mean."""

import json
from dataclasses import replace

import numpy as np
import pytest
from helpers.html_text import read
from helpers.insights import make_insight
from helpers.problems import dense, kernels
from helpers.report_page import Page, render_report
from scipy import sparse

from gmkcf_dask import GMKCF, load, pipeline
from gmkcf_dask.errors import InputError
from gmkcf_dask.kernels.features import ArrayFeatures
from gmkcf_dask.methods import factorize
from gmkcf_dask.methods.base import MEAN
from gmkcf_dask.methods.gmkcf import Gmkcf
from gmkcf_dask.methods.kkm import Kkm
from gmkcf_dask.methods.spectral import Sc
from gmkcf_dask.results import insight as insights
from gmkcf_dask.results.document_map import document_map
from gmkcf_dask.results.insight import Samples
from gmkcf_dask.results.membership import membership
from gmkcf_dask.results.metrics import confusion, coverage, scores
from gmkcf_dask.results.schemas import parse_insight, plain_values

pytestmark = pytest.mark.usefixtures("calm")
N, M, K, D = 60, 3, 3, 20
WITHOUT = [0, 17, 59]
KEPT = [i for i in range(N) if i not in WITHOUT]
TERMS = tuple(f"term{i}" for i in range(D))


@pytest.fixture
def Ks(rng):
    return kernels(rng, N, M)


def features(rng, labels):
    X = rng.random((N, D)) * (rng.random((N, D)) < 0.3)
    for c in range(K):
        X[np.ix_(labels == c, range(5 * c, 5 * c + 5))] += 1.0
    return X


def without(found, rows=WITHOUT):
    """The same clustering, but some samples have no direction and no cluster."""
    labels = found.labels.copy()
    labels[rows] = -1
    factors = dict(found.factors)
    if "V" in factors:
        factors["V"] = factors["V"].copy()
        factors["V"][rows] = 0.0
    return replace(found, labels=labels, factors=factors)


def kept_only(found):
    """The clustering of the other samples alone."""
    own = {"U", "V", "embedding", "C", "extension", "diagonal"}
    factors = {name: F[KEPT] if name in own else F for name, F in found.factors.items()}
    return replace(found, labels=found.labels[KEPT], factors=factors)


def explain(stack, method, found, samples):
    return plain_values(insights.explain(stack, method, found, samples))


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array], ids=["dense", "sparse"])
@pytest.mark.parametrize("method", [Gmkcf(K, max_iter=8), Kkm(K), Sc(K)], ids=lambda m: m.name)
def test_clusters_are_described_as_if_the_others_were_not_there(rng, Ks, method, form):
    stack = dense(Ks, block=20)
    found = without(pipeline.fit(stack, method, [3], [MEAN])[0])
    X = features(rng, found.labels)
    ids = tuple(map(str, range(N)))
    insight = explain(stack, method, found, Samples(ids, ArrayFeatures(form(X)), TERMS))
    fewer = explain(
        dense([one[np.ix_(KEPT, KEPT)] for one in Ks], block=20),
        method,
        kept_only(found),
        Samples(tuple(ids[i] for i in KEPT), ArrayFeatures(form(X[KEPT])), TERMS),
    )
    for one, other in zip(insight["clusters"], fewer["clusters"], strict=True):
        for name in ("label", "name", "size", "terms"):
            assert one[name] == other[name], name
        assert one["share"] == pytest.approx(other["size"] / N, rel=1e-5)
        assert one["cohesion"] == pytest.approx(other["cohesion"], rel=1e-4)
        for name in ("central", "doubtful"):
            assert one[name] == [KEPT[i] for i in other[name]]
        assert [near["label"] for near in one["nearest"]] == [
            near["label"] for near in other["nearest"]
        ]
    fused, alone = insight["fused"], fewer["fused"]
    assert (sum(fused["groups"]), -1 in fused["labels"]) == (N - len(WITHOUT), False)
    for name in ("inside", "between"):
        assert fused[name] == pytest.approx(alone[name], rel=1e-4)
    documents = insight["documents"]
    assert [documents["labels"][i] for i in WITHOUT] == [-1] * len(WITHOUT)
    assert [documents["sure"][i] for i in WITHOUT] == [0.0] * len(WITHOUT)
    assert insight["n_without_cluster"] == len(WITHOUT)
    assert insight["kernels"]["compared"] == 1.0
    assert "3 documents have no usable words and belong to no cluster." in insight["summary"]
    assert insight["summary"].startswith(f"{N - len(WITHOUT)} documents fall into 3 clusters")
    assert "no cluster" in insight["map"]
    assert json.loads(json.dumps(insight, allow_nan=False)) == insight
    assert parse_insight(insight).n_without_cluster == len(WITHOUT)


@pytest.mark.parametrize("rows", [range(1, N), range(N)], ids=["all but one", "all"])
def test_hardly_any_sample_has_a_cluster(Ks, rows):
    method, stack = Gmkcf(K, max_iter=4), dense(Ks, block=20)
    found = without(pipeline.fit(stack, method, [0])[0], list(rows))
    insight = explain(stack, method, found, Samples(tuple(map(str, range(N)))))
    assert f"{len(rows)} samples are similar to no concept" in insight["summary"]
    assert Page(render_report(insight)).text.count("belong to no cluster") >= 1


def test_samples_without_a_cluster_lie_below_the_islands(rng):
    labels = np.repeat([0, 1, 2, -1], 10)
    rows = np.eye(4)[labels] + rng.random((40, 4)) / 10
    places = document_map(membership(rows, labels, 3))
    assert np.isfinite(places).all()
    assert places[labels == -1, 1].max() < places[labels != -1, 1].min()
    assert len(np.unique(places, axis=0)) == 40


def test_scores_take_them_for_one_cluster():
    known, found = list("aabbcc"), [0, 0, 1, 1, -1, -1]
    assert scores(known, found) == dict.fromkeys(("ACC", "NMI", "purity", "ARI"), 1.0)
    assert (coverage(found), coverage(list(map(str, found)))) == (4 / 6, 4 / 6)
    assert coverage([0, 1]) == 1.0
    with pytest.raises(InputError):
        coverage([])


def test_confusion_counts_them_in_the_last_column():
    topics, clusters, counts = confusion(list("aabbc"), [1, -1, 0, 0, -1], 2)
    assert (topics, clusters) == (["a", "b", "c"], [1, 0, -1])
    assert counts.tolist() == [[1, 0, 1], [0, 2, 0], [0, 0, 1]]


# the report


def insight_without(rows=(3, 5, 8)):
    insight = make_insight(n=60, k=4)
    for i in rows:
        label = insight["documents"]["labels"][i]
        insight["documents"]["labels"][i] = -1
        insight["clusters"][label]["size"] -= 1
        for name in ("central", "doubtful"):
            insight["clusters"][label][name] = [
                j for j in insight["clusters"][label][name] if j != i
            ]
    insight["n_without_cluster"] = len(rows)
    return insight


def test_the_report_lists_them_and_shows_no_card():
    page = Page(render_report(insight_without()))
    data = page.data
    assert "3 documents have no usable words and belong to no cluster." in page.text
    assert [one["label"] for one in data["clusters"]][-1] == -1
    assert data["clusters"][-1]["name"] == "no cluster"
    assert [data["documents"]["of"][i] for i in (3, 5, 8)] == [4, 4, 4]
    assert "cluster--1" in page.ids  # the list, from where the scripts take the mark
    rows = [value for name, value in page.attributes if name == "data-row"]
    assert {"3", "5", "8"} <= set(rows)
    assert page.elements.count("article") == 4


def test_the_report_of_clusters_alone_is_without_them():
    page = Page(render_report(make_insight(n=60, k=4)))
    assert "cluster--1" not in page.ids
    assert len(page.data["clusters"]) == 4


@pytest.mark.parametrize("n_rows", [0, 20])
def test_many_are_listed_in_part(n_rows):
    insight = insight_without(range(4, 4 + n_rows))
    insight["confusion"]["clusters"].append(-1)
    for row in insight["confusion"]["counts"]:
        row.append(n_rows)
    page = Page(render_report(insight))
    assert ("Show 10 more" in page.text) == (n_rows == 20)
    assert "no cluster" in page.text


@pytest.mark.parametrize("change", ["count", "label of a cluster"])
def test_an_insight_that_contradicts_itself_is_refused(change):
    insight = insight_without()
    if change == "count":
        insight["n_without_cluster"] = 2
    else:
        insight["clusters"][0]["label"] = -1
    with pytest.raises(InputError):
        parse_insight(insight)


# estimators


@pytest.fixture
def model(rng, monkeypatch):
    """A fit that gives two rows of V without a direction no cluster."""
    conclude = factorize.FactorizationMethod.conclude

    def cut(self, run, seed, listen):
        V = run.V.copy()
        V[[2, 4]] = 0.0
        labels, factors = conclude(self, replace(run, V=V), seed, listen)
        return np.where(V.any(axis=1), labels, -1).astype(np.int32), factors

    monkeypatch.setattr(factorize.FactorizationMethod, "conclude", cut)
    X = np.abs(rng.normal(size=(40, 5))) + np.repeat(np.eye(4, 5) * 4, 10, axis=0)
    how = {"kernels": ["rbf_1", "cosine"], "max_iter": 20, "random_state": 0}
    return GMKCF(4, assign="spherical", **how).fit(X)


def test_an_estimator_shows_explains_and_keeps_them(model, tmp_path):
    assert model.labels_[[2, 4]].tolist() == [-1, -1]
    shown = read(model._repr_html_()).text
    assert "38 samples in 4 clusters" in shown
    assert "2 samples are similar to no concept and belong to no cluster." in shown
    insight = model.explain()
    assert insight["n_without_cluster"] == 2
    assert sum(cluster["size"] for cluster in insight["clusters"]) == 38
    model.save(tmp_path / "model")
    assert load(tmp_path / "model").labels_.tolist() == model.labels_.tolist()
    model.report(tmp_path / "report.html")
    assert "belong to no cluster" in (tmp_path / "report.html").read_text()


def test_plots_draw_them_apart(model):
    pytest.importorskip("matplotlib")
    from gmkcf_dask import EmbeddingDisplay, FusedKernelDisplay

    drawn = EmbeddingDisplay.from_estimator(model)
    assert [points.get_label() for points in drawn.points_] == ["0", "1", "2", "3", "no cluster"]
    assert -1 not in FusedKernelDisplay.from_estimator(model).labels
    every = EmbeddingDisplay([0.0, 1.0], [0.0, 1.0], [-1, -1]).plot()
    assert len(every.points_) == 1
