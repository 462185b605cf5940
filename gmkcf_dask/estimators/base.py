"""The base class of all estimators: validate, call the pipeline, store the results."""

from __future__ import annotations

import copy
import numbers
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from sklearn import get_config
from sklearn.base import BaseEstimator, ClusterMixin, clone
from sklearn.utils import check_random_state, estimator_html_repr
from sklearn.utils.validation import check_is_fitted, validate_data

from gmkcf_dask import pipeline
from gmkcf_dask.cluster import Resources, of_client, threads
from gmkcf_dask.compute.costs import Job
from gmkcf_dask.corpus.documents import corpus_from_texts, texts_in
from gmkcf_dask.corpus.model import Corpus
from gmkcf_dask.corpus.text_options import TextOptions
from gmkcf_dask.corpus.validate import (
    apart_from,
    as_features,
    check_ids,
    check_labels,
    ids_of_index,
    refuse_equal_rows,
    refuse_other_forms,
    warn_about_zero_rows,
)
from gmkcf_dask.errors import DataWarning, InputError, StoreError
from gmkcf_dask.estimators.kernel_sources import (
    KernelSource,
    kernels_of_fit,
    parameters_of_store,
    store_at,
    store_of_fit,
)
from gmkcf_dask.estimators.persistence import load
from gmkcf_dask.estimators.sklearn_callbacks import (
    CallbackSupportMixin,
    callbacks_of,
    supports_callbacks,
    with_callbacks_of,
)
from gmkcf_dask.events import Event, Listener, StageNote, ignore
from gmkcf_dask.kernels.specs import (
    HEAT,
    LAYOUTS,
    LOCAL,
    FunctionKernel,
    KernelSpec,
    check_option,
    precomputed_specs,
    resolve_kernels,
)
from gmkcf_dask.methods.base import Method
from gmkcf_dask.methods.contrast import weak_clusters
from gmkcf_dask.methods.defaults import DEFAULT_KERNELS, DEFAULT_LAYOUT
from gmkcf_dask.methods.members import NO_CLUSTER, cluster_sizes
from gmkcf_dask.methods.registry import make_method, parameters_of
from gmkcf_dask.pipeline import (
    build,
    job_of,
    memory_kernels,
    request_identity,
    request_plan,
    store_identity,
    store_plan,
    stored_kernels,
)
from gmkcf_dask.pipeline.kernels_by_k import memory_kernels_by_k, stored_kernels_by_k
from gmkcf_dask.pipeline.wordless import documents_with_words
from gmkcf_dask.results.checkpoints import (
    check_interval,
    has_checkpoint,
    open_checkpoints,
    remove_checkpoints,
)
from gmkcf_dask.results.insight import About, Samples, explain, without_cluster
from gmkcf_dask.results.report.render import write_report
from gmkcf_dask.results.saved_model import Model, save_model
from gmkcf_dask.results.schemas import plain_values
from gmkcf_dask.results.training import training_of_request, training_of_store
from gmkcf_dask.store.build import look_up
from gmkcf_dask.store.files import check_writable
from gmkcf_dask.store.given import given_factors
from gmkcf_dask.store.kernel_store import KernelStore, is_store
from gmkcf_dask.store.lock import owning
from gmkcf_dask.store.manifest import Manifest
from gmkcf_dask.store.object_storage import is_location, location
from gmkcf_dask.store.request import MAX_CLUSTERS, KernelRequest
from gmkcf_dask.system.html import bar, block, line_chart, paragraph, table, text

if TYPE_CHECKING:
    from distributed import Client

_FACTORS = {
    "U": "U_",
    "V": "V_",
    "embedding": "embedding_",
    "eigenvalues": "eigenvalues_",
    "centres": "cluster_centers_",
}
"""Factors that are attributes, and their names."""
_SAVED = ("normalization", "scaling", "precision", "layout", "block_size")


@dataclass(eq=False, repr=False)
class KernelClusterer(CallbackSupportMixin, ClusterMixin, BaseEstimator, ABC):  # type: ignore[misc]
    """Fit, explain, save and load. Fields are the parameters that scikit-learn sees."""

    method_name: ClassVar[str]

    n_clusters: int = 8
    _: KW_ONLY
    normalization: str = "unit"
    scaling: str = "minmax"
    precision: str = "float32"
    layout: str = DEFAULT_LAYOUT
    block_size: int | str = "auto"
    random_state: Any = None
    store: str | Path | None = None
    client: Client | None = None
    callbacks: Sequence[Callable[[Event], object]] | None = None
    checkpoint_dir: str | Path | None = None
    checkpoint_every: int | None = None
    verbose: int = 0
    text: TextOptions | None = None

    @abstractmethod
    def _requested_kernels(self) -> object:
        """Kernels to be built from features, or "precomputed"."""

    @abstractmethod
    def _used_kernel(self, stored: tuple[str, ...] = ()) -> str:
        """The kernel a single-kernel method is to use; any name for other methods.

        `stored` are the names of a store's kernels, precomputed ones among them.
        """

    @abstractmethod
    def _names_wanted(self) -> tuple[str, ...] | None:
        """Names of the requested kernels, or None for the default."""

    def _method(self) -> Method:
        names = parameters_of(self.method_name)
        return make_method(self.method_name, **{name: getattr(self, name) for name in names})

    @supports_callbacks
    def fit(self, X: Any, y: object = None, resume: bool = False) -> Any:
        """Cluster samples.

        Parameters
        ----------
        X : array or sparse matrix of shape (n_samples, n_features), texts, or a store
            Features; or a list, array or series of n_samples strings; or the path of a finished
            store, or an opened `KernelStore`; or, with precomputed kernels, an array of shape
            (m, n, n) or a list of (n, n) arrays; or, with kernels="factored", a mapping of names to
            arrays of shape (n_samples, r), to Zarr arrays or to paths, or one array. Without a
            store a copy of dense features is kept for new samples to be compared with, beside the
            caller's own.
        y : ignored
        resume : bool, default=False
            Resume from the checkpoint in `checkpoint_dir`; without one, start from the beginning.

        Returns
        -------
        self
        """
        method = self._method()
        seed = seed_of(self.random_state)
        self._check_types()
        self._check_checkpoints(resume=resume)
        X = self._opened(X)
        begin = time.perf_counter()
        with listening(callbacks_of(self), self.verbose) as listen:
            data = self._kernel_data(X, listen)
            method.check_samples(data.n_samples)
            source = self._kernel_source(data, method.n_clusters, job_of(method), listen)
            ready = time.perf_counter()
            stack, kernels = source.stack, [self._used_kernel(source.stack.names)]
            if self.checkpoint_dir is None:
                (clustering,) = pipeline.fit(
                    stack, method, [seed], kernels, listen, kept=source.kept
                )
            else:
                fingerprint = pipeline.run_fingerprint(source.identity(), method, seed, kernels)
                folder, every = location(self.checkpoint_dir), self.checkpoint_every
                with owning(folder) as still_ours:  # a request to stop unwinds to here, too
                    checkpoints = open_checkpoints(
                        folder, fingerprint, every, resume=resume, still_ours=still_ours
                    )
                    with checkpoints.until_done():
                        (clustering,) = pipeline.fit(
                            stack, method, [seed], kernels, listen, checkpoints, source.kept
                        )
                    remove_checkpoints(folder)
        samples, names = source.training(), getattr(self, "feature_names_in_", None)
        if names is not None:
            samples = replace(samples, terms=tuple(map(str, names)))
        ids = ids_of_index(X, samples.n_samples)
        if ids is not None:  # no part of what a store or a checkpoint is of: a fit is the same
            samples = replace(samples, ids=ids)
        seconds = {"kernels": ready - begin, "fit": time.perf_counter() - ready}
        parameters, named = self._kernel_parameters(X), names is not None
        self._set_fitted(
            Model(method, clustering, samples, parameters, named_features=named, seconds=seconds)
        )
        return self

    def _set_fitted(self, model: Model) -> None:
        """Set the attributes of a fit, this one or that of a saved model."""
        clustering = model.clustering
        self._model = model
        self.labels_ = clustering.labels
        self.kernel_weights_ = clustering.weights
        self.kernel_names_ = clustering.kernel_names
        self.objective_history_ = np.asarray(clustering.history)
        self.n_iter_ = clustering.n_iter
        self.converged_ = clustering.converged
        self.runs_ = clustering.runs
        self.contrast_ = clustering.contrast
        self.weights_history_ = clustering.weights_history
        self.reading_ = model.training.reading
        self.terms_ = None if self.reading_ is None else model.training.terms
        for factor, name in _FACTORS.items():
            self.__dict__.pop(name, None)  # of an earlier fit
            if factor in clustering.factors:
                setattr(self, name, clustering.factors[factor])

    def _kernel_parameters(self, X: Any) -> dict[str, Any]:
        """The parameters that a saved model keeps beside those of its method."""
        kept: dict[str, Any] = {name: getattr(self, name) for name in _SAVED}
        for name in ("kernels", "kernel"):
            value = getattr(self, name, None)
            if value is not None:
                specs = () if isinstance(value, str) else resolve_kernels(value)
                kept[name] = [spec.name for spec in specs] or value
        whole = isinstance(self.random_state, numbers.Integral)
        kept["random_state"] = int(self.random_state) if whole else None
        return kept | parameters_of_store(X.manifest, kept) if isinstance(X, KernelStore) else kept

    def _opened(self, X: Any) -> Any:
        """The store at a path; a path of an array is one where X is a factor."""
        if not is_location(X):
            return X
        kernels = self._kernels_parameter()
        if isinstance(kernels, str) and kernels == "factored" and not is_store(location(X)):
            return [X]
        return store_at(X)

    def _kernel_data(self, X: Any, listen: Listener = ignore) -> KernelStore | KernelRequest:
        """A finished store, or kernels to be computed."""
        X = self._opened(X)
        if not isinstance(X, KernelStore):
            return self._request(X, listen)
        self._refuse_other_parameters(X)
        for name in ("n_features_in_", "feature_names_in_"):  # of an earlier fit on features
            self.__dict__.pop(name, None)
        if X.manifest.n_features:
            self.n_features_in_ = X.manifest.n_features
        return X

    def _kernel_source(
        self, data: KernelStore | KernelRequest, n_clusters: int, job: Job, listen: Listener
    ) -> KernelSource:
        """Plan the job, and load or compute the kernels."""
        if isinstance(data, KernelRequest) and self.store is None:
            if self.client is not None:
                warnings.warn(
                    "the client is not used: without store= kernels live in this process",
                    DataWarning,
                    stacklevel=3,
                )
            made = memory_kernels(data, n_clusters, listen, job)
            return KernelSource(
                made.stack,
                partial(request_identity, data, made.block_size),
                partial(training_of_request, data, made.kernels, made.norms, made.arrays),
                memory_kernels_by_k(data, made),
                documents_with_words(data),
            )
        resources = self._resources()
        if isinstance(data, KernelStore):
            # a store knows kernel functions by their names only
            specs: tuple[KernelSpec, ...] = tuple(
                spec for spec in self._own_specs() if isinstance(spec, FunctionKernel)
            )
            store = data
            plan = store_plan(store, n_clusters, resources, job)
        else:
            assert self.store is not None
            path, specs = location(self.store), data.specs
            place = look_up(path, data)
            plan = request_plan(data, n_clusters, resources, place, job=job)
            store = build(place, data, plan, resources, listen)
        stack = stored_kernels(store, plan, resources)
        return KernelSource(
            stack,
            partial(store_identity, store),
            partial(training_of_store, store, specs),
            stored_kernels_by_k(store, plan, resources, stack),
            documents_with_words(store),
        )

    def _kernels_parameter(self) -> Any:
        """The parameter `kernels` or `kernel`."""
        return getattr(self, "kernels", getattr(self, "kernel", None))

    def _own_specs(self) -> tuple[KernelSpec, ...]:
        """Kernels among the parameters; functions and matrices are nowhere else to be had."""
        kernels = self._kernels_parameter()
        return () if isinstance(kernels, str) else resolve_kernels(kernels)

    def _check_types(self) -> None:
        for name in ("store", "checkpoint_dir"):
            value = getattr(self, name)
            if not (value is None or is_location(value)):
                raise InputError(f"{name} must be a path or a URL, not {value!r}")
        check_option("layout", self.layout, LAYOUTS)
        if not isinstance(self.text, TextOptions | None):
            raise InputError(f"text must be TextOptions or None, not {self.text!r}")
        if not isinstance(self.callbacks, list | tuple | None):
            raise InputError(f"callbacks must be a list of callables, not {self.callbacks!r}")

    def _check_checkpoints(self, *, resume: bool) -> None:
        if self.checkpoint_dir is None:
            if resume:
                raise InputError("resume=True needs checkpoint_dir, the folder of the checkpoint")
            if self.checkpoint_every is not None:
                raise InputError("checkpoint_every needs checkpoint_dir, the folder to write to")
            return
        check_interval(self.checkpoint_every)
        if not isinstance(self.random_state, numbers.Integral):
            raise InputError("checkpoint_dir needs a whole number as random_state")
        folder = location(self.checkpoint_dir)
        check_writable(folder, "checkpoints")
        if has_checkpoint(folder) and not resume:
            raise InputError(
                f"{folder} has the checkpoint of an interrupted fit: resume it with "
                "fit(X, resume=True), or remove the folder"
            )

    def _refuse_other_parameters(self, store: KernelStore) -> None:
        """A parameter left at its default takes what the store has; one that was set must agree."""
        manifest, defaults = store.manifest, type(self)().get_params()
        stored: dict[str, set[object]] = {
            **{name: _options_of(manifest, name) or {defaults[name]} for name in _TILE_OPTIONS},
            "precision": {manifest.precision},
            "block_size": {manifest.block_size},
        }
        if manifest.kernels:
            stored["layout"] = {manifest.layout}
        own = {name: getattr(self, name) for name in stored}
        wanted = self._names_wanted()
        if wanted is not None:
            # tiles come first in a store, and a set of kernels stands for those that suit the data
            names, given = set(manifest.kernel_names), set(wanted)
            if DEFAULT_KERNELS in given:
                sets = {spec.name for each in (LOCAL, HEAT) for spec in each}
                given = given - {DEFAULT_KERNELS} | names & sets
            known = manifest.kernel_names if given == names else wanted
            stored["kernels"], own["kernels"] = {manifest.kernel_names}, known
        different = [
            f"{name} (store: {', '.join(map(str, stored[name]))}, parameter: {value})"
            for name, value in own.items()
            if value != defaults.get(name) and stored[name] != {value}
        ]
        if different:
            raise StoreError(
                f"{store.path} differs from the parameters in {'; '.join(different)}: leave these "
                "at their defaults to use the store as it is"
            )

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
            return dict(plain_values(self._model.insight))
        training = self._model.training
        n = training.n_samples
        with listening(self.callbacks, self.verbose) as listen:
            store = store_of_fit(self._model, X)
            stack, features = self._kernels_of_fit(store, X, listen)
            given = stack.n_samples if features is None else features.n_samples
            if given != n:
                raise InputError(
                    f"X has {given} samples but the model was fitted on {n}: give the "
                    "samples it was fitted on"
                )
            model, earlier = self._model, self._model.insight
            names = training if earlier is None else earlier.documents
            ids = ids if ids is not None else names.ids or training.ids or range(n)
            titles = titles if titles is not None else names.titles or training.titles
            topics = topics if topics is not None else names.topics or training.topics
            samples = Samples(
                check_ids(ids, n),
                features,
                training.terms,
                None if titles is None else check_labels(titles, n),
                training.excerpts,
                None if topics is None else check_labels(topics, n),
                texts=training.reading is not None,
            )
            about = About(seconds=model.seconds)
            if earlier is not None:
                about = About(
                    earlier.title, earlier.command, model.seconds, earlier.bytes, earlier.warnings
                )
            about = replace(about, title=title or about.title or type(self).__name__)
            insight = explain(stack, model.method, model.clustering, samples, about, listen=listen)
        self._model = replace(self._model, insight=insight)
        return dict(plain_values(insight))

    def _kernels_of_fit(self, store: KernelStore | None, X: Any, listen: Listener) -> Any:
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
        self.explain(X, **names)
        assert self._model.insight is not None
        return write_report(target.parent, self._model.insight, target.name)

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
        estimator = load(path, kernels)
        if not isinstance(estimator, cls):
            name = type(estimator).__name__
            raise InputError(
                f"{path} is a {name}, not a {cls.__name__}: use {name}.load or gmkcf_dask.load"
            )
        return estimator

    def to_local(self) -> Any:
        """A copy that needs neither client nor store: the training samples are in its memory."""
        check_is_fitted(self)
        local = copy.copy(self)
        local.client, local.store = None, None
        local._model = replace(self._model, training=self._model.training.in_memory())
        return local

    def __sklearn_clone__(self) -> Any:
        """A clone talks to the same cluster: a client cannot be copied."""
        parameters = self.get_params(deep=False)
        copied = {name: clone(v, safe=False) for name, v in parameters.items() if name != "client"}
        return with_callbacks_of(self, type(self)(client=parameters["client"], **copied))

    def __getstate__(self) -> Any:
        """A saved model forgets its client, which is a connection and not a parameter's value."""
        return {**super().__getstate__(), "client": None}

    def _request(self, X: Any, listen: Listener) -> KernelRequest:
        options: dict[str, Any] = {
            "normalization": self.normalization,
            "scaling": self.scaling,
            "precision": self.precision,
            "layout": self.layout,
            "block": _block_size(self.block_size),
            "max_clusters": max(MAX_CLUSTERS, self.n_clusters),
        }
        kernels = self._requested_kernels()
        if isinstance(kernels, str) and kernels == "precomputed":
            request = KernelRequest(None, precomputed_specs(X), **options)
            self.n_features_in_ = request.n_samples
            return request
        if isinstance(kernels, str) and kernels == "factored":
            request = KernelRequest(None, given_factors(X), **options)
            self.n_features_in_ = sum(spec.factor.shape[1] for spec in request.given_factors)
            self.__dict__.pop("feature_names_in_", None)  # of an earlier fit on columns with names
            return request
        corpus = self._corpus(X, listen)
        if self.n_clusters > 1:
            refuse_equal_rows(corpus.X)
        if corpus.reading is None:  # of texts it is said by name
            warn_about_zero_rows(corpus.X)
        return KernelRequest(corpus, resolve_kernels(kernels), **options)

    def _corpus(self, X: Any, listen: Listener) -> Corpus:
        texts = texts_in(X)
        if texts is not None:
            # of reading, callbacks hear how texts are read, not every count
            only_notes = lambda event: isinstance(event, StageNote) and listen(event)  # noqa: E731
            corpus = corpus_from_texts(texts, options=self.text, listen=only_notes)
            self.n_features_in_ = corpus.n_features
            self.__dict__.pop("feature_names_in_", None)  # of an earlier fit on columns with names
            return corpus
        refuse_other_forms(X)
        features = as_features(X)
        if self.store is None:  # it is kept, and must not change when the caller's array does
            features = apart_from(X, features)
        validate_data(self, X, skip_check_array=True)  # only notes names and number of columns
        return Corpus(features, tuple(map(str, range(features.shape[0]))))

    def _resources(self) -> Resources:
        client = self.client if self.client is not None else _current_client()
        return threads() if client is None else of_client(client)

    @property
    def _repr_html_(self) -> Callable[[], str]:
        if get_config()["display"] != "diagram":
            raise AttributeError("_repr_html_ exists where scikit-learn displays diagrams")
        return self._diagram_and_summary

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        shown = {"text/plain": repr(self)}
        if get_config()["display"] == "diagram":
            shown["text/html"] = self._diagram_and_summary()
        return shown

    def _diagram_and_summary(self) -> str:
        diagram = str(estimator_html_repr(self))
        return diagram + _notebook_summary(self) if hasattr(self, "labels_") else diagram

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        kernels = self._kernels_parameter()
        precomputed = isinstance(kernels, str) and kernels == "precomputed"
        tags.input_tags.sparse = not precomputed
        tags.input_tags.pairwise = precomputed
        return tags


_TILE_OPTIONS = ("normalization", "scaling")


def _options_of(manifest: Manifest, name: str) -> set[object]:
    """What the kernels of a store have for an option; factors that are no features have none."""
    records = (*manifest.kernels, *manifest.factored)
    return {value for one in records if (value := getattr(one, name)) is not None}


def seed_of(random_state: Any) -> int:
    """An integer seed from what scikit-learn calls a random state."""
    if isinstance(random_state, numbers.Integral):
        if random_state < 0:
            raise InputError(f"random_state must be 0 or more, not {random_state}")
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))


def _block_size(value: object) -> int | None:
    if isinstance(value, str) and value == "auto":
        return None
    if isinstance(value, int | np.integer) and not isinstance(value, bool) and value >= 1:
        return int(value)
    raise InputError(f"block_size must be 'auto' or a whole number of at least 1, not {value!r}")


def _current_client() -> Any:
    from distributed import get_client

    try:
        return get_client()
    except ValueError:
        return None


@contextmanager
def listening(
    callbacks: Sequence[Callable[[Event], object]] | None, verbose: int
) -> Iterator[Listener]:
    """One listener for the callbacks and the progress display."""
    from gmkcf_dask.events.progress import Progress  # imports rich

    progress = Progress(enabled=bool(verbose))
    called: list[Listener] = [*(callbacks or ()), progress]

    def listen(event: Event) -> None:
        for listener in called:
            listener(event)

    try:
        yield listen
    finally:
        progress.close()


_NOTEBOOK_ROWS = 20
"""Clusters or kernels that are listed one by one."""


def _notebook_summary(model: Any) -> str:
    """HTML below scikit-learn's diagram: clusters, weights of the kernels, the objective."""
    sizes = cluster_sizes(model.labels_, 1)
    without = int((model.labels_ == NO_CLUSTER).sum())
    history = np.asarray(model.objective_history_, dtype=float)
    state = "converged" if model.converged_ else "not converged"
    line = (
        f"{len(model.labels_) - without:,} samples in {int((sizes > 0).sum())} clusters; "
        f"{model.n_iter_} iterations, {state}, objective {history[-1]:.6g}"
    )
    parts = [paragraph(line)]
    weak = weak_clusters(model.method_name, model._model.clustering)
    if weak:
        parts.append(paragraph(weak[0].upper() + weak[1:] + "."))
    if without:
        what = "samples" if model.reading_ is None else "documents"
        parts.append(paragraph(without_cluster(without, what)))
    falls = history[np.isfinite(history)]
    if len(falls) > 2:
        shown = falls[1:]  # the start is far above all others
        chart = line_chart(shown.tolist(), "objective by iteration")
        parts.append(table([(chart,)], ("objective by iteration",)))
    parts.append(_bars("cluster", [str(c) for c in range(len(sizes))], sizes, "{:,.0f}"))
    parts.append(_bars("kernel", model.kernel_names_, model.kernel_weights_, "{:.4f}"))
    return block(f"{type(model).__name__}, fitted", *parts)


def _bars(what: str, names: Any, values: Any, form: str) -> str:
    """A table with a bar for each value, the largest ones where there are many."""
    largest = max(float(np.max(values)), 1e-300)
    order = range(len(values))
    if len(values) > _NOTEBOOK_ROWS:
        order = np.argsort(-np.asarray(values), kind="stable")[:_NOTEBOOK_ROWS].tolist()
    rows = [
        (text(names[i]), bar(float(values[i]) / largest), text(form.format(values[i])))
        for i in order
    ]
    if len(values) > _NOTEBOOK_ROWS:
        rows.append((text(f"and {len(values) - _NOTEBOOK_ROWS} more", quiet=True), "", ""))
    return table(rows, (what, "", "samples" if what == "cluster" else "weight"))
