"""Starting points. Randomness happens here, on the driver, from an explicit seed."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from typing import Literal

import numpy as np
import numpy.typing as npt

from gmkcf_dask.compute.lockstep import SolverSteps
from gmkcf_dask.compute.operators import FusedKernel
from gmkcf_dask.errors import InputError, NumericsWarning
from gmkcf_dask.events import Listener, ignore
from gmkcf_dask.methods.assign import kmeans_labels, place_rows
from gmkcf_dask.methods.base import check_whole
from gmkcf_dask.methods.spectral import (
    DegreesError,
    Embedding,
    eigenpairs_of_kernel,
    embed,
    embedding_by_kernel,
)
from gmkcf_dask.methods.spherical import normalized_rows, spherical_kmeans
from gmkcf_dask.system.arrays import Floats

Start = tuple[Floats, Floats]
Init = Literal["random", "spectral"] | tuple[npt.ArrayLike, npt.ArrayLike]
LIFT = 0.2
"""What is added to every entry of a spectral start, relative to a full membership of 1."""
LIFT_OF_ZEROS = 1e-10
"""Smallest entry of a given start, relative to its largest."""


def make_starts(n: int, k: int, seed: int, n_init: int, init: Init) -> Iterable[Start | None]:
    """The starts of all restarts. What the user gave is checked here and now, before any work.

    None stands for the spectral start, which needs the kernel.
    """
    check_whole(n_init=n_init)
    if isinstance(init, str) and init == "random":
        return random_starts(n, k, seed, n_init)
    start = None
    if not isinstance(init, str) or init != "spectral":
        if not isinstance(init, tuple | list) or len(init) != 2:
            raise InputError(f"init must be 'random', 'spectral' or a pair (U0, V0), not {init!r}")
        start = given_start(*init, n, k)
    if n_init != 1:
        raise InputError(
            "n_init must be 1 with a spectral or given start, from which every restart would be "
            "the same: use init='random' for restarts"
        )
    return [start]


def spectral_start(
    kernel: FusedKernel, k: int, rounding: float, listen: Listener = ignore
) -> SolverSteps[Start]:
    """Eigenvectors of spectral clustering, rotated towards memberships and made non-negative.

    Where degrees are not positive, those of the kernel itself, as for signed factors. Nothing
    depends on a seed. Sweeps as in spectral clustering.
    """
    try:
        steps = embed(kernel, k, "symmetric", rounding, listen=listen, must_converge=False)
        embedding = yield from steps
    except DegreesError:  # a start needs no cut
        pairs = yield from eigenpairs_of_kernel(kernel, k, rounding, listen=listen)
        return start_by_kernel(embedding_by_kernel(pairs, k))
    return (
        start_by_kernel(embedding)
        if kernel.signed_factors
        else start_from_vectors(embedding.vectors)
    )


def start_by_kernel(embedding: Embedding) -> Start:
    """U0 and V0 from eigenvectors E of K/λ₁, clustered by direction in the coordinates EΛ^½.

    Inner products of these coordinates approximate K best.
    """
    rows = normalized_rows(
        embedding.vectors * np.sqrt(np.maximum(1.0 - embedding.eigenvalues, 0.0))
    )
    centres = spherical_kmeans(rows, rows.shape[1], seed=0)
    return start_from_members(rows, place_rows(rows, "spherical", centres)[0])


def start_from_vectors(vectors: Floats) -> Start:
    """U0 and V0 from orthonormal vectors, each of shape (n, k).

    V0 are the unit rows, turned by the rotation that takes the centres of their clusters nearest to
    the unit vectors, clipped at zero and lifted. Columns of U0 have sum 1: concepts are means.
    """
    rows = normalized_rows(vectors)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumericsWarning)  # fewer clusters than k are no matter here
        labels = kmeans_labels(rows, rows.shape[1], seed=0)
    return start_from_members(rows, labels)


def start_from_members(rows: Floats, labels: npt.NDArray[np.int32]) -> Start:
    """U0 and V0 from unit rows, shape (n, k), and the clusters they are in; −1 for none."""
    members = np.eye(rows.shape[1])[labels]
    members[labels < 0] = 0.0
    left, _, right = np.linalg.svd(rows.T @ (members / np.maximum(members.sum(axis=0), 1.0)))
    V = np.maximum(rows @ (left @ right), 0.0) + LIFT
    return V / V.sum(axis=0), V


def random_starts(n: int, k: int, seed: int, n_init: int) -> Iterator[Start]:
    """Uniform (0, 1) factors for each restart: U first, then V, from a stream of its own."""
    for stream in np.random.SeedSequence(seed).spawn(n_init):
        rng = np.random.default_rng(stream)
        yield _open_uniform(rng, (n, k)), _open_uniform(rng, (n, k))


def given_start(U0: npt.ArrayLike, V0: npt.ArrayLike, n: int, k: int) -> Start:
    """A start the user brings, checked; its zeros, which no step could ever leave, are lifted."""
    factors = []
    for name, given in (("U0", U0), ("V0", V0)):
        try:
            values = np.array(given, dtype=np.float64)
        except (TypeError, ValueError):
            raise InputError(f"init {name} must be an array of numbers") from None
        if values.shape != (n, k):
            raise InputError(f"init {name} has shape {values.shape}, it must be ({n}, {k})")
        if not np.isfinite(values).all() or values.min() < 0:
            raise InputError(f"init {name} must be finite and non-negative")
        factors.append(np.maximum(values, LIFT_OF_ZEROS * (values.max() or 1.0)))
    return factors[0], factors[1]


def _open_uniform(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
    # random() may give exactly 0, which multiplicative updates could never leave
    return np.maximum(rng.random(shape), np.finfo(np.float64).tiny)
