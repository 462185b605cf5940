"""Small kernel problems, and ways to put them behind each operator."""

from dataclasses import asdict

import numpy as np

from gmkcf_dask.compute.dense import DenseKernels
from gmkcf_dask.compute.runner import Runner
from gmkcf_dask.compute.tile_ops import MemoryTiles
from gmkcf_dask.compute.tiled import TiledKernels
from gmkcf_dask.events import ignore
from gmkcf_dask.kernels.specs import precomputed_specs
from gmkcf_dask.kernels.tiles import CODE_SCALE
from gmkcf_dask.kernels.tiling import Tiling
from gmkcf_dask.methods.gmkcf import Gmkcf
from gmkcf_dask.methods.kcf import Kcf
from gmkcf_dask.store.build import build_store, build_tiles
from gmkcf_dask.store.request import KernelRequest

RUNNERS = ["synchronous", "threads", "one_worker", "two_workers"]


def kernels(rng, n=60, m=4, mixed=False):
    """m positive semi-definite kernels with unit diagonal, non-negative or of mixed signs."""
    made = []
    for _ in range(m):
        X = rng.normal(size=(n, 8)) if mixed else rng.random((n, 8)) ** 2
        X += 2 * np.eye(8)[rng.integers(0, 3, n)]
        X /= np.linalg.norm(X, axis=1, keepdims=True)
        K = X @ X.T
        made.append((K + K.T) / 2)
    return [np.clip(K, 0, 1) for K in made] if not mixed else made


def start(rng, n, k):
    return rng.random((n, k)), rng.random((n, k))


def request(Ks, precision="float64", block=None):
    return KernelRequest(
        None, precomputed_specs(Ks), "none", "none", precision=precision, block=block
    )


def dense(Ks, precision="float64", block=16):
    req = request(Ks, precision)
    stacks, tiling = build_tiles(req, block).stacks, Tiling(len(Ks[0]), block)
    names = [spec.name for spec in req.specs]
    each = tuple(range(len(names)))
    return DenseKernels(MemoryTiles(stacks, tiling, CODE_SCALE[precision], each), names)


def tiled(path, Ks, precision="float64", block=16, runner=None, residency="memory"):
    store = build_store(path, request(Ks, precision, block), Runner())
    return TiledKernels(store, runner or Runner(scheduler="synchronous"), residency)


def fit_gmkcf(stack, options, *, seed, listen=ignore, **how):
    return Gmkcf(**{**asdict(options), **how}).fit(stack, [seed], listen)[0]


def fit_kcf(stack, options, *, kernel, seed, **how):
    return Kcf(**{**asdict(options), **how}).fit(stack, [seed], [kernel])[0]


class Recorder:
    """An operator that remembers the factors it was asked the errors of."""

    def __init__(self, stack):
        self._stack = stack
        self.factors = []

    def __getattr__(self, name):
        return getattr(self._stack, name)

    def errors(self, U, V):
        self.factors.append((U, V))
        return self._stack.errors(U, V)
