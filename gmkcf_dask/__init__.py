"""Multiple-kernel concept factorization: in memory, out of core, and on Dask clusters.

The names here are the public ones; each is imported when it is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gmkcf_dask.corpus import Corpus, TextOptions, read_corpus
    from gmkcf_dask.engine.dense import DenseKernels
    from gmkcf_dask.engine.tiled import TiledKernels
    from gmkcf_dask.estimators import (
        GMKCF,
        KCF,
        CoregSpectralClustering,
        KernelKMeans,
        KernelSpectralClustering,
        RobustMultipleKernelKMeans,
        load,
    )
    from gmkcf_dask.estimators.choose import suggest_k
    from gmkcf_dask.events import IterationDone, StageProgress
    from gmkcf_dask.kernels.specs import FunctionKernel, Precomputed
    from gmkcf_dask.kernels.store import KernelStore
    from gmkcf_dask.listeners import History, JsonLines
    from gmkcf_dask.methods.choose_k import KSuggestion
    from gmkcf_dask.plan import Plan, make_plan
    from gmkcf_dask.plots import (
        ConvergenceDisplay,
        EmbeddingDisplay,
        FusedKernelDisplay,
        KernelWeightsDisplay,
    )
    from gmkcf_dask.progress import Progress
    from gmkcf_dask.results.metrics import scores

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
    "DenseKernels": "engine.dense",
    "TiledKernels": "engine.tiled",
    "FunctionKernel": "kernels.specs",
    "IterationDone": "events",
    "StageProgress": "events",
    "KSuggestion": "methods.choose_k",
    "KernelStore": "kernels.store",
    "ConvergenceDisplay": "plots",
    "EmbeddingDisplay": "plots",
    "FusedKernelDisplay": "plots",
    "KernelWeightsDisplay": "plots",
    "History": "listeners",
    "JsonLines": "listeners",
    "Progress": "progress",
    "Precomputed": "kernels.specs",
    "Plan": "plan",
    "make_plan": "plan",
    "scores": "results.metrics",
    "suggest_k": "estimators.choose",
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
