"""What those do who come from scikit-learn and pandas: each habit works or gets one sentence."""

import os
import warnings
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
from helpers.html_text import read
from helpers.marks import mostly_slow
from msgspec import structs
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import make_blobs
from sklearn.exceptions import NotFittedError
from sklearn.utils import get_tags

from gmkcf_dask import (
    GMKCF,
    KCF,
    CoregSpectralClustering,
    KernelKMeans,
    KernelSpectralClustering,
    KernelStore,
    Precomputed,
    RobustMultipleKernelKMeans,
    TextOptions,
    load,
    suggest_k,
)
from gmkcf_dask.corpus.validate import NotNumericError
from gmkcf_dask.errors import InputError, NotPositiveError, StoreError, WeakClustersWarning
from gmkcf_dask.events import StageProgress
from gmkcf_dask.events.stages import has_total
from gmkcf_dask.methods.predict import NoPredictionError

FEW = ["rbf_1", "cosine"]


@pytest.fixture
def X():
    return make_blobs(60, 4, centers=3, cluster_std=0.6, random_state=0)[0]


# --- before a fit -----------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", [GMKCF, KCF, KernelKMeans])
@pytest.mark.parametrize("what", ["predict", "transform", "sureness"])
def test_what_needs_a_fit_says_so(estimator, what, X):
    with pytest.raises(NotFittedError, match="not fitted yet"):
        getattr(estimator(3), what)(X)


@pytest.mark.parametrize("what", ["predict", "transform"])
def test_a_method_without_a_place_for_new_samples_says_so_before_a_fit(what):
    model = CoregSpectralClustering(3)
    assert not hasattr(model, what)
    with pytest.raises(NoPredictionError, match="cannot assign new samples"):
        getattr(model, what)


# --- no path ----------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["save", "report"])
@pytest.mark.parametrize("path", [None, 3, b"here"])
def test_no_path_is_no_file_of_that_name(what, path, X, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = GMKCF(3, kernels=FEW, tol=1e-2, random_state=0).fit(X)
    with pytest.raises(InputError, match="give a path"):
        getattr(model, what)(path)
    assert list(tmp_path.iterdir()) == []


# --- matrices among the parameters ------------------------------------------------------------


def matrices(X):
    K = X @ X.T
    both = [K, K + np.eye(len(K))]
    return {
        "one": K,
        "list": both,
        "stack": np.array(both),
        "rows": K.tolist(),
        "frame": pd.DataFrame(K),
        "sparse": sparse.csr_array(K),
        "among names": ["rbf_1", K],
    }


@pytest.mark.parametrize("form", matrices(np.eye(2)))
@pytest.mark.parametrize("estimator", [partial(GMKCF, 2), partial(KCF, 2)])
def test_a_matrix_among_the_parameters_is_told_where_to_go(estimator, form, X):
    given = matrices(X)[form]
    name = "kernels" if estimator.func is GMKCF else "kernel"
    model = estimator(**{name: given})
    with pytest.raises(InputError, match=r"to fit.*precomputed.*or wrap.*Precomputed\(matrix"):
        model.fit(X)
    assert model.get_params()[name] is given
    assert not get_tags(model).input_tags.pairwise
    assert type(clone(model)) is estimator.func
    if form == "sparse":  # which scikit-learn cannot show
        return
    assert "KCF(" in repr(model)
    assert "KCF" in model._repr_html_()


def test_both_ways_for_matrices_are_there(X):
    K = X @ X.T
    here = GMKCF(3, kernels=[Precomputed(K, "mine")], tol=1e-2, random_state=0).fit(X)
    there = GMKCF(3, kernels="precomputed", tol=1e-2, random_state=0).fit(K)
    assert (here.labels_ == there.labels_).all()


# --- ways out that are open -------------------------------------------------------------------


def indefinite():
    held = np.random.default_rng(0).normal(size=(12, 12))
    return (held + held.T) / 2 + np.eye(12)


@pytest.mark.usefixtures("calm")
def test_the_way_to_scale_a_matrix_is_named_and_open():
    model = GMKCF(3, kernels="precomputed", scaling="minmax", random_state=0)
    with pytest.raises(NotPositiveError) as caught:
        model.fit(indefinite())
    assert "Precomputed(matrix, name, scaling='minmax')" in str(caught.value)
    with pytest.warns(WeakClustersWarning):
        model.fit([Precomputed(indefinite(), "mine", scaling="minmax")])
    assert np.isfinite(model.objective_history_).all()


def test_kernels_whose_rows_sum_to_nothing_are_taken(X):
    """A centred kernel is a kernel, and its degrees are rounding errors of either sign."""
    centred = X - X.mean(axis=0)
    for model in (GMKCF(3, kernels="precomputed"), KCF(3, kernel="precomputed")):
        model.set_params(random_state=0).fit(centred @ centred.T)
        assert len(set(model.labels_) - {-1}) == 3


def test_ways_out_of_negative_row_sums_are_open(X):
    centred = X - X.mean(axis=0)
    how = {"normalization": "degree", "tol": 1e-2, "random_state": 0}
    with pytest.raises(InputError, match=r"row sum.*use normalization unit, or leave this kernel"):
        GMKCF(3, kernels=FEW, **how).fit(centred)
    assert len(GMKCF(3, kernels=["rbf_1"], **how).fit(centred).labels_) == len(X)
    how["normalization"] = "unit"
    assert len(GMKCF(3, kernels=FEW, **how).fit(centred).labels_) == len(X)


# --- the index of pandas ----------------------------------------------------------------------

TEXTS = ["green apples fall", "apples grow green", "fast trains run", "trains run late"] * 3
QUICK = {"kernels": FEW, "tol": 1e-2, "random_state": 0}


def named(form, index):
    texts = [f"{text} {number}" for number, text in enumerate(TEXTS)]
    if form == "texts":
        return pd.Series(texts, index=index)
    numbers = np.random.default_rng(0).random((12, 3)) + np.eye(3)[np.arange(12) % 3]
    return pd.DataFrame(numbers, index=index, columns=["a", "b", "c"])


def ids_of(model):
    return list(model.explain()["documents"]["ids"])


@pytest.mark.usefixtures("calm")
@pytest.mark.parametrize("form", ["texts", "features"])
@pytest.mark.parametrize("stored", [False, True])
def test_samples_are_called_as_the_index_calls_them(form, stored, tmp_path):
    names = [f"row {letter}" for letter in "abcdefghijkl"]
    store = tmp_path / "s.zarr" if stored else None
    plain = GMKCF(3, **QUICK, store=store).fit(named(form, None))
    model = GMKCF(3, **QUICK, store=store).fit(named(form, names))  # the same store once more
    assert (plain.labels_ == model.labels_).all()
    assert plain.objective_history_.tolist() == model.objective_history_.tolist()
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    assert ids_of(model) == ids_of(again) == names
    assert ids_of(plain) == [str(row) for row in range(12)]
    other = [f"other {row}" for row in range(12)]
    assert list(again.explain(ids=other)["documents"]["ids"]) == other


@pytest.mark.usefixtures("calm")
@pytest.mark.parametrize(
    ("index", "ids"),
    [
        (range(5, 17), range(5, 17)),
        (["twice"] * 2 + list("cdefghijkl"), range(12)),
        ([1, "1", *range(2, 12)], range(12)),
        (np.arange(12.0)[::-1], range(11, -1, -1)),
    ],
)
def test_an_index_names_samples_where_it_tells_them_apart(index, ids):
    assert ids_of(GMKCF(3, **QUICK).fit(named("features", index))) == [str(row) for row in ids]


def test_the_index_of_a_precomputed_kernel(tmp_path):
    table = named("features", list("abcdefghijkl"))
    model = KCF(3, kernel="precomputed", tol=1e-2, random_state=0).fit(table @ table.T)
    model.explain(table @ table.T)
    model.save(tmp_path / "model")
    assert ids_of(load(tmp_path / "model")) == list("abcdefghijkl")


# --- columns that are no numbers --------------------------------------------------------------


def table(**columns):
    held = {"low": [0.5, 1.5, 2.5, 3.5], **columns}
    return pd.DataFrame(held, index=list("abcd"))


@pytest.mark.parametrize("kind", [object, "string", "category"])
def test_a_column_of_texts_is_named(kind):
    given = table(
        **{"their title": pd.Series(["x", "y", "z", "x"], index=list("abcd"), dtype=kind)}
    )
    with pytest.raises(NotNumericError) as caught:
        GMKCF(2).fit(given)
    said = str(caught.value)
    assert "holds text in column 'their title' (row 0)" in said
    assert "X['their title'] alone for texts, or leave that column out" in said


@pytest.mark.parametrize(
    ("column", "what"),
    [
        (pd.array([1, 2, None, 4], dtype="Int64"), "NA"),
        (pd.array([1.5, 2, None, 4], dtype="Float64"), "NA"),
        (np.array([True, False, None, True], dtype=object), "None"),
        ([1.0, 2.0, float("nan"), 4.0], "NaN"),
        ([1.0, 2.0, float("inf"), 4.0], "infinity"),
    ],
)
def test_a_missing_value_is_named_by_row_and_column(column, what):
    with pytest.raises(InputError, match=rf"X contains {what} in row 2, column 'high': remove or"):
        GMKCF(2).fit(table(high=column))


def test_arrays_have_rows_only():
    with pytest.raises(InputError, match="X contains None in row 1: remove or impute"):
        GMKCF(2).fit(np.array([[1, 2.0], [None, 3.0]], dtype=object))


# --- a text or a file where a store is wanted -------------------------------------------------


@pytest.mark.parametrize("given", ["the quick brown fox", "nofile.csv", "a long text. " * 60])
@pytest.mark.parametrize("asked", [GMKCF(2).fit, suggest_k])
def test_what_is_no_store_is_told_where_to_go(asked, given):
    with pytest.raises(StoreError) as caught:
        asked(given)
    said = str(caught.value)
    assert said.startswith("there is no kernel store at ")
    assert said.endswith(": check the path; texts go in a list, and files through read_corpus")
    assert len(said) < 200


def test_a_file_that_is_there_is_told_the_same(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(StoreError, match=r"is not a kernel store.*files through read_corpus"):
        GMKCF(2).fit(path)


# --- what is shown ----------------------------------------------------------------------------


def test_a_suggestion_is_a_table_in_notebooks_and_one_line_elsewhere(X):
    found = suggest_k(X, range(2, 6), kernels=FEW)
    assert repr(found) == (
        f"KSuggestion(k={found.k}, word={found.word!r}, sure={found.sure:.2f}, "
        f"runner_up={found.runner_up})"
    )
    page = read(found._repr_html_())
    assert page.addresses == []
    for line in found.lines()[:-1]:
        words = line.replace("←", "").split()
        assert "".join(words) in page.text.replace(" ", "")
    assert f"k = {found.k}, {found.word} ({found.sure:.2f})" in page.text
    assert found.why in page.text
    hostile = replace(found, why="<script>alert(1)</script>")
    assert "script" not in read(hostile._repr_html_()).seen


def test_a_store_is_one_short_line(X, tmp_path):
    GMKCF(3, **QUICK, store=tmp_path / "s.zarr").fit(X)
    store = KernelStore.open(tmp_path / "s.zarr")
    expected = f"KernelStore({str(tmp_path / 's.zarr')!r}, 60 samples, 2 kernels)"
    assert repr(store) == str(store) == expected
    unfinished = replace(store, manifest=structs.replace(store.manifest, complete=False))
    assert repr(unfinished).endswith("2 kernels, incomplete)")


# --- what is heard ----------------------------------------------------------------------------


@pytest.mark.usefixtures("calm")
@mostly_slow("stored", [False, True])
@pytest.mark.parametrize(
    "estimator",
    [
        GMKCF,
        KCF,
        RobustMultipleKernelKMeans,
        KernelSpectralClustering,
        KernelKMeans,
        CoregSpectralClustering,
    ],
)
def test_every_stage_that_is_announced_comes_to_its_end(estimator, stored, X, tmp_path):
    heard = []
    store = tmp_path / "s.zarr" if stored else None
    model = estimator(3, random_state=0, callbacks=[heard.append], store=store).fit(X)
    model.explain()
    counts = [event for event in heard if isinstance(event, StageProgress) and has_total(event)]
    last = {(event.stage, event.unit): event for event in counts}
    assert last
    assert [event for event in last.values() if event.done != event.total] == []
    assert (("k-means", "clusterings") in last) == (estimator is GMKCF)


@pytest.mark.parametrize("kernels", [[[1.0, 2.0], [3.0]], np.array(3.0)])
def test_numbers_that_are_no_matrix_are_no_kernels(kernels, X):
    with pytest.raises(InputError, match="kernels"):
        GMKCF(2, kernels=kernels).fit(X)


@pytest.mark.usefixtures("calm")
def test_a_path_in_another_form_is_that_path(X, tmp_path):
    model = GMKCF(2, random_state=0).fit(X)
    model.save(tmp_path / "m")
    with os.scandir(tmp_path) as found:
        (entry,) = found
    model.save(entry, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["m"]
    np.testing.assert_array_equal(load(entry).labels_, model.labels_)


def test_a_column_may_be_called_anything():
    table = pd.DataFrame(np.ones((5, 3)), columns=["a", "b", "column_names"])
    table.loc[3, "b"] = np.nan
    with pytest.raises(InputError, match="row 3, column 'b'"):
        GMKCF(2).fit(table)
    texts = pd.DataFrame({"column_names": ["green tea", "milk"]})
    with pytest.raises(InputError, match=r"X\['column_names'\]"):
        GMKCF(2).fit(texts)


def test_a_text_with_nul_is_no_store():
    with pytest.raises(StoreError, match="texts go in a list"):
        GMKCF(2).fit("a\0b")


def test_documents_without_words_are_the_rest():
    fruits = [f"apple pear plum {w}" for w in ("juice", "pie", "tree", "jam", "tart", "crate")]
    tools = [f"hammer saw drill {w}" for w in ("nail", "wood", "bench", "box", "screw", "bit")]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = GMKCF(3, kernels="cosine", text=TextOptions(preset="plain"), random_state=0)
        model.fit([*fruits, *tools, "", "?", "!", "...", "-", ","])
        found = model.explain()
    assert 0.0 in [cluster["cohesion"] for cluster in found["clusters"]]
    assert "6 documents fit no topic well" in found["summary"]


def test_by_default_documents_without_words_belong_to_no_cluster():
    fruits = [f"apple pear plum {w}" for w in ("juice", "pie", "tree", "jam", "tart", "crate")]
    tools = [f"hammer saw drill {w}" for w in ("nail", "wood", "bench", "box", "screw", "bit")]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = GMKCF(2, kernels=["cosine", "rbf_1"], random_state=0)
        model.fit([*fruits, *tools, "", "?", "-"])
        assert model.labels_.tolist()[-3:] == [-1, -1, -1]
        assert model.predict(["", "apple plum"]).tolist() == [-1, model.labels_[0]]
        assert not model.transform([""]).any()
    assert not model.V_[-3:].any()
