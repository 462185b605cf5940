"""Kernels that are nearly the same: named, and stored once where they are equal."""

import naive
import numpy as np
import pytest
from click.testing import CliRunner
from helpers.problems import kernels
from hypothesis import given, strategies as st
from scipy.io import savemat

from gmkcf_dask.cli import main
from gmkcf_dask.compute import build_tasks as tasks_module
from gmkcf_dask.compute.dense import DenseKernels
from gmkcf_dask.compute.runner import Runner
from gmkcf_dask.compute.tiled import TiledKernels
from gmkcf_dask.errors import InputError, StoreError
from gmkcf_dask.kernels.duplicates import _most_at_once, difference
from gmkcf_dask.kernels.specs import precomputed_specs
from gmkcf_dask.store import build as build_module
from gmkcf_dask.store.build import build_store, stored_names
from gmkcf_dask.store.request import KernelRequest

pytestmark = pytest.mark.usefixtures("calm")


def store_of(path, Ks, tolerance=0.0, precision="float32"):
    request = KernelRequest(
        None, precomputed_specs(Ks), "none", "none", precision, 16, merge_duplicates=tolerance
    )
    return build_store(path, request, Runner(scheduler="synchronous"))


def chunks(store, name):
    return sorted(f.name for f in (store.path / "kernels" / name).rglob("c/*/*"))


@pytest.fixture
def family(rng):
    """Two kernels, the first again to the bit, and the first but for 1e-4 and 3e-4."""
    first, second = kernels(rng, 40, 2)
    nudge = np.where(np.eye(40) > 0, 0, 1e-4)
    return [first, second, first.copy(), np.clip(first - nudge, 0, 1), first - 3 * nudge]


def test_equal_kernels_are_stored_once_and_near_ones_named(tmp_path, family):
    store = store_of(tmp_path / "s.zarr", family)
    assert store.manifest.stored == (0, 1, 0, 3, 4)
    assert chunks(store, "kernel_2") == []
    assert len(chunks(store, "kernel_3")) == store.tiling.n_tiles
    words = store.duplicates()
    assert "kernel_2 equals kernel_0, and kernel_0 replaces it" in words
    assert any(sentence.startswith("kernel_3 equals kernel_2 to 1e-04") for sentence in words)
    assert not any("kernel_1" in sentence for sentence in words)


@pytest.mark.parametrize(
    ("tolerance", "stored"),
    [(1.1e-4, (0, 1, 0, 0, 4)), (2.1e-4, (0, 1, 0, 0, 4)), (4e-4, (0, 1, 0, 0, 0))],
)
def test_merging_adds_up_differences_along_a_chain(tmp_path, family, tolerance, stored):
    """kernel_4 is 2e-4 from kernel_3 but 3e-4 from the kernel that stands for both."""
    store = store_of(tmp_path / "s.zarr", family, tolerance)
    assert store.manifest.stored == stored
    with pytest.raises(StoreError, match="merged duplicates"):
        store_of(tmp_path / "s.zarr", family)


def test_equal_kernels_are_found_wherever_they_stand(tmp_path, rng):
    A, B, C = kernels(rng, 40, 3)
    late = A.copy()
    late[0, 1] = late[1, 0] = 0.123
    store = store_of(tmp_path / "s.zarr", [A, B, C, late, A, B, C])
    assert store.manifest.stored == (0, 1, 2, 3, 0, 1, 2)
    assert not (store.path / "kernels" / "kernel_4").exists(), "it would read as empty"


def test_operators_agree_on_merged_kernels(tmp_path, rng):
    """Diagonals, traces and signs are those of the tiles that stand for a kernel."""
    (A,) = kernels(rng, 40, 1)
    A = np.maximum(A, 1e-4)
    low = A - 5e-4 * np.eye(40)
    negative = A - 1.5e-4
    store = store_of(tmp_path / "s.zarr", [A, low, negative], 1e-3)
    assert store.manifest.stored == (0, 0, 0)
    stacks = [TiledKernels(store, Runner(scheduler="synchronous")), DenseKernels.from_store(store)]
    U, V = rng.random((40, 3)), rng.random((40, 3))
    for stack in stacks:
        assert stack.nonnegative
        assert stack.traces.tolist() == [stack.traces[0]] * 3
        assert len(set(stack.errors(U, V).tolist())) == 1
    np.testing.assert_array_equal(stacks[0].errors(U, V), stacks[1].errors(U, V))


def test_a_resumed_build_compares_what_it_began_to_compare(tmp_path, family, monkeypatch):
    """Another plan of pairs after a break must not count tiles that were never compared."""
    monkeypatch.setattr(build_module, "_SECONDS_BETWEEN_MANIFESTS", 0.0)
    original, calls = tasks_module.run_tasks, []

    def break_off(task, tiles, per_task, runner):
        if calls:
            raise KeyboardInterrupt
        calls.append(1)
        return original(task, tiles, per_task, runner)

    with monkeypatch.context() as patch:
        patch.setattr(tasks_module, "run_tasks", break_off)
        patch.setattr(
            build_module.DuplicateCandidates,
            "plan",
            lambda *_: build_module.DuplicateCandidates({}, 1.0),
        )
        with pytest.raises(KeyboardInterrupt):
            store_of(tmp_path / "s.zarr", family, 0.5)
    assert store_of(tmp_path / "s.zarr", family, 0.5).manifest.stored == (0, 1, 0, 3, 4)


@pytest.mark.parametrize("precision", ["float32", "float64", "compact"])
def test_every_operation_sees_all_kernels(tmp_path, rng, family, precision, monkeypatch):
    """Products, errors and fused kernels are those of kernels stored one by one; fewer are read."""
    merged = store_of(tmp_path / "s.zarr", family, precision=precision)
    assert merged.manifest.stored[2] == 0
    seen = []
    original = type(merged.reader).raw
    monkeypatch.setattr(
        type(merged.reader),
        "raw",
        lambda self, i, t, into=None: seen.append(i) or original(self, i, t, into),
    )
    stacks = [
        TiledKernels(merged, Runner(scheduler="synchronous")),
        DenseKernels.from_store(merged),
    ]
    U, V, w = rng.random((40, 3)), rng.random((40, 3)), rng.random(5)
    close = {"rtol": 1e-4, "atol": 1e-4} if precision == "compact" else {"rtol": 1e-5}
    for stack in stacks:
        seen.clear()
        np.testing.assert_allclose(
            stack.errors(U, V), [naive.error(K, U, V) for K in family], **close
        )
        assert 2 not in seen
        fused = stack.fuse(w)
        expected = np.tensordot(w, family, axes=1)
        np.testing.assert_allclose(fused.matmul(U), expected @ U, **close)
        np.testing.assert_allclose(fused.diagonal(), np.diagonal(expected), **close)
        Zs = [rng.random((40, c)) for c in (1, 2, 3, 0, 2)]
        for K, Z, found in zip(family, Zs, stack.matmul_each(Zs), strict=True):
            np.testing.assert_allclose(found, K @ Z, **close)
        assert 2 not in seen


def test_a_broken_off_build_remembers_differences(tmp_path, family, monkeypatch):
    calls = []
    original = tasks_module.run_tasks

    def break_off(task, tiles, per_task, runner):
        calls.append(len(tiles))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return original(task, tiles, per_task, runner)

    monkeypatch.setattr(build_module, "_SECONDS_BETWEEN_MANIFESTS", 0.0)
    monkeypatch.setattr(tasks_module, "_BATCHES", 2)
    with monkeypatch.context() as patch:
        patch.setattr(tasks_module, "run_tasks", break_off)
        with pytest.raises(KeyboardInterrupt):
            store_of(tmp_path / "s.zarr", family)
    resumed = store_of(tmp_path / "s.zarr", family)
    whole = store_of(tmp_path / "w.zarr", family)
    assert resumed.manifest.differences == whole.manifest.differences
    assert resumed.manifest.stored == whole.manifest.stored


def test_command_line_says_it(tmp_path, rng):
    X = rng.random((60, 8))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    savemat(tmp_path / "x.mat", {"X": X})
    args = ["build", str(tmp_path / "x.mat"), str(tmp_path / "s.zarr"), "--cluster", "threads"]
    result = CliRunner().invoke(
        main, [*args, "--kernels", "linear,cosine,rbf_1", "--layout", "each"]
    )
    assert result.exit_code == 0, result.output
    assert "nearly the same: cosine equals linear, and linear replaces it" in result.output
    bad = CliRunner().invoke(main, [*args[:2], str(tmp_path / "t.zarr"), "--merge-duplicates", "2"])
    assert bad.exit_code == 2
    assert "merge_duplicates must be a tolerance from 0 to 1" in bad.output


def test_tolerance_is_checked():
    with pytest.raises(InputError, match="merge_duplicates"):
        KernelRequest(None, precomputed_specs([np.eye(3)]), merge_duplicates=-0.1)


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(1, 6)), max_size=6))
def test_tiles_held_at_once(steps):
    pairs = [(a, a + b) for a, b in steps]
    held = [sum(a <= now < max(y for x, y in pairs if x == a) for a in {x for x, _ in pairs})
            for now in range(14)]  # fmt: skip
    assert _most_at_once(pairs) == max(held)


def test_difference_of_codes_does_not_wrap():
    a, b = np.array([[0, 5]], np.uint16), np.array([[3, 0]], np.uint16)
    assert difference(a, b) == 5
    assert stored_names("ab", {}, {"b": "a"}, {}, 1.0) == ("a", "b"), "never compared"
    assert stored_names("abc", {"c": "a"}, {"b": "a"}, {"b": 0.1}, 0.0) == ("a", "b", "a")
