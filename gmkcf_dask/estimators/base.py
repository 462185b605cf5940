"""What all estimators share: validate, call the workflow, keep what came out. No mathematics."""

from __future__ import annotations

import numbers
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from sklearn.base import BaseEstimator, ClusterMixin, clone
from sklearn.utils import check_random_state
from sklearn.utils.validation import validate_data

from gmkcf_dask import workflow
from gmkcf_dask.cluster import Resources, of_client, threads
from gmkcf_dask.corpus.forms import refuse_other_forms
from gmkcf_dask.corpus.model import Corpus
from gmkcf_dask.corpus.options import TextOptions
from gmkcf_dask.corpus.text import corpus_from_texts, texts_in
from gmkcf_dask.corpus.validate import (
    apart_from,
    as_features,
    ids_of_index,
    refuse_equal_rows,
    warn_about_zero_rows,
)
from gmkcf_dask.engine.operators import KernelStack
from gmkcf_dask.errors import DataWarning, InputError, StoreError
from gmkcf_dask.estimators.of_stores import parameters_of_store, store_at
from gmkcf_dask.estimators.representation import InNotebooks
from gmkcf_dask.estimators.sklearn_callbacks import (
    CallbackSupportMixin,
    callbacks_of,
    tells_scikit_learn,
    with_callbacks_of,
)
from gmkcf_dask.events import Event, Listener
from gmkcf_dask.files import check_writable
from gmkcf_dask.kernels.lease import owning
from gmkcf_dask.kernels.request import KernelRequest
from gmkcf_dask.kernels.specs import (
    FunctionKernel,
    KernelSpec,
    precomputed_specs,
    resolve_kernels,
)
from gmkcf_dask.kernels.store import KernelStore
from gmkcf_dask.locations import is_location, location
from gmkcf_dask.methods.base import Method
from gmkcf_dask.methods.registry import make_method, parameters_of
from gmkcf_dask.progress import Progress
from gmkcf_dask.results.checkpoints import (
    check_interval,
    has_checkpoint,
    open_checkpoints,
    remove_checkpoints,
)
from gmkcf_dask.results.model import Model
from gmkcf_dask.results.training import Training, training_of_request, training_of_store
from gmkcf_dask.workflow import (
    build,
    dense_kernels,
    request_identity,
    request_plan,
    store_identity,
    store_plan,
    stored_kernels,
)

if TYPE_CHECKING:
    from distributed import Client

_SHOWN = {
    "U": "U_",
    "V": "V_",
    "embedding": "embedding_",
    "eigenvalues": "eigenvalues_",
    "centres": "cluster_centers_",
}
"""Factors that are attributes, and their names."""
_SAVED = ("normalization", "scaling", "precision", "block_size")


@dataclass(eq=False, repr=False)
class KernelClusterer(CallbackSupportMixin, InNotebooks, ClusterMixin, BaseEstimator, ABC):  # type: ignore[misc]
    """What all estimators have in common. Fields are the parameters scikit-learn sees."""

    method_name: ClassVar[str]

    n_clusters: int = 8
    _: KW_ONLY
    normalization: str = "unit"
    scaling: str = "minmax"
    precision: str = "float32"
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
    def _used_kernel(self, held: tuple[str, ...] = ()) -> str:
        """The kernel a single-kernel method is to use; any name for other methods.

        `held` are the names of a store's kernels, precomputed ones among them.
        """

    @abstractmethod
    def _names_wanted(self) -> tuple[str, ...] | None:
        """Kernel names that were asked for, or None where the default was left."""

    def _method(self) -> Method:
        names = parameters_of(self.method_name)
        return make_method(self.method_name, **{name: getattr(self, name) for name in names})

    @tells_scikit_learn
    def fit(self, X: Any, y: object = None, resume: bool = False) -> Any:
        """Cluster samples.

        Parameters
        ----------
        X : array or sparse matrix of shape (n_samples, n_features), texts, or a store
            Features; or a list, array or series of n_samples strings; or the path of a finished
            store, or an opened `KernelStore`; or, with precomputed kernels, an array of shape
            (m, n, n) or a list of (n, n) arrays. Without a store a copy of dense features is kept
            for new samples to be compared with, beside the caller's own.
        y : ignored
        resume : bool, default=False
            Go on from the checkpoint in `checkpoint_dir`; without one, from the beginning.

        Returns
        -------
        self
        """
        method = self._method()
        seed = seed_of(self.random_state)
        self._check_types()
        self._check_checkpoints(resume=resume)
        if is_location(X):
            X = store_at(X)
        begin = time.perf_counter()
        listen, close = listeners(callbacks_of(self), self.verbose)
        try:
            stack, identity, training = self._stack(X, method, listen)
            made = time.perf_counter()
            kernels = [self._used_kernel(stack.names)]
            if self.checkpoint_dir is None:
                (found,) = workflow.fit(stack, method, [seed], kernels, listen)
            else:
                fingerprint = workflow.run_fingerprint(identity(), method, seed, kernels)
                folder, every = location(self.checkpoint_dir), self.checkpoint_every
                with owning(folder) as still_ours:  # being asked to end unwinds to here, too
                    kept = open_checkpoints(
                        folder, fingerprint, every, resume=resume, still_ours=still_ours
                    )
                    with kept.until_done():
                        (found,) = workflow.fit(stack, method, [seed], kernels, listen, kept)
                    remove_checkpoints(folder)
        finally:
            close()
        seen, names = training(), getattr(self, "feature_names_in_", None)
        if names is not None:
            seen = replace(seen, terms=tuple(map(str, names)))
        ids = ids_of_index(X, seen.n_samples)
        if ids is not None:  # no part of what a store or a checkpoint is of: a fit is the same
            seen = replace(seen, ids=ids)
        seconds = {"kernels": made - begin, "fit": time.perf_counter() - made}
        parameters, named = self._kernel_parameters(X), names is not None
        self._keep(Model(method, found, seen, parameters, named_features=named, seconds=seconds))
        return self

    def _keep(self, model: Model) -> None:
        """Show what came out of a fit, this one or that of a saved model."""
        found = model.found
        self._model = model
        self.labels_ = found.labels
        self.kernel_weights_ = found.weights
        self.kernel_names_ = found.kernel_names
        self.objective_history_ = np.asarray(found.history)
        self.n_iter_ = found.n_iter
        self.converged_ = found.converged
        self.runs_ = found.runs
        self.weights_history_ = found.weights_history
        self.reading_ = model.training.reading
        self.terms_ = None if self.reading_ is None else model.training.terms
        for factor, name in _SHOWN.items():
            self.__dict__.pop(name, None)  # of an earlier fit
            if factor in found.factors:
                setattr(self, name, found.factors[factor])

    def _kernel_parameters(self, X: Any) -> dict[str, Any]:
        """The parameters that a saved model keeps beside those of its method."""
        kept: dict[str, Any] = {name: getattr(self, name) for name in _SAVED}
        for name in ("kernels", "kernel"):
            asked = getattr(self, name, None)
            if asked is not None:
                specs = () if isinstance(asked, str) else resolve_kernels(asked)
                kept[name] = [spec.name for spec in specs] or asked
        whole = isinstance(self.random_state, numbers.Integral)
        kept["random_state"] = int(self.random_state) if whole else None
        return kept | parameters_of_store(X.manifest, kept) if isinstance(X, KernelStore) else kept

    def _stack(
        self, X: Any, method: Method, listen: Listener
    ) -> tuple[KernelStack, Callable[[], dict[str, Any]], Callable[[], Training]]:
        """The kernels, what tells them from others, and what new samples are compared with."""
        if is_location(X):
            X = store_at(X)
        if isinstance(X, KernelStore):
            method.check_samples(X.n_samples)
            self._refuse_other_parameters(X)
            for name in ("n_features_in_", "feature_names_in_"):  # of an earlier fit on features
                self.__dict__.pop(name, None)
            if X.manifest.n_features:
                self.n_features_in_ = X.manifest.n_features
            resources = self._resources()
            plan = store_plan(X, method.n_clusters, resources)
            training = partial(training_of_store, X, self._own_functions())
            return stored_kernels(X, plan, resources), partial(store_identity, X), training
        request = self._request(X)
        method.check_samples(request.n_samples)
        if self.store is None:
            if self.client is not None:
                warnings.warn(
                    "the client is not used: without store= kernels live in this process",
                    DataWarning,
                    stacklevel=3,
                )
            resolved: list[Any] = []
            dense = dense_kernels(request, listen, lambda *found: resolved.extend(found))
            identity = partial(request_identity, request, dense.block_size)
            return dense, identity, lambda: training_of_request(request, *resolved)
        resources, path = self._resources(), location(self.store)
        plan = request_plan(request, method.n_clusters, resources, path)
        store = build(path, request, plan, resources, listen)
        training = partial(training_of_store, store, request.specs)
        return stored_kernels(store, plan, resources), partial(store_identity, store), training

    def _asked_kernels(self) -> Any:
        """Whatever `kernels` or `kernel` is: arrays have no truth value, so it is asked of none."""
        return getattr(self, "kernels", getattr(self, "kernel", None))

    def _own_specs(self) -> tuple[KernelSpec, ...]:
        """Kernels among the parameters; functions and matrices are nowhere else to be had."""
        asked = self._asked_kernels()
        return () if isinstance(asked, str) else resolve_kernels(asked)

    def _own_functions(self) -> tuple[KernelSpec, ...]:
        """Kernel functions among the parameters: a store knows them by their names only."""
        return tuple(spec for spec in self._own_specs() if isinstance(spec, FunctionKernel))

    def _check_types(self) -> None:
        if not (self.store is None or is_location(self.store)):
            raise InputError(f"store must be a path or a URL, not {self.store!r}")
        if not (self.checkpoint_dir is None or is_location(self.checkpoint_dir)):
            raise InputError(f"checkpoint_dir must be a path or a URL, not {self.checkpoint_dir!r}")
        if not isinstance(self.text, TextOptions | None):
            raise InputError(f"text must be TextOptions or None, not {self.text!r}")
        if not isinstance(self.callbacks, list | tuple | None):
            raise InputError(f"callbacks must be a list of callables, not {self.callbacks!r}")

    def _check_checkpoints(self, *, resume: bool) -> None:
        if self.checkpoint_dir is None:
            if resume:
                raise InputError("resume=True needs checkpoint_dir, the folder to go on from")
            if self.checkpoint_every is not None:
                raise InputError("checkpoint_every needs checkpoint_dir, the folder to write to")
            return
        check_interval(self.checkpoint_every)
        if not isinstance(self.random_state, numbers.Integral):
            raise InputError("checkpoint_dir needs a whole number as random_state: it must be told")
        folder = location(self.checkpoint_dir)
        check_writable(folder, "checkpoints")
        if has_checkpoint(folder) and not resume:
            raise InputError(
                f"{folder} holds the checkpoint of a fit that did not come to its end: go on with "
                "fit(X, resume=True), or remove the folder"
            )

    def _refuse_other_parameters(self, store: KernelStore) -> None:
        """A parameter left at its default takes what the store has; one that was set must agree."""
        manifest, defaults = store.manifest, type(self)().get_params()
        held: dict[str, set[object]] = {
            "normalization": {kernel.normalization for kernel in manifest.kernels},
            "scaling": {kernel.scaling for kernel in manifest.kernels},
            "precision": {manifest.precision},
            "block_size": {manifest.block_size},
        }
        asked = {name: getattr(self, name) for name in held}
        wanted = self._names_wanted()
        if wanted is not None:
            held["kernels"], asked["kernels"] = {manifest.names}, wanted
        different = [
            f"{name} (store: {', '.join(map(str, held[name]))}, asked: {value})"
            for name, value in asked.items()
            if value != defaults.get(name) and held[name] != {value}
        ]
        if different:
            raise StoreError(
                f"{store.path} differs from what was asked in {'; '.join(different)}: leave these "
                "parameters at their defaults to take the store as it is"
            )

    def __sklearn_clone__(self) -> Any:
        """A clone talks to the same cluster: a client cannot be copied."""
        parameters = self.get_params(deep=False)
        copied = {name: clone(v, safe=False) for name, v in parameters.items() if name != "client"}
        return with_callbacks_of(self, type(self)(client=parameters["client"], **copied))

    def __getstate__(self) -> Any:
        """A saved model forgets its client, which is a connection and not a parameter's value."""
        return {**super().__getstate__(), "client": None}

    def _request(self, X: Any) -> KernelRequest:
        how: dict[str, Any] = {
            "normalization": self.normalization,
            "scaling": self.scaling,
            "precision": self.precision,
            "block": _block_size(self.block_size),
        }
        kernels = self._requested_kernels()
        if isinstance(kernels, str) and kernels == "precomputed":
            request = KernelRequest(None, precomputed_specs(X), **how)
            self.n_features_in_ = request.n_samples
            return request
        corpus = self._corpus(X)
        if self.n_clusters > 1:
            refuse_equal_rows(corpus.X)
        if corpus.reading is None:  # of texts it is said by name
            warn_about_zero_rows(corpus.X)
        return KernelRequest(corpus, resolve_kernels(kernels), **how)

    def _corpus(self, X: Any) -> Corpus:
        texts = texts_in(X)
        if texts is not None:
            corpus = corpus_from_texts(texts, options=self.text)
            self.n_features_in_ = corpus.n_features
            self.__dict__.pop("feature_names_in_", None)  # of an earlier fit on columns with names
            return corpus
        refuse_other_forms(X)
        features = as_features(X)
        if self.store is None:  # it is kept, and must not change when the caller's array does
            features = apart_from(X, features)
        validate_data(self, X, skip_check_array=True)  # only notes names and number of columns
        ids = tuple(str(i) for i in range(features.shape[0]))
        return Corpus(features, ids)

    def _resources(self) -> Resources:
        client = self.client if self.client is not None else _current_client()
        return threads() if client is None else of_client(client)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        kernels = self._asked_kernels()
        precomputed = isinstance(kernels, str) and kernels == "precomputed"
        tags.input_tags.sparse = not precomputed
        tags.input_tags.pairwise = precomputed
        return tags


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


def listeners(
    callbacks: Sequence[Callable[[Event], object]] | None, verbose: int
) -> tuple[Listener, Callable[[], None]]:
    """One listener for all who want to hear, and what to call when there is no more to hear."""
    progress = Progress(enabled=bool(verbose))
    heard: list[Listener] = [*(callbacks or ()), progress]

    def listen(event: Event) -> None:
        for listener in heard:
            listener(event)

    return listen, progress.close
