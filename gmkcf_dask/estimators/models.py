"""The estimators: their parameters, and the method each of them stands for."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from gmkcf_dask.corpus.documents import texts_in
from gmkcf_dask.corpus.text_options import TextOptions
from gmkcf_dask.corpus.validate import as_features, refuse_other_forms
from gmkcf_dask.errors import InputError
from gmkcf_dask.estimators.base import KernelClusterer, listening
from gmkcf_dask.kernels.specs import resolve_kernels
from gmkcf_dask.methods.base import MEAN
from gmkcf_dask.methods.defaults import (
    DEFAULT_ASSIGN,
    DEFAULT_INIT,
    DEFAULT_KERNELS,
    DEFAULT_LAYOUT,
    DEFAULT_SOLVER,
    DEFAULT_TOL,
    PAPER,
    PAPER_KERNELS,
    PAPER_LAYOUT,
)
from gmkcf_dask.methods.predict import transductive_error
from gmkcf_dask.pipeline import prediction
from gmkcf_dask.results.training import features_of
from gmkcf_dask.store.features import StoredFeatures
from gmkcf_dask.system.arrays import Floats

KERNELS_DOC = """
    kernels : str, list, "precomputed" or "factored", default="local"
        "local" for neighbourhood kernels that suit the data; or kernel names ("paper12", "rbf_1",
        "poly_a1_b2", "linear", "cosine", "rbf_bank(100)" for 100 Gaussian kernels of widths spaced
        logarithmically from 0.01 to 100), specs, or callables f(X_I, X_J) on two row blocks. A
        store knows a function by its name only. With "factored" X is a mapping of names to arrays
        Z of shape (n_samples, r), such as sentence embeddings, and the kernels are Z Zᵀ: arrays of
        NumPy or Zarr, sparse matrices, or paths of `.npy`, `.npz` and Zarr arrays."""

KERNEL = """
    kernel : str, spec, callable, "precomputed" or "factored", default="mean"
        One kernel by name; "mean" for the mean of the set local, or of all kernels of a store. Of
        several precomputed kernels, or of several factors (see `GMKCF`), the mean is taken."""

PARAMETERS = f"""
    normalization : {{"unit", "degree", "none"}}, default="unit"
        Of kernels computed from features: unit diagonal, D^-½ K D^-½, or none. Precomputed kernels
        are taken as they are; wrap one in `Precomputed` to have it normalised or scaled.
    scaling : {{"minmax", "none"}}, default="minmax"
        Of computed kernels: to [0, 1], or none.
    precision : {{"float32", "float64", "compact"}}, default="float32"
        Of kernel entries; compact is 16-bit fixed point for kernels in [0, 1].
    layout : {{"auto", "each", "gram"}}, default="{DEFAULT_LAYOUT}"
        Of Gaussian, polynomial, linear and cosine kernels in memory and in stores: each in an array
        of its own, or computed when it is read from one number per pair of samples. "auto" is
        "gram" where there are at least two of them; a store that is there stays as it is.
    block_size : int or "auto", default="auto"
        Edge of the tiles kernels are cut into.
    random_state : int, RandomState or None
        Seed of the starts and of K-means.
    store : path or URL, optional
        Build the kernels here, chunked on disk or in an object store (s3://…); a store that is
        already there and fits the data is used again. They are then read tile by tile, or at once
        where all fit into this process. Without it kernels live in memory only.
    client : distributed.Client, optional
        Cluster for work on a store; the current client when there is one, else threads.
    callbacks : list of callables, optional
        Each gets every event: `IterationDone`, or `StageProgress` where restarts run together
        (`History`, `JsonLines` and `Progress` are ready-made). What one raises ends the fit.
    checkpoint_dir : path or URL, optional
        Folder for checkpoints of a running fit (GMKCF, KCF, RMKKM, kernel k-means; the spectral
        methods are short and keep none): written as often as it takes a twentieth of the time, and
        when a fit is interrupted; removed at the end. `fit(X, resume=True)` resumes from there, to
        the same bits. Needs a whole number as random_state.
    checkpoint_every : int, optional
        Iterations between two of them, instead of a share of the time.
    verbose : int, default=0
        Above 0, progress on standard error.
    text : TextOptions, optional
        How texts become features, where `fit` is given texts; TF-IDF by default."""

ATTRIBUTES = """
    labels_ : ndarray of int, shape (n_samples,)
    kernel_weights_ : ndarray, shape (n_kernels,)
    kernel_names_ : tuple of str
    objective_history_ : ndarray, shape (n_iter_ + 1,)
        Objective of the kept run, its start first.
    n_iter_ : int
    converged_ : bool
    runs_ : tuple of RunSummary
        Objective, iterations and convergence of every restart.
    contrast_ : float or None
        Of GMKCF and KCF: how much closer samples of one cluster are than any two. About 0 for
        labels drawn at random, and from 0.3 where clusters are clear; below 0.1 `fit` warns. None
        for a single cluster.
    weights_history_ : ndarray, shape (n_iter_ + 1, n_kernels)
        Weights of the start, then after every iteration; no rows where they are not learned.
    n_features_in_ : int
        Columns of X, where features were given; terms, where texts were.
    terms_ : tuple of str or None
        Terms of the texts, one for each feature; None where there are none.
    reading_ : TextReading or None
        How texts became features: `reading_.transform(texts, terms_)` does the same to others."""

FACTORIZATION = """
    n_init : int, default=1
        Random restarts; the one of lowest objective is kept.
    init : "random", "spectral" or (U0, V0), default="spectral"
        Random factors; or eigenvectors made non-negative, the same for every seed; or arrays of
        shape (n_samples, n_clusters).
    polish : bool, default=True
        Solve V exactly for the final U; False keeps the paper's literal V.
    inner_iter : int, default=1
        (U, V) rounds per iteration (for GMKCF: per weight step).
    v_steps : int, default=1
        V steps per U step; they cost no pass over the kernels.
    max_iter : int, default=500
        Iterations at most.
    tol : float, default=1e-3
        Stop when the objective falls by no more than this fraction.
    solver : {"paper", "accelerated"}, default="accelerated"
        The paper's Algorithm 1; or an alternation that needs fewer passes to the same objective,
        for which `inner_iter` and `v_steps` are what it does at least. From random starts the two
        may end in different clusters."""

ASSIGN = f"""
    assign : {{"kmeans", "spherical", "argmax"}}, default="{DEFAULT_ASSIGN}"
        From rows of V_ to labels: K-means; spherical k-means, which sees directions only; or the
        largest entry. With the last two a row of zeros has no cluster: label -1."""

ASSIGN_EMBEDDED = f"""
    assign : {{"kmeans", "spherical"}}, default="{DEFAULT_ASSIGN}"
        From rows of embedding_ to labels: K-means; or spherical k-means, with which a row of zeros
        has no cluster: label -1."""

FACTORS = """
    U_, V_ : ndarray, shape (n_samples, n_clusters)
        Factors, columns scaled so that diag(UᵀK_wU) = 1. Rows of V_ are the new representation.
    cluster_centers_ : ndarray, shape (n_clusters, n_clusters)
        Centres of the rows of V_, of unit length with assign="spherical"; none with "argmax"."""

EMBEDDING = """
    embedding_ : ndarray, shape (n_samples, n_clusters)
        Eigenvectors, rows at unit length.
    cluster_centers_ : ndarray, shape (n_clusters, n_clusters)
        Centres of these rows, of unit length with assign="spherical"."""


_ANY_NAMES = (DEFAULT_KERNELS, "precomputed", "factored")
"""Kernels whose names the data decide."""


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
        given = training.factors is not None and training.factors.given
        new = X if training.precomputed or given else features_of(training)
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


@dataclass(eq=False, repr=False)
class MultipleKernelClusterer(KernelClusterer):
    """Uses all kernels at once."""

    _: KW_ONLY
    kernels: Any = DEFAULT_KERNELS

    def _requested_kernels(self) -> object:
        return self.kernels

    def _used_kernel(self, stored: tuple[str, ...] = ()) -> str:
        return MEAN

    def _names_wanted(self) -> tuple[str, ...] | None:
        if isinstance(self.kernels, str) and self.kernels in _ANY_NAMES:
            return None
        return tuple(spec.name for spec in resolve_kernels(self.kernels))


@dataclass(eq=False, repr=False)
class SingleKernelClusterer(KernelClusterer):
    """Uses one kernel, or the mean of several."""

    _: KW_ONLY
    kernel: Any = MEAN

    def _requested_kernels(self) -> object:
        self._used_kernel()
        mean = isinstance(self.kernel, str) and self.kernel == MEAN
        return DEFAULT_KERNELS if mean else self.kernel  # or "precomputed", "factored"

    def _names_wanted(self) -> tuple[str, ...] | None:
        return None  # one of the store's kernels, or their mean

    def _used_kernel(self, stored: tuple[str, ...] = ()) -> str:
        if isinstance(self.kernel, str) and self.kernel in (MEAN, "precomputed", "factored"):
            return MEAN
        if isinstance(self.kernel, str) and self.kernel in stored:
            return self.kernel
        specs = resolve_kernels(self.kernel)
        if len(specs) != 1:
            raise InputError(
                f"kernel must be one kernel or 'mean', not {len(specs)} kernels (GMKCF takes many)"
            )
        return specs[0].name


@dataclass(eq=False, repr=False)
class FactorizingClusterer(PredictingClusterer):
    """Learns U and V."""

    _: KW_ONLY
    n_init: int = 1
    init: Any = DEFAULT_INIT
    polish: bool = True
    inner_iter: int = 1
    v_steps: int = 1
    max_iter: int = 500
    tol: float = DEFAULT_TOL
    solver: str = DEFAULT_SOLVER
    assign: str = DEFAULT_ASSIGN


@dataclass(eq=False, repr=False)
class GMKCF(FactorizingClusterer, MultipleKernelClusterer):
    __doc__ = f"""Multiple-kernel concept factorization with learned kernel weights.

    Minimises Σ w_i² e_i(U, V) over non-negative U, V and weights w on the simplex, where e_i is the
    error of reproducing every sample, in the space of kernel i, from k concepts; then clusters the
    rows of V. Nothing is to be tuned but k.

    Parameters
    ----------
    n_clusters : int, default=8
        Clusters: k.{KERNELS_DOC}{FACTORIZATION}{ASSIGN}{PARAMETERS}

    Attributes
    ----------{ATTRIBUTES}{FACTORS}

    References
    ----------
    Li, Du, Ren: Multiple kernel concept factorization algorithm based on global fusion, 2019.

    Examples
    --------
    >>> import numpy as np
    >>> from gmkcf_dask import GMKCF
    >>> rng = np.random.default_rng(0)
    >>> X = np.vstack([rng.normal(c, 0.3, (20, 2)) for c in ([0, 3], [3, 0])])
    >>> model = GMKCF(2, random_state=0).fit(X)
    >>> sorted(np.bincount(model.labels_).tolist())
    [20, 20]
    """

    method_name: ClassVar[str] = "gmkcf"

    @classmethod
    def paper(cls, n_clusters: int = 8, **parameters: Any) -> GMKCF:
        """GMKCF as in the paper: twelve kernels, random start, Algorithm 1, K-means on V.

        Parameters
        ----------
        n_clusters : int
        **parameters
            Of `GMKCF`; what is given here wins.

        Returns
        -------
        GMKCF
        """
        text = TextOptions(preset="plain")
        own = {"kernels": PAPER_KERNELS, "layout": PAPER_LAYOUT, "text": text}
        return cls(n_clusters, **{**PAPER, **own, **parameters})


@dataclass(eq=False, repr=False)
class KCF(FactorizingClusterer, SingleKernelClusterer):
    __doc__ = f"""Concept factorization with one kernel, or with the equal-weight mean of several.

    With kernel="linear" this is plain concept factorization (CF).

    Parameters
    ----------
    n_clusters : int, default=8
        Clusters: k.{KERNEL}{FACTORIZATION}{ASSIGN}{PARAMETERS}

    Attributes
    ----------{ATTRIBUTES}{FACTORS}

    Examples
    --------
    >>> import numpy as np
    >>> from gmkcf_dask import KCF
    >>> rng = np.random.default_rng(0)
    >>> X = np.vstack([rng.normal(c, 0.3, (20, 2)) for c in ([0, 3], [3, 0])])
    >>> model = KCF(2, kernel="rbf_1", random_state=0).fit(X)
    >>> sorted(np.bincount(model.labels_).tolist())
    [20, 20]
    """

    method_name: ClassVar[str] = "kcf"


@dataclass(eq=False, repr=False)
class KernelKMeans(PredictingClusterer, SingleKernelClusterer):
    __doc__ = f"""Kernel k-means with one kernel, or with the equal-weight mean of several.

    Starts from k random samples; a cluster that loses all its samples takes the farthest one.

    Parameters
    ----------
    n_clusters : int, default=8
        Clusters: k.{KERNEL}
    n_init : int, default=1
        Random restarts; the one of lowest objective is kept.
    max_iter : int, default=100
        Iterations at most.{PARAMETERS}

    Attributes
    ----------{ATTRIBUTES}

    Examples
    --------
    >>> import numpy as np
    >>> from gmkcf_dask import KernelKMeans
    >>> rng = np.random.default_rng(0)
    >>> X = np.vstack([rng.normal(c, 0.3, (20, 2)) for c in ([0, 3], [3, 0])])
    >>> model = KernelKMeans(2, kernel="rbf_1", n_init=3, random_state=0).fit(X)
    >>> sorted(np.bincount(model.labels_).tolist())
    [20, 20]
    """

    method_name: ClassVar[str] = "kkm"

    _: KW_ONLY
    n_init: int = 1
    max_iter: int = 100


@dataclass(eq=False, repr=False)
class KernelSpectralClustering(PredictingClusterer, SingleKernelClusterer):
    __doc__ = f"""Spectral clustering with one kernel, or with the equal-weight mean of several.

    Eigenvectors come from products with the kernel alone, at most 61 of them, so a kernel that does
    not fit into memory will do.

    Parameters
    ----------
    n_clusters : int, default=8
        Clusters: k.{KERNEL}
    laplacian : {{"symmetric", "unnormalized"}}, default="symmetric"
        Top-k eigenvectors of D^-½ K D^-½, or the k smallest of D − K.{ASSIGN_EMBEDDED}{PARAMETERS}

    Attributes
    ----------{ATTRIBUTES}{EMBEDDING}
    eigenvalues_ : ndarray, shape (n_clusters,)
        Of the Laplacian, smallest first.

    Examples
    --------
    >>> import numpy as np
    >>> from gmkcf_dask import KernelSpectralClustering
    >>> rng = np.random.default_rng(0)
    >>> X = np.vstack([rng.normal(c, 0.3, (20, 2)) for c in ([0, 3], [3, 0])])
    >>> model = KernelSpectralClustering(2, kernel="rbf_1", random_state=0).fit(X)
    >>> sorted(np.bincount(model.labels_).tolist())
    [20, 20]
    """

    method_name: ClassVar[str] = "sc"

    _: KW_ONLY
    laplacian: str = "symmetric"
    assign: str = DEFAULT_ASSIGN


@dataclass(eq=False, repr=False)
class CoregSpectralClustering(MultipleKernelClusterer):
    __doc__ = f"""Co-regularised spectral clustering of several kernels, centroid form.

    Every kernel has its own eigenvectors, drawn towards a common set, which is clustered.

    Parameters
    ----------
    n_clusters : int, default=8
        Clusters: k.{KERNELS_DOC}
    lam : float, default=0.1
        How strongly they are drawn together.
    max_iter : int, default=10
        Rounds at most.{ASSIGN_EMBEDDED}{PARAMETERS}

    Attributes
    ----------{ATTRIBUTES}{EMBEDDING}

    References
    ----------
    Kumar, Rai, Daumé: Co-regularized multi-view spectral clustering, 2011.

    Examples
    --------
    >>> import numpy as np
    >>> from gmkcf_dask import CoregSpectralClustering
    >>> rng = np.random.default_rng(0)
    >>> X = np.vstack([rng.normal(c, 0.3, (20, 2)) for c in ([0, 3], [3, 0])])
    >>> model = CoregSpectralClustering(2, kernels=["rbf_1", "cosine"], random_state=0).fit(X)
    >>> sorted(np.bincount(model.labels_).tolist())
    [20, 20]
    """

    method_name: ClassVar[str] = "coreg"

    _: KW_ONLY
    lam: float = 0.1
    max_iter: int = 10
    assign: str = DEFAULT_ASSIGN

    @property
    def predict(self) -> Any:
        """Not available, before and after a fit."""
        raise transductive_error(self.method_name)

    @property
    def transform(self) -> Any:
        """Not available, before and after a fit."""
        raise transductive_error(self.method_name)


@dataclass(eq=False, repr=False)
class RobustMultipleKernelKMeans(PredictingClusterer, MultipleKernelClusterer):
    __doc__ = f"""Multiple-kernel k-means with learned weights and the ℓ2,1 norm.

    Distances count by their root, so that samples far from every centre weigh less.

    Parameters
    ----------
    n_clusters : int, default=8
        Clusters: k.{KERNELS_DOC}
    gamma : float, default=0.3
        Between 0 and 1: small values favour few kernels.
    restart_inner : bool, default=False
        Cluster anew after every weight step, best of two random starts, as the authors did: the
        objective may then rise, and labels seldom settle.
    n_init : int, default=1
        Random restarts; the one of lowest objective is kept.
    max_iter : int, default=50
        Weight steps at most.
    inner_iter : int, default=30
        Cluster steps per weight step at most.{PARAMETERS}

    Attributes
    ----------{ATTRIBUTES}

    References
    ----------
    Du et al.: Robust multiple kernel k-means using ℓ2,1-norm, 2015.

    Examples
    --------
    >>> import numpy as np
    >>> from gmkcf_dask import RobustMultipleKernelKMeans
    >>> rng = np.random.default_rng(0)
    >>> X = np.vstack([rng.normal(c, 0.3, (20, 2)) for c in ([0, 3], [3, 0])])
    >>> model = RobustMultipleKernelKMeans(2, kernels=["rbf_1"], random_state=0).fit(X)
    >>> sorted(np.bincount(model.labels_).tolist())
    [20, 20]
    """

    method_name: ClassVar[str] = "rmkkm"

    _: KW_ONLY
    gamma: float = 0.3
    restart_inner: bool = False
    n_init: int = 1
    max_iter: int = 50
    inner_iter: int = 30


ESTIMATORS: dict[str, type[KernelClusterer]] = {
    estimator.method_name: estimator
    for estimator in (
        GMKCF,
        KCF,
        KernelKMeans,
        KernelSpectralClustering,
        CoregSpectralClustering,
        RobustMultipleKernelKMeans,
    )
}
"""By the name of the method each stands for."""
