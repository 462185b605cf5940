"""Multiple-kernel concept factorization: in memory, out of core, and on Dask clusters.

The names here are the public ones; each is imported when it is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gmkcf_dask.compute.dense import DenseKernels
    from gmkcf_dask.compute.plan import Plan, make_plan
    from gmkcf_dask.compute.tiled import TiledKernels
    from gmkcf_dask.corpus import Corpus, TextOptions, read_corpus
    from gmkcf_dask.estimators import (
        GMKCF,
        KCF,
        CoregSpectralClustering,
        KernelKMeans,
        KernelSpectralClustering,
        RobustMultipleKernelKMeans,
        load,
    )
    from gmkcf_dask.estimators.select_k import suggest_k
    from gmkcf_dask.events import IterationDone, StageProgress
    from gmkcf_dask.events.listeners import History, JsonLines
    from gmkcf_dask.events.progress import Progress
    from gmkcf_dask.kernels.specs import FunctionKernel, Precomputed
    from gmkcf_dask.methods.select_k import KSuggestion
    from gmkcf_dask.results.metrics import scores
    from gmkcf_dask.results.plots import (
        ConvergenceDisplay,
        EmbeddingDisplay,
        FusedKernelDisplay,
        KernelWeightsDisplay,
    )
    from gmkcf_dask.store.kernel_store import KernelStore

__version__ = version("gmkcf-dask")

_HOME = {
    "GMKCF": "estimators",
    "KCF": "estimators",
    "CoregSpectralClustering": "estimators",
    "KernelKMeans": "estimators",
    "KernelSpectralClustering": "estimators",
    "RobustMultipleKernelKMeans": "estimators",
    "load": "estimators",
    "Corpus": "corpus",
    "TextOptions": "corpus",
    "read_corpus": "corpus",
    "DenseKernels": "compute.dense",
    "TiledKernels": "compute.tiled",
    "FunctionKernel": "kernels.specs",
    "IterationDone": "events",
    "StageProgress": "events",
    "KSuggestion": "methods.select_k",
    "KernelStore": "store.kernel_store",
    "ConvergenceDisplay": "results.plots",
    "EmbeddingDisplay": "results.plots",
    "FusedKernelDisplay": "results.plots",
    "KernelWeightsDisplay": "results.plots",
    "History": "events.listeners",
    "JsonLines": "events.listeners",
    "Progress": "events.progress",
    "Precomputed": "kernels.specs",
    "Plan": "compute.plan",
    "make_plan": "compute.plan",
    "scores": "results.metrics",
    "suggest_k": "estimators.select_k",
}

__all__ = [
    "GMKCF",
    "KCF",
    "ConvergenceDisplay",
    "CoregSpectralClustering",
    "Corpus",
    "DenseKernels",
    "EmbeddingDisplay",
    "FunctionKernel",
    "FusedKernelDisplay",
    "History",
    "IterationDone",
    "JsonLines",
    "KSuggestion",
    "KernelKMeans",
    "KernelSpectralClustering",
    "KernelStore",
    "KernelWeightsDisplay",
    "Plan",
    "Precomputed",
    "Progress",
    "RobustMultipleKernelKMeans",
    "StageProgress",
    "TextOptions",
    "TiledKernels",
    "load",
    "make_plan",
    "read_corpus",
    "scores",
    "suggest_k",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
