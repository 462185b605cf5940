"""SC: spectral clustering with one kernel, or with the equal-weight mean of several.

symmetric     top-k eigenvectors of D^-½ K D^-½ (normalised cut)
unnormalized  the k smallest eigenvectors of D − K, the constant one included

Their rows at unit length, then K-means. Sweeps over the one kernel: one for the degrees D, then one
more up to 1,000 samples, at most 60 above (typically 10 to 40). The objective is the relaxed cut,
the sum of the k smallest eigenvalues of the Laplacian, after every sweep of the eigensolver.
Mixed signs are allowed as long as every degree is positive (symmetric), or always (unnormalized).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from gmkcf_dask.compute.operators import FusedKernel
from gmkcf_dask.errors import HopelessInputError, InputError
from gmkcf_dask.events import Listener, ignore
from gmkcf_dask.methods.assign import kmeans
from gmkcf_dask.methods.base import SingleKernelMethod, check_whole
from gmkcf_dask.methods.checkpointing import CheckpointSlot
from gmkcf_dask.methods.eigen import DIRECT, Eigenpairs, Matrix, leading_eigenpairs
from gmkcf_dask.methods.lockstep import ProductRequest, SolverSteps
from gmkcf_dask.system.arrays import Floats, Labels

Laplacian = Literal["symmetric", "unnormalized"]
_NO_VALUE = 1e-6
"""Eigenvalues of D^-½KD^-½, whose largest is 1, that are 0 but for rounding of float32 kernels."""


@dataclass(frozen=True)
class Embedding:
    """Eigenvectors of a Laplacian.

    Attributes
    ----------
    vectors : ndarray, shape (n, k)
        Orthonormal.
    eigenvalues : ndarray, shape (k,)
        Of the Laplacian, smallest first.
    history : tuple of float
        Their sum after every sweep.
    converged : bool
    scale : ndarray, shape (n,)
        What a kernel's rows and columns are multiplied by: D^-½, or ones.
    """

    vectors: Floats
    eigenvalues: Floats
    history: tuple[float, ...]
    converged: bool
    scale: Floats


@dataclass(frozen=True)
class Sc(SingleKernelMethod[None, Embedding]):
    """Spectral clustering.

    Parameters
    ----------
    n_clusters : int
    laplacian : {"symmetric", "unnormalized"}
    """

    name: ClassVar[str] = "sc"
    n_clusters: int
    laplacian: Laplacian = "symmetric"

    def __post_init__(self) -> None:
        check_whole(n_clusters=self.n_clusters)
        check_laplacian(self.laplacian)

    @property
    def seeded(self) -> bool:
        return False

    def starts(self, n: int, seed: int) -> Iterable[None]:
        return [None]

    def run(
        self,
        kernel: FusedKernel,
        start: None,
        weights: Floats,
        rounding: float,
        listen: Listener,
        restart: tuple[int, int],
        slot: CheckpointSlot,
    ) -> SolverSteps[Embedding]:
        return (yield from embed(kernel, self.n_clusters, self.laplacian, rounding, listen=listen))

    def conclude(self, run: Embedding, seed: int) -> tuple[Labels, dict[str, Floats]]:
        rows = unit_rows(run.vectors)
        labels, centres = kmeans(rows, self.n_clusters, seed)
        extension = extension_of(run, self.laplacian)
        spectrum = {"eigenvalues": run.eigenvalues, "extension": extension}
        return labels, {"embedding": rows, "centres": centres, **spectrum}


def extension_of(found: Embedding, laplacian: Laplacian) -> Floats:
    """What a new sample's row of the kernel is multiplied by for its row of eigenvectors.

    An eigenvector is its own product with the matrix, divided by its eigenvalue, and that is how it
    goes on to samples beyond those it was found on. Symmetric: D^-½E/λ with λ of D^-½KD^-½; an
    eigenvector of λ = 0 says nothing about other samples and is left out. Unnormalized: E; the rest
    depends on the sample. Shape (n, k).
    """
    if laplacian == "unnormalized":
        return found.vectors
    values = 1.0 - found.eigenvalues
    inverse = np.divide(1.0, values, out=np.zeros_like(values), where=np.abs(values) > _NO_VALUE)
    return np.asarray(found.scale[:, None] * found.vectors * inverse)


def embed(
    kernel: FusedKernel,
    k: int,
    laplacian: Laplacian,
    rounding: float,
    *,
    direct: int = DIRECT,
    listen: Listener = ignore,
    must_converge: bool = True,
) -> SolverSteps[Embedding]:
    """The k smallest eigenvectors of a kernel's Laplacian; a warning where they must be exact."""
    A, known = yield from laplacian_of(kernel, laplacian)
    found = yield from leading_eigenpairs(A, k, known, rounding, direct=direct, listen=listen)
    if must_converge and not found.converged:
        warn_not_converged(found, kernel.label)
    # the matrix solved for is I − L or −L
    top = k if laplacian == "symmetric" else 0
    return Embedding(
        found.vectors,
        (1.0 if laplacian == "symmetric" else 0.0) - found.values,
        tuple(top - value for value in found.sums),
        found.converged,
        A.scale,
    )


def laplacian_of(kernel: FusedKernel, laplacian: Laplacian) -> SolverSteps[tuple[Matrix, Floats]]:
    """The matrix whose *leading* eigenvectors are wanted, and the one that is known. One sweep."""
    diagonal = kernel.diagonal()
    n = len(diagonal)
    products = yield ProductRequest(np.ones((n, 1)))
    degrees = products.full[:, 0]
    if laplacian == "unnormalized":
        return Matrix(np.ones(n), degrees, diagonal), np.ones((n, 1))
    alone = (degrees == 0) & kernel.nonnegative  # a row of zeros: a sample with no neighbours
    wrong = np.flatnonzero((degrees <= 0) & ~alone)
    if len(wrong):
        raise HopelessInputError(
            f"row {wrong[0]} of {kernel.label} sums to {degrees[wrong[0]]:.3g}, and {len(wrong)} "
            "rows have a sum that is not positive: normalised cuts need positive degrees, scale "
            "the kernel to [0, 1]"
        )
    root = np.sqrt(np.where(alone, 1.0, degrees))
    return Matrix(1.0 / root, np.zeros(n), diagonal), root[:, None]


def unit_rows(vectors: Floats) -> Floats:
    """Rows at unit length; a row of zeros stays."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.where(lengths > 0, lengths, 1.0))


def check_laplacian(value: object) -> None:
    """Refuse what is not the name of a Laplacian."""
    if not isinstance(value, str) or value not in get_args(Laplacian):
        raise InputError(
            f"laplacian must be one of {', '.join(get_args(Laplacian))}, not {value!r}"
        )


def warn_not_converged(found: Eigenpairs, label: str) -> None:
    """Say that eigenvectors were cut off, and what they are worth."""
    warnings.warn(
        f"eigenvectors of {label} stopped after {len(found.sums)} sweeps before their residuals "
        "were down to rounding: they are orthonormal, but where eigenvalues nearly coincide "
        "another set would do as well",
        ConvergenceWarning,
        stacklevel=2,
    )
