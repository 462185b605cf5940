"""What comes in: samples as rows of numbers, with their names and, if known, their topics."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy import sparse

from gmkcf_dask.system.arrays import Floats

if TYPE_CHECKING:
    from gmkcf_dask.corpus.text_options import TextReading

Matrix = Floats | sparse.csr_array


@dataclass(frozen=True)
class Corpus:
    """Features of n samples, with ids, and where known labels and terms.

    Attributes
    ----------
    X : ndarray or csr_array of float64, shape (n_samples, n_features)
        Rows are samples. A csr_array is in canonical form (sorted, no duplicates).
    ids : tuple of str, length n_samples
        Unique names of the samples.
    labels : tuple of str, length n_samples, or None
        Known topics, for scoring only: no method ever sees them.
    terms : tuple of str, length n_features, or None
        Names of the features.
    titles : tuple of str, length n_samples, or None
        What to call documents where people read.
    excerpts : tuple of str, length n_samples, or None
        Beginnings of texts, at most 200 characters, white space folded.
    reading : TextReading or None
        How texts became features; with `terms` it reads new documents the same way.
    """

    X: Matrix
    ids: tuple[str, ...]
    labels: tuple[str, ...] | None = None
    terms: tuple[str, ...] | None = None
    titles: tuple[str, ...] | None = None
    excerpts: tuple[str, ...] | None = None
    reading: TextReading | None = None

    @property
    def n_samples(self) -> int:
        return int(self.X.shape[0])

    @property
    def n_features(self) -> int:
        return int(self.X.shape[1])


def row_blocks(X: Matrix, entries: int = 1 << 17) -> Iterator[slice]:
    """Rows a few at a time, of about so many entries: X may be larger than memory.

    >>> list(row_blocks(np.zeros((5, 2)), entries=4))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    n = X.shape[0]
    if isinstance(X, np.ndarray):
        step = max(1, entries // max(1, X.shape[1]))
        yield from (slice(first, min(first + step, n)) for first in range(0, n, step))
        return
    first = 0
    while first < n:
        last = int(np.searchsorted(X.indptr, X.indptr[first] + entries, side="right")) - 1
        last = min(max(last, first + 1), n)
        yield slice(first, last)
        first = last
