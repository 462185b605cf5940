"""Fixtures shared by the tests: clusters that live for the session, and small problems."""

import os
import signal
import warnings
from pathlib import Path

import numpy as np
import pytest
from helpers.needs import ALL
from hypothesis import HealthCheck, settings
from sklearn.exceptions import ConvergenceWarning

from gmkcf_dask.cluster.local import local_cluster
from gmkcf_dask.cluster.resources import of_client
from gmkcf_dask.compute.runner import Runner, pin_worker_threads
from gmkcf_dask.errors import NumericsWarning, WeakClustersWarning
from gmkcf_dask.store.tile_reader import StoreTileReader
from gmkcf_dask.system.units import GIB

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # ignored in the background of a shell, by all processes started here too; but tests send it
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:  # likewise under nohup
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

_HYPOTHESIS = settings(
    deadline=None,
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.register_profile("default", _HYPOTHESIS, max_examples=40)
settings.register_profile("few", _HYPOTHESIS, max_examples=10)  # after the whole on another Python
settings.load_profile("default")


# Damage to files, processes and clusters, and mathematics done by the same NumPy, SciPy and
# scikit-learn, say nothing about the Python version: one is enough, and the others are quick.
_ONE_PYTHON = {
    "test_accelerated", "test_benchmark", "test_eigen", "test_equivalence", "test_golden",
    "test_methods", "test_pieces",
}  # fmt: skip


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    # of scikit-learn: says nothing without a setting that is no part of our promises
    items[:] = [item for item in items if "check_array_api_input" not in item.name]
    for item in items:
        faults = item.path.parent.name == "faults"
        checks = item.name.startswith("test_scikit_learn_checks")
        if faults or checks or item.path.stem in _ONE_PYTHON:
            item.add_marker(pytest.mark.once)
    _leave_most_cases_to_all(items)


STALL_SECONDS = 60.0
_MANY_CASES = 3
"""Cases of one test up to which the plain run takes all of them."""


def _leave_most_cases_to_all(items):
    """Of tests with many cases, the plain run takes the first three and every eighth after them."""
    cases = {}
    for item in items:
        cases.setdefault((item.path, item.name.partition("[")[0]), []).append(item)
    for alike in cases.values():
        for number, item in enumerate(alike if len(alike) > _MANY_CASES else ()):
            if number >= 2 and number % 8 != 2:
                item.add_marker(pytest.mark.slow)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if ALL and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped where all must run: {report.longrepr[2]}"
    return report


@pytest.fixture(scope="session", autouse=True)
def short_stalls():
    """A graph without progress is retried before the time-out of a test ends it."""
    usual, of_client.__defaults__ = of_client.__defaults__, (STALL_SECONDS,)
    yield
    of_client.__defaults__ = usual


def _cluster(n_workers):
    with local_cluster(n_workers, 2 * GIB) as client:
        pin_worker_threads(client)
        yield client


@pytest.fixture(scope="session")
def one_worker():
    yield from _cluster(1)


@pytest.fixture(scope="session")
def two_workers():
    yield from _cluster(2)


@pytest.fixture
def runner_named(request):
    """A function from a scheduler's name to a Runner; clusters start when first asked for."""

    def get(name):
        if name in ("synchronous", "threads"):
            return Runner(scheduler=name)
        return Runner(client=request.getfixturevalue(name), stall_timeout=STALL_SECONDS)

    return get


@pytest.fixture
def small_blocks(monkeypatch):
    """Several blocks of rows in a small store."""
    from gmkcf_dask.compute import factored
    from gmkcf_dask.kernels import tiling
    from gmkcf_dask.store import factors, layout, manifest

    for module in (factored, factors):
        monkeypatch.setattr(module, "BLOCK_ROWS", 32)
    for module in (tiling, layout, manifest):
        monkeypatch.setattr(module, "FACTOR_ROWS", 32)


@pytest.fixture
def calm():
    """Tiny problems are reproduced exactly, not to the last digit, or have no clusters.

    That is said, and no failure.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NumericsWarning)
        warnings.simplefilter("ignore", WeakClustersWarning)
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield


@pytest.fixture
def reads(monkeypatch):
    seen = []
    original = StoreTileReader.raw
    monkeypatch.setattr(
        StoreTileReader,
        "raw",
        lambda self, kernel, t, into=None: (
            seen.append((kernel, t)) or original(self, kernel, t, into)
        ),
    )
    return seen


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture(scope="session")
def paper_data():
    """Folder with the corpora of the paper; tests that need it are skipped where it is not."""
    beside = Path(__file__).resolve().parents[1].parent / "shared" / "data"
    folder = Path(os.environ.get("GMKCF_DATA", beside))
    if not (folder / "bbc.mat").exists():
        pytest.skip("the corpora of the paper are not here (set GMKCF_DATA)")
    return folder
