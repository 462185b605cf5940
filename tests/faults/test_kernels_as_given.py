"""Precomputed kernels that are none: not square, asymmetric, indefinite, negative, no diagonal."""

import numpy as np
import pytest
from helpers.commands import exits
from helpers.entries import ESTIMATORS, on_kernels
from helpers.refusals import (
    K,
    N,
    all_named,
    features,
    kernel,
    raised,
)
from helpers.unusable_kernels import UNUSABLE_KERNELS
from numpy.testing import assert_allclose

from gmkcf_dask import (
    GMKCF,
    KCF,
    CoregSpectralClustering,
    KernelSpectralClustering,
    Precomputed,
)
from gmkcf_dask.errors import InputError, NotPositiveError

pytestmark = [
    pytest.mark.usefixtures("calm"),
    pytest.mark.filterwarnings("ignore:.*of the weight"),
]


@pytest.mark.parametrize("kind", UNUSABLE_KERNELS)
@pytest.mark.parametrize("estimator", ESTIMATORS[2:])
def test_every_method_refuses_what_is_no_kernel(kind, estimator):
    """GMKCF and KCF are asked in test_bad_input."""
    matrices, words = UNUSABLE_KERNELS[kind]
    model = on_kernels(estimator, 2, "precomputed")
    assert all_named(words, raised(lambda: model.fit(matrices), InputError))


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("matrix", [1 - np.eye(N), np.zeros((N, N)), -np.eye(N), 1e-31 * np.eye(N)])
def test_without_a_positive_diagonal(matrix, estimator):
    model = on_kernels(estimator, 3, "precomputed")
    assert "mean diagonal" in raised(lambda: model.fit([kernel(), matrix]), InputError)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_diagonal_that_is_zero_in_part(estimator):
    held = kernel()
    held[5:9] = held[:, 5:9] = 0
    model = on_kernels(estimator, 3, "precomputed").fit([held])
    assert np.isfinite(model.objective_history_).all()
    assert len(model.labels_) == N


def indefinite() -> np.ndarray:
    held = np.random.default_rng(0).normal(size=(12, 12))
    return (held + held.T) / 2 + np.eye(12)


@pytest.mark.parametrize("solver", ["paper", "accelerated"])
@pytest.mark.parametrize("estimator", [GMKCF, KCF])
def test_mixed_signs_that_are_not_positive_semi_definite(estimator, solver):
    model = on_kernels(estimator, 3, "precomputed", solver=solver)
    assert "semi-definite" in raised(lambda: model.fit([indefinite()]), NotPositiveError)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_indefinite_kernels_end_in_labels_or_in_words(estimator):
    model = on_kernels(estimator, 3, "precomputed")
    if estimator in (GMKCF, KCF, KernelSpectralClustering, CoregSpectralClustering):
        assert "scale" in raised(lambda: model.fit([indefinite()]))
    else:
        assert np.isfinite(model.fit([indefinite()]).objective_history_).all()


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_named_way_out_of_negative_entries(estimator):
    spec = Precomputed(indefinite() + 3 * np.eye(12), "mine", scaling="minmax")
    model = on_kernels(estimator, 3, "precomputed").fit([spec])
    assert np.isfinite(model.objective_history_).all()


@pytest.mark.parametrize("estimator", [GMKCF, KCF])
def test_negative_entries_of_a_true_kernel(estimator):
    X = features() - features().mean(axis=0)
    model = on_kernels(estimator, 3, "precomputed", max_iter=20).fit([X @ X.T])
    assert (np.diff(model.objective_history_) <= 1e-6 * np.trace(X @ X.T)).all()
    assert model.V_.min() >= 0


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_mixed_dtypes(estimator):
    held = np.round(kernel())
    kinds = [held.astype(kind) for kind in (np.float32, np.float64, np.int64, np.float16)]
    model = on_kernels(estimator, 3, "precomputed").fit(kinds)
    assert_allclose(model.kernel_weights_, model.kernel_weights_[0])


def test_mixed_shapes_are_told_with_both_sizes():
    for estimator in ESTIMATORS:
        model = on_kernels(estimator, 3, "precomputed")
        sentence = raised(lambda model=model: model.fit([kernel(), kernel(N + 1)]), InputError)
        assert all_named(("31×31", "30×30"), sentence)


def test_the_command_line_takes_features_only(tmp_path):
    """A stack of kernels in a file is told what it would need to be."""
    np.save(tmp_path / "k.npy", np.stack([kernel()] * 2))
    found = exits(2, "plan", tmp_path / "k.npy", "-k", K)
    assert "precomputed" in found.stderr
