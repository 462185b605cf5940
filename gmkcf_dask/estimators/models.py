"""The estimators: their parameters, and which method they call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gmkcf_dask.engine.operators import KernelStack
from gmkcf_dask.errors import InputError
from gmkcf_dask.estimators.base import ATTRIBUTES, PARAMETERS, KernelFactorization
from gmkcf_dask.events import Event
from gmkcf_dask.kernels.specs import resolve_kernels
from gmkcf_dask.methods.factorize import SolverOptions
from gmkcf_dask.workflow import Clustering, fit_gmkcf, fit_kcf

if TYPE_CHECKING:
    from distributed import Client


class GMKCF(KernelFactorization):
    __doc__ = f"""Multiple-kernel concept factorization with learned kernel weights.

    Minimises Σ w_i² e_i(U, V) over non-negative U, V and weights w on the simplex, where e_i is the
    error of reproducing every sample, in the space of kernel i, from k concepts; then K-means on
    the rows of V. Nothing is to be tuned but k.

    Parameters
    ----------{
        PARAMETERS.format(
            kernel_parameter='''kernels : str, list or "precomputed", default="paper12"
        Kernel names ("paper12", "rbf_1", "poly_a1_b2", "linear", "cosine"), specs, or callables
        f(X_I, X_J) on two row blocks. A store knows a function by its name only.'''
        )
    }

    Attributes
    ----------{ATTRIBUTES}

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

    def _names_wanted(self) -> tuple[str, ...] | None:
        if isinstance(self.kernels, str) and self.kernels in ("paper12", "precomputed"):
            return None
        return tuple(spec.name for spec in resolve_kernels(self.kernels))

    def _cluster(self, stack: KernelStack, options: SolverOptions, **how: Any) -> Clustering:
        return fit_gmkcf(stack, options, **how)


class KCF(KernelFactorization):
    __doc__ = f"""Concept factorization with one kernel, or with the equal-weight mean of several.

    Parameters
    ----------{
        PARAMETERS.format(
            kernel_parameter='''kernel : str, spec, callable or "precomputed", default="mean"
        One kernel by name; "mean" for the mean of the set paper12, or of all kernels of a store.
        Of several precomputed kernels the mean is taken. With kernel="linear" this is plain concept
        factorization (CF).'''
        )
    }

    Attributes
    ----------{ATTRIBUTES}

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
        return "paper12" if self._chosen() == "mean" else self.kernel

    def _names_wanted(self) -> tuple[str, ...] | None:
        return None  # one of the store's kernels, or their mean

    def _chosen(self) -> str:
        """ "mean", "precomputed", or the name of the one kernel that was asked for."""
        if isinstance(self.kernel, str) and self.kernel in ("mean", "precomputed"):
            return self.kernel
        specs = resolve_kernels(self.kernel)
        if len(specs) != 1:
            raise InputError(
                f"kernel must be one kernel or 'mean', not {len(specs)} kernels (GMKCF takes many)"
            )
        return specs[0].name

    def _cluster(self, stack: KernelStack, options: SolverOptions, **how: Any) -> Clustering:
        chosen = self._chosen()
        return fit_kcf(stack, options, kernel="mean" if chosen == "precomputed" else chosen, **how)
