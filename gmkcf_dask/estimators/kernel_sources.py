"""Where the kernels of an estimator come from: a store, a request, or a fit made earlier."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gmkcf_dask.compute.combined import CombinedKernels
from gmkcf_dask.compute.factored import FactoredKernels
from gmkcf_dask.compute.operators import KernelStack
from gmkcf_dask.corpus.documents import texts_in
from gmkcf_dask.corpus.validate import as_features, short
from gmkcf_dask.errors import InputError, StoreError
from gmkcf_dask.events import Listener
from gmkcf_dask.kernels.cross import MissingFunction, missing_function_message
from gmkcf_dask.kernels.factor_cross import TrainingFactors
from gmkcf_dask.kernels.features import ArrayFeatures, Features, NoFeatures
from gmkcf_dask.kernels.specs import (
    FunctionKernel,
    KernelSpec,
    Precomputed,
    kernel_set,
    precomputed_specs,
)
from gmkcf_dask.kernels.tiles import ResolvedKernel
from gmkcf_dask.methods.base import MEAN
from gmkcf_dask.methods.select_k import StackOf
from gmkcf_dask.pipeline import dense_tiles, memory_factors
from gmkcf_dask.pipeline.prediction import refuse_other_columns
from gmkcf_dask.pipeline.wordless import Mask
from gmkcf_dask.results.saved_model import Model
from gmkcf_dask.results.training import Training
from gmkcf_dask.store.features import StoredFeatures
from gmkcf_dask.store.kernel_store import KernelStore, is_store
from gmkcf_dask.store.manifest import Manifest
from gmkcf_dask.store.object_storage import is_location, location


class KernelSource(NamedTuple):
    """The kernels of a fit, what distinguishes them from others, and the training samples.

    These two are computed when they are called, and may read all of the data. `stack_of` makes the
    kernels for another number of clusters; None where they are the same. `kept` tells which samples
    take part; None where all do.
    """

    stack: KernelStack
    identity: Callable[[], dict[str, Any]]
    training: Callable[[], Training]
    stack_of: StackOf | None = None
    kept: Mask | None = None


def store_at(given: str | Path) -> KernelStore:
    """The finished store at a path; the error says where texts and files go instead."""
    path = location(given)
    problem = f"there is no kernel store at {short(str(given))}: check the path"
    try:
        if "\0" not in str(given):  # no path contains it
            return KernelStore.open(path)
    except StoreError as error:
        if is_store(path):  # the store itself is damaged
            raise
        problem = str(error)
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
    raise StoreError(f"{problem}; texts go in a list, and files through read_corpus")


def parameters_of_store(manifest: Manifest, own: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of an estimator that match a store; `own` are its own, functions by name."""
    # matrices have options of their own, all others share theirs
    shared: list[Any] = [k for k in manifest.kernels if k.name in manifest.formulas]
    parameters: dict[str, Any] = {
        "precision": manifest.precision,
        # factors have no tiles
        "layout": manifest.layout,
        "block_size": manifest.block_size if manifest.kernels else "auto",
    }
    names = own.get("kernels")
    shared += [record for record in manifest.factored if record.normalization is not None]
    for first in shared[:1] or manifest.kernels[:1]:
        parameters |= {"normalization": first.normalization, "scaling": first.scaling}
    if manifest.n_features == 0:
        passed = "factored" if manifest.factored else "precomputed"
        if names is not None:
            parameters["kernels"] = passed
        elif own.get("kernel") == MEAN:
            parameters["kernel"] = passed
    elif names is not None and not _is_set(names, manifest.kernel_names):
        parameters["kernels"] = list(manifest.kernel_names)
    return parameters


def _is_set(kernels: Any, names: tuple[str, ...]) -> bool:
    """Whether the name of a set of kernels stands for just these."""
    specs = kernel_set(kernels) if isinstance(kernels, str) else None
    return specs is not None and tuple(spec.name for spec in specs) == names


def store_of_fit(model: Model, X: Any) -> KernelStore | None:
    """The store with the kernels of a fit: its own, or the one given as X; None without one."""
    features = model.training.features
    if X is None and isinstance(features, StoredFeatures):
        features.refuse_another()
        return KernelStore.open(features.path)
    store = KernelStore.open(X) if is_location(X) else X
    if not isinstance(store, KernelStore):
        return None
    if store.kernel_names != model.clustering.kernel_names:
        raise InputError(
            f"{store.path} has the kernels {', '.join(store.kernel_names)}, but the model was "
            f"fitted on {', '.join(model.clustering.kernel_names)}: give the store of the fit"
        )
    return store


def kernels_of_fit(
    model: Model, X: Any, own: Iterable[KernelSpec], listen: Listener
) -> tuple[KernelStack, Features | None]:
    """The kernels of a fit in memory, from its training samples, and the features they are of.

    X are the training samples again, where the model does not have them; `own` are kernels among
    the estimator's parameters: matrices are kept nowhere else.
    """
    training, names = model.training, model.clustering.kernel_names
    features: Features
    if training.factors is not None and not training.kernels:
        factors = training.factors
        if not factors.of_features or (X is None and training.features is not None):
            return _factors_of_fit(model, factors), training.features
        samples = _samples(training, X)
        return _factors_of_fit(model, factors.in_memory(samples)), ArrayFeatures(samples)
    if training.precomputed:
        given = _matrices(X, len(names))
        features, matrices = NoFeatures(len(given[0].matrix)), dict(zip(names, given, strict=True))
    else:
        features = ArrayFeatures(_samples(training, X))
        matrices = {spec.name: spec for spec in own if isinstance(spec, Precomputed)}
    # in a store one kernel may stand for others: it is made once
    stored = tuple(names.index(kernel.name) for kernel in training.kernels)
    once = tuple(_unresolved(training.kernels[i], matrices) for i in sorted(set(stored)))
    precision, block = model.parameters.get("precision", "float32"), model.parameters["block_size"]
    edge = None if block == "auto" else int(block)
    in_tiles = names[: len(training.kernels)]
    # earlier versions knew no other layout
    layout = model.parameters.get("layout", "each")
    dense, _ = dense_tiles(
        in_tiles, once, features, edge, precision, listen, stored=stored, layout=layout
    )
    if training.factors is not None:
        return CombinedKernels(dense, _factors_of_fit(model, training.factors)), features
    return dense, None if training.precomputed else features


def _factors_of_fit(model: Model, factors: TrainingFactors) -> FactoredKernels:
    wide = model.parameters.get("precision") == "float64"
    k = model.method.n_clusters
    return FactoredKernels(memory_factors(factors.kinds, factors.arrays, k, wide=wide))


def _samples(training: Training, X: Any) -> Any:
    """Features; texts are read with the words of the fit."""
    if X is None:
        if isinstance(training.features, ArrayFeatures):
            return training.features.X
        raise InputError(
            training.gone
            or "the samples this model was fitted on are not kept with it: give them as X, or save "
            "the model with features=True"
        )
    texts = None if training.reading is None else texts_in(X)
    if texts is not None and training.reading is not None:
        return training.reading.transform(texts, training.terms)
    features = as_features(X)
    if training.n_features:  # not known of a run whose store is gone
        refuse_other_columns(features.shape[1], training.n_features)
    return features


def _matrices(X: Any, m: int) -> tuple[Precomputed, ...]:
    if X is None:
        raise InputError(
            "the kernels this model was fitted on were precomputed and are not kept with it: give "
            "them as X"
        )
    given = precomputed_specs(X)
    if len(given) != m:
        raise InputError(
            f"there are {len(given)} kernels in X but the model was fitted on {m}: give the "
            "kernels it was fitted on"
        )
    return given


def _unresolved(kernel: ResolvedKernel, matrices: dict[str, Precomputed]) -> ResolvedKernel:
    """A kernel with the same options, without its statistics."""
    spec = kernel.spec
    if isinstance(spec, FunctionKernel) and isinstance(spec.function, MissingFunction):
        raise InputError(missing_function_message(spec.name))
    if isinstance(spec, Precomputed):
        if spec.name not in matrices:
            raise InputError(
                f"kernel {spec.name} is a matrix among kernels of features, and matrices are not "
                "kept with a model: give the store of the fit as X, or fit again"
            )
        spec = Precomputed(matrices[spec.name].matrix, spec.name)
    return ResolvedKernel(spec, kernel.normalization, kernel.scaling)
