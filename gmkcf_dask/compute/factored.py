"""Kernels in factored form, K^i = Z_i Z_iᵀ with Z_i of shape (n, r_i): no n×n matrix exists.

A product is two thin products over row blocks, Z_i (Z_iᵀ Y), and costs O(n r c). Blocks follow from
n alone and their sums are taken in order, so the result is the same bits in memory, on threads and
on any cluster.

Mixed signs: with Z = P − N, P and N ≥ 0, K = (PPᵀ + NNᵀ) − (PNᵀ + NPᵀ). Both parts are
non-negative matrices, so they serve the updates in place of K⁺ and K⁻; docs/algorithm.md has why J
still never rises. The first part is (K + |Z||Z|ᵀ) / 2, so it costs one product more.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.linalg import eigh

from gmkcf_dask.compute.blas import on_cores, one_blas_thread
from gmkcf_dask.compute.costs import products_per_weight_step
from gmkcf_dask.compute.operators import (
    BaseFusedKernel,
    Overview,
    check_finite,
    concat_factors,
    error_floor,
)
from gmkcf_dask.compute.runner import Runner, as_list, graph_value
from gmkcf_dask.compute.tile_ops import as_factor
from gmkcf_dask.kernels.tiling import FACTOR_ROWS, Precision
from gmkcf_dask.system.arrays import AnyFloats, Floats
from gmkcf_dask.system.units import ceil_div

Factor: TypeAlias = Any
"""Rows of Z_i: an ndarray, or a csr_array where most entries are 0."""
BLOCK_ROWS = FACTOR_ROWS
"""Rows of a block."""
BLOCKS_PER_TASK = 8
"""Blocks that one task works through at most; there are at least `MIN_TASKS` tasks if possible."""
MIN_TASKS = 16
WIDE = 4096
"""Columns of all factors together up to which a matrix of all with all is made."""
SAMPLED = 2048
"""Samples on which wider factors are compared with each other."""
COLUMNS = 256
"""Columns of a sparse factor that are made dense at once."""
PARTIAL_BYTES = 512 << 20
"""Of products Zᵀ Y of several groups of rows that wait to be added up."""
T = TypeVar("T")


@dataclass(frozen=True)
class FactorSource(ABC):
    """Row blocks of the factors of m kernels; travels with tasks.

    Attributes
    ----------
    names : tuple of str
    n_samples : int
    ranks : tuple of int
        r_i, columns of each factor.
    dtype : dtype
        float32 or float64.
    """

    names: tuple[str, ...]
    n_samples: int
    ranks: tuple[int, ...]
    dtype: np.dtype[np.floating[Any]]

    @abstractmethod
    def block(self, kernel: int, rows: slice) -> Factor:
        """Some rows of Z_i, shape (len, r_i)."""


@dataclass(frozen=True)
class MemoryFactors(FactorSource):
    """Factors in the memory of this process."""

    factors: tuple[Factor, ...]

    @classmethod
    def of(cls, factors: Sequence[Factor], names: Sequence[str]) -> MemoryFactors:
        """Factors of one dtype: float64 where all are, else float32."""
        wide = all(Z.dtype == np.float64 for Z in factors)
        dtype: np.dtype[np.floating[Any]] = np.dtype("f8") if wide else np.dtype("f4")
        ranks = tuple(int(Z.shape[1]) for Z in factors)
        n = int(factors[0].shape[0])
        return cls(tuple(names), n, ranks, dtype, tuple(of_dtype(Z, dtype) for Z in factors))

    def block(self, kernel: int, rows: slice) -> Factor:
        return self.factors[kernel][rows]


def of_dtype(Z: Factor, dtype: np.dtype[Any]) -> Factor:
    """Rows of a factor in the dtype of all; copied only where that is another."""
    if isinstance(Z, np.ndarray):
        return np.ascontiguousarray(Z, dtype)
    return Z.tocsr().astype(dtype, copy=False)


def factor_blocks(n: int) -> list[slice]:
    """The blocks that n samples are cut into."""
    return [slice(first, min(n, first + BLOCK_ROWS)) for first in range(0, n, BLOCK_ROWS)]


def blocks_per_task(n: int) -> int:
    """Blocks of one task, from n alone: the order of sums follows from it."""
    return max(1, min(BLOCKS_PER_TASK, ceil_div(n, BLOCK_ROWS) // MIN_TASKS))


def map_tasks(
    runner: Runner | None, work: Callable[..., T], items: Sequence[tuple[Any, ...]]
) -> list[T]:
    """Call `work` with every item, on the cores of this process or as tasks; results in order.

    What `work` holds is one value of the graph, whatever the number of tasks.
    """
    if runner is None:
        with one_blas_thread():
            return on_cores(lambda: lambda item: work(*item), items)

    def graph() -> Any:
        from dask.delayed import delayed

        shared = graph_value(work)
        task = delayed(runner.task(_call), pure=False, traverse=False)
        parts = [task(shared, *map(_in_graph, item)) for item in items]
        return delayed(as_list, pure=False)(*parts)

    return list(runner.retry(lambda: runner.compute(graph())))


class FactoredKernels:
    """m kernels in factored form.

    Parameters
    ----------
    source : FactorSource
        In memory, or in a store.
    runner : Runner, optional
        Where tasks run when the factors are in a store; None for the cores of this process.
    """

    most_columns = 1 << 12

    def __init__(self, source: FactorSource, runner: Runner | None = None) -> None:
        self.source = source
        self.names = source.names
        self.n_samples = source.n_samples
        self.error_floor = error_floor(source.dtype)
        self._runner = runner

    @cached_property
    def _facts(self) -> tuple[Floats, tuple[bool, ...]]:
        """Squared row lengths, shape (m, n), and which factors have negative entries."""
        parts = self.map_rows(Facts(self.source))
        lengths = np.concatenate([part[0] for part in parts], axis=1)
        signed = np.any([part[1] for part in parts], axis=0)
        return lengths, tuple(bool(one) for one in signed)

    @property
    def signed(self) -> tuple[bool, ...]:
        """Of each kernel, whether its factor has a negative entry."""
        return self._facts[1]

    semidefinite = True

    @property
    def nonnegative(self) -> bool:
        return not any(self.signed)

    @cached_property
    def traces(self) -> Floats:
        return np.asarray(self._facts[0].sum(axis=1))

    @property
    def products_per_weight_step(self) -> int:
        # by m and precision alone, as for tiles: every layout iterates alike
        precision: Precision = "float64" if self.source.dtype == np.float64 else "float32"
        return products_per_weight_step(len(self.names), precision)

    def diagonal(self, i: int) -> Floats:
        return np.asarray(self._facts[0][i])

    def fuse(self, weights: Floats, *, keep: bool = True) -> FusedFactors:
        return FusedFactors(self, weights)

    def single(self, i: int) -> FusedFactors:
        return self.fuse(np.eye(len(self.names))[i])

    def errors(self, U: Floats, V: Floats) -> Floats:
        k = U.shape[1]
        inner = self.inner(np.hstack([U, V]), range(len(self.names)))
        VtV = V.T @ V
        e = [
            trace - 2.0 * np.sum(G[:, :k] * G[:, k:]) + np.sum((G[:, :k].T @ G[:, :k]) * VtV)
            for trace, G in zip(self.traces, inner.values(), strict=True)
        ]
        return check_finite(np.array(e), "the reconstruction error")

    def matmul_each(self, Zs: Floats | Sequence[Floats], *, split: bool = False) -> list[Floats]:
        Z, columns = concat_factors(Zs, len(self.names))
        products = []
        for i, own in enumerate(columns):
            if own.stop == own.start:
                products.append(np.empty((self.n_samples, 0)))
                continue
            weights = np.eye(len(self.names))[i]
            own_Z = Z[:, own]
            products.append(self.product(weights, own_Z, own_Z.shape[1] if split else 0))
        return products

    def product(self, weights: Floats, Y: Floats, positive: int = 0) -> Floats:
        """Σ weights_i Z_i Z_iᵀ Y, shape (n, c); beside it K⁺ times the first columns of Y.

        There are `positive` of these columns.
        """
        used = [int(i) for i in np.flatnonzero(weights)]
        outer = {
            i: as_factor(weights[i] * G, self.source.dtype)
            for i, G in self.inner(Y, used, positive).items()
        }
        parts = self.map_rows(Outer(self.source, outer, positive))
        return check_finite(np.concatenate(parts), "K Z")

    def inner(self, Y: Floats, kernels: Sequence[int], positive: int = 0) -> dict[int, Floats]:
        """Z_iᵀ Y by kernel, shape (r_i, c); beside it |Z_i|ᵀ times the first columns of Y."""
        factor = as_factor(Y, self.source.dtype)
        work = Inner(self.source, tuple(kernels), positive)
        rows = sum(self.source.ranks[i] for i in kernels)
        size = 8 * max(1, rows * (Y.shape[1] + positive))
        totals: dict[int, Floats] = {}
        for part in self.rows_in_turn(work, factor, max(2, PARTIAL_BYTES // size)):
            for i, own in part.items():
                if i in totals:
                    totals[i] += own
                else:
                    totals[i] = own.copy()
        return totals

    def overview(self, groups: npt.NDArray[np.integer], n_groups: int) -> Overview:
        members = np.zeros((self.n_samples, n_groups))
        members[np.arange(self.n_samples), groups] = 1.0
        m = len(self.names)
        sums = self.inner(members, range(m))
        grouped, n = np.array([G.T @ G for G in sums.values()]), self.n_samples
        if is_wide(self.source.ranks):
            return Overview(grouped, *self._compared_on_a_sample(), n * (n - 1))
        gram = self.gram(np.ones(m))
        ends = np.cumsum([0, *self.source.ranks])
        own = [slice(a, b) for a, b in pairwise(ends)]
        lengths = self._facts[0]
        # between different samples: all pairs but those of a sample with itself
        products = [[np.square(gram[i, j]).sum() for j in own] for i in own] - lengths @ lengths.T
        totals = np.array([np.square(G.sum(axis=1)).sum() for G in sums.values()])
        return Overview(grouped, np.asarray(products), totals - self.traces, n * (n - 1))

    def _compared_on_a_sample(self) -> tuple[Floats, Floats]:
        """Products between kernels and their sums, of pairs of some samples, for all pairs."""
        n = self.n_samples
        chosen = np.unique(np.linspace(0, n - 1, min(n, SAMPLED)).astype(np.int64))
        parts = self.map_rows(Chosen(self.source, chosen))
        kernels = []
        for i in range(len(self.names)):
            blocks = [part[i] for part in parts if part[i].shape[0]]
            Z: Any = np.concatenate(blocks) if isinstance(blocks[0], np.ndarray) else sparse.vstack(
                blocks, "csr"
            )  # fmt: skip
            K = _dense(Z @ Z.T)
            np.fill_diagonal(K, 0.0)
            kernels.append(K)
        s = len(chosen)
        share = n * (n - 1) / max(1, s * (s - 1))
        products = np.array([[float(np.vdot(A, B)) for B in kernels] for A in kernels])
        return products * share, np.array([float(K.sum()) for K in kernels]) * share

    def gram(self, weights: Floats) -> Floats:
        """[√w_i Z_i]ᵀ [√w_i Z_i] for kernels of some weight side by side, shape (Σ r_i, Σ r_i)."""
        parts = self.map_rows(Gram(self.source, tuple(float(w) for w in np.sqrt(weights))))
        return sum_in_order(parts)

    def dense_columns(self, i: int) -> Iterator[Floats]:
        """Z_i some columns at a time, shape (n, c); a dense one whole."""
        Z = self.source.block(i, slice(0, self.n_samples))
        if isinstance(Z, np.ndarray):
            yield _dense(Z)
            return
        by_column = Z.tocsc()
        for first in range(0, Z.shape[1], COLUMNS):
            yield _dense(by_column[:, first : first + COLUMNS])

    def map_rows(
        self, work: Callable[[slice, AnyFloats | None], T], Y: AnyFloats | None = None
    ) -> list[T]:
        """Work on every group of row blocks, with its rows of Y; results in order."""
        return list(self.rows_in_turn(work, Y))

    def rows_in_turn(
        self,
        work: Callable[[slice, AnyFloats | None], T],
        Y: AnyFloats | None = None,
        at_once: int | None = None,
    ) -> Iterator[T]:
        """The same with so many results in memory at once."""
        blocks, step = factor_blocks(self.n_samples), blocks_per_task(self.n_samples)
        starts = range(0, len(blocks), step)
        groups = [
            slice(blocks[t].start, blocks[min(t + step, len(blocks)) - 1].stop) for t in starts
        ]

        def rows_of(rows: slice) -> AnyFloats | None:
            return None if Y is None else Y[rows]

        step = at_once or len(groups)
        for first in range(0, len(groups), step):
            some = groups[first : first + step]
            yield from map_tasks(self._runner, work, [(rows, rows_of(rows)) for rows in some])


def is_wide(ranks: Sequence[int]) -> bool:
    """Whether factors have too many columns for a matrix of all of them with all."""
    return sum(ranks) > WIDE


class FusedFactors(BaseFusedKernel):
    """Σ weights_i Z_i Z_iᵀ; nothing is assembled."""

    def __init__(self, stack: FactoredKernels, weights: Floats) -> None:
        super().__init__(stack, weights)
        self.nonnegative = not any(stack.signed[i] for i in np.flatnonzero(weights))
        self.signed_factors = not self.nonnegative
        self.semidefinite = bool((weights >= 0).all())
        self._stack = stack
        used = np.flatnonzero(weights)
        self.wide = is_wide([stack.source.ranks[i] for i in used])
        """Whether `leading_eigenpairs` would take too much memory."""

    def release(self) -> None:
        pass

    def leading_eigenpairs(self, k: int) -> tuple[Floats, Floats]:
        """The k largest eigenvalues of K and their vectors, shapes (k,) and (n, k).

        The vectors are the leading left singular vectors of [√w_i Z_i]. Two passes over the rows.
        """
        weights = np.maximum(self._weights, 0.0)
        values, vectors = eigh(self._stack.gram(weights), driver="evd")
        values, vectors = np.maximum(values[::-1][:k], 0.0), vectors[:, ::-1][:, :k]
        used = np.flatnonzero(weights).tolist()
        ends = np.cumsum([0, *(self._stack.source.ranks[i] for i in used)])
        outer = {
            i: as_factor(np.sqrt(weights[i]) * vectors[a:b], self._stack.source.dtype)
            for i, (a, b) in zip(used, pairwise(ends), strict=True)
        }
        left = np.concatenate(self._stack.map_rows(Outer(self._stack.source, outer)))
        lengths = np.linalg.norm(left, axis=0)
        # directions that K does not have: no vector, instead of noise
        return values, left / np.where(lengths > 1e-6 * max(lengths.max(), 1e-300), lengths, np.inf)

    def split_matmul(self, Z: Floats, first: int | None = None) -> tuple[Floats, Floats]:
        c = Z.shape[1]
        both = self._stack.product(self._weights, Z, c if first is None else first)
        return both[:, :c], both[:, c:]

    def _product(self, Z: Floats, *, split: bool) -> Floats:
        return self._stack.product(self._weights, Z, Z.shape[1] if split else 0)


# tasks


@dataclass(frozen=True)
class Facts:
    """Squared lengths of rows, shape (m, len), and whether a factor has negative entries, (m,)."""

    source: FactorSource

    def __call__(self, rows: slice, Y: AnyFloats | None) -> tuple[Floats, npt.NDArray[np.bool_]]:
        blocks = [self.source.block(i, rows) for i in range(len(self.source.names))]
        lengths = [np.asarray(_squares(Z)) for Z in blocks]
        return np.array(lengths), np.array([bool(Z.min() < 0) if Z.size else False for Z in blocks])


def _squares(Z: Factor) -> Floats:
    if isinstance(Z, np.ndarray):
        return np.asarray(np.einsum("ij,ij->i", Z, Z, dtype=np.float64))
    return np.asarray(Z.astype(np.float64).power(2).sum(axis=1), np.float64).ravel()


@dataclass(frozen=True)
class Inner:
    """Z_iᵀ Y over some rows, by kernel; beside it |Z_i|ᵀ times the first columns of Y."""

    source: FactorSource
    kernels: tuple[int, ...]
    positive: int = 0

    def __call__(self, rows: slice, Y: AnyFloats | None) -> dict[int, Floats]:
        assert Y is not None
        totals: dict[int, Floats] = {}
        for part in row_parts(rows):
            own = Y[part.start - rows.start : part.stop - rows.start]
            for i in self.kernels:
                Z = self.source.block(i, part)
                if not isinstance(Z, np.ndarray):
                    columns = own.shape[1] + self.positive
                    total = totals.setdefault(i, np.zeros((Z.shape[1], columns)))
                    _add_thin(total, Z, own, self.positive)
                    continue
                product = _dense(Z.T @ own)
                if self.positive:
                    first = np.ascontiguousarray(own[:, : self.positive])
                    product = np.hstack([product, _dense(abs(Z).T @ first)])
                totals[i] = product if i not in totals else totals[i] + product
        return totals


def _add_thin(total: Floats, Z: Any, own: AnyFloats, positive: int) -> None:
    """Add Zᵀ Y, and |Z|ᵀ times the first columns of Y, in the rows that Z has columns for."""
    used = np.flatnonzero(np.bincount(Z.indices, minlength=Z.shape[1]))
    place = np.zeros(Z.shape[1], np.int32)
    place[used] = np.arange(used.size, dtype=np.int32)
    thin = sparse.csr_array((Z.data, place[Z.indices], Z.indptr), (Z.shape[0], used.size)).T
    c = own.shape[1]
    total[used, :c] += thin @ own
    if positive:
        total[used, c:] += abs(thin) @ np.ascontiguousarray(own[:, :positive])


@dataclass(frozen=True)
class Chosen:
    """Those of some rows that were chosen, by kernel."""

    source: FactorSource
    chosen: npt.NDArray[np.int64]

    def __call__(self, rows: slice, Y: AnyFloats | None) -> list[Factor]:
        own = self.chosen[(rows.start <= self.chosen) & (self.chosen < rows.stop)] - rows.start
        return [self.source.block(i, rows)[own] for i in range(len(self.source.names))]


@dataclass(frozen=True)
class Outer:
    """Σ_i Z_i G_i for some rows, shape (len, c).

    The last columns of G_i are for |Z_i|, and their products are averaged with those of the first
    ones: that is K⁺.
    """

    source: FactorSource
    factors: dict[int, AnyFloats]
    positive: int = 0

    def __call__(self, rows: slice, Y: AnyFloats | None) -> Floats:
        columns = next(iter(self.factors.values())).shape[1]
        c = columns - self.positive
        total = np.zeros((rows.stop - rows.start, columns))
        for part in row_parts(rows):
            own = total[part.start - rows.start : part.stop - rows.start]
            for i, G in self.factors.items():
                Z = self.source.block(i, part)
                own[:, :c] += Z @ np.ascontiguousarray(G[:, :c])
                if self.positive:
                    own[:, c:] += abs(Z) @ np.ascontiguousarray(G[:, c:])
            if self.positive:
                own[:, c:] = (own[:, c:] + own[:, : self.positive]) / 2.0
        return total


@dataclass(frozen=True)
class Gram:
    """ZᵀZ of the factors of some weight side by side over some rows, shape (Σ r_i, Σ r_i)."""

    source: FactorSource
    roots: tuple[float, ...]

    def __call__(self, rows: slice, Y: AnyFloats | None) -> Floats:
        used = [i for i, root in enumerate(self.roots) if root > 0.0]
        size = sum(self.source.ranks[i] for i in used)
        total = np.zeros((size, size))
        for part in row_parts(rows):
            blocks = [self.roots[i] * _dense(self.source.block(i, part)) for i in used]
            Z = np.ascontiguousarray(np.hstack(blocks), self.source.dtype)
            total += Z.T @ Z
        return total


def row_parts(rows: slice) -> list[slice]:
    """The blocks inside the rows of a task."""
    return [
        slice(first, min(rows.stop, first + BLOCK_ROWS))
        for first in range(rows.start, rows.stop, BLOCK_ROWS)
    ]


def _dense(values: Any) -> Floats:
    whole = values if isinstance(values, np.ndarray) else values.toarray()
    return np.asarray(whole, dtype=np.float64)


def sum_in_order(parts: Sequence[Floats]) -> Floats:
    """The sum of partial results, first to last: the same bits wherever they were made."""
    total = parts[0].copy()
    for part in parts[1:]:
        total += part
    return total


def _call(work: Any, *item: Any) -> Any:
    # what came over a network may be neither aligned nor in C order, and BLAS would sum otherwise
    plain = (
        np.require(one, requirements=["C_CONTIGUOUS", "ALIGNED"])
        if isinstance(one, np.ndarray)
        else one
        for one in item
    )
    return work(*plain)


def _in_graph(value: Any) -> Any:
    return graph_value(value) if isinstance(value, np.ndarray) else value
