"""scikit-learn estimators."""

from gmkcf_dask.estimators.models import (
    GMKCF,
    KCF,
    CoregSpectralClustering,
    KernelKMeans,
    KernelSpectralClustering,
    RobustMultipleKernelKMeans,
)

__all__ = [
    "GMKCF",
    "KCF",
    "CoregSpectralClustering",
    "KernelKMeans",
    "KernelSpectralClustering",
    "RobustMultipleKernelKMeans",
]
