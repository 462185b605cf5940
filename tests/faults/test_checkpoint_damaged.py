"""Checkpoints that are damaged, of another run, or of another format."""

import json
import random
import shutil
import warnings

import numpy as np
import pytest
from helpers.commands import exits, gmkcf as invoke
from helpers.faulty import AS_PAPER, THREADS, outcome, short_fit, small_store

from gmkcf_dask.errors import DataWarning, InputError
from gmkcf_dask.results import checkpoints
from gmkcf_dask.results.checkpoints import RunCheckpoints, open_checkpoints, read_checkpoint

pytestmark = pytest.mark.usefixtures("calm")


class BrokenOff(Exception):
    pass


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A store, the result of a whole run, and a folder with the checkpoints of a broken one."""
    folder = tmp_path_factory.mktemp("begun")
    fit, expected = short_fit(folder, 12, *THREADS, block=40)

    def keep(self, state):
        original(self, state)
        if len(state["run"]["history"]) == 8:
            raise BrokenOff

    original = RunCheckpoints.keep
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunCheckpoints, "keep", keep)
        assert isinstance(invoke(*fit, "--out", folder / "begun").exception, BrokenOff)
    return fit, folder / "begun", expected


@pytest.fixture
def out(begun, tmp_path):
    shutil.copytree(begun[1], tmp_path / "out")
    return tmp_path / "out"


def newest(out):
    return max(
        (out / "checkpoint").glob("*.json"), key=lambda p: json.loads(p.read_text())["serial"]
    )


def damage(path, how):
    content = bytearray(path.read_bytes())
    if how == "flipped":
        content[len(content) // 2] ^= 1
    path.write_bytes(content[:-20] if how == "cut" else content)
    if how == "gone":
        path.unlink()


@pytest.mark.parametrize("how", ["flipped", "cut", "gone"])
@pytest.mark.parametrize("suffix", [".json", ".npz"])
def test_the_older_one_is_used(begun, out, how, suffix):
    fit, _, expected = begun
    damage(newest(out).with_suffix(suffix), how)
    done = exits(0, *fit, "--out", out, "--resume")
    assert outcome(out) == expected
    said = "the other one is used" in done.output
    assert said == (how != "gone" or suffix == ".npz")


def test_none_is_whole(begun, out):
    for path in (out / "checkpoint").glob("*.npz"):
        damage(path, "flipped")
    done = exits(2, *begun[0], "--out", out, "--resume")
    assert "no checkpoint" in done.output
    assert len(done.output.splitlines()) == 1
    done = exits(0, *begun[0], "--out", out, "--overwrite")
    assert outcome(out) == begun[2]


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (("--seed", 4), "seed (checkpoint: 3, requested: 4)"),
        (("--max-iter", 13), "max_iter (checkpoint: 12, requested: 13)"),
        (("--method", "rmkkm", "--max-iter", 12), "method (checkpoint: gmkcf, requested: rmkkm)"),
    ],
)
def test_other_parameters_are_refused(begun, out, other, named):
    fit = begun[0]
    if "rmkkm" in other:  # it has none of these
        fit = [word for word in fit if word not in ("--tol", "0", *AS_PAPER)]
    done = exits(2, *fit, *other, "--out", out, "--resume")
    assert named in done.output
    assert checkpoints.has_checkpoint(out / "checkpoint")


def test_other_data_are_refused(begun, out, tmp_path):
    small_store(tmp_path / "other.zarr", n=151)
    done = exits(2, "fit", tmp_path / "other.zarr", *begun[0][2:], "--out", out, "--resume")
    assert "store (checkpoint: " in done.output
    assert "content of precomputed kernels" in done.output


def test_without_resume_or_overwrite(begun, out):
    done = exits(2, *begun[0], "--out", out)
    assert "--resume" in done.output
    assert "--overwrite" in done.output
    exits(2, *begun[0], "--out", out, "--resume", "--overwrite")


def test_a_link_is_not_followed(begun, out, tmp_path):
    (out / "checkpoint").rename(tmp_path / "elsewhere")
    (out / "checkpoint").symlink_to(tmp_path / "elsewhere")
    exits(2, *begun[0], "--out", out, "--resume")
    assert len(list((tmp_path / "elsewhere").iterdir())) == 4


def test_any_damage_is_found(begun, tmp_path):
    """Mutated files: what is read is what was written, or there is a typed error."""
    dice = random.Random(0)
    written = {p.name: p.read_bytes() for p in (begun[1] / "checkpoint").iterdir()}
    found = {one.serial for one in [read_checkpoint(begun[1] / "checkpoint")]}
    for number in range(150):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name, content in written.items():
            mutated = bytearray(content)
            for _ in range(dice.choice([0, 1, 1, 30])):
                mutated[dice.randrange(len(mutated))] = dice.randrange(256)
            cut = dice.choice([None, None, None, dice.randrange(len(mutated))])
            (folder / name).write_bytes(mutated[:cut])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DataWarning)
            try:
                one = read_checkpoint(folder)
            except InputError:
                continue
        assert one.serial in {*found, *(serial - 1 for serial in found)}


def test_arrays_larger_than_their_file_are_not_allocated(tmp_path, monkeypatch):
    """A digest can be made by anyone."""
    monkeypatch.setattr(checkpoints, "digest", lambda content: "the same for all")
    RunCheckpoints(tmp_path / "c", {"a": 1}, 1).keep({"U": np.zeros((4, 2))})
    path = tmp_path / "c" / "1.npz"
    lie = path.read_bytes().replace(b"(4, 2), }" + b" " * 9, b"(4000000000, 2), }")
    assert lie != path.read_bytes()
    path.write_bytes(lie)
    with pytest.raises(InputError, match="damaged"):
        open_checkpoints(tmp_path / "c", {"a": 1}, resume=True)
