"""Numbers far from 1: finite results, or a sentence before anything is written."""

import numpy as np
import pytest
from helpers.commands import exits
from helpers.entries import ESTIMATORS, KERNELS, on_kernels, refused_everywhere
from helpers.marks import mostly_slow
from helpers.refusals import THREADS, N, features, kernel, raised, refused
from scipy import sparse

from gmkcf_dask import GMKCF, FunctionKernel
from gmkcf_dask.errors import InputError

pytestmark = [
    pytest.mark.usefixtures("calm"),
    pytest.mark.filterwarnings("ignore:.*of the weight"),
]


@mostly_slow("scale", [1e-20, 1e20, 1e-100, 1e100])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_cosine_and_rbf_do_not_mind_the_unit_of_measurement(estimator, scale):
    one = on_kernels(estimator, 3, "cosine", precision="float64").fit(features())
    other = on_kernels(estimator, 3, "cosine", precision="float64").fit(features() * scale)
    assert (one.labels_ == other.labels_).all()
    rbf = on_kernels(estimator, 3, "rbf_1").fit(features() * scale)
    assert (on_kernels(estimator, 3, "rbf_1").fit(features()).labels_ == rbf.labels_).all()


@pytest.mark.parametrize("scale", [1e-20, 1e20])
@pytest.mark.parametrize("precision", ["float32", "float64", "compact"])
@pytest.mark.parametrize("normalization", ["unit", "degree"])
def test_scaled_kernels_are_finite(scale, precision, normalization):
    how = {"precision": precision, "normalization": normalization, "max_iter": 10}
    model = on_kernels(GMKCF, 3, "paper12", **how).fit(features() * scale)
    assert np.isfinite(model.V_).all()
    assert model.kernel_weights_.sum() == pytest.approx(1)


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array], ids=["dense", "sparse"])
@pytest.mark.parametrize("scale", [1e-160, 1e-300, 1e-315])
def test_samples_whose_squares_vanish_are_not_taken_for_empty(scale, form, tmp_path):
    refused_everywhere(form(features() * scale), ("too small", "row 0"), tmp_path)


def test_one_such_sample_is_named(tmp_path):
    X = features()
    X[17] *= 1e-170
    refused_everywhere(X, "row 17", tmp_path)


@pytest.mark.parametrize("scale", [1e155, 1e300])
def test_squares_that_overflow(scale, tmp_path):
    refused_everywhere(features() * scale, "large", tmp_path)


AS_THEY_ARE = ("--normalization", "none", "--scaling", "none")


@pytest.mark.parametrize(
    ("scale", "kernel_name", "precision", "words"),
    [
        (1e20, "poly_a0_b2", "float32", "overflows float32"),
        (1e10, "poly_a0_b4", "float32", "overflows float32"),
        (1e90, "poly_a0_b2", "float64", "not finite"),
        (1e20, "linear", "float32", "overflows float32"),
        (1e-20, "linear", "float32", "too small"),
        (1e-20, "poly_a0_b4", "float32", "too small"),
        (1e-100, "poly_a0_b4", "float64", "too small"),
    ],
)
def test_kernels_beyond_their_precision(scale, kernel_name, precision, words, tmp_path):
    np.save(tmp_path / "x.npy", features() * scale)
    how = ("--kernels", kernel_name, "--precision", precision, *AS_THEY_ARE, *THREADS)
    assert words in refused("build", tmp_path / "x.npy", tmp_path / "s.zarr", *how)
    assert [path.name for path in tmp_path.iterdir()] == ["x.npy"]
    options = {"normalization": "none", "scaling": "none", "precision": precision}
    model = on_kernels(GMKCF, 3, kernel_name, **options)
    assert words in raised(lambda: model.fit(features() * scale), InputError)


@pytest.mark.parametrize("scale", [1e-20, 1e20])
def test_the_same_kernels_in_float64(scale, tmp_path):
    np.save(tmp_path / "x.npy", features() * scale)
    how = ("--kernels", "linear,poly_a0_b2", "--precision", "float64", *AS_THEY_ARE, *THREADS)
    out = ("-k", 3, "--max-iter", 10, "--out", tmp_path / "run")
    exits(0, "run", tmp_path / "x.npy", *out, *how)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("scale", [1e-40, 1e36])
def test_functions_of_extreme_size(estimator, scale):
    spec = FunctionKernel(lambda A, B: scale * (A @ B.T), "mine")
    model = on_kernels(estimator, 3, spec, normalization="none", scaling="none")
    sentence = raised(lambda: model.fit(features()), InputError)
    assert "mine" in sentence
    assert "mean diagonal" in sentence


@pytest.mark.parametrize("estimator", ESTIMATORS)
@mostly_slow("scale", [1e-29, 1e-15, 1e15, 1e33])
def test_precomputed_kernels_of_unusual_size(estimator, scale):
    usual = on_kernels(estimator, 3, "precomputed").fit([kernel()])
    other = on_kernels(estimator, 3, "precomputed").fit([kernel() * scale])
    assert np.isfinite(other.objective_history_).all()
    assert (usual.labels_ == other.labels_).all()


def test_entries_among_denormals_are_harmless():
    X = features()
    X[:, 3] *= 1e-310
    model = on_kernels(GMKCF, 3, KERNELS, max_iter=10).fit(X)
    assert np.isfinite(model.V_).all()
    assert len(model.labels_) == N
