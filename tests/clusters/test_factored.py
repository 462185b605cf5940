"""Factored kernels that tasks read from a store: the bits of one process, whoever dies."""

from dataclasses import dataclass

import numpy as np
import pytest
from helpers.killing import kill_one, two_settled
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning

from gmkcf_dask import GMKCF, KCF
from gmkcf_dask.cluster.local import local_cluster
from gmkcf_dask.compute import factor_plan
from gmkcf_dask.compute.factored import FactoredKernels
from gmkcf_dask.events import IterationDone, StageNote
from gmkcf_dask.kernels.tiling import FACTOR_ROWS
from gmkcf_dask.store import factors
from gmkcf_dask.system.units import GIB

pytestmark = pytest.mark.usefixtures("calm")
N, D, K, NEW = 2 * FACTOR_ROWS + 300, 80, 4, 50
FIT = {"max_iter": 6, "tol": 0.0, "random_state": 0}


@pytest.fixture(scope="module")
def rows():
    """Documents about four topics, for three blocks of rows; the last ones are new."""
    rng = np.random.default_rng(0)
    columns = rng.integers(0, 30, (N + NEW, 8)) + 15 * (np.arange(N + NEW) % K)[:, None]
    values = rng.random(columns.size) + 0.2
    places = (np.repeat(np.arange(N + NEW), 8), columns.ravel() % D)
    return sparse.csr_array(sparse.coo_array((values, places), shape=(N + NEW, D)))


@dataclass(frozen=True)
class Found:
    """All that comes out of a fit, and of a prediction with it."""

    arrays: dict[str, np.ndarray]

    @classmethod
    def of(cls, model, new):
        fitted = ("labels_", "kernel_weights_", "objective_history_", "U_", "V_")
        arrays = {name: getattr(model, name) for name in fitted}
        return cls(arrays | {"new": model.predict(new), "rows": model.transform(new)})

    def is_the_same(self, other):
        for name, values in self.arrays.items():
            np.testing.assert_array_equal(values, other.arrays[name], name)


@pytest.fixture(scope="module")
def in_memory(rows):
    with pytest.warns(ConvergenceWarning):
        return Found.of(GMKCF(K, **FIT).fit(rows[:N]), rows[N:])


@pytest.fixture
def by_tasks(monkeypatch):
    """No factor stays in the memory of the driver; says how many products tasks made."""
    monkeypatch.setattr(factor_plan, "MEMORY_TENTHS", 0)
    runners = []
    map_rows = FactoredKernels.map_rows

    def counted(self, *args):
        runners.append(self._runner)
        return map_rows(self, *args)

    monkeypatch.setattr(FactoredKernels, "map_rows", counted)
    return runners


def test_the_same_bits_by_tasks(tmp_path, rows, in_memory, by_tasks, two_workers):
    model = GMKCF(K, store=tmp_path / "s.zarr", client=two_workers, **FIT).fit(rows[:N])
    assert by_tasks
    assert None not in by_tasks
    in_memory.is_the_same(Found.of(model, rows[N:]))


@pytest.mark.parametrize("kernel", ["linear", "factored"])
def test_sparse_factors_have_the_same_bits_by_tasks(tmp_path, rows, by_tasks, two_workers, kernel):
    how = {"kernel": kernel, "normalization": "unit", "scaling": "none", **FIT}
    if kernel == "factored":
        del how["scaling"]
    memory = Found.of(KCF(K, **how).fit(rows[:N]), rows[N:])
    by_tasks.clear()
    store = tmp_path / "s.zarr"
    model = KCF(K, store=store, client=two_workers, **how).fit(rows[:N])
    assert by_tasks
    assert None not in by_tasks
    memory.is_the_same(Found.of(model, rows[N:]))
    assert not list(store.glob("kernels/*/c"))


def test_neighbours_by_an_index_of_terms_are_found_by_tasks(
    tmp_path, rows, monkeypatch, two_workers
):
    monkeypatch.setattr(factors, "choose_terms", lambda frequencies: 4)
    few, notes = rows[:300], []
    built = GMKCF(K, store=tmp_path / "s.zarr", client=two_workers, callbacks=[notes.append], **FIT)
    here = GMKCF(K, **FIT).fit(few)
    np.testing.assert_array_equal(built.fit(few).labels_, here.labels_)
    remarks = [note.message for note in notes if isinstance(note, StageNote)]
    assert any("4 heaviest terms" in remark for remark in remarks)


@pytest.mark.cluster
def test_the_same_bits_by_tasks_and_with_a_worker_that_dies(tmp_path, rows, in_memory, by_tasks):
    killed = []

    def listen(event):
        if isinstance(event, IterationDone) and event.iteration == 2:
            two_settled(client)
            killed.append(kill_one(client, 0.05))

    with local_cluster(2, GIB) as client:
        how = {"store": tmp_path / "s.zarr", "client": client, **FIT}
        built = GMKCF(K, **how).fit(rows[:N])
        assert by_tasks
        assert None not in by_tasks
        in_memory.is_the_same(Found.of(built, rows[N:]))
        # on the store that is there, and a worker dies
        again = GMKCF(K, **how, callbacks=[listen]).fit(rows[:N])
        killed[0].join()
        assert again.n_iter_ > 2, "it died during the fit"
        in_memory.is_the_same(Found.of(again, rows[N:]))
    assert len(killed) == 1
