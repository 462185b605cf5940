"""Rows: worker kill -9 during kernel build; driver kill -9 at random times during build.

The full count is `scripts/chaos build-kills`; here a few (GMKCF_KILLS says how many).
"""

import os
import signal
import time

import numpy as np
import pytest
from helpers.commands import exits
from helpers.damage import HERE, content, corpus, request, same_store, start_build, store_at
from helpers.marks import mostly_slow

from gmkcf_dask.cluster.local import local_cluster
from gmkcf_dask.compute.runner import Runner
from gmkcf_dask.store import build as build_module
from gmkcf_dask.store.build import build_store
from gmkcf_dask.store.kernel_store import KernelStore
from gmkcf_dask.store.lock import LockInfo, lock_path
from gmkcf_dask.store.verify import find_damage
from gmkcf_dask.system.units import GIB

KILLS = int(os.environ.get("GMKCF_KILLS", "3"))


@pytest.mark.cluster
def test_workers_killed_during_build(tmp_path, monkeypatch):
    """Two workers, one killed between the first batches: the store is that of a clean build."""
    monkeypatch.setattr("gmkcf_dask.compute.build_tasks._BATCHES", 4)
    killed = []
    with local_cluster(2, GIB) as client:

        def listen(event):
            if event.stage == "write" and event.done < event.total and len(killed) < 2:
                victims = client.run(os.getpid)
                killed.append(sorted(victims.values())[len(killed) % len(victims)])
                os.kill(killed[-1], signal.SIGKILL)

        build_store(tmp_path / "s.zarr", request(), Runner(client=client), listen, block=8)
    assert len(killed) == 2
    store_at(tmp_path / "clean.zarr", block=8)
    assert same_store(tmp_path / "s.zarr", tmp_path / "clean.zarr")
    assert not find_damage(KernelStore.open(tmp_path / "s.zarr"), HERE)


OPTIONS = ("--kernels", "rbf_1,cosine", "--block", "8", "--cluster", "threads")


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clean")
    np.save(folder / "x.npy", corpus(200).X.toarray())
    exits(0, "build", folder / "x.npy", folder / "s.zarr", *OPTIONS)
    return folder


@mostly_slow("number", range(KILLS))
def test_driver_killed_during_build(tmp_path, clean, number):
    """Killed at a random time, taken over with a note, finished: the bytes of a clean build."""
    rng = np.random.default_rng(number)
    build = ("build", clean / "x.npy", tmp_path / "s.zarr", *OPTIONS)
    process = start_build(clean / "x.npy", tmp_path / "s.zarr", *OPTIONS)
    lease = lock_path(tmp_path / "s.zarr")
    while process.poll() is None and not lease.exists():
        time.sleep(0.005)
    time.sleep(rng.random() * 0.8)
    process.kill()
    process.communicate()
    was_locked = LockInfo.read(lease) is not None
    torn = lease.exists() and not was_locked  # killed while it wrote the lease itself
    if torn:
        os.utime(lease, (1, 1))
    resumed = exits(0, *build, *(["--force"] if torn else []))
    assert ("taken over from process" in resumed.stderr) == was_locked
    assert same_store(tmp_path / "s.zarr", clean / "s.zarr")
    assert [entry.name for entry in tmp_path.iterdir()] == ["s.zarr"]


@mostly_slow("after", [0, 1, 5, 20])
def test_marks_without_tiles_are_made_again(tmp_path, monkeypatch, after):
    """A power cut: the manifest reached the disk, some of the tiles it marks did not."""
    monkeypatch.setattr(build_module, "_SECONDS_BETWEEN_MANIFESTS", 0.0)
    path = tmp_path / "s.zarr"

    def cut(event):
        if event.stage == "write" and event.done >= 40:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_store(path, request(), HERE, cut, block=6)
    files = sorted(path.glob("kernels/*/c/*/*"))
    for file in files[:after]:
        file.write_bytes(b"")  # as file systems leave it
    build_store(path, request(), HERE)
    store_at(tmp_path / "clean.zarr", block=6)
    assert same_store(path, tmp_path / "clean.zarr")
    assert content(path) == content(tmp_path / "clean.zarr")
