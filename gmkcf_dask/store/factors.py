"""The arrays that factored kernels are made of: made by the same stages in memory and in a store.

A stage makes one or more arrays, row block after row block, from the features and the arrays of
earlier stages. A build runs all stages; a repair runs them for the damaged blocks only.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from math import prod
from threading import Lock
from typing import Any, Literal
from uuid import uuid4

import numpy as np
import numpy.typing as npt
from msgspec import structs
from scipy import sparse

from gmkcf_dask.compute.eigen import leading_eigenpairs_of
from gmkcf_dask.compute.factored import BLOCK_ROWS, FactorSource, map_tasks, of_dtype
from gmkcf_dask.compute.runner import Runner
from gmkcf_dask.errors import DamagedStoreError, StoreGoneError
from gmkcf_dask.events import Listener, StageNote, StageProgress, ignore
from gmkcf_dask.kernels import heat, local
from gmkcf_dask.kernels.factor_cross import Arrays
from gmkcf_dask.kernels.factored import (
    FEATURES,
    NEIGHBOUR_ARRAYS,
    ArrayShape,
    FactorKind,
    FactorView,
    array_of,
    array_shapes,
    heat_rank,
    heat_shapes,
    is_by_block,
    local_rank,
    local_shapes,
    parts_of,
    values_of,
)
from gmkcf_dask.kernels.features import Features
from gmkcf_dask.kernels.neighbours import (
    Neighbours,
    TermIndex,
    choose_terms,
    compare_with_all,
    n_neighbours,
    recall,
    search,
    search_dense,
)
from gmkcf_dask.kernels.specs import is_thin
from gmkcf_dask.store.digests import TileTable
from gmkcf_dask.store.features import StoredFactors, write_array_chunk, write_metadata
from gmkcf_dask.store.kernel_store import KernelStore
from gmkcf_dask.store.layout import Layout, factor_layout
from gmkcf_dask.store.manifest import DIGEST_BYTES, FactorArray
from gmkcf_dask.system.arrays import Floats
from gmkcf_dask.system.units import ceil_div

Values = Any
Blocks = dict[str, Values]
"""Rows of arrays by name."""
_SECONDS_BETWEEN_MANIFESTS = 2.0
_BATCHES, _LEAST_TASKS = 32, 4
_SAMPLED = 200
_PARTIALS = 4
"""Products of features that are summed at once: each has a row for every feature."""
_GROUPS = 8
"""Groups of rows that such products are made of, whatever the workers: sums keep their order."""


@dataclass(frozen=True)
class Stage:
    """Arrays that are made together.

    Attributes
    ----------
    title : str
        For progress displays.
    arrays : mapping of str to ArrayShape
        All with the same number of rows.
    make : callable
        From a range of rows to those rows of the arrays; travels to workers.
    here : bool
        Whether it runs in this process, which has what it needs.
    """

    title: str
    arrays: Mapping[str, ArrayShape]
    make: Callable[[slice], Blocks]
    here: bool = False
    remark: Callable[[], str] | None = None
    """What to tell people when it is done; nothing where that is empty."""

    @property
    def n_rows(self) -> int:
        return next(iter(self.arrays.values())).shape[0]

    @property
    def n_blocks(self) -> int:
        return ceil_div(self.n_rows, BLOCK_ROWS)

    def rows(self, block: int) -> slice:
        """Rows of a block."""
        return slice(block * BLOCK_ROWS, min(self.n_rows, (block + 1) * BLOCK_ROWS))


class FactorArrays(ABC):
    """Where the arrays are, and who works on them."""

    @abstractmethod
    def missing(self, stage: Stage) -> Sequence[int]:
        """The blocks of a stage that are not there."""

    @abstractmethod
    def fill(self, stage: Stage, blocks: Sequence[int], listen: Listener) -> None:
        """Make some blocks of a stage and keep them."""

    @abstractmethod
    def reader(self) -> Arrays:
        """The arrays made so far, for tasks."""

    @abstractmethod
    def map(self, work: Callable[[slice], Any], rows: Sequence[slice]) -> list[Any]:
        """Work on row ranges; results in order."""

    def read(self, name: str) -> Values:
        """A whole array."""
        return self.reader().read(name)

    def build(self, stages: Iterator[Stage], listen: Listener = ignore) -> None:
        """Make all that is missing."""
        for stage in stages:
            blocks = self.missing(stage)
            if len(blocks):
                self.fill(stage, blocks, listen)
                message = stage.remark() if stage.remark is not None else ""
                if message:
                    listen(StageNote(stage.title, stage.n_rows, stage.n_rows, message=message))


@dataclass
class MemoryArrays(FactorArrays):
    """Arrays in the memory of this process, made on its cores."""

    arrays: dict[str, Values] = field(default_factory=dict)

    def missing(self, stage: Stage) -> Sequence[int]:
        return [] if set(stage.arrays) <= set(self.arrays) else range(stage.n_blocks)

    def fill(self, stage: Stage, blocks: Sequence[int], listen: Listener) -> None:
        made = {name: np.empty(a.shape, a.dtype) for name, a in stage.arrays.items()}
        lock, done = Lock(), 0

        def work(block: int) -> None:
            nonlocal done
            rows = stage.rows(block)
            for name, values in stage.make(rows).items():
                made[name][rows] = values
            with lock:
                done += rows.stop - rows.start
                listen(StageProgress(stage.title, done, stage.n_rows, unit="samples"))

        listen(StageProgress(stage.title, 0, stage.n_rows, unit="samples"))
        self.map(lambda rows: work(rows.start // BLOCK_ROWS), [stage.rows(b) for b in blocks])
        self.arrays |= made

    def read(self, name: str) -> Values:
        return self.arrays[name]

    def columns(self, name: str) -> int:
        return int(self.arrays[name].shape[1])

    def reader(self) -> Arrays:
        return self

    def map(self, work: Callable[[slice], Any], rows: Sequence[slice]) -> list[Any]:
        return map_tasks(None, work, [(one,) for one in rows])


class StoreArrays(FactorArrays):
    """Arrays in a store: tasks write the blocks, the driver keeps their digests in the manifest.

    Parameters
    ----------
    store : KernelStore
    runner : Runner
    confirm : callable
        Raises where somebody else has taken over the store.
    """

    def __init__(self, store: KernelStore, runner: Runner, confirm: Callable[[], None]) -> None:
        self.store, self._runner, self._confirm = store, runner, confirm

    def missing(self, stage: Stage) -> Sequence[int]:
        known = self.store.manifest.factors
        if any(name not in known for name in stage.arrays):
            return range(stage.n_blocks)
        return sorted({b for name in stage.arrays for b in bad_blocks(self.store, name)})

    def fill(self, stage: Stage, blocks: Sequence[int], listen: Listener) -> None:
        self._create(stage)
        layouts = {n: factor_layout(n, self.store.manifest.factors[n]) for n in stage.arrays}
        # the remark is of the driver, and holds what cannot travel
        write = WriteBlocks(str(self.store.path), replace(stage, remark=None), layouts)
        n_blocks, names = stage.n_blocks, list(stage.arrays)
        factors = self.store.manifest.factors
        table = TileTable(names, n_blocks, {n: factors[n].digests for n in names})
        runner = Runner(n_threads=self._runner.n_threads) if stage.here else self._runner
        done, saved = n_blocks - len(blocks), time.monotonic()

        def show() -> None:
            rows = min(done * BLOCK_ROWS, stage.n_rows)
            listen(StageProgress(stage.title, rows, stage.n_rows, unit="samples"))

        show()
        step = max(_LEAST_TASKS, ceil_div(len(blocks), _BATCHES))
        for first in range(0, len(blocks), step):
            some = blocks[first : first + step]
            for digests in map_tasks(runner, write, [(block,) for block in some]):
                table.update(digests)
            done += len(some)
            show()
            if time.monotonic() - saved > _SECONDS_BETWEEN_MANIFESTS:
                self._save(table, names)
                saved = time.monotonic()
        self._save(table, names)

    def _create(self, stage: Stage) -> None:
        """Empty arrays for a stage that is new."""
        m, made = self.store.manifest, {}
        for name, array in stage.arrays.items():
            if name not in m.factors:
                digests = bytes(DIGEST_BYTES * stage.n_blocks).hex()
                made[name] = FactorArray(array.shape, array.dtype, digests)
        if not made:
            return
        self._confirm()
        for name, record in made.items():
            fields = factor_layout(name, record).fields()
            write_metadata(self.store.path, f"factors/{name}", fields)
        self.store = self.store.with_manifest(factors={**m.factors, **made})

    def _save(self, table: TileTable, names: Sequence[str]) -> None:
        self._confirm()
        factors = dict(self.store.manifest.factors)
        for name, digests in table.as_text(names).items():
            factors[name] = structs.replace(factors[name], digests=digests)
        self.store = self.store.with_manifest(factors=factors)

    def reader(self) -> Arrays:
        return self.store.factors()

    def map(self, work: Callable[[slice], Any], rows: Sequence[slice]) -> list[Any]:
        return map_tasks(self._runner, work, [(one,) for one in rows])


@dataclass(frozen=True)
class WriteBlocks:
    """Task: make one block of a stage and write it; returns digests by (array, block)."""

    path: str
    stage: Stage
    layouts: Mapping[str, Layout]

    def __call__(self, block: int) -> dict[tuple[str, int], bytes]:
        made = self.stage.make(self.stage.rows(block))
        return {
            (name, block): write_array_chunk(
                self.path, f"factors/{name}", self.layouts[name], block, values
            )
            for name, values in made.items()
        }


@dataclass(frozen=True)
class StoredFactorSource(FactorSource):
    """Row blocks of factors, read from a store; travels to workers as a path."""

    stored: StoredFactors
    views: tuple[FactorView, ...]

    @classmethod
    def of(
        cls, stored: StoredFactors, views: Sequence[FactorView], *, wide: bool
    ) -> StoredFactorSource:
        """Factors of one dtype: float64 where all are; `wide` is for those that are features."""
        wide = all(
            wide if view.array == FEATURES else stored.dtype(view.array) == "float64"
            for view in views
        )
        dtype: np.dtype[np.floating[Any]] = np.dtype("f8") if wide else np.dtype("f4")
        names, ranks = tuple(v.name for v in views), tuple(v.rank for v in views)
        return cls(names, stored.n_samples, ranks, dtype, stored, tuple(views))

    def block(self, kernel: int, rows: slice) -> Any:
        view = self.views[kernel]
        return of_dtype(view.rows(self.stored.read(view.array, rows)), self.dtype)


@dataclass(frozen=True)
class KeptArrays:
    """Arrays of a store that every process reads once: predictions need them again and again."""

    stored: StoredFactors

    def read(self, name: str) -> Values:
        return _kept(self.stored.path, self.stored.store_id, name, self.stored.run)(self.stored)

    def columns(self, name: str) -> int:
        return self.stored.columns(name)


@lru_cache(maxsize=16)
def _kept(path: str, store_id: str, name: str, run: str) -> Callable[[StoredFactors], Values]:
    lock, values = Lock(), list[Values]()

    def read(stored: StoredFactors) -> Values:
        with lock:
            if not values:
                values.append(stored.read(name))
        return values[0]

    return read


def bad_blocks(store: KernelStore, name: str) -> list[int]:
    """Blocks of an array that are missing, or not what was written."""
    record, arrays = store.manifest.factors[name], store.factors()
    bad, step = [], 1 if is_by_block(name) else BLOCK_ROWS
    for block in range(ceil_div(record.shape[0], step)):
        digest = record.digests[2 * DIGEST_BYTES * block : 2 * DIGEST_BYTES * (block + 1)]
        if not digest.strip("0"):
            bad.append(block)
            continue
        rows = slice(block * step, (block + 1) * step)
        try:
            arrays.read(name, rows)
        except StoreGoneError:
            raise
        except DamagedStoreError:
            bad.append(block)
    return bad


# what tasks of one process share


class Shared:
    """A value that every process makes once, when its first task needs it.

    Parameters
    ----------
    make : callable
        Travels to workers.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make, self._token = make, uuid4().hex

    def get(self) -> Any:
        with _SHARED_LOCK:
            lock = _LOCKS.setdefault(self._token, Lock())
        with lock:  # others wait for the one that makes it
            with _SHARED_LOCK:
                if self._token in _SHARED:
                    return _SHARED[self._token]
            value = self._make()
            with _SHARED_LOCK:
                _SHARED[self._token] = value
                while len(_SHARED) > _KEPT:
                    _SHARED.popitem(last=False)
            return value

    def forget(self) -> None:
        """Free the value in this process."""
        with _SHARED_LOCK:
            _SHARED.pop(self._token, None)
            _LOCKS.pop(self._token, None)


_SHARED: OrderedDict[str, Any] = OrderedDict()
_LOCKS: dict[str, Lock] = {}
_SHARED_LOCK = Lock()
_KEPT = 2


def factor_stages(
    request: FactorRequest, features: Features, arrays: FactorArrays
) -> Iterator[Stage]:
    """The stages of all factored kernels of a request."""
    kinds, most, d = set(request.kinds.values()), request.max_clusters, request.n_features
    if "local" in kinds:
        yield from local_stages(LocalOptions.of(features, d, most), features, arrays)
    if "heat" in kinds:
        yield from heat_stages(HeatOptions.of(features, d, most), features, arrays)
    for name, Z in request.given.items():
        array, dtype = array_of(name, "given"), _dtype_of(Z)
        if not is_thin(Z):
            shape = ArrayShape(Z.shape, dtype)
            yield Stage("factors", {array: shape}, partial(_given_rows, array, Z), here=True)
        elif isinstance(arrays, MemoryArrays):  # it stays as it is
            arrays.arrays[array] = Z
        else:
            yield thin_stage(name, Z)


@dataclass(frozen=True)
class FactorRequest:
    """Which factored kernels are wanted: kinds by name, and the factors that the user brings."""

    kinds: Mapping[str, FactorKind]
    n_features: int
    max_clusters: int
    given: Mapping[str, Values] = field(default_factory=dict)


def factor_bytes(request: FactorRequest, n: int) -> int:
    """Bytes of all arrays of a request, before compression."""
    shapes = array_shapes(request.kinds, n, request.n_features, request.max_clusters).values()
    given = sum(given_bytes(Z) for Z in request.given.values())
    return given + sum(prod(a.shape) * np.dtype(a.dtype).itemsize for a in shapes)


def written_bytes(factors: Mapping[str, FactorArray]) -> int:
    """Bytes of the blocks that are marked as written, before compression."""
    total = 0
    for array in factors.values():
        size = 2 * DIGEST_BYTES
        marks = [array.digests[i : i + size] for i in range(0, len(array.digests), size)]
        row = np.dtype(array.dtype).itemsize * (array.shape[1] if len(array.shape) > 1 else 1)
        total += row * min(array.shape[0], BLOCK_ROWS * sum(bool(m.strip("0")) for m in marks))
    return total


def given_bytes(Z: Any) -> int:
    """Bytes of a factor that the user brings: of all entries, or of those that are not 0."""
    if is_thin(Z):
        return int(Z.nnz * (Z.dtype.itemsize + 4) + 8 * Z.shape[0])
    return int(prod(Z.shape) * Z.dtype.itemsize)


def _dtype_of(Z: Any) -> Literal["float32", "float64"]:
    return "float64" if Z.dtype == np.float64 else "float32"


def _given_rows(array: str, Z: Any, rows: slice) -> Blocks:
    return {array: Z[rows]}


def thin_stage(name: str, Z: Any) -> Stage:
    """A sparse factor as row blocks: how many entries each row has, their columns and values."""
    n = Z.shape[0]
    ends = Z.indptr[np.r_[0:n:BLOCK_ROWS, n]]
    width = max(1, int(np.diff(ends).max()))
    shape = (len(ends) - 1, width)
    lengths, columns, values = parts_of(name)
    arrays = {
        lengths: ArrayShape((n,), "int32"),
        columns: ArrayShape(shape, "int32"),
        values: ArrayShape(shape, _dtype_of(Z)),
    }
    return Stage("factors", arrays, partial(_thin_rows, name, Z, width), here=True)


def _thin_rows(name: str, Z: Any, width: int, rows: slice) -> Blocks:
    own = Z[rows]
    made = []
    for entries in (own.indices.astype(np.int32), own.data):
        padded = np.zeros((1, width), entries.dtype)
        padded[0, : entries.size] = entries
        made.append(padded)
    lengths = np.diff(own.indptr).astype(np.int32)
    return dict(zip(parts_of(name), (lengths, *made), strict=True))


# local kernels


@dataclass(frozen=True)
class LocalOptions:
    """What local kernels of a corpus are made with.

    Attributes
    ----------
    n_samples, n_features : int
    rank : int
        Columns of the arrays, enough for the largest number of clusters.
    terms : int or None
        Heaviest terms of a document that neighbours are searched by; None for the exact search.
    """

    n_samples: int
    n_features: int
    rank: int
    terms: int | None = None

    @classmethod
    def of(cls, features: Features, n_features: int, max_clusters: int) -> LocalOptions:
        """The options for some features; sparse ones are counted to choose the search."""
        n = features.n_samples
        rank = local_rank(n, n_features, max_clusters)
        first = features.rows(slice(0, 1))
        if isinstance(first, np.ndarray):
            return cls(n, n_features, rank)
        return cls(n, n_features, rank, choose_terms(document_frequencies(features, n_features)))


def document_frequencies(features: Features, n_features: int) -> npt.NDArray[np.int64]:
    """In how many rows each column is not 0, shape (d,)."""
    total = np.zeros(n_features, np.int64)
    for rows in row_ranges(features.n_samples):
        block: Any = features.rows(rows)
        total += np.bincount(block.indices, minlength=n_features)
    return total


def _some(shapes: Mapping[str, ArrayShape], *names: str) -> dict[str, ArrayShape]:
    return {name: shapes[name] for name in names}


def row_ranges(n: int, step: int = BLOCK_ROWS) -> list[slice]:
    """n rows, some at a time."""
    return [slice(first, min(n, first + step)) for first in range(0, n, step)]


def local_stages(
    options: LocalOptions, features: Features, arrays: FactorArrays
) -> Iterator[Stage]:
    """Neighbours, principal directions, and features smoothed 0 to 4 times."""
    shapes = local_shapes(options.n_samples, options.n_features, options.rank)
    p = shapes["neighbours"].shape[1]
    index = Shared(partial(_searcher, features, options))
    remark = None if options.terms is None else partial(_recall, features, options, arrays)
    neighbour_arrays = _some(shapes, *NEIGHBOUR_ARRAYS)
    yield Stage("neighbours", neighbour_arrays, FindNeighbours(index, p), remark=remark)
    index.forget()
    directions = Shared(partial(_directions, options, features, arrays))
    made = _RowsOf("directions", directions)
    yield Stage("directions", _some(shapes, "directions"), made, here=True)
    R = Shared(partial(arrays.reader().read, "directions"))
    yield Stage("project", _some(shapes, "smooth_0"), Project(features, R))
    R.forget()
    walk = Shared(partial(_walk, arrays))
    for step in range(1, max(local.DEPTHS) + 1):
        before = Shared(partial(arrays.read, f"smooth_{step - 1}"))
        yield Stage(
            f"smooth {step} of {max(local.DEPTHS)}",
            _some(shapes, f"smooth_{step}"),
            _Smooth(f"smooth_{step}", walk, before),
            here=True,
        )
        before.forget()
    walk.forget()


@dataclass(frozen=True)
class FindNeighbours:
    """Task: the nearest other samples of some rows."""

    index: Shared
    n_neighbours: int

    def __call__(self, rows: slice) -> Blocks:
        neighbours: Neighbours = self.index.get()(range(rows.start, rows.stop), self.n_neighbours)
        return {"neighbours": neighbours.indices, "similarities": neighbours.similarities}


def _searcher(features: Features, options: LocalOptions) -> Callable[[range, int], Neighbours]:
    X = unit_features(features)
    if isinstance(X, np.ndarray):
        return partial(search_dense, X, metric="cosine")
    return partial(_search_terms, TermIndex.build(X, options.terms), X)


def _recall(features: Features, options: LocalOptions, arrays: FactorArrays) -> str:
    """How many of the true neighbours a search by few terms has, measured on a sample."""
    indices, similar = arrays.read("neighbours"), arrays.read("similarities")
    n = options.n_samples
    chosen = np.linspace(0, n - 1, min(n, _SAMPLED)).astype(int)
    true = compare_with_all(unit_features(features), chosen, indices.shape[1])
    share = recall(Neighbours(indices[chosen], similar[chosen]), true)
    return (
        f"neighbours are searched by the {options.terms} heaviest terms of each document, which "
        f"finds {share:.0%} of the true ones ({len(chosen)} documents were checked)"
    )


def _search_terms(index: TermIndex, X: Any, rows: range, p: int) -> Neighbours:
    return search(index, X, rows, p)


def unit_features(features: Features) -> Any:
    """All rows at unit length in float32, sparse or dense; a row of zeros stays."""
    blocks = [local.unit_block(features.rows(rows)) for rows in row_ranges(features.n_samples)]
    if isinstance(blocks[0], np.ndarray):
        return np.concatenate(blocks)
    return sparse.csr_array(sparse.vstack(blocks, format="csr"))


def _directions(options: LocalOptions, features: Features, arrays: FactorArrays) -> Values:
    """R, padded by zeros where X has a lower rank."""
    n = options.n_samples
    blocks = ceil_div(n, BLOCK_ROWS)
    groups = row_ranges(n, BLOCK_ROWS * ceil_div(blocks, _GROUPS))

    def apply(basis: npt.NDArray[np.float32]) -> Floats:
        total = np.zeros(basis.shape)
        for first in range(0, len(groups), _PARTIALS):
            for part in arrays.map(Cross(features, basis), groups[first : first + _PARTIALS]):
                total += part
        return total

    R = local.principal_directions(apply, options.n_features, n, options.rank)
    return np.pad(R, ((0, 0), (0, options.rank - R.shape[1])))


@dataclass(frozen=True)
class Cross:
    """Task: XᵀXΩ over some rows of unit length, shape (d, l)."""

    features: Features
    basis: npt.NDArray[np.float32]

    def __call__(self, rows: slice) -> Floats:
        total = np.zeros(self.basis.shape)
        for first in range(rows.start, rows.stop, BLOCK_ROWS):
            part = slice(first, min(rows.stop, first + BLOCK_ROWS))
            total += local.cross_block(local.unit_block(self.features.rows(part)), self.basis)
        return total


@dataclass(frozen=True)
class Project:
    """Task: rows of F = X R."""

    features: Features
    directions: Shared

    def __call__(self, rows: slice) -> Blocks:
        X = local.unit_block(self.features.rows(rows))
        return {"smooth_0": local.project(X, self.directions.get())}


@dataclass(frozen=True)
class _RowsOf:
    """Rows of an array that is made as a whole."""

    name: str
    values: Shared

    def __call__(self, rows: slice) -> Blocks:
        return {self.name: self.values.get()[rows]}


@dataclass(frozen=True)
class _Smooth:
    """Rows of S times an array."""

    name: str
    walk: Shared
    before: Shared

    def __call__(self, rows: slice) -> Blocks:
        return {self.name: np.asarray(self.walk.get()[rows] @ self.before.get(), np.float32)}


def _walk(arrays: FactorArrays) -> Any:
    squared = local.squared_chords(arrays.read("similarities"))
    return local.lazy_walk(local.affinities(arrays.read("neighbours"), squared))


# heat kernels


@dataclass(frozen=True)
class HeatOptions:
    """What heat kernels are made with: samples, features, and eigenpairs that are kept."""

    n_samples: int
    n_features: int
    n_vectors: int

    @classmethod
    def of(cls, features: Features, n_features: int, max_clusters: int) -> HeatOptions:
        n = features.n_samples
        return cls(n, n_features, heat_rank(n, max_clusters))


def heat_stages(options: HeatOptions, features: Features, arrays: FactorArrays) -> Iterator[Stage]:
    """Means and deviations of the columns, neighbours, and eigenpairs of three graphs."""
    n, d = options.n_samples, options.n_features
    shapes = heat_shapes(n, d, options.n_vectors)
    standard = Shared(partial(_standardizer, features, d))
    made = _RowsOf("columns", standard)
    remark = partial(_dropped, arrays)
    yield Stage("columns", _some(shapes, "columns"), made, here=True, remark=remark)
    standardize = heat.Standardizer(*np.ascontiguousarray(arrays.read("columns").T))
    most = shapes["neighbours"].shape[1]
    index = Shared(partial(_dense_searcher, features, standardize))
    yield Stage("neighbours", _some(shapes, *NEIGHBOUR_ARRAYS), FindNeighbours(index, most))
    index.forget()
    for name, size in heat.sizes(n_neighbours(n), n).items():
        make = partial(_eigenpairs, features, standardize, arrays, size, options.n_vectors)
        pairs = Shared(make)
        yield Stage(
            f"eigenvectors of {name}",
            _some(shapes, array_of(name, "heat")),
            _Column(array_of(name, "heat"), pairs, 1),
            here=True,
        )
        yield Stage(
            f"eigenvalues of {name}",
            _some(shapes, values_of(name)),
            _Column(values_of(name), pairs, 0),
            here=True,
        )
        pairs.forget()


def _dropped(arrays: FactorArrays) -> str:
    count = heat.Standardizer(*arrays.read("columns").T).n_dropped
    return f"constant columns are left out: {count}" if count else ""


@dataclass(frozen=True)
class _Column:
    """Rows of one of several arrays that are made together as a whole."""

    name: str
    values: Shared
    which: int

    def __call__(self, rows: slice) -> Blocks:
        return {self.name: self.values.get()[self.which][rows]}


def _standardizer(features: Features, n_features: int) -> Values:
    """Mean and deviation of every column, shape (d, 2), from two passes over the rows."""
    n = features.n_samples
    ranges = row_ranges(n)
    mean, largest = np.zeros(n_features), np.zeros(n_features)
    for rows in ranges:
        X = np.asarray(features.rows(rows))
        mean += X.sum(axis=0)
        largest = np.maximum(largest, np.abs(X).max(axis=0))
    mean /= n
    squares = np.zeros(n_features)
    for rows in ranges:
        squares += np.square(np.asarray(features.rows(rows)) - mean).sum(axis=0)
    return np.column_stack([mean, heat.deviations(squares / n, largest)])


def _dense_searcher(
    features: Features, standardize: heat.Standardizer
) -> Callable[[range, int], Neighbours]:
    return partial(search_dense, _standardized(features, standardize), metric="euclidean")


def _standardized(features: Features, standardize: heat.Standardizer) -> Floats:
    """All rows, standardised, shape (n, kept columns)."""
    blocks = [standardize(features.rows(rows)) for rows in row_ranges(features.n_samples)]
    return np.concatenate(blocks)


def _eigenpairs(
    features: Features, standardize: heat.Standardizer, arrays: FactorArrays, size: int, k: int
) -> tuple[Floats, Values]:
    """The k leading eigenvalues and vectors of the graph of so many neighbours."""
    near = arrays.read("neighbours")[:, :size]
    squared = np.maximum(-arrays.read("similarities")[:, :size].astype(np.float64), 0.0)
    X = _standardized(features, standardize)
    graph = heat.join_components(local.affinities(near, squared), X)
    values, vectors = leading_eigenpairs_of(heat.normalized_affinities(graph)[0], k)
    return values, vectors.astype(np.float32)
