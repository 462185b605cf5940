"""Where new samples belong, for every method for which that has a meaning.

A new sample x is known by its row of the fused kernel against the training samples. Products of
that row with a few columns are all a method needs; `representation` makes the sample's row in the
method's own terms of them, and `distances` compares it with the centres of the clusters.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gmkcf_dask.compute.cross_products import CrossProducts, TrainingFactors
from gmkcf_dask.errors import InputError
from gmkcf_dask.methods.assign import squared_distances
from gmkcf_dask.methods.base import Clustering, Method
from gmkcf_dask.methods.kmeans_steps import distances_to
from gmkcf_dask.methods.spectral import Sc, unit_rows
from gmkcf_dask.methods.updates import lacks_rank, solve_V
from gmkcf_dask.system.arrays import Floats

_SMALLEST_SHARE = 1e-9
"""Of the sample's degree: what is divided by is at least that far from 0."""


class NoPredictionError(InputError, AttributeError):
    """The method has no place for samples that it has not seen."""


@dataclass(frozen=True)
class Extension(ABC):
    """How a method goes on to new samples; small enough to travel in tasks.

    Attributes
    ----------
    weights : ndarray, shape (m,)
        The sample's kernel row is Σ weights_i k^i(x, ·).
    """

    wants_diagonal: ClassVar[bool] = False

    weights: Floats

    @abstractmethod
    def representation(self, seen: CrossProducts) -> Floats:
        """Rows of the new samples, shape (len, r)."""

    @abstractmethod
    def distances(self, rows: Floats) -> Floats:
        """Squared distances of such rows to the centres of the clusters, shape (len, k)."""

    def __call__(self, seen: CrossProducts) -> Floats:
        return self.representation(seen)


@dataclass(frozen=True)
class ConceptExtension(Extension):
    """v = argmin over v ≥ 0 of vᵀ(UᵀK_wU)v − 2vᵀb with b = k_w(x,·)U; nearest K-means centre.

    Where that leaves v open, because concepts coincide, the nearest training sample's row decides.
    """

    UtKU: Floats
    centres: Floats

    def representation(self, seen: CrossProducts) -> Floats:
        b = seen.products
        return solve_V(b, self.UtKU, np.zeros_like(b) if seen.nearest is None else seen.nearest)

    def distances(self, rows: Floats) -> Floats:
        return squared_distances(rows, self.centres)


@dataclass(frozen=True)
class CentreExtension(Extension):
    """d_c = k(x,x) − 2k(x,·)C + (CᵀKC)_cc: rows are the squared distances themselves.

    Without k(x,x), which is not to be had from precomputed kernels, all are off by the same number.
    """

    wants_diagonal: ClassVar[bool] = True

    norms: Floats

    def representation(self, seen: CrossProducts) -> Floats:
        own = np.zeros(len(seen.products)) if seen.diagonal is None else seen.diagonal
        return distances_to(self.norms, own, seen.products)

    def distances(self, rows: Floats) -> Floats:
        return rows


@dataclass(frozen=True)
class SpectralExtension(Extension):
    """Nyström: y = D_x^-½ k(x,·) D^-½E/λ at unit length, where D_x^-½ drops out; nearest centre."""

    centres: Floats

    def representation(self, seen: CrossProducts) -> Floats:
        return unit_rows(seen.products)

    def distances(self, rows: Floats) -> Floats:
        return squared_distances(rows, self.centres)


@dataclass(frozen=True)
class UnnormalizedExtension(SpectralExtension):
    """(d_x − λ_c) y_c = k(x,·)E_c, as every training sample has it; d_x is the last product."""

    eigenvalues: Floats

    def representation(self, seen: CrossProducts) -> Floats:
        products, degree = seen.products[:, :-1], seen.products[:, -1:]
        gap = degree - self.eigenvalues
        least = np.maximum(_SMALLEST_SHARE * np.abs(degree), np.finfo(float).tiny)
        return unit_rows(products / np.where(np.abs(gap) < least, least, gap))


def transductive_error(name: str) -> NoPredictionError:
    """For a method that cannot assign new samples, whatever it was fitted on."""
    return NoPredictionError(
        f"{name} cannot assign new samples: its embedding is a compromise between the "
        "eigenvectors of all kernels, which a single row of them does not have; use sc on the "
        "mean of the kernels, or gmkcf"
    )


def extension_of(method: Method, found: Clustering) -> tuple[Extension, TrainingFactors]:
    """How a fitted method places new samples, and what it has to know about the training samples.

    Raises
    ------
    InputError
        The method cannot assign new samples, or the factors of the fit are not there.
    """
    name = method.name
    if name == "coreg":
        raise transductive_error(name)
    factors = found.factors
    _refuse_missing(name, factors)
    if name in ("gmkcf", "kcf"):
        weights = found.weights**2 if name == "gmkcf" else found.weights
        extension = ConceptExtension(weights, factors["UtKU"], factors["centres"])
        if lacks_rank(factors["UtKU"]):
            return extension, TrainingFactors(factors["U"], factors["diagonal"], factors["V"])
        return extension, TrainingFactors(factors["U"])
    if name in ("kkm", "rmkkm"):
        return CentreExtension(factors["fused_weights"], factors["norms"]), TrainingFactors(
            factors["C"]
        )
    assert isinstance(method, Sc)
    basis, centres = factors["extension"], factors["centres"]
    if method.laplacian == "symmetric":
        return SpectralExtension(found.weights, centres), TrainingFactors(basis)
    with_degree = np.hstack([basis, np.ones((len(basis), 1))])
    values = factors["eigenvalues"]
    return UnnormalizedExtension(found.weights, centres, values), TrainingFactors(with_degree)


_NEEDED = {
    "gmkcf": ("U", "V", "UtKU", "diagonal", "centres"),
    "kcf": ("U", "V", "UtKU", "diagonal", "centres"),
    "kkm": ("C", "norms", "fused_weights"),
    "rmkkm": ("C", "norms", "fused_weights"),
    "sc": ("extension", "eigenvalues", "centres"),
}


def _refuse_missing(name: str, factors: Mapping[str, Floats]) -> None:
    missing = [factor for factor in _NEEDED[name] if factor not in factors]
    if missing:
        raise InputError(
            f"the factors of this run lack {', '.join(missing)}, without which new samples cannot "
            "be placed: it was made by an earlier version, run it again"
        )
