"""Kernels evaluated from one stored number per pair: the same as with an array for each."""

import pickle
from dataclasses import replace
from functools import partial
from itertools import pairwise

import naive
import numpy as np
import pytest
from helpers.counting import CountingRunner, cost_of_one_iteration
from helpers.marks import mostly_slow
from helpers.peaks import peak_of
from helpers.problems import RUNNERS, start
from helpers.trails import CODES_OF_DISTANCES, TOLERANCES, assert_same_trail, trail_of
from hypothesis import given, strategies as st
from scipy import sparse
from sklearn.preprocessing import normalize

from gmkcf_dask.cluster import threads
from gmkcf_dask.compute import build_tasks, tiled as tiled_module
from gmkcf_dask.compute.costs import StoredGram, cached_table_bytes, fit_task_bytes
from gmkcf_dask.compute.dense import DenseKernels
from gmkcf_dask.compute.runner import Runner
from gmkcf_dask.compute.tile_ops import FusedTiles, Partial, TreeSum, as_factor, error_factors
from gmkcf_dask.compute.tiled import TiledKernels
from gmkcf_dask.corpus.model import Corpus
from gmkcf_dask.errors import InputError, PlanRefused
from gmkcf_dask.kernels import gram as gram_module
from gmkcf_dask.kernels.gram import (
    COARSEST_CODES,
    COARSEST_FLOATS,
    TWO_ZEROS,
    ZERO_AND_UNIT,
    ZERO_ITSELF,
    _pair,
    mark,
    table_error,
    table_of,
)
from gmkcf_dask.kernels.gram_loops import (
    ENTRIES,
    STEPS,
    _locate,
    gather_codes,
    gather_distances,
    scatter_codes,
    scatter_distances,
)
from gmkcf_dask.kernels.sparse_loops import sparse_product
from gmkcf_dask.kernels.specs import resolve_kernels
from gmkcf_dask.kernels.tiles import final_values
from gmkcf_dask.kernels.tiling import Tiling
from gmkcf_dask.pipeline import store_plan
from gmkcf_dask.store.build import build_store, build_tiles
from gmkcf_dask.store.kernel_store import KernelStore
from gmkcf_dask.store.request import KernelRequest
from gmkcf_dask.store.tile_reader import StoreTileReader
from gmkcf_dask.store.verify import find_damage

N, K = 60, 3


def unit_rows(rng, n=N, d=12):
    X = rng.random((n, d)) ** 3 * (rng.random((n, d)) < 0.4)
    X += np.eye(d)[rng.integers(0, 3, n)]
    return unit_length(X)


def unit_length(X):
    return X / np.linalg.norm(X, axis=1, keepdims=True)


def with_zeros(X):
    X = X.copy()
    X[[3, 17, 40]] = 0.0
    return X


ROWS = {
    "unit": unit_rows,
    "sparse": lambda rng: sparse.csr_array(unit_rows(rng)),
    "unit of mixed signs": lambda rng: unit_length(unit_rows(rng) + rng.normal(0, 0.3, (N, 12))),
    "zero rows": lambda rng: with_zeros(unit_rows(rng)),
    "other": lambda rng: unit_rows(rng) * rng.uniform(0.5, 2.0, (N, 1)),
    "other with zero rows": lambda rng: with_zeros(unit_rows(rng) * rng.uniform(0.2, 3, (N, 1))),
    "far from the origin": lambda rng: 50.0 + 3 * unit_rows(rng) + rng.normal(size=(N, 12)),
    "lengths that vary": lambda rng: unit_rows(rng) * 10.0 ** rng.uniform(-2, 2, (N, 1)),
}


def request(X, names, precision="float32", layout="gram", block=None, **options):
    corpus = Corpus(X, tuple(map(str, range(X.shape[0]))))
    return KernelRequest(
        corpus, resolve_kernels(names), precision=precision, layout=layout, block=block, **options
    )


def dense_gram(wanted, block=20):
    built = build_tiles(wanted, block)
    tiles = built.tiles(Tiling(wanted.n_samples, block, gram=True), wanted.precision)
    return DenseKernels(tiles, [spec.name for spec in wanted.tiled])


def exact(X, names, **options):
    X = X.toarray() if sparse.issparse(X) else X
    options = {"normalization": "unit", "scaling": "minmax"} | options
    return [naive.finished_kernel(X, name, **options) for name in names]


def whole(stack, i):
    return stack.single(i).matmul(np.eye(stack.n_samples))


NAMES = [spec.name for spec in resolve_kernels("paper12,linear")]
BOUNDS = {"float64": 1e-10, "float32": 2e-6, "compact": 1e-3}


SAMPLES_OF_EACH = [
    (rows, how)
    for rows in ROWS
    for how in ("unit", "none", "degree")
    if (rows, how) != ("unit of mixed signs", "degree")  # row sums below zero are refused
]


@pytest.mark.parametrize(("rows", "normalization"), SAMPLES_OF_EACH)
@pytest.mark.parametrize("scaling", ["minmax", "none"])
@pytest.mark.parametrize("precision", BOUNDS)
def test_every_kernel_is_that_of_the_oracle(rng, rows, precision, scaling, normalization):
    X = ROWS[rows](rng)
    options = {"normalization": normalization, "scaling": scaling}
    stack = dense_gram(request(X, NAMES, precision, **options))
    bound = BOUNDS[precision]
    for i, K in enumerate(exact(X, NAMES, **options)):
        found = whole(stack, i)
        assert np.abs(found - K).max() <= bound * max(1.0, np.abs(K).max()), NAMES[i]
        np.testing.assert_allclose(stack.diagonal(i), np.diagonal(K), rtol=1e-6, atol=1e-12)


def tiled_gram(path, wanted, runner=None, residency="memory"):
    store = build_store(path, wanted, Runner())
    return TiledKernels(store, runner or Runner(scheduler="synchronous"), residency)


MANY = "rbf_bank(100)"
SETS = {"1": "rbf_1", "12": "paper12", "100": MANY}


def trails(rng, rows, names, precision, **options):
    """Samples, a start, the iterates of the oracle, and how near others have to come."""
    X = ROWS[rows](rng)
    Ks = exact(X, [spec.name for spec in resolve_kernels(names)], **options)
    U, V = start(rng, N, K)
    bounds = dict(CODES_OF_DISTANCES if precision == "compact" else TOLERANCES[precision])
    iterations = bounds.pop("iterations")
    return X, U, V, iterations, naive.gmkcf(Ks, U, V, iterations), bounds


SAMPLES = [
    (rows, how) for rows in ("unit", "other", "zero rows") for how in ("unit", "degree", "none")
]


@pytest.mark.parametrize("names", SETS.values(), ids=SETS)
@pytest.mark.parametrize("precision", BOUNDS)
@mostly_slow(("rows", "normalization"), [*SAMPLES, ("far from the origin", "unit")])
def test_dense_equals_naive(rng, rows, precision, names, normalization):
    options = {"normalization": normalization}
    X, U, V, iterations, expected, bounds = trails(rng, rows, names, precision, **options)
    stack = dense_gram(request(X, names, precision, **options))
    assert_same_trail(trail_of(stack, U, V, iterations), expected, **bounds)


@pytest.mark.parametrize("precision", BOUNDS)
@mostly_slow("rows", ["unit of mixed signs", "unit", "other"])
@mostly_slow("scheduler", ["synchronous", "threads"])
@mostly_slow("block", [20, 27, 100])
def test_tiled_equals_naive(rng, tmp_path, runner_named, scheduler, precision, rows, block):
    names = "cosine,poly_a0_b2,rbf_1,linear"
    X, U, V, iterations, expected, bounds = trails(rng, rows, names, precision, scaling="none")
    wanted = request(X, names, precision, block=block, scaling="none")
    stack = tiled_gram(tmp_path / "s.zarr", wanted, runner_named(scheduler))
    assert stack.nonnegative == (rows != "unit of mixed signs")
    assert_same_trail(trail_of(stack, U, V, iterations), expected, **bounds)


@mostly_slow("scheduler", RUNNERS)
@pytest.mark.parametrize("precision", BOUNDS)
@mostly_slow("rows", ["unit", "other", "zero rows"])
@mostly_slow("residency", ["memory", "scratch", "recompute"])
def test_same_bits_everywhere(rng, tmp_path, runner_named, scheduler, precision, rows, residency):
    X = ROWS[rows](rng)
    wanted = request(X, "paper12", precision, block=16)
    store = build_store(tmp_path / "s.zarr", wanted, Runner())
    U, V = start(rng, N, K)
    kept = DenseKernels.from_store(store)
    expected = trail_of(kept, U, V, 5)
    stacks = [
        DenseKernels.from_store(store, keep_fused=False),
        dense_gram(wanted, 16),
        TiledKernels(store, runner_named(scheduler), residency),
    ]
    groups = rng.integers(0, 3, N)
    for stack in stacks:
        for found, known in zip(trail_of(stack, U, V, 5)[1], expected[1], strict=True):
            for one, other in zip(found, known, strict=True):
                np.testing.assert_array_equal(one, other)
        for one, other in zip(stack.matmul_each(U), kept.matmul_each(U), strict=True):
            np.testing.assert_array_equal(one, other)
        one, other = stack.overview(groups, 3), kept.overview(groups, 3)
        np.testing.assert_array_equal(one.sums, other.sums)
        np.testing.assert_array_equal(one.products, other.products)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_compiled_product_has_the_bits_of_scipy(rng, dtype):
    def rows(m):
        X = rng.random((m, 300)) * (rng.random((m, 300)) < 0.1)
        X[3] = 0.0
        return sparse.csr_array(X.astype(dtype))

    A, B = rows(37), rows(51)
    expected = (A.astype(np.float64) @ B.astype(np.float64).T).toarray()
    np.testing.assert_array_equal(sparse_product(A, B), expected)


# what it costs


@pytest.mark.parametrize("names", ["paper12", MANY], ids=["12", "100"])
@pytest.mark.parametrize("precision", ["compact", "float64"])
@pytest.mark.parametrize(("residency", "sweeps"), [("memory", 2), ("recompute", 3)])
def test_a_sweep_reads_one_tile_for_all_kernels(
    rng, tmp_path, reads, names, precision, residency, sweeps
):
    wanted = request(unit_rows(rng), names, precision, block=16)
    runner = CountingRunner(scheduler="synchronous")
    stack = tiled_gram(tmp_path / "s.zarr", wanted, runner, residency)
    graphs, tiles = cost_of_one_iteration(stack, runner, reads)
    assert graphs == 3
    assert tiles == sweeps * stack._reader.tiling.n_tiles
    reads.clear()
    stack.matmul_each(rng.random((N, K)))
    assert len(reads) == stack._reader.tiling.n_tiles


@pytest.mark.parametrize(
    ("rows", "precision", "itemsize"),
    [
        ("unit", "compact", 2),
        ("unit", "float32", 4),
        ("other", "compact", 4),
        ("unit", "float64", 8),
    ],
)
def test_each_sweep_reads_the_bytes_of_one_array(
    rng, tmp_path, monkeypatch, rows, precision, itemsize
):
    seen, original = [], StoreTileReader.raw

    def raw(self, kernel, t, into=None):
        seen.append(into.nbytes)
        return original(self, kernel, t, into)

    wanted = request(ROWS[rows](rng), "paper12", precision, block=16)
    stack = tiled_gram(tmp_path / "s.zarr", wanted, residency="recompute")
    monkeypatch.setattr(StoreTileReader, "raw", raw)
    U, V = start(rng, N, K)
    trail_of(stack, U, V, 1)
    seen.clear()
    trail_of(stack, U, V, 3)
    padded = stack._reader.tiling.n_tiles * 16 * 16
    assert sum(seen) == 3 * 3 * itemsize * padded
    plan = store_plan(stack._store, K, threads())
    assert plan.stored_bytes == itemsize * padded
    assert plan.layout == "gram"


@mostly_slow("normalization", ["unit", "degree"])
@mostly_slow("rows", ["unit", "other"])
@mostly_slow("precision", ["compact", "float32", "float64"])
def test_peak_of_a_task_does_not_grow_with_the_kernels(
    rng, tmp_path, rows, precision, normalization
):
    n, block, k = 1200, 300, 4
    X = unit_rows(rng, n) * (1.0 if rows == "unit" else rng.uniform(0.5, 2.0, (n, 1)))
    U, V = rng.random((n, k)), rng.random((n, k))
    peaks = {}
    for names in ("rbf_bank(20)", MANY):
        wanted = request(X, names, precision, block=block, normalization=normalization)
        stack = tiled_gram(tmp_path / f"{len(names)}.zarr", wanted)
        reader, tiles = stack._reader, np.arange(stack._reader.tiling.tiles_per_task(4))
        F, Z = (as_factor(Y, reader.dtype) for Y in (error_factors(U, V), np.hstack([U, V])))
        source, m = FusedTiles.of(reader, np.ones(len(stack.names))), len(stack.names)
        errors = tiled_module.errors_with_bins_task
        if not reader.gram.in_tables:
            errors = tiled_module.errors_task
        groups, one = np.zeros(n, np.int32), {m - 1: slice(0, k)}
        works = [
            partial(errors, tiles, F, reader),
            partial(tiled_module.product_task, tiles, Z, source, reader.tiling, split=False),
            partial(tiled_module.fuse_task, tiles, source, reader.tiling),
            partial(tiled_module.product_each_task, tiles, Z, reader, one, split=False),
            partial(tiled_module.overview_task, tiles, groups, reader, 2),
        ]
        gram = StoredGram(reader.gram.matrix.itemsize, reader.gram.matrix.tabulated, 0)
        planned = fit_task_bytes(reader.tiling, 2 * k, precision, m, gram)
        planned += cached_table_bytes(m, gram)
        peaks[names] = []
        for work in works:
            table_of.cache_clear()
            peaks[names].append(peak_of(work))
        assert max(peaks[names]) <= planned
    for few, many in list(zip(*peaks.values(), strict=True))[:-1]:  # an overview compares tiles
        assert many <= few + block * block * 4


def test_kernels_that_travel_take_no_tables_along(rng):
    stack = dense_gram(request(unit_rows(rng), MANY, "compact"))
    gram = stack._reader.gram
    assert gram.tables.nbytes > 50_000_000
    light = replace(gram, vectors=str)  # those of a store are names
    assert light.tables.nbytes > 50_000_000
    assert len(pickle.dumps(light)) < 50_000


def test_sums_in_any_order_are_the_same_bits(rng):
    parts = [Partial({0: rng.random(5)}) for _ in range(77)]
    tree = TreeSum(len(parts))
    for number in rng.permutation(len(parts)):
        tree.add(int(number), parts[number])
    expected = Partial.tree_sum(parts)
    np.testing.assert_array_equal(tree.total.blocks[0], expected.blocks[0])


# tables


def derivatives(kernel, d):
    """f' and f'' of a kernel of unit rows as a function of the distance, from its formula."""
    if kernel.sigma is not None:
        s2 = kernel.sigma**2
        value = np.exp(-(d**2) / (2 * s2))
        first, second = -d / s2 * value, (d**2 / s2 - 1.0) / s2 * value
    else:
        a, b = (kernel.spec.a, kernel.spec.b) if hasattr(kernel.spec, "b") else (0.0, 1)
        u = (a + 1.0 - d**2 / 2) / (a + 1.0)
        first = -b * u ** (b - 1) * d / (a + 1.0)
        second = -b * u ** (b - 1) / (a + 1.0)
        second += b * (b - 1) * u ** max(b - 2, 0) * (d / (a + 1.0)) ** 2
    factor = 1.0 / (kernel.maximum - kernel.minimum)
    return first * factor, second * factor


def near_and_far(rng):
    """Unit rows with distances from some 1e-3 on, where narrow kernels change most."""
    X = np.repeat(unit_rows(rng, N // 4), 4, axis=0)
    return unit_length(X + 0.005 * rng.random(X.shape))


@pytest.mark.parametrize("name", [spec.name for spec in resolve_kernels("paper12")])
def test_codes_are_off_by_half_a_step(rng, name):
    """h/2·max|f'|, which narrow kernels come near to."""
    X = near_and_far(rng)
    (K_,) = exact(X, [name])
    stack = dense_gram(request(X, name, "compact", products=False))
    matrix, kernel = stack._reader.gram.matrix, stack._reader.gram.by_number[0]
    first, _ = derivatives(kernel, np.linspace(0.0, matrix.d_max, 1 << 18))
    bound = matrix.d_max / STEPS / 2 * np.abs(first).max()
    assert table_error(matrix, [kernel]) == pytest.approx(bound, rel=1e-3)
    assert bound <= COARSEST_CODES
    off = np.abs(whole(stack, 0) - K_).max()
    assert off <= bound + 1e-7  # values are float32
    assert off >= 0.1 * bound


@pytest.mark.parametrize("name", [spec.name for spec in resolve_kernels("paper12")])
def test_interpolated_tables_are_off_by_a_square_of_a_step(rng, name):
    """h²/8·max|f''|."""
    X = near_and_far(rng)
    stack = dense_gram(request(X, name, "float32", products=False))
    matrix, kernel = stack._reader.gram.matrix, stack._reader.gram.by_number[0]
    d = np.sort(rng.random((1, 20_000)) * matrix.d_max).astype(np.float32)
    # many where f'' is largest: near 0 for Gaussian kernels
    d[0, :5000] *= 0.02
    _, second = derivatives(kernel, np.linspace(0.0, matrix.d_max, 1 << 18))
    bound = (matrix.d_max / STEPS) ** 2 / 8 * np.abs(second).max()
    assert table_error(matrix, [kernel]) == pytest.approx(bound, rel=1e-2, abs=1e-15)
    assert bound <= COARSEST_FLOATS
    table, found = table_of(matrix, kernel), np.empty(d.shape)
    gather_distances(d, table, matrix.per_distance, found)
    d2 = d.astype(np.float64) ** 2
    expected = final_values(kernel, _pair(d2, 1.0 - d2 / 2, 1.0, 1.0), {})
    off = np.abs(found - expected).max()
    assert 0.1 * bound <= off <= 1.01 * bound + 1e-8  # the share between entries is float32


def test_any_number_leads_into_the_table():
    """Damaged tiles may hold what is no distance."""
    values = [np.inf, -np.inf, np.nan, -70_000.0, 70_000.0, -3.4e38, 3.4e38, -65_541.0]
    distances = np.array([values], np.float32)
    below, share = np.empty(len(values), np.uint16), np.empty(len(values), np.float32)
    with np.errstate(invalid="ignore"):
        _locate(distances[0], 1000.0, below, share)
    assert int(below.max()) + 1 < ENTRIES


@given(
    st.integers(2, 9),
    st.integers(1, 40),
    st.sampled_from([np.float32, np.float64]),
    st.integers(0, 2**32 - 1),
)
def test_scattering_is_adjoint_to_gathering(rows, columns, dtype, seed):
    """⟨gather(f), S⟩ = ⟨f, scatter(S)⟩ for codes, and for distances between them."""
    rng = np.random.default_rng(seed)
    S, table = rng.normal(size=(rows, columns)).astype(dtype), rng.normal(size=ENTRIES)
    codes = rng.integers(0, 65_536, (rows, columns)).astype(np.uint16)
    distances = rng.choice([0.0, 1.0, 0.3, -1.0, -2.0, -3.0], (rows, columns)).astype("f4")
    distances[0] = rng.random(columns)
    for kept, gather, scatter, scale in (
        (codes, gather_codes, scatter_codes, ()),
        (distances, gather_distances, scatter_distances, (float(STEPS),)),
    ):
        out, bins = np.empty(kept.shape), np.zeros((2, ENTRIES))
        gather(kept, table, *scale, out)
        scatter(kept, S, 2.0, *scale, bins)
        assert 2.0 * np.vdot(out, S) == pytest.approx(np.vdot(table, bins.sum(axis=0)), abs=1e-4)


def test_distances_that_are_not_kept_get_marks(rng):
    X = with_zeros(unit_rows(rng))
    for precision in ("compact", "float32"):
        stack = dense_gram(request(X, "poly_a1_b2,rbf_1", precision), 100)
        tile, matrix = stack._reader.gram_tiles[0], stack._reader.gram.matrix
        assert tile[3, 5] == mark(matrix, ZERO_AND_UNIT)
        assert tile[3, 17] == mark(matrix, TWO_ZEROS)
        stack.errors(*start(rng, N, K))
        assert tile[3, 3] == mark(matrix, ZERO_ITSELF)


# what is kept


@pytest.mark.parametrize(
    ("rows", "names", "precision", "content", "dtype"),
    [
        ("unit", "paper12", "compact", "codes", "uint16"),
        ("unit", "paper12", "float32", "distances", "float32"),
        ("unit", "paper12", "float64", "products", "float64"),
        ("other", "rbf_1,rbf_10", "compact", "codes", "uint16"),
        ("other", "paper12", "compact", "distances", "float32"),
        ("lengths that vary", "paper12", "float32", "products", "float64"),
        ("lengths that vary", "poly_a1_b2,cosine", "float32", "products", "float32"),
        ("unit", "rbf_0.0001,rbf_1", "compact", "distances", "float32"),
    ],
)
def test_what_is_kept_follows_from_lengths_and_errors(rng, rows, names, precision, content, dtype):
    matrix = request(ROWS[rows](rng), names, precision).gram
    assert (matrix.content, matrix.dtype) == (content, dtype)


def hidden(X, row, at=777):
    """Samples with one that is unlike the others, where no evenly spread sample has it."""
    X = X.copy()
    X[at] = row
    return X


def cone(rng, n=2000):
    return unit_length(0.4 + 0.02 * rng.random((n, 6)))


def spread_out(rng, n=2000):
    X = rng.normal(size=(n, 5))
    X[rng.choice(n, 100, replace=False)] += rng.normal(size=(100, 5)) * 300
    return X


UNLIKE = {
    "opposite to a narrow cone": (
        lambda rng: hidden(cone(rng), -cone(rng)[0]), "rbf_1,cosine,poly_a0_b2"
    ),
    "near the origin, others far": (
        lambda rng: hidden(5.0 + 0.01 * rng.normal(size=(3000, 6)), 1e-6 * rng.normal(size=6)),
        "poly_a1_b2,poly_a1_b4,cosine",
    ),
    "a few far away": (spread_out, "rbf_0.05,rbf_1,rbf_10"),
    "nearly equal": (lambda rng: np.repeat(unit_rows(rng, 1000), 2, axis=0), "rbf_0.01,cosine"),
}  # fmt: skip


@pytest.mark.parametrize("precision", ["compact", "float32"])
@pytest.mark.parametrize("unlike", UNLIKE)
def test_what_is_kept_tells_samples_that_are_unlike_others(rng, precision, unlike):
    """The choice is made on a sample of pairs, and again when the ranges of all are known."""
    make, names = UNLIKE[unlike]
    X = make(rng)
    stack = dense_gram(request(X, names, precision, "auto"), 512)
    limit = COARSEST_CODES if stack._reader.gram.matrix.content == "codes" else COARSEST_FLOATS
    some = np.unique(np.r_[0:40, 770:790, len(X) - 40 : len(X)])
    for i, name in enumerate(stack.names):
        found = stack.single(i).matmul(np.eye(len(X))[:, some])[some]
        K_ = naive.finished_kernel(X, name, normalization="unit", scaling="minmax")[some][:, some]
        assert np.abs(found - K_).max() <= limit + 2e-7, name


def test_more_is_kept_where_a_kernel_turns_out_to_need_it(rng, tmp_path, monkeypatch):
    """A sample that shows nothing: the ranges of all pairs come later, and no tile is written."""
    X = hidden(cone(rng, 600), -cone(rng)[0], 333)
    typical = gram_module._typical_rows
    monkeypatch.setattr(gram_module, "_telling_rows", lambda X, squares: typical(X))
    wanted = request(X, "rbf_1,cosine,poly_a0_b2", "float32", block=100)
    assert wanted.gram.content == "distances"
    monkeypatch.undo()
    store = build_store(tmp_path / "s.zarr", wanted, Runner())
    assert store.manifest.gram.dtype == "float64"
    assert not find_damage(KernelStore.open(store.path), Runner())
    (K_,) = exact(X, ["poly_a0_b2"])
    for stack in (DenseKernels.from_store(store), dense_gram(wanted, 100)):
        assert np.abs(whole(stack, 2) - K_).max() <= 1e-6
    monkeypatch.setattr(build_tasks, "free_memory", lambda: 1000)
    with pytest.raises(PlanRefused, match="need 8 bytes of each pair of samples"):
        build_tiles(wanted, 100)


def test_rows_normalised_in_float32_are_of_unit_length(rng):
    X = unit_length(rng.normal(size=(300, 384))).astype(np.float32)
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    for rows in (X, normalize(X)):
        matrix = request(rows, "paper12", "compact").gram
        assert matrix.unit_rows
        assert matrix.content == "codes"


@pytest.mark.parametrize("normalization", ["unit", "none", "degree"])
@pytest.mark.parametrize("precision", ["compact", "float32", "float64"])
@pytest.mark.parametrize("lengths", [1.0, 2.0])
def test_orthogonal_groups_have_no_entry_below_zero(rng, precision, normalization, lengths):
    """Rounding below zero would be a kernel of mixed signs under the updates of the others."""
    X = np.zeros((N, 12))
    for i in range(N):
        X[i, 4 * (i % 3) : 4 * (i % 3) + 4] = rng.random(4) + 0.05
    X = unit_length(X) * rng.uniform(1.0 / lengths, lengths, (N, 1))
    names, options = "poly_a0_b1,poly_a0_b3,cosine", {"normalization": normalization}
    Ks = exact(X, names.split(","), scaling="none", **options)
    stack = dense_gram(request(X, names, precision, scaling="none", products=False, **options))
    assert stack.nonnegative
    assert min(whole(stack, i).min() for i in range(3)) >= 0.0
    U, V = start(rng, N, K)
    expected = naive.gmkcf(Ks, U, V, 60)
    assert trail_of(stack, U, V, 60)[1][-1][3] == pytest.approx(expected[-1][3], rel=1e-3)


@pytest.mark.parametrize("precision", ["compact", "float32", "float64"])
def test_signs_of_products_that_round_to_zero_are_mixed(rng, precision):
    """Features of both signs whose products are 0 or more: what is kept may say less."""
    X = np.kron(np.eye(3), np.ones((N // 3, 4))) * rng.uniform(0.5, 2.0, (N, 1))
    turned = X @ np.linalg.qr(rng.normal(size=(12, 12)))[0]
    options = {"scaling": "none", "products": False}
    stack = dense_gram(request(turned, "poly_a0_b1,poly_a0_b3", precision, **options))
    least = min(whole(stack, i).min() for i in range(2))
    assert least >= 0.0 or not stack.nonnegative


def test_large_samples_overflow_in_silence(rng):
    X = 1e80 * unit_rows(rng)
    for layout in ("each", "gram"):
        stack = dense_gram(request(X, "rbf_0.5,poly_a1_b2,cosine", layout=layout))
        assert np.isfinite(stack.diagonal(1)).all()


def test_auto_takes_one_array_for_several_kernels(rng):
    X = unit_rows(rng)
    assert request(X, "rbf_1", layout="auto").gram is None
    assert request(X, "rbf_1,cosine", layout="auto").gram is not None
    assert request(X, "rbf_1,cosine", layout="each").gram is None
    assert request(X, "rbf_1", layout="gram").gram is not None


def test_many_kernels_by_name():
    specs = resolve_kernels("rbf_bank(100)")
    assert len(specs) == len({spec.name for spec in specs}) == 100
    assert (specs[0].t, specs[-1].t) == (0.01, 100.0)
    ratios = [b.t / a.t for a, b in pairwise(specs)]
    assert max(ratios) / min(ratios) < 1.01
    assert len(resolve_kernels("paper12,rbf_bank(100)")) == 110  # 0.01 and 100 are in both
    for wrong in ("rbf_bank", "rbf_bank(1)", "rbf_bank(0)", "rbf_bank(x)", "rbf_bank(99999)"):
        with pytest.raises(InputError, match="rbf_bank"):
            resolve_kernels(wrong)


def test_kernels_whose_tables_are_alike_are_named(rng, tmp_path):
    store = build_store(tmp_path / "s.zarr", request(unit_rows(rng), "paper12", block=20), Runner())
    said = store.duplicates()
    assert any("rbf_100 equals rbf_50" in sentence for sentence in said)
    assert not any("rbf_0.05" in sentence for sentence in said)
    assert store.manifest.stored_as == store.names
