"""Multiple-kernel concept factorization: in memory, out of core, and on Dask clusters.

The names here are the public ones; each is imported when it is first asked for.
"""

from importlib.metadata import version

import lazy_loader

__version__ = version("gmkcf-dask")

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
