"""Bad input gets one clear sentence, and nothing is written."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
import scipy.io
from click.testing import Result
from helpers.refusals import (
    FIT,
    KERNELS,
    THREADS,
    K,
    N,
    all_named,
    features,
    gmkcf,
    kernel,
    raised,
    refused,
)
from helpers.unusable_kernels import UNUSABLE_KERNELS, asymmetric, not_finite
from scipy import sparse
from sklearn.base import clone

from gmkcf_dask import GMKCF, KCF, KernelStore, Precomputed
from gmkcf_dask.compute.plan import make_plan
from gmkcf_dask.errors import (
    ClusterError,
    DataWarning,
    InputError,
    PlanRefused,
    StoreError,
)
from gmkcf_dask.kernels.specs import (
    FunctionKernel,
    Polynomial,
    Rbf,
    precomputed_specs,
    resolve_kernels,
)
from gmkcf_dask.store.manifest import sealed
from gmkcf_dask.system.units import MIB

MODELS = (GMKCF(K, kernels="rbf_1"), KCF(K, kernel="rbf_1"))


def with_value(value: float, row: int) -> np.ndarray:
    X = features()
    X[row, 2] = value
    return X


def skewed() -> np.ndarray:
    """Some samples point away from the sum of all."""
    return np.random.default_rng(0).normal(0.5, 1, (N, 3))


def contents(folder: Path) -> dict[str, bytes | None]:
    """All files and folders below a folder, with what is in them."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


@pytest.fixture
def x_file(tmp_path) -> Path:
    """A good input file."""
    np.save(tmp_path / "x.npy", features())
    return tmp_path / "x.npy"


@pytest.fixture
def nothing_written(tmp_path):
    """Checks, at the end of a test, that files are as they were when it was called last."""
    seen: list[dict[str, bytes | None]] = []

    def remember() -> None:
        seen.append(contents(tmp_path))

    yield remember
    assert seen, "the test has not said what there was before"
    before, after = seen[-1], contents(tmp_path)
    changed = [name for name in before | after if before.get(name, "") != after.get(name, "")]
    assert changed == []


@pytest.fixture(scope="module")
def finished_store(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    np.save(folder / "x.npy", features())
    options = (*KERNELS, *THREADS, "--block", 10)
    assert gmkcf("build", folder / "x.npy", folder / "s.zarr", *options).exit_code == 0
    return folder / "s.zarr"


@pytest.fixture
def store(finished_store, tmp_path) -> Path:
    """A store of the good input, to be spoilt."""
    shutil.copytree(finished_store, tmp_path / "s.zarr")
    return tmp_path / "s.zarr"


def edit_manifest(store: Path, **changes: object) -> None:
    path = store / "manifest.json"
    path.write_bytes(sealed(json.loads(path.read_text()) | changes))


# --- data that cannot be used -----------------------------------------------------------------

UNUSABLE = {
    "nan": (with_value(np.nan, 7), ("NaN", "row 7")),
    "infinity": (with_value(np.inf, 3), ("inf", "row 3")),
    "minus infinity": (with_value(-np.inf, 29), ("inf", "row 29")),
    "no samples": (np.empty((0, 4)), "0 sample"),
    "no features": (np.empty((N, 0)), "0 feature"),
    "one dimension": (np.arange(30.0), "1 dimension"),
    "three dimensions": (np.ones((3, 4, 5)), "3 dimension"),
    "text": (np.full((N, 2), "three"), "not numbers"),
    "complex": (features() * 1j, "omplex"),
    "equal rows": (np.ones((N, 3)), ("all 30 samples are equal",)),
    "only empty rows": (np.zeros((N, 3)), ("all 30 samples are equal",)),
}


@pytest.mark.parametrize("command", ["plan", "build", "run"])
@pytest.mark.parametrize("kind", UNUSABLE)
def test_unusable_features_from_a_file(kind, command, tmp_path, monkeypatch, nothing_written):
    monkeypatch.chdir(tmp_path)
    X, words = UNUSABLE[kind]
    np.save("x.npy", X)
    nothing_written()
    rest = {"plan": ("-k", K), "build": ("s.zarr",), "run": (*FIT, "--out", "run")}[command]
    sentence = refused(command, "x.npy", *rest, *KERNELS, *THREADS)
    assert all_named(words, sentence)


@pytest.mark.parametrize("estimator", [GMKCF, KCF])
@pytest.mark.parametrize("kind", UNUSABLE)
def test_unusable_features_in_memory(kind, estimator, tmp_path, nothing_written):
    X, words = UNUSABLE[kind]
    nothing_written()
    sentence = raised(lambda: estimator(K, store=tmp_path / "s.zarr").fit(X), InputError)
    assert all_named(words, sentence)


@pytest.mark.parametrize("estimator", [GMKCF, KCF])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_unusable_sparse_features_in_memory(value, estimator):
    X = sparse.csr_array(with_value(value, 11))
    assert "row 11" in raised(lambda: estimator(K).fit(X), InputError)


@pytest.mark.parametrize("estimator", [GMKCF, KCF])
def test_ragged_features_in_memory(estimator):
    assert "ragged" in raised(lambda: estimator(2).fit([[1.0, 2.0], [3.0]]), InputError)


def write_numbers_csv(folder: Path) -> Path:
    np.savetxt(folder / "x.csv", features(), delimiter=",")
    return folder / "x.csv"


def write_ragged_csv(folder: Path) -> Path:
    (folder / "x.csv").write_text("id,text\n1,one two\n2\n")
    return folder / "x.csv"


def write_header_only(folder: Path) -> Path:
    (folder / "x.csv").write_text("id,text\n")
    return folder / "x.csv"


def write_other_column(folder: Path) -> Path:
    (folder / "x.csv").write_text("id,body\n1,one two\n2,three\n")
    return folder / "x.csv"


def write_empty_jsonl(folder: Path) -> Path:
    (folder / "x.jsonl").touch()
    return folder / "x.jsonl"


def write_bad_jsonl(folder: Path) -> Path:
    (folder / "x.jsonl").write_text('{"text": "one"}\n{"text": \n')
    return folder / "x.jsonl"


def write_repeated_ids(folder: Path) -> Path:
    (folder / "x.csv").write_text("id,text\na,one two\na,three\n")
    return folder / "x.csv"


def write_wordless(folder: Path) -> Path:
    (folder / "x.csv").write_text("text\n!\n?\n")
    return folder / "x.csv"


def write_sparse_nan(folder: Path) -> Path:
    sparse.save_npz(folder / "x.npz", sparse.csr_matrix(with_value(np.nan, 5)))
    return folder / "x.npz"


def write_objects(folder: Path) -> Path:
    np.save(folder / "x.npy", np.array([[1, "a"]], dtype=object), allow_pickle=True)
    return folder / "x.npy"


def write_transposed_mat(folder: Path) -> Path:
    scipy.io.savemat(folder / "x.mat", {"X": features().T, "y": np.zeros(N)})
    return folder / "x.mat"


def write_mat_without_x(folder: Path) -> Path:
    scipy.io.savemat(folder / "x.mat", {"data": features()})
    return folder / "x.mat"


def write_short_labels(folder: Path) -> Path:
    np.savez(folder / "x.npz", X=features(), y=np.zeros(5))
    return folder / "x.npz"


def write_truncated(folder: Path) -> Path:
    np.save(folder / "x.npy", features())
    (folder / "x.npy").write_bytes((folder / "x.npy").read_bytes()[:-100])
    return folder / "x.npy"


def write_unknown_kind(folder: Path) -> Path:
    (folder / "x.xlsx").write_bytes(b"PK")
    return folder / "x.xlsx"


def write_no_ending(folder: Path) -> Path:
    (folder / "x").write_text("1 2 3")
    return folder / "x"


def write_nothing(folder: Path) -> Path:
    return folder / "missing.npz"


def write_empty_folder(folder: Path) -> Path:
    (folder / "texts").mkdir()
    return folder / "texts"


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (write_numbers_csv, ".npy"),
        (write_ragged_csv, "line 3"),
        (write_header_only, "no documents"),
        (write_other_column, ("'text'", "'body'")),
        (write_empty_jsonl, "no documents"),
        (write_bad_jsonl, "line 2"),
        (write_repeated_ids, "'a'"),
        (write_wordless, "no terms"),
        (write_sparse_nan, ("NaN", "row 5")),
        (write_objects, "cannot be read"),
        (write_transposed_mat, "transpose"),
        (write_mat_without_x, ("X", "data")),
        (write_short_labels, ("5 labels", "30 samples")),
        (write_truncated, "cannot be read"),
        (
            write_unknown_kind,
            ("file type", ".npz", ".csv", ".md", ".html", ".gz", "save a spreadsheet as CSV"),
        ),
        (write_no_ending, "file type"),
        (write_nothing, "does not exist"),
        (write_empty_folder, "no .txt"),
    ],
    ids=lambda value: getattr(value, "__name__", "").removeprefix("write_") or None,
)
@pytest.mark.parametrize("command", ["build", "run"])
def test_unusable_files(write, words, command, tmp_path, nothing_written):
    path = write(tmp_path)
    nothing_written()
    rest = (tmp_path / "s.zarr",) if command == "build" else (*FIT, "--out", tmp_path / "run")
    sentence = refused(command, path, *rest, *KERNELS, *THREADS)
    assert all_named(words, sentence)
    assert str(path) in sentence


# --- data that is unusual but fine ------------------------------------------------------------


def good_run(tmp_path: Path, X: np.ndarray, *options: object) -> tuple[Result, Path]:
    np.save(tmp_path / "x.npy", X)
    arguments = (*FIT, "--out", tmp_path / "run", *KERNELS, *THREADS, *options)
    result = gmkcf("run", tmp_path / "x.npy", *arguments)
    assert result.exit_code == 0, result.output
    return result, tmp_path / "run"


def notes(result: Result) -> list[str]:
    """Notes about the data, which those about the iterations are not."""
    about_iterations = ("max_iter", "reconstruction error")
    lines = result.stderr.splitlines()
    return [line for line in lines if not any(word in line for word in about_iterations)]


def test_empty_rows_are_kept_and_counted(tmp_path):
    X = features()
    X[[4, 9]] = 0
    result, run = good_run(tmp_path, X)
    (note,) = notes(result)
    assert note.startswith("note: ")
    assert all_named(("2 of 30", "row 4", "kept"), note)
    assert len((run / "labels.csv").read_text().splitlines()) == N + 1


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize("estimator", MODELS, ids=["GMKCF", "KCF"])
def test_empty_rows_are_kept_and_counted_in_memory(estimator, form):
    X = features()
    X[[4, 9]] = 0
    with pytest.warns(DataWarning, match=r"2 of 30 .*kept") as warned:
        model = clone(estimator).set_params(random_state=0, tol=0.01).fit(form(X))
    assert len(warned) == 1
    assert model.labels_.shape == (N,)
    assert np.isfinite(model.V_).all()


FINE = {
    "negative entries": features() - 2,
    "all negative": -features(),
    "duplicate rows": np.repeat(features(10), 3, axis=0),
    "integers": np.round(features() * 10).astype(int),
    "booleans": features() > 1,
    "one feature": features()[:, :1],
    "as many samples as clusters": features(K),
}


@pytest.mark.parametrize("kind", FINE)
def test_unusual_data_is_clustered(kind, tmp_path):
    result, run = good_run(tmp_path, FINE[kind])
    # the cosine of one feature is constant, takes all the weight, and that is said
    others = [note for note in notes(result) if "of the weight" not in note]
    assert len(others) == (kind == "one feature")
    assert all("barely more similar than random groups" in note for note in others)
    assert len((run / "labels.csv").read_text().splitlines()) == len(FINE[kind]) + 1


@pytest.mark.parametrize("kind", FINE)
@pytest.mark.parametrize("estimator", MODELS, ids=["GMKCF", "KCF"])
@pytest.mark.filterwarnings("ignore:.* stopped after max_iter", "ignore:the reconstruction error")
def test_unusual_data_is_clustered_in_memory(kind, estimator):
    model = clone(estimator).set_params(random_state=0, max_iter=30, tol=0.01).fit(FINE[kind])
    assert model.labels_.shape == (len(FINE[kind]),)


def test_fewer_distinct_rows_than_clusters(tmp_path):
    _, run = good_run(tmp_path, np.repeat(features(2), 10, axis=0))
    assert len((run / "labels.csv").read_text().splitlines()) == 21


# --- the number of clusters and other options -------------------------------------------------

BAD_OPTIONS = [
    (("-k", 0), ("n_clusters", "0")),
    (("-k", -3), ("n_clusters", "-3")),
    (("-k", N + 1), (str(N), str(N + 1))),
    (("--n-init", 0), "n_init"),
    (("--inner-iter", 0), "inner_iter"),
    (("--v-steps", -1), "v_steps"),
    (("--max-iter", 0), "max_iter"),
    (("--tol", -1), "tol"),
    (("--tol", "nan"), "tol"),
]


def spelled(value: object) -> str:
    return "-".join(map(str, value)) if isinstance(value, tuple) else str(value)


@pytest.mark.parametrize(("options", "words"), BAD_OPTIONS, ids=spelled)
def test_unusable_numbers_are_refused_by_run(options, words, x_file, tmp_path, nothing_written):
    nothing_written()
    arguments = ("run", x_file, *FIT, "--out", tmp_path / "run", *KERNELS, *THREADS, *options)
    assert all_named(words, refused(*arguments))


@pytest.mark.parametrize(("options", "words"), BAD_OPTIONS, ids=spelled)
def test_unusable_numbers_are_refused_by_fit(options, words, store, tmp_path, nothing_written):
    nothing_written()
    sentence = refused("fit", store, *FIT, "--out", tmp_path / "run", *THREADS, *options)
    assert all_named(words, sentence)


@pytest.mark.parametrize("k", [0, -1, N + 1])
def test_plan_refuses_the_number_of_clusters(k, x_file, nothing_written):
    nothing_written()
    assert str(k) in refused("plan", x_file, "-k", k, *THREADS)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--colour", "red"), "--colour"),
        (("--normalization", "l2"), "l2"),
        (("--scaling", "zscore"), "zscore"),
        (("--precision", "float16"), "float16"),
        (("--layout", "both"), "both"),
        (("--block", 0), "--block"),
        (("--workers", 0), "--workers"),
        (("--memory", "plenty"), "plenty"),
        (("--seed", -1), "--seed"),
        (("--max-iter", "many"), "many"),
        (("-k", "three"), "three"),
    ],
    ids=spelled,
)
def test_unknown_options_are_usage_errors(options, word, x_file, tmp_path, nothing_written):
    nothing_written()
    result = gmkcf("run", x_file, *FIT, "--out", tmp_path / "run", *options)
    assert result.exit_code == 2
    assert isinstance(result.exception, SystemExit)
    last = result.stderr.splitlines()[-1]
    assert last.startswith("Error: ")
    assert word in last


@pytest.mark.parametrize(
    "arguments", [("run",), ("run", "x.npy"), ("fit",), ("dance",), ("build",)]
)
def test_missing_arguments_are_usage_errors(arguments):
    result = gmkcf(*arguments)
    assert result.exit_code == 2
    assert isinstance(result.exception, SystemExit)
    assert "Traceback" not in result.output


BAD_PARAMETERS = [
    {"n_clusters": 0},
    {"n_clusters": -1},
    {"n_clusters": N + 1},
    {"n_clusters": 2.5},
    {"n_clusters": "3"},
    {"n_clusters": None},
    {"normalization": "l2"},
    {"scaling": None},
    {"precision": "float16"},
    {"layout": "both"},
    {"block_size": 0},
    {"block_size": "large"},
    {"n_init": 0},
    {"n_init": "two"},
    {"init": "kmeans"},
    {"init": None},
    {"init": (np.ones((N, K)), np.ones((N, K - 1)))},
    {"init": (np.ones((N, K)), -np.ones((N, K)))},
    {"init": (np.full((N, K), np.nan), np.ones((N, K)))},
    {"init": (np.ones((N, K)), np.ones((N, K))), "n_init": 2},
    {"inner_iter": 0},
    {"v_steps": 0},
    {"max_iter": 0},
    {"tol": -1e-3},
    {"tol": float("nan")},
    {"tol": "small"},
    {"tol": None},
    {"random_state": -1},
]


@pytest.mark.parametrize("estimator", MODELS, ids=["GMKCF", "KCF"])
@pytest.mark.parametrize("parameters", BAD_PARAMETERS, ids=lambda p: spelled(tuple(p)))
def test_unusable_parameters(parameters, estimator, tmp_path, nothing_written):
    nothing_written()
    good = {"n_clusters": K, "random_state": 0, "store": tmp_path / "s.zarr", "max_iter": 2}
    model = type(estimator)(**estimator.get_params() | good | parameters)
    sentence = raised(lambda: model.fit(features()), InputError)
    assert any(name in sentence for name in parameters)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"n": 0}, "sample"),
        ({"n_clusters": 0}, "cluster"),
        ({"n_clusters": N + 1}, str(N)),
        ({"n_kernels": 0}, "kernel"),
        ({"block": 0}, "block"),
        ({"block": -1}, "block"),
        ({"n_workers": 0}, "workers"),
        ({"precision": "float16"}, ("float16", "compact")),
    ],
    ids=str,
)
def test_make_plan_refuses_nonsense(changes, words):
    job = {"n": N, "n_features": 4, "n_kernels": 2, "n_clusters": K, "feature_bytes": 1000}
    assert all_named(words, raised(lambda: make_plan(**job | changes), InputError))


# --- kernels ----------------------------------------------------------------------------------

BAD_NAMES = {
    "gaussian": "'gaussian'",
    "rbf": "'rbf'",
    "rbf_0": "'rbf_0'",
    "rbf_-1": "'rbf_-1'",
    "rbf_1e999": "'rbf_1e999'",
    "rbf_nan": "'rbf_nan'",
    "poly_a1": "'poly_a1'",
    "poly_a1_b0": "'poly_a1_b0'",
    "poly_a1_b2.5": "'poly_a1_b2.5'",
    "paper": "paper12",
    "Cosine": "cosine",
    "cosine,cosine": "twice",
    "paper12,rbf_1": "twice",
    "": "no kernel",
    " , ": "no kernel",
}


@pytest.mark.parametrize("name", BAD_NAMES)
def test_unknown_kernels_on_the_command_line(name, x_file, tmp_path, nothing_written):
    nothing_written()
    sentence = refused("build", x_file, tmp_path / "s.zarr", "--kernels", name, *THREADS)
    assert BAD_NAMES[name] in sentence


@pytest.mark.parametrize("name", BAD_NAMES)
def test_unknown_kernels_in_calls(name, tmp_path, nothing_written):
    nothing_written()
    assert BAD_NAMES[name] in raised(lambda: resolve_kernels(name), InputError)
    for model in (GMKCF(K, kernels=name), KCF(K, kernel=name)):
        model.set_params(store=tmp_path / "s.zarr")
        assert BAD_NAMES[name] in raised(lambda model=model: model.fit(features()), InputError)


@pytest.mark.parametrize(
    "kernels",
    [5, None, [5], [], ["rbf_1", "nope"], [lambda a, b: a @ b.T], b"rbf_1"],
    ids=["5", "None", "[5]", "[]", "one unknown", "lambda", "bytes"],
)
def test_what_is_no_kernel(kernels):
    raised(lambda: resolve_kernels(kernels), InputError)


@pytest.mark.parametrize("t", [0.0, -1.0, np.nan, np.inf])
def test_widths_that_mean_nothing(t):
    assert str(t) in raised(lambda: Rbf(t), InputError)


@pytest.mark.parametrize(("a", "b"), [(1.0, 0), (-1.0, 2), (1.0, 2.5), (np.nan, 2)])
def test_polynomials_that_mean_nothing(a, b):
    assert f"a={a}, b={b}" in raised(lambda: Polynomial(a, b), InputError)


@pytest.mark.parametrize("name", ["rbf_2000000", "rbf_0.123456789", "poly_a10000000_b2"])
def test_large_and_exact_parameters_are_fine(name):
    (spec,) = resolve_kernels(name)
    assert resolve_kernels(spec.name) == (spec,)
    assert float(name.split("_")[1].lstrip("a")) in vars(spec).values()


def test_kernel_that_is_not_in_the_store(store):
    sentence = raised(lambda: KCF(K, kernel="linear").fit(store), InputError)
    assert all_named(("linear", "rbf_1", "cosine"), sentence)


@pytest.mark.parametrize("kind", UNUSABLE_KERNELS)
def test_unusable_precomputed_kernels(kind, tmp_path, nothing_written):
    nothing_written()
    matrices, words = UNUSABLE_KERNELS[kind]
    assert all_named(words, raised(lambda: precomputed_specs(matrices), InputError))
    for model in (GMKCF(2, kernels="precomputed"), KCF(2, kernel="precomputed")):
        model.set_params(store=tmp_path / "s.zarr")
        sentence = raised(lambda model=model: model.fit(matrices), InputError)
        assert all_named(words, sentence)


@pytest.mark.parametrize("model", [GMKCF, KCF])
def test_fewer_precomputed_samples_than_clusters(model):
    how = {"kernels" if model is GMKCF else "kernel": "precomputed"}
    assert "7" in raised(lambda: model(7, **how).fit([kernel(6)]), InputError)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (Precomputed(kernel(N - 1), "mine"), ("mine", "29")),
        (Precomputed(asymmetric(), "mine"), ("mine", "symmetric")),
        (Precomputed(not_finite(6), "mine"), ("mine", "row 6")),
        (Precomputed(np.ones((N, 3)), "mine"), ("mine", "square")),
    ],
    ids=["size", "asymmetric", "nan", "not square"],
)
def test_precomputed_kernels_beside_computed_ones(spec, words, tmp_path, nothing_written):
    nothing_written()
    model = GMKCF(K, kernels=["rbf_1", spec], store=tmp_path / "s.zarr")
    assert all_named(words, raised(lambda: model.fit(features()), InputError))


@pytest.mark.parametrize("normalization", ["unit", "degree", "none"])
@pytest.mark.parametrize(
    "values",
    [lambda a, b: np.full((len(a), len(b)), np.nan), lambda a, b: np.ones(3)],
    ids=["nan", "wrong shape"],
)
def test_functions_that_are_no_kernels(values, normalization, tmp_path, nothing_written):
    nothing_written()
    model = GMKCF(K, kernels=FunctionKernel(values, "mine"), normalization=normalization)
    assert "mine" in raised(lambda: model.fit(features()), InputError)
    model.set_params(store=tmp_path / "s.zarr")
    assert "mine" in raised(lambda: model.fit(features()), InputError)


AS_IT_IS = ("--kernels", "linear", "--normalization", "none", "--scaling", "none")
UNFIT = {
    "overflow of distances": (features() * 1e200, ("--kernels", "rbf_1"), "too large"),
    "overflow of products": (
        features() * 1e200,
        AS_IT_IS,
        "linear",
    ),
    "overflow of a power": (
        features() * 1e90,
        ("--kernels", "poly_a1_b4", "--normalization", "none", "--scaling", "none"),
        "poly_a1_b4",
    ),
    "negative row sums": (
        skewed(),
        ("--kernels", "linear", "--normalization", "degree"),
        ("linear", "row sum"),
    ),
    "compact beyond one": (
        features(),
        (*AS_IT_IS, "--precision", "compact"),
        ("linear", "compact"),
    ),
}


@pytest.mark.parametrize("kind", UNFIT)
def test_kernels_the_data_does_not_allow(kind, tmp_path, nothing_written):
    X, options, words = UNFIT[kind]
    np.save(tmp_path / "x.npy", X)
    nothing_written()
    sentence = refused("build", tmp_path / "x.npy", tmp_path / "s.zarr", *THREADS, *options)
    assert all_named(words, sentence)


# --- stores -----------------------------------------------------------------------------------


def test_fit_refuses_an_incomplete_store(store, tmp_path, nothing_written):
    edit_manifest(store, complete=False, tiles_done=[0, 1])
    nothing_written()
    sentence = refused("fit", store, *FIT, "--out", tmp_path / "run", *THREADS)
    assert all_named(("incomplete", "2 of 6 tiles", "build again"), sentence)
    for model in (GMKCF(K), KCF(K)):
        assert "incomplete" in raised(lambda model=model: model.fit(store), StoreError)
    assert "incomplete" in raised(lambda: KernelStore.open(store), StoreError)


def test_another_format_version(store, x_file, tmp_path, nothing_written):
    edit_manifest(store, format_version=99)
    nothing_written()
    for command in (
        ("fit", store, *FIT, "--out", tmp_path / "run", *THREADS),
        ("build", x_file, store, *KERNELS, *THREADS),
        ("run", x_file, *FIT, "--out", tmp_path / "run", "--store", store, *KERNELS, *THREADS),
    ):
        assert all_named(("format version 99", "reads 3"), refused(*command))
    assert "99" in raised(lambda: GMKCF(K).fit(store), StoreError)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"format": "other"}', '"x"'])
def test_a_damaged_manifest(content, store, tmp_path, nothing_written):
    (store / "manifest.json").write_text(content)
    nothing_written()
    assert "manifest" in refused("fit", store, *FIT, "--out", tmp_path / "run", *THREADS, code=4)


def test_a_manifest_of_binary_noise(store, tmp_path, nothing_written):
    (store / "manifest.json").write_bytes(bytes(range(256)))
    nothing_written()
    assert "manifest" in refused("fit", store, *FIT, "--out", tmp_path / "run", *THREADS, code=4)


@pytest.mark.parametrize("field", ["kernels", "n_samples", "block_size", "inputs", "tiles_done"])
def test_a_manifest_that_lacks_a_field(field, store, tmp_path, nothing_written):
    path = store / "manifest.json"
    found = json.loads(path.read_text())
    del found[field]
    path.write_text(json.dumps(found))
    nothing_written()
    assert "manifest" in refused("fit", store, *FIT, "--out", tmp_path / "run", *THREADS, code=4)


def make_folder(path: Path) -> None:
    path.mkdir()


def make_full_folder(path: Path) -> None:
    path.mkdir()
    (path / "photo.jpg").touch()


def make_file(path: Path) -> None:
    path.touch()


def make_nothing(path: Path) -> None:
    pass


@pytest.mark.parametrize("make", [make_nothing, make_folder, make_full_folder, make_file])
def test_what_is_no_store_cannot_be_fitted(make, tmp_path, nothing_written):
    make(tmp_path / "s.zarr")
    nothing_written()
    sentence = refused("fit", tmp_path / "s.zarr", *FIT, "--out", tmp_path / "run", *THREADS)
    assert all_named(("s.zarr", "kernel store"), sentence)
    for path in (tmp_path / "s.zarr", str(tmp_path / "s.zarr")):
        assert "s.zarr" in raised(lambda path=path: GMKCF(K).fit(path), StoreError)


@pytest.mark.parametrize("make", [make_full_folder, make_file])
def test_a_store_does_not_go_where_other_things_are(make, x_file, tmp_path, nothing_written):
    make(tmp_path / "s.zarr")
    nothing_written()
    assert "s.zarr" in refused("build", x_file, tmp_path / "s.zarr", *KERNELS, *THREADS)
    arguments = ("--out", tmp_path / "run", "--store", tmp_path / "s.zarr")
    assert "s.zarr" in refused("run", x_file, *FIT, *arguments, *KERNELS, *THREADS)
    model = GMKCF(K, kernels="rbf_1", store=tmp_path / "s.zarr")
    assert "s.zarr" in raised(lambda: model.fit(features()))


OTHER_PARAMETERS = {
    "kernels": (("--kernels", "rbf_1"), ("kernels", "rbf_1,cosine")),
    "order": (("--kernels", "cosine,rbf_1"), "kernels"),
    "normalization": (("--normalization", "degree"), ("normalization", "unit", "degree")),
    "scaling": (("--scaling", "none"), ("scaling", "minmax", "none")),
    "precision": (("--precision", "compact"), ("precision", "float32", "compact")),
    "block": (("--block", 11), ("block size", "10", "11")),
}


@pytest.mark.parametrize("kind", OTHER_PARAMETERS)
def test_a_store_of_other_parameters(kind, store, x_file, tmp_path, nothing_written):
    options, words = OTHER_PARAMETERS[kind]
    nothing_written()
    run = ("run", x_file, *FIT, "--out", tmp_path / "run", "--store", store)
    for command in (("build", x_file, store), run):
        assert all_named(words, refused(*command, *KERNELS, *THREADS, *options))


def test_a_store_of_nearly_the_same_parameters(x_file, tmp_path, nothing_written):
    command = ("build", x_file, tmp_path / "s.zarr", *THREADS, "--kernels")
    assert gmkcf(*command, "rbf_0.1234567").exit_code == 0
    nothing_written()
    assert "kernels" in refused(*command, "rbf_0.1234568")


OTHER_INPUTS = {
    "values": (features() + 1e-9, "features"),
    "samples": (features()[:-1], ("samples", "30", "29")),
    "columns": (features()[:, :-1], ("features", "4", "3")),
}


@pytest.mark.parametrize("kind", OTHER_INPUTS)
def test_a_store_of_another_input(kind, store, tmp_path, nothing_written):
    X, words = OTHER_INPUTS[kind]
    np.save(tmp_path / "other.npy", X)
    nothing_written()
    other = tmp_path / "other.npy"
    run = ("run", other, *FIT, "--out", tmp_path / "run", "--store", store)
    for command in (("build", other, store), run):
        assert all_named(words, refused(*command, *KERNELS, *THREADS))
    model = GMKCF(K, kernels=["rbf_1", "cosine"], store=store)
    assert all_named(words, raised(lambda: model.fit(X), StoreError))


@pytest.mark.parametrize("part", ["ids", "y"])
def test_a_store_of_other_ids_or_labels(part, tmp_path, nothing_written):
    names = {"ids": np.arange(N), "y": np.arange(N) % K}
    np.savez(tmp_path / "x.npz", X=features(), **names)
    np.savez(tmp_path / "other.npz", X=features(), **names | {part: names[part] + 1})
    options = (tmp_path / "s.zarr", *KERNELS, *THREADS)
    assert gmkcf("build", tmp_path / "x.npz", *options).exit_code == 0
    nothing_written()
    word = {"ids": "ids", "y": "labels"}[part]
    assert word in refused("build", tmp_path / "other.npz", *options)


def test_a_store_of_other_precomputed_kernels(tmp_path, nothing_written):
    model = GMKCF(K, kernels="precomputed", store=tmp_path / "s.zarr", random_state=0, tol=0.1)
    model.fit([kernel()])
    nothing_written()
    sentence = raised(lambda: model.fit([kernel() + 1]), StoreError)
    assert "precomputed kernels" in sentence


# --- places -----------------------------------------------------------------------------------


def test_a_folder_with_another_run_is_kept(x_file, store, tmp_path, nothing_written):
    commands = [
        ("run", x_file, *FIT, "--out", tmp_path / "run", *KERNELS, *THREADS),
        ("fit", store, *FIT, "--out", tmp_path / "run", *THREADS),
    ]
    assert gmkcf(*commands[0]).exit_code == 0
    nothing_written()
    for command in commands:
        assert all_named(("another run", "--overwrite"), refused(*command))


@pytest.mark.parametrize("name", ["labels.csv", "result.json", "factors.npz"])
def test_even_a_part_of_another_run_is_kept(name, x_file, tmp_path, nothing_written):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).write_text("mine")
    nothing_written()
    arguments = ("run", x_file, *FIT, "--out", tmp_path / "run", *KERNELS, *THREADS)
    assert all_named((name, "--overwrite"), refused(*arguments))


def test_overwriting_with_bad_input_keeps_the_old_run(x_file, tmp_path, nothing_written):
    rest = (*FIT, "--out", tmp_path / "run", *KERNELS, *THREADS)
    assert gmkcf("run", x_file, *rest).exit_code == 0
    np.save(tmp_path / "bad.npy", with_value(np.nan, 1))
    nothing_written()
    refused("run", tmp_path / "bad.npy", *rest, "--overwrite")
    refused("run", x_file, *rest, "--overwrite", "-k", N + 1)
    refused("run", x_file, *rest, "--overwrite", "--memory", "100MiB", code=3)


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_results_cannot_be_written(place, x_file, store, tmp_path, nothing_written):
    (tmp_path / "file").write_text("mine")
    nothing_written()
    out = tmp_path / place
    new = ("--store", tmp_path / "new.zarr")
    for command in (
        ("run", x_file, *FIT, "--out", out, *KERNELS, *THREADS),
        ("run", x_file, *FIT, "--out", out, *new, *KERNELS, *THREADS),
        ("fit", store, *FIT, "--out", out, *THREADS),
    ):
        assert str(out) in refused(*command)


def test_an_unwritable_place_is_told_before_any_work(store, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setattr("gmkcf_dask.pipeline.fitting.fit", lambda *_, **__: pytest.fail("worked"))
    refused("fit", store, *FIT, "--out", tmp_path / "file" / "below", *THREADS)


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_store_cannot_be_written(place, x_file, tmp_path, nothing_written):
    (tmp_path / "file").write_text("mine")
    nothing_written()
    path = tmp_path / place
    run = ("run", x_file, *FIT, "--out", tmp_path / "run", "--store", path)
    for command in (("build", x_file, path), run):
        assert str(path) in refused(*command, *KERNELS, *THREADS)
    for model in (GMKCF(K, kernels="rbf_1", store=path), KCF(K, kernel="rbf_1", store=path)):
        assert str(path) in raised(lambda model=model: model.fit(features()))


@pytest.fixture
def full_disk(monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(
        "gmkcf_dask.store.files.shutil.disk_usage", lambda _: usage(1 << 40, 1 << 40, 2048)
    )


@pytest.mark.usefixtures("full_disk")
def test_too_little_disk(x_file, tmp_path, nothing_written):
    nothing_written()
    build = ("build", x_file, tmp_path / "s.zarr")
    for command in (build, ("run", x_file, *FIT, "--out", tmp_path / "run")):
        sentence = refused(*command, *KERNELS, *THREADS, code=3)
        assert all_named(("disk", "2.0 KiB", "free"), sentence)
    model = GMKCF(K, kernels="rbf_1", store=tmp_path / "s.zarr")
    assert "disk" in raised(lambda: model.fit(features()), PlanRefused)


@pytest.mark.usefixtures("full_disk")
def test_a_store_that_is_there_needs_no_more_disk(store, tmp_path):
    assert gmkcf("fit", store, *FIT, "--out", tmp_path / "run", *THREADS).exit_code == 0


def test_too_little_memory(x_file, store, tmp_path, monkeypatch, nothing_written):
    monkeypatch.chdir(tmp_path)
    nothing_written()
    little = (*THREADS, "--memory", "100MiB")
    for command in (
        ("plan", x_file, "-k", K),
        ("build", x_file, tmp_path / "new.zarr"),
        ("run", x_file, *FIT, "--out", tmp_path / "run"),
        ("fit", store, *FIT, "--out", tmp_path / "run"),
    ):
        sentence = refused(*command, *little, code=3)
        assert all_named(("memory", "100.0 MiB", "needs"), sentence)


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"memory_per_worker": 100 * MIB}, ("100.0 MiB", "memory")),
        ({"disk_free": 10}, ("10 B", "disk")),
        ({"block": 1 << 17}, ("131072×131072", "smaller block")),
    ],
    ids=["memory", "disk", "block"],
)
def test_make_plan_refuses_with_the_numbers(limits, words):
    job = {
        "n": 1 << 17,
        "n_features": 4,
        "n_kernels": 12,
        "n_clusters": 5,
        "feature_bytes": 1 << 22,
    }
    sentence = raised(lambda: make_plan(**job, **limits), PlanRefused)
    assert all_named(words, sentence)


def test_kernels_too_large_for_the_memory_of_this_process(monkeypatch):
    monkeypatch.setattr("gmkcf_dask.pipeline.kernels.free_memory", lambda: 1000)
    for model in (GMKCF(K, kernels="rbf_1"), KCF(K, kernel="rbf_1")):
        sentence = raised(lambda model=model: model.fit(features()), PlanRefused)
        assert all_named(("memory", "store"), sentence)


# --- schedulers -------------------------------------------------------------------------------

NO_SCHEDULER = "tcp://127.0.0.1:1"


@pytest.fixture
def impatient(monkeypatch):
    """Connections give up soon, which is all that differs from the real thing."""
    monkeypatch.setattr("gmkcf_dask.cluster.connect.CONNECT_SECONDS", 0.5)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("command", ["plan", "build", "fit", "run"])
def test_unreachable_scheduler(command, x_file, store, tmp_path, monkeypatch, nothing_written):
    monkeypatch.chdir(tmp_path)
    nothing_written()
    rest = {
        "plan": (x_file, "-k", K),
        "build": (x_file, tmp_path / "new.zarr"),
        "fit": (store, *FIT, "--out", tmp_path / "run"),
        "run": (x_file, *FIT, "--out", tmp_path / "run"),
    }[command]
    sentence = refused(command, *rest, "--cluster", NO_SCHEDULER)
    assert all_named((NO_SCHEDULER, "scheduler"), sentence)


@pytest.mark.slow
def test_an_address_that_is_none(x_file, tmp_path, nothing_written):
    """In a process of its own: what is left behind shows only when it ends."""
    nothing_written()
    address = "nonsense"
    command = ("plan", str(x_file), "-k", str(K), "--cluster", address)
    try:
        result = subprocess.run(
            [sys.executable, "-m", "gmkcf_dask.cli", *command],
            capture_output=True,
            text=True,
            timeout=12,
            cwd=tmp_path,
            check=False,
        )
    except subprocess.TimeoutExpired:
        pytest.fail("it did not end after its refusal")
    assert result.returncode == 2
    (sentence,) = result.stderr.splitlines()
    assert sentence.startswith("error: ")
    assert address in sentence


def test_a_scheduler_without_workers(x_file, tmp_path, nothing_written):
    from distributed import LocalCluster

    nothing_written()
    settings = {"n_workers": 0, "processes": False, "protocol": "tcp://"}
    with LocalCluster(host="127.0.0.1", dashboard_address="127.0.0.1:0", **settings) as cluster:
        arguments = ("run", x_file, *FIT, "--out", tmp_path / "run", *KERNELS)
        sentence = refused(*arguments, "--cluster", cluster.scheduler_address)
    assert "no workers" in sentence


def test_a_client_that_was_closed(tmp_path, nothing_written):
    from distributed import Client, LocalCluster

    nothing_written()
    settings = {"n_workers": 1, "threads_per_worker": 1, "processes": False}
    with (
        LocalCluster(dashboard_address="127.0.0.1:0", **settings) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        pass
    model = GMKCF(K, kernels="rbf_1", store=tmp_path / "s.zarr", client=client)
    raised(lambda: model.fit(features()), ClusterError)


@pytest.mark.parametrize(
    ("option", "value"),
    [("--stall-timeout", "nan"), ("--stall-timeout", "inf"), ("--memory", "1e400")],
)
def test_numbers_that_are_none(option, value, x_file):
    done = gmkcf("plan", x_file, "-k", K, option, value)
    assert done.exit_code == 2
    assert "Traceback" not in done.output
    assert f"Invalid value for '{option}'" in done.output


def test_a_run_folder_that_is_a_link_to_nowhere(x_file, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    sentence = refused("run", x_file, "-k", K, "--out", tmp_path / "link", *THREADS)
    assert "leads nowhere" in sentence


def test_a_path_that_is_text_in_no_encoding(x_file, tmp_path):
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/d\xe9"))
    done = gmkcf("run", x_file, *FIT, *KERNELS, *THREADS, "--out", folder)
    assert done.exit_code == 0, done.output
    known = json.loads((folder / "result.json").read_bytes())["store"]
    assert Path(known) == folder / "store.zarr"
