"""Stores and runs in an object store, against a local S3-compatible server."""

import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from functools import partial

import numpy as np
import pytest
from helpers.faulty import FIT, THREADS, environment, run, start, wait_until
from helpers.marks import mostly_slow
from helpers.needs import another_object_store, need_package
from helpers.paths import ROOT
from msgspec import structs

from gmkcf_dask.compute.runner import Runner
from gmkcf_dask.compute.tiled import TiledKernels
from gmkcf_dask.errors import StorageError, StorageRefused
from gmkcf_dask.estimators import GMKCF
from gmkcf_dask.store import lock, object_storage
from gmkcf_dask.store.files import exists, get, names_in, put_atomic, read, remove
from gmkcf_dask.store.kernel_store import UNFINISHED, KernelStore, delete_store
from gmkcf_dask.store.manifest import MANIFEST, Manifest
from gmkcf_dask.store.object_storage import location

pytestmark = pytest.mark.once
KERNELS = ("--kernels", "rbf_1,linear,poly_a1_b2", "--layout", "each")
GRAM = ("--kernels", "rbf_1,linear,poly_a1_b2", "--layout", "gram", "--block", "40", *THREADS)
BUILD = (*KERNELS, "--block", "40", *THREADS)
N_TILES, M = 10, 3  # of 150 samples


class Server:
    """The server, and what can be asked of it."""

    def __init__(self, port):
        self.url = f"http://127.0.0.1:{port}"

    def asked(self):
        with urllib.request.urlopen(f"{self.url}/_asked") as answer:
            return json.load(answer)

    def fail(self, status, code, count):
        urllib.request.urlopen(f"{self.url}/_fail?{status}&{code}&{count}").close()

    def lose(self):
        urllib.request.urlopen(f"{self.url}/_lose").close()


@pytest.fixture(scope="module")
def server():
    need_package("s3fs", "pip install 'gmkcf-dask[s3]'")
    need_package("moto", "pip install 'moto[s3]' flask")
    need_package("flask", "pip install 'moto[s3]' flask")
    with pytest.MonkeyPatch.context() as patch:
        program = ROOT / "tests" / "helpers" / "s3_server.py"
        process = subprocess.Popen(
            [sys.executable, str(program)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            found = Server(process.stdout.readline().strip())
            settings = {
                "AWS_ACCESS_KEY_ID": "someone",
                "AWS_SECRET_ACCESS_KEY": "something",
                "AWS_DEFAULT_REGION": "us-east-1",
                "AWS_ENDPOINT_URL": found.url,
            }
            for name, value in settings.items():
                patch.setenv(name, value)
            another_object_store()
            object_storage.filesystem("s3://x").mkdir("bucket")
            yield found
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


@pytest.fixture(scope="module")
def given(tmp_path_factory, server):
    """Data, a store of them on a path and the same in the bucket, and a run on the path."""
    folder = tmp_path_factory.mktemp("s3")
    rng = np.random.default_rng(0)
    np.save(folder / "x.npy", np.vstack([rng.normal(c, 1.0, (50, 6)) for c in (0, 2, 4)]))
    ok("build", folder / "x.npy", folder / "s.zarr", *BUILD)
    ok("build", folder / "x.npy", "s3://bucket/s.zarr", *BUILD)
    ok("fit", folder / "s.zarr", *FIT, "--max-iter", 12, "--out", folder / "run", *THREADS)
    return folder


@pytest.fixture
def copied(given, server, request):
    """A store of its own in the bucket."""
    url = f"s3://bucket/{re.sub('[^a-z0-9_]', '-', request.node.name)}.zarr"
    fs = object_storage.filesystem(url)
    fs.copy("s3://bucket/s.zarr/", url, recursive=True)
    return url


def ok(*arguments):
    code, said = run(*arguments)
    assert code == 0, said
    return said


def outcome(out):
    """All that a run found, to the last bit."""
    out = location(out)
    result = json.loads(read(out / "result.json"))
    with np.load(io.BytesIO(read(out / "factors.npz")), allow_pickle=False) as factors:
        arrays = {name: factors[name].tobytes() for name in factors.files}
    labels = read(out / "labels.csv")
    return labels, arrays, result["objective_history"], result["runs"], result["kernel_weights"]


def tile_of(url, kernel="linear", pair=(0, 1)):
    return location(url) / "kernels" / kernel / "c" / str(pair[0]) / str(pair[1])


@pytest.mark.slow
def test_a_store_has_the_same_files(given):
    here, there = given / "s.zarr", location("s3://bucket/s.zarr")
    files = {str(f.relative_to(here)): f.stat().st_size for f in here.rglob("*") if f.is_file()}
    found = object_storage.sizes_below(there)
    assert set(found) == set(files)
    for name in set(files) - {MANIFEST}:
        assert read(there / name) == (here / name).read_bytes(), name
    assert "complete" in ok("info", there)
    assert "no damage found" in ok("verify", there, *THREADS)
    assert names_in(there.parent).count(".s.zarr.lease") == 0


@mostly_slow("where", [THREADS, ("--cluster", "local", "--workers", "2")])
def test_fits_find_the_same_bits(given, where):
    out = f"s3://bucket/run-{where[1]}"
    ok("fit", "s3://bucket/s.zarr", *FIT, "--max-iter", 12, "--out", out, *where)
    assert outcome(out) == outcome(given / "run")
    assert not exists(location(out) / "checkpoint")
    code, said = run("fit", "s3://bucket/s.zarr", *FIT, "--max-iter", 12, "--out", out, *THREADS)
    assert (code, "holds another run" in said) == (2, True)
    again = ("--resume", *THREADS)
    assert "is finished" in ok(
        "fit", "s3://bucket/s.zarr", *FIT, "--max-iter", 12, "--out", out, *again
    )


@pytest.mark.slow
def test_run_and_score(given, tmp_path):
    rows = "".join(f"{i},{i // 50}\n" for i in range(150))
    (tmp_path / "known.csv").write_text("id,label\n" + rows)
    ok("run", given / "x.npy", *FIT, "--max-iter", 12, "--out", "s3://bucket/all", *BUILD)
    assert outcome("s3://bucket/all") == outcome(given / "run")
    assert "ACC" in ok("score", "s3://bucket/all", "--labels", tmp_path / "known.csv")
    # another store in its place, and the old one is gone to the last object
    other = ("--kernels", "rbf_1", "--block", "60", *THREADS)
    with_other = ("--out", "s3://bucket/all", "--overwrite", *other)
    ok("run", given / "x.npy", *FIT, "--max-iter", 12, *with_other)
    assert KernelStore.open("s3://bucket/all/store.zarr").names == ("rbf_1",)
    held = object_storage.sizes_below(location("s3://bucket/all/store.zarr"))
    assert not [name for name in held if "linear" in name or name == UNFINISHED]


@pytest.mark.slow
def test_estimators(given, calm):
    X = np.load(given / "x.npy")
    how = {"n_clusters": 3, "kernels": ["rbf_1", "linear"], "random_state": 0, "max_iter": 5}
    plain = GMKCF(**how, block_size=40, store=str(given / "estimated.zarr")).fit(X)
    url = "s3://bucket/estimated.zarr"
    kept = "s3://bucket/estimated-checkpoint"
    remote = GMKCF(**how, block_size=40, store=url, checkpoint_dir=kept).fit(X)
    np.testing.assert_array_equal(plain.U_, remote.U_)
    again = GMKCF(**{**how, "kernels": "local"}).fit(url)
    np.testing.assert_array_equal(plain.U_, again.U_)


@pytest.mark.slow
def test_killed_build_goes_on(tmp_path, given):
    X = np.random.default_rng(1).normal(size=(600, 5))
    np.save(tmp_path / "x.npy", X)
    build = ("build", tmp_path / "x.npy", "s3://bucket/killed.zarr", *KERNELS, "--block", "25")
    there = location("s3://bucket/killed.zarr")
    process = start(*build, *THREADS)
    assert wait_until(partial(some_tiles, there), process), process.communicate()[1]
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    done = len(Manifest.read(there).tiles_done)
    assert 0 < done < Manifest.read(there).tiling.n_tiles
    said = ok(*build, *THREADS)  # its owner was on this machine and is dead: no --force is needed
    assert f"process {process.pid}" in said
    ok("build", tmp_path / "x.npy", tmp_path / "s.zarr", *KERNELS, "--block", "25", *THREADS)
    assert Manifest.read(there).digests == Manifest.read(tmp_path / "s.zarr").digests
    assert "no damage found" in ok("verify", there, *THREADS)


def some_tiles(there):
    time.sleep(0.05)
    content = get(there / MANIFEST)
    return content is not None and bool(json.loads(content)["tiles_done"])


@pytest.mark.slow
def test_killed_fit_goes_on(given):
    out = "s3://bucket/killed-run"
    fit = ("fit", "s3://bucket/s.zarr", *FIT, "--max-iter", 60, *THREADS)
    process = start(*fit, "--out", out)
    folder = location(out) / "checkpoint"
    assert wait_until(lambda: exists(folder / "1.json"), process), process.communicate()[1]
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert not exists(location(out) / "result.json")
    code, said = run(*fit, "--out", out)
    assert (code, "--resume" in said) == (2, True)
    ok(*fit, "--out", out, "--resume")
    ok(*fit, "--out", given / "whole")
    assert outcome(out) == outcome(given / "whole")
    assert not exists(folder)


def test_one_writer_at_a_time(given):
    url = "s3://bucket/leased.zarr"
    with lock.writing(location(url)) as mine:
        code, said = run("build", given / "x.npy", url, *BUILD, "--force")
        assert code == 6
        assert f"is being written by {mine}" in said
    ok("build", given / "x.npy", url, *BUILD)
    assert not exists(lock.lock_path(location(url)))


def test_a_lease_is_taken_over_by_one_only(server, monkeypatch):
    monkeypatch.setattr(lock, "RENEWED_EVERY", 0.05)
    store = location("s3://bucket/taken.zarr")
    path = lock.lock_path(store)
    with lock.writing(store) as first:
        until = time.monotonic() + 20
        while b"renewed" not in read(path):
            assert time.monotonic() < until
            time.sleep(0.05)
        assert lock.LockInfo.read(path) == first
        lock.confirm(store, first)
        seen = lock._tag(path)
        # a renewal makes another object of it: who judged the old one comes too late
        while lock._tag(path) == seen:
            assert time.monotonic() < until
            time.sleep(0.05)
        assert not lock._take_over(path, b"{}", seen)
        with pytest.raises(lock.StoreBusyError, match="is being written by"):
            lock._acquire(path, lock.LockInfo.mine(), store, force=True)
    second, third = lock.LockInfo.mine(), lock.LockInfo.mine()
    put_atomic(path, first.encode())
    seen = lock._tag(path)
    assert lock._take_over(path, second.encode(), seen)
    assert not lock._take_over(path, third.encode(), seen)
    assert lock.LockInfo.read(path) == second
    lock._renew_object(path, first, 7)  # the one that was thought gone does not take it back
    assert lock.LockInfo.read(path) == second
    with pytest.raises(lock.StoreBusyError, match="taken over"):
        lock.confirm(store, first)
    remove(path)


def test_a_lease_whose_answer_was_lost_is_had(server):
    """The request is repeated, and finds the object that it made itself."""
    path = location("s3://bucket/lost.zarr")
    server.lose()
    with lock.writing(path) as mine:
        lock.confirm(path, mine)
    assert not exists(lock.lock_path(path))
    dead = structs.replace(mine, machine="another", run="0" * 32)
    put_atomic(lock.lock_path(path), dead.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lock, "STALE_AFTER", -1.0)
        content, tag = mine.encode(), lock._tag(lock.lock_path(path))
        server.lose()
        lock._take_over(lock.lock_path(path), content, tag)
    assert lock.LockInfo.read(lock.lock_path(path)) == mine


@pytest.mark.parametrize(
    ("status", "code"), [(412, "PreconditionFailed"), (409, "ConditionalRequestConflict")]
)
def test_a_server_that_does_not_say_which_condition(server, status, code):
    server.fail(status, code, 1)
    assert not object_storage.put_new_object(location("s3://bucket/new"), b"1")


def test_objects_that_may_not_be_deleted_are_told(copied, monkeypatch):
    path, fs = location(copied), object_storage.filesystem(copied)
    monkeypatch.setattr(fs, "rm", lambda paths: None)  # an answer of 200, with refusals in it
    with pytest.raises(StorageRefused, match=r"\d+ objects below .* could not be deleted"):
        delete_store(path)
    assert exists(path / UNFINISHED), "what is left has to be known as ours"


def test_age_is_by_the_clock_of_the_object_store(server, monkeypatch):
    path = location("s3://bucket/.aged.lease")
    put_atomic(path, b"{}")
    monkeypatch.setattr(lock.time, "time", lambda: 0.0)
    assert 0 <= lock._age(path) < 10
    assert names_in(path.parent).count(path.name) == 1
    assert not [name for name in names_in(path.parent) if name.startswith(".aged.lease.")]


@mostly_slow("damage", ["flipped", "missing", "empty", "other", "huge"])
def test_damage_is_found_and_mended(copied, damage):
    tile = tile_of(copied)
    content = read(tile)
    if damage == "missing":
        remove(tile)
    elif damage == "flipped":
        put_atomic(tile, content[:40] + bytes([content[40] ^ 1]) + content[41:])
    elif damage == "other":
        put_atomic(tile, read(tile_of(copied, "rbf_1")))
    else:
        put_atomic(tile, b"" if damage == "empty" else bytes(1 << 20))
    code, said = run("verify", copied, *THREADS)
    assert (code, "kernel linear tile (0, 1)" in said) == (4, True), said
    code, said = run("fit", copied, *FIT, "--out", f"{copied}-run", *THREADS)
    assert (code, "tile (0, 1) of kernel linear" in said) == (4, True), said
    assert "1 parts repaired" in ok("repair", copied, *THREADS)
    assert read(tile) == content
    assert "no damage found" in ok("verify", copied, *THREADS)


@mostly_slow("name", ["kernels/linear/zarr.json", "diagonals/rbf_1/c/0"])
def test_damage_beside_tiles_is_found_and_mended(copied, name):
    content = read(location(copied) / name)
    put_atomic(location(copied) / name, content[:-9])
    assert run("verify", copied, *THREADS)[0] == 4
    ok("repair", copied, *THREADS)
    assert read(location(copied) / name) == content


def test_a_vanished_store_is_told(copied):
    reader = KernelStore.open(copied).reader
    reader.raw(0, 0)
    object_storage.filesystem(copied).rm(copied, recursive=True)
    with pytest.raises(lock.StoreError, match="vanished"):
        reader.raw(0, 1)


def test_layout_gram_is_one_array_there(given, tmp_path, server):
    url = "s3://bucket/gram.zarr"
    for place, out in ((tmp_path / "s.zarr", tmp_path / "run"), (url, "s3://bucket/gram-run")):
        ok("build", given / "x.npy", place, *GRAM)
        ok("fit", place, *FIT, "--out", out, *THREADS)
    labels = location("s3://bucket/gram-run") / "labels.csv"
    assert read(labels) == (tmp_path / "run" / "labels.csv").read_bytes()
    stack = TiledKernels(KernelStore.open(url), Runner(scheduler="threads"), "recompute")
    U = np.random.default_rng(0).random((150, 3))
    stack.errors(U, U)
    server.asked()
    stack.errors(U, U)
    assert server.asked() == {"GET": N_TILES}
    stack.fuse(np.full(M, 1 / M), keep=False).matmul(U)
    assert server.asked() == {"GET": N_TILES}
    tile = location(url) / "gram" / "X" / "c" / "0" / "1"
    content = read(tile)
    put_atomic(tile, content[:40] + bytes([content[40] ^ 1]) + content[41:])
    assert run("verify", url, *THREADS)[0] == 4
    assert "1 parts repaired" in ok("repair", url, *THREADS)
    assert read(tile) == content
    delete_store(location(url))


def test_one_request_for_a_tile_and_no_listing(given, server):
    store = KernelStore.open("s3://bucket/s.zarr")
    stack = TiledKernels(store, Runner(scheduler="threads"), "scratch")
    assert stack.residency == "recompute"  # nothing is written beside a store out there
    U = np.random.default_rng(0).random((150, 3))
    stack.errors(U, U)
    server.asked()
    stack.errors(U, U)
    assert server.asked() == {"GET": M * N_TILES}
    stack.fuse(np.full(M, 1 / M)).matmul(U)
    assert server.asked() == {"GET": M * N_TILES}


def test_requests_of_a_build_and_of_opening(given, server):
    server.asked()
    KernelStore.open("s3://bucket/s.zarr")
    asked = server.asked()
    assert asked.pop("GET") <= 3 * M + 8  # the manifest, and what describes each array
    assert asked == {}
    ok("build", given / "x.npy", "s3://bucket/counted.zarr", *BUILD)
    asked = server.asked()
    tiles = M * N_TILES
    assert tiles < asked["PUT"] < tiles + 12 * M + 30
    assert asked["LIST"] < 20 + 6 * M
    assert asked["HEAD"] < tiles


def test_few_failures_are_survived(given, server):
    store = KernelStore.open("s3://bucket/s.zarr")
    expected = KernelStore.open(given / "s.zarr").reader.raw(1, 3)
    for status, code in ((503, "SlowDown"), (503, "ServiceUnavailable"), (500, "InternalError")):
        server.fail(status, code, 2)
        np.testing.assert_array_equal(store.reader.raw(1, 3), expected)
    server.fail(503, "SlowDown", 2)
    put_atomic(location("s3://bucket/written"), b"1")
    assert read(location("s3://bucket/written")) == b"1"


@pytest.mark.slow
def test_failures_without_end_are_told_and_are_no_damage(given, server):
    reader = KernelStore.open("s3://bucket/s.zarr").reader
    server.fail(503, "SlowDown", 10**6)
    begin = time.monotonic()
    try:
        with pytest.raises(StorageError, match="after several attempts"):
            reader.raw(0, 0)
        code, said = run("verify", "s3://bucket/s.zarr", *THREADS)
    finally:
        server.fail(503, "SlowDown", 0)
    assert time.monotonic() - begin < 120
    assert code == 5
    assert "the object store does not answer" in said
    assert "damaged" not in said
    assert "no damage found" in ok("verify", "s3://bucket/s.zarr", *THREADS)


@mostly_slow("what", ["put_atomic(path, b'1')", "get(path)"])
def test_a_server_that_says_nothing_is_given_up(server, what):
    program = f"""
from gmkcf_dask.store.files import get, put_atomic
from gmkcf_dask.store.object_storage import location
path = location("s3://bucket/x")
{what}
"""
    once = {"config_kwargs": {"read_timeout": 1, "retries": {"total_max_attempts": 1}}}
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        settings = {"AWS_ENDPOINT_URL": url, "FSSPEC_S3": json.dumps(once)}
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**environment(), **settings},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert "StorageError" in done.stderr
    assert "Read timeout" in done.stderr


@pytest.mark.slow
def test_object_store_lost_in_a_fit_that_goes_on_later(given, server):
    out = "s3://bucket/lost-run"
    fit = ("fit", "s3://bucket/s.zarr", *FIT, "--max-iter", 60, *THREADS)
    process = start(*fit, "--out", out)
    folder = location(out) / "checkpoint"
    assert wait_until(lambda: exists(folder / "0.json"), process), process.communicate()[1]
    server.fail(503, "SlowDown", 10**6)
    try:
        _, err = process.communicate(timeout=120)
    finally:
        server.fail(503, "SlowDown", 0)
    assert process.returncode == 5, err
    assert "cannot write a checkpoint" in err
    assert "Traceback" not in err
    ok(*fit, "--out", out, "--resume")
    ok(*fit, "--out", given / "whole-too")
    assert outcome(out) == outcome(given / "whole-too")


@pytest.mark.parametrize(
    ("status", "code", "reason"),
    [
        (403, "AccessDenied", "no permission to use"),
        (403, "InvalidAccessKeyId", "no permission to use"),
    ],
)
def test_no_rights_are_told_before_work_starts(given, server, status, code, reason):
    server.fail(status, code, 10**6)
    try:
        built = run("build", given / "x.npy", "s3://bucket/new.zarr", *BUILD)
        fitted = run("fit", "s3://bucket/s.zarr", *FIT, "--out", given / "none", *THREADS)
    finally:
        server.fail(status, code, 0)
    for code, said in (built, fitted):
        assert code == 2
        assert reason in said
        assert len(said.strip().splitlines()) == 1
    assert not exists(location("s3://bucket/new.zarr"))


def test_no_bucket_is_told_before_work_starts(given):
    commands = [
        ("build", given / "x.npy", "s3://other-bucket/s.zarr", *BUILD),
        ("fit", "s3://other-bucket/s.zarr", *FIT, "--out", given / "none", *THREADS),
        ("fit", given / "s.zarr", *FIT, "--out", "s3://other-bucket/run", *THREADS),
    ]
    for command in commands:
        code, said = run(*command)
        assert code == 2
        assert "does not exist" in said
        assert len(said.strip().splitlines()) == 1


@pytest.mark.slow
def test_no_credentials_are_told(given, tmp_path):
    none = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "HOME": str(tmp_path)}
    process = start(
        "info", "s3://bucket/s.zarr", settings={**none, "AWS_EC2_METADATA_DISABLED": "true"}
    )
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "no credentials" in err
    assert len(err.strip().splitlines()) == 1
