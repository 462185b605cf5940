"""n < k, k = 1, k = n, n = 1, tiles that do not divide n, tiles larger than n."""

import numpy as np
import pytest
from helpers.entries import ESTIMATORS, clustered_everywhere, on_kernels, refused_everywhere
from helpers.refusals import N, features
from numpy.testing import assert_allclose

pytestmark = [
    pytest.mark.usefixtures("calm"),
    pytest.mark.filterwarnings("ignore:.*of the weight"),
]


def test_more_clusters_than_samples(tmp_path):
    """A store may be built of any number of samples; clustering them is refused."""
    from helpers.refusals import FIT, raised, refused

    np.save(tmp_path / "x.npy", features(4))
    sentence = refused("run", tmp_path / "x.npy", *FIT, "-k", 5, "--out", tmp_path / "run")
    assert "n_samples=4 should be >= n_clusters=5" in sentence
    for estimator in ESTIMATORS:
        assert "n_samples=4" in raised(lambda e=estimator: e(5).fit(features(4)))
    assert [path.name for path in tmp_path.iterdir()] == ["x.npy"]


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("n", [1, 2, N])
def test_one_cluster(estimator, n):
    assert on_kernels(estimator, 1).fit(features(n)).labels_.tolist() == [0] * n


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("n", [2, 6])
def test_as_many_clusters_as_samples(estimator, n):
    model = on_kernels(estimator, n).fit(features(n))
    assert sorted(model.labels_) == list(range(n))


@pytest.mark.parametrize("n", [1, 3, 30])
def test_one_cluster_from_every_way_in(n, tmp_path):
    for labels in clustered_everywhere(features(n), 1, tmp_path):
        assert labels.tolist() == [0] * n


@pytest.mark.parametrize("block", [1, 7, 29, 30, 31, 1000])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_any_tile_size_gives_the_same_clusters(estimator, block):
    X = features(8 if block == 1 else N)
    how = {"precision": "float64"} | ({"max_iter": 20} if hasattr(estimator, "max_iter") else {})
    whole = on_kernels(estimator, 3, "cosine", **how).fit(X)
    tiled = on_kernels(estimator, 3, "cosine", **how, block_size=block).fit(X)
    assert_allclose(tiled.objective_history_[-1], whole.objective_history_[-1], rtol=1e-6)
    assert (tiled.labels_ == whole.labels_).all()


@pytest.mark.parametrize("block", [7, 1000])
def test_any_tile_size_from_every_way_in(block, tmp_path):
    found = clustered_everywhere(features(), 3, tmp_path, block_size=block)
    assert all((labels == found[0]).all() for labels in found)


def test_no_samples_and_no_features(tmp_path):
    refused_everywhere(np.empty((0, 3)), "0 sample", tmp_path / "a")
    refused_everywhere(np.empty((N, 0)), "0 feature", tmp_path / "b")
