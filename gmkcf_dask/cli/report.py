"""The summary of a finished run on the terminal."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from gmkcf_dask.pipeline import FittedRun
    from gmkcf_dask.results.schemas import ClusterEntry
    from gmkcf_dask.store.kernel_store import KernelStore


def report(runs: list[FittedRun]) -> None:
    """One run in detail, or a line for the run on each kernel."""
    if len(runs) == 1:
        _report_one(runs[0])
        return
    click.echo(f"{'kernel':<14}{'objective':>13}{'iterations':>12}  cluster sizes")
    for one, result in ((run.clustering, run.result) for run in runs):
        sizes = sorted((cluster.size for cluster in result.clusters if cluster.size), reverse=True)
        shown = " ".join(map(str, sizes[:8])) + (" …" if len(sizes) > 8 else "")
        if result.n_without_cluster:
            shown += f"  {result.n_without_cluster} without a cluster"
        mark = "" if one.converged else "  not converged"
        click.echo(f"{one.kernel:<14}{one.objective:>13.6g}{one.n_iter:>12}  {shown}{mark}")


def _report_one(run: FittedRun) -> None:
    """Convergence, clusters and kernel weights."""
    from gmkcf_dask.results.insight import without_cluster

    clustering, result = run.clustering, run.result
    state = "converged" if result.converged else "not converged"
    objectives = [one.objective for one in result.runs]
    best = objectives.index(min(objectives)) + 1
    click.echo(
        f"{result.method}: {result.n_iter} iterations, {state}, "
        f"objective {clustering.objective:.6g}"
        + (f" (run {best} of {len(objectives)})" if len(objectives) > 1 else "")
    )
    width = shutil.get_terminal_size((100, 24)).columns
    click.echo("clusters: size, similarity compared with the average, terms · most typical")
    for cluster in result.clusters:
        click.echo(cluster_line(cluster, width))
    if result.n_without_cluster:
        click.echo(without_cluster(result.n_without_cluster, result.what))
    click.echo("kernel weights")
    largest = max(clustering.weights)
    for name, weight in zip(clustering.kernel_names, clustering.weights, strict=True):
        click.echo(f"  {name:<14}{weight:.4f}  {'█' * round(30 * weight / largest)}".rstrip())


def cluster_line(cluster: ClusterEntry, width: int) -> str:
    """A cluster on one line of so many columns: size, cohesion, terms and most central sample."""
    inside = f"{cluster.cohesion:.1f}×" if isinstance(cluster.cohesion, float) else ""
    line = f"  {cluster.label:>3}  {cluster.size:>7,}  {inside:>6}  "
    central = printable((cluster.central or [""])[0])
    words = printable(", ".join(cluster.terms))
    room = max(0, width - len(line) - 1)
    if words and central:
        words = _cut(words, max(room - len(central) - 3, 3 * room // 5)) + " · "
    return (line + _cut(words + _cut(central, room - len(words)), room)).rstrip()


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(0, width - 1)] + "…" * (width > 0)


def printable(text: str) -> str:
    """Titles are other people's text, and must not command a terminal."""
    return "".join(c if c.isprintable() else " " for c in text)


def machine_summary(out: Path, store: KernelStore, runs: list[FittedRun]) -> dict[str, Any]:
    """The same for machines: where the results are, and their figures."""
    summaries = [_run_summary(run, store) for run in runs]
    return {"out": out, "seconds_by_stage": runs[-1].result.seconds} | (
        summaries[0] if len(summaries) == 1 else {"runs": summaries}
    )


_SUMMARY = ("kernel", "converged", "n_iter", "objective", "contrast")


def _run_summary(run: FittedRun, store: KernelStore) -> dict[str, Any]:
    from gmkcf_dask.errors import DamagedStoreError
    from gmkcf_dask.results.metrics import coverage, scores
    from gmkcf_dask.results.run_folder import FACTORS, INSIGHT, LABELS, REPORT, RESULT
    from gmkcf_dask.store.files import exists

    explained = [run.folder / name for name in (INSIGHT, REPORT) if exists(run.folder / name)]
    try:
        known = store.strings("labels")
    except DamagedStoreError:  # the results warn about it
        known = None
    clustering = run.clustering
    return {
        "paths": [*(run.folder / name for name in (LABELS, RESULT, FACTORS)), *explained],
        "n_labels": len(clustering.labels),
        "n_clusters": sum(cluster.size > 0 for cluster in run.result.clusters),
        "n_without_cluster": run.result.n_without_cluster,
        **{name: getattr(clustering, name) for name in _SUMMARY},
        "kernel_weights": run.result.kernel_weights,
        "scores": None if known is None else scores(known, clustering.labels.tolist()),
        "coverage": coverage(clustering.labels),
    }
