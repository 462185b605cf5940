"""What is kept of the training samples when a fit is done: all that new ones are compared with."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gmkcf_dask.corpus.model import Matrix
from gmkcf_dask.corpus.text_options import TextReading
from gmkcf_dask.errors import DamagedStoreError, DataWarning, InputError, StoreGoneError
from gmkcf_dask.kernels.cross import MissingFunction, missing_function_message, missing_kernel
from gmkcf_dask.kernels.factor_cross import DictArrays, TrainingFactors
from gmkcf_dask.kernels.factored import FEATURES
from gmkcf_dask.kernels.features import ArrayFeatures, Features
from gmkcf_dask.kernels.specs import FunctionKernel, KernelSpec, Precomputed, parse_kernel
from gmkcf_dask.kernels.tiles import ResolvedKernel
from gmkcf_dask.store.factors import KeptArrays
from gmkcf_dask.store.features import StoredFeatures
from gmkcf_dask.store.kernel_store import KernelStore
from gmkcf_dask.store.request import KernelRequest
from gmkcf_dask.store.tile_tasks import resolved_kernels
from gmkcf_dask.system.arrays import Floats


@dataclass(frozen=True)
class Training:
    """The training samples of a fit; None for what is not known of them."""

    n_samples: int
    n_features: int
    """0 where all kernels were precomputed."""
    kernels: tuple[ResolvedKernel, ...]
    """In the order of the fit, each by the formula whose values it has: in a store one kernel may
    stand for others."""
    norms: Mapping[str, Floats]
    """By kernel, shape (n,): what normalisation divides by, where samples alone do not tell."""
    features: Features | None
    """In memory, or in a store; None where they were left out of a saved model."""
    ids: tuple[str, ...] | None = None
    terms: tuple[str, ...] | None = None
    """Names of the features."""
    reading: TextReading | None = None
    """How texts became features."""
    titles: tuple[str, ...] | None = None
    excerpts: tuple[str, ...] | None = None
    topics: tuple[str, ...] | None = None
    gone: str | None = None
    """Why there are no features, where there should be a store: one sentence."""
    damaged: Mapping[str, str] = field(default_factory=dict)
    """Of a store, which of all this is damaged, and one sentence each. It is refused when it is
    needed, and not before: results do not depend on it."""
    factors: TrainingFactors | None = None
    """Of factored kernels, which come after those in `kernels`."""

    @property
    def precomputed(self) -> bool:
        """Whether all kernels were brought by the user: then new ones have to be, too."""
        matrices = all(isinstance(kernel.spec, Precomputed) for kernel in self.kernels)
        return bool(self.kernels) and matrices and self.factors is None

    @property
    def n_kernels(self) -> int:
        return len(self.kernels) + (0 if self.factors is None else len(self.factors.names))

    def with_functions(self, functions: Mapping[str, Any]) -> Training:
        """Kernels that were functions get these, by name."""
        known = [k.name for k in self.kernels if isinstance(k.spec, FunctionKernel | Precomputed)]
        for name in functions:
            if name not in known:
                raise InputError(
                    f"there is no kernel function {name!r} in this model: "
                    + (f"it has {', '.join(known)}" if known else "leave it out")
                )
        kernels = (
            replace(kernel, spec=FunctionKernel(functions[kernel.name], kernel.name))
            if kernel.name in functions
            else kernel
            for kernel in self.kernels
        )
        return replace(self, kernels=tuple(kernels))

    def in_memory(self) -> Training:
        """The same with features in the memory of this process."""
        features = self.features
        if isinstance(features, StoredFeatures):
            features.refuse_another()
        if features is not None and not isinstance(features, ArrayFeatures):
            features = ArrayFeatures(features.rows(slice(0, self.n_samples)))
        factors = self.factors
        if factors is not None:
            factors = factors.in_memory(None if features is None else features.X)
        return replace(self, features=features, factors=factors)

    def refuse_damaged(self, *needed: str) -> None:
        """Refuse training data that is damaged."""
        for name in needed:
            if name in self.damaged:
                raise DamagedStoreError(self.damaged[name])

    def refuse_missing(self) -> None:
        """Refuse training data that new samples cannot be compared with."""
        self.refuse_damaged("store", "norms")
        for kernel in self.kernels:
            spec = kernel.spec
            if isinstance(spec, FunctionKernel) and isinstance(spec.function, MissingFunction):
                raise InputError(missing_function_message(spec.name))
            if isinstance(spec, Precomputed) and not self.precomputed:
                raise InputError(
                    f"kernel {spec.name} is a matrix and others are computed from features, so "
                    "there is nothing to compute it from for new samples: give a function instead"
                )
        given = self.factors is not None and self.factors.given
        if given and (self.kernels or (self.factors is not None and self.factors.of_features)):
            raise InputError(
                "new samples cannot be placed by factors that were passed in together with kernels "
                "that are computed: pass all of them in as factors, or compute all"
            )
        if self.features is None and not (self.precomputed or given):
            raise InputError(
                self.gone
                or "this model was saved without the features of its training samples, and new "
                "samples are compared with them: save it with features=True"
            )


def training_of_request(
    request: KernelRequest,
    kernels: tuple[ResolvedKernel, ...],
    norms: Mapping[str, Floats],
    arrays: Mapping[str, npt.NDArray[Any]] | None = None,
) -> Training:
    """Of kernels in memory: features by reference, so they must be nobody else's to change."""
    corpus, kept = request.corpus, tuple(map(_without_matrix, kernels))
    factors = None
    if arrays is not None:
        features = {} if corpus is None else {FEATURES: corpus.X}
        factors = TrainingFactors(request.factored, DictArrays({**arrays, **features}))
    if corpus is None:
        return Training(request.n_samples, 0, kept, norms, None, factors=factors)
    return Training(
        corpus.n_samples,
        corpus.n_features,
        kept,
        norms,
        ArrayFeatures(corpus.X),
        corpus.ids,
        corpus.terms,
        corpus.reading,
        corpus.titles,
        corpus.excerpts,
        corpus.labels,
        factors=factors,
    )


def training_of_store(store: KernelStore, specs: Iterable[KernelSpec] = ()) -> Training:
    """Of a finished store; `specs` are kernels of the fit, functions among them."""
    manifest = store.manifest
    known = {spec.name: spec for spec in specs}
    resolved = resolved_kernels(store, [_spec(name, manifest, known) for name in store.names])
    features: StoredFeatures | None = store.features() if manifest.n_features else None
    damaged = store.damaged_descriptions()
    norms: Mapping[str, Floats] = {}
    try:
        norms = store.norms()
    except StoreGoneError:
        raise
    except DamagedStoreError as error:
        damaged["norms"] = str(error)
    for sentence in damaged.values():
        warnings.warn(sentence, DataWarning, stacklevel=2)

    def strings(what: str) -> tuple[str, ...] | None:
        return None if what in damaged else store.strings(what)

    return Training(
        store.n_samples,
        manifest.n_features,
        tuple(_without_matrix(resolved[name]) for name in manifest.stored),
        norms,
        features,
        strings("ids"),
        strings("terms"),
        None if "reading" in damaged else store.reading(),
        strings("titles"),
        strings("excerpts"),
        strings("labels"),
        damaged=damaged,
        factors=_stored_factors(store),
    )


def _stored_factors(store: KernelStore) -> TrainingFactors | None:
    kinds = {record.name: record.kind for record in store.manifest.factored}
    return TrainingFactors(kinds, KeptArrays(store.factors())) if kinds else None


def _spec(name: str, manifest: Any, known: Mapping[str, KernelSpec]) -> KernelSpec:
    if name in manifest.formulas:
        return parse_kernel(name)
    if name in known:
        return known[name]
    if manifest.n_features == 0:
        options = {record.name: record for record in manifest.kernels}[name]
        return matrix_of_name(name, options.normalization, options.scaling)
    return missing_kernel(name)


def matrix_of_name(name: str, normalization: Any = "none", scaling: Any = "none") -> Precomputed:
    """A precomputed kernel whose matrix is no longer there."""
    return Precomputed(np.empty((0, 0)), name, normalization, scaling)


def _without_matrix(kernel: ResolvedKernel) -> ResolvedKernel:
    """The matrix of a kernel is not needed for new samples, and large."""
    if not isinstance(kernel.spec, Precomputed):
        return kernel
    spec = matrix_of_name(kernel.name, kernel.normalization, kernel.scaling)
    return replace(kernel, spec=spec)


def features_of(training: Training) -> Matrix:
    """All features, in memory."""
    features = training.in_memory().features
    assert isinstance(features, ArrayFeatures)
    return features.X
