"""A symmetric matrix as square tiles of its upper triangle, and how many of them a task takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from gmkcf_dask.system.units import KIB, MIB, ceil_div

Precision = Literal["float32", "float64", "compact"]

STORED_BYTES: dict[Precision, int] = {"float32": 4, "float64": 8, "compact": 2}
"""Bytes of one stored kernel entry."""
FEATURE_CHUNK = 1 << 17
"""Values per chunk of sparse features."""
FACTOR_ROWS = 4096
"""Rows per block of the arrays that factored kernels are made of."""
CACHED_TABLES = 16
"""Tables of kernels over distances that a process keeps, however many kernels there are."""
COMPARED_TILES = 2
"""Stored tiles a building task may keep to compare later kernels with."""
GROUP_BYTES = 16 * MIB
"""Kernel bytes one task should hold at once: enough to dwarf scheduling, little beside a worker."""
GRAM_GROUP_BYTES = 32 * MIB
"""The same where all kernels are evaluated from one tile, which is much less work."""
MIN_GROUPS = 16
"""Tasks a sweep is cut into at least, so that a few workers finish together."""
COMPARED_BYTES = 32 * MIB
"""Tiles of all kernels that a task may keep to compare them, whatever else it has room for."""
SUMMED_ENTRIES = 1 << 14
"""Entries of one kernel, or of all together, that are made float64 at once to be summed."""
SMALLEST_BLOCK, LARGEST_DEFAULT_BLOCK, LARGEST_BLOCK = 64, 1024, 32_768


def encoded_bytes(n_bytes: int) -> int:
    """Most bytes of a chunk in a store that holds values of so many: zstd adds that to noise."""
    return n_bytes + n_bytes // 128 + KIB


@dataclass(frozen=True)
class Tiling:
    """The upper triangle of an n×n matrix cut into square tiles, numbered row by row.

    Tile t covers rows `rows(I)` and columns `rows(J)` with I ≤ J, (I, J) = `pair(t)`.
    """

    n: int
    block: int
    gram: bool = False
    """Whether kernels are evaluated from these tiles: there is less to do for each of them."""

    @property
    def n_blocks(self) -> int:
        return ceil_div(self.n, self.block)

    @property
    def n_tiles(self) -> int:
        return self.n_blocks * (self.n_blocks + 1) // 2

    def rows(self, i: int) -> slice:
        """Samples of block i; the last block may be shorter."""
        return slice(i * self.block, min(self.n, (i + 1) * self.block))

    def pair(self, t: int) -> tuple[int, int]:
        """Block row and block column of tile t."""
        i, first = 0, 0
        # n_blocks is at most a few hundred: a walk is clearer than a square root with its rounding
        while t >= first + self.n_blocks - i:
            first += self.n_blocks - i
            i += 1
        return i, i + t - first

    def shape(self, t: int) -> tuple[int, int]:
        """Rows and columns of tile t."""
        rows, cols = map(self.rows, self.pair(t))
        return rows.stop - rows.start, cols.stop - cols.start

    def pairs(self) -> Iterator[tuple[int, int]]:
        """(I, J) of every tile, in tile order."""
        return ((i, j) for i in range(self.n_blocks) for j in range(i, self.n_blocks))

    def tiles_per_task(self, itemsize: int) -> int:
        """Tiles one task works through, from n, block and entry size alone.

        Neither workers nor memory enter, because the order of summation follows from this number
        and results must be the same bits everywhere.
        """
        by_bytes = (GRAM_GROUP_BYTES if self.gram else GROUP_BYTES) // (
            self.block * self.block * itemsize
        )
        return max(1, min(by_bytes, self.n_tiles // MIN_GROUPS))

    def compared_step(self, n_kernels: int, itemsize: int) -> int:
        """Of how many rows of a tile one is compared between kernels: 1 for all of them.

        What is kept of the tiles takes `COMPARED_BYTES`, or as much as the fused tiles of a task
        and one more; like the tiles of a task it follows from numbers of the data alone.
        """
        tile = min(self.n, self.block) ** 2 * itemsize
        room = max(COMPARED_BYTES, (self.tiles_per_task(itemsize) + 1) * tile)
        return ceil_div(n_kernels * tile, room)

    def compared_bytes(self, n_kernels: int, itemsize: int) -> int:
        """What a task keeps of the tiles of all kernels to compare them, and two strips of it."""
        edge = min(self.n, self.block)
        rows = ceil_div(edge, self.compared_step(n_kernels, itemsize))
        return n_kernels * rows * edge * itemsize + 2 * 8 * SUMMED_ENTRIES


def default_block(n: int) -> int:
    """Tile edge for n samples when memory is no concern."""
    if n > 256 * 1024:
        return 4 * LARGEST_DEFAULT_BLOCK
    if n > 64 * 1024:
        return 2 * LARGEST_DEFAULT_BLOCK
    quarter = ceil_div(n, 4 * SMALLEST_BLOCK) * SMALLEST_BLOCK
    return min(LARGEST_DEFAULT_BLOCK, quarter)
