"""How large this process has become."""

from __future__ import annotations

import sys
from pathlib import Path


def peak_resident_bytes() -> int:
    """Its largest resident size so far."""
    status = Path("/proc/self/status")
    if status.exists():
        # getrusage would begin with the size of the process that started this one
        lines = (line.split() for line in status.read_text().splitlines())
        return next(int(line[1]) * 1024 for line in lines if line[0] == "VmHWM:")
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
