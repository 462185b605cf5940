"""The operator interface: what methods may do with kernels.

U lives on the columns of a kernel, V on its rows; for the square symmetric kernels of today both
have n of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from gmkcf_dask.errors import DamagedStoreError, HopelessInputError
from gmkcf_dask.kernels.statistics import LARGEST_TRACE, SMALLEST_DIAGONAL
from gmkcf_dask.kernels.tiling import Precision
from gmkcf_dask.system.arrays import Floats


@dataclass(frozen=True)
class Overview:
    """m kernels in small.

    Attributes
    ----------
    sums : ndarray, shape (m, g, g)
        Of the entries between every two groups of samples.
    products : ndarray, shape (m, m)
        Σ K^i ∘ K^j over the entries that were compared, between two different samples each.
    compared : ndarray, shape (m,)
        Σ K^i over the same entries.
    entries : int
        How many these are: n(n − 1), or an even part where many kernels meet large tiles.
    """

    sums: Floats
    products: Floats
    compared: Floats
    entries: int

    def deviations(self) -> Floats:
        """Standard deviation of every kernel between different samples, shape (m,)."""
        return np.sqrt(np.maximum(np.diagonal(self._covariance()), 0.0))

    def correlation(self) -> Floats:
        """Pearson's, between every two kernels over pairs of different samples, shape (m, m).

        A constant kernel has none: 0 with all others.
        """
        covariance, spread = self._covariance(), self.deviations()
        level = np.sqrt(np.diagonal(self.products) / max(1, self.entries))
        varies = spread > 1e-7 * level  # the rest is rounding
        both = np.outer(varies, varies)
        scale = np.outer(spread, spread)
        correlation = np.divide(covariance, scale, out=np.zeros_like(covariance), where=both)
        np.fill_diagonal(correlation, 1.0)
        return np.asarray(np.clip(correlation, -1.0, 1.0))

    def _covariance(self) -> Floats:
        entries = max(1, self.entries)  # a single sample has no other
        means = self.compared / entries
        return np.asarray(self.products / entries - np.outer(means, means))


class FusedKernel(Protocol):
    """One n×n matrix Σ weights_i K^i that can be multiplied with."""

    @property
    def label(self) -> str:
        """What a person calls it: "kernel NAME", or "the fused kernel"."""

    @property
    def most_columns(self) -> int:
        """Columns beyond which several runs should not put their blocks into one product."""

    @property
    def trace(self) -> float: ...

    @property
    def nonnegative(self) -> bool:
        """No entry is below zero."""

    @property
    def semidefinite(self) -> bool:
        """It is known as Z Zᵀ, so it has no negative eigenvalue."""

    @property
    def signed_factors(self) -> bool:
        """It, or a part of it, is known by factors of mixed signs: degrees may be 0 or less."""

    def matmul(self, Z: Floats) -> Floats:
        """K Z, shape (n, c). One sweep, whatever c."""

    def split_matmul(self, Z: Floats, first: int | None = None) -> tuple[Floats, Floats]:
        """K Z and K⁺ Z, each of shape (n, c), in one sweep; K⁻ Z is their difference.

        Only the `first` columns of K⁺ Z are returned where these are all that is needed.
        """

    def row_sums(self) -> Floats:
        """K 1, shape (n,)."""

    def diagonal(self) -> Floats:
        """Shape (n,)."""

    def release(self) -> None:
        """Free what the matrix occupies; it must not be used afterwards."""


class KernelStack(Protocol):
    """m kernels of the same n samples."""

    @property
    def names(self) -> tuple[str, ...]: ...

    @property
    def n_samples(self) -> int: ...

    @property
    def most_columns(self) -> int:
        """Columns per kernel beyond which several runs should not share one product."""

    @property
    def traces(self) -> Floats:
        """tr K^i, shape (m,)."""

    @property
    def nonnegative(self) -> bool:
        """No entry of any kernel is below zero."""

    @property
    def semidefinite(self) -> bool:
        """Every kernel is known as Z Zᵀ."""

    @property
    def products_per_weight_step(self) -> int:
        """Products with a kept fused kernel that touch as many bytes as fusing and errors do."""

    @property
    def error_floor(self) -> float:
        """Smallest e_i / tr K^i that rounding lets us trust."""

    def diagonal(self, i: int) -> Floats:
        """Diagonal of K^i, shape (n,)."""

    def fuse(self, weights: Floats, *, keep: bool = True) -> FusedKernel:
        """Σ weights_i K^i; the sweep over the kernels happens with the first product.

        `keep=False` for a matrix that is multiplied once: nothing is stored.
        """

    def single(self, i: int) -> FusedKernel:
        """K^i alone."""

    def errors(self, U: Floats, V: Floats) -> Floats:
        """e_i = tr K^i − 2 tr(VᵀK^iU) + tr(UᵀK^iU VᵀV), shape (m,). One sweep over all kernels."""

    def matmul_each(self, Zs: Floats | Sequence[Floats], *, split: bool = False) -> list[Floats]:
        """K^i Z_i for every kernel in one sweep, each of shape (n, c_i).

        Zs is one array of shape (n, c) for all kernels, or m arrays of shape (n, c_i); a kernel
        whose array has no columns is not read. `split` appends the products with K⁺: (n, 2c_i).
        """

    def overview(self, groups: npt.NDArray[np.integer], n_groups: int) -> Overview:
        """Sums between groups of samples in every kernel, and how alike the kernels are.

        `groups` has the group of every sample, shape (n,). One sweep over all kernels.
        """


class BaseFusedKernel(ABC):
    """What follows from one product alone; each operator implements `_product`."""

    signed_factors = False
    semidefinite = False

    def __init__(self, stack: KernelStack, weights: Floats) -> None:
        used = np.flatnonzero(weights)
        self.label = f"kernel {stack.names[used[0]]}" if len(used) == 1 else "the fused kernel"
        self.most_columns = stack.most_columns
        self.nonnegative = stack.nonnegative
        self.trace = float(weights @ stack.traces)
        self._weights = weights
        self._diagonal = stack.diagonal
        self._n_samples = stack.n_samples

    @abstractmethod
    def _product(self, Z: Floats, *, split: bool) -> Floats:
        """K Z, shape (n, c); with `split` [K Z, K⁺ Z], shape (n, 2c)."""

    def matmul(self, Z: Floats) -> Floats:
        return self._product(Z, split=False)

    def split_matmul(self, Z: Floats, first: int | None = None) -> tuple[Floats, Floats]:
        both, c = self._product(Z, split=True), Z.shape[1]
        return both[:, :c], both[:, c : c + (c if first is None else first)]

    def row_sums(self) -> Floats:
        return self.matmul(np.ones((self._n_samples, 1)))[:, 0]

    def diagonal(self) -> Floats:
        parts = [w * self._diagonal(i) for i, w in enumerate(self._weights) if w != 0]
        return np.asarray(sum(parts, np.zeros(self._n_samples)))


def concat_factors(Zs: Floats | Sequence[Floats], m: int) -> tuple[Floats, tuple[slice, ...]]:
    """The factors of m kernels side by side, shape (n, c), and which columns each kernel has."""
    if isinstance(Zs, np.ndarray) and Zs.ndim == 2:
        return Zs, (slice(0, Zs.shape[1]),) * m
    ends = np.cumsum([0, *(Z.shape[1] for Z in Zs)]).tolist()
    return np.hstack(list(Zs)), tuple(map(slice, ends[:-1], ends[1:]))


def products_in_order(products: Mapping[int, Floats], names: Sequence[str], n: int) -> list[Floats]:
    """Products by kernel number as a list, (n, 0) for a kernel without one."""
    nothing = np.empty((n, 0))
    return [
        check_finite(products.get(i, nothing), f"K Z of {name}") for i, name in enumerate(names)
    ]


def check_finite(values: Floats, what: str) -> Floats:
    """Return the values, or raise: NaN must never reach U or V."""
    if not np.isfinite(values).all():
        raise DamagedStoreError(
            f"{what} is not finite: the numbers overflow, or the kernels hold NaN; scale them to "
            "[0, 1], or build them again"
        )
    return values


def error_floor(dtype: np.dtype[np.floating]) -> float:
    """Relative floor of e_i: rounding of the store, not of float64 arithmetic, decides."""
    return 1e-12 if dtype == np.float64 else 1e-7


def refuse_extremes(stack: KernelStack) -> None:
    """A kernel of hardly any size would take all the weight, products of a huge one overflow."""
    precision: Precision = (
        "float64" if stack.error_floor < error_floor(np.dtype("f4")) else "float32"
    )
    for name, trace in zip(stack.names, stack.traces, strict=True):
        mean = trace / stack.n_samples
        if not (mean > SMALLEST_DIAGONAL[precision] and trace < LARGEST_TRACE[precision]):
            raise HopelessInputError(
                f"kernel {name} has a mean diagonal of {mean:.3g}, which must be positive and "
                f"neither too small nor too large for products in {precision}: scale it to [0, 1], "
                "or leave it out"
            )
