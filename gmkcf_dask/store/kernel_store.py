"""Kernels on disk: a Zarr v3 group with one array per kernel, one chunk per tile.

Only tiles on and above the diagonal are written. The fill value can never be data (NaN, or the
reserved code of compact), so a tile that is not there cannot pass for zeros.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import dask.array as da
import msgspec
import numpy as np
import numpy.typing as npt
import zarr
from msgspec import structs

from gmkcf_dask.compute.costs import wanted_prefetch_bytes
from gmkcf_dask.corpus.model import Corpus
from gmkcf_dask.corpus.text_options import TextReading
from gmkcf_dask.errors import (
    DamagedInputError,
    DamagedStoreError,
    DataWarning,
    InputError,
    StoreError,
)
from gmkcf_dask.kernels.duplicates import NEARLY_EQUAL
from gmkcf_dask.kernels.factored import PRODUCTS, array_of, parts_of
from gmkcf_dask.kernels.gram import GRAM, GramKernels, gram_spec
from gmkcf_dask.kernels.tiles import CODE_SCALE, STORED_DTYPE, ResolvedKernel
from gmkcf_dask.kernels.tiling import Tiling
from gmkcf_dask.store import files, layout
from gmkcf_dask.store.digests import Summary
from gmkcf_dask.store.features import (
    StoredFactors,
    StoredFeatures,
    StoredVectors,
    checked_vector,
    create_array,
    open_array,
    write_features,
    write_metadata,
    zarr_store,
)
from gmkcf_dask.store.manifest import (
    INPUTS,
    MANIFEST,
    STORE_FORMAT,
    Manifest,
    build_command,
    fix_command,
    refuse_without_manifest,
    text_digest,
    vector_digest,
)
from gmkcf_dask.store.object_storage import is_remote, location, remote_errors, sizes_below
from gmkcf_dask.store.scratch import ScratchFolder, can_keep_scratch
from gmkcf_dask.store.tile_reader import StoreTileReader
from gmkcf_dask.system.arrays import Floats

STRINGS = ("ids", "labels", "terms", "titles", "excerpts")
"""Lists of strings, each in a file of its own."""
UNFINISHED = "unfinished.json"
"""In an object store, says that what is there without a manifest is ours to overwrite."""


@dataclass(frozen=True)
class KernelStore:
    """An opened store.

    >>> KernelStore.open("no/such/place")
    Traceback (most recent call last):
    gmkcf_dask.errors.StoreError: there is no kernel store at no/such/place: check the path
    """

    path: Path
    """From the root on: workers may have another working directory."""
    manifest: Manifest

    @classmethod
    def open(cls, path: str | Path, *, incomplete: bool = False) -> KernelStore:
        """Open a store for reading; an unfinished one only where that is asked for.

        What it says about its arrays is compared with what we write before any is opened.
        """
        path = location(path)
        store = cls(files.absolute(path), Manifest.read(path))
        for bad in layout.bad_metadata(path, store.manifest):
            file = f"{bad.where}/{layout.METADATA}".lstrip("/")
            # metadata follows from the manifest; chunks that are gone with their folder do not
            lost = "" if set(files.names_in(path / bad.where)) - {layout.METADATA} else bad.where
            raise DamagedStoreError(
                f"{file} of {path} {bad.what}: repair it with {fix_command(path, lost)}"
            )
        if not (store.manifest.complete or incomplete):
            raise StoreError(
                f"{path} is {store.manifest.incomplete}: run the same build again, it resumes"
            )
        store.warn_about_format()
        return store

    def warn_about_format(self) -> None:
        """Warn about a store of an earlier format, which lacks some of what checks need."""
        if self.manifest.lacks:
            warnings.warn(
                f"{self.path} was made by an earlier version and has no "
                f"{' and no '.join(self.manifest.lacks)}, so that not all damage is found: add "
                f"them with {build_command(self.path)}",
                DataWarning,
                stacklevel=3,
            )

    @staticmethod
    def check_place(path: Path) -> None:
        """Refuse a path where no store can be, or not ours."""
        if is_store(path):
            return
        if files.is_file(path):
            raise StoreError(f"{path} is a file: choose another path for the store")
        names = files.names_in(path)
        if names and not (is_remote(path) and UNFINISHED in names):
            refuse_without_manifest(path)
            raise StoreError(f"{path} holds other files: choose another path for the store")
        files.check_writable(path, "the store")

    @classmethod
    def create(cls, path: Path, manifest: Manifest, corpus: Corpus | None) -> KernelStore:
        """Make an empty store with the features and names inside; no kernel values yet."""
        cls.check_place(path)
        if is_remote(path):
            return cls(files.absolute(path), _create_objects(path, manifest, corpus))
        # made beside and moved into place: a store that exists has its features and its manifest
        beside = path.with_name(f".{path.name}.{uuid4().hex}")
        try:
            beside.mkdir()
            manifest = _write_skeleton(beside, manifest, corpus)
            beside.replace(path)
        except BaseException:
            files.remove_folder(beside)
            raise
        return cls(files.absolute(path), manifest)

    def with_manifest(self, **changes: Any) -> KernelStore:
        """Write a changed manifest and return the store that has it."""
        manifest = structs.replace(self.manifest, **changes)
        manifest.write(self.path)
        return replace(self, manifest=manifest)

    def with_vectors(self, vectors: Mapping[str, Floats], **changes: Any) -> KernelStore:
        """Write a manifest with the digests and summaries of vectors, by their path inside."""
        digests = {name: vector_digest(values) for name, values in vectors.items()}
        summaries = {name: Summary.of(values).to_bytes().hex() for name, values in vectors.items()}
        return self.with_manifest(
            vectors=self.manifest.vectors | digests,
            vector_summaries=self.manifest.vector_summaries | summaries,
            **changes,
        )

    def __repr__(self) -> str:
        from gmkcf_dask.store.describe import in_short

        return in_short(self)

    def _repr_html_(self) -> str:
        from gmkcf_dask.store.describe import in_html

        return in_html(self)

    # reading

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the kernels in tiles, in order."""
        return self.manifest.names

    @property
    def kernel_names(self) -> tuple[str, ...]:
        """Names of all kernels: those in tiles, then the factored ones."""
        return self.manifest.kernel_names

    @property
    def n_samples(self) -> int:
        return self.manifest.n_samples

    @property
    def tiling(self) -> Tiling:
        return self.manifest.tiling

    @property
    def reader(self) -> StoreTileReader:
        """A reader of tiles for one run: what it reads first is compared with its digest."""
        m, run = self.manifest, uuid4().hex
        gram = self._gram(run)
        return StoreTileReader(
            str(self.path),
            m.store_id,
            m.names if gram is None else (*m.names, GRAM),
            m.tiling,
            STORED_DTYPE[m.precision],
            CODE_SCALE[m.precision],
            m.array_numbers,
            run,
            prefetch_bytes=wanted_prefetch_bytes(m.tiling, m.precision, gram=m.stored_gram),
            gram=gram,
        )

    def _gram(self, run: str) -> GramKernels | None:
        m = self.manifest
        if m.gram is None:
            return None
        by_name = {record.name: record for record in m.kernels}
        kernels = tuple(
            (number, ResolvedKernel(spec=gram_spec(name), **by_name[name].options))
            for number, name in enumerate(m.names)
            if name in m.formulas
        )
        digests = {w: d for w, d in m.vectors.items() if not w.startswith("diagonals/")}
        vectors = StoredVectors(str(self.path), m.store_id, run, tuple(digests.items()))
        minima = m.stored_minima or {}
        nonnegative = all(minima.get(m.names[number], 0.0) >= 0.0 for number, _ in kernels)
        return GramKernels(m.gram.matrix, m.precision, len(m.names), kernels, vectors, nonnegative)

    @property
    def keeps_scratch(self) -> bool:
        """Whether fused kernels can be kept on disk beside this store."""
        return can_keep_scratch(self.path)

    def new_scratch_folder(self) -> ScratchFolder:
        """A folder beside this store for the fused kernels of one fit."""
        return ScratchFolder.beside(self.path, self.tiling, self.reader.dtype)

    def drop_merged(self) -> None:
        """Remove the arrays of merged kernels, so that they are not read as empty."""
        for kernel, other in enumerate(self.manifest.stored):
            if kernel != other:
                files.remove_folder(self.path, "kernels", self.names[kernel])

    def equal_kernels(self) -> dict[str, str]:
        """By name, the first kernel whose files are the same to the last byte."""
        alike: dict[tuple[int, ...], list[str]] = {}
        equal = {}
        size_of = self.tile_sizes()
        for name in self.manifest.own_names:
            sizes = tuple(size_of(name, t) for t in range(self.manifest.n_tiles))
            if -1 in sizes:  # what is not there equals nothing
                continue
            earlier = alike.setdefault(sizes, [])
            other = next((other for other in earlier if self._equal(name, other)), None)
            if other is None:
                earlier.append(name)
            else:
                equal[name] = other
        return equal

    def _equal(self, name: str, other: str) -> bool:
        reader = self.reader
        return all(
            files.get(location(reader.file(name, t))) == files.get(location(reader.file(other, t)))
            for t in range(self.manifest.n_tiles)
        )

    def tile_sizes(self) -> Callable[[str, int], int]:
        """From a kernel's name and a tile to the bytes of it; −1 where there is none."""
        reader = self.reader
        if not is_remote(self.path):
            return reader.size
        # one listing, instead of a request for every tile
        begin, sizes = f"{self.path}/", dict[str, int]()
        for folder in ("kernels", *(["gram"] if self.manifest.gram else [])):
            below = sizes_below(self.path / folder)
            sizes |= {f"{folder}/{where}": size for where, size in below.items()}
        return lambda name, t: sizes.get(reader.file(name, t).removeprefix(begin), -1)

    def duplicates(self) -> list[str]:
        """Kernels that are nearly the same as an earlier one, in words."""
        m, sentences = self.manifest, []
        stands = dict(zip(m.names, m.stored_as or m.names, strict=True))
        for name, other in (m.nearest or {}).items():
            apart = m.differences.get(name, np.inf)
            if apart <= NEARLY_EQUAL:
                sentence = f"{name} equals {other}" + (f" to {apart:.0e}" if apart else "")
                merged = f", and {stands[name]} replaces it" if stands[name] != name else ""
                sentences.append(sentence + merged)
        return sentences

    def features(self) -> StoredFeatures:
        """The features the kernels were made from."""
        m = self.manifest
        if m.n_features == 0:
            what = "factors" if m.factored else "precomputed kernels"
            raise StoreError(f"{self.path} was made from {what}: it has no features")
        layouts = layout.feature_layouts(self.path, m)
        return StoredFeatures(
            str(self.path), m.store_id, layouts, uuid4().hex, m.n_samples, m.n_features
        )

    def factors(self) -> StoredFactors:
        """The arrays that factored kernels are made of."""
        m = self.manifest
        layouts = {n: layout.factor_layout(n, array) for n, array in m.factors.items()}
        thin = {one.name: one.columns for one in m.factored if one.columns is not None}
        products = any(one.kind in PRODUCTS for one in m.factored)
        return StoredFactors(
            str(self.path),
            m.store_id,
            layouts,
            uuid4().hex,
            m.n_samples,
            {array_of(name, "given"): (parts_of(name), columns) for name, columns in thin.items()},
            self.features() if products else None,
        )

    def strings(self, what: str) -> tuple[str, ...] | None:
        """`ids`, `labels`, `terms`, `titles` or `excerpts`; None where the corpus has none.

        Raises
        ------
        DamagedStoreError
            They are not what was written.
        """
        content = self._description(what)
        if content is None:
            return None
        try:
            strings = msgspec.json.decode(content, type=tuple[str, ...] | None)
        except (msgspec.DecodeError, RecursionError) as error:
            raise self._damaged_input(what) from error
        if strings is not None:
            wanted = self.manifest.n_features if what == "terms" else self.n_samples
            self._check_length(what, len(strings), wanted)
        return strings

    def reading(self) -> TextReading | None:
        """How the texts of the corpus became features; None for other input."""
        content = self._description("reading")
        if content is None:
            return None
        try:
            reading = TextReading.from_json(content)
        except InputError as error:
            raise self._damaged_input("reading") from error
        self._check_length("reading", reading.n_features, self.manifest.n_features)
        return reading

    def _description(self, what: str) -> str | None:
        """The file of an input, compared with its digest; None where the corpus has none."""
        known = self.manifest.inputs.get(what)
        if known is None:
            return None
        try:
            content = (files.get(self.path / f"{what}.json") or b"").decode()
        except (UnicodeDecodeError, StoreError) as error:
            raise self._damaged_input(what) from error
        # the digest is of the file as it is written, and "none" where there are no strings
        if text_digest(content) != known and (known, content) != ("none", "null"):
            raise self._damaged_input(what)
        return content

    def _check_length(self, what: str, length: int, wanted: int) -> None:
        """Reject a file that is what was written, but does not fit the manifest."""
        if length != wanted:
            raise DamagedStoreError(
                f"{what}.json of {self.path} is for {length:,} and the manifest for {wanted:,}: "
                f"remove the store and build it again with {build_command(self.path)}"
            )

    def _damaged_input(self, what: str) -> DamagedInputError:
        return DamagedInputError(
            f"{what}.json of {self.path} is damaged: write it again from the input with "
            f"{build_command(self.path)}"
        )

    def damaged_descriptions(self) -> dict[str, str]:
        """Of ids, labels, terms, titles, excerpts and reading those that are damaged: why."""
        damaged = {}
        for what in (*STRINGS, "reading"):
            try:
                self.reading() if what == "reading" else self.strings(what)
            except DamagedInputError as error:
                damaged[what] = str(error)
        return damaged

    @property
    def ids(self) -> tuple[str, ...]:
        return self.strings("ids") or tuple(str(i) for i in range(self.n_samples))

    def diagonal(self, kernel: int) -> Floats:
        """k(x,x) of every sample, shape (n,)."""
        # of the tiles that stand for it
        return self.vector(f"diagonals/{self.names[self.manifest.stored[kernel]]}")

    def vector(self, name: str) -> Floats:
        """A vector (n,) of the store by its path inside; refused where it was changed."""
        known = self.manifest.vectors.get(name)
        return checked_vector(str(self.path), name, self.manifest.store_id, known)

    def writable(self, name: str) -> Any:
        """A Zarr array of the store by its path inside, to write into."""
        return open_array(str(self.path), name, self.manifest.store_id, write=True)

    def write_vector(self, name: str, values: Floats, where: Any = ...) -> None:
        """Write a vector of the store, or a part of it."""
        with remote_errors(self.path):
            self.writable(name)[where] = values

    def array(self, name: str) -> Any:
        """A Zarr array of the store by its path inside, to read."""
        return open_array(str(self.path), name, self.manifest.store_id)

    def norms(self) -> dict[str, Floats]:
        """Vectors (n,) that normalisation divides by, where the store keeps them."""
        kept = [name for name in self.names if f"norms/{name}" in self.manifest.vectors]
        return {name: self.vector(f"norms/{name}") for name in kept}

    def write_new_vectors(self, vectors: Mapping[str, Floats]) -> None:
        """Keep vectors in the store, where tile tasks find them: norms/NAME, gram_rows/NAME."""
        with remote_errors(self.path):
            root = zarr.open_group(store=zarr_store(str(self.path)), mode="r+")
            vector = layout.norm_layout(self.manifest)
            for where, values in vectors.items():
                folder, _, name = where.partition("/")
                group = root.require_group(folder)
                if name in group:
                    del group[name]
                create_array(group, name, vector)[:] = values
                write_metadata(self.path, where, vector.fields())
                write_metadata(self.path, folder, layout.GROUP)

    def to_dask(self, kernel: str | int) -> da.Array:
        """The full symmetric kernel, shape (n, n), lazily: tiles below the diagonal are mirrored.

        Parameters
        ----------
        kernel : str or int
            Name or number of the kernel.
        """
        numbers = range(len(self.names))  # behind them comes the Gram matrix, which is no kernel
        number = self.names.index(kernel) if isinstance(kernel, str) else numbers[kernel]
        tiling, reader = self.tiling, self.reader
        edges = tuple(r.stop - r.start for r in map(tiling.rows, range(tiling.n_blocks)))
        return da.map_blocks(
            _symmetric_block,
            reader=reader,
            kernel=number,
            chunks=(edges, edges),
            dtype=reader.dtype,
            meta=np.empty((0, 0), reader.dtype),
        )

    def stored_bytes(self) -> int:
        """Bytes on disk, compressed."""
        return files.bytes_below(self.path)


def is_store(path: Path) -> bool:
    """Whether there is a store, finished or not, at a path."""
    return files.is_file(path / MANIFEST)


def delete_store(path: Path, *, ignore_errors: bool = False) -> None:
    """Delete a store with all that is in it, under its lock."""
    if not is_remote(path):
        files.remove_tree(path, ignore_errors=ignore_errors)
        return
    # from the first to the last moment it says that it is no store any more, but ours
    files.put_atomic(path / UNFINISHED, _OURS)
    files.remove_folder(path, first=MANIFEST, last=UNFINISHED)


_OURS = json.dumps({"format": STORE_FORMAT}).encode()


def _create_objects(path: Path, manifest: Manifest, corpus: Corpus | None) -> Manifest:
    """Nothing can be moved into place there: the manifest comes last, and makes it a store."""
    if files.exists(path):  # an interrupted creation or removal
        files.remove_folder(path, last=UNFINISHED)
    files.put_atomic(path / UNFINISHED, _OURS)
    with remote_errors(path):
        manifest = _write_skeleton(path, manifest, corpus)
    files.remove(path / UNFINISHED)
    return manifest


def _write_skeleton(path: Path, manifest: Manifest, corpus: Corpus | None) -> Manifest:
    root = zarr.create_group(store=zarr_store(str(path)), zarr_format=3)
    kernels, diagonals = root.create_group("kernels"), root.create_group("diagonals")
    for name in manifest.own_names:
        create_array(kernels, name, layout.kernel_layout(manifest))
    for name in manifest.names:
        create_array(diagonals, name, layout.diagonal_layout(manifest))
    if manifest.gram is not None:
        create_array(root.create_group("gram"), "X", layout.gram_layout(manifest))
    if corpus is not None:
        manifest = write_inputs(path, manifest, corpus, INPUTS)
    for where, fields in layout.expected_metadata(path, manifest):
        write_metadata(path, where, fields)
    manifest.write(path)
    return manifest


def write_inputs(path: Path, m: Manifest, corpus: Corpus, which: Iterable[str]) -> Manifest:
    """Write some inputs of a store; returns the manifest that has the digests of their chunks."""
    for what in which:
        if what == "features":
            m = structs.replace(m, features=write_features(path, corpus.X, m))
        elif what == "reading":
            if corpus.reading is not None:
                files.put_atomic(path / "reading.json", corpus.reading.to_json().encode())
        elif what in m.inputs:
            content = json.dumps(getattr(corpus, what), ensure_ascii=False)
            files.put_atomic(path / f"{what}.json", content.encode())
    return m


def _symmetric_block(
    reader: StoreTileReader, kernel: int, block_info: Any = None
) -> npt.NDArray[Any]:
    row, col = block_info[None]["chunk-location"]
    i, j = min(row, col), max(row, col)
    n_blocks = reader.tiling.n_blocks
    t = i * n_blocks - i * (i - 1) // 2 + j - i
    tile = reader.decoded(kernel, t)
    return tile if row <= col else tile.T
