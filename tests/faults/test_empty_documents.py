"""Samples without any feature: kept, counted, labelled; a corpus of nothing else is refused."""

import warnings

import numpy as np
import pytest
from helpers.entries import (
    ESTIMATORS,
    KERNELS,
    clustered_everywhere,
    on_kernels,
    refused_everywhere,
)
from helpers.refusals import N, features
from scipy import sparse

from gmkcf_dask import corpus
from gmkcf_dask.errors import DataWarning

EMPTY = [0, 4, 29]
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*reconstruction error", "ignore:.*stopped after max_iter", "ignore:.*of the weight"
)


def with_empty_rows():
    X = features()
    X[EMPTY] = 0
    return X


@pytest.mark.filterwarnings("ignore:3 of 30 samples are empty")
def test_every_way_in_gives_a_label_to_every_row(tmp_path):
    for labels in clustered_everywhere(with_empty_rows(), 3, tmp_path):
        assert labels.shape == (N,)


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array], ids=["dense", "sparse"])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_every_method_counts_and_keeps_them(estimator, form):
    with pytest.warns(DataWarning, match=r"3 of 30 .* row 0\); they are kept"):
        model = on_kernels(estimator, 3).fit(form(with_empty_rows()))
    assert model.labels_.shape == (N,)
    assert np.isfinite(model.objective_history_).all()


@pytest.mark.filterwarnings("ignore:3 of 30 samples are empty")
@pytest.mark.parametrize("normalization", ["unit", "degree", "none"])
@pytest.mark.parametrize("scaling", ["minmax", "none"])
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_kernels_are_finite(normalization, scaling, precision):
    how = {"normalization": normalization, "scaling": scaling, "precision": precision}
    model = on_kernels(ESTIMATORS[0], 3, KERNELS, **how, max_iter=20).fit(with_empty_rows())
    assert np.isfinite(model.V_).all()
    assert np.isfinite(model.kernel_weights_).all()


def test_documents_without_a_known_word():
    texts = ["green tea", "black tea", "!", "", "tea"]
    with pytest.warns(DataWarning, match=r"1 of 5 documents .* \(first: [23]\)") as told:
        X = corpus.corpus_from_texts(texts).X
    assert ["are empty" in str(one.message) for one in told] == [True, False]
    with pytest.warns(DataWarning, match="2 of 5"):
        model = on_kernels(ESTIMATORS[0], 2).fit(X)
    assert len(model.labels_) == 5


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array], ids=["dense", "sparse"])
def test_nothing_but_empty_rows(form, tmp_path):
    words = "all 30 samples are equal"
    refused_everywhere(form(np.zeros((N, 3))), words, tmp_path, functions=False)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_one_cluster_of_empty_rows_is_one_cluster(estimator):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        model = on_kernels(estimator, 1).fit(np.zeros((5, 2)))
    assert model.labels_.tolist() == [0] * 5
