"""scikit-learn estimators."""

from gmkcf_dask.estimators.models import (
    GMKCF,
    KCF,
    CoregSpectralClustering,
    KernelKMeans,
    KernelSpectralClustering,
    RobustMultipleKernelKMeans,
)
from gmkcf_dask.estimators.prediction import load

__all__ = [
    "GMKCF",
    "KCF",
    "CoregSpectralClustering",
    "KernelKMeans",
    "KernelSpectralClustering",
    "RobustMultipleKernelKMeans",
    "load",
]
