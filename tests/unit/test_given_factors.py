"""Factors that users bring: from arrays and files, in Python and on the command line."""

import json

import numpy as np
import pytest
import zarr
from click.testing import CliRunner
from scipy import sparse

from gmkcf_dask import GMKCF, KCF, KernelKMeans, KernelSpectralClustering, load
from gmkcf_dask.cli import main
from gmkcf_dask.compute.runner import Runner
from gmkcf_dask.corpus.arrays import RowArray
from gmkcf_dask.errors import DamagedStoreError, DataWarning, InputError
from gmkcf_dask.store.build import build_store
from gmkcf_dask.store.given import given_factors
from gmkcf_dask.store.kernel_store import KernelStore
from gmkcf_dask.store.manifest import Manifest
from gmkcf_dask.store.repair import repair_store
from gmkcf_dask.store.request import KernelRequest
from gmkcf_dask.store.verify import find_damage

pytestmark = pytest.mark.usefixtures("calm")
N, K = 90, 3


@pytest.fixture
def Zs(rng):
    """A dense and a wide, thin factor of three groups."""
    y = np.arange(N) % K
    dense = np.eye(K)[y] @ rng.random((K, 6)) + 0.2 * rng.random((N, 6))
    wide = np.zeros((N, 60))
    for i in range(N):
        wide[i, 20 * y[i] + rng.choice(20, 6, replace=False)] = rng.random(6) + 0.2
    return {"title": dense.astype(np.float32), "body": wide}


def forms(folder, Z, form):
    """One factor in one of the forms that `fit` takes."""
    file = folder / "z.npy"
    if form == "csr":
        return sparse.csr_array(Z)
    if form == "npz":
        sparse.save_npz(folder / "z.npz", sparse.csr_array(Z))
        return folder / "z.npz"
    if form.startswith("zarr"):
        options = {"zarr_format": 2} if form == "zarr 2" else {}
        made = zarr.create_array(
            str(folder / "z.zarr"), shape=Z.shape, chunks=(16, 4), dtype=Z.dtype, **options
        )
        made[:] = Z
        return made if form == "zarr" else str(folder / "z.zarr")
    np.save(file, Z)
    if form == "memmap":
        return np.load(file, mmap_mode="r")
    return {"array": Z, "str": str(file), "Path": file, "list": Z.tolist()}[form]


@pytest.mark.parametrize("estimator", [KernelKMeans, KCF, KernelSpectralClustering])
def test_fit_transform_is_fit_and_transform(Zs, estimator):
    rows = estimator(K, kernel="factored", random_state=0).fit_transform(Zs)
    again = estimator(K, kernel="factored", random_state=0).fit(Zs)
    np.testing.assert_allclose(rows, again.transform(Zs), atol=1e-6)


def test_the_path_of_an_array_is_a_factor(Zs, tmp_path):
    np.save(tmp_path / "z.npy", Zs["title"])
    model = GMKCF(K, kernels="factored", random_state=0)
    labels = model.fit(tmp_path / "z.npy").labels_
    np.testing.assert_array_equal(labels, model.fit([Zs["title"]]).labels_)


def test_suggest_k_takes_named_files(Zs, tmp_path):
    for name, Z in Zs.items():
        np.save(tmp_path / f"{name}.npy", Z)
    files = [f"{name}={tmp_path / name}.npy" for name in Zs]
    words = ["suggest-k", *files, "--kernels", "factored", "--ks", "2-4", "--restarts", "2"]
    result = CliRunner().invoke(main, [*words, "--cluster", "threads", "--quiet"])
    assert result.exit_code == 0, result.output
    assert result.stdout.strip() == str(K)


FORMS = ["array", "list", "csr", "npz", "memmap", "str", "Path", "zarr", "zarr path", "zarr 2"]


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_clusters(tmp_path, Zs, form, small_blocks):
    how = {"kernels": "factored", "random_state": 0}
    expected = GMKCF(K, **how).fit({"z": Zs["body"]})
    given = forms(tmp_path, Zs["body"], form)
    memory = GMKCF(K, **how).fit({"z": given})
    stored = GMKCF(K, **how, store=tmp_path / "s.zarr").fit({"z": given})
    V, W = memory.V_, expected.V_  # the order of concepts is one of rounding
    np.testing.assert_allclose(V @ V.T, W @ W.T, atol=1e-7)
    np.testing.assert_array_equal(stored.V_, memory.V_)
    assert memory.n_features_in_ == 60
    for model in (memory, stored, stored.to_local()):
        np.testing.assert_array_equal(model.predict({"z": given}), model.labels_)
    memory.save(tmp_path / "m")
    loaded = load(tmp_path / "m")
    assert loaded.kernels == "factored"
    np.testing.assert_array_equal(loaded.predict({"z": Zs["body"][:9]}), memory.labels_[:9])
    loaded.explain()
    reopened = GMKCF(K, random_state=0).fit(tmp_path / "s.zarr")
    np.testing.assert_array_equal(reopened.V_, memory.V_)


def test_sparse_rows_stay_sparse(tmp_path, Zs, small_blocks):
    Z = sparse.csr_array(Zs["body"])
    request = KernelRequest(None, given_factors({"z": Z}))
    store = build_store(tmp_path / "s.zarr", request, Runner())
    arrays = store.factors()
    assert set(store.manifest.factors) == {"csr_lengths_z", "csr_columns_z", "csr_values_z"}
    for rows in (slice(0, N), slice(0, 32), slice(20, 70), slice(64, 96)):
        found = arrays.read("given_z", rows)
        assert sparse.issparse(found)
        np.testing.assert_array_equal(found.toarray(), Z[rows].toarray())
    assert Manifest.read(tmp_path / "s.zarr").factored[0].columns == 60
    assert not find_damage(store, Runner())


def test_files_are_read_by_row_blocks(tmp_path, monkeypatch):
    np.save(tmp_path / "z.npy", np.random.default_rng(0).random((20_000, 3)))
    read = []
    get = RowArray.__getitem__

    def noted(self, rows):
        read.append(rows.stop - rows.start)
        return get(self, rows)

    monkeypatch.setattr(RowArray, "__getitem__", noted)
    request = KernelRequest(None, given_factors({"z": tmp_path / "z.npy"}))
    build_store(tmp_path / "s.zarr", request, Runner())
    assert max(read) <= 4096
    assert sum(read) >= 3 * 20_000  # checked, digested and written


@pytest.mark.parametrize("estimator", [KCF, KernelSpectralClustering, KernelKMeans])
@pytest.mark.parametrize("thin", [False, True], ids=["dense", "sparse"])
def test_methods_of_one_kernel_take_one_array(tmp_path, Zs, estimator, thin):
    Z = sparse.csr_array(Zs["body"]) if thin else Zs["title"]
    model = estimator(K, kernel="factored", random_state=0).fit(Z)
    np.testing.assert_array_equal(model.predict(Z), model.labels_)
    assert model.kernel_names_ == ("factor_0",)
    assert len(set(model.labels_)) == K
    stored = estimator(K, kernel="factored", random_state=0, store=tmp_path / "s.zarr").fit(Z)
    np.testing.assert_array_equal(stored.labels_, model.labels_)


@pytest.mark.parametrize(
    ("new", "words"),
    [
        ({"zzz": 1}, ["missing: title, body", "unknown: zzz"]),
        ({"title": 1}, ["missing: body"]),
        ({"title": 1, "body": 1, "more": 1}, ["unknown: more"]),
        ([1], ["1 factors"]),
    ],
)
def test_predict_refuses_other_names(Zs, new, words):
    model = GMKCF(K, kernels="factored", random_state=0).fit(Zs)
    given = dict.fromkeys(new, Zs["title"]) if isinstance(new, dict) else [Zs["title"]]
    with pytest.raises(InputError) as error:
        model.predict(given)
    for word in words:
        assert word in str(error.value)


def test_predict_takes_one_array_or_a_list_in_order(Zs):
    model = GMKCF(K, kernels="factored", random_state=0).fit(Zs)
    np.testing.assert_array_equal(model.predict([Zs["title"], Zs["body"]]), model.labels_)
    alone = GMKCF(K, kernels="factored", random_state=0).fit({"title": Zs["title"]})
    np.testing.assert_array_equal(alone.predict(Zs["title"]), alone.labels_)
    with pytest.raises(InputError, match="zzz"):
        alone.predict({"zzz": Zs["title"]})
    with pytest.raises(InputError, match="5 columns"):
        alone.predict({"title": Zs["title"][:, :5]})


def damage(store, pattern):
    (file, *_) = sorted(store.glob(f"factors/{pattern}/c/1*/0"))
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0x55
    file.write_bytes(content)


@pytest.mark.parametrize("pattern", ["given_title", "csr_columns_body", "csr_values_body"])
def test_damage_is_repaired_by_the_same_build(tmp_path, Zs, small_blocks, pattern):
    given = {"title": Zs["title"], "body": sparse.csr_array(Zs["body"])}
    how = {"kernels": "factored", "random_state": 0, "store": tmp_path / "s.zarr"}
    before = GMKCF(K, **how).fit(given)
    damage(tmp_path / "s.zarr", pattern)
    store = KernelStore.open(tmp_path / "s.zarr")
    assert [name for name, _ in find_damage(store, Runner()).blocks] == [pattern]
    (left,) = repair_store(store.path, Runner()).left
    assert "same build" in left
    assert pattern in left
    with pytest.raises(DamagedStoreError, match="same build"):
        GMKCF(K, random_state=0).fit(store.path)
    with pytest.warns(DataWarning, match="repaired"):
        again = GMKCF(K, **how).fit(given)
    np.testing.assert_array_equal(again.V_, before.V_)
    assert not find_damage(KernelStore.open(store.path), Runner())


def test_more_clusters_than_usual(tmp_path, rng):
    Z = rng.random((80, 70))
    how = {"kernels": "factored", "random_state": 0, "store": tmp_path / "s.zarr", "max_iter": 2}
    GMKCF(2, **how).fit({"z": Z})
    model = GMKCF(60, **how).fit({"z": Z})
    assert model.V_.shape == (80, 60)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: p / "nothing.npy", "does not exist"),
        (lambda p: _saved(p / "a.npy", np.array([{}], object)), "not numeric"),
        (lambda p: _saved(p / "a.npy", np.ones((2, 2), complex)), "not numeric"),
        (lambda p: _saved(p / "a.npy", np.ones(3)), "shape"),
        (lambda p: _saved(p / "a.npy", np.array([[1.0], [np.inf]])), "row 1"),
        (lambda p: _cut(_saved(p / "a.npy", np.ones((50, 3)))), "cannot be read"),
        (lambda p: _written(p / "a.txt", "1 2 3"), "no array"),
        (lambda p: p, "no Zarr array"),
        (lambda p: _foreign(p / "a.zarr"), "codec"),
    ],
)
def test_files_that_are_no_factor(tmp_path, make, message):
    with pytest.raises(InputError, match=message):
        given_factors({"a": make(tmp_path)})


def test_nothing_is_no_factor():
    with pytest.raises(InputError, match="no factor"):
        given_factors({})


def _saved(path, values):
    np.save(path, values)
    return path


def _cut(path):
    path.write_bytes(path.read_bytes()[:-40])
    return path


def _written(path, text):
    path.write_text(text)
    return path


def _foreign(path):
    """An array that says it is to be read with pickle."""
    path.mkdir()
    content = {"zarr_format": 2, "shape": [2, 2], "chunks": [2, 2], "dtype": "<f8", "order": "C",
               "compressor": None, "fill_value": 0, "filters": [{"id": "pickle"}]}  # fmt: skip
    (path / ".zarray").write_text(json.dumps(content))
    return path


# the command line


def gmkcf(*args, code=0):
    result = CliRunner().invoke(main, [str(a) for a in args])
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture
def files(tmp_path, Zs):
    np.save(tmp_path / "title.npy", Zs["title"])
    made = zarr.create_array(
        str(tmp_path / "body.zarr"), shape=(N, 60), chunks=(30, 60), dtype="f8"
    )
    made[:] = Zs["body"]
    return [f"{name}={tmp_path / file}" for name, file in
            (("title", "title.npy"), ("body", "body.zarr"))]  # fmt: skip


FACTORED = ("--kernels", "factored")


def test_the_command_line_takes_named_files(tmp_path, files, Zs):
    plan = gmkcf("plan", *files, *FACTORED, "-k", K)
    assert "kernels are factored" in plan
    gmkcf("run", *files, *FACTORED, "-k", K, "--out", tmp_path / "run")
    gmkcf("build", *files, tmp_path / "s.zarr", *FACTORED)
    gmkcf("fit", tmp_path / "s.zarr", "-k", K, "--out", tmp_path / "fit")
    labels = [(tmp_path / name / "labels.csv").read_text() for name in ("run", "fit")]
    assert labels[0] == labels[1]
    gmkcf("predict", tmp_path / "run", *files, "--out", tmp_path / "new.csv")
    found = (tmp_path / "new.csv").read_text().splitlines()
    assert [row.rpartition(",")[0] for row in found[1:]] == labels[0].splitlines()[1:]
    model = GMKCF(K, kernels="factored", random_state=0).fit(Zs)
    assert [int(row.split(",")[1]) for row in labels[0].splitlines()[1:]] == model.labels_.tolist()
    np.testing.assert_array_equal(load(tmp_path / "run").predict(Zs), model.labels_)
    assert "sparse rows" not in gmkcf("info", tmp_path / "s.zarr")
    gmkcf("report", tmp_path / "run")


def test_the_command_line_takes_one_array(tmp_path, files, Zs):
    file = files[0].partition("=")[2]
    gmkcf("run", file, *FACTORED, "--method", "kcf", "-k", K, "--out", tmp_path / "run")
    assert (tmp_path / "run" / "labels.csv").read_text().splitlines()[1].startswith("0,")
    gmkcf("predict", tmp_path / "run", file, "--out", tmp_path / "new.csv")
    gmkcf("run", f"title={file}", *FACTORED, "-k", K, "--out", tmp_path / "named")
    sparse.save_npz(tmp_path / "thin.npz", sparse.csr_array(Zs["body"]))
    gmkcf("build", tmp_path / "thin.npz", tmp_path / "s.zarr", *FACTORED)
    assert "sparse rows" in gmkcf("info", tmp_path / "s.zarr")


def test_the_same_build_repairs(tmp_path, files, small_blocks):
    gmkcf("build", *files, tmp_path / "s.zarr", *FACTORED)
    damage(tmp_path / "s.zarr", "given_body")
    assert "same build" in gmkcf("verify", tmp_path / "s.zarr", code=4)
    assert "same build" in gmkcf("repair", tmp_path / "s.zarr", code=4)
    assert "were repaired" in gmkcf("build", *files, tmp_path / "s.zarr")
    gmkcf("verify", tmp_path / "s.zarr")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("run", "a.npy", "b.npy", "-k", 2, "--out", "r", *FACTORED), "NAME=FILE"),
        (("run", "a=a.npy", "a=b.npy", "-k", 2, "--out", "r", *FACTORED), "named twice"),
        (("run", "a=a.npy", "b=b.npy", "-k", 2, "--out", "r"), "--kernels factored"),
        (("run", "a=a.npy", "-k", 2, "--out", "r", *FACTORED), "does not exist"),
        (("run", "-k", 2, "--out", "r"), "INPUT"),
    ],
)
def test_wrong_arguments(tmp_path, monkeypatch, args, message):
    monkeypatch.chdir(tmp_path)
    assert message in gmkcf(*args, code=2)
    assert not (tmp_path / "r").exists()


def test_files_of_factors_are_for_runs_on_factors(tmp_path, files, Zs):
    sparse.save_npz(tmp_path / "x.npz", sparse.csr_array(Zs["body"]))
    gmkcf("run", tmp_path / "x.npz", "-k", K, "--out", tmp_path / "run")
    said = gmkcf("predict", tmp_path / "run", *files, "--out", tmp_path / "n.csv", code=2)
    assert "not made from factors" in said
