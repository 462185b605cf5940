"""SC: spectral clustering with one kernel, or with the equal-weight mean of several.

symmetric     top-k eigenvectors of D^-½ K D^-½ (normalised cut)
unnormalized  the k smallest eigenvectors of D − K, the constant one included

Their rows at unit length, then K-means or spherical k-means. Sweeps over the one kernel: one for
the degrees D, then one more up to 1,000 samples, at most 60 above (typically 10 to 40). The
objective is the relaxed cut, the sum of the k smallest eigenvalues of the Laplacian, after every
sweep of the eigensolver.
Mixed signs are allowed as long as every degree is positive (symmetric), or always (unnormalized).
A kernel known by factors of mixed signs has its own leading eigenvectors in place of the symmetric
ones, see `embed`: with factors alone in two passes and no sweep.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from gmkcf_dask.compute.eigen import (
    DIRECT,
    Eigenpairs,
    ShiftedKernel,
    fix_signs,
    leading_eigenpairs,
)
from gmkcf_dask.compute.factored import FusedFactors
from gmkcf_dask.compute.lockstep import ProductRequest, SolverSteps
from gmkcf_dask.compute.operators import FusedKernel
from gmkcf_dask.compute.subset import FusedSubset
from gmkcf_dask.errors import HopelessInputError, InputError
from gmkcf_dask.events import Listener, ignore
from gmkcf_dask.methods.assign import check_assign, cluster_rows
from gmkcf_dask.methods.base import RunContext, SingleKernelMethod, check_whole
from gmkcf_dask.methods.defaults import Assign
from gmkcf_dask.methods.spherical import normalized_rows
from gmkcf_dask.system.arrays import Floats, Labels

Laplacian = Literal["symmetric", "unnormalized"]
_NO_VALUE = 1e-6
"""Eigenvalues of D^-½KD^-½ or K/λ₁, at most 1, that are 0 but for rounding of float32 kernels."""


@dataclass(frozen=True)
class Embedding:
    """Eigenvectors of a Laplacian.

    Attributes
    ----------
    vectors : ndarray, shape (n, k)
        Orthonormal, but for zeros where a kernel with signed factors has no direction.
    eigenvalues : ndarray, shape (k,)
        Of the Laplacian, smallest first.
    history : tuple of float
        Their sum after every sweep.
    converged : bool
    scale : ndarray, shape (n,)
        What a kernel's rows and columns are multiplied by: D^-½, λ₁^-½, or ones.
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
    assign : {"kmeans", "spherical"}
        How rows of the embedding become labels, see `assign`.
    """

    name: ClassVar[str] = "sc"
    n_clusters: int
    laplacian: Laplacian = "symmetric"
    assign: Assign = "kmeans"

    def __post_init__(self) -> None:
        check_whole(n_clusters=self.n_clusters)
        check_laplacian(self.laplacian)
        check_assign(self.assign, self.name, concepts=False)

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
        context: RunContext,
    ) -> SolverSteps[Embedding]:
        return embed(kernel, self.n_clusters, self.laplacian, rounding, listen=context.listen)

    def conclude(
        self, run: Embedding, seed: int, listen: Listener
    ) -> tuple[Labels, dict[str, Floats]]:
        rows = normalized_rows(run.vectors)
        labels, places = cluster_rows(rows, self.n_clusters, seed, self.assign)
        extension = nystrom_basis(run, self.laplacian)
        spectrum = {"eigenvalues": run.eigenvalues, "extension": extension}
        return labels, {"embedding": rows, **places, **spectrum}


def nystrom_basis(embedding: Embedding, laplacian: Laplacian) -> Floats:
    """What a new sample's row of the kernel is multiplied by for its row of eigenvectors.

    An eigenvector is its own product with the matrix, divided by its eigenvalue, and that is how it
    extends to samples beyond those it was found on. Symmetric: D^-½E/λ with λ of D^-½KD^-½, where
    D is λ₁I for signed factors; an eigenvector of λ = 0 says nothing about other samples and is
    left out. Unnormalized: E; the rest depends on the sample. Shape (n, k).
    """
    if laplacian == "unnormalized":
        return embedding.vectors
    values = 1.0 - embedding.eigenvalues
    inverse = np.divide(1.0, values, out=np.zeros_like(values), where=np.abs(values) > _NO_VALUE)
    return np.asarray(embedding.scale[:, None] * embedding.vectors * inverse)


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
    """The k smallest eigenvectors of a kernel's Laplacian; a warning where they must be exact.

    Where a kernel has signed factors the symmetric Laplacian is I − K/λ₁, with λ₁ the largest
    eigenvalue of K: degrees that are not positive cannot normalise anything.
    """
    if laplacian == "symmetric" and kernel.signed_factors:
        pairs = yield from eigenpairs_of_kernel(kernel, k, rounding, direct=direct, listen=listen)
        if must_converge and not pairs.converged:
            warn_inexact(pairs, kernel.label)
        return embedding_by_kernel(pairs, k)
    A, known = yield from laplacian_of(kernel, laplacian)
    pairs = yield from leading_eigenpairs(A, k, known, rounding, direct=direct, listen=listen)
    if must_converge and not pairs.converged:
        warn_inexact(pairs, kernel.label)
    # the matrix solved for is I − L or −L
    one = 1 if laplacian == "symmetric" else 0
    history = tuple(one * k - total for total in pairs.sums)
    return Embedding(pairs.vectors, one - pairs.values, history, pairs.converged, A.scale)


def embedding_by_kernel(pairs: Eigenpairs, k: int) -> Embedding:
    """Of I − K/λ₁, from the eigenpairs of K."""
    n, top = len(pairs.vectors), float(pairs.values[0])
    shares = pairs.values / top
    vectors = np.where(shares > _NO_VALUE, pairs.vectors, 0.0)
    history = tuple(k - total / top for total in pairs.sums)
    return Embedding(vectors, 1.0 - shares, history, pairs.converged, np.full(n, top**-0.5))


def eigenpairs_of_kernel(
    kernel: FusedKernel,
    k: int,
    rounding: float,
    *,
    direct: int = DIRECT,
    listen: Listener = ignore,
) -> SolverSteps[Eigenpairs]:
    """The k leading eigenpairs of a kernel itself: from its factors, or by products with it."""
    # samples that are left out have rows of zeros in factors of features
    factors = kernel.whole if isinstance(kernel, FusedSubset) else kernel
    if not isinstance(factors, FusedFactors) or factors.wide:
        diagonal = kernel.diagonal()
        n = len(diagonal)
        A, unknown = ShiftedKernel(np.ones(n), np.zeros(n), diagonal), np.empty((n, 0))
        steps = leading_eigenpairs(A, k, unknown, rounding, direct=direct, listen=listen)
        return (yield from steps)
    values, vectors = factors.leading_eigenpairs(k)
    if isinstance(kernel, FusedSubset):
        vectors = vectors[kernel.kept]
    missing = k - len(values)  # factors with fewer columns than that
    values = np.pad(values, (0, missing))
    vectors = fix_signs(np.pad(vectors, ((0, 0), (0, missing))))
    return Eigenpairs(values, vectors, (float(values.sum()),), True)


class DegreesError(HopelessInputError):
    """Rows of a kernel have sums that are not positive."""


def laplacian_of(
    kernel: FusedKernel, laplacian: Laplacian
) -> SolverSteps[tuple[ShiftedKernel, Floats]]:
    """The matrix whose *leading* eigenvectors are wanted, and the one that is known. One sweep."""
    diagonal = kernel.diagonal()
    n = len(diagonal)
    products = yield ProductRequest(np.ones((n, 1)))
    degrees = products.full[:, 0]
    if laplacian == "unnormalized":
        return ShiftedKernel(np.ones(n), degrees, diagonal), np.ones((n, 1))
    alone = (degrees == 0) & kernel.nonnegative  # a row of zeros: a sample with no neighbours
    wrong = np.flatnonzero((degrees <= 0) & ~alone)
    if len(wrong):
        raise DegreesError(
            f"row {wrong[0]} of {kernel.label} sums to {degrees[wrong[0]]:.3g}, and {len(wrong)} "
            "rows have a sum that is not positive: normalised cuts need positive degrees, scale "
            "the kernel to [0, 1]"
        )
    root = np.sqrt(np.where(alone, 1.0, degrees))
    return ShiftedKernel(1.0 / root, np.zeros(n), diagonal), root[:, None]


def check_laplacian(value: object) -> None:
    """Refuse what is not the name of a Laplacian."""
    if not isinstance(value, str) or value not in get_args(Laplacian):
        raise InputError(
            f"laplacian must be one of {', '.join(get_args(Laplacian))}, not {value!r}"
        )


def warn_inexact(pairs: Eigenpairs, label: str) -> None:
    """Say that eigenvectors were cut off, and what they are worth."""
    warnings.warn(
        f"eigenvectors of {label} stopped after {len(pairs.sums)} sweeps before their residuals "
        "were down to rounding: they are orthonormal, but where eigenvalues nearly coincide "
        "another set would do as well",
        ConvergenceWarning,
        stacklevel=2,
    )
