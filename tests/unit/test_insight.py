"""What clusters mean, against sums spelled out over whole matrices."""

import json
import warnings
from dataclasses import replace
from importlib.metadata import version
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.faulty import THREADS, run as gmkcf, small_store
from helpers.problems import dense, kernels, tiled
from hypothesis import given, strategies as st
from scipy import sparse

from gmkcf_dask import pipeline
from gmkcf_dask.cli.report import cluster_line
from gmkcf_dask.errors import ClusterLost, InputError
from gmkcf_dask.kernels.features import ArrayFeatures
from gmkcf_dask.methods.base import MEAN, Clustering, RunSummary
from gmkcf_dask.methods.coreg import Coreg
from gmkcf_dask.methods.gmkcf import Gmkcf
from gmkcf_dask.methods.kcf import Kcf
from gmkcf_dask.methods.kkm import Kkm
from gmkcf_dask.methods.rmkkm import Rmkkm
from gmkcf_dask.methods.spectral import Sc
from gmkcf_dask.results import insight as insights
from gmkcf_dask.results.cluster_terms import (
    ROWS_AT_ONCE,
    class_tf_idf,
    cluster_terms,
    mean_differences,
    read_profile,
)
from gmkcf_dask.results.document_map import document_map
from gmkcf_dask.results.insight import About, Samples, summarize
from gmkcf_dask.results.kernel_view import group_samples
from gmkcf_dask.results.membership import membership
from gmkcf_dask.results.metrics import confusion
from gmkcf_dask.results.run_folder import read_insight, write_insight
from gmkcf_dask.results.schemas import ClusterEntry, parse_insight, plain_values

pytestmark = pytest.mark.usefixtures("calm")

N, M, K = 60, 3, 3
METHODS = [Gmkcf(K, max_iter=8), Kcf(K, max_iter=8), Kkm(K), Rmkkm(K), Sc(K), Coreg(K)]
KEYS = {
    "version", "title", "summary", "method", "n_samples", "n_clusters", "converged", "n_iter",
    "objective", "what", "clusters", "documents", "map", "kernels", "runs", "best", "fused",
    "scores", "confusion", "seconds", "bytes", "command", "versions", "parameters", "warnings",
    "created", "n_without_cluster",
}  # fmt: skip
HOSTILE = "</script><script>alert('&quot;')\x1b[31m\u2028\udc80"


def explain(*words, **how):
    """The insight as insight.json holds it."""
    return plain_values(insights.explain(*words, **how))


def insight_of(run):
    return plain_values(read_insight(run))


def ids(n=N):
    return tuple(f"doc {i}" for i in range(n))


def text_features(rng, labels, d=30):
    """Non-negative sparse rows; every cluster has five terms of its own, and five are of all."""
    X = rng.random((len(labels), d)) * (rng.random((len(labels), d)) < 0.2)
    for c in range(K):
        X[np.ix_(labels == c, range(5 * c, 5 * c + 5))] += 1.0
    X[:, 20:25] += 3.0
    return sparse.csr_array(X)


def fitted(method, Ks, stack=None):
    stack = stack or dense(Ks, block=20)
    return stack, pipeline.fit(stack, method, [3], [MEAN])[0]


@pytest.fixture
def Ks(rng):
    return kernels(rng, N, M)


# the whole


@pytest.mark.parametrize("features", [True, False])
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_every_method_gives_plain_json(rng, Ks, method, features):
    stack, found = fitted(method, Ks)
    X = ArrayFeatures(text_features(rng, found.labels)) if features else None
    terms = tuple(f"term{i}" for i in range(30)) if features else None
    topics = tuple("abc"[i % 3] for i in range(N))
    heard = []
    insight = explain(
        stack, method, found, Samples(ids(), X, terms, topics=topics), listen=heard.append
    )
    assert json.loads(json.dumps(insight, allow_nan=False)) == insight
    assert insight.keys() == KEYS
    assert (insight["what"], insight["method"]) == (
        "documents" if features else "samples",
        method.name,
    )
    documents = insight["documents"]
    assert documents["labels"] == found.labels.tolist()
    assert documents["titles"] is None
    for name in ("ids", "labels", "topics", "sure", "x", "y"):
        assert len(documents[name]) == N
    assert all(0 <= sure <= 1 for sure in documents["sure"])
    assert max(map(abs, documents["x"] + documents["y"])) <= 1
    assert [c["size"] for c in insight["clusters"]] == np.bincount(found.labels).tolist()
    assert sum(insight["fused"]["groups"]) == N
    learned = method.name in ("gmkcf", "rmkkm")
    assert len(insight["kernels"]["history"]) == (found.n_iter + 1 if learned else 0)
    assert insight["runs"][insight["best"]]["history"][-1] == pytest.approx(found.objective, 1e-5)
    has_concepts = features and method.name in ("gmkcf", "kcf")
    for cluster in insight["clusters"]:
        assert bool(cluster["concept_terms"]) == has_concepts
        members = np.flatnonzero(found.labels == cluster["label"])
        assert set(cluster["central"] + cluster["doubtful"]) <= set(members.tolist())
        assert not set(cluster["central"]) & set(cluster["doubtful"])
        if features:
            own = {f"term{5 * cluster['label'] + i}" for i in range(5)}
            assert {term["term"] for term in cluster["terms"][:5]} == own
            assert cluster["name"] == ", ".join(t["term"] for t in cluster["terms"][:3])
        else:
            assert cluster["name"] == f"cluster {cluster['label']}"
    assert {event.stage for event in heard} == {"overview"}
    assert heard[-1].done == heard[-1].total


def test_restarts_and_weights_are_all_there(Ks):
    method = Gmkcf(K, max_iter=5, tol=0.0, n_init=3)
    stack, found = fitted(method, Ks)
    insight = explain(stack, method, found, Samples(ids()))
    assert [len(run["history"]) for run in insight["runs"]] == [6, 6, 6]
    last = [run["history"][-1] for run in insight["runs"]]
    assert insight["best"] == last.index(min(last))
    assert [len(run.history) for run in found.runs] == [6, 6, 6]
    assert found.weights_history.shape == (6, M)
    np.testing.assert_array_equal(found.weights_history[0], 1 / M)
    np.testing.assert_array_equal(found.weights_history[-1], found.weights)


def test_the_same_everywhere(Ks, tmp_path):
    method = Gmkcf(K, max_iter=5)
    made = [
        explain(*fitted_on, Samples(ids()))
        for fitted_on in (
            (stack, method, fitted(method, Ks, stack)[1])
            for stack in (dense(Ks, block=20), tiled(tmp_path / "s.zarr", Ks, block=20))
        )
    ]
    for insight in made:
        insight.pop("created")
    assert made[0] == made[1]


def test_texts_stay_what_they_are(Ks, tmp_path):
    method = Kkm(K)
    stack, found = fitted(method, Ks)
    texts = (HOSTILE,) * N
    names = tuple(f"{HOSTILE}{i}" for i in range(N))
    about = About("s3://ann:hunter2@host/x", "gmkcf fit tls://ann:hunter2@host", warnings=["w"])
    samples = Samples(names, titles=texts, excerpts=tuple(f"password: {HOSTILE}" for _ in names))
    insight = explain(stack, method, found, samples, about)
    write_insight(tmp_path, parse_insight(insight))
    again = insight_of(tmp_path)
    assert again == insight
    assert again["documents"]["titles"][0] == HOSTILE
    assert again["documents"]["excerpts"][0] == f"password: {HOSTILE}"
    assert again["documents"]["ids"] == list(names)
    assert "hunter2" not in again["command"] + again["title"]
    assert again["what"] == "documents"


@pytest.mark.slow
def test_odd_shapes(rng):
    """Empty clusters, clusters of one, one cluster, two samples, equal samples, constant kernels"""
    one = RunSummary(1.0, 1, True, (2.0, 1.0))
    for n, k, labels in ((5, 4, [0, 0, 2, 2, 3]), (4, 1, [0] * 4), (2, 2, [1, 0]), (1, 1, [0])):
        for Ks in (kernels(rng, n, 2), [np.ones((n, n))] * 2, [np.eye(n)] * 2):
            for V in (rng.random((n, k)), np.zeros((n, k)), np.ones((n, k))):
                found = Clustering(
                    np.array(labels, np.int32), np.array([0.5, 0.5]), ("a", "b"), (2.0, 1.0),
                    True, (one,), 0, {"U": V, "V": V},
                )  # fmt: skip
                X = ArrayFeatures(rng.normal(size=(n, 4)))
                for samples in (
                    Samples(ids(n)),
                    Samples(ids(n), X),
                    Samples(ids(n), X, tuple("abcd")),
                ):
                    insight = explain(dense(Ks, block=2), Kcf(k), found, samples)
                    json.dumps(insight, allow_nan=False)
                    assert len(insight["clusters"]) == k
    assert insight["summary"] == "1 sample falls into 1 cluster: cluster 0."


def test_a_summary_a_person_understands(rng, Ks):
    method = Kcf(K, max_iter=30)
    stack, found = fitted(method, Ks)
    terms = tuple(f"w{i}" for i in range(30))
    X = ArrayFeatures(text_features(rng, found.labels))
    insight = explain(stack, method, found, Samples(ids(), X, terms))
    largest = max(insight["clusters"], key=lambda cluster: cluster["size"])
    assert insight["summary"].startswith(
        f"60 documents fall into 3 clusters: {largest['name']} ({largest['size']}); "
    )
    close = [c["label"] for c in insight["clusters"] if c["cohesion"] >= 1.25]
    others = np.isin(insight["documents"]["labels"], close)
    clear = np.mean(np.array(insight["documents"]["sure"])[others] >= 0.2)
    assert insight["summary"].endswith(
        f" {(~others).sum()} documents fit no topic well. Of the others, {100 * clear:.0f} % "
        "clearly belong to their cluster."
    )


# kernels


@pytest.mark.parametrize("method", [Gmkcf(K, max_iter=8), Rmkkm(K), Kkm(K)], ids=repr)
def test_similarities_against_whole_matrices(Ks, method):
    stack, found = fitted(method, Ks)
    insight = explain(stack, method, found, Samples(ids()))
    w = found.weights**2 if method.name == "gmkcf" else found.weights
    fused = sum(wi * K for wi, K in zip(w / w.sum(), Ks, strict=True))
    labels, apart = found.labels, ~np.eye(N, dtype=bool)

    def mean(K, a, b):
        pairs = np.outer(a, b) & apart
        return K[pairs].mean()

    every = np.ones(N, bool)
    overall = mean(fused, every, every)
    spread = [K[apart].std() for K in Ks]
    for cluster in insight["clusters"]:
        own = labels == cluster["label"]
        assert cluster["cohesion"] == pytest.approx(mean(fused, own, own) / overall, 1e-5)
        others = set(labels.tolist()) - {cluster["label"]}
        similar = {c: mean(fused, own, labels == c) / overall for c in others}
        best = sorted(similar, key=lambda c: -similar[c])
        assert [near["label"] for near in cluster["nearest"]] == best
        for near in cluster["nearest"]:
            assert near["similarity"] == pytest.approx(similar[near["label"]], 1e-5)
        contrasts = {
            name: (mean(K, own, own) - mean(K, own, ~own)) / s
            for name, K, s in zip(stack.names, Ks, spread, strict=True)
        }
        assert [kernel["name"] for kernel in cluster["kernels"]] == sorted(
            contrasts, key=lambda name: -contrasts[name]
        )
        for kernel in cluster["kernels"]:
            assert kernel["contrast"] == pytest.approx(contrasts[kernel["name"]], 1e-4)


def test_the_picture_of_the_fused_kernel(Ks):
    method = Gmkcf(K, max_iter=8)
    stack, found = fitted(method, Ks)
    fused = explain(stack, method, found, Samples(ids()))["fused"]
    members = membership(found.V, found.labels, K)
    of = group_samples(members, M).of
    w = found.weights**2 / (found.weights**2).sum()
    K_w = sum(wi * K for wi, K in zip(w, Ks, strict=True))
    assert len(fused["groups"]) == len(fused["means"]) == of.max() + 1
    for a, row in enumerate(fused["means"]):
        rows = np.flatnonzero(of == a)
        assert len(rows) == fused["groups"][a]
        assert set(found.labels[rows]) == {fused["labels"][a]}
        for b, value in enumerate(row):
            block = K_w[np.ix_(rows, np.flatnonzero(of == b))]
            if a == b and len(rows) > 1:  # without similarities to themselves
                block = block[~np.eye(len(rows), dtype=bool)]
            assert value == pytest.approx(block.mean(), 1e-5)
    same = found.labels[:, None] == found.labels
    other = ~np.eye(N, dtype=bool)
    assert fused["inside"] == pytest.approx(K_w[same & other].mean(), 1e-5)
    assert fused["between"] == pytest.approx(K_w[~same].mean(), 1e-5)
    sizes = np.bincount(found.labels)
    order = list(dict.fromkeys(fused["labels"]))
    assert order == sorted(range(K), key=lambda c: -sizes[c])


@given(
    sizes=st.lists(st.integers(0, 400), min_size=1, max_size=8).filter(any),
    m=st.integers(1, 300),
    seed=st.integers(0, 99),
)
def test_groups_are_parts_of_clusters(sizes, m, seed):
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    found = group_samples(membership(rng.random((len(labels), 3)), labels, len(sizes)), m)
    assert np.bincount(found.of).tolist() == found.sizes.tolist()
    assert (found.clusters[found.of] == labels).all()
    assert len(found.sizes) <= 120 + len(sizes)
    filled = sum(size > 0 for size in sizes)
    assert 9 * 8 * m * max(1, len(found.sizes) - filled) ** 2 <= 16 << 20


def test_kernels_that_are_nearly_the_same_are_named(rng):
    K = kernels(rng, N, 1)[0]
    Ks = [K, K**2, np.clip(K + 1e-4, 0, 1)]
    method = Kkm(K := 2)
    stack, found = fitted(method, Ks)
    insight = explain(stack, method, found, Samples(ids()))["kernels"]
    assert {"kernel_0", "kernel_2"} in [{pair["a"], pair["b"]} for pair in insight["near"]]
    assert all(pair["correlation"] > 0.99 for pair in insight["near"])
    np.testing.assert_allclose(
        insight["correlation"],
        np.corrcoef([K[~np.eye(N, dtype=bool)] for K in Ks]),
        atol=1e-5,  # as it is written
    )
    assert insight["compared"] == 1.0


def test_it_is_said_how_much_of_the_kernels_was_compared(Ks, monkeypatch):
    monkeypatch.setattr("gmkcf_dask.kernels.tiling.COMPARED_BYTES", 0)
    method = Kkm(K)
    stack, found = fitted(method, Ks)
    assert explain(stack, method, found, Samples(ids()))["kernels"]["compared"] == 0.5


# terms and columns


def test_class_based_tf_idf(rng):
    sums = rng.random((3, 7)) * (rng.random((3, 7)) < 0.7)
    sums[:, 4] = 0.0
    found = class_tf_idf(sums)
    frequency, average = sums.sum(axis=0), sums.sum() / 3
    for c in range(3):
        for t in range(7):
            share = sums[c, t] / sums[c].sum() - frequency[t] / frequency.sum()
            expected = 0.0
            if frequency[t] > 0 and share > 0:
                expected = share * np.log(1 + average / frequency[t])
            assert found[c, t] == pytest.approx(expected)
    only = class_tf_idf(sums[:1])
    assert (
        only[0].argmax() == (sums[0] * np.log1p(sums[0].sum() / np.maximum(sums[0], 1e-9))).argmax()
    )


@pytest.mark.parametrize("form", [sparse.csr_array, np.asarray], ids=["sparse", "dense"])
def test_features_are_read_in_blocks(rng, form, monkeypatch):
    monkeypatch.setattr("gmkcf_dask.results.cluster_terms.ROWS_AT_ONCE", 7)
    assert ROWS_AT_ONCE > 1000
    X, labels, U = rng.normal(size=(N, 5)), rng.integers(0, 4, N), rng.random((N, 2))
    found = read_profile(labels, 4, ArrayFeatures(form(X)), U)
    np.testing.assert_allclose(found.sums, [X[labels == c].sum(axis=0) for c in range(4)])
    np.testing.assert_allclose(found.squares, (X**2).sum(axis=0))
    np.testing.assert_allclose(found.by_concept, U.T @ X)
    assert not found.nonnegative
    assert read_profile(labels, 4, ArrayFeatures(form(np.abs(X))), U).nonnegative


def test_distinguishing_columns(rng):
    X, labels = rng.normal(5.0, 2.0, size=(N, 6)), np.arange(N) % 3
    X[labels == 1, 2] -= 40.0
    X[labels == 2, 4] += 30.0
    X[:, 5] = 7.0
    profile = read_profile(labels, 3, ArrayFeatures(X))
    differences = mean_differences(profile)
    for c in range(3):
        apart = X[labels == c].mean(axis=0) - X[labels != c].mean(axis=0)
        np.testing.assert_allclose(differences[c, :5], apart[:5] / X.std(axis=0)[:5])
    assert not differences[:, 5].any()
    named = cluster_terms(profile, None)
    assert named[1][0].term == "column 2"
    assert (named[1][0].high, named[1][0].in_words) == (False, "low column 2")
    assert (named[2][0].high, named[2][0].in_words) == (True, "high column 4")
    assert all(term.term != "column 5" for terms in named for term in terms)
    # names that came with the data are used; values below 0 are no weights of words
    assert cluster_terms(profile, tuple("abcdef"))[2][0].in_words == "high e"


def test_columns_of_a_table_are_no_words(rng, Ks):
    """Names and values of 0 and more make no text: where the features came from decides."""
    method = Kcf(K, max_iter=30)
    stack, found = fitted(method, Ks)
    names = tuple(f"width {i}" for i in range(30))
    X = ArrayFeatures(text_features(rng, found.labels))
    insight = explain(stack, method, found, Samples(ids(), X, names, texts=False))
    assert insight["what"] == "samples"
    assert insight["summary"].startswith("60 samples fall")
    for cluster in insight["clusters"]:
        assert cluster["name"].startswith(("high width", "low width"))
        assert all("high" in term for term in cluster["terms"])
        assert cluster["concept_terms"] == []
    assert explain(stack, method, found, Samples(ids(), X, names, texts=True))["what"] == (
        "documents"
    )


def test_hashed_texts_have_no_words(rng, Ks):
    method = Kcf(K, max_iter=30)
    stack, found = fitted(method, Ks)
    X = ArrayFeatures(text_features(rng, found.labels))
    insight = explain(stack, method, found, Samples(ids(), X, texts=True))
    assert insight["what"] == "documents"
    assert [c["name"] for c in insight["clusters"]] == [f"cluster {c}" for c in range(K)]
    assert not any(c["terms"] or c["concept_terms"] for c in insight["clusters"])
    assert sum("hashing keeps no words" in note for note in insight["warnings"]) == 1


def test_hashed_texts_of_the_command_line(tmp_path):
    text = tmp_path / "t.jsonl"
    lines = [{"id": i, "text": f"{'red blue' if i % 2 else 'cat dog'} x{i}"} for i in range(40)]
    text.write_text("\n".join(map(json.dumps, lines)))
    how = ("--features", "hashing", "-k", "2", "--kernels", "linear")
    code, said = gmkcf("run", text, *how, *THREADS, "--out", tmp_path / "run")
    assert code == 0, said
    insight = insight_of(tmp_path / "run")
    assert [c["name"] for c in insight["clusters"]] == ["cluster 0", "cluster 1"]
    assert insight["what"] == "documents"
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert [c["terms"] for c in result["clusters"]] == [[], []]


def test_words_of_all_documents_say_nothing(rng, Ks):
    method = Kcf(K, max_iter=30)
    stack, found = fitted(method, Ks)
    terms = tuple(f"w{i}" for i in range(30))
    X = ArrayFeatures(text_features(rng, found.labels))
    for cluster in explain(stack, method, found, Samples(ids(), X, terms))["clusters"]:
        for kind in ("terms", "concept_terms"):
            assert not {t["term"] for t in cluster[kind][:5]} & {f"w{i}" for i in range(20, 25)}


# membership and map


def test_sure_is_one_at_the_centre_and_nothing_halfway():
    rows = np.array([[0.0, 0.0], [2.0, 0.0], [1.0, 0.0], [10.0, 0.0], [12.0, 0.0], [6.0, 0.0]])
    found = membership(rows, np.array([0, 0, 0, 1, 1, 1]), 3)
    np.testing.assert_allclose(found.centres[:2], [[1.0, 0.0], [28 / 3, 0.0]])
    assert found.sure[2] == 1.0
    np.testing.assert_allclose(found.sure[0], 1 - 1 / (28 / 3))
    assert found.sure[5] == pytest.approx(1 - (28 / 3 - 6) / 5)
    assert found.central_and_doubtful(0)[0][:1] == [2]
    assert found.central_and_doubtful(1) == ([3, 4, 5], [])
    many = membership(np.arange(12.0)[:, None], np.array([0] * 11 + [1]), 2)
    central, doubtful = many.central_and_doubtful(0)
    assert doubtful[0] == 10
    assert not set(central) & set(doubtful)


def test_a_cluster_of_one_says_nothing_of_how_clearly_it_belongs():
    rows = np.array([[0.0], [0.0], [1.0], [1.1]])
    found = membership(rows, np.array([0, 1, 2, 2]), 3)
    np.testing.assert_array_equal(found.sure[:2], 0.0)
    assert (found.sure[2:] > 0.9).all()
    assert (membership(rows[:1], np.array([0]), 1).sure == 1.0).all()


def test_the_summary_counts_samples_in_company(rng):
    one = RunSummary(1.0, 1, True, (2.0, 1.0))

    def summary(labels, k):
        n = len(labels)
        V = np.eye(k)[labels] + 0.01 * rng.random((n, k))
        found = Clustering(
            np.array(labels, np.int32), np.ones(1), ("a",), (2.0, 1.0), True, (one,), 0,
            {"V": V},
        )  # fmt: skip
        return explain(dense(kernels(rng, n, 1)), Kcf(k), found, Samples(ids(n)))["summary"]

    assert summary([0, 0, 0, 1, 1], 2).endswith(" All clearly belong to their cluster.")
    assert summary([0, 0, 0, 1], 2).endswith(
        " All clearly belong to their cluster; 1 is alone in its cluster."
    )
    assert summary([1, 0], 2).endswith(" Each is alone in its cluster.")


def test_the_summary_says_of_the_others_how_clearly_they_belong():
    def summary(labels, sure, cohesions):
        labels = np.array(labels)
        sizes = np.bincount(labels)
        members = replace(
            membership(np.eye(len(sizes))[labels], labels, len(sizes)), sure=np.array(sure, float)
        )
        clusters = [
            SimpleNamespace(label=c, name=f"w{c}", size=int(sizes[c]), cohesion=cohesions[c])
            for c in range(len(sizes))
        ]
        return summarize(clusters, members, "documents").split(". ", 1)[1]

    labels = [0, 0, 0, 0, 1, 1, 2, 2]
    rest = "4 documents fit no topic well."
    sure = [0, 0, 0, 0, 0.9, 0.9, 0.9, 0.1]
    said = summary(labels, sure, [1.1, 3, 3])
    assert said == f"{rest} Of the others, 75 % clearly belong to their cluster."
    said = summary(labels, [0] * 4 + [1] * 4, [1.1, 3, 3])
    assert said == f"{rest} Of the others, all clearly belong to their cluster."
    assert summary(labels, sure, [2, 3, 3]) == "38 % clearly belong to their cluster."
    said = summary([*labels, 3], [*sure, 0], [1.1, 3, 3, None])
    assert said == (
        f"{rest} Of the others, 75 % clearly belong to their cluster; 1 is alone in its cluster."
    )
    said = summary([0, 0, 0, 0, 1, 2], [1, 1, 1, 1, 0, 0], [1.1, None, None])
    assert said == f"{rest} Each of the others is alone in its cluster."
    assert summary(labels, sure, [1.1, 1.2, 1.2]) == f"{rest.replace('4', '8')}"
    # of two clusters none is a rest
    assert summary(labels[:6], sure[:6], [1.1, 1.1]) == "33 % clearly belong to their cluster."


@pytest.mark.parametrize("k", [1, 2, 3, 20])
def test_a_map_shows_clusters_apart(k):
    rng = np.random.default_rng(k)
    labels = np.arange(40 * k) % k
    rows = np.eye(k)[labels] + 0.05 * rng.normal(size=(40 * k, k))
    found = membership(rows, labels, k)
    places = document_map(found)
    assert np.isfinite(places).all()
    assert np.abs(places).max() == pytest.approx(1.0)
    assert len(np.unique(np.round(places, 4), axis=0)) == 40 * k
    np.testing.assert_array_equal(places, document_map(found))
    centres = np.array([places[labels == c].mean(axis=0) for c in range(k)])
    nearest = np.linalg.norm(places[:, None] - centres[None], axis=2).argmin(axis=1)
    assert (nearest == labels).mean() > 0.97


def test_equal_samples_lie_beside_each_other():
    labels = np.repeat([0, 1], 30)
    places = document_map(membership(np.eye(2)[labels], labels, 2))
    assert len(np.unique(np.round(places, 4), axis=0)) == 60


# known topics


def test_confusion_is_ordered_by_the_best_match():
    topics = ["b", "b", "b", "a", "a", "c", "d"]
    named, clusters, counts = confusion(topics, [0, 0, 1, 2, 2, 1, 1], 4)
    assert (named[:3], clusters[:2]) == (["a", "b", "c"], [2, 0])
    assert sorted(clusters) == [0, 1, 2, 3]
    assert counts.sum() == 7
    for i, topic in enumerate(named):
        for j, cluster in enumerate(clusters):
            pairs = zip(topics, [0, 0, 1, 2, 2, 1, 1], strict=True)
            assert counts[i, j] == sum(pair == (topic, cluster) for pair in pairs)


def test_scores_only_where_topics_are_known(Ks):
    method = Kkm(K)
    stack, found = fitted(method, Ks)
    assert explain(stack, method, found, Samples(ids()))["scores"] is None
    topics = tuple(str(label) for label in found.labels)
    insight = explain(stack, method, found, Samples(ids(), topics=topics))
    assert insight["scores"]["ACC"] == 1.0
    counts = np.array(insight["confusion"]["counts"])
    assert np.trace(counts) == N
    many = explain(stack, method, found, Samples(ids(), topics=tuple(map(str, range(N)))))
    assert len(many["confusion"]["topics"]) == N


# run folders


FIT = ("-k", "3", "--seed", "3", "--max-iter", "5", *THREADS)


def test_a_run_folder_has_its_insight(tmp_path):
    store = small_store(tmp_path / "words.zarr").path
    code, said = gmkcf("fit", store, *FIT, "--out", tmp_path / "run")
    assert code == 0, said
    insight = insight_of(tmp_path / "run")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (insight["title"], insight["n_samples"]) == ("words", 150)
    assert insight["command"].startswith("gmkcf fit ")
    assert insight["seconds"].keys() == {"fit", "summary", "insight"} == result["seconds"].keys()
    assert insight["bytes"]["stored"] > 0
    assert [c["cohesion"] for c in result["clusters"]] == [
        c["cohesion"] for c in insight["clusters"]
    ]
    assert len(result["runs"][0]["history"]) == len(result["weights_history"]) == 6
    line = next(line for line in said.splitlines() if line.startswith("    0  "))
    central = insight["documents"]["ids"][insight["clusters"][0]["central"][0]]
    assert line.endswith(central)
    assert "×" in line
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert f"Made by gmkcf-dask {version('gmkcf-dask')} on" in page
    # one of another run does not stay beside it
    assert gmkcf("fit", store, *FIT, "--out", tmp_path / "run")[0] == 2
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "insight.json").write_text("mine")
    code, said = gmkcf("fit", store, *FIT, "--out", tmp_path / "half")
    assert code == 2
    assert "insight.json" in said


@pytest.mark.parametrize("error", [ClusterLost("gone"), MemoryError(), OSError("token=hunter2")])
def test_a_run_is_whole_without_its_insight(tmp_path, monkeypatch, error):
    store = small_store(tmp_path / "s.zarr").path

    def fails(*args, **kwargs):
        raise error

    assert gmkcf("fit", store, *FIT, "--out", tmp_path / "run")[0] == 0
    monkeypatch.setattr("gmkcf_dask.pipeline.fitting.explain", fails)
    code, said = gmkcf("fit", store, *FIT, "--out", tmp_path / "run", "--overwrite")
    assert code == 0, said
    assert "could not be worked out" in said
    assert "hunter2" not in said
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {"labels.csv", "result.json", "factors.npz"}
    with pytest.raises(InputError, match=r"no insight\.json"):
        read_insight(tmp_path / "run")
    monkeypatch.undo()
    # from the store, where it was not written
    again = ("fit", store, *FIT, "--out", tmp_path / "run", "--resume")
    code, said = gmkcf(*(("report", tmp_path / "run") if isinstance(error, OSError) else again))
    assert code == 0, said
    assert read_insight(tmp_path / "run").n_clusters == 3
    assert (tmp_path / "run" / "report.html").exists()


def test_each_of_many_kernels_has_its_insight(tmp_path):
    store = small_store(tmp_path / "s.zarr").path
    how = ("--method", "kkm", "--kernel", "all", "-k", "3", *THREADS)
    assert gmkcf("fit", store, *how, "--out", tmp_path / "run")[0] == 0
    for name in ("kernel_0", "kernel_1", "kernel_2"):
        insight = insight_of(tmp_path / "run" / name)
        assert (
            dict(zip(insight["kernels"]["names"], insight["kernels"]["weights"], strict=True))[name]
            == 1.0
        )


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"version": "1"}', b"\xff", b"[" * 99999])
def test_a_damaged_insight_is_refused(tmp_path, content):
    (tmp_path / "insight.json").write_bytes(content)
    with pytest.raises(InputError, match=r"insight\.json"):
        read_insight(tmp_path)


@given(
    width=st.integers(30, 200),
    terms=st.lists(st.text(max_size=30), max_size=10),
    central=st.text(max_size=200),
    cohesion=st.none() | st.floats(0, 1e4),
)
@pytest.mark.slow
def test_a_line_of_the_terminal(width, terms, central, cohesion):
    cluster = ClusterEntry(3, 1234, terms, cohesion, [central])
    line = cluster_line(cluster, width)
    assert len(line) <= max(width, 30)
    assert line.isprintable()
    assert cluster_line(ClusterEntry(3, 12, []), width) == "    3       12"


def test_large_runs_stay_small(rng):
    """Texts are cut, or left out, where there are many samples; numbers are short."""
    n, k = 20_000, 20
    labels = rng.integers(0, k, n).astype(np.int32)
    V = np.eye(k)[labels] + 0.1 * rng.random((n, k))
    method = Kcf(k)
    run = RunSummary(1.0, 1, True, (2.0, 1.0))
    found = Clustering(labels, np.ones(1), ("a",), (2.0, 1.0), True, (run,), 0, {"V": V})
    samples = Samples(
        tuple(f"document-{i}" for i in range(n)),
        titles=("t" * 40,) * n,
        excerpts=("e" * 300,) * n,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        insight = explain(Alike(n), method, found, samples)
    text = json.dumps(insight)
    assert len(text) < 400 * n  # 40 MB of 100,000
    assert max(map(len, insight["documents"]["excerpts"])) == 200


class Alike:
    """A stack that has the one kernel of ones and answers without it."""

    names = ("a",)

    def __init__(self, n):
        self.n_samples = n

    def diagonal(self, i):
        return np.ones(self.n_samples)

    def overview(self, groups, n_groups):
        from gmkcf_dask.compute.operators import Overview

        sizes = np.bincount(groups, minlength=n_groups).astype(float)
        n2 = float(self.n_samples) * (self.n_samples - 1)
        return Overview(np.outer(sizes, sizes)[None], np.full((1, 1), n2), np.full(1, n2), int(n2))
