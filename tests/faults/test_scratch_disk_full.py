"""Row: disk full while a fused kernel is written to scratch. Said with the bytes, and resumable."""

import re

import pytest
from helpers.commands import exits
from helpers.faulty import FIT, THREADS, disk_of, fill, outcome, run, short_fit, small_store
from helpers.marks import mostly_slow

from gmkcf_dask.compute.tiled import TiledKernels
from gmkcf_dask.pipeline import fitting
from gmkcf_dask.store.scratch import ScratchFolder

pytestmark = pytest.mark.usefixtures("calm")
LEFT = 32 << 10
"""Half of a fused kernel: 10 tiles of 40×40 float32 are 62.5 KiB."""


@pytest.fixture
def disk(tmp_path):
    with disk_of(tmp_path / "disk", "4m") as folder:
        yield folder


@pytest.fixture
def in_scratch(monkeypatch):
    """As the plan has it where memory is short."""
    monkeypatch.setattr(
        fitting, "stored_kernels", lambda store, _, r: TiledKernels(store, r.runner, "scratch")
    )


@pytest.mark.usefixtures("in_scratch")
@mostly_slow(("where", "generation"), [("threads", 1), ("threads", 4), ("local", 4)])
def test_a_full_disk_is_said_and_the_fit_goes_on_later(
    disk, tmp_path, monkeypatch, where, generation
):
    fit, expected = short_fit(tmp_path, 5, block=40, store=disk / "s.zarr")
    made, filled = [], []
    before = sorted(disk.iterdir())

    def create(self):
        tiles = original(self)
        made.append(tiles)
        if len(made) == generation:
            filled.append(fill(disk, LEFT))
        return tiles

    original = ScratchFolder.create
    here = ("--cluster", where, *(("--workers", 1, "--memory", "1GiB") if where == "local" else ()))
    with monkeypatch.context() as patch:
        patch.setattr(ScratchFolder, "create", create)
        code, said = run(*fit, *here, "--out", tmp_path / "out")
    assert code == (3 if generation == 1 else 5), said  # 5: there is a checkpoint to go on from
    assert f"the disk of the scratch folder {disk / '.s.zarr.scratch-'}" in said
    # 32 KiB, less or more by a tile that another thread writes or removes just then
    need = r"is full: the fused kernel needs up to 62\.5 KiB and [23]\d\.\d KiB are free"
    assert re.search(need, said), said
    assert ("--resume" in said) == (generation > 1)
    assert "Traceback" not in said
    assert sorted(disk.iterdir()) == sorted([*before, *filled]), "half a kernel was left"
    assert not (tmp_path / "out" / "result.json").exists()
    filled[0].unlink()
    said = exits(0, *fit, *THREADS, "--out", tmp_path / "out", "--resume").output
    assert ("no checkpoint" in said) == (generation == 1)
    assert outcome(tmp_path / "out") == expected
    assert sorted(disk.iterdir()) == before


@pytest.mark.usefixtures("in_scratch")
def test_not_even_room_for_the_folder(disk, tmp_path, monkeypatch):
    """Which must not be taken for bad input: the checkpoint would be dropped."""
    store = small_store(disk / "s.zarr")
    fit = ("fit", store.path, *FIT, *THREADS, "--max-iter", 5)
    opened = []

    def full(self):
        opened.append(self)
        if len(opened) == 3:
            fill(disk, 0)
        original(self)

    original = ScratchFolder._open
    monkeypatch.setattr(ScratchFolder, "_open", full)
    said = exits(5, *fit, "--out", tmp_path / "out").output
    assert "scratch folder" in said
    assert "--resume" in said
