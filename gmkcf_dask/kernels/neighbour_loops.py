"""The compiled loops of `neighbours`: over the terms of documents, and over pairs of dense rows.

Arrays come as they are checked there; nothing is checked here. A CSR matrix is three arrays:
`pointers` (where each row begins), `terms` and `values`. Both ways to add up products make the same
sums in the same order, and the best are those of a total order, so that the way does not show.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gmkcf_dask.system.compiled import compiled

Array = npt.NDArray[Any]

_LIGHTEST = np.float32(1e-18)
"""Values below this are left out, so that no product of two underflows to 0."""
_NOTHING = np.float32(1e-30)
"""Stands for a sum that became 0 again; smaller than any product of values that are in."""
_EVERYWHERE = 0.25
"""Products per document from which looking at all sums is quicker than a list of those touched."""
_STRIP = 256
"""Sums looked at together: most strips have none that is among the best."""


# --- the best of many: heaps with the worst entry on top, the least, of equals the last -------


@compiled
def _sink(values: Array, which: Array, at: int, size: int) -> None:
    """Let an entry sink to its place."""
    value, index = values[at], which[at]
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        right = child + 1
        if right < size and (
            values[right] < values[child]
            or (values[right] == values[child] and which[right] > which[child])
        ):
            child = right
        if values[child] > value or (values[child] == value and which[child] <= index):
            break
        values[at] = values[child]
        which[at] = which[child]
        at = child
    values[at] = value
    which[at] = index


@compiled
def _heapify(values: Array, which: Array, size: int) -> None:
    for at in range(size // 2 - 1, -1, -1):
        _sink(values, which, at, size)


@compiled
def _sort(values: Array, which: Array, size: int) -> None:
    """Best first, of equals the lower index."""
    _heapify(values, which, size)
    while size > 1:
        size -= 1
        value, index = values[size], which[size]
        values[size], which[size] = values[0], which[0]
        values[0], which[0] = value, index
        _sink(values, which, 0, size)


# --- rows of terms ----------------------------------------------------------------------------


@compiled
def _heaviest(
    terms: Array, values: Array, start: int, stop: int, most: int, sizes: Array, t: Array, v: Array
) -> int:
    """Write the heaviest terms of one row to `t` and `v`, by rising number; returns how many."""
    m = 0
    for z in range(start, stop):
        if abs(values[z]) >= _LIGHTEST:
            t[m] = terms[z]
            v[m] = values[z]
            sizes[m] = abs(values[z])
            m += 1
    if m <= most:
        return m
    least = np.sort(sizes[:m])[m - most]
    equals = most
    for z in range(m):
        equals -= sizes[z] > least
    taken = 0
    for z in range(m):
        if sizes[z] > least or (sizes[z] == least and equals > 0):
            equals -= sizes[z] == least
            t[taken] = t[z]
            v[taken] = v[z]
            taken += 1
    return taken


@compiled
def count_documents(
    pointers: Array,
    terms: Array,
    values: Array,
    first: int,
    last: int,
    most: int,
    longest: int,
    counts: Array,
) -> bool:
    """Count the documents of each term in `counts[term + 1]`; returns if a weight is negative."""
    sizes = np.empty(longest, np.float32)
    t = np.empty(longest, np.int32)
    v = np.empty(longest, np.float32)
    signed = False
    for j in range(first, last):
        for z in range(_heaviest(terms, values, pointers[j], pointers[j + 1], most, sizes, t, v)):
            counts[t[z] + 1] += 1
            signed |= v[z] < 0
    return signed


@compiled
def list_documents(
    pointers: Array,
    terms: Array,
    values: Array,
    first: int,
    last: int,
    most: int,
    longest: int,
    free: Array,
    documents: Array,
    weights: Array,
) -> None:
    """Write the documents of each term, from `free[term]` on."""
    sizes = np.empty(longest, np.float32)
    t = np.empty(longest, np.int32)
    v = np.empty(longest, np.float32)
    for j in range(first, last):
        for z in range(_heaviest(terms, values, pointers[j], pointers[j + 1], most, sizes, t, v)):
            where = free[t[z]]
            documents[where] = j - first
            weights[where] = v[z]
            free[t[z]] = where + 1


@compiled
def _add_products(
    t: Array,
    v: Array,
    n_terms: int,
    signed: bool,
    index_pointers: Array,
    documents: Array,
    weights: Array,
    sums: Array,
    touched: Array,
) -> int:
    """Add the products of one row's terms to `sums`; returns how many documents are `touched`.

    A sum is 0 before its first product and never after it, so that each is listed once. There is
    no branch in the loop: whether a document is new cannot be foreseen.
    """
    count = 0
    for z in range(n_terms):
        value = v[z]
        some = documents[index_pointers[t[z]] : index_pointers[t[z] + 1]]
        there = weights[index_pointers[t[z]] : index_pointers[t[z] + 1]]
        if signed:
            for y in range(len(some)):
                j = some[y]
                before = sums[j]
                touched[count] = j
                count += before == 0
                after = before + value * there[y]
                sums[j] = after if after != 0 else _NOTHING
        else:
            for y in range(len(some)):
                j = some[y]
                before = sums[j]
                touched[count] = j
                count += before == 0
                sums[j] = before + value * there[y]
    return count


@compiled
def _add_all_products(
    t: Array,
    v: Array,
    n_terms: int,
    index_pointers: Array,
    documents: Array,
    weights: Array,
    sums: Array,
) -> None:
    """The same without a list, for rows that touch so many documents that all are looked at."""
    for z in range(n_terms):
        value = v[z]
        some = documents[index_pointers[t[z]] : index_pointers[t[z] + 1]]
        there = weights[index_pointers[t[z]] : index_pointers[t[z] + 1]]
        for y in range(len(some)):
            sums[some[y]] += value * there[y]


@compiled
def _take_best(sums: Array, touched: Array, count: int, best: Array, which: Array) -> int:
    """The largest sums of those touched, in any order; all are 0 afterwards. Returns how many."""
    size = 0
    worst, latest = _NOTHING, np.int32(-1)
    for z in range(count):
        j = touched[z]
        total = sums[j]
        sums[j] = 0
        if total >= worst:
            size = _take(total, np.int32(j), worst, latest, size, best, which)
            if size == len(best):
                worst, latest = best[0], which[0]
    return size


@compiled
def _take_best_of_all(sums: Array, best: Array, which: Array) -> int:
    """The same where any may have been touched."""
    size = 0
    worst, latest = _NOTHING, np.int32(-1)
    for first in range(0, len(sums), _STRIP):
        strip = sums[first : first + _STRIP]
        largest = np.float32(0)
        for total in strip:
            largest = max(largest, total)
        if largest >= worst:
            for z in range(len(strip)):
                if strip[z] >= worst:
                    j = np.int32(first + z)
                    size = _take(strip[z], j, worst, latest, size, best, which)
                    if size == len(best):
                        worst, latest = best[0], which[0]
        strip[:] = 0
    return size


@compiled
def _take(
    total: np.float32,
    j: np.int32,
    worst: np.float32,
    latest: np.int32,
    size: int,
    best: Array,
    which: Array,
) -> int:
    """Put one sum among the best if it belongs there; returns how many there are now."""
    if total == worst and j >= latest:
        return size
    if size == len(best):
        best[0] = total
        which[0] = j
        _sink(best, which, 0, size)
        return size
    best[size] = total
    which[size] = j
    if size + 1 == len(best):
        _heapify(best, which, size + 1)
    return size + 1


@compiled
def search_terms(
    first_row: int,
    last_row: int,
    first_column: int,
    last_column: int,
    new: bool,
    exact: bool,
    index_signed: bool,
    most: int,
    longest: int,
    candidates: int,
    index_pointers: Array,
    documents: Array,
    weights: Array,
    query_pointers: Array,
    query_terms: Array,
    query_values: Array,
    pointers: Array,
    terms: Array,
    values: Array,
    indices: Array,
    similarities: Array,
) -> None:
    """The best documents of each row: sums over its terms, then cosines of the most promising."""
    n_columns = last_column - first_column
    sums = np.zeros(n_columns, np.float32)
    touched = np.empty(n_columns + 1, np.int32)  # one more: written before it is counted
    row = np.zeros(len(index_pointers) - 1, np.float32)
    sizes = np.empty(longest, np.float32)
    t = np.empty(longest, np.int32)
    v = np.empty(longest, np.float32)
    best = np.empty(candidates, np.float32)
    which = np.empty(candidates, np.int32)
    p = indices.shape[1]
    for i in range(first_row, last_row):
        begin, end = query_pointers[i], query_pointers[i + 1]
        n_terms = _heaviest(query_terms, query_values, begin, end, most, sizes, t, v)
        signed = index_signed
        for z in range(n_terms):
            signed |= v[z] < 0
        n_products = 0
        for z in range(n_terms):
            n_products += index_pointers[t[z] + 1] - index_pointers[t[z]]
        everywhere = n_products > _EVERYWHERE * n_columns
        count = 0
        if everywhere:
            _add_all_products(t, v, n_terms, index_pointers, documents, weights, sums)
        else:
            count = _add_products(
                t, v, n_terms, signed, index_pointers, documents, weights, sums, touched
            )
        itself = i - first_column
        if not new and 0 <= itself < n_columns:
            sums[itself] = 0
        if everywhere:
            size = _take_best_of_all(sums, best, which)
        else:
            size = _take_best(sums, touched, count, best, which)
        if not exact:
            for z in range(begin, end):
                row[query_terms[z]] = query_values[z]
            for z in range(size):
                j = which[z] + first_column
                total = np.float32(0)
                # by rising term, as the sums of an exact index: the same bits
                for y in range(pointers[j], pointers[j + 1]):
                    total += row[terms[y]] * values[y]
                best[z] = total
            for z in range(begin, end):
                row[query_terms[z]] = 0
        _sort(best, which, size)
        for z in range(min(p, size)):
            if best[z] > _NOTHING:
                indices[i - first_row, z] = which[z] + first_column
                similarities[i - first_row, z] = best[z]


# --- dense rows -------------------------------------------------------------------------------


@compiled
def refine(
    products: Array,
    lengths: Array,
    other_lengths: Array,
    first_row: int,
    first_column: int,
    euclidean: bool,
    rounding: float,
    scale: float,
    rows: Array,
    others: Array,
    indices: Array,
    similarities: Array,
) -> None:
    """Put those of a block of columns that are among the best p into the sorted lists.

    `products` are of rows divided by `scale`, with an error of `rounding` times their lengths.
    """
    n_columns = len(other_lengths)
    p = indices.shape[1]
    upper = np.empty(n_columns, np.float64)
    best = np.empty(p, np.float64)
    which = np.empty(p, np.int32)
    unit = scale * scale if euclidean else 1.0
    for i in range(len(lengths)):
        if not euclidean and lengths[i] == 0:
            continue
        size = 0
        for j in range(n_columns):
            if first_row + i == first_column + j or (not euclidean and other_lengths[j] == 0):
                upper[j] = -np.inf
                continue
            if euclidean:
                reach = lengths[i] + other_lengths[j]
                error = rounding * reach * reach
                near = 2.0 * products[i, j] - lengths[i] ** 2 - other_lengths[j] ** 2
            else:
                error = rounding * lengths[i] * other_lengths[j]
                near = np.float64(products[i, j])
            upper[j] = near + error
            lower = near - error
            if size < p:
                best[size] = lower
                which[size] = j
                size += 1
                if size == p:
                    _heapify(best, which, size)
            elif lower > best[0]:
                best[0] = lower
                which[0] = j
                _sink(best, which, 0, size)
        # p columns of this block are at least as good as this
        bound = best[0] if size == p else -np.inf
        for j in range(n_columns):
            # the list so far is rounded to float32, which the error has room for
            if upper[j] == -np.inf or upper[j] < bound or upper[j] * unit < similarities[i, p - 1]:
                continue
            total = 0.0
            if euclidean:
                for t in range(rows.shape[1]):
                    total -= (np.float64(rows[i, t]) - np.float64(others[j, t])) ** 2
            else:
                for t in range(rows.shape[1]):
                    total += np.float64(rows[i, t]) * np.float64(others[j, t])
            value = np.float32(total)
            # columns come in rising order: an equal one goes after those that are there
            if not value > similarities[i, p - 1]:
                continue
            at = p - 1
            while at > 0 and similarities[i, at - 1] < value:
                similarities[i, at] = similarities[i, at - 1]
                indices[i, at] = indices[i, at - 1]
                at -= 1
            similarities[i, at] = value
            indices[i, at] = first_column + j
