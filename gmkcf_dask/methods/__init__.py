"""Clustering methods on kernel operators, and what they share. Methods know no files and no Dask.

One module per method: `gmkcf`, `kcf`, `kkm`, `spectral`, `coreg`, `rmkkm`; `registry` finds them by
name. `base` says what a method is, `updates`, `factorize`, `accelerate` and `kmeans_steps` have the
mathematics, `init` the starts, `assign` and `spherical` the labels of rows, `predict` new samples,
`checkpointing` resumed fits, `select_k` the choice of k, `defaults` what users get unasked.

Names are imported on first use.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
