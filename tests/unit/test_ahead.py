"""Tiles of an object store are fetched ahead of their use, within the planned memory.

No object store is needed: requests are futures that the test answers. A server that answers late is
in `tests/clusters/test_latency.py`.
"""

import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event

import numpy as np
import pytest
from helpers.peaks import peak_of
from helpers.problems import kernels, request, start

from gmkcf_dask.compute import tiled as tasks
from gmkcf_dask.compute.costs import PREFETCH_BYTES, prefetch_bytes, wanted_prefetch_bytes
from gmkcf_dask.compute.dense import DenseKernels
from gmkcf_dask.compute.plan import fits_worker, make_plan
from gmkcf_dask.compute.runner import Runner
from gmkcf_dask.compute.tile_ops import FusedTiles, as_factor, error_factors
from gmkcf_dask.compute.tiled import TiledKernels
from gmkcf_dask.errors import DamagedStoreError, PlanRefused, StorageError, StoreGoneError
from gmkcf_dask.kernels.tiling import Tiling, encoded_bytes
from gmkcf_dask.store import tile_reader as reader_module
from gmkcf_dask.store.build import build_store
from gmkcf_dask.store.kernel_store import KernelStore
from gmkcf_dask.store.object_storage import requested_object
from gmkcf_dask.store.prefetch import Window
from gmkcf_dask.store.verify import find_bad_tiles
from gmkcf_dask.system.units import GIB, MIB

MOST = 100  # bytes of an object
PATHS = [f"object {number}" for number in range(200)]


class Requests:
    """Requests that stay in flight until they are answered, or are needed."""

    def __init__(self, size=10):
        self.size, self.asked, self.open = size, [], {}
        self.peak_in_flight = self.peak_bytes = 0
        self.window = Window(64, self.request, self.receive)

    def request(self, path, most):
        self.asked.append(path)
        self.open[path] = Future()
        self.peak_in_flight = max(self.peak_in_flight, self.window.in_flight + 1)
        self.peak_bytes = max(self.peak_bytes, self.window.held_bytes + most)
        return self.open[path]

    def answer(self, path):
        future = self.open.pop(path)
        if not future.cancelled():
            future.set_result(self.content(path))

    def content(self, path):
        return path.encode()[: self.size].ljust(self.size)

    def receive(self, path, most, future):
        if future is None:
            self.asked.append(path)
            return self.content(path)
        if path in self.open:
            self.answer(path)
        return future.result()

    def read_all(self, limit, paths=PATHS):
        with self.window.reading(paths, MOST, limit) as read:
            return [read(path, 0) for path in paths]


@pytest.mark.parametrize(("limit", "in_flight"), [(10**9, 64), (40 * MOST, 40), (MOST, 1), (0, 0)])
def test_requests_and_bytes_are_bounded(limit, in_flight):
    requests = Requests()
    assert requests.read_all(limit) == [requests.content(path) for path in PATHS]
    assert Counter(requests.asked) == Counter(PATHS), "each is requested once"
    assert requests.peak_in_flight == in_flight
    assert requests.peak_bytes <= limit
    assert (requests.window.in_flight, requests.window.held_bytes) == (0, 0)


def test_small_answers_make_room_for_more():
    requests = Requests()
    with requests.window.reading(PATHS, MOST, 10 * MOST):
        assert len(requests.asked) == 10
        for path in PATHS[:5]:
            requests.answer(path)
        assert requests.window.held_bytes == 5 * requests.size + 9 * MOST
        assert len(requests.asked) == 14, "the window is filled while nobody reads"


def test_tasks_share_a_window_fairly():
    requests = Requests()
    first, second = PATHS[:100], PATHS[100:]
    with requests.window.reading(first, MOST, 10 * MOST) as read_first:
        assert requests.asked == first[:10]
        with requests.window.reading(second, MOST, 10 * MOST) as read_second:
            read_second(second[0], 0)  # no room: read at once, nobody waits
            for path in first[:5]:
                read_first(path, 0)
            ahead = requests.asked[11:]
            assert ahead == second[1:6], "room goes to the task that has none"
            for path in second[1:]:
                read_second(path, 0)
        for path in first[5:]:
            read_first(path, 0)
    assert Counter(requests.asked) == Counter(PATHS)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_what_is_pending_is_dropped_when_a_task_fails(error):
    requests = Requests()

    def fail():
        with requests.window.reading(PATHS, MOST, 40 * MOST) as read:
            read(PATHS[0], 0)
            raise error

    with pytest.raises(error):
        fail()
    pending = list(requests.open.values())
    assert len(pending) == 40
    assert all(future.cancelled() for future in pending)
    assert (requests.window.in_flight, requests.window.held_bytes) == (0, 0)
    assert len(requests.asked) == 41
    assert requests.read_all(10**9) == [requests.content(path) for path in PATHS]


def test_an_error_is_raised_where_its_object_is_read():
    requests = Requests()
    with requests.window.reading(PATHS, MOST, 40 * MOST) as read:
        requests.open.pop(PATHS[3]).set_exception(FileNotFoundError(PATHS[3]))
        assert [read(path, 0) for path in PATHS[:3]] == list(map(requests.content, PATHS[:3]))
        with pytest.raises(FileNotFoundError, match="object 3"):
            read(PATHS[3], 0)
        assert read(PATHS[4], 0) == requests.content(PATHS[4])
    assert Counter(requests.asked).most_common(1)[0][1] == 1, "failures are not requested again"


def test_a_request_whose_answer_was_read_is_not_in_flight():
    """A future wakes who waits for it before it calls back."""
    requests, late = Requests(), []

    class CallsBackLate(Future):
        def add_done_callback(self, function):
            late.append(lambda: function(self))

    def request(path, most):
        requests.asked.append(path)
        requests.open[path] = CallsBackLate()
        return requests.open[path]

    requests.window.request = request
    assert requests.read_all(10**9) == [requests.content(path) for path in PATHS]
    assert len(late) == len(PATHS), "all were requested ahead"
    for call_back in (lambda: None, *late):
        call_back()
        assert (requests.window.in_flight, requests.window.held_bytes) == (0, 0)


def test_a_store_that_cannot_be_asked_ahead_is_read_as_before():
    requests = Requests()
    requests.window.request = lambda path, most: None
    assert requests.read_all(10**9) == [requests.content(path) for path in PATHS]
    assert requests.asked == PATHS


# tasks

N, M, BLOCK = 600, 3, 40


class Far:
    """A store on a path that is read as one in an object store is, by threads."""

    def __init__(self, path, monkeypatch):
        self.asked, self.peak, self.bytes, self.error = Counter(), 0, 0, {}
        self.pool = ThreadPoolExecutor(64)
        self.held_until, self.enough = 0, Event()
        self.window = Window(64, self.request, self.receive)
        monkeypatch.setattr(reader_module, "is_remote", lambda path: True)
        monkeypatch.setattr(reader_module, "window", lambda: self.window)
        self.store = KernelStore.open(path)

    def request(self, path, most):
        self.asked[Path(path).parts[-4:]] += 1
        self.peak = max(self.peak, self.window.in_flight + 1)
        self.bytes = max(self.bytes, self.window.held_bytes + most)
        if self.peak >= self.held_until:
            self.enough.set()
        return self.pool.submit(self.answer, path)

    def answer(self, path):
        self.enough.wait(20)  # no answer comes before enough requests are open
        return self.fetch(path)

    def fetch(self, path):
        name = "/".join(Path(path).parts[-4:])
        if name in self.error:
            raise self.error[name]
        return Path(path).read_bytes()

    def receive(self, path, most, future):
        return self.fetch(path) if future is None else requested_object(path, most, future)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("far") / "s.zarr"
    Ks = kernels(np.random.default_rng(0), N, M)
    build_store(folder, request(Ks, "float32", BLOCK), Runner())
    return folder


@pytest.fixture
def far(path, monkeypatch):
    with monkeypatch.context() as patch:
        found = Far(path, patch)
        yield found
        found.pool.shutdown()


def answers(stack):
    """Everything that sweeps over the kernels give."""
    U, V = start(np.random.default_rng(1), N, 2)
    fused = stack.fuse(np.array([0.5, 0.0, 0.5]))
    yield stack.errors(U, V)
    yield fused.matmul(U)
    yield from stack.matmul_each(U)
    yield stack.overview(np.arange(N) % 2, 2).sums


@pytest.mark.parametrize("residency", ["memory", "recompute"])
def test_sweeps_give_the_same_bits_with_one_request_per_tile(path, far, residency):
    n_tiles = far.store.tiling.n_tiles
    assert far.store.tiling.tiles_per_task(4) * M < 32, "several tasks share the window"
    stack = TiledKernels(far.store, Runner(n_threads=4), residency, prefetch_bytes=GIB)
    found = list(answers(stack))
    assert sum(far.asked.values()) == (3 * M + 2) * n_tiles, "kernels of no weight are not read"
    assert max(far.asked.values()) == 4
    plain = TiledKernels(KernelStore.open(path), Runner(n_threads=4), residency, prefetch_bytes=0)
    for one, other in zip(found, answers(plain), strict=True):
        np.testing.assert_array_equal(one, other)
    assert (far.window.in_flight, far.window.held_bytes) == (0, 0)


def test_kernels_are_read_into_memory_with_many_requests_at_once(far):
    far.held_until = 32
    dense = DenseKernels.from_store(far.store)
    assert set(far.asked.values()) == {1}
    assert len(far.asked) == M * far.store.tiling.n_tiles
    assert 32 <= far.peak <= 64
    np.testing.assert_array_equal(dense.diagonal(1), far.store.diagonal(1))


def test_the_memory_of_a_task_and_of_what_it_fetches_ahead_is_planned(far, path):
    plan = make_plan(N, 1, M, 2, feature_bytes=0, block=BLOCK, remote=True)
    reader = replace(far.store.reader, prefetch_bytes=plan.prefetch_bytes)
    U, V = start(np.random.default_rng(1), N, 2)
    F, tiles = as_factor(error_factors(U, V), reader.dtype), np.arange(plan.tiles_per_task)
    assert peak_of(lambda: tasks.errors_task(tiles, F, reader)) <= (
        plan.fit_task_bytes + plan.prefetch_bytes
    )
    source = FusedTiles(reader, (1.0,) * M)
    assert peak_of(lambda: tasks.fuse_task(tiles, source, reader.tiling)) <= (
        plan.fit_task_bytes + plan.prefetch_bytes
    )
    assert far.peak == plan.tiles_per_task * M
    assert far.bytes <= plan.prefetch_bytes


def expect_in_every_reading(far, error, match):
    U, V = start(np.random.default_rng(1), N, 2)
    tiled = TiledKernels(far.store, Runner(n_threads=2), "recompute")
    for work in (
        lambda: tiled.errors(U, V),
        lambda: tiled.fuse(np.ones(M)).matmul(U),
        lambda: DenseKernels.from_store(far.store),
    ):
        with pytest.raises(error, match=match):
            work()
        assert drained(far.window)


def drained(window):
    """Whether nothing is in flight once the other tasks of a graph that failed have ended."""
    until = time.monotonic() + 30
    while window.in_flight or window.held_bytes:
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def test_a_missing_tile_is_named(far):
    name = far.store.names[1]
    far.error[f"{name}/c/0/5"] = FileNotFoundError("gone")
    expect_in_every_reading(far, DamagedStoreError, rf"tile \(0, 5\) of kernel {name} .*is missing")
    (bad,) = find_bad_tiles(far.store, range(far.store.tiling.n_tiles), Runner())
    assert (bad.array, far.store.tiling.pair(bad.t)) == (name, (0, 5))


def test_trouble_with_the_object_store_is_not_damage(far):
    far.error[f"{far.store.names[1]}/c/0/5"] = StorageError("no answer")
    expect_in_every_reading(far, StorageError, "no answer")
    with pytest.raises(StorageError, match="no answer"):
        find_bad_tiles(far.store, range(far.store.tiling.n_tiles), Runner())


def test_a_vanished_store_is_told(far, monkeypatch):
    far.error[f"{far.store.names[1]}/c/0/5"] = FileNotFoundError("gone")
    monkeypatch.setattr(reader_module, "exists", lambda path: False)
    expect_in_every_reading(far, StoreGoneError, "has vanished")


def test_local_stores_are_not_fetched_ahead(path, monkeypatch):
    monkeypatch.setattr(reader_module, "window", lambda: pytest.fail("it is on a disk"))
    reader = KernelStore.open(path).reader
    with reader.ahead([0, 1], [0, 1]) as same:
        assert same is reader


# the plan


def test_memory_for_what_is_fetched_ahead_is_planned_for_object_stores_only():
    how = {"feature_bytes": 0, "n_workers": 2, "memory_per_worker": 4 * GIB}
    local = make_plan(12_000, 500, 12, 10, **how)
    remote = make_plan(12_000, 500, 12, 10, remote=True, **how)
    tile = encoded_bytes(4 * 1024**2)
    assert (remote.tiles_per_task, local.prefetch_bytes) == (4, 0)
    assert remote.prefetch_bytes == (4 * 12 + 1) * tile, "all that a task reads, and one joined"
    assert remote.worker_peak_bytes == local.worker_peak_bytes + remote.prefetch_bytes
    assert "fetched ahead 197.6 MiB" in str(remote)
    assert "fetched ahead" not in str(local)
    assert fits_worker(local, 1 * GIB, 1)
    assert not fits_worker(remote, 700 * MIB, 1)


@pytest.mark.parametrize("precision", ["float32", "float64", "compact"])
@pytest.mark.parametrize("block", [64, 512, 1024])
def test_32_requests_are_in_flight_with_tiles_of_usual_size(precision, block):
    tiling, itemsize = Tiling(60_000, block), {"float32": 4, "float64": 8, "compact": 2}[precision]
    tile = encoded_bytes(itemsize * block**2)
    wanted = wanted_prefetch_bytes(tiling, precision)
    assert wanted == 33 * tile
    assert prefetch_bytes(tiling, precision, 48, 16 * GIB) >= wanted


@pytest.mark.parametrize("memory", [560 * MIB, 700 * MIB, GIB, 2 * GIB, 16 * GIB])
@pytest.mark.parametrize("n", [300, 4_000, 40_000, 300_000])
def test_nothing_is_refused_for_it_and_everything_fits(n, memory):
    how = {"feature_bytes": 0, "n_workers": 2, "memory_per_worker": memory, "scratch": False}
    local = planned(n, **how)
    if local is None:
        assert planned(n, remote=True, **how) is None
        return
    remote = make_plan(n, 100, 12, 10, remote=True, **how)
    assert remote.block == local.block
    assert remote.worker_peak_bytes <= memory * 6 // 10
    tile = encoded_bytes(4 * remote.block**2)
    assert remote.prefetch_bytes <= max(33 * tile, PREFETCH_BYTES)
    if remote.residency == local.residency == "recompute":
        assert remote.prefetch_bytes <= remote.worker_peak_bytes - local.fit_task_bytes


def planned(n, **how):
    try:
        return make_plan(n, 100, 12, 10, **how)
    except PlanRefused:
        return None


def test_a_fused_kernel_leaves_room_for_32_requests():
    how = {"feature_bytes": 0, "n_workers": 2, "scratch": False, "block": 1024}
    least = next(
        size * MIB
        for size in range(680, 9000, 20)
        if make_plan(12_000, 1, 12, 10, memory_per_worker=size * MIB, **how).residency == "memory"
    )
    tight = make_plan(12_000, 1, 12, 10, memory_per_worker=least, remote=True, **how)
    assert tight.residency == "recompute"
    assert tight.prefetch_bytes >= 33 * encoded_bytes(4 * 1024**2)
