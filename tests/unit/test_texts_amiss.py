"""Texts that are not quite as they should be: named, mended or refused, never lost in silence."""

from __future__ import annotations

import gzip
import json
import time
from contextlib import contextmanager

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from helpers.telling import refused, told
from scipy import sparse

from gmkcf_dask import GMKCF, TextOptions
from gmkcf_dask.cli import main
from gmkcf_dask.cluster import ClusterConfig, LazyCluster
from gmkcf_dask.corpus import corpus_from_texts, read_corpus, read_like
from gmkcf_dask.corpus.decode import decode, page_text
from gmkcf_dask.corpus.validate import refuse_other_forms
from gmkcf_dask.events import StageProgress
from gmkcf_dask.pipeline.predict_file import FileForm, place_newcomers

TEXTS = [f"{words} nr{i:02}" for i, words in enumerate(
    ["roses tulips garden soil", "flour butter oven cake"] * 12)]  # fmt: skip


def lines_of(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


# --- tables -----------------------------------------------------------------------------------


@pytest.mark.parametrize("twice", ["text", "id", "label", "title"])
def test_a_column_that_is_there_twice(twice, tmp_path):
    names = [*{"text": 0, twice: 0}, twice]
    (tmp_path / "x.csv").write_text(",".join(names) + "\n" + "tea," * (len(names) - 1) + "rum\n")
    columns = [pa.array(["tea"])] * len(names)
    pq.write_table(pa.Table.from_arrays(columns, names=names), tmp_path / "x.parquet")
    for name in ("x.csv", "x.parquet"):
        sentence = refused(lambda name=name: read_corpus(tmp_path / name))
        assert repr(twice) in sentence
        assert "2 times" in sentence


def test_a_column_that_is_not_used_may_be_there_twice(tmp_path):
    (tmp_path / "x.csv").write_text("text,n,n\ngreen tea,1,2\n")
    table = pa.Table.from_arrays([pa.array(["green tea"])] * 3, names=["n", "text", "n"])
    pq.write_table(table, tmp_path / "x.parquet")
    for name in ("x.csv", "x.parquet"):
        assert read_corpus(tmp_path / name).terms == ("green", "tea")


NEW = [
    {"text": "green tea", "label": None, "id": None, "title": "T"},
    {"text": "black tea", "label": "", "id": "b", "title": ""},
    {"text": "coffee"},
    {"text": "milk", "id": float("nan"), "label": [1], "title": float("nan")},
]


def as_jsonl(folder):
    return lines_of(folder / "new.jsonl", NEW)


def as_csv(folder):
    pd.DataFrame(NEW).to_csv(folder / "new.csv", index=False)
    return folder / "new.csv"


def as_parquet(folder):
    rows = [row | {"label": 1.5} for row in NEW]
    pd.DataFrame(rows).to_parquet(folder / "new.parquet")
    return folder / "new.parquet"


@pytest.mark.parametrize("make", [as_jsonl, as_csv, as_parquet])
@pytest.mark.parametrize("named", [{}, {"id_column": "id"}])
def test_new_documents_may_lack_all_but_their_text(make, named, tmp_path):
    corpus = corpus_from_texts([row["text"] for row in NEW])
    new = read_like(make(tmp_path), corpus.reading, corpus.terms, **named)
    assert new.ids == ("0", "b", "2", "3")
    assert new.labels is None
    assert new.titles == ("T", "b", "2", "3")
    np.testing.assert_array_equal(new.X.toarray(), corpus.X.toarray())


def test_missing_ids_do_not_meet_those_that_are_there(tmp_path):
    corpus = corpus_from_texts(["green tea", "milk"])
    rows = [{"text": "tea", "id": i, "title": 0} for i in (1, 2, None, None, 5)]
    path = lines_of(tmp_path / "x.jsonl", rows)
    new, _ = told(lambda: read_like(path, corpus.reading, corpus.terms))
    assert new.ids == ("1", "2", "row 2", "3", "5")
    assert new.titles == ("0",) * 5


def test_columns_named_for_new_documents_have_to_be_there(tmp_path):
    options = TextOptions(id_column="nr", title_column="head")
    corpus = corpus_from_texts(["green tea", "milk"], options=options)
    table = {"text": ["tea"], "name": ["a"], "body": ["milk"]}
    pd.DataFrame(table).to_csv(tmp_path / "x.csv", index=False)
    pd.DataFrame(table).to_parquet(tmp_path / "x.parquet")
    for name in ("x.csv", "x.parquet"):

        def read(name=name, **columns):
            return read_like(tmp_path / name, corpus.reading, corpus.terms, **columns)

        assert read().ids == ("0",)
        assert read(id_column="name", text_column="body").ids == ("a",)
        assert "closest match: 'name'" in refused(lambda read=read: read(id_column="nam"))
        assert "closest match: 'text'" in refused(lambda read=read: read(text_column="txt"))


def test_a_label_that_is_no_number_is_missing(tmp_path):
    table = pa.table({"text": ["tea", "rum"], "label": [1.0, float("nan")]})
    pq.write_table(table, tmp_path / "x.parquet")
    lines_of(tmp_path / "x.jsonl", table.to_pylist())
    for name, where in (("x.parquet", "row 2"), ("x.jsonl", "line 2")):
        sentence = refused(lambda name=name: read_corpus(tmp_path / name))
        assert f"{where} has no name or number in column 'label'" in sentence


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), "dictionary"])
def test_parquet_that_is_not_utf8(kind, tmp_path):
    content = [b"green tea", b"sch\xf6ner Tee", None]
    if kind == "dictionary":
        texts = pa.DictionaryArray.from_arrays(
            pa.array([0, 1, None], pa.int32()), pa.array(content[:2]).view(pa.string())
        )
    else:
        binary = pa.binary() if kind == pa.string() else pa.large_binary()
        texts = pa.array(content, binary).view(kind)
    names = pa.array([b"a", b"b\xff", b"c"]).view(pa.string())
    pq.write_table(pa.table({"text": texts, "id": names}), tmp_path / "x.parquet")
    corpus, said = told(lambda: read_corpus(tmp_path / "x.parquet"))
    assert corpus.terms == ("green", "ner", "sch", "tea", "tee")
    assert corpus.ids == ("a", "b\\udcff", "c")
    assert said[0].startswith("1 of 3 documents contain unreadable characters (first: b")


# --- files ------------------------------------------------------------------------------------


def test_damaged_files_in_a_folder_are_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr("gmkcf_dask.corpus.folders.MOST_CHARACTERS", 1_000)
    whole = gzip.compress(b"black tea, much of it, and milk" * 20)
    files = {
        "a.txt": b"green tea",
        "b.txt.gz": whole[:-20],
        "c.txt.gz": b"this is not gzip",
        "d.txt.gz": whole[:20] + b"\xff" * 20 + whole[40:],
        "e.txt.gz": gzip.compress(b"tea " * 1_000),
        "f.txt.gz": b"",
        "g.txt": b"black tea",
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    corpus, said = told(lambda: read_corpus(tmp_path))
    assert set(corpus.ids) - {"f.txt.gz"} == {"a.txt", "g.txt"}
    assert said[:2] == [
        "3 of 7 files are damaged or may not be read (first: b.txt.gz); they are left out",
        "1 of 7 files are longer than 1,000 bytes (first: e.txt.gz); they are left out",
    ]


def test_files_that_may_not_be_read_are_left_out(tmp_path, monkeypatch):
    from gmkcf_dask.corpus import folders

    read = folders._content

    def guarded(path):
        if path.name.startswith("secret"):
            raise PermissionError(13, "Permission denied", str(path))
        return read(path)

    monkeypatch.setattr(folders, "_content", guarded)
    (tmp_path / "secret.txt").write_text("rum")
    sentence = refused(lambda: read_corpus(tmp_path))
    assert "secret.txt" in sentence
    assert "Permission denied" in sentence
    (tmp_path / "tea.txt").write_text("green tea")
    corpus, said = told(lambda: read_corpus(tmp_path))
    assert corpus.ids == ("tea.txt",)
    assert "1 of 2 files are damaged or may not be read (first: secret.txt)" in said[0]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_encodings_that_say_their_name(encoding, tmp_path):
    assert decode("grüner Tee".encode(encoding)) == ("grüner Tee", "whole")
    (tmp_path / "x.csv").write_text("text\ngrüner Tee\n", encoding=encoding)
    assert read_corpus(tmp_path / "x.csv").terms == ("grüner", "tee")


def test_utf32_of_either_order():
    for order, mark in (("le", b"\xff\xfe\0\0"), ("be", b"\0\0\xfe\xff")):
        assert decode(mark + "Tee".encode(f"utf-32-{order}")) == ("Tee", "whole")


PAGES = {
    "<script>var open='<!--';</script><p>green tea leaves</p><!-- footer --><p>black tea</p>": (
        "green tea leaves black tea"
    ),
    "<style>/* <!-- */</style>tea<STYLE >x</Style\n>milk": "tea milk",
    "<!-- <script> -->tea<!-- </script> -->milk": "tea milk",
    "<a title='<script>' href=\"<!--\">tea</a> milk <script>x</script>-->rum": "tea milk -->rum",
    "<script src='x'/>tea<style/>milk": "tea milk",
    "<script>if (a<b) '</scripted>'</script>tea": "tea",
    "tea<!-->milk<!--->rum": "tea milk rum",
    "tea<script>never ended <p>milk": "tea",
    "<noscript>tea</noscript><scripture>milk": "tea milk",
}


@pytest.mark.parametrize("markup", PAGES)
def test_scripts_and_comments_hide_only_themselves(markup):
    assert page_text(markup)[0].split() == PAGES[markup].split()


SLOW = ["<script>", "<script", "<style/>", "<!-- >", "</script>", "<script>x</script", "<a '"]
SLOW += ["<!--x--><script>", "<script></script ", "<script ></script>", "<!--x-->", "<script><!--"]
SLOW += ["<a 'x' \"", "<a \"'", "<a b='", "<a b=\"<a b='", '<a b="<" c=', "<a b=", "= '"]


@pytest.mark.parametrize("part", SLOW)
def test_pages_of_scripts_made_to_be_slow_are_not(part):
    begin = time.process_time()
    page_text(part * 20_000)
    assert time.process_time() - begin < 5


# --- from Python ------------------------------------------------------------------------------


def test_options_from_numpy_are_kept_as_plain_numbers():
    options = TextOptions(
        min_df=np.int64(2),
        max_df=np.float32(0.5),
        max_features=np.int32(9),
        ngrams=(np.int64(1), np.int8(2)),
        n_hash_features=np.int64(64),
        sublinear_tf=np.bool_(True),
    )
    assert TextOptions.from_json(json.loads(json.dumps(options.to_json()))) == options
    assert type(options.min_df) is int
    assert type(options.max_df) is float
    assert type(TextOptions(ngrams=np.int64(2)).ngrams) is int


@pytest.fixture(scope="module")
def model():
    return GMKCF(2, random_state=0, kernels="cosine").fit(TEXTS)


@pytest.mark.usefixtures("calm")
def test_texts_of_which_nothing_is_known_are_told(model):
    for door in (model.predict, model.transform):
        _, said = told(lambda door=door: door(["tulips", "zebra", "", "lion"]))
        assert said == [
            "1 of 4 documents are empty (first: 2); they are kept, without words to be clustered "
            "by",
            "2 of 4 documents have no term that the model knows (first: 1): "
            "they have no words to be clustered by",
        ]
    assert told(lambda: model.predict(TEXTS + TEXTS))[1] == []


NO_LISTS = {
    "nothing": ([], "X is empty: give a list of texts"),
    "no rows": (pd.Series([], dtype=object), "X is empty: give a list of texts"),
    "one text": ("green cup", "put it into a list"),
    "bytes": (b"green cup", "put it into a list"),
    "missing": ([None, None], "row 0 holds None, not text"),
    "list of bytes": ([b"tea", b"milk"], "row 0 holds b'tea', not text"),
    "arrow": (pa.array(["tea", "milk"]), "give a list of texts, such as X.to_pylist()"),
    "chunked": (pa.chunked_array([["tea"], ["milk"]]), "such as X.to_pylist()"),
    "generator": ((text for text in ["tea", "milk"]), "give a list of texts, such as list(X)"),
    "set": ({"tea", "milk"}, "give a list of texts, such as list(X)"),
    "values": ({"a": "tea"}.values(), "give a list of texts, such as list(X)"),
    "dict": ({"a": "tea"}, "give a list of texts"),
    "table": (pd.DataFrame({"body": ["tea", "milk"]}), "give a list of texts, such as X['body']"),
    "arrow table": (pa.table({"body": ["tea"]}), "such as X['body'].to_pylist()"),
    "column": (np.array([["tea"], ["milk"]]), "give a list of texts, such as X[:, 0]"),
}


@pytest.mark.parametrize("case", NO_LISTS)
def test_texts_in_another_form_are_told_what_to_be(case, model):
    X, words = NO_LISTS[case]
    doors = [model.predict, model.transform]
    if not isinstance(X, str):  # which fit takes for the path of a store
        doors.append(GMKCF(2).fit)
    for door in doors:
        sentence = refused(lambda door=door: door(X))
        assert words in sentence
        assert "reshape" not in sentence


def test_numbers_in_one_row_for_a_model_of_texts(model):
    for X in ([1.0, 2.0], np.arange(3), 7):
        assert "give a list of texts" in refused(lambda X=X: model.predict(X))
    assert "expecting" in refused(lambda: model.predict(np.eye(2)))


def test_numbers_still_hear_about_numbers():
    for X in ([1.0, 2.0], np.arange(3.0), np.full(3, np.nan)):
        assert "Reshape your data" in refused(lambda X=X: GMKCF(2).fit(X))


def test_ragged_rows_for_a_model_of_texts(model):
    assert "ragged" in refused(lambda: model.predict([[1.0], [1.0, 2.0]]))


# --- the command ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def a_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    rows = "".join(f"{text},d{i}\n" for i, text in enumerate(TEXTS))
    (folder / "texts.csv").write_text(f"body,name\n{rows}")
    how = ["--text-column", "body", "--id-column", "name", "--kernels", "cosine"]
    done(["run", folder / "texts.csv", "-k", 2, "--out", folder / "run", *how])
    return folder / "run"


def asked(arguments):
    return CliRunner().invoke(main, [*map(str, arguments), "--cluster", "threads"])


def done(arguments):
    result = asked(arguments)
    assert result.exit_code == 0, result.output
    return result


def test_command_refuses_columns_that_are_not_there(a_run, tmp_path):
    (tmp_path / "new.csv").write_text("body,code\ntulips,a\n")
    command = ["predict", a_run, tmp_path / "new.csv", "--out", tmp_path / "o.csv"]
    for option in ("--id-column", "--text-column"):
        result = asked([*command, option, "cod"])
        assert result.exit_code != 0
        assert "no column 'cod'" in result.stderr
        assert "closest match: 'code'" in result.stderr
        assert not (tmp_path / "o.csv").exists()
    done([*command, "--id-column", "code"])
    assert (tmp_path / "o.csv").read_text().splitlines()[1].startswith("a,")


def test_command_says_once_what_it_does_not_know(a_run, tmp_path):
    (tmp_path / "new.csv").write_text("body\ntulips\nzebra\n")
    result = done(["predict", a_run, tmp_path / "new.csv", "--out", tmp_path / "o.csv"])
    assert result.stderr.count("have no term that the model knows") == 1
    assert "all-zero rows" not in result.stderr


def test_command_says_how_far_it_has_read(a_run, tmp_path):
    heard = []
    lines_of(tmp_path / "new.jsonl", [{"body": "tulips"}])
    place_newcomers(
        a_run,
        str(tmp_path / "new.jsonl"),
        tmp_path / "o.csv",
        FileForm(),
        LazyCluster(ClusterConfig("threads")),
        heard.append,
    )
    assert any(isinstance(event, StageProgress) and event.stage == "reading" for event in heard)


def test_command_reads_large_texts_with_processes(a_run, tmp_path, monkeypatch):
    asked_for = []

    @contextmanager
    def noted(path, text, cluster):
        asked_for.append(path)
        yield None

    monkeypatch.setattr("gmkcf_dask.pipeline.predict_file.text_runner", noted)
    lines_of(tmp_path / "new.jsonl", [{"body": "tulips"}])
    done(["predict", a_run, tmp_path / "new.jsonl", "--out", tmp_path / "o.csv"])
    assert asked_for == [str(tmp_path / "new.jsonl")]


@pytest.mark.parametrize("kind", ["dok_array", "dok_matrix", "coo_array", "lil_array"])
def test_sparse_numbers_of_every_kind_are_no_texts(kind):
    refuse_other_forms(getattr(sparse, kind)(np.eye(3)), only_texts=True)
