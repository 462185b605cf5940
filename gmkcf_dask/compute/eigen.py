"""Leading eigenvectors of a matrix known by its products with a kernel: block Davidson.

The matrix is S K S − diag(shift) + λ P Pᵀ with S diagonal: normalised and unnormalised Laplacians
and their co-regularised forms, up to sign. Nothing n×n exists above `DIRECT` samples; what the
driver holds is a basis and its product, together about `BASIS_BYTES` for each of the eigenproblems
that run together.

Every step expands the basis by residuals, so the answer only gets better, and it is orthonormal
after any number of sweeps. Where the leading eigenvalues coincide (a narrow RBF is nearly the
identity) any orthonormal set with the same sum of eigenvalues will do, and that is what comes out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import eigh

from gmkcf_dask.compute import costs
from gmkcf_dask.compute.blas import one_blas_thread
from gmkcf_dask.compute.lockstep import ProductRequest, Products, SolverSteps
from gmkcf_dask.events import Listener, StageProgress, ignore
from gmkcf_dask.system.arrays import Floats

DIRECT = costs.DIRECT
"""Up to this many samples the matrix is formed in one sweep and solved by LAPACK."""
MAX_SWEEPS = costs.MAX_SWEEPS
BASIS_BYTES = costs.BASIS_BYTES
"""For a basis and its product; more only where four blocks need it."""


@dataclass(frozen=True)
class ShiftedKernel:
    """S K S − diag(shift) + λ P Pᵀ, for a kernel K that is multiplied elsewhere.

    Attributes
    ----------
    scale : ndarray, shape (n,)
        Diagonal of S.
    shift : ndarray, shape (n,)
    kernel_diagonal : ndarray, shape (n,)
    pull : ndarray, shape (n, c), or None
        P.
    lam : float
    """

    scale: Floats
    shift: Floats
    kernel_diagonal: Floats
    pull: Floats | None = None
    lam: float = 0.0

    @property
    def diagonal(self) -> Floats:
        """Of the whole matrix, shape (n,)."""
        return self.scale**2 * self.kernel_diagonal - self.shift + self.lam_diagonal

    @property
    def lam_diagonal(self) -> Floats:
        """Of λ P Pᵀ, shape (n,)."""
        if self.pull is None:
            return np.zeros_like(self.scale)
        return np.asarray(self.lam * np.sum(self.pull**2, axis=1))

    def matmul(self, Z: Floats) -> SolverSteps[Floats]:
        """A Z, shape (n, c). One sweep."""
        products = yield ProductRequest(self.scale[:, None] * Z)
        AZ = self.scale[:, None] * products.full - self.shift[:, None] * Z
        if self.pull is not None:
            AZ += self.lam * (self.pull @ (self.pull.T @ Z))
        return AZ


@dataclass(frozen=True)
class Eigenpairs:
    """The k largest eigenvalues and their vectors, as far as they came.

    Attributes
    ----------
    values : ndarray, shape (k,)
        Largest first.
    vectors : ndarray, shape (n, k)
        Orthonormal; in each the entry of largest modulus is positive.
    sums : tuple of float
        Sum of the k values after every sweep; it never falls.
    converged : bool
    """

    values: Floats
    vectors: Floats
    sums: tuple[float, ...]
    converged: bool


def leading_eigenpairs(
    A: ShiftedKernel,
    k: int,
    start: Floats,
    rounding: float,
    *,
    max_sweeps: int = MAX_SWEEPS,
    direct: int = DIRECT,
    listen: Listener = ignore,
) -> SolverSteps[Eigenpairs]:
    """The k leading eigenpairs of A: one sweep up to `direct` samples, else at most `max_sweeps`.

    Parameters
    ----------
    start : ndarray, shape (n, c)
        Guesses; fixed random vectors and the unit vectors of the largest diagonal entries are
        added to them.
    rounding : float
        Relative rounding of products. It is done when every residual is below ten times that,
        relative to the size of S K S and of the shift.
    """
    n = len(A.scale)
    if n <= direct:
        full = yield from A.matmul(np.eye(n))
        # the drivers for a subset of eigenvalues return none at all for some near-identity matrices
        values, vectors = eigh((full + full.T) / 2, driver="evd")
        values, vectors = values[::-1][:k], fix_signs(vectors[:, ::-1][:, :k])
        return Eigenpairs(values, vectors, (float(values.sum()),), True)

    diagonal = A.diagonal
    guards, block, full_basis = costs.eigen_sizes(n, k, BASIS_BYTES)
    size = max(float(np.abs(A.shift).max()), float(np.abs(diagonal - A.lam_diagonal).max()))
    basis = new = orthonormal(np.empty((n, 0)), np.hstack([start, _guesses(diagonal, k)]))
    product = np.empty((n, 0))
    sums: list[float] = []
    while True:
        product = np.hstack([product, (yield from A.matmul(new))])
        H = basis.T @ product
        theta, Y = (flipped[..., ::-1] for flipped in eigh((H + H.T) / 2))
        sums.append(float(theta[:k].sum()))
        listen(StageProgress("eigenvectors", len(sums), max_sweeps, unit="sweeps at most"))
        wanted = slice(0, min(k + guards, len(theta)))
        X = basis @ Y[:, wanted]
        R = product @ Y[:, wanted] - X * theta[wanted]
        # the pull is exact: rounding is that of the rest
        norm = max(abs(theta[0]) - A.lam, abs(theta[-1]), size, np.finfo(float).tiny)
        converged = bool((np.linalg.norm(R[:, :k], axis=0) <= 10 * rounding * norm).all())
        if converged or len(sums) == max_sweeps:
            break
        if basis.shape[1] + block > full_basis:
            kept = Y[:, : max(full_basis // 3, block)]
            basis, product = basis @ kept, product @ kept
        # Plain residuals make a Krylov space, which misses nothing; divided by their distance to
        # the diagonal they find eigenvectors that live on few samples, for which a Krylov space
        # needs many sweeps. Divided ones alone can settle on a wrong subspace.
        corrected = R[:, :k] / _away_from_zero(theta[:k] - diagonal[:, None], 1e-3 * norm)
        new = orthonormal(basis, np.hstack([R, corrected]))
        if new.shape[1] == 0:  # the basis spans everything there is
            converged = True
            break
        basis = np.hstack([basis, new])
    return Eigenpairs(theta[:k], fix_signs(X[:, :k]), tuple(sums), converged)


def _guesses(diagonal: Floats, k: int) -> Floats:
    n = len(diagonal)
    units = np.zeros((n, min(k, n)))
    units[np.argsort(-diagonal, kind="stable")[:k], np.arange(units.shape[1])] = 1.0
    return np.hstack([np.random.default_rng(0).standard_normal((n, 2 * k)), units])


def _away_from_zero(values: Floats, least: float) -> Floats:
    return np.where(np.abs(values) < least, np.copysign(least, values), values)


def orthonormal(basis: Floats, block: Floats) -> Floats:
    """An orthonormal basis of what a block adds to a basis; rounding noise is left out."""
    lengths = np.linalg.norm(block, axis=0)
    block = block[:, lengths > 0] / lengths[lengths > 0]
    for _ in range(2):  # twice is enough
        block = block - basis @ (basis.T @ block)
        Q, R = np.linalg.qr(block)
        block = Q[:, np.abs(np.diagonal(R)) > 1e-10]
    return block


def fix_signs(vectors: Floats) -> Floats:
    """The entry of largest modulus of every column positive."""
    largest = np.abs(vectors).argmax(axis=0)
    signs = np.sign(vectors[largest, np.arange(vectors.shape[1])])
    return np.asarray(vectors * np.where(signs == 0, 1.0, signs))


def leading_eigenpairs_of(A: Any, k: int, listen: Listener = ignore) -> tuple[Floats, Floats]:
    """The k leading eigenpairs of a sparse symmetric matrix in memory, shapes (k,) and (n, k).

    Parameters
    ----------
    A : csr_array, shape (n, n)
        Its eigenvalues are at most 1, as those of D^-½AD^-½ are.
    """
    n = A.shape[0]
    if n <= DENSE_ROWS:
        with one_blas_thread():
            values, vectors = eigh(A.toarray(), subset_by_index=(n - k, n - 1))
        return values[::-1], vectors[:, ::-1]
    matrix = ShiftedKernel(np.ones(n), np.zeros(n), np.asarray(A.diagonal()))
    steps = leading_eigenpairs(matrix, k, np.ones((n, 1)), _ROUNDING, listen=listen)
    try:
        request = next(steps)
        while True:
            request = steps.send(Products(np.asarray(A @ request.Z)))
    except StopIteration as end:
        return end.value.values, end.value.vectors


DENSE_ROWS = 2048
"""Up to so many, LAPACK on the dense matrix is several times as fast: 200 pairs of 1,800 rows take
0.6 s instead of 7."""
_ROUNDING = 1e-8
"""Residuals of these eigenvectors are finer than the float32 they are kept in."""
