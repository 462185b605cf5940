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
from gmkcf_dask.kernels.manifest import DIGEST_BYTES, Manifest
from gmkcf_dask.locations import location


def tile_digest(kernel: str, i: int, j: int, encoded: bytes) -> bytes:
    """Digest of the bytes of a chunk at its place.

    A cryptographic hash of all bytes would take as long as decoding them. It is made of two sums
    that are fast instead: CRC-32 of the bytes, and the hash of the values that zstd keeps in the
    last four bytes and compares when decoding. Each alone sees every single flipped bit.
    """
    place = f"{kernel}/{i}/{j}/{len(encoded)}/{zlib.crc32(encoded)}/".encode()
    return hashlib.blake2b(place + encoded[-4:], digest_size=DIGEST_BYTES).digest()


class DigestTable:
    """Digests of all tiles of all kernels, filled while a store is built."""

    def __init__(self, names: Iterable[str], n_tiles: int, known: Mapping[str, str]) -> None:
        self._by_name = {
            name: bytearray.fromhex(known[name])
            if name in known
            else bytearray(DIGEST_BYTES * n_tiles)
            for name in names
        }

    def put(self, name: str, t: int, digest: bytes) -> None:
        """Keep the digest of one tile."""
        self._by_name[name][DIGEST_BYTES * t : DIGEST_BYTES * (t + 1)] = digest

    def get(self, name: str, t: int) -> bytes:
        """The digest of one tile; zeros where there is none yet."""
        return bytes(self._by_name[name][DIGEST_BYTES * t : DIGEST_BYTES * (t + 1)])

    def as_text(self, names: Iterable[str]) -> dict[str, str]:
        """For the manifest: one string of hexadecimal digits for each of the kernels named."""
        return {name: self._by_name[name].hex() for name in dict.fromkeys(names)}


class Ledger:
    """The digests of a store in one process, and which tiles have been compared with theirs."""

    def __init__(self, manifest: Manifest) -> None:
        n_tiles = manifest.tiling.n_tiles
        self._table = DigestTable(manifest.digests, n_tiles, manifest.digests)
        self._compared = {name: bytearray(n_tiles) for name in manifest.digests}

    def agrees(self, kernel: str, t: int, i: int, j: int, encoded: bytes) -> bool:
        """Whether a chunk is the one that was written there; only the first look costs time."""
        compared = self._compared.get(kernel)
        if compared is None:
            return False  # of a store without a single tile yet
        if not compared[t]:
            compared[t] = self._table.get(kernel, t) == tile_digest(kernel, i, j, encoded)
        return bool(compared[t])


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
