"""Whatever comes in arrives whole, or one sentence says why not."""

from __future__ import annotations

import csv
import gzip
import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import scipy.io
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as hnp
from numpy.testing import assert_array_equal
from scipy import sparse
from sklearn.datasets import dump_svmlight_file

from gmkcf_dask.corpus import (
    Corpus,
    TextOptions,
    as_features,
    check_ids,
    check_labels,
    corpus_from_texts,
    read_corpus,
    warn_about_zero_rows,
)
from gmkcf_dask.errors import DataWarning, InputError

X_SMALL = np.array([[0.5, 0.0, 2.0], [0.0, 0.0, 1.0], [3.0, 0.25, 0.0], [0.0, 4.0, 0.0]])
Y_SMALL = np.array([1, 2, 1, 3])
SPARSE_FORMATS = ("csr", "csc", "coo", "bsr", "lil", "dok", "dia")


def dense(corpus: Corpus) -> np.ndarray:
    return corpus.X if isinstance(corpus.X, np.ndarray) else corpus.X.toarray()


def refusal(call, *args, **kwargs) -> str:
    """The sentence with which the call refuses."""
    with pytest.raises(InputError) as refused:
        call(*args, **kwargs)
    sentence = str(refused.value)
    assert "\n" not in sentence
    assert sentence.endswith(".")
    return sentence


# --- features ---------------------------------------------------------------------------------


@given(
    hnp.arrays(
        st.sampled_from([np.bool_, np.int8, np.uint32, np.float16, np.float32, np.float64]),
        hnp.array_shapes(min_dims=2, max_dims=2, max_side=6),
        elements={"allow_nan": False, "allow_infinity": False, "allow_subnormal": False}
        | {"min_value": 0, "max_value": 1},
    )
)
def test_dense_features_keep_their_values(X):
    features = as_features(X)
    assert features.dtype == np.float64
    assert features.flags.c_contiguous
    assert_array_equal(features, X.astype(np.float64))


@pytest.mark.parametrize("fmt", SPARSE_FORMATS)
@pytest.mark.parametrize("kind", ["array", "matrix"])
def test_sparse_features_become_canonical_csr(fmt, kind):
    make = sparse.coo_array if kind == "array" else sparse.coo_matrix
    X = make(X_SMALL).asformat(fmt)
    features = as_features(X)
    assert isinstance(features, sparse.csr_array)
    assert features.dtype == np.float64
    assert features.has_canonical_format
    assert_array_equal(features.toarray(), X_SMALL)


@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 3), st.integers(-3, 3)), min_size=1, max_size=30
    ),
    st.sampled_from(["csr", "csc", "coo"]),
)
def test_sparse_duplicates_and_zeros_are_settled_without_touching_the_input(entries, fmt):
    rows, columns, values = map(np.array, zip(*entries, strict=True))
    X = sparse.coo_array((values.astype(float), (rows, columns)), shape=(5, 4)).asformat(fmt)
    before = X.copy()
    features = as_features(X)

    expected = np.zeros((5, 4))
    np.add.at(expected, (rows, columns), values)
    assert_array_equal(features.toarray(), expected)
    assert features.nnz == np.count_nonzero(expected)
    assert_array_equal(X.data, before.data)
    assert X.nnz == before.nnz


def test_unsorted_csr_with_duplicates_is_left_alone():
    data, indices, indptr = np.array([1.0, 2.0, 3.0, 0.0]), np.array([2, 0, 2, 1]), [0, 4]
    X = sparse.csr_array((data, indices, indptr), shape=(1, 3))
    assert_array_equal(as_features(X).toarray(), [[2, 0, 4]])
    assert_array_equal(X.data, [1, 2, 3, 0])
    assert_array_equal(X.indices, [2, 0, 2, 1])


def test_duplicates_of_small_integers_do_not_overflow():
    X = sparse.coo_array((np.full(3, 100, np.int8), ([0, 0, 0], [0, 0, 0])), shape=(1, 1))
    assert as_features(X).toarray() == 300


def test_numbers_in_an_object_array_are_numbers():
    assert_array_equal(as_features(X_SMALL.astype(object)), X_SMALL)


def test_fortran_order_becomes_c_order():
    features = as_features(np.asfortranarray(X_SMALL))
    assert features.flags.c_contiguous
    assert_array_equal(features, X_SMALL)


@pytest.mark.parametrize(
    ("X", "words"),
    [
        (np.array([["a", "b"]]), "not numbers"),
        (np.array([[1, "3"]], dtype=object), "dtype object and holds text in row 0"),
        (np.array([[1, {}]], dtype=object), "argument must be a string or a real number"),
        (np.array([["2020-01-01"]], dtype="M8[D]"), "not numbers"),
        (np.ones((2, 2), complex), "Complex data not supported"),
        (sparse.csr_array(np.ones((2, 2), complex)), "Complex data not supported"),
        ([[1, 2], [3]], "ragged"),
        (np.ones(3), "Reshape your data"),
        (np.float64(3), "0 dimension(s)"),
        (np.ones((2, 2, 2)), "3 dimension(s)"),
        (sparse.coo_array(np.ones(3)), "Reshape your data"),
        (np.ones((0, 3)), "0 sample(s)"),
        (np.ones((3, 0)), "0 feature(s) (shape=(3, 0)) while a minimum of 1 is required."),
        (sparse.csr_array((0, 3)), "0 sample(s)"),
        (np.ma.masked_equal([[1, 2]], 2), "masked"),
    ],
)
def test_unusable_features_are_refused_in_one_sentence(X, words):
    assert words in refusal(as_features, X)


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array, sparse.csc_matrix])
@pytest.mark.parametrize(("value", "word"), [(np.nan, "NaN"), (np.inf, "inf"), (-np.inf, "inf")])
def test_the_first_row_that_is_not_finite_is_named(form, value, word):
    X = X_SMALL.copy()
    X[2, 1] = X[3, 0] = value
    sentence = refusal(as_features, form(X))
    assert word in sentence
    assert "row 2" in sentence


def test_sparse_indices_out_of_bounds_are_refused():
    X = sparse.csr_array(X_SMALL)
    X.indices[0] = 99
    assert "not a valid sparse matrix" in refusal(as_features, X)


def test_ids_are_unique_and_complete():
    assert check_ids(["b", 3, 4.0], 3) == ("b", "3", "4")
    assert "2 ids for 3 samples" in refusal(check_ids, ["a", "b"], 3)
    assert "'a' is used 2 times" in refusal(check_ids, ["a", "b", "a"], 3)


def test_labels_are_text_without_decimal_zeros():
    assert check_labels(np.array([3.0, 2.5, -1.0]), 3) == ("3", "2.5", "-1")
    assert check_labels([b"x", True, "y"], 3) == ("x", "True", "y")
    assert "2 labels for 3" in refusal(check_labels, [1, 2], 3)


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
def test_empty_samples_are_counted_and_kept(form):
    X = X_SMALL.copy()
    X[1] = X[3] = 0
    with pytest.warns(DataWarning, match=r"2 of 4 samples are empty .* first: row 1\); they are"):
        assert warn_about_zero_rows(as_features(form(X))) == 2
    assert warn_about_zero_rows(as_features(form(X_SMALL))) == 0


# --- readers of matrices ----------------------------------------------------------------------


@pytest.mark.parametrize("fmt", ["csr", "csc", "coo"])
def test_sparse_npz(tmp_path, fmt):
    sparse.save_npz(tmp_path / "x.npz", sparse.csr_array(X_SMALL).asformat(fmt))
    corpus = read_corpus(tmp_path / "x.npz")
    assert_array_equal(dense(corpus), X_SMALL)
    assert corpus.ids == ("0", "1", "2", "3")
    assert corpus.labels is None
    assert corpus.terms is None


def test_dense_npz_with_labels_and_ids(tmp_path):
    np.savez(tmp_path / "x.npz", X=X_SMALL, y=Y_SMALL, ids=np.array(["a", "b", "c", "d"]))
    corpus = read_corpus(str(tmp_path / "x.npz"))
    assert_array_equal(dense(corpus), X_SMALL)
    assert corpus.ids == ("a", "b", "c", "d")
    assert corpus.labels == ("1", "2", "1", "3")


def test_dense_npz_without_extras(tmp_path):
    np.savez_compressed(tmp_path / "x.npz", X=X_SMALL)
    assert read_corpus(tmp_path / "x.npz").labels is None


def test_npy(tmp_path):
    np.save(tmp_path / "x.npy", np.asfortranarray(X_SMALL.astype(np.float32)))
    assert_array_equal(dense(read_corpus(tmp_path / "x.npy")), X_SMALL)


@pytest.mark.parametrize("matrix", [X_SMALL, sparse.coo_array(X_SMALL)], ids=["dense", "sparse"])
@pytest.mark.parametrize("zipped", [False, True])
def test_matrix_market(tmp_path, matrix, zipped):
    path = tmp_path / "x.mtx"
    scipy.io.mmwrite(path, matrix)
    if zipped:
        path = tmp_path / "x.mtx.gz"
        path.write_bytes(gzip.compress((tmp_path / "x.mtx").read_bytes()))
    assert_array_equal(dense(read_corpus(path)), X_SMALL)


@pytest.mark.parametrize("end", ["", " ", "\r", "\n"])
def test_matrix_market_may_end_in_any_way(tmp_path, end):
    lines = "%%MatrixMarket matrix coordinate real general\n2 2 2\n1 1 5\n2 2 4"
    (tmp_path / "x.mtx").write_bytes((lines + end).encode())
    assert_array_equal(dense(read_corpus(tmp_path / "x.mtx")), [[5, 0], [0, 4]])


def test_matrix_market_with_nul_bytes_is_refused(tmp_path):
    lines = b"%%MatrixMarket matrix coordinate real general\n2 2 2\n1 1 5E\x001\n2 2 4\n"
    (tmp_path / "x.mtx").write_bytes(lines)
    assert "NUL" in refusal(read_corpus, tmp_path / "x.mtx")


@pytest.mark.parametrize("ending", [".svmlight", ".libsvm"])
@pytest.mark.parametrize("zero_based", [False, True])
def test_svmlight_keeps_labels(tmp_path, ending, zero_based):
    path = tmp_path / f"x{ending}"
    dump_svmlight_file(X_SMALL, Y_SMALL, str(path), zero_based=zero_based)
    corpus = read_corpus(path)
    assert_array_equal(dense(corpus), X_SMALL)
    assert corpus.labels == ("1", "2", "1", "3")


@pytest.mark.parametrize("y", [Y_SMALL, Y_SMALL[:, None], sparse.csc_array(Y_SMALL[:, None])])
def test_mat_takes_labels_in_any_orientation(tmp_path, y):
    scipy.io.savemat(tmp_path / "x.mat", {"X": sparse.csc_array(X_SMALL), "y": y, "other": 1})
    corpus = read_corpus(tmp_path / "x.mat")
    assert isinstance(corpus.X, sparse.csr_array)
    assert_array_equal(dense(corpus), X_SMALL)
    assert corpus.labels == ("1", "2", "1", "3")


def test_mat_with_names_as_labels(tmp_path):
    y = np.array(["tea", "coffee", "tea", "milk"], dtype=object)
    scipy.io.savemat(tmp_path / "x.mat", {"X": X_SMALL, "y": y})
    assert read_corpus(tmp_path / "x.mat").labels == ("tea", "coffee", "tea", "milk")


def test_mat_that_is_transposed_is_told_by_its_shapes(tmp_path):
    scipy.io.savemat(tmp_path / "x.mat", {"X": X_SMALL.T, "y": Y_SMALL})
    sentence = refusal(read_corpus, tmp_path / "x.mat")
    assert "(3, 4)" in sentence
    assert "(1, 4)" in sentence


def test_mat_of_version_7_3_is_told_apart(tmp_path):
    header = b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02" + b"IM"
    (tmp_path / "x.mat").write_bytes(header + bytes(512))
    assert "v7.3 (HDF5)" in refusal(read_corpus, tmp_path / "x.mat")


def test_missing_variable_is_named_with_those_there_are(tmp_path):
    np.savez(tmp_path / "x.npz", A=X_SMALL, b=Y_SMALL)
    scipy.io.savemat(tmp_path / "x.mat", {"A": X_SMALL, "b": Y_SMALL})
    for name in ("x.npz", "x.mat"):
        assert "no variable X was found (the file holds A, b)" in refusal(
            read_corpus, tmp_path / name
        )


def test_unusable_values_are_told_with_the_name_of_the_file(tmp_path):
    np.save(tmp_path / "x.npy", np.array([[1.0], [np.nan]]))
    sentence = refusal(read_corpus, tmp_path / "x.npy")
    assert "x.npy" in sentence
    assert "NaN in row 1" in sentence


# --- readers of texts -------------------------------------------------------------------------

TEXTS = ["green tea, black tea", "coffee\nand milk", 'a "strong" café', "rien"]


def write_jsonl(path: Path, records) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def write_csv(path: Path, rows, delimiter=",") -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter=delimiter).writerows(rows)
    return path


def assert_holds_texts(corpus: Corpus) -> None:
    assert corpus.n_samples == len(TEXTS)
    assert {"tea", "coffee", "strong", "café", "rien"} <= set(corpus.terms)
    expected = corpus_from_texts(TEXTS)
    assert corpus.terms == expected.terms
    assert_array_equal(dense(corpus), dense(expected))


def test_jsonl(tmp_path):
    records = [{"id": i + 1, "text": t, "label": f"topic {i % 2}"} for i, t in enumerate(TEXTS)]
    corpus = read_corpus(write_jsonl(tmp_path / "x.jsonl", records))
    assert_holds_texts(corpus)
    assert corpus.ids == ("1", "2", "3", "4")
    assert corpus.labels == ("topic 0", "topic 1", "topic 0", "topic 1")


def test_jsonl_may_have_blank_lines_and_no_extras(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text("\n\n".join(json.dumps({"text": t}) for t in TEXTS), encoding="utf-8-sig")
    corpus = read_corpus(path)
    assert_holds_texts(corpus)
    assert corpus.ids == ("0", "1", "2", "3")
    assert corpus.labels is None


@pytest.mark.parametrize(("ending", "delimiter"), [(".csv", ","), (".tsv", "\t"), (".CSV", ",")])
def test_csv(tmp_path, ending, delimiter):
    rows = [["label", "text", "id"], *([i % 2, t, f"d{i}"] for i, t in enumerate(TEXTS))]
    corpus = read_corpus(write_csv(tmp_path / f"x{ending}", rows, delimiter))
    assert_holds_texts(corpus)
    assert corpus.ids == ("d0", "d1", "d2", "d3")
    assert corpus.labels == ("0", "1", "0", "1")


def test_columns_may_have_other_names(tmp_path):
    rows = [["no", "body", "class"], *([i, t, "x"] for i, t in enumerate(TEXTS))]
    options = TextOptions(text_column="body", id_column="no", label_column="class")
    corpus = read_corpus(write_csv(tmp_path / "x.csv", rows), text=options)
    assert_holds_texts(corpus)
    assert corpus.labels == ("x",) * 4


def test_csv_cells_may_be_large_and_the_limit_is_put_back(tmp_path):
    limit = csv.field_size_limit()
    path = write_csv(tmp_path / "x.csv", [["text"], ["word " * 50_000], ["other"]])
    assert read_corpus(path).terms == ("other", "word")
    assert csv.field_size_limit() == limit


def test_folder_with_topics(tmp_path):
    for name in ("tea/b.txt", "tea/a.txt", "coffee/c.TXT", "coffee/dark/d.txt", "tea/notes.pdf"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"words of {name}", encoding="utf-8")
    corpus = read_corpus(tmp_path)
    assert corpus.ids == ("coffee/c.TXT", "coffee/dark/d.txt", "tea/a.txt", "tea/b.txt")
    assert corpus.labels == ("coffee", "coffee/dark", "tea", "tea")


def test_folder_without_topics(tmp_path):
    (tmp_path / "b.txt").write_text("black tea")
    (tmp_path / "a.txt").write_text("green tea")
    corpus = read_corpus(tmp_path)
    assert corpus.ids == ("a.txt", "b.txt")
    assert corpus.labels is None


def test_files_that_are_not_utf8_are_counted(tmp_path):
    (tmp_path / "good.txt").write_text("green tea")
    (tmp_path / "old.txt").write_bytes("schöner Tee".encode("latin-1"))
    with pytest.warns(DataWarning, match=r"1 of 2 files are not UTF-8 \(first: old\.txt\)"):
        corpus = read_corpus(tmp_path)
    assert "tee" in corpus.terms


# --- one sentence for every unusable file -----------------------------------------------------


def test_missing_unknown_and_empty_paths(tmp_path):
    assert "does not exist" in refusal(read_corpus, tmp_path / "nothing.npz")
    (tmp_path / "x.docx").touch()
    assert ".svmlight" in refusal(read_corpus, tmp_path / "x.docx")
    (tmp_path / "empty").mkdir()
    assert "no .txt files" in refusal(read_corpus, tmp_path / "empty")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"text": "a"}\n{"text": \n', "line 2 is not valid JSON"),
        ("[" * 100_000, "line 1 is not valid JSON"),
        ('["a"]\n', "line 1 is not a JSON object"),
        ('{"text": "tea"}\n{"txt": "tea", "n": 1}\n', "line 2 has no column 'text'"),
        ('{"txt": "tea", "n": 1}\n', "'txt', 'n': name one of them (closest match: 'txt')"),
        ('{"text": 3}\n', "line 1 holds int in column 'text', not text"),
        ('{"text": "tea", "label": "x"}\n{"text": "tea"}\n', "line 2 has no column 'label'"),
        ('{"text": "tea", "id": null}\n', "line 1 has no name or number in column 'id'"),
        ('{"text": "tea", "id": 1}\n{"text": "tea", "id": 1}\n', "'1' is used 2 times"),
        ("", "no documents"),
    ],
)
def test_unusable_jsonl(tmp_path, content, words):
    (tmp_path / "x.jsonl").write_text(content)
    sentence = refusal(read_corpus, tmp_path / "x.jsonl")
    assert words in sentence
    assert "x.jsonl" in sentence


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("title,texts\na,b\n", "(closest match: 'texts')"),
        ("1,2\n3,4.5\n", "save a table of numbers as .npy or .npz"),
        (
            "text,id\ngreen tea,1\nblack, strong tea,2\n",
            "line 3 has 3 cells but the header names 2",
        ),
        ('text\n"green tea\nblack tea\n', "cannot be read (unexpected end of data)"),
        ("text,label\ngreen tea,\n", "line 2 has no name or number in column 'label'"),
        ("text\n", "no documents"),
        ("", "no documents"),
    ],
)
def test_unusable_csv(tmp_path, content, words):
    (tmp_path / "x.csv").write_text(content)
    assert words in refusal(read_corpus, tmp_path / "x.csv")


def test_tables_that_are_not_utf8(tmp_path):
    (tmp_path / "x.csv").write_bytes("text\nschöner Tee\ntea\n".encode("latin-1"))
    with pytest.warns(DataWarning, match=r"1 of 2 documents contain .* \(first: 0\), which are"):
        assert read_corpus(tmp_path / "x.csv").terms == ("ner", "sch", "tea", "tee")


def whole_files(folder: Path) -> list[Path]:
    sparse.save_npz(folder / "sparse.npz", sparse.csr_array(X_SMALL))
    np.savez_compressed(folder / "dense.npz", X=X_SMALL, y=Y_SMALL)
    np.save(folder / "x.npy", X_SMALL)
    scipy.io.mmwrite(folder / "x.mtx", sparse.coo_array(X_SMALL))
    (folder / "x.mtx.gz").write_bytes(gzip.compress((folder / "x.mtx").read_bytes()))
    scipy.io.savemat(folder / "x.mat", {"X": X_SMALL, "y": Y_SMALL}, do_compression=True)
    return sorted(folder.iterdir())


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9])
def test_truncated_files_are_refused(tmp_path, share):
    for path in whole_files(tmp_path):
        content = path.read_bytes()
        path.write_bytes(content[: int(share * len(content))])
        assert path.name in refusal(read_corpus, path)


@pytest.mark.parametrize("ending", [".npz", ".npy", ".mtx", ".mtx.gz", ".svmlight", ".mat"])
def test_files_of_another_kind_are_refused(tmp_path, ending):
    path = tmp_path / f"x{ending}"
    path.write_bytes(b"\x80\x04\x95 this is something else altogether\n" * 40)
    assert "cannot be read" in refusal(read_corpus, path)


def test_pickles_are_never_loaded(tmp_path):
    objects = np.array([[{"a": 1}]], dtype=object)
    np.save(tmp_path / "x.npy", objects, allow_pickle=True)
    np.savez(tmp_path / "x.npz", X=objects, allow_pickle=True)
    for name in ("x.npy", "x.npz"):
        assert "cannot be read (Object arrays cannot be loaded" in refusal(
            read_corpus, tmp_path / name
        )


# --- texts ------------------------------------------------------------------------------------


def test_rows_have_unit_length_and_wordless_texts_are_zero():
    with pytest.warns(DataWarning, match=r"1 of 3 documents have none of the terms"):
        corpus = corpus_from_texts(["green tea", "black tea black", "- ! -"], labels=[1, 2, 2])
    norms = np.linalg.norm(dense(corpus), axis=1)
    np.testing.assert_allclose(norms, [1, 1, 0])
    assert corpus.labels == ("1", "2", "2")


def test_rare_terms_are_left_out_of_larger_corpora_only():
    few = [f"common rare{i}" for i in range(49)]
    plain = TextOptions(preset="plain")
    assert corpus_from_texts(few, options=plain).n_features == 50
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert corpus_from_texts([*few, "common"], options=plain).terms == ("common",)


@pytest.mark.filterwarnings("ignore:1 of 3 documents have none of the terms")
def test_options_choose_the_terms():
    texts = ["the green tea", "the black tea", "the tea tea"]
    assert corpus_from_texts(texts, options=TextOptions(stop_words="english")).terms == (
        "black",
        "green",
        "tea",
    )
    assert corpus_from_texts(texts, options=TextOptions(max_df=0.9)).terms == ("black", "green")
    assert corpus_from_texts(texts, options=TextOptions(min_df=2)).terms == ("tea",)
    plain = TextOptions(min_df=2, preset="plain")
    assert corpus_from_texts(texts, options=plain).terms == ("tea", "the")
    assert corpus_from_texts(texts, options=TextOptions(max_features=1)).terms == ("tea",)


def test_texts_without_terms_are_refused():
    assert "no terms are left" in refusal(corpus_from_texts, ["!", "?"])
    assert "no terms are left" in refusal(corpus_from_texts, ["tea"], options=TextOptions(min_df=3))
    assert "no documents" in refusal(corpus_from_texts, [])


@pytest.mark.parametrize(
    "options",
    [
        {"min_df": -1},
        {"min_df": 0},
        {"min_df": "often"},
        {"max_df": 1.5},
        {"max_features": 0},
        {"stop_words": "klingon"},
    ],
)
def test_unusable_options_are_refused(options):
    assert next(iter(options)) in refusal(TextOptions, **options)
