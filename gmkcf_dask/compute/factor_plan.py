"""Plan a job on factored kernels: bytes and time grow with n, not with n²."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gmkcf_dask.compute import costs
from gmkcf_dask.compute.costs import PROCESS_BYTES, Job
from gmkcf_dask.compute.plan import Plan, Residency
from gmkcf_dask.errors import DiskRefused, PlanRefused
from gmkcf_dask.kernels.factored import FactorKind, heat_rank, local_rank
from gmkcf_dask.kernels.neighbours import n_neighbours
from gmkcf_dask.kernels.tiling import FACTOR_ROWS
from gmkcf_dask.system import html
from gmkcf_dask.system.units import MIB, ceil_div, human_bytes, human_time

STEPS = 5
"""Arrays of smoothed features: 0 to 4 steps of the walk."""
MEMORY_TENTHS = 4
"""Of the free memory of this process, what factors may take before workers hold them."""
NEIGHBOUR_US, SMOOTH_US = 350, 120
"""Measured microseconds per sample and core: neighbours by an index, and all other stages."""
ADDITIONS_PER_MS = 1_000_000
"""Of the exact search for neighbours, on one core."""
ITERATIONS = 6
"""That a fit with the default tolerance takes, about."""


@dataclass(frozen=True)
class OwnFactor:
    """A factor that the user brings, or that the features are. Bytes in memory, and counts."""

    n_bytes: int
    entries: int
    """Numbers that a product multiplies."""
    columns: int
    stored_bytes: int

    @classmethod
    def of(
        cls, shape: tuple[int, int], entries: int | None, size: int, *, written: bool
    ) -> OwnFactor:
        """Of a shape with so many entries, None for all; `written` if a store keeps its own."""
        n, columns = shape
        if entries is None:
            entries, n_bytes = n * columns, n * columns * size
        else:
            n_bytes = entries * (size + 4) + 8 * n
        return cls(n_bytes, entries, columns, n_bytes if written else 0)


@dataclass(frozen=True)
class FactorSizes:
    """What factored kernels take. Counts, and bytes where said.

    Attributes
    ----------
    rank : int
        Columns of the stored arrays.
    used : int
        Columns of all factors together that a fit uses.
    arrays : int
        Stored arrays of n rows and `rank` columns.
    """

    n: int
    n_features: int
    n_kernels: int
    n_clusters: int
    rank: int
    used: int
    arrays: int
    n_neighbours: int
    feature_bytes: int
    own: tuple[OwnFactor, ...] = ()
    """Given factors, and features that are factors."""
    additions: int | None = None
    """Of the exact search for the neighbours of sparse rows; None where it is another."""
    index_terms: int | None = None
    """Terms of a row that an index keeps; None where the search is exact."""

    @property
    def stored_bytes(self) -> int:
        """On disk, before compression."""
        rows = self.n * (self.arrays * self.rank * 4 + self.n_neighbours * 8)
        own = sum(factor.stored_bytes for factor in self.own)
        return rows + own + self.n_features * self.rank * 4

    @property
    def factor_bytes(self) -> int:
        """The factors of a fit in memory, and one array they are made from."""
        return 4 * self.n * (self.used + self.rank) + sum(factor.n_bytes for factor in self.own)

    @property
    def entries(self) -> int:
        """Numbers that a product with all kernels multiplies."""
        return self.n * self.used + sum(factor.entries for factor in self.own)

    @property
    def columns(self) -> int:
        """Of all factors together: a product with them has a row for each."""
        return self.used + sum(factor.columns for factor in self.own)

    @property
    def search_bytes(self) -> int:
        """What a process needs to search neighbours: rows and index in float32, sums per thread."""
        if not self.n_neighbours:
            return 0
        return 2 * self.feature_bytes + 16 * self.n

    @property
    def smooth_bytes(self) -> int:
        """The walk with its temporaries, an array and its successor, and the directions."""
        walk = 12 * 2 * self.n_neighbours * self.n * 4
        return walk + 3 * 4 * self.n * self.rank + 6 * 8 * self.n_features * (self.rank + 10)


def factor_sizes(
    kinds: Mapping[str, FactorKind],
    n: int,
    n_features: int,
    n_clusters: int,
    most: int,
    feature_bytes: int,
    given_columns: int = 0,
    own: Sequence[OwnFactor] = (),
    *,
    additions: int | None = None,
    index_terms: int | None = None,
) -> FactorSizes:
    """What factored kernels take; local ones have columns for `most` clusters, `own` their own.

    Of given ones that are dense and float32 the number of all columns will do.
    """
    if given_columns:
        own = (*own, OwnFactor.of((n, given_columns), None, 4, written=True))
    p = max(1, n_neighbours(n))
    count = Counter(kinds.values())
    rank = used = arrays = near = 0
    if count["heat"]:
        rank, arrays, near = heat_rank(n, most), count["heat"], 2 * p
        used = count["heat"] * heat_rank(n, n_clusters)
    elif count["local"]:
        rank, arrays, near = local_rank(n, max(1, n_features), most), STEPS, p
        used = count["local"] * local_rank(n, max(1, n_features), n_clusters)
    return FactorSizes(
        n, n_features, len(kinds), n_clusters, rank, used, arrays, near, feature_bytes, tuple(own),
        additions, index_terms,
    )  # fmt: skip


@dataclass(frozen=True)
class FactorPlan:
    """The costs of one job on factored kernels. Bytes unless noted otherwise."""

    n: int
    n_features: int
    n_kernels: int
    n_clusters: int
    block: int
    stored_bytes: int
    feature_bytes: int
    factor_bytes: int
    kernels_in_memory: bool
    read_per_iteration: int
    worker_peak_bytes: int
    driver_bytes: int
    n_workers: int
    threads_per_worker: int
    memory_per_worker: int
    disk_needed: int
    disk_free: int | None
    one_process: bool
    build_ms: int
    iteration_ms: int
    job: str = "gmkcf"
    precision: str = "float32"
    residency: Residency = "recompute"
    kw_bytes: int = 0
    prefetch_bytes: int = 0
    search: str = ""
    """How neighbours are searched; empty where they are not."""
    tiles: Plan | None = None

    @property
    def machine_bytes(self) -> int:
        """Planned for all processes that are started here."""
        tiles = 0 if self.tiles is None else self.tiles.machine_bytes
        if self.one_process:
            return self.worker_peak_bytes + self.driver_bytes - PROCESS_BYTES + tiles
        return self.n_workers * self.worker_peak_bytes + self.driver_bytes + tiles

    def lines(self) -> list[str]:
        """The plan as a person reads it."""
        b = human_bytes
        disk = "" if self.disk_free is None else f" (free: {b(self.disk_free)})"
        where = "the memory of this process" if self.kernels_in_memory else "the store, every sweep"
        lines = [
            f"samples {self.n:,}, features {self.n_features:,}, kernels {self.n_kernels}, clusters "
            f"{self.n_clusters}",
            *([f"neighbours: {self.search}"] if self.search else []),
            f"kernels are factored, {b(self.factor_bytes)}; factors come from {where}",
            f"disk: at most {b(self.disk_needed)}{disk}",
            f"per iteration of {self.job}: {b(self.read_per_iteration)} touched, about "
            f"{human_time(self.iteration_ms)}",
            f"workers: {self.n_workers} × {self.threads_per_worker} threads × "
            f"{b(self.memory_per_worker)}, planned peak {b(self.worker_peak_bytes)} each; driver "
            f"{b(self.driver_bytes)}",
            f"time: about {human_time(self.build_ms)} to build once the input is read, "
            f"{human_time(ITERATIONS * self.iteration_ms)} to fit in {ITERATIONS} iterations",
        ]
        return lines if self.tiles is None else [*lines, *self.tiles.lines()[1:]]

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        return html.block("Plan", html.titled(self.lines()))


def make_factor_plan(
    sizes: FactorSizes,
    *,
    n_workers: int,
    threads_per_worker: int,
    memory_per_worker: int,
    one_process: bool,
    free_memory: int,
    disk_free: int | None = None,
    built: bool = False,
    job: Job | None = None,
    block: int | None = None,
    tiles: Plan | None = None,
) -> FactorPlan:
    """The plan of a job; refused where it does not fit.

    Parameters
    ----------
    sizes : FactorSizes
    free_memory : int
        Bytes that are free for this process.
    built : bool
        Whether the arrays are there already.
    """
    # eigenvectors of factors come from a small matrix, without a basis of n rows
    job = replace(job or Job(sizes.n_clusters), spectral=False)
    n, k = sizes.n, sizes.n_clusters
    method = costs.method_bytes(job, n, sizes.n_kernels) + costs.block_bytes(n, 12 * k)
    limited = one_process and 0 < memory_per_worker < free_memory
    free = memory_per_worker if limited else free_memory
    in_memory = sizes.factor_bytes <= free * MEMORY_TENTHS // 10
    fit = method + (sizes.factor_bytes if in_memory else 0)
    build = 0 if built else max(sizes.smooth_bytes, 0)
    rows = 3 * FACTOR_ROWS * sizes.entries * 8 // n if sizes.own else FACTOR_ROWS * 12 * sizes.used
    rows += 4 * FACTOR_ROWS * 8 * k + 6 * 8 * sum(own.columns for own in sizes.own) * k
    search = 0 if built else sizes.search_bytes
    worker = PROCESS_BYTES + max(search, threads_per_worker * rows) + 64 * MIB
    driver = PROCESS_BYTES + max(fit, build) + 2 * sizes.feature_bytes + 1024 * n
    need = 0 if built else sizes.stored_bytes + sizes.feature_bytes
    if disk_free is not None and need > disk_free:
        raise DiskRefused(
            f"the store needs up to {human_bytes(need)} of disk but {human_bytes(disk_free)} are "
            "free: free some, or choose another place"
        )
    if not one_process and memory_per_worker and worker > memory_per_worker:
        raise PlanRefused(
            f"a worker needs {human_bytes(worker)} of memory to search the neighbours of {n:,} "
            f"samples but has {human_bytes(memory_per_worker)}: give workers more memory, or use "
            "fewer of them"
        )
    need_here = worker + driver - PROCESS_BYTES if one_process else driver
    if need_here > free:
        there_is = "it may use" if limited else "there is"
        raise PlanRefused(
            f"this process needs {human_bytes(need_here)} of memory for the factors of {n:,} "
            f"samples and {job.words()} with {k} clusters, but {there_is} {human_bytes(free)}: "
            "give more memory, or use fewer clusters"
        )
    threads = max(1, n_workers * threads_per_worker)
    touched = 4 * sizes.entries * 6
    flops = 2 * 2 * sizes.entries * 2 * k * 6
    return FactorPlan(
        n=n,
        n_features=sizes.n_features,
        n_kernels=sizes.n_kernels,
        n_clusters=k,
        block=block or FACTOR_ROWS,
        stored_bytes=sizes.stored_bytes,
        feature_bytes=sizes.feature_bytes,
        factor_bytes=sizes.factor_bytes,
        kernels_in_memory=in_memory,
        read_per_iteration=touched,
        worker_peak_bytes=worker,
        driver_bytes=driver,
        n_workers=n_workers,
        threads_per_worker=threads_per_worker,
        memory_per_worker=memory_per_worker,
        disk_needed=need,
        disk_free=disk_free,
        one_process=one_process,
        build_ms=0 if built else _build_ms(sizes, threads),
        iteration_ms=flops // (costs.FLOPS_PER_MS * threads),
        job=job.method,
        search="" if built else _search(sizes),
        tiles=tiles,
    )


def _build_ms(sizes: FactorSizes, threads: int) -> int:
    if not sizes.n_neighbours:
        return 0
    if sizes.additions is not None and sizes.index_terms is None:
        search = sizes.additions // (ADDITIONS_PER_MS * threads)
    else:
        search = ceil_div(sizes.n * NEIGHBOUR_US, 1000 * threads)
    return search + sizes.n * SMOOTH_US // 1000


def _search(sizes: FactorSizes) -> str:
    if not sizes.n_neighbours:
        return ""
    if sizes.index_terms is None:
        return "exact search"
    return f"searched by the {sizes.index_terms} heaviest terms of each sample"
