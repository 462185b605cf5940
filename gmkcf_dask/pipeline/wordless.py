"""Documents without usable words: under the text preset "auto" they belong to no cluster.

They take no part in a fit, whatever the method and its kernels, and have the label −1 and rows of
zeros. Under "plain", the behaviour of 0.1.0, they are samples as all others.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gmkcf_dask.compute.operators import KernelStack
from gmkcf_dask.compute.subset import SubsetKernels, widen
from gmkcf_dask.corpus.model import Matrix
from gmkcf_dask.corpus.text_options import TextOptions
from gmkcf_dask.errors import DamagedStoreError, DataWarning, InputError
from gmkcf_dask.methods.base import Clustering, Method
from gmkcf_dask.methods.members import NO_CLUSTER
from gmkcf_dask.store.kernel_store import KernelStore
from gmkcf_dask.store.request import KernelRequest

Mask = npt.NDArray[np.bool_]
_ROWS = ("U", "V", "C", "embedding", "extension", "diagonal")
"""Factors with a row for each sample."""
_FAR = 4.0
"""Of the largest k(x,x): what stands for that of a document that is near no sample."""


def documents_with_words(data: KernelStore | KernelRequest) -> Mask | None:
    """Which samples take part, shape (n,); None where all do."""
    if isinstance(data, KernelRequest):
        corpus = data.corpus
        if corpus is None or corpus.reading is None:
            return None
        return rows_with_words(corpus.X, corpus.reading.options)
    options = data.manifest.text_options
    if options is None or options.preset != "auto" or not data.manifest.n_features:
        return None
    features = data.features()
    if not features.sparse:
        return None
    try:
        return _none_if_all(np.diff(features.read("indptr")) > 0)
    except DamagedStoreError as error:  # features must not cost the labels
        warnings.warn(
            f"documents without words are clustered like others: {error}", DataWarning, stacklevel=2
        )
        return None


def rows_with_words(X: Matrix, options: TextOptions | None) -> Mask | None:
    """Which rows are not all zero; None where all count."""
    if options is None or options.preset != "auto" or isinstance(X, np.ndarray):
        return None
    return _none_if_all(np.diff(X.indptr) > 0)


def _none_if_all(kept: Mask) -> Mask | None:
    return None if kept.all() else kept


def only(stack: KernelStack, kept: Mask | None) -> KernelStack:
    """The kernels of the samples that take part."""
    return stack if kept is None else SubsetKernels(stack, kept)


def for_only(method: Method, kept: Mask | None) -> Method:
    """The same method for these samples; refused where there are fewer of them than clusters."""
    if kept is None:
        return method
    if kept.sum() < method.n_clusters:
        raise InputError(
            f"only {int(kept.sum())} of {len(kept)} documents have words to be clustered by, fewer "
            f"than {method.n_clusters} clusters: ask for fewer clusters"
        )
    init: Any = getattr(method, "init", None)
    if isinstance(init, str) or init is None:
        return method
    rows = [np.asarray(factor) for factor in init]
    if any(len(factor) != len(kept) for factor in rows):
        return method  # the start is refused, in words about its shape
    return replace(method, init=tuple(factor[kept] for factor in rows))  # type: ignore[type-var]


def for_all(found: Clustering, kept: Mask | None) -> Clustering:
    """The clustering of all samples: the label −1 and rows of zeros where one took no part."""
    if kept is None:
        return found
    labels = np.full(len(kept), NO_CLUSTER, found.labels.dtype)
    labels[kept] = found.labels
    factors = {
        name: widen(values, kept) if name in _ROWS else values
        for name, values in found.factors.items()
    }
    if "diagonal" in factors:  # nearest to no new sample
        factors["diagonal"][~kept] = _FAR * factors["diagonal"].max()
    return replace(found, labels=labels, factors=factors)
