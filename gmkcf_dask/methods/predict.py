"""Where new samples belong, for every method for which that has a meaning.

A new sample x is known by its row of the fused kernel against the training samples. Products of
that row with a few columns are all a method needs; `representation` makes the sample's row in the
method's own terms of them, and `place` gives it the label that a row of the fit would have.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gmkcf_dask.compute.cross_products import CrossProducts, ExtensionBasis
from gmkcf_dask.errors import InputError
from gmkcf_dask.methods.assign import nearest, place_rows, sureness
from gmkcf_dask.methods.base import Clustering, Method
from gmkcf_dask.methods.defaults import Assign
from gmkcf_dask.methods.factorize import FactorizationMethod
from gmkcf_dask.methods.kmeans_steps import distances_to
from gmkcf_dask.methods.spectral import Sc
from gmkcf_dask.methods.spherical import normalized_rows
from gmkcf_dask.methods.updates import lacks_rank, solve_V, with_direction
from gmkcf_dask.system.arrays import Floats, Labels

_SMALLEST_SHARE = 1e-9
"""Of the sample's degree: what is divided by is at least that far from 0."""


class NoPredictionError(InputError, AttributeError):
    """The method has no place for samples that it has not seen."""


@dataclass(frozen=True)
class Extension(ABC):
    """How a method extends to new samples; small enough to travel in tasks.

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
    def place(self, rows: Floats) -> tuple[Labels, Floats]:
        """Labels of such rows and how clearly they belong there, from 0 to 1. Shapes (len,)."""

    def __call__(self, seen: CrossProducts) -> Floats:
        return self.representation(seen)


@dataclass(frozen=True)
class RowExtension(Extension):
    """Rows go to clusters by the rule of the fit."""

    rule: Assign
    centres: Floats | None

    def place(self, rows: Floats) -> tuple[Labels, Floats]:
        return place_rows(rows, self.rule, self.centres)


@dataclass(frozen=True)
class ConceptExtension(RowExtension):
    """v = argmin over v ≥ 0 of vᵀ(UᵀK_wU)v − 2vᵀb with b = k_w(x,·)U.

    Where that leaves v open, because concepts coincide, the nearest training sample's row decides.
    """

    UtKU: Floats

    def representation(self, seen: CrossProducts) -> Floats:
        b = seen.products
        given = np.zeros_like(b) if seen.nearest is None else seen.nearest
        return with_direction(solve_V(b, self.UtKU, given), b, self.UtKU)


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

    def place(self, rows: Floats) -> tuple[Labels, Floats]:
        return nearest(rows), sureness(rows)


@dataclass(frozen=True)
class SpectralExtension(RowExtension):
    """Nyström: y = D_x^-½ k(x,·) D^-½E/λ at unit length, where D_x^-½ drops out."""

    def representation(self, seen: CrossProducts) -> Floats:
        return normalized_rows(seen.products)


@dataclass(frozen=True)
class UnnormalizedExtension(SpectralExtension):
    """(d_x − λ_c) y_c = k(x,·)E_c, as every training sample has it; d_x is the last product."""

    eigenvalues: Floats

    def representation(self, seen: CrossProducts) -> Floats:
        products, degree = seen.products[:, :-1], seen.products[:, -1:]
        gap = degree - self.eigenvalues
        least = np.maximum(_SMALLEST_SHARE * np.abs(degree), np.finfo(float).tiny)
        return normalized_rows(products / np.where(np.abs(gap) < least, least, gap))


def transductive_error(name: str) -> NoPredictionError:
    """For a method that cannot assign new samples, whatever it was fitted on."""
    return NoPredictionError(
        f"{name} cannot assign new samples: its embedding is a compromise between the "
        "eigenvectors of all kernels, which a single row of them does not have; use sc on the "
        "mean of the kernels, or gmkcf"
    )


def extension_of(method: Method, clustering: Clustering) -> tuple[Extension, ExtensionBasis]:
    """How a fitted method places new samples, and what it has to know about the training samples.

    Raises
    ------
    InputError
        The method cannot assign new samples, or the factors of the fit are not there.
    """
    name = method.name
    if name == "coreg":
        raise transductive_error(name)
    factors = clustering.factors
    _refuse_missing(method, factors)
    centres = factors.get("centres")
    if isinstance(method, FactorizationMethod):
        weights = clustering.weights**2 if name == "gmkcf" else clustering.weights
        extension = ConceptExtension(weights, method.assign, centres, factors["UtKU"])
        if lacks_rank(factors["UtKU"]):
            return extension, ExtensionBasis(factors["U"], factors["diagonal"], factors["V"])
        return extension, ExtensionBasis(factors["U"])
    if name in ("kkm", "rmkkm"):
        return CentreExtension(factors["fused_weights"], factors["norms"]), ExtensionBasis(
            factors["C"]
        )
    assert isinstance(method, Sc)
    basis, placement = factors["extension"], (clustering.weights, method.assign, centres)
    if method.laplacian == "symmetric":
        return SpectralExtension(*placement), ExtensionBasis(basis)
    # a sample that took no part in the fit has a row of zeros
    with_degree = np.hstack([basis, basis.any(axis=1, keepdims=True).astype(np.float64)])
    return UnnormalizedExtension(*placement, factors["eigenvalues"]), ExtensionBasis(with_degree)


_NEEDED = {
    "gmkcf": ("U", "V", "UtKU", "diagonal"),
    "kcf": ("U", "V", "UtKU", "diagonal"),
    "kkm": ("C", "norms", "fused_weights"),
    "rmkkm": ("C", "norms", "fused_weights"),
    "sc": ("extension", "eigenvalues"),
}


def _refuse_missing(method: Method, factors: Mapping[str, Floats]) -> None:
    centres = ("centres",) if getattr(method, "assign", "argmax") != "argmax" else ()
    missing = [name for name in (*_NEEDED[method.name], *centres) if name not in factors]
    if missing:
        raise InputError(
            f"the factors of this run lack {', '.join(missing)}, without which new samples cannot "
            "be placed: it was made by an earlier version, run it again"
        )
