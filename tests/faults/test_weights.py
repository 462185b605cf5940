"""One kernel takes all, kernels are the same, there is one kernel: weights stay what they are."""

import warnings

import numpy as np
import pytest
from helpers.entries import KERNELS
from helpers.refusals import N, features, kernel
from numpy.testing import assert_allclose, assert_array_equal

from gmkcf_dask import GMKCF, RobustMultipleKernelKMeans
from gmkcf_dask.errors import NumericsWarning
from gmkcf_dask.methods.updates import weights_from_errors


def fitted(kernels, **parameters):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return GMKCF(3, kernels="precomputed", random_state=0, **parameters).fit(kernels)


@pytest.mark.parametrize("solver", ["paper", "accelerated"])
@pytest.mark.parametrize("m", [2, 3, 5])
def test_identical_kernels_share_equally(m, solver, tmp_path):
    for store in (None, tmp_path / f"s{m}.zarr"):
        w = fitted([kernel()] * m, solver=solver, store=store, max_iter=30).kernel_weights_
        assert_allclose(w, 1 / m, rtol=1e-5)
        assert w.sum() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("solver", ["paper", "accelerated"])
def test_one_kernel_has_all_the_weight(solver):
    model = fitted([kernel()], solver=solver, max_iter=30)
    assert_array_equal(model.kernel_weights_, [1.0])


def test_a_single_kernel_by_name(tmp_path):
    for store in (None, tmp_path / "s.zarr"):
        model = GMKCF(3, kernels="rbf_1", random_state=0, tol=1e-3, store=store).fit(features())
        assert_array_equal(model.kernel_weights_, [1.0])


def test_a_kernel_that_is_reproduced_exactly_takes_all_and_that_is_said():
    blocks = np.kron(np.eye(3), np.ones((N // 3, N // 3)))
    model = GMKCF(3, kernels="precomputed", init="random", random_state=0)
    with pytest.warns(NumericsWarning) as said:
        model.fit([kernel(), blocks])
    assert any("of the weight" in str(warning.message) for warning in said)
    assert model.kernel_weights_.sum() == pytest.approx(1)
    assert model.kernel_weights_[1] > 0.9
    assert np.isfinite(model.kernel_weights_).all()
    assert (model.kernel_weights_ >= 0).all()


def test_the_other_weighted_method_keeps_its_own_rule():
    """RMKKM: Σ w^γ = 1."""
    model = RobustMultipleKernelKMeans(3, kernels=KERNELS, random_state=0).fit(features())
    assert (model.kernel_weights_**0.3).sum() == pytest.approx(1)


@pytest.mark.parametrize(
    ("e", "w"),
    [
        ([1.0, 1.0], [0.5, 0.5]),
        ([0.0, 1.0], [1.0, 0.0]),
        ([0.0, 0.0, 3.0], [0.5, 0.5, 0.0]),
        ([1e-320, 1e-320], [0.5, 0.5]),
        ([1e-300, 1e300], [1.0, 0.0]),
        ([1e308, 1e308], [0.5, 0.5]),
        ([5.0], [1.0]),
    ],
)
def test_weights_of_any_errors_are_weights(e, w):
    found = weights_from_errors(np.array(e))
    assert_allclose(found, w, atol=1e-12)
    assert found.sum() == pytest.approx(1)
