"""Plan a job before it runs: sizes → costs → plan, all in whole numbers.

Nothing here touches data. Every term of a cost is a function with a name (`costs`), and
`tests/unit/test_plan.py` spells the sums out again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Literal, Protocol

from gmkcf_dask.compute import costs
from gmkcf_dask.compute.costs import (
    COMPUTED_BYTES,
    PROCESS_BYTES,
    SCHEDULER_BYTES,
    Job,
    StoredGram,
    Traffic,
    resident_bytes,
    wanted_prefetch_bytes,
)
from gmkcf_dask.errors import DiskRefused, InputError, PlanRefused
from gmkcf_dask.kernels.tiling import (
    LARGEST_BLOCK,
    SMALLEST_BLOCK,
    STORED_BYTES,
    Precision,
    Tiling,
    default_block,
)
from gmkcf_dask.system import html
from gmkcf_dask.system.units import GIB, MIB, ceil_div, human_bytes, human_time

Residency = Literal["memory", "scratch", "recompute"]

SPILL_TENTHS = 6
"""Dask starts to spill at 60 % of a worker's memory: everything planned stays below that."""
GRAPHS_PER_ITERATION = 3


@dataclass(frozen=True)
class Machine:
    """Where a job runs: the workers, and the disk the store is on. See `make_plan`."""

    n_workers: int
    threads_per_worker: int
    memory_per_worker: int
    disk_free: int | None
    scratch: bool
    remote: bool
    one_process: bool

    @property
    def budget(self) -> int:
        """Bytes a worker may use before Dask spills."""
        return self.memory_per_worker * SPILL_TENTHS // 10

    @property
    def n_threads(self) -> int:
        return self.n_workers * self.threads_per_worker


@dataclass(frozen=True)
class Sizes:
    """What a job works on, and the sizes that follow from it alone. See `make_plan`."""

    n: int
    n_features: int
    n_kernels: int
    n_clusters: int
    feature_bytes: int
    precision: Precision
    tiling: Tiling
    job: Job
    signed: bool
    tiles_stored: int
    largest_rows: Callable[[int], int] | None
    gram: StoredGram | None = None
    gram_instead: StoredGram | None = None

    @property
    def itemsize(self) -> int:
        """Bytes of one entry inside a product."""
        return COMPUTED_BYTES[self.precision]

    @property
    def n_arrays(self) -> int:
        """Arrays of tiles that a sweep over all kernels reads."""
        return self.n_kernels if self.gram is None else 1 + self.gram.beside

    @property
    def entries(self) -> int:
        """Entries of all tiles of one kernel, padded to full tiles."""
        return self.tiling.n_tiles * self.tiling.block**2

    @property
    def kernel_bytes(self) -> int:
        """What is read of one kernel alone."""
        return self.entries * costs.largest_entry(self.precision, self.gram)

    @property
    def entry_bytes(self) -> int:
        """What is stored of all kernels for a pair of samples."""
        return costs.entry_bytes(self.n_kernels, self.precision, self.gram)

    @property
    def stored_bytes(self) -> int:
        """All kernels as stored."""
        return self.entries * self.entry_bytes

    @property
    def unwritten_entries(self) -> int:
        """Those of one array that are not on disk yet."""
        return self.entries - self.tiles_stored * self.tiling.block**2

    @property
    def unwritten_bytes(self) -> int:
        """The tiles that are not on disk yet."""
        return self.unwritten_entries * self.entry_bytes

    @property
    def kw_bytes(self) -> int:
        """The fused kernel."""
        return self.entries * self.itemsize

    @property
    def tiles_per_task(self) -> int:
        return self.tiling.tiles_per_task(self.itemsize)

    @property
    def process_bytes(self) -> int:
        """Of a worker without its tasks."""
        return PROCESS_BYTES + costs.evaluating_process_bytes(self.n_kernels, self.gram)

    @property
    def build_task_bytes(self) -> int:
        """Peak of one building task, on the row block with the largest features."""
        block = self.tiling.block
        if self.largest_rows is None:
            rows = ceil_div(self.feature_bytes * min(block, self.n), self.n)
        else:
            rows = self.largest_rows(block)
        return costs.build_task_bytes(min(block, self.n), rows)

    @property
    def fit_task_bytes(self) -> int:
        """Peak of one task of a sweep."""
        columns = costs.worker_columns(self.job, self.n)
        return costs.fit_task_bytes(self.tiling, columns, self.precision, self.n_kernels, self.gram)

    @property
    def summing_bytes(self) -> int:
        """Partial products that wait on one worker to be summed."""
        columns = costs.worker_columns(self.job, self.n)
        return costs.summing_bytes(self.n, (2 if self.signed else 1) * columns, self.gram)


def worker_fit_bytes(sizes: Sizes, machine: Machine) -> int:
    """Peak of a worker during a fit, without what it keeps between tasks."""
    tasks = machine.threads_per_worker * sizes.fit_task_bytes
    return sizes.process_bytes + tasks + sizes.summing_bytes


def worker_bytes(sizes: Sizes, machine: Machine) -> int:
    """Peak of a worker over both stages: building is over before a fit begins."""
    building = sizes.process_bytes + machine.threads_per_worker * sizes.build_task_bytes
    return max(building, worker_fit_bytes(sizes, machine))


def tiles_read_at_once(sizes: Sizes, machine: Machine) -> int:
    """Tiles that the tasks of one worker read together from an object store."""
    return machine.threads_per_worker * sizes.tiles_per_task * sizes.n_arrays * machine.remote


def driver_bytes(sizes: Sizes, machine: Machine, *, in_memory: bool) -> int:
    """The driver with its method, products in flight, and Dask's scheduler where there is one."""
    job, n, m = sizes.job, sizes.n, sizes.n_kernels
    flight = costs.flight_bytes(
        job,
        sizes.tiling,
        m,
        sizes.itemsize,
        signed=sizes.signed,
        in_memory=in_memory,
        by_tree=sizes.gram is not None,
    )
    own = costs.driver_base_bytes(n, sizes.n_clusters, m, sizes.feature_bytes, sizes.n_features)
    tables = costs.driver_table_bytes(m, sizes.gram, in_memory=in_memory)
    scheduler = 0 if machine.one_process else SCHEDULER_BYTES
    return own + costs.method_bytes(job, n, m) + flight + tables + scheduler


def disk_bytes(sizes: Sizes, residency: Residency) -> int:
    """What is still to be written: tiles, features, and two fused kernels in scratch space."""
    features = 0 if sizes.tiles_stored else sizes.feature_bytes
    scratch = 2 * sizes.kw_bytes if residency == "scratch" else 0
    return sizes.unwritten_bytes + features + scratch


def network_traffic(sizes: Sizes, machine: Machine) -> Traffic:
    """Bytes that travel in one iteration; none inside one process."""
    if machine.one_process:
        return Traffic(0, 0)
    return costs.iteration_traffic(
        sizes.tiling,
        sizes.itemsize,
        sizes.n_clusters,
        machine.n_workers,
        signed=sizes.signed,
        gram=sizes.gram,
    )


def build_ms(sizes: Sizes, machine: Machine) -> int:
    """Milliseconds of building what is not on disk yet."""
    built = sizes.unwritten_bytes
    if sizes.gram is not None:
        beside = sizes.gram.beside * STORED_BYTES[sizes.precision]
        built = sizes.unwritten_entries * (costs.BUILT_GRAM_BYTES + beside)
    return built // (costs.BUILD_BYTES_PER_MS * machine.n_threads)


def evaluation_ms(sizes: Sizes, machine: Machine, residency: Residency) -> int:
    """Milliseconds of evaluating kernels from a Gram matrix in one iteration."""
    if sizes.gram is None:
        return 0
    sweeps = costs.sweeps_per_iteration(sizes.job, sizes.n, sizes.n_kernels)
    fused_again = residency == "recompute"
    each = costs.evaluation_ps(
        sizes.gram, sizes.job, sweeps, sizes.n_kernels, fused_again=fused_again
    )
    return ceil_div(sizes.entries * each, 10**9 * machine.n_threads)


def iteration_ms(sizes: Sizes, machine: Machine, residency: Residency, *, in_memory: bool) -> int:
    """Milliseconds of one iteration of the runs that go together: bytes, products, graphs.

    With layout gram kernels are evaluated besides.
    """
    sweeps = costs.sweeps_per_iteration(sizes.job, sizes.n, sizes.n_kernels)
    fused = sizes.stored_bytes if residency == "recompute" else sizes.kw_bytes
    if sizes.job.n_alone > 1:
        fused = sizes.job.n_alone * sizes.kernel_bytes
    touched = sweeps.kernels * sizes.stored_bytes + sweeps.fused * fused
    rate = costs.MEMORY_BYTES_PER_MS if in_memory else costs.store_rate(sizes.gram)
    flops = 2 * sizes.n**2 * sweeps.columns
    graphs = 0 if in_memory else (sweeps.kernels + sweeps.fused) * costs.GRAPH_MS
    return (
        ceil_div(touched, rate * machine.n_threads)
        + ceil_div(flops, costs.product_rate(sizes.gram) * machine.n_threads)
        + graphs
        + evaluation_ms(sizes, machine, residency)
    )


@dataclass(frozen=True)
class Memory:
    """What workers and driver hold for one choice of residency."""

    kernels_in_memory: bool
    prefetch_bytes: int
    worker_peak_bytes: int
    driver_bytes: int

    @property
    def one_process_bytes(self) -> int:
        """Worker and driver as threads of the same process."""
        return self.worker_peak_bytes + self.driver_bytes - PROCESS_BYTES


def memory_for(sizes: Sizes, machine: Machine, residency: Residency) -> Memory:
    """Memory of a fit; kernels live in it where one process has room for all of them.

    The fused kernel lives there too, unless it is fused again from a Gram matrix.
    """
    fitting = worker_fit_bytes(sizes, machine)
    keep_fused = residency == "memory"
    all_kernels = costs.tiled_bytes(
        sizes.tiling, sizes.n_kernels, sizes.precision, sizes.gram, keep_fused=keep_fused
    )
    with_driver = fitting + all_kernels + driver_bytes(sizes, machine, in_memory=True)
    in_memory = (
        machine.one_process
        and (keep_fused or (residency == "recompute" and sizes.gram is not None))
        and fitting + all_kernels <= machine.budget
        and with_driver - PROCESS_BYTES <= machine.memory_per_worker
    )
    kept = 0
    if in_memory:
        kept = all_kernels
    elif keep_fused:
        kept = resident_bytes(sizes.kw_bytes, machine.n_workers)
    prefetch = costs.prefetch_bytes(
        sizes.tiling,
        sizes.precision,
        tiles_read_at_once(sizes, machine),
        machine.budget - fitting - kept,
        sizes.gram,
    )
    return Memory(
        in_memory,
        prefetch,
        max(worker_bytes(sizes, machine), fitting + kept + prefetch),
        driver_bytes(sizes, machine, in_memory=in_memory),
    )


def choose_block(sizes: Sizes, machine: Machine, *, fixed: bool) -> Sizes:
    """The sizes with the largest tiles whose tasks fit a worker, or a refusal."""
    while not fixed and worker_bytes(sizes, machine) > machine.budget:
        if sizes.tiling.block < 2 * SMALLEST_BLOCK:
            break
        sizes = replace(sizes, tiling=replace(sizes.tiling, block=sizes.tiling.block // 2))
    need, block = worker_bytes(sizes, machine), sizes.tiling.block
    if need > machine.budget:
        remedies = [
            "give more memory per worker",
            *(["use fewer threads per worker"] if machine.threads_per_worker > 1 else []),
            *(["choose a smaller block size"] if fixed else []),
        ]
        raise PlanRefused(
            f"a worker needs {least_memory(need)} of memory but has "
            f"{human_bytes(machine.memory_per_worker)} (the planned peak of "
            f"{human_bytes(need)}, with tiles of {block}×{block}, must stay below "
            f"{SPILL_TENTHS * 10} % of it, where Dask begins to spill): {' or '.join(remedies)}"
        )
    if min(block, sizes.n) > LARGEST_BLOCK:  # a tile has more entries than BLAS can count
        raise InputError(f"block size must be at most {LARGEST_BLOCK:,}, not {block:,}")
    return sizes


def choose_residency(sizes: Sizes, machine: Machine, forced: Residency | None) -> Residency:
    """Where the fused kernel lives: in memory if it fits, else on disk, else nowhere.

    Nor does it live on disk where the kernels have tables and take no more bytes than it would.
    """
    fitting = worker_fit_bytes(sizes, machine)
    resident = resident_bytes(sizes.kw_bytes, machine.n_workers)
    if forced is not None:
        if forced == "memory" and fitting + resident > machine.budget:
            raise PlanRefused(
                f"the fused kernel needs {human_bytes(resident)} on each worker beside "
                f"{human_bytes(fitting)} of working memory, but only "
                f"{human_bytes(machine.budget)} of {human_bytes(machine.memory_per_worker)} can be "
                "used without spilling: add workers or memory, or let it live in scratch"
            )
        return forced
    # reading the kernels once more is better than waiting for every single tile of them
    reads = tiles_read_at_once(sizes, machine)
    prefetch = wanted_prefetch_bytes(sizes.tiling, sizes.precision, reads, sizes.gram)
    if fitting + resident + prefetch <= machine.budget:
        return "memory"
    if fuses_cheaply(sizes):
        return "recompute"
    free = machine.disk_free
    if machine.scratch and (free is None or disk_bytes(sizes, "scratch") <= free):
        return "scratch"
    return "recompute"


def fuses_cheaply(sizes: Sizes) -> bool:
    """Whether fusing again reads no more than the fused kernel has bytes, at a look-up an entry."""
    gram = sizes.gram
    return gram is not None and gram.by_table and sizes.stored_bytes <= sizes.kw_bytes


def choose_memory(
    sizes: Sizes, machine: Machine, forced: Residency | None
) -> tuple[Residency, Memory]:
    """Where the fused kernel lives, and what memory holds.

    A process that has no room for a Gram matrix and the fused kernel holds the matrix alone where
    fusing again is cheap, or has to be: that spares reading it from the store.
    """
    residency = choose_residency(sizes, machine, forced)
    memory = memory_for(sizes, machine, residency)
    if forced is None and not memory.kernels_in_memory and fuses_cheaply(sizes):
        alone = memory_for(sizes, machine, "recompute")
        if alone.kernels_in_memory:
            return "recompute", alone
    return residency, memory


@dataclass(frozen=True)
class Plan:
    """The costs of one job. Bytes unless noted otherwise; see `make_plan`."""

    n: int
    n_features: int
    n_kernels: int
    n_clusters: int
    precision: Precision
    block: int
    n_tiles: int
    tiles_per_task: int
    stored_bytes: int
    feature_bytes: int
    kw_bytes: int
    residency: Residency
    kernels_in_memory: bool
    read_per_iteration: int
    kernel_sweeps_per_iteration: int
    network_per_iteration: int
    driver_network_per_iteration: int
    build_task_bytes: int
    fit_task_bytes: int
    summing_bytes: int
    prefetch_bytes: int
    worker_peak_bytes: int
    driver_bytes: int
    n_workers: int
    threads_per_worker: int
    memory_per_worker: int
    disk_needed: int
    disk_free: int | None
    job: str = "gmkcf"
    runs: int = 1
    runs_together: int = 1
    one_process: bool = False
    iterations: int = 500
    build_ms: int = 0
    iteration_ms: int = 0
    layout: Literal["each", "gram"] = "each"
    gram_itemsize: int = 0
    gram_by_table: bool = False
    fuses_cheaply: bool = False
    kernels_beside: int = 0
    evaluation_ms: int = 0

    @property
    def machine_bytes(self) -> int:
        """Planned for all processes that are started here, driver and workers on one machine."""
        if self.one_process:
            return self.worker_peak_bytes + self.driver_bytes - PROCESS_BYTES
        return self.n_workers * self.worker_peak_bytes + self.driver_bytes

    def time_line(self) -> str:
        """How long it takes at most, and from what that follows."""
        t, each = human_time, self.iteration_ms
        fitting = self.iterations * each
        building = f"building {t(self.build_ms)}, " if self.build_ms else ""
        return (
            f"time: about {t(self.build_ms + fitting)} once the input is read; {building}"
            f"fitting {t(fitting)} for {self.iterations:,} iterations of {t(each)} (most runs stop "
            f"earlier), from rates per core of {costs.BUILD_BYTES_PER_MS // 1000} MB/s for "
            f"building, {costs.store_rate(self._gram) // 1000:,} MB/s from a store or "
            f"{costs.MEMORY_BYTES_PER_MS // 1000:,} MB/s from memory, "
            f"{costs.product_rate(self._gram) // 1_000_000} GFLOP/s for products"
            f"{self._evaluation_rates()}"
        )

    @property
    def _gram(self) -> StoredGram | None:
        if self.layout == "each":
            return None
        return StoredGram(self.gram_itemsize, self.gram_by_table, self.kernels_beside)

    def _evaluation_rates(self) -> str:
        if self.layout == "each":
            return ""
        if not self.gram_by_table:
            each = f"{costs.BY_FORMULA_PS / 1000:g} ns for an entry of a kernel by its formula"
        else:
            each = (
                f"{costs.LOOKED_UP_PS / 1000:g} ns to look an entry up in a table, "
                f"{costs.ADDED_UP_PS / 1000:g} ns to sum errors by entry"
            )
        return f", {each}"

    def _layout_lines(self) -> list[str]:
        """What kernels are evaluated from, if they are."""
        if self.layout == "each":
            return []
        m, beside = self.n_kernels - self.kernels_beside, self.kernels_beside
        kept = {2: "a code of the distance", 4: "a float32 number", 8: "a float64 number"}
        with_own = f"; {beside} more with tiles of {'their' if beside > 1 else 'its'} own"
        return [
            f"layout gram: {kept[self.gram_itemsize]} of each pair of samples "
            f"({self.gram_itemsize} B), of which {m} kernel{'s are' if m != 1 else ' is'} "
            f"computed in every sweep, by {'table' if self.gram_by_table else 'formula'}"
            f"{with_own if beside else ''}"
        ]

    @property
    def time_class(self) -> str:
        """Rough duration of one iteration with inner_iter=1, from measured rates."""
        threads = self.n_workers * self.threads_per_worker
        if self.kernels_in_memory:
            milliseconds = self.read_per_iteration // (costs.MEMORY_BYTES_PER_MS * threads)
        else:
            milliseconds = self.read_per_iteration // (costs.store_rate(self._gram) * threads)
            milliseconds += GRAPHS_PER_ITERATION * costs.GRAPH_MS
        milliseconds += self.evaluation_ms
        limits = ((1000, "under a second"), (60_000, "seconds"), (3_600_000, "minutes"))
        return next((word for limit, word in limits if milliseconds < limit), "hours")

    def lines(self) -> list[str]:
        """The plan as a person reads it."""
        b = human_bytes
        where = {
            "memory": "kept in the workers' memory",
            "scratch": "written to disk and read again",
            "recompute": "fused again for every product",
        }[self.residency]
        source = "memory, read once" if self.kernels_in_memory else "the store, every sweep"
        ahead = f", of it tiles fetched ahead {b(self.prefetch_bytes)}"
        if not self.prefetch_bytes:
            ahead = ""
        disk = "" if self.disk_free is None else f" (free: {b(self.disk_free)})"
        arrays = "per kernel" if self.layout == "each" else "per array"
        return [
            f"samples {self.n:,}, features {self.n_features:,}, kernels {self.n_kernels}, "
            f"clusters {self.n_clusters}",
            f"tiles: {self.n_tiles:,} of {self.block}×{self.block} {arrays}, {self.precision}, "
            f"{self.tiles_per_task} per task",
            *self._layout_lines(),
            f"disk: at most {b(self.disk_needed)}{disk}, "
            f"of it kernels {b(self.stored_bytes)} before compression",
            f"kernels come from {source}; fused kernel: {b(self.kw_bytes)}, {where}",
            f"per iteration of gmkcf: {self.kernel_sweeps_per_iteration} sweeps over the kernels, "
            f"{b(self.read_per_iteration)} touched, {GRAPHS_PER_ITERATION} graphs, "
            f"{self.time_class}; network {b(self.network_per_iteration)}, of it driver "
            f"{b(self.driver_network_per_iteration)}",
            f"workers: {self.n_workers} × {self.threads_per_worker} threads × "
            f"{b(self.memory_per_worker)}, planned peak {b(self.worker_peak_bytes)} each"
            f"{ahead}; driver {b(self.driver_bytes)}",
            f"{self.job}: {self.runs} run{'s' if self.runs > 1 else ''}, {self.runs_together} at a "
            f"time share each sweep",
            self.time_line(),
        ]

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        return html.block("Plan", html.titled(self.lines()))


def make_plan(
    n: int,
    n_features: int,
    n_kernels: int,
    n_clusters: int,
    *,
    feature_bytes: int,
    precision: Precision = "float32",
    block: int | None = None,
    n_workers: int = 1,
    threads_per_worker: int = 1,
    memory_per_worker: int = 8 * GIB,
    disk_free: int | None = None,
    scratch: bool = True,
    remote: bool = False,
    tiles_stored: int = 0,
    one_process: bool = False,
    residency: Residency | None = None,
    signed: bool = False,
    largest_rows: Callable[[int], int] | None = None,
    job: Job | None = None,
    gram: StoredGram | None = None,
    gram_instead: StoredGram | None = None,
) -> Plan:
    """Choose tile size and residency of the fused kernel, and refuse what cannot fit.

    Parameters
    ----------
    n, n_features, n_kernels, n_clusters : int
    feature_bytes : int
        Size of the features on disk.
    precision : {"float32", "float64", "compact"}
    block : int, optional
        Tile edge; chosen when not given.
    n_workers, threads_per_worker, memory_per_worker : int
        The cluster. Threads run one task each.
    disk_free : int, optional
        Free bytes where the store goes; None skips that check.
    scratch : bool
        Whether a fused kernel can be written beside the store; not in an object store.
    remote : bool
        Whether the store is in an object store, where tiles are fetched ahead of their use.
    tiles_stored : int
        Tiles of every kernel that are on disk already, and the features with them.
    one_process : bool
        Tasks run on threads of this process, so kernels may live in its memory if all of them fit.
    residency : {"memory", "scratch", "recompute"}, optional
        Force where the fused kernel lives.
    signed : bool
        Kernels may have negative entries: products with their positive parts are made as well.
    largest_rows : callable, optional
        From a tile edge to the features of that many rows where they are largest; without it all
        rows count alike.
    job : Job, optional
        Method, restarts and kernels; one run of gmkcf when not given.
    gram : StoredGram, optional
        Layout gram: the matrix that kernels are evaluated from; each has an array when not given.
    gram_instead : StoredGram, optional
        Where each has an array: what layout gram would take, to be named where that would fit.

    Raises
    ------
    PlanRefused
        With the numbers, when memory or disk is too small.
    """
    sizes = Sizes(
        n,
        n_features,
        n_kernels,
        n_clusters,
        feature_bytes,
        precision,
        Tiling(n, default_block(n) if block is None else block, gram=gram is not None),
        Job(n_clusters) if job is None else job,
        signed,
        tiles_stored,
        largest_rows,
        gram,
        gram_instead,
    )
    machine = Machine(
        n_workers, threads_per_worker, memory_per_worker, disk_free, scratch, remote, one_process
    )
    return plan_job(sizes, machine, residency, fixed_block=block is not None)


def plan_job(
    sizes: Sizes, machine: Machine, residency: Residency | None = None, *, fixed_block: bool = False
) -> Plan:
    """Choose what is open, refuse what cannot fit, and add up the costs. See `make_plan`."""
    _check_numbers(sizes, machine)
    sizes = choose_block(sizes, machine, fixed=fixed_block)
    residency, memory = choose_memory(sizes, machine, residency)
    _refuse_disk(sizes, machine, disk_bytes(sizes, residency))
    _refuse_process(sizes, machine, memory)
    return _costs_of(sizes, machine, memory, residency)


_OF_SIZES = (
    "n", "n_features", "n_kernels", "n_clusters", "precision", "tiles_per_task", "stored_bytes",
    "feature_bytes", "kw_bytes", "build_task_bytes", "fit_task_bytes", "summing_bytes",
)  # fmt: skip
_OF_MACHINE = ("n_workers", "threads_per_worker", "memory_per_worker", "disk_free", "one_process")


def _costs_of(sizes: Sizes, machine: Machine, memory: Memory, residency: Residency) -> Plan:
    n, m, job = sizes.n, sizes.n_kernels, sizes.job
    network = network_traffic(sizes, machine)
    kernel_sweeps = 3 if residency == "recompute" else 2
    kw_reads = 0 if residency == "recompute" else 2
    gram = sizes.gram
    return Plan(
        **{name: getattr(sizes, name) for name in _OF_SIZES},
        **{name: getattr(machine, name) for name in _OF_MACHINE},
        **asdict(memory),
        block=sizes.tiling.block,
        n_tiles=sizes.tiling.n_tiles,
        residency=residency,
        read_per_iteration=kernel_sweeps * sizes.stored_bytes + kw_reads * sizes.kw_bytes,
        kernel_sweeps_per_iteration=kernel_sweeps,
        network_per_iteration=network.total,
        driver_network_per_iteration=network.driver,
        disk_needed=disk_bytes(sizes, residency),
        job=job.words(),
        runs=job.n_runs,
        runs_together=job.together(n),
        iterations=costs.iterations(job, n, m),
        build_ms=build_ms(sizes, machine),
        iteration_ms=iteration_ms(sizes, machine, residency, in_memory=memory.kernels_in_memory),
        layout="each" if gram is None else "gram",
        gram_itemsize=0 if gram is None else gram.itemsize,
        gram_by_table=gram is not None and gram.by_table,
        fuses_cheaply=fuses_cheaply(sizes),
        kernels_beside=0 if gram is None else gram.beside,
        evaluation_ms=evaluation_ms(sizes, machine, residency),
    )


def _check_numbers(sizes: Sizes, machine: Machine) -> None:
    counts = {
        "samples": sizes.n,
        "kernels": sizes.n_kernels,
        "clusters": sizes.n_clusters,
        "block size": sizes.tiling.block,
        "workers": machine.n_workers,
        "threads": machine.threads_per_worker,
    }
    for name, value in counts.items():
        if value < 1:
            raise InputError(f"{name} must be at least 1, not {value}")
    if sizes.n_clusters > sizes.n:
        raise InputError(
            f"{sizes.n_clusters} clusters need at least as many samples, but there are {sizes.n}: "
            "use fewer clusters"
        )
    if sizes.precision not in STORED_BYTES:
        allowed = ", ".join(STORED_BYTES)
        raise InputError(f"precision must be one of {allowed}, not {sizes.precision!r}")


def _refuse_disk(sizes: Sizes, machine: Machine, need: int) -> None:
    free = machine.disk_free
    if free is not None and need > free:
        smaller = smaller_jobs(
            sizes.n, sizes.n_kernels, sizes.precision, free, sizes.gram, sizes.gram_instead
        )
        raise DiskRefused(
            f"the store needs up to {human_bytes(need)} of disk but {human_bytes(free)} are free: "
            f"free some, {smaller}"
        )


def _refuse_process(sizes: Sizes, machine: Machine, memory: Memory) -> None:
    if machine.one_process and memory.one_process_bytes > machine.memory_per_worker:
        raise PlanRefused(
            f"this process needs {human_bytes(memory.one_process_bytes)} of memory, of it "
            f"{human_bytes(memory.driver_bytes)} for {sizes.job.words()} with {sizes.n_clusters} "
            f"clusters, but may use {human_bytes(machine.memory_per_worker)}: give more memory, or "
            "use fewer clusters or threads"
        )


def least_memory(peak: int) -> str:
    """The memory a worker needs for a planned peak, rounded up."""
    return f"{ceil_div(peak * 10, SPILL_TENTHS * MIB):,} MiB"


def fits_worker(plan: Plan, memory: int, threads: int, resident: int = 0) -> bool:
    """Whether a worker can do the tasks of a fit beside what it holds; memory 0 is no limit."""
    need = PROCESS_BYTES + threads * plan.fit_task_bytes + plan.summing_bytes + resident
    need += plan.prefetch_bytes
    return memory == 0 or need <= memory * SPILL_TENTHS // 10


def refuse_small_workers(memory_per_worker: int) -> None:
    """A worker that can hold little more than itself would be killed again and again."""
    if memory_per_worker * SPILL_TENTHS // 10 < PROCESS_BYTES:
        raise PlanRefused(
            f"a worker needs {least_memory(PROCESS_BYTES)} of memory for itself alone but has "
            f"{human_bytes(memory_per_worker)}: give more memory, or use fewer workers"
        )


class MachinePlan(Protocol):
    """What a plan says about memory, whatever it is for."""

    @property
    def machine_bytes(self) -> int: ...
    @property
    def n_workers(self) -> int: ...
    @property
    def worker_peak_bytes(self) -> int: ...
    @property
    def driver_bytes(self) -> int: ...


def refuse_beyond_machine(plan: MachinePlan, free: int) -> None:
    """Limits that a machine cannot honour: its system would kill what it likes."""
    if plan.machine_bytes > free:
        raise PlanRefused(
            f"{plan.n_workers} × {human_bytes(plan.worker_peak_bytes)} for workers and "
            f"{human_bytes(plan.driver_bytes)} for the driver are planned on this machine, but "
            f"{human_bytes(free)} are free: use fewer workers, or less memory for each"
        )


def refuse_large_driver(plan: Plan, free: int) -> None:
    """Workers are elsewhere, but what the driver holds has to fit here."""
    if plan.driver_bytes > free:
        raise PlanRefused(
            f"the driver needs {human_bytes(plan.driver_bytes)} of memory for {plan.job} with "
            f"{plan.n_clusters} clusters, but {human_bytes(free)} are free here: give it more "
            "memory, or use fewer clusters"
        )


def smaller_jobs(
    n: int,
    n_kernels: int,
    precision: Precision,
    disk_free: int,
    gram: StoredGram | None = None,
    gram_instead: StoredGram | None = None,
) -> str:
    """What of a job would fit on a disk: layout gram, fewer samples or kernels, compact ones."""
    low, high = 0, n
    while high - low > 1:
        middle = (low + high) // 2
        if _tiles_bytes(middle, n_kernels, precision, gram) <= disk_free:
            low = middle
        else:
            high = middle
    ways = ["choose another place", *_by_gram(n, n_kernels, precision, disk_free, gram_instead)]
    if low > 1:
        ways.append(f"at most {low:,} samples")
    ways += _fewer_kernels(n, n_kernels, precision, disk_free, gram)
    if precision != "compact":
        compact = None if gram is None else replace(gram, itemsize=STORED_BYTES["compact"])
        enough = _tiles_bytes(n, n_kernels, "compact", compact) <= disk_free
        less = "less of either" if gram is None or gram.beside else "fewer samples"
        ways.append("precision compact" if enough else f"precision compact with {less}")
    return ", or ".join(ways)


def _by_gram(
    n: int, n_kernels: int, precision: Precision, disk_free: int, instead: StoredGram | None
) -> list[str]:
    """Layout gram as a way, at this precision or compact, if one of them fits."""
    if instead is None:
        return []
    compact = replace(instead, itemsize=STORED_BYTES["compact"])
    ways: dict[str, int] = {
        "layout gram": _tiles_bytes(n, n_kernels, precision, instead),
        "layout gram with precision compact": _tiles_bytes(n, n_kernels, "compact", compact),
    }
    fitting = {way: need for way, need in ways.items() if need <= disk_free}
    return [f"{way}, which takes about {human_bytes(fitting[way])}" for way in list(fitting)[:1]]


def _fewer_kernels(
    n: int, n_kernels: int, precision: Precision, disk_free: int, gram: StoredGram | None
) -> list[str]:
    """How many kernels fit; of a Gram matrix, how many beside it: it is the same for any number."""
    matrix = 0 if gram is None else _tiles_bytes(n, 0, precision, replace(gram, beside=0))
    fewer = (disk_free - matrix) // max(1, _tiles_bytes(n, 1, precision))
    if gram is None:
        return [f"at most {fewer} of {n_kernels} kernels"] if 1 <= fewer < n_kernels else []
    if not 0 <= fewer < gram.beside:
        return []
    return [f"at most {fewer} of the {gram.beside} kernels that have an array beside the matrix"]


def refuse_by_count(
    n: int,
    n_kernels: int,
    precision: Precision,
    disk_free: int | None,
    gram: StoredGram | None = None,
    gram_instead: StoredGram | None = None,
) -> None:
    """Refuse, before anything is read, as many samples as no disk here has room for.

    `gram` is layout gram as it may turn out (`costs.expected_gram`), `gram_instead` the same where
    each kernel is to have an array.
    """
    if disk_free is None or n < 1 or n_kernels < 1:
        return
    least = n * (n + 1) // 2 * costs.entry_bytes(n_kernels, precision, gram)
    if least > disk_free:  # tiles take no less
        planned = _tiles_bytes(n, n_kernels, precision, gram)
        smaller = smaller_jobs(n, n_kernels, precision, disk_free, gram, gram_instead)
        raise DiskRefused(
            f"{n_kernels} kernels of {n:,} samples need {human_bytes(planned)} of disk but "
            f"{human_bytes(disk_free)} are free: {smaller}"
        )


def _tiles_bytes(
    n: int, n_kernels: int, precision: Precision, gram: StoredGram | None = None
) -> int:
    tiling = Tiling(n, default_block(n), gram=gram is not None)
    return tiling.n_tiles * tiling.block**2 * costs.entry_bytes(n_kernels, precision, gram)
