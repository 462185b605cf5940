"""The `zarr.json` files of a store: compared with what we write before anything is opened.

Zarr opens whatever such a file says: another shape, another type, codecs that run code. Ours are
known in advance from the manifest, so every field is compared, and nothing else is accepted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gmkcf_dask.kernels.tiles import COMPACT_MAX, STORED_DTYPE
from gmkcf_dask.kernels.tiling import FEATURE_CHUNK
from gmkcf_dask.store.files import get, names_in, prefetched
from gmkcf_dask.store.manifest import Manifest

METADATA = "zarr.json"
FILL_VALUE: dict[str, float] = {
    "float32": np.nan,
    "float64": np.nan,
    "uint16": COMPACT_MAX + 1,
    "int64": -1,
}
"""By stored dtype, a value that cannot be data."""
Give = Callable[[Path], bytes | None]
_LARGEST = 1 << 20  # bytes of a zarr.json; ours have less than one thousand


@dataclass(frozen=True)
class Layout:
    """An array as a store has it: codecs and fill value follow from the dtype."""

    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    dtype: str

    def fields(self) -> dict[str, Any]:
        """What its zarr.json says."""
        fill = FILL_VALUE[self.dtype]
        separator = {"separator": "/"}
        return {
            "zarr_format": 3,
            "node_type": "array",
            "shape": list(self.shape),
            "data_type": self.dtype,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(self.chunks)}},
            "chunk_key_encoding": {"name": "default", "configuration": separator},
            "fill_value": "NaN" if np.isnan(fill) else int(fill),
            "codecs": [
                {"name": "bytes", "configuration": {"endian": "little"}},
                {"name": "zstd", "configuration": {"level": 1, "checksum": True}},
            ],
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


def diagonal_layout(m: Manifest) -> Layout:
    """Of the array of a kernel's diagonal."""
    return Layout((m.n_samples,), (m.block_size,), "float64")


def norm_layout(m: Manifest) -> Layout:
    """Of a vector that normalisation divides by."""
    return Layout((m.n_samples,), (m.n_samples,), "float64")


def dense_layout(m: Manifest) -> Layout:
    """Of dense features."""
    n, d = m.n_samples, m.n_features
    return Layout((n, d), (min(m.block_size, n), d), "float64")


def part_layout(length: int, dtype: str) -> Layout:
    """Of a part of sparse features."""
    return Layout((length,), (max(1, min(FEATURE_CHUNK, length)),), dtype)


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
    for name in sorted(set(m.stored_as or m.names)):  # others have no array
        yield f"kernels/{name}", kernel_layout(m).fields()
    yield "diagonals", GROUP
    for name in m.names:
        yield f"diagonals/{name}", diagonal_layout(m).fields()
    normed = [where for where in m.vectors if where.startswith("norms/")]
    if normed:
        yield "norms", GROUP
        for where in normed:
            yield where, norm_layout(m).fields()
    if m.n_features:
        yield "features", GROUP
        for name, layout in feature_layouts(path, m).items():
            yield f"features/{name}", layout.fields()


def feature_layout(name: str, shape: tuple[int, ...], m: Manifest) -> Layout:
    """Of an array of the features."""
    if name == "X":
        return dense_layout(m)
    if name == "offset":
        return Layout(shape, shape, "float64")
    return part_layout(shape[0], "float64" if name == "data" else "int64")


def feature_layouts(path: Path, m: Manifest) -> dict[str, Layout]:
    """Layouts of the feature arrays of a store by name.

    Stores of format 3 do not say which arrays there are: what is found there counts.
    """
    if m.features:
        return {name: feature_layout(name, array.shape, m) for name, array in m.features.items()}
    folder = path / "features"
    held = names_in(folder)
    shapes: dict[str, tuple[int, ...]]
    if "indptr" in held:
        entries = (_stored_entries(folder / "data", m),)
        shapes = {"data": entries, "indices": entries, "indptr": (m.n_samples + 1,)}
    else:
        shapes = {"X": (m.n_samples, m.n_features)}
        if "offset" in held:
            shapes["offset"] = (m.n_features,)
    return {name: feature_layout(name, shape, m) for name, shape in shapes.items()}


def _stored_entries(folder: Path, m: Manifest) -> int:
    """Non-zeros of sparse features as their own metadata has it, if that is possible."""
    shape = (_read(_small, folder / METADATA) or {}).get("shape")
    if isinstance(shape, list) and len(shape) == 1 and isinstance(shape[0], int):
        return max(0, min(shape[0], m.n_samples * m.n_features))
    return 0


def _difference(give: Give, path: Path, fields: dict[str, Any]) -> str:
    """In which field a zarr.json differs, in words; nothing where it does not."""
    found = _read(give, path)
    if found is None:
        return "is missing"
    if not found:
        return "cannot be read"
    for name, value in fields.items():
        if not _same(found.get(name), value):
            return (
                f"has another {name} (there: {_short(found.get(name))}, expected: {_short(value)})"
            )
    for name, value in found.items():
        # what we do not write must say nothing: attributes, names of dimensions, transformers
        if name not in fields and value not in (None, [], {}):
            return f"has {name} {_short(value)}, which we do not write"
    unknown = set(found) - set(fields) - _EMPTY
    return f"has {', '.join(sorted(unknown))}, which we do not write"[:200] if unknown else ""


_EMPTY = {"attributes", "storage_transformers", "dimension_names", "consolidated_metadata"}


def _same(found: object, value: object) -> bool:
    """Equal in type as well: 1 is not True, and 3 is not 3.0."""
    return type(found) is type(value) and json.dumps(found, sort_keys=True) == json.dumps(
        value, sort_keys=True
    )


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _small(path: Path) -> bytes | None:
    return get(path, _LARGEST)


def _read(give: Give, path: Path) -> dict[str, Any] | None:
    """What a zarr.json says: nothing where it is damaged, None where there is none."""
    try:
        content = give(path)
        if content is None:
            return None
        found = json.loads(content)
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
