"""Jobs that run a command inside their own allocation: Slurm scripts and Kubernetes manifests.

Names are imported on first use.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
