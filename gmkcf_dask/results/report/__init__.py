"""The report of a run: one HTML page, made of its insight alone.

Names are imported on first use.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
