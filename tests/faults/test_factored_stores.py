"""Rows: kills, a full disk and forged manifests, of stores with factored kernels.

The full count of kills is `scripts/chaos build-kills`; here a few (GMKCF_KILLS says how many).
"""

import json
import os
import re
import shutil
import signal
import time

import numpy as np
import pytest
from distributed import WorkerPlugin
from helpers.commands import exits, gmkcf
from helpers.damage import HERE, same_store, start_build
from helpers.faulty import disk_of, fill
from helpers.marks import mostly_slow
from scipy import sparse

from gmkcf_dask.cluster.local import local_cluster
from gmkcf_dask.compute import factored
from gmkcf_dask.compute.runner import Runner
from gmkcf_dask.corpus.model import Corpus
from gmkcf_dask.errors import DiskFullError, StoreError
from gmkcf_dask.kernels import tiling
from gmkcf_dask.kernels.specs import resolve_kernels
from gmkcf_dask.store import factors, layout, manifest
from gmkcf_dask.store.build import build_store
from gmkcf_dask.store.kernel_store import KernelStore
from gmkcf_dask.store.lock import LockInfo, lock_path
from gmkcf_dask.store.manifest import sealed
from gmkcf_dask.store.request import KernelRequest
from gmkcf_dask.store.verify import find_damage
from gmkcf_dask.system.units import GIB

KILLS = int(os.environ.get("GMKCF_KILLS", "3"))
THREADS = ("--cluster", "threads", "--workers", "2")


def documents(n, d=60):
    """Rows of unit length about three topics."""
    rng = np.random.default_rng(0)
    columns = (np.arange(n)[:, None] % 3 * 20 + rng.integers(0, 26, (n, 8))) % d
    rows = np.repeat(np.arange(n), 8)
    X = sparse.csr_array((rng.random(8 * n) + 0.2, (rows, columns.ravel())), shape=(n, d))
    return sparse.csr_array(sparse.diags_array(1 / np.sqrt(X.power(2).sum(axis=1))) @ X)


def request(n=400, kernels="local"):
    corpus = Corpus(documents(n), tuple(str(i) for i in range(n)))
    return KernelRequest(corpus, resolve_kernels(kernels))


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    path = tmp_path_factory.mktemp("clean") / "s.zarr"
    build_store(path, request(), HERE)
    return path


# kills


def held_from(process, lease):
    """When a build took its lease."""
    while process.poll() is None and not lease.exists():
        time.sleep(0.002)
    return time.monotonic()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A folder with features and their store, and the seconds for which its lease was held."""
    folder = tmp_path_factory.mktemp("undisturbed")
    sparse.save_npz(folder / "x.npz", documents(4500))  # two blocks of rows
    process = start_build(folder / "x.npz", folder / "s.zarr", *THREADS)
    begun = held_from(process, lock_path(folder / "s.zarr"))
    _, err = process.communicate()
    assert process.returncode == 0, err
    return folder, time.monotonic() - begun


@mostly_slow("number", range(KILLS))
def test_driver_killed_during_build(tmp_path, undisturbed, number):
    """Killed at a random time, taken over with a note, finished: the bytes of a clean build."""
    folder, seconds = undisturbed
    path = tmp_path / "s.zarr"
    build = ("build", folder / "x.npz", path, *THREADS)
    process = start_build(*build[1:])
    held_from(process, lock_path(path))
    time.sleep(np.random.default_rng(number).random() * 0.9 * seconds)
    process.kill()
    process.communicate()
    was_locked = LockInfo.read(lock_path(path)) is not None
    torn = lock_path(path).exists() and not was_locked  # killed while it wrote the lease itself
    if torn:
        os.utime(lock_path(path), (1, 1))
    resumed = exits(0, *build, *(["--force"] if torn else []))
    assert ("taken over from process" in resumed.stderr) == was_locked
    assert same_store(path, folder / "s.zarr")
    assert [entry.name for entry in tmp_path.iterdir()] == ["s.zarr"]


@pytest.mark.cluster
def test_a_worker_killed_while_neighbours_are_searched(tmp_path, monkeypatch):
    """One of two, between batches: the store is that of a clean build."""
    for module in (factored, factors):
        monkeypatch.setattr(module, "BLOCK_ROWS", 32)
    for module in (tiling, layout, manifest):
        monkeypatch.setattr(module, "FACTOR_ROWS", 32)
    killed = []

    class SmallBlocks(WorkerPlugin):  # a worker that takes the place of another has it too
        def setup(self, worker):
            from gmkcf_dask.compute import factored
            from gmkcf_dask.kernels import tiling
            from gmkcf_dask.store import factors, layout, manifest

            factored.BLOCK_ROWS = factors.BLOCK_ROWS = 32
            tiling.FACTOR_ROWS = layout.FACTOR_ROWS = manifest.FACTOR_ROWS = 32

    with local_cluster(2, GIB) as client:
        client.register_plugin(SmallBlocks())

        def listen(event):
            if event.stage == "neighbours" and 0 < event.done < event.total and not killed:
                killed.append(min(client.run(os.getpid).values()))
                os.kill(killed[0], signal.SIGKILL)

        build_store(tmp_path / "s.zarr", request(), Runner(client=client), listen)
    assert killed
    build_store(tmp_path / "clean.zarr", request(), HERE)
    assert same_store(tmp_path / "s.zarr", tmp_path / "clean.zarr")
    assert not find_damage(KernelStore.open(tmp_path / "s.zarr"), HERE)


# a full disk


@pytest.mark.parametrize("left", [120, 200, 300])
def test_a_full_disk_is_said_and_the_build_goes_on_later(clean, tmp_path, left):
    with disk_of(tmp_path / "disk", "2m") as disk:
        path = disk / "s.zarr"
        filler = fill(disk, left << 10)
        for _ in range(2):  # and again, as long as there is no room
            with pytest.raises(DiskFullError) as told:
                build_store(path, request(), HERE)
            said = str(told.value)
            assert re.search(r"of factors are kept, the others need up to [1-9].* free; make", said)
            assert "tile" not in said
            assert not lock_path(path).exists()
        assert not KernelStore.open(path, incomplete=True).manifest.complete
        with pytest.raises(StoreError, match="is incomplete: run the same build again"):
            KernelStore.open(path)
        assert "is incomplete: run the same build" in exits(2, "verify", path, *THREADS).stderr
        filler.unlink()
        build_store(path, request(), HERE)
        assert same_store(path, clean)
        assert [entry.name for entry in disk.iterdir()] == ["s.zarr"]


def test_tiles_and_factors_are_both_counted(tmp_path):
    with disk_of(tmp_path / "disk", "1m") as disk:
        fill(disk, 100 << 10)
        with pytest.raises(DiskFullError, match=r"of factors .* 0 of \d+ tiles are kept, .* free;"):
            build_store(disk / "s.zarr", request(kernels="rbf_1,local"), HERE)


# forged manifests


@pytest.fixture
def forge(clean, tmp_path):
    """A function that changes the manifest of a copy of the store, and seals it again."""
    path = shutil.copytree(clean, tmp_path / "s.zarr")

    def change(edit):
        file = path / "manifest.json"
        held = json.loads(file.read_text())
        edit(held)
        file.write_bytes(sealed(held))
        return path

    return change


def refused_by_all(path):
    """Refused as it is opened, and by every command in a sentence; nothing is left outside."""
    beside = sorted(entry.name for entry in path.parent.iterdir())
    with pytest.raises(StoreError) as told:
        KernelStore.open(path)
    assert len(str(told.value)) < 1000
    fit = ("fit", path, "-k", 2, "--out", path.parent / "run", *THREADS)
    for command in (("info", path), ("verify", path), ("repair", path), fit):
        said = gmkcf(*command)
        assert said.exit_code in (2, 4), said.output
        assert isinstance(said.exception, SystemExit), repr(said.exception)
    assert sorted(entry.name for entry in path.parent.iterdir()) == beside


ARRAY_FIELDS = {
    "one column more": {"shape": [400, 61]},
    "one row less": {"shape": [399, 60]},
    "other rows": {"shape": [60, 60]},
    "turned": {"shape": [60, 400]},
    "one dimension": {"shape": [400]},
    "three dimensions": {"shape": [400, 60, 1]},
    "no dimension": {"shape": []},
    "no columns": {"shape": [400, 0]},
    "no rows": {"shape": [0, 60], "digests": ""},
    "huge rows": {"shape": [1 << 40, 60]},
    "huge columns": {"shape": [400, 1 << 40]},
    "beyond all bounds": {"shape": [10**400, 60]},
    "negative": {"shape": [-400, 60]},
    "not a number": {"shape": ["400", 60]},
    "other dtype": {"dtype": "float64"},
    "integers": {"dtype": "int32"},
    "objects": {"dtype": "object"},
    "short digests": {"digests": "00"},
    "no digests": {"digests": ""},
    "long digests": {"digests": "0" * 32},
    "digests of other letters": {"digests": "z" * 16},
    "unknown field": {"path": "/etc"},
}


@pytest.mark.parametrize("fields", ARRAY_FIELDS.values(), ids=ARRAY_FIELDS)
def test_arrays_that_cannot_be(forge, fields):
    def edit(held):
        assert held["factors"]["smooth_1"]["shape"] == [400, 60]
        held["factors"]["smooth_1"].update(fields)

    refused_by_all(forge(edit))


@pytest.mark.parametrize("name", ["../../victim", "a/b", "/tmp/x", "..", "", "c\n", "x" * 5000])
def test_names_of_arrays_that_are_no_names(forge, name):
    def edit(held):
        held["factors"][name] = held["factors"]["smooth_1"]

    refused_by_all(forge(edit))


MANIFEST_FIELDS = {
    "array missing": lambda held: held["factors"].pop("smooth_4"),
    "no arrays": lambda held: held.update(factors={}),
    "arrays alone": lambda held: held.update(factored=[]),
    "no options": lambda held: held.update(factor_options=None),
    "no clusters": lambda held: held["factor_options"].update(max_clusters=0),
    "absurd clusters": lambda held: held["factor_options"].update(max_clusters=10**30),
    "other kind": lambda held: held["factored"][0].update(kind="heat"),
    "unknown kind": lambda held: held["factored"][0].update(kind="pickle"),
    "given": lambda held: held["factored"][1].update(kind="given"),
    "name of a path": lambda held: held["factored"][0].update(name="../x"),
    "name of no kernel": lambda held: held["factored"][0].update(name="local_3"),
    "twice": lambda held: held["factored"].append(held["factored"][0]),
    "other samples": lambda held: held.update(n_samples=399),
}


@pytest.mark.parametrize("edit", MANIFEST_FIELDS.values(), ids=MANIFEST_FIELDS)
def test_manifests_that_cannot_be(forge, edit):
    refused_by_all(forge(edit))


def test_digests_of_other_bytes_are_damage(forge):
    """Right in form: only the bytes tell."""
    path = forge(lambda held: held["factors"]["smooth_1"].update(digests="1" * 16))
    assert [bad[0] for bad in find_damage(KernelStore.open(path), HERE).blocks] == ["smooth_1"]
    assert exits(4, "fit", path, "-k", 2, "--out", path.parent / "run", *THREADS)
    exits(4, "verify", path, *THREADS)
