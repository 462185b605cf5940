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
from helpers.trails import TOLERANCES, assert_same_trail, trail_of
from hypothesis import given, strategies as st
from scipy import sparse

from gmkcf_dask.cluster import threads
from gmkcf_dask.compute import tiled as tiled_module
from gmkcf_dask.compute.costs import StoredGram, fit_task_bytes
from gmkcf_dask.compute.dense import DenseKernels
from gmkcf_dask.compute.runner import Runner
from gmkcf_dask.compute.tile_ops import FusedTiles, Partial, TreeSum, as_factor, error_factors
from gmkcf_dask.compute.tiled import TiledKernels
from gmkcf_dask.corpus.model import Corpus
from gmkcf_dask.errors import InputError
from gmkcf_dask.kernels.gram import (
    COARSEST_CODES,
    COARSEST_FLOATS,
    TWO_ZEROS,
    ZERO_AND_UNIT,
    ZERO_ITSELF,
    mark,
    table_error,
    table_of,
)
from gmkcf_dask.kernels.gram_loops import (
    ENTRIES,
    STEPS,
    gather_codes,
    gather_distances,
    scatter_codes,
    scatter_distances,
)
from gmkcf_dask.kernels.specs import resolve_kernels
from gmkcf_dask.kernels.tiling import tiling_for
from gmkcf_dask.pipeline import store_plan
from gmkcf_dask.store.build import build_store, build_tiles
from gmkcf_dask.store.request import KernelRequest

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
    tiles = built.tiles(tiling_for(wanted.n_samples, block, gram=True), wanted.precision)
    return DenseKernels(tiles, [spec.name for spec in wanted.tiled])


def exact(X, names, **options):
    X = X.toarray() if sparse.issparse(X) else X
    options = {"normalization": "unit", "scaling": "minmax"} | options
    return [naive.finished_kernel(X, name, **options) for name in names]


def whole(stack, i):
    return stack.single(i).matmul(np.eye(stack.n_samples))


NAMES = [spec.name for spec in resolve_kernels("paper12,linear")]
BOUNDS = {"float64": 1e-10, "float32": 2e-6, "compact": 1e-3}


@pytest.mark.parametrize("normalization", ["unit", "none", "degree"])
@pytest.mark.parametrize("scaling", ["minmax", "none"])
@pytest.mark.parametrize("precision", BOUNDS)
@pytest.mark.parametrize("rows", ROWS)
def test_every_kernel_is_that_of_the_oracle(rng, rows, precision, scaling, normalization):
    if rows == "unit of mixed signs" and normalization == "degree":
        pytest.skip("row sums below zero are refused")
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
    bounds = dict(TOLERANCES[precision])
    iterations = bounds.pop("iterations")
    if precision == "compact":  # the bound of codes, where that of kernels by themselves is 8e-6
        bounds = {"J": 1e-4, "factors": 5e-3}
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


def test_each_sweep_reads_the_bytes_of_one_array(rng, tmp_path):
    wanted = request(unit_rows(rng), "paper12", "compact", block=16)
    store = build_store(tmp_path / "s.zarr", wanted, Runner())
    plan = store_plan(store, K, threads())
    padded = store.tiling.n_tiles * 16 * 16
    assert plan.stored_bytes == 2 * padded
    assert plan.layout == "gram"


@pytest.mark.parametrize("rows", ["unit", "other"])
@pytest.mark.parametrize("precision", ["compact", "float32"])
def test_peak_of_a_task_does_not_grow_with_the_kernels(rng, tmp_path, rows, precision):
    n, block, k = 1200, 300, 4
    X = unit_rows(rng, n) * (1.0 if rows == "unit" else rng.uniform(0.5, 2.0, (n, 1)))
    U, V = rng.random((n, k)), rng.random((n, k))
    peaks = {}
    for names in ("rbf_0.01,rbf_1,cosine", f"{MANY},cosine"):
        stack = tiled_gram(
            tmp_path / f"{len(names)}.zarr", request(X, names, precision, block=block)
        )
        reader, tiles = stack._reader, np.arange(stack._reader.tiling.tiles_per_task(4))
        F, Z = (as_factor(Y, reader.dtype) for Y in (error_factors(U, V), np.hstack([U, V])))
        source = FusedTiles.of(reader, np.ones(len(stack.names)))
        works = [
            partial(tiled_module.errors_with_bins_task, tiles, F, reader),
            partial(tiled_module.product_task, tiles, Z, source, reader.tiling, split=False),
            partial(tiled_module.fuse_task, tiles, source, reader.tiling),
        ]
        peaks[names] = [peak_of(work) for work in works]
        gram = StoredGram(reader.gram.matrix.itemsize, reader.gram.matrix.tabulated, 0)
        planned = fit_task_bytes(reader.tiling, 2 * k, precision, len(stack.names), gram)
        assert max(peaks[names]) <= planned
    for few, many in zip(*peaks.values(), strict=True):
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


@pytest.mark.parametrize("rows", ["unit", "zero rows"])
@pytest.mark.parametrize("name", [spec.name for spec in resolve_kernels("paper12")])
def test_codes_are_off_by_half_a_step_of_the_table(rng, rows, name):
    """h/2·max|f'|, and linear interpolation by h²/8·max|f''|."""
    X = ROWS[rows](rng)
    (K_,) = exact(X, [name])
    for precision, order, part in (("compact", 1, 0.5), ("float32", 2, 0.125)):
        stack = dense_gram(request(X, name, precision))
        matrix, kernel = stack._reader.gram.matrix, stack._reader.gram.by_number[0]
        entries = table_of(matrix, kernel)[: STEPS + 1]
        bound = part * np.abs(np.diff(entries, order)).max()
        assert table_error(matrix, [kernel]) == bound
        assert bound <= {"compact": COARSEST_CODES, "float32": COARSEST_FLOATS}[precision]
        assert np.abs(whole(stack, 0) - K_).max() <= bound + 3e-7  # values are float32


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
