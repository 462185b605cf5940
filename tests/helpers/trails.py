"""What a fit goes through, iterate by iterate, and how near it has to be to the oracle."""

import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from gmkcf_dask.methods.base import RunContext
from gmkcf_dask.methods.factorize import SolverOptions
from gmkcf_dask.methods.gmkcf import gmkcf
from helpers.problems import Recorder


def trail_of(stack, U, V, iterations, **options):
    """(U, V, w, J) after every iteration, as the oracle gives them."""
    recorder, events = Recorder(stack), []
    solver = SolverOptions(U.shape[1], max_iter=iterations, tol=0.0, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        run = gmkcf(recorder, (U, V), solver, RunContext(events.append))
    assert len(events) == iterations, "stopped before the iterations asked for"
    trail = [
        (U, V, np.array(event.weights), event.objective)
        for (U, V), event in zip(recorder.factors, events, strict=True)
    ]
    return run.history[0], trail


def assert_same_trail(found, expected, *, J, factors):
    J0, trail = found
    assert pytest.approx(expected[0][3], rel=J) == J0
    for (U, V, w, objective), (U_, V_, w_, objective_) in zip(trail, expected[1:], strict=True):
        assert objective == pytest.approx(objective_, rel=J)
        np.testing.assert_allclose(w, w_, rtol=J)
        np.testing.assert_allclose(U, U_, rtol=0, atol=factors * U_.max())
        np.testing.assert_allclose(V, V_, rtol=0, atol=factors * V_.max())


TOLERANCES = {
    "float64": {"iterations": 50, "J": 1e-10, "factors": 1e-10},
    "float32": {"iterations": 20, "J": 1e-6, "factors": 1e-4},
    "compact": {"iterations": 20, "J": 1e-5, "factors": 1e-3},
}
CODES_OF_DISTANCES = {"iterations": 20, "J": 2e-5, "factors": 2e-3}
"""Twice those of compact: entries are off by 1.5e-5, where codes of kernels are off by 8e-6."""
