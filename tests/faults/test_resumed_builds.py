"""Row: a build that broke off is gone on with. Nothing in it is believed that was not compared."""

import shutil

import numpy as np
import pytest
from helpers.damage import HERE, corpus, flip_bit, same_store, store_at

from gmkcf_dask.corpus.model import Corpus
from gmkcf_dask.errors import DamagedStoreError, InputError
from gmkcf_dask.kernels.specs import resolve_kernels
from gmkcf_dask.store import build as build_module
from gmkcf_dask.store.build import build_store
from gmkcf_dask.store.features import open_array
from gmkcf_dask.store.kernel_store import KernelStore
from gmkcf_dask.store.manifest import Manifest
from gmkcf_dask.store.request import KernelRequest
from gmkcf_dask.store.verify import find_damage

MERGED = "linear,poly_a0_b1,cosine"
"""Of rows of unit length these are the same; two have no tiles of their own."""


def build(
    path, listen=lambda event: None, *, far=0.0, kernels="linear,rbf_1,poly_a0_b2", **options
):
    X = corpus(form="dense").X + far
    request = KernelRequest(Corpus(X, corpus().ids), resolve_kernels(kernels), **options)
    return build_store(path, request, HERE, listen, block=16)


def broken_off(path, monkeypatch, after=5, **options):
    """A build that ends behind some tiles, all of them marked."""

    def listen(event):
        if event.stage == "write" and event.done >= after:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(build_module, "_SECONDS_BETWEEN_MANIFESTS", -1.0)
        patch.setattr("gmkcf_dask.compute.build_tasks._BATCHES", 10)
        with pytest.raises(KeyboardInterrupt):
            build(path, listen, **options)
    open_array.cache_clear()  # as in another process
    assert not Manifest.read(path).complete


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_around_the_removal_of_merged_kernels(tmp_path, monkeypatch, when):
    clean = build(tmp_path / "clean.zarr", kernels=MERGED)
    assert len(set(clean.manifest.stored_as)) == 1
    path, original = tmp_path / "s.zarr", KernelStore.drop_merged

    def killed(self):
        if when == "after":
            original(self)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(KernelStore, "drop_merged", killed)
        with pytest.raises(KeyboardInterrupt):
            build(path, kernels=MERGED)
    assert Manifest.read(path).stored_as == clean.manifest.stored_as
    (path / "kernels" / "linear" / "c" / "0" / "1").write_bytes(b"")  # found, and made again
    build(path, kernels=MERGED)
    assert same_store(path, tmp_path / "clean.zarr")
    assert not find_damage(KernelStore.open(path), HERE)


def swap(one, other):
    mine, theirs = one.read_bytes(), other.read_bytes()
    one.write_bytes(theirs)
    other.write_bytes(mine)


@pytest.mark.parametrize("after", [0, 5])
@pytest.mark.parametrize("part", ["X", "offset", "no offset", "ids", "metadata"])
def test_damaged_inputs_are_written_again_before_the_first_tile(tmp_path, monkeypatch, part, after):
    path = tmp_path / "s.zarr"
    broken_off(path, monkeypatch, after, far=100.0)
    if part == "X":
        swap(path / "features" / "X" / "c" / "0" / "0", path / "features" / "X" / "c" / "1" / "0")
    elif part == "offset":
        array = KernelStore.open(path, incomplete=True).writable("features/offset")
        array[:] = np.asarray(array[:]) + 1.0
    elif part == "no offset":
        (path / "features" / "offset").rename(tmp_path / "offset")
    elif part == "ids":
        (path / "ids.json").write_text("[]")
    else:
        (path / "kernels" / "rbf_1" / "zarr.json").unlink()
    build(path, far=100.0)
    build(tmp_path / "clean.zarr", far=100.0)
    assert same_store(path, tmp_path / "clean.zarr")


@pytest.mark.parametrize("damage", ["flip", "gone", "folder", "file"])
def test_damaged_norms_are_made_again(tmp_path, monkeypatch, damage):
    """Neither `repair` nor the same build again could mend them: a circle."""
    path, options = tmp_path / "s.zarr", {"normalization": "degree"}
    broken_off(path, monkeypatch, **options)
    chunk = path / "norms" / "rbf_1" / "c" / "0"
    if damage == "flip":
        flip_bit(chunk, np.random.default_rng(0))
    elif damage == "gone":
        shutil.rmtree(path / "norms")
    elif damage == "folder":
        chunk.unlink()
        chunk.mkdir()
    else:
        shutil.rmtree(path / "norms" / "rbf_1")
        (path / "norms" / "rbf_1").write_bytes(b"")
    build(path, **options)
    build(tmp_path / "clean.zarr", **options)
    assert same_store(path, tmp_path / "clean.zarr")


def test_folders_and_files_in_each_others_place(tmp_path, monkeypatch):
    path = tmp_path / "s.zarr"
    broken_off(path, monkeypatch)
    tiles = path / "kernels" / "rbf_1" / "c"
    (tiles / "0" / "0").unlink()
    (tiles / "0" / "0").mkdir()
    shutil.rmtree(path / "kernels" / "linear" / "c" / "0")
    (path / "kernels" / "linear" / "c" / "0").write_bytes(b"")
    (tiles / "3").mkdir(exist_ok=True)
    (tiles / "3" / "3").mkdir()  # of a tile that is still to come
    build(path)
    build(tmp_path / "clean.zarr")
    assert same_store(path, tmp_path / "clean.zarr")


def test_diagonals_come_from_tiles(tmp_path, monkeypatch):
    options = {"normalization": "none", "scaling": "none"}
    path = tmp_path / "s.zarr"
    broken_off(path, monkeypatch, **options)
    for name in ("linear", "poly_a0_b2"):  # valid chunks with other values
        KernelStore.open(path, incomplete=True).writable(f"diagonals/{name}")[:] = 7.0
    build(path, **options)
    build(tmp_path / "clean.zarr", **options)
    assert same_store(path, tmp_path / "clean.zarr")


def test_a_diagonal_tile_changed_under_a_build_is_no_finished_store(tmp_path):
    path = tmp_path / "s.zarr"

    def listen(event):
        if event.stage == "write" and event.done == event.total:
            tile = path / "kernels" / "rbf_1" / "c" / "0" / "0"
            tile.write_bytes(tile.read_bytes()[::-1])

    with pytest.raises(DamagedStoreError, match="run the same build again"):
        build(path, listen)
    assert not Manifest.read(path).complete
    build(path)
    assert not find_damage(KernelStore.open(path), HERE)


def test_a_finished_store_is_not_written_by_a_build(tmp_path, monkeypatch):
    """Who only asks for it holds no lease."""
    path = tmp_path / "s.zarr"
    store_at(path, kernels=MERGED)
    monkeypatch.setattr(KernelStore, "drop_merged", lambda self: pytest.fail("it wrote"))
    store_at(path, kernels=MERGED)


def test_metadata_is_never_written_outside(tmp_path):
    from gmkcf_dask.store.features import write_metadata

    (tmp_path / "s" / "norms").mkdir(parents=True)
    (tmp_path / "victim").mkdir()
    with pytest.raises(InputError, match="leads out of"):
        write_metadata(tmp_path / "s", "norms/../../victim", {})
    assert list((tmp_path / "victim").iterdir()) == []
