"""Plans at the border of what fits: accepted ones run to their end, the others never begin.

Every point of a listed grid is planned, then the command `gmkcf run` is started for it with worker
processes of that memory. A run that was accepted must end well, with the workers it began with, and
every process must stay within the bytes that were planned for it. A run that was refused must say
so with exit code 3 before a worker is started or a file is written.

Then every method runs with one restart and with many, on one kernel and on all where it takes one,
on threads and on worker processes: no process may take more than was planned for it.
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

from gmkcf_dask.cluster.resources import Resources
from gmkcf_dask.compute.costs import PROCESS_BYTES
from gmkcf_dask.compute.plan import Plan
from gmkcf_dask.compute.runner import Runner
from gmkcf_dask.corpus import Corpus, read_corpus
from gmkcf_dask.errors import PlanRefused
from gmkcf_dask.kernels.specs import Layout
from gmkcf_dask.kernels.tiling import Precision
from gmkcf_dask.pipeline import request_plan
from gmkcf_dask.results.run_folder import read_result
from gmkcf_dask.store.request import KernelRequest
from gmkcf_dask.system.units import MIB
from helpers.corpora import bank, text_like
from helpers.faulty import environment

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
from gmkcf_dask.pipeline import planning
before, after = map(int, sys.argv[1:3])
planning.free_disk = lambda path: after if path.exists() else before
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
    layout: Layout = "each"

    def plan(self, corpus: Corpus, disk_free: int) -> Plan:
        """What the plan says, or PlanRefused."""
        request = KernelRequest(corpus, bank(self.m), precision=self.precision, layout=self.layout)
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
        "layout": point.layout,
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
        how = ("--precision", point.precision, "--layout", point.layout)
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
    peaks = [*found.workers.values(), *result.bytes.worker_peaks]
    limit = plan.memory_per_worker * KILLED_HUNDREDTHS // 100
    wrong = {
        f"{len(found.workers)} WORKERS, NOT {plan.n_workers}": (
            len(found.workers) != plan.n_workers
        ),
        "ANOTHER PLAN": any(
            result.plan[name] != getattr(plan, name) for name in ("residency", "block")
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


@dataclass(frozen=True)
class Fit:
    """A method with its restarts and kernels, and where it runs."""

    method: str
    n_init: int
    kernel: str | None
    cluster: str

    @property
    def options(self) -> tuple[object, ...]:
        short = {"gmkcf": 2, "kcf": 2, "kkm": 2, "rmkkm": 2, "coreg": 1}.get(self.method)
        restarts = ("--n-init", self.n_init) if self.method in RESTARTED else ()
        kernel = ("--kernel", self.kernel) if self.kernel else ()
        iterations = ("--max-iter", short) if short else ()
        return ("--method", self.method, *restarts, *kernel, *iterations)


RESTARTED = ("gmkcf", "kcf", "kkm", "rmkkm")
"""Methods that have restarts; sc and coreg depend on no seed before K-means."""
SAMPLES, CLUSTERS, KERNELS = 1500, 40, 12


def fits() -> list[Fit]:
    """All six methods × restarts × one or all kernels × threads and local."""
    return [
        Fit(method, n_init, kernel, cluster)
        for cluster in ("threads", "local")
        for method in ("gmkcf", "kcf", "kkm", "sc", "coreg", "rmkkm")
        for n_init in ((1, 20) if method in RESTARTED else (1,))
        for kernel in (("mean", "all") if method in ("kcf", "kkm", "sc") else (None,))
    ]


def try_fit(fit: Fit, folder: Path) -> tuple[dict[str, str], bool]:
    """A row of the table, and whether all processes stayed within their plan."""
    data = _data(Point(SAMPLES, KERNELS, "float32", 1, 0), folder)
    with tempfile.TemporaryDirectory(dir=folder) as name:
        out = Path(name)
        kernels = ",".join(spec.name for spec in bank(KERNELS))
        job = ("run", data, "-k", CLUSTERS, "--kernels", kernels, "--out", out / "run")
        where = ("--cluster", fit.cluster, "--workers", 2)
        command = (sys.executable, "-m", "gmkcf_dask.cli", *job, *where, *fit.options)
        found = watch(command, out)
        wrong, plan = [f"EXIT CODE {found.code}: {found.said.strip()[-200:]}"], None
        if found.code == 0:
            several = fit.kernel == "all"
            plan = read_result(out / "run" / ("cosine" if several else "")).plan
            wrong = _beyond(found, plan)
    peaks, driver = list(found.workers.values()), 0
    if plan is not None:
        driver = _driver_planned(plan)
    row = {
        "method": fit.method,
        "n-init": str(fit.n_init),
        "kernel": fit.kernel or "–",
        "cluster": fit.cluster,
        "together": "–" if plan is None else f"{plan['runs_together']} of {plan['runs']}",
        "driver planned": _mib(driver),
        "driver": _mib(found.driver),
        "worker planned": _mib(plan["worker_peak_bytes"]) if plan and peaks else "–",
        "worker": _mib(max(peaks)) if peaks else "–",
        "verdict": "; ".join(wrong) or "held",
    }
    return row, not wrong


def _driver_planned(plan: dict[str, int]) -> int:
    """Of the first process: on threads it does the work of a worker as well."""
    if not plan["one_process"]:
        return plan["driver_bytes"]
    return plan["worker_peak_bytes"] + plan["driver_bytes"] - PROCESS_BYTES


def _beyond(found: Watched, plan: dict[str, int]) -> list[str]:
    wrong = {
        "DRIVER LARGER THAN PLANNED": found.driver > _driver_planned(plan),
        "WORKER LARGER THAN PLANNED": max(found.workers.values(), default=0)
        > plan["worker_peak_bytes"],
    }
    return [sentence for sentence, true in wrong.items() if true]


def try_fits(every: Sequence[Fit], limit: float = float("inf")) -> bool:
    """Print a line for every fit and a last one with counts; whether all went well."""
    start, held, tried, shown = time.monotonic(), 0, 0, False
    with tempfile.TemporaryDirectory(prefix="gmkcf-plans-") as folder:
        for fit in every:
            if time.monotonic() - start > limit:
                break
            row, well = try_fit(fit, Path(folder))
            tried, held = tried + 1, held + well
            if not shown:
                print("|", " | ".join(row), "|\n|", " | ".join("---" for _ in row), "|")
                shown = True
            print("|", " | ".join(row.values()), "|", flush=True)
    print(
        f"{tried} of {len(every)} fits in {time.monotonic() - start:.0f} s: {held} within their "
        f"plan; {'all well' if held == tried else 'NOT ALL WELL'}"
    )
    return held == tried


def plans(count: int, seed: int, limit: float) -> bool:
    """Runs at the border of what fits: accepted ones are never killed for memory."""
    start = time.monotonic()
    methods = try_fits(fits()[:count], limit)
    return try_points(grid()[:count], limit - (time.monotonic() - start)) and methods


def main() -> None:
    """The methods alone: `python -m helpers.chaos.plans`."""
    raise SystemExit(0 if try_fits(fits()) else 1)


if __name__ == "__main__":
    main()
