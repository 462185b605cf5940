"""Kernels on disk or in an object store: build, open, verify and repair them.

`build` makes a store of a `KernelRequest`, `kernel_store` opens it, `verify` finds damage and
`repair` fixes it. `files` and `object_storage` are all that touches storage; `lock` keeps writers
apart; `manifest` says what is complete.

Names are imported on first use.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
