"""Kernels that are nearly, or to the last bit, the same: found while their tiles are written.

On unit-length text a wide RBF, an even wider one and the cosine are one matrix but for a few
digits. A sample of entries tells which earlier kernel each is nearest to; these pairs are then
compared on every tile. Equal kernels have equal files, which is seen when all are written. Of those
only one is kept; each still has a weight of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gmkcf_dask.kernels.features import PairTile
from gmkcf_dask.kernels.tiles import CODE_SCALE, Norms, ResolvedKernel, stored_tiles
from gmkcf_dask.kernels.tiling import COMPARED_TILES, Precision

NEARLY_EQUAL = 1e-3
"""Largest difference at which two kernels, with values up to 1, are worth a word."""

Stored = tuple[str, npt.NDArray[Any], float]
Differences = dict[str, float]
"""By kernel, its largest difference so far from the one it is compared with."""


@dataclass(frozen=True)
class DuplicateCandidates:
    """Which earlier kernel each kernel is compared with."""

    nearest: Mapping[str, str]
    code_scale: float

    @classmethod
    def plan(
        cls,
        kernels: tuple[ResolvedKernel, ...],
        sample: PairTile,
        norms: Norms,
        precision: Precision,
    ) -> DuplicateCandidates:
        """Pairs that look alike on a sample, as few as can be compared with two tiles kept."""
        scale = CODE_SCALE[precision] or 1.0
        # the corner of a tile: distances of equal samples, which are alike in all kernels, apart
        tiles = [tile for _, tile, _ in stored_tiles(kernels, sample, norms, precision)]
        pairs: list[tuple[float, int, int]] = []
        for later, tile in enumerate(tiles):
            # of equals the last: its tile is kept for the shortest time
            distances = [(difference(tile, tiles[i]) * scale, -i) for i in range(later)]
            away, earlier = min(distances, default=(np.inf, 0))
            if away <= NEARLY_EQUAL * scale * float(np.abs(tile).max()):
                pairs.append((away, -earlier, later))
        kept: list[tuple[int, int]] = []
        for _, earlier, later in sorted(pairs):
            if _most_at_once([*kept, (earlier, later)]) <= COMPARED_TILES:
                kept.append((earlier, later))
        names = [kernel.name for kernel in kernels]
        return cls({names[later]: names[earlier] for earlier, later in sorted(kept)}, scale)

    def watch(self, tiles: Iterator[Stored], differences: Differences) -> Iterator[Stored]:
        """Pass tiles on, and record how far they are from those they are compared with."""
        kept: dict[str, npt.NDArray[Any]] = {}
        waiting = list(self.nearest.values())
        for name, tile, smallest in tiles:
            earlier = self.nearest.get(name)
            if earlier is not None:
                away = difference(tile, kept[earlier]) * self.code_scale
                differences[name] = max(differences.get(name, 0.0), away)
                waiting.remove(earlier)
                if earlier not in waiting:
                    del kept[earlier]
            if name in waiting:
                kept[name] = tile
            yield name, tile, smallest


def difference(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> float:
    """Largest |a − b|, a few rows at a time."""
    rows = max(1, (1 << 16) // a.shape[1])
    largest = 0.0
    for first in range(0, len(a), rows):
        here, there = a[first : first + rows], b[first : first + rows]
        # codes are unsigned: the larger minus the smaller
        gap = np.maximum(here, there) - np.minimum(here, there)
        largest = max(largest, float(gap.max()))
    return largest


def _most_at_once(pairs: Sequence[tuple[int, int]]) -> int:
    """Tiles held at the same time when each waits for the last kernel compared with it."""
    last: dict[int, int] = {}
    for earlier, later in pairs:
        last[earlier] = max(last.get(earlier, 0), later)
    return max(
        (sum(first <= now < until for first, until in last.items()) for now in last), default=0
    )
