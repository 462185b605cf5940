"""Kernels evaluated from one array, against an array for each, side by side in one run."""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
from helpers.corpora import request_of, scratch_folder, store_of
from iteration import full_kernels, literal
from measure import Bar, Report, best_seconds, without_warnings

from gmkcf_dask import pipeline
from gmkcf_dask.cluster import ClusterConfig, start as start_cluster
from gmkcf_dask.compute.operators import KernelStack
from gmkcf_dask.compute.runner import Runner
from gmkcf_dask.compute.tiled import TiledKernels
from gmkcf_dask.corpus import Corpus, read_corpus
from gmkcf_dask.kernels.specs import PAPER12
from gmkcf_dask.methods.base import RunContext
from gmkcf_dask.methods.factorize import SolverOptions
from gmkcf_dask.methods.gmkcf import gmkcf
from gmkcf_dask.store.build import build_store, build_tiles
from gmkcf_dask.store.chunks import Codec, decode_chunk, encode_chunk
from gmkcf_dask.store.files import bytes_below
from gmkcf_dask.store.kernel_store import KernelStore
from gmkcf_dask.store.layout import gram_codec
from gmkcf_dask.store.request import KernelRequest
from gmkcf_dask.system.units import GIB, MIB, human_bytes

K = 10
LAYOUTS = ("each", "gram")
PARTS = ("store", "memory", "many", "cluster", "disk", "scaling", "codecs")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("part", choices=PARTS, help="what is compared")
    parser.add_argument("--n", type=int, nargs="+", help="samples; several for scaling")
    parser.add_argument("--precision", default="compact")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--memory", type=int, default=2 * GIB, help="disk: bytes of a worker")
    parser.add_argument("--folder", type=Path)
    data = Path(os.environ.get("GMKCF_DATA", "../shared/data"))
    parser.add_argument("--data", type=Path, default=data, help="codecs: folder of the corpora")


def run(args: argparse.Namespace) -> Report:
    parts: dict[str, Callable[[argparse.Namespace], Report]] = {
        "store": of_store,
        "memory": in_memory,
        "many": many_kernels,
        "cluster": on_cluster,
        "disk": from_disk,
        "scaling": scaling,
        "codecs": codecs,
    }
    return parts[args.part](args)


def iteration(stack: KernelStack, iterations: int = 3) -> float:
    """Seconds of one iteration of the paper's algorithm, the best of several."""
    rng = np.random.default_rng(0)
    start = rng.random((stack.n_samples, K)), rng.random((stack.n_samples, K))
    moments = [time.perf_counter()]
    listen = RunContext(lambda _: moments.append(time.perf_counter()))
    options = SolverOptions(K, max_iter=iterations, tol=0.0)
    without_warnings(lambda: gmkcf(stack, start, options, listen))
    return float(np.diff(moments).min())


def of_store(args: argparse.Namespace) -> Report:
    """Bytes of kernels and time to build them."""
    (n,) = args.n or [16_384]
    seconds, sizes = dict.fromkeys(LAYOUTS, math.inf), {}
    with scratch_folder(args.folder) as folder:
        requests = {layout: request_of(n, args.precision, layout=layout) for layout in LAYOUTS}
        for number in range(args.repeats):
            for layout, request in requests.items():
                path = folder / f"{layout}{number}.zarr"
                begun = time.perf_counter()
                store = build_store(path, request, Runner())
                seconds[layout] = min(seconds[layout], time.perf_counter() - begun)
                sizes[layout] = kernel_bytes(store)
    rows = [[layout, sizes[layout] / MIB, seconds[layout]] for layout in LAYOUTS]
    return Report(
        "gram-store",
        f"n = {n:,}, m = 12, {args.precision}, made-up text",
        ["layout", "MiB of kernels", "s to build"],
        rows,
        [
            Bar("bytes, gram / each", sizes["gram"] / sizes["each"], 1 / 7),
            Bar("build, gram / each", seconds["gram"] / seconds["each"], 1 / 3),
        ],
    )


def kernel_bytes(store: KernelStore) -> int:
    """Of a store on disk without the features and names."""
    folders = ("kernels", "gram", "gram_rows", "diagonals", "norms")
    return sum(bytes_below(store.path / name) for name in folders if (store.path / name).exists())


def in_memory(args: argparse.Namespace) -> Report:
    """One iteration with kernels in the memory of this process."""
    (n,) = args.n or [8192]
    stacks = {
        layout: pipeline.dense_kernels(request_of(n, args.precision, layout=layout))
        for layout in LAYOUTS
    }
    best = dict.fromkeys(LAYOUTS, math.inf)
    for _ in range(args.repeats):
        for layout, stack in stacks.items():
            best[layout] = min(best[layout], iteration(stack))
    rng = np.random.default_rng(0)
    start = rng.random((n, K)), rng.random((n, K)), np.full(12, 1 / 12)
    del stacks["gram"]
    Ks = full_kernels(stacks["each"])
    port = best_seconds({"literal": lambda: literal(Ks, *start)}, 2)["literal"]
    rows = [[layout, 1000 * s, port / s] for layout, s in best.items()]
    rows.append(["literal float64 port", 1000 * port, 1.0])
    return Report(
        "gram-memory",
        f"n = {n:,}, m = 12, k = {K}, {args.precision} in memory",
        ["layout", "ms per iteration", "× literal"],
        rows,
        [
            Bar("iteration, each / gram", best["each"] / best["gram"], 1.3, at_least=True),
            Bar("iteration, literal / gram", port / best["gram"], 25, at_least=True),
        ],
    )


def many_kernels(args: argparse.Namespace) -> Report:
    """Twelve kernels against a hundred."""
    (n,) = args.n or [8192]
    rows, bars = [], []
    for normalization in ("unit", "none"):
        best = {12: math.inf, 100: math.inf}
        stacks = {
            m: pipeline.dense_kernels(
                request_of(n, args.precision, m, "gram", normalization=normalization)
            )
            for m in best
        }
        for _ in range(args.repeats):
            for m, stack in stacks.items():
                best[m] = min(best[m], iteration(stack))
        rows.append([normalization, 1000 * best[12], 1000 * best[100]])
        bars.append(Bar(f"iteration, 100 / 12 kernels, {normalization}", best[100] / best[12], 1.3))
    return Report(
        "gram-many",
        f"n = {n:,}, k = {K}, {args.precision} in memory, layout gram",
        ["normalization", "ms, m = 12", "ms, m = 100"],
        rows,
        bars,
    )


def on_cluster(args: argparse.Namespace) -> Report:
    """One iteration of two worker processes that read the store, the fused kernel in memory."""
    (n,) = args.n or [16_384]
    return of_workers(args, n, 6 * GIB, "memory", "gram-cluster", 3.0)


def from_disk(args: argparse.Namespace) -> Report:
    """The same out of core, as the plan has it for small workers."""
    (n,) = args.n or [48_000]
    return of_workers(args, n, args.memory, None, "gram-disk", 6.0)


def of_workers(
    args: argparse.Namespace, n: int, memory: int, residency: str | None, name: str, limit: float
) -> Report:
    config = ClusterConfig("local", workers=2, memory=memory)
    best, rows, bars = {}, [], []
    for layout in LAYOUTS:  # workers of its own for each: peaks are those of a process
        with scratch_folder(args.folder) as folder, start_cluster(config, n) as resources:
            path = folder / f"{layout}.zarr"
            begun = time.perf_counter()
            store = store_of(path, n, args.precision, resources=resources, layout=layout)
            built = time.perf_counter() - begun
            plan = pipeline.store_plan(store, K, resources)
            where = residency or plan.residency
            stack = TiledKernels(store, resources.runner, where)
            best[layout] = iteration(stack, args.repeats)
            size = human_bytes(kernel_bytes(store))
            peak = max(resources.worker_peaks().values())
        rows.append([layout, built, size, where, best[layout], peak / plan.worker_peak_bytes])
        print(rows[-1], flush=True)
        bars.append(Bar(f"{layout}: worker peak / planned", rows[-1][-1], 1.0))
    ratio = best["each"] / best["gram"]
    return Report(
        name,
        f"n = {n:,}, m = 12, k = {K}, {args.precision}, two workers × {human_bytes(memory)}",
        ["layout", "s to build", "kernels on disk", "K_w lives in", "s per iteration",
         "peak / planned"],
        rows,
        [Bar("iteration, each / gram", ratio, limit, at_least=True), *bars],
    )  # fmt: skip


def scaling(args: argparse.Namespace) -> Report:
    """One iteration in memory as n doubles; where K_w does not fit it is fused again."""
    rows: list[list[float]] = []
    for n in args.n or [16_384, 32_768, 65_536]:
        begun = time.perf_counter()
        stack = pipeline.dense_kernels(request_of(n, args.precision, layout="gram"))
        built = time.perf_counter() - begun
        seconds = iteration(stack, args.repeats)
        before = rows[-1] if rows else [n, 0, seconds]
        exponent = math.log(seconds / before[2]) / math.log(n / before[0]) if rows else math.nan
        rows.append([n, built, seconds, exponent, float(stack.keep_fused)])
        print(rows[-1], flush=True)
        del stack
    first, last = rows[0], rows[-1]
    whole = math.log(last[2] / first[2]) / math.log(last[0] / first[0])
    return Report(
        "gram-scaling",
        f"m = 12, k = {K}, {args.precision} in memory, layout gram",
        ["n", "s to build", "s per iteration", "exponent", "K_w kept"],
        rows,
        [Bar(f"exponent from n = {first[0]:,} to {last[0]:,}", whole, 2.1)],
    )


CORPORA = (
    "bbc.mat",
    "k1b.mat",
    "webkb.mat",
    "text/20ng_clean.jsonl.gz",
    "text/stackoverflow_20k.jsonl.gz",
    "text/clinc10_domains.jsonl.gz",
)


def codecs(args: argparse.Namespace) -> Report:
    """Size and time to decode a tile of a Gram matrix, by what it is compressed with."""
    rows = []
    for name in CORPORA:
        X = read_corpus(args.data / name).X[:2048]
        corpus = Corpus(X, tuple(map(str, range(X.shape[0]))))
        request = KernelRequest(corpus, PAPER12, precision=args.precision, layout="gram")
        assert request.gram is not None
        (tile, *_) = build_tiles(request, 1024).gram_tiles
        common = np.unique(tile, return_counts=True)[1].max() / tile.size
        row: list[Any] = [name, common, gram_codec(request.gram)]
        for codec in get_args(Codec):
            encoded, into = encode_chunk(tile, codec), np.empty_like(tile)
            decode = partial(decode_chunk, encoded, into, codec)
            seconds = best_seconds({codec: decode}, args.repeats)[codec]
            row += [len(encoded) / tile.nbytes, 1e9 * seconds / tile.size]
        rows.append(row)
    return Report(
        "gram-codecs",
        f"{args.precision}, the first tile of up to 1024² pairs",
        ["corpus", "pairs with the commonest number", "kept by", "zstd: size", "ns to decode",
         "lz4: size", "ns to decode"],
        rows,
    )  # fmt: skip
