"""What fitted estimators do with new samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from gmkcf_dask.corpus.documents import texts_in
from gmkcf_dask.corpus.validate import as_features, refuse_other_forms
from gmkcf_dask.errors import InputError
from gmkcf_dask.estimators.base import KernelClusterer, listening
from gmkcf_dask.pipeline import prediction
from gmkcf_dask.results.training import features_of
from gmkcf_dask.store.features import StoredFeatures
from gmkcf_dask.system.arrays import Floats


class PredictingClusterer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, KernelClusterer):  # type: ignore[misc]
    """Assigns new samples to clusters."""

    def predict(self, X: Any) -> npt.NDArray[np.int32]:
        """The clusters of new samples, from kernels between them and the training samples.

        Parameters
        ----------
        X : array or sparse matrix of shape (n_new, n_features), or texts
            Texts where the model was fitted on texts: they are read with its words and weights.
            Or, with precomputed kernels, those between new and training samples: an array of shape
            (m, n_new, n_samples) or a list of (n_new, n_samples) arrays. Or, with
            kernels="factored", the factors of new samples under the names of the fit.

        Returns
        -------
        labels : ndarray of int, shape (n_new,)
            -1 for a sample whose row is all zero, where clusters are directions or concepts
            (`assign`).
        """
        return self._predict(X).labels

    def sureness(self, X: Any) -> Floats:
        """How clearly new samples belong to the clusters that `predict` gives them.

        Parameters
        ----------
        X : as for `predict`

        Returns
        -------
        ndarray, shape (n_new,)
            1 − d₁/d₂, distances to the nearest and the next centre: 1 in the centre of a cluster, 0
            half way to another. With assign="spherical" the distance is √(2 − 2 cos); with "argmax"
            it is 1 − v₂/v₁ of the two largest entries. 0 for label -1.
        """
        return self._predict(X).sure

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
        rows = self._validate_new(X)  # rejected here before a fit
        return prediction.transform(self._model, rows, self._prediction_resources())

    def fit_transform(self, X: Any, y: object = None) -> Floats:
        """Fit, and return the rows of the training samples; see `transform`."""
        self.fit(X, y)
        for name in ("V_", "embedding_"):
            if hasattr(self, name):
                rows: Floats = getattr(self, name)
                return rows
        training = self._model.training
        new = X if training.precomputed else features_of(training)
        return prediction.transform(self._model, new, self._prediction_resources())

    @property
    def _n_features_out(self) -> int:
        return int(self._model.method.n_clusters)  # of the fit, whatever is set by now

    def _predict(self, X: Any) -> prediction.Prediction:
        rows = self._validate_new(X)
        with listening(self.callbacks, self.verbose) as listen:
            return prediction.predict(self._model, rows, self._prediction_resources(), listen)

    def _validate_new(self, X: Any) -> Any:
        """New samples as the training samples were; refused where they have other columns."""
        check_is_fitted(self)
        training = self._model.training
        training.refuse_missing()
        if training.precomputed:
            name = type(self).__name__
            prediction.cross_matrices(X, len(training.kernels), training.n_samples, name)
            return X
        if training.factors is not None and training.factors.given:
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

    def _prediction_resources(self) -> Any:
        """Where tasks run: a client has a part only in what is in a store."""
        stored = isinstance(self._model.training.features, StoredFeatures)
        return self._resources() if stored else None
