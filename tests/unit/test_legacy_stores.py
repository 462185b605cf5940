"""Stores and runs of commit d549cfb still open, build, fit, resume, predict, report and verify."""

import csv
import json
import warnings

import pytest
from helpers.faulty import THREADS, run
from helpers.legacy import (
    FIT_OPTIONS,
    FORMAT6_OPTIONS,
    KINDS,
    extract_d549cfb,
    extract_format6,
)

from gmkcf_dask import GMKCF, KernelStore, load

pytestmark = pytest.mark.usefixtures("calm")


@pytest.fixture
def legacy(request, tmp_path):
    return extract_d549cfb(tmp_path)[request.param]


both = pytest.mark.parametrize("legacy", KINDS, indirect=True)


def labels(path):
    """By id, the cluster; `path` is a file of labels, its column of sureness is left out."""
    with path.open(newline="") as file:
        return {row["id"]: row["label"] for row in csv.DictReader(file)}


def history(out):
    return json.loads((out / "result.json").read_bytes())["objective_history"]


def names(store):
    return sorted(str(file.relative_to(store)) for file in store.rglob("*") if file.is_file())


def gmkcf(*arguments):
    """Exit code and output; the warning of an old store is no failure here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return run(*arguments)


@both
def test_an_old_store_opens_with_one_warning(legacy):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        store = KernelStore.open(legacy.store)
        store.strings("ids")
        store.features().rows(slice(0, 3))
    assert len(said) == 1, [str(one.message) for one in said]
    assert "gmkcf build" in str(said[0].message)
    assert legacy.store.name in str(said[0].message)


@both
def test_an_old_store_verifies_and_has_nothing_to_repair(legacy):
    for command in ("verify", "repair"):
        code, said = gmkcf(command, legacy.store, *THREADS)
        assert code == 0, said


@both
def test_an_old_build_is_resumed(legacy, tmp_path):
    done = json.loads((legacy.begun / "manifest.json").read_bytes())["tiles_done"]
    assert 0 < len(done) < 10
    first = legacy.begun / "kernels" / "rbf_1" / "c" / "0" / "0"
    before = first.stat()
    assert gmkcf("verify", legacy.begun, *THREADS)[0] != 0
    code, said = gmkcf("build", legacy.input, legacy.begun, *legacy.build_options, *THREADS)
    assert code == 0, said
    assert first.stat().st_mtime_ns == before.st_mtime_ns
    assert first.stat().st_ino == before.st_ino
    assert gmkcf("verify", legacy.begun, *THREADS)[0] == 0
    assert names(legacy.begun) == names(legacy.store)
    out = tmp_path / "again"
    code, said = gmkcf("fit", legacy.begun, *FIT_OPTIONS, *THREADS, "--out", out)
    assert code == 0, said
    assert labels(out / "labels.csv") == labels(legacy.run / "labels.csv")


@both
def test_estimators_take_an_old_store_and_an_old_run(legacy):
    expected = [int(label) for label in labels(legacy.run / "labels.csv").values()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = GMKCF.paper(3, kernels="precomputed", tol=1e-9, max_iter=40, random_state=0).fit(
            legacy.store
        )
        loaded = load(legacy.run)
    assert model.labels_.tolist() == loaded.labels_.tolist() == expected


@both
def test_a_fit_of_an_old_store_finds_the_same_labels(legacy, tmp_path):
    out = tmp_path / "again"
    code, said = gmkcf("fit", legacy.store, *FIT_OPTIONS, *THREADS, "--out", out)
    assert code == 0, said
    assert (out / "labels.csv").read_bytes() == (legacy.run / "labels.csv").read_bytes()


@both
def test_an_old_checkpoint_goes_on_to_the_same_labels(legacy):
    checkpoint = legacy.unfinished / "checkpoint"
    assert checkpoint.exists()
    fit = ("fit", legacy.store, *FIT_OPTIONS, *THREADS, "--out", legacy.unfinished)
    code, said = gmkcf(*fit, "--resume")
    assert code == 0, said
    assert not checkpoint.exists()
    assert labels(legacy.unfinished / "labels.csv") == labels(legacy.run / "labels.csv")
    # to the bit only where BLAS is that of the old run (OPENBLAS_CORETYPE=SkylakeX)
    assert history(legacy.unfinished) == pytest.approx(history(legacy.run), rel=1e-5)


@both
def test_an_old_run_is_finished(legacy):
    fit = ("fit", legacy.store, *FIT_OPTIONS, *THREADS, "--out", legacy.run, "--resume")
    before = (legacy.run / "result.json").read_bytes()
    code, said = gmkcf(*fit)
    assert code == 0, said
    assert (legacy.run / "result.json").read_bytes() == before


@both
@pytest.mark.parametrize("version", ["0.0.9", "0.1.1", "99.0"])
def test_a_run_of_any_other_version_is_refused(legacy, version):
    fit = ("fit", legacy.store, *FIT_OPTIONS, *THREADS, "--out", legacy.run, "--resume")
    result = legacy.run / "result.json"
    body = json.loads(result.read_text())
    assert body["fingerprint"]["gmkcf-dask"] == "0.1.0"
    body["fingerprint"]["gmkcf-dask"] = version
    result.write_text(json.dumps(body))
    code, said = gmkcf(*fit)
    assert code == 2, said
    assert version in said


@both
def test_an_old_run_predicts_the_same_labels(legacy, tmp_path):
    out = tmp_path / "placed.csv"
    code, said = gmkcf("predict", legacy.run, legacy.new, "--out", out, *THREADS)
    assert code == 0, said
    assert labels(out) == labels(legacy.new_labels)


@both
@pytest.mark.parametrize("explained", [True, False], ids=["from insight", "from the store"])
def test_an_old_run_is_reported(legacy, explained, tmp_path):
    (legacy.run / "report.html").unlink()
    if not explained:
        (legacy.run / "insight.json").unlink()
    code, said = gmkcf("report", legacy.run)
    assert code == 0, said
    page = (legacy.run / "report.html").read_text()
    clusters = json.loads((legacy.run / "result.json").read_bytes())["clusters"]
    assert all(term.split()[-1] in page for cluster in clusters for term in cluster["terms"][:3])


@both
def test_an_old_run_is_scored(legacy):
    code, said = gmkcf("score", legacy.run, "--labels", legacy.run / "labels.csv")
    assert code == 0, said
    assert "1.0000" in said or "100" in said, said


@pytest.mark.parametrize(("kind", "ending"), [("texts", "jsonl"), ("points", "npy")])
def test_a_store_of_format_6_is_as_it_was(tmp_path, kind, ending):
    extract_format6(tmp_path)
    store, before = tmp_path / f"{kind}.zarr", tmp_path / f"{kind}_run"
    whole = {name: (store / name).read_bytes() for name in names(store)}
    for command in ("verify", "repair"):
        code, said = run(command, store, *THREADS)
        assert code == 0, said
    options = FORMAT6_OPTIONS[kind]
    code, said = run("build", tmp_path / f"{kind}.{ending}", store, *options, *THREADS)
    assert code == 0, said
    assert {name: (store / name).read_bytes() for name in names(store)} == whole
    code, said = run("fit", store, *FIT_OPTIONS, *THREADS, "--out", tmp_path / "again")
    assert code == 0, said
    assert labels(tmp_path / "again" / "labels.csv") == labels(before / "labels.csv")
    assert history(tmp_path / "again") == pytest.approx(history(before), rel=1e-5)
