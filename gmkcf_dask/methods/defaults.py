"""What estimators and the command line choose where the user does not; imports nothing."""

from __future__ import annotations

from typing import Any, Literal

Assign = Literal["kmeans", "spherical", "argmax"]
"""From rows to labels, see `assign`. Files that do not say which mean kmeans."""
DEFAULT_ASSIGN: Assign = "spherical"
"""Of estimators and of `--assign`; the methods' own default is always kmeans, for those files."""
DEFAULT_INIT: Literal["random", "spectral"] = "spectral"
DEFAULT_SOLVER: Literal["paper", "accelerated"] = "accelerated"
DEFAULT_TOL = 1e-3
"""Smaller ones change no score (docs/benchmarks.md) and take several times as long."""
DEFAULT_KERNELS = "local"
DEFAULT_LAYOUT: Literal["auto", "each", "gram"] = "auto"
"""Of estimators and of `--layout`; files and calls that do not say mean each."""
DEFAULTS: dict[str, Any] = {
    "init": DEFAULT_INIT,
    "solver": DEFAULT_SOLVER,
    "assign": DEFAULT_ASSIGN,
    "tol": DEFAULT_TOL,
}
"""Parameters of methods, of those that have them."""
PAPER: dict[str, Any] = {"init": "random", "solver": "paper", "assign": "kmeans", "tol": 1e-5}
"""The same as in the paper."""
PAPER_KERNELS = "paper12"
PAPER_LAYOUT: Literal["each"] = "each"
