"""Clusters that change during a fit: who comes is used or left out, who leaves is survived."""

import os
import subprocess
import sys
import time
import warnings
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from helpers.faulty import environment, separate_cluster, small_store
from helpers.sights import blind_to
from threadpoolctl import threadpool_info

from gmkcf_dask.cluster.local import local_cluster
from gmkcf_dask.cluster.resources import of_client
from gmkcf_dask.compute.plan import make_plan
from gmkcf_dask.compute.runner import Runner, WorkerSize
from gmkcf_dask.compute.tiled import ResidencyMonitor, TiledKernels
from gmkcf_dask.errors import ClusterWarning, UnfitWorker
from gmkcf_dask.events import IterationDone
from gmkcf_dask.methods.gmkcf import Gmkcf
from gmkcf_dask.pipeline import store_plan, stored_kernels
from gmkcf_dask.system.units import GIB, MIB

pytestmark = pytest.mark.usefixtures("calm")
METHOD = Gmkcf(3, tol=0.0, max_iter=6)


@pytest.fixture(scope="module")
def problem(tmp_path_factory):
    """A store, and what a fit on it finds on threads."""
    store = small_store(tmp_path_factory.mktemp("problem") / "s.zarr", block=20)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (expected,) = METHOD.fit(TiledKernels(store, Runner(n_threads=2)), [0])
    return store, expected


def assert_same(found, expected):
    assert found.history == expected.history
    np.testing.assert_array_equal(found.labels, expected.labels)
    np.testing.assert_array_equal(found.U, expected.U)
    np.testing.assert_array_equal(found.V, expected.V)


def after(iteration, happens):
    """A listener by which something happens after an iteration."""

    def listen(event):
        if isinstance(event, IterationDone) and event.iteration == iteration:
            happens()

    return listen


def both(*listeners):
    return lambda event: [listen(event) for listen in listeners]


def executed(client):
    """Tasks done so far, by worker."""
    return client.run(lambda dask_worker: dask_worker.state.executed_count)


def scale(client, n):
    client.cluster.scale(n)
    until_workers(client, n)


def workers_of(client):
    return client.scheduler_info(n_workers=-1)["workers"]


def until_workers(client, n, seconds=60):
    end = time.monotonic() + seconds
    while len(workers_of(client)) != n:
        assert time.monotonic() < end, "the workers did not come, or did not leave"
        time.sleep(0.05)


@pytest.mark.cluster
def test_scaled_up_and_down_in_a_fit(problem):
    store, expected = problem
    with local_cluster(1, GIB) as client:
        resources = of_client(client)
        stack = stored_kernels(store, store_plan(store, 3, resources), resources)
        (first,) = workers_of(client)
        used = []

        def look():
            used.append({a: n for a, n in executed(client).items() if a != first})
            found = client.run(lambda: [p["num_threads"] for p in threadpool_info()])
            assert len(found) == 3
            assert all(set(threads) == {1} for threads in found.values()), "late comers too"

        listen = both(
            after(2, lambda: scale(client, 3)), after(4, look), after(4, lambda: scale(client, 1))
        )
        (found,) = METHOD.fit(stack, [0], listen)
    assert_same(found, expected)
    assert len(used[0]) == 2
    assert min(used[0].values()) > 0, "workers that come late get work"


@pytest.mark.cluster
def test_adapted_by_dask(problem):
    """Dask decides itself how many workers there are."""
    store, expected = problem
    with local_cluster(1, GIB) as client:
        resources = of_client(client)
        client.cluster.adapt(minimum=1, maximum=3, interval="100ms", wait_count=1)
        stack = stored_kernels(store, store_plan(store, 3, resources), resources)
        (found,) = METHOD.fit(stack, [0])
    assert_same(found, expected)


@pytest.mark.cluster
def test_the_fused_kernel_leaves_memory_with_the_workers(problem):
    """One worker of two goes: what the other cannot hold alone is kept on disk, said once."""
    store, expected = problem
    with local_cluster(2, GIB) as client:
        resources = of_client(client)
        # as if the fused kernel were so large that two workers hold it, and one does not
        plan = replace(store_plan(store, 3, resources), kw_bytes=350 * MIB)
        assert plan.residency == "memory"
        stack = stored_kernels(store, plan, resources)
        lived = []
        listen = both(
            lambda event: isinstance(event, IterationDone) and lived.append(stack.residency),
            after(3, lambda: scale(client, 1)),
            after(4, lambda: scale(client, 2)),
        )
        with pytest.warns(ClusterWarning) as said:
            (found,) = METHOD.fit(stack, [0], listen)
    assert_same(found, expected)
    assert lived == ["memory"] * 3 + ["scratch"] * 3, "and not back up"
    (note,) = [str(w.message) for w in said if w.category is ClusterWarning]
    assert note.startswith("1 workers are left, too few to hold the fused kernel of 350.0 MiB")
    assert not list(store.path.parent.glob(".*scratch*")), "scratch space was not given back"


@contextmanager
def late_worker(address, folder, *options, within=(), **variables):
    """One more worker, in a process of its own that the command `within` starts."""
    worker = ["-m", "distributed.cli.dask_worker", address, "--no-nanny", "--nthreads", "1"]
    own = ["--no-dashboard", "--host", "127.0.0.1", "--local-directory", str(folder)]
    process = subprocess.Popen(
        [*within, sys.executable, *worker, *own, *options],
        env={**environment(), **variables},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.cluster
def test_a_late_worker_with_other_versions_is_left_out(tmp_path, problem):
    from distributed import Client

    store, expected = problem
    installed = tmp_path / "other" / "gmkcf_dask-0.0.7.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: gmkcf-dask\nVersion: 0.0.7\n")
    path = os.pathsep.join([str(installed.parent), environment()["PYTHONPATH"]])
    with (
        separate_cluster(tmp_path / "cluster", 1) as (address, *_),
        Client(address, set_as_default=False) as client,
    ):
        resources = of_client(client)
        stack = stored_kernels(store, store_plan(store, 3, resources), resources)
        late = late_worker(address, tmp_path / "late", PYTHONPATH=path)

        def comes():
            late.__enter__()
            until_workers(client, 2)

        try:
            with pytest.warns(ClusterWarning) as said:
                (found,) = METHOD.fit(stack, [0], after(2, comes))
        finally:
            late.__exit__(None, None, None)
    assert_same(found, expected)
    (note,) = [str(w.message) for w in said if w.category is ClusterWarning]
    assert "(gmkcf-dask 0.0.7, not " in note
    assert len(resources.runner.excluded) == 1


@pytest.mark.cluster
def test_a_late_worker_that_is_too_small_is_left_out(tmp_path, problem):
    store, expected = problem
    with local_cluster(1, GIB) as client:
        resources = of_client(client)
        stack = stored_kernels(store, store_plan(store, 3, resources), resources)
        (first,) = workers_of(client)
        late = late_worker(client.scheduler.address, tmp_path / "late", "--memory-limit", "400MiB")
        done = {}

        def comes():
            late.__enter__()
            until_workers(client, 2)

        listen = both(after(2, comes), after(6, lambda: done.update(executed(client))))
        try:
            with pytest.warns(ClusterWarning, match=r"400\.0 MiB of memory for 1 thr"):
                (found,) = METHOD.fit(stack, [0], listen)
        finally:
            late.__exit__(None, None, None)
    assert_same(found, expected)
    assert done.pop(first) > 0
    assert list(done.values()) == [0], "it was given work"


@pytest.mark.cluster
def test_a_late_worker_that_does_not_see_the_store_is_left_out(tmp_path, problem):
    store, expected = problem
    within = blind_to(store.path.parent)
    with local_cluster(1, GIB) as client:
        resources = of_client(client)
        stack = stored_kernels(store, store_plan(store, 3, resources), resources)
        late = late_worker(client.scheduler.address, tmp_path / "late", within=within)

        def comes():
            late.__enter__()
            until_workers(client, 2)

        try:
            with pytest.warns(ClusterWarning, match=r"does not see the store \(there"):
                (found,) = METHOD.fit(stack, [0], after(2, comes))
        finally:
            late.__exit__(None, None, None)
    assert_same(found, expected)
    assert len(resources.runner.excluded) == 1


# --- the decision alone -----------------------------------------------------------------------


@dataclass(frozen=True)
class FakeRunner(Runner):
    """Workers as told."""

    there: dict = field(default_factory=dict)

    def workers(self):
        return {a: w for a, w in self.there.items() if a not in self.excluded}


def watched(memory, disk=1 << 50, n=25_000):
    plan = make_plan(n, 10, 3, 5, feature_bytes=0, n_workers=4, memory_per_worker=2 * GIB)
    runner = FakeRunner(there={str(i): WorkerSize(m, 1) for i, m in enumerate(memory)})
    return runner, ResidencyMonitor(runner, plan, lambda: disk), plan


def test_residency_follows_the_workers_down_only():
    runner, watch, plan = watched([2 * GIB] * 4)
    assert plan.residency == watch.residency("memory") == "memory"
    del runner.there["3"], runner.there["2"]
    with pytest.warns(ClusterWarning, match=r"2 workers are left, .* is kept on disk"):
        assert watch.residency("memory") == "scratch"
    runner.there.update({"5": WorkerSize(64 * GIB, 1)})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert watch.residency("scratch") == "scratch", "never back up"
    assert watched([0] * 4)[1].residency("memory") == "memory", "no limit"


def test_without_room_on_disk_it_is_fused_again():
    _, watch, plan = watched([2 * GIB], disk=2 * plan_kw() - 1)
    assert plan.kw_bytes == plan_kw()
    with pytest.warns(ClusterWarning, match="fused again for every product"):
        assert watch.residency("memory") == "recompute"


def plan_kw():
    return 25 * 26 // 2 * 1024**2 * 4


def test_no_workers_for_a_moment_change_nothing():
    _, watch, _ = watched([])
    assert watch.residency("memory") == "memory"


def test_only_small_workers_end_a_fit_in_a_sentence():
    _, watch, _ = watched([300 * MIB])
    with pytest.raises(UnfitWorker, match=r"300\.0 MiB of memory"):
        watch.residency("memory")
