"""Models that last: what is saved is what is loaded, or one sentence says why not."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner
from helpers.marks import mostly_slow
from helpers.needs import need_package
from helpers.problems import kernels
from hypothesis import given, settings, strategies as st
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import make_blobs
from sklearn.exceptions import NotFittedError

import gmkcf_dask
from gmkcf_dask import (
    GMKCF,
    KCF,
    CoregSpectralClustering,
    KernelKMeans,
    KernelSpectralClustering,
    RobustMultipleKernelKMeans,
    load,
)
from gmkcf_dask.cli import main
from gmkcf_dask.errors import DamagedModelError, GmkcfError, InputError
from gmkcf_dask.results import saved_model as models
from gmkcf_dask.results.serialize import digest, dump

pytestmark = pytest.mark.usefixtures("calm")
FEW = ["rbf_1", "cosine"]
METHODS = [
    GMKCF(3, kernels=FEW, init="random", n_init=2),
    GMKCF(3, kernels=FEW, normalization="degree", scaling="none", precision="float64"),
    KCF(3, kernel="rbf_1", init="spectral"),
    KernelKMeans(3),
    KernelSpectralClustering(3, kernel="rbf_0.3", laplacian="unnormalized"),
    CoregSpectralClustering(3, kernels=FEW),
    RobustMultipleKernelKMeans(3, kernels=FEW),
]
ATTRIBUTES = [
    "labels_", "kernel_weights_", "kernel_names_", "objective_history_", "n_iter_", "converged_",
    "runs_", "n_features_in_",
]  # fmt: skip
FACTORS = ["U_", "V_", "embedding_", "eigenvalues_", "cluster_centers_"]


@pytest.fixture(scope="module")
def X():
    return make_blobs(60, 4, centers=3, cluster_std=1.2, random_state=0)[0]


@pytest.fixture
def fitted(X):
    return GMKCF(3, kernels=FEW, random_state=0, max_iter=20).fit(X)


@pytest.fixture
def saved(fitted, tmp_path):
    fitted.save(tmp_path / "model")
    return tmp_path / "model"


def assert_same(one, other):
    assert type(one) is type(other)
    for name in ATTRIBUTES:
        np.testing.assert_equal(getattr(one, name), getattr(other, name))
    for name in FACTORS:
        assert hasattr(one, name) == hasattr(other, name)
        if hasattr(one, name):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


# round trips


@mostly_slow("model", METHODS, ids=str, plain=2)
def test_saved_models_come_back(X, tmp_path, model):
    model = clone(model).set_params(random_state=0).fit(X)
    model.save(tmp_path / "model")
    found = load(tmp_path / "model")
    assert_same(found, model)
    assert found.get_params() == model.get_params()
    if hasattr(model, "predict"):
        new = X[::2] + 0.1
        np.testing.assert_array_equal(found.predict(new), model.predict(new))
        np.testing.assert_array_equal(found.transform(new), model.transform(new))
        np.testing.assert_array_equal(found.predict(X), model.labels_)
    assert_same(clone(found).fit(X), model)


def test_sparse_features_come_back(X, tmp_path):
    thin = sparse.csr_array(np.maximum(X, 0))
    model = GMKCF(3, kernels=FEW, random_state=0).fit(thin)
    model.save(tmp_path / "m")
    np.testing.assert_array_equal(load(tmp_path / "m").predict(thin), model.labels_)


def test_features_far_from_the_origin_come_back(X, tmp_path):
    model = GMKCF(3, kernels=["rbf_1"], random_state=0).fit(X + 1e6)
    model.save(tmp_path / "m")
    found = load(tmp_path / "m")
    np.testing.assert_array_equal(found.transform(X + 1e6 + 0.1), model.transform(X + 1e6 + 0.1))


def test_a_given_start_and_named_columns_come_back(X, tmp_path, rng):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, columns=["a", "array:a0", "ü", "d"])
    begin = rng.random((60, 3)), rng.random((60, 3))
    model = GMKCF(3, kernels=FEW, init=begin, random_state=0).fit(frame)
    model.save(tmp_path / "m")
    found = load(tmp_path / "m")
    assert list(found.feature_names_in_) == list(frame.columns)
    np.testing.assert_array_equal(found.init[1], begin[1])
    np.testing.assert_array_equal(found.predict(frame), model.labels_)
    with pytest.raises(InputError, match="feature names"):
        found.predict(frame[["d", "a", "ü", "array:a0"]])


def test_precomputed_models_come_back(rng, tmp_path):
    Ks = np.array(kernels(rng, 40, 3))
    model = GMKCF(3, kernels="precomputed", random_state=0).fit(Ks[:, :30, :30])
    model.save(tmp_path / "m")
    found = load(tmp_path / "m")
    assert_same(found, model)
    np.testing.assert_array_equal(found.predict(Ks[:, 30:, :30]), model.predict(Ks[:, 30:, :30]))
    assert not any(name.startswith("features") for name in names_in(tmp_path / "m"))


def near(A, B):
    return np.exp(-np.abs(A[:, None] - B[None]).sum(axis=2))


def test_functions_are_given_again(X, tmp_path):
    model = GMKCF(3, kernels=[near, "rbf_1"], random_state=0).fit(X)
    model.save(tmp_path / "m")
    found = load(tmp_path / "m")
    np.testing.assert_array_equal(found.labels_, model.labels_)
    with pytest.raises(InputError, match=r"load\(path, kernels=\{'near': function\}\)"):
        found.predict(X)
    with pytest.raises(InputError, match="no kernel function 'far' in this model: it has near"):
        load(tmp_path / "m", kernels={"far": near})
    whole = GMKCF.load(tmp_path / "m", kernels={"near": near})
    np.testing.assert_array_equal(whole.transform(X), model.transform(X))
    assert_same(clone(whole).fit(X), model)


def test_a_model_of_a_store_takes_its_features_along(X, tmp_path):
    path = tmp_path / "s.zarr"
    model = GMKCF(3, kernels=FEW, store=path, random_state=0).fit(X)
    expected = model.transform(X + 0.1)
    model.save(tmp_path / "m")
    local = model.to_local()
    shutil.rmtree(path)
    for found in (load(tmp_path / "m"), local):
        assert found.store is None
        np.testing.assert_array_equal(found.transform(X + 0.1), expected)
    with pytest.raises(GmkcfError):
        model.predict(X)


def test_a_local_copy_leaves_the_model_as_it_is(X, tmp_path, two_workers):
    model = GMKCF(
        3, kernels=FEW, store=tmp_path / "s.zarr", client=two_workers, random_state=0, max_iter=2
    ).fit(X)
    local = model.to_local()
    assert local.client is None
    assert model.client is two_workers
    np.testing.assert_array_equal(local.predict(X), model.labels_)
    with pytest.raises(NotFittedError):
        GMKCF().to_local()


@pytest.mark.once
def test_another_process_predicts_the_same_and_nothing_is_pickled(saved, fitted, X, tmp_path):
    np.save(tmp_path / "new.npy", X + 0.1)
    code = (
        "import sys, pickle, numpy as np, gmkcf_dask, gmkcf_dask.estimators\n"
        "def refuse(*args, **named): raise SystemExit('a pickle')\n"
        "pickle.load = pickle.loads = refuse\n"
        "model = gmkcf_dask.load(sys.argv[1])\n"
        "np.save(sys.argv[3], model.transform(np.load(sys.argv[2])))\n"
    )
    files = [saved, tmp_path / "new.npy", tmp_path / "rows.npy"]
    subprocess.run([sys.executable, "-W", "ignore", "-c", code, *files], check=True)
    rows = fitted.transform(X + 0.1)
    np.testing.assert_allclose(np.load(tmp_path / "rows.npy"), rows, rtol=1e-12)


def test_object_stores(fitted, X):
    need_package("upath", "pip install 'gmkcf-dask[s3]'")
    fitted.save("memory://models/one")
    with pytest.raises(InputError, match="holds a model"):
        fitted.save("memory://models/one")
    fitted.save("memory://models/one", overwrite=True)
    np.testing.assert_array_equal(load("memory://models/one").predict(X), fitted.labels_)


# what is left out


def test_without_features_there_are_labels_but_no_predictions(fitted, X, tmp_path):
    fitted.save(tmp_path / "m", features=False)
    found = load(tmp_path / "m")
    assert_same(found, fitted)
    with pytest.raises(InputError, match="without the features of its training samples"):
        found.predict(X)
    assert sum(f.stat().st_size for f in (tmp_path / "m").iterdir()) < 60_000


def test_nothing_to_save_before_a_fit(tmp_path):
    with pytest.raises(NotFittedError):
        GMKCF().save(tmp_path / "m")


def test_the_class_that_was_saved(saved, X):
    assert type(gmkcf_dask.load(saved)) is GMKCF
    assert type(GMKCF.load(str(saved))) is GMKCF
    with pytest.raises(InputError, match=r"is a GMKCF, not a KCF: use GMKCF\.load"):
        KCF.load(saved)


# places


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_place_that_is_taken(saved, fitted, tmp_path):
    with pytest.raises(InputError, match="holds a model: choose another folder"):
        fitted.save(saved)
    before = names_in(saved)
    fitted.save(saved, overwrite=True)
    assert names_in(saved) == before
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="is a file"):
        fitted.save(tmp_path / "file")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match=r"holds other files, such as mine\.txt"):
        fitted.save(tmp_path / "folder", overwrite=True)
    (tmp_path / "link").symlink_to(saved)
    with pytest.raises(InputError, match="is a symbolic link"):
        fitted.save(tmp_path / "link", overwrite=True)


def test_old_files_go_when_a_model_is_replaced(saved, X):
    other = KernelKMeans(3, kernel="rbf_1", random_state=0).fit(X)
    other.save(saved, features=False, overwrite=True)
    assert len(names_in(saved)) == 3
    assert type(load(saved)) is KernelKMeans


@pytest.mark.parametrize("writes", [0, 1, 2, 3])
def test_a_crash_leaves_the_old_model_or_none(saved, X, tmp_path, monkeypatch, writes):
    other = GMKCF(3, kernels="cosine", random_state=1).fit(X)
    count = iter(range(100))

    def failing(path, content):
        if next(count) >= writes:
            raise OSError("the power went out")
        put_atomic(path, content)

    put_atomic = models.put_atomic
    monkeypatch.setattr(models, "put_atomic", failing)
    for place in (saved, tmp_path / "new"):
        count = iter(range(100))
        with pytest.raises(OSError, match="the power"):
            other.save(place, overwrite=True)
    monkeypatch.undo()
    assert load(saved).kernel_names_ == ("rbf_1", "cosine")
    with pytest.raises(InputError, match="no saved model"):
        load(tmp_path / "new")
    other.save(tmp_path / "new")
    other.save(saved, overwrite=True)
    assert len(names_in(saved)) == len(names_in(tmp_path / "new")) == 4
    assert load(saved).kernel_names_ == ("cosine",)


# damage


def test_nothing_there(tmp_path):
    with pytest.raises(InputError, match="there is no saved model"):
        load(tmp_path / "nowhere")


def test_a_model_of_a_newer_version(saved):
    body = json.loads((saved / "model.json").read_text())
    body["format_version"] = models.MODEL_FORMAT_VERSION + 1
    body["versions"]["gmkcf-dask"] = "99.1"
    (saved / "model.json").write_text(json.dumps(body))
    with pytest.raises(
        InputError, match=r"has format version 3 and this program reads up to 2: install .* 99\.1"
    ) as raised:
        load(saved)
    assert not isinstance(raised.value, DamagedModelError)


@settings(max_examples=60)
@given(data=st.data())
def test_damaged_files_are_told(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("damaged")
    shutil.copytree(_whole_model(), folder, dirs_exist_ok=True)
    name = data.draw(st.sampled_from(names_in(folder)))
    content = bytearray((folder / name).read_bytes())
    how = data.draw(st.sampled_from(["flip", "cut", "gone", "other"]))
    at = data.draw(st.integers(0, len(content) - 1))
    if how == "flip":
        content[at] ^= data.draw(st.integers(1, 255))
    elif how == "cut":
        del content[at:]
    elif how == "other":
        content = bytearray(b"null")
    (folder / name).write_bytes(content)
    if how == "gone":
        (folder / name).unlink()
    with pytest.raises((DamagedModelError, InputError), match=r"damaged|no saved model|version"):
        load(folder)


_MADE = []


def _whole_model():
    if not _MADE:
        import tempfile
        from pathlib import Path

        X = make_blobs(30, 3, centers=2, random_state=0)[0]
        folder = Path(tempfile.mkdtemp()) / "m"
        GMKCF(2, kernels="rbf_1", random_state=0, max_iter=3).fit(X).save(folder)
        _MADE.append(folder)
    return _MADE[0]


def forged(folder, change):
    """A model whose digests are right and whose content is not."""
    body = json.loads((folder / "model.json").read_text())
    body.pop("digest")
    change(body)
    (folder / "model.json").write_bytes(dump({"digest": digest(dump(body)), **body}))


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body["content"]["clustering"]["factors"].update(U="array:a0"),
        lambda body: body["content"]["clustering"].update(weights=[1, 2]),
        lambda body: body["content"]["clustering"].update(kernel_names=["rbf_1"]),
        lambda body: body["content"]["training"].update(n_samples=10**9),
        lambda body: body["content"]["training"].update(n_features=7),
        lambda body: body["content"]["training"]["kernels"][0].update(name="../../etc"),
        lambda body: body["content"]["training"]["kernels"][0].update(sigma="wide"),
        lambda body: body["content"]["method"].update(name="magic"),
        lambda body: body["content"]["method"]["parameters"].update(n_clusters="many"),
        lambda body: body["content"].update(parameters={"kernels": 7, "no": 1}),
        lambda body: body["files"].update(arrays="../../../etc/passwd"),
        lambda body: body["files"].update(features=body["files"]["arrays"]),
        lambda body: body.update(content=[]),
        lambda body: body.update(files=None),
        lambda body: body.update(format_version=True),
        lambda body: body.update(format="other"),
    ],
)
def test_forged_models_are_refused(saved, change):
    forged(saved, change)
    with pytest.raises(DamagedModelError, match="is damaged"):
        load(saved)


# run folders


@pytest.fixture(scope="module")
def folder(tmp_path_factory, X):
    folder = tmp_path_factory.mktemp("runs")
    np.savez(folder / "x.npz", X=X)
    done("build", folder / "x.npz", folder / "s.zarr", "--kernels", ",".join(FEW))
    return folder


def done(*words):
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == 0, result.output


@mostly_slow("method", ["gmkcf", "kcf", "kkm", "sc", "coreg", "rmkkm"], plain=2)
def test_run_folders_are_models(folder, tmp_path, X, method):
    done("fit", folder / "s.zarr", "-k", 3, "--method", method, "--out", tmp_path / "run")
    found = load(tmp_path / "run")
    expected = type(found)(3, random_state=0).fit(folder / "s.zarr")
    assert_same(found, expected)
    if method != "coreg":
        np.testing.assert_array_equal(found.predict(X), found.labels_)
    found.save(tmp_path / "model")
    assert_same(load(tmp_path / "model"), expected)


def test_a_run_whose_store_is_gone(folder, tmp_path, X):
    shutil.copytree(folder / "s.zarr", tmp_path / "s.zarr")
    done("fit", tmp_path / "s.zarr", "-k", 3, "--out", tmp_path / "run")
    expected = load(tmp_path / "run")
    shutil.rmtree(tmp_path / "s.zarr")
    found = load(tmp_path / "run")
    np.testing.assert_array_equal(found.labels_, expected.labels_)
    np.testing.assert_array_equal(found.V_, expected.V_)
    with pytest.raises(InputError, match="its store is gone"):
        found.predict(X)


def test_damaged_runs_are_told(folder, tmp_path):
    done("fit", folder / "s.zarr", "-k", 3, "--out", tmp_path / "run")
    (tmp_path / "run" / "factors.npz").write_bytes(b"PK nothing")
    with pytest.raises(DamagedModelError, match="run it again with --overwrite"):
        load(tmp_path / "run")
