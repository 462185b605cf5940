"""Runs that do not fit together go in batches: the same clusters, and a resume to the same bits."""

import warnings

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from gmkcf_dask.compute import costs
from gmkcf_dask.corpus.model import Corpus
from gmkcf_dask.errors import DamagedCheckpointError
from gmkcf_dask.kernels.specs import resolve_kernels
from gmkcf_dask.methods.kcf import Kcf
from gmkcf_dask.methods.kkm import Kkm
from gmkcf_dask.pipeline import dense_kernels
from gmkcf_dask.store.request import KernelRequest

NAMES = ["rbf_1", "cosine"]
METHODS = [Kcf(3, n_init=3, max_iter=4, tol=0.0), Kkm(3, n_init=3, max_iter=4)]


class Kept:
    """Checkpoints in memory."""

    def __init__(self, resumed=None):
        self.resumed, self.states = resumed, []

    def keep(self, state):
        self.states.append(state)


@pytest.fixture(scope="module")
def stack():
    rng = np.random.default_rng(0)
    X = np.abs(np.repeat(np.eye(3, 6), 15, axis=0) + 0.3 * rng.random((45, 6)))
    corpus = Corpus(X=X, ids=tuple(map(str, range(45))))
    return dense_kernels(KernelRequest(corpus, resolve_kernels(",".join(NAMES))))


def fit(method, stack, checkpoints):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return method.fit(stack, [0], NAMES, checkpoints=checkpoints)


def same(found, other):
    for one, two in zip(found, other, strict=True):
        assert one.runs == two.runs
        assert (one.labels == two.labels).all()
        assert all((one.factors[name] == two.factors[name]).all() for name in one.factors)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
@pytest.mark.parametrize("most", [1, 2, 4])
def test_batches_end_alike_and_go_on(method, most, stack, monkeypatch):
    whole = fit(method, stack, Kept())
    one = costs.run_bytes(method.name, 45, 3)
    monkeypatch.setattr(costs, "SHARED_BYTES", most * one)
    kept = Kept()
    found = fit(method, stack, kept)
    for a, b in zip(found, whole, strict=True):
        # of restarts that end alike, last bits decide which is the best: numbers may be swapped
        assert adjusted_rand_score(a.labels, b.labels) == 1.0
        assert [run.objective for run in a.runs] == pytest.approx([r.objective for r in b.runs])
    assert max(len(state["running"]) for state in kept.states) <= most
    for state in kept.states:
        full = sum("objective" not in ended for ended in state["ended"].values())
        assert full <= len(NAMES) + most, "of the batches before, the best of each kernel"
        same(fit(method, stack, Kept(state)), found)


def test_a_checkpoint_of_other_batches_is_refused(stack, monkeypatch):
    method, kept = METHODS[0], Kept()
    fit(method, stack, kept)
    monkeypatch.setattr(costs, "SHARED_BYTES", 4 * costs.run_bytes("kcf", 45, 3))
    with pytest.raises(DamagedCheckpointError):
        fit(method, stack, Kept(kept.states[0]))
