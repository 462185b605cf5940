"""Numbers for pictures: runs read again, the plane of a map, places for labels."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gmkcf_dask.corpus.arrays import read_npz
from gmkcf_dask.errors import InputError
from gmkcf_dask.files import get
from gmkcf_dask.locations import location
from gmkcf_dask.results.run import FACTORS, INSIGHT, LABELS, RESULT, read_labels, read_result

Floats = npt.NDArray[np.float64]
_NEEDED = ("clusters", "documents", "kernels", "runs", "best", "fused")


def read_run(run: str | Path) -> Mapping[str, Any]:
    """What describes a run: its insight.json, or as much of it as its results tell."""
    folder = location(run)
    content = get(folder / INSIGHT)
    if content is None:
        return _of_results(folder)
    try:
        insight: Mapping[str, Any] = json.loads(content)
        missing = [name for name in _NEEDED if name not in insight]
    except (ValueError, TypeError) as error:
        raise InputError(f"{folder / INSIGHT} is damaged: run again with --overwrite") from error
    if missing:
        raise InputError(f"{folder / INSIGHT} lacks {', '.join(missing)}: run again")
    return insight


def _of_results(folder: Path) -> dict[str, Any]:
    result = read_result(folder)
    try:
        weights = result["kernel_weights"]
        runs = [
            {"history": run.get("history", ()), "converged": run["converged"]}
            for run in result["runs"]
        ]
        best = int(np.argmin([run["objective"] for run in result["runs"]]))
        if not all(len(run["history"]) for run in runs):
            best = 0
            runs = [{"history": result["objective_history"], "converged": result["converged"]}]
        history = result.get("weights_history", [])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{folder / RESULT} is damaged: run again with --overwrite") from error
    held = {"names": list(weights), "weights": list(weights.values()), "history": history}
    return {"kernels": held, "runs": runs, "best": best, "clusters": [], "folder": folder}


def documents_of(insight: Mapping[str, Any]) -> Mapping[str, Any]:
    """Labels and places on the map; those of a run without insight from its representation."""
    if "documents" in insight:
        found: Mapping[str, Any] = insight["documents"]
        return found
    folder = insight["folder"]
    labels = [int(label) for label in read_labels(folder / LABELS).values()]
    try:
        held = read_npz(folder / FACTORS, ("V", "embedding"))
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise InputError(f"cannot read {folder / FACTORS}: {error}") from error
    if not held:
        raise InputError(
            f"{folder} holds no representation of the samples to draw a map of: use gmkcf, kcf or "
            "one of the spectral methods"
        )
    plane, _ = principal_plane(next(iter(held.values())))
    return {"labels": labels, "x": plane[:, 0], "y": plane[:, 1]}


def fused_of(insight: Mapping[str, Any]) -> Mapping[str, Any]:
    """Block means of the fused kernel."""
    if "fused" not in insight:
        raise InputError(
            f"{insight.get('folder', 'this run')} has no {INSIGHT}, which holds the block means of "
            "the fused kernel: run again"
        )
    found: Mapping[str, Any] = insight["fused"]
    return found


def principal_plane(V: Any) -> tuple[Floats, tuple[float, float]]:
    """Samples in the two main directions of their representation, shape (n, 2).

    Also the share of the variance of each; a representation of one column has no second direction.
    """
    centred = np.asarray(V, dtype=float) - np.mean(V, axis=0)
    values, vectors = np.linalg.eigh(centred.T @ centred)
    values, vectors = np.maximum(values[::-1], 0.0), vectors[:, ::-1]
    # signs are free: the largest entry is made positive, so that maps can be compared
    vectors = vectors * np.sign(vectors[np.abs(vectors).argmax(axis=0), range(len(values))])
    plane = centred @ vectors[:, :2]
    if plane.shape[1] < 2:
        plane = np.hstack([plane, np.zeros((len(plane), 1))])
    total = float(values.sum()) or 1.0
    shares = [*(values[:2] / total), 0.0]
    return plane, (float(shares[0]), float(shares[1]))


def spread_apart(values: Any, low: float, high: float, gap: float) -> Floats:
    """Places for labels, in the order of falling values: near them, and a gap from each other.

    >>> spread_apart([0.50, 0.49], 0.0, 1.0, 0.1).round(3).tolist()
    [0.5, 0.4]
    """
    places = np.asarray(values, dtype=float).copy()
    for i in range(1, len(places)):
        places[i] = min(places[i], places[i - 1] - gap)
    # what was pushed out below pushes back, as far as there is room
    places[-1:] = np.maximum(places[-1:], low)
    for i in range(len(places) - 2, -1, -1):
        places[i] = max(places[i], places[i + 1] + gap)
    return np.asarray(places)


def pushed_apart(points: Floats, widths: Sequence[float], height: float) -> Floats:
    """Places for texts of these widths and one height: below each other where they would overlap.

    >>> pushed_apart(np.array([[0.5, 0.5], [0.5, 0.48]]), [0.1, 0.1], 0.05).tolist()
    [[0.5, 0.5], [0.5, 0.45]]
    """
    places = np.asarray(points, dtype=float).copy()
    placed: list[int] = []
    for i in np.argsort(-places[:, 1], kind="stable").tolist():
        for j in placed:  # from above to below, so that what is pushed meets what comes after
            near = abs(places[i, 0] - places[j, 0]) < (widths[i] + widths[j]) / 2
            if near and abs(places[i, 1] - places[j, 1]) < height:
                places[i, 1] = places[j, 1] - height
        placed.append(i)
        placed.sort(key=lambda j: -places[j, 1])
    return places
