"""Row: a killed run's temporary folders are removed by the next run, and only those."""

import os
import signal
import stat
import subprocess
import sys
import time

import pytest
from helpers.faulty import environment
from msgspec import structs

from gmkcf_dask.errors import InputError
from gmkcf_dask.system import processes
from gmkcf_dask.system.processes import Owner, ProcessState
from gmkcf_dask.system.temporary import (
    OWNER_FILE,
    make_run_folder,
    run_folder,
    sweep,
    temporary_root,
)


@pytest.fixture(autouse=True)
def tmpdir_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))


@pytest.fixture(scope="module")
def dead():
    """A process of this machine that was killed and waited for."""
    script = (
        "import time\n"
        "from gmkcf_dask.system.processes import Owner\n"
        "print(Owner.mine().encode().decode(), flush=True); time.sleep(60)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], env=environment(), stdout=subprocess.PIPE
    )
    owner = Owner.decode(process.stdout.readline())
    assert owner.state() is ProcessState.RUNS
    process.send_signal(signal.SIGKILL)
    for _ in range(500):  # a zombie until it is waited for: it writes nothing any more
        if owner.state() is not ProcessState.RUNS:
            break
        time.sleep(0.01)
    assert owner.state() is ProcessState.DEAD
    process.communicate()
    assert owner.state() is ProcessState.DEAD
    return owner


def own(folder, owner):
    (folder / OWNER_FILE).write_text(owner.encode().decode())


def test_a_run_folder_is_private_and_removed_at_the_end(tmp_path):
    assert temporary_root() == tmp_path
    with run_folder("texts") as folder:
        assert folder.parent == tmp_path
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        (folder / "deep" / "er").mkdir(parents=True)
        assert sweep() == []
    assert list(tmp_path.iterdir()) == []


def test_the_folder_of_a_killed_run_is_swept_by_the_next(tmp_path, dead):
    left = make_run_folder("texts")
    (left / "deep").mkdir()
    own(left, dead)
    with run_folder("spill") as folder:
        assert list(tmp_path.iterdir()) == [folder]


def test_the_folder_of_a_run_killed_for_real_is_swept(tmp_path):
    script = (
        "import os, signal; from gmkcf_dask.system.temporary import make_run_folder\n"
        "(make_run_folder('texts') / 'counts').write_bytes(b'x'); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", script], env=environment(), check=False)
    assert done.returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    assert sweep() == [left]
    assert not left.exists()


def test_what_may_still_be_used_is_kept(tmp_path, dead):
    running, elsewhere, unknown, torn, shared = (make_run_folder("texts") for _ in range(5))
    own(elsewhere, structs.replace(dead, machine="another machine"))
    (unknown / OWNER_FILE).rename(unknown / "file")
    (torn / OWNER_FILE).write_text("{")
    own(shared, dead)
    shared.chmod(0o755)
    foreign = tmp_path / "gmkcf-things"
    foreign.mkdir()
    own(foreign, dead)
    link = tmp_path / "gmkcf-texts-abcdefgh"
    outside = tmp_path / "outside"
    outside.mkdir(0o700)
    own(outside, dead)
    link.symlink_to(outside)
    assert sweep() == []
    assert (outside / OWNER_FILE).exists()
    assert all(f.exists() for f in (running, elsewhere, unknown, torn, shared, foreign, link))


def test_an_empty_folder_is_swept_when_it_is_old(tmp_path):
    left = make_run_folder("texts")
    (left / OWNER_FILE).unlink()
    assert sweep() == []
    os.utime(left, (1, 1))
    assert sweep() == [left]


def test_a_temporary_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="file: Not a directory; set TMPDIR"):
        make_run_folder("texts", tmp_path / "file")


def test_an_owner_is_dead_only_where_that_is_proved(dead, monkeypatch):
    mine = Owner.mine()
    assert mine.state() is ProcessState.RUNS
    assert (
        structs.replace(mine, ticks=mine.ticks + 1).state() is ProcessState.DEAD
    )  # the number is used again
    host, boot, space = dead.machine.rsplit(" ", 2)
    for other in (f"other {boot} {space}", f"{host} other {space}", f"{host} {boot} pid:[1]"):
        assert structs.replace(dead, machine=other).state() is ProcessState.UNSEEN
    # a system that does not tell its boot: the process is not found, but nothing is proved
    monkeypatch.setattr(processes, "this_machine", lambda: f"{host}  ")
    assert structs.replace(dead, machine=f"{host}  ").state() is ProcessState.GONE


def test_processes_of_another_proc_are_not_looked_at(monkeypatch, dead):
    """In a PID namespace with the /proc of another one, numbers there are not ours."""
    mine = Owner.mine()
    monkeypatch.setattr(processes.os, "getpid", lambda: 1)
    assert processes.start_ticks(mine.pid) is None
    assert structs.replace(mine, ticks=1).state() is ProcessState.RUNS  # by number and time
    assert dead.state() is ProcessState.DEAD
