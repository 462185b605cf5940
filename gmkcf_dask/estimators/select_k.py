"""`suggest_k`: choose the number of clusters from what `GMKCF.fit` takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gmkcf_dask.corpus import TextOptions
from gmkcf_dask.estimators.base import listening, seed_of
from gmkcf_dask.estimators.models import GMKCF
from gmkcf_dask.events import Event
from gmkcf_dask.methods.defaults import DEFAULT_ASSIGN, DEFAULT_KERNELS, DEFAULT_LAYOUT
from gmkcf_dask.methods.select_k import (
    DEFAULT_KS,
    RESTARTS,
    KSuggestion,
    suggest,
    suggestion_job,
    validate_ks,
    validate_restarts,
    validate_rule,
)
from gmkcf_dask.pipeline.wordless import only
from gmkcf_dask.store.request import KernelRequest


def suggest_k(
    X: Any,
    ks: Iterable[int] = DEFAULT_KS,
    *,
    n_restarts: int = RESTARTS,
    text: TextOptions | None = None,
    kernels: Any = DEFAULT_KERNELS,
    assign: str = DEFAULT_ASSIGN,
    kernel_weights: Mapping[str, float] | None = None,
    normalization: str = "unit",
    scaling: str = "minmax",
    precision: str = "float32",
    layout: str = DEFAULT_LAYOUT,
    block_size: int | str = "auto",
    store: str | Path | None = None,
    client: Any = None,
    random_state: Any = 0,
    callbacks: Sequence[Callable[[Event], object]] | None = None,
    verbose: int = 0,
) -> KSuggestion:
    """Suggest a number of clusters, and say how sure that is.

    Short runs of concept factorization on the fused kernel K_w for all ks side by side, sharing
    every sweep. Each k has three numbers: the eigengap of D^-½ K_w D^-½, the stability of the
    clusters over restarts, and the silhouette in V and in the kernel that separates them best; see
    `gmkcf_dask.methods.select_k`. The cost in sweeps over K_w is that of the longest of these
    runs, at most 62, and of one eigenproblem: two up to 1,000 samples, at most 61 above; and one
    sweep over all kernels. The kernels of dense tables have a scale for each number of clusters:
    every k is tried in its own, with sweeps of its own. One store serves all ks.

    Parameters
    ----------
    X : array or sparse matrix of shape (n_samples, n_features), texts, or a store
        What `GMKCF.fit` takes.
    ks : iterable of int, default=range(2, 16)
        The numbers to choose from, at least two. The default ends below the number of samples.
    n_restarts : int, default=5
        Runs for every k, at least 2.
    text : TextOptions, optional
        How texts become features.
    kernels : str, list, "precomputed" or "factored", default="local"
    assign : {"spherical", "kmeans"}, default="spherical"
        From rows of V to labels. The setting of the paper is kernels="paper12", assign="kmeans",
        and for texts text=TextOptions(preset="plain").
    kernel_weights : mapping of str to float, optional
        Weights that GMKCF learned, by kernel name; the mean of all kernels is used without them.
    normalization, scaling, precision, layout, block_size, store, callbacks, verbose
        As for `GMKCF`.
    client : distributed.Client, optional
        Cluster for work on a store.
    random_state : int, RandomState or None, default=0

    Returns
    -------
    KSuggestion
        Its text is a short table; `k`, `runner_up`, `word`, `sure` and `why` are the suggestion.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> centres = np.array([[0, 0], [8, 0], [0, 8]])
    >>> X = np.repeat(centres, 20, axis=0) + rng.standard_normal((60, 2))
    >>> suggest_k(X, range(2, 7)).k
    3
    """
    seed = seed_of(random_state)
    validate_restarts(n_restarts)
    rule = validate_rule(assign)
    model = GMKCF(
        text=text,
        kernels=kernels,
        normalization=normalization,
        scaling=scaling,
        precision=precision,
        layout=layout,
        block_size=block_size,
        store=store,
        client=client,
        callbacks=callbacks,
    )
    model._check_types()
    with listening(callbacks, verbose) as listen:
        data = model._kernel_data(X, listen)
        ks = validate_ks(ks, data.n_samples)
        if isinstance(data, KernelRequest):
            data = data.for_clusters(max(ks))
        job = suggestion_job(ks, data.n_samples, n_restarts)
        source = model._kernel_source(data, max(ks), job, listen)
        return suggest(
            only(source.stack, source.kept),
            ks,
            n_restarts=n_restarts,
            seed=seed,
            weights=kernel_weights,
            assign=rule,
            stack_of=source.stack_of,
            listen=listen,
        )
