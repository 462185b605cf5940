"""What this machine can do at best: measured in the same run as what is compared with it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from measure import best_seconds
from scipy.linalg import blas

from gmkcf_dask.compute.blas import one_blas_thread, own_cores
from gmkcf_dask.store.kernel_store import KernelStore


def on_threads(work: Callable[[Any], object], parts: Sequence[Any], n_threads: int) -> None:
    """Each part on one of so many threads."""
    with ThreadPoolExecutor(n_threads) as pool:
        list(pool.map(work, parts))


def memory_bandwidth(n_threads: int | None = None, size: int = 1 << 30, repeats: int = 5) -> float:
    """Bytes per second read from memory by so many threads: the better of a sum and a dot."""
    n_threads = n_threads or own_cores()
    values = np.ones(size // 4, np.float32)
    parts = np.array_split(values, 16 * n_threads)
    with one_blas_thread():
        seconds = best_seconds(
            {
                "sum": lambda: on_threads(np.sum, parts, n_threads),
                "dot": lambda: on_threads(lambda part: blas.sdot(part, part), parts, n_threads),
            },
            repeats,
        )
    return values.nbytes / min(seconds.values())


def sgemm_rate(n_threads: int | None = None, n: int = 2048, repeats: int = 3) -> float:
    """Floating-point operations per second of float32 products, one BLAS thread per thread."""
    n_threads = n_threads or own_cores()
    rng = np.random.default_rng(0)
    A = rng.random((n, n), dtype=np.float32)
    with one_blas_thread():
        seconds = best_seconds(
            {"gemm": lambda: on_threads(lambda _: A @ A, range(n_threads), n_threads)}, repeats
        )
    return n_threads * 2 * n**3 / seconds["gemm"]


def disk_rates(folder: Path, size: int = 1 << 30, repeats: int = 2) -> tuple[float, float]:
    """Bytes per second of sequential reading and writing, past the page cache."""
    path = folder / "sequential"
    block = np.random.default_rng(0).bytes(16 << 20)

    def write() -> None:
        with path.open("wb") as file:
            for _ in range(size // len(block)):
                file.write(block)
            os.fsync(file.fileno())

    written = best_seconds({"write": write}, repeats)["write"]
    read = float("inf")
    for _ in range(repeats):
        forget(path)
        begun = time.perf_counter()
        with path.open("rb", buffering=0) as file:
            while file.read(16 << 20):
                pass
        read = min(read, time.perf_counter() - begun)
    path.unlink()
    return size / read, size / written


def forget(path: Path) -> None:
    """Drop files from the page cache."""
    for file in [path] if path.is_file() else (f for f in path.rglob("*") if f.is_file()):
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def zarr_sweep(store: KernelStore, tiles: Sequence[int]) -> None:
    """Read and decode the given tiles of every kernel by zarr alone, on the calling thread."""
    arrays = [
        zarr.open_array(store=str(store.path), path=f"kernels/{name}", mode="r")
        for name in sorted({store.names[i] for i in store.manifest.stored})
    ]
    for t in tiles:
        i, j = store.tiling.pair(t)
        for array in arrays:
            array[store.tiling.rows(i), store.tiling.rows(j)]
