"""One suite for every operator: whatever the solver may ask, all of them answer alike."""

import naive
import numpy as np
import pytest
from helpers.problems import dense, kernels, tiled
from hypothesis import given, strategies as st

from gmkcf_dask.errors import DamagedStoreError

N, M, C = 50, 3, 4
OPERATORS = ["dense", "memory", "scratch", "recompute"]


@pytest.fixture(params=[False, True], ids=["nonnegative", "mixed"])
def Ks(request, rng):
    return kernels(rng, N, M, request.param)


@pytest.fixture(params=OPERATORS)
def stack(request, Ks, tmp_path):
    if request.param == "dense":
        return dense(Ks, block=20)
    return tiled(tmp_path / "s.zarr", Ks, block=20, residency=request.param)


def close(a, b):
    np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-11)


def test_describes_itself(stack, Ks):
    assert stack.names == ("kernel_0", "kernel_1", "kernel_2")
    assert stack.n_samples == N
    assert stack.nonnegative == (min(K.min() for K in Ks) >= 0)
    close(stack.traces, [np.trace(K) for K in Ks])
    for i, K in enumerate(Ks):
        close(stack.diagonal(i), np.diag(K))


def test_fused_products(stack, Ks, rng):
    w = rng.random(M)
    K = sum(wi * Ki for wi, Ki in zip(w, Ks, strict=True))
    fused = stack.fuse(w)
    assert fused.nonnegative == stack.nonnegative
    assert fused.trace == pytest.approx(np.trace(K))
    for columns in (1, C, 2 * C):  # the first product fuses, later ones reuse
        Z = rng.normal(size=(N, columns))
        close(fused.matmul(Z), K @ Z)
        KZ, KposZ = fused.split_matmul(Z)
        close(KZ, K @ Z)
        close(KposZ, np.maximum(K, 0) @ Z)
    close(fused.row_sums(), K.sum(axis=1))
    close(fused.diagonal(), np.diag(K))
    fused.release()


def test_fused_once_without_keeping(stack, Ks, rng):
    w, Z = rng.random(M), rng.random((N, C))
    close(stack.fuse(w, keep=False).matmul(Z), naive.fuse(Ks, np.sqrt(w)) @ Z)


def test_single_kernel(stack, Ks, rng):
    Z = rng.random((N, C))
    for i, K in enumerate(Ks):
        close(stack.single(i).matmul(Z), K @ Z)


def test_errors(stack, Ks, rng):
    U, V = rng.random((N, C)), rng.random((N, C))
    close(stack.errors(U, V), [naive.error(K, U, V) for K in Ks])


def test_products_of_each_kernel(stack, Ks, rng):
    shared, own = rng.random((N, C)), rng.random((M, N, C))
    close(stack.matmul_each(shared), [K @ shared for K in Ks])
    close(stack.matmul_each(own), [K @ Z for K, Z in zip(Ks, own, strict=True)])


def test_overview(stack, Ks, rng):
    groups = rng.integers(0, 6, N)
    groups[groups == 4] = 5  # an empty group is no matter
    found = stack.overview(groups, 6)
    member = np.eye(6)[groups]
    close(found.sums, [member.T @ K @ member for K in Ks])
    assert (found.sums == found.sums.transpose(0, 2, 1)).all()
    # what fits is compared as a whole
    assert found.entries == N * (N - 1)
    entries = pairs(Ks)
    close(found.compared, [values.sum() for values in entries])
    close(found.products, [[a @ b for b in entries] for a in entries])
    close(found.correlation(), np.corrcoef(entries))
    close(found.deviations(), [values.std() for values in entries])


def pairs(Ks):
    """The entries of kernels between two different samples."""
    return [K[~np.eye(len(K), dtype=bool)] for K in Ks]


def test_overview_of_a_part_of_the_rows(stack, Ks, monkeypatch):
    """Where all kernels have no room beside each other every second row of a tile is compared."""
    monkeypatch.setattr("gmkcf_dask.kernels.tiling.COMPARED_BYTES", 0)
    found = stack.overview(np.zeros(N, int), 1)
    seen = np.zeros((N, N), bool)
    for start in (0, 20, 40):
        rows = np.arange(start, min(start + 20, N), 2)
        seen[rows, start:] = True
        seen[start:, rows] |= ~(np.arange(start, N) < min(start + 20, N))[:, None]
    np.fill_diagonal(seen, val=False)
    assert found.entries == seen.sum()
    entries = [K[seen] for K in Ks]
    close(found.correlation(), np.corrcoef(entries))
    close(found.deviations(), [values.std() for values in entries])
    close(found.sums[:, 0, 0], [K.sum() for K in Ks])


def test_twelve_small_kernels_are_compared_as_a_whole(rng):
    Ks = kernels(rng, 40, 12)
    found = dense(Ks, "float64").overview(np.zeros(40, int), 1)
    assert found.entries == 40 * 39
    close(found.correlation(), np.corrcoef(pairs(Ks)))


def test_kernels_that_agree_on_no_pair_are_not_alike(rng):
    """Ones on the diagonal say nothing of how two kernels see other samples."""
    noise = [1e-3 * rng.random((N, N)) for _ in range(2)]
    Ks = [np.eye(N) + (part + part.T) / 2 for part in noise]
    found = dense(Ks, block=20).overview(np.zeros(N, int), 1)
    assert abs(found.correlation()[0, 1]) < 0.1
    close(found.correlation(), np.corrcoef(pairs(Ks)))
    alone = dense([np.ones((1, 1))] * 2).overview(np.zeros(1, int), 1)
    np.testing.assert_array_equal(alone.correlation(), np.eye(2))


@pytest.mark.parametrize("precision", ["float32", "float64", "compact"])
def test_overview_is_the_same_bits_everywhere(rng, tmp_path, precision):
    Ks, groups = kernels(rng, N, M), rng.integers(0, 7, N)
    expected = dense(Ks, precision, 20).overview(groups, 7)
    for residency in ("memory", "recompute"):
        stack = tiled(tmp_path / f"{residency}.zarr", Ks, precision, 20, residency=residency)
        found = stack.overview(groups, 7)
        for name in ("sums", "products", "compared"):
            assert getattr(found, name).tobytes() == getattr(expected, name).tobytes()
        assert found.entries == expected.entries
    np.testing.assert_allclose(expected.sums.sum(axis=(1, 2)), [K.sum() for K in Ks], rtol=1e-4)


def test_a_constant_kernel_is_like_no_other(rng):
    found = dense([np.ones((N, N)), *kernels(rng, N, 1)], block=20).overview(np.zeros(N, int), 1)
    np.testing.assert_array_equal(found.correlation(), np.eye(2))


def test_tiny_factors_vanish_in_float32_only(rng, tmp_path):
    Ks = kernels(rng, 10, 1)
    Z = np.full((10, 1), 1e-35)
    assert not dense(Ks, "float32").fuse(np.ones(1)).matmul(Z).any()
    assert dense(Ks, "float64").fuse(np.ones(1)).matmul(Z).all()


def test_a_missing_tile_is_named_and_never_zero(rng, tmp_path):
    stack = tiled(tmp_path / "s.zarr", kernels(rng, N, M), block=20)
    victim = tmp_path / "s.zarr" / "kernels" / "kernel_1" / "c" / "0" / "2"
    assert victim.exists()
    victim.unlink()
    for ask in (
        lambda: stack.overview(np.zeros(N, int), 1),
        lambda: stack.errors(rng.random((N, 2)), rng.random((N, 2))),
        lambda: stack.fuse(np.ones(M)).matmul(rng.random((N, 2))),
    ):
        with pytest.raises(DamagedStoreError, match=r"tile \(0, 2\) of kernel kernel_1"):
            ask()


@given(
    n=st.integers(1, 40),
    m=st.integers(1, 4),
    c=st.integers(1, 5),
    block=st.integers(1, 45),
    seed=st.integers(0, 2**31),
    mixed=st.booleans(),
)
def test_any_tiling_gives_the_same_products(n, m, c, block, seed, mixed):
    rng = np.random.default_rng(seed)
    Ks = kernels(rng, n, m, mixed)
    stack = dense(Ks, block=block)
    U, V, w = rng.random((n, c)), rng.random((n, c)), rng.random(m)
    close(stack.errors(U, V), [naive.error(K, U, V) for K in Ks])
    close(stack.fuse(w**2).matmul(U), naive.fuse(Ks, w) @ U)
    member = np.eye(c)[rng.integers(0, c, n)]
    sums = stack.overview(member.argmax(axis=1), c).sums
    close(sums, [member.T @ K @ member for K in Ks])
