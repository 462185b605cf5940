"""Row: scratch folders of killed fits. The next fit removes them, and never one that is in use."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from helpers.faulty import FIT, THREADS, environment, run, small_store
from msgspec import structs

from gmkcf_dask.compute.runner import Runner
from gmkcf_dask.compute.tiled import TiledKernels
from gmkcf_dask.store.lock import STALE_AFTER, LockInfo
from gmkcf_dask.store.scratch import OWNER, ScratchFolder, sweep_scratch

KILLED = """
import os, signal, sys
from gmkcf_dask.compute.tiled import TiledKernels
from gmkcf_dask.compute.runner import Runner
from gmkcf_dask.store.kernel_store import KernelStore
import numpy as np

store = KernelStore.open(sys.argv[1])
kernel = TiledKernels(store, Runner(), "scratch").fuse(np.full(3, 1 / 3))
kernel.matmul(np.ones((store.n_samples, 2)))
print("in", flush=True)
signal.pause()
"""


def scratch_of(store):
    return list(store.path.parent.glob(f".{store.path.name}.scratch-*"))


def using_scratch(path):
    """A process that keeps a fused kernel on disk."""
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(path)], env=environment(), stdout=subprocess.PIPE
    )
    assert process.stdout.readline() == b"in\n"
    return process


def test_of_a_living_fit_until_it_is_killed(tmp_path):
    store = small_store(tmp_path / "s.zarr")
    fit = ("fit", store.path, *FIT, *THREADS, "--max-iter", 3)
    process = using_scratch(store.path)
    try:
        (folder,) = scratch_of(store)
        held = sorted(folder.rglob("*"))
        assert len(held) > store.tiling.n_tiles
        assert run(*fit, "--out", tmp_path / "one")[0] == 0
        os.kill(process.pid, signal.SIGSTOP)  # silent, but there
        sweep_scratch(store.path)
        assert sorted(folder.rglob("*")) == held
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    assert scratch_of(store) == [folder]
    assert run(*fit, "--out", tmp_path / "two")[0] == 0
    assert scratch_of(store) == []


def left_by(store, lease, age=0.0):
    """A scratch folder with an owner's file that was touched some seconds ago."""
    folder = ScratchFolder.beside(store.path, store.tiling, np.dtype("f4")).path
    (folder / "fused-x").mkdir(parents=True)
    (folder / "fused-x" / "0").write_bytes(b"tile")
    if lease is not None:
        (folder / OWNER).write_text(lease.encode().decode())
        now = (folder / OWNER).stat().st_mtime
        os.utime(folder / OWNER, (now - age, now - age))
    return folder


def another(**fields):
    return LockInfo(**{**structs.asdict(LockInfo.mine()), **fields})


@pytest.mark.parametrize(
    ("fields", "age", "swept"),
    [
        ({}, 2 * STALE_AFTER, False),  # this process, however silent
        ({"pid": 2**22 + 1}, 0.0, True),
        ({"started": 1.0, "ticks": 1}, 0.0, True),  # the number was used again
        ({"machine": "elsewhere"}, STALE_AFTER / 2, False),
        ({"machine": "elsewhere"}, STALE_AFTER + 60, True),
        (None, 0.0, False),  # nobody knows whose it is
    ],
)
def test_who_is_gone(tmp_path, fields, age, swept):
    store = small_store(tmp_path / "s.zarr")
    folder = left_by(store, None if fields is None else another(**fields), age)
    sweep_scratch(store.path)
    assert folder.exists() != swept


def test_of_another_store_and_through_links_nothing_is_removed(tmp_path):
    store, gone = small_store(tmp_path / "s.zarr"), another(started=1.0, ticks=1)
    other = left_by(small_store(tmp_path / "t.zarr"), gone)
    linked = left_by(store, gone)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "precious").write_bytes(b"precious")
    (linked / "fused-x" / "link").symlink_to(tmp_path / "mine")
    link = ScratchFolder.beside(store.path, store.tiling, np.dtype("f4")).path
    link.symlink_to(other)
    sweep_scratch(store.path)
    assert (tmp_path / "mine" / "precious").exists()
    assert (other / "fused-x" / "0").exists()
    assert linked.exists()
    assert link.is_symlink()


def test_what_cannot_be_removed_keeps_its_owner(tmp_path, monkeypatch):
    """As on a network file system: the next fit finds it, and may have more luck."""
    store = small_store(tmp_path / "s.zarr")
    scratch = ScratchFolder.beside(store.path, store.tiling, np.dtype(np.float32))
    tiles = scratch.create()
    tiles.write(0, np.zeros(store.tiling.shape(0), np.float32))
    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", lambda *_, **__: None)
        scratch.delete(tiles)
    assert (scratch.path / OWNER).exists()
    owner = json.loads((scratch.path / OWNER).read_text())
    (scratch.path / OWNER).write_text(json.dumps(owner | {"ticks": 1, "started": 1.0}))
    sweep_scratch(store.path)
    assert not scratch.path.exists()


def test_a_deleted_generation_stays_deleted(tmp_path):
    """A task that is late must not bring it back."""
    store = small_store(tmp_path / "s.zarr")
    folder = ScratchFolder.beside(store.path, store.tiling, np.dtype("f4"))
    one, other = folder.create(), folder.create()
    folder.delete(one)
    with pytest.raises(FileNotFoundError):
        one.write(0, np.ones((40, 40), "f4"))
    assert sorted(p.name for p in folder.path.iterdir()) == sorted([OWNER, other.path[-38:]])
    folder.delete(other)
    assert scratch_of(store) == []


def test_a_fit_leaves_nothing(tmp_path):
    store = small_store(tmp_path / "s.zarr")
    stack = TiledKernels(store, Runner(), "scratch")
    for _ in range(2):
        kernel = stack.fuse(np.full(3, 1 / 3))
        kernel.matmul(np.ones((store.n_samples, 2)))
        ((folder),) = scratch_of(store)
        assert LockInfo.read(folder / OWNER) is not None
        kernel.release()
        assert scratch_of(store) == []
