"""Starting points. Randomness happens here, on the driver, from an explicit seed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from gmkcf_dask.errors import InputError

Floats = npt.NDArray[np.float64]
Start = tuple[Floats, Floats]


def random_starts(n: int, k: int, seed: int, n_init: int) -> Iterator[Start]:
    """Uniform (0, 1) factors for each restart: U first, then V, from a stream of its own."""
    for stream in np.random.SeedSequence(seed).spawn(n_init):
        rng = np.random.default_rng(stream)
        yield _open_uniform(rng, (n, k)), _open_uniform(rng, (n, k))


def given_start(U0: npt.ArrayLike, V0: npt.ArrayLike, n: int, k: int) -> Start:
    """A start the user brings, checked."""
    factors = []
    for name, given in (("U0", U0), ("V0", V0)):
        values = np.array(given, dtype=np.float64)
        if values.shape != (n, k):
            raise InputError(f"init {name} has shape {values.shape}, it must be ({n}, {k})")
        if not np.isfinite(values).all() or values.min() < 0:
            raise InputError(f"init {name} must be finite and non-negative")
        factors.append(values)
    return factors[0], factors[1]


def _open_uniform(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
    # random() may give exactly 0, which multiplicative updates could never leave
    return np.maximum(rng.random(shape), np.finfo(np.float64).tiny)
