"""Starting points. Randomness happens here, on the driver, from an explicit seed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

import numpy as np
import numpy.typing as npt

from gmkcf_dask.errors import InputError

Floats = npt.NDArray[np.float64]
Start = tuple[Floats, Floats]


Init = Literal["random"] | tuple[npt.ArrayLike, npt.ArrayLike]


def make_starts(n: int, k: int, seed: int, n_init: int, init: Init) -> Iterable[Start]:
    """The starts of all restarts. What the user gave is checked here and now, before any work."""
    if not isinstance(n_init, int | np.integer) or isinstance(n_init, bool) or n_init < 1:
        raise InputError(f"n_init must be a whole number of at least 1, not {n_init!r}")
    if isinstance(init, str) and init == "random":
        return random_starts(n, k, seed, n_init)
    if not isinstance(init, tuple | list) or len(init) != 2:
        raise InputError(f"init must be 'random' or a pair (U0, V0), not {init!r}")
    if n_init != 1:
        raise InputError("n_init must be 1 with a given start: every restart would be the same")
    return [given_start(*init, n, k)]


def random_starts(n: int, k: int, seed: int, n_init: int) -> Iterator[Start]:
    """Uniform (0, 1) factors for each restart: U first, then V, from a stream of its own."""
    for stream in np.random.SeedSequence(seed).spawn(n_init):
        rng = np.random.default_rng(stream)
        yield _open_uniform(rng, (n, k)), _open_uniform(rng, (n, k))


def given_start(U0: npt.ArrayLike, V0: npt.ArrayLike, n: int, k: int) -> Start:
    """A start the user brings, checked."""
    factors = []
    for name, given in (("U0", U0), ("V0", V0)):
        try:
            values = np.array(given, dtype=np.float64)
        except (TypeError, ValueError):
            raise InputError(f"init {name} must be an array of numbers") from None
        if values.shape != (n, k):
            raise InputError(f"init {name} has shape {values.shape}, it must be ({n}, {k})")
        if not np.isfinite(values).all() or values.min() < 0:
            raise InputError(f"init {name} must be finite and non-negative")
        factors.append(values)
    return factors[0], factors[1]


def _open_uniform(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
    # random() may give exactly 0, which multiplicative updates could never leave
    return np.maximum(rng.random(shape), np.finfo(np.float64).tiny)
