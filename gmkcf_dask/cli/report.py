"""What a run looks like on the terminal: while it goes on, and when it is finished."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click


def report_one(found: Any, result: dict[str, Any]) -> None:
    """One run: how it ended, its clusters and the weights of the kernels."""
    state = "converged" if found.converged else "not converged"
    click.echo(
        f"{result['method']}: {found.n_iter} iterations, {state}, objective {found.objective:.6g}"
        + (f" (run {best_run(found) + 1} of {len(found.runs)})" if len(found.runs) > 1 else "")
    )
    click.echo("clusters")
    for cluster in result["clusters"]:
        words = ", ".join(cluster["terms"])
        click.echo(f"  {cluster['label']:>3}  {cluster['size']:>7,}  {words}".rstrip())
    click.echo("kernel weights")
    largest = max(found.weights)
    for name, weight in zip(found.kernel_names, found.weights, strict=True):
        click.echo(f"  {name:<14}{weight:.4f}  {'█' * round(30 * weight / largest)}".rstrip())


def report_many(found: list[Any]) -> None:
    """A line for every kernel."""
    click.echo(f"{'kernel':<14}{'objective':>13}{'iterations':>12}  cluster sizes")
    for one in found:
        sizes = sorted(
            (int((one.labels == c).sum()) for c in set(one.labels.tolist())), reverse=True
        )
        shown = " ".join(map(str, sizes[:8])) + (" …" if len(sizes) > 8 else "")
        mark = "" if one.converged else "  not converged"
        click.echo(f"{one.kernel:<14}{one.objective:>13.6g}{one.n_iter:>12}  {shown}{mark}")


def best_run(found: Any) -> int:
    """Number of the restart that was kept."""
    objectives = [run.objective for run in found.runs]
    return objectives.index(min(objectives))


@contextmanager
def showing_progress() -> Iterator[Any]:
    """A line of progress on the terminal, until it is done with."""
    from gmkcf_dask.progress import Progress

    progress = Progress()
    try:
        yield progress
    finally:
        progress.close()


@contextmanager
def showing_notes() -> Iterator[None]:
    """Warnings as one sentence each, without the source line Python prints."""
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        yield
    for warning in raised:
        click.echo(f"note: {warning.message}", err=True)
