"""Products with kernels: the plan, the operators, and the runner of Dask graphs.

Names are imported on first use: `compute.plan` must load with the standard library alone.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gmkcf_dask.compute.costs import Job
    from gmkcf_dask.compute.dense import DenseKernels
    from gmkcf_dask.compute.operators import FusedKernel, KernelStack, Overview
    from gmkcf_dask.compute.plan import Plan, make_plan
    from gmkcf_dask.compute.runner import Runner
    from gmkcf_dask.compute.tiled import ResidencyMonitor, TiledKernels

STALL_SECONDS = 600.0
"""A cluster without progress is given up after this: a scheduler drops silent workers after 300."""

_HOME = {
    "DenseKernels": "dense",
    "FusedKernel": "operators",
    "Job": "costs",
    "KernelStack": "operators",
    "Overview": "operators",
    "Plan": "plan",
    "ResidencyMonitor": "tiled",
    "Runner": "runner",
    "TiledKernels": "tiled",
    "make_plan": "plan",
}

__all__ = [
    "STALL_SECONDS",
    "DenseKernels",
    "FusedKernel",
    "Job",
    "KernelStack",
    "Overview",
    "Plan",
    "ResidencyMonitor",
    "Runner",
    "TiledKernels",
    "make_plan",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
