"""A fit that goes on from a checkpoint does what it would have done, to the last bit."""

import json
import shutil

import numpy as np
import pytest
from helpers.commands import exits
from helpers.faulty import FIT, THREADS, run as gmkcf, small_store
from helpers.marks import mostly_slow
from helpers.problems import dense, kernels, tiled

from gmkcf_dask import GMKCF, KernelKMeans, KernelSpectralClustering, pipeline
from gmkcf_dask.errors import InputError
from gmkcf_dask.methods.base import MEAN
from gmkcf_dask.methods.gmkcf import Gmkcf
from gmkcf_dask.methods.kcf import Kcf
from gmkcf_dask.methods.kkm import Kkm
from gmkcf_dask.methods.rmkkm import Rmkkm
from gmkcf_dask.results.checkpoints import RunCheckpoints, has_checkpoint, read_checkpoint

pytestmark = pytest.mark.usefixtures("calm")

FAST = {"solver": "accelerated"}
METHODS = [
    Gmkcf(3, max_iter=6, tol=0.0, n_init=2),
    Gmkcf(3, max_iter=6, tol=0.0, n_init=2, **FAST),
    Gmkcf(3, max_iter=4, init="spectral"),
    Kcf(3, max_iter=6, tol=0.0, n_init=2),
    Kcf(3, max_iter=20, n_init=3, **FAST),
    Kkm(3, n_init=4),
    Rmkkm(3, n_init=2),
    Rmkkm(3, n_init=2, max_iter=4, restart_inner=True),
]


class BrokenOff(Exception):
    pass


class Breaking(RunCheckpoints):
    """Writes every state, and breaks the fit off after some."""

    def __init__(self, folder, after):
        super().__init__(folder, {}, 1)
        self._left = after

    def keep(self, state):
        super().keep(state)
        self._left -= 1
        if self._left == 0:
            raise BrokenOff


def assert_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert (one.history, one.runs) == (other.history, other.runs)
        assert one.weights.tobytes() == other.weights.tobytes()
        assert one.weights_history.tobytes() == other.weights_history.tobytes()
        assert one.weights_history.shape == other.weights_history.shape
        np.testing.assert_array_equal(one.labels, other.labels)
        assert one.factors.keys() == other.factors.keys()
        for name, values in one.factors.items():
            assert values.tobytes() == other.factors[name].tobytes()


@mostly_slow("mixed", [False, True])
@mostly_slow("method", METHODS, ids=repr, plain=4)
def test_resumed_equals_uninterrupted(rng, tmp_path, method, mixed):
    stack = dense(kernels(rng, 60, 3, mixed))
    for number, names in enumerate([[MEAN], list(stack.names)]):
        whole = pipeline.fit(stack, method, [5], names)
        for after in (1, 2, 5, 8):
            folder = tmp_path / f"{number}-{after}"
            try:
                pipeline.fit(stack, method, [5], names, checkpoints=Breaking(folder, after))
            except BrokenOff:
                resumed = RunCheckpoints(folder, {}, 3, read_checkpoint(folder))
                assert resumed.resumed is not None
                assert_same(pipeline.fit(stack, method, [5], names, checkpoints=resumed), whole)
            else:
                assert after > 1, "there was no state to go on from"


def test_resumed_on_another_operator(rng, tmp_path):
    Ks = kernels(rng, 60, 3)
    method = Gmkcf(3, max_iter=6, tol=0.0)
    whole = method.fit(dense(Ks, "float32"), [0])
    with pytest.raises(BrokenOff):
        method.fit(dense(Ks, "float32"), [0], checkpoints=Breaking(tmp_path / "c", 3))
    stack = tiled(tmp_path / "s.zarr", Ks, "float32")
    resumed = RunCheckpoints(tmp_path / "c", {}, None, read_checkpoint(tmp_path / "c"))
    assert_same(method.fit(stack, [0], checkpoints=resumed), whole)


def test_checkpoints_are_for_one_seed_and_one_kind_of_sweep(rng, tmp_path):
    stack, kept = dense(kernels(rng, 30, 2)), RunCheckpoints(tmp_path / "c", {})
    for method in (Gmkcf(2), Rmkkm(2)):
        with pytest.raises(InputError, match="one seed"):
            method.fit(stack, [0, 1], checkpoints=kept)
    with pytest.raises(InputError, match="not for both"):
        Kkm(2).fit(stack, [0], [MEAN, stack.names[0]], checkpoints=kept)


# the estimators


def blobs(rng):
    return np.vstack([rng.normal(c, 0.6, (30, 3)) for c in ([0, 3, 0], [3, 0, 0], [0, 0, 3])])


def interrupt(event):
    if getattr(event, "iteration", 0) == 4:
        raise KeyboardInterrupt


@pytest.mark.parametrize("stored", [False, True])
def test_an_estimator_goes_on(rng, tmp_path, stored):
    X, folder = blobs(rng), tmp_path / "c"
    how = {"kernels": ["rbf_1", "cosine"], "tol": 0.0, "max_iter": 9, "random_state": 0}
    if stored:
        how["store"] = str(tmp_path / "s.zarr")
    whole = GMKCF(3, **how).fit(X)
    model = GMKCF(3, **how, checkpoint_dir=folder, callbacks=[interrupt])
    with pytest.raises(KeyboardInterrupt):
        model.fit(X)
    assert has_checkpoint(folder)
    model.set_params(callbacks=None)
    with pytest.raises(InputError, match="resume=True"):
        model.fit(X)
    with pytest.raises(InputError, match="differs in"):
        GMKCF(4, **how, checkpoint_dir=folder).fit(X, resume=True)
    if not stored:
        with pytest.raises(InputError, match="content of features"):
            model.fit(X + 1.0, resume=True)
    model.fit(X, resume=True)
    assert not folder.exists()
    for name in ("U_", "V_", "labels_", "kernel_weights_", "objective_history_"):
        np.testing.assert_array_equal(getattr(model, name), getattr(whole, name))


def test_what_an_estimator_refuses(rng, tmp_path):
    X = blobs(rng)
    with pytest.raises(InputError, match="needs checkpoint_dir"):
        GMKCF(3).fit(X, resume=True)
    with pytest.raises(InputError, match="random_state"):
        GMKCF(3, checkpoint_dir=tmp_path / "c").fit(X)
    with pytest.raises(InputError, match="checkpoint_dir must be a path"):
        GMKCF(3, checkpoint_dir=7, random_state=0).fit(X)


@pytest.mark.parametrize("kind", [KernelKMeans, KernelSpectralClustering])
def test_resume_without_a_checkpoint_begins_at_the_beginning(rng, tmp_path, kind):
    X = blobs(rng)
    model = kind(3, kernel="rbf_1", random_state=0, checkpoint_dir=tmp_path / "c")
    found = model.fit(X, resume=True).labels_
    np.testing.assert_array_equal(found, kind(3, kernel="rbf_1", random_state=0).fit(X).labels_)
    assert not (tmp_path / "c").exists()


# --resume of a run that is finished, as a batch job that is queued again asks for


def files(folder):
    return {
        path: (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize(
    "how", [(), ("--method", "kkm", "--kernel", "all"), ("--method", "sc", "--kernel", "all")]
)
def test_a_finished_fit_is_left_as_it_is(tmp_path, how):
    out, store = tmp_path / "out", small_store(tmp_path / "s.zarr").path
    options = (*FIT, "--max-iter", 4) if not how else ("-k", 3, "--seed", 3)
    fit = ("fit", store, *options, *how, *THREADS, "--out", out, "--resume")
    assert gmkcf(*fit)[0] == 0
    before = files(tmp_path)
    code, said = gmkcf(*fit)
    assert (code, len(said.splitlines())) == (0, 1), said
    assert f"finished: {out}" in said
    assert files(tmp_path) == before
    # of several kernels some may be missing: made again, to the same
    if how:
        shutil.rmtree(out / "kernel_1")
        exits(0, *fit)
        assert json.loads((out / "kernel_1" / "result.json").read_text())["seed"] == 3


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (("--seed", 4), "seed (run: 3, requested: 4)"),
        (("--max-iter", 5), "max_iter (run: 4, requested: 5)"),
        (("--method", "sc", "--kernel", "all"), "method (run: gmkcf, requested: sc)"),
    ],
)
def test_another_finished_fit_is_refused(tmp_path, other, named):
    out, store = tmp_path / "out", small_store(tmp_path / "s.zarr").path
    fit = ("fit", store, "-k", 3, "--seed", 3, *THREADS, "--out", out)
    first = ("--max-iter", 4)
    assert gmkcf(*fit, *first)[0] == 0
    before = files(tmp_path)
    code, said = gmkcf(*fit, *(() if "sc" in other else first), *other, "--resume")
    assert code == 2
    assert named in said, said
    assert "--overwrite" in said
    result = json.loads((out / "result.json").read_text())
    assert files(tmp_path) == before
    del result["fingerprint"]  # as an earlier version wrote it
    (out / "result.json").write_text(json.dumps(result))
    code, said = gmkcf(*fit, *first, "--resume")
    assert code == 2
    assert "holds another run" in said
    (tmp_path / "t").mkdir()
    other_store = small_store(tmp_path / "t" / "s.zarr").path
    assert gmkcf("fit", other_store, *fit[2:], *first, "--overwrite")[0] == 0
    # another path, another random id, but the same content: it is this run
    code, said = gmkcf(*fit, *first, "--resume")
    assert code == 0
    assert "finished" in said


def test_a_finished_run_from_its_input_is_left_as_it_is(tmp_path, rng):
    np.save(tmp_path / "x.npy", blobs(rng))
    how = ("-k", 3, "--max-iter", 4, *THREADS, "--out", tmp_path / "out")
    run = ("run", tmp_path / "x.npy", *how, "--resume")
    assert gmkcf(*run)[0] == 0
    before = files(tmp_path)
    code, said = gmkcf(*run)
    assert (code, len(said.splitlines())) == (0, 1), said
    assert f"finished: {tmp_path / 'out'}" in said
    code, said = gmkcf(*run, "--seed", 1)
    assert code == 2
    assert "seed (run: 0, requested: 1)" in said
    assert files(tmp_path) == before
    np.save(tmp_path / "x.npy", blobs(rng) + 1)
    code, said = gmkcf(*run)
    assert code == 2
    assert "other data" in said
    (tmp_path / "out" / "store.zarr").rename(tmp_path / "elsewhere")
    code, said = gmkcf(*run)
    assert code == 2
    assert "differs in" in said
    assert (tmp_path / "out" / "result.json").exists()
    assert not (tmp_path / "out" / "store.zarr").exists()
