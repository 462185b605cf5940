"""What jobs of many sizes take, as a Markdown table: numbers of the plan, nothing measured."""

import argparse
from collections.abc import Iterator

from gmkcf_dask.compute.plan import SPILL_TENTHS, Plan, Residency, make_plan
from gmkcf_dask.kernels.tiling import Precision
from gmkcf_dask.system.units import GIB, ceil_div, human_bytes

SAMPLES = (8_000, 20_000, 50_000, 100_000, 200_000)
KINDS: tuple[tuple[int, Precision], ...] = ((12, "float32"), (12, "compact"), (3, "float32"))
HEADER = (
    "n",
    "m",
    "precision",
    "store on disk",
    "scratch on disk",
    "memory per worker at least",
    "with K_w in memory",
    "sweeps",
    "read per iteration",
    "network per iteration",
    "of it driver",
    "driver memory",
)


def plan_of(
    n: int, m: int, precision: Precision, residency: Residency, workers: int, k: int, terms: int
) -> Plan:
    """With workers that want for nothing: what they need is then read from the plan."""
    return make_plan(
        n,
        50_000,
        m,
        k,
        feature_bytes=(16 * terms + 8) * n,  # float64 values and int64 indices
        precision=precision,
        n_workers=workers,
        memory_per_worker=1 << 50,
        residency=residency,
    )


def memory_for(plan: Plan) -> str:
    """Memory limit of a worker with which Dask does not spill, to the next quarter of a GiB."""
    quarters = ceil_div(plan.worker_peak_bytes * 10 * 4, SPILL_TENTHS * GIB)
    return f"{quarters / 4:g} GiB"


def rows(workers: int, k: int, terms: int) -> Iterator[tuple[str, ...]]:
    """One for every job, as it is shown."""
    for n in SAMPLES:
        for m, precision in KINDS:
            job = (workers, k, terms)
            disk = plan_of(n, m, precision, "scratch", *job)
            in_memory = plan_of(n, m, precision, "memory", *job)
            yield (
                f"{n:,}",
                str(m),
                precision,
                human_bytes(in_memory.disk_needed),
                human_bytes(disk.disk_needed - in_memory.disk_needed),
                memory_for(disk),
                memory_for(in_memory),
                str(in_memory.kernel_sweeps_per_iteration),
                human_bytes(in_memory.read_per_iteration),
                human_bytes(in_memory.network_per_iteration),
                human_bytes(in_memory.driver_network_per_iteration),
                human_bytes(in_memory.driver_bytes),
            )


def table(workers: int = 8, k: int = 10, terms: int = 100) -> str:
    """In Markdown."""
    lines = [HEADER, ("---:",) * len(HEADER), *rows(workers, k, terms)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=8, help="of one thread each")
    parser.add_argument("--clusters", type=int, default=10)
    parser.add_argument("--terms", type=int, default=100, help="different ones in a document")
    args = parser.parse_args()
    print(table(args.workers, args.clusters, args.terms))


if __name__ == "__main__":
    main()
