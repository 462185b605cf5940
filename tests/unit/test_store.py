"""The store: what it holds, when it is refused, how a broken-off build goes on."""

import json
from dataclasses import replace

import numpy as np
import pytest
import zarr
from helpers.marks import mostly_slow
from scipy import sparse
from zarr.codecs import ZstdCodec

from gmkcf_dask.compute.runner import Runner
from gmkcf_dask.corpus.model import Corpus
from gmkcf_dask.errors import InputError, StoreError
from gmkcf_dask.kernels.specs import PAPER12, precomputed_specs, resolve_kernels
from gmkcf_dask.kernels.tiling import Tiling
from gmkcf_dask.store import build as build_module
from gmkcf_dask.store.build import build_store, build_tiles
from gmkcf_dask.store.kernel_store import KernelStore
from gmkcf_dask.store.manifest import Manifest
from gmkcf_dask.store.request import KernelRequest

N, BLOCK = 50, 20
DTYPES = {"float32": np.float32, "float64": np.float64, "compact": np.float32}


def request_for(rng, form="sparse", **options):
    X = rng.random((N, 12)) * (rng.random((N, 12)) < 0.5)
    X[:, 0] += 0.1
    X = sparse.csr_array(X) if form == "sparse" else X
    ids = tuple(f"doc-{i}" for i in range(N))
    labels, terms = tuple("ab"[i % 2] for i in range(N)), tuple(f"wörd{i}" for i in range(12))
    return KernelRequest(Corpus(X, ids, labels, terms), PAPER12, **options)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "kernels.zarr"


@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("form", ["sparse", "dense"])
def test_full_symmetric_kernel_as_a_dask_array(rng, path, precision, form):
    request = request_for(rng, form, precision=precision)
    store = build_store(path, request, Runner(), block=BLOCK)
    tiling = Tiling(N, BLOCK)
    for i, tiles in enumerate(zip(*build_tiles(request, BLOCK).stacks, strict=True)):
        K = store.to_dask(store.names[i])
        assert K.shape == (N, N)
        assert K.dtype == DTYPES[precision]
        assert K.chunks == ((20, 20, 10), (20, 20, 10))
        values = K.compute(scheduler="synchronous")
        np.testing.assert_array_equal(values, values.T)
        expected = tiles[1] if precision != "compact" else tiles[1] / 65534
        np.testing.assert_allclose(values[tiling.rows(0), tiling.rows(1)], expected, rtol=1e-6)
        np.testing.assert_allclose(store.diagonal(i), np.diag(values), rtol=1e-6)


@pytest.mark.parametrize("form", ["sparse", "dense"])
def test_holds_features_and_names(rng, path, form):
    request = request_for(rng, form)
    build_store(path, request, Runner(), block=BLOCK)
    store, corpus = KernelStore.open(path), request.corpus
    assert store.ids == corpus.ids
    assert store.strings("labels") == corpus.labels
    assert store.strings("terms") == corpus.terms
    rows = store.features().rows(slice(13, 41))
    expected = corpus.X[13:41]
    if form == "sparse":
        rows, expected = rows.toarray(), expected.toarray()
    np.testing.assert_array_equal(rows, expected)


def test_layout_is_what_the_design_says(rng, path):
    build_store(path, request_for(rng), Runner(), block=BLOCK)
    array = zarr.open_array(store=str(path), path="kernels/rbf_1", mode="r")
    assert array.metadata.zarr_format == 3
    assert array.shape == (N, N)
    assert array.chunks == (BLOCK, BLOCK)
    assert array.shards is None
    assert np.isnan(array.fill_value)
    assert array.compressors == (ZstdCodec(level=1, checksum=True),)
    chunks = {f.relative_to(path / "kernels/rbf_1/c").as_posix() for f in
              (path / "kernels/rbf_1/c").rglob("*") if f.is_file()}  # fmt: skip
    assert chunks == {"0/0", "0/1", "0/2", "1/1", "1/2", "2/2"}  # the upper triangle only
    compact = build_store(path.with_name("c.zarr"), request_for(rng, precision="compact"), Runner())
    assert compact.array("kernels/rbf_1").fill_value == 65535


def test_manifest_says_how_it_was_made(rng, path):
    request = request_for(rng)
    build_store(path, request, Runner(), block=BLOCK)
    found = json.loads((path / "manifest.json").read_text())
    assert found["format_version"] == 4
    assert found["complete"] is True
    assert found["tiles_done"] == list(range(6))
    assert found["block_size"] == BLOCK
    assert found["precision"] == "float32"
    assert set(found["inputs"]) == {"features", "ids", "labels", "terms"}
    assert {"python", "zarr", "dask", "gmkcf-dask"} <= set(found["versions"])
    by_name = {kernel["name"]: kernel for kernel in found["kernels"]}
    X = request.corpus.X.toarray()
    mean_distance = np.sqrt(((X[:, None] - X[None]) ** 2).sum(-1)).mean()
    assert by_name["rbf_10"]["mean_distance"] == pytest.approx(mean_distance)
    assert by_name["rbf_10"]["sigma"] == pytest.approx(10 * mean_distance)
    assert by_name["cosine"]["minimum"] < by_name["cosine"]["maximum"]


def test_degree_row_sums_are_kept(rng, path):
    store = build_store(path, request_for(rng, normalization="degree"), Runner(), block=BLOCK)
    assert set(store.norms()) == set(store.names)


def test_a_finished_store_is_used_again(rng, path):
    request = request_for(rng)
    first = build_store(path, request, Runner(), block=BLOCK)
    again = build_store(path, request, Runner())  # any block size will do
    assert again.manifest == first.manifest


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"precision": "float64"}, r"precision \(store: float32, requested: float64\)"),
        ({"specs": resolve_kernels("cosine")}, "kernels"),
        ({"normalization": "none"}, "normalization of rbf_0.01"),
        ({"scaling": "none"}, "scaling of cosine"),
        ({"block": 7}, r"block size \(store: 20, requested: 7\)"),
    ],
    ids=str,
)
def test_other_parameters_are_refused_by_name(rng, path, change, field):
    request = request_for(rng)
    build_store(path, request, Runner(), block=BLOCK)
    with pytest.raises(StoreError, match=f"other data or parameters, it differs in .*{field}"):
        build_store(path, replace(request, **change), Runner())


@pytest.mark.parametrize("what", ["features", "ids", "labels", "terms", "samples", "row order"])
def test_other_data_are_refused_by_name(rng, path, what):
    request = request_for(rng)
    build_store(path, request, Runner(), block=BLOCK)
    corpus = request.corpus
    if what == "features":
        other = replace(corpus, X=corpus.X * 2)
    elif what == "samples":
        other = Corpus(corpus.X[:40], corpus.ids[:40])
    elif what == "row order":
        other, what = replace(corpus, X=corpus.X[::-1]), "features"
    else:
        other = replace(corpus, **{what: tuple(reversed(getattr(corpus, what)))})
    with pytest.raises(StoreError, match=f"differs in .*{what}"):
        build_store(path, replace(request, corpus=other), Runner())


def test_precomputed_kernels_have_a_fingerprint(rng, path):
    K = np.eye(9) + 0.1
    request = KernelRequest(None, precomputed_specs([K]))
    store = build_store(path, request, Runner(), block=4)
    with pytest.raises(StoreError, match="no features"):
        store.features()
    other = KernelRequest(None, precomputed_specs([K + np.eye(9)]))
    with pytest.raises(StoreError, match="content of precomputed kernels"):
        build_store(path, other, Runner())


def digests(path):
    return {
        f.relative_to(path).as_posix(): f.read_bytes()
        for f in sorted(path.rglob("*"))
        if f.is_file() and f.name != "manifest.json"
    }


@mostly_slow("normalization", ["unit", "degree"])
def test_a_build_that_broke_off_goes_on(rng, tmp_path, monkeypatch, normalization):
    """Killed at any batch, the second try computes only what is missing and ends the same."""
    request = replace(request_for(rng, normalization=normalization), specs=PAPER12[3:6])
    build_store(tmp_path / "clean.zarr", request, Runner(), block=5)
    monkeypatch.setattr(build_module, "_SECONDS_BETWEEN_MANIFESTS", 0.0)

    class PowerCutError(Exception):
        pass

    def cut_after(batches):
        def listen(event):
            if event.stage == "write" and event.done >= batches:
                raise PowerCutError

        return listen

    path = tmp_path / "cut.zarr"
    with pytest.raises(PowerCutError):
        build_store(path, request, Runner(), cut_after(20), block=5)
    with pytest.raises(StoreError, match=r"incomplete \(\d+ of 55 tiles\): run the same build"):
        KernelStore.open(path)
    done_before = set(Manifest.read(path).tiles_done)

    events = []
    store = build_store(path, request, Runner(), events.append)
    assert store.manifest.complete
    first = ["check"] if done_before else ["statistics"]
    assert {e.stage for e in events} <= {"write", *first}
    assert digests(path) == digests(tmp_path / "clean.zarr")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "is not a kernel store"),
        (b"{", "manifest of .* is damaged"),
        (b"[]", "manifest of .* is damaged"),
        (b'{"format": "something else"}', "manifest of .* is damaged"),
        (b'{"format": "gmkcf-kernels", "format_version": 99}', "has format version 99"),
        (b'{"format": "gmkcf-kernels", "format_version": 3}', "manifest of .* is damaged"),
    ],
)
def test_what_is_no_store_is_refused(tmp_path, content, message):
    if content is not None:
        (tmp_path / "manifest.json").write_bytes(content)
    with pytest.raises(StoreError, match=message):
        KernelStore.open(tmp_path)


def test_other_files_are_not_built_over(rng, tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(StoreError, match="holds other files"):
        build_store(tmp_path, request_for(rng), Runner())
    assert (tmp_path / "thesis.tex").read_text() == "precious"


def test_unwritable_path(rng, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write the store"):
        build_store(tmp_path / "file" / "s.zarr", request_for(rng), Runner())


def test_every_scheduler_builds_the_same_bytes(rng, tmp_path, runner_named):
    request = request_for(rng)
    stores = {}
    for scheduler in ("synchronous", "threads", "two_workers"):
        path = tmp_path / f"{scheduler}.zarr"
        build_store(path, request, runner_named(scheduler), block=BLOCK)
        stores[scheduler] = digests(path)
    assert stores["synchronous"] == stores["threads"] == stores["two_workers"]
