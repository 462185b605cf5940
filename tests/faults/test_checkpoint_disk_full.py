"""Disk full while a checkpoint is written: said with the bytes, resumable when there is space."""

import errno
from contextlib import nullcontext

import pytest
from helpers.commands import exits
from helpers.faulty import THREADS, disk_of, fill, outcome, run, short_fit

from gmkcf_dask.results import checkpoints


@pytest.mark.usefixtures("calm")
@pytest.mark.parametrize("real", [False, True], ids=["ENOSPC", "full"])
def test_disk_full(tmp_path, monkeypatch, real):
    """A write that fails, and a disk that is really full."""
    fit, expected = short_fit(tmp_path, 12, *THREADS, block=40)
    put_atomic, written, ballast = checkpoints.put_atomic, [], []

    def full(path, content):
        written.append(path)
        if real and len(written) == 9:
            ballast.append(fill(disk, 0))
        if not real and len(written) > 10:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        put_atomic(path, content)

    with disk_of(tmp_path / "disk", "1m") if real else nullcontext(tmp_path) as disk:
        out = disk / "out"
        with monkeypatch.context() as patch:
            patch.setattr(checkpoints, "put_atomic", full)
            code, said = run(*fit, "--out", out)
        assert code == 5, said
        for words in ("No space left on device", "bytes", "--resume"):
            assert words in said
        assert not (out / "result.json").exists()
        for file in ballast:
            file.unlink()
        exits(0, *fit, "--out", out, "--resume")
        assert outcome(out) == expected
