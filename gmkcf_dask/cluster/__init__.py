"""Where work runs: describe a cluster, start it or connect to it, and what it has.

`ClusterConfig` (from a file or the command line) -> `describe` -> a plan -> `start` -> `Resources`.
Names are imported on first use, as Dask takes long to load.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
