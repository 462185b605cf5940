"""Doing the damage and counting the survivors: scripts/chaos NAME [--count N] [--seed S].

Every kind is a function in `KINDS` from (count, seed, time limit) to the lines of a table and
whether all went well. What breaks is reported with the seed and number that break it.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from gmkcf_dask.compute.tiled import TiledKernels
from gmkcf_dask.errors import DamagedStoreError, StoreError
from gmkcf_dask.methods.gmkcf import Gmkcf
from gmkcf_dask.store.kernel_store import KernelStore
from gmkcf_dask.store.lock import LockInfo, lock_path
from helpers.chaos.fit import fit_kills, scheduler_kills, worker_kills
from helpers.chaos.fuzz import fuzz
from helpers.chaos.plans import plans
from helpers.chaos.store import store as damaged_stores
from helpers.damage import (
    DAMAGES,
    HERE,
    content,
    corpus,
    flip_bit,
    same_store,
    start_build,
    store_at,
)
from helpers.faulty import run as gmkcf

THREADS = ("--cluster", "threads")


class Clock:
    """Stops a loop when its time is over; what was done until then still counts."""

    def __init__(self, limit: float) -> None:
        self.start, self.limit = time.monotonic(), limit

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.start

    @property
    def over(self) -> bool:
        return self.seconds > self.limit


# flips: damage to files of a store


def flips(count: int, seed: int, limit: float) -> bool:
    """Tiles flipped, truncated, deleted, swapped: found by verify and by fit, and repaired."""
    clock, rng = Clock(limit), np.random.default_rng(seed)
    counts: dict[str, Counter[str]] = {kind: Counter() for kind in (*DAMAGES, *_OTHER_FILES)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s.zarr"
        store_at(path, n=120)
        clean = content(path)
        for number in range(count):
            if clock.over:
                break
            kind = list(counts)[number % len(counts)]
            counts[kind]["done"] += 1
            if kind in DAMAGES:
                counts[kind].update(_damage_tile(path, kind, rng))
            else:
                counts[kind].update(_damage_file(path, kind, rng))
            if content(path) != clean or gmkcf("verify", path, *THREADS)[0] != 0:
                print(f"number {number} of seed {seed}: {kind} was not made good")
                return False
    columns = ("done", "verify", "fit", "repaired", "cannot be, and said so", "mended or said")
    informal = {"repaired", "cannot be, and said so"}
    return _table(counts, columns, clock, informal=informal)


def _damage_tile(path: Path, kind: str, rng: np.random.Generator) -> Counter[str]:
    before = content(path)
    bad = DAMAGES[kind](path, rng)
    code, said = gmkcf("verify", path, *THREADS)
    named = [line for line in said.splitlines() if line.startswith("kernel ")]
    expected = {f"kernel {kernel} tile {tile} " for kernel, tile in bad}
    found = code == 4 and len(named) == len(expected)
    found = found and all(any(line.startswith(start) for line in named) for start in expected)
    fit = _fit_is_stopped(path, bad)
    gmkcf("repair", path, *THREADS)
    return _found(verify=found, fit=fit, repaired=content(path) == before)


def _fit_is_stopped(path: Path, bad: list[tuple[str, tuple[int, int]]]) -> bool:
    try:
        Gmkcf(2, max_iter=1).fit(TiledKernels(KernelStore.open(path), HERE), [0])
    except DamagedStoreError as error:
        said = str(error)
        return f"gmkcf repair {path}" in said and any(
            f"tile {tile} of kernel {kernel} " in said for kernel, tile in bad
        )
    return False


_OTHER_FILES = {
    "manifest": lambda path: [path / "manifest.json"],
    "zarr.json": lambda path: sorted(path.glob("*/*/zarr.json")) + sorted(path.glob("zarr.json")),
}


def _damage_file(path: Path, kind: str, rng: np.random.Generator) -> Counter[str]:
    """A flipped bit in a small file; what cannot be made again is put back by hand."""
    files = _OTHER_FILES[kind](path)
    victim = files[int(rng.integers(len(files)))]
    whole = victim.read_bytes()
    flip_bit(victim, rng)
    verify = gmkcf("verify", path, *THREADS)[0] == 4
    try:
        KernelStore.open(path)
        fit = False
    except StoreError:
        fit = True
    lost = kind == "manifest" or "features" in victim.parts
    code = gmkcf("repair", path, *THREADS)[0]
    mended = code == 0 and victim.read_bytes() == whole
    victim.write_bytes(whole)
    return _found(verify=verify, fit=fit, repaired=mended, said=lost and code == 4)


def _found(*, verify: bool, fit: bool, repaired: bool, said: bool = False) -> Counter[str]:
    counts = {"repaired": repaired, "cannot be, and said so": said}
    return Counter({"verify": verify, "fit": fit, **counts, "mended or said": repaired or said})


# build-kills: kill -9 of a building process


def build_kills(count: int, seed: int, limit: float) -> bool:
    """Builds killed (kill -9) while they hold the lease, each resumed: the bytes of a clean one."""
    clock, rng = Clock(limit), np.random.default_rng(seed)
    counts: dict[str, Counter[str]] = {kind: Counter() for kind in _BUILDS}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        x, path = folder / "x.npy", folder / "s.zarr"
        np.save(x, corpus(700).X.toarray())
        clean, took = {}, {}
        for kind, more in _BUILDS.items():
            clean[kind] = folder / f"{kind}.zarr"
            took[kind] = _undisturbed(x, clean[kind], (*_BUILD, *more))
        kept = {"x.npy", *(one.name for one in clean.values())}
        for number in itertools.count():
            kind = list(_BUILDS)[number % len(_BUILDS)]
            found, options = counts[kind], (*_BUILD, *_BUILDS[kind])
            if sum(one["done"] for one in counts.values()) >= count or clock.over:
                break
            _killed_build(x, path, options, rng.random() * took[kind])
            # one that had given its lease back was done: it is no kill of a build
            came = "done" if lock_path(path).exists() else "too late"
            found[came] += 1
            found["begun"] += came == "done" and path.exists()
            # the writer is provably dead, unless it was killed while it wrote its lease
            torn = came == "done" and LockInfo.read(lock_path(path)) is None
            if torn:
                os.utime(lock_path(path), (1, 1))
            code, said = gmkcf("build", x, path, *options, *(["--force"] if torn else []))
            if code or not same_store(path, clean[kind]):
                print(f"kill {number} of seed {seed}, {kind}: the store differs\n{said}")
                return False
            left = {entry.name for entry in folder.iterdir()} - {*kept, path.name}
            if came == "done":
                found.update({"resumed": 1, "same bytes": 1, "nothing left over": not left})
            shutil.rmtree(path)
    columns = ("done", "too late", "begun", "resumed", "same bytes", "nothing left over")
    return _table(counts, columns, clock, informal={"too late", "begun"})


_BUILD = ("--block", 32, *THREADS)
_BUILDS: dict[str, tuple[str, ...]] = {
    "three kernels": ("--kernels", "rbf_0.5,rbf_1,cosine"),
    "merged kernels": ("--kernels", "linear,poly_a0_b1,cosine"),
    "by degree": ("--kernels", "rbf_1,cosine", "--normalization", "degree"),
    "with factors": ("--kernels", "local,cosine"),
}
"""By name, options of a build; the kernels of the second are all the same."""


def _killed_build(x: Path, path: Path, options: tuple[object, ...], after: float) -> None:
    """Begin a build and kill it, some time after it took the lease."""
    process = start_build(x, path, *options)
    while process.poll() is None and not lock_path(path).exists():
        time.sleep(0.002)
    time.sleep(after)
    process.kill()
    process.communicate()


def _undisturbed(x: Path, path: Path, options: tuple[object, ...]) -> float:
    """Build once; returns the seconds for which its lease was held."""
    process, held = start_build(x, path, *options), 0.0
    lease = lock_path(path)
    while process.poll() is None:
        if lease.exists() and not held:
            held = time.monotonic()
        time.sleep(0.005)
    process.communicate()
    return time.monotonic() - held


# tables and the command line


def _table(
    counts: dict[str, Counter[str]],
    columns: tuple[str, ...],
    clock: Clock,
    informal: set[str] = frozenset(),  # type: ignore[assignment]
) -> bool:
    """Print counts; all well where every column that counts equals what was done."""
    width = max(map(len, counts)) + 2
    print(" " * width + "".join(f"{name:>{len(name) + 3}}" for name in columns))
    for kind, found in counts.items():
        row = "".join(f"{found[name]:>{len(name) + 3}}" for name in columns)
        print(f"{kind:<{width}}{row}")
    done = sum(found["done"] for found in counts.values())
    well = all(
        found[name] == found["done"]
        for found in counts.values()
        for name in columns
        if name not in informal
    )
    print(f"{done} in {clock.seconds:.0f} s: {'all well' if well else 'NOT ALL WELL'}")
    return well and done > 0


def _fuzz(count: int, seed: int, limit: float) -> bool:
    """Malformed input files over all readers."""
    findings = fuzz(count, seed, limit=limit)
    for finding in findings:
        print(finding)
    return not findings


KINDS: dict[str, tuple[Callable[[int, int, float], bool], int]] = {
    "flips": (flips, 300),  # 200 of them tiles, the others small files
    "build-kills": (build_kills, 50),
    "fit-kills": (fit_kills, 50),
    "worker-kills": (worker_kills, 20),
    "scheduler-kills": (scheduler_kills, 5),
    "fuzz": (_fuzz, 10_000),
    "plans": (plans, 1000),  # of the grid, that is all
    "store": (damaged_stores, 1000),  # all cases
}
"""By name, the function and how many it does unless told."""


def main() -> int:
    """Parse, run one kind, say how it went by the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = "; ".join(f"{name}: {kind.__doc__}" for name, (kind, _) in KINDS.items())
    parser.add_argument("name", choices=list(KINDS), help=names)
    parser.add_argument("--count", type=int, help="how often")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=20.0, help="stop after this time")
    parser.add_argument("--only", default="", help="store: cases with this in KIND:WAY")
    args = parser.parse_args()
    kind, count = KINDS[args.name]
    if args.only:
        if args.name != "store":
            parser.error("--only is for store")
        kind = partial(damaged_stores, only=args.only)
    warnings.simplefilter("ignore")  # tiny problems do not converge, and that is no matter here
    return 0 if kind(args.count or count, args.seed, 60 * args.minutes) else 1


if __name__ == "__main__":
    sys.exit(main())
