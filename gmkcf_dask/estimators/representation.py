"""How an estimator looks in a notebook: scikit-learn's diagram, and what came out of a fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn import get_config
from sklearn.utils import estimator_html_repr

from gmkcf_dask.notebook import bar, block, paragraph, sparkline, table, text

_MOST = 20
"""Clusters or kernels that are listed one by one."""


class InNotebooks:
    """Adds a short summary to the diagram of a fitted estimator; `repr` stays as it is."""

    @property
    def _repr_html_(self) -> Callable[[], str]:
        if get_config()["display"] != "diagram":
            raise AttributeError("_repr_html_ is there where scikit-learn displays diagrams")
        return self._diagram_and_summary

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        shown = {"text/plain": repr(self)}
        if get_config()["display"] == "diagram":
            shown["text/html"] = self._diagram_and_summary()
        return shown

    def _diagram_and_summary(self) -> str:
        diagram = str(estimator_html_repr(self))
        return diagram + summary(self) if hasattr(self, "labels_") else diagram


def summary(model: Any) -> str:
    """Clusters with their sizes, weights of the kernels, and how the objective fell."""
    sizes = np.bincount(model.labels_)
    history = np.asarray(model.objective_history_, dtype=float)
    state = "converged" if model.converged_ else "not converged"
    said = (
        f"{len(model.labels_):,} samples in {int((sizes > 0).sum())} clusters; "
        f"{model.n_iter_} iterations, {state}, objective {history[-1]:.6g}"
    )
    parts = [paragraph(said)]
    falls = history[np.isfinite(history)]
    if len(falls) > 2:
        shown = falls[1:]  # the start is far above all others
        line = sparkline(shown.tolist(), "objective by iteration")
        parts.append(table([(line,)], ("objective by iteration",)))
    parts.append(_bars("cluster", [str(c) for c in range(len(sizes))], sizes, "{:,.0f}"))
    parts.append(_bars("kernel", model.kernel_names_, model.kernel_weights_, "{:.4f}"))
    return block(f"{type(model).__name__}, fitted", *parts)


def _bars(what: str, names: Any, values: Any, form: str) -> str:
    """A table with a bar for each value, the largest ones where there are many."""
    largest = max(float(np.max(values)), 1e-300)
    order = range(len(values))
    if len(values) > _MOST:
        order = np.argsort(-np.asarray(values), kind="stable")[:_MOST].tolist()
    rows = [
        (text(names[i]), bar(float(values[i]) / largest), text(form.format(values[i])))
        for i in order
    ]
    if len(values) > _MOST:
        rows.append((text(f"and {len(values) - _MOST} more", quiet=True), "", ""))
    return table(rows, (what, "", "samples" if what == "cluster" else "weight"))
