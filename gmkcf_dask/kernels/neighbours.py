"""The nearest neighbours of every row, without a matrix of n × n.

Sparse rows are found through the terms they share: `TermIndex` lists, for each term, the documents
it weighs most in. Dense rows are compared block by block. Both give `Neighbours`, which do not
depend on how rows are cut into blocks: a row is searched for on its own, or, where a matrix product
comes first, that product only tells which pairs to compute again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log2
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import sparse

from gmkcf_dask.errors import InputError
from gmkcf_dask.kernels import neighbour_loops as loops
from gmkcf_dask.system.arrays import AnyFloats, Floats

Metric = Literal["cosine", "euclidean"]
Integers = npt.NDArray[np.integer[Any]]

INDEX_TERMS = 16
"""Heaviest terms of a document in an index that is not exact."""
EXACT_WORK = 1e11
"""Additions up to which `choose_terms` takes the exact search: about two minutes of one core.

200,000 abstracts of 57 terms need 8·10¹⁰ of them; the number grows with the square of the rows.
"""
CANDIDATES_PER_NEIGHBOUR = 4
"""Documents whose cosine over all terms is computed, for each neighbour wanted."""
COLUMN_BLOCK = 4096
"""Rows of a dense matrix that are compared at a time with a block of others."""
ROW_BLOCK = 1024
"""Rows of such a block: products of 16 MiB in float32."""
_ROWS_AT_ONCE = 16
"""Rows that `compare_with_all` multiplies by all rows: 64 MiB for a million of them."""


@dataclass(frozen=True)
class Neighbours:
    """The p most similar other rows of each row, by falling similarity, of equals the lower first.

    Parameters
    ----------
    indices : ndarray of int32, shape (n_rows, p)
        Which rows; −1 where a row has fewer than p neighbours.
    similarities : ndarray of float32, shape (n_rows, p)
        Cosines, or minus squared Euclidean distances; 0 where there is no neighbour.
    """

    indices: npt.NDArray[np.int32]
    similarities: npt.NDArray[np.float32]

    def __post_init__(self) -> None:
        assert self.indices.shape == self.similarities.shape
        assert self.indices.dtype == np.int32
        assert self.similarities.dtype == np.float32

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def p(self) -> int:
        """Neighbours per row."""
        return int(self.indices.shape[1])

    @classmethod
    def concatenate(cls, blocks: Sequence[Neighbours]) -> Neighbours:
        """The neighbours of consecutive blocks of rows, all of the same p.

        Parameters
        ----------
        blocks : sequence of Neighbours, shapes (n_i, p)

        Returns
        -------
        Neighbours, shape (Σ n_i, p)
        """
        return cls(
            np.concatenate([each.indices for each in blocks]),
            np.concatenate([each.similarities for each in blocks]),
        )

    @classmethod
    def merge(cls, lists: Sequence[Neighbours], p: int) -> Neighbours:
        """The best p of lists for the same rows, found among different columns.

        Parameters
        ----------
        lists : sequence of Neighbours, shapes (n_rows, p_i)
            No column may be in two of them.
        p : int

        Returns
        -------
        Neighbours, shape (n_rows, p)
        """
        indices = np.concatenate([each.indices for each in lists], axis=1)
        values = np.concatenate([each.similarities for each in lists], axis=1)
        # the last key counts first: there at all, then similarity, then the lower index
        order = np.lexsort((indices, -values, indices < 0), axis=1)[:, :p]
        merged = _none_yet(len(indices), p)
        width = order.shape[1]
        merged.indices[:, :width] = np.take_along_axis(indices, order, axis=1)
        merged.similarities[:, :width] = np.take_along_axis(values, order, axis=1)
        return merged


def n_neighbours(n: int) -> int:
    """How many neighbours of n rows a graph has: min(⌈log₂ n⌉, n − 1), 0 for one row.

    >>> [n_neighbours(n) for n in (1, 2, 3, 20_000)]
    [0, 1, 2, 15]
    """
    return min(ceil(log2(n)), n - 1) if n > 1 else 0


def recall(approximate: Neighbours, exact: Neighbours, tolerance: float = 1e-6) -> float:
    """Share of the true neighbours that were found, for the same rows.

    A neighbour found counts where it is as similar as the last true one, whichever of equals it is.

    Parameters
    ----------
    found, exact : Neighbours, shape (n_rows, p)
    tolerance : float, default=1e-6
        Relative difference of similarities that is rounding.

    Returns
    -------
    float
        From 0 to 1; 1 if no row has a neighbour.
    """
    true = exact.indices >= 0
    most = np.finfo(np.float64).max
    last = np.where(true, exact.similarities, most).min(axis=1, initial=most, keepdims=True)
    hits = (approximate.indices >= 0) & (
        approximate.similarities >= last - tolerance * np.abs(last)
    )
    wanted = true.sum(axis=1)
    got = np.minimum(hits.sum(axis=1), wanted).sum()
    return float(got / wanted.sum()) if wanted.any() else 1.0


# --- what a search costs ----------------------------------------------------------------------


def exact_work(document_frequencies: Integers) -> float:
    """Additions of the exact search for all rows: Σ_t df_t².

    Parameters
    ----------
    document_frequencies : ndarray of int, shape (d,)
        In how many documents each term is.
    """
    return float(np.square(np.asarray(document_frequencies, dtype=np.float64)).sum())


def compare_with_all(
    X: sparse.csr_array[Any] | sparse.csr_matrix[Any], chosen: Integers, p: int
) -> Neighbours:
    """The true neighbours of a few rows, without an index: from products with all rows.

    Parameters
    ----------
    X : CSR, shape (n, d)
        Rows of length 1 or 0.
    chosen : ndarray of int, shape (m,)
    p : int
    """
    lists = []
    for first in range(0, len(chosen), _ROWS_AT_ONCE):
        some = chosen[first : first + _ROWS_AT_ONCE]
        similar = np.asarray(X @ np.ascontiguousarray(X[some].toarray().T)).T
        similar[np.arange(len(some)), some] = 0.0  # a row is no neighbour of itself
        best = np.argpartition(-similar, p - 1, axis=1)[:, :p]
        falling = np.argsort(-np.take_along_axis(similar, best, axis=1), axis=1, kind="stable")
        order = np.take_along_axis(best, falling, axis=1).astype(np.int32)
        values = np.take_along_axis(similar, order, axis=1).astype(np.float32)
        there = values > 0.0
        lists.append(Neighbours(np.where(there, order, np.int32(-1)), np.where(there, values, 0)))
    return Neighbours.concatenate(lists)


def choose_terms(document_frequencies: Integers, budget: float = EXACT_WORK) -> int | None:
    """Terms per document for a `TermIndex`: None, which is exact, as long as that is affordable.

    Parameters
    ----------
    document_frequencies : ndarray of int, shape (d,)
    budget : float, default=EXACT_WORK
        Additions for all rows; one core makes about 10⁹ in a second.
    """
    return None if exact_work(document_frequencies) <= budget else INDEX_TERMS


# --- rows of terms ----------------------------------------------------------------------------


@dataclass(frozen=True)
class TermIndex:
    """For each term, the documents that it is among the heaviest terms of, and its weight there.

    Parameters
    ----------
    indptr : ndarray of int64, shape (d + 1,)
        Where the documents of each term begin.
    documents : ndarray of int32, shape (nnz,)
        Counted from the first of `columns`, rising for each term.
    weights : ndarray of float32, shape (nnz,)
    n_documents : int
        Rows of the matrix, also of those not in the index.
    columns : range
        The documents in the index.
    terms : int or None
        Terms kept of each document; None for all, which makes the search exact.
    signed : bool
        Whether a weight is negative.
    """

    indptr: npt.NDArray[np.int64]
    documents: npt.NDArray[np.int32]
    weights: npt.NDArray[np.float32]
    n_documents: int
    columns: range
    terms: int | None
    signed: bool

    @classmethod
    def build(
        cls,
        X: sparse.csr_array[Any] | sparse.csr_matrix[Any],
        terms: int | None = INDEX_TERMS,
        columns: range | None = None,
    ) -> TermIndex:
        """The index of a matrix, or of some of its rows.

        Parameters
        ----------
        X : CSR, shape (n, d)
            Rows of length 1 or 0.
        terms : int, optional
            Heaviest terms of a document that are kept, of equals those with the lower number; None
            for all.
        columns : range, optional
            The rows to put in; all by default. Neighbours from several indices can be merged.
        """
        n, d = X.shape
        columns = range(n) if columns is None else columns
        assert columns.step == 1
        assert 0 <= columns.start <= columns.stop <= n
        rows = _Rows.of(X)
        rows.check(d)
        longest = _longest(rows.indptr)
        kept = longest if terms is None else min(terms, longest)
        indptr = np.zeros(d + 1, dtype=np.int64)
        signed = loops.count_documents(*rows, columns.start, columns.stop, kept, longest, indptr)
        np.cumsum(indptr, out=indptr)
        documents = np.empty(indptr[-1], dtype=np.int32)
        weights = np.empty(indptr[-1], dtype=np.float32)
        loops.list_documents(
            *rows, columns.start, columns.stop, kept, longest, indptr.copy(), documents, weights
        )
        return cls(indptr, documents, weights, n, columns, terms, bool(signed))

    def work(self, document_frequencies: Integers | None = None) -> float:
        """Additions of a search for all rows that are in the index, or of queries with these df."""
        own = np.diff(self.indptr).astype(np.float64)
        others = own if document_frequencies is None else np.asarray(document_frequencies)
        return float(own @ others)


def search(
    index: TermIndex,
    X: sparse.csr_array[Any] | sparse.csr_matrix[Any],
    rows: range,
    p: int,
    candidates: int | None = None,
) -> Neighbours:
    """The neighbours of rows of the indexed matrix, by cosine; a row is not its own neighbour.

    The products of a row's heaviest terms with the index give the most promising documents; of
    these the cosine over all terms decides. An index of all terms needs no second look. Documents
    whose cosine is not above 0, such as those without a common term, are no neighbours.

    Parameters
    ----------
    index : TermIndex
    X : CSR, shape (n, d)
        The matrix that the index is of.
    rows : range
    p : int
    candidates : int, optional
        Documents whose cosine over all terms is computed; 4 p by default.

    Returns
    -------
    Neighbours, shape (len(rows), p)
    """
    assert rows.step == 1
    assert 0 <= rows.start <= rows.stop <= X.shape[0]
    documents = _Rows.of(X)
    return _search(index, documents, documents, rows, p, candidates, new=False)


def search_new(
    index: TermIndex,
    X: sparse.csr_array[Any] | sparse.csr_matrix[Any],
    queries: sparse.csr_array[Any] | sparse.csr_matrix[Any],
    p: int,
    candidates: int | None = None,
) -> Neighbours:
    """The same for rows that are not in the index.

    Parameters
    ----------
    index : TermIndex
    X : CSR, shape (n, d)
        The matrix that the index is of.
    queries : CSR, shape (m, d)
        Rows of length 1 or 0.
    p : int
    candidates : int, optional

    Returns
    -------
    Neighbours, shape (m, p)
        Indices are rows of X.
    """
    query_rows = _Rows.of(queries)
    query_rows.check(X.shape[1])
    rows = range(queries.shape[0])
    return _search(index, _Rows.of(X), query_rows, rows, p, candidates, new=True)


def _search(
    index: TermIndex,
    documents: _Rows,
    queries: _Rows,
    rows: range,
    p: int,
    candidates: int | None,
    new: bool,
) -> Neighbours:
    assert len(documents.indptr) == index.n_documents + 1
    neighbours = _none_yet(len(rows), p)
    if not p or not len(rows):
        return neighbours
    candidates = CANDIDATES_PER_NEIGHBOUR * p if candidates is None else max(candidates, p)
    exact = index.terms is None
    longest = _longest(queries.indptr[rows.start : rows.stop + 1])
    loops.search_terms(
        rows.start,
        rows.stop,
        index.columns.start,
        index.columns.stop,
        new,
        exact,
        index.signed,
        longest if index.terms is None else min(index.terms, longest),
        longest,
        p if exact else candidates,
        _frozen(index.indptr),
        _frozen(index.documents.view(np.uint32)),  # which no loop looks for negative numbers in
        _frozen(index.weights),
        *queries,
        *documents,
        neighbours.indices,
        neighbours.similarities,
    )
    return neighbours


class _Rows(NamedTuple):
    """The arrays of a CSR matrix as the compiled loops take them: one type each, not written."""

    indptr: npt.NDArray[np.int64]
    indices: npt.NDArray[np.int32]
    data: npt.NDArray[np.float32]

    @classmethod
    def of(cls, X: sparse.csr_array[Any] | sparse.csr_matrix[Any]) -> _Rows:
        """Views where types fit; otherwise copies, with the terms of a row in rising order."""
        if not X.has_canonical_format:
            X = X.copy()
            X.sum_duplicates()
        return cls(
            _frozen(np.ascontiguousarray(X.indptr, dtype=np.int64)),
            _frozen(np.ascontiguousarray(X.indices, dtype=np.int32)),
            _frozen(np.ascontiguousarray(X.data, dtype=np.float32)),
        )

    def check(self, n_terms: int) -> None:
        """Compiled loops write where these numbers point to: once, look that they stay inside."""
        inside = (
            self.indptr[0] == 0
            and np.diff(self.indptr).min(initial=0) >= 0
            and self.indptr[-1] <= min(self.indices.size, self.data.size)
            and self.indices.min(initial=0) >= 0
            and self.indices.max(initial=-1) < n_terms
        )
        if not inside:
            raise InputError(
                "the sparse matrix is not sound: its indices lie outside of its shape; make it "
                "again, and look at it with its check_format()"
            )


def _none_yet(n_rows: int, p: int) -> Neighbours:
    return Neighbours(
        np.full((n_rows, p), -1, dtype=np.int32), np.zeros((n_rows, p), dtype=np.float32)
    )


def _longest(indptr: npt.NDArray[np.int64]) -> int:
    return int(np.diff(indptr).max(initial=0))


def _frozen(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A view that cannot be written: Dask hands out such arrays, and each kind is compiled anew."""
    view = array.view()
    view.flags.writeable = False
    return view


# --- dense rows -------------------------------------------------------------------------------


def search_dense(
    X: AnyFloats, rows: range, p: int, metric: Metric, columns: range | None = None
) -> Neighbours:
    """The exact neighbours of rows of a dense matrix; a row is not its own neighbour.

    A float32 matrix product of two blocks tells, with a bound for its rounding, which pairs can be
    among the best p. These are computed again in float64 and rounded to float32.

    Parameters
    ----------
    X : ndarray, shape (n, d)
        For ``cosine`` rows of length 1; a row of zeros has no neighbours and is none.
    rows : range
    p : int
    metric : {"cosine", "euclidean"}
    columns : range, optional
        The rows to look among; all by default. Neighbours from several can be merged.

    Returns
    -------
    Neighbours, shape (len(rows), p)
        For ``euclidean``, similarities are minus squared distances.
    """
    assert rows.step == 1
    assert 0 <= rows.start <= rows.stop <= len(X)
    return _search_dense(X, X[rows.start : rows.stop], rows.start, p, metric, columns)


def search_dense_new(
    X: AnyFloats, queries: AnyFloats, p: int, metric: Metric, columns: range | None = None
) -> Neighbours:
    """The same for rows that are not in the matrix.

    Parameters
    ----------
    X : ndarray, shape (n, d)
    queries : ndarray, shape (m, d)
    p : int
    metric : {"cosine", "euclidean"}
    columns : range, optional

    Returns
    -------
    Neighbours, shape (m, p)
        Indices are rows of X.
    """
    queries = np.ascontiguousarray(queries, dtype=X.dtype)
    # counted from beyond the last row of X, so that none is taken for a row itself
    return _search_dense(X, queries, len(X), p, metric, columns)


def _search_dense(
    X: AnyFloats, queries: AnyFloats, first: int, p: int, metric: Metric, columns: range | None
) -> Neighbours:
    X, queries = np.ascontiguousarray(X), np.ascontiguousarray(queries)
    columns = range(len(X)) if columns is None else columns
    assert columns.step == 1
    assert 0 <= columns.start <= columns.stop <= len(X)
    neighbours = _none_yet(len(queries), p)
    if not (p and len(queries) and len(columns)):
        return neighbours
    neighbours.similarities[:] = -np.inf
    euclidean = metric == "euclidean"
    view = _Approximation.of(X, columns, euclidean)
    for top in range(0, len(queries), ROW_BLOCK):
        block = slice(top, min(top + ROW_BLOCK, len(queries)))
        near, lengths = view.block(queries[block])
        for left in range(columns.start, columns.stop, COLUMN_BLOCK):
            right = min(left + COLUMN_BLOCK, columns.stop)
            others, other_lengths = view.block(X[left:right])
            loops.refine(
                near @ others.T,
                lengths,
                other_lengths,
                first + top,
                left,
                euclidean,
                view.rounding,
                view.scale,
                _frozen(queries[block]),
                _frozen(X[left:right]),
                neighbours.indices[block],
                neighbours.similarities[block],
            )
    neighbours.similarities[neighbours.indices < 0] = 0.0
    return neighbours


@dataclass(frozen=True)
class _Approximation:
    """Rows in float32 near the origin, for products whose rounding is known."""

    centre: Floats
    scale: float
    rounding: float
    """Error of a product in float32, for rows of length 1."""

    @classmethod
    def of(cls, X: AnyFloats, columns: range, euclidean: bool) -> _Approximation:
        d = X.shape[1]
        # γ_d of Higham, and room for the rounding of rows and lengths
        rounding = (d + 8) * float(np.finfo(np.float32).eps)
        if not euclidean:
            return cls(np.zeros(d), 1.0, rounding)
        here = X[columns.start : columns.stop]
        centre = here.mean(axis=0, dtype=np.float64)
        scale = max(
            (
                float(np.abs(here[top : top + COLUMN_BLOCK] - centre).max(initial=0.0))
                for top in range(0, len(here), COLUMN_BLOCK)
            ),
            default=0.0,
        )
        return cls(centre, scale or 1.0, rounding)

    def block(self, rows: AnyFloats) -> tuple[npt.NDArray[np.float32], Floats]:
        """Rows moved and scaled, and their lengths in float64."""
        moved = (rows - self.centre) / self.scale
        lengths = np.sqrt(np.einsum("ij,ij->i", moved, moved))
        return moved.astype(np.float32), lengths
