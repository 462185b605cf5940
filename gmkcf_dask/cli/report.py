"""What a run looks like on the terminal when it is finished."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import click


def report_one(found: Any, result: dict[str, Any]) -> None:
    """One run: how it ended, its clusters and the weights of the kernels."""
    state = "converged" if found.converged else "not converged"
    click.echo(
        f"{result['method']}: {found.n_iter} iterations, {state}, objective {found.objective:.6g}"
        + (f" (run {best_run(found) + 1} of {len(found.runs)})" if len(found.runs) > 1 else "")
    )
    width = shutil.get_terminal_size((100, 24)).columns
    click.echo("clusters: size, similarity inside against any two samples, terms · most central")
    for cluster in result["clusters"]:
        click.echo(cluster_line(cluster, width))
    click.echo("kernel weights")
    largest = max(found.weights)
    for name, weight in zip(found.kernel_names, found.weights, strict=True):
        click.echo(f"  {name:<14}{weight:.4f}  {'█' * round(30 * weight / largest)}".rstrip())


def cluster_line(cluster: dict[str, Any], width: int) -> str:
    """A cluster on one line of so many columns: size, cohesion, terms and most central sample."""
    cohesion = cluster.get("cohesion")
    inside = "" if cohesion is None else f"{cohesion:.1f}×"
    line = f"  {cluster['label']:>3}  {cluster['size']:>7,}  {inside:>6}  "
    central = printable((cluster.get("central") or [""])[0])
    words = printable(", ".join(cluster["terms"]))
    room = max(0, width - len(line) - 1)
    if words and central:
        words = _cut(words, max(room - len(central) - 3, 3 * room // 5)) + " · "
    return (line + _cut(words + _cut(central, room - len(words)), room)).rstrip()


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(0, width - 1)] + "…" * (width > 0)


def printable(text: str) -> str:
    """Titles are other people's text, and must not command a terminal."""
    return "".join(c if c.isprintable() else " " for c in text)


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


def found_in(out: Path, store: Any, found: list[tuple[Any, dict[str, Any]]]) -> dict[str, Any]:
    """The same for machines: where the results are, and what they came to."""
    runs = [
        _found_one(out if len(found) == 1 else out / one.kernel, store, one) for one, _ in found
    ]
    return {"out": out, "seconds_by_stage": found[-1][1]["seconds"]} | (
        runs[0] if len(runs) == 1 else {"runs": runs}
    )


def _found_one(folder: Path, store: Any, one: Any) -> dict[str, Any]:
    from gmkcf_dask.files import exists
    from gmkcf_dask.results.metrics import scores
    from gmkcf_dask.results.run import FACTORS, INSIGHT, LABELS, REPORT, RESULT

    explained = [folder / name for name in (INSIGHT, REPORT) if exists(folder / name)]
    known = store.strings("labels")
    return {
        "paths": [*(folder / name for name in (LABELS, RESULT, FACTORS)), *explained],
        "n_labels": len(one.labels),
        "n_clusters": len(set(one.labels.tolist())),
        "kernel": one.kernel,
        "converged": one.converged,
        "n_iter": one.n_iter,
        "objective": one.objective,
        "kernel_weights": dict(zip(one.kernel_names, one.weights.tolist(), strict=True)),
        "scores": None if known is None else scores(known, one.labels.tolist()),
    }
