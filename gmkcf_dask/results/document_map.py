"""A map of the samples: clusters as islands, doubtful samples on the way to the next one.

A linear projection of twenty clusters lays them on top of each other. Here only the k centres are
put into the plane, by their distances; every island gets the area its samples need, and islands
that touch are pushed apart. A sample lies on its island as it lies in its cluster, and is drawn
towards other centres as far as it shares in them. No randomness, and work of the order n k².
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtri
from scipy.stats import rankdata

from gmkcf_dask.results.membership import Membership
from gmkcf_dask.system.arrays import Floats

SENTENCE = (
    "Each island is a cluster; its area shows its number of {what}, and similar clusters are close "
    "to each other. A {one} near the edge of its island, or between two, also fits the other "
    "cluster."
)
ASIDE = "The {what} at the bottom belong to no cluster."
ROUNDS = 300
SEA = 0.1
"""Water between two islands at least, as a part of their radii."""
LAND = 0.45
"""Share of the map, a circle of radius 1, that all islands together cover."""
SPREAD, STEP = 0.36, 0.3
"""Radii of an island for one standard deviation, and for the longest step of one's own."""
GOLDEN_ANGLE = np.pi * (3.0 - np.sqrt(5.0))
PULL = 0.9
"""How far towards the other centres a sample goes that shares in them as much as in its own."""


def document_map(members: Membership) -> Floats:
    """Places of the samples, shape (n, 2), between −1 and 1.

    Samples without a cluster lie below all islands.
    """
    filled = np.flatnonzero(members.sizes)
    radii = np.sqrt(LAND * members.sizes[filled] / max(1, members.sizes.sum()))
    islands = np.zeros((len(members.centres), 2))
    islands[filled] = place_islands(members.centres[filled], radii)
    radius = np.zeros(len(members.centres))
    radius[filled] = radii
    offsets = np.zeros((len(members.labels), 2))
    for cluster in filled:
        inside = members.labels == cluster
        rest = members.rows[inside] - members.centres[cluster]
        offsets[inside] = radius[cluster] * on_island(rest)
    places = islands[members.labels] + offsets + _drawn(members, islands)
    places[~members.placed] = _aside(places[members.placed], len(places))
    return fit_into_square(places)


def _aside(places: Floats, n: int) -> Floats:
    """Places of the samples of n that have none yet: a disc below the others, shape (·, 2)."""
    rest = n - len(places)
    if not rest:
        return np.zeros((0, 2))
    radius = np.sqrt(LAND * rest / n)
    if not len(places):
        return np.asarray(radius * _spiral(rest))
    low, high = places.min(axis=0), places.max(axis=0)
    middle = np.array([(low[0] + high[0]) / 2.0, low[1] - (1.0 + SEA) * radius - SEA])
    return np.asarray(middle + radius * _spiral(rest))


def place_islands(centres: Floats, radii: Floats) -> Floats:
    """Positions of k islands in the plane, shape (k, 2): like the distances, but none overlap."""
    k = len(centres)
    if k <= 1:
        return np.zeros((k, 2))
    apart = np.linalg.norm(centres[:, None] - centres[None], axis=2)
    typical = float(np.median(apart[np.triu_indices(k, 1)]))
    if typical == 0.0:
        apart, typical = 1.0 - np.eye(k), 1.0
    least = (1.0 + SEA) * (radii[:, None] + radii[None]) * (1.0 - np.eye(k))
    # roots: a cluster far from all others must not make the rest small
    wanted = np.maximum(np.sqrt(apart / typical), least)
    return _untangled(_smacof(wanted, _classical_scaling(wanted)), least)


def _classical_scaling(apart: Floats) -> Floats:
    """Positions whose distances come near the given ones, shape (k, 2)."""
    k = len(apart)
    centre = np.eye(k) - 1.0 / k
    values, vectors = np.linalg.eigh(-0.5 * centre @ apart**2 @ centre)
    top = vectors[:, ::-1][:, :2] * np.sqrt(np.maximum(values[::-1][:2], 0.0))
    top = top * np.where(top[np.abs(top).argmax(axis=0), np.arange(top.shape[1])] < 0, -1.0, 1.0)
    flat = np.zeros((k, 2))
    flat[:, : top.shape[1]] = top
    # no two in one place, whatever the distances: a turn of the circle for each
    angle = 2.0 * np.pi * np.arange(k) / k
    return flat + 1e-3 * np.column_stack([np.cos(angle), np.sin(angle)])


def _smacof(wanted: Floats, places: Floats) -> Floats:
    """Positions of least stress, near pairs counting most (Guttman's transform, weighted)."""
    k = len(wanted)
    weights = np.divide(1.0, wanted**2, out=np.zeros_like(wanted), where=wanted > 0)
    laplacian = np.diag(weights.sum(axis=1)) - weights
    inverse = np.linalg.pinv(laplacian)
    for _ in range(ROUNDS):
        apart = np.linalg.norm(places[:, None] - places[None], axis=2)
        ratio = np.divide(weights * wanted, apart, out=np.zeros((k, k)), where=apart > 1e-12)
        B = np.diag(ratio.sum(axis=1)) - ratio
        places = inverse @ (B @ places)
    return np.asarray(places)


def _untangled(places: Floats, least: Floats) -> Floats:
    """Islands that are too near pushed apart, in equal parts and by turns until none is."""
    places = places.copy()
    for _ in range(ROUNDS):
        gaps = places[:, None] - places[None]
        apart = np.linalg.norm(gaps, axis=2)
        short = np.maximum(least - apart, 0.0)
        if short.max() <= 1e-6:
            break
        push = np.divide(short, apart, out=np.zeros_like(apart), where=apart > 0)
        places += 0.5 * (gaps * push[..., None]).sum(axis=1)
    return places


def on_island(rest: Floats) -> Floats:
    """Samples of one cluster around 0, most of them within a radius of 1, shape (n_c, 2).

    Their places along the two main directions of the cluster as normal scores, which fill an
    island evenly however lopsided the cluster is. Equal samples share a rank but not a place:
    each has a small step of its own on a spiral.
    """
    n = len(rest)
    if n == 1:
        return np.zeros((1, 2))
    _, vectors = np.linalg.eigh(rest.T @ rest)
    axes = vectors[:, ::-1][:, :2]
    axes = axes * np.where(axes[np.abs(axes).argmax(axis=0), np.arange(axes.shape[1])] < 0, -1, 1)
    flat = np.zeros((n, 2))
    flat[:, : axes.shape[1]] = rest @ axes
    scores = ndtri(rankdata(flat, axis=0) / (n + 1.0))
    return np.asarray(SPREAD * scores + STEP * _spiral(n))


def _spiral(n: int) -> Floats:
    """Places that fill a disc of radius 1 evenly, shape (n, 2)."""
    turn, way = GOLDEN_ANGLE * np.arange(n), np.sqrt((np.arange(n) + 0.5) / n)
    return np.asarray(way[:, None] * np.column_stack([np.cos(turn), np.sin(turn)]))


def _drawn(members: Membership, islands: Floats) -> Floats:
    """How far samples are drawn away from their islands, shape (n, 2)."""
    own = np.where(members.placed, members.own, 0.0)
    nearness = np.divide(
        own[:, None],
        members.distances,
        out=np.zeros_like(members.distances),
        where=members.distances > 0,
    )
    shares = np.minimum(nearness, 1.0) ** 6
    shares[np.arange(len(shares)), members.labels] = 1.0
    shares /= shares.sum(axis=1, keepdims=True)
    return PULL * (shares @ islands - islands[members.labels])


def fit_into_square(places: Floats) -> Floats:
    """The same picture between −1 and 1, its middle at 0."""
    low, high = places.min(axis=0), places.max(axis=0)
    half = float((high - low).max()) / 2.0
    return np.asarray((places - (low + high) / 2.0) / (half if half > 0 else 1.0))
