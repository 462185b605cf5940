"""Memory and cores of this process: control groups of both kinds, ulimit, and the machine."""

import os
import resource
import subprocess
import sys
import uuid
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from gmkcf_dask.cluster.resources import of_client, share_of_memory, threads
from gmkcf_dask.corpus.limits import most_bytes
from gmkcf_dask.errors import PlanRefused
from gmkcf_dask.pipeline import planning
from gmkcf_dask.system import resources
from gmkcf_dask.system.units import MIB

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="control groups are of Linux"
)


def tree(root: Path, cgroup: str, files: dict[str, str]) -> dict[str, Path]:
    """A file tree as the kernel shows it: /proc/self/cgroup, and files under /sys/fs/cgroup."""
    proc, cgroups = root / "proc", root / "cgroup"
    proc.mkdir()
    (proc / "cgroup").write_text(cgroup)
    for name, content in files.items():
        path = cgroups / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return {"cgroups": cgroups, "proc": proc}


def limits(where):
    return [(one.limit // MIB, one.free // MIB) for one in resources.memory_limits(**where)]


def test_version_2(tmp_path):
    """Cache that can be given back is free; a parent's limit counts like the group's own."""
    where = tree(
        tmp_path,
        "0::/jobs/one\n",
        {
            "jobs/one/memory.max": f"{400 * MIB}\n",
            "jobs/one/memory.current": f"{150 * MIB}\n",
            "jobs/one/memory.stat": f"anon 5\ninactive_file {90 * MIB}\nactive_file {10 * MIB}\n",
            "jobs/memory.max": f"{300 * MIB}\n",
            "jobs/memory.current": f"{200 * MIB}\n",
            "jobs/one/cpu.max": "50000 100000\n",
            "jobs/cpu.max": "max 100000\n",
        },
    )
    assert limits(where) == [(400, 350), (300, 100)]
    assert resources.cores(**where) == 1


def test_version_2_without_a_limit(tmp_path):
    where = tree(
        tmp_path,
        "0::/\n",
        {"memory.max": "max\n", "memory.current": "5\n", "cpu.max": "max 100000\n"},
    )
    assert limits(where) == []
    assert resources.cores(**where) == len(os.sched_getaffinity(0))


def test_version_1(tmp_path):
    """As with two hierarchies side by side, and a path that is not to be seen in a container."""
    where = tree(
        tmp_path,
        "4:memory:/docker/abc\n2:cpu,cpuacct:/docker/abc\n0::/\n",
        {
            "memory/memory.limit_in_bytes": f"{400 * MIB}\n",
            "memory/memory.usage_in_bytes": f"{350 * MIB}\n",
            "memory/memory.stat": f"inactive_file 7\ntotal_inactive_file {100 * MIB}\n",
            "cpu,cpuacct/cpu.cfs_quota_us": "150000\n",
            "cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        },
    )
    assert limits(where) == [(400, 150)]
    assert resources.cores(**where) == min(2, len(os.sched_getaffinity(0)))


def test_version_1_without_a_limit(tmp_path):
    where = tree(
        tmp_path,
        "4:memory:/\n1:cpu:/\n",
        {
            "memory/memory.limit_in_bytes": "9223372036854771712\n",
            "memory/memory.usage_in_bytes": "5\n",
            "cpu/cpu.cfs_quota_us": "-1\n",
            "cpu/cpu.cfs_period_us": "100000\n",
        },
    )
    assert limits(where) == []
    assert resources.cores(**where) == len(os.sched_getaffinity(0))


def test_files_that_say_nothing_useful_are_no_limit(tmp_path):
    where = tree(
        tmp_path, "nonsense\n0::/../x\n", {"memory.max": "many\n", "cpu.max": "1 0\n", "x/y": ""}
    )
    assert limits(where) == []
    assert resources.cores(**where) >= 1


def test_address_space(monkeypatch):
    used = psutil.Process().memory_info().vms
    monkeypatch.setattr(resource, "getrlimit", lambda what: (used + 100 * MIB, -1))
    monkeypatch.setattr(resources, "_folders", lambda *where: iter(()))
    total = psutil.virtual_memory().total
    if used + 100 * MIB < total:
        assert resources.total_memory() == used + 100 * MIB
        assert resources.free_memory() <= 150 * MIB


def test_everything_that_plans_asks_here(monkeypatch):
    monkeypatch.setattr(
        resources, "memory_limits", lambda: [resources.MemoryLimit(400 * MIB, 100 * MIB)]
    )
    assert resources.free_memory() == 300 * MIB == threads(1).memory_per_worker
    assert resources.total_memory() == 400 * MIB
    assert share_of_memory(3) == 90 * MIB
    assert most_bytes() == 150 * MIB
    package = Path(resources.__file__).parents[1]
    others = [p.name for p in package.rglob("*.py") if "virtual_memory" in p.read_text()]
    assert others == ["resources.py"]


REAL = """
import sys
from pathlib import Path
Path(sys.argv[1]).write_text("0")
from gmkcf_dask.system.resources import free_memory, total_memory
print(total_memory(), free_memory())
"""


def test_a_real_control_group():
    """A child process moves into a group of 400 MiB and asks."""
    mine = Path("/sys/fs/cgroup/memory")
    version_1 = mine.is_dir()
    group = (mine if version_1 else mine.parent) / f"gmkcf-test-{uuid.uuid4().hex[:8]}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        limit = group / ("memory.limit_in_bytes" if version_1 else "memory.max")
        try:
            limit.write_text(str(400 * MIB))
        except OSError as error:
            pytest.skip(f"the memory controller is not to be used here: {error}")
        command = [sys.executable, "-c", REAL, str(group / "cgroup.procs")]
        asked = subprocess.run(command, capture_output=True, text=True, check=False)
        if asked.returncode:
            pytest.skip(f"no process can be moved into a group here: {asked.stderr[-200:]}")
    finally:
        group.rmdir()
    total, free = map(int, asked.stdout.split())
    assert total == 400 * MIB
    assert 0 < free < 400 * MIB


def client_of(memory):
    """A client whose scheduler tells of workers with so much memory."""
    workers = {f"tcp://host:{i}": {"memory_limit": m, "nthreads": 1} for i, m in enumerate(memory)}
    return SimpleNamespace(
        status="running",
        scheduler=SimpleNamespace(address="tcp://host:8786"),
        scheduler_info=lambda n_workers: {"workers": workers},
    )


def test_the_smallest_worker_is_named(monkeypatch):
    def refuse(*sizes, **options):
        raise PlanRefused("a worker needs 700 MiB")

    found = of_client(client_of([2048 * MIB, 400 * MIB, 2048 * MIB]), unchecked=True)
    assert found.memory_per_worker == 400 * MIB
    for word in ("tcp://host:1", "400.0 MiB", "2.0 GiB"):
        assert word in found.description
    monkeypatch.setattr(planning, "make_plan", refuse)
    with pytest.raises(PlanRefused, match=r"a worker needs .*; worker tcp://host:1 has"):
        planning._plan(found, (9, 2, 1, 2))
    alike = of_client(client_of([2048 * MIB, 2040 * MIB]), unchecked=True)
    assert alike.smallest is None
    assert "tcp://host:1" not in alike.description
