"""Array types that all packages share."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
AnyFloats = npt.NDArray[np.floating[Any]]
"""float32 or float64."""
Labels = npt.NDArray[np.int32]
"""The cluster of every sample."""
AnyLabels = npt.NDArray[np.integer[Any]]
"""The same in any integer type."""
