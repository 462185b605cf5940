"""What fitted estimators can do: place new samples, be saved, loaded and copied."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from gmkcf_dask import prediction
from gmkcf_dask.corpus.forms import refuse_other_forms
from gmkcf_dask.corpus.text import texts_in
from gmkcf_dask.corpus.validate import as_features
from gmkcf_dask.errors import InputError
from gmkcf_dask.estimators.base import listeners
from gmkcf_dask.estimators.explaining import Explaining
from gmkcf_dask.kernels.arrays import StoredFeatures
from gmkcf_dask.kernels.cross import named_only
from gmkcf_dask.kernels.specs import FunctionKernel, Precomputed
from gmkcf_dask.locations import location
from gmkcf_dask.methods.predict import NoPredictionError, refuse_transductive
from gmkcf_dask.methods.registry import parameters_of
from gmkcf_dask.results.model import Model, is_model, load_model, save_model
from gmkcf_dask.results.past import is_run, model_of_run
from gmkcf_dask.results.run import refuse_several
from gmkcf_dask.results.training import Training, features_of

Floats = npt.NDArray[np.float64]


class Lasting(Explaining):
    """Can be saved and loaded."""

    def save(self, path: str | Path, *, features: bool = True, overwrite: bool = False) -> None:
        """Write the fitted model into a folder: npz and JSON, no pickle.

        Kernel functions are kept by their names only, and neither the client nor paths are kept.
        What `explain` found goes with it where that was asked for; `report` of the loaded model
        then needs nothing else.

        Parameters
        ----------
        path : path or URL
        features : bool, default=True
            Keep the training samples' features with it. Without them a loaded model has its labels
            and everything else, but cannot place new samples.
        overwrite : bool, default=False
            Replace the model that is there.
        """
        check_is_fitted(self)
        save_model(self._model, location(path), features=features, overwrite=overwrite)

    @classmethod
    def load(cls, path: str | Path, kernels: Mapping[str, Any] | None = None) -> Any:
        """A model that was saved, or the run of a run folder.

        Parameters
        ----------
        path : path or URL
        kernels : mapping, optional
            Kernel functions by name, where the model has any.
        """
        found = load(path, kernels)
        if not isinstance(found, cls):
            name = type(found).__name__
            raise InputError(
                f"{path} holds a {name} and no {cls.__name__}: use {name}.load or gmkcf_dask.load"
            )
        return found

    def to_local(self) -> Any:
        """A copy that needs neither client nor store: the training samples are in its memory."""
        check_is_fitted(self)
        local = copy.copy(self)
        local.client, local.store = None, None
        local._model = replace(self._model, training=self._model.training.in_memory())
        return local


class Predicting(ClassNamePrefixFeaturesOutMixin, TransformerMixin, Lasting):  # type: ignore[misc]
    """Has a place for new samples."""

    def predict(self, X: Any) -> npt.NDArray[np.int32]:
        """The clusters of new samples, from kernels between them and the training samples.

        Parameters
        ----------
        X : array or sparse matrix of shape (n_new, n_features), or texts
            Texts where the model was fitted on texts: they are read with its words and weights.
            Or, with precomputed kernels, those between new and training samples: an array of shape
            (m, n_new, n_samples) or a list of (n_new, n_samples) arrays.

        Returns
        -------
        labels : ndarray of int, shape (n_new,)
        """
        return self._placed(X).labels

    def sureness(self, X: Any) -> Floats:
        """How clearly new samples belong to the clusters that `predict` gives them.

        Parameters
        ----------
        X : as for `predict`

        Returns
        -------
        ndarray, shape (n_new,)
            1 − d₁/d₂, distances to the nearest and the next centre: 1 in the centre of a cluster, 0
            half way to another.
        """
        return self._placed(X).sure

    def transform(self, X: Any) -> Floats:
        """Rows of new samples in the representation that was clustered.

        Parameters
        ----------
        X : as for `predict`

        Returns
        -------
        ndarray, shape (n_new, n_clusters)
            Rows of V_ for factorizations, of embedding_ for spectral clustering; for the k-means
            methods squared distances to the centres in kernel space.
        """
        rows = self._rows(X)  # refused here before a fit
        return prediction.transform(self._model, rows, self._place())

    def fit_transform(self, X: Any, y: object = None) -> Floats:
        """Fit, and return the rows of the training samples; see `transform`."""
        self.fit(X, y)
        for name in ("V_", "embedding_"):
            if hasattr(self, name):
                rows: Floats = getattr(self, name)
                return rows
        training = self._model.training
        new = X if training.precomputed else features_of(training)
        return prediction.transform(self._model, new, self._place())

    @property
    def _n_features_out(self) -> int:
        return int(self._model.method.n_clusters)  # of the fit, whatever is set by now

    def _placed(self, X: Any) -> prediction.Prediction:
        rows = self._rows(X)
        listen, close = listeners(self.callbacks, self.verbose)
        try:
            return prediction.predict(self._model, rows, self._place(), listen)
        finally:
            close()

    def _rows(self, X: Any) -> Any:
        """New samples as the training samples were; refused where they have other columns."""
        check_is_fitted(self)
        training = self._model.training
        training.refuse_missing()
        if training.precomputed:
            name = type(self).__name__
            prediction.cross_matrices(X, len(training.kernels), training.n_samples, name)
            return X
        texts = texts_in(X)
        if texts is not None:
            if training.reading is None:
                raise InputError(
                    f"X holds texts but the model was fitted on numbers: give {training.n_features}"
                    " columns"
                )
            return training.reading.transform(texts, training.terms)
        if training.reading is not None:
            refuse_other_forms(X, only_texts=True)
        as_features(X)
        try:
            validate_data(self, X, reset=False, skip_check_array=True)
        except ValueError as error:
            raise InputError(f"{error}") from error
        return X

    def _place(self) -> Any:
        """Where tasks run: a client has a part only in what is in a store."""
        stored = isinstance(self._model.training.features, StoredFeatures)
        return self._resources() if stored else None


class Transductive(Lasting):
    """Has a place only for the samples it was fitted on."""

    @property
    def predict(self) -> Any:
        """Not there: see the sentence it raises."""
        raise self._nothing_new()

    @property
    def transform(self) -> Any:
        """Not there: see the sentence it raises."""
        raise self._nothing_new()

    def _nothing_new(self) -> NoPredictionError:
        try:
            refuse_transductive(self.method_name)  # known before a fit, too
        except NoPredictionError as error:
            return error
        raise AssertionError(self.method_name)


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
    if not is_model(folder) and is_run(folder):
        return estimator_of(model_of_run(folder), kernels)
    return estimator_of(load_model(folder), kernels)


def estimator_of(model: Model, kernels: Mapping[str, Any] | None = None) -> Any:
    """The estimator that a model is of, as after its fit."""
    from gmkcf_dask.estimators.models import ESTIMATORS

    functions = dict(kernels or {})
    model = replace(model, training=model.training.with_functions(functions))
    method = {name: getattr(model.method, name) for name in parameters_of(model.method.name)}
    how = dict(model.parameters)
    for name in ("kernels", "kernel"):
        if name in how:
            how[name] = _with_functions(how[name], functions, model.training)
    made = ESTIMATORS[model.method.name](**method, **how)
    made._keep(model)
    training = model.training
    if training.reading is not None:
        made.text = training.reading.options
    if training.n_features or training.precomputed:
        made.n_features_in_ = training.n_features or training.n_samples
    if model.named_features:
        made.feature_names_in_ = np.array(training.terms, dtype=object)
    return made


def _with_functions(asked: Any, functions: Mapping[str, Any], training: Training) -> Any:
    """Names of kernels, with functions put back in their places; who calls one that was not given
    again is told so."""
    kernels = {kernel.name: kernel.spec for kernel in training.kernels}
    mine = {
        name for name, spec in kernels.items() if isinstance(spec, FunctionKernel | Precomputed)
    }

    def put_back(name: str) -> Any:
        if name in functions:
            return FunctionKernel(functions[name], name)
        return named_only(name) if name in mine else name

    return put_back(asked) if isinstance(asked, str) else list(map(put_back, asked))
