"""What clusters mean, asked of a fitted estimator."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from gmkcf_dask.corpus.text import texts_in
from gmkcf_dask.corpus.validate import check_ids, check_labels
from gmkcf_dask.errors import InputError
from gmkcf_dask.estimators.base import KernelClusterer, listeners
from gmkcf_dask.kernels.arrays import StoredFeatures
from gmkcf_dask.kernels.features import ArrayFeatures
from gmkcf_dask.locations import location
from gmkcf_dask.results.insight import About, Samples, explain
from gmkcf_dask.results.report import write_report
from gmkcf_dask.results.training import Training


class Explaining(KernelClusterer):
    """Can say what its clusters mean."""

    def explain(
        self,
        X: Any = None,
        *,
        ids: Iterable[object] | None = None,
        titles: Iterable[object] | None = None,
        topics: Iterable[object] | None = None,
        title: str = "",
    ) -> dict[str, Any]:
        """What the clusters are about: terms, typical and doubtful samples, kernels, a map.

        One sweep over the kernels, which are made again from the training samples where they were
        not kept in a store. What was found is kept, for `report` and `save`.

        Parameters
        ----------
        X : optional
            The training samples again: needed only where the kernels were precomputed, or where
            a model was saved without features.
        ids, titles, topics : iterable of length n_samples, optional
            What to call the samples, and their known topics, for scores.
        title : str
            What to call the whole.

        Returns
        -------
        dict
            Plain values, as insight.json of a run folder has them; "clusters" is a list with a
            name, size, terms, central and doubtful samples of each.
        """
        check_is_fitted(self)
        named = any(part is not None for part in (X, ids, titles, topics)) or bool(title)
        if self._model.insight is not None and not named:
            return dict(self._model.insight)
        training = self._model.training
        n = training.n_samples
        listen, close = listeners(self.callbacks, self.verbose)
        try:
            again = clone(self)  # what making kernels notes down is not to change this estimator
            given = _training_samples(training, X)
            stack, _, made = again._stack(given, self._method(), listen)
            if stack.n_samples != n:
                raise InputError(
                    f"X has {stack.n_samples} samples but the model was fitted on {n}: give the "
                    "samples it was fitted on"
                )
            samples = Samples(
                training.ids or tuple(map(str, range(n))) if ids is None else check_ids(ids, n),
                made().features,
                training.terms,
                training.titles if titles is None else check_labels(titles, n),
                training.excerpts,
                training.topics if topics is None else check_labels(topics, n),
            )
            about = About(title or type(self).__name__)
            found = explain(stack, self._method(), self._model.found, samples, about, listen=listen)
        finally:
            close()
        self._model = replace(self._model, insight=found)
        return dict(found)

    def report(self, path: str | Path, X: Any = None, **names: Any) -> Path:
        """Write one page for a browser, which needs no network: `explain` for people.

        Parameters
        ----------
        path : path or URL
            File to write, such as "report.html".
        X, **names
            As for `explain`.

        Returns
        -------
        Path
        """
        target = location(path)
        return write_report(target.parent, self.explain(X, **names), target.name)


def _training_samples(training: Training, X: Any) -> Any:
    """What kernels are made from again; texts are read with the words of the fit."""
    if X is not None:
        texts = None if training.reading is None else texts_in(X)
        if texts is None or training.reading is None:
            return X
        return training.reading.transform(texts, training.terms)
    if isinstance(training.features, StoredFeatures):
        return training.features.path
    if isinstance(training.features, ArrayFeatures):
        return training.features.X
    raise InputError(
        "the samples this model was fitted on are not kept with it: give them as X, or save the "
        "model with features=True"
    )
