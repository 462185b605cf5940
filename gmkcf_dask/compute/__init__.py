"""Products with kernels: the plan, the operators, and the runner of Dask graphs.

Names are imported on first use: `compute.plan` must load with the standard library alone.
"""

import lazy_loader

STALL_SECONDS = 600.0
"""A cluster without progress is given up after this: a scheduler drops silent workers after 300."""

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
