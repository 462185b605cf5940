"""The summary of a fitted estimator in a notebook, below scikit-learn's diagram."""

from __future__ import annotations

from typing import Any

import numpy as np

from gmkcf_dask.methods.contrast import weak_clusters
from gmkcf_dask.methods.members import NO_CLUSTER, cluster_sizes
from gmkcf_dask.results.insight import without_cluster
from gmkcf_dask.system.html import bar, block, line_chart, paragraph, table, text

_MAX_ROWS = 20
"""Clusters or kernels that are listed one by one."""


def summary(model: Any) -> str:
    """Clusters with their sizes, weights of the kernels, and how the objective fell."""
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
    if len(values) > _MAX_ROWS:
        order = np.argsort(-np.asarray(values), kind="stable")[:_MAX_ROWS].tolist()
    rows = [
        (text(names[i]), bar(float(values[i]) / largest), text(form.format(values[i])))
        for i in order
    ]
    if len(values) > _MAX_ROWS:
        rows.append((text(f"and {len(values) - _MAX_ROWS} more", quiet=True), "", ""))
    return table(rows, (what, "", "samples" if what == "cluster" else "weight"))
