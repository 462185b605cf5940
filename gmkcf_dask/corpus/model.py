"""What comes in: samples as rows of numbers, with their names and, if known, their topics."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import sparse

Floats = npt.NDArray[np.float64]
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
    """

    X: Matrix
    ids: tuple[str, ...]
    labels: tuple[str, ...] | None = None
    terms: tuple[str, ...] | None = None

    @property
    def n_samples(self) -> int:
        return int(self.X.shape[0])

    @property
    def n_features(self) -> int:
        return int(self.X.shape[1])
