"""`compare`: all methods and both presets on the same kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from gmkcf_dask.corpus import TextOptions
from gmkcf_dask.corpus.validate import check_labels
from gmkcf_dask.errors import PlanRefused
from gmkcf_dask.estimators.base import listening, seed_of
from gmkcf_dask.estimators.kernel_sources import store_at
from gmkcf_dask.estimators.models import GMKCF
from gmkcf_dask.events import Event
from gmkcf_dask.methods.defaults import DEFAULT_LAYOUT
from gmkcf_dask.pipeline.compare import (
    check_clusters,
    check_methods,
    check_presets,
    compare_methods,
    comparison_job,
    kernels_of_presets,
    without_paper,
)
from gmkcf_dask.results.comparison import Comparison
from gmkcf_dask.store.kernel_store import KernelStore
from gmkcf_dask.store.object_storage import is_location


def compare(
    X: Any,
    n_clusters: int,
    *,
    methods: Sequence[str] | None = None,
    presets: Sequence[str] = ("local", "paper"),
    text: TextOptions | None = None,
    labels: Iterable[object] | None = None,
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
) -> Comparison:
    """Run all methods with the settings of both presets, and compare what they find.

    The kernels of both presets are made once, in memory or in one store, and every method is
    fitted to them: those of one kernel to the mean of a preset's kernels. Texts are read once, in
    the same way for both.

    Parameters
    ----------
    X : array or sparse matrix of shape (n_samples, n_features), texts, or a store
        Features or texts as `GMKCF.fit` takes them, or a store with the kernels of a preset.
    n_clusters : int
    methods : list of str, optional
        Some of gmkcf, kcf, kkm, sc, coreg and rmkkm; all of them by default.
    presets : list of str, default=("local", "paper")
        local has the default kernels and parameters, paper those of the paper.
    text : TextOptions, optional
        How texts become features.
    labels : iterable of length n_samples, optional
        Known topics, for scores; by default those of the store, if it has any.
    normalization, scaling, precision, layout, block_size, store, client, callbacks, verbose
        As for `GMKCF`. Where there is no room for the kernels of the paper only the local preset
        is compared, and `skipped` says so.
    random_state : int, RandomState or None, default=0

    Returns
    -------
    Comparison
        Its text is a table of the runs and of their agreement; `labels` has the labels of each.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> y = np.repeat([0, 1, 2], 20)
    >>> X = np.array([[0, 0], [8, 0], [0, 8]])[y] + rng.standard_normal((60, 2))
    >>> found = compare(X, 3, methods=["gmkcf", "sc"], presets=["local"], labels=y)
    >>> [(run.name, run.scores["ACC"]) for run in found.runs]
    [('gmkcf_local', 1.0), ('sc_local', 1.0)]
    """
    seed = seed_of(random_state)
    methods, presets = check_methods(methods), check_presets(presets)
    if is_location(X):
        X = store_at(X)
    stored = isinstance(X, KernelStore)
    model = GMKCF(
        n_clusters,
        text=text,
        kernels="local" if stored else kernels_of_presets(presets),
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
        check_clusters(methods, n_clusters, data.n_samples)
        job = comparison_job(methods, presets, n_clusters, data.n_samples)
        skipped: tuple[str, ...] = ()
        try:
            source = model._kernel_source(data, n_clusters, job, listen)
        except PlanRefused as error:
            if isinstance(data, KernelStore):
                raise
            fitting, skipped = without_paper(data, error)
            source = model._kernel_source(fitting, n_clusters, job, listen)
        if isinstance(data, KernelStore) and labels is None:
            labels = data.strings("labels")
        return compare_methods(
            source.stack,
            presets,
            methods,
            n_clusters,
            seed,
            labels=None if labels is None else check_labels(labels, data.n_samples),
            skipped=skipped,
            kept=source.kept,
            listen=listen,
        )
