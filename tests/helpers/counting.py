"""Graphs and products that are counted."""

import warnings
from dataclasses import dataclass, field

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from gmkcf_dask.compute.runner import Runner
from gmkcf_dask.methods.factorize import SolverOptions
from gmkcf_dask.methods.gmkcf import gmkcf
from helpers.problems import start

N, M, K, BLOCK = 60, 3, 2, 20


class Counter:
    """An operator that counts sweeps: over all kernels at once, and over fused ones."""

    def __init__(self, stack):
        self._stack = stack
        self.each, self.fused, self.products = [], 0, []

    def __getattr__(self, name):
        return getattr(self._stack, name)

    def matmul_each(self, Zs, *, split=False):
        self.each.append([Z.shape[1] for Z in Zs] if isinstance(Zs, list) else Zs.shape[1])
        return self._stack.matmul_each(Zs, split=split)

    def fuse(self, weights, *, keep=True):
        self.fused += 1
        return CountedKernel(self._stack.fuse(weights, keep=keep), self)

    def single(self, i):
        return CountedKernel(self._stack.single(i), self)


class CountedKernel:
    def __init__(self, kernel, counter):
        self._kernel, self._counter = kernel, counter

    def __getattr__(self, name):
        return getattr(self._kernel, name)

    def matmul(self, Z):
        self._counter.products.append(Z.shape[1])
        return self._kernel.matmul(Z)


@dataclass(frozen=True)
class CountingRunner(Runner):
    """Counts graphs that do work; fetching what is already computed is none."""

    graphs: list = field(default_factory=list)

    def compute(self, collection):
        self.graphs.append("compute")
        return super().compute(collection)

    def persist(self, *collections):
        self.graphs.append("persist")
        return super().persist(*collections)


def cost_of_one_iteration(stack, runner, reads, **options):
    """Graphs and tile reads that one more iteration adds."""
    begin = start(np.random.default_rng(1), N, K)
    totals = []
    for iterations in (3, 4):
        runner.graphs.clear()
        reads.clear()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            gmkcf(stack, begin, SolverOptions(K, max_iter=iterations, tol=0.0, **options))
        totals.append((len(runner.graphs), len(reads)))
    return totals[1][0] - totals[0][0], totals[1][1] - totals[0][1]
