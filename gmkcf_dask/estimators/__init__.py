"""scikit-learn estimators."""

from gmkcf_dask.estimators.models import GMKCF, KCF

__all__ = ["GMKCF", "KCF"]
