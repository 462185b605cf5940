"""Texts in any form and any partition become the features scikit-learn makes of the whole."""

from __future__ import annotations

import csv
import gzip
import json
import re
import subprocess
import sys
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.marks import mostly_slow
from helpers.telling import refused, told
from hypothesis import given, strategies as st
from numpy.testing import assert_array_equal
from sklearn.feature_extraction.text import (
    HashingVectorizer,
    TfidfTransformer,
    TfidfVectorizer,
)

from gmkcf_dask.corpus import (
    TextOptions,
    TextReading,
    corpus_from_texts,
    docstring_documents,
    read_corpus,
    read_like,
    vectorize,
)
from gmkcf_dask.corpus.decode import page_text
from gmkcf_dask.errors import DataWarning, DiskFullError, InputError
from gmkcf_dask.events import StageNote, StageProgress

WORD = r"(?u)\b\w\w+\b"
PLAIN = TextOptions(preset="plain")
TEXTS = ["green tea, black tea", "coffee\nand milk", 'a "strong" café', "rien du tout"]


@pytest.fixture(scope="session")
def docstrings():
    return [document.text for document in docstring_documents()]


def quietly(call, *args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        return call(*args, **kwargs)


def in_batches(characters, texts, **options):
    """A corpus read a few characters at a time, with the plain preset."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vectorize, "BATCH_CHARACTERS", characters)
        return quietly(corpus_from_texts, texts, options=replace(PLAIN, **options))


def assert_same(X, expected):
    """Equal to the last bit."""
    expected = expected.tocsr().astype(np.float64)
    expected.sort_indices()
    assert X.shape == expected.shape
    assert_array_equal(X.indptr, expected.indptr)
    assert_array_equal(X.indices, expected.indices)
    assert_array_equal(X.data, expected.data)


def by_scikit_learn(texts, options):
    vectorizer = TfidfVectorizer(
        **options.analysis(),
        min_df=options.least_documents(len(texts)),
        max_df=options.max_df,
        max_features=options.max_features,
        sublinear_tf=options.sublinear_tf,
    )
    return vectorizer, vectorizer.fit_transform(texts)


# --- the same matrix --------------------------------------------------------------------------


@mostly_slow(
    "options",
    [
        {},
        {"stop_words": "english", "sublinear_tf": True, "min_df": 5},
        {"ngrams": 2, "min_df": 0.01, "max_df": 0.5, "max_features": 3_000},
    ],
    ids=["default", "demo", "pruned"],
)
def test_any_partition_of_the_docstrings_gives_the_matrix_of_scikit_learn(docstrings, options):
    if "ngrams" in options:
        docstrings = docstrings[::4]  # pairs of words take their time
    vectorizer, expected = by_scikit_learn(docstrings, replace(PLAIN, **options))
    for characters in (40_000, 1_000_003, 1 << 40):
        corpus = in_batches(characters, docstrings, **options)
        assert_same(corpus.X, expected)
        assert corpus.terms == tuple(vectorizer.get_feature_names_out())
        assert_array_equal(corpus.reading.idf, vectorizer.idf_)


WORDS = st.sampled_from(
    [
        "tea",
        "milk",
        "Tea",
        "TEA",
        "the",
        "coffee",
        "with",
        "café",
        "и",
        "чай",
        "お茶を飲む",
        "x",
        "12",
        "a1",
    ]
)
SMALL = st.lists(st.lists(WORDS, max_size=12).map(" ".join), min_size=1, max_size=12)
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "min_df": st.sampled_from([1, 2, 0.2, 0.0]),
        "max_df": st.sampled_from([1.0, 0.7, 3]),
        "max_features": st.integers(1, 12),
        "sublinear_tf": st.booleans(),
        "lowercase": st.booleans(),
        "ngrams": st.sampled_from([1, 2, 3, (2, 2)]),
        "tokens": st.sampled_from(["words", "chars"]),
    },
)


@given(SMALL, OPTIONS, st.integers(1, 60), st.booleans())
def test_small_corpora_in_any_partition_with_any_options(texts, given_options, characters, stop):
    if stop and given_options.get("tokens") != "chars":
        given_options = given_options | {"stop_words": ["the", "WITH"]}
    options = replace(PLAIN, **given_options)
    try:
        vectorizer, expected = by_scikit_learn(texts, options)
    except ValueError:
        with pytest.raises(InputError, match="no terms are left"):
            in_batches(characters, texts, **given_options)
        return
    corpus = in_batches(characters, texts, **given_options)
    assert_same(corpus.X, expected)
    assert corpus.terms == tuple(vectorizer.get_feature_names_out())
    new = ["tea and more tea", "", "nothing known here ever", *texts[::-1]]
    assert_same(quietly(corpus.reading.transform, new, corpus.terms), vectorizer.transform(new))
    again = TextReading.from_json(corpus.reading.to_json())
    assert again == corpus.reading
    assert_same(quietly(again.transform, new, corpus.terms), vectorizer.transform(new))


@given(SMALL, st.booleans(), st.sampled_from(["words", "chars"]), st.integers(1, 60))
def test_hashing_is_that_of_scikit_learn(texts, sublinear, tokens, characters):
    options = replace(PLAIN, features="hashing", tokens=tokens, n_hash_features=64)
    how = {**options.analysis(), "n_features": 64, "alternate_sign": False}
    expected = HashingVectorizer(**how).transform(texts)
    if sublinear:
        counts = HashingVectorizer(**how, norm=None).transform(texts)
        expected = TfidfTransformer(use_idf=False, sublinear_tf=True).fit_transform(counts)
    how = {"features": "hashing", "tokens": tokens, "n_hash_features": 64}
    if expected.nnz == 0:
        with pytest.raises(InputError, match="no terms are left"):
            in_batches(characters, texts, **how)
        return
    corpus = in_batches(characters, texts, **how, sublinear_tf=sublinear)
    assert_same(corpus.X, expected)
    assert corpus.terms is None
    assert_same(quietly(corpus.reading.transform, texts, None), expected)


def test_workers_and_threads_give_the_same_bits(docstrings, runner_named):
    few = docstrings[:100]
    _, expected = by_scikit_learn(few, PLAIN)
    for name in ("threads", "two_workers"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(vectorize, "BATCH_CHARACTERS", 20_000)
            corpus = corpus_from_texts(iter(few), options=PLAIN, runner=runner_named(name))
        assert_same(corpus.X, expected)


def test_large_features_stay_in_files_that_vanish(docstrings, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(vectorize, "IN_MEMORY_BYTES", 1_000)
    X = corpus_from_texts(docstrings[:300], options=PLAIN).X
    owner = X.data
    while isinstance(owner, np.ndarray) and not isinstance(owner, np.memmap):
        owner = owner.base
    assert isinstance(owner, np.memmap)
    assert not X.data.flags.owndata
    _, expected = by_scikit_learn(docstrings[:300], PLAIN)
    assert_same(X, expected)
    assert not any(tmp_path.iterdir())


# --- the same texts in every form -------------------------------------------------------------


def rows():
    return [(f"d{i}", f"Title {i}", f"topic {i % 2}", t) for i, t in enumerate(TEXTS)]


def as_jsonl(folder: Path, part=slice(None), name="x.jsonl") -> Path:
    keys = ("id", "title", "label", "text")
    lines = (json.dumps(dict(zip(keys, row, strict=True))) + "\n" for row in rows()[part])
    (folder / name).write_text("".join(lines))
    return folder / name


def as_csv(folder: Path, ending=".csv") -> Path:
    path = folder / f"x{ending}"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter="\t" if ending == ".tsv" else ",")
        writer.writerows([("id", "title", "label", "text"), *rows()])
    return path


def as_tsv(folder: Path) -> Path:
    return as_csv(folder, ".tsv")


def as_parquet(folder: Path) -> Path:
    names = ("id", "title", "label", "text")
    columns = dict(zip(names, map(list, zip(*rows(), strict=True)), strict=True))
    pq.write_table(pa.table(columns | {"other": [[1]] * 4}), folder / "x.parquet", row_group_size=3)
    return folder / "x.parquet"


def packed(make):
    def write(folder: Path) -> Path:
        path = make(folder)
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
        return folder / f"{path.name}.gz"

    write.__name__ = f"{make.__name__}_packed"
    return write


def as_pattern(folder: Path) -> str:
    as_jsonl(folder, slice(0, 1), "a.jsonl")
    as_jsonl(folder, slice(1, 4), "b.jsonl")
    return str(folder / "*.jsonl")


def as_utf16(folder: Path) -> Path:
    path = as_csv(folder)
    path.write_text(path.read_text("utf-8"), encoding="utf-16")
    return path


TABLES = [as_jsonl, as_csv, as_tsv, as_parquet, as_pattern, as_utf16]
TABLES += [packed(make) for make in (as_jsonl, as_csv, as_tsv)]


@pytest.mark.parametrize("make", TABLES, ids=lambda make: make.__name__)
def test_every_table_gives_the_same_corpus(make, tmp_path):
    corpus = read_corpus(make(tmp_path), text=PLAIN)
    _, expected = by_scikit_learn(TEXTS, PLAIN)
    assert_same(corpus.X, expected)
    assert corpus.ids == ("d0", "d1", "d2", "d3")
    assert corpus.labels == ("topic 0", "topic 1") * 2
    assert corpus.titles == ("Title 0", "Title 1", "Title 2", "Title 3")
    assert corpus.excerpts == tuple(" ".join(text.split()) for text in TEXTS)
    assert read_like(make(tmp_path), corpus.reading, corpus.terms).excerpts == corpus.excerpts


@pytest.mark.parametrize("pattern", [False, True])
def test_files_of_one_document_each(pattern, tmp_path):
    page = "<html><head><title>Strong\n stuff</title><style>p {tea}</style></head><body><p>a"
    files = {
        "a/0.txt": TEXTS[0].encode(),
        "a/1.md": TEXTS[1].encode("utf-16"),
        "b/2.HTML": f"{page} &quot;str<b>ong</b>&quot;<p>café<script>tea</script>".encode(),
        "b/3.text.gz": gzip.compress(TEXTS[3].encode()),
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    source = str(tmp_path / "**" / "[0-3].*") if pattern else tmp_path
    corpus = read_corpus(source, text=PLAIN)
    _, expected = by_scikit_learn(TEXTS, PLAIN)
    assert_same(corpus.X, expected)
    assert corpus.ids == tuple(files)
    assert corpus.labels == ("a", "a", "b", "b")
    assert corpus.titles == ("0.txt", "1.md", "Strong stuff", "3.text.gz")
    assert corpus.excerpts[2] == 'a "strong" café'


def test_ids_of_several_tables_stay_apart(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text(f"text\ngreen tea {name}{name}\nblack {name}{name}\n")
    corpus = read_corpus(str(tmp_path / "*.csv"))
    assert corpus.ids == ("a.csv:0", "a.csv:1", "b.csv:0", "b.csv:1")
    assert corpus.titles is None


def test_documents_without_a_title_go_by_their_ids(tmp_path):
    lines = [{"text": "tea", "title": "T"}, {"text": "milk"}, {"text": "rum", "title": None}]
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert read_corpus(tmp_path / "x.jsonl").titles == ("T", "1", "2")


def test_progress_is_told_and_ends_at_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(vectorize, "BATCH_CHARACTERS", 10)
    heard = []
    read_corpus(as_jsonl(tmp_path), listen=heard.append)
    assert {event.stage for event in heard} == {"reading"}
    *rest, last = heard
    assert {type(event) for event in rest} == {StageProgress}
    assert isinstance(last, StageNote)  # what the preset chose
    assert (heard[-2].done, heard[-2].total) == (last.done, last.total)
    assert heard[-1].done == heard[-1].total
    assert heard[-1].bytes_done == (tmp_path / "x.jsonl").stat().st_size
    heard.clear()
    corpus_from_texts(TEXTS, options=PLAIN, listen=heard.append)
    assert {type(event) for event in heard} == {StageProgress}
    assert heard[-1] == StageProgress("reading", 4, 4, 0, "documents")


# --- what is told -----------------------------------------------------------------------------


def test_repeated_empty_and_wordless_documents():
    texts = ["green tea", " green\n tea ", "", "  ", "!", "black tea", "green tea"]
    corpus, said = told(lambda: corpus_from_texts(texts, ids="abcdefg"))
    assert said == [
        "2 of 7 documents are empty (first: c); they are kept, without words to be clustered by",
        "2 of 7 documents repeat an earlier one (first: b); they are kept",
        "1 of 7 documents have none of the terms that are kept (first: e); they are kept as rows "
        "of zeros, without words to be clustered by",
    ]
    assert corpus.n_samples == 7


@pytest.mark.parametrize("what", ["ids", "labels", "titles"])
def test_as_many_names_as_texts(what):
    for names in (["1"], list("abcde")):
        sentence = refused(lambda names=names: corpus_from_texts(TEXTS, **{what: names}))
        assert f"{len(names)} {what} for" in sentence


def test_names_in_notes_do_not_move_the_cursor(tmp_path):
    (tmp_path / "a.txt").write_text("green tea")
    (tmp_path / "b\x1b[2J\n.txt").write_bytes(b"\x00")
    _, said = told(lambda: read_corpus(tmp_path))
    assert "(first: b?[2J?.txt)" in said[0]


def test_binary_files_and_broken_encodings_in_a_folder(tmp_path):
    (tmp_path / "a.txt").write_text("green tea")
    (tmp_path / "b.txt").write_bytes(bytes(range(256)) * 4)
    (tmp_path / "c.txt").write_bytes("schöner schwarzer Tee".encode("latin-1"))
    (tmp_path / "d.txt").write_bytes(b"\xff\xfe" + "Tee".encode("utf-16-le") + b"\x00")
    (tmp_path / "e.html").write_bytes('<meta charset="iso-8859-1"><p>schöner'.encode("latin-1"))
    corpus, said = told(lambda: read_corpus(tmp_path))
    assert corpus.ids == ("a.txt", "c.txt", "d.txt", "e.html")
    assert said == [
        "1 of 5 files are not text files, or have an unknown encoding (first: b.txt); they are "
        "left out",
        "2 of 5 files are not UTF-8 (first: c.txt); their unreadable characters are replaced: "
        "name the encoding they have, by --encoding or in TextOptions",
    ]
    assert "schöner" in corpus.terms


def test_halves_of_characters_are_replaced(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"text": "tea \\ud800 milk"}\n{"text": "tea"}\n')
    corpus, said = told(lambda: read_corpus(tmp_path / "x.jsonl", text=TextOptions(tokens="chars")))
    assert said == [
        "1 of 2 documents contain unreadable characters (first: 0), which are replaced; try "
        "--encoding cp1252, or encoding in TextOptions"
    ]
    "".join(corpus.terms).encode()


def test_new_documents_without_a_known_term_are_told(tmp_path):
    corpus = corpus_from_texts(TEXTS)
    (tmp_path / "x.jsonl").write_text('{"text": "green rum"}\n{"text": "rum"}\n')
    new, said = told(lambda: read_like(tmp_path / "x.jsonl", corpus.reading, corpus.terms))
    assert said == [
        "1 of 2 documents have no term that the model knows (first: 1): they have no words to be "
        "clustered by"
    ]
    assert_array_equal(np.diff(new.X.indptr), [1, 0])
    assert new.terms == corpus.terms


@pytest.mark.parametrize("make", [as_jsonl, as_parquet])
def test_new_documents_need_only_their_text(make, tmp_path):
    options = TextOptions(label_column="topic", id_column="nr", title_column="head")
    columns = {"text": TEXTS, "topic": list("abab"), "nr": [1, 2, 3, 4], "head": list("ABCD")}
    pq.write_table(pa.table(columns), tmp_path / "train.parquet")
    corpus = read_corpus(tmp_path / "train.parquet", text=options)
    assert (corpus.ids[0], corpus.labels[1], corpus.titles[2]) == ("1", "b", "C")
    new = read_like(make(tmp_path), corpus.reading, corpus.terms)
    assert_same(new.X, corpus.X)
    assert new.ids == ("0", "1", "2", "3")
    assert new.labels is None


HOSTILE = ["<a ", "<", "<!--", "<![CDATA[", "</", "<!", "<?", "<a b='", "<a b='>", "<![a>", "&#x"]


@pytest.mark.parametrize("part", HOSTILE)
def test_pages_made_to_be_slow_are_not(part):
    text, title = page_text(part * 20_000 + "<title>tea</title>")
    assert isinstance(text, str)
    assert title in ("tea", None)


# --- what is refused --------------------------------------------------------------------------


def test_patterns_that_match_nothing_or_too_much(tmp_path):
    assert "no file matches" in refused(lambda: read_corpus(str(tmp_path / "*.txt")))
    as_jsonl(tmp_path)
    as_csv(tmp_path)
    assert "several kinds (.csv, .jsonl)" in refused(lambda: read_corpus(str(tmp_path / "x.*")))
    (tmp_path / "x.png").touch()
    assert "x.png, which is not a text file" in refused(lambda: read_corpus(str(tmp_path / "*")))
    sentence = refused(lambda: read_corpus(tmp_path))
    assert "no .txt files" in sentence
    assert re.search(r"'\S+/\*\.(csv|jsonl)' for the tables in it", sentence)


def test_a_folder_of_nothing_but_binary_files(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\x00\x01")
    (tmp_path / "b.txt").write_bytes(b"\xfe\xfd\xfa" * 50)
    assert "none of the 2 files is text (first: a.txt)" in refused(lambda: read_corpus(tmp_path))


def test_an_error_in_one_of_several_tables_names_it(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "tea"}\n')
    (tmp_path / "b.jsonl").write_text('{"txt": "tea"}\n')
    sentence = refused(lambda: read_corpus(str(tmp_path / "*.jsonl")))
    assert "b.jsonl: line 1 has no column 'text'" in sentence
    assert "(closest match: 'txt')" in sentence


@pytest.mark.parametrize(
    ("columns", "options", "words"),
    [
        ({"texts": ["tea"]}, {}, "the table has no column 'text'"),
        ({"texts": ["tea"]}, {}, "(closest match: 'texts')"),
        ({"text": ["tea"], "nr": [1]}, {"id_column": "no"}, "no column 'no'"),
        ({"text": [3]}, {}, "row 1 holds int in column 'text', not text"),
        ({"text": pa.array([], pa.string())}, {}, "no documents"),
    ],
)
def test_unusable_parquet(columns, options, words, tmp_path):
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    path = tmp_path / "x.parquet"
    assert words in refused(lambda: read_corpus(path, text=TextOptions(**options)))


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" + bytes(100) + b"PAR1", b"text\ntea\n"])
@pytest.mark.parametrize("name", ["x.parquet", "x.csv.gz", "x.jsonl.gz"])
def test_damaged_files(content, name, tmp_path):
    (tmp_path / name).write_bytes(content)
    assert name in refused(lambda: read_corpus(tmp_path / name))


def test_parquet_without_pyarrow(tmp_path, monkeypatch):
    path = as_parquet(tmp_path)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "gmkcf-dask[parquet]" in refused(lambda: read_corpus(path))


def test_packed_texts_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr("gmkcf_dask.corpus.folders.MOST_CHARACTERS", 1_000)
    (tmp_path / "x.txt.gz").write_bytes(gzip.compress(b"tea " * 1_000_000))
    assert "longer than 1,000 bytes" in refused(lambda: read_corpus(tmp_path))


def test_a_full_disk_is_told(monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(vectorize, "_apply_weights", full)
    with pytest.raises(DiskFullError, match="set TMPDIR"):
        corpus_from_texts(TEXTS)


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ("one text", "put it into a list"),
        (["tea", None], "row 1 holds None, not text"),
        (["tea", 3.5], "row 1 holds 3.5, not text"),
        (iter(()), "no documents"),
    ],
)
def test_unusable_texts(texts, words):
    assert words in refused(lambda: corpus_from_texts(texts))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tokens": "chars", "stop_words": "english"}, "stop_words are words"),
        ({"features": "hashing", "min_df": 2}, "min_df needs"),
        ({"features": "hashing", "max_features": 2}, "max_features needs"),
        ({"features": "bag"}, "features is 'bag'"),
        ({"tokens": "lines"}, "tokens is 'lines'"),
        ({"ngrams": 0}, "ngrams is 0"),
        ({"ngrams": (3, 2)}, "ngrams is (3, 2)"),
        ({"ngrams": 99}, "ngrams is 99"),
        ({"n_hash_features": 0}, "n_hash_features is 0"),
        ({"stop_words": [1]}, "stop_words must be words"),
    ],
)
def test_unusable_options(options, words):
    assert words in refused(lambda: TextOptions(**options))


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"version": 2}',
        '{"version": 1}',
        '{"version": 1, "options": {"other": 1}, "idf": [1.0]}',
        '{"version": 1, "options": {}, "idf": null}',
        '{"version": 1, "options": {}, "idf": ["x"]}',
        '{"version": 1, "options": {}, "idf": [NaN]}',
        '{"version": 1, "options": {"ngrams": [1]}, "idf": [1.0]}',
        "[" * 100_000,
    ],
)
def test_a_damaged_or_newer_reading_is_refused(content):
    refused(lambda: TextReading.from_json(content))


def test_a_reading_wants_its_own_terms():
    reading = corpus_from_texts(TEXTS).reading
    for terms in (None, ("tea",)):
        assert "weights" in refused(lambda terms=terms: reading.transform(["tea"], terms))


# --- memory -----------------------------------------------------------------------------------

MEASURE = """
import random, sys, threading, time, warnings
from gmkcf_dask.corpus import documents as texts, refuse_equal_rows, vectorize
from gmkcf_dask.corpus.vectorize import Document
from gmkcf_dask.store.request import KernelRequest
from gmkcf_dask.kernels.specs import resolve_kernels

vectorize.BATCH_CHARACTERS = vectorize.IN_MEMORY_BYTES = 1 << 19
warnings.simplefilter("ignore")
rng = random.Random(0)
words = [f"w{number:05}" for number in range(20_000)]
pages = [" ".join(rng.choices(words, k=2_900)) for _ in range(50)]  # 20 kB each
peak = 0

def documents(megabytes):
    for number in range(50 * megabytes):
        yield Document(pages[number % 50])

def watch():
    global peak
    while True:
        with open("/proc/self/status") as lines:
            held = dict(line.split(":", 1) for line in lines)["RssAnon"]
        peak = max(peak, int(held.split()[0]) // 1024)
        time.sleep(0.02)

threading.Thread(target=watch, daemon=True).start()
corpus = texts.read_documents(documents(int(sys.argv[1])), texts.TextOptions())
refuse_equal_rows(corpus.X)
KernelRequest(corpus, resolve_kernels("cosine")).inputs
print(peak, (corpus.X.data.nbytes + corpus.X.indices.nbytes) >> 20)
"""


@pytest.mark.once
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.slow
def test_memory_does_not_grow_with_the_texts():
    def peak(megabytes: int) -> tuple[int, ...]:
        command = [sys.executable, "-c", MEASURE, str(megabytes)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return tuple(map(int, done.stdout.split()))

    (few, small), (many, large) = peak(3), peak(11)
    assert large - small > 10  # MiB of features, and two thirds as much of counts
    assert many - few < 5
