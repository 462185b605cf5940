"""Row: truncated, bit-flipped, deleted or swapped chunk.

Found by `verify`, found by `fit`, both with the kernel and the tile; repaired to the same bytes.
"""

import shutil

import numpy as np
import pytest
from helpers.commands import exits, gmkcf
from helpers.damage import (
    DAMAGES,
    HERE,
    content,
    flip_bit,
    place,
    request,
    store_at,
    swap,
    tile_files,
)
from helpers.marks import mostly_slow
from helpers.problems import fit_gmkcf, kernels as some_kernels, request as precomputed_request
from msgspec import structs

from gmkcf_dask.compute.dense import DenseKernels
from gmkcf_dask.compute.runner import Runner
from gmkcf_dask.compute.tiled import TiledKernels
from gmkcf_dask.errors import DamagedStoreError
from gmkcf_dask.methods.factorize import SolverOptions
from gmkcf_dask.store.build import build_store
from gmkcf_dask.store.digests import ledger_of
from gmkcf_dask.store.kernel_store import KernelStore
from gmkcf_dask.store.repair import repair_store
from gmkcf_dask.store.verify import find_damage, open_unchecked

pytestmark = pytest.mark.usefixtures("calm")


def fits(path):
    """Both ways in which fit reads a store."""
    options = SolverOptions(2, max_iter=1)
    yield lambda: fit_gmkcf(DenseKernels.from_store(KernelStore.open(path)), options, seed=0)
    yield lambda: fit_gmkcf(TiledKernels(KernelStore.open(path), HERE), options, seed=0)


@mostly_slow("number", range(10), plain=3)
@pytest.mark.parametrize("kind", DAMAGES)
def test_damage_is_found_by_verify_and_by_fit_and_repaired(clean, store, kind, number):
    bad = DAMAGES[kind](store, np.random.default_rng(number))
    opened = open_unchecked(store)
    damage = find_damage(opened, HERE)
    assert {(tile.array, opened.tiling.pair(tile.t)) for tile in damage.tiles} == set(bad)
    for fit in fits(store):
        with pytest.raises(DamagedStoreError, match=r"tile \(\d, \d\) of kernel .*gmkcf repair /"):
            fit()
    done = repair_store(store, HERE)
    assert not done.left
    assert done.changed == 0
    assert content(store) == content(clean)
    assert not find_damage(open_unchecked(store), HERE)
    for fit in fits(store):
        fit()


def test_commands_say_it_with_exit_codes(clean, store, tmp_path):
    rng = np.random.default_rng(5)
    bad = [*swap(store, rng), *DAMAGES["delete"](store, rng)]
    where = ("--cluster", "threads")
    exits(0, "verify", clean, *where)
    found = exits(4, "verify", store, *where)
    for kernel, tile in bad:
        assert f"kernel {kernel} tile {tile} is " in found.stdout
    assert found.stderr.startswith("error: ")
    fit = exits(4, "fit", store, "-k", 2, "--out", tmp_path / "run", *where)
    assert f"gmkcf repair {store}" in fit.stderr
    assert not (tmp_path / "run").exists()
    mended = exits(0, "repair", store, *where)
    assert f"{len(bad)} parts repaired" in mended.stdout
    exits(0, "verify", store, *where)
    assert "nothing to repair" in gmkcf("repair", store, *where).stdout
    assert content(store) == content(clean)


def test_info_reads_no_tile(store):
    shutil.rmtree(store / "kernels" / "cosine")
    told = exits(0, "info", store)
    for words in (
        "samples    60",
        "10 of 10 per kernel",
        "complete",
        "writer     none",
        "rbf_0.5",
        "zarr",
    ):
        assert words in told.stdout


@pytest.mark.parametrize("precision", ["float64", "compact"])
@pytest.mark.parametrize("normalization", ["degree", "none"])
def test_every_kind_of_store_is_repaired_to_the_same_bytes(tmp_path, precision, normalization):
    options = {"precision": precision, "normalization": normalization}
    path = tmp_path / "s.zarr"
    store_at(path, **options)
    before = content(path)
    for file in tile_files(path):
        file.unlink()
    assert not repair_store(path, Runner()).left
    assert content(path) == before


def test_repair_makes_only_what_is_bad(store):
    victim = tile_files(store)[3]
    times = {file: file.stat().st_mtime_ns for file in tile_files(store)}
    flip_bit(victim, np.random.default_rng(0))
    repair_store(store, HERE)
    changed = [file for file in tile_files(store) if file.stat().st_mtime_ns != times[file]]
    assert changed == [victim]


def test_kernels_that_were_passed_in_cannot_be_repaired(rng, tmp_path):
    path = tmp_path / "s.zarr"
    build_store(path, precomputed_request(some_kernels(rng, 20, 2), block=8), HERE)
    tile_files(path)[0].unlink()
    said = exits(4, "repair", path, "--cluster", "threads")
    assert "1 tile of kernel kernel_0 cannot be computed again, because a matrix" in said.stderr


def test_damaged_features_are_found_and_no_tile_is_made_from_them(store):
    flip_bit(store / "features" / "data" / "c" / "0", np.random.default_rng(0))
    tile_files(store)[0].unlink()
    done = repair_store(store, HERE)
    assert done.damage.inputs == ("features",)
    assert len(done.left) == 2
    assert not tile_files(store)[0].name.endswith("partial")
    assert len(tile_files(store)) == 39


@pytest.mark.parametrize("what", ["diagonals/rbf_1", "norms/cosine"])
def test_vectors_are_checked_and_mended(tmp_path, what):
    path = tmp_path / "s.zarr"
    store_at(path, normalization="degree")
    before = content(path)
    other = what.replace("cosine", "rbf_1") if "cosine" in what else what.replace("1", "0.5")
    shutil.copyfile(path / other / "c" / "0", path / what / "c" / "0")  # with a right checksum
    damage = find_damage(open_unchecked(path), HERE)
    assert damage.vectors == (what,)
    if what.startswith("diagonals"):
        with pytest.raises(DamagedStoreError, match=r"diagonals/rbf_1 in .* gmkcf repair"):
            KernelStore.open(path).diagonal(1)
    assert not repair_store(path, HERE).left
    assert content(path) == before


@pytest.mark.parametrize("name", ["ids", "labels", "terms"])
def test_names_of_samples_are_checked(store, name):
    text = (store / f"{name}.json").read_text()
    (store / f"{name}.json").write_text(text.replace("1", "7", 1).replace("a", "b", 1))
    assert find_damage(open_unchecked(store), HERE).inputs == (name,)
    with pytest.raises(DamagedStoreError, match=f"{name}.json of .* is damaged"):
        KernelStore.open(store).strings(name)


def test_digests_are_compared_once_per_run_and_process(store, monkeypatch):
    from gmkcf_dask.store import digests

    compared = []
    original = digests.tile_digest
    monkeypatch.setattr(digests, "tile_digest", lambda *a: compared.append(a[:3]) or original(*a))
    ledger_of.cache_clear()
    opened = KernelStore.open(store)
    reader = opened.reader
    for _ in range(3):
        for t in range(opened.tiling.n_tiles):
            reader.raw(0, t)
    assert len(compared) == opened.tiling.n_tiles
    opened.reader.raw(0, 0)  # another run
    assert len(compared) == opened.tiling.n_tiles + 1


def test_the_digest_depends_on_the_place(store):
    file = tile_files(store)[0]
    from gmkcf_dask.store.digests import tile_digest

    held = file.read_bytes()
    kernel, (i, j) = place(file)
    known = tile_digest(kernel, i, j, held)
    others = [("other", i, j), (kernel, i, j + 1), (kernel, i + 1, j)]
    assert len({known, *(tile_digest(*at, held) for at in others)}) == 4


def test_an_unfinished_store_is_not_verified(tmp_path):

    path = tmp_path / "s.zarr"
    made = store_at(path)
    structs.replace(made.manifest, complete=False, tiles_done=(0, 1)).write(path)
    said = exits(2, "verify", path, "--cluster", "threads")
    assert "incomplete (2 of 10 tiles)" in said.stderr
    # damaged or not, what is marked is looked at before the build goes on
    tile_files(path)[0].write_bytes(b"")
    assert build_store(path, request(), HERE).manifest.complete
    exits(0, "verify", path, "--cluster", "threads")
