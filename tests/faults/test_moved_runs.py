"""Row: a run folder that was copied or moved uses its own store."""

import json
import shutil

import numpy as np
import pytest
from helpers.commands import exits
from helpers.refusals import FIT, KERNELS, THREADS, features

from gmkcf_dask.errors import DamagedStoreError
from gmkcf_dask.results.finished_run import store_of_run
from gmkcf_dask.results.run_folder import read_result
from gmkcf_dask.store.kernel_store import KernelStore


@pytest.fixture
def made(tmp_path):
    """A run with labels, and what its commands say and write."""
    np.savez(tmp_path / "x.npz", X=features(), y=np.arange(30) % 3)
    how = (*FIT, *KERNELS, *THREADS, "--out", tmp_path / "run")
    exits(0, "run", tmp_path / "x.npz", *how)
    return tmp_path


def told(run, new, out):
    """What score, predict and report give."""
    out.mkdir()
    (run / "insight.json").unlink(missing_ok=True)  # so that the report is made from the store
    said = exits(0, "score", run)
    exits(0, "predict", run, new, "--out", out / "new.csv", *THREADS)
    exits(0, "report", run, "--out", out / "report.html")
    insight = json.loads((run / "insight.json").read_text())
    kept = {name: insight[name] for name in ("clusters", "documents", "kernels", "fused")}
    return said.stdout, (out / "new.csv").read_bytes(), kept


def test_copied_and_the_original_deleted(made):
    before = told(made / "run", made / "x.npz", made / "before")
    copy = shutil.copytree(made / "run", made / "elsewhere" / "copy")
    shutil.rmtree(made / "run")
    assert told(copy, made / "x.npz", made / "after") == before


def test_moved(made):
    before = told(made / "run", made / "x.npz", made / "before")
    moved = (made / "run").rename(made / "moved")
    assert told(moved, made / "x.npz", made / "after") == before


def damage(store):
    for file in store.rglob("*"):
        if file.is_file() and file.name != "manifest.json" and "features" in file.parts:
            file.write_bytes(bytes(len(file.read_bytes())))


@pytest.mark.parametrize("how", [damage, lambda store: (store / "manifest.json").write_text("x")])
def test_copied_and_the_original_damaged(how, made):
    before = told(made / "run", made / "x.npz", made / "before")
    copy = shutil.copytree(made / "run", made / "copy")
    how(made / "run" / "store.zarr")
    assert told(copy, made / "x.npz", made / "after") == before
    result = read_result(copy)
    assert str(store_of_run(result, copy).path) == str(copy / "store.zarr")


def test_another_store_inside_is_not_its_own(made):
    """Content decides: a store of other data in the place of the copy is passed over."""
    before = told(made / "run", made / "x.npz", made / "before")
    np.savez(made / "other.npz", X=features() + 1, y=np.arange(30) % 3)
    exits(0, "build", made / "other.npz", made / "other.zarr", *KERNELS, *THREADS)
    copy = shutil.copytree(made / "run", made / "copy")
    shutil.rmtree(copy / "store.zarr")
    shutil.copytree(made / "other.zarr", copy / "store.zarr")
    assert told(copy, made / "x.npz", made / "after") == before
    shutil.rmtree(made / "run")
    exits(2, "score", copy)


def test_runs_of_several_kernels_share_the_store_above_them(made):
    how = ("--method", "kkm", "--kernel", "all", "-k", 3, *KERNELS, *THREADS)
    exits(0, "run", made / "x.npz", *how, "--out", made / "all")
    moved = (made / "all").rename(made / "moved")
    exits(0, "score", moved / "rbf_1")
    store = store_of_run(read_result(moved / "rbf_1"), moved / "rbf_1")
    assert isinstance(store, KernelStore)
    assert str(store.path) == str(moved / "store.zarr")


def test_a_damaged_store_is_damage(made, monkeypatch):
    """Not a store that is gone: it can be mended, and the exit code says so."""

    def damaged(place):
        raise DamagedStoreError(f"{place} is damaged")

    monkeypatch.setattr(KernelStore, "open", damaged)
    exits(4, "score", made / "run")
