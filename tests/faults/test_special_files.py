"""Row: pipes, folders and huge files where small files belong. Nobody waits, nothing is read whole.

A command that waits is ended by the time limit of its test, which fails.
"""

import json
import os
import shutil
from itertools import product

import pytest
from helpers.damage import HERE, store_at
from helpers.faulty import run
from msgspec import structs

from gmkcf_dask.errors import StoreError
from gmkcf_dask.store.files import get
from gmkcf_dask.store.kernel_store import KernelStore
from gmkcf_dask.store.lock import LockInfo, lock_path
from gmkcf_dask.store.repair import repair_store

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here"),
    pytest.mark.timeout(60),
]


def command(*words):
    code, said = run(*words)
    assert "Traceback" not in said
    return code, said


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "s.zarr"
    store_at(path, kernels="rbf_1,cosine")
    return path


@pytest.fixture
def path(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "s.zarr")


def put(file, kind):
    if file.exists():
        file.unlink()
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    else:
        file.touch()
        os.truncate(file, 3 << 30)


@pytest.mark.parametrize("kind", ["pipe", "folder", "huge"])
def test_the_manifest(path, kind):
    put(path / "manifest.json", kind)
    with pytest.raises(StoreError, match=r"manifest of .* is damaged"):
        KernelStore.open(path)
    code, said = command("info", path)
    assert code == 4, said


OURS = ("kernels/rbf_1/c/0/1", "kernels/rbf_1/zarr.json", "ids.json")
THROUGH_ZARR = ("diagonals/rbf_1/c/0", "features/indptr/c/0")  # which takes any size for what it is


@pytest.mark.parametrize(
    ("file", "kind"),
    [*product(OURS, ("pipe", "folder", "huge")), *product(THROUGH_ZARR, ("pipe", "folder"))],
)
def test_other_files_of_a_store(path, file, kind):
    put(path / file, kind)
    code, said = command("verify", path, "--cluster", "threads")
    assert code == 4, said


@pytest.mark.parametrize("kind", ["pipe", "folder", "huge"])
def test_the_lease(path, kind):
    put(lock_path(path), kind)
    code, said = command("info", path)
    assert code == 0, said
    assert "an unknown process" in said


@pytest.mark.parametrize(
    "fields",
    [
        {"pid": -1},
        {"pid": 0},
        {"pid": True},
        {"pid": 10**30},
        {"host": "\x1b[31mhost\nline"},
        {"since": "x" * 10_000},
        {"started": float("nan")},
        {"started": float("inf")},
        {"started": 10**400},
        {"ticks": -1},
        {"ticks": "1"},
    ],
    ids=lambda fields: str(fields)[:30],
)
def test_a_lease_is_not_believed_whatever_it_says(path, fields):
    lock_path(path).write_text(json.dumps({**structs.asdict(LockInfo.mine()), **fields}))
    assert LockInfo.read(lock_path(path)) is None
    os.utime(lock_path(path), (1, 1))
    with pytest.raises(StoreError, match="an unknown process"):
        repair_store(path, HERE)
    assert not repair_store(path, HERE, force=True).damage


def test_small_files_have_a_size(tmp_path):
    (tmp_path / "x").write_bytes(b"12345")
    assert get(tmp_path / "x", 5) == b"12345"
    assert get(tmp_path / "no") is None
    assert get(tmp_path / "x" / "y") is None
    with pytest.raises(StoreError, match="far too large"):
        get(tmp_path / "x", 4)
