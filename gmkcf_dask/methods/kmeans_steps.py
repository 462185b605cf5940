"""What the k-means methods share: starts, distances, and clusters that lost all their samples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gmkcf_dask.methods import checkpointing
from gmkcf_dask.methods.checkpointing import Schema
from gmkcf_dask.system.arrays import Floats, Labels


@dataclass(frozen=True)
class KMeansRun:
    """Where one run ended.

    Attributes
    ----------
    labels : ndarray of int, shape (n,)
    weights : ndarray, shape (m,)
    history : tuple of float
        Objective of the start, then after every iteration.
    converged : bool
    weights_history : ndarray, shape (n_iter + 1, m)
        Weights of the start, then after every iteration; shape (0, m) where they stay.
    C : ndarray, shape (n, k)
        The centres to which the samples were assigned, as weights of samples.
    norms : ndarray, shape (k,)
        Squared norms (CᵀKC)_cc of these centres, in the kernel of the assignment.
    fused_weights : ndarray, shape (m,)
        That kernel is Σ fused_weights_i K^i.
    """

    labels: Labels
    weights: Floats
    history: tuple[float, ...]
    converged: bool
    weights_history: Floats
    C: Floats
    norms: Floats
    fused_weights: Floats

    @property
    def factors(self) -> dict[str, Floats]:
        """What a new sample is assigned with."""
        return {"C": self.C, "norms": self.norms, "fused_weights": self.fused_weights}


def kmeans_run_schema(n: int, k: int, m: int) -> Schema:
    """Of a `KMeansRun` in a checkpoint."""
    return {
        "labels": checkpointing.labels(n, k),
        "weights": checkpointing.weights(m),
        "history": checkpointing.history,
        "converged": checkpointing.flag,
        "weights_history": checkpointing.weights_history(m),
        "C": checkpointing.array(n, k, low=0),
        "norms": checkpointing.array(k),
        "fused_weights": checkpointing.weights(m),
    }


def random_centres(n: int, k: int, seed: int, n_init: int) -> Iterator[Floats]:
    """k random samples as centres for each restart, shape (n, k), from a stream of its own."""
    for stream in np.random.SeedSequence(seed).spawn(n_init):
        yield sample_centres(np.random.default_rng(stream), n, k)


def sample_centres(rng: np.random.Generator, n: int, k: int) -> Floats:
    """Centres that are k different samples, shape (n, k)."""
    C = np.zeros((n, k))
    C[rng.choice(n, size=k, replace=False), np.arange(k)] = 1.0
    return C


def distances(diagonal: Floats, C: Floats, KC: Floats) -> Floats:
    """d_jc = K_jj − 2 (KC)_jc + (CᵀKC)_cc, shape (n, k)."""
    return distances_to(centre_norms(C, KC), diagonal, KC)


def centre_norms(C: Floats, KC: Floats) -> Floats:
    """(CᵀKC)_cc, shape (k,)."""
    return np.asarray(np.sum(C * KC, axis=0))


def distances_to(norms: Floats, diagonal: Floats, KC: Floats) -> Floats:
    """The same to centres of known norms, of any samples; shape (len, k)."""
    return np.asarray(diagonal[:, None] - 2.0 * KC + norms)


def assign(d: Floats) -> tuple[Labels, Floats]:
    """The nearest centre of every sample and the distance to it; no cluster stays empty.

    An emptied cluster takes the farthest sample of the clusters that have more than one.
    """
    labels = d.argmin(axis=1).astype(np.int32)
    own = d[np.arange(len(d)), labels]
    sizes = np.bincount(labels, minlength=d.shape[1])
    for empty in np.flatnonzero(sizes == 0):
        movable = np.where(sizes[labels] > 1, own, -np.inf)
        farthest = int(movable.argmax())
        sizes[labels[farthest]] -= 1
        sizes[empty] = 1
        labels[farthest], own[farthest] = empty, 0.0
    return labels, own


def indicator(labels: Labels, k: int, s: Floats | None = None) -> Floats:
    """Centres as weighted means of their samples: C_jc = s_j [label_j = c] / Σ s. Shape (n, k)."""
    C = np.zeros((len(labels), k))
    C[np.arange(len(labels)), labels] = 1.0 if s is None else s
    return np.asarray(C / C.sum(axis=0))
