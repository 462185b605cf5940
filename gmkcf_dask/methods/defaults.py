"""What estimators and the command line choose where the user does not; imports nothing."""

from __future__ import annotations

from typing import Literal

Assign = Literal["kmeans", "spherical", "argmax"]
"""From rows to labels, see `assign`. Files that do not say which mean kmeans."""
DEFAULT_ASSIGN: Assign = "spherical"
"""Of estimators and of `--assign`; the methods' own default is always kmeans, for those files."""
DEFAULT_INIT: Literal["random", "spectral"] = "spectral"
DEFAULT_SOLVER: Literal["paper", "accelerated"] = "accelerated"
DEFAULT_KERNELS = "local"
DEFAULTS = {"init": DEFAULT_INIT, "solver": DEFAULT_SOLVER, "assign": DEFAULT_ASSIGN}
"""Parameters of methods, of those that have them."""
PAPER = {"init": "random", "solver": "paper", "assign": "kmeans"}
"""The same as in the paper."""
PAPER_KERNELS = "paper12"
