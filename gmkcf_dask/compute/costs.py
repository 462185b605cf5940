"""The costs of a job as pure functions of whole numbers: memory, network, sweeps.

A *block* is an n×k matrix of float64, 8·n·k bytes. Runs that share sweeps each hold some blocks.
How many runs share a sweep follows from n, k and the method alone, never from a machine: the number
of columns of a product changes its last bits, and a fit that resumes on another machine must give
the same ones.
"""

from __future__ import annotations

from dataclasses import dataclass

from gmkcf_dask.kernels.tiling import (
    CACHED_TABLES,
    COMPARED_TILES,
    FEATURE_CHUNK,
    STORED_BYTES,
    Precision,
    Tiling,
    encoded_bytes,
)
from gmkcf_dask.system.units import KIB, MIB, ceil_div

COMPUTED_BYTES: dict[Precision, int] = {"float32": 4, "float64": 8, "compact": 4}
"""Bytes of one entry inside a product: compact tiles are widened to float32."""
PROCESS_BYTES = 300 * MIB
"""A worker with our imports loaded and one tile's worth of library buffers, measured."""
COMPILED_BYTES = 100 * MIB
"""What a process takes more once it has loaded compiled loops: numba and LLVM, measured."""
SCHEDULER_BYTES = 300 * MIB
"""What Dask's scheduler and client add to the driver over many graphs: records of finished ones.
`scripts/chaos plans` measured up to 183 MiB."""
SAMPLE_BYTES = 2048
"""Of one sample on the driver: id, label, title, and the beginning of its text."""
FEATURE_BLOCKS = 7
"""Row blocks of features one building task may hold: two, the same measured from the mean or
transposed, one as stored and as decoded, and what the reading before left."""
FEW_COLUMNS = 32
"""Columns of products that always go together, whatever their sum takes."""
PREFETCHED_TILES = 32
"""Requests to an object store that one process should have in flight."""
PREFETCH_BYTES = 320 * MIB
"""Memory for more requests than that, and the most that room is made for at the cost of others."""
MESSAGE_BYTES, GRAPH_BYTES = 4 * KIB, KIB
"""Messages between scheduler and workers for a task, and its part of the graph: more than was
measured (`tests/clusters/test_traffic.py`)."""
STEADY_BYTES = 64 * KIB
"""Per worker and iteration: heartbeats, worker lists, released keys."""
# measured per core on a 2-core machine: `scripts/out_of_core`, and `gmkcf benchmark` on WebKB
STORE_BYTES_PER_MS, MEMORY_BYTES_PER_MS, GRAPH_MS = 350_000, 4_000_000, 100
BUILD_BYTES_PER_MS = 120_000
"""Kernel entries computed and written, per core: `scripts/bench build`."""
FLOPS_PER_MS = 20_000_000
"""Of products with tiles, per core: what is left where several tasks share a memory bus."""
# measured with scripts/bench gram
GRAM_STORE_BYTES_PER_MS, GRAM_FLOPS_PER_MS = 1_500_000, 40_000_000
"""The same where all kernels come from one small array, and products do not wait for memory."""
LOOKED_UP_PS, ADDED_UP_PS, BY_FORMULA_PS = 400, 600, 2500
"""Picoseconds of a core per entry of the Gram matrix: to look it up in a table, to add to the entry
of one, and to evaluate one kernel by its formula."""
BUILT_GRAM_BYTES = 8
"""An entry of the Gram matrix takes as long to build as so many bytes of kernels."""
TABLE_BYTES = 8 * 65_537
"""Of a function of the distance as a table, or of a sum by its entries: `kernels.gram_loops`."""
STRIP_BYTES = 8 * 65_536
"""Of the rows of a tile that formulas are evaluated on at once: `kernels.features`."""
FORMULA_STRIPS, TASK_TABLES = 12, 4
"""What a task holds to evaluate kernels: such rows by formula; by table, the table of the fused
kernel, as made and as used, and two sums by its entries."""
SUMMED_LEVELS = 3
"""Levels of the tree that adds up the sums of all tasks in this process, at most."""

SHARED_BYTES = 256 * MIB
"""What runs that share sweeps may hold on the driver, unless a single one needs more."""
RUN_BLOCKS = {"kcf": 24, "kkm": 10, "suggest": 24}
"""Blocks that one run holds: factors, their products, momentum, and what a step makes of them."""
ALONE_BLOCKS = 30
"""Of gmkcf and rmkkm, whose runs come one after the other: the run, and the best one before."""
ENDED_BLOCKS = 6
"""Of a finished clustering: factors, scaled factors, and the copies K-means makes."""
SUM_BYTES = 32 * MIB
"""What summing the partial products of several kernels or runs may hold at once on a worker."""
SUMMED_AT_ONCE = 8
"""Partial products that are summed together."""
DIRECT, MAX_SWEEPS, BASIS_BYTES, MOST_GUARDS = 1000, 60, 64 * MIB, 20
"""Of eigenproblems: see `compute.eigen`, whose numbers these are."""
SILHOUETTE_SAMPLES = 2000


@dataclass(frozen=True)
class Job:
    """What is done with the kernels, as far as it has a cost.

    Attributes
    ----------
    n_clusters : int
        The largest, where several are tried.
    method : str
        By its name, or "suggest".
    n_init : int
        Restarts of every run.
    n_alone : int
        Kernels that are clustered each on its own, 1 for the mean of all.
    max_iter, inner_iter : int
        Iterations at most, and rounds in each.
    spectral : bool
        Whether runs begin with eigenvectors.
    n_columns : int
        suggest: the sum of all ks, each as often as it is run.
    """

    n_clusters: int
    method: str = "gmkcf"
    n_init: int = 1
    n_alone: int = 1
    max_iter: int = 500
    inner_iter: int = 1
    spectral: bool = False
    n_columns: int = 0

    @property
    def n_runs(self) -> int:
        """Runs that could share sweeps."""
        return self.n_init * self.n_alone

    def together(self, n: int) -> int:
        """Of them, those that do."""
        if self.method in RUN_BLOCKS or self.method == "sc":
            return runs_together(self.method, n, self.n_clusters, self.n_runs)
        return 1

    def words(self) -> str:
        """For a person: method, restarts, kernels."""
        restarts = f", {self.n_init} restarts" if self.n_init > 1 else ""
        kernels = f", {self.n_alone} kernels one by one" if self.n_alone > 1 else ""
        return f"{self.method}{restarts}{kernels}"


@dataclass(frozen=True)
class StoredGram:
    """One number for every pair of samples, of which kernels are evaluated: layout gram.

    Attributes
    ----------
    itemsize : int
        Bytes of one of them.
    by_table : bool
        Whether kernels are tables over it; else their formulas are evaluated.
    beside : int
        Kernels that are no functions of it and have an array of their own.
    """

    itemsize: int
    by_table: bool
    beside: int


def store_rate(gram: StoredGram | None) -> int:
    """Bytes that a core reads and decodes in a millisecond."""
    alone = gram is not None and not gram.beside
    return GRAM_STORE_BYTES_PER_MS if alone else STORE_BYTES_PER_MS


def product_rate(gram: StoredGram | None) -> int:
    """Operations of products with tiles that a core does in a millisecond."""
    alone = gram is not None and not gram.beside
    return GRAM_FLOPS_PER_MS if alone else FLOPS_PER_MS


def expected_gram(n_in_gram: int, n_kernels: int, precision: Precision) -> StoredGram | None:
    """Layout gram for kernels of samples that nothing is known of: the fewest bytes it may take.

    None where fewer than two of the kernels can be in it: it would save nothing.
    """
    if n_in_gram < 2:
        return None
    return StoredGram(STORED_BYTES[precision], False, n_kernels - n_in_gram)


def entry_bytes(n_kernels: int, precision: Precision, gram: StoredGram | None = None) -> int:
    """What is stored of all kernels for a pair of samples."""
    if gram is None:
        return n_kernels * STORED_BYTES[precision]
    return gram.itemsize + gram.beside * STORED_BYTES[precision]


def largest_entry(precision: Precision, gram: StoredGram | None = None) -> int:
    """Bytes of an entry of the stored array that has the largest ones."""
    if gram is None:
        return STORED_BYTES[precision]
    return max(gram.itemsize, STORED_BYTES[precision] if gram.beside else 0)


def block_bytes(n: int, n_columns: int) -> int:
    """Of float64."""
    return 8 * n * n_columns


def runs_together(method: str, n: int, k: int, n_runs: int) -> int:
    """Runs that share sweeps: as many as `SHARED_BYTES` have room for, at least one."""
    return max(1, min(n_runs, SHARED_BYTES // run_bytes(method, n, k)))


def run_bytes(method: str, n: int, k: int) -> int:
    """What one run holds between and during its sweeps."""
    if method == "sc":
        return eigen_bytes(n, k)
    return RUN_BLOCKS.get(method, RUN_BLOCKS["kcf"]) * block_bytes(n, k)


def eigen_sizes(n: int, k: int, basis_bytes: int = BASIS_BYTES) -> tuple[int, int, int]:
    """Guard vectors, vectors added per sweep, and vectors of a full basis.

    Guards are further Ritz vectors whose residuals are added: a sweep costs the same for many
    columns, and the distance from the k-th eigenvalue to the first that is left out decides how
    many sweeps it takes.
    """
    columns = basis_bytes // (2 * 8 * n)
    guards = max(2, min(MOST_GUARDS, columns // 12 - 2 * k))
    block = 2 * k + guards
    return guards, block, max(4 * block, min(12 * block, columns))


def eigen_bytes(n: int, k: int) -> int:
    """What an eigenproblem holds while others are worked on: n×n matrices, or basis and product."""
    if n <= DIRECT:
        return block_bytes(n, 4 * n)
    _, block, full = eigen_sizes(n, k)
    return block_bytes(n, 2 * full + 5 * block)


def eigen_work_bytes(n: int, k: int) -> int:
    """What the one that is worked on needs besides: LAPACK's arrays, or copies of a basis."""
    if n <= DIRECT:
        return block_bytes(n, 8 * n)
    _, block, full = eigen_sizes(n, k)
    return block_bytes(n, 2 * full + 6 * block)


def eigen_columns(n: int, k: int) -> int:
    """Columns of the widest product of an eigenproblem."""
    if n <= DIRECT:
        return n
    # guesses and the vector that is known, or the vectors of a basis to begin with
    return max(5 * k + 1, eigen_sizes(n, k)[1])


def widest(job: Job, n: int) -> int:
    """Columns of the widest block that one run wants multiplied."""
    k = job.n_clusters
    by_method = {"gmkcf": 2 * k, "kcf": 2 * k, "kkm": k, "sc": 1, "coreg": 2 * k, "rmkkm": 2 * k}
    columns = by_method.get(job.method, 2 * k)
    if job.spectral or job.method in ("sc", "coreg", "suggest"):
        columns = max(columns, eigen_columns(n, k + 3 if job.method == "suggest" else k))
    return columns


def worker_columns(job: Job, n: int) -> int:
    """Columns of a product on a worker: of one run, or of as many as `SUM_BYTES` have room for."""
    columns = max(2 * job.n_clusters, widest(job, n))
    shared = job.n_runs > 1 or job.method in ("coreg", "rmkkm", "suggest")
    return max(columns, SUM_BYTES // ((SUMMED_AT_ONCE + 1) * 8 * n)) if shared else columns


def columns_in_flight(job: Job, n: int, n_kernels: int) -> int:
    """Columns that all products of one round have together, on the driver."""
    if job.method == "coreg":
        return n_kernels * widest(job, n)
    if job.method == "rmkkm":
        return n_kernels * 2 * job.n_clusters
    if job.method == "suggest":
        k = job.n_clusters
        together = max(k, min(job.n_columns, SHARED_BYTES // (RUN_BLOCKS["suggest"] * 8 * n)))
        return max(2 * together, widest(job, n), n_kernels * k)
    return job.together(n) * widest(job, n)


def method_bytes(job: Job, n: int, n_kernels: int) -> int:
    """What a method holds on the driver, without the products that are under way."""
    k, block = job.n_clusters, block_bytes(n, job.n_clusters)
    total = job.n_alone * ENDED_BLOCKS * block
    if job.method in ("kcf", "kkm", "sc"):
        # of each kernel the best run before those that are under way
        total += job.together(n) * run_bytes(job.method, n, k)
        total += (job.n_alone * 4 * block) if job.n_runs > job.together(n) else 0
    elif job.method == "suggest":
        width = max(k, min(job.n_columns, SHARED_BYTES // (RUN_BLOCKS["suggest"] * 8 * n)))
        total += RUN_BLOCKS["suggest"] * block_bytes(n, width)
        # the square distances of silhouettes, and labels of every run
        total += 3 * 8 * SILHOUETTE_SAMPLES**2 + 4 * n * job.n_columns
    elif job.method == "coreg":
        # [U_1 … U_m] and its singular vectors, and the eigenproblems of all kernels side by side
        total += n_kernels * (6 * block + eigen_bytes(n, k))
    elif job.method == "rmkkm":
        total += (ALONE_BLOCKS + 6 * n_kernels) * block
    else:
        total += ALONE_BLOCKS * block
    if job.spectral or job.method in ("sc", "coreg", "suggest"):
        one = k + 3 if job.method == "suggest" else k
        total += eigen_work_bytes(n, one)
        if job.method in ("gmkcf", "kcf", "suggest"):
            total += job.together(n) * eigen_bytes(n, one)
    return total


def flight_bytes(
    job: Job,
    tiling: Tiling,
    n_kernels: int,
    itemsize: int,
    *,
    signed: bool,
    in_memory: bool,
    by_tree: bool = False,
) -> int:
    """Of the products under way: factors side by side, once more, as sent; results as they come.

    With kernels in the memory of this process the partial products of all tasks are here, and
    those that the first step of their sum makes of them; `by_tree` counts those alone that wait.
    """
    n = tiling.n
    columns = columns_in_flight(job, n, n_kernels)
    results = (2 if signed else 1) * columns
    total = block_bytes(n, 2 * columns) + 2 * itemsize * n * columns + block_bytes(n, 3 * results)
    if in_memory:
        rows = partial_rows(tiling, itemsize)
        total += 8 * results * (min(rows, waiting_rows(tiling, itemsize)) if by_tree else rows)
    return total


def partial_rows(tiling: Tiling, itemsize: int) -> int:
    """Rows of the partial products of all tasks of a sweep, and of their first sums."""
    tiles = tiling.tiles_per_task(itemsize)
    parts = ceil_div(tiling.n_tiles, tiles)
    first = min(tiling.n, (tiles + 1) * tiling.block)
    second = min(tiling.n, (SUMMED_AT_ONCE * tiles + 1) * tiling.block)
    return parts * first + ceil_div(parts, SUMMED_AT_ONCE) * second


def waiting_rows(tiling: Tiling, itemsize: int) -> int:
    """Rows of the partial products that wait for others where they are added up as they come.

    On every level of the tree two sums may be incomplete, since tasks do not end in order.
    """
    tiles, rows = tiling.tiles_per_task(itemsize), 0
    parts = ceil_div(tiling.n_tiles, tiles)
    while parts > 1:
        rows += min(parts, 2 * SUMMED_AT_ONCE) * min(tiling.n, (tiles + 1) * tiling.block)
        parts, tiles = ceil_div(parts, SUMMED_AT_ONCE), tiles * SUMMED_AT_ONCE
    return rows + tiling.n


@dataclass(frozen=True)
class Sweeps:
    """Of one iteration: over all kernels, over one fused or single kernel, and columns in all."""

    kernels: int
    fused: int
    columns: int


def sweeps_per_iteration(job: Job, n: int, n_kernels: int) -> Sweeps:
    """What one iteration of all runs that go together costs at most."""
    k, runs = job.n_clusters, job.together(n)
    if job.method == "kcf":
        return Sweeps(0, 2 * job.inner_iter, 2 * k * job.inner_iter * runs)
    if job.method == "kkm":
        return Sweeps(0, 1, k * runs)
    if job.method == "sc":
        return Sweeps(0, 1, eigen_columns(n, k) * runs)
    if job.method == "coreg":
        return Sweeps(1, 0, eigen_columns(n, k) * n_kernels)
    if job.method == "rmkkm":
        return Sweeps(2, job.inner_iter, k * job.inner_iter + 2 * k * n_kernels)
    if job.method == "suggest":
        return Sweeps(0, 2, 2 * columns_in_flight(job, n, n_kernels))
    return Sweeps(2, 2 * job.inner_iter, (3 * job.inner_iter + 2) * k)


def evaluation_ps(
    gram: StoredGram, job: Job, sweeps: Sweeps, n_kernels: int, *, fused_again: bool
) -> int:
    """Picoseconds of a core for an entry of the Gram matrix in one iteration.

    Kernels are evaluated to be fused, for the errors, and where each is multiplied by itself;
    `fused_again` for every product.
    """
    m = n_kernels - gram.beside
    each = int(job.method in ("coreg", "rmkkm"))
    errors = int(job.method == "gmkcf")
    fusing = sweeps.fused if fused_again else sweeps.kernels - each - errors
    if job.n_alone > 1:  # kernels one by one: none of them is fused
        return sweeps.fused * job.n_alone * (LOOKED_UP_PS if gram.by_table else BY_FORMULA_PS)
    if gram.by_table:
        return errors * ADDED_UP_PS + (each * m + fusing) * LOOKED_UP_PS
    return (errors + each + fusing) * m * BY_FORMULA_PS


def iterations(job: Job, n: int, n_kernels: int) -> int:
    """Iterations of all runs, one after the other where they do not go together, at most."""
    solve = 2 if n <= DIRECT else MAX_SWEEPS
    if job.method == "sc":
        return solve * ceil_div(job.n_runs, job.together(n))
    if job.method == "coreg":
        return solve + job.max_iter * MAX_SWEEPS
    if job.method == "suggest":
        width = columns_in_flight(job, n, n_kernels)
        return solve + job.max_iter * max(1, ceil_div(2 * job.n_columns, max(1, width)))
    begin = solve if job.spectral else 0
    return (begin + job.max_iter) * ceil_div(job.n_runs, job.together(n))


# memory of workers and driver


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


def fit_task_bytes(
    tiling: Tiling,
    n_columns: int,
    precision: Precision,
    n_kernels: int = 1,
    gram: StoredGram | None = None,
) -> int:
    """Peak of one task of a sweep; of many kernels it grows to a bound only.

    The fused tiles of the group and one of the rank-2k matrix, or what is kept of all kernels to
    compare them; three more tiles (one read, one being decoded, one widened), and the n×c block
    with its partial product in float64; of a Gram matrix its tile, and what evaluates kernels.
    """
    itemsize = COMPUTED_BYTES[precision]
    tile = tiling.block * tiling.block * itemsize
    group = tiling.tiles_per_task(itemsize)
    touched = min(tiling.n_blocks, group + 1) * tiling.block
    tiles = max((group + 1) * tile, tiling.compared_bytes(n_kernels, itemsize))
    evaluating = 0 if gram is None else evaluating_bytes(tiling, gram)
    columns = tiling.n * n_columns * itemsize + touched * n_columns * 8
    return tiles + 3 * tile + columns + evaluating


def evaluating_bytes(tiling: Tiling, gram: StoredGram) -> int:
    """The tile of the Gram matrix, and what evaluates any number of kernels on it."""
    work = TASK_TABLES * TABLE_BYTES if gram.by_table else FORMULA_STRIPS * STRIP_BYTES
    return tiling.block**2 * gram.itemsize + work


def prefetch_bytes(
    tiling: Tiling, precision: Precision, reads: int, room: int, gram: StoredGram | None = None
) -> int:
    """Encoded tiles that one process fetches ahead of their use; 0 where there is no room.

    Counted as if nothing compresses, and one tile more: the pieces of an answer are joined.

    Parameters
    ----------
    reads : int
        Tiles that the tasks which run at once in a process read together.
    room : int
        Bytes that nothing else needs.
    """
    tile = encoded_bytes(tiling.block**2 * largest_entry(precision, gram))
    tiles = min(max(PREFETCHED_TILES, PREFETCH_BYTES // tile - 1), reads, room // tile - 1)
    return (tiles + 1) * tile if tiles > 0 else 0


def wanted_prefetch_bytes(
    tiling: Tiling,
    precision: Precision,
    reads: int = PREFETCHED_TILES,
    gram: StoredGram | None = None,
) -> int:
    """The same where room has to be made for it: large tiles need fewer requests in flight."""
    return prefetch_bytes(tiling, precision, min(reads, PREFETCHED_TILES), PREFETCH_BYTES, gram)


def summing_bytes(n: int, n_columns: int, gram: StoredGram | None = None) -> int:
    """Partial n×c products in float64 that wait on one worker to be summed, and their sum.

    Or as many sums by the entries of a table.
    """
    product = 8 * n * max(n_columns, FEW_COLUMNS)
    bins = TABLE_BYTES if gram is not None and gram.by_table else 0
    return (SUMMED_AT_ONCE + 1) * max(product, bins)


def resident_bytes(kw_bytes: int, n_workers: int) -> int:
    """Of a fused kernel in the memory of workers, on the one that has most of it."""
    # Dask does not spread blocks evenly: half as much again may land on one worker
    return ceil_div(3 * kw_bytes, 2 * n_workers) if n_workers > 1 else kw_bytes


def dense_fit_bytes(
    job: Job,
    tiling: Tiling,
    n_kernels: int,
    precision: Precision,
    *,
    signed: bool = True,
    gram: StoredGram | None = None,
) -> int:
    """What a fit holds beside kernels that are in the memory of this process."""
    itemsize = COMPUTED_BYTES[precision]
    flight = flight_bytes(
        job,
        tiling,
        n_kernels,
        itemsize,
        signed=signed,
        in_memory=True,
        by_tree=gram is not None,
    )
    tables = driver_table_bytes(n_kernels, gram, in_memory=True)
    return method_bytes(job, tiling.n, n_kernels) + flight + tables


def driver_table_bytes(n_kernels: int, gram: StoredGram | None, *, in_memory: bool) -> int:
    """Tables of all kernels on the driver, and sums by their entries: one that comes from workers.

    With kernels in the memory of this process they are added up here: two for each of those that
    wait for each other on every level of the tree.
    """
    if gram is None:
        return 0
    cached = cached_table_bytes(n_kernels, gram)
    if not gram.by_table:
        return cached
    sums = 2 * SUMMED_AT_ONCE * SUMMED_LEVELS if in_memory else 1
    return (n_kernels - gram.beside + sums) * TABLE_BYTES + cached


def evaluating_process_bytes(n_kernels: int, gram: StoredGram | None) -> int:
    """What a process takes more that evaluates kernels, tasks aside."""
    return 0 if gram is None else COMPILED_BYTES + cached_table_bytes(n_kernels, gram)


def cached_table_bytes(n_kernels: int, gram: StoredGram | None) -> int:
    """Tables that a process keeps for the next tile; of many kernels a few."""
    return 0 if gram is None else min(n_kernels - gram.beside, CACHED_TABLES) * TABLE_BYTES


def driver_base_bytes(
    n: int, n_clusters: int, n_kernels: int, feature_bytes: int, n_features: int = 0
) -> int:
    """Memory of the driver whatever the method: itself, samples, and cluster descriptions.

    Row sums and diagonals of m kernels; ids, titles and beginnings of texts; features as read,
    checked, and from their mean; means of the features in every cluster, weighed and ranked.
    """
    facts = n * (2 * n_kernels * 8 + SAMPLE_BYTES)
    return PROCESS_BYTES + facts + 3 * feature_bytes + 3 * 8 * n_clusters * n_features


def products_per_weight_step(n_kernels: int, precision: Precision) -> int:
    """Products with a fused kernel that is kept which touch as many bytes as one weight step.

    A weight step is two sweeps over all kernels as they are stored: errors, and fusing anew. Where
    the fused kernel lives does not enter: results must not depend on it.
    """
    return ceil_div(2 * n_kernels * STORED_BYTES[precision], COMPUTED_BYTES[precision])


def tiled_bytes(
    tiling: Tiling,
    n_kernels: int,
    precision: Precision,
    gram: StoredGram | None = None,
    *,
    keep_fused: bool = True,
) -> int:
    """Memory for the tiles of m kernels, and of the fused one if it is kept."""
    entries = tiling.n_tiles * tiling.block**2
    fused = COMPUTED_BYTES[precision] if keep_fused else 0
    return entries * (entry_bytes(n_kernels, precision, gram) + fused)


# network


@dataclass(frozen=True)
class Traffic:
    """Bytes of one graph, or of several.

    Attributes
    ----------
    total : int
        On all connections; what passes through the scheduler counts twice.
    driver : int
        Into and out of the driver alone.
    """

    total: int
    driver: int

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.total + other.total, self.driver + other.driver)


def iteration_traffic(
    tiling: Tiling,
    itemsize: int,
    n_clusters: int,
    n_workers: int,
    *,
    signed: bool,
    gram: StoredGram | None = None,
) -> Traffic:
    """Of one iteration of GMKCF with inner_iter=1: K_w[U, V], K_wU and the errors.

    By table, that of the fused kernel goes with both products, and errors are sums by its entries.
    """
    graphs = [
        graph_traffic(tiling, itemsize, n_workers, columns, (2 if signed else 1) * columns)
        for columns in (2 * n_clusters, n_clusters)
    ]
    by_table = gram is not None and gram.by_table
    bins = TABLE_BYTES if by_table else 0
    errors = graph_traffic(tiling, itemsize, n_workers, 2 * n_clusters, 0, bins)
    if by_table:
        errors += Traffic(2 * (1 + n_workers) * TABLE_BYTES, 2 * TABLE_BYTES)
    return sum(graphs, errors + Traffic(n_workers * STEADY_BYTES, STEADY_BYTES))


def graph_traffic(
    tiling: Tiling,
    itemsize: int,
    n_workers: int,
    factor_columns: int,
    summed_columns: int,
    summed_bytes: int = 0,
) -> Traffic:
    """Of a graph that takes a factor to every tile and sums what comes out, if anything.

    That is rows of a product, and `summed_bytes` of each task whatever its rows.
    """
    factor = tiling.n * factor_columns * itemsize
    result = tiling.n * summed_columns * 8 + summed_bytes
    tiles = tiling.tiles_per_task(itemsize)
    parts = ceil_div(tiling.n_tiles, tiles)
    n_tasks, summed = 3 * parts, 0  # made, and handed on twice where the fused kernel is kept
    while parts > 1:
        # consecutive tiles touch one row block more than they are
        rows = min(tiling.n, (tiles + 1) * tiling.block)
        summed += parts * (rows * summed_columns * 8 + summed_bytes)
        parts, tiles = ceil_div(parts, SUMMED_AT_ONCE), tiles * SUMMED_AT_ONCE
        n_tasks += parts
    # of what is summed, the worker that does it has its share already
    moved = summed * (n_workers - 1) // n_workers
    graph = n_tasks * GRAPH_BYTES
    return Traffic(
        (1 + n_workers) * factor + moved + 2 * result + graph + n_tasks * MESSAGE_BYTES,
        factor + result + graph,
    )
