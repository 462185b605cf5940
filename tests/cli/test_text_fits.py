"""From texts to clusters: estimators, stores and the command line."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from helpers.commands import (
    CLASSES,
    QUICK,
    QUICK_FIT,
    Run,
    done,
    gmkcf,
    refused,
    same_grouping,
    texts,
)
from numpy.testing import assert_array_equal
from sklearn.base import clone
from sklearn.feature_extraction.text import TfidfVectorizer

from gmkcf_dask import GMKCF, KCF, KernelStore, TextOptions
from gmkcf_dask.cli.reading import _documents
from gmkcf_dask.cluster import LazyCluster
from gmkcf_dask.cluster.config import ClusterConfig
from gmkcf_dask.cluster.resources import threads
from gmkcf_dask.corpus import corpus_from_texts, read_like
from gmkcf_dask.errors import DamagedStoreError, DataWarning, InputError
from gmkcf_dask.kernels.specs import resolve_kernels
from gmkcf_dask.pipeline import reading
from gmkcf_dask.store.build import build_store
from gmkcf_dask.store.kernel_store import is_store
from gmkcf_dask.store.request import KernelRequest
from gmkcf_dask.store.verify import find_damage

pytestmark = [
    pytest.mark.usefixtures("calm"),
    pytest.mark.filterwarnings("ignore:.* repeat an earlier one"),
]


# --- estimators -------------------------------------------------------------------------------

FORMS = {
    "list": list,
    "tuple": tuple,
    "array": np.array,
    "objects": lambda texts: np.array(texts, dtype=object),
    "series": pd.Series,
    "column": lambda texts: pd.DataFrame({"body": texts})["body"],
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_texts_are_clustered(form):
    model = GMKCF(3, random_state=0, max_iter=30).fit(form(texts()))
    assert same_grouping(model.labels_)
    vectorizer = TfidfVectorizer(token_pattern=r"(?u)\b\w\w+\b").fit(texts())
    assert model.terms_ == tuple(vectorizer.get_feature_names_out())
    assert model.n_features_in_ == len(model.terms_)
    new = ["apple wolf", "plum"]
    X = model.reading_.transform(new, model.terms_)
    assert_array_equal(X.toarray(), vectorizer.transform(new).toarray())


def test_how_texts_are_read_is_a_parameter():
    options = TextOptions(max_features=4, stop_words=["apple"])
    with pytest.warns(DataWarning, match="have none of the terms"):
        model = clone(KCF(3, text=options, random_state=0, max_iter=5)).fit(texts())
    assert model.get_params()["text"] == options
    assert len(model.terms_) == 4
    model.fit(np.random.default_rng(0).random((20, 3)))
    assert model.terms_ is None
    assert model.reading_ is None
    with pytest.raises(InputError, match="text must be TextOptions"):
        KCF(3, text="english").fit(texts())


@pytest.mark.parametrize("missing", [None, float("nan"), pd.NA, 7])
def test_a_row_without_text_is_named(missing):
    rows = pd.Series([*texts()[:5], missing, *texts()[5:]], dtype=object)
    with pytest.raises(InputError, match=f"row 5 holds {missing!r}, not text"):
        GMKCF(3).fit(rows)


@pytest.mark.parametrize("rows", [["tea"], ["tea", "milk"]])
def test_too_few_texts(rows):
    with pytest.raises(InputError) as error:
        GMKCF(3).fit(rows)
    assert "\n" not in str(error.value)
    assert "n_clusters" in str(error.value) or "clusters" in str(error.value)


# --- stores -----------------------------------------------------------------------------------


@pytest.fixture
def corpus():
    labels, titles = [f"t{c}" for c in CLASSES], [f"<b>{i}</b>" for i in range(len(CLASSES))]
    return corpus_from_texts(texts(), labels=labels, titles=titles)


@pytest.fixture
def store(corpus, tmp_path):
    request = KernelRequest(corpus, resolve_kernels("cosine,rbf_1"))
    return build_store(tmp_path / "s.zarr", request, threads(1).runner)


def test_a_store_keeps_how_texts_were_read(store, corpus, tmp_path):
    opened = KernelStore.open(store.path)
    assert opened.strings("titles") == corpus.titles
    assert opened.strings("excerpts") == corpus.excerpts
    assert opened.reading() == corpus.reading
    (tmp_path / "new.jsonl").write_text(json.dumps({"text": "apple"}))
    new = read_like(tmp_path / "new.jsonl", opened.reading(), opened.strings("terms"))
    assert_array_equal(new.X.toarray()[0] > 0, [term == "apple" for term in corpus.terms])
    model = GMKCF(3, random_state=0, max_iter=5).fit(opened)
    assert model.terms_ == corpus.terms
    assert model.reading_ == corpus.reading


@pytest.mark.parametrize("name", ["titles", "excerpts", "reading"])
@pytest.mark.parametrize("damage", [b"", b"[]", b"null", b"\xff{", None])
def test_damage_to_what_texts_leave_is_noticed(store, name, damage):
    path = store.path / f"{name}.json"
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage)
    opened = KernelStore.open(store.path)
    with pytest.raises(DamagedStoreError, match=f"{name}.json"):
        opened.reading() if name == "reading" else opened.strings(name)
    assert find_damage(opened, threads(1).runner).inputs == (name,)


def test_stores_of_matrices_have_none_of_it(tmp_path):
    from gmkcf_dask.corpus import Corpus

    plain = Corpus(np.random.default_rng(0).random((9, 2)), tuple("abcdefghi"))
    request = KernelRequest(plain, resolve_kernels("cosine"))
    opened = build_store(tmp_path / "s.zarr", request, threads(1).runner)
    assert opened.reading() is None
    assert opened.strings("titles") is None
    assert {"ids", "labels", "terms", "features"} == set(opened.manifest.inputs)


def test_a_store_of_an_earlier_version_is_used_again(store, corpus):
    inputs = store.manifest.inputs
    earlier = {name: inputs[name] for name in ("features", "ids", "labels", "terms")}
    store.with_manifest(inputs=earlier)
    request = KernelRequest(corpus, resolve_kernels("cosine,rbf_1"))
    again = build_store(store.path, request, threads(1).runner)
    assert again.manifest.store_id == store.manifest.store_id
    assert again.reading() is None


# --- the command line -------------------------------------------------------------------------


def folder_of(path, suffix=".txt"):
    for i, (text, topic) in enumerate(zip(texts(), CLASSES, strict=True)):
        file = path / f"topic{topic}" / f"{i:03}{suffix}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return path


def test_a_pattern_and_options_on_the_command_line(tmp_path):
    folder_of(tmp_path / "pages", ".html")
    (tmp_path / "stop.txt").write_text("Apple\n\nwolf\n")
    pattern = tmp_path / "pages" / "**" / "*.html"
    more = ("--stop-words-file", tmp_path / "stop.txt", "--ngrams", 2, "--max-df", 0.9)
    out = Run(tmp_path / "run")
    done("run", pattern, *QUICK_FIT, "--out", out.folder, *QUICK, *more)
    store = KernelStore.open(tmp_path / "run" / "store.zarr")
    terms = store.strings("terms")
    assert any(" " in term for term in terms)
    assert not any({"apple", "wolf"} & set(term.split()) for term in terms)
    assert store.reading().options.stop_words == ("Apple", "wolf")
    assert store.strings("titles")[0] == "000.html"
    done("score", tmp_path / "run")


def test_hashing_on_the_command_line(tmp_path):
    folder = folder_of(tmp_path / "texts")
    more = ("--features", "hashing", "--tokens", "chars", "--keep-case")
    done("run", folder, *QUICK_FIT, "--out", tmp_path / "run", *QUICK, *more)
    store = KernelStore.open(tmp_path / "run" / "store.zarr")
    assert store.strings("terms") is None
    assert store.reading().n_features == store.manifest.n_features == 2**18


def test_large_texts_are_read_by_worker_processes(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "PROCESSES_FROM", 1)
    folder = str(folder_of(tmp_path / "texts"))
    on_threads = LazyCluster(ClusterConfig("threads"))
    with reading.text_runner(folder, TextOptions(), on_threads) as runner:
        assert runner is None
    with (
        LazyCluster(ClusterConfig("local", workers=2)) as on_workers,
        reading.text_runner(folder, TextOptions(), on_workers) as runner,
    ):
        assert len(runner.workers()) == 2
        assert runner is on_workers.start(10).runner, "there is one cluster"
    assert LazyCluster(ClusterConfig("")).start_for_texts(10) is None, "few samples need no workers"
    monkeypatch.setattr(reading, "PROCESSES_FROM", 10**9)
    with reading.text_runner(folder, TextOptions(), LazyCluster(ClusterConfig(""))) as runner:
        assert runner is None


def test_a_run_starts_one_cluster_and_reads_the_same(tmp_path, monkeypatch):
    from distributed import LocalCluster

    folder, started = folder_of(tmp_path / "texts"), []
    made = LocalCluster.__init__

    def noted(self, *args, **options):
        started.append(options["n_workers"])
        made(self, *args, **options)

    done("run", folder, *QUICK_FIT, "--out", tmp_path / "threads", *QUICK)
    monkeypatch.setattr(reading, "PROCESSES_FROM", 1)
    monkeypatch.setattr(LocalCluster, "__init__", noted)
    local = [*QUICK_FIT, "--out", tmp_path / "local", *QUICK]
    local += ["--cluster", "local", "--workers", "2"]
    done("run", folder, *local)
    assert started == [2]
    stores = [KernelStore.open(tmp_path / name / "store.zarr") for name in ("threads", "local")]
    assert stores[0].manifest.content == stores[1].manifest.content


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--stop-words-file", "no/such/file"), "stop words"),
        (("--stop-words", "english", "--stop-words-file", "x"), "choose one"),
        (("--features", "hashing", "--min-df", "3"), "min_df"),
        (("--tokens", "chars", "--stop-words", "english"), "stop_words"),
    ],
)
def test_options_that_cannot_be_used(more, words, tmp_path):
    folder = folder_of(tmp_path / "texts")
    assert words in refused("build", folder, tmp_path / "s.zarr", *QUICK, *more)
    assert not is_store(tmp_path / "s.zarr")


def test_one_document_is_one_sentence(tmp_path):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "only.txt").write_text("green tea")
    words = refused("run", tmp_path / "texts", *QUICK_FIT, "--out", tmp_path / "run", *QUICK)
    assert "n_samples=1 should be >= n_clusters=3" in words
    assert not (tmp_path / "run" / "store.zarr").exists()


def test_of_one_file_it_is_said_that_it_is_one_document(tmp_path):
    (tmp_path / "only.txt").write_text("green tea")
    (tmp_path / "only.jsonl").write_text('{"text": "green tea"}\n')
    few, out = "n_samples=1 should be >= n_clusters=3", ("--out", tmp_path / "run")
    for command, more, wrong in (
        ("run", ("-k", 3, *out), few),
        ("plan", ("-k", 3), few),
        ("suggest-k", ("--ks", "2-4"), "1 samples are too few to choose a k"),
    ):
        words = refused(command, tmp_path / "only.txt", *more, *QUICK)
        assert f"{wrong}: one file is one document, so give a folder of them, or a table" in words
    words = refused("run", tmp_path / "only.jsonl", "-k", 3, *out, *QUICK)
    assert "n_samples=1 should be >= n_clusters=3: ask for fewer clusters" in words


def test_stop_words_of_other_languages_are_a_file(tmp_path):
    folder = folder_of(tmp_path / "texts")
    found = gmkcf("build", folder, tmp_path / "s.zarr", *QUICK, "--stop-words", "french")
    assert found.exit_code == 2
    said = " ".join(found.stderr.split())
    assert "'french' is not 'english': lists of other languages are given by" in said
    assert "--stop-words-file (one word per line)" in said
    assert "--max-df 0.3" in said
    done("build", folder, tmp_path / "s.zarr", *QUICK, "--stop-words", "english")
    assert "--stop-words [english|none]" in done("build", "-h").output


def test_shares_of_documents_are_told_from_counts(tmp_path):
    folder = folder_of(tmp_path / "texts")
    found = gmkcf("build", folder, tmp_path / "s.zarr", *QUICK, "--max-df", "often")
    assert found.exit_code == 2
    assert "'often' is neither a count of documents nor a share of them" in found.stderr
    for said, meant in (("1", 1), ("1.0", 1.0), ("0.5", 0.5)):
        assert _documents(None, None, said) == meant
        assert type(_documents(None, None, said)) is type(meant)
