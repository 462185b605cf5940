"""What a store says about itself: one JSON file with one writer, the driver."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from gmkcf_dask.corpus.model import Corpus, Matrix
from gmkcf_dask.errors import StoreError
from gmkcf_dask.files import get, put_atomic
from gmkcf_dask.kernels.specs import Normalization, Precomputed, Scaling
from gmkcf_dask.kernels.tiles import ResolvedKernel
from gmkcf_dask.plan import Precision, Tiling

FORMAT = "gmkcf-kernels"
FORMAT_VERSION = 2
MANIFEST = "manifest.json"


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
        Digests of features, ids, labels and terms the store was made from.
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
        put_atomic(store / MANIFEST, json.dumps(content, indent=1).encode())

    @classmethod
    def read(cls, store: Path) -> Manifest:
        """The manifest of a store, or one sentence on why there is none to be had."""
        content = get(store / MANIFEST)
        if content is None:
            if not store.exists():
                raise StoreError(f"there is no kernel store at {store}: check the path")
            inside = store / "store.zarr"
            hint = f"; did you mean {inside}?" if (inside / MANIFEST).exists() else ""
            raise StoreError(f"{store} is not a kernel store: it has no {MANIFEST}{hint}")
        try:
            found: dict[str, Any] = json.loads(content)
            if found.pop("format") != FORMAT:
                raise KeyError("format")
            at_version = found.pop("format_version")
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise StoreError(
                f"the manifest of {store} is damaged: build the store again at another path"
            ) from error
        if at_version != FORMAT_VERSION:
            raise StoreError(
                f"{store} has format version {at_version}, this program reads {FORMAT_VERSION}: "
                "build the store again, or use the version of gmkcf-dask that made it"
            )
        try:
            found["kernels"] = tuple(KernelRecord(**record) for record in found["kernels"])
            found["tiles_done"] = tuple(found["tiles_done"])
            found["stored_as"] = tuple(found["stored_as"])
            return cls(**found)
        except (KeyError, TypeError) as error:
            raise StoreError(
                f"the manifest of {store} is damaged: build the store again at another path"
            ) from error


def is_own_format(store: Path) -> bool:
    """Whether a folder's manifest is one of ours, of whatever version."""
    try:
        return bool(json.loads(get(store / MANIFEST) or b"{}").get("format") == FORMAT)
    except (ValueError, AttributeError):
        return False


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
    ]
    return different


def package_versions() -> dict[str, str]:
    """Versions of what made a store or a result."""
    names = ("gmkcf-dask", "numpy", "scipy", "scikit-learn", "dask", "distributed", "zarr")
    return {"python": platform.python_version(), **{name: version(name) for name in names}}


def corpus_digests(corpus: Corpus) -> dict[str, str]:
    """Fingerprint of a corpus, part by part."""
    return {
        "features": features_digest(corpus.X),
        "ids": strings_digest(corpus.ids),
        "labels": strings_digest(corpus.labels),
        "terms": strings_digest(corpus.terms),
    }


def features_digest(X: Matrix) -> str:
    """Digest of the values and shape of dense or canonical sparse features."""
    digest = hashlib.blake2b(repr((X.shape, type(X).__name__)).encode(), digest_size=16)
    if isinstance(X, np.ndarray):
        digest.update(np.ascontiguousarray(X).data)
    else:
        digest.update(np.ascontiguousarray(X.data).data)
        digest.update(X.indices.astype(np.int64).data)
        digest.update(X.indptr.astype(np.int64).data)
    return digest.hexdigest()


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
    content = json.dumps(list(strings), ensure_ascii=False).encode()
    return hashlib.blake2b(content, digest_size=16).hexdigest()
