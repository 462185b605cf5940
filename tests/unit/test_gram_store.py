"""Stores of layout gram: what is in them, who may have them, and that nothing else changes."""

import json
import shutil
from concurrent.futures import Future
from pathlib import Path

import naive
import numpy as np
import pytest
import zarr
from helpers.commands import exits
from helpers.damage import HERE, content, flip_bit, same_store, start_build
from helpers.marks import mostly_slow
from helpers.problems import start
from helpers.trails import TOLERANCES, assert_same_trail, trail_of
from msgspec import structs
from scipy import sparse
from sklearn.base import clone
from sklearn.preprocessing import normalize

from gmkcf_dask import (
    GMKCF,
    KCF,
    CoregSpectralClustering,
    FunctionKernel,
    KernelKMeans,
    KernelSpectralClustering,
    Precomputed,
    RobustMultipleKernelKMeans,
    compare,
    load,
    suggest_k,
)
from gmkcf_dask.cluster.doctor import _read
from gmkcf_dask.cluster.submit.memory import driver_memory
from gmkcf_dask.compute.dense import DenseKernels
from gmkcf_dask.compute.runner import Runner
from gmkcf_dask.compute.tiled import TiledKernels
from gmkcf_dask.corpus.model import Corpus
from gmkcf_dask.errors import InputError, StoreError
from gmkcf_dask.kernels.gram import GRAM, table_error
from gmkcf_dask.kernels.specs import resolve_kernels
from gmkcf_dask.results.training import training_of_store
from gmkcf_dask.store import (
    build as build_module,
    kernel_store as kernel_store_module,
    manifest as manifest_module,
    tile_reader as reader_module,
)
from gmkcf_dask.store.build import build_store, build_tiles, find_store
from gmkcf_dask.store.describe import describe_store, in_html, tiles_in_words
from gmkcf_dask.store.features import open_array
from gmkcf_dask.store.kernel_store import KernelStore
from gmkcf_dask.store.manifest import READABLE_VERSIONS, Manifest, sealed
from gmkcf_dask.store.prefetch import Window
from gmkcf_dask.store.request import KernelRequest
from gmkcf_dask.store.verify import find_damage

pytestmark = pytest.mark.usefixtures("calm")
N, K, BLOCK = 60, 3, 16
NAMES = "rbf_0.5,rbf_1,poly_a0_b2,poly_a1_b4,cosine"
PRECISIONS = ["float64", "float32", "compact"]
BOUNDS = {"float64": 1e-12, "float32": 1e-6, "compact": 2e-5}


def unit_rows(n=N, d=12, seed=0):
    """Of unit length, in three groups."""
    rng = np.random.default_rng(seed)
    X = rng.random((n, d)) ** 3 * (rng.random((n, d)) < 0.4) + np.eye(d)[rng.integers(0, 3, n)]
    return X / np.linalg.norm(X, axis=1, keepdims=True)


def request(X=None, names=NAMES, layout="gram", **options):
    X = unit_rows() if X is None else X
    specs = resolve_kernels(names) if isinstance(names, str) else names
    return KernelRequest(Corpus(X, tuple(map(str, range(X.shape[0])))), specs, layout=layout,
                         **options)  # fmt: skip


def build(path, *arguments, listen=lambda event: None, **options):
    return build_store(path, request(*arguments, **options), HERE, listen, block=BLOCK)


def mine(x, y):
    return np.asarray(0.5 + x @ y.T) ** 3


def given(X):
    K = np.exp(-((X[:, None] - X) ** 2).sum(-1))
    return Precomputed((K + K.T) / 2, "given", "none", "none")


def mixed(X, **options):
    """Kernels of the Gram matrix among such that are no functions of it."""
    gram = resolve_kernels("rbf_0.5,poly_a1_b2,cosine")
    specs = (gram[0], FunctionKernel(mine, "mine"), gram[1], given(X), gram[2])
    return request(X, specs, **{"layout": "auto", **options})


# what is in it


@pytest.mark.parametrize("precision", PRECISIONS)
def test_there_is_one_array_for_all_kernels(tmp_path, precision):
    path = tmp_path / "s.zarr"
    store = build(path, precision=precision)
    kinds = {"float64": "products", "float32": "distances", "compact": "codes"}
    dtypes = {"float64": "float64", "float32": "float32", "compact": "uint16"}
    gram = store.manifest.gram
    assert (gram.content, gram.dtype) == (kinds[precision], dtypes[precision])
    assert json.loads((path / "manifest.json").read_text())["format_version"] == 6
    assert sorted(p.name for p in (path / "gram").iterdir() if p.is_dir()) == ["X"]
    assert not [p for p in (path / "kernels").iterdir() if p.is_dir()]
    assert store.manifest.array_names == (GRAM,)
    assert store.duplicates() == []
    assert not find_damage(store, HERE)
    each = build(tmp_path / "each.zarr", layout="each", precision=precision)
    tiles = sum(file.stat().st_size for file in path.glob("gram/X/c/*/*"))
    assert tiles < 0.4 * sum(file.stat().st_size for file in each.path.glob("kernels/*/c/*/*"))


def short_texts():
    """Rows that share no word with most others."""
    rng = np.random.default_rng(0)
    rows, words = np.repeat(np.arange(N), 3), rng.integers(0, 200, 3 * N)
    counts = sparse.coo_array((np.ones(3 * N), (rows, words)), (N, 200))
    return sparse.csr_array(normalize(counts.tocsr()))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("make", "codec"), [(unit_rows, "blosc"), (short_texts, "zstd")])
def test_zarr_reads_what_is_kept(tmp_path, precision, make, codec):
    """Compressed by what suits the pairs; a flipped bit is found by either."""
    store = build(tmp_path / "s.zarr", make(), "rbf_1,poly_a1_b2", precision=precision)
    metadata = json.loads((store.path / GRAM / "zarr.json").read_text())
    assert [one["name"] for one in metadata["codecs"]][1] == codec
    array, reader = zarr.open_array(store.path / GRAM, mode="r"), store.reader
    for t, (i, j) in enumerate(store.tiling.pairs()):
        expected = array[store.tiling.rows(i), store.tiling.rows(j)]
        np.testing.assert_array_equal(reader.raw(reader.gram.number, t), expected)


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array], ids=["dense", "sparse"])
@pytest.mark.parametrize("layout", ["gram", "each"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_kernel_is_there_lazily_whatever_the_layout(tmp_path, precision, layout, form):
    X = unit_rows()
    store = build(tmp_path / "s.zarr", form(X), layout=layout, precision=precision)
    for number, name in enumerate(store.names):
        lazy = store.to_dask(name)
        assert lazy.numblocks == (4, 4)
        found = lazy.compute(scheduler="synchronous")
        assert found.dtype == (np.float64 if precision == "float64" else np.float32)
        for other in (number, number - len(store.names)):
            same = store.to_dask(other).compute(scheduler="synchronous")
            np.testing.assert_array_equal(same, found)
        expected = naive.finished_kernel(X, name, normalization="unit", scaling="minmax")
        for i in range(4):
            for j in range(4):
                part = lazy.blocks[i, j].compute(scheduler="synchronous")
                wanted = expected[i * BLOCK : (i + 1) * BLOCK, j * BLOCK : (j + 1) * BLOCK]
                np.testing.assert_allclose(part, wanted, rtol=0, atol=BOUNDS[precision])
    for beyond in (len(store.names), -len(store.names) - 1):  # the Gram matrix is no kernel
        with pytest.raises(IndexError):
            store.to_dask(beyond)


def test_info_tells_what_is_stored(tmp_path):
    store = build(tmp_path / "codes.zarr", precision="compact")
    told = exits(0, "info", store.path).stdout
    assert "gram: a code of the distance of each pair as uint16, of which tables give 5" in told
    assert f"distances  up to {store.manifest.gram.d_max:.6g}" in told
    assert "10 of 10 per array" in told
    (line,) = [line for line in told.splitlines() if line.startswith("  rbf_0.5 ")]
    bound = float(line.rpartition("errors up to ")[2])
    kernel = store.reader.gram.by_number[0]
    assert bound == pytest.approx(table_error(store.manifest.gram.matrix, [kernel]), rel=0.1)
    exact = naive.finished_kernel(unit_rows(), "rbf_0.5", normalization="unit", scaling="minmax")
    found = store.to_dask(0).compute(scheduler="synchronous")
    assert np.abs(found - exact).max() <= 1.1 * bound
    other = build(tmp_path / "other.zarr", 3 * unit_rows() + 1, normalization="degree")
    told = "\n".join(describe_store(other.path))
    assert "as float32, of which formulas give 5 kernels" in told
    assert "errors" not in told
    each = describe_store(build(tmp_path / "each.zarr", layout="each").path)
    assert "layout     each: every kernel has tiles of its own" in each
    assert "10 of 10 per kernel, 16×16; complete" in "\n".join(each)


def test_info_tells_which_kernels_have_tiles(tmp_path):
    store = build_store(tmp_path / "s.zarr", mixed(unit_rows()), HERE, block=BLOCK)
    told = describe_store(store.path)
    assert any(line.endswith("tables give 3 kernels; mine, given beside it") for line in told)
    assert sum("tiles of its own" in line for line in told) == 2
    assert tiles_in_words(store.manifest) == (
        "2 kernels with 10 tiles each and a Gram matrix with 10 tiles, for 3 kernels that have none"
    )
    page = in_html(store)
    size = 10 * BLOCK**2 * (4 + 2 * 4) / 1024
    assert f"{size:.1f} KiB before compression" in page
    assert "the distance of each pair as float32" in page


def test_an_unfinished_store_is_described(tmp_path, monkeypatch):
    path = tmp_path / "s.zarr"
    broken_off(path, monkeypatch, 3, precision="compact")
    told = exits(0, "info", path).stdout
    assert "incomplete" in told
    assert "a code of the distance" in told
    unresolved = Manifest.read(path)
    structs.replace(unresolved, resolved=False).write(path)
    assert "distances  up to" not in exits(0, "info", path).stdout


# with kernels that are no functions of it


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("normalization", ["unit", "degree"])
def test_kernels_of_both_kinds_mix_in_one_fit(tmp_path, precision, normalization):
    X = unit_rows()
    options = {"precision": precision, "normalization": normalization}
    wanted = mixed(X, **options)
    store = build_store(tmp_path / "s.zarr", wanted, HERE, block=BLOCK)
    arrays = {p.parent.name + "/" + p.name for p in (tmp_path / "s.zarr").glob("*/*/")}
    assert {"gram/X", "kernels/mine", "kernels/given"} <= arrays
    assert not {"kernels/rbf_0.5", "kernels/cosine"} & arrays
    each = build_store(tmp_path / "e.zarr", mixed(X, layout="each", **options), HERE, block=BLOCK)
    assert store.names == each.names
    for name in store.names:
        one, other = (s.to_dask(name).compute(scheduler="synchronous") for s in (store, each))
        np.testing.assert_allclose(one, other, rtol=0, atol=4 * BOUNDS[precision])
    U, V = start(np.random.default_rng(1), N, K)
    bounds = dict(TOLERANCES[precision])
    iterations = bounds.pop("iterations")
    expected = trail_of(DenseKernels.from_store(each), U, V, iterations)
    found = trail_of(DenseKernels.from_store(store), U, V, iterations)
    if precision == "float64":
        bounds = {"J": 1e-9, "factors": 1e-8}  # of two roundings, not one
    trail = [(U, V, np.zeros(5), expected[0]), *expected[1]]
    assert_same_trail(found, trail, **bounds)
    built = build_tiles(wanted, BLOCK)
    same = [
        DenseKernels.from_store(store, keep_fused=False),
        DenseKernels(built.tiles(store.tiling, precision), store.names),
        TiledKernels(store, HERE),
        TiledKernels(store, Runner(n_threads=2), "recompute"),
    ]
    for stack in same:
        for mine_, theirs in zip(trail_of(stack, U, V, 4)[1], found[1], strict=False):
            for one, other in zip(mine_, theirs, strict=True):
                np.testing.assert_array_equal(one, other)


def test_a_mixed_store_is_taken_again_by_auto_alone(tmp_path):
    X = unit_rows()
    path = tmp_path / "s.zarr"
    build_store(path, mixed(X), HERE, block=BLOCK)
    before = content(path)
    assert find_store(path, mixed(X)).manifest.layout == "auto"
    assert not find_damage(build_store(path, mixed(X), HERE, verify=True), HERE)
    assert content(path) == before
    with pytest.raises(StoreError, match=r"layout \(store: auto, requested: each\)"):
        find_store(path, mixed(X, layout="each"))


# layouts


@pytest.mark.parametrize("kind", ["function", "matrix"])
def test_a_kernel_that_is_no_function_of_it_is_refused(kind):
    X = unit_rows()
    spec = FunctionKernel(mine, "mine") if kind == "function" else given(X)
    with pytest.raises(InputError, match=rf"kernel {spec.name} .*layout auto") as told:
        request(X, (*resolve_kernels("rbf_1,cosine"), spec))
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(("made", "asked"), [("each", "gram"), ("gram", "each")])
@pytest.mark.parametrize("finished", [True, False])
def test_another_layout_is_refused_and_auto_takes_either(
    tmp_path, monkeypatch, made, asked, finished
):
    path = tmp_path / "s.zarr"
    if finished:
        build(path, layout=made)
    else:
        broken_off(path, monkeypatch, 3, layout=made)
    with pytest.raises(StoreError, match=rf"layout \(store: {made}, requested: {asked}\)"):
        build(path, layout=asked)
    build(path, layout="auto")
    assert same_store(path, build(tmp_path / "clean.zarr", layout=made).path)


def test_one_kernel_has_its_tiles_unless_gram_is_asked_for(tmp_path):
    assert build(tmp_path / "a.zarr", names="rbf_1", layout="auto").manifest.gram is None
    store = build(tmp_path / "g.zarr", names="rbf_1", layout="gram")
    assert store.manifest.gram is not None
    build(tmp_path / "g.zarr", names="rbf_1", layout="auto")  # takes it
    beside = (*resolve_kernels("rbf_1"), FunctionKernel(mine, "mine"))
    assert build(tmp_path / "m.zarr", names=beside, layout="auto").manifest.gram is None


def test_other_kernels_are_what_differs(tmp_path):
    """Their layout follows from them, and nobody asked for one."""
    X = unit_rows()
    build_store(tmp_path / "s.zarr", mixed(X), HERE, block=BLOCK)
    with pytest.raises(StoreError, match=r"differs in kernels \(") as told:
        build(tmp_path / "s.zarr", X, "rbf_1,rbf_2", "auto")
    assert "layout" not in str(told.value)


def test_merged_duplicates_are_for_tiles(tmp_path):
    with pytest.raises(InputError, match="merge_duplicates") as told:
        request(merge_duplicates=0.01)
    assert "\n" not in str(told.value)
    merged = build(tmp_path / "a.zarr", layout="auto", merge_duplicates=0.01)
    assert merged.manifest.gram is None
    build(tmp_path / "g.zarr")
    with pytest.raises(StoreError, match=r"merged duplicates .*layout "):
        build(tmp_path / "g.zarr", layout="auto", merge_duplicates=0.01)


def test_what_older_code_says_of_it(tmp_path, monkeypatch):
    path = build(tmp_path / "s.zarr").path
    assert Manifest.read(build(tmp_path / "each.zarr", layout="each").path)
    held = json.loads((tmp_path / "each.zarr" / "manifest.json").read_text())
    assert held["format_version"] == 4, "what older code can read stays as it is"
    assert "gram" not in held
    monkeypatch.setattr(manifest_module, "READABLE_VERSIONS", READABLE_VERSIONS[:-1])
    with pytest.raises(StoreError, match="has format version 6, this program reads 3 and 4 and 5"):
        KernelStore.open(path)
    KernelStore.open(tmp_path / "each.zarr")


def test_a_gram_matrix_in_an_older_format_is_no_store_of_ours(tmp_path):
    """A version that does not know of it would refuse the field."""
    path = build(tmp_path / "s.zarr").path
    held = json.loads((path / "manifest.json").read_text())
    assert held["gram"]["content"] == "distances"
    (path / "manifest.json").write_bytes(sealed(held | {"format_version": 7}))
    with pytest.raises(StoreError, match="has format version 7"):
        KernelStore.open(path)


# builds that break off


def broken_off(path, monkeypatch, after=5, **options):
    """A build that ends behind some tiles, all of them marked."""

    def listen(event):
        if event.stage == "write" and event.done >= after:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(build_module, "_SECONDS_BETWEEN_MANIFESTS", -1.0)
        patch.setattr("gmkcf_dask.compute.build_tasks._BATCHES", 10)
        with pytest.raises(KeyboardInterrupt):
            build(path, listen=listen, **options)
    open_array.cache_clear()  # as in another process
    assert not Manifest.read(path).complete


@pytest.mark.parametrize("precision", PRECISIONS)
@mostly_slow("after", [5, 0, 9])
def test_a_build_that_broke_off_gives_the_same_bytes(tmp_path, monkeypatch, precision, after):
    path, options = tmp_path / "s.zarr", {"precision": precision, "normalization": "degree"}
    broken_off(path, monkeypatch, after, **options)
    build(path, **options)
    assert same_store(path, build(tmp_path / "clean.zarr", **options).path)


DAMAGE = {
    "tile": lambda path: (path / "gram/X/c/0/1").write_bytes(b""),
    "tile gone": lambda path: (path / "gram/X/c/0/1").unlink(),
    "folder": lambda path: shutil.rmtree(path / "gram"),
    "metadata": lambda path: (path / "gram/X/zarr.json").unlink(),
    "lengths": lambda path: flip_bit(path / "gram_rows/squares/c/0", np.random.default_rng(0)),
    "no lengths": lambda path: shutil.rmtree(path / "gram_rows"),
    "file for lengths": lambda path: (
        shutil.rmtree(path / "gram_rows/squares"),
        (path / "gram_rows/squares").write_bytes(b""),
    ),
    "norms": lambda path: shutil.rmtree(path / "norms"),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_what_was_damaged_meanwhile_is_made_again(tmp_path, monkeypatch, how):
    path, options = tmp_path / "s.zarr", {"normalization": "degree", "precision": "float64"}
    broken_off(path, monkeypatch, **options)
    DAMAGE[how](path)
    build(path, **options)
    assert same_store(path, build(tmp_path / "clean.zarr", **options).path)


def test_a_mixed_build_is_resumed(tmp_path, monkeypatch):
    X, path = unit_rows(), tmp_path / "s.zarr"
    broken_off(path, monkeypatch, names=mixed(X).specs, layout="auto")
    build_store(path, mixed(X), HERE)
    clean = build_store(tmp_path / "clean.zarr", mixed(X), HERE, block=BLOCK)
    assert same_store(path, clean.path)


def test_a_build_whose_process_was_killed_is_resumed(tmp_path):
    np.save(tmp_path / "x.npy", unit_rows(200))
    options = ("--kernels", NAMES, "--block", "8", "--layout", "gram", "--cluster", "threads")
    process = start_build(tmp_path / "x.npy", tmp_path / "s.zarr", *options)
    while process.poll() is None and not list(tmp_path.glob("s.zarr/gram/X/c/*/*")):
        pass
    process.kill()
    process.communicate()
    exits(0, "build", tmp_path / "x.npy", tmp_path / "s.zarr", *options)
    exits(0, "build", tmp_path / "x.npy", tmp_path / "clean.zarr", *options)
    assert same_store(tmp_path / "s.zarr", tmp_path / "clean.zarr")


@pytest.mark.parametrize("precision", PRECISIONS)
def test_two_builds_have_the_same_content(tmp_path, precision):
    one = build(tmp_path / "a.zarr", precision=precision)
    other = build_store(
        tmp_path / "b.zarr", request(precision=precision), Runner(n_threads=2), block=BLOCK
    )
    assert one.manifest.store_id != other.manifest.store_id
    assert one.manifest.content == other.manifest.content
    third = build(tmp_path / "c.zarr", 2 * unit_rows(), precision=precision)
    assert third.manifest.content != one.manifest.content
    each = build(tmp_path / "e.zarr", layout="each", precision=precision)
    assert each.manifest.content["store"] != one.manifest.content["store"]


# object stores: as in test_ahead.py, requests are answered from a path


@pytest.mark.parametrize("precision", PRECISIONS)
def test_tiles_are_fetched_ahead(tmp_path, monkeypatch, precision):
    X = unit_rows()
    store = build_store(tmp_path / "s.zarr", mixed(X, precision=precision), HERE, block=BLOCK)
    U, V = start(np.random.default_rng(1), N, K)
    w = np.array([0.5, 0.2, 0.1, 0.1, 0.1])

    def answers(stack):
        fused = stack.fuse(w)
        return [stack.errors(U, V), fused.matmul(U), *stack.matmul_each(U),
                stack.overview(np.arange(N) % 3, 3).sums]  # fmt: skip

    expected = answers(TiledKernels(store, HERE, "recompute"))
    asked, late = [], []

    def ask(path, most):
        asked.append(path)
        future = Future()
        future.set_result(Path(path).read_bytes())
        return future

    def receive(path, most, future):
        if future is None:
            late.append(path)
            return Path(path).read_bytes()
        return future.result()

    window = Window(64, ask, receive)
    monkeypatch.setattr(reader_module, "is_remote", lambda path: True)
    monkeypatch.setattr(reader_module, "window", lambda: window)
    assert store.reader.prefetch_bytes > 0
    found = answers(TiledKernels(store, HERE, "recompute", prefetch_bytes=1 << 24))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    assert late == []
    assert len(asked) == 4 * 10 * 3, "each sweep asks once for every tile"
    DenseKernels.from_store(store)
    assert not find_damage(store, HERE)
    assert late == []
    assert (window.in_flight, window.held_bytes) == (0, 0)


def test_sizes_come_from_a_listing(tmp_path, monkeypatch):
    store = build_store(tmp_path / "s.zarr", mixed(unit_rows()), HERE, block=BLOCK)

    def sizes_below(folder):
        files = (file for file in folder.rglob("*") if file.is_file())
        return {file.relative_to(folder).as_posix(): file.stat().st_size for file in files}

    local = store.tile_sizes()
    monkeypatch.setattr(kernel_store_module, "is_remote", lambda path: True)
    monkeypatch.setattr(kernel_store_module, "sizes_below", sizes_below)
    listed = store.tile_sizes()
    for name in store.manifest.array_names:
        for t in range(store.tiling.n_tiles):
            assert listed(name, t) == local(name, t) > 0
    (tmp_path / "s.zarr/gram/X/c/0/0").unlink()
    assert store.tile_sizes()(GRAM, 0) == -1


# around it


def test_doctor_and_submit_read_it(tmp_path):
    store = build_store(tmp_path / "s.zarr", mixed(unit_rows()), HERE, block=BLOCK)
    read, _ = _read(str(store.path), 0)
    assert read > 0
    assert driver_memory("fit", {"store": store.path, "n_clusters": K}) > 0


def test_what_is_kept_for_new_samples(tmp_path):
    X = unit_rows()
    store = build_store(tmp_path / "s.zarr", mixed(X, normalization="degree"), HERE, block=BLOCK)
    each = build_store(
        tmp_path / "e.zarr", mixed(X, normalization="degree", layout="each"), HERE, block=BLOCK
    )
    found, expected = (training_of_store(s, mixed(X).specs) for s in (store, each))
    assert [k.name for k in found.kernels] == [k.name for k in expected.kernels]
    for one, other in zip(found.kernels, expected.kernels, strict=True):
        if not isinstance(one.spec, Precomputed):
            assert one == other
    assert found.norms.keys() == expected.norms.keys()
    for name, values in found.norms.items():
        np.testing.assert_array_equal(values, expected.norms[name])


FEW = ["rbf_0.5", "rbf_1", "cosine"]
METHODS = {
    "gmkcf": GMKCF(K, kernels=FEW, random_state=0, max_iter=30),
    "kcf": KCF(K, kernel="rbf_1", random_state=0, max_iter=30),
    "kkm": KernelKMeans(K, kernel="poly_a1_b2", random_state=0),
    "sc": KernelSpectralClustering(K, kernel="rbf_0.5", random_state=0),
    "coreg": CoregSpectralClustering(K, kernels=FEW, random_state=0),
    "rmkkm": RobustMultipleKernelKMeans(K, kernels=FEW, random_state=0),
}


@pytest.mark.parametrize("precision", ["float32", "compact"])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_finds_the_same_clusters(tmp_path, method, precision):
    X, model = unit_rows(), METHODS[method]

    def fitted(layout, path=None):
        return clone(model).set_params(layout=layout, precision=precision, store=path).fit(X)

    each = fitted("each")
    stored, inside = fitted("gram", tmp_path / "s.zarr"), fitted("gram")
    assert KernelStore.open(tmp_path / "s.zarr").manifest.gram is not None
    np.testing.assert_array_equal(stored.labels_, inside.labels_)
    assert same_clusters(each.labels_, inside.labels_)
    if hasattr(stored, "predict") and method != "coreg":
        saved = tmp_path / "model"
        stored.save(saved)
        np.testing.assert_array_equal(load(saved).predict(X), stored.labels_)
        new = unit_rows(20, seed=3)
        np.testing.assert_array_equal(stored.predict(new), inside.predict(new))


def same_clusters(one, other):
    """The same clusters, whatever their numbers."""
    return len(set(zip(one, other, strict=True))) == len(set(one)) == len(set(other))


def test_commands_use_it(tmp_path):
    np.save(tmp_path / "x.npy", unit_rows())
    np.save(tmp_path / "new.npy", unit_rows(9, seed=2))
    s, run = tmp_path / "s.zarr", tmp_path / "run"
    here = ("--cluster", "threads")
    exits(0, "build", tmp_path / "x.npy", s, "--kernels", NAMES, "--layout", "gram", *here)
    assert "for 5 kernels that have none" in exits(0, "verify", s, *here).stdout
    assert "nothing to repair" in exits(0, "repair", s, *here).stdout
    exits(0, "fit", s, "-k", K, "--out", run, *here)
    exits(0, "predict", run, tmp_path / "new.npy", "--out", tmp_path / "new.csv")
    assert len((tmp_path / "new.csv").read_text().splitlines()) == 10
    exits(0, "suggest-k", s, "--ks", "2-3", *here)


def test_choosing_on_samples_with_it():
    X = unit_rows()
    found = suggest_k(X, [2, 3], kernels=FEW, layout="gram", random_state=0)
    expected = suggest_k(X, [2, 3], kernels=FEW, layout="each", random_state=0)
    assert found.k == expected.k
    compare(X, K, methods=["kcf", "gmkcf"], presets=["paper"], layout="gram", random_state=0)


# bad input


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("layout", ["gram", "auto", "each"])
def test_samples_that_are_not_finite_are_refused(tmp_path, value, layout):
    X = unit_rows()
    X[4, 2] = value
    with pytest.raises(ValueError, match=r"NaN|[Ii]nfin") as told:
        GMKCF(K, kernels=FEW, layout=layout, store=tmp_path / "s.zarr").fit(X)
    assert "\n" not in str(told.value)
    assert not (tmp_path / "s.zarr").exists()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("value", [1.0, 0.0, 0.5])
@pytest.mark.parametrize("names", ["rbf_1,cosine", "rbf_1,rbf_2"])
@pytest.mark.parametrize("normalization", ["unit", "none", "degree"])
def test_samples_that_are_all_equal(tmp_path, precision, value, names, normalization):
    """As with tiles for each: the same kernels, or the same refusal."""
    X = np.full((30, 4), value)
    options = {"precision": precision, "normalization": normalization, "names": names}

    def outcome(layout):
        try:
            store = build(tmp_path / f"{layout}.zarr", X, layout=layout, **options)
        except InputError as error:
            assert not (tmp_path / f"{layout}.zarr").exists()
            return str(error)
        kernels = [store.to_dask(i).compute(scheduler="synchronous") for i in range(2)]
        stack = DenseKernels.from_store(store)
        U, V = start(np.random.default_rng(0), 30, 2)
        return [*kernels, stack.errors(U, V), TiledKernels(store, HERE).errors(U, V)]

    found, expected = outcome("gram"), outcome("each")
    if isinstance(expected, str):
        assert found == expected
        return
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("off", [1e-3, 1e-5, 2e-6])
@pytest.mark.parametrize("names", ["rbf_1,cosine,poly_a1_b2", "rbf_0.5,rbf_1"])
def test_rows_that_are_nearly_of_unit_length_are_not_taken_for_it(tmp_path, off, names):
    X = unit_rows()
    X[5] *= 1.0 + off
    options = {"normalization": "none", "precision": "compact"}
    store = build(tmp_path / "s.zarr", X, names, **options)
    assert not store.manifest.gram.unit_rows
    for name in store.names:
        exact = naive.finished_kernel(X, name, normalization="none", scaling="minmax")
        found = store.to_dask(name).compute(scheduler="synchronous")
        np.testing.assert_allclose(found, exact, rtol=0, atol=2e-5)
        np.testing.assert_allclose(
            store.diagonal(store.names.index(name)), np.diagonal(exact), atol=2e-5
        )


def test_codes_hold_values_outside_of_0_and_1(tmp_path):
    rng = np.random.default_rng(0)
    X = unit_rows() + rng.normal(0, 0.3, (N, 12))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    options = {"names": "cosine,poly_a1_b2", "precision": "compact", "scaling": "none"}
    with pytest.raises(InputError, match="precision compact"):
        build(tmp_path / "each.zarr", X, layout="each", **options)
    store = build(tmp_path / "s.zarr", X, **options)
    assert store.manifest.gram.content == "codes"
    assert min(store.manifest.stored_minima.values()) < 0.0
    for stack in (DenseKernels.from_store(store), TiledKernels(store, HERE)):
        assert not stack.nonnegative
        for number, name in enumerate(store.names):
            exact = naive.finished_kernel(X, name, normalization="unit", scaling="none")
            found = stack.single(number).matmul(np.eye(N))
            np.testing.assert_allclose(found, exact, rtol=0, atol=1e-4)


@pytest.mark.parametrize("layout", ["gram", "each"])
@pytest.mark.parametrize("precision", ["float32", "compact"])
def test_kernels_that_overflow_are_refused(tmp_path, layout, precision):
    X, options = 1e12 * unit_rows(), {"normalization": "none", "scaling": "none"}
    with pytest.raises(InputError, match="poly_a5_b4"):
        build(tmp_path / "s.zarr", X, "poly_a5_b4,poly_a0_b1", layout, precision=precision,
              **options)  # fmt: skip
    assert not (tmp_path / "s.zarr").exists()
    with pytest.raises(InputError, match="poly_a5_b4"):
        build_tiles(request(X, "poly_a5_b4,poly_a0_b1", layout, precision=precision, **options), 16)


@pytest.mark.parametrize("scale", [1e60, 1e-60])
@pytest.mark.parametrize("names", ["rbf_0.5,rbf_1", "rbf_1,cosine"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_sizes_of_numbers_do_not_matter(tmp_path, scale, names, precision):
    X = unit_rows() * np.random.default_rng(0).uniform(0.5, 2.0, (N, 1))
    store = build(tmp_path / "s.zarr", scale * X, names, precision=precision)
    for name in store.names:
        exact = naive.finished_kernel(X, name, normalization="unit", scaling="minmax")
        found = store.to_dask(name).compute(scheduler="synchronous")
        np.testing.assert_allclose(found, exact, rtol=0, atol=2e-5)


@pytest.mark.parametrize(("precision", "bound"), [("float32", 1e-6), ("compact", 1e-3)])
@pytest.mark.parametrize("spread", [0.01, 0.05])
def test_a_kernel_of_narrow_range_is_as_exact_as_others(tmp_path, precision, bound, spread):
    """Even powers are nearly 1 for all samples, of which one looks the other way."""
    X = 0.4 + spread * np.random.default_rng(0).random((N, 6))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    X[0] *= -1.0
    store = build(tmp_path / "s.zarr", X, "rbf_1,cosine,poly_a0_b2", precision=precision)
    for name in store.names:
        exact = naive.finished_kernel(X, name, normalization="unit", scaling="minmax")
        found = store.to_dask(name).compute(scheduler="synchronous")
        np.testing.assert_allclose(found, exact, rtol=0, atol=bound)
