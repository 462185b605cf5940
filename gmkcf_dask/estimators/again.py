"""The kernels of a fit made again: as the fit had them, not as an estimator has them by now."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gmkcf_dask.blas import one_blas_thread
from gmkcf_dask.corpus.text import texts_in
from gmkcf_dask.corpus.validate import as_features
from gmkcf_dask.engine.dense import DenseKernels
from gmkcf_dask.engine.tiles import MemoryTiles
from gmkcf_dask.errors import InputError
from gmkcf_dask.events import Listener
from gmkcf_dask.kernels.arrays import StoredFeatures
from gmkcf_dask.kernels.build import tiles_of
from gmkcf_dask.kernels.cross import Unknown, missing_function
from gmkcf_dask.kernels.features import ArrayFeatures, Features, NoFeatures
from gmkcf_dask.kernels.specs import FunctionKernel, KernelSpec, Precomputed, precomputed_specs
from gmkcf_dask.kernels.store import KernelStore
from gmkcf_dask.kernels.tiles import CODE_SCALE, ResolvedKernel
from gmkcf_dask.locations import is_location
from gmkcf_dask.prediction import refuse_other_columns
from gmkcf_dask.results.model import Model
from gmkcf_dask.results.training import Training
from gmkcf_dask.workflow import room_for


def stored_again(model: Model, X: Any) -> KernelStore | None:
    """The store with the kernels of a fit: its own, or the one given as X; None without one."""
    features = model.training.features
    if X is None and isinstance(features, StoredFeatures):
        features.refuse_another()
        return KernelStore.open(features.path)
    store = KernelStore.open(X) if is_location(X) else X
    if not isinstance(store, KernelStore):
        return None
    if store.names != model.found.kernel_names:
        raise InputError(
            f"{store.path} has the kernels {', '.join(store.names)}, but the model was fitted on "
            f"{', '.join(model.found.kernel_names)}: give the store of the fit"
        )
    return store


def kernels_of_fit(
    model: Model, X: Any, own: Iterable[KernelSpec], listen: Listener
) -> tuple[DenseKernels, Features | None]:
    """The kernels of a fit in memory, from its training samples, and the features they are of.

    Parameters
    ----------
    model : Model
    X : optional
        The training samples again, where the model does not have them.
    own : iterable of KernelSpec
        What the estimator was asked for: matrices are kept nowhere else.
    """
    training, names = model.training, model.found.kernel_names
    features: Features
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
    tiling = room_for(len(once), features.n_samples, edge, precision)
    with one_blas_thread():
        stacks = tiles_of(once, features, tiling.block, precision, listen)
    tiles = MemoryTiles(stacks, tiling, CODE_SCALE[precision], stored)
    return DenseKernels(tiles, names), None if training.precomputed else features


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
    """A kernel with the options it had, its statistics to be found again."""
    spec = kernel.spec
    if isinstance(spec, FunctionKernel) and isinstance(spec.function, Unknown):
        raise InputError(missing_function(spec.name))
    if isinstance(spec, Precomputed):
        if spec.name not in matrices:
            raise InputError(
                f"kernel {spec.name} is a matrix among kernels of features, and matrices are not "
                "kept with a model: give the store of the fit as X, or fit again"
            )
        spec = Precomputed(matrices[spec.name].matrix, spec.name)
    return ResolvedKernel(spec, kernel.normalization, kernel.scaling)
