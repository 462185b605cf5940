"""Row: disk full where Dask spills. Tiles stay in memory, or the fit ends in a checkpoint."""

import time

import dask
import numpy as np
import pytest
from helpers.faulty import disk_of, fill, small_store

from gmkcf_dask.cluster.local import local_cluster
from gmkcf_dask.cluster.resources import of_client
from gmkcf_dask.compute.runner import Runner
from gmkcf_dask.compute.tiled import TiledKernels
from gmkcf_dask.errors import ClusterStalled
from gmkcf_dask.events import IterationDone
from gmkcf_dask.methods.gmkcf import Gmkcf
from gmkcf_dask.results.checkpoints import RunCheckpoints, read_checkpoint
from gmkcf_dask.system.units import GIB, MIB

pytestmark = pytest.mark.usefixtures("calm")
MEMORY, TARGET = GIB // 2, 512 << 10
SPILLING = {
    "distributed.worker.memory.target": TARGET / MEMORY,  # a quarter of the fused kernel
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": 0.7,
    "distributed.worker.memory.terminate": False,
}


@pytest.fixture
def disk(tmp_path):
    with disk_of(tmp_path / "disk", "16m") as folder:
        yield folder


@pytest.fixture
def worker(disk):
    settings = {**SPILLING, "temporary-directory": str(disk)}
    with dask.config.set(settings), local_cluster(1, MEMORY) as client:
        yield client


def held(client):
    """Bytes of results that the worker has on disk and in memory."""

    def ask(dask_worker):
        return dask_worker.data.spilled_total.disk, dask_worker.data.fast.total_weight

    return next(iter(client.run(ask).values()))


def same(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert one.history == other.history
        np.testing.assert_array_equal(one.labels, other.labels)
        assert one.U.tobytes() == other.U.tobytes()
        assert one.V.tobytes() == other.V.tobytes()


def kept_tiles(stack, client):
    """Multiply with a fused kernel twice; what the worker has on disk and in memory meanwhile."""
    kernel = stack.fuse(np.full(3, 1 / 3))
    Z = np.random.default_rng(0).random((stack.n_samples, 2))
    first = kernel.matmul(Z)
    found = held(client)
    np.testing.assert_array_equal(kernel.matmul(Z), first)
    kernel.release()
    # The worker deletes its files after the call returns. Room that they leave on a disk that
    # counts as full lets tiles be spilled there, and Dask cannot read those back.
    deadline = time.monotonic() + 20
    while held(client)[0]:
        assert time.monotonic() < deadline, "the worker keeps what was released"
        time.sleep(0.05)
    return found


def prepared(folder, client, seconds):
    """Kernels on the worker, a method, and what it finds when nobody disturbs it."""
    store, method = small_store(folder / "s.zarr", n=1000, block=100), Gmkcf(3, tol=0.0, max_iter=4)
    here = TiledKernels(store, Runner())
    stack = TiledKernels(store, of_client(client, seconds).runner)
    return stack, here, method, method.fit(here, [0])


@pytest.mark.cluster
def test_what_cannot_be_spilled_stays_in_memory(tmp_path, disk, worker):
    stack, _, method, expected = prepared(tmp_path, worker, 30.0)
    on_disk, _ = kept_tiles(stack, worker)
    assert on_disk > TARGET, "nothing was spilled while there was room"
    fill(disk, 0)
    on_disk, in_memory = kept_tiles(stack, worker)
    assert on_disk < TARGET
    assert in_memory > 2 * TARGET
    same(method.fit(stack, [0]), expected)


@pytest.mark.cluster
def test_no_memory_either(tmp_path, disk, worker):
    """The worker pauses: a bounded wait, and a checkpoint from which the fit goes on."""
    stack, here, method, expected = prepared(tmp_path, worker, 4.0)
    ballast = []

    def listen(event):
        if isinstance(event, IterationDone) and event.iteration == 2:
            fill(disk, 0)
            while not paused(worker):  # somebody else's data, say
                ballast.append(worker.submit(np.ones, 20 * MIB // 8, pure=False))
                time.sleep(0.1)

    checkpoints = RunCheckpoints(tmp_path / "c", {}, 1)
    begin = time.monotonic()
    with pytest.raises(ClusterStalled, match="paused"), checkpoints.until_done():
        method.fit(stack, [0], listen, checkpoints)
    assert time.monotonic() - begin < 60
    assert ClusterStalled.exit_code == 5
    resumed = RunCheckpoints(tmp_path / "c", {}, None, read_checkpoint(tmp_path / "c"))
    assert resumed.resumed is not None
    same(method.fit(here, [0], checkpoints=resumed), expected)


def paused(client):
    (worker,) = client.scheduler_info(n_workers=-1)["workers"].values()
    return worker["status"] == "paused"
