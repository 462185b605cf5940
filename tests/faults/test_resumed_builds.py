"""Row: a build that broke off is gone on with. Nothing in it is believed that was not compared."""

import numpy as np
import pytest
from damage import HERE, corpus, same_store, store_at

from gmkcf_dask.corpus.model import Corpus
from gmkcf_dask.errors import DamagedStoreError, InputError
from gmkcf_dask.kernels import build as build_module
from gmkcf_dask.kernels.arrays import open_array
from gmkcf_dask.kernels.build import build_store
from gmkcf_dask.kernels.check import find_damage
from gmkcf_dask.kernels.manifest import Manifest
from gmkcf_dask.kernels.request import KernelRequest
from gmkcf_dask.kernels.specs import resolve_kernels
from gmkcf_dask.kernels.store import KernelStore

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
        patch.setattr("gmkcf_dask.kernels.tasks._BATCHES", 10)
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
@pytest.mark.parametrize("part", ["X", "offset", "no offset"])
def test_damaged_features_are_refused_before_the_first_tile(tmp_path, monkeypatch, part, after):
    path = tmp_path / "s.zarr"
    broken_off(path, monkeypatch, after, far=100.0)
    if part == "X":
        swap(path / "features" / "X" / "c" / "0" / "0", path / "features" / "X" / "c" / "1" / "0")
    elif part == "offset":
        array = KernelStore.open(path, incomplete=True).writable("features/offset")
        array[:] = np.asarray(array[:]) + 1.0
    else:
        (path / "features" / "offset").rename(tmp_path / "offset")
    before = Manifest.read(path)
    with pytest.raises(DamagedStoreError, match="remove the store and build it again"):
        build(path, far=100.0)
    assert Manifest.read(path) == before


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
    from gmkcf_dask.kernels.arrays import write_metadata

    (tmp_path / "s" / "norms").mkdir(parents=True)
    (tmp_path / "victim").mkdir()
    with pytest.raises(InputError, match="leads out of"):
        write_metadata(tmp_path / "s", "norms/../../victim", {})
    assert list((tmp_path / "victim").iterdir()) == []
