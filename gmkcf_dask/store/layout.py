"""The `zarr.json` files of a store: compared with what we write before anything is opened.

Zarr opens whatever such a file says: another shape, another type, codecs that run code. Ours are
known in advance from the manifest, so every field is compared, and nothing else is accepted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gmkcf_dask.kernels.factored import is_by_block
from gmkcf_dask.kernels.gram import GRAM, GramMatrix
from gmkcf_dask.kernels.tiles import COMPACT_MAX, STORED_DTYPE
from gmkcf_dask.kernels.tiling import FACTOR_ROWS, FEATURE_CHUNK
from gmkcf_dask.store.chunks import Codec, codec_fields
from gmkcf_dask.store.files import get, names_in, prefetched
from gmkcf_dask.store.manifest import FactorArray, Manifest

METADATA = "zarr.json"
FILL_VALUE: dict[str, float] = {
    "float32": np.nan,
    "float64": np.nan,
    "uint16": COMPACT_MAX + 1,
    "int64": -1,
    "int32": -(1 << 31),
}
"""By stored dtype, a value that cannot be data."""
Give = Callable[[Path], bytes | None]
_LARGEST = 1 << 20  # bytes of a zarr.json; ours have less than one thousand


@dataclass(frozen=True)
class Layout:
    """An array as a store has it: its fill value follows from the dtype."""

    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    dtype: str
    codec: Codec = "zstd"

    def fields(self) -> dict[str, Any]:
        """What its zarr.json says."""
        fill = FILL_VALUE[self.dtype]
        return {
            "zarr_format": 3,
            "node_type": "array",
            "shape": list(self.shape),
            "data_type": self.dtype,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(self.chunks)}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": "NaN" if np.isnan(fill) else int(fill),
            "codecs": codec_fields(self.codec, np.dtype(self.dtype).itemsize),
        }


GROUP = {"zarr_format": 3, "node_type": "group"}


@dataclass(frozen=True)
class BadMetadata:
    """A zarr.json that is not what we write; `fields` is what it should say."""

    where: str
    what: str
    fields: dict[str, Any]


def kernel_layout(m: Manifest) -> Layout:
    """Of the array of a kernel: one chunk for each tile."""
    n, block = m.n_samples, m.block_size
    return Layout((n, n), (block, block), STORED_DTYPE[m.precision])


def gram_layout(m: Manifest) -> Layout:
    """Of the Gram matrix, from which kernels are evaluated: one chunk for each tile."""
    assert m.gram is not None
    codec = gram_codec(m.gram.matrix)
    return Layout((m.n_samples,) * 2, (m.block_size,) * 2, m.gram.dtype, codec)


def gram_codec(matrix: GramMatrix) -> Codec:
    """What tiles of a Gram matrix are compressed by: zstd finds that many pairs are alike."""
    return "zstd" if matrix.mostly_equal else "lz4"


def diagonal_layout(m: Manifest) -> Layout:
    """Of the array of a kernel's diagonal."""
    return Layout((m.n_samples,), (m.block_size,), "float64")


def norm_layout(m: Manifest) -> Layout:
    """Of a vector that normalisation divides by."""
    return Layout((m.n_samples,), (m.n_samples,), "float64")


def bad_metadata(path: Path, m: Manifest) -> list[BadMetadata]:
    """Every zarr.json of a store that is missing or says something else than it should."""
    expected = [(where, path / where / METADATA, f) for where, f in expected_metadata(path, m)]
    give = prefetched([file for _, file, _ in expected], _LARGEST)
    return [
        BadMetadata(where, what, fields)
        for where, file, fields in expected
        if (what := _difference(give, file, fields))
    ]


def expected_metadata(path: Path, m: Manifest) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every zarr.json of a store, by its folder: what it says."""
    yield "", GROUP
    yield "kernels", GROUP
    for name in sorted(set(m.own_stored)):  # others have no array
        yield f"kernels/{name}", kernel_layout(m).fields()
    if m.gram is not None:
        yield "gram", GROUP
        yield GRAM, gram_layout(m).fields()
    yield "diagonals", GROUP
    for name in m.names:
        yield f"diagonals/{name}", diagonal_layout(m).fields()
    for folder in ("norms", "gram_rows"):
        vectors = [where for where in m.vectors if where.startswith(f"{folder}/")]
        if vectors:
            yield folder, GROUP
            for where in vectors:
                yield where, norm_layout(m).fields()
    if m.n_features:
        yield "features", GROUP
        for name, layout in feature_layouts(path, m).items():
            yield f"features/{name}", layout.fields()
    if m.factored:
        yield "factors", GROUP
        for name, array in m.factors.items():
            yield f"factors/{name}", factor_layout(name, array).fields()


def factor_layout(name: str, array: FactorArray) -> Layout:
    """Of an array that factored kernels are made of."""
    rows = 1 if is_by_block(name) else max(1, min(FACTOR_ROWS, array.shape[0]))
    return Layout(array.shape, (rows, *array.shape[1:]), array.dtype)


def feature_layout(name: str, shape: tuple[int, ...], m: Manifest) -> Layout:
    """Of an array of the features: dense rows, their offset, or a part of sparse ones."""
    if name == "X":
        return Layout(shape, (min(m.block_size, m.n_samples), m.n_features), "float64")
    if name == "offset":
        return Layout(shape, shape, "float64")
    chunk = max(1, min(FEATURE_CHUNK, shape[0]))
    return Layout(shape, (chunk,), "float64" if name == "data" else "int64")


def feature_layouts(path: Path, m: Manifest) -> dict[str, Layout]:
    """Layouts of the feature arrays of a store by name.

    Stores of format 3 do not say which arrays there are: what is found there counts.
    """
    if m.features:
        return {name: feature_layout(name, array.shape, m) for name, array in m.features.items()}
    folder = path / "features"
    names = names_in(folder)
    shapes: dict[str, tuple[int, ...]]
    if "indptr" in names:
        entries = (_stored_entries(folder / "data", m),)
        shapes = {"data": entries, "indices": entries, "indptr": (m.n_samples + 1,)}
    else:
        shapes = {"X": (m.n_samples, m.n_features)}
        if "offset" in names:
            shapes["offset"] = (m.n_features,)
    return {name: feature_layout(name, shape, m) for name, shape in shapes.items()}


def _stored_entries(folder: Path, m: Manifest) -> int:
    """Non-zeros of sparse features as their own metadata has it, if that is possible."""
    shape = (_read(partial(get, most=_LARGEST), folder / METADATA) or {}).get("shape")
    if isinstance(shape, list) and len(shape) == 1 and isinstance(shape[0], int):
        return max(0, min(shape[0], m.n_samples * m.n_features))
    return 0


def _difference(give: Give, path: Path, fields: dict[str, Any]) -> str:
    """In which field a zarr.json differs, in words; nothing where it does not."""
    metadata = _read(give, path)
    if metadata is None:
        return "is missing"
    if not metadata:
        return "cannot be read"
    for name, value in fields.items():
        there = metadata.get(name)
        if not _same(there, value):
            return f"has another {name} (there: {_short(there)}, expected: {_short(value)})"
    for name, value in metadata.items():
        # what we do not write must say nothing: attributes, names of dimensions, transformers
        if name not in fields and value not in (None, [], {}):
            return f"has {name} {_short(value)}, which we do not write"
    unknown = set(metadata) - set(fields) - _EMPTY
    return f"has {', '.join(sorted(unknown))}, which we do not write"[:200] if unknown else ""


_EMPTY = {"attributes", "storage_transformers", "dimension_names", "consolidated_metadata"}


def _same(a: object, b: object) -> bool:
    """Equal in type as well: 1 is not True, and 3 is not 3.0."""
    return type(a) is type(b) and json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _read(give: Give, path: Path) -> dict[str, Any] | None:
    """What a zarr.json says: nothing where it is damaged, None where there is none."""
    try:
        content = give(path)
        metadata = None if content is None else json.loads(content)
    except (OSError, ValueError, RecursionError):
        return {}
    return metadata if isinstance(metadata, dict) or content is None else {}
