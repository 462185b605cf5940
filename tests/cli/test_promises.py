"""Promises that a single module's tests cannot show: nothing lost, nothing left, one sentence."""

import json
import pickle

import msgspec
import naive
import numpy as np
import pytest
from click.testing import CliRunner
from helpers.marks import mostly_slow
from helpers.peaks import peak_of
from helpers.problems import fit_gmkcf
from scipy import sparse
from sklearn.base import clone

from gmkcf_dask import GMKCF, KCF, Corpus, KernelStore
from gmkcf_dask.cli import main
from gmkcf_dask.compute.costs import build_task_bytes
from gmkcf_dask.compute.runner import Runner
from gmkcf_dask.errors import DataWarning, InputError, NumericsWarning, StoreError
from gmkcf_dask.kernels.features import PairTile
from gmkcf_dask.kernels.specs import PAPER12, Rbf, resolve_kernels
from gmkcf_dask.kernels.statistics import GatherDistancesAndRanges, GatherRowSums, run_here
from gmkcf_dask.kernels.tiles import ResolvedKernel
from gmkcf_dask.kernels.tiling import Tiling
from gmkcf_dask.methods.factorize import SolverOptions
from gmkcf_dask.pipeline import stored_kernels
from gmkcf_dask.store import build as build_module
from gmkcf_dask.store.build import build_store
from gmkcf_dask.store.manifest import sealed
from gmkcf_dask.store.request import KernelRequest

pytestmark = pytest.mark.usefixtures("calm")


@pytest.fixture
def x_file(tmp_path, rng):
    np.save(tmp_path / "x.npy", rng.random((40, 4)))
    return tmp_path / "x.npy"


def gmkcf(*arguments):
    return CliRunner().invoke(main, [str(a) for a in arguments])


def corpus(X):
    return Corpus(X, tuple(str(i) for i in range(X.shape[0])))


SHORT = ("--kernels", "rbf_1,cosine", "--max-iter", "3", "--cluster", "threads")


# folders that are not ours


def test_a_users_scratch_folder_is_left_alone(tmp_path, x_file):
    mine = tmp_path / "out" / "scratch" / "thesis.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("precious")
    assert gmkcf("run", x_file, "-k", 2, "--out", tmp_path / "out", *SHORT).exit_code == 0
    assert mine.read_text() == "precious"


def test_scratch_space_is_given_back_when_a_fit_fails(tmp_path, rng):
    store = build_store(
        tmp_path / "s.zarr", KernelRequest(corpus(rng.random((40, 4))), PAPER12), Runner(), block=16
    )
    from gmkcf_dask.compute.tiled import TiledKernels

    class PullPlugError(Exception):
        pass

    def pull(event):
        raise PullPlugError

    stack = TiledKernels(store, Runner(), "scratch")
    with pytest.raises(PullPlugError):
        fit_gmkcf(stack, SolverOptions(2), seed=0, listen=pull)
    assert [entry.name for entry in tmp_path.iterdir()] == ["s.zarr"]


@pytest.mark.parametrize("refusal", [("--memory", "100MiB"), ("--cluster", "tcp://127.0.0.1:1")])
def test_overwriting_keeps_the_old_store_until_the_plan_is_accepted(
    tmp_path, x_file, refusal, monkeypatch
):
    monkeypatch.setattr("gmkcf_dask.cluster.connect.CONNECT_SECONDS", 0.5)
    out = tmp_path / "out"
    assert gmkcf("run", x_file, "-k", 2, "--out", out, *SHORT).exit_code == 0
    before = (out / "store.zarr" / "manifest.json").read_bytes()
    other = ("run", x_file, "-k", 2, "--out", out, "--overwrite", "--kernels", "linear")
    ran = gmkcf(*other, *refusal)
    assert ran.exit_code in (2, 3)
    assert (out / "store.zarr" / "manifest.json").read_bytes() == before
    # and once it is accepted, the store of other kernels is replaced
    ran = gmkcf(*other)
    assert ran.exit_code == 0, ran.output
    assert KernelStore.open(out / "store.zarr").names == ("linear",)


def test_overwriting_never_removes_what_is_not_a_store(tmp_path, x_file):
    out = tmp_path / "out"
    foreign = out / "store.zarr" / "manifest.json"
    foreign.parent.mkdir(parents=True)
    foreign.write_text('{"name": "my web app"}')
    ran = gmkcf("run", x_file, "-k", 2, "--out", out, "--overwrite", *SHORT)
    assert ran.exit_code == 2
    assert foreign.read_text() == '{"name": "my web app"}'


def test_overwriting_does_not_follow_links(tmp_path, x_file):
    elsewhere = tmp_path / "elsewhere.zarr"
    assert gmkcf("build", x_file, elsewhere, "--kernels", "linear").exit_code == 0
    out = tmp_path / "out"
    out.mkdir()
    (out / "store.zarr").symlink_to(elsewhere)
    ran = gmkcf("run", x_file, "-k", 2, "--out", out, "--overwrite", *SHORT)
    assert ran.exit_code == 2
    assert KernelStore.open(elsewhere).names == ("linear",)


# refusals found only while computing


def unusable(n=200):
    X = np.random.default_rng(0).random((n, 3))
    X[0] = 1e12  # the fourth power overflows float32, in the first row of tiles only
    return X


@mostly_slow("folder", ["new", "empty", "deep/new"])
def test_a_refusal_in_the_middle_of_a_build_leaves_nothing(tmp_path, folder):
    path = tmp_path / folder
    if folder == "empty":
        path.mkdir()
    model = GMKCF(
        2,
        kernels=["poly_a0_b4", "linear", "rbf_1", "rbf_10"],
        normalization="none",
        scaling="none",
        layout="each",
        block_size=10,
        store=path,
    )
    for _ in range(2):  # the path can be used again at once
        with pytest.raises(InputError, match=r"poly_a0_b4 overflows float32"):
            model.fit(unusable())
        left = sorted(p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*"))
        assert left == (["empty"] if folder == "empty" else [])


@pytest.mark.slow
def test_a_refusal_on_worker_processes_is_one_sentence(tmp_path, capfd):
    np.save(tmp_path / "x.npy", unusable(40))
    ran = gmkcf(
        "build", tmp_path / "x.npy", tmp_path / "s.zarr", "--cluster", "local", "--workers", 1,
        "--kernels", "poly_a0_b4", "--normalization", "none", "--scaling", "none",
    )  # fmt: skip
    assert ran.exit_code == 2
    assert ran.stderr.startswith("error: kernel poly_a0_b4 overflows float32")
    assert ran.stderr.count("\n") == 1
    assert "Traceback" not in capfd.readouterr().err
    assert not (tmp_path / "s.zarr").exists()


# stores and parameters


def test_parameters_that_were_set_must_agree_with_the_store(tmp_path, rng):
    path = tmp_path / "s.zarr"
    X = rng.random((40, 4))
    GMKCF(2, kernels="rbf_1,cosine", normalization="degree", store=path, max_iter=2).fit(X)
    assert GMKCF(2, max_iter=2).fit(path).kernel_names_ == ("rbf_1", "cosine")
    for asked, field in (
        ({"kernels": "rbf_1"}, "kernels"),
        ({"normalization": "none"}, "normalization"),
        ({"scaling": "none"}, "scaling"),
        ({"precision": "float64"}, "precision"),
        ({"block_size": 3}, "block_size"),
    ):
        with pytest.raises(StoreError, match=f"differs from the parameters in {field} "):
            GMKCF(2, max_iter=2, **asked).fit(path)


def test_kcf_uses_the_one_kernel_it_was_given(tmp_path, rng):
    path = tmp_path / "s.zarr"
    X = rng.random((40, 4))
    GMKCF(2, kernels="cosine,rbf_1,linear", store=path, max_iter=2).fit(X)
    for kernel in ("rbf_1", "rbf_1.0", Rbf(1.0), ["rbf_1"]):
        model = KCF(2, kernel=kernel, max_iter=2)
        np.testing.assert_array_equal(model.fit(path).kernel_weights_, [0, 1, 0])
        assert model.fit(X).kernel_names_ == ("rbf_1",)
    for several in ("rbf_1,cosine", "paper12", ["rbf_1", "linear"]):
        with pytest.raises(InputError, match="must be one kernel or 'mean'"):
            KCF(2, kernel=several, store=tmp_path / "new.zarr").fit(X)
    assert not (tmp_path / "new.zarr").exists()


def test_a_client_without_a_store_is_not_silently_ignored(two_workers, rng):
    with pytest.warns(DataWarning, match="the client is not used: without store="):
        GMKCF(2, kernels="rbf_1", max_iter=2, client=two_workers).fit(rng.random((20, 3)))


def test_one_kernel_with_all_the_weight_is_said(rng):
    X = np.vstack([rng.random((20, 5)) + 2 * c for c in range(3)])
    with pytest.warns(NumericsWarning, match=r"kernel cosine has \d+% of the weight"):
        GMKCF(3, kernels="rbf_0.5,cosine", scaling="none", init="random", random_state=0).fit(X)


def test_models_with_a_client_can_be_cloned_and_saved(two_workers, rng, tmp_path):
    model = GMKCF(2, kernels="rbf_1", max_iter=2, client=two_workers, store=tmp_path / "s.zarr")
    model.fit(rng.random((20, 3)))
    assert clone(model).client is two_workers
    loaded = pickle.loads(pickle.dumps(model))
    assert loaded.client is None
    np.testing.assert_array_equal(loaded.labels_, model.labels_)


def test_a_nearly_finished_build_needs_little_disk(tmp_path, x_file, monkeypatch):
    path = tmp_path / "s.zarr"
    build = ("build", x_file, path, *SHORT[:2], "--block", 5, "--cluster", "threads")
    assert gmkcf(*build).exit_code == 0
    manifest = json.loads((path / "manifest.json").read_text())
    manifest |= {"complete": False, "tiles_done": manifest["tiles_done"][:-1]}
    (path / "manifest.json").write_bytes(sealed(manifest))
    monkeypatch.setattr("gmkcf_dask.pipeline.planning.free_disk", lambda path: 2 * 5 * 5 * 4)
    assert gmkcf(*build).exit_code == 0
    assert KernelStore.open(path).manifest.complete


def test_results_can_be_read_by_others(tmp_path, x_file):
    import os

    umask = os.umask(0o022)
    try:
        assert gmkcf("run", x_file, "-k", 2, "--out", tmp_path / "out", *SHORT).exit_code == 0
    finally:
        os.umask(umask)
    for name in ("labels.csv", "result.json", "factors.npz", "store.zarr/manifest.json"):
        assert (tmp_path / "out" / name).stat().st_mode & 0o777 == 0o644
    assert (tmp_path / "out" / "store.zarr").stat().st_mode & 0o777 == 0o755


# counts and memory of building


@pytest.mark.parametrize(
    ("normalization", "grams"), [("unit", 2), ("none", 2), ("degree", 4)], ids=str
)
def test_gram_tiles_of_a_build_are_counted(tmp_path, rng, monkeypatch, normalization, grams):
    """One Gram tile serves all kernels of a sweep; two sweeps, or four with degree.

    A small sample before the last one tells which kernels are worth comparing.
    """
    made = []
    original = PairTile.gram.func
    monkeypatch.setattr(PairTile.gram, "func", lambda tile: made.append(1) or original(tile))
    request = KernelRequest(
        corpus(sparse.random_array((50, 9), density=0.5, rng=rng, format="csr")),
        PAPER12,
        normalization=normalization,
    )
    store = build_store(tmp_path / "s.zarr", request, Runner(scheduler="synchronous"), block=16)
    assert len(made) == grams * store.tiling.n_tiles + 1


def test_peak_of_a_building_task_is_planned(tmp_path, rng):
    n, block = 900, 300
    X = sparse.random_array((n, 400), density=0.1, rng=rng, format="csr")
    request = KernelRequest(corpus(X), PAPER12, normalization="degree")
    store = build_store(tmp_path / "s.zarr", request, Runner(), block=block)
    features, tiling = store.features(), Tiling(n, block)
    kernels = tuple(
        ResolvedKernel(
            spec=spec, **{k: v for k, v in msgspec.structs.asdict(record).items() if k != "name"}
        )
        for spec, record in zip(PAPER12, store.manifest.kernels, strict=True)
    )
    planned = build_task_bytes(block, 16 * X.nnz * block // n)
    candidates = build_module.DuplicateCandidates({"rbf_100": "rbf_50", "cosine": "rbf_10"}, 1.0)
    tasks = {
        "write": lambda: build_module.WriteTiles(store, features, kernels, candidates)(
            np.array([1])
        ),
        "statistics": lambda: run_here(
            GatherDistancesAndRanges(kernels, store.norms(), True), features, tiling, [1]
        ),
        "row sums": lambda: run_here(GatherRowSums(kernels), features, tiling, [1]),
    }
    for name, task in tasks.items():
        assert peak_of(task) <= planned, name


# the whole way, at a size with several tiles of ordinary shape


@pytest.mark.parametrize("normalization", ["unit", "degree"])
def test_stored_kernels_equal_the_formulas_whole(tmp_path, rng, normalization):
    X = rng.random((70, 6)) * (rng.random((70, 6)) < 0.6)
    request = KernelRequest(
        corpus(sparse.csr_array(X)), PAPER12, normalization=normalization, precision="float64"
    )
    store = build_store(tmp_path / "s.zarr", request, Runner(), block=32)
    for name in store.names:
        expected = naive.finished_kernel(X, name, normalization, "minmax")
        found = store.to_dask(name).compute(scheduler="synchronous")
        np.testing.assert_allclose(found, expected, atol=1e-6, err_msg=name)


def test_a_larger_corpus_gives_the_same_bits_in_memory_and_through_dask(tmp_path, rng):
    from gmkcf_dask.cluster.resources import threads
    from gmkcf_dask.compute.tiled import TiledKernels
    from gmkcf_dask.pipeline import dense_kernels, store_plan

    X = sparse.random_array((1100, 300), density=0.03, rng=rng, format="csr")
    request = KernelRequest(corpus(X), resolve_kernels("rbf_1,rbf_100,poly_a1_b4"), block=256)
    store = build_store(tmp_path / "s.zarr", request, Runner())
    options = SolverOptions(5, max_iter=4)
    resources = threads()
    plan = store_plan(store, 5, resources)
    assert plan.kernels_in_memory
    histories = {
        "features": fit_gmkcf(dense_kernels(request), options, seed=0).history,
        "store": fit_gmkcf(stored_kernels(store, plan, resources), options, seed=0).history,
        "dask": fit_gmkcf(TiledKernels(store, Runner()), options, seed=0).history,
    }
    assert histories["features"] == histories["store"] == histories["dask"]
    U, V = next(iter(_starts(1100, 5)))
    Ks = [naive.finished_kernel(X.toarray(), name, "unit", "minmax") for name in store.names]
    expected = [J for *_, J in naive.gmkcf(Ks, U, V, 4)]
    np.testing.assert_allclose(histories["dask"], expected, rtol=1e-6)


def _starts(n, k):
    from gmkcf_dask.methods.init import random_starts

    return random_starts(n, k, 0, 1)
