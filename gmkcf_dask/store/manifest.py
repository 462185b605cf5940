"""What a store says about itself: one JSON file with one writer, the driver."""

from __future__ import annotations

import hashlib
import json
import math
import platform
import shlex
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta, Struct, structs

from gmkcf_dask.compute.costs import StoredGram
from gmkcf_dask.corpus.model import Corpus, Matrix
from gmkcf_dask.corpus.text_options import TextOptions
from gmkcf_dask.errors import DamagedStoreError, InputError, StoreError
from gmkcf_dask.kernels.factored import (
    FOR_CLUSTERS,
    PRODUCTS,
    ArrayShape,
    FactorKind,
    array_of,
    array_shapes,
    is_by_block,
    is_made_by_name,
    parts_of,
)
from gmkcf_dask.kernels.gram import GRAM, Content, GramMatrix, gram_spec
from gmkcf_dask.kernels.specs import (
    NAME,
    GivenFactor,
    Layout,
    Normalization,
    Precomputed,
    Rbf,
    Scaling,
    is_plain_name,
    is_thin,
)
from gmkcf_dask.kernels.tiles import ResolvedKernel
from gmkcf_dask.kernels.tiling import FACTOR_ROWS, FEATURE_CHUNK, Precision, Tiling
from gmkcf_dask.store.files import exists, get, put_atomic
from gmkcf_dask.system.units import ceil_div

STORE_FORMAT = "gmkcf-kernels"
FORMAT_VERSION = 4
FACTORED_VERSION, GRAM_VERSION = 5, 6
READABLE_VERSIONS = (3, 4, 5, 6)
"""Version 3 has no digests of feature chunks and no statistics of tiles, 5 has factored kernels, 6
the Gram matrix instead of the kernels that are functions of it."""
MANIFEST = "manifest.json"
DESCRIPTIONS = ("titles", "excerpts", "reading")
"""Of texts: what people read, and how new ones are read; kernels do not depend on it."""
INPUTS = ("features", "ids", "labels", "terms", *DESCRIPTIONS)
"""What a store keeps of its corpus, each with a digest in the manifest."""
_ALWAYS = set(INPUTS) - set(DESCRIPTIONS)
_GIVEN = ("precomputed kernels", "factors")
"""Inputs that have a digest only."""
DIGEST_BYTES = 8
"""Of a chunk's digest."""
SUMMARY_BYTES = 32
"""Of a `Summary`: four float64."""


_MOST = 1 << 40
_MOST_KERNELS = 100_000
_MAX = sys.float_info.max

Count = Annotated[int, Meta(ge=0, le=_MOST)]
Size = Annotated[int, Meta(ge=1, le=_MOST)]
Finite = Annotated[float, Meta(ge=-_MAX, le=_MAX)]
Ascii = Annotated[str, Meta(pattern=r"^[ -~]*\Z")]
"""Printable ASCII: names and versions."""
Hex = Annotated[str, Meta(pattern=r"^[0-9a-f]*\Z")]
StoreId = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]
KernelName = Annotated[str, Meta(pattern=rf"^{NAME.pattern}\Z")]


class KernelRecord(Struct, frozen=True, forbid_unknown_fields=True):
    """One kernel of a store: name, options and statistics."""

    name: KernelName
    normalization: Normalization
    scaling: Scaling
    mean_distance: Finite | None = None
    sigma: Finite | None = None
    d2_max: Finite | None = None
    minimum: Finite | None = None
    maximum: Finite | None = None

    @classmethod
    def of(cls, kernel: ResolvedKernel) -> KernelRecord:
        return cls(**{name: getattr(kernel, name) for name in cls.__struct_fields__})

    @property
    def options(self) -> dict[str, Any]:
        """Everything but the name, as `ResolvedKernel` takes it."""
        return {name: value for name, value in structs.asdict(self).items() if name != "name"}


class FeatureArray(Struct, frozen=True, forbid_unknown_fields=True):
    """One array of the features in a store.

    Attributes
    ----------
    shape : tuple of int
    digests : str
        Digests of its chunks in a row, as hexadecimal digits.
    """

    shape: tuple[Count, ...]
    digests: Hex


class FactorRecord(Struct, frozen=True, forbid_unknown_fields=True):
    """One factored kernel of a store.

    Attributes
    ----------
    normalization, scaling : str or None
        Of linear and cosine kernels: the options they were asked for with.
    columns : int or None
        Of a factor that is kept as sparse rows.
    """

    name: KernelName
    kind: FactorKind
    normalization: Normalization | None = None
    scaling: Scaling | None = None
    columns: Size | None = None

    def known(self) -> dict[str, Any]:
        """The fields that have a value."""
        return {name: value for name, value in structs.asdict(self).items() if value is not None}


class FactorOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """What the factored kernels of a store were made with."""

    max_clusters: Size
    """The largest number of clusters they have columns for."""


class FactorArray(Struct, frozen=True, forbid_unknown_fields=True):
    """One array that factors are made of; the digest of a chunk that is not there yet is zeros."""

    shape: tuple[Count, ...]
    dtype: Literal["float32", "float64", "int32"]
    digests: Hex


class GramRecord(Struct, frozen=True, forbid_unknown_fields=True):
    """The Gram matrix of a store, from which kernels are evaluated: see `kernels.gram`."""

    content: Content
    dtype: Literal["uint16", "float32", "float64"]
    unit_rows: bool
    shifted: bool = False
    tabulated: bool = False
    widths_from: Finite | None = None
    d_max: Annotated[float, Meta(ge=0.0, le=_MAX)] = 0.0
    mostly_equal: bool = False
    clipped: bool = False

    @classmethod
    def of(cls, matrix: GramMatrix) -> GramRecord:
        return cls(**asdict(matrix))

    @property
    def matrix(self) -> GramMatrix:
        return GramMatrix(**structs.asdict(self))


class Manifest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
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
    features : dict of FeatureArray
        The arrays of the features: `X`, and `offset` where distances are measured from one; or
        `data`, `indices` and `indptr`. Empty in stores of format version 3.
    tile_summaries : dict of str
        By kernel that has tiles, the `Summary` of every tile in a row. A repaired tile whose bits
        differ must agree with it. Empty in stores of format version 3.
    vector_summaries : dict of str
        The same for the vectors, by their path inside.
    text_options : TextOptions or None
        How texts were read, so that the same input is read the same way when it is written again.
    factored : tuple of FactorRecord
        Kernels that are known by factors; `kernels` are those in tiles.
    factor_options : FactorOptions or None
    factors : dict of FactorArray
        The arrays of factored kernels by name; see `store.factors`.
    gram : GramRecord or None
        What the kernels of `formulas` are evaluated from, where they have no tiles of their own.
    """

    store_id: StoreId
    n_samples: Size
    n_features: Count
    block_size: Size
    precision: Precision
    kernels: Annotated[tuple[KernelRecord, ...], Meta(max_length=_MOST_KERNELS)]
    inputs: dict[Ascii, Ascii]
    versions: dict[Ascii, Ascii]
    resolved: bool = False
    complete: bool = False
    tiles_done: tuple[Count, ...]
    stored_minima: dict[str, float] | None = None
    merge_tolerance: Finite = 0.0
    nearest: dict[str, str] | None = None
    differences: dict[str, float] = {}
    stored_as: tuple[str, ...]
    formulas: tuple[str, ...]
    digests: dict[str, Hex] = {}
    vectors: dict[str, Hex] = {}
    features: dict[str, FeatureArray] = {}
    tile_summaries: dict[str, Hex] = {}
    vector_summaries: dict[str, Hex] = {}
    text_options: TextOptions | None = None
    factored: Annotated[tuple[FactorRecord, ...], Meta(max_length=_MOST_KERNELS)] = ()
    factor_options: FactorOptions | None = None
    factors: dict[str, FactorArray] = {}
    gram: GramRecord | None = None

    @property
    def lacks(self) -> list[str]:
        """What a store of an earlier format does not have, in words."""
        lacks = []
        if self.n_features and not self.features:
            lacks.append("digests of the blocks of its features")
        if self.complete and self.kernels and not (self.tile_summaries and self.vector_summaries):
            lacks.append("statistics of its tiles")
        return lacks

    @property
    def content(self) -> dict[str, str]:
        """Digests that tell the kernels of a store from those of any other, by name.

        Two stores of the same input and options have the same content, whatever their paths and
        names. `tiles` differs where other versions or processors round differently.
        """
        sizes = (self.n_samples, self.n_features, self.block_size, self.precision)
        kernels = [structs.asdict(kernel) for kernel in self.kernels]
        made_of: list[object] = [*sizes, kernels, self.inputs, list(self.stored_as)]
        parts: dict[str, object] = {"store": made_of, "tiles": self.digests}
        if self.gram is not None:
            made_of.append(structs.asdict(self.gram))
        if self.factored:
            options = None if self.factor_options is None else structs.asdict(self.factor_options)
            made_of += [[record.known() for record in self.factored], options]
            parts["factors"] = {name: array.digests for name, array in self.factors.items()}
        return {name: text_digest(json.dumps(part)) for name, part in parts.items()}

    @property
    def tiling(self) -> Tiling:
        return Tiling(self.n_samples, self.block_size, gram=self.gram is not None)

    @property
    def n_tiles(self) -> int:
        """Tiles of each kernel that has tiles; 0 where none has."""
        return self.tiling.n_tiles if self.kernels else 0

    @property
    def incomplete(self) -> str:
        """The word for a build that broke off, with the tiles done where there are tiles."""
        done, total = len(self.tiles_done), self.n_tiles
        return f"incomplete ({done} of {total} tiles)" if total else "incomplete"

    @property
    def names(self) -> tuple[str, ...]:
        """Kernels in tiles."""
        return tuple(kernel.name for kernel in self.kernels)

    @property
    def kernel_names(self) -> tuple[str, ...]:
        """All kernels: those in tiles, then the factored ones."""
        return (*self.names, *(record.name for record in self.factored))

    @property
    def stored(self) -> tuple[int, ...]:
        """By kernel, the number of the one whose tiles stand for it."""
        return tuple(map(self.names.index, self.stored_as or self.names))

    @property
    def layout(self) -> Layout:
        """The layout, as it is asked for; auto where no kernel is in tiles, or some beside gram."""
        if self.gram is None:
            return "each" if self.kernels else "auto"
        return "auto" if self.own_names else "gram"

    @property
    def own_names(self) -> tuple[str, ...]:
        """Kernels in tiles of their own."""
        if self.gram is None:
            return self.names
        return tuple(name for name in self.names if name not in self.formulas)

    @property
    def own_stored(self) -> tuple[str, ...]:
        """Of these, the ones whose tiles stand for them."""
        stands = dict(zip(self.names, self.stored_as or self.names, strict=False))
        return tuple(stands.get(name, name) for name in self.own_names)

    @property
    def stored_gram(self) -> StoredGram | None:
        """The Gram matrix as plans know it."""
        if self.gram is None:
            return None
        return StoredGram(self.gram.matrix.itemsize, self.gram.tabulated, len(self.own_names))

    @property
    def array_names(self) -> tuple[str, ...]:
        """All arrays of tiles that a build writes."""
        return (*self.own_names, *([] if self.gram is None else [GRAM]))

    @property
    def stored_arrays(self) -> tuple[str, ...]:
        """Those that are kept, each once."""
        return tuple(dict.fromkeys((*self.own_stored, *([] if self.gram is None else [GRAM]))))

    @property
    def array_numbers(self) -> tuple[int, ...]:
        """By kernel, the number of its array: see `TileReader.stored`."""
        if self.gram is None:
            return self.stored
        m, own = len(self.names), set(self.own_names)
        pairs = zip(self.names, self.stored, strict=True)
        return (*(stored if name in own else m for name, stored in pairs), m)

    def write(self, store: Path) -> None:
        """Replace the store's manifest by this one."""
        content = {
            "format": STORE_FORMAT,
            "format_version": FORMAT_VERSION,
            **structs.asdict(self),
            "kernels": [structs.asdict(kernel) for kernel in self.kernels],
            "features": {name: structs.asdict(array) for name, array in self.features.items()},
            "text_options": None if self.text_options is None else self.text_options.to_json(),
        }
        del content["gram"]
        if self.gram is not None:
            content |= {"format_version": GRAM_VERSION, "gram": structs.asdict(self.gram)}
        if self.factored:
            if self.gram is None:
                content["format_version"] = FACTORED_VERSION
            options = self.factor_options
            content |= {
                "factored": [record.known() for record in self.factored],
                "factor_options": None if options is None else structs.asdict(options),
                "factors": {name: structs.asdict(array) for name, array in self.factors.items()},
            }
        else:  # readable by versions that know of tiles only
            for name in ("factored", "factor_options", "factors"):
                del content[name]
        put_atomic(store / MANIFEST, sealed(content))

    @classmethod
    def read(cls, store: Path) -> Manifest:
        """Read and validate the manifest of a store.

        Raises
        ------
        StoreError
            There is no store, or it has another format; a DamagedStoreError where it is damaged.
        """
        content = _content(store)
        if content is None:
            if not exists(store):
                raise StoreError(f"there is no kernel store at {store}: check the path")
            refuse_without_manifest(store)
            inside = store / "store.zarr"
            hint = f"; did you mean {inside}?" if exists(inside / MANIFEST) else ""
            raise StoreError(f"{store} is not a kernel store: it has no {MANIFEST}{hint}")
        fields = _parsed(content)
        if fields.pop("format", None) != STORE_FORMAT:
            if fields and not has_kernels(store):  # of another program
                raise StoreError(
                    f"{store} is not a kernel store: its {MANIFEST} is not one of ours"
                )
            raise _damaged(store, "it is not one of ours")
        at_version = fields.pop("format_version", None)
        if type(at_version) is not int or not 0 <= at_version <= _MOST:
            raise _damaged(store, "its format version is invalid")
        if at_version not in READABLE_VERSIONS:
            known = " and ".join(map(str, READABLE_VERSIONS))
            raise StoreError(
                f"{store} has format version {at_version}, this program reads {known}: "
                "build the store again, or use the version of gmkcf-dask that made it"
            )
        if not is_sealed(content):
            raise _damaged(store, "its digest differs")
        fields.pop("digest", None)
        try:
            options = fields.pop("text_options", None)
            manifest = msgspec.convert(fields, cls)
            if options is not None:
                manifest = structs.replace(manifest, text_options=TextOptions.from_json(options))
        except UnicodeEncodeError as error:  # JSON can hold it, UTF-8 cannot
            raise _damaged(store, "a text has half a character") from error
        except (msgspec.ValidationError, InputError, OverflowError) as error:
            raise _damaged(store, f"{error}"[:200]) from error
        wrong = _inconsistent_fields(manifest)
        if wrong:
            raise _damaged(store, f"invalid {', '.join(wrong)}")
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
        fields = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}


def _damaged(store: Path, why: str) -> DamagedStoreError:
    return DamagedStoreError(
        f"the manifest of {store} is damaged ({why}): remove the store and build it again with "
        f"{build_command(store)} and the options it was made with (kernels, precision, block, text)"
    )


def build_command(store: str | Path) -> str:
    """The command that writes a store, or what is damaged of it, from its input."""
    return f"gmkcf build INPUT {shlex.quote(str(store))}"


def factors_command(store: str | Path) -> str:
    """The build that writes factors again that were passed in, in words."""
    return (
        f"the same build: gmkcf build NAME=FILE {shlex.quote(str(store))} --kernels factored, or "
        "fit in Python with the same factors and store"
    )


def fix_command(store: str | Path, part: str) -> str:
    """The command that fixes a damaged part of a store, such as "norms/rbf_1" or "ids".

    Kernels and vectors are computed from the features inside. The features and descriptions of the
    samples come from the input alone.
    """
    if part.partition("/")[0] in INPUTS:
        return build_command(store)
    return f"gmkcf repair {shlex.quote(str(store))}"


def is_own_format(store: Path) -> bool:
    """Whether a folder's manifest is one of ours, of whatever version."""
    return bool(_parsed(_content(store) or b"").get("format") == STORE_FORMAT)


def has_kernels(store: Path) -> bool:
    """Whether a folder holds kernels as a store does, with a manifest or without."""
    return exists(store / "kernels" / "zarr.json")


def refuse_without_manifest(store: Path) -> None:
    """Refuse a folder that holds kernels but no manifest: a damaged store."""
    if has_kernels(store):
        raise _damaged(store, f"{MANIFEST} is missing")


def manifest_differences(current: Manifest, wanted: Manifest, *, any_block: bool) -> list[str]:
    """The fields in which a store differs from the one wanted, in words."""
    pairs: list[tuple[str, object, object]] = [
        ("samples", current.n_samples, wanted.n_samples),
        ("features", current.n_features, wanted.n_features),
        ("precision", current.precision, wanted.precision),
        ("kernels", ",".join(current.kernel_names), ",".join(wanted.kernel_names)),
        ("largest number of clusters", _max_clusters(current), _max_clusters(wanted)),
        ("merged duplicates", current.merge_tolerance, wanted.merge_tolerance),
    ]
    if not any_block:
        pairs.append(("block size", current.block_size, wanted.block_size))
    if current.kernel_names == wanted.kernel_names:  # else it may follow from these
        pairs.append(("layout", current.layout, wanted.layout))
    both: list[tuple[Any, Any]] = [*zip(current.kernels, wanted.kernels, strict=False)]
    both += zip(current.factored, wanted.factored, strict=False)
    for mine, theirs in both:
        if mine.name == theirs.name:
            for option in ("normalization", "scaling"):
                values = getattr(mine, option), getattr(theirs, option)
                pairs.append((f"{option} of {mine.name}", *values))
    different = [f"{what} (store: {a}, requested: {b})" for what, a, b in pairs if a != b]
    different += [
        f"content of {what}"
        for what in wanted.inputs
        if current.inputs.get(what) != wanted.inputs[what]
        and not (what in DESCRIPTIONS and what not in current.inputs)  # of an earlier version
    ]
    return different


def _max_clusters(m: Manifest) -> int | None:
    if m.factor_options is None or not any(one.kind in FOR_CLUSTERS for one in m.factored):
        return None
    return m.factor_options.max_clusters


def _inconsistent_fields(m: Manifest) -> list[str]:
    """Fields that do not fit the others: files are read and written by these names and sizes."""
    names, n_tiles = set(m.names), m.n_tiles
    stored, nearest, done = set(m.stored_as or m.names), m.nearest or {}, set(m.tiles_done)
    vectors = {f"{kind}/{name}" for kind in ("diagonals", "norms") for name in names}
    arrays, kept = set(m.array_names), set(m.stored_arrays)
    if m.gram is not None:
        vectors |= set(m.gram.matrix.vectors)
    checks = {
        "kernels": len(set(m.kernel_names)) == len(m.kernel_names) > 0
        and all(map(is_plain_name, m.kernel_names)),
        "inputs": set(m.inputs) <= {*INPUTS, *_GIVEN}
        and (not m.n_features or set(m.inputs) >= _ALWAYS),
        "factors": _factors_fit(m),
        "features": _features_fit(m),
        "tiles_done": max(done, default=-1) < n_tiles
        and len(done) == len(m.tiles_done)
        and (not m.complete or len(done) == n_tiles),
        "stored_minima": m.stored_minima is None
        or (set(m.stored_minima) == names and not _has_nan(m.stored_minima)),
        "differences": set(m.differences) <= names and not _has_nan(m.differences),
        "stored_as": stored <= names and len(m.stored_as) in (0, len(m.kernels)),
        "formulas": set(m.formulas) <= names,
        "gram": m.gram is None or _gram_fits(m, m.gram),
        "nearest": {*nearest, *nearest.values()} <= names,
        "vectors": set(m.vectors) <= vectors,
        "digests": not done
        or (kept <= set(m.digests) <= arrays and _have_bytes(m.digests, DIGEST_BYTES * n_tiles)),
        "tile_summaries": set(m.tile_summaries) <= arrays
        and _have_bytes(m.tile_summaries, SUMMARY_BYTES * n_tiles),
        "vector_summaries": set(m.vector_summaries) <= set(m.vectors)
        and _have_bytes(m.vector_summaries, SUMMARY_BYTES),
    }
    return [name for name, right in checks.items() if not right]


def _gram_fits(m: Manifest, gram: GramRecord) -> bool:
    """Whether a Gram matrix is one that can be, and kernels are evaluated from it."""
    stands = zip(m.names, m.stored_as or m.names, strict=False)
    if not (m.formulas and m.n_features and all(map(_is_computed, m.formulas))):
        return False
    kernels = [
        ResolvedKernel(spec=gram_spec(record.name), **record.options)
        for record in m.kernels
        if record.name in m.formulas
    ]
    distances = gram.content != "products"
    return (
        (gram.content, gram.dtype) in _KEPT[m.precision]
        and not (gram.unit_rows and not distances)
        and not (gram.shifted and distances)
        and not (gram.tabulated and not (distances and _are_tables(gram, kernels)))
        and all(a == b or a not in m.formulas for a, b in stands)
        and (not m.resolved or all(_is_resolved(m, kernel) for kernel in kernels))
        and (not m.resolved or set(gram.matrix.vectors) <= set(m.vectors))
    )


_KEPT: dict[Precision, set[tuple[str, str]]] = {
    "compact": {("codes", "uint16"), ("distances", "float32"), ("products", "float32"),
                ("products", "float64")},
    "float32": {("distances", "float32"), ("products", "float32"), ("products", "float64")},
    "float64": {("products", "float64")},
}  # fmt: skip
"""By precision, what may be kept of pairs, and how."""


def _are_tables(gram: GramRecord, kernels: Iterable[ResolvedKernel]) -> bool:
    """Whether each of these kernels is a function of the distance alone."""
    return all(
        kernel.normalization != "degree" and (gram.unit_rows or isinstance(kernel.spec, Rbf))
        for kernel in kernels
    )


def _is_resolved(m: Manifest, kernel: ResolvedKernel) -> bool:
    """Whether a manifest has what the formula of a kernel needs."""
    return (
        (not isinstance(kernel.spec, Rbf) or None not in (kernel.sigma, kernel.d2_max))
        and (kernel.scaling == "none" or None not in (kernel.minimum, kernel.maximum))
        and (not kernel.needs_norms or f"norms/{kernel.name}" in m.vectors)
    )


def _is_computed(name: str) -> bool:
    try:
        gram_spec(name)
    except InputError:
        return False
    return True


def _has_nan(numbers: Mapping[str, float]) -> bool:
    return any(map(math.isnan, numbers.values()))


def _have_bytes(texts: Mapping[str, str], n_bytes: int) -> bool:
    return all(len(text) == 2 * n_bytes for text in texts.values())


def _factors_fit(m: Manifest) -> bool:
    """Whether names, shapes and digests of the arrays of factors are possible."""
    if not m.factored or m.factor_options is None:
        return not m.factored and not m.factors and m.factor_options is None
    kinds = {record.name: record.kind for record in m.factored}
    if not all(is_made_by_name(name, kind) for name, kind in kinds.items()):
        return False
    if any(not _is_possible(record, m) for record in m.factored):
        return False
    shapes = array_shapes(kinds, m.n_samples, m.n_features, m.factor_options.max_clusters)
    given = [record for record in m.factored if record.kind == "given"]
    dense = {array_of(one.name, one.kind) for one in given if one.columns is None}
    thin = {part: one for one in given if one.columns for part in parts_of(one.name)}
    expected = {*shapes, *dense, *thin}
    if not set(m.factors) <= expected or (m.complete and set(m.factors) != expected):
        return False
    if any(len({m.factors[p].shape for p in parts_of(one.name)[1:] if p in m.factors}) > 1
           for one in thin.values()):  # fmt: skip
        return False
    n_blocks = ceil_div(m.n_samples, FACTOR_ROWS)

    def fits(name: str, array: FactorArray) -> bool:
        if name in dense:
            return _is_given_array(array, m)
        if name not in thin:
            return _has_shape(array, shapes[name])
        if not is_by_block(name):
            return (array.shape, array.dtype) == ((m.n_samples,), "int32")
        values = name == parts_of(thin[name].name)[2]
        return (
            len(array.shape) == 2
            and array.shape[0] == n_blocks
            and array.shape[1] >= 1
            and (array.dtype != "int32") == values
        )

    return all(
        fits(name, array)
        and len(array.digests)
        == 2 * DIGEST_BYTES * ceil_div(array.shape[0], factor_chunk_rows(name))
        for name, array in m.factors.items()
    )


def _is_possible(record: FactorRecord, m: Manifest) -> bool:
    """Whether the fields of a record fit its kind."""
    options = record.normalization is not None and record.scaling is not None
    if record.kind in PRODUCTS:
        return options and record.columns is None and m.n_features > 0
    none = record.normalization is None and record.scaling is None
    return none and (record.columns is None or record.kind == "given")


def factor_chunk_rows(name: str) -> int:
    """Rows of a chunk of an array that factors are made of."""
    return 1 if is_by_block(name) else FACTOR_ROWS


def _has_shape(array: FactorArray, expected: ArrayShape) -> bool:
    return (array.shape, array.dtype) == (expected.shape, expected.dtype)


def _is_given_array(array: FactorArray, m: Manifest) -> bool:
    """One row per sample, of any number of columns."""
    return (
        len(array.shape) == 2
        and array.shape[0] == m.n_samples
        and array.shape[1] >= 1
        and array.dtype != "int32"
    )


def _features_fit(m: Manifest) -> bool:
    """Whether names, shapes and digests of the feature arrays are possible."""
    if not m.features:
        return True
    shapes = {name: array.shape for name, array in m.features.items()}
    if "X" in shapes:
        expected: dict[str, tuple[int, ...]] = {"X": (m.n_samples, m.n_features)}
        if "offset" in shapes:
            expected["offset"] = (m.n_features,)
    else:
        entries = shapes.get("data", ())
        expected = {"data": entries, "indices": entries, "indptr": (m.n_samples + 1,)}
        if len(entries) != 1 or entries[0] > m.n_samples * m.n_features:
            return False
    return shapes == expected and all(
        len(array.digests) == 2 * DIGEST_BYTES * ceil_div(array.shape[0], feature_chunk(name, m))
        for name, array in m.features.items()
    )


def feature_chunk(name: str, m: Manifest) -> int:
    """Rows, or values, of one chunk of a feature array."""
    if name == "X":
        return min(m.block_size, m.n_samples)
    if name == "offset":
        return m.n_features
    return FEATURE_CHUNK


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


def factors_digest(specs: Iterable[GivenFactor]) -> str:
    """Digest of factors the user brings, a row block at a time: they may be larger than memory."""
    digest = hashlib.blake2b(digest_size=16)
    for spec in specs:
        Z = spec.factor
        digest.update(repr((spec.name, Z.shape, str(Z.dtype))).encode())
        if is_thin(Z):
            parts: Iterable[Any] = (Z.data, Z.indices, Z.indptr)
        else:
            parts = (Z[i : i + FACTOR_ROWS] for i in range(0, Z.shape[0], FACTOR_ROWS))
        for part in parts:
            digest.update(np.ascontiguousarray(part).data)
    return digest.hexdigest()


def strings_digest(strings: Iterable[str] | None) -> str:
    """Digest of a list of strings; 'none' where there is no list."""
    if strings is None:
        return "none"
    return text_digest(json.dumps(list(strings), ensure_ascii=False))


def text_digest(text: str) -> str:
    """Digest of a text."""
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
