"""Kernels of several operators in one fit: tiles and factors side by side."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from gmkcf_dask.compute.factored import FactoredKernels, sum_in_order
from gmkcf_dask.compute.operators import BaseFusedKernel, FusedKernel, KernelStack, Overview
from gmkcf_dask.system.arrays import Floats


class CombinedKernels:
    """The kernels of a stack of tiles, then those of a stack of factors.

    Parameters
    ----------
    tiled : KernelStack
    factored : FactoredKernels
    """

    def __init__(self, tiled: KernelStack, factored: FactoredKernels) -> None:
        assert tiled.n_samples == factored.n_samples
        self.tiled, self.factored = tiled, factored
        self.names = (*tiled.names, *factored.names)
        self.n_samples = tiled.n_samples
        self.most_columns = min(tiled.most_columns, factored.most_columns)
        self.error_floor = max(tiled.error_floor, factored.error_floor)

    @cached_property
    def traces(self) -> Floats:
        return np.concatenate([self.tiled.traces, self.factored.traces])

    semidefinite = False

    @property
    def nonnegative(self) -> bool:
        return self.tiled.nonnegative and self.factored.nonnegative

    @property
    def products_per_weight_step(self) -> int:
        return self.tiled.products_per_weight_step + self.factored.products_per_weight_step

    def diagonal(self, i: int) -> Floats:
        m = len(self.tiled.names)
        return self.tiled.diagonal(i) if i < m else self.factored.diagonal(i - m)

    def fuse(self, weights: Floats, *, keep: bool = True) -> CombinedFusedKernel:
        return CombinedFusedKernel(self, weights, keep=keep)

    def single(self, i: int) -> FusedKernel:
        m = len(self.tiled.names)
        return self.tiled.single(i) if i < m else self.factored.single(i - m)

    def errors(self, U: Floats, V: Floats) -> Floats:
        return np.concatenate([self.tiled.errors(U, V), self.factored.errors(U, V)])

    def matmul_each(self, Zs: Floats | Sequence[Floats], *, split: bool = False) -> list[Floats]:
        m = len(self.tiled.names)
        if isinstance(Zs, np.ndarray) and Zs.ndim == 2:
            Zs = [Zs] * len(self.names)
        first = self.tiled.matmul_each(list(Zs[:m]), split=split)
        return first + self.factored.matmul_each(list(Zs[m:]), split=split)

    def overview(self, groups: npt.NDArray[np.integer], n_groups: int) -> Overview:
        tiles = self.tiled.overview(groups, n_groups)
        factors = self.factored.overview(groups, n_groups)
        # where only a part of the tiles was compared it stands for all
        share = factors.entries / max(1, tiles.entries)
        across = self._products_across()
        return Overview(
            np.concatenate([tiles.sums, factors.sums]),
            np.block([[tiles.products * share, across], [across.T, factors.products]]),
            np.concatenate([tiles.compared * share, factors.compared]),
            factors.entries,
        )

    def _products_across(self) -> Floats:
        """Σ K^i ∘ K^j between different samples, i of the tiles and j of the factors."""
        columns = []
        for j in range(len(self.factored.names)):
            own, total = self.factored.diagonal(j), np.zeros(len(self.tiled.names))
            for Z in self.factored.dense_columns(j):
                total += [float(np.sum(Z * KZ)) for KZ in self.tiled.matmul_each(Z)]
            diagonals = [self.tiled.diagonal(i) @ own for i in range(len(total))]
            columns.append(total - np.array(diagonals))
        return np.array(columns).T


class CombinedFusedKernel(BaseFusedKernel):
    """Σ weights_i K^i over tiles and factors."""

    def __init__(self, stack: CombinedKernels, weights: Floats, *, keep: bool) -> None:
        super().__init__(stack, weights)
        m = len(stack.tiled.names)
        self._parts: list[FusedKernel] = []
        if np.any(weights[:m]):
            self._parts.append(stack.tiled.fuse(weights[:m], keep=keep))
        if np.any(weights[m:]):
            self._parts.append(stack.factored.fuse(weights[m:]))
        self.nonnegative = all(part.nonnegative for part in self._parts)
        self.semidefinite = all(part.semidefinite for part in self._parts)
        self.signed_factors = any(part.signed_factors for part in self._parts)

    def release(self) -> None:
        for part in self._parts:
            part.release()

    def split_matmul(self, Z: Floats, first: int | None = None) -> tuple[Floats, Floats]:
        products = [part.split_matmul(Z, first) for part in self._parts]
        KZ, KposZ = (sum_in_order(each) for each in zip(*products, strict=True))
        return KZ, KposZ

    def _product(self, Z: Floats, *, split: bool) -> Floats:
        total = np.zeros((Z.shape[0], Z.shape[1] * (2 if split else 1)))
        for part in self._parts:
            total += np.hstack(part.split_matmul(Z)) if split else part.matmul(Z)
        return total
