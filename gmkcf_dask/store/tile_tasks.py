"""Tasks on tiles of a store: compute and write them, and read diagonals back."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import structs

from gmkcf_dask.kernels.duplicates import Differences, DuplicateCandidates
from gmkcf_dask.kernels.features import Features, PairTile
from gmkcf_dask.kernels.gram import (
    GRAM,
    GramMatrix,
    encode_gram,
    is_function_of_gram,
    lowest_product,
    lowest_value,
)
from gmkcf_dask.kernels.tiles import Norms, ResolvedKernel, stored_tiles
from gmkcf_dask.store.digests import Summary
from gmkcf_dask.store.kernel_store import KernelStore
from gmkcf_dask.system.arrays import Floats


@dataclass(frozen=True)
class Written:
    """What a task wrote; digests, summaries and sizes of chunks are by (array, tile)."""

    minima: dict[str, float]
    """Each kernel's smallest value."""
    differences: Differences = field(default_factory=dict)
    """How far kernels are from those they are compared with."""
    digests: dict[tuple[str, int], bytes] = field(default_factory=dict)
    summaries: dict[tuple[str, int], bytes] = field(default_factory=dict)
    sizes: dict[tuple[str, int], int] = field(default_factory=dict)


@dataclass(frozen=True)
class WriteTiles:
    """Task: compute and write the tiles of every kernel, or of those wanted."""

    store: KernelStore
    features: Features
    kernels: tuple[ResolvedKernel, ...]
    candidates: DuplicateCandidates
    wanted: Mapping[int, frozenset[str]] | None = None
    """By tile, the arrays to write; None for all."""

    def __call__(self, tiles: npt.NDArray[np.int64]) -> Written:
        manifest = self.store.manifest
        own_names = set(manifest.own_names)
        own = tuple(kernel for kernel in self.kernels if kernel.name in own_names)
        norms: Norms = self.store.norms() if own else {}
        written = Written(dict.fromkeys(self.store.names, np.inf))
        for t in map(int, tiles):
            tile = PairTile.at(self.features, self.store.tiling, t)
            kernels = own
            if self.wanted is not None:
                kernels = tuple(k for k in own if k.name in self.wanted[t])
            if manifest.gram is not None and (self.wanted is None or GRAM in self.wanted[t]):
                self._keep_gram(t, tile, manifest.gram.matrix, written)
            made = stored_tiles(kernels, tile, norms, self.store.manifest.precision)
            # one kernel is compressed and written while the next is computed
            with ThreadPoolExecutor(1) as writer:
                last: Future[None] | None = None
                for name, stored, smallest in self.candidates.watch(made, written.differences):
                    if last is not None:
                        last.result()
                    last = writer.submit(self._keep, t, name, stored, written)
                    written.minima[name] = min(written.minima[name], smallest)
                if last is not None:
                    last.result()
        return written

    def _keep_gram(self, t: int, tile: PairTile, matrix: GramMatrix, written: Written) -> None:
        kept = np.empty(tile.shape, matrix.dtype)
        encode_gram(matrix, tile, kept)
        self._keep(t, GRAM, kept, written)
        product = lowest_product(matrix, tile)
        for kernel in self.kernels:
            if is_function_of_gram(kernel.spec):
                lowest = lowest_value(kernel, product)
                written.minima[kernel.name] = min(written.minima[kernel.name], lowest)

    def _keep(self, t: int, name: str, stored: npt.NDArray[Any], written: Written) -> None:
        digest, size = self.store.reader.write(name, t, stored)
        written.digests[name, t], written.sizes[name, t] = digest, size
        written.summaries[name, t] = Summary.of(stored).to_bytes()


def for_tasks(store: KernelStore) -> KernelStore:
    """A store to travel inside tasks: without what the manifest has for each of its tiles."""
    manifest = structs.replace(
        store.manifest, digests={}, tiles_done=(), features={}, tile_summaries={}
    )
    return replace(store, manifest=manifest)


def resolved_kernels(store: KernelStore, specs: Any) -> tuple[ResolvedKernel, ...]:
    """Specs with the options and statistics that the store has of them."""
    by_name = {record.name: record for record in store.manifest.kernels}
    return tuple(ResolvedKernel(spec=spec, **by_name[spec.name].options) for spec in specs)


def made_diagonal(store: KernelStore, name: str) -> Floats:
    """The diagonal of a kernel, from its tiles, or from the lengths of the samples."""
    kernel, whole = store.names.index(name), store.reader
    if whole.gram is not None and kernel in whole.gram.by_number:
        return whole.gram.diagonal(kernel)
    room = whole.buffer()
    on_diagonal = [t for t, (i, j) in enumerate(store.tiling.pairs()) if i == j]
    with whole.ahead([kernel], on_diagonal) as reader:
        parts = [
            np.diagonal(reader.raw(kernel, t, room)).astype(np.float64) * reader.scale()
            for t in on_diagonal
        ]
    return np.concatenate(parts)


def write_diagonals(store: KernelStore, diagonals: Mapping[str, Floats]) -> dict[str, Floats]:
    """Write diagonals by kernel, for all kernels they stand for; returns these by path inside."""
    pairs = zip(store.names, store.manifest.stored_as or store.names, strict=True)
    vectors = {
        f"diagonals/{name}": diagonals[stands] for name, stands in pairs if stands in diagonals
    }
    for where, values in vectors.items():
        store.write_vector(where, values)
    return vectors
