"""An object store that answers late: a local server behind a proxy that delays every request.

What is counted are requests, and how many of them are in flight at once; `scripts/bench latency`
measures the time.
"""

import json
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager

import numpy as np
import pytest
from helpers.faulty import THREADS, environment, run
from helpers.needs import another_object_store, need_package
from helpers.paths import ROOT

from gmkcf_dask.compute.runner import Runner
from gmkcf_dask.compute.tiled import TiledKernels
from gmkcf_dask.errors import DamagedStoreError
from gmkcf_dask.store import object_storage
from gmkcf_dask.store.kernel_store import KernelStore
from gmkcf_dask.store.prefetch import window

pytestmark = pytest.mark.once
M, N_TILES = 36, 3
KERNELS = ",".join(f"rbf_{number / 10}" for number in range(1, M + 1))
BUILD = ("--kernels", KERNELS, "--layout", "each", "--block", "40", *THREADS)
URL = "s3://bucket/late.zarr"


@contextmanager
def started(program, *arguments):
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "tests" / "helpers" / program), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


class Proxy:
    def __init__(self, port):
        self.url = f"http://127.0.0.1:{port}"

    def delay(self, milliseconds):
        self.ask(f"_delay?{milliseconds}")

    def seen(self):
        return json.loads(self.ask("_seen"))

    def ask(self, what):
        with urllib.request.urlopen(f"{self.url}/{what}", timeout=30) as answer:
            return answer.read()


@pytest.fixture(scope="module")
def proxy(tmp_path_factory):
    need_package("s3fs", "pip install 'gmkcf-dask[s3]'")
    need_package("moto", "pip install 'moto[s3]' flask")
    need_package("flask", "pip install 'moto[s3]' flask")
    folder = tmp_path_factory.mktemp("late")
    with (
        pytest.MonkeyPatch.context() as patch,
        started("s3_server.py") as port,
        started("delaying_proxy.py", port) as front,
    ):
        found = Proxy(front)
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
        np.save(folder / "x.npy", np.random.default_rng(0).normal(size=(80, 4)))
        for store in (URL, folder / "s.zarr"):
            code, said = run("build", folder / "x.npy", store, *BUILD)
            assert code == 0, said
        found.local = folder / "s.zarr"
        yield found
    another_object_store()


@pytest.fixture
def late(proxy):
    """The proxy, which delays when it is told to."""
    yield proxy
    proxy.delay(0)


def test_a_task_has_32_requests_in_flight_and_makes_each_once(late):
    runner = Runner(scheduler="synchronous")
    stack = TiledKernels(KernelStore.open(URL), runner)
    here = TiledKernels(KernelStore.open(late.local), runner)
    U = np.random.default_rng(1).random((80, 2))
    np.testing.assert_array_equal(stack.errors(U, U), here.errors(U, U))
    late.delay(100)
    late.seen()
    stack.errors(U, U)
    seen = late.seen()
    assert seen["requests"] == M * N_TILES
    assert 32 <= seen["at_once"] <= object_storage.AHEAD_REQUESTS + 1
    weights = np.full(M, 1 / M)
    np.testing.assert_array_equal(stack.fuse(weights).matmul(U), here.fuse(weights).matmul(U))
    seen = late.seen()
    assert seen["requests"] == M * N_TILES
    assert seen["at_once"] >= 32
    assert (window().in_flight, window().held_bytes) == (0, 0)


@pytest.mark.parametrize("prefetch", [0, 20])
def test_the_planned_memory_bounds_requests_in_flight(late, prefetch):
    store = KernelStore.open(URL)
    tile = store.reader.prefetch_bytes // 33
    stack = TiledKernels(
        store, Runner(scheduler="synchronous"), prefetch_bytes=tile * (prefetch + 1)
    )
    U = np.random.default_rng(1).random((80, 2))
    stack.errors(U, U)
    late.delay(100 if prefetch else 10)
    late.seen()
    stack.errors(U, U)
    # answers are smaller than what was kept free for them, which lets a few more go
    assert max(1, prefetch) <= late.seen()["at_once"] <= max(1, 2 * prefetch)


def test_verify_has_many_requests_in_flight(late):
    late.delay(20)
    late.seen()
    code, said = run("verify", URL, *THREADS)
    assert (code, "no damage found" in said) == (0, True), said
    assert late.seen()["at_once"] >= 32


def test_a_damaged_tile_is_named_and_the_rest_is_dropped(late):
    tile = f"{URL}/kernels/rbf_0.2/c/0/1"
    content = object_storage.get_object(tile, 1 << 20)
    object_storage.delete_objects([object_storage.location(tile)])
    U = np.random.default_rng(1).random((80, 2))
    stack = TiledKernels(KernelStore.open(URL), Runner(scheduler="synchronous"))
    try:
        with pytest.raises(DamagedStoreError, match=r"tile \(0, 1\) of kernel rbf_0.2 "):
            stack.errors(U, U)
    finally:
        object_storage.put_object(tile, content)
    assert (window().in_flight, window().held_bytes) == (0, 0)
    stack.errors(U, U)


def test_requests_in_flight_do_not_keep_a_process(late):
    program = f"""
from gmkcf_dask.store.prefetch import window
from gmkcf_dask.store.kernel_store import KernelStore
reader = KernelStore.open({URL!r}).reader
print("opened", flush=True)
input()
with reader.ahead(range({M}), [0, 1]) as ahead:
    assert window().in_flight >= 32
    raise SystemExit(7)
"""
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", program],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout.readline() == "opened\n"
        late.delay(60_000)
        begin = time.monotonic()
        _, said = process.communicate("\n", timeout=45)
    finally:
        process.kill()
    assert (process.returncode, said) == (7, "")
    assert time.monotonic() - begin < 45
