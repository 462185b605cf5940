"""Pictures in the style of scikit-learn's displays. They need Matplotlib (the extra `[plot]`).

Each display keeps the numbers it shows, and is made from a fitted estimator (`from_estimator`), the
folder of a run (`from_run`) or what describes one (`from_insight`). `plot` draws it, into axes that
are given or into a figure of its own, and keeps `ax_`, `figure_` and what was drawn.
"""

from gmkcf_dask.results.plots.fits import ConvergenceDisplay, KernelWeightsDisplay
from gmkcf_dask.results.plots.samples import EmbeddingDisplay, FusedKernelDisplay

__all__ = [
    "ConvergenceDisplay",
    "EmbeddingDisplay",
    "FusedKernelDisplay",
    "KernelWeightsDisplay",
]
