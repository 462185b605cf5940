"""Places by path and by URL, and stores in fsspec's memory, which needs no server."""

import builtins
import importlib
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from helpers.needs import need_package
from helpers.problems import kernels, request
from msgspec import structs

from gmkcf_dask.cli import main
from gmkcf_dask.cluster.doctor import examine_here, place_of, report_lines
from gmkcf_dask.compute.plan import make_plan
from gmkcf_dask.compute.runner import Runner
from gmkcf_dask.errors import (
    BlindWorkersError,
    InputError,
    StorageError,
    StorageRefused,
    StoreBusyError,
    StoreError,
)
from gmkcf_dask.store import lock, object_storage
from gmkcf_dask.store.build import build_store
from gmkcf_dask.store.files import check_writable, exists, get, names_in, put_atomic, put_if_absent
from gmkcf_dask.store.kernel_store import UNFINISHED, KernelStore, delete_store
from gmkcf_dask.store.object_storage import is_location, is_remote, location
from gmkcf_dask.store.preflight import refuse_blind_workers
from gmkcf_dask.system.processes import start_ticks
from gmkcf_dask.system.units import GIB


@pytest.fixture
def memory():
    """A function from a name to an empty place."""
    need_package("fsspec", "pip install fsspec")
    need_package("upath", "pip install universal-pathlib")
    fs = object_storage.filesystem("memory://x")
    fs.store.clear()
    fs.pseudo_dirs[:] = [""]
    yield lambda name: location(f"memory://here/{name}")
    fs.store.clear()


@pytest.mark.parametrize("given", ["a/b", "/a/b", Path("a/b"), "s3:", "a:b/c"])
def test_paths_stay_paths(given):
    found = location(given)
    assert isinstance(found, Path)
    assert found == Path(given)
    assert not is_remote(found)
    assert not is_remote(str(found))


def test_file_urls_are_paths():
    assert location("file:///a/b%20c") == Path("/a/b c")
    with pytest.raises(InputError, match="names a host"):
        location("file://host/a")


@pytest.mark.parametrize("url", ["http://a/b", "ftp://a/b", "github://a/b", "://a/b", "S3://a/b"])
def test_other_schemes_are_refused(url):
    with pytest.raises(InputError, match="can be on local paths"):
        location(url)


@pytest.mark.parametrize(
    "rest", ["", "/", "bucket", "bucket/", "b//x", "b/../x", "b/./x", "b/x?y=1", "b/x#1", "b/*"]
)
def test_places_that_cannot_be_are_refused(rest):
    with pytest.raises(InputError, match="cannot be the place"):
        location(f"memory://{rest}")


def test_credentials_in_a_url_are_refused_and_not_shown():
    with pytest.raises(InputError, match="holds credentials") as caught:
        location("s3://someone:secret@bucket/x")
    assert "secret" not in str(caught.value)


def test_options_of_a_path_object_are_refused(memory):
    from upath import UPath

    assert location(UPath("memory://a/b")) == location("memory://a/b")
    with pytest.raises(InputError, match="options of its own"):
        location(UPath("memory://a/b", auto_mkdir=True))


def test_what_is_a_location(memory):
    assert all(map(is_location, ["a", Path("a"), "s3://a/b", memory("x")]))
    assert not any(map(is_location, [1, None, np.zeros(3), ["a"]]))
    assert is_remote(memory("x"))
    assert is_remote(str(memory("x")))


def test_a_missing_package_is_one_sentence_with_the_extra(monkeypatch):
    def without(name, *args):
        if name == "s3fs":
            raise ImportError(name)
        return importlib.__import__(name)

    monkeypatch.setattr(importlib, "import_module", without)
    with pytest.raises(InputError, match=r"need s3fs: pip install 'gmkcf-dask\[s3\]'"):
        location("s3://bucket/x")
    assert builtins.__import__ is not without


def test_files(memory):
    path = memory("a/b")
    assert get(path) is None
    assert not exists(path.parent)
    put_atomic(path, b"12")
    assert (get(path), get(path, 2)) == (b"12", b"12")
    with pytest.raises(StoreError, match="far too large"):
        get(path, 1)
    assert not put_if_absent(path, b"3")
    assert put_if_absent(memory("a/c"), b"3")
    assert sorted(names_in(memory("a"))) == ["b", "c"]
    assert names_in(memory("other")) == []
    check_writable(memory("new"), "it")
    assert not exists(memory("new"))


def test_one_run_per_folder_and_its_lease_is_checked(memory):
    out = memory("runs/1")
    path = lock.lock_path(out)
    with lock.owning(out):
        mine = lock.LockInfo.read(path)
        assert mine.ticks == start_ticks(mine.pid)
        lock._renew_object(path, mine, 1)
        assert json.loads(get(path))["renewed"] == 1
        assert lock.LockInfo.read(path) == mine
        with pytest.raises(StoreBusyError, match="is being written by process"), lock.owning(out):
            pass
    assert not exists(path)
    # of a process whose number is used by another one now
    put_atomic(path, structs.replace(mine, ticks=(mine.ticks or 0) + 1).encode())
    with lock.owning(out):
        assert lock.LockInfo.read(path).run != mine.run
    put_atomic(path, b" " * (lock._MOST_BYTES + 1))
    assert lock.LockInfo.read(path) is None


def test_a_url_that_became_a_path_is_refused():
    with pytest.raises(InputError, match="give it as text"):
        location(Path("s3://bucket/x"))
    assert location(Path("s3/bucket")) == Path("s3/bucket")


def test_errors_become_sentences(memory):
    path = memory("x")
    with (
        pytest.raises(StorageError, match="does not answer") as caught,
        object_storage.remote_errors(path),
    ):
        raise OSError(16, "Please reduce your request rate")
    assert "reduce your request rate" in str(caught.value)
    with pytest.raises(StorageRefused, match="no permission"), object_storage.remote_errors(path):
        raise PermissionError("Access Denied")
    with pytest.raises(FileNotFoundError), object_storage.remote_errors(path):
        raise FileNotFoundError("x")
    with pytest.raises(PermissionError), object_storage.remote_errors("local/path"):
        raise PermissionError("as it is")


def small(block=40):
    return request(kernels(np.random.default_rng(0), 100, 2), "float32", block)


def test_a_store_in_memory_is_the_same_store(memory, tmp_path):
    remote = build_store(memory("s.zarr"), small(), Runner())
    local = build_store(tmp_path / "s.zarr", small(), Runner())
    assert remote.manifest.digests == local.manifest.digests
    opened = KernelStore.open("memory://here/s.zarr")
    for kernel in range(2):
        np.testing.assert_array_equal(opened.diagonal(kernel), local.diagonal(kernel))
        for t in range(local.tiling.n_tiles):
            np.testing.assert_array_equal(opened.reader.raw(kernel, t), local.reader.raw(kernel, t))
    assert opened.stored_bytes() == pytest.approx(local.stored_bytes(), abs=100)
    delete_store(memory("s.zarr"))
    assert not exists(memory("s.zarr"))


class Everywhere:
    """A runner whose workers are this process, or answer what they are told to."""

    def __init__(self, *answers):
        self.answers, self.checks = answers, set()

    def run_on_workers(self, function, *args, **named):
        found = self.answers or [function(*args, **named)]
        return dict(enumerate(found))


def test_workers_look_at_a_url(memory):
    store = build_store(memory("s.zarr"), small(), Runner())
    mine = store.manifest.store_id
    held = names_in(store.path)
    refuse_blind_workers(Everywhere(), store.path, mine, write=True)
    assert names_in(store.path) == held
    refuse_blind_workers(Everywhere(OSError("gone")), store.path, mine, write=True)
    with pytest.raises(BlindWorkersError, match="sees another store"):
        refuse_blind_workers(Everywhere(), store.path, "another", write=False)
    with pytest.raises(BlindWorkersError, match="does not see the store"):
        refuse_blind_workers(Everywhere(), memory("other"), mine, write=False)
    with pytest.raises(StorageError, match="no answer"):
        refuse_blind_workers(Everywhere(StorageError("no answer")), store.path, mine, write=True)


@pytest.mark.parametrize("name", ["s.zarr", "none.zarr"])
def test_doctor_takes_a_url(memory, name):
    build_store(memory("s.zarr"), small(), Runner())
    with place_of(memory(name)) as place:
        (patient,) = examine_here(place)
    assert patient.problems == ()
    words = "reads and writes the store" if name == "s.zarr" else "could make a store there"
    assert words in "\n".join(report_lines([patient], (10, 2)))
    done = CliRunner().invoke(main, ["doctor", str(memory(name)), "--cluster", "threads"])
    assert (done.exit_code, words in done.output) == (0, True), done.output
    assert not exists(memory("none.zarr"))


def test_a_creation_that_was_killed_is_begun_again(memory):
    path = memory("s.zarr")
    put_atomic(path / UNFINISHED, b"{}")
    put_atomic(path / "features" / "offset" / "zarr.json", b"of another try")
    build_store(path, small(), Runner())
    assert not exists(path / "features")
    assert not exists(path / UNFINISHED)
    assert KernelStore.open(path).manifest.complete


def test_what_is_not_ours_is_left_alone(memory):
    path = memory("s.zarr")
    put_atomic(path / "letters.txt", b"mine")
    with pytest.raises(StoreError, match="holds other files"):
        build_store(path, small(), Runner())
    assert get(path / "letters.txt") == b"mine"
    put_atomic(memory("file"), b"mine")
    with pytest.raises(StoreError, match="is a file"):
        build_store(memory("file"), small(), Runner())


def test_no_scratch_in_the_plan_where_none_can_be():
    def residency(**how):
        plan = make_plan(
            60_000, 10, 2, 5, feature_bytes=0, n_workers=2, memory_per_worker=2 * GIB, **how
        )
        return plan.residency

    assert residency() == "scratch"
    assert residency(scratch=False) == "recompute"
