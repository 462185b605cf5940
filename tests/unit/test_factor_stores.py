"""Factored kernels in a store: build, resume, verify, repair, fit and predict."""

import numpy as np
import pytest
from click.testing import CliRunner
from scipy import sparse

from gmkcf_dask import GMKCF, load
from gmkcf_dask.cli import main
from gmkcf_dask.cluster import threads
from gmkcf_dask.compute.factor_plan import factor_sizes
from gmkcf_dask.compute.runner import Runner
from gmkcf_dask.corpus.model import Corpus
from gmkcf_dask.corpus.validate import as_features
from gmkcf_dask.errors import DataWarning, InputError, PlanRefused, StoreError, WeakClustersWarning
from gmkcf_dask.events import StageNote
from gmkcf_dask.kernels.specs import HEAT, LOCAL, factor_specs, local_kernels_for, resolve_kernels
from gmkcf_dask.pipeline import (
    memory_kernels,
    request_plan,
    store_plan,
    stored_kernels,
)
from gmkcf_dask.store import factors as factors_module
from gmkcf_dask.store.build import build_store
from gmkcf_dask.store.kernel_store import KernelStore
from gmkcf_dask.store.manifest import Manifest
from gmkcf_dask.store.repair import repair_store
from gmkcf_dask.store.request import KernelRequest
from gmkcf_dask.store.verify import find_damage

N, D, K = 90, 40, 3


@pytest.fixture
def X(rng):
    """Documents about three topics."""
    rows = np.zeros((N, D))
    for i in range(N):
        topic = i % K
        own = rng.choice(np.arange(10 * topic, 10 * topic + 14) % D, 7, replace=False)
        rows[i, own] = rng.random(7) + 0.2
    return sparse.csr_array(rows / np.linalg.norm(rows, axis=1, keepdims=True))


def request_of(X, kernels="local", **options):
    corpus = Corpus(X, tuple(str(i) for i in range(X.shape[0])))
    return KernelRequest(corpus, resolve_kernels(kernels), **options)


def build(path, X, kernels="local", **options):
    return build_store(path, request_of(X, kernels, **options), Runner())


def test_a_store_holds_the_arrays_of_memory(tmp_path, X, small_blocks):
    store = build(tmp_path / "s.zarr", X)
    made = memory_kernels(request_of(X), K)
    assert store.kernel_names == made.stack.names == ("local_0", "local_1", "local_2", "local_4")
    assert store.manifest.complete
    arrays = store.factors()
    for name, values in made.arrays.items():
        np.testing.assert_array_equal(arrays.read(name), values)


@pytest.mark.parametrize("kernels", ["local", "local,rbf_1", "local,cosine"])
def test_the_same_bits_in_memory_from_a_store_and_by_tasks(tmp_path, X, small_blocks, kernels):
    store = build(tmp_path / "s.zarr", X, kernels)
    resources = threads(2)
    plan = store_plan(store, K, resources)
    U = np.random.default_rng(0).random((N, K))
    edge = {"block": store.manifest.block_size} if "rbf" in kernels else {}
    by_tasks = type(plan)(**{**vars(plan), "kernels_in_memory": False})
    results = [
        stack.fuse(np.full(len(stack.names), 0.1)).matmul(U)
        for stack in (
            memory_kernels(request_of(X, kernels, **edge), K).stack,
            stored_kernels(store, plan, resources),
            stored_kernels(store, by_tasks, resources),
        )
    ]
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)


@pytest.mark.parametrize("stage", range(8))
def test_a_build_that_is_broken_off_resumes(tmp_path, X, small_blocks, monkeypatch, stage):
    whole = build(tmp_path / "whole.zarr", X).manifest.factors
    fill, filled = factors_module.StoreArrays.fill, []

    class BrokenOff(Exception):
        pass

    def broken(self, stage_of, blocks, listen):
        if len(filled) == stage:
            raise BrokenOff
        filled.append(stage_of.title)
        fill(self, stage_of, blocks, listen)

    with monkeypatch.context() as patch:
        patch.setattr(factors_module.StoreArrays, "fill", broken)
        if stage < 7:
            with pytest.raises(BrokenOff):
                build(tmp_path / "s.zarr", X)
            with pytest.raises(StoreError, match="incomplete"):
                KernelStore.open(tmp_path / "s.zarr")
    assert build(tmp_path / "s.zarr", X).manifest.factors == whole


def test_damaged_blocks_are_found_and_made_again(tmp_path, X, small_blocks):
    store = build(tmp_path / "s.zarr", X)
    before = store.manifest.factors
    for name in before:
        chunk = "1/0" if len(before[name].shape) == 2 else "1"
        file = store.path / "factors" / name / "c" / chunk
        if not file.exists():
            file = store.path / "factors" / name / "c" / chunk.replace("1", "0", 1)
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 0x55
        file.write_bytes(content)
    damage = find_damage(KernelStore.open(store.path), Runner())
    assert {name for name, _ in damage.blocks} == set(before)
    assert not repair_store(store.path, Runner()).left
    again = KernelStore.open(store.path)
    assert again.manifest.factors == before
    assert not find_damage(again, Runner())


def test_a_lost_chunk_is_told_by_a_fit_and_repaired_by_a_build(tmp_path, X):
    store = build(tmp_path / "s.zarr", X)
    (store.path / "factors/smooth_2/c/0/0").unlink()
    with pytest.raises(StoreError, match=r"factors/smooth_2 .* gmkcf repair"):
        GMKCF(K, random_state=0).fit(store.path)
    with pytest.warns(UserWarning, match="repaired"):
        build_store(store.path, request_of(X), Runner(), verify=True)
    GMKCF(K, random_state=0).fit(store.path)


def test_estimators_agree_in_memory_and_with_a_store(tmp_path, X):
    memory = GMKCF(K, random_state=0).fit(X)
    stored = GMKCF(K, random_state=0, store=tmp_path / "s.zarr").fit(X)
    np.testing.assert_array_equal(memory.V_, stored.V_)
    np.testing.assert_array_equal(memory.labels_, stored.labels_)
    assert len(np.unique(memory.labels_)) == K
    new = X[:30] * 1.0
    new.data *= 1.5  # its length does not matter
    for model in (memory, stored, stored.to_local()):
        np.testing.assert_array_equal(model.predict(X), model.labels_)
        assert (model.predict(new) == model.labels_[:30]).mean() > 0.9
    memory.save(tmp_path / "m")
    np.testing.assert_array_equal(load(tmp_path / "m").predict(X), memory.labels_)


def test_a_table_of_numbers(rng, tmp_path):
    X = np.vstack([rng.normal(c, 0.9, (30, 3)) for c in ((0, 0, 9), (4, 0, 9), (0, 4, 9))])
    model = GMKCF(3, random_state=0).fit(X)
    assert model.kernel_names_ == ("heat_s", "heat_m", "heat_l")
    assert min(np.bincount(model.labels_)) > 25
    np.testing.assert_array_equal(model.predict(X), model.labels_)
    assert (model.predict(X + 1e-3) == model.labels_).mean() > 0.95
    stored = GMKCF(3, random_state=0, store=tmp_path / "s.zarr").fit(X)
    np.testing.assert_array_equal(stored.V_, model.V_)
    model.save(tmp_path / "m")
    loaded = load(tmp_path / "m")  # each kernel with its own weight
    np.testing.assert_array_equal(loaded.transform(X + 1e-3), model.transform(X + 1e-3))


def test_own_factors(rng, tmp_path):
    y = np.repeat([0, 1], 20)
    Z = np.column_stack([y == 0, y == 1]) @ rng.random((2, 6)) + 0.3 * rng.random((40, 6))
    other = (Z[:, :5] + 0.3 * rng.random((40, 5))).astype(np.float32)
    model = GMKCF(2, kernels="factored", random_state=0).fit({"topics": Z, "other": other})
    assert model.kernel_names_ == ("topics", "other")
    new = {"topics": Z[:3], "other": other[:3]}
    np.testing.assert_array_equal(model.predict(new), model.labels_[:3])
    thin = GMKCF(2, kernels="factored", random_state=0).fit({"topics": sparse.csr_array(Z)})
    assert sorted(np.bincount(thin.labels_)) == [20, 20]
    stored = GMKCF(2, kernels="factored", store=tmp_path / "s.zarr", random_state=0)
    stored.fit({"topics": Z, "other": other})
    np.testing.assert_array_equal(stored.V_, model.V_)


@pytest.mark.parametrize(
    ("factors", "message"),
    [
        ({"a": np.ones((4, 2)), "b": np.ones((5, 2))}, "different numbers of rows"),
        ({"a": np.array([[1.0], [np.nan]])}, "NaN or infinity in row 1"),
        ({"a": np.ones(3)}, "shape"),
        ({"a/b": np.ones((3, 1))}, "name"),
    ],
)
def test_bad_factors(factors, message):
    with pytest.raises(InputError, match=message):
        factor_specs(factors)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"normalization": "degree"}, "normalization='degree' has no meaning"),
        ({"scaling": "none"}, "scaling='none' has no meaning"),
        ({"merge_duplicates": 0.1}, "merge_duplicates"),
        ({"precision": "compact"}, "precision='compact' has no meaning"),
        ({"precision": "float64"}, "precision='float64' has no meaning"),
        ({"block": 64}, "block size 64 has no meaning"),
        ({"kernels": "local_0,heat_s"}, "choose one"),
    ],
)
def test_options_without_a_meaning(X, options, message):
    with pytest.raises(InputError, match=message):
        request_of(X, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"normalization": "none"},
        {"scaling": "none"},
        {"merge_duplicates": 0.1},
        {"precision": "compact"},
    ],
    ids=lambda options: next(iter(options)),
)
def test_options_for_some_of_the_kernels_are_told(X, options):
    with pytest.warns(DataWarning, match="is for cosine alone: local_0, .* have no such option"):
        request_of(X, kernels="local,cosine", **options)


def test_options_without_a_meaning_on_the_command_line(tmp_path, X):
    sparse.save_npz(tmp_path / "x.npz", X)
    words = ["build", tmp_path / "x.npz", tmp_path / "s.zarr", "--cluster", "threads"]
    for more in (["--precision", "float64"], ["--block", "64"]):
        result = CliRunner().invoke(main, [*map(str, words), *more])
        assert result.exit_code == 2
        assert "has no meaning for the kernels local_0" in result.stderr
    mixed = [*words, "--kernels", "local,cosine", "--normalization", "none"]
    result = CliRunner().invoke(main, list(map(str, mixed)))
    assert result.exit_code == 0
    assert "normalization='none' is for cosine alone" in result.stderr


def test_a_model_of_a_store_of_factors_can_be_fitted_again(tmp_path, X):
    model = GMKCF(K, random_state=0, store=tmp_path / "s.zarr").fit(X)
    model.save(tmp_path / "m")
    again = load(tmp_path / "m").set_params(store=None).fit(X)
    np.testing.assert_array_equal(again.labels_, model.labels_)
    of_store = GMKCF(K, random_state=0).fit(tmp_path / "s.zarr")
    of_store.save(tmp_path / "of_store")
    np.testing.assert_array_equal(load(tmp_path / "of_store").fit(X).labels_, model.labels_)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_embeddings_of_any_precision_are_compared_by_cosine(rng, dtype):
    Z = rng.normal(size=(400, 384))
    Z = (Z / np.linalg.norm(Z, axis=1, keepdims=True)).astype(dtype)
    assert local_kernels_for(as_features(Z)) == LOCAL
    assert local_kernels_for(as_features(Z * dtype(1.05))) == HEAT


def test_local_kernels_that_do_not_fit_into_memory_are_refused(X, monkeypatch):
    monkeypatch.setattr("gmkcf_dask.pipeline.planning.free_memory", lambda: 50 << 20)
    with pytest.raises(PlanRefused, match="this process needs"):
        GMKCF(K).fit(X)


def test_a_plan_says_how_neighbours_are_searched(X, monkeypatch):
    request = request_of(X, "local")
    exact = request_plan(request, K, threads(2))
    assert exact.search == "exact search"
    monkeypatch.setattr("gmkcf_dask.pipeline.planning.choose_terms", lambda frequencies: 16)
    assert "16 heaviest terms" in request_plan(request, K, threads(2)).search
    assert request_plan(request_of(X, "local"), K, threads(1)).build_ms >= exact.build_ms


def test_more_clusters_than_a_store_was_built_for(tmp_path, X):
    store = build(tmp_path / "s.zarr", X, max_clusters=4)
    with pytest.raises(InputError, match="at most 4 clusters"):
        GMKCF(5, random_state=0).fit(store.path)


def test_too_many_clusters_are_refused_before_anything_is_built(tmp_path, X):
    sparse.save_npz(tmp_path / "x.npz", X)
    args = ["run", tmp_path / "x.npz", "-k", "6", "--max-k", "5", "--out", tmp_path / "run"]
    result = CliRunner().invoke(main, list(map(str, args)))
    assert result.exit_code == 2
    assert "at most 5 clusters" in result.output
    assert not (tmp_path / "run" / "store.zarr").exists()


def test_plans_of_own_factors_count_their_columns():
    sizes = factor_sizes({"a": "given"}, 10**6, 0, 10, 50, 0, 768)
    assert sizes.factor_bytes >= 4 * 10**6 * 768


def test_stores_of_tiles_keep_their_format(tmp_path, X):
    build(tmp_path / "tiles.zarr", X, "cosine,rbf_1")
    build(tmp_path / "factors.zarr", X)
    tiles = (tmp_path / "tiles.zarr/manifest.json").read_text()
    assert '"format_version": 4' in tiles
    assert "factor" not in tiles
    assert '"format_version": 5' in (tmp_path / "factors.zarr/manifest.json").read_text()
    assert Manifest.read(tmp_path / "factors.zarr").n_tiles == 0


def test_the_command_line(tmp_path, X):
    sparse.save_npz(tmp_path / "x.npz", X)

    def gmkcf(*args):
        result = CliRunner().invoke(main, [str(a) for a in args])
        assert result.exit_code == 0, result.output
        return result.output

    gmkcf("run", tmp_path / "x.npz", "-k", K, "--out", tmp_path / "run")
    gmkcf("build", tmp_path / "x.npz", tmp_path / "s.zarr")
    gmkcf("fit", tmp_path / "s.zarr", "-k", K, "--out", tmp_path / "fit")
    labels = [(tmp_path / name / "labels.csv").read_text() for name in ("run", "fit")]
    assert labels[0] == labels[1]
    assert "4 factored kernels" in gmkcf("verify", tmp_path / "s.zarr")
    assert "local_4" in gmkcf("info", tmp_path / "s.zarr")
    gmkcf("predict", tmp_path / "run", tmp_path / "x.npz", "--out", tmp_path / "new.csv")
    assert "factored" in gmkcf("plan", tmp_path / "x.npz", "-k", K)
    gmkcf("run", tmp_path / "x.npz", "-k", K, "--paper", "--out", tmp_path / "paper")
    result = CliRunner().invoke(
        main, ["fit", str(tmp_path / "s.zarr"), "--paper", "-k", "3", "--out", str(tmp_path / "f")]
    )
    assert result.exit_code == 2
    assert "--paper" in result.output


def test_fewer_samples_than_neighbours_and_no_common_terms():
    with pytest.warns(WeakClustersWarning):
        model = GMKCF(2, random_state=0).fit(sparse.csr_array(np.eye(3)))
    assert set(model.labels_.tolist()) == {0, 1}


def test_a_search_by_few_terms_tells_its_recall(X, monkeypatch):
    monkeypatch.setattr(factors_module, "choose_terms", lambda df: 4)
    heard = []
    memory_kernels(request_of(X), K, heard.append)
    (note,) = [event.message for event in heard if isinstance(event, StageNote)]
    assert "4 heaviest terms" in note
    assert "% of the true ones" in note
