"""One sweep over the kernels of a store on two workers, against zarr reading the same chunks.

Both sides run as tasks on the same workers, on the same groups of tiles, with the store in the same
cache state, after a first sweep of each.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

import dask
import numpy as np
from helpers.corpora import scratch_folder, store_of
from limits import disk_rates, zarr_sweep
from measure import Bar, Report, best_seconds

from gmkcf_dask.cluster import local_cluster, of_client
from gmkcf_dask.compute.tiled import TiledKernels
from gmkcf_dask.system.units import human_bytes

K = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--n", type=int, default=16_384)
    parser.add_argument("--precision", default="compact")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path)


def run(args: argparse.Namespace) -> Report:
    rng = np.random.default_rng(0)
    U, V = rng.random((args.n, K)), rng.random((args.n, K))
    with (
        scratch_folder(args.folder) as folder,
        local_cluster(2, 1 << 30) as client,
    ):
        resources = of_client(client)
        store = store_of(folder / "s.zarr", args.n, args.precision, resources=resources)
        stack = TiledKernels(store, resources.runner, "recompute")
        index = stack.index()
        ends = np.cumsum((0, *index.chunks[0]))
        groups = [range(a, b) for a, b in itertools.pairwise(ends)]
        delayed = dask.delayed(zarr_sweep, pure=False)

        def by_zarr() -> None:
            client.gather(client.compute([delayed(store, group) for group in groups]))

        weights = np.full(12, 1 / 144)
        seconds = best_seconds(
            {
                "zarr alone": by_zarr,
                "errors": lambda: stack.errors(U, V),
                "fuse and multiply": lambda: stack.fuse(weights, keep=False).matmul(
                    np.hstack([U, V])
                ),
            },
            args.repeats + 1,
        )
        decoded = len(set(store.manifest.stored)) * store.tiling.n_tiles * store.tiling.block**2
        decoded *= np.dtype(store.reader.stored_dtype).itemsize
        on_disk = store.stored_bytes()
        read, written = disk_rates(folder)
    base = seconds["zarr alone"]
    rows = [
        [name, s, decoded / s / 1e9, on_disk / s / 1e9, s / base] for name, s in seconds.items()
    ]
    return Report(
        "sweep",
        f"n = {args.n:,}, m = 12, {args.precision}, {human_bytes(decoded)} decoded, "
        f"{human_bytes(on_disk)} on disk, in the page cache; two workers × 1 GiB",
        ["", "s", "GB/s decoded", "GB/s stored", "× zarr alone"],
        rows,
        [
            Bar("errors sweep / zarr alone", rows[1][4], 1.5),
            Bar("fuse sweep / zarr alone", rows[2][4], 1.5),
        ],
        [f"disk: reads at {read / 1e9:.2f} GB/s, writes at {written / 1e9:.2f} GB/s"],
        {"seconds": seconds, "decoded": decoded, "stored": on_disk, "disk": [read, written]},
    )
