"""The mathematics of kernels on tiles, without files: specs, formulas, statistics, new samples.

Names are imported on first use: `kernels.tiling` must load with the standard library alone.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gmkcf_dask.kernels.cross import CrossKernels
    from gmkcf_dask.kernels.specs import (
        FunctionKernel,
        KernelSpec,
        Precomputed,
        parse_kernel,
        precomputed_specs,
        resolve_kernels,
    )
    from gmkcf_dask.kernels.tiles import ResolvedKernel
    from gmkcf_dask.kernels.tiling import Precision, Tiling

_HOME = {
    "CrossKernels": "cross",
    "FunctionKernel": "specs",
    "KernelSpec": "specs",
    "Precision": "tiling",
    "Precomputed": "specs",
    "ResolvedKernel": "tiles",
    "Tiling": "tiling",
    "parse_kernel": "specs",
    "precomputed_specs": "specs",
    "resolve_kernels": "specs",
}

__all__ = [
    "CrossKernels",
    "FunctionKernel",
    "KernelSpec",
    "Precision",
    "Precomputed",
    "ResolvedKernel",
    "Tiling",
    "parse_kernel",
    "precomputed_specs",
    "resolve_kernels",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
