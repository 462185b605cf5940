"""Where processes write what does not fit: a private folder of the run, which ends with it.

Dask by itself takes `dask-scratch-space` in TMPDIR, which another user may have made beforehand.
"""

import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import dask
import pytest
from helpers.needs import need_package

from gmkcf_dask.cluster.config import ClusterConfig
from gmkcf_dask.cluster.launch import start
from gmkcf_dask.cluster.process_settings import private_space

SHARED = "dask-scratch-space"


@pytest.fixture
def tmpdir(tmp_path, monkeypatch):
    """A TMPDIR in which somebody else has made Dask's folder, for all to write."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setitem(dask.config.config, "temporary-directory", None)
    (tmp_path / SHARED).mkdir()
    (tmp_path / SHARED).chmod(0o777)
    return tmp_path


def places(client):
    """Folders that worker and scheduler write to, and those that modules are imported from."""

    def of_worker(dask_worker):
        return dask_worker.local_directory, list(sys.path)

    (worker,) = client.run(of_worker).values()
    here = client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.local_directory)
    return [worker[0], here], [*worker[1], *sys.path]


@pytest.mark.parametrize("where", [None, "not there/yet"], ids=["tmpdir", "local-directory"])
def test_a_local_cluster_writes_into_a_folder_of_its_own(tmpdir, where):
    within = tmpdir if where is None else tmpdir / where
    directory = None if where is None else str(within)
    config = ClusterConfig("local", workers=1, memory=1 << 30, local_directory=directory)
    with start(config, 10) as resources:
        (folder,) = [path for path in within.iterdir() if path.name.startswith("gmkcf-")]
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        written, imported = places(resources.runner.client)
        assert all(Path(one).is_relative_to(folder) for one in written)
        assert not any(Path(one).is_relative_to(tmpdir / SHARED) for one in imported)
    assert not folder.exists()
    assert list((tmpdir / SHARED).iterdir()) == []


def test_two_clusters_of_a_process_have_folders_side_by_side(tmpdir):
    first, second = private_space(None), private_space(None)
    folders = [Path(first.__enter__()), Path(second.__enter__())]
    assert [folder.parent for folder in folders] == [tmpdir, tmpdir]
    first.__exit__(None, None, None)
    assert folders[1].exists()
    second.__exit__(None, None, None)
    assert not folders[1].exists()


def test_a_folder_goes_when_its_run_fails(tmpdir):
    private = private_space(None)
    folder = Path(private.__enter__())
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    private.__exit__(OSError, OSError("no"), None)
    assert not folder.exists()


@pytest.mark.parametrize("shell", ["bash", "sh"])
@pytest.mark.parametrize("end", ["by itself", "by a signal"])
def test_jobs_of_a_batch_system_do_too(tmpdir, shell, end):
    need_package("dask_jobqueue", "pip install 'gmkcf-dask[jobqueue]'")
    from gmkcf_dask.cluster.jobqueue import private_folder

    within = tmpdir / "a b"
    worker = 'stat -c "%a %n" "$gmkcf_spill"; touch "$gmkcf_spill/x"; '
    worker += "sleep 30" if end == "by a signal" else "true"
    lines = [*private_folder(str(within)), worker]
    process = subprocess.Popen(
        [shell, "-c", "; ".join(lines)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    mode, folder = process.stdout.readline().strip().split(" ", 1)
    assert mode == "700"
    assert Path(folder).parent == within
    if end == "by a signal":
        time.sleep(0.2)
        os.killpg(process.pid, signal.SIGTERM)
    code = process.wait(20)
    process.stdout.close()
    assert code == (143 if end == "by a signal" else 0)
    assert list(within.iterdir()) == []
