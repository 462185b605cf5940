"""Clustering methods on kernel operators, and what they share. Methods know no files and no Dask.

One module per method: `gmkcf`, `kcf`, `kkm`, `spectral`, `coreg`, `rmkkm`; `registry` finds them by
name. `base` says what a method is, `lockstep` runs solvers that share sweeps, `updates`,
`factorize`, `accelerate`, `kmeans_steps` and `eigen` have the mathematics, `init` the starts,
`assign` K-means, `predict` new samples, `checkpointing` resumed fits, `select_k` the choice of k.
"""
