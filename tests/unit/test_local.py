"""Local and heat kernels: from features to factors."""

import naive
import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st
from scipy import sparse
from sklearn.metrics import adjusted_rand_score

from gmkcf_dask import GMKCF
from gmkcf_dask.errors import InputError
from gmkcf_dask.events import StageNote
from gmkcf_dask.kernels import heat, local
from gmkcf_dask.kernels.factor_cross import HeatExtension, LocalExtension
from gmkcf_dask.kernels.factored import factor_views, values_of
from gmkcf_dask.kernels.features import ArrayFeatures
from gmkcf_dask.store.factors import (
    HeatOptions,
    LocalOptions,
    MemoryArrays,
    heat_stages,
    local_stages,
)

NAMES = [f"local_{t}" for t in local.DEPTHS]
HEAT = ["heat_s", "heat_m", "heat_l"]


def documents(rng, n=60, d=40, per_row=6, zero=()):
    """Sparse non-negative rows of unit length, some of them empty."""
    X = np.zeros((n, d))
    for i in range(n):
        if i not in zero:
            X[i, rng.choice(d, per_row, replace=False)] = rng.random(per_row) + 0.1
    lengths = np.linalg.norm(X, axis=1, keepdims=True)
    return X / np.where(lengths > 0, lengths, 1)


def built(X, max_clusters=4):
    features = ArrayFeatures(X)
    options = LocalOptions.of(features, X.shape[1], max_clusters)
    arrays = MemoryArrays()
    arrays.build(local_stages(options, features, arrays))
    return features, options, arrays


def factors(arrays, options, k):
    kinds = dict.fromkeys(NAMES, "local")
    views = factor_views(kinds, dict.fromkeys(NAMES, options.rank), {}, k)
    return [view.rows(arrays.read(view.array)) for view in views]


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array], ids=["dense", "sparse"])
def test_kernels_equal_the_oracle(rng, form):
    X = documents(rng, zero=(7, 30))
    _, options, arrays = built(form(X))
    wanted = naive.local_kernels(X, options.rank, local.DEPTHS)
    for Z, K in zip(factors(arrays, options, 4), wanted, strict=True):
        np.testing.assert_allclose(Z @ Z.T, K, atol=2e-4)
        lengths = np.linalg.norm(Z, axis=1)
        np.testing.assert_allclose(np.delete(lengths, (7, 30)), 1.0, atol=1e-5)
        assert lengths[7] == lengths[30] == 0.0  # a document without words has no direction


@settings(max_examples=25)
@example(154, 6, 4)  # rounding had given duplicates a distance
@given(st.integers(0, 2**16), st.integers(2, 30), st.integers(1, 4))
def test_the_walk_is_stochastic(seed, n, copies):
    rng = np.random.default_rng(seed)
    X = documents(rng, n, 12, 2)
    X[: min(copies, n)] = X[0]  # duplicates
    _, _, arrays = built(sparse.csr_array(X))
    squared = local.squared_chords(arrays.read("similarities"))
    S = local.lazy_walk(local.affinities(arrays.read("neighbours"), squared))
    np.testing.assert_allclose(S.sum(axis=1), 1.0, atol=1e-6)
    np.testing.assert_allclose(S.toarray(), naive.walk(naive.neighbours(X, n_of(n))), atol=2e-3)
    assert all(np.isfinite(values).all() for values in arrays.arrays.values())


def n_of(n):
    return min(int(np.ceil(np.log2(n))), n - 1)


def test_all_samples_alike():
    X = np.tile([[0.6, 0.8, 0.0]], (9, 1))
    _, options, arrays = built(sparse.csr_array(X))
    for Z in factors(arrays, options, 2):
        np.testing.assert_allclose(Z @ Z.T, 1.0, atol=1e-5)


def test_a_permutation_of_samples_permutes_the_kernels(rng):
    X, order = documents(rng), rng.permutation(60)
    _, options, arrays = built(sparse.csr_array(X))
    _, _, permuted = built(sparse.csr_array(X[order]))
    for Z, P in zip(factors(arrays, options, 4), factors(permuted, options, 4), strict=True):
        np.testing.assert_allclose((Z @ Z.T)[np.ix_(order, order)], P @ P.T, atol=2e-4)


def test_training_samples_again_have_their_rows(rng):
    X = documents(rng, zero=(3,))
    features, _, arrays = built(sparse.csr_array(X))
    extension = LocalExtension(features, arrays)
    for name, rows in extension.rows(sparse.csr_array(X)).items():
        np.testing.assert_array_equal(rows, arrays.read(name))


def test_a_new_sample_is_near_the_one_it_resembles(rng):
    X = documents(rng, n=200, d=60)
    features, options, arrays = built(sparse.csr_array(X))
    new = X[:20] + 1e-4 * (X[:20] > 0)
    rows = LocalExtension(features, arrays).rows(sparse.csr_array(new))
    views = factor_views(dict.fromkeys(NAMES, "local"), dict.fromkeys(NAMES, options.rank), {}, 4)
    for view in views:
        z, Z = view.rows(rows[view.array]), view.rows(arrays.read(view.array)[:20])
        assert (np.sum(z * Z, axis=1) > 0.9).all()


def test_heat_kernels_of_a_table(rng):
    X = np.vstack([rng.normal(c, 0.4, (30, 3)) for c in ((0, 0, 5), (4, 0, 5), (0, 4, 5))])
    X = np.column_stack([X, np.full(90, 7.0)])  # a constant column says nothing
    features = ArrayFeatures(X)
    options, arrays = HeatOptions.of(features, 4, 5), MemoryArrays()
    heard = []
    arrays.build(heat_stages(options, features, arrays), heard.append)
    notes = [event.message for event in heard if isinstance(event, StageNote)]
    assert notes == ["constant columns are left out: 1"]
    eigenvalues = {name: arrays.read(values_of(name)) for name in HEAT}
    views = factor_views(
        dict.fromkeys(HEAT, "heat"), dict.fromkeys(HEAT, options.n_vectors), eigenvalues, 3
    )
    group = np.repeat(np.arange(3), 30)
    for view in views:
        Z = view.rows(arrays.read(view.array))
        K = Z @ Z.T
        within, between = K[group[:, None] == group].mean(), K[group[:, None] != group].mean()
        assert within > 0.6 > 0.3 > between
        components = np.count_nonzero(eigenvalues[view.name] > 1 - 1e-9)
        weights = np.square(view.scale).sum()
        assert weights == pytest.approx(max(3, components), abs=0.01)
    again = HeatExtension(features, arrays).rows(X)
    for view in views:
        np.testing.assert_array_equal(again[view.array], arrays.read(view.array))


@pytest.mark.usefixtures("calm")  # three concepts reproduce such kernels exactly
def test_rows_that_repeat_are_grouped_by_their_distances():
    """Every copy has only copies as neighbours: the graph would be one component for each value."""
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1, 2], 400)
    X = np.round(np.array([[0, 0], [8, 0], [0, 8]])[y] + rng.normal(size=(1200, 2))) + 20
    order = rng.permutation(1200)
    model, again = GMKCF(3, random_state=0).fit(X), GMKCF(3, random_state=0).fit(X[order])
    assert adjusted_rand_score(y, model.labels_) > 0.95
    assert adjusted_rand_score(model.labels_[order], again.labels_) > 0.95
    np.testing.assert_array_equal(model.predict(X), model.labels_)


def test_a_new_sample_far_from_all_has_a_cluster(rng):
    X = np.vstack([rng.normal(c, 1, (40, 5)) for c in (0, 4, 8)])
    assert (GMKCF(3, random_state=0).fit(X).predict([[1000.0] * 5, [-1000.0] * 5]) >= 0).all()


def test_a_sample_that_is_unlike_all_concepts_has_the_nearest_one():
    E = np.random.default_rng(2).normal(size=(180, 8))
    E /= np.linalg.norm(E, axis=1, keepdims=True)
    model = GMKCF(3, random_state=0).fit(E)
    assert (model.labels_ >= 0).all()
    np.testing.assert_array_equal(model.predict(E), model.labels_)


def test_heat_kernels_are_for_dense_tables(rng):
    with pytest.raises(InputError, match="choose local"):
        GMKCF(2, kernels="heat_m").fit(sparse.csr_array(rng.random((20, 4))))


def test_more_components_than_clusters():
    assert heat.heat_weights(np.ones(8), 2) == pytest.approx(np.ones(8))
