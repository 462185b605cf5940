"""Kernel tiles against the plain formulas on the whole matrix, in float64."""

import naive
import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy import sparse

from gmkcf_dask.compute.runner import Runner
from gmkcf_dask.corpus.model import Corpus
from gmkcf_dask.errors import InputError
from gmkcf_dask.kernels.specs import (
    PAPER12,
    FunctionKernel,
    Polynomial,
    Precomputed,
    Rbf,
    parse_kernel,
    precomputed_specs,
    resolve_kernels,
)
from gmkcf_dask.kernels.tiling import Tiling
from gmkcf_dask.store.build import build_store, build_tiles
from gmkcf_dask.store.request import KernelRequest

NAMES = [*(spec.name for spec in PAPER12), "linear", "rbf_0.5", "poly_a2_b3"]
N = 45


def text_like(rng, n=N, d=30):
    X = rng.random((n, d)) * (rng.random((n, d)) < 0.3)
    X[X.sum(axis=1) == 0, 0] = 1.0
    return X / np.linalg.norm(X, axis=1, keepdims=True)


def corpus(X):
    return Corpus(X, tuple(str(i) for i in range(X.shape[0])))


def whole(tiles, tiling):
    K = np.empty((tiling.n, tiling.n))
    for (i, j), tile in zip(tiling.pairs(), tiles, strict=True):
        K[tiling.rows(i), tiling.rows(j)] = tile
        K[tiling.rows(j), tiling.rows(i)] = tile.T
    return K


def built(X, kernels, block=16, **options):
    specs = resolve_kernels(kernels)
    request = KernelRequest(corpus(X), specs, precision="float64", **options)
    tiling = Tiling(X.shape[0], block)
    made = zip(*build_tiles(request, block).stacks, strict=True)
    return {s.name: whole(tiles, tiling) for s, tiles in zip(specs, made, strict=True)}


def test_the_twelve_of_the_paper():
    assert [spec.name for spec in PAPER12] == [
        "rbf_0.01",
        "rbf_0.05",
        "rbf_0.1",
        "rbf_1",
        "rbf_10",
        "rbf_50",
        "rbf_100",
        "poly_a0_b2",
        "poly_a0_b4",
        "poly_a1_b2",
        "poly_a1_b4",
        "cosine",
    ]


@pytest.mark.parametrize("normalization", ["unit", "degree", "none"])
@pytest.mark.parametrize("scaling", ["minmax", "none"])
@pytest.mark.parametrize("form", ["sparse", "dense"])
@pytest.mark.parametrize("block", [15, 16, 64])
def test_every_kernel_equals_its_formula(rng, normalization, scaling, form, block):
    X = text_like(rng)
    found = built(
        sparse.csr_array(X) if form == "sparse" else X,
        NAMES,
        block,
        normalization=normalization,
        scaling=scaling,
    )
    for name in NAMES:
        expected = naive.finished_kernel(X, name, normalization, scaling)
        np.testing.assert_allclose(found[name], expected, rtol=1e-6, atol=1e-6, err_msg=name)
        np.testing.assert_array_equal(found[name], found[name].T)


@pytest.mark.parametrize("normalization", ["unit", "none"])
def test_negative_features(rng, normalization):
    X = rng.normal(size=(N, 4))
    found = built(X, NAMES, normalization=normalization)
    for name in NAMES:
        expected = naive.finished_kernel(X, name, normalization, "minmax")
        np.testing.assert_allclose(found[name], expected, rtol=1e-6, atol=1e-6, err_msg=name)


def test_far_from_the_origin_distances_keep_their_digits(rng):
    X = rng.normal(size=(N, 3))
    near, far = built(X, ["rbf_1"]), built(X + 1e6, ["rbf_1"])
    np.testing.assert_allclose(far["rbf_1"], near["rbf_1"], atol=1e-8)


def test_wide_rbf_is_scaled_without_cancellation(rng):
    X = text_like(rng)
    wide = built(X, ["rbf_100000"])["rbf_100000"]
    D2 = naive.distances_squared(X)
    np.testing.assert_allclose(wide, 1 - D2 / D2.max(), atol=1e-9)  # the limit of t → ∞


@pytest.mark.parametrize("form", ["sparse", "dense"])
@pytest.mark.parametrize("normalization", ["unit", "degree", "none"])
def test_zero_rows(rng, form, normalization):
    X = text_like(rng)
    X[[3, 17]] = 0
    found = built(
        sparse.csr_array(X) if form == "sparse" else X, NAMES, normalization=normalization
    )
    for name in NAMES:
        K = found[name]
        assert np.isfinite(K).all()
        expected = naive.finished_kernel(X, name, normalization, "minmax")
        np.testing.assert_allclose(K, expected, atol=1e-6, err_msg=name)
    if normalization == "unit":
        assert found["cosine"][3, 3] == 1
        assert not found["cosine"][3, :3].any()
        assert found["rbf_1"][3, 4] > 0  # well defined for a zero row


def test_all_samples_equal():
    X = np.ones((10, 3))
    for name, K in built(X, NAMES, block=4).items():
        np.testing.assert_array_equal(K, np.ones((10, 10)), err_msg=name)


def test_all_zero_features_give_identities_and_ones():
    found = built(np.zeros((6, 2)), ["cosine", "rbf_1", "poly_a0_b2"], block=4)
    np.testing.assert_array_equal(found["cosine"], np.eye(6))
    np.testing.assert_array_equal(found["poly_a0_b2"], np.eye(6))
    np.testing.assert_array_equal(found["rbf_1"], np.ones((6, 6)))


@given(
    n=st.integers(1, 40),
    d=st.integers(1, 6),
    block=st.integers(1, 50),
    seed=st.integers(0, 2**31),
    scale=st.sampled_from([1e-8, 1.0, 1e6]),
)
def test_any_shape_and_tiling(n, d, block, seed, scale):
    rng = np.random.default_rng(seed)
    X = scale * rng.normal(size=(n, d))
    X[rng.random(n) < 0.2] = 0
    X[rng.random(n) < 0.2] = X[0]
    kernels = ["rbf_1", "rbf_100", "poly_a0_b4", "poly_a1_b2", "cosine"]
    found = built(X, kernels, block)
    # beside huge Gram values the 1 of poly_a1 vanishes, and beside it tiny ones: nothing to compare
    for name in kernels:
        assert found[name].min() >= 0
        assert found[name].max() <= 1
        np.testing.assert_array_equal(found[name], found[name].T)
        if name != "poly_a1_b2" or scale == 1.0:
            expected = naive.finished_kernel(X, name, "unit", "minmax")
            np.testing.assert_allclose(found[name], expected, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("normalization", ["unit", "degree", "none"])
def test_callable_kernels(rng, normalization):
    X = text_like(rng)

    def doubled(A, B):
        return 2 * A @ B.T

    found = built(X, [doubled, "linear"], normalization=normalization)
    np.testing.assert_allclose(found["doubled"], found["linear"], atol=1e-12)
    with pytest.raises(InputError, match="one value per pair"):
        built(X, [FunctionKernel(lambda A, B: np.ones(3), "broken")])


@pytest.mark.parametrize("normalization", ["unit", "degree", "none"])
@pytest.mark.parametrize("scaling", ["minmax", "none"])
def test_precomputed_kernels_are_normalised_only_when_asked(rng, normalization, scaling):
    X = text_like(rng)
    K = naive.kernel(X, "poly_a1_b2")
    plain, treated = precomputed_specs(
        [K, Precomputed(K, "treated", normalization=normalization, scaling=scaling)]
    )
    tiling = Tiling(N, 16)
    request = KernelRequest(None, (plain, treated), precision="float64")
    tiles = list(zip(*build_tiles(request, 16).stacks, strict=True))
    np.testing.assert_array_equal(whole(tiles[0], tiling), (K + K.T) / 2)
    np.testing.assert_allclose(
        whole(tiles[1], tiling),
        naive.finished_kernel(X, "poly_a1_b2", normalization, scaling),
        atol=1e-9,
    )


def test_float32_overflow_is_refused_before_it_is_stored(rng):
    X = 1e12 * rng.random((8, 2))
    request = KernelRequest(
        corpus(X), resolve_kernels("poly_a0_b4"), normalization="none", scaling="none"
    )
    with pytest.raises(InputError, match=r"poly_a0_b4 overflows float32"):
        build_tiles(request, 4)
    assert np.isfinite(built(X, ["poly_a0_b4"])["poly_a0_b4"]).all()


def test_degree_needs_positive_row_sums(rng):
    with pytest.raises(InputError, match="linear cannot be normalised: its row sum"):
        built(rng.normal(size=(20, 3)), ["linear"], normalization="degree")


def test_compact_is_within_a_code(rng):
    X = text_like(rng)
    request = KernelRequest(corpus(X), resolve_kernels(NAMES), precision="compact")
    tiling = Tiling(N, 16)
    for name, tiles in zip(NAMES, zip(*build_tiles(request, 16).stacks, strict=True), strict=True):
        assert tiles[0].dtype == np.uint16
        K = whole(tiles, tiling) / 65534
        expected = naive.finished_kernel(X, name, "unit", "minmax")
        np.testing.assert_allclose(K, expected, atol=8e-6, err_msg=name)


def test_compact_refuses_what_it_cannot_hold(rng):
    request = KernelRequest(
        corpus(rng.normal(size=(9, 2))),
        resolve_kernels("linear"),
        scaling="none",
        precision="compact",
    )
    with pytest.raises(InputError, match=r"compact holds only \[0, 1\]"):
        build_tiles(request, 4)


@pytest.mark.parametrize(
    ("normalization", "sweeps"), [("unit", 1), ("none", 1), ("degree", 3)], ids=str
)
def test_statistics_sweeps_are_counted(rng, tmp_path, normalization, sweeps):
    """One statistics sweep and one write sweep; degree: three and one."""
    events = []
    request = KernelRequest(
        corpus(sparse.csr_array(text_like(rng))), PAPER12, normalization=normalization
    )
    store = build_store(tmp_path / "s.zarr", request, Runner(), events.append, block=16)
    finished = [e.stage for e in events if e.done == e.total == store.tiling.n_tiles]
    assert len(finished) == sweeps + 1
    assert finished[-1] == "write"


def test_one_gram_tile_serves_every_kernel(rng, monkeypatch):
    from gmkcf_dask.kernels.features import PairTile

    made = []
    original = PairTile.gram.func
    monkeypatch.setattr(PairTile.gram, "func", lambda tile: made.append(1) or original(tile))
    X = sparse.csr_array(text_like(rng))
    tiling = Tiling(N, 16)
    build_tiles(KernelRequest(corpus(X), PAPER12), 16)
    assert len(made) == 2 * tiling.n_tiles  # statistics, then values


@pytest.mark.parametrize("name", ["rbf_0", "rbf_-1", "poly_a1_b0", "poly_a1_b1.5", "gauss", ""])
def test_unknown_kernels_are_refused(name):
    with pytest.raises(InputError):
        resolve_kernels([parse_kernel(name)] if name else [])


def test_kernel_names_round_trip():
    for spec in (*PAPER12, Rbf(0.5), Polynomial(2.5, 3)):
        assert parse_kernel(spec.name) == spec
    with pytest.raises(InputError, match="did you mean 'cosine'"):
        resolve_kernels("cosin")
    with pytest.raises(InputError, match="named twice"):
        resolve_kernels("cosine,cosine")
