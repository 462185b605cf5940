"""NaN or infinity in X or in a kernel: the row is named, from every way in, dense and sparse."""

import numpy as np
import pytest
from helpers.entries import ESTIMATORS, on_kernels, refused_everywhere
from helpers.refusals import N, features, kernel, raised
from scipy import sparse

from gmkcf_dask import DenseKernels, FunctionKernel
from gmkcf_dask.compute.tile_ops import MemoryTiles
from gmkcf_dask.errors import DamagedStoreError, GmkcfError, InputError
from gmkcf_dask.kernels.tiling import Tiling
from gmkcf_dask.methods.registry import make_method


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array], ids=["dense", "sparse"])
@pytest.mark.parametrize(("value", "word"), [(np.nan, "NaN"), (np.inf, "infinity")])
def test_in_features(value, word, form, tmp_path):
    X = features()
    X[11, 1] = X[20, 0] = value
    refused_everywhere(form(X), (word, "row 11"), tmp_path)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_in_a_precomputed_kernel(value, estimator):
    K = kernel()
    K[7, 3] = K[3, 7] = value
    model = on_kernels(estimator, 3, "precomputed")
    assert "row 3" in raised(lambda: model.fit([K]), InputError)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_in_what_a_function_returns(estimator, tmp_path):
    def spoilt(A, B):
        found = A @ B.T
        found[:, found.shape[1] // 2] = np.nan
        return found

    model = on_kernels(estimator, 3, FunctionKernel(spoilt, "spoilt"))
    assert "spoilt" in raised(lambda: model.fit(features()), InputError)
    model.set_params(store=tmp_path / "s.zarr")
    assert "spoilt" in raised(lambda: model.fit(features()), InputError)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["gmkcf", "kcf", "kkm", "sc", "coreg", "rmkkm"])
def test_in_a_kernel_that_slipped_through(name):
    """Past all checks of the border the operator itself stops: NaN never reaches U or V."""
    K = kernel().astype(np.float32)
    K[4, 9] = K[9, 4] = np.nan
    tiles = MemoryTiles((K[None],), Tiling(N, N), None, (0,))
    method = make_method(name, n_clusters=3)
    arguments = ([0],) if name in ("gmkcf", "coreg", "rmkkm") else ([0], ["K"])
    error = raised(lambda: method.fit(DenseKernels(tiles, ["K"]), *arguments), GmkcfError)
    assert "finite" in error


def test_the_operator_names_what_is_not_finite():
    K = np.full((N, N), np.inf, np.float32)
    stack = DenseKernels(MemoryTiles((K[None],), Tiling(N, N), None, (0,)), ["K"])
    for call in (
        lambda: stack.single(0).matmul(np.ones((N, 2))),
        lambda: stack.matmul_each(np.ones((N, 2))),
        lambda: stack.errors(np.ones((N, 2)), np.ones((N, 2))),
    ):
        with np.errstate(invalid="ignore"):
            assert "not finite" in raised(call, DamagedStoreError)
