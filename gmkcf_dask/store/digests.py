"""Digests of tiles: what was written is what is read, at its own place.

The checksum inside a chunk finds flipped bits, but a chunk of another tile or kernel carries a
valid one. So the manifest keeps a digest of every chunk's bytes bound to (kernel, I, J). It is
compared when a process reads the tile for the first time in a run; later reads rely on the
checksum.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Mapping
from functools import lru_cache

from gmkcf_dask.errors import StoreGoneError
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


def feature_digest(name: str, chunk: int, encoded: bytes) -> bytes:
    """The same for a chunk of a feature array; no kernel has a name like this."""
    return tile_digest(f"features/{name}", chunk, 0, encoded)


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
        """Keep the bytes of one tile."""
        self._by_name[name][self._width * t : self._width * (t + 1)] = record

    def get(self, name: str, t: int) -> bytes:
        """The bytes of one tile; zeros where there are none yet."""
        return bytes(self._by_name[name][self._width * t : self._width * (t + 1)])

    def as_text(self, names: Iterable[str]) -> dict[str, str]:
        """For the manifest: one string of hexadecimal digits for each of the kernels named."""
        return {name: self._by_name[name].hex() for name in dict.fromkeys(names)}


class Ledger:
    """The digests of a store in one process, and which tiles have been compared with theirs."""

    def __init__(self, manifest: Manifest) -> None:
        n_tiles = manifest.tiling.n_tiles
        self._table = TileTable(manifest.digests, n_tiles, manifest.digests)
        self._compared = {name: bytearray(n_tiles) for name in manifest.digests}
        self._features = {
            name: bytes.fromhex(array.digests) for name, array in manifest.features.items()
        }
        self._features_compared: set[tuple[str, int]] = set()

    def agrees(self, kernel: str, t: int, i: int, j: int, encoded: bytes) -> bool:
        """Whether a chunk is the one that was written there; only the first look costs time."""
        compared = self._compared.get(kernel)
        if compared is None:
            return False  # of a store without a single tile yet
        if not compared[t]:
            compared[t] = self._table.get(kernel, t) == tile_digest(kernel, i, j, encoded)
        return bool(compared[t])

    @property
    def has_features(self) -> bool:
        """Whether there are digests of features."""
        return bool(self._features)

    def features_agree(self, name: str, chunk: int, encoded: bytes) -> bool:
        """The same for a chunk of a feature array; stores of format 3 have no digests of them."""
        known = self._features.get(name)
        if known is None or (name, chunk) in self._features_compared:
            return True
        digest = feature_digest(name, chunk, encoded)
        if known[DIGEST_BYTES * chunk : DIGEST_BYTES * (chunk + 1)] != digest:
            return False
        self._features_compared.add((name, chunk))
        return True


@lru_cache(maxsize=16)
def ledger_of(path: str, store_id: str, run: str) -> Ledger:
    """The ledger of one run in this process: read from the store, once, not sent with every task.

    Parameters
    ----------
    run : str
        Names the run: another run in the same process compares every tile again.
    """
    manifest = Manifest.read(location(path))
    if manifest.store_id != store_id:
        raise StoreGoneError(f"{path} was replaced by another store while it was read: begin again")
    return Ledger(manifest)
