"""What a store says about itself: one JSON file with one writer, the driver."""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gmkcf_dask.corpus.model import Corpus, Matrix
from gmkcf_dask.errors import StoreError
from gmkcf_dask.files import exists, get, put_atomic
from gmkcf_dask.kernels.specs import (
    NORMALIZATIONS,
    SCALINGS,
    Normalization,
    Precomputed,
    Scaling,
)
from gmkcf_dask.kernels.tiles import ResolvedKernel
from gmkcf_dask.plan import FEATURE_CHUNK, STORED_BYTES, Precision, Tiling
from gmkcf_dask.security import is_plain_name

FORMAT = "gmkcf-kernels"
FORMAT_VERSION = 3
MANIFEST = "manifest.json"
DESCRIPTIONS = ("titles", "excerpts", "reading")
"""Of texts: what people read, and how new ones are read; kernels do not depend on it."""
DIGEST_BYTES = 8
"""Of a tile's digest."""


@dataclass(frozen=True)
class KernelRecord:
    """One kernel of a store: name, options, and the statistics that were found."""

    name: str
    normalization: Normalization
    scaling: Scaling
    mean_distance: float | None = None
    sigma: float | None = None
    d2_max: float | None = None
    minimum: float | None = None
    maximum: float | None = None

    @classmethod
    def of(cls, kernel: ResolvedKernel) -> KernelRecord:
        values = {f.name: getattr(kernel, f.name) for f in fields(cls)}
        return cls(**values)


@dataclass(frozen=True)
class Manifest:
    """The state of a store.

    Attributes
    ----------
    inputs : dict of str
        Digests of what the store was made from: features, ids, labels, terms, and for texts titles,
        excerpts and how they were read.
    resolved : bool
        Whether the kernels' statistics are known (they come before the first tile).
    tiles_done : tuple of int
        Tiles written for every kernel.
    stored_minima : dict of float
        Smallest stored value by kernel, over the tiles done: tells whether signs are mixed.
    merge_tolerance : float
        Kernels no further apart than this are stored once.
    nearest : dict, or None before the first tile
        By kernel, the earlier one it is compared with.
    differences : dict
        By kernel, how far it is from that one on the tiles done.
    stored_as : tuple of str
        By kernel, the one whose tiles stand for it; empty where each has its own.
    formulas : tuple of str
        Kernels that can be computed again from the features in the store, from their names alone.
    digests : dict of str
        By kernel that has tiles, the digests of all its tiles in a row; see `digests`.
    vectors : dict of str
        Digests of the vectors in the store (diagonals, norms), by their path inside.
    """

    store_id: str
    n_samples: int
    n_features: int
    block_size: int
    precision: Precision
    kernels: tuple[KernelRecord, ...]
    inputs: dict[str, str]
    versions: dict[str, str]
    resolved: bool = False
    complete: bool = False
    tiles_done: tuple[int, ...] = ()
    stored_minima: dict[str, float] | None = None
    merge_tolerance: float = 0.0
    nearest: dict[str, str] | None = None
    differences: dict[str, float] = field(default_factory=dict)
    stored_as: tuple[str, ...] = ()
    formulas: tuple[str, ...] = ()
    digests: dict[str, str] = field(default_factory=dict)
    vectors: dict[str, str] = field(default_factory=dict)

    @property
    def tiling(self) -> Tiling:
        return Tiling(self.n_samples, self.block_size)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(kernel.name for kernel in self.kernels)

    @property
    def stored(self) -> tuple[int, ...]:
        """By kernel, the number of the one whose tiles stand for it."""
        return tuple(map(self.names.index, self.stored_as or self.names))

    def write(self, store: Path) -> None:
        """Replace the store's manifest by this one."""
        content = {"format": FORMAT, "format_version": FORMAT_VERSION, **asdict(self)}
        put_atomic(store / MANIFEST, sealed(content))

    @classmethod
    def read(cls, store: Path) -> Manifest:
        """The manifest of a store, or one sentence on why there is none to be had."""
        content = _content(store)
        if content is None:
            if not exists(store):
                raise StoreError(f"there is no kernel store at {store}: check the path")
            inside = store / "store.zarr"
            hint = f"; did you mean {inside}?" if exists(inside / MANIFEST) else ""
            raise StoreError(f"{store} is not a kernel store: it has no {MANIFEST}{hint}")
        found = _parsed(content)
        if found.pop("format", None) != FORMAT:
            raise _damaged(store, "it is not one of ours")
        at_version = found.pop("format_version", None)
        if not _whole(at_version, 0, _MOST):
            raise _damaged(store, "its format version cannot be right")
        if at_version != FORMAT_VERSION:
            raise StoreError(
                f"{store} has format version {at_version}, this program reads {FORMAT_VERSION}: "
                "build the store again, or use the version of gmkcf-dask that made it"
            )
        if not is_sealed(content):
            raise _damaged(store, "its digest differs")
        found.pop("digest", None)
        try:
            found["kernels"] = tuple(KernelRecord(**record) for record in found["kernels"])
            for name in ("tiles_done", "stored_as", "formulas"):
                found[name] = tuple(found[name])
            manifest = cls(**found)
        except (KeyError, TypeError) as error:
            raise _damaged(store, "fields are missing") from error
        wrong = wrong_fields(manifest)
        if wrong:
            raise _damaged(store, f"{', '.join(wrong)} cannot be right")
        return manifest


def sealed(content: dict[str, Any]) -> bytes:
    """A manifest as it is written: JSON, with the digest of all its other bytes at the end."""
    body = json.dumps({k: v for k, v in content.items() if k != "digest"}, indent=1).encode()
    digest = hashlib.blake2b(body, digest_size=16).hexdigest()
    return body[: -len(_END)] + _SEAL % digest.encode()


def is_sealed(content: bytes) -> bool:
    """Whether no byte of a manifest has changed since it was written."""
    body = content[: -len(_SEAL % (b"0" * 32))] + _END
    digest = hashlib.blake2b(body, digest_size=16).hexdigest()
    return content.endswith(_SEAL % digest.encode())


_END = b"\n}"
_SEAL = b',\n "digest": "%b"\n}'


def _content(store: Path) -> bytes | None:
    try:
        return get(store / MANIFEST)
    except StoreError as error:
        raise _damaged(store, f"{error}".split(": ")[0]) from error


def _parsed(content: bytes) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _damaged(store: Path, why: str) -> StoreError:
    return StoreError(
        f"the manifest of {store} is damaged ({why}): build the store again at another path"
    )


def is_own_format(store: Path) -> bool:
    """Whether a folder's manifest is one of ours, of whatever version."""
    return bool(_parsed(_content(store) or b"").get("format") == FORMAT)


def differences(found: Manifest, wanted: Manifest, *, any_block: bool) -> list[str]:
    """The fields in which a store differs from the one wanted, in words."""
    pairs: list[tuple[str, object, object]] = [
        ("samples", found.n_samples, wanted.n_samples),
        ("features", found.n_features, wanted.n_features),
        ("precision", found.precision, wanted.precision),
        ("kernels", ",".join(found.names), ",".join(wanted.names)),
        ("merged duplicates", found.merge_tolerance, wanted.merge_tolerance),
    ]
    if not any_block:
        pairs.append(("block size", found.block_size, wanted.block_size))
    for mine, theirs in zip(found.kernels, wanted.kernels, strict=False):
        if mine.name == theirs.name:
            pairs += [
                (f"normalization of {mine.name}", mine.normalization, theirs.normalization),
                (f"scaling of {mine.name}", mine.scaling, theirs.scaling),
            ]
    different = [f"{what} (store: {a}, asked: {b})" for what, a, b in pairs if a != b]
    different += [
        f"content of {what}"
        for what in wanted.inputs
        if found.inputs.get(what) != wanted.inputs[what]
        and not (what in DESCRIPTIONS and what not in found.inputs)  # of an earlier version
    ]
    return different


def wrong_fields(m: Manifest) -> list[str]:
    """Fields of a manifest whose type or range is impossible; nothing is done with them before."""
    numbers = {"n_samples": 1, "n_features": 0, "block_size": 1}
    wrong = [name for name, low in numbers.items() if not _whole(getattr(m, name), low, _MOST)]
    if wrong:
        return wrong
    n_tiles, names = m.tiling.n_tiles, [kernel.name for kernel in m.kernels]
    if not names or len(names) > _MOST_KERNELS or not all(map(is_plain_name, names)):
        return ["kernels"]
    texts = (m.inputs, m.versions, m.nearest or {}, m.digests, m.vectors)
    marked = m.tiles_done
    checks = {
        "store_id": _texts({"": m.store_id}) and len(m.store_id) == 32,
        "precision": m.precision in tuple(STORED_BYTES),
        "kernels": len(set(names)) == len(names) and all(map(right_record, m.kernels)),
        "inputs, versions, nearest, digests or vectors": all(map(_texts, texts)),
        "resolved or complete": isinstance(m.resolved, bool) and isinstance(m.complete, bool),
        "tiles_done": all(_whole(t, 0, n_tiles - 1) for t in marked)
        and len(set(marked)) == len(marked)
        and (not m.complete or len(marked) == n_tiles),
        "merge_tolerance": _number(m.merge_tolerance),
        "stored_minima": m.stored_minima is None or _numbers(m.stored_minima, names),
        "differences": _numbers(m.differences, None) and set(m.differences) <= set(names),
        "stored_as": isinstance(m.stored_as, tuple)
        and (not m.stored_as or len(m.stored_as) == len(names))
        and all(name in names for name in m.stored_as),
        "formulas": all(name in names for name in m.formulas),
    }
    wrong = [name for name, right in checks.items() if not right]
    if not wrong and not _right_keys(m, set(names)):
        wrong = ["nearest or vectors"]
    if not wrong and marked and not _right_digests(m, n_tiles):
        wrong = ["digests"]
    return wrong


_MOST = 1 << 40
_MOST_KERNELS = 100_000


def _right_digests(m: Manifest, n_tiles: int) -> bool:
    if not set(m.stored_as or m.names) <= set(m.digests) <= set(m.names):
        return False
    return all(
        len(text) == 2 * DIGEST_BYTES * n_tiles and set(text) <= set("0123456789abcdef")
        for text in m.digests.values()
    )


def _right_keys(m: Manifest, names: set[str]) -> bool:
    """Whether nothing is named but our kernels and vectors: files are written by these names."""
    vectors = {f"{kind}/{name}" for kind in ("diagonals", "norms") for name in names}
    nearest = m.nearest or {}
    return set(m.vectors) <= vectors and {*nearest, *nearest.values()} <= names


def right_record(record: KernelRecord) -> bool:
    """Whether options and statistics of a kernel are of the right kinds."""
    numbers = (record.mean_distance, record.sigma, record.d2_max, record.minimum, record.maximum)
    options = record.normalization in NORMALIZATIONS and record.scaling in SCALINGS
    return options and all(value is None or _number(value) for value in numbers)


def _whole(value: object, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _number(value: object) -> bool:
    # whole numbers of JSON can be larger than any float
    return isinstance(value, int | float) and abs(value) <= sys.float_info.max


def _numbers(found: object, names: list[str] | None) -> bool:
    if not isinstance(found, dict) or (names is not None and set(found) != set(names)):
        return False
    # before the first tile the smallest value is infinite
    return all(_number(value) or value in (np.inf, -np.inf) for value in found.values())


def _texts(found: object) -> bool:
    return isinstance(found, dict) and all(
        isinstance(value, str) and _printable(name + value) for name, value in found.items()
    )


def _printable(text: str) -> bool:
    """Names, versions, hexadecimal digits: neither line ends nor halves of characters."""
    return text.isascii() and text.isprintable()


def package_versions() -> dict[str, str]:
    """Versions of what made a store or a result."""
    names = ("gmkcf-dask", "numpy", "scipy", "scikit-learn", "dask", "distributed", "zarr")
    return {"python": platform.python_version(), **{name: version(name) for name in names}}


def corpus_digests(corpus: Corpus) -> dict[str, str]:
    """Fingerprint of a corpus, part by part."""
    digests = {
        "features": features_digest(corpus.X),
        "ids": strings_digest(corpus.ids),
        "labels": strings_digest(corpus.labels),
        "terms": strings_digest(corpus.terms),
    }
    described = {what: strings_digest(getattr(corpus, what)) for what in ("titles", "excerpts")}
    if corpus.reading is not None:
        described["reading"] = text_digest(corpus.reading.to_json())
    return digests | {what: digest for what, digest in described.items() if digest != "none"}


def features_digest(X: Matrix) -> str:
    """Digest of the values and shape of dense or canonical sparse features."""
    header = features_header(X.shape, sparse=not isinstance(X, np.ndarray))
    digest = hashlib.blake2b(header, digest_size=16)
    if isinstance(X, np.ndarray):
        digest.update(np.ascontiguousarray(X).data)
        return digest.hexdigest()
    for values, dtype in ((X.data, np.float64), (X.indices, np.int64), (X.indptr, np.int64)):
        for first in range(0, values.size, FEATURE_CHUNK):  # X may be larger than memory
            part = values[first : first + FEATURE_CHUNK].astype(dtype, copy=False)
            digest.update(np.ascontiguousarray(part).data)
    return digest.hexdigest()


def features_header(shape: tuple[int, ...], *, sparse: bool) -> bytes:
    """What a digest of features begins with."""
    return repr((tuple(shape), "csr_array" if sparse else "ndarray")).encode()


def vector_digest(values: npt.NDArray[np.float64]) -> str:
    """Digest of a vector of a store."""
    return hashlib.blake2b(np.ascontiguousarray(values).data, digest_size=16).hexdigest()


def matrices_digest(specs: Iterable[Precomputed]) -> str:
    """Digest of precomputed kernels."""
    digest = hashlib.blake2b(digest_size=16)
    for spec in specs:
        digest.update(repr((spec.name, spec.matrix.shape, str(spec.matrix.dtype))).encode())
        digest.update(np.ascontiguousarray(spec.matrix).data)
    return digest.hexdigest()


def strings_digest(strings: Iterable[str] | None) -> str:
    """Digest of a list of strings; 'none' where there is no list."""
    if strings is None:
        return "none"
    return text_digest(json.dumps(list(strings), ensure_ascii=False))


def text_digest(text: str) -> str:
    """Digest of a text."""
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
