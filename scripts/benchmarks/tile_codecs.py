"""Codecs for kernel tiles: size, encode and decode speed on the four corpora, one thread.

Every candidate is a Zarr v3 pipeline in which a flipped bit is found, by the codec's own checksum
or by crc32c; both are inside the times. Times are processor seconds, which other work on the
machine hardly lengthens: codecs in turns, the best of several for each tile. All tiles are encoded
and decoded; one tile of each kernel is also read through zarr. Tiles are as computed: the padding
of tiles at the edge of a store is left out.

In the corpora nearly every two documents share a word. Short texts, made up here, are the other
kind: most entries of a kernel are equal. They stand beside the corpora and in no total.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt
import zarr
import zarr.codecs.numcodecs as beyond_specification
from measure import Report, show
from numcodecs.blosc import Blosc
from numcodecs.lz4 import LZ4
from numcodecs.shuffle import Shuffle
from numcodecs.zstd import Zstd
from scipy import sparse
from sklearn.preprocessing import normalize
from zarr.codecs import BloscCodec, Crc32cCodec, ZstdCodec

from gmkcf_dask.compute.blas import one_blas_thread
from gmkcf_dask.corpus import Corpus, read_corpus
from gmkcf_dask.kernels.specs import PAPER12
from gmkcf_dask.store.build import build_tiles
from gmkcf_dask.store.request import KernelRequest

SETS = ("bbc", "tr31", "k1b", "webkb")
PRECISIONS = ("float32", "compact")
GROUPS = {
    "near-identity": ("rbf_0.01", "rbf_0.05", "rbf_0.1"),
    "wide": ("rbf_10", "rbf_50", "rbf_100", "cosine"),
}
REST = "rest"
SHORT = "short texts"
DEFAULT = "zstd-1"
DISKS = {"2 GB/s": 2e9, "1 GB/s": 1e9, "0.5 GB/s": 0.5e9}
CACHE = "page cache"
CLEARLY = 0.95
"""A codec is clearly faster where it needs at most this part of the default's time."""

Bytes = npt.NDArray[np.uint8]


class Crc32c:
    """What zarr's crc32c codec does, called without an event loop."""

    def encode(self, data: Any) -> Bytes:
        data = np.frombuffer(data, np.uint8)
        return np.append(data, np.array([google_crc32c.value(data)], "<u4").view(np.uint8))

    def decode(self, data: Any) -> Bytes:
        data = np.frombuffer(data, np.uint8)
        if google_crc32c.value(data[:-4]) != int(data[-4:].view("<u4")[0]):
            raise ValueError("the checksum does not match")
        return data[:-4]


@dataclass(frozen=True)
class Candidate:
    """One pipeline after Zarr's `bytes` codec, as zarr writes it and as it is called here."""

    name: str
    zarr_name: str
    stored: Callable[[int], list[Any]]
    """zarr's codecs for an entry size."""
    called: Callable[[int], list[Any]]
    """The same from numcodecs, as zarr itself calls them."""
    specified: bool = True
    """Whether every Zarr v3 reader must know it."""


def _zstd(level: int) -> Candidate:
    return Candidate(
        f"zstd-{level}" if level > 0 else f"zstd({level})",
        f"zstd(level={level}, checksum)",
        lambda size: [ZstdCodec(level=level, checksum=True)],
        lambda size: [Zstd(level=level, checksum=True)],
    )


def _blosc(inner: str, level: int, shuffle: str) -> Candidate:
    number = {"noshuffle": 0, "shuffle": 1, "bitshuffle": 2}[shuffle]
    return Candidate(
        f"blosc {inner}-{level} {shuffle}",
        f"blosc({inner}, {level}, {shuffle}), crc32c",
        lambda size: [
            BloscCodec(typesize=size, cname=inner, clevel=level, shuffle=shuffle),
            Crc32cCodec(),
        ],
        lambda size: [
            Blosc(cname=inner, clevel=level, shuffle=number, typesize=size),
            Crc32c(),
        ],
    )


CANDIDATES = (
    Candidate("none", "crc32c", lambda size: [Crc32cCodec()], lambda size: [Crc32c()]),
    _zstd(-5),
    _zstd(1),
    _zstd(3),
    _blosc("lz4", 5, "noshuffle"),
    _blosc("lz4", 5, "shuffle"),
    _blosc("lz4", 5, "bitshuffle"),
    _blosc("zstd", 1, "shuffle"),
    _blosc("zstd", 1, "bitshuffle"),
    _blosc("zstd", 5, "bitshuffle"),
    Candidate(
        "lz4 ¹",
        "numcodecs.lz4, crc32c",
        lambda size: [beyond_specification.LZ4(acceleration=1), Crc32cCodec()],
        lambda size: [LZ4(acceleration=1), Crc32c()],
        specified=False,
    ),
    Candidate(
        "shuffle + zstd-1 ¹",
        "numcodecs.shuffle, zstd(level=1, checksum)",
        lambda size: [
            beyond_specification.Shuffle(elementsize=size),
            ZstdCodec(level=1, checksum=True),
        ],
        lambda size: [Shuffle(elementsize=size), Zstd(level=1, checksum=True)],
        specified=False,
    ),
)


@dataclass
class Sums:
    """Over tiles: bytes before and after, and the best seconds of each; `read` is through zarr."""

    raw: int = 0
    stored: int = 0
    encode: float = 0.0
    decode: float = 0.0
    read_raw: int = 0
    read: float = 0.0

    def __add__(self, other: Sums) -> Sums:
        return Sums(
            self.raw + other.raw,
            self.stored + other.stored,
            self.encode + other.encode,
            self.decode + other.decode,
            self.read_raw + other.read_raw,
            self.read + other.read,
        )

    @property
    def ratio(self) -> float:
        return self.stored / self.raw

    @property
    def encode_speed(self) -> float:
        """MB of raw bytes per second."""
        return self.raw / self.encode / 1e6

    @property
    def decode_speed(self) -> float:
        """MB of raw bytes per second."""
        return self.raw / self.decode / 1e6

    @property
    def read_speed(self) -> float:
        """MB of raw bytes per second, through zarr from the page cache."""
        return self.read_raw / self.read / 1e6

    def sweep(self, bandwidth: float) -> float:
        """Seconds of one reader that reads a tile, then decodes it."""
        return self.stored / bandwidth + self.decode

    def overlapped_sweep(self, bandwidth: float) -> float:
        """Seconds where the next tile is read while this one is decoded."""
        return max(self.stored / bandwidth, self.decode)


@dataclass
class Measured:
    """Sums by precision, codec, set and group of kernels; totals are over `sets`."""

    sets: Sequence[str]
    cells: dict[tuple[str, str, str, str], Sums] = field(default_factory=lambda: defaultdict(Sums))

    def add(self, key: tuple[str, str, str, str], sums: Sums) -> None:
        self.cells[key] += sums

    def total(self, precision: str, codec: str, dataset: str = "", group: str = "") -> Sums:
        """All cells of a codec, of one set or one group where those are named."""
        sets = [dataset] if dataset else self.sets
        chosen = (
            sums
            for (p, c, d, g), sums in self.cells.items()
            if (p, c) == (precision, codec) and d in sets and group in ("", g)
        )
        return sum(chosen, Sums())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    data = Path(os.environ.get("GMKCF_DATA", "../shared/data"))
    parser.add_argument("--data", type=Path, default=data, help="folder with NAME.mat")
    parser.add_argument("--sets", nargs="+", default=SETS, metavar="NAME")
    parser.add_argument("--block", type=int, default=1024, help="tile edge")
    parser.add_argument("--repeats", type=int, default=4, help="decodes of a tile; encodes half")


def run(args: argparse.Namespace) -> Report:
    measured = Measured(args.sets)
    for dataset in (*args.sets, SHORT):
        corpus = short_texts() if dataset == SHORT else read_corpus(args.data / f"{dataset}.mat")
        for precision in PRECISIONS:
            request = KernelRequest(corpus, PAPER12, precision=precision)
            with one_blas_thread():
                kernels = list(zip(*build_tiles(request, args.block).stacks, strict=True))
            check(kernels[-1][0])
            for spec, tiles in zip(PAPER12, kernels, strict=True):
                times = [time_reads(tiles[0], args.repeats)]
                times += [time_tile(tile, args.repeats) for tile in tiles]
                for name, sums in (item for each in times for item in each.items()):
                    measured.add((precision, name, dataset, group_of(spec.name)), sums)
    sources = {CACHE: page_cache_bandwidth(args.block)} | DISKS
    show(by_set(measured))
    show(by_source(measured, sources))
    groups = (*GROUPS, REST)
    rows = [
        [
            precision,
            codec.name,
            *(total.ratio for total in _totals(measured, precision, codec.name, groups)),
            *map(round, (whole.encode_speed, whole.decode_speed, whole.read_speed)),
            whole.decode / measured.total(precision, DEFAULT).decode,
        ]
        for precision in PRECISIONS
        for codec in CANDIDATES
        for whole in [measured.total(precision, codec.name)]
    ]
    return Report(
        "tile-codecs",
        f"{', '.join(args.sets)}: size is stored / raw, speeds are MB/s of raw bytes",
        ("precision", "codec", "size", *groups, "encode", "decode", "read", f"decode / {DEFAULT}"),
        rows,
        notes=[
            "read: through zarr from the page cache, all threads of the process counted.",
            "¹ not in the Zarr v3 specification: zarr-python reads it, other readers need not.",
            *(f"{codec.name}: bytes, {codec.zarr_name}." for codec in CANDIDATES),
            *conclusion(measured, sources),
        ],
        figures={
            "page_cache_bytes_per_second": sources[CACHE],
            "by": "precision/codec/set/group",
            "cells": {"/".join(key): asdict(sums) for key, sums in measured.cells.items()},
        },
    )


def _totals(measured: Measured, precision: str, codec: str, groups: Sequence[str]) -> list[Sums]:
    return [measured.total(precision, codec, group=group) for group in ("", *groups)]


def group_of(kernel: str) -> str:
    return next((group for group, names in GROUPS.items() if kernel in names), REST)


def by_set(measured: Measured) -> Report:
    """Size and decode speed on each corpus."""
    sets = (*measured.sets, SHORT)
    rows = [
        [
            precision,
            codec.name,
            *(
                f"{total.ratio:.3f}, {total.decode_speed:.0f}"
                for total in (measured.total(precision, codec.name, name) for name in sets)
            ),
        ]
        for precision in PRECISIONS
        for codec in CANDIDATES
    ]
    return Report("tile-codecs", "by set: size, decode MB/s", ("precision", "codec", *sets), rows)


def by_source(measured: Measured, sources: dict[str, float]) -> Report:
    """Seconds of a sweep by where the tiles come from, relative to the default."""
    columns = {
        f"{name} ({at / 1e9:.1f} GB/s)" if name == CACHE else name: ("", at)
        for name, at in sources.items()
    }
    columns |= {f"{SHORT}, {name}": (SHORT, at) for name, at in DISKS.items()}

    def cell(precision: str, codec: str, dataset: str, at: float) -> str:
        total = measured.total(precision, codec, dataset)
        default = measured.total(precision, DEFAULT, dataset)
        overlapped = total.overlapped_sweep(at) / default.overlapped_sweep(at)
        return f"{total.sweep(at) / default.sweep(at):.2f}, {overlapped:.2f}"

    rows = [
        [
            precision,
            codec.name,
            *(cell(precision, codec.name, *where) for where in columns.values()),
        ]
        for precision in PRECISIONS
        for codec in CANDIDATES
    ]
    title = f"sweep / {DEFAULT} by bandwidth per reader: read then decode, read while decoding"
    return Report("tile-codecs", title, ("precision", "codec", *columns), rows)


def conclusion(measured: Measured, sources: dict[str, float]) -> Iterator[str]:
    """What a plain Zarr v3 reader knows, is no larger than the default and clearly faster."""
    beats: dict[str, list[str]] = {}
    for precision in PRECISIONS:
        default = measured.total(precision, DEFAULT)
        everything = {c.name: measured.total(precision, c.name) for c in CANDIDATES if c.specified}
        beats[precision] = [
            name
            for name, total in everything.items()
            if total.stored <= default.stored and total.decode <= CLEARLY * default.decode
        ]
        for name in beats[precision]:
            total = everything[name]
            sizes = [_size_against_default(measured, precision, name, d) for d in measured.sets]
            yield (
                f"{precision}: {name} against {DEFAULT}: size × {total.ratio / default.ratio:.2f} "
                f"({min(sizes):.2f} to {max(sizes):.2f} by set, "
                f"{_size_against_default(measured, precision, name, SHORT):.2f} on {SHORT}), "
                f"decode time × {total.decode / default.decode:.2f}, read through zarr × "
                f"{default.read_speed / total.read_speed:.2f}, encode time × "
                f"{total.encode / default.encode:.2f}."
            )
        fastest = []
        for source, at in sources.items():
            name = min(everything, key=lambda name: everything[name].sweep(at))
            part = everything[name].sweep(at) / default.sweep(at)
            fastest.append(f"{source} {name} (× {part:.2f})")
        yield f"{precision}: shortest sweep, read then decode: {', '.join(fastest)}."
    both = [name for name in beats[PRECISIONS[0]] if name in beats[PRECISIONS[1]]]
    if not both:
        yield (
            f"Conclusion: {DEFAULT} with checksum, the default, is supported: for both precisions "
            "nothing else is no larger and clearly faster to decode."
        )
        return
    worst = {
        name: max(_size_against_default(measured, p, name, SHORT) for p in PRECISIONS)
        for name in both
    }
    yield (
        f"Conclusion: on these sets {DEFAULT} with checksum, the default, is beaten in size and in "
        f"decode time, for both precisions, by {', '.join(both)}; on {SHORT} these take "
        f"{', '.join(f'{worst[name]:.1f}' for name in both)} times its bytes."
    )


def _size_against_default(measured: Measured, precision: str, codec: str, dataset: str) -> float:
    total = measured.total(precision, codec, dataset)
    return total.stored / measured.total(precision, DEFAULT, dataset).stored


def short_texts(n: int = 1024, n_terms: int = 20_000, n_words: int = 30) -> Corpus:
    """Texts of half to one and a half times `n_words` words, as rows of unit length."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(n_words // 2, 3 * n_words // 2 + 1, n)
    words = (n_terms * rng.random(lengths.sum()) ** 2).astype(int)
    entries = np.ones(words.size), (np.repeat(np.arange(n), lengths), words)
    X = sparse.csr_array(sparse.coo_array(entries, (n, n_terms)))
    X = sparse.csr_array(normalize(X))
    return Corpus(X, tuple(map(str, range(n))))


def time_tile(tile: npt.NDArray[Any], repeats: int) -> dict[str, Sums]:
    """Sizes and best times of every codec on one tile, codecs in turns."""
    raw = np.ascontiguousarray(tile).view(np.uint8).reshape(-1)
    chains = {codec.name: codec.called(tile.itemsize) for codec in CANDIDATES}
    stored, encode = _best(
        {name: partial(_encode, chain, raw) for name, chain in chains.items()},
        max(1, repeats // 2),
        time.thread_time,
    )
    decoded, decode = _best(
        {name: partial(_decode, chain, stored[name]) for name, chain in chains.items()},
        repeats,
        time.thread_time,
    )
    for name, content in decoded.items():
        assert np.array_equal(np.frombuffer(content, np.uint8), raw), name
    return {
        name: Sums(raw.nbytes, len(stored[name]), encode[name], decode[name]) for name in chains
    }


def time_reads(tile: npt.NDArray[Any], repeats: int) -> dict[str, Sums]:
    """Best times to read one tile through zarr from files that are in memory, codecs in turns."""
    with tempfile.TemporaryDirectory() as folder:
        arrays = {
            c.name: _in_zarr(tile, c, Path(folder) / str(i)) for i, c in enumerate(CANDIDATES)
        }
        _, read = _best(
            {name: partial(array.__getitem__, ...) for name, array in arrays.items()},
            repeats,
            time.process_time,
        )
    return {name: Sums(read_raw=tile.nbytes, read=seconds) for name, seconds in read.items()}


def _best(
    works: Mapping[str, Callable[[], Any]], repeats: int, clock: Callable[[], float]
) -> tuple[dict[str, Any], dict[str, float]]:
    """The last result and the best seconds of each."""
    results: dict[str, Any] = {}
    best = dict.fromkeys(works, float("inf"))
    for _ in range(repeats):
        for name, work in works.items():
            begun = clock()
            results[name] = work()
            best[name] = min(best[name], clock() - begun)
    return results, best


def _encode(chain: Sequence[Any], data: Any) -> Any:
    for codec in chain:
        data = codec.encode(data)
    return data


def _decode(chain: Sequence[Any], data: Any) -> Any:
    for codec in reversed(chain):
        data = codec.decode(data)
    return data


def check(tile: npt.NDArray[Any]) -> None:
    """What is measured is what zarr stores, and no flipped bit gets through."""
    rng = np.random.default_rng(0)
    raw = np.ascontiguousarray(tile).view(np.uint8).reshape(-1)
    for candidate in CANDIDATES:
        chain = candidate.called(tile.itemsize)
        stored = bytes(_encode(chain, raw))
        assert stored == _chunk_of_zarr(tile, candidate), f"zarr stores {candidate.name} otherwise"
        for bit in rng.integers(0, 8 * len(stored), 8):
            damaged = bytearray(stored)
            damaged[bit // 8] ^= 1 << (bit % 8)
            with suppress(ValueError, RuntimeError):  # found, as it must be
                _decode(chain, bytes(damaged))
                raise AssertionError(f"{candidate.name} lets a flipped bit through")


def _chunk_of_zarr(tile: npt.NDArray[Any], candidate: Candidate) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        _in_zarr(tile, candidate, Path(folder))
        return (Path(folder) / "c" / "0" / "0").read_bytes()


def _in_zarr(tile: npt.NDArray[Any], candidate: Candidate, folder: Path) -> Any:
    """A Zarr array of one chunk, written by zarr."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that some are not in the specification is in the report
        array = zarr.create_array(
            store=str(folder),
            shape=tile.shape,
            chunks=tile.shape,
            dtype=tile.dtype,
            compressors=candidate.stored(tile.itemsize),
        )
        array[:] = tile
    return array


def page_cache_bandwidth(block: int) -> float:
    """Bytes per second at which one thread reads files of a tile's size that are in memory."""
    content, best = os.urandom(4 * block * block), float("inf")
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / str(i) for i in range(64)]  # more than the processor's caches hold
        for file in files:
            file.write_bytes(content)
        for _ in range(3):
            begun = time.thread_time()
            for file in files:
                file.read_bytes()
            best = min(best, time.thread_time() - begun)
    return len(files) * len(content) / best
