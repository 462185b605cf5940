"""The mathematics of kernels on tiles, without files: specs, formulas, statistics, new samples.

Names are imported on first use: `kernels.tiling` must load with the standard library alone.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
