"""What this process may use of its machine: memory and cores, with every limit that is set.

Limits come from the machine, from the control groups (cgroup v1 and v2) that the process is in and
from their parents, from the address space limit (``ulimit -v``) and from CPU affinity. Everything
that plans asks here, never `psutil` alone: a container is killed at its own limit, not at that of
the machine.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

_CGROUPS, _PROC = Path("/sys/fs/cgroup"), Path("/proc/self")
_V1_CPU = ("cpu", "cpu,cpuacct", "cpuacct,cpu")


@dataclass(frozen=True)
class MemoryLimit:
    """A limit and what processes use under it, in bytes; cache that can be given up is not used."""

    limit: int
    used: int

    @property
    def free(self) -> int:
        return max(0, self.limit - self.used)


def free_memory() -> int:
    """Bytes that this process and its children may take now."""
    return min([int(psutil.virtual_memory().available), *(one.free for one in memory_limits())])


def total_memory() -> int:
    """Bytes that this process and its children may have in all."""
    return min([int(psutil.virtual_memory().total), *(one.limit for one in memory_limits())])


def memory_limits(cgroups: Path = _CGROUPS, proc: Path = _PROC) -> list[MemoryLimit]:
    """Every limit below the memory of the machine that holds for this process."""
    machine = int(psutil.virtual_memory().total)
    limits = [_memory_of(folder) for folder in _folders("memory", cgroups, proc)]
    return [
        one for one in (*limits, _address_space(proc)) if one is not None and one.limit < machine
    ]


def cores(cgroups: Path = _CGROUPS, proc: Path = _PROC) -> int:
    """Cores this process may use: affinity, and the CPU quota of its control groups rounded up."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quotas = [_quota_of(folder) for folder in _folders("cpu", cgroups, proc)]
    return max(1, min([count or 1, *(one for one in quotas if one is not None)]))


def _folders(controller: str, cgroups: Path, proc: Path) -> Iterator[Path]:
    """Folders of the control groups of this process, the innermost first, as far as they are seen.

    Inside a container the path of the group may begin outside of it; then the root of the
    hierarchy is the group itself, and the only one that is seen.
    """
    if not sys.platform.startswith("linux"):
        return
    for line in _read(proc / "cgroup").splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        names = controllers.split(",")
        if hierarchy == "0" and not controllers:
            roots = [cgroups, cgroups / "unified"]
        elif controller in names:
            roots = [cgroups / name for name in (controllers, *_V1_CPU, controller)]
            roots = [root for root in dict.fromkeys(roots) if controller in root.name.split(",")]
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for root in roots:
            for depth in range(len(parts), -1, -1):
                folder = root.joinpath(*parts[:depth])
                if folder.is_dir():
                    yield folder


def _memory_of(folder: Path) -> MemoryLimit | None:
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        most = _number(folder / limit)
        if most is not None:
            now = _number(folder / used) or 0
            return MemoryLimit(most, max(0, now - _reclaimable(folder)))
    return None


def _reclaimable(folder: Path) -> int:
    """Cache of files, which is given up before a process is killed; `total_` of v1 has children."""
    words = (line.split() for line in _read(folder / "memory.stat").splitlines())
    stat = {word[0]: int(word[1]) for word in words if len(word) == 2 and word[1].isdigit()}
    names = ("inactive_file", "active_file")
    return sum(stat.get(f"total_{name}", stat.get(name, 0)) for name in names)


def _quota_of(folder: Path) -> int | None:
    both = _read(folder / "cpu.max").split()
    if len(both) != 2:
        both = [_read(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
    if not all(word.isdigit() for word in both) or int(both[1]) == 0:
        return None  # "max", -1, or no such file
    return -(-int(both[0]) // int(both[1]))


def _address_space(proc: Path) -> MemoryLimit | None:
    """RLIMIT_AS: beyond it allocations fail. What is reserved counts, used or not."""
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft == resource.RLIM_INFINITY or soft < 0:
        return None
    pages = _read(proc / "statm").split()
    used = int(pages[0]) * os.sysconf("SC_PAGE_SIZE") if pages else 0
    return MemoryLimit(soft, used)


def _number(path: Path) -> int | None:
    text = _read(path).strip()
    return int(text) if text.isdigit() else None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:  # not there, or not to be seen from here
        return ""


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
