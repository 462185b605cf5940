"""Numbers for pictures: the plane of a map, places for labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gmkcf_dask.system.arrays import Floats

_SHIFTS = (0, -1, 1, -1.5, 1.5, -2, 2, -2.5, 2.5, -3, 3)
"""In lines, from where a text would stand to where it may."""


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
    """Places inside 0 … 1 for texts of these widths and one height, the most important ones first.

    A text stands at its point, or up to three lines below or above where another one is there; NaN
    is the place of one that finds no room.

    >>> pushed_apart(np.array([[0.5, 0.5], [0.5, 0.48]]), [0.1, 0.1], 0.05).round(3).tolist()
    [[0.5, 0.5], [0.5, 0.43]]
    """
    places = np.full((len(points), 2), np.nan)
    taken: list[int] = []

    def is_free(i: int, x: float, y: float) -> bool:
        inside = height / 2 <= y <= 1 - height / 2 and np.isfinite(x)
        return inside and not any(
            abs(x - places[j, 0]) < (widths[i] + widths[j]) / 2 and abs(y - places[j, 1]) < height
            for j in taken
        )

    for i, (x, y) in enumerate(np.asarray(points, dtype=float)):
        half = min(widths[i] / 2, 0.5)
        x, y = np.clip(x, half, 1 - half), np.clip(y, height / 2, 1 - height / 2)
        lines = (y + shift * height for shift in _SHIFTS)
        free = next((line for line in lines if is_free(i, x, line)), None)
        if free is not None:
            places[i] = x, free
            taken.append(i)
    return places


def with_room(
    middles: Sequence[float], sizes: Sequence[float], lengths: Sequence[float]
) -> list[int]:
    """Which labels of these lengths along a line can be written, those of the largest parts first.

    >>> with_room([1.0, 1.5, 4.0], [5, 2, 9], [1.0, 1.0, 1.0])
    [0, 2]
    """
    kept: list[int] = []
    for i in sorted(range(len(middles)), key=lambda i: (-sizes[i], i)):
        if all(abs(middles[i] - middles[j]) >= (lengths[i] + lengths[j]) / 2 for j in kept):
            kept.append(i)
    return sorted(kept)
