"""What a job will cost, in whole numbers, before any of it runs.

Nothing here touches data. The model is deliberately
simple, every term has a name, and `tests/test_plan.py` spells the sums out again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from gmkcf_dask import notebook
from gmkcf_dask.errors import InputError, PlanRefused
from gmkcf_dask.tiling import GIB as GIB
from gmkcf_dask.tiling import LARGEST_BLOCK, SMALLEST_BLOCK
from gmkcf_dask.tiling import MIB as MIB
from gmkcf_dask.tiling import Tiling as Tiling
from gmkcf_dask.tiling import ceil_div as ceil_div
from gmkcf_dask.tiling import default_block as default_block
from gmkcf_dask.tiling import human_bytes as human_bytes
from gmkcf_dask.traffic import SUMMED_AT_ONCE as SUMMED_AT_ONCE
from gmkcf_dask.traffic import Traffic, iteration_traffic

Precision = Literal["float32", "float64", "compact"]
Residency = Literal["memory", "scratch", "recompute"]

STORED_BYTES: dict[Precision, int] = {"float32": 4, "float64": 8, "compact": 2}
"""Bytes of one stored kernel entry."""
COMPUTED_BYTES: dict[Precision, int] = {"float32": 4, "float64": 8, "compact": 4}
"""Bytes of one entry inside a product: compact tiles are widened to float32."""

PROCESS_BYTES = 300 * MIB
"""A worker with our imports loaded and one tile's worth of library buffers, measured."""
SPILL_TENTHS = 6
"""Dask starts to spill at 60 % of a worker's memory: everything planned stays below that."""
FEATURE_CHUNK = 1 << 17
"""Values per chunk of sparse features."""
FEATURE_BLOCKS = 7
"""Row blocks of features one building task may hold: two, the same measured from the mean or
transposed, one as stored and as decoded, and what the reading before left."""
COMPARED_TILES = 2
"""Stored tiles a building task may keep to compare later kernels with."""
FEW_COLUMNS = 32
"""Columns of products that always go together, whatever their sum takes."""
GRAPHS_PER_ITERATION = 3
# measured per core on a 2-core machine: `scripts/out_of_core`, and `gmkcf benchmark` on WebKB
STORE_BYTES_PER_MS, MEMORY_BYTES_PER_MS, GRAPH_MS = 350_000, 4_000_000, 100


def build_task_bytes(block: int, n_features_block_bytes: int) -> int:
    """Peak of one kernel-building task.

    Float64 tiles: the Gram tile, a second one where distances are measured from the mean, the
    squared distances, the unit products, one kernel with three temporaries (a tile on the diagonal
    is made in one piece), and the sparse product or encoded copies; as many more as the stored
    tiles, of at most 8 bytes an entry, that are kept for comparison or being written; row blocks
    of features; and the chunks sparse features are read from, values and indices, as stored
    and as decoded.
    """
    return (
        (9 + COMPARED_TILES + 2) * 8 * block * block
        + FEATURE_BLOCKS * n_features_block_bytes
        + 4 * 8 * FEATURE_CHUNK
    )


def fit_task_bytes(tiling: Tiling, n_columns: int, precision: Precision, n_kernels: int = 1) -> int:
    """Peak of one task of a sweep; of many kernels it grows to a bound only.

    The fused tiles of the group and one of the rank-2k matrix, or what is kept of all kernels to
    compare them; three more tiles (one read, one being decoded, one widened), and the n×c block
    with its partial product in float64.
    """
    itemsize = COMPUTED_BYTES[precision]
    tile = tiling.block * tiling.block * itemsize
    group = tiling.tiles_per_task(itemsize)
    touched = min(tiling.n_blocks, group + 1) * tiling.block
    held = max((group + 1) * tile, tiling.compared_bytes(n_kernels, itemsize))
    return held + 3 * tile + tiling.n * n_columns * itemsize + touched * n_columns * 8


def summing_bytes(n: int, n_columns: int) -> int:
    """Partial n×c products in float64 that wait on one worker to be summed, and their sum."""
    return (SUMMED_AT_ONCE + 1) * 8 * n * max(n_columns, FEW_COLUMNS)


@dataclass(frozen=True)
class Plan:
    """The costs of one job. Bytes unless said otherwise; see `make_plan`."""

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
    worker_peak_bytes: int
    driver_bytes: int
    n_workers: int
    threads_per_worker: int
    memory_per_worker: int
    disk_needed: int
    disk_free: int | None

    @property
    def time_class(self) -> str:
        """Rough duration of one iteration with inner_iter=1, from measured rates."""
        threads = self.n_workers * self.threads_per_worker
        if self.kernels_in_memory:
            milliseconds = self.read_per_iteration // (MEMORY_BYTES_PER_MS * threads)
        else:
            milliseconds = self.read_per_iteration // (STORE_BYTES_PER_MS * threads)
            milliseconds += GRAPHS_PER_ITERATION * GRAPH_MS
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
        disk = "" if self.disk_free is None else f" (free: {b(self.disk_free)})"
        return [
            f"samples {self.n:,}, features {self.n_features:,}, kernels {self.n_kernels}, "
            f"clusters {self.n_clusters}",
            f"tiles: {self.n_tiles:,} of {self.block}×{self.block} per kernel, {self.precision}, "
            f"{self.tiles_per_task} per task",
            f"disk: at most {b(self.disk_needed)}{disk}, "
            f"of it kernels {b(self.stored_bytes)} before compression",
            f"kernels come from {source}; fused kernel: {b(self.kw_bytes)}, {where}",
            f"per iteration of gmkcf: {self.kernel_sweeps_per_iteration} sweeps over the kernels, "
            f"{b(self.read_per_iteration)} touched, {GRAPHS_PER_ITERATION} graphs, "
            f"{self.time_class}; network {b(self.network_per_iteration)}, of it driver "
            f"{b(self.driver_network_per_iteration)}",
            f"workers: {self.n_workers} × {self.threads_per_worker} threads × "
            f"{b(self.memory_per_worker)}, planned peak {b(self.worker_peak_bytes)} each; "
            f"driver {b(self.driver_bytes)}",
        ]

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        return notebook.block("Plan", notebook.titled(self.lines()))


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
    tiles_stored: int = 0,
    one_process: bool = False,
    residency: Residency | None = None,
    signed: bool = False,
    largest_rows: Callable[[int], int] | None = None,
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

    Raises
    ------
    PlanRefused
        With the numbers, when memory or disk is too small.
    """
    _check_numbers(n, n_kernels, n_clusters, precision, block, n_workers, threads_per_worker)
    budget = memory_per_worker * SPILL_TENTHS // 10
    itemsize = COMPUTED_BYTES[precision]

    def peaks(edge: int) -> tuple[int, int]:
        alike = ceil_div(feature_bytes * min(edge, n), n)
        block_features = alike if largest_rows is None else largest_rows(edge)
        return (
            build_task_bytes(min(edge, n), block_features),
            fit_task_bytes(Tiling(n, edge), 2 * n_clusters, precision, n_kernels),
        )

    summing = summing_bytes(n, (4 if signed else 2) * n_clusters)

    def fitting_bytes(edge: int) -> int:
        return PROCESS_BYTES + threads_per_worker * peaks(edge)[1] + summing

    def working_bytes(edge: int) -> int:
        building = PROCESS_BYTES + threads_per_worker * peaks(edge)[0]
        return max(building, fitting_bytes(edge))

    edge = block or default_block(n)
    while block is None and working_bytes(edge) > budget and edge >= 2 * SMALLEST_BLOCK:
        edge //= 2
    if working_bytes(edge) > budget:
        remedies = [
            "give more memory per worker",
            *(["use fewer threads per worker"] if threads_per_worker > 1 else []),
            *(["choose a smaller block size"] if block else []),
        ]
        raise PlanRefused(
            f"a worker needs {least_memory(working_bytes(edge))} of memory but has "
            f"{human_bytes(memory_per_worker)} (the planned peak of "
            f"{human_bytes(working_bytes(edge))}, with tiles of {edge}×{edge}, must stay below "
            f"{SPILL_TENTHS * 10} % of it, where Dask begins to spill): {' or '.join(remedies)}"
        )

    if min(edge, n) > LARGEST_BLOCK:  # a tile has more entries than BLAS can count
        raise InputError(f"block size must be at most {LARGEST_BLOCK:,}, not {edge:,}")
    tiling = Tiling(n, edge)
    entries = tiling.n_tiles * edge * edge
    stored = n_kernels * entries * STORED_BYTES[precision]
    kw = entries * itemsize
    resident = resident_bytes(kw, n_workers)
    fitting = fitting_bytes(edge)  # building is over by then
    fits = fitting + resident <= budget
    tile_bytes = n_kernels * edge * edge * STORED_BYTES[precision]
    to_store = stored - tiles_stored * tile_bytes + (0 if tiles_stored else feature_bytes)
    disk_left = None if disk_free is None else disk_free - to_store
    if residency is None:
        if fits:
            residency = "memory"
        elif scratch and (disk_left is None or disk_left >= 2 * kw):
            residency = "scratch"
        else:
            residency = "recompute"
    elif residency == "memory" and not fits:
        raise PlanRefused(
            f"the fused kernel needs {human_bytes(resident)} on each worker beside "
            f"{human_bytes(fitting)} of working memory, but only "
            f"{human_bytes(budget)} of {human_bytes(memory_per_worker)} can be used without "
            "spilling: add workers or memory, or let it live in scratch"
        )
    disk_needed = to_store + (2 * kw if residency == "scratch" else 0)
    if disk_free is not None and disk_needed > disk_free:
        raise PlanRefused(
            f"the store needs up to {human_bytes(disk_needed)} of disk but "
            f"{human_bytes(disk_free)} are free: free some, choose another place, fewer kernels "
            "or precision compact"
        )
    held = tiled_bytes(tiling, n_kernels, precision)
    in_memory = one_process and residency == "memory" and fitting + held <= budget
    network = Traffic(0, 0)
    if not one_process:
        network = iteration_traffic(tiling, itemsize, n_clusters, n_workers, signed=signed)
    kernel_sweeps = 3 if residency == "recompute" else 2
    kw_reads = 0 if residency == "recompute" else 2
    return Plan(
        n=n,
        n_features=n_features,
        n_kernels=n_kernels,
        n_clusters=n_clusters,
        precision=precision,
        block=edge,
        n_tiles=tiling.n_tiles,
        tiles_per_task=tiling.tiles_per_task(itemsize),
        stored_bytes=stored,
        feature_bytes=feature_bytes,
        kw_bytes=kw,
        residency=residency,
        kernels_in_memory=in_memory,
        read_per_iteration=kernel_sweeps * stored + kw_reads * kw,
        kernel_sweeps_per_iteration=kernel_sweeps,
        network_per_iteration=network.total,
        driver_network_per_iteration=network.driver,
        build_task_bytes=peaks(edge)[0],
        fit_task_bytes=peaks(edge)[1],
        summing_bytes=summing,
        worker_peak_bytes=max(
            working_bytes(edge),
            fitting + (held if in_memory else resident if residency == "memory" else 0),
        ),
        driver_bytes=driver_bytes(n, n_clusters, n_kernels, feature_bytes),
        n_workers=n_workers,
        threads_per_worker=threads_per_worker,
        memory_per_worker=memory_per_worker,
        disk_needed=disk_needed,
        disk_free=disk_free,
    )


def least_memory(peak: int) -> str:
    """The memory a worker needs for a planned peak, rounded up: what is said will do."""
    return f"{ceil_div(peak * 10, SPILL_TENTHS * MIB):,} MiB"


def fits_worker(plan: Plan, memory: int, threads: int, resident: int = 0) -> bool:
    """Whether a worker can do the tasks of a fit beside what it holds; memory 0 is no limit."""
    need = PROCESS_BYTES + threads * plan.fit_task_bytes + plan.summing_bytes + resident
    return memory == 0 or need <= memory * SPILL_TENTHS // 10


def resident_bytes(kw_bytes: int, n_workers: int) -> int:
    """Of a fused kernel in the memory of workers, on the one that has most of it."""
    # Dask does not spread blocks evenly: half as much again may land on one worker
    return ceil_div(3 * kw_bytes, 2 * n_workers) if n_workers > 1 else kw_bytes


def refuse_small_workers(memory_per_worker: int) -> None:
    """A worker that can hold little more than itself would be killed again and again."""
    if memory_per_worker * SPILL_TENTHS // 10 < PROCESS_BYTES:
        raise PlanRefused(
            f"a worker needs {least_memory(PROCESS_BYTES)} of memory for itself alone but has "
            f"{human_bytes(memory_per_worker)}: give more memory, or use fewer workers"
        )


def refuse_beyond_machine(plan: Plan, free: int) -> None:
    """Limits that a machine cannot honour: its system would kill what it likes."""
    driver = 0 if plan.kernels_in_memory else plan.driver_bytes
    need = plan.n_workers * plan.worker_peak_bytes + driver
    if need > free:
        raise PlanRefused(
            f"{plan.n_workers} × {human_bytes(plan.worker_peak_bytes)} for workers and "
            f"{human_bytes(driver)} for the driver are planned on this machine, but "
            f"{human_bytes(free)} are free: use fewer workers, or less memory for each"
        )


def _check_numbers(
    n: int,
    n_kernels: int,
    n_clusters: int,
    precision: str,
    block: int | None,
    n_workers: int,
    n_threads: int,
) -> None:
    counts = {
        "samples": n,
        "kernels": n_kernels,
        "clusters": n_clusters,
        "block size": 1 if block is None else block,
        "workers": n_workers,
        "threads": n_threads,
    }
    for name, value in counts.items():
        if value < 1:
            raise InputError(f"{name} must be at least 1, not {value}")
    if n_clusters > n:
        raise InputError(f"{n_clusters} clusters of {n} samples cannot be: ask for fewer clusters")
    if precision not in STORED_BYTES:
        raise InputError(f"precision must be one of {', '.join(STORED_BYTES)}, not {precision!r}")


def driver_bytes(n: int, n_clusters: int, n_kernels: int, feature_bytes: int) -> int:
    """Peak of the driver.

    Float64 U, V, KU, KV, their updates and packed factors; the factor as sent and the product as
    received, each in some copies; m row sums; features as read, checked, and from their mean.
    """
    factors = (12 + 14) * n * n_clusters * 8
    return PROCESS_BYTES + factors + 2 * n_kernels * n * 8 + 3 * feature_bytes


def products_per_weight_step(n_kernels: int, precision: Precision) -> int:
    """Products with a fused kernel that is kept which touch as many bytes as one weight step.

    A weight step is two sweeps over all kernels as they are stored: errors, and fusing anew. Where
    the fused kernel lives does not enter: results must not depend on it.
    """
    return ceil_div(2 * n_kernels * STORED_BYTES[precision], COMPUTED_BYTES[precision])


def tiled_bytes(tiling: Tiling, n_kernels: int, precision: Precision) -> int:
    """Memory for the tiles of m kernels and of the fused one."""
    entries = tiling.n_tiles * tiling.block**2
    return entries * (n_kernels * STORED_BYTES[precision] + COMPUTED_BYTES[precision])
