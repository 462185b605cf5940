"""One exit code for each cause, whatever the command; the table is in docs/reliability.md."""

import errno
import json
import os
import shutil

import numpy as np
import pytest
from helpers.commands import exits
from helpers.damage import store_at
from helpers.faulty import FIT, THREADS, outcome, run, small_store

from gmkcf_dask.store.lock import LockInfo, lock_path
from gmkcf_dask.system import retry

COMMANDS = (
    "build", "fit", "run", "predict", "score", "report", "info", "verify", "repair", "suggest-k",
    "compare",
)  # fmt: skip
READERS = tuple(name for name in COMMANDS if name not in ("build", "run"))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A store, its input and a finished run."""
    folder = tmp_path_factory.mktemp("made")
    store = store_at(folder / "s.zarr")
    np.save(folder / "x.npy", store.features().rows(slice(0, 60)).toarray())
    kernels = ("--kernels", "rbf_1,cosine", "--block", 16)
    assert run("build", folder / "x.npy", folder / "x.zarr", *kernels, *THREADS)[0] == 0
    fit = ("fit", folder / "x.zarr", "-k", 3, "--max-iter", 2, "--out", folder / "run", *THREADS)
    assert run(*fit)[0] == 0
    return folder


@pytest.fixture
def place(made, tmp_path):
    """A copy of it; the run finds its store beside itself."""
    folder = shutil.copytree(made, tmp_path / "made")
    result = json.loads((folder / "run" / "result.json").read_text())
    result["store"] = str(folder / "x.zarr")
    (folder / "run" / "result.json").write_text(json.dumps(result))
    return folder


def command(name, place):
    store, x, out = place / "x.zarr", place / "x.npy", place / "out"
    kernels = ("--kernels", "rbf_1,cosine", "--block", 16)
    how = {
        "build": (x, store, *kernels),
        "fit": (store, "-k", 3, "--max-iter", 2, "--out", out),
        "run": (x, "-k", 3, "--max-iter", 2, "--out", out, "--store", store, *kernels),
        "predict": (place / "run", x, "--out", out),
        "score": (place / "run",),
        "report": (place / "run",),
        "info": (store,),
        "verify": (store,),
        "repair": (store,),
        "suggest-k": (store, "--ks", "2-3", "--restarts", 2),
        "compare": (store, "-k", 3),
    }
    words = (name, *how[name])
    return words if name in ("info", "report") else (*words, *THREADS)


def flip_manifest(place):
    path = place / "x.zarr" / "manifest.json"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def cut_manifest(place):
    os.truncate(place / "x.zarr" / "manifest.json", 100)


def remove_manifest(place):
    (place / "x.zarr" / "manifest.json").unlink()


@pytest.mark.parametrize("damage", [flip_manifest, cut_manifest, remove_manifest])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_damaged_manifest_is_4(place, name, damage):
    damage(place)
    (place / "run" / "insight.json").unlink()  # so that `report` needs the store
    said = exits(4, *command(name, place)).output
    assert "manifest" in said


@pytest.mark.parametrize("name", READERS)
def test_a_store_that_is_not_there_is_2(place, name):
    shutil.rmtree(place / "x.zarr")
    (place / "run" / "insight.json").unlink()
    exits(2, *command(name, place))


@pytest.mark.parametrize("name", ["predict", "score", "report"])
def test_a_damaged_result_is_4(place, name):
    (place / "run" / "result.json").write_text("{")
    (place / "run" / "insight.json").unlink()
    said = exits(4, *command(name, place)).output
    assert "result.json" in said


@pytest.mark.parametrize(("number", "expected"), [(errno.EIO, 5), (errno.EACCES, 2)])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_manifest_that_cannot_be_read_is_5_or_2(place, monkeypatch, name, number, expected):
    """A fake: opening it fails."""
    monkeypatch.setattr(retry, "PAUSES", (0.0,))
    real, manifest = os.open, str(place / "x.zarr" / "manifest.json")

    def failing(path, *args, **how):
        if str(path) == manifest:
            raise OSError(number, os.strerror(number), str(path))
        return real(path, *args, **how)

    (place / "run" / "insight.json").unlink()
    monkeypatch.setattr(os, "open", failing)
    said = exits(expected, *command(name, place)).output
    assert os.strerror(number) in said
    assert manifest in said


@pytest.mark.parametrize("name", ["build", "run", "repair"])
def test_a_store_being_written_is_6(place, name):
    lock_path(place / "x.zarr").write_text(
        LockInfo.mine().encode().decode()  # this very process
    )
    if name != "repair":
        shutil.rmtree(place / "x.zarr")
    said = exits(6, *command(name, place)).output
    assert f"process {os.getpid()}" in said


# a run killed between its results and its report


@pytest.mark.parametrize("left", [(), ("insight.json",)])
def test_resume_writes_the_report_that_is_missing(tmp_path, left):
    small_store(tmp_path / "s.zarr")
    fit = ("fit", tmp_path / "s.zarr", *FIT, "--max-iter", 4, *THREADS, "--out", tmp_path / "out")
    assert run(*fit)[0] == 0
    whole, before = outcome(tmp_path / "out"), snapshot(tmp_path / "out")
    for name in {"insight.json", "report.html"} - set(left):
        (tmp_path / "out" / name).unlink()
    (tmp_path / "out" / f".report.html.{'a' * 32}").write_text("half")
    said = exits(0, *fit, "--resume").output
    assert "report.html was written" in said
    assert outcome(tmp_path / "out") == whole
    after = snapshot(tmp_path / "out")
    assert set(after) == set(before)
    assert after["labels.csv"] == before["labels.csv"]
    mine, theirs = (json.loads(one["insight.json"]) for one in (after, before))
    for name in ("clusters", "documents"):
        assert mine[name] == theirs[name]
    assert "nothing was done" in run(*fit, "--resume")[1]
    assert snapshot(tmp_path / "out") == after


def test_resume_writes_the_reports_of_all_kernels(tmp_path):
    store = small_store(tmp_path / "s.zarr")
    out = tmp_path / "out"
    fit = ("fit", tmp_path / "s.zarr", "-k", 3, "--method", "kcf", "--kernel", "all",
           "--max-iter", 3, *THREADS, "--out", out)  # fmt: skip
    assert run(*fit)[0] == 0
    missing = [out / name / "report.html" for name in store.names[:2]]
    for path in missing:
        path.unlink()
    assert run(*fit, "--resume")[0] == 0
    assert all(path.exists() for path in missing)


def snapshot(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
