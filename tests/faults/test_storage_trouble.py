"""Rows: a shared file system that fails for a moment or for good; rights that are missing.

Faults that this machine cannot show are faked: opening and looking at the files of a store fails
with the error numbers that network file systems give.
"""

import errno
import io
import json
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from helpers.commands import exits
from helpers.damage import HERE, request, store_at
from helpers.faulty import THREADS, outcome, run, short_fit

from gmkcf_dask.errors import DamagedStoreError, StorageError, StorageRefused
from gmkcf_dask.results.checkpoints import read_checkpoint
from gmkcf_dask.store.build import build_store
from gmkcf_dask.store.files import (
    exists,
    get,
    is_file,
    names_in,
    put_atomic,
    put_if_absent,
    size_of,
)
from gmkcf_dask.store.kernel_store import KernelStore
from gmkcf_dask.store.verify import find_damage
from gmkcf_dask.system import retry

KINDS = ("manifest.json", "/zarr.json", "kernels/", "diagonals/", "features/", "ids.json")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(retry, "PAUSES", (0.0, 0.0, 0.0))


class Faults:
    """Opening files whose path holds a text fails so many times with an error number."""

    def __init__(self, monkeypatch):
        self.number, self.text, self.times, self.seen = 0, "\0", 0, 0
        for module, name in (
            (os, "open"),
            (io, "open"),
            (os, "stat"),
            (os, "scandir"),
            (os, "listdir"),
        ):
            self._wrap(monkeypatch, module, name)

    def _wrap(self, monkeypatch, module, name):
        real = getattr(module, name)

        def failing(path, *args, **how):
            if isinstance(path, str | Path) and self.text in str(path) and self.times > 0:
                self.times -= 1
                self.seen += 1
                raise OSError(self.number, os.strerror(self.number), str(path))
            return real(path, *args, **how)

        monkeypatch.setattr(module, name, failing)

    def on(self, text, number, times=10**9):
        self.text, self.number, self.times, self.seen = text, number, times, 0


@pytest.fixture
def faults(monkeypatch):
    return Faults(monkeypatch)


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.ETIMEDOUT])
@pytest.mark.parametrize("kind", KINDS)
def test_one_failure_is_not_noticed(store, faults, kind, number):
    faults.on(kind, number, times=1)
    opened = KernelStore.open(store)
    assert not find_damage(opened, HERE)
    assert opened.ids
    assert faults.seen == 1


@pytest.mark.parametrize("command", ["fit", "verify", "repair", "info"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_lasting_failure_is_5_with_the_words_of_the_system(
    store, faults, tmp_path, kind, command
):
    """Never 4: it says nothing of what is in the files."""
    faults.on(kind, errno.ESTALE)
    arguments = {
        "fit": ("fit", store, "-k", 3, "--max-iter", 2, "--out", tmp_path / "out", *THREADS),
        "verify": ("verify", store, *THREADS),
        "repair": ("repair", store, *THREADS),
        "info": ("info", store),
    }
    code, said = run(*arguments[command])
    if faults.seen == 0:  # this command reads no such file
        assert command == "info"
        return
    assert code == 5, said
    assert os.strerror(errno.ESTALE) in said
    assert "damaged" not in said
    assert "repair" not in said.replace(f"gmkcf {command} ", "")


@pytest.mark.parametrize("kind", ["manifest.json", "kernels/rbf_1/c", "features/", "zarr.json"])
def test_a_missing_right_is_2_and_names_the_file(store, faults, tmp_path, kind):
    faults.on(kind, errno.EACCES)
    said = exits(
        2, "fit", store, "-k", 3, "--max-iter", 2, "--out", tmp_path / "out", *THREADS
    ).output
    assert "no permission to read" in said
    assert kind in said
    assert "damaged" not in said


def test_a_store_whose_files_cannot_be_read_by_this_user(store):
    """The same with real rights; the superuser, who may read everything, becomes nobody for it."""
    nobody, user = 65534, os.geteuid()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "s.zarr")
        shutil.copytree(store, path)
        (path / "manifest.json").chmod(0)
        Path(folder).chmod(0o755)
        os.seteuid(nobody if user == 0 else user)
        try:
            code, said = run("info", path)
        finally:
            os.seteuid(user)
    assert code == 2
    assert "no permission to read" in said


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
def test_writes_are_tried_again(tmp_path, faults, number):
    store_at(tmp_path / "clean.zarr")
    for kind in ("kernels/rbf_1/c/0", "manifest.json", "features/", "diagonals/"):
        faults.on(kind, number, times=1)
        build_store(tmp_path / kind.replace("/", "_"), request(), HERE, block=16)
        assert faults.seen == 1
    faults.on("kernels/rbf_1/c/0", number)
    with pytest.raises(StorageError, match=os.strerror(number)):
        build_store(tmp_path / "s.zarr", request(), HERE, block=16)
    faults.on("\0", 0)
    assert build_store(tmp_path / "s.zarr", request(), HERE).manifest.complete


def test_checkpoints_are_not_called_damaged(tmp_path, faults):
    fit, expected = short_fit(tmp_path, 6, *THREADS, block=40)
    out = tmp_path / "out"
    faults.on("/.labels.csv.", errno.EIO)  # the results, when the fit is done
    said = exits(5, *fit, "--out", out).output
    assert "--resume" in said
    faults.on("checkpoint/", errno.ESTALE)
    with pytest.raises(StorageError, match=os.strerror(errno.ESTALE)):
        read_checkpoint(out / "checkpoint")
    assert run(*fit, "--out", out, "--resume")[0] == 5
    faults.on("checkpoint/", errno.ESTALE, times=1)
    exits(0, *fit, "--out", out, "--resume")
    assert outcome(out) == expected


def test_small_operations_tell_trouble_from_nothing(tmp_path, faults):
    path = tmp_path / "file"
    path.write_bytes(b"x")
    faults.on(str(tmp_path), errno.EIO)
    for ask in (exists, is_file, size_of, get, names_in):
        with pytest.raises(StorageError, match=os.strerror(errno.EIO)):
            ask(path)
    for put in (put_atomic, put_if_absent):
        with pytest.raises(StorageError, match="cannot write"):
            put(tmp_path / "new", b"x")
    faults.on(str(tmp_path), errno.EACCES)
    for ask in (exists, is_file, size_of, get, names_in):
        with pytest.raises(StorageRefused, match="no permission to read"):
            ask(path)
    faults.on(str(tmp_path), errno.ENOENT)
    assert [ask(path) for ask in (exists, is_file, size_of, get, names_in)] == [
        False, False, -1, None, [],
    ]  # fmt: skip


def test_what_is_missing_or_wrong_is_still_damage(store, faults):
    faults.on("/c/0/0", errno.ENOENT)
    with pytest.raises(DamagedStoreError, match="is missing"):
        KernelStore.open(store).reader.raw(0, 0)
    (store / "ids.json").write_text(json.dumps(["x"]))
    with pytest.raises(DamagedStoreError):
        KernelStore.open(store).strings("ids")


def test_predict_and_score_tell_trouble(tmp_path, faults):
    made = store_at(tmp_path / "s.zarr")
    X = made.features().rows(slice(0, 5)).toarray()
    np.save(tmp_path / "new.npy", X)
    out = tmp_path / "out"
    assert run("fit", tmp_path / "s.zarr", "-k", 3, "--max-iter", 2, "--out", out, *THREADS)[0] == 0
    for kind in ("s.zarr/manifest.json", "s.zarr/features/", "out/result.json", "out/labels.csv"):
        faults.on(kind, errno.EIO)
        code, said = run("predict", out, tmp_path / "new.npy", "--out", tmp_path / "p", *THREADS)
        assert code == 5, (kind, said)
        assert os.strerror(errno.EIO) in said
    faults.on("out/labels.csv", errno.EIO)
    assert run("score", out)[0] == 5


@pytest.mark.parametrize("kind", ["d03.txt", "x.npy"])
def test_trouble_with_the_input_costs_no_document(tmp_path, monkeypatch, kind):
    """One EIO is tried again; one that lasts is 5, and no document is left out for it."""
    words = [f"{'tea milk sugar' if i % 2 else 'wolf bear fox'} number{i}" for i in range(12)]
    (tmp_path / "docs").mkdir()
    for i, text in enumerate(words):
        (tmp_path / "docs" / f"d{i:02}.txt").write_text(text)
    np.save(tmp_path / "x.npy", np.random.default_rng(0).random((12, 4)))
    given = tmp_path / ("x.npy" if kind == "x.npy" else "docs")
    left = [1]

    def fails(file, *args, **kwargs):
        if str(file).endswith(kind) and left[0] > 0:
            left[0] -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(file))
        return original(file, *args, **kwargs)

    original = io.open
    monkeypatch.setattr("builtins.open", fails)
    monkeypatch.setattr(io, "open", fails)
    kernels = ("--kernels", "linear,rbf_1", *THREADS)
    code, said = run("build", given, tmp_path / "s.zarr", *kernels)
    assert (code, left) == (0, [0]), said
    assert KernelStore.open(tmp_path / "s.zarr").n_samples == 12
    left[0] = 1000
    said = exits(5, "build", given, tmp_path / "t.zarr", *kernels).output
    assert os.strerror(errno.EIO) in said
    assert not (tmp_path / "t.zarr").exists()
