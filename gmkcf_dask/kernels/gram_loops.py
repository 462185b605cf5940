"""Compiled loops over one tile of distances: look a function up, and add up by argument.

A function of the distance is a table of `ENTRIES` values: one for each of `STEPS` + 1 distances
from 0 to d_max, three for pairs with a zero row (see `gram`), and one that is never used with a
weight other than 0, so that the entry after each can be read. A tile holds the numbers of entries
(codes, uint16) or the distances themselves (float32), between which values are interpolated
linearly. What is added up follows the same weights, so that both are adjoint to each other.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gmkcf_dask.system.arrays import AnyFloats, Floats
from gmkcf_dask.system.compiled import compiled

Codes = npt.NDArray[np.uint16]
Distances = npt.NDArray[np.float32]

STEPS = 65_532
"""Codes of distances run from 0 to this one, which stands for d_max."""
ENTRIES = STEPS + 5


@compiled
def gather_codes(codes: Codes, table: AnyFloats, out: AnyFloats) -> None:
    """out = table[codes], all of shape (rows, columns)."""
    for i in range(codes.shape[0]):
        for j in range(codes.shape[1]):
            out[i, j] = table[codes[i, j]]


@compiled
def gather_distances(distances: Distances, table: AnyFloats, scale: float, out: AnyFloats) -> None:
    """Values of a function at distances, interpolated; `scale` is STEPS / d_max."""
    columns = distances.shape[1]
    below = np.empty(columns, np.uint16)
    share = np.empty(columns, np.float32)
    for i in range(distances.shape[0]):
        _locate(distances[i], scale, below, share)
        for j in range(columns):
            first = np.uint32(below[j])
            value = table[first]
            out[i, j] = value + (table[first + np.uint32(1)] - value) * share[j]


@compiled
def scatter_codes(codes: Codes, values: AnyFloats, factor: float, bins: Floats) -> None:
    """bins[·, codes] += factor·values; `bins`, shape (2, ENTRIES), is to be summed over its rows.

    Neighbours often have the same code: two sums keep one addition from waiting for the last.
    """
    even = codes.shape[1] // 2 * 2
    for i in range(codes.shape[0]):
        for j in range(0, even, 2):
            bins[0, codes[i, j]] += factor * values[i, j]
            bins[1, codes[i, j + 1]] += factor * values[i, j + 1]
        if even < codes.shape[1]:
            bins[0, codes[i, even]] += factor * values[i, even]


@compiled
def scatter_distances(
    distances: Distances, values: AnyFloats, factor: float, scale: float, bins: Floats
) -> None:
    """The adjoint of `gather_distances`: each value goes to the two entries it would be made of."""
    columns = distances.shape[1]
    below = np.empty(columns, np.uint16)
    share = np.empty(columns, np.float32)
    for i in range(distances.shape[0]):
        _locate(distances[i], scale, below, share)
        for j in range(columns):
            first = np.uint32(below[j])
            value = factor * np.float64(values[i, j])
            upper = value * share[j]
            bins[0, first] += value - upper
            bins[0, first + np.uint32(1)] += upper


@compiled
def _locate(distances: Distances, scale: float, below: Codes, share: Distances) -> None:
    """The entry below each distance, and the share of the one above; negatives are marks.

    Tiles that are damaged may hold any number. `below` has 16 bits, so whatever a position wraps
    to is an entry of the table, and so is the one after it.
    """
    last = np.float64(STEPS)
    for j in range(distances.shape[0]):
        distance = np.float64(distances[j])
        position = min(distance * scale, last) if distance >= 0.0 else last - distance
        whole = np.int32(position)
        below[j] = whole
        share[j] = position - whole


@compiled
def products_at(
    distances: Distances, sq_rows: Floats, sq_cols: Floats, least: float, products: Floats
) -> None:
    """Inner products of samples from their distances and squared lengths; none is below `least`."""
    for i in range(distances.shape[0]):
        for j in range(distances.shape[1]):
            d = np.float64(distances[i, j])
            products[i, j] = max(least, 0.5 * (sq_rows[i] + sq_cols[j] - d * d))


@compiled
def power(
    base: Floats,
    rows: Floats,
    cols: Floats,
    a: float,
    b: int,
    after: bool,
    low: float,
    factor: float,
    out: Floats,
) -> None:
    """out = ((a + base)^b·rows·cols − low)·factor, or with rows·cols taken to the power as well."""
    columns = base.shape[1]
    for i in range(base.shape[0]):
        row, outside = (1.0, rows[i]) if after else (rows[i], 1.0)
        for j in range(columns):
            value = a + base[i, j]
            out[i, j] = value if after else value * row * cols[j]
        for _ in range(b // 2 if b == 2 or b == 4 else 0):  # squared, once or twice
            for j in range(columns):
                out[i, j] *= out[i, j]
        if b != 1 and b != 2 and b != 4:
            for j in range(columns):
                out[i, j] = out[i, j] ** b
        if after:
            for j in range(columns):
                out[i, j] *= outside * cols[j]
        for j in range(columns):
            out[i, j] = (out[i, j] - low) * factor


@compiled
def clip(values: Floats) -> None:
    """Values below 0 or above 1 become these."""
    for i in range(values.shape[0]):
        for j in range(values.shape[1]):
            values[i, j] = min(max(values[i, j], 0.0), 1.0)
