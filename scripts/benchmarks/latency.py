"""An object store that answers late: iterations on two workers at 0 and at 100 ms per request."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from helpers.corpora import request_of
from measure import Bar, Report, without_warnings

from gmkcf_dask import pipeline
from gmkcf_dask.cluster import local_cluster, of_client, threads
from gmkcf_dask.compute.tiled import TiledKernels
from gmkcf_dask.kernels.tiling import encoded_bytes
from gmkcf_dask.methods.factorize import SolverOptions
from gmkcf_dask.methods.gmkcf import gmkcf
from gmkcf_dask.store.build import look_up
from gmkcf_dask.store.object_storage import filesystem, location
from gmkcf_dask.store.prefetch import window
from gmkcf_dask.system.resources import peak_resident_bytes
from gmkcf_dask.system.units import MIB

K = 10
PROGRAMS = Path(__file__).parents[2] / "tests" / "helpers"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--n", type=int, default=4000)
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--delay", type=float, default=100.0, help="milliseconds per request")
    parser.add_argument("--iterations", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)


class Servers:
    """The delaying proxy before a local S3-compatible server."""

    def __init__(self, port: str) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def delay(self, milliseconds: float) -> None:
        self._ask(f"_delay?{milliseconds:g}")

    def seen(self) -> dict[str, int]:
        requests: dict[str, int] = json.loads(self._ask("_seen"))
        return requests

    def _ask(self, what: str) -> bytes:
        with urllib.request.urlopen(f"{self.url}/{what}", timeout=60) as answer:
            return bytes(answer.read())


@contextmanager
def started(program: str, *arguments: str) -> Iterator[str]:
    """A program of the tests that prints its port."""
    process = subprocess.Popen(
        [sys.executable, str(PROGRAMS / program), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


@contextmanager
def object_store() -> Iterator[Servers]:
    """A bucket on the loopback; environment variables tell this process and its workers."""
    with started("s3_server.py") as port, started("delaying_proxy.py", port) as front:
        servers = Servers(front)
        os.environ |= {
            "AWS_ACCESS_KEY_ID": "someone",
            "AWS_SECRET_ACCESS_KEY": "something",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": servers.url,
        }
        filesystem("s3://x").mkdir("bucket")
        yield servers


def run(args: argparse.Namespace) -> Report:
    for package in ("s3fs", "moto", "flask"):
        if find_spec(package) is None:
            raise SystemExit(f"{package} is not installed: pip install 'moto[s3]' flask -e '.[s3]'")
    rng = np.random.default_rng(0)
    start = rng.random((args.n, K)), rng.random((args.n, K))
    options = SolverOptions(K, max_iter=args.iterations, tol=0.0)
    delays = (0.0, args.delay)
    with object_store() as servers, local_cluster(2, 2 << 30) as client:
        url = location("s3://bucket/s.zarr")
        request = request_of(args.n, args.precision)
        place = look_up(url, request)
        build = pipeline.request_plan(request, K, threads(), place, residency="recompute")
        store = pipeline.build(place, request, build, threads())
        resources = of_client(client)
        plan = pipeline.store_plan(store, K, resources)

        def iteration(prefetch: int) -> float:
            stack = TiledKernels(store, resources.runner, plan.residency, prefetch_bytes=prefetch)
            begun = time.perf_counter()
            without_warnings(lambda: gmkcf(stack, start, options))
            return (time.perf_counter() - begun) / args.iterations

        iteration(plan.prefetch_bytes)  # modules are loaded, connections made
        ahead, requests = dict.fromkeys(delays, float("inf")), float("inf")
        at_once = 0
        for _ in range(args.repeats):
            for delay in delays:
                servers.delay(delay)
                servers.seen()
                ahead[delay] = min(ahead[delay], iteration(plan.prefetch_bytes))
                at_once = max(at_once, servers.seen()["at_once"])
            servers.delay(0.0)
            requests = min(requests, all_tiles(store, plan.prefetch_bytes))
        servers.delay(args.delay)
        one_by_one = iteration(0)
        servers.delay(0.0)
        peak = max(resources.runner.run_on_workers(peak_resident_bytes).values())
    ratio = ahead[args.delay] / ahead[0.0]
    rows = [
        ["fetched ahead, 0 ms", ahead[0.0], 1.0],
        [f"fetched ahead, {args.delay:g} ms", ahead[args.delay], ratio],
        [f"one tile at a time, {args.delay:g} ms", one_by_one, one_by_one / ahead[0.0]],
        [
            "two sweeps of requests alone, one process, 0 ms",
            2 * requests,
            2 * requests / ahead[0.0],
        ],
    ]
    return Report(
        "latency",
        f"n = {args.n:,}, m = 12, k = {K}, {args.precision}, two workers: one outer iteration",
        ["", "s", "× 0 ms"],
        rows,
        [
            Bar(f"time at {args.delay:g} ms / time at 0 ms", ratio, 3.0),
            Bar("worker peak / planned", peak / plan.worker_peak_bytes, 1.0),
        ],
        [
            f"{plan.n_tiles} tiles of {plan.block} per kernel, {plan.tiles_per_task} per task; "
            f"planned for tiles fetched ahead {plan.prefetch_bytes // MIB} MiB per worker; "
            f"requests in flight, both workers together: {at_once}; "
            f"worker peak {peak // MIB} MiB, planned {plan.worker_peak_bytes // MIB} MiB; "
            f"fused kernel: {plan.residency}."
        ],
        {"at_once": at_once, "peak": peak, "planned": plan.worker_peak_bytes},
    )


def all_tiles(store: pipeline.KernelStore, prefetch: int) -> float:
    """Seconds to fetch every tile once, and do nothing with it."""
    reader = store.reader
    n_bytes = reader.buffer().nbytes
    files = [
        reader.file(reader.names[kernel], t)
        for t in range(store.tiling.n_tiles)
        for kernel in sorted(set(reader.stored))
    ]
    most = encoded_bytes(n_bytes)
    begun = time.perf_counter()
    with window().reading(files, most, prefetch - most) as read:
        for file in files:
            read(file, n_bytes)
    return time.perf_counter() - begun
