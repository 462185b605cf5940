"""scikit-learn estimators: validate, call the workflow, keep what came out. No mathematics here."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import validate_data

from gmkcf_dask.cluster import Resources, of_client, threads
from gmkcf_dask.corpus.model import Corpus
from gmkcf_dask.corpus.validate import as_features, warn_about_zero_rows
from gmkcf_dask.engine.operators import KernelStack
from gmkcf_dask.errors import InputError
from gmkcf_dask.events import Event, Listener
from gmkcf_dask.kernels.build import KernelRequest
from gmkcf_dask.kernels.specs import precomputed_specs, resolve_kernels
from gmkcf_dask.kernels.store import KernelStore
from gmkcf_dask.methods.factorize import SolverOptions
from gmkcf_dask.methods.init import make_starts
from gmkcf_dask.progress import Progress
from gmkcf_dask.workflow import (
    Clustering,
    build,
    dense_kernels,
    fit_gmkcf,
    fit_kcf,
    refuse_equal_rows,
    request_plan,
    store_plan,
    stored_kernels,
)

if TYPE_CHECKING:
    from distributed import Client

_PARAMETERS = """
    n_clusters : int, default=8
        Clusters, and concepts: k.
    {kernel_parameter}
    normalization : {{"unit", "degree", "none"}}, default="unit"
        Of kernels computed from features: unit diagonal, D^-½ K D^-½, or none. Precomputed kernels
        are taken as they are; wrap one in `Precomputed` to have it normalised or scaled.
    scaling : {{"minmax", "none"}}, default="minmax"
        Of computed kernels: to [0, 1], or none (the solver handles mixed signs).
    precision : {{"float32", "float64", "compact"}}, default="float32"
        Of kernel entries; compact is 16-bit fixed point for kernels in [0, 1].
    block_size : int or "auto", default="auto"
        Edge of the tiles kernels are cut into.
    n_init : int, default=1
        Random restarts; the one of lowest objective is kept.
    init : "random" or (U0, V0), default="random"
        Start, each array of shape (n_samples, n_clusters).
    polish : bool, default=True
        Solve V exactly for the final U; False keeps the paper's literal V.
    inner_iter : int, default=1
        (U, V) rounds per iteration (for GMKCF: per weight step).
    v_steps : int, default=1
        V steps per U step; they cost no pass over the kernels.
    max_iter : int, default=500
        Iterations at most.
    tol : float, default=1e-5
        Stop when the objective falls by no more than this fraction.
    random_state : int, RandomState or None
        Seed of the starts and of K-means.
    store : path, optional
        Build the kernels here, chunked on disk, and work out of core; a store that is already there
        and fits the data is used again. Without it kernels live in memory.
    client : distributed.Client, optional
        Cluster for work on a store; the current client when there is one, else threads.
    callbacks : list of callables, optional
        Each gets every event (`IterationDone`, `StageProgress`).
    verbose : int, default=0
        Above 0, progress on standard error."""

_ATTRIBUTES = """
    labels_ : ndarray of int, shape (n_samples,)
    kernel_weights_ : ndarray, shape (n_kernels,)
    kernel_names_ : tuple of str
    U_, V_ : ndarray, shape (n_samples, n_clusters)
        Factors, columns scaled so that diag(UᵀK_wU) = 1. Rows of V_ are the new representation.
    objective_history_ : ndarray, shape (n_iter_ + 1,)
        Objective of the kept run, its start first.
    n_iter_ : int
    converged_ : bool
    runs_ : tuple of RunSummary
        Objective, iterations and convergence of every restart.
    n_features_in_ : int
        Columns of X, where features were given."""


class _KernelFactorization(ClusterMixin, BaseEstimator):  # type: ignore[misc]
    """What GMKCF and KCF have in common."""

    def _requested_kernels(self) -> object:
        raise NotImplementedError  # pragma: no cover

    def _cluster(self, stack: KernelStack, options: SolverOptions, **how: Any) -> Clustering:
        raise NotImplementedError  # pragma: no cover

    def fit(self, X: Any, y: object = None) -> Any:
        """Cluster samples.

        Parameters
        ----------
        X : array or sparse matrix of shape (n_samples, n_features), or a store
            Features; or the path of a finished store, or an opened `KernelStore`; or, with
            precomputed kernels, an array of shape (m, n, n) or a list of (n, n) arrays.
        y : ignored

        Returns
        -------
        self
        """
        options = SolverOptions(
            n_clusters=self.n_clusters,
            inner_iter=self.inner_iter,
            v_steps=self.v_steps,
            max_iter=self.max_iter,
            tol=self.tol,
            polish=self.polish,
        )
        seed = seed_of(self.random_state)
        listen, close = _listeners(self.callbacks, self.verbose)
        try:
            stack = self._stack(X, options, listen)
            found = self._cluster(
                stack,
                options,
                seed=seed,
                n_init=self.n_init,
                init=self.init,
                listen=listen,
            )
        finally:
            close()
        self.labels_ = found.labels
        self.U_, self.V_ = found.U, found.V
        self.kernel_weights_ = found.weights
        self.kernel_names_ = found.kernel_names
        self.objective_history_ = np.asarray(found.history)
        self.n_iter_ = found.n_iter
        self.converged_ = found.converged
        self.runs_ = found.runs
        return self

    def fit_transform(self, X: Any, y: object = None) -> npt.NDArray[np.float64]:
        """Fit, and return the new representation V, shape (n_samples, n_clusters)."""
        V: npt.NDArray[np.float64] = self.fit(X, y).V_
        return V

    def _stack(self, X: Any, options: SolverOptions, listen: Listener) -> KernelStack:
        if isinstance(X, str | Path):
            X = KernelStore.open(X)
        if isinstance(X, KernelStore):
            self._check(options, X.n_samples)
            resources = self._resources()
            plan = store_plan(X, options.n_clusters, resources)
            return stored_kernels(X, plan, resources)
        request = self._request(X)
        self._check(options, request.n_samples)
        if self.store is None:
            return dense_kernels(request, listen)
        resources, path = self._resources(), Path(self.store)
        plan = request_plan(request, options.n_clusters, resources, path)
        store = build(path, request, plan, resources, listen)
        return stored_kernels(store, plan, resources)

    def _check(self, options: SolverOptions, n: int) -> None:
        """Everything that can be refused is refused before kernels are built."""
        options.check_samples(n)
        make_starts(n, options.n_clusters, 0, self.n_init, self.init)

    def _request(self, X: Any) -> KernelRequest:
        how = {
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
        features = as_features(X)
        validate_data(self, X, skip_check_array=True)  # only notes names and number of columns
        if self.n_clusters > 1:
            refuse_equal_rows(features)
        warn_about_zero_rows(features)
        ids = tuple(str(i) for i in range(features.shape[0]))
        return KernelRequest(Corpus(features, ids), resolve_kernels(kernels), **how)

    def _resources(self) -> Resources:
        client = self.client if self.client is not None else _current_client()
        return threads() if client is None else of_client(client)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        precomputed = isinstance(self._requested_kernels(), str) and (
            self._requested_kernels() == "precomputed"
        )
        tags.input_tags.sparse = not precomputed
        tags.input_tags.pairwise = precomputed
        return tags


class GMKCF(_KernelFactorization):
    __doc__ = f"""Multiple-kernel concept factorization with learned kernel weights.

    Minimises Σ w_i² e_i(U, V) over non-negative U, V and weights w on the simplex, where e_i is the
    error of reproducing every sample, in the space of kernel i, from k concepts; then K-means on
    the rows of V. Nothing is to be tuned but k.

    Parameters
    ----------{
        _PARAMETERS.format(
            kernel_parameter='''kernels : str, list or "precomputed", default="paper12"
        Kernel names ("paper12", "rbf_1", "poly_a1_b2", "linear", "cosine"), specs, or callables
        f(X_I, X_J) on two row blocks.'''
        )
    }

    Attributes
    ----------{_ATTRIBUTES}

    References
    ----------
    Li, Du, Ren: Multiple kernel concept factorization algorithm based on global fusion, 2019.

    Examples
    --------
    >>> import numpy as np
    >>> from gmkcf_dask import GMKCF
    >>> rng = np.random.default_rng(0)
    >>> X = np.vstack([rng.normal(c, 0.3, (20, 2)) for c in ([0, 3], [3, 0])])
    >>> model = GMKCF(2, kernels=["rbf_1", "cosine"], tol=1e-4, random_state=0).fit(X)
    >>> sorted(np.bincount(model.labels_).tolist())
    [20, 20]
    """

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        kernels: Any = "paper12",
        normalization: str = "unit",
        scaling: str = "minmax",
        precision: str = "float32",
        block_size: int | str = "auto",
        n_init: int = 1,
        init: Any = "random",
        polish: bool = True,
        inner_iter: int = 1,
        v_steps: int = 1,
        max_iter: int = 500,
        tol: float = 1e-5,
        random_state: Any = None,
        store: str | Path | None = None,
        client: Client | None = None,
        callbacks: Sequence[Callable[[Event], object]] | None = None,
        verbose: int = 0,
    ) -> None:
        self.n_clusters = n_clusters
        self.kernels = kernels
        self.normalization = normalization
        self.scaling = scaling
        self.precision = precision
        self.block_size = block_size
        self.n_init = n_init
        self.init = init
        self.polish = polish
        self.inner_iter = inner_iter
        self.v_steps = v_steps
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state
        self.store = store
        self.client = client
        self.callbacks = callbacks
        self.verbose = verbose

    def _requested_kernels(self) -> object:
        return self.kernels

    def _cluster(self, stack: KernelStack, options: SolverOptions, **how: Any) -> Clustering:
        return fit_gmkcf(stack, options, **how)


class KCF(_KernelFactorization):
    __doc__ = f"""Concept factorization with one kernel, or with the equal-weight mean of several.

    Parameters
    ----------{
        _PARAMETERS.format(
            kernel_parameter='''kernel : str, spec, callable or "precomputed", default="mean"
        One kernel by name; "mean" for the mean of the set paper12 (of all kernels of a store, or of
        all precomputed ones). With kernel="linear" this is plain concept factorization (CF).'''
        )
    }

    Attributes
    ----------{_ATTRIBUTES}

    Examples
    --------
    >>> import numpy as np
    >>> from gmkcf_dask import KCF
    >>> rng = np.random.default_rng(0)
    >>> X = np.vstack([rng.normal(c, 0.3, (20, 2)) for c in ([0, 3], [3, 0])])
    >>> sorted(np.bincount(KCF(2, kernel="rbf_1", random_state=0).fit_predict(X)).tolist())
    [20, 20]
    """

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        kernel: Any = "mean",
        normalization: str = "unit",
        scaling: str = "minmax",
        precision: str = "float32",
        block_size: int | str = "auto",
        n_init: int = 1,
        init: Any = "random",
        polish: bool = True,
        inner_iter: int = 1,
        v_steps: int = 1,
        max_iter: int = 500,
        tol: float = 1e-5,
        random_state: Any = None,
        store: str | Path | None = None,
        client: Client | None = None,
        callbacks: Sequence[Callable[[Event], object]] | None = None,
        verbose: int = 0,
    ) -> None:
        self.n_clusters = n_clusters
        self.kernel = kernel
        self.normalization = normalization
        self.scaling = scaling
        self.precision = precision
        self.block_size = block_size
        self.n_init = n_init
        self.init = init
        self.polish = polish
        self.inner_iter = inner_iter
        self.v_steps = v_steps
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state
        self.store = store
        self.client = client
        self.callbacks = callbacks
        self.verbose = verbose

    def _requested_kernels(self) -> object:
        return "paper12" if isinstance(self.kernel, str) and self.kernel == "mean" else self.kernel

    def _cluster(self, stack: KernelStack, options: SolverOptions, **how: Any) -> Clustering:
        if isinstance(self.kernel, str) and self.kernel in (*stack.names, "mean"):
            chosen = self.kernel
        else:  # a callable, a spec or a matrix: whatever was built is what was asked for
            by_name = isinstance(self.kernel, str) and self.kernel != "precomputed"
            chosen = str(self.kernel) if by_name else "mean"
        return fit_kcf(stack, options, kernel=chosen, **how)


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


def _listeners(
    callbacks: Sequence[Callable[[Event], object]] | None, verbose: int
) -> tuple[Listener, Callable[[], None]]:
    progress = Progress(enabled=bool(verbose))
    heard: list[Listener] = [*(callbacks or ()), progress]

    def listen(event: Event) -> None:
        for listener in heard:
            listener(event)

    return listen, progress.close
