"""Bytes that travel, counted where they are sent: by every process, on every connection."""

import numpy as np
import pytest
from distributed import Client
from helpers.faulty import separate_cluster
from helpers.marks import mostly_slow

from gmkcf_dask.cluster.resources import of_client
from gmkcf_dask.compute.runner import Runner
from gmkcf_dask.compute.tiled import TiledKernels
from gmkcf_dask.corpus.model import Corpus
from gmkcf_dask.events import IterationDone
from gmkcf_dask.kernels.specs import resolve_kernels
from gmkcf_dask.methods.gmkcf import Gmkcf
from gmkcf_dask.pipeline import store_plan
from gmkcf_dask.store.build import build_store
from gmkcf_dask.store.request import KernelRequest

pytestmark = pytest.mark.usefixtures("calm")


@pytest.fixture(scope="module")
def workers(tmp_path_factory):
    """Three workers and a scheduler, in processes of their own, all of which count."""

    def count():
        from distributed.comm import tcp

        write, sent = tcp.TCP.write, {}

        async def counted(self, *args, **kwargs):
            n_bytes = await write(self, *args, **kwargs)
            ends = self.local_address, self.peer_address
            sent[ends] = sent.get(ends, 0) + n_bytes
            return n_bytes

        tcp.TCP.write, tcp.TCP.sent = counted, sent

    from distributed.comm import tcp

    original = tcp.TCP.write
    count()
    try:
        with (
            separate_cluster(tmp_path_factory.mktemp("traffic") / "c", 3) as (address, *_),
            Client(address, set_as_default=False) as client,
        ):
            client.run(count)
            client.run_on_scheduler(count)
            yield client
    finally:
        tcp.TCP.write = original


class Meter:
    """A listener that reads the counts after every iteration."""

    def __init__(self, client):
        self._client = client
        self.total, self.driver = [], []

    def __call__(self, event):
        if isinstance(event, IterationDone):
            self.read()

    def read(self):
        def sent():
            from distributed.comm import tcp

            return dict(tcp.TCP.sent)

        here = sent()
        there = [self._client.run_on_scheduler(sent), *self._client.run(sent).values()]
        mine = {local for local, _ in here}
        into = sum(n for one in there for (_, peer), n in one.items() if peer in mine)
        self.driver.append(sum(here.values()) + into)
        self.total.append(sum(here.values()) + sum(sum(one.values()) for one in there))

    def per_iteration(self):
        return np.diff(self.total), np.diff(self.driver)


def store_of(path, n, block=None):
    rng = np.random.default_rng(0)
    X = rng.random((n, 20)) + 2 * np.eye(20)[rng.integers(0, 5, n)]
    corpus = Corpus(X, tuple(map(str, range(n))))
    return build_store(
        path, KernelRequest(corpus, resolve_kernels("linear,rbf_1"), block=block), Runner()
    )


def measured(store, client, residency, k, iterations):
    resources = of_client(client)
    plan = store_plan(store, k, resources)
    meter = Meter(client)
    stack = TiledKernels(store, resources.runner, residency)
    Gmkcf(k, tol=0.0, max_iter=iterations).fit(stack, [0], meter)
    total, driver = meter.per_iteration()
    assert len(total) == iterations - 1
    # Dask may still move a block of K_w now and then, where a machine is busy with other things
    assert np.median(total) <= plan.network_per_iteration
    assert driver.max() <= plan.driver_network_per_iteration
    return total, driver


@mostly_slow("residency", ["scratch", "memory", "recompute"])
def test_at_most_what_the_plan_says(tmp_path, workers, residency):
    total, driver = measured(store_of(tmp_path / "s.zarr", 600, 64), workers, residency, 4, 4)
    assert (driver > 0).all()
    assert (total > driver).all()


@pytest.mark.slow
def test_little_beside_the_fused_kernel(tmp_path, workers):
    """n = 8,000, float32, k = 5, three workers; K_w itself is in their memory and stays there."""
    n = 8_000
    store = store_of(tmp_path / "s.zarr", n)
    total, driver = measured(store, workers, "memory", 5, 4)
    whole, triangle = n * n * 4, n * (n + 1) // 2 * 4
    assert driver.max() <= 0.05 * triangle, "between driver and workers, of what is stored of K_w"
    assert np.median(total) <= 0.05 * whole, "on all connections, of K_w as a matrix"
