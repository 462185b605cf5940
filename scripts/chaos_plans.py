"""Plans at the border of what fits: accepted ones run to their end, the others never begin.

Every point of a listed grid is planned, then the command `gmkcf run` is started for it with worker
processes of that memory. A run that was accepted must end well, with the workers it began with, and
every process must stay within the bytes that were planned for it. A run that was refused must say
so with exit code 3 before a worker is started or a file is written.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil
from scipy import sparse

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts"), str(ROOT / "tests")]

from benchmarks.corpora import bank, text_like  # noqa: E402
from faulty import environment  # noqa: E402

from gmkcf_dask.cluster import Resources  # noqa: E402
from gmkcf_dask.corpus import Corpus, read_corpus  # noqa: E402
from gmkcf_dask.errors import PlanRefused  # noqa: E402
from gmkcf_dask.graph import Runner  # noqa: E402
from gmkcf_dask.kernels.request import KernelRequest  # noqa: E402
from gmkcf_dask.plan import MIB, Plan, Precision  # noqa: E402
from gmkcf_dask.results.run import read_result  # noqa: E402
from gmkcf_dask.workflow import request_plan  # noqa: E402

BOUND = 180.0
"""Seconds that one run may take at most."""
KILLED_HUNDREDTHS = 95
"""Of its memory: there a worker is killed by its nanny."""
PLENTY = 1 << 50
FIT = ("--max-iter", 2, "--inner-iter", 1, "--tol", 0)

# `free_disk` is told what is free, so that scratch and recompute need no disk of their own: so much
# as long as there is no store, and what the plan said would be left when there is one
_COMMAND = """
import sys
from gmkcf_dask import workflow
before, after = map(int, sys.argv[1:3])
workflow.free_disk = lambda path: after if path.exists() else before
from gmkcf_dask.cli import main
main(sys.argv[3:])
"""


@dataclass(frozen=True)
class Point:
    """A job and a cluster for it; memory in MiB per worker."""

    n: int
    m: int
    precision: Precision
    workers: int
    memory: int
    scarce_disk: bool = False
    n_clusters: int = 8
    features: str = "text"

    def plan(self, corpus: Corpus, disk_free: int) -> Plan:
        """What the plan says, or PlanRefused."""
        request = KernelRequest(corpus, bank(self.m), precision=self.precision)
        place = Resources(Runner(), self.workers, 1, self.memory * MIB, "")
        return request_plan(request, self.n_clusters, place, disk_free=disk_free)

    def disk(self, corpus: Corpus) -> tuple[int, int]:
        """Free bytes before and after the build: too few for a fused kernel on disk, or plenty."""
        if not self.scarce_disk:
            return PLENTY, PLENTY
        plan = self.plan(corpus, PLENTY)
        return plan.stored_bytes + plan.feature_bytes + plan.kw_bytes, plan.kw_bytes


@dataclass
class Watched:
    """A command that ran: how it ended, and the largest resident bytes of its processes."""

    code: int = -1
    said: str = ""
    driver: int = 0
    workers: dict[int, int] = field(default_factory=dict)


# MiB per worker from which a job is accepted at all, and from which two workers keep K_w in memory
BORDERS: dict[tuple[int, Precision], tuple[int, int]] = {
    (500, "float32"): (509, 512),
    (500, "float64"): (509, 512),
    (500, "compact"): (509, 512),
    (2000, "float32"): (509, 522),
    (2000, "float64"): (511, 536),
    (2000, "compact"): (509, 522),
    (4000, "float32"): (520, 571),
    (4000, "float64"): (524, 626),
    (4000, "compact"): (520, 571),
    (6000, "float32"): (532, 634),
    (6000, "float64"): (540, 801),
    (6000, "compact"): (532, 634),
}
# the largest ones take long: of these, every kind at least once
THINNED = {(6000, "float32"): (0, 1), (6000, "float64"): (0, 2), (6000, "compact"): (0, 3)}


def grid() -> list[Point]:
    """Both sides of the borders for twelve jobs, and jobs that are unusual in other ways."""
    points: list[Point] = []
    for (n, precision), (least, in_memory) in BORDERS.items():
        few = 3 if n > 2000 else 12  # small tiles of many kernels would take minutes
        around = (
            Point(n, few, precision, 2, least - 1),
            Point(n, few, precision, 1, least),
            Point(n, 15 - few, precision, 2, in_memory),
            Point(n, 3, precision, 3, least, scarce_disk=True),
        )
        wanted = (0, 1, 2) if n == 500 else THINNED.get((n, precision), range(4))
        points += [around[i] for i in wanted]
    return [
        Point(500, 3, "float32", 2, 100),  # less than a worker takes for itself
        Point(6000, 12, "float32", 3, 384),
        *points,
        Point(4000, 12, "float32", 2, 1024),
        Point(2000, 3, "float64", 2, 609, n_clusters=200),
        Point(2000, 3, "float64", 2, 612, n_clusters=200),
        Point(1500, 3, "float32", 1, 600, features="dense"),
        Point(1500, 3, "float32", 2, 800, features="dense"),
        Point(1500, 3, "float32", 1, 800, features="books"),
        Point(1500, 3, "float32", 2, 920, features="books"),
    ]


def watch(command: Sequence[object], out: Path) -> Watched:
    """Run a command; the system keeps the largest size of a process, we ask again and again."""
    found, until = Watched(), time.monotonic() + BOUND
    with (out / "said").open("w+") as said:
        process = subprocess.Popen(
            [str(word) for word in command], env=environment(), stdout=said, stderr=said
        )
        driver = psutil.Process(process.pid)
        while process.poll() is None:
            if time.monotonic() > until:
                for child in driver.children(recursive=True):
                    child.kill()
                process.kill()
            _look(driver, found)
            time.sleep(0.05)
        found.code = process.returncode
        said.seek(0)
        found.said = said.read()
    return found


def _look(driver: psutil.Process, found: Watched) -> None:
    try:
        found.driver = max(found.driver, _peak(driver.pid))
        for child in driver.children():
            if "spawn_main" in " ".join(child.cmdline()):
                found.workers.setdefault(child.pid, 0)
                found.workers[child.pid] = max(found.workers[child.pid], _peak(child.pid))
    except (psutil.Error, OSError):
        pass  # it ended while we looked


def _peak(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), 0)


def try_point(point: Point, folder: Path) -> tuple[dict[str, str], bool]:
    """A row of the table, and whether the promise was kept."""
    data = _data(point, folder)
    corpus = read_corpus(str(data))
    row = {
        "n": f"{point.n:,}",
        "m": str(point.m),
        "k": str(point.n_clusters),
        "features": point.features,
        "precision": point.precision,
        "workers × memory": f"{point.workers} × {point.memory} MiB",
        "disk": "scarce" if point.scarce_disk else "enough",
    }
    disk, plan = (PLENTY, PLENTY), None
    try:
        disk = point.disk(corpus)
        plan = point.plan(corpus, disk[0])
        row |= {"plan": "accepts", "K_w lives in": plan.residency, "tile": str(plan.block)}
    except PlanRefused:
        row |= {"plan": "refuses", "K_w lives in": "–", "tile": "–"}
    with tempfile.TemporaryDirectory(dir=folder) as name:
        out = Path(name)
        names = ",".join(spec.name for spec in bank(point.m))
        job = ("run", data, "-k", point.n_clusters, "--kernels", names, "--out", out / "run", *FIT)
        where = ("--cluster", "local", "--workers", point.workers, "--memory", f"{point.memory}MiB")
        how = ("--precision", point.precision, "--merge-duplicates", 0)
        command = (sys.executable, "-c", _COMMAND, *disk, *job, *where, *how)
        found = watch(command, out)
        wrong = _refused(found, out) if plan is None else _fits(found, out, plan)
    peaks = list(found.workers.values())
    row |= {
        "planned": "–" if plan is None else _mib(plan.worker_peak_bytes),
        "peak": _mib(max(peaks)) if peaks else "–",
        "driver planned": "–" if plan is None else _mib(plan.driver_bytes),
        "driver": _mib(found.driver),
        "verdict": "; ".join(wrong) or ("refused beforehand" if plan is None else "held"),
    }
    return row, not wrong


def _data(point: Point, folder: Path) -> Path:
    """Sparse text; a wide dense matrix far from the origin; text whose first tenth is books."""
    path = folder / f"{point.features}-{point.n}.{'npy' if point.features == 'dense' else 'npz'}"
    if path.exists():
        return path
    rng = np.random.default_rng(0)
    if point.features == "dense":
        np.save(path, 10 + rng.random((point.n, 12_000)))
        return path
    text = sparse.csr_matrix(text_like(point.n).X)
    if point.features == "books":
        books = sparse.random(point.n // 10, 200_000, 0.1, format="csr", random_state=rng)
        text.resize(point.n, 200_000)
        text = sparse.vstack([books, text[point.n // 10 :]], format="csr")
    sparse.save_npz(path, text)
    return path


def _refused(found: Watched, out: Path) -> list[str]:
    wrong = {
        f"EXIT CODE {found.code}": found.code != 3,
        "SAYS NOT HOW MUCH": "a worker needs" not in found.said,
        f"{len(found.workers)} WORKERS WERE STARTED": bool(found.workers),
        "LEFT FILES": (out / "run").exists(),
    }
    return [sentence for sentence, true in wrong.items() if true]


def _fits(found: Watched, out: Path, plan: Plan) -> list[str]:
    if found.code != 0:
        return [f"EXIT CODE {found.code}: {found.said.strip().splitlines()[-1:]}"]
    result = read_result(out / "run")
    peaks = [*found.workers.values(), *result["bytes"]["worker_peaks"]]
    limit = plan.memory_per_worker * KILLED_HUNDREDTHS // 100
    wrong = {
        f"{len(found.workers)} WORKERS, NOT {plan.n_workers}": (
            len(found.workers) != plan.n_workers
        ),
        "ANOTHER PLAN": any(
            result["plan"][name] != getattr(plan, name) for name in ("residency", "block")
        ),
        "WORKER LARGER THAN PLANNED": max(peaks) > plan.worker_peak_bytes,
        "WORKER NEAR ITS LIMIT": max(peaks) > limit,
        "DRIVER LARGER THAN PLANNED": found.driver > plan.driver_bytes,
    }
    return [sentence for sentence, true in wrong.items() if true]


def _mib(n_bytes: int) -> str:
    return f"{n_bytes / MIB:.0f}"


def try_points(points: Sequence[Point], limit: float = float("inf")) -> bool:
    """Print a line for every point and a last one with counts; whether all went well."""
    start, counts, shown = time.monotonic(), Counter[str](), False
    with tempfile.TemporaryDirectory(prefix="gmkcf-plans-") as folder:
        for point in points:
            if time.monotonic() - start > limit:
                counts["not tried for want of time"] += 1
                continue
            row, well = try_point(point, Path(folder))
            if not shown:
                print("|", " | ".join(row), "|\n|", " | ".join("---" for _ in row), "|")
                shown = True
            print("|", " | ".join(row.values()), "|", flush=True)
            kind = "refused" if row["plan"] == "refuses" else row["K_w lives in"]
            counts[kind if well else f"{kind}: PROMISE BROKEN"] += 1
    total = ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))
    well = not any("BROKEN" in what for what in counts)
    print(
        f"{len(points)} plans in {time.monotonic() - start:.0f} s: {total}; "
        f"{'all well' if well else 'NOT ALL WELL'}"
    )
    return well


def plans(count: int, seed: int, limit: float) -> bool:
    """Runs at the border of what fits: accepted ones are never killed for memory."""
    return try_points(grid()[:count], limit)
