"""The small pieces speed rests on: each equals the plain way of doing it."""

import json
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import zarr
from helpers.needs import need_package, need_program
from helpers.problems import kernels, tiled
from helpers.scripts import run_script
from hypothesis import given, strategies as st

from gmkcf_dask.compute.blas import axpy, on_cores, own_cores
from gmkcf_dask.compute.tile_ops import times
from gmkcf_dask.errors import DamagedStoreError
from gmkcf_dask.kernels.features import ArrayFeatures, PairTile
from gmkcf_dask.store.chunks import chunk_path, read_plain, write_plain


@given(st.integers(1, 300), st.sampled_from([np.float32, np.float64]), st.floats(-3, 3))
def test_axpy(n, dtype, a):
    rng = np.random.default_rng(n)
    x, y = rng.random((n, 3)).astype(dtype), rng.random((n, 3)).astype(dtype)
    expected = y + dtype(a) * x
    axpy(a, x, y)
    np.testing.assert_allclose(y, expected, rtol=1e-6, atol=1e-6)


def test_axpy_takes_only_what_lies_in_one_piece():
    x = np.ones((4, 4), np.float32)
    for other in (
        x.astype(np.float64),
        np.ones((4, 8), np.float32)[:, ::2],
        np.ones(3, np.float32),
    ):
        with pytest.raises(AssertionError):
            axpy(1.0, other, x)


@given(
    rows=st.integers(1, 700), cols=st.integers(1, 300), c=st.integers(1, 40), turned=st.booleans()
)
def test_products_in_pieces(rows, cols, c, turned):
    rng = np.random.default_rng(rows)
    tile, Z = rng.random((rows, cols)), rng.random((cols, c))
    tile = np.asfortranarray(tile) if turned else tile
    np.testing.assert_allclose(times(tile, Z), tile @ Z, rtol=1e-12)


def test_on_cores_keeps_order_and_prepares_once_per_core():
    prepared = []

    def prepare():
        prepared.append(threading.get_ident())
        return lambda item: (time.sleep(0.001 * (item % 3)), item * 2)[1]

    assert on_cores(prepare, range(20)) == [2 * item for item in range(20)]
    assert len(prepared) <= own_cores()
    assert on_cores(prepare, []) == []


def test_on_cores_stops_at_the_first_error():
    done = []

    def work(item):
        if item == 3:
            raise ValueError("three")
        time.sleep(0.01)
        done.append(item)

    with pytest.raises(ValueError, match="three"):
        on_cores(lambda: work, range(500))
    assert len(done) < 100


@pytest.mark.parametrize("precision", ["float32", "float64", "compact"])
def test_zarr_and_we_read_each_others_chunks(tmp_path, rng, precision):
    stack = tiled(tmp_path / "s.zarr", kernels(rng, 50, 1), precision, 16)
    reader = stack._reader
    array = zarr.open_array(store=str(tmp_path / "s.zarr"), path="kernels/kernel_0", mode="r+")
    for t, (i, j) in enumerate(reader.tiling.pairs()):
        where = reader.tiling.rows(i), reader.tiling.rows(j)
        np.testing.assert_array_equal(array[where], reader.raw(0, t))
        array[where] = array[where] // 2 if precision == "compact" else array[where] / 2
        np.testing.assert_array_equal(array[where], reader.raw(0, t))


def test_a_chunk_that_is_shorter_than_a_tile_is_refused(tmp_path, rng):
    """A valid chunk of another size must not leave values of the last tile behind."""
    store = tiled(tmp_path / "s.zarr", kernels(rng, 40, 1), "float32", 20)._store
    small = tiled(tmp_path / "t.zarr", kernels(rng, 20, 1), "float32", 10)._store
    folder = "kernels/kernel_0"
    other = Path(chunk_path(str(small.path / folder), 0, 0)).read_bytes()
    Path(chunk_path(str(store.path / folder), 0, 1)).write_bytes(other)
    room = store.reader.buffer()
    store.reader.raw(0, 0, room)
    with pytest.raises(DamagedStoreError, match=r"tile \(0, 1\) of kernel kernel_0"):
        store.reader.raw(0, 1, room)


def test_plain_files_notice_every_change(tmp_path, rng):
    path, values = str(tmp_path / "tile"), rng.random((9, 7))
    write_plain(path, values)
    found = np.empty_like(values)
    read_plain(path, found)
    np.testing.assert_array_equal(found, values)
    content = bytearray(Path(path).read_bytes())
    for change in (content[:-1], content + b"x", content[:20] + b"\x01" + content[21:], b""):
        Path(path).write_bytes(change)
        with pytest.raises(ValueError, match="checksum"):
            read_plain(path, found)
    assert [f.name for f in tmp_path.iterdir()] == ["tile"], "nothing is left behind"


@pytest.mark.parametrize("offset", [0, 1000])
def test_strips_make_the_whole_tile(rng, offset):
    X = rng.random((800, 5)) + offset
    tile = PairTile(ArrayFeatures(X), slice(0, 400), slice(400, 800))
    strips = list(tile.strips())
    assert (tile.features.offset is not None) == bool(offset)
    assert len(strips) == 3
    for values in (lambda part: part.squared_distances, lambda part: part.unit_products(1.0)):
        np.testing.assert_array_equal(np.vstack([values(part) for part in strips]), values(tile))


@pytest.mark.once
@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ("build", "--n", 300, "--repeats", 1),
        ("overhead", "--n", 300, "--repeats", 1),
        ("report", "--n", 300, "--repeats", 1),
        pytest.param(
            ("latency", "--n", 300, "--repeats", 1, "--delay", 10), marks=pytest.mark.slow
        ),
    ],
    ids=lambda arguments: arguments[0],
)
def test_benchmarks_run(tmp_path, arguments):
    """In small they show nothing but that they work; whether bars are held is another matter."""
    if "report" in arguments:
        need_program("chromium", "apt install chromium")
        need_package("playwright", "pip install 'gmkcf-dask[cluster-tests]'")
    if "latency" in arguments:
        need_package("s3fs", "pip install 'gmkcf-dask[s3]'")
        need_package("moto", "pip install 'moto[s3]' flask")
        need_package("flask", "pip install 'moto[s3]' flask")
    ran = run_script("benchmarks", *arguments, cwd=tmp_path)
    assert ran.returncode in (0, 1), ran.stderr
    report = json.loads((tmp_path / "bench_results" / f"{arguments[0]}.json").read_text())
    assert report["rows"], ran.stdout
    assert ran.stdout.count("held:") + ran.stdout.count("MISSED:") == len(report["bars"])
