"""Cluster synthetic text through a store larger than the cluster's memory, and show the peaks."""

import argparse
import tempfile
import time
from pathlib import Path

from dask.utils import parse_bytes
from helpers.corpora import text_like

from gmkcf_dask import pipeline
from gmkcf_dask.cluster import ClusterConfig, launch as cluster
from gmkcf_dask.events.progress import Progress
from gmkcf_dask.kernels.specs import resolve_kernels
from gmkcf_dask.methods.registry import METHODS, make_method
from gmkcf_dask.results.metrics import scores
from gmkcf_dask.store.build import look_up
from gmkcf_dask.store.request import KernelRequest
from gmkcf_dask.system.units import human_bytes


def spilled(dask_worker) -> int:
    """Blocks a worker wrote to disk for want of memory."""
    metrics = dask_worker.data.cumulative_metrics
    return int(sum(v for k, v in metrics.items() if "disk-write" in k and "count" in k))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=12_000)
    parser.add_argument("--terms", type=int, default=5_000)
    parser.add_argument("-k", "--clusters", type=int, default=8)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--memory", type=parse_bytes, default="1GiB")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--kernels", default="paper12")
    parser.add_argument("--method", choices=list(METHODS), default="gmkcf")
    parser.add_argument("--tol", type=float, default=1e-5)
    parser.add_argument("--inner-iter", type=int, default=4)
    parser.add_argument("--v-steps", type=int, default=5)
    parser.add_argument("--max-iter", type=int, default=500)
    parser.add_argument("--folder", type=Path, help="where the store goes; a temporary one if not")
    options = parser.parse_args()

    corpus = text_like(options.n, options.terms, options.clusters)
    specs = resolve_kernels(options.kernels)
    request = KernelRequest(corpus, specs, precision=options.precision)
    solver = {name: getattr(options, name) for name in ("inner_iter", "v_steps", "max_iter", "tol")}
    if options.method not in ("gmkcf", "kcf"):
        solver = {}  # those are for factorizations
    method = make_method(options.method, n_clusters=options.clusters, **solver)
    progress = Progress()
    config = ClusterConfig("local", workers=options.workers, memory=options.memory)
    with (
        tempfile.TemporaryDirectory(dir=options.folder) as folder,
        cluster.start(config, options.n) as resources,
    ):
        place = look_up(Path(folder) / "store.zarr", request)
        plan = pipeline.request_plan(request, options.clusters, resources, place)
        print(plan)
        start = time.perf_counter()
        store = pipeline.build(place, request, plan, resources, progress)
        progress.close()
        built = time.perf_counter()
        build_peaks = resources.worker_peaks().values()
        (run,) = pipeline.fit_into(
            pipeline.FitOptions(Path(folder) / "run", method), store, resources, listen=progress
        )
        clustering, result = run.clustering, run.result
        progress.close()
        done = time.perf_counter()
        for note in result.warnings:
            print(f"note: {note}")
        peaks = result.bytes.worker_peaks
        blocks_spilled = sum(resources.runner.client.run(spilled).values())
        total_memory = options.workers * options.memory
        print(
            f"kernels: {human_bytes(plan.stored_bytes)} decoded, "
            f"{human_bytes(store.stored_bytes())} on disk, workers' memory "
            f"{human_bytes(total_memory)} in all"
        )
        print(
            f"build {built - start:.0f} s; "
            f"fit {done - built:.0f} s, {clustering.n_iter} iterations, "
            f"{(done - built) / max(clustering.n_iter, 1):.1f} s each; "
            f"{'converged' if clustering.converged else 'not converged'}"
        )
        print("peak per worker after build:", ", ".join(map(human_bytes, build_peaks)))
        print(
            "peak per worker at the end:",
            ", ".join(map(human_bytes, peaks)),
            f"(plan: {human_bytes(plan.worker_peak_bytes)})",
        )
        print(f"blocks spilled: {blocks_spilled}")
        print({name: round(v, 3) for name, v in scores(corpus.labels, clustering.labels).items()})
        fits = max(peaks) <= plan.worker_peak_bytes and blocks_spilled == 0
        raise SystemExit(0 if fits else 1)


if __name__ == "__main__":
    main()
