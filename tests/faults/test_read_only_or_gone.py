"""Row: read-only or vanished store. Reading needs no writing; what is gone is said, no zeros."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.commands import exits
from helpers.damage import HERE, content, request, store_at, tile_files
from helpers.faulty import disk_of, mount
from helpers.problems import fit_gmkcf
from msgspec import structs

from gmkcf_dask.cluster.resources import threads
from gmkcf_dask.compute.plan import make_plan
from gmkcf_dask.compute.runner import WorkerSize
from gmkcf_dask.compute.tiled import ResidencyMonitor, TiledKernels
from gmkcf_dask.errors import ClusterWarning, DamagedStoreError, InputError, StoreError
from gmkcf_dask.methods.factorize import SolverOptions
from gmkcf_dask.pipeline import store_plan
from gmkcf_dask.store.build import build_store
from gmkcf_dask.store.kernel_store import KernelStore
from gmkcf_dask.store.repair import repair_store
from gmkcf_dask.system.units import GIB

pytestmark = pytest.mark.usefixtures("calm")


THREADS = ("--cluster", "threads")


@pytest.fixture
def disk(tmp_path):
    """A file system that can be made read-only."""
    with disk_of(tmp_path / "disk", "64m") as folder:
        yield folder


def read_only(folder):
    assert mount("-o", "remount,ro", str(folder)) == 0


def test_a_read_only_store_is_read(disk, tmp_path):
    path = disk / "s.zarr"
    store_at(path)
    before = content(path)
    read_only(disk)
    exits(0, "verify", path, *THREADS)
    exits(0, "info", path)
    exits(0, "fit", path, "-k", 2, "--max-iter", 3, "--out", tmp_path / "run", *THREADS)
    assert build_store(path, request(), HERE).manifest.complete
    assert content(path) == before


def test_fused_kernels_are_not_kept_where_nobody_may_write(disk, monkeypatch):
    """Beside a store for reading only the plan fuses again instead of failing later."""
    path, asked = disk / "s.zarr", []

    def seen(*args, **options):
        asked.append(options["scratch"])
        return make_plan(*args, **options)

    monkeypatch.setattr("gmkcf_dask.pipeline.planning.make_plan", seen)
    store = store_at(path)
    store_plan(store, 2, threads(1))
    read_only(disk)
    store_plan(store, 2, threads(1))
    assert asked == [True, False]
    plan = replace(make_plan(100, 5, 2, 2, feature_bytes=0), kw_bytes=1 << 30)
    workers = {"a": WorkerSize(GIB, 1)}
    runner = SimpleNamespace(workers=lambda: workers, excluded=set())
    with pytest.warns(ClusterWarning, match="fused again for every product"):
        assert ResidencyMonitor(runner, plan, lambda: None).residency("memory") == "recompute"


def test_writing_into_a_read_only_store_is_refused_in_a_sentence(disk):
    path = disk / "s.zarr"
    made = store_at(path)
    structs.replace(made.manifest, complete=False, tiles_done=(0,)).write(path)
    store_at(disk / "whole.zarr")
    tile_files(disk / "whole.zarr")[0].unlink()
    read_only(disk)
    with pytest.raises(InputError, match=r"cannot write the store at .*Read-only file system"):
        build_store(path, request(), HERE)
    said = exits(2, "repair", disk / "whole.zarr", *THREADS)
    assert "Read-only file system" in said.stderr
    with pytest.raises(InputError, match="cannot write the store"):
        build_store(disk / "new.zarr", request(), HERE)


@pytest.mark.parametrize("residency", ["recompute", "memory"])
def test_a_store_that_vanishes_during_a_fit(tmp_path, residency):
    path, away = tmp_path / "s.zarr", tmp_path / "away.zarr"
    store_at(path)
    options = SolverOptions(2, max_iter=5, tol=0.0)

    def vanish(event):
        if path.exists():
            path.rename(away)

    stack = TiledKernels(KernelStore.open(path), HERE, residency)
    with pytest.raises(DamagedStoreError, match="has vanished: bring it back"):
        fit_gmkcf(stack, options, seed=0, listen=vanish)
    away.rename(path)
    found = fit_gmkcf(TiledKernels(KernelStore.open(path), HERE), options, seed=0)
    assert np.isfinite(found.history).all()


def test_a_store_replaced_during_a_fit_is_not_mixed_with_the_new_one(tmp_path):
    path = tmp_path / "s.zarr"
    reader = store_at(path).reader
    path.rename(tmp_path / "old.zarr")
    store_at(path)
    with pytest.raises(DamagedStoreError, match="was replaced by another store"):
        reader.raw(0, 0)


def test_what_was_never_there(tmp_path):
    for command in ("verify", "repair", "info"):
        said = exits(2, command, tmp_path / "no.zarr")
        assert "there is no kernel store" in said.stderr
    with pytest.raises(StoreError, match="there is no kernel store"):
        repair_store(tmp_path / "no.zarr", HERE)
    assert list(tmp_path.iterdir()) == []
