"""Kernels of some of the samples: the others take no part in a fit, as if they were not there."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from gmkcf_dask.compute.operators import BaseFusedKernel, FusedKernel, KernelStack, Overview
from gmkcf_dask.system.arrays import Floats


class SubsetKernels:
    """The rows and columns of kernels that belong to some samples.

    Products are those of the whole kernels, with zeros for the samples that are left out.

    Parameters
    ----------
    whole : KernelStack
        Of n samples.
    kept : ndarray of bool, shape (n,)
    """

    def __init__(self, whole: KernelStack, kept: npt.NDArray[np.bool_]) -> None:
        self.whole, self.kept = whole, kept
        self.names, self.n_samples = whole.names, int(kept.sum())
        self.most_columns, self.error_floor = whole.most_columns, whole.error_floor

    @cached_property
    def traces(self) -> Floats:
        return np.array([float(self.diagonal(i).sum()) for i in range(len(self.names))])

    @property
    def semidefinite(self) -> bool:
        return self.whole.semidefinite

    @property
    def nonnegative(self) -> bool:
        return self.whole.nonnegative

    @property
    def products_per_weight_step(self) -> int:
        return self.whole.products_per_weight_step

    def diagonal(self, i: int) -> Floats:
        return self.whole.diagonal(i)[self.kept]

    def fuse(self, weights: Floats, *, keep: bool = True) -> FusedSubset:
        return FusedSubset(self, weights, self.whole.fuse(weights, keep=keep))

    def single(self, i: int) -> FusedSubset:
        return FusedSubset(self, np.eye(len(self.names))[i], self.whole.single(i))

    def errors(self, U: Floats, V: Floats) -> Floats:
        # samples without rows of U and V add k(x,x) and nothing else
        return self.whole.errors(self.widen(U), self.widen(V)) - (self.whole.traces - self.traces)

    def matmul_each(self, Zs: Floats | Sequence[Floats], *, split: bool = False) -> list[Floats]:
        one = isinstance(Zs, np.ndarray) and Zs.ndim == 2
        wide = self.widen(np.asarray(Zs)) if one else [self.widen(Z) for Z in Zs]
        return [product[self.kept] for product in self.whole.matmul_each(wide, split=split)]

    def overview(self, groups: npt.NDArray[np.integer], n_groups: int) -> Overview:
        raise NotImplementedError("of all samples, those that are left out among them")

    def widen(self, rows: Floats) -> Floats:
        """Rows of all n samples; zeros for those that are left out."""
        return widen(rows, self.kept)


def widen(rows: Floats, kept: npt.NDArray[np.bool_]) -> Floats:
    """Rows for the samples that are kept, and zeros between them. Shape (n, …)."""
    wide = np.zeros((len(kept), *rows.shape[1:]), rows.dtype)
    wide[kept] = rows
    return wide


class FusedSubset(BaseFusedKernel):
    """Rows and columns of a fused kernel."""

    def __init__(self, stack: SubsetKernels, weights: Floats, whole: FusedKernel) -> None:
        super().__init__(stack, weights)
        self.whole, self.kept = whole, stack.kept
        self.label, self.most_columns = whole.label, whole.most_columns
        self.nonnegative, self.signed_factors = whole.nonnegative, whole.signed_factors
        self.semidefinite = whole.semidefinite

    def release(self) -> None:
        self.whole.release()

    def split_matmul(self, Z: Floats, first: int | None = None) -> tuple[Floats, Floats]:
        KZ, KposZ = self.whole.split_matmul(widen(Z, self.kept), first)
        return KZ[self.kept], KposZ[self.kept]

    def _product(self, Z: Floats, *, split: bool) -> Floats:
        wide = widen(Z, self.kept)
        if split:
            return np.hstack(self.whole.split_matmul(wide))[self.kept]
        return self.whole.matmul(wide)[self.kept]
