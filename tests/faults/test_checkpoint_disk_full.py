"""Disk full while a checkpoint is written: said with the bytes, resumable when there is space."""

import errno

import pytest
from click.testing import CliRunner
from helpers.faulty import FIT, THREADS, disk_of, fill, outcome, small_store

from gmkcf_dask.cli import main
from gmkcf_dask.results import checkpoints


@pytest.mark.usefixtures("calm")
def test_disk_full(tmp_path, monkeypatch):
    small_store(tmp_path / "s.zarr")
    fit = ["fit", str(tmp_path / "s.zarr"), *FIT, *THREADS, "--max-iter", "12"]
    invoke = CliRunner().invoke
    assert invoke(main, [*fit, "--out", str(tmp_path / "whole")]).exit_code == 0
    out, written = tmp_path / "out", []

    def full(path, content):
        written.append(path)
        if len(written) > 10:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        put_atomic(path, content)

    put_atomic = checkpoints.put_atomic
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "put_atomic", full)
        stopped = invoke(main, [*fit, "--out", str(out)])
    assert stopped.exit_code == 5
    assert "No space left on device" in stopped.output
    assert "bytes" in stopped.output
    assert "--resume" in stopped.output
    assert not (out / "result.json").exists()
    resumed = invoke(main, [*fit, "--out", str(out), "--resume"])
    assert resumed.exit_code == 0, resumed.output
    assert outcome(out) == outcome(tmp_path / "whole")


@pytest.mark.usefixtures("calm")
def test_a_disk_that_is_really_full(tmp_path, monkeypatch):
    small_store(tmp_path / "s.zarr")
    fit = ["fit", str(tmp_path / "s.zarr"), *FIT, *THREADS, "--max-iter", "12"]
    invoke = CliRunner().invoke
    assert invoke(main, [*fit, "--out", str(tmp_path / "whole")]).exit_code == 0
    with disk_of(tmp_path / "disk", "1m") as disk:
        out, written, ballast = disk / "out", [], []

        def filled(path, content):
            written.append(path)
            if len(written) == 9:
                ballast.append(fill(disk, 0))
            put_atomic(path, content)

        put_atomic = checkpoints.put_atomic
        with monkeypatch.context() as patch:
            patch.setattr(checkpoints, "put_atomic", filled)
            stopped = invoke(main, [*fit, "--out", str(out)])
        assert stopped.exit_code == 5, stopped.output
        assert "No space left on device" in stopped.output
        ballast[0].unlink()
        resumed = invoke(main, [*fit, "--out", str(out), "--resume"])
        assert resumed.exit_code == 0, resumed.output
        assert outcome(out) == outcome(tmp_path / "whole")
