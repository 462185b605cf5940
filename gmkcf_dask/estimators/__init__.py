"""scikit-learn estimators.

Modules: `base` (fit, explain, save), `prediction` (predict, transform), `models` (the classes),
`persistence` (load), `select_k`, `compare`, `kernel_sources`, `notebook` and `sklearn_callbacks`.
"""

from gmkcf_dask.estimators.models import (
    GMKCF,
    KCF,
    CoregSpectralClustering,
    KernelKMeans,
    KernelSpectralClustering,
    RobustMultipleKernelKMeans,
)
from gmkcf_dask.estimators.persistence import load

__all__ = [
    "GMKCF",
    "KCF",
    "CoregSpectralClustering",
    "KernelKMeans",
    "KernelSpectralClustering",
    "RobustMultipleKernelKMeans",
    "load",
]
