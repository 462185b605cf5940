"""Worker kill -9 in the middle of work: the same labels, trace and tiles, to the last bit."""

import os
import threading
import time
import warnings

import numpy as np
import psutil
import pytest
from helpers.faulty import small_store
from helpers.killing import kill_one, two_settled
from helpers.marks import mostly_slow

from gmkcf_dask.cluster.config import ClusterConfig
from gmkcf_dask.cluster.launch import start
from gmkcf_dask.cluster.local import local_cluster
from gmkcf_dask.cluster.resources import of_client
from gmkcf_dask.compute.runner import Runner
from gmkcf_dask.compute.tiled import TiledKernels
from gmkcf_dask.corpus.model import Corpus
from gmkcf_dask.errors import ClusterError
from gmkcf_dask.events import IterationDone
from gmkcf_dask.kernels.specs import resolve_kernels
from gmkcf_dask.methods.gmkcf import Gmkcf
from gmkcf_dask.store.build import build_store
from gmkcf_dask.store.request import KernelRequest
from gmkcf_dask.system.units import GIB

pytestmark = pytest.mark.usefixtures("calm")


@pytest.fixture(scope="module")
def workers():
    with local_cluster(2, GIB) as client:
        yield client


@mostly_slow("residency", ["memory", "scratch"])
def test_fit(tmp_path, workers, residency):
    store = small_store(tmp_path / "s.zarr", block=12)
    method = Gmkcf(3, tol=0.0, max_iter=5)
    (expected,) = method.fit(TiledKernels(store, Runner(scheduler="synchronous")), [0])
    threads = []

    def listen(event):
        if isinstance(event, IterationDone) and event.iteration == 2:
            two_settled(workers)
            threads.append(kill_one(workers, 0.05))

    stack = TiledKernels(store, of_client(workers, 60.0).runner, residency)
    (found,) = method.fit(stack, [0], listen)
    for thread in threads:
        thread.join()
    assert len(threads) == 1
    assert found.history == expected.history
    np.testing.assert_array_equal(found.labels, expected.labels)
    np.testing.assert_array_equal(found.U, expected.U)
    np.testing.assert_array_equal(found.V, expected.V)


@pytest.mark.cluster
def test_build(tmp_path, workers, rng):
    X = rng.random((200, 20))
    corpus = Corpus(X, tuple(map(str, range(200))))
    wanted = KernelRequest(corpus, resolve_kernels("paper12"), block=8)
    build_store(tmp_path / "whole.zarr", wanted, Runner())
    two_settled(workers)
    runner = of_client(workers, 60.0).runner
    thread = kill_one(workers, 0.2)
    build_store(tmp_path / "s.zarr", wanted, runner)
    thread.join()
    assert chunks(tmp_path / "s.zarr") == chunks(tmp_path / "whole.zarr")


def chunks(store):
    found = {p.relative_to(store): p.read_bytes() for p in store.rglob("c/**/*") if p.is_file()}
    assert found
    return found


def test_a_kept_result_that_failed_is_made_again(tmp_path, workers, monkeypatch):
    """A collection with a lost task stays lost: it is dropped, and fused again."""
    from distributed import CancelledError

    store = small_store(tmp_path / "s.zarr")
    two_settled(workers)
    stack = TiledKernels(store, of_client(workers, 60.0).runner)
    kernel = stack.fuse(np.full(3, 1 / 3))
    Z = np.random.default_rng(0).random((store.n_samples, 2))
    expected = kernel.matmul(Z)
    for future in kernel._kept.dask.values():
        if hasattr(future, "cancel"):
            future.cancel(force=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        np.testing.assert_array_equal(kernel.matmul(Z), expected)
    lost = []

    def fails(self, collection):
        lost.append(1)
        raise CancelledError("gone")

    monkeypatch.setattr(Runner, "_result", fails)
    with pytest.raises(ConnectionError, match="lost"):
        kernel.matmul(Z)
    assert len(lost) == 4, "bounded: once, and three times again"
    kernel.release()


@mostly_slow("seconds", [0.0, 0.8])
@pytest.mark.slow
def test_while_the_cluster_starts(seconds):
    """As soon as there is a worker process, and a moment later: others take its place."""
    here, known = psutil.Process(), {child.pid for child in psutil.Process().children()}
    killed = []

    def kill_first():
        until = time.monotonic() + 60
        while not killed and time.monotonic() < until:
            time.sleep(0.01)
            new = [child for child in here.children() if child.pid not in known]
            spawned = [child for child in new if "spawn_main" in " ".join(child.cmdline())]
            if spawned:
                time.sleep(seconds)
                spawned[0].kill()
                killed.append(spawned[0].pid)

    thread = threading.Thread(target=kill_first)
    thread.start()
    with start(ClusterConfig("local", workers=2, memory=GIB), 10) as resources:
        thread.join()
        assert killed
        client = resources.runner.client
        until, pids = time.monotonic() + 60, set()
        while len(pids) < 2 or killed[0] in pids:  # the scheduler may not have missed it yet
            assert time.monotonic() < until
            client.wait_for_workers(2, timeout=60)
            found = client.run(os.getpid, on_error="return").values()
            pids = {pid for pid in found if isinstance(pid, int)}


def test_workers_that_cannot_be_started(monkeypatch):
    def fail(**_):
        raise RuntimeError("Nanny failed to start.")

    monkeypatch.setattr("distributed.LocalCluster", fail)
    monkeypatch.setattr("gmkcf_dask.cluster.resources.time.sleep", lambda _: None)
    with (
        pytest.raises(ClusterError, match="worker processes cannot be started: Nanny failed"),
        local_cluster(1, GIB),
    ):
        pass
