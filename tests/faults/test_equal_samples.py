"""Duplicate rows, constant features, all rows equal: no width of 0, no NaN."""

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

pytestmark = [
    pytest.mark.usefixtures("calm"),
    pytest.mark.filterwarnings("ignore:.*of the weight"),
]


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array], ids=["dense", "sparse"])
@pytest.mark.parametrize("row", [(1.0, 1.0), (0.0, 0.0), (-1e9, 3.0)])
def test_all_rows_equal(row, form, tmp_path):
    X = form(np.tile(row, (N, 1)))
    refused_everywhere(X, "all 30 samples are equal", tmp_path, functions=False)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_all_rows_equal_and_one_cluster(estimator):
    assert on_kernels(estimator, 1).fit(np.ones((5, 2))).labels_.tolist() == [0] * 5


def test_equal_rows_get_equal_labels_from_every_way_in(tmp_path):
    X = np.repeat(features(6), 5, axis=0)
    for labels in clustered_everywhere(X, 3, tmp_path):
        groups = labels.reshape(6, 5)
        assert (groups == groups[:, :1]).all()


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_two_distinct_rows_and_three_clusters(estimator):
    model = on_kernels(estimator, 3).fit(np.repeat(features(2), 10, axis=0))
    assert np.isfinite(model.objective_history_).all()
    assert len(model.labels_) == 20


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("value", [0.0, 1.0, 7e5])
def test_constant_features(estimator, value):
    X = np.hstack([features(), np.full((N, 2), value)])
    model = on_kernels(estimator, 3).fit(X)
    assert len(set(model.labels_)) == 3
    assert np.isfinite(model.objective_history_).all()


@pytest.mark.parametrize("gap", [1e-3, 1e-8, 1e-15])
def test_nearly_equal_rows(gap):
    """The mean distance, and with it every width, is hardly above 0."""
    X = 1.0 + gap * features()
    model = on_kernels(ESTIMATORS[0], 3, KERNELS, max_iter=20).fit(X)
    assert np.isfinite(model.V_).all()
