"""One BLAS thread per task: parallelism comes from tiles, and sums keep their order."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

from threadpoolctl import ThreadpoolController


@cache
def _controller() -> Any:
    # finding the loaded libraries reads the process's memory map: milliseconds, so once
    import scipy.linalg  # noqa: F401  (brings the second BLAS that must be found)

    return ThreadpoolController()


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def one_blas_thread() -> AbstractContextManager[Any]:
    """A context in which BLAS runs on one thread."""
    limits: AbstractContextManager[Any] = _controller().limit(limits=1)
    return limits
