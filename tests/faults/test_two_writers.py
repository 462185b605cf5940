"""Row: two runs on one store, and a build during a fit. One writer; readers are never kept out."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress

import numpy as np
import pytest
from helpers.commands import exits, gmkcf
from helpers.damage import (
    HERE,
    ROOT,
    content,
    flip,
    request,
    same_store,
    start_build,
    store_at,
    tile_files,
)
from helpers.faulty import run, serial_of, small_store, start, wait_until
from helpers.problems import fit_gmkcf
from msgspec import structs

from gmkcf_dask.cluster.resources import threads
from gmkcf_dask.compute.tiled import TiledKernels
from gmkcf_dask.errors import StoreBusyError, StoreError, StoreGoneError, StoreWarning
from gmkcf_dask.events import IterationDone
from gmkcf_dask.methods.factorize import SolverOptions
from gmkcf_dask.methods.gmkcf import Gmkcf
from gmkcf_dask.pipeline import FitOptions, fit_into
from gmkcf_dask.results.checkpoints import read_checkpoint
from gmkcf_dask.store import build as build_module, lock as lock_module, repair as repair_module
from gmkcf_dask.store.build import build_store
from gmkcf_dask.store.kernel_store import KernelStore
from gmkcf_dask.store.lock import LockInfo, confirm, holder, lock_path, writing
from gmkcf_dask.store.repair import repair_store
from gmkcf_dask.store.verify import find_damage

pytestmark = pytest.mark.usefixtures("calm")


def dead_lock(**changes):
    """Of a process of this machine that has ended."""
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"],
                           capture_output=True, check=True, text=True)  # fmt: skip
    return structs.replace(
        LockInfo.mine(), **{"pid": int(ended.stdout), "run": "0" * 32, **changes}
    )


def leave(path, lease):
    lock_path(path).write_text(lease.encode().decode())


def test_a_second_build_is_told_who_holds_the_store(tmp_path):
    path, inside, go_on = tmp_path / "s.zarr", threading.Event(), threading.Event()
    results = []

    def listen(event):
        if event.stage == "write":
            inside.set()
            assert go_on.wait(30)

    first = threading.Thread(
        target=lambda: results.append(build_store(path, request(), HERE, listen, block=16))
    )
    first.start()
    assert inside.wait(30)
    try:
        for force in (False, True):  # one that lives is not pushed aside
            with pytest.raises(StoreBusyError, match="is being written by process") as told:
                build_store(path, request(), HERE, block=16, force=force)
            assert f"process {os.getpid()} on {socket.gethostname()} since 20" in str(told.value)
        assert f"process {os.getpid()}" in gmkcf("info", path).stdout
    finally:
        go_on.set()
        first.join()
    assert results[0].manifest.complete
    assert not lock_path(path).exists()
    store_at(tmp_path / "clean.zarr")
    assert same_store(path, tmp_path / "clean.zarr")


def test_two_builds_at_once_make_one_store(tmp_path):
    np.save(tmp_path / "x.npy", request().corpus.X.toarray())
    options = ("--kernels", "rbf_1,cosine", "--block", "8", "--cluster", "threads")
    path = tmp_path / "s.zarr"
    both = [start_build(tmp_path / "x.npy", path, *options) for _ in range(2)]
    ends = [(*process.communicate(timeout=120), process.returncode) for process in both]
    assert 0 in [code for *_, code in ends]
    for _, errors, code in ends:
        assert code == 0 or "is being written by process" in errors
    exits(0, "verify", path, "--cluster", "threads")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["s.zarr", "x.npy"]


def test_a_build_and_a_repair_during_a_fit_do_not_disturb_it(tmp_path):
    path, options = tmp_path / "s.zarr", SolverOptions(3, max_iter=4, tol=0.0)
    store_at(path)
    expected = fit_gmkcf(TiledKernels(KernelStore.open(path), HERE), options, seed=0)
    done = []

    def meddle(event):
        if not done:
            done.append(build_store(path, request(), HERE))
            tile = tile_files(path)[0]
            tile.write_bytes(b"")
            done.append(repair_store(path, HERE))

    found = fit_gmkcf(TiledKernels(KernelStore.open(path), HERE), options, seed=0, listen=meddle)
    assert len(done) == 2
    assert found.history == expected.history


def test_readers_do_not_look_at_the_lease(tmp_path):
    path = tmp_path / "s.zarr"
    store_at(path)
    with writing(path):
        exits(0, "verify", path, "--cluster", "threads")
        exits(0, "info", path)
        assert build_store(path, request(), HERE).manifest.complete  # nothing to write
        with pytest.raises(StoreBusyError):
            repair_store(path, HERE)


@pytest.mark.parametrize("seen", [True, False])
@pytest.mark.parametrize("command", ["build", "repair", "run"])
def test_the_lease_of_a_killed_writer_is_taken_over(tmp_path, command, seen):
    """With a note where its end is proved; by force where its machine cannot be seen from here."""
    path = tmp_path / "s.zarr"
    made = store_at(path)
    np.save(tmp_path / "x.npy", made.features().rows(slice(0, 60)).toarray())
    x = tmp_path / "x.npy"
    kernels = ("--kernels", "rbf_1", "--cluster", "threads")
    commands = {
        "build": ("build", x, tmp_path / "new.zarr", *kernels),
        "run": ("run", x, "-k", 2, "--out", tmp_path / "run", "--store", tmp_path / "new.zarr",
                "--max-iter", 2, *kernels),
        "repair": ("repair", path, "--cluster", "threads"),
    }  # fmt: skip
    target = path if command == "repair" else tmp_path / "new.zarr"
    leave(target, dead_lock() if seen else dead_lock(host="other", machine="other"))
    os.utime(lock_path(target), (1, 1))
    if not seen:
        said = exits(6, *commands[command])
        assert "which is gone" in said.stderr
        assert "--force" in said.stderr
    taken = exits(0, *commands[command], *([] if seen else ["--force"]))
    assert ("taken over from process" in taken.stderr) == seen
    assert not lock_path(target).exists()


@pytest.mark.parametrize("where", ["boot", "container", "host"])
def test_a_process_that_cannot_be_looked_for_is_not_taken_for_dead(tmp_path, where):
    """Same number, but of another boot, PID namespace or host: nothing is proved."""
    path, lease = tmp_path / "s.zarr", dead_lock()
    host, boot, space = lease.machine.rsplit(" ", 2)
    other = {"boot": f"{host} 0 {space}", "container": f"{host} {boot} pid:[1]",
             "host": f"other {boot} {space}"}  # fmt: skip
    leave(path, structs.replace(lease, machine=other[where]))
    for force in (False, True):
        with pytest.raises(StoreBusyError, match="is being written"), writing(path, force=force):
            pass


@pytest.mark.parametrize("locks", [True, False])
def test_of_many_that_take_over_one_wins(tmp_path, monkeypatch, locks):
    """Under a lock on the lease file, or by a claim on file systems without locks."""
    if not locks:
        monkeypatch.setattr(lock_module, "_take_over_locked", lambda path, content: None)
    path = lock_path(tmp_path / "s.zarr")
    for _ in range(20):
        leave(tmp_path / "s.zarr", dead_lock_again())
        leases = [LockInfo.mine() for _ in range(8)]
        together, won = threading.Barrier(8), []

        def take(lease, together=together, won=won):
            together.wait()
            with suppress(StoreBusyError):
                lock_module._acquire(path, lease, tmp_path / "s.zarr", force=False)
                won.append(lease)

        threads = [threading.Thread(target=take, args=(lease,)) for lease in leases]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert won == [LockInfo.read(path)]
        path.unlink()
    assert list(tmp_path.iterdir()) == []


def test_a_claim_whose_owner_was_killed_is_succeeded(tmp_path, monkeypatch):
    """Without locks: the first successor claims the lease and is killed before it replaces it."""
    monkeypatch.setattr(lock_module, "_take_over_locked", lambda path, content: None)
    path = lock_path(tmp_path / "s.zarr")
    killed = structs.replace(dead_lock_again(), run="1" * 32)
    leave(tmp_path / "s.zarr", dead_lock_again())
    with monkeypatch.context() as patch:
        patch.setattr(lock_module.files, "put_atomic", raise_keyboard_interrupt)
        with pytest.raises(KeyboardInterrupt):
            lock_module._take_over_claimed(path, killed.encode())
    assert LockInfo.read(path) == dead_lock_again()
    taken_over = pytest.warns(StoreWarning, match="taken over from process")
    with taken_over, writing(tmp_path / "s.zarr") as mine:
        assert LockInfo.read(path) == mine
    assert list(tmp_path.iterdir()) == []


def raise_keyboard_interrupt(*_):
    raise KeyboardInterrupt


def dead_lock_again(once=[]):  # starting a process takes time: one is enough  # noqa: B006
    if not once:
        once.append(dead_lock())
    return once[0]


def test_of_two_processes_that_take_over_one_wins(tmp_path):
    script = (
        "import sys, time; from pathlib import Path\n"
        "from gmkcf_dask.errors import StoreBusyError\n"
        "from gmkcf_dask.store.lock import writing\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "try:\n  with writing(Path(sys.argv[1])):\n"
        "    print('in', flush=True); sys.stdin.readline()\n"
        "except StoreBusyError:\n  print('busy', flush=True)"
    )
    leave(tmp_path / "s.zarr", dead_lock())
    both = [
        subprocess.Popen([sys.executable, "-c", script, tmp_path / "s.zarr"], text=True,
                         env={**os.environ, "PYTHONPATH": str(ROOT)}, stdin=subprocess.PIPE,
                         stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        for _ in range(2)
    ]  # fmt: skip
    for process in both:
        assert process.stdout.readline() == "ready\n"
    for process in both:
        process.stdin.write("\n")
        process.stdin.flush()
    said = [process.stdout.readline() for process in both]
    for process in both:
        process.communicate("\n")
    assert sorted(said) == ["busy\n", "in\n"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("quiet", "gone"), [(60.0, False), (3600.0, True)])
def test_a_writer_elsewhere_counts_as_gone_when_it_was_quiet_for_long(tmp_path, quiet, gone):
    path = tmp_path / "s.zarr"
    leave(path, dead_lock(host="other", machine="other"))
    then = time.time() - quiet
    os.utime(lock_path(path), (then, then))
    assert holder(path).endswith("which is gone") == gone
    if gone:
        with writing(path, force=True):
            pass
    else:
        with pytest.raises(StoreBusyError, match="on other since"), writing(path, force=True):
            pass


def test_a_number_that_is_used_again_is_another_process(tmp_path):
    path = tmp_path / "s.zarr"
    leave(path, structs.replace(LockInfo.mine(), started=1.0, ticks=1))
    with pytest.warns(StoreWarning, match="taken over from process"), writing(path):
        pass


@pytest.mark.parametrize("old", [False, True])
def test_a_clock_that_is_set_does_not_end_a_writer(tmp_path, monkeypatch, old):
    """What psutil says of the start of a process moves with the clock; old leases know no ticks."""
    path, mine = tmp_path / "s.zarr", LockInfo.mine()
    fields = structs.asdict(structs.replace(mine, started=mine.started - 30.0))
    if old:
        del fields["ticks"]
    elif mine.ticks is None:
        pytest.skip("this system does not tell")
    lock_path(path).write_text(json.dumps(fields))
    assert not holder(path).endswith("which is gone")
    with pytest.raises(StoreBusyError, match="is being written"), writing(path, force=True):
        pass


def test_a_store_replaced_before_the_lease_is_had_is_read_anew(tmp_path, monkeypatch):
    path = tmp_path / "s.zarr"
    store_at(path)

    def late(place, *, force):
        shutil.rmtree(path)
        store_at(path, normalization="none", scaling="none")
        before.update(content(path))
        return writing(place, force=force)

    before = {}
    monkeypatch.setattr(repair_module, "writing", late)
    assert not repair_store(path, HERE).damage
    assert content(path) == before


def test_tiles_of_another_store_are_no_bad_tiles(tmp_path):
    path = tmp_path / "s.zarr"
    opened = store_at(path)
    shutil.rmtree(path)
    store_at(path)
    with pytest.raises(StoreGoneError, match="was replaced by another store"):
        find_damage(opened, HERE)


@pytest.mark.parametrize("torn", ["", "{", "[]", '{"pid": 1}'])
def test_half_a_lease_is_one_of_an_unknown_process(tmp_path, torn):
    path = tmp_path / "s.zarr"
    lock_path(path).write_text(torn)
    with pytest.raises(StoreBusyError, match="an unknown process"), writing(path, force=True):
        pass
    os.utime(lock_path(path), (1, 1))
    with pytest.raises(StoreBusyError, match="--force"), writing(path):
        pass
    with writing(path, force=True):
        pass


def test_a_writer_whose_lease_was_taken_stops(tmp_path):
    path = tmp_path / "s.zarr"
    with writing(path) as mine:
        leave(path, dead_lock())
        with pytest.raises(StoreBusyError, match="was taken over"):
            confirm(path, mine)
    assert LockInfo.read(lock_path(path)).run == "0" * 32  # not ours to remove


def test_a_build_whose_lease_was_taken_while_it_looked_writes_nothing(tmp_path, monkeypatch):
    path, resolve, before = tmp_path / "s.zarr", build_module.resolve_by_tasks, {}

    def slow(*args, **options):
        found = resolve(*args, **options)
        leave(path, dead_lock())
        before.update(content(path))
        return found

    monkeypatch.setattr(build_module, "resolve_by_tasks", slow)
    with pytest.raises(StoreBusyError, match="was taken over"):
        build_store(path, request(), HERE)
    assert content(path) == before


def test_a_run_whose_folder_was_taken_over_writes_nothing_more(tmp_path):
    store, out = small_store(tmp_path / "s.zarr"), tmp_path / "out"
    method, resources = Gmkcf(3, tol=0.0, max_iter=8), threads(1)

    def taken(event):
        if isinstance(event, IterationDone) and event.iteration == 4:
            leave(out, dead_lock())

    options = FitOptions(out, method, checkpoint_every=1)
    with pytest.raises(StoreBusyError, match="was taken over"):
        fit_into(options, store, resources, listen=taken)
    assert read_checkpoint(out / "checkpoint").serial == 3
    assert not (out / "result.json").exists()
    assert LockInfo.read(lock_path(out)).run == "0" * 32


def test_the_lease_of_a_successor_is_not_renewed(tmp_path, monkeypatch):
    monkeypatch.setattr(lock_module, "RENEWED_EVERY", 0.02)
    path = tmp_path / "s.zarr"
    with writing(path):
        leave(path, dead_lock())
        os.utime(lock_path(path), (1, 1))
        time.sleep(0.3)
        assert lock_path(path).stat().st_mtime == 1


def test_a_lease_is_renewed(tmp_path, monkeypatch):
    monkeypatch.setattr(lock_module, "RENEWED_EVERY", 0.02)
    path = tmp_path / "s.zarr"
    with writing(path):
        os.utime(lock_path(path), (1, 1))
        for _ in range(200):
            if lock_path(path).stat().st_mtime > 1:
                break
            time.sleep(0.02)
        assert lock_path(path).stat().st_mtime > 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_lease_is_given_back_on_signals(tmp_path, number):
    script = (
        "import sys, time; from pathlib import Path; from gmkcf_dask.store.lock import writing\n"
        "with writing(Path(sys.argv[1])):\n  print('in', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, tmp_path / "s.zarr"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout.readline() == b"in\n"
    assert lock_path(tmp_path / "s.zarr").exists()
    process.send_signal(number)
    assert process.wait(30) != 0
    process.stdout.close()
    assert not lock_path(tmp_path / "s.zarr").exists()


# what killed writers leave


def test_leftovers_are_swept_by_the_next_writer(tmp_path):
    path = tmp_path / "s.zarr"
    store_at(path)
    clean = content(path)
    (tile_files(path)[0].parent / f"7.{'a' * 32}.partial").write_bytes(b"x")
    (path / f".manifest.json.{'b' * 32}").write_bytes(b"x")
    (tmp_path / f".s.zarr.{'c' * 32}" / "kernels").mkdir(parents=True)
    (tmp_path / f".s.zarr.lease.{'d' * 32}").write_bytes(b"x")
    keep = [tmp_path / f".other.zarr.{'e' * 32}", tmp_path / f".s.zarr.scratch-{'f' * 32}"]
    for folder in keep:  # of another store, and of a fit that may be running
        folder.mkdir()
    repair_store(path, HERE)
    assert content(path) == clean
    assert sorted(tmp_path.iterdir()) == sorted([path, *keep])


def test_nothing_is_swept_or_written_through_a_link(tmp_path):
    path, outside = tmp_path / "s.zarr", tmp_path / "outside"
    store_at(path)
    (path / "kernels" / "rbf_1").rename(outside)
    (path / "kernels" / "rbf_1").symlink_to(outside)
    precious = outside / "c" / "0" / f"1.{'a' * 32}.partial"
    precious.write_bytes(b"precious")
    with pytest.raises(StoreError, match="kernels/rbf_1 is a symbolic link"):
        repair_store(path, HERE)
    assert precious.read_bytes() == b"precious"
    link = tmp_path / f".s.zarr.{'c' * 32}"
    link.symlink_to(outside)
    (path / "kernels" / "rbf_1").unlink()
    outside.rename(path / "kernels" / "rbf_1")
    link.unlink()
    link.symlink_to(path)
    repair_store(path, HERE)
    assert link.is_symlink()
    assert KernelStore.open(path).manifest.complete


def test_merged_tiles_are_gone_before_a_store_is_complete(tmp_path, monkeypatch):
    """Killed between the two, the next build removes them."""
    path, merging = tmp_path / "s.zarr", {"kernels": "rbf_1,rbf_1.0001", "merge_duplicates": 0.1}
    clean = store_at(tmp_path / "clean.zarr", **merging)
    assert clean.manifest.stored_as == ("rbf_1", "rbf_1")
    with monkeypatch.context() as patch:
        patch.setattr(
            KernelStore, "drop_merged", lambda self: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        with pytest.raises(KeyboardInterrupt):
            store_at(path, **merging)
    assert not manifest_of(path).complete
    assert (path / "kernels" / "rbf_1.0001" / "c").exists()
    store_at(path, **merging)
    assert same_store(path, tmp_path / "clean.zarr")
    assert not (path / "kernels" / "rbf_1.0001" / "c").exists()


def manifest_of(path):
    return KernelStore.open(path, incomplete=True).manifest


def test_damage_by_hand_while_building_is_noticed_before_complete(tmp_path):
    path, rng = tmp_path / "s.zarr", np.random.default_rng(0)

    def listen(event):
        if event.stage == "write" and event.done == event.total:
            kernel = flip(path, rng)[0]
            assert kernel
            tile_files(path)[0].unlink()

    with pytest.raises(StoreError, match="changed or removed while it was built"):
        build_store(path, request(), HERE, listen, block=16)
    assert not manifest_of(path).complete
    build_store(path, request(), HERE)
    assert repair_store(path, HERE).left == ()
    store_at(tmp_path / "clean.zarr")
    assert same_store(path, tmp_path / "clean.zarr")


# two runs into one folder


@pytest.mark.slow
def test_of_two_fits_into_one_folder_the_second_is_told(tmp_path):
    store, out = tmp_path / "s.zarr", tmp_path / "out"
    small_store(store)
    fit = ("fit", store, "-k", 3, "--tol", 0, "--cluster", "threads", "--out", out)
    first = start(*fit, "--max-iter", 2000, "--checkpoint-every", 2, "--seed", 1)
    assert wait_until(lambda: serial_of(out), first)
    code, said = run(*fit, "--max-iter", 3, "--seed", 2, "--overwrite")
    assert code == 6
    assert f"{out} is being written by process {first.pid}" in said
    first.kill()
    first.communicate()
    # the owner is gone: the folder is free for whoever comes next
    exits(0, *fit, "--max-iter", 3, "--seed", 2, "--overwrite")
    assert json.loads((out / "result.json").read_text())["seed"] == 2
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["out", "s.zarr"]
