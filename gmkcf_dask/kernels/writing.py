"""The task that computes and writes tiles, and what it tells the driver about them."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gmkcf_dask.kernels.duplicates import Comparison, Differences
from gmkcf_dask.kernels.features import Features, PairTile
from gmkcf_dask.kernels.store import KernelStore
from gmkcf_dask.kernels.tiles import Norms, ResolvedKernel, stored_tiles
from gmkcf_dask.plan import Tiling


@dataclass(frozen=True)
class Written:
    """What a task wrote.

    Attributes
    ----------
    minima : dict of float
        Each kernel's smallest value.
    differences : dict of float
        How far kernels are from those they are compared with.
    tiles : dict
        By (kernel, tile), the digest and the size of its chunk.
    """

    minima: dict[str, float]
    differences: Differences
    tiles: dict[tuple[str, int], tuple[bytes, int]]


@dataclass(frozen=True)
class WriteTiles:
    """Task: compute and write the tiles of every kernel, or of those wanted."""

    store: KernelStore
    features: Features
    kernels: tuple[ResolvedKernel, ...]
    comparison: Comparison
    wanted: Mapping[int, frozenset[str]] | None = None
    """By tile, the kernels to write; None for all."""

    def __call__(self, tiles: npt.NDArray[np.int64]) -> Written:
        norms: Norms = self.store.norms()
        written = Written(dict.fromkeys(self.store.names, np.inf), {}, {})
        for t in map(int, tiles):
            tile = pair_tile(self.features, self.store.tiling, t)
            kernels = self.kernels
            if self.wanted is not None:
                kernels = tuple(k for k in kernels if k.name in self.wanted[t])
            made = stored_tiles(kernels, tile, norms, self.store.manifest.precision)
            # one kernel is compressed and written while the next is computed
            with ThreadPoolExecutor(1) as writer:
                last: Future[None] | None = None
                for name, stored, smallest in self.comparison.watch(made, written.differences):
                    if last is not None:
                        last.result()
                    last = writer.submit(self._keep, t, name, stored, written)
                    written.minima[name] = min(written.minima[name], smallest)
                if last is not None:
                    last.result()
        return written

    def _keep(self, t: int, name: str, stored: npt.NDArray[Any], written: Written) -> None:
        written.tiles[name, t] = self.store.reader.write(name, t, stored)


def for_tasks(store: KernelStore) -> KernelStore:
    """A store to travel inside tasks: without the digests of all its tiles."""
    return replace(store, manifest=replace(store.manifest, digests={}, tiles_done=()))


def resolved_kernels(store: KernelStore, specs: Any) -> tuple[ResolvedKernel, ...]:
    """Specs with the options and statistics that the store has of them."""
    by_name = {record.name: record for record in store.manifest.kernels}
    return tuple(
        ResolvedKernel(
            spec=spec, **{k: v for k, v in vars(by_name[spec.name]).items() if k != "name"}
        )
        for spec in specs
    )


def diagonal_from_tiles(store: KernelStore, name: str) -> npt.NDArray[np.float64]:
    """The diagonal of a kernel, from its tiles."""
    reader, tiling = store.reader, store.tiling
    kernel, room = store.names.index(name), reader.buffer()
    parts = [
        np.diagonal(reader.raw(kernel, t, room)).astype(np.float64) * reader.scale()
        for t, (i, j) in enumerate(tiling.pairs())
        if i == j
    ]
    return np.concatenate(parts)


def pair_tile(features: Features, tiling: Tiling, t: int) -> PairTile:
    """The samples of tile t."""
    i, j = tiling.pair(t)
    return PairTile(features, tiling.rows(i), tiling.rows(j))
