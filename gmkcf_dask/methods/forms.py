"""What the state of a fit has to look like before a run goes on from it.

Anyone can make a file whose digests are right, so types, shapes and ranges are compared with those
that the run itself would have kept. A form tells whether a value is one of its kind.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from gmkcf_dask.errors import DamagedCheckpointError

Form = Callable[[Any], bool]


def refuse_other_forms(state: Any, form: Form) -> None:
    """Raise where a state cannot be one of ours."""
    if not form(state):
        raise DamagedCheckpointError(
            "the newest checkpoint cannot be used, what it holds does not fit this run: start anew "
            "with --overwrite, or remove the folder of the checkpoint"
        )


def nothing(value: Any) -> bool:
    """Of a method that keeps no states."""
    return False


def number(value: Any) -> bool:
    """A finite float."""
    return type(value) is float and math.isfinite(value)


def count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 62


def truth(value: Any) -> bool:
    return isinstance(value, bool)


def history(value: Any) -> bool:
    """Objectives, of the start at least."""
    return isinstance(value, list | tuple) and len(value) > 0 and all(map(number, value))


def floats(*shape: int) -> Form:
    """An array of finite numbers, none of them below 0."""
    return lambda value: any_floats(*shape)(value) and bool((value >= 0).all())


def any_floats(*shape: int) -> Form:
    """An array of finite numbers."""
    return lambda value: (
        isinstance(value, np.ndarray)
        and value.dtype == np.float64
        and value.shape == shape
        and bool(np.isfinite(value).all())
    )


def weights(m: int) -> Form:
    """Of m kernels, at least one of which counts."""
    return lambda value: floats(m)(value) and bool(value.any())


def labels(n: int, k: int) -> Form:
    """One of k clusters for each of n samples."""
    return lambda value: (
        isinstance(value, np.ndarray)
        and value.dtype == np.int32
        and value.shape == (n,)
        and bool(((value >= 0) & (value < k)).all())
    )


def weights_history(m: int) -> Form:
    """Weights of m kernels after some iterations, or after none."""
    return lambda value: (
        isinstance(value, np.ndarray) and value.ndim == 2 and floats(len(value), m)(value)
    )


def as_long_as_the_history(form: Form) -> Form:
    """That, with a `weights_history` as long as the `history`, or with an empty one."""
    return lambda value: form(value) and len(value["weights_history"]) in (0, len(value["history"]))


def maybe(form: Form) -> Form:
    """None, or that."""
    return lambda value: value is None or form(value)


def each(form: Form) -> Form:
    """A list of them."""
    return lambda value: isinstance(value, list | tuple) and all(map(form, value))


def fields(**forms: Form) -> Form:
    """A dict with exactly these."""
    return lambda value: (
        isinstance(value, dict)
        and value.keys() == forms.keys()
        and all(form(value[name]) for name, form in forms.items())
    )


def one_of_each(n_runs: int, ended: Form, running: Form) -> Form:
    """The states of runs that share sweeps: each by its number, ended or running."""
    numbers = sorted(map(str, range(n_runs)))

    def fits(state: Any) -> bool:
        parts = fields(ended=_by_name(ended), running=_by_name(running))
        return parts(state) and sorted([*state["ended"], *state["running"]]) == numbers

    return fits


def _by_name(form: Form) -> Form:
    return lambda value: isinstance(value, dict) and all(map(form, value.values()))
