"""Kernels in factored form, K^i = Z_i Z_iᵀ with Z_i of shape (n, r_i): no n×n matrix exists.

A product is two thin products over row blocks, Z_i (Z_iᵀ Y), and costs O(n r c). Blocks follow from
n alone and their sums are taken in order, so the result is the same bits in memory, on threads and
on any cluster.

Mixed signs: with Z = P − N, P and N ≥ 0, K = (PPᵀ + NNᵀ) − (PNᵀ + NPᵀ). Both parts are
non-negative matrices, so they serve the updates in place of K⁺ and K⁻; docs/algorithm.md has why J
still never rises.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
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
        return cls(tuple(names), n, ranks, dtype, tuple(_of_dtype(Z, dtype) for Z in factors))

    def block(self, kernel: int, rows: slice) -> Factor:
        return self.factors[kernel][rows]


def _of_dtype(Z: Factor, dtype: np.dtype[Any]) -> Factor:
    return np.ascontiguousarray(Z, dtype) if isinstance(Z, np.ndarray) else Z.tocsr().astype(dtype)


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
        inner = self.inner(np.hstack([U, V]), range(len(self.names)), split=False)
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
            products.append(self.product(weights, Z[:, own], split=split))
        return products

    def product(self, weights: Floats, Y: Floats, *, split: bool) -> Floats:
        """Σ weights_i Z_i Z_iᵀ Y, shape (n, c); with `split` and K⁺ Y beside it, (n, 2c)."""
        used = [int(i) for i in np.flatnonzero(weights)]
        inner = self.inner(Y, used, split=split)
        outer: dict[int, AnyFloats] = {}
        for i, G in inner.items():
            if split:
                # of [P N]: K Y = P (G_P − G_N) − N (G_P − G_N), K⁺ Y = P G_P + N G_N
                P, N = np.split(G, 2)
                G = np.block([[P - N, P], [N - P, N]])
            outer[i] = as_factor(weights[i] * G, self.source.dtype)
        parts = self.map_rows(Outer(self.source, outer, split))
        return check_finite(np.concatenate(parts), "K Z")

    def inner(self, Y: Floats, kernels: Sequence[int], *, split: bool) -> dict[int, Floats]:
        """Z_iᵀ Y by kernel, shape (r_i, c); with `split` [P N]ᵀ Y, shape (2r_i, c)."""
        factor = as_factor(Y, self.source.dtype)
        parts = self.map_rows(Inner(self.source, tuple(kernels), split), factor)
        return {i: sum_in_order([part[i] for part in parts]) for i in kernels}

    def overview(self, groups: npt.NDArray[np.integer], n_groups: int) -> Overview:
        members = np.zeros((self.n_samples, n_groups))
        members[np.arange(self.n_samples), groups] = 1.0
        m = len(self.names)
        sums = self.inner(members, range(m), split=False)
        gram = self.gram(np.ones(m))
        ends = np.cumsum([0, *self.source.ranks])
        own = [slice(a, b) for a, b in pairwise(ends)]
        lengths = self._facts[0]
        # between different samples: all pairs but those of a sample with itself
        products = [[np.square(gram[i, j]).sum() for j in own] for i in own] - lengths @ lengths.T
        totals = np.array([np.square(G.sum(axis=1)).sum() for G in sums.values()])
        n = self.n_samples
        return Overview(
            np.array([G.T @ G for G in sums.values()]),
            np.asarray(products),
            totals - self.traces,
            n * (n - 1),
        )

    def gram(self, weights: Floats) -> Floats:
        """[√w_i Z_i]ᵀ [√w_i Z_i] for kernels of some weight side by side, shape (Σ r_i, Σ r_i)."""
        parts = self.map_rows(Gram(self.source, tuple(float(w) for w in np.sqrt(weights))))
        return sum_in_order(parts)

    def dense_factor(self, i: int) -> Floats:
        """Z_i whole, shape (n, r_i)."""
        return _dense(self.source.block(i, slice(0, self.n_samples)))

    def map_rows(
        self, work: Callable[[slice, AnyFloats | None], T], Y: AnyFloats | None = None
    ) -> list[T]:
        """Work on every group of row blocks, with its rows of Y; results in order."""
        blocks, step = factor_blocks(self.n_samples), blocks_per_task(self.n_samples)
        starts = range(0, len(blocks), step)
        groups = [
            slice(blocks[t].start, blocks[min(t + step, len(blocks)) - 1].stop) for t in starts
        ]

        def rows_of(rows: slice) -> AnyFloats | None:
            return None if Y is None else Y[rows]

        return map_tasks(self._runner, work, [(rows, rows_of(rows)) for rows in groups])


class FusedFactors(BaseFusedKernel):
    """Σ weights_i Z_i Z_iᵀ; nothing is assembled."""

    def __init__(self, stack: FactoredKernels, weights: Floats) -> None:
        super().__init__(stack, weights)
        self.nonnegative = not any(stack.signed[i] for i in np.flatnonzero(weights))
        self.signed_factors = not self.nonnegative
        self._stack = stack

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
        left = np.concatenate(self._stack.map_rows(Outer(self._stack.source, outer, False)))
        lengths = np.linalg.norm(left, axis=0)
        # directions that K does not have: no vector, instead of noise
        return values, left / np.where(lengths > 1e-6 * max(lengths.max(), 1e-300), lengths, np.inf)

    def _product(self, Z: Floats, *, split: bool) -> Floats:
        return self._stack.product(self._weights, Z, split=split)


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
    """Z_iᵀ Y, or [P N]ᵀ Y, over some rows, by kernel."""

    source: FactorSource
    kernels: tuple[int, ...]
    split: bool

    def __call__(self, rows: slice, Y: AnyFloats | None) -> dict[int, Floats]:
        assert Y is not None
        totals: dict[int, Floats] = {}
        for part in row_parts(rows):
            own = Y[part.start - rows.start : part.stop - rows.start]
            for i in self.kernels:
                Z = self.source.block(i, part)
                product = _dense((_signs_apart(Z) if self.split else Z).T @ own)
                totals[i] = product if i not in totals else totals[i] + product
        return totals


@dataclass(frozen=True)
class Outer:
    """Σ_i Z_i G_i, or Σ_i [P N]_i G_i, for some rows, shape (len, c)."""

    source: FactorSource
    factors: dict[int, AnyFloats]
    split: bool

    def __call__(self, rows: slice, Y: AnyFloats | None) -> Floats:
        parts = []
        for part in row_parts(rows):
            total = np.zeros((part.stop - part.start, next(iter(self.factors.values())).shape[1]))
            for i, G in self.factors.items():
                Z = self.source.block(i, part)
                total += (_signs_apart(Z) if self.split else Z) @ G
            parts.append(total)
        return np.concatenate(parts)


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


def _signs_apart(Z: Factor) -> Factor:
    """[P N] with Z = P − N, shape (len, 2r)."""
    if not isinstance(Z, np.ndarray):
        return sparse.csr_array(sparse.hstack([Z.maximum(0), (-Z).maximum(0)]))
    both = np.empty((Z.shape[0], 2 * Z.shape[1]), Z.dtype)
    np.maximum(Z, 0, out=both[:, : Z.shape[1]])
    np.maximum(-Z, 0, out=both[:, Z.shape[1] :])
    return both


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
