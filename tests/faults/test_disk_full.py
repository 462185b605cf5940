"""Row: disk full in the kernel store. Said with what is needed; resumed once there is room.

On a small file system of its own where one can be mounted; elsewhere the writing of chunks fails.
"""

import errno

import numpy as np
import pytest
from helpers.commands import exits
from helpers.damage import HERE, request, same_store, store_at
from helpers.faulty import disk_of, mount

from gmkcf_dask.errors import DiskFullError
from gmkcf_dask.store import tile_reader as reader_module
from gmkcf_dask.store.build import build_store
from gmkcf_dask.store.kernel_store import KernelStore
from gmkcf_dask.store.lock import lock_path

N, BLOCK = 400, 32


@pytest.fixture
def small_disk(tmp_path):
    """A file system of one MiB."""
    with disk_of(tmp_path / "disk", "1m") as folder:
        yield folder


def test_a_full_disk_is_said_and_the_build_goes_on_later(small_disk, tmp_path):
    path = small_disk / "s.zarr"
    for _ in range(2):  # and again, as long as there is no room
        with pytest.raises(
            DiskFullError, match=r"tiles are kept, the others need up to .* free; make"
        ):
            build_store(path, request(N), HERE, block=BLOCK)
        assert not lock_path(path).exists()
    if path.exists():
        assert not KernelStore.open(path, incomplete=True).manifest.complete
    assert mount("-o", "remount,size=64m", str(small_disk)) == 0
    build_store(path, request(N), HERE, block=BLOCK)
    store_at(tmp_path / "clean.zarr", n=N, block=BLOCK)
    assert same_store(path, tmp_path / "clean.zarr")
    assert [entry.name for entry in small_disk.iterdir()] == ["s.zarr"]


def test_the_plan_refuses_beforehand_with_the_bytes_that_are_needed(small_disk, tmp_path):
    np.save(tmp_path / "x.npy", request(N).corpus.X.toarray())
    said = exits(3, "build", tmp_path / "x.npy", small_disk / "s.zarr", "--cluster", "threads")
    assert "MiB" in said.stderr
    assert list(small_disk.iterdir()) == []


@pytest.mark.parametrize("after", [0, 7, 30])
def test_writing_fails_for_want_of_room(tmp_path, monkeypatch, after):
    path, written = tmp_path / "s.zarr", []
    original = reader_module.write_chunk

    def full(where, *what):
        written.append(where)
        if len(written) > after:
            raise OSError(errno.ENOSPC, "No space left on device", where)
        return original(where, *what)

    with monkeypatch.context() as patch:
        patch.setattr(reader_module, "write_chunk", full)
        with pytest.raises(DiskFullError, match=rf"the disk of {path} is full: \d+ of 10 tiles"):
            build_store(path, request(), HERE, block=16)
    assert DiskFullError.exit_code == 3
    assert not KernelStore.open(path, incomplete=True).manifest.complete
    build_store(path, request(), HERE)
    store_at(tmp_path / "clean.zarr")
    assert same_store(path, tmp_path / "clean.zarr")
