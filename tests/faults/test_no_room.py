"""Rows: no bytes, no inodes, no quota left; in the store, and where temporary files go."""

import errno
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.io
from helpers.commands import exits
from helpers.damage import HERE, content, flip, request, store_at
from helpers.faulty import (
    FIT,
    THREADS,
    disk_of,
    environment,
    fill,
    outcome,
    run,
    short_fit,
    small_store,
    start,
)

from gmkcf_dask.corpus import read_corpus, vectorize
from gmkcf_dask.errors import DiskFullError, PlanRefused, StorageError
from gmkcf_dask.store.build import build_store
from gmkcf_dask.store.repair import repair_store
from gmkcf_dask.system import disk_space

KERNELS = ("--kernels", "rbf_1,cosine", *THREADS)


@pytest.fixture
def temporary_disk(tmp_path, monkeypatch):
    with disk_of(tmp_path / "tmp", "1m") as folder:
        monkeypatch.setenv("TMPDIR", str(folder))
        yield folder


def names_folder_needed_and_free(said, folder):
    assert f"the disk of {folder} is full" in said
    assert re.search(r"needs (about|at least|more than) [\d.]+ [KMG]?i?B", said)
    assert re.search(r"[\d.]+ ([KMG]i)?(B|bytes) are free", said)
    assert "TMPDIR" in said
    assert "harm" not in said


def texts(path, n=60, words=400):
    path.mkdir()
    for i in range(n):
        rows = (f"w{i}x{j} common{j % 40}" for j in range(words))
        (path / f"{i}.txt").write_text(" ".join(rows))
    return path


def test_a_full_tmpdir_while_texts_are_read_is_3(tmp_path, temporary_disk):
    fill(temporary_disk, 16384)
    said = exits(3, "plan", texts(tmp_path / "texts"), "-k", 2, "--min-df", 1, *THREADS).output
    names_folder_needed_and_free(said, temporary_disk)
    assert [entry.name for entry in temporary_disk.iterdir()] == ["full"]


@pytest.mark.parametrize("left", [0, 32768])
def test_a_full_tmpdir_while_a_mat_file_is_read_is_3(tmp_path, temporary_disk, left):
    scipy.io.savemat(tmp_path / "x.mat", {"X": np.random.default_rng(0).random((200, 50))})
    fill(temporary_disk, left)
    said = exits(3, "plan", tmp_path / "x.mat", "-k", 2, *THREADS).output
    names_folder_needed_and_free(said, temporary_disk)
    assert [entry.name for entry in temporary_disk.iterdir()] == ["full"]


def test_a_mat_file_is_read_as_before(tmp_path):
    for X in (np.random.default_rng(0).random((9, 5)), np.arange(6.0).reshape(3, 2).T):
        scipy.io.savemat(tmp_path / "x.mat", {"X": X})
        assert np.array_equal(read_corpus(tmp_path / "x.mat").X, X)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_the_spool_of_texts_says_what_is_used_up(tmp_path, monkeypatch, number):
    """A quota is a fake: this machine has none."""

    def full(file, values):
        raise OSError(number, os.strerror(number))

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(vectorize, "_write", full)
    with pytest.raises(DiskFullError) as told:
        read_corpus(texts(tmp_path / "texts", 3, 5))
    assert ("quota" in str(told.value)) == (number == errno.EDQUOT)
    assert str(tmp_path) in str(told.value)


def test_trouble_of_tmpdir_is_no_harm_of_a_mat_file(tmp_path, monkeypatch):
    from gmkcf_dask.corpus import matrices

    scipy.io.savemat(tmp_path / "x.mat", {"X": np.eye(3)})
    monkeypatch.setattr(matrices, "run_child", lambda *_: matrices.CANNOT_WRITE + errno.EIO)
    with pytest.raises(StorageError, match=os.strerror(errno.EIO)):
        read_corpus(tmp_path / "x.mat")


# inodes


@pytest.fixture
def few_files(tmp_path):
    """A file system with room for 60 files."""
    with disk_of(tmp_path / "few", "8m", "nr_inodes=60") as folder:
        yield folder


def test_too_few_inodes_are_refused_before_work(few_files):
    with pytest.raises(PlanRefused, match="free inodes"):
        build_store(few_files / "s.zarr", request(), HERE, block=8)
    assert list(few_files.iterdir()) == []


def test_the_command_says_3_for_too_few_inodes(few_files, tmp_path):
    np.save(tmp_path / "x.npy", request().corpus.X.toarray())
    said = exits(
        3, "build", tmp_path / "x.npy", few_files / "s.zarr", "--block", 8, *KERNELS
    ).output
    assert str(few_files) in said
    assert "free inodes" in said


def test_inodes_that_end_during_a_build_are_told_from_bytes(few_files, monkeypatch):
    monkeypatch.setattr("gmkcf_dask.store.build.refuse_few_files", lambda *a: None)
    with pytest.raises(DiskFullError, match=r"inodes \(files\) are used up.*tiles are kept"):
        build_store(few_files / "s.zarr", request(), HERE, block=8)


def test_a_file_system_that_counts_no_inodes_is_not_refused(tmp_path, monkeypatch):
    """As btrfs and many network file systems: a fake."""
    found = SimpleNamespace(f_files=0, f_favail=0)
    monkeypatch.setattr(disk_space.os, "statvfs", lambda path: found)
    assert disk_space.free_files(tmp_path) is None
    store_at(tmp_path / "s.zarr")


# commands


def test_a_disk_that_is_full_from_the_beginning_is_3(tmp_path):
    np.save(tmp_path / "x.npy", request().corpus.X.toarray())
    with disk_of(tmp_path / "disk", "1m") as disk:
        fill(disk, 0)
        said = exits(3, "build", tmp_path / "x.npy", disk / "s.zarr", *KERNELS).output
        assert str(disk) in said


def test_a_repair_on_a_full_disk_is_3(tmp_path):
    with disk_of(tmp_path / "disk", "2m") as disk:
        store_at(disk / "s.zarr")
        before = content(disk / "s.zarr")
        flip(disk / "s.zarr", np.random.default_rng(0))
        more = fill(disk, 0)
        said = exits(3, "repair", disk / "s.zarr", *THREADS).output
        assert f"the disk of {disk / 's.zarr'} is full" in said
        more.unlink()
        assert repair_store(disk / "s.zarr", HERE).left == ()
        assert content(disk / "s.zarr") == before


def test_a_full_disk_when_a_resumable_fit_writes_its_results_is_5(tmp_path, monkeypatch):
    fit, expected = short_fit(tmp_path, 6, *THREADS, block=40)
    with monkeypatch.context() as patch:

        def full(path, values):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path / "labels.csv"))

        patch.setattr("gmkcf_dask.pipeline.fitting.write_run", lambda path, *rest: full(path, rest))
        code, said = run(*fit, "--out", tmp_path / "out")
    assert code == 5, said
    assert "--resume" in said
    assert str(tmp_path / "out") in said
    assert run(*fit, "--out", tmp_path / "out", "--resume")[0] == 0
    assert outcome(tmp_path / "out") == expected


def test_a_full_disk_at_the_first_file_of_a_fit_names_its_folder(tmp_path):
    small_store(tmp_path / "s.zarr")
    with disk_of(tmp_path / "disk", "1m") as disk:
        fill(disk, 0)
        code, said = run("fit", tmp_path / "s.zarr", *FIT, *THREADS, "--out", disk / "out")
    assert code == 3, said
    assert f"the disk of {disk} is full: 0 B are free" in said


# what killed runs leave in TMPDIR


@pytest.mark.slow
def test_the_spool_of_a_killed_reading_is_swept_by_the_next(tmp_path):
    """Killed while it reads; the next command, whatever it is, removes the folder."""
    folder, source = tmp_path / "tmp", texts(tmp_path / "texts", 10, 50)
    folder.mkdir()
    script = (
        "import os; from gmkcf_dask.corpus import read_corpus, vectorize\n"
        "vectorize._apply_weights = lambda *a: os.kill(os.getpid(), 9)\n"
        f"read_corpus({str(source)!r})"
    )
    settings = {**environment(), "TMPDIR": str(folder)}
    subprocess.run([sys.executable, "-c", script], env=settings, check=False)
    (left,) = folder.iterdir()
    assert left.name.startswith("gmkcf-texts-")
    assert (left / "ids").exists()
    store_at(tmp_path / "s.zarr")
    process = start("verify", tmp_path / "s.zarr", *THREADS, settings={"TMPDIR": str(folder)})
    _, err = process.communicate()
    assert process.returncode == 0, err
    assert not Path(left).exists()
