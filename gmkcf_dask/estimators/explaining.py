"""What clusters mean, asked of a fitted estimator."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from sklearn.utils.validation import check_is_fitted

from gmkcf_dask.corpus.validate import check_ids, check_labels
from gmkcf_dask.errors import InputError
from gmkcf_dask.estimators.again import kernels_of_fit, stored_again
from gmkcf_dask.estimators.base import KernelClusterer, listeners
from gmkcf_dask.events import Listener
from gmkcf_dask.kernels.store import KernelStore
from gmkcf_dask.locations import location
from gmkcf_dask.results.insight import About, Samples, explain
from gmkcf_dask.results.report import write_report
from gmkcf_dask.workflow import store_plan, stored_kernels


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
        not kept in a store. What was found is kept, for `report` and `save`, and so are the names
        that were given: they need not be given again.

        Parameters
        ----------
        X : optional
            The training samples again, or the store of their kernels: needed only where the
            kernels were precomputed, or where a model was saved without features.
        ids, titles, topics : iterable of length n_samples, optional
            What to call the samples, and their known topics, for scores. Without ids samples are
            called as the index of a pandas table or series calls them, else by their row numbers.
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
            store = stored_again(self._model, X)
            stack, features = self._kernels_again(store, X, listen)
            if stack.n_samples != n:
                raise InputError(
                    f"X has {stack.n_samples} samples but the model was fitted on {n}: give the "
                    "samples it was fitted on"
                )
            kept = dict(self._model.insight or {})
            names = kept.get("documents") or {}
            ids = ids if ids is not None else names.get("ids") or training.ids or range(n)
            titles = titles if titles is not None else names.get("titles") or training.titles
            topics = topics if topics is not None else names.get("topics") or training.topics
            samples = Samples(
                check_ids(ids, n),
                features,
                training.terms,
                None if titles is None else check_labels(titles, n),
                training.excerpts,
                None if topics is None else check_labels(topics, n),
                texts=training.reading is not None,
            )
            about = About(
                title or kept.get("title") or type(self).__name__,
                kept.get("command"),
                self._model.seconds,
                kept.get("bytes") or {},
                kept.get("warnings") or (),
            )
            model = self._model
            found = explain(stack, model.method, model.found, samples, about, listen=listen)
        finally:
            close()
        self._model = replace(self._model, insight=found)
        return dict(found)

    def _kernels_again(self, store: KernelStore | None, X: Any, listen: Listener) -> Any:
        """The kernels of the fit, whatever the parameters are by now, and the features."""
        if store is None:
            return kernels_of_fit(self._model, X, self._own_specs(), listen)
        resources = self._resources()
        plan = store_plan(store, self._model.method.n_clusters, resources)
        features = store.features() if store.manifest.n_features else None
        return stored_kernels(store, plan, resources), features

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
