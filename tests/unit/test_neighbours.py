"""Nearest neighbours: those of brute force, the same bits for any blocks."""

import gzip
import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy import sparse
from sklearn.feature_extraction.text import TfidfVectorizer

from gmkcf_dask.errors import InputError
from gmkcf_dask.kernels.neighbours import (
    COLUMN_BLOCK,
    INDEX_TERMS,
    Neighbours,
    TermIndex,
    choose_terms,
    compare_with_all,
    exact_work,
    n_neighbours,
    recall,
    search,
    search_dense,
    search_dense_new,
    search_new,
)

METRICS = ["cosine", "euclidean"]


def unit(X):
    lengths = np.linalg.norm(X, axis=1, keepdims=True)
    return X / np.where(lengths > 0, lengths, 1)


@st.composite
def matrices(draw, signed=False):
    """Rows of length 1 with few values, so that there are ties, duplicates and rows of zeros."""
    n, d = draw(st.integers(1, 30)), draw(st.integers(1, 12))
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    levels = draw(st.sampled_from([1, 3, 1000]))
    X = rng.integers(-levels if signed else 0, levels + 1, size=(n, d)).astype(np.float64)
    X *= rng.random((n, d)) < draw(st.sampled_from([0.1, 0.4, 1.0]))
    return unit(X[rng.integers(0, n, n)] if draw(st.booleans()) else X)


def brute(queries, X, p, metric, own=None, floor=-np.inf):
    """Similarities of the best p, in float64; `own` is where the queries begin in X."""
    if metric == "cosine":
        S = queries @ X.T
        S[~queries.any(axis=1)] = -np.inf
        S[:, ~X.any(axis=1)] = -np.inf
    else:
        S = -((queries[:, None] - X[None]) ** 2).sum(axis=2)
    if own is not None:
        S[np.arange(len(queries)), own + np.arange(len(queries))] = -np.inf
    S[~(floor < S)] = -np.inf
    best = -np.sort(-S, axis=1)[:, :p]
    best = np.pad(best, ((0, 0), (0, p - best.shape[1])), constant_values=-np.inf)
    return S, best


def assert_are(found, S, best, atol=2e-6):
    """The similarities of brute force; each index has its own; order and marks as promised."""
    there = found.indices >= 0
    assert found.indices.dtype == np.int32
    assert found.similarities.dtype == np.float32
    assert (there == (best > -np.inf)).all()
    np.testing.assert_allclose(found.similarities[there], best[there], atol=atol, rtol=1e-6)
    own = np.take_along_axis(S, np.where(there, found.indices, 0), axis=1)
    np.testing.assert_allclose(found.similarities[there], own[there], atol=atol, rtol=1e-6)
    assert (found.similarities[~there] == 0).all()
    assert (np.diff(there.astype(int), axis=1) <= 0).all()
    for indices, values in zip(found.indices, found.similarities, strict=True):
        inside = indices >= 0
        assert len(set(indices[inside])) == inside.sum()
        pairs = list(zip(-values[inside], indices[inside], strict=True))
        assert pairs == sorted(pairs)


def same(one, other):
    return (one.indices == other.indices).all() and (one.similarities == other.similarities).all()


def in_blocks(n, cut, searched):
    return Neighbours.concatenate([searched(range(a, min(a + cut, n))) for a in range(0, n, cut)])


def csr(X, dtype=np.float32):
    return sparse.csr_array(X.astype(dtype))


@pytest.mark.parametrize(("n", "p"), [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (1024, 10)])
def test_how_many(n, p):
    assert n_neighbours(n) == p


# --- rows of terms ----------------------------------------------------------------------------


@given(matrices(), st.integers(1, 8))
def test_an_index_of_all_terms_is_exact(X, p):
    found = search(TermIndex.build(csr(X), None), csr(X), range(len(X)), p)
    assert_are(found, *brute(X, X, p, "cosine", 0, floor=1e-12))


@given(matrices(signed=True), st.integers(1, 8))
def test_sums_that_cancel_out_list_no_document_twice(X, p):
    """Cancelled sums are a few roundings away from 0: these are left out of the comparison."""
    S, _ = brute(X, X, p, "cosine", 0)
    S[np.abs(S) < 1e-5] = -np.inf
    found = search(TermIndex.build(csr(X), None), csr(X), range(len(X)), len(X))
    kept = found.similarities >= 1e-5
    assert kept.sum() == (S > 0).sum()
    rows = np.nonzero(kept)[0]
    np.testing.assert_allclose(found.similarities[kept], S[rows, found.indices[kept]], atol=2e-6)
    assert all(len(set(row[row >= 0])) == (row >= 0).sum() for row in found.indices)


@given(matrices(signed=True), st.sampled_from([1, 2, 4, None]), st.integers(1, 9))
def test_any_row_blocks_give_the_same_bits(X, terms, cut):
    X, p = csr(X), 3
    index = TermIndex.build(X, terms)
    whole = search(index, X, range(X.shape[0]), p)
    assert same(whole, in_blocks(X.shape[0], cut, lambda rows: search(index, X, rows, p)))


@given(matrices(), st.integers(1, 9), st.integers(1, 4))
def test_lists_of_column_blocks_merge_to_the_whole(X, cut, p):
    X, n = csr(X), len(X)
    whole = search(TermIndex.build(X, None), X, range(n), p)
    lists = [
        search(TermIndex.build(X, None, range(a, min(a + cut, n))), X, range(n), p)
        for a in range(0, n, cut)
    ]
    assert same(whole, Neighbours.merge(lists, p))


@given(matrices(), st.integers(1, 4))
def test_an_index_of_few_terms_gives_true_cosines(X, terms):
    """Whatever it finds has the similarity of the exact search, to the bit."""
    S = csr(X)
    n = len(X)
    few = search(TermIndex.build(S, terms), S, range(n), 4)
    every = search(TermIndex.build(S, None), S, range(n), n)
    for i in range(n):
        true = dict(zip(every.indices[i], every.similarities[i], strict=True))
        for j, value in zip(few.indices[i], few.similarities[i], strict=True):
            assert j < 0 or true[j] == value


@given(matrices())
def test_as_many_terms_as_there_are_is_exact(X):
    S = csr(X)
    few = search(TermIndex.build(S, X.shape[1]), S, range(len(X)), 5, candidates=len(X))
    assert same(few, search(TermIndex.build(S, None), S, range(len(X)), 5))


@given(matrices(), st.sampled_from([2, None]))
def test_new_rows_find_themselves(X, terms):
    S = csr(X)
    index = TermIndex.build(S, terms)
    found = search_new(index, S, S, 3, candidates=len(X))
    if terms is None:
        assert_are(found, *brute(X, X, 3, "cosine", floor=1e-12))
    some = X.any(axis=1)
    np.testing.assert_allclose(found.similarities[some, 0], 1, atol=1e-6)
    assert (found.indices[~some] == -1).all()


def test_heaviest_terms_of_equals_the_lower():
    X = csr(np.array([[0.5, 0.5, 0.5, 0.5], [0, 0.6, 0.8, 0], [0, 0, 0, 0]]))
    index = TermIndex.build(X, 2)
    assert index.indptr.tolist() == [0, 1, 3, 4, 4]
    assert index.documents.tolist() == [0, 0, 1, 1]
    np.testing.assert_allclose(index.weights, [0.5, 0.5, 0.6, 0.8])


def test_ties_go_to_the_lower_index():
    X = csr(unit(np.tile([[1.0, 2.0, 3.0]], (50, 1))))
    for terms in (2, None):
        found = search(TermIndex.build(X, terms), X, range(50), 3)
        assert found.indices[0].tolist() == [1, 2, 3]
        assert found.indices[1].tolist() == [0, 2, 3]
        assert found.indices[40].tolist() == [0, 1, 2]


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_any_form_of_the_matrix_gives_the_same(dtype, rng):
    X = unit(rng.random((40, 20)) * (rng.random((40, 20)) < 0.3))
    want = search(TermIndex.build(csr(X), None), csr(X), range(40), 5)
    other = csr(X, dtype)
    other.indices, other.indptr = other.indices.astype(np.int64), other.indptr.astype(np.int64)
    for a, b in zip(other.indptr[:-1], other.indptr[1:], strict=True):  # terms of a row reversed
        other.indices[a:b], other.data[a:b] = other.indices[a:b][::-1], other.data[a:b][::-1]
    other.has_sorted_indices = other.has_canonical_format = False
    for array in (other.data, other.indices, other.indptr):
        array.flags.writeable = False  # as Dask hands them out
    before = other.indices.copy()
    assert same(want, search(TermIndex.build(other, None), other, range(40), 5))
    assert (other.indices == before).all()


def test_workers_and_threads_give_the_same_bits(one_worker, rng):
    X = csr(unit(rng.random((60, 30)) * (rng.random((60, 30)) < 0.2)))
    index = TermIndex.build(X, 3)
    whole = search(index, X, range(60), 4)
    held = one_worker.scatter(X)
    parts = [one_worker.submit(search, index, held, range(a, a + 20), 4) for a in (0, 20, 40)]
    assert same(whole, Neighbours.concatenate(one_worker.gather(parts)))
    with ThreadPoolExecutor(4) as pool:
        parts = pool.map(lambda a: search(index, X, range(a, a + 5), 4), range(0, 60, 5))
        assert same(whole, Neighbours.concatenate(list(parts)))


def test_nothing_to_search():
    X = csr(np.zeros((3, 4)))
    index = TermIndex.build(X)
    assert (search(index, X, range(3), 2).indices == -1).all()
    assert search(index, X, range(1, 1), 2).indices.shape == (0, 2)
    assert search(index, X, range(3), 0).indices.shape == (3, 0)
    assert search_new(index, X, csr(np.zeros((0, 4))), 2).indices.shape == (0, 2)


def test_indices_outside_of_the_matrix_are_seen_before_the_loops():
    X = csr(np.eye(3))
    X.indices[1] = 7
    with pytest.raises(InputError, match="outside"):
        TermIndex.build(X)
    good = csr(np.eye(3))
    with pytest.raises(InputError, match="outside"):
        search_new(TermIndex.build(good), good, X, 1)


# --- dense rows -------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", METRICS)
@given(X=matrices(signed=True), p=st.integers(1, 8), dtype=st.sampled_from(["f4", "f8"]))
def test_dense_rows_find_those_of_brute_force(metric, X, p, dtype):
    found = search_dense(X.astype(dtype), range(len(X)), p, metric)
    assert_are(found, *brute(X, X, p, metric, 0))
    new = search_dense_new(X.astype(dtype), X[:5], p, metric)
    assert_are(new, *brute(X[:5], X, p, metric))


@pytest.mark.parametrize("metric", METRICS)
@given(X=matrices(signed=True), cut=st.integers(1, 9))
def test_any_dense_blocks_give_the_same_bits(metric, X, cut):
    n, p = len(X), 3
    whole = search_dense(X, range(n), p, metric)
    assert same(whole, in_blocks(n, cut, lambda rows: search_dense(X, rows, p, metric)))
    lists = [
        search_dense(X, range(n), p, metric, range(a, min(a + cut, n))) for a in range(0, n, cut)
    ]
    assert same(whole, Neighbours.merge(lists, p))


@pytest.mark.parametrize("metric", METRICS)
def test_more_columns_than_a_block(metric, rng):
    X = unit(rng.normal(size=(COLUMN_BLOCK + 300, 8)))
    X[-1] = X[0]
    found = search_dense(X, range(1500), 7, metric)
    assert found.indices[0, 0] == len(X) - 1
    assert_are(found, *brute(X[:1500], X, 7, metric, 0))
    assert same(found, in_blocks(1500, 499, lambda rows: search_dense(X, rows, 7, metric)))


def test_distances_far_from_the_origin_keep_their_digits(rng):
    X = rng.normal(size=(60, 3)) + 1e6
    found = search_dense(X, range(60), 4, "euclidean")
    assert_are(found, *brute(X, X, 4, "euclidean", 0), atol=0)


# --- how good, how dear -----------------------------------------------------------------------


def lists(indices, similarities):
    return Neighbours(np.array(indices, np.int32), np.array(similarities, np.float32))


def test_a_few_rows_compared_with_all_have_their_true_neighbours(rng):
    X = csr(unit(rng.random((60, 40)) * (rng.random((60, 40)) < 0.1)))
    chosen = np.array([0, 7, 8, 31, *range(40, 60)])
    exact = search(TermIndex.build(X, None), X, range(60), 6)
    expected = Neighbours(exact.indices[chosen], exact.similarities[chosen])
    found = compare_with_all(X, chosen, 6)
    np.testing.assert_allclose(found.similarities, expected.similarities, rtol=1e-6)
    assert recall(found, expected) == recall(expected, found) == 1


def test_recall_counts_by_similarity():
    exact = lists([[1, 2], [0, -1], [-1, -1]], [[0.9, 0.5], [0.7, 0], [0, 0]])
    assert recall(exact, exact) == 1
    tied = lists([[1, 7], [0, 3], [-1, -1]], [[0.9, 0.5], [0.7, 0.7], [0, 0]])
    assert recall(tied, exact) == 1
    worse = lists([[1, 7], [-1, -1], [-1, -1]], [[0.9, 0.4], [0, 0], [0, 0]])
    assert recall(worse, exact) == pytest.approx(1 / 3)
    nobody = lists([[-1]], [[0]])
    assert recall(nobody, nobody) == 1


def test_the_plan_takes_the_exact_search_where_it_is_cheap():
    few = np.array([3, 4])
    assert exact_work(few) == 25
    assert choose_terms(few) is None
    assert choose_terms(few, budget=24) == INDEX_TERMS
    assert choose_terms(np.full(1000, 1_000_000, dtype=np.int32)) == INDEX_TERMS


def test_the_work_of_an_index_is_that_of_its_documents(rng):
    X = csr(rng.random((50, 9)) * (rng.random((50, 9)) < 0.5))
    frequencies = np.bincount(X.indices, minlength=9)
    assert TermIndex.build(X, None).work() == exact_work(frequencies)
    assert TermIndex.build(X, 1).work() < exact_work(frequencies)


def test_few_terms_find_most_neighbours_in_a_real_corpus(paper_data):
    path = paper_data / "text" / "stackoverflow_20k.jsonl.gz"
    if not path.exists():
        pytest.skip(f"{path.name} is not among the corpora here")
    with gzip.open(path, "rt", encoding="utf-8") as file:
        texts = [json.loads(line)["text"] for line in file]
    vectorizer = TfidfVectorizer(
        stop_words="english", min_df=3, sublinear_tf=True, dtype=np.float32
    )
    X = vectorizer.fit_transform(texts)
    p, rows = n_neighbours(X.shape[0]), range(2000)
    exact = search(TermIndex.build(X, None), X, rows, p)
    dense = X[:300].toarray() @ X.T.toarray()
    dense[np.arange(300), np.arange(300)] = 0
    best = -np.sort(-dense, axis=1)[:, :p]
    np.testing.assert_allclose(exact.similarities[:300], best, atol=1e-6)
    assert recall(search(TermIndex.build(X, 16), X, rows, p), exact) > 0.999
    assert 0.5 < recall(search(TermIndex.build(X, 2), X, rows, p), exact) < 0.99
