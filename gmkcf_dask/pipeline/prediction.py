"""New samples for a fitted model: their rows in its representation, and the clusters they go to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from gmkcf_dask.cluster import Resources, threads
from gmkcf_dask.compute.cross_products import NewSampleKernels, map_new_samples
from gmkcf_dask.compute.runner import Runner
from gmkcf_dask.corpus.model import Matrix
from gmkcf_dask.corpus.validate import as_features
from gmkcf_dask.errors import InputError
from gmkcf_dask.events import Listener, ignore
from gmkcf_dask.kernels.cross import CrossKernels, PrecomputedRows, edges, sample_numbers
from gmkcf_dask.kernels.factor_cross import SummedCross, TrainingFactors
from gmkcf_dask.kernels.factored import array_of
from gmkcf_dask.kernels.features import ArrayFeatures
from gmkcf_dask.kernels.specs import FunctionKernel, is_one_matrix, is_thin
from gmkcf_dask.methods.members import NO_CLUSTER
from gmkcf_dask.methods.predict import CentreExtension, extension_of
from gmkcf_dask.pipeline.wordless import rows_with_words
from gmkcf_dask.results.saved_model import Model
from gmkcf_dask.results.training import Training
from gmkcf_dask.store.features import StoredFeatures
from gmkcf_dask.store.given import given_factors
from gmkcf_dask.store.object_storage import location
from gmkcf_dask.store.preflight import refuse_blind_workers
from gmkcf_dask.system.arrays import Floats


@dataclass(frozen=True)
class Prediction:
    """Where new samples belong."""

    labels: npt.NDArray[np.int32]  # (n_new,), −1 for rows of zeros where directions count
    rows: Floats  # (n_new, r), of V or the embedding; for kernel k-means squared distances
    sure: Floats  # (n_new,), from 0 to 1, see `methods.assign.place_rows`


def predict(
    model: Model,
    new: Any,
    resources: Resources | None = None,
    listen: Listener = ignore,
    *,
    tiling: tuple[int, int] | None = None,
) -> Prediction:
    """Place new samples, from kernels between them and the training samples.

    Parameters
    ----------
    model : Model
    new : ndarray or csr_array of shape (n_new, d)
        Or, where kernels were precomputed, those between new and training samples: (m, n_new, n),
        or a list of (n_new, n).
    resources : Resources, optional
        Where tasks run when the training samples are in a store; threads of this process else.
    tiling : (int, int), optional
        New samples in a task, and training samples in a tile; by default from their sizes.

    Raises
    ------
    InputError
        The method has no place for new samples, features are missing or do not fit.
    """
    training = model.training
    extension, known = extension_of(model.method, model.clustering)
    training.refuse_missing()
    if training.precomputed:
        training, X = _as_functions(training, new)
    elif training.factors is not None and training.factors.given:
        X = _side_by_side(training.factors, new)
    else:
        X = _apart(as_features(new), training)
        refuse_other_columns(X.shape[1], training.n_features)
    runner = _runner(training, resources)
    # rows that are measured from an offset become dense, a block at a time
    features = training.features
    thin = not isinstance(X, np.ndarray) and (features is None or features.offset is None)
    own_edge, edge = tiling or edges(X.shape[0], X.shape[1], sparse=thin)
    cross: NewSampleKernels
    m, k = len(training.kernels), model.method.n_clusters
    tiled = factored = None
    if m:
        assert features is not None
        in_tiles = extension.weights[:m]
        tiled = CrossKernels(training.kernels, in_tiles, features, training.norms, edge)
    if training.factors is not None:
        factored = training.factors.cross(features, extension.weights[m:], k)
    if tiled is not None and factored is not None:
        cross = SummedCross(tiled, factored)
    else:
        one = tiled or factored
        assert one is not None
        cross = one
    diagonal = extension.wants_diagonal and not model.training.precomputed
    rows = map_new_samples(
        X, cross, known, extension, runner, listen, edge=own_edge, diagonal=diagonal
    )
    labels, sure = extension.place(rows)
    reading = model.training.reading
    kept = rows_with_words(X, None if reading is None else reading.options)
    if kept is not None:
        labels, sure = np.where(kept, labels, NO_CLUSTER), np.where(kept, sure, 0.0)
        if not isinstance(extension, CentreExtension):
            rows = np.where(kept[:, None], rows, 0.0)
    return Prediction(labels, rows, sure)


def transform(model: Model, new: Any, resources: Resources | None = None) -> Floats:
    """The rows of new samples alone, shape (n_new, r)."""
    extension, _ = extension_of(model.method, model.clustering)
    rows = predict(model, new, resources).rows
    if not isinstance(extension, CentreExtension):
        return rows
    if model.training.precomputed:
        raise InputError(
            "distances to centres need k(x,x) of the new samples, which kernels between them and "
            "the training samples do not have: predict gives their clusters"
        )
    return np.maximum(rows, 0.0)


def refuse_other_columns(n_columns: int, n_features: int) -> None:
    """New samples must have the features that the training samples had."""
    if n_columns != n_features:
        raise InputError(
            f"X has {n_columns} features, but the model is expecting {n_features} features as "
            "input: give the new samples the same columns as the training samples"
        )


def _runner(training: Training, resources: Resources | None) -> Runner | None:
    features = training.features
    if not isinstance(features, StoredFeatures):
        return None
    features.refuse_another()
    resources = resources or threads()
    refuse_blind_workers(resources.runner, location(features.path), features.store_id, write=False)
    return resources.runner


def _apart(X: Matrix, training: Training) -> Matrix:
    """The samples in memory of their own.

    NumPy multiplies an array with itself by another routine, with other last bits: the training
    samples given again as the very same array would differ from a copy of it.
    """
    own = training.features.X if isinstance(training.features, ArrayFeatures) else None
    dense = isinstance(X, np.ndarray) and isinstance(own, np.ndarray)
    return X.copy() if dense and np.may_share_memory(X, own) else X


def _side_by_side(factors: TrainingFactors, new: Any) -> Matrix:
    """Factors of new samples in one matrix, in the order of the kernels.

    Arrays without names, one or a list, are taken in the order of the kernels.
    """
    if not isinstance(new, Mapping):
        given = given_factors(new)
        if len(given) != len(factors.kinds):
            raise InputError(
                f"{len(given)} factors of new samples were given but the model has "
                f"{len(factors.kinds)}: give one for each of {', '.join(factors.kinds)}"
            )
        specs = dict(zip(factors.kinds, given, strict=True))
    else:
        refuse_other_names(new, factors.kinds)
        specs = {spec.name: spec for spec in given_factors(new)}
    parts: list[Any] = []
    for name in factors.kinds:
        own, wanted = specs[name].factor, factors.arrays.columns(array_of(name, "given"))
        if own.shape[1] != wanted:
            raise InputError(
                f"factor {name} has {own.shape[1]} columns but the model was fitted on {wanted}: "
                "make the factors of new samples as those of the training samples were made"
            )
        parts.append(own if is_thin(own) else own[:])
    if any(map(is_thin, parts)):
        return sparse.csr_array(sparse.hstack(parts, "csr")).astype(np.float64)
    return np.hstack(parts).astype(np.float64)


def refuse_other_names(given: Iterable[str], wanted: Iterable[str]) -> None:
    """Factors of new samples must be of the kernels of the fit, all of them and no others."""
    missing = [name for name in wanted if name not in given]
    unknown = [str(name) for name in given if name not in wanted]
    if not (missing or unknown):
        return
    wrong = [f"missing: {', '.join(missing)}"] if missing else []
    wrong += [f"unknown: {', '.join(unknown)}"] if unknown else []
    raise InputError(
        f"factors of new samples must have the names of the fit ({'; '.join(wrong)}): give one for "
        f"each of {', '.join(wanted)}"
    )


def _as_functions(training: Training, new: Any) -> tuple[Training, Matrix]:
    """Cross kernels as functions of samples that are nothing but their numbers."""
    given = cross_matrices(new, len(training.kernels), training.n_samples)
    for kernel in training.kernels:
        if kernel.normalization == "unit":
            raise InputError(
                f"kernel {kernel.name} was normalised to a unit diagonal, which takes k(x,x) of "
                "the new samples: normalise the kernels yourself before fitting, and those of new "
                "samples likewise"
            )
    kernels = tuple(
        replace(kernel, spec=FunctionKernel(PrecomputedRows(matrix), kernel.name))
        for kernel, matrix in zip(training.kernels, given, strict=True)
    )
    features = ArrayFeatures(sample_numbers(training.n_samples))
    return replace(training, kernels=kernels, features=features), sample_numbers(len(given[0]))


def cross_matrices(
    given: Any, m: int, n: int, name: str = "the model"
) -> list[npt.NDArray[np.float64]]:
    """Kernels between new and training samples, one (n_new, n) for each of m kernels."""
    items: Sequence[Any]
    if isinstance(given, list | tuple) and not is_one_matrix(given):
        items = given
    else:
        array = np.asarray(given)
        if array.ndim not in (2, 3):
            raise InputError(
                f"kernels of new samples have shape {array.shape}: give ({m}, n_new, {n}), or "
                f"(n_new, {n}) for a single kernel. Reshape your data"
            )
        items = [array] if array.ndim == 2 else list(array)
    kernels = [as_features(item) for item in items]
    if len(kernels) != m:
        raise InputError(f"there are {len(kernels)} kernels of new samples, but the model has {m}")
    dense = [K if isinstance(K, np.ndarray) else np.asarray(K.toarray()) for K in kernels]
    for K in dense:
        if K.shape[1] != n:
            raise InputError(
                f"X has {K.shape[1]} features, but {name} is expecting {n} features as input: "
                "kernels of new samples have a column for every training sample"
            )
        if K.shape != dense[0].shape:
            raise InputError("kernels of new samples must all be of the same samples")
    return dense
