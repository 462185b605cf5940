"""Estimators from folders: saved models, and the run folders of `gmkcf run`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gmkcf_dask.kernels.cross import missing_kernel
from gmkcf_dask.kernels.factored import array_of
from gmkcf_dask.kernels.specs import FunctionKernel, Precomputed
from gmkcf_dask.methods.registry import parameters_of
from gmkcf_dask.results.finished_run import model_of_run
from gmkcf_dask.results.run_folder import RESULT, refuse_several
from gmkcf_dask.results.saved_model import Model, is_model, load_model
from gmkcf_dask.results.training import Training
from gmkcf_dask.store.files import exists
from gmkcf_dask.store.object_storage import location


def load(path: str | Path, kernels: Mapping[str, Any] | None = None) -> Any:
    """A fitted estimator from a folder: one that was saved, or the run folder of `gmkcf run`.

    Of a run folder new samples are placed through its store, while that exists.

    Parameters
    ----------
    path : path or URL
    kernels : mapping, optional
        Kernel functions by name, where the model has any: files keep their names only.

    Returns
    -------
    estimator
        Of the class that belongs to the method, with labels_ and all other attributes.
    """
    folder = location(path)
    if not is_model(folder):
        refuse_several(folder)
        if exists(folder / RESULT):
            return estimator_of(model_of_run(folder), kernels)
    return estimator_of(load_model(folder), kernels)


def estimator_of(model: Model, kernels: Mapping[str, Any] | None = None) -> Any:
    """The estimator that a model is of, as after its fit."""
    from gmkcf_dask.estimators.models import ESTIMATORS

    functions = dict(kernels or {})
    model = replace(model, training=model.training.with_functions(functions))
    method = {name: getattr(model.method, name) for name in parameters_of(model.method.name)}
    parameters = {"layout": "each", **model.parameters}  # earlier versions knew no other
    for name in ("kernels", "kernel"):
        if name in parameters:
            parameters[name] = _with_functions(parameters[name], functions, model.training)
    estimator = ESTIMATORS[model.method.name](**method, **parameters)
    estimator._set_fitted(model)
    training = model.training
    if training.reading is not None:
        estimator.text = training.reading.options
    if training.n_features or training.precomputed:
        estimator.n_features_in_ = training.n_features or training.n_samples
    if training.factors is not None and training.factors.given and not training.n_features:
        if not isinstance(getattr(estimator, "kernels", ""), str):
            estimator.kernels = "factored"
        kinds, arrays = training.factors.kinds, training.factors.arrays
        own = (array_of(name, kind) for name, kind in kinds.items() if kind == "given")
        estimator.n_features_in_ = sum(map(arrays.columns, own))
    if model.named_features:
        estimator.feature_names_in_ = np.array(training.terms, dtype=object)
    return estimator


def _with_functions(names: Any, functions: Mapping[str, Any], training: Training) -> Any:
    """Names of kernels, with functions in their places; one that is missing raises when called."""
    kernels = {kernel.name: kernel.spec for kernel in training.kernels}
    not_by_name = {
        name for name, spec in kernels.items() if isinstance(spec, FunctionKernel | Precomputed)
    }

    def put_back(name: str) -> Any:
        if name in functions:
            return FunctionKernel(functions[name], name)
        return missing_kernel(name) if name in not_by_name else name

    return put_back(names) if isinstance(names, str) else list(map(put_back, names))
