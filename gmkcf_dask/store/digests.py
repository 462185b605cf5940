"""Digests and summaries of tiles: what was written is what is read, at its own place.

The checksum inside a chunk finds flipped bits, but a chunk of another tile or kernel carries a
valid one. So the manifest keeps a digest of every chunk's bytes bound to (kernel, I, J). It is
compared when a process reads the tile for the first time in a run; later reads rely on the
checksum. A repaired tile whose bits differ must agree with the `Summary` of the one it replaces.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from gmkcf_dask.errors import StoreGoneError
from gmkcf_dask.kernels.tiling import Precision
from gmkcf_dask.store.manifest import DIGEST_BYTES, Manifest
from gmkcf_dask.store.object_storage import location


def tile_digest(kernel: str, i: int, j: int, encoded: bytes) -> bytes:
    """Digest of the bytes of a chunk at its place.

    A cryptographic hash of all bytes would take as long as decoding them. It is made of two sums
    that are fast instead: CRC-32 of the bytes, and the hash of the values that zstd keeps in the
    last four bytes and compares when decoding. Each alone sees every single flipped bit.
    """
    place = f"{kernel}/{i}/{j}/{len(encoded)}/{zlib.crc32(encoded)}/".encode()
    return hashlib.blake2b(place + encoded[-4:], digest_size=DIGEST_BYTES).digest()


def array_digest(where: str, chunk: int, encoded: bytes) -> bytes:
    """The same for a chunk of an array such as features/X; no kernel has a name like this."""
    return tile_digest(where, chunk, 0, encoded)


class TileTable:
    """A few bytes for every tile of every kernel, filled while a store is built: digests, say."""

    def __init__(
        self,
        names: Iterable[str],
        n_tiles: int,
        known: Mapping[str, str],
        width: int = DIGEST_BYTES,
    ) -> None:
        self._width = width
        self._by_name = {
            name: bytearray.fromhex(known[name]) if name in known else bytearray(width * n_tiles)
            for name in names
        }

    def put(self, name: str, t: int, record: bytes) -> None:
        self._by_name[name][self._width * t : self._width * (t + 1)] = record

    def update(self, records: Mapping[tuple[str, int], bytes]) -> None:
        """Keep the bytes of several tiles, by (kernel, tile)."""
        for (name, t), record in records.items():
            self.put(name, t, record)

    def get(self, name: str, t: int) -> bytes:
        """The bytes of one tile; zeros where there are none yet."""
        return bytes(self._by_name[name][self._width * t : self._width * (t + 1)])

    def as_text(self, names: Iterable[str]) -> dict[str, str]:
        """For the manifest: one string of hexadecimal digits for each of the kernels named."""
        return {name: self._by_name[name].hex() for name in dict.fromkeys(names)}


class Ledger:
    """The digests of a store in one process, and which tiles have been compared with theirs."""

    def __init__(self, manifest: Manifest) -> None:
        n_tiles = manifest.n_tiles
        self._table = TileTable(manifest.digests, n_tiles, manifest.digests)
        self._compared = {name: bytearray(n_tiles) for name in manifest.digests}
        digests = {f"features/{n}": array.digests for n, array in manifest.features.items()}
        self.has_features = bool(digests)
        digests |= {f"factors/{n}": array.digests for n, array in manifest.factors.items()}
        self._arrays = {where: bytes.fromhex(text) for where, text in digests.items()}
        self._arrays_compared: set[tuple[str, int]] = set()

    def agrees(self, kernel: str, t: int, i: int, j: int, encoded: bytes) -> bool:
        """Whether a chunk is the one that was written there; only the first look costs time."""
        compared = self._compared.get(kernel)
        if compared is None:
            return False  # of a store without a single tile yet
        if not compared[t]:
            compared[t] = self._table.get(kernel, t) == tile_digest(kernel, i, j, encoded)
        return bool(compared[t])

    def array_agrees(self, where: str, chunk: int, encoded: bytes) -> bool:
        """The same for a chunk of an array; stores of format 3 have no digests of features."""
        known = self._arrays.get(where)
        if known is None:
            return where.startswith("features/")
        if (where, chunk) in self._arrays_compared:
            return True
        digest = array_digest(where, chunk, encoded)
        if known[DIGEST_BYTES * chunk : DIGEST_BYTES * (chunk + 1)] != digest:
            return False
        self._arrays_compared.add((where, chunk))
        return True


@lru_cache(maxsize=16)
def ledger_of(path: str, store_id: str, run: str) -> Ledger:
    """The ledger of one run in this process: read from the store, once, not sent with every task.

    Another `run` in the same process compares every tile again.
    """
    manifest = Manifest.read(location(path))
    if manifest.store_id != store_id:
        raise StoreGoneError(f"{path} was replaced by another store while it was read: begin again")
    return Ledger(manifest)


_STRIP = 1 << 16
"""Values that are made float64 at once, so that they stay in the cache of a core."""
TOLERANCE: dict[Precision, float] = {"float32": 4 * 2.0**-23, "float64": 1e-12, "compact": 2e-5}
"""By precision, how far a value may be from the one it replaces, relative to the largest: what the
stored type rounds to, or what float64 formulas may lose on the way to float64."""
GRAM_TOLERANCE = {"uint16": 2e-5, "float32": 4 * 2.0**-23, "float64": 1e-12}
"""The same for entries of the Gram matrix, by their stored type; a code may be the next one."""


@dataclass(frozen=True)
class Summary:
    """Sum, sum of squares, smallest and largest of some values."""

    total: float
    squares: float
    smallest: float
    largest: float

    @classmethod
    def of(cls, values: npt.NDArray[Any]) -> Summary:
        """The summary of an array, in float64.

        >>> Summary.of(np.array([1.0, 2.0]))
        Summary(total=3.0, squares=5.0, smallest=1.0, largest=2.0)
        """
        rows = values.reshape(1, -1) if values.ndim == 1 else values
        step = max(1, _STRIP // max(1, rows.shape[1]))
        total = squares = 0.0
        for first in range(0, rows.shape[0], step):
            strip = rows[first : first + step].astype(np.float64).ravel()
            total += float(strip.sum())
            squares += float(strip @ strip)
        return cls(total, squares, float(values.min()), float(values.max()))

    @classmethod
    def from_bytes(cls, content: bytes) -> Summary:
        return cls(*np.frombuffer(content, "<f8").tolist())

    def to_bytes(self) -> bytes:
        """Four little-endian float64."""
        return np.array(astuple(self), "<f8").tobytes()

    def agrees(self, other: Summary, size: int, tolerance: float) -> bool:
        """Whether `size` values differ from those they replace by rounding alone, as far as known.

        `tolerance` is how far each may be off, relative to the largest of them.
        """
        largest = max(abs(other.smallest), abs(other.largest))
        near = tolerance * largest
        # written so that a NaN agrees with nothing
        return (
            abs(self.smallest - other.smallest) <= near
            and abs(self.largest - other.largest) <= near
            and abs(self.total - other.total) <= size * near
            and abs(self.squares - other.squares) <= 2 * size * near * largest
        )
