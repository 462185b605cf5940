"""Workers that do not see the store, or cannot write to it: one sentence, before any work."""

import os
import signal

import pytest
from distributed import Client
from helpers.faulty import run, separate_cluster, small_store
from helpers.places import features
from helpers.sights import blind_to, reads_only

from gmkcf_dask.cluster.resources import of_client
from gmkcf_dask.errors import BlindWorkersError
from gmkcf_dask.store.preflight import may_keep_scratch, refuse_blind_workers
from gmkcf_dask.store.repair import repair_store
from gmkcf_dask.store.verify import find_damage, open_unchecked

FIT = ("-k", 3, "--seed", 0, "--max-iter", 2)
KERNELS = ("--kernels", "rbf_1,cosine", "--block", 40)


@pytest.fixture
def shared(tmp_path):
    """A folder that a worker may see otherwise; what workers need themselves is elsewhere."""
    (tmp_path / "shared").mkdir()
    return tmp_path / "shared"


def sentence_of(said):
    (sentence,) = [line for line in said.splitlines() if line.startswith("error: ")]
    return sentence


def files_below(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_a_worker_that_does_not_see_the_store(shared, tmp_path):
    small_store(shared / "s.zarr")
    before = files_below(shared)
    cluster = separate_cluster(tmp_path / "cluster", 2, last_within=blind_to(shared))
    with cluster as (address, *_):
        fit = ("fit", shared / "s.zarr", *FIT, "--cluster", address)
        code, said = run(*fit, "--out", tmp_path / "out")
    assert code == 2
    sentence = sentence_of(said)
    assert "does not see the store (there is no kernel store at" in sentence
    assert "put the store at" in sentence
    assert files_below(shared) == before
    assert not (tmp_path / "out").exists()


@pytest.mark.cluster
def test_a_build_on_a_worker_that_does_not_see_it(shared, tmp_path):
    cluster = separate_cluster(tmp_path / "cluster", 2, last_within=blind_to(shared))
    with cluster as (address, *_):
        build = ("build", features(tmp_path), shared / "s.zarr", *KERNELS)
        code, said = run(*build, "--cluster", address)
    assert code == 2
    assert "does not see the store" in sentence_of(said)
    assert not (shared / "s.zarr").exists(), "something is left"


@pytest.mark.cluster
def test_a_verification_on_a_worker_that_does_not_see_it(shared, tmp_path):
    """It would find every tile missing."""
    small_store(shared / "s.zarr")
    cluster = separate_cluster(tmp_path / "cluster", 2, last_within=blind_to(shared))
    with cluster as (address, *_):
        code, said = run("verify", shared / "s.zarr", "--cluster", address)
    assert code == 2
    assert "does not see the store" in sentence_of(said)


@pytest.mark.cluster
def test_a_mount_that_is_read_only(shared, tmp_path):
    store = small_store(shared / "s.zarr")
    cluster = separate_cluster(tmp_path / "cluster", 2, last_within=reads_only(shared))
    with cluster as (address, *_):
        build = ("build", features(tmp_path), shared / "new.zarr", *KERNELS)
        code, said = run(*build, "--cluster", address)
        assert code == 2
        assert "cannot write to the store (Read-only file system)" in sentence_of(said)
        assert not (shared / "new.zarr").exists()
        # reading is all that a fit and a verification need
        assert run("verify", shared / "s.zarr", "--cluster", address)[0] == 0
        fit = ("fit", shared / "s.zarr", *FIT, "--cluster", address)
        code, said = run(*fit, "--out", tmp_path / "out")
        assert code == 0, said

        with Client(address, set_as_default=False) as client:
            runner = of_client(client).runner
            with pytest.raises(BlindWorkersError, match="cannot write to the store"):
                repair_store(store.path, runner)
            assert not find_damage(open_unchecked(store.path), runner)


@pytest.mark.cluster
def test_relative_paths_are_those_of_the_driver(shared, tmp_path, monkeypatch):
    """Workers that were started elsewhere read the same store."""
    small_store(shared / "s.zarr")
    with separate_cluster(tmp_path / "cluster") as (address, *_):
        monkeypatch.chdir(shared)
        build = ("build", os.path.relpath(features(tmp_path)), "new.zarr", *KERNELS)
        code, said = run(*build, "--cluster", address)
        assert code == 0, said
        for words in (
            ("fit", "s.zarr", *FIT, "--out", tmp_path / "out"),
            ("verify", "new.zarr"),
        ):
            code, said = run(*words, "--cluster", address)
            assert code == 0, said


@pytest.mark.cluster
def test_a_worker_that_does_not_say(shared, tmp_path):
    """It is stopped, or its file system hangs: a bounded wait, and the results of a fit stay."""
    store = small_store(shared / "s.zarr")
    with (
        separate_cluster(tmp_path / "cluster") as (address, _, workers),
        Client(address, set_as_default=False) as client,
    ):
        resources = of_client(client, stall_timeout=2.0)
        workers[0].send_signal(signal.SIGSTOP)
        asked = (resources.runner, store.path, store.manifest.store_id)
        with pytest.raises(
            BlindWorkersError, match="did not report whether it can access the store"
        ):
            refuse_blind_workers(*asked, write=False)
        assert not may_keep_scratch(resources.runner, store.path)
        assert len(resources.worker_peaks()) == 1
    assert resources.worker_peaks() == {}, "nobody is there any more, and nothing is lost by it"
