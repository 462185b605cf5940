"""The corpus every installation carries is large, clean and always the same."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from sklearn.cluster import KMeans

from gmkcf_dask.corpus import corpus_from_texts, docstring_corpus, docstring_documents, read_corpus
from gmkcf_dask.corpus.docstrings import DEFAULT_OPTIONS, DEFAULT_PACKAGES, main, write_jsonl
from gmkcf_dask.errors import InputError
from gmkcf_dask.results.metrics import nmi_max


@pytest.fixture(scope="module")
def documents():
    return docstring_documents()


def test_it_is_a_few_thousand_documents_on_about_twenty_topics(documents):
    topics = Counter(document.label for document in documents)
    assert 2_500 <= len(documents) <= 6_000
    assert set(topics) == set(DEFAULT_PACKAGES)
    assert min(topics.values()) >= 40
    libraries = {topic.partition(".")[0] for topic in topics}
    assert {"numpy", "scipy", "sklearn", "dask", "zarr"} <= libraries


def test_every_document_is_one_of_its_kind(documents):
    assert len({document.id for document in documents}) == len(documents)
    assert len({document.text for document in documents}) == len(documents)
    assert all(document.id.startswith(f"{document.label}.") for document in documents)
    assert all(len(document.text) >= 200 for document in documents)


def test_the_order_never_changes(documents):
    assert docstring_documents() == documents


def test_formatting_is_not_content(documents):
    butter = next(d for d in documents if d.id == "scipy.signal.butter")
    assert "passband" in butter.text
    for formatting in ("Parameters", "----", ">>>", "plt.", "CuPy", ".. warning"):
        assert formatting not in butter.text
    assert not any(">>>" in document.text for document in documents)


def test_copied_docstrings_are_left_out():
    both = docstring_documents({"numpy": ["numpy"], "dask.array": ["dask.array"]})
    own = {document.id for document in both if document.label == "dask.array"}
    assert "dask.array.map_blocks" in own
    assert "dask.array.cumsum" not in own


def test_missing_modules_are_named():
    with pytest.raises(InputError, match="the module nowhere cannot be imported"):
        docstring_documents({"nowhere": ["nowhere"]})


def test_it_reads_back_from_a_file_like_any_corpus(documents, tmp_path):
    write_jsonl(documents, tmp_path / "docstrings.jsonl")
    from_file = read_corpus(tmp_path / "docstrings.jsonl", text=DEFAULT_OPTIONS)
    direct = docstring_corpus()
    assert from_file.ids == direct.ids
    assert from_file.labels == direct.labels
    assert from_file.terms == direct.terms
    assert (from_file.X != direct.X).nnz == 0


def test_plain_k_means_finds_much_of_the_topics(documents):
    corpus = corpus_from_texts(
        [d.text for d in documents], labels=[d.label for d in documents], options=DEFAULT_OPTIONS
    )
    k = len(DEFAULT_PACKAGES)
    found = [
        nmi_max(corpus.labels, KMeans(k, n_init=2, random_state=seed).fit_predict(corpus.X))
        for seed in range(2)
    ]
    assert np.mean(found) >= 0.5


@pytest.mark.slow
def test_the_module_writes_the_file(tmp_path):
    out = tmp_path / "docstrings.jsonl"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "gmkcf_dask.corpus.docstrings", str(out)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert out.read_text(encoding="utf-8").count("\n") >= 2_500


def test_the_module_explains_itself(capsys, tmp_path):
    assert main([]) == 2
    assert "usage" in capsys.readouterr().err
    assert main([str(tmp_path / "nowhere" / "x.jsonl")]) == 2
    assert "cannot be written" in capsys.readouterr().err
