"""What is compared: the paper's methods as its rows were made, our variants, and what else one
would take for the same features.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sklearn.cluster import KMeans, SpectralClustering
from sklearn.decomposition import NMF
from threadpoolctl import threadpool_limits

from gmkcf_dask.corpus.model import Matrix
from gmkcf_dask.errors import InputError
from gmkcf_dask.methods.base import Method, SingleKernelMethod
from gmkcf_dask.methods.coreg import Coreg
from gmkcf_dask.methods.gmkcf import Gmkcf
from gmkcf_dask.methods.kcf import Kcf
from gmkcf_dask.methods.kkm import Kkm
from gmkcf_dask.methods.rmkkm import Rmkkm
from gmkcf_dask.methods.spectral import Sc
from gmkcf_dask.system.arrays import AnyLabels

N_NEIGHBOURS = 20


@dataclass(frozen=True)
class OnFeatures:
    """Labels, objective (NaN where there is none) and iterations of a method on X itself."""

    labels: AnyLabels
    objective: float
    iterations: int


@dataclass(frozen=True)
class Entry:
    """One row of the comparison."""

    name: str  # what `--methods` calls it
    title: str  # what tables call it; for a method of the paper the name of its column there
    settings: str
    kind: Literal["paper", "variant", "reference"]
    method: Callable[[int, str], Method] | None = None
    """(n_clusters, data set) → method, for those that see kernels only."""
    on_features: Callable[[Matrix, int, int], OnFeatures] | None = None
    """(X, n_clusters, seed), for those that see X only."""
    deterministic: bool = False  # one run stands for all seeds
    needs_nonnegative: bool = False  # features

    @property
    def single_kernel(self) -> bool:
        return self.method is not None and isinstance(self.method(1, ""), SingleKernelMethod)


def _kmeans(X: Matrix, k: int, seed: int) -> OnFeatures:
    model: Any = KMeans(k, n_init=10, random_state=seed).fit(X)
    return OnFeatures(model.labels_, float(model.inertia_), int(model.n_iter_))


def _nmf(X: Matrix, k: int, seed: int) -> OnFeatures:
    model: Any = NMF(k, init="nndsvda", max_iter=1000, random_state=seed)
    W = model.fit_transform(X)
    return OnFeatures(W.argmax(axis=1), float(model.reconstruction_err_), int(model.n_iter_))


def _neighbour_graph(X: Matrix, k: int, seed: int) -> OnFeatures:
    neighbours = min(N_NEIGHBOURS, X.shape[0] - 1)
    model: Any = SpectralClustering(
        k, affinity="nearest_neighbors", n_neighbors=neighbours, random_state=seed
    )
    return OnFeatures(model.fit(X).labels_, float("nan"), 0)


_ROWS = (
    Entry("kkm", "KKM", "one start, mean over the kernels", "paper", lambda k, _: Kkm(k)),
    Entry("sc", "SC", "unnormalised Laplacian, mean over the kernels", "paper",
          lambda k, _: Sc(k, "unnormalized")),
    Entry("kcf", "KCF", "mean over the kernels, final V exact", "paper", lambda k, _: Kcf(k)),
    Entry("coreg", "Coreg", "λ = 100 (TR31: 1)", "paper",
          lambda k, dataset: Coreg(k, lam=1.0 if dataset == "tr31" else 100.0)),
    Entry("rmkkm", "RMKKM", "γ = 0.4, inner clustering restarted", "paper",
          lambda k, _: Rmkkm(k, gamma=0.4, restart_inner=True)),
    Entry("gmkcf", "GMKCF", "Algorithm 1, final V exact", "paper", lambda k, _: Gmkcf(k)),
    Entry("sc_symmetric", "SC, symmetric", "normalised cut, mean over the kernels", "variant",
          lambda k, _: Sc(k)),
    Entry("coreg_0.1", "Coreg, λ = 0.1", "as the text says", "variant", lambda k, _: Coreg(k)),
    Entry("rmkkm_warm", "RMKKM, γ = 0.3", "as the text says, going on from the last centres",
          "variant", lambda k, _: Rmkkm(k)),
    Entry("gmkcf_spectral", "GMKCF, spectral start", "deterministic but for K-means", "variant",
          lambda k, _: Gmkcf(k, init="spectral")),
    Entry("kmeans", "KMeans on X", "scikit-learn, n_init = 10", "reference", on_features=_kmeans),
    Entry("nmf", "NMF on X", "scikit-learn, nndsvda, argmax; one run, the seed hardly matters",
          "reference", on_features=_nmf, deterministic=True, needs_nonnegative=True),
    Entry("knn_spectral", "Spectral on X", f"scikit-learn, {N_NEIGHBOURS} neighbours", "reference",
          on_features=_neighbour_graph),
)  # fmt: skip
ENTRIES = {entry.name: entry for entry in _ROWS}


def choose_entries(names: Sequence[str]) -> list[Entry]:
    """Entries by name, in the order of the table; "all" for all of them."""
    unknown = [name for name in names if name not in (*ENTRIES, "all")]
    if unknown:
        raise InputError(
            f"there is no method {unknown[0]!r} in the benchmark: choose all, or from "
            f"{', '.join(ENTRIES)}"
        )
    return [entry for name, entry in ENTRIES.items() if name in names or "all" in names]


def run_on_features(entry: Entry, X: Matrix, k: int, seed: int) -> OnFeatures:
    """One run of a reference, its warnings (unconnected graphs, say) left aside."""
    assert entry.on_features is not None
    with warnings.catch_warnings(), threadpool_limits(2):
        warnings.simplefilter("ignore")
        return entry.on_features(X, k, seed)
