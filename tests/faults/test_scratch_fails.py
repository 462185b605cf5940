"""Row: the place of scratch fails in the middle of a fit. The checkpoint and the command stay."""

import errno
import os

import pytest
from helpers.faulty import THREADS, goes_on, outcome, run as gmkcf, short_fit
from helpers.marks import mostly_slow

from gmkcf_dask.compute.tiled import TiledKernels
from gmkcf_dask.errors import (
    DamagedStoreError,
    HopelessInputError,
    InputError,
    NotPositiveError,
    ScratchError,
)
from gmkcf_dask.pipeline import fitting
from gmkcf_dask.results.checkpoints import RunCheckpoints, has_checkpoint
from gmkcf_dask.store.scratch import ScratchFolder

pytestmark = pytest.mark.usefixtures("calm")


@mostly_slow("number", [errno.ENOENT, errno.EROFS, errno.EIO, errno.EACCES], plain=2)
def test_a_place_that_fails_leaves_the_checkpoint(tmp_path, monkeypatch, number):
    monkeypatch.setattr(
        fitting, "stored_kernels", lambda store, _, r: TiledKernels(store, r.runner, "scratch")
    )
    fit, expected = short_fit(tmp_path, 5, *THREADS, block=40)
    opened = []

    def fail(self):
        opened.append(self)
        if len(opened) == 3:
            raise OSError(number, os.strerror(number), str(self.path))
        original(self)

    original = ScratchFolder._open
    with monkeypatch.context() as patch:
        patch.setattr(ScratchFolder, "_open", fail)
        code, said = gmkcf(*fit, "--out", tmp_path / "out")
    assert code == ScratchError.exit_code, said
    assert "cannot write scratch space" in said
    assert os.strerror(number) in said
    assert has_checkpoint(tmp_path / "out" / "checkpoint")
    goes_on(said)
    assert outcome(tmp_path / "out") == expected


@pytest.mark.parametrize(
    ("error", "kept"),
    [
        (InputError, True),
        (ScratchError, True),
        (DamagedStoreError, True),
        (HopelessInputError, False),
        (NotPositiveError, False),
    ],
)
def test_only_what_would_end_there_again_drops_checkpoints(tmp_path, error, kept):
    folder = tmp_path / "c"
    checkpoints = RunCheckpoints(folder, {}, 1)
    checkpoints.keep({"a": 1})
    with pytest.raises(error), checkpoints.until_done():
        raise error("a sentence")
    assert has_checkpoint(folder) == kept
