"""Bytes that travel between driver, scheduler and workers, before any of them does.

A factor goes from the driver to the scheduler, from there to one worker, and from that one to the
others. Partial products are summed eight at a time on the worker that has most of them. The result
goes from its worker over the scheduler to the driver. Blocks of fused kernels stay where they are.
"""

from __future__ import annotations

from dataclasses import dataclass

from gmkcf_dask.tiling import KIB, Tiling, ceil_div

SUMMED_AT_ONCE = 8
"""Partial products that are summed together."""
MESSAGE_BYTES, GRAPH_BYTES = 4 * KIB, KIB
"""What scheduler and workers say to each other for a task, and its part of the graph: more than was
measured (`tests/clusters/test_traffic.py`)."""
STEADY_BYTES = 64 * KIB
"""Per worker and iteration: signs of life, who is there, what is no longer needed."""


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
    tiling: Tiling, itemsize: int, n_clusters: int, n_workers: int, *, signed: bool
) -> Traffic:
    """Of one iteration of GMKCF with inner_iter=1: K_w[U, V], K_wU and the errors."""
    graphs = [
        graph_traffic(tiling, itemsize, n_workers, columns, (2 if signed else 1) * columns)
        for columns in (2 * n_clusters, n_clusters)
    ]
    errors = graph_traffic(tiling, itemsize, n_workers, 2 * n_clusters, 0)
    return sum(graphs, errors + Traffic(n_workers * STEADY_BYTES, STEADY_BYTES))


def graph_traffic(
    tiling: Tiling, itemsize: int, n_workers: int, factor_columns: int, summed_columns: int
) -> Traffic:
    """Of a graph that takes a factor to every tile and sums what comes out, if anything."""
    factor = tiling.n * factor_columns * itemsize
    result = tiling.n * summed_columns * 8
    tiles = tiling.tiles_per_task(itemsize)
    parts = ceil_div(tiling.n_tiles, tiles)
    n_tasks, rows = 3 * parts, 0  # made, and handed on twice where the fused kernel is kept
    while parts > 1:
        # consecutive tiles touch one row block more than they are
        rows += parts * min(tiling.n, (tiles + 1) * tiling.block)
        parts, tiles = ceil_div(parts, SUMMED_AT_ONCE), tiles * SUMMED_AT_ONCE
        n_tasks += parts
    # of what is summed, the worker that does it has its share already
    moved = rows * summed_columns * 8 * (n_workers - 1) // n_workers
    graph = n_tasks * GRAPH_BYTES
    return Traffic(
        (1 + n_workers) * factor + moved + 2 * result + graph + n_tasks * MESSAGE_BYTES,
        factor + result + graph,
    )
