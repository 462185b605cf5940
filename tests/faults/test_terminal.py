"""Row: names that others chose are printed without what commands a terminal."""

import json
import pickle
import shutil

import numpy as np
import pytest
from helpers.commands import exits
from helpers.refusals import FIT, KERNELS, THREADS, K, features, gmkcf

from gmkcf_dask.corpus import read_corpus
from gmkcf_dask.errors import GmkcfError, InputError, visible

EVIL = "a\x1b7\nerror: all is well\r\x07\u202egnp\u2066.x"
SEEN = r"a\x1b7\nerror: all is well\r\x07\u202egnp\u2066.x"
CONTROL = [*map(chr, range(32)), "\x7f", "\x9b", "\u2028", "\u2029", "\u200e", "\u200f"]
CONTROL += [chr(c) for c in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))]


@pytest.mark.parametrize("character", CONTROL, ids=lambda c: f"U+{ord(c):04X}")
def test_each_control_character_is_escaped(character):
    shown = visible(f"a{character}b")
    assert shown.startswith("a\\")
    assert shown.isprintable()
    assert str(InputError(f"a{character}b")) == shown
    assert visible(shown) == shown


@pytest.mark.parametrize("text", ["plain", "café 茶 🍵", "no\u00a0break", "back\\slash", ""])
def test_other_text_stays(text):
    assert visible(text) == text


def test_a_kept_character_stays():
    assert visible("a\nb\x1b", keep="\n") == "a\nb\\x1b"


def test_errors_travel_between_processes():
    error = pickle.loads(pickle.dumps(InputError(EVIL)))
    assert str(error) == SEEN


def clean(text):
    """Nothing but lines of printable text."""
    wrong = [line for line in text.splitlines() if not visible(line).isprintable()]
    return not wrong and all(c.isprintable() or c in "\n\t" for c in text)


@pytest.mark.parametrize(
    "command",
    [
        ("plan", f"{EVIL}.npy", "-k", K),
        ("info", EVIL),
        ("verify", EVIL),
        ("score", EVIL),
        ("report", EVIL),
        ("predict", EVIL, f"{EVIL}.npy", "--out", "labels.csv"),
        ("plan", "x.npy", "-k", K, "--cluster", f"{EVIL}.yaml"),
        ("plan", "x.npy", "-k", K, "--text-column"),
        ("plan", "x.npy", "-k", EVIL),
        ("plan", "x.npy", "-k", K, f"--{EVIL}"),
        ("plan", "x.npy", "-k", K, "--kernels", EVIL),
        (EVIL,),
    ],
    ids=lambda command: command[0][:8],
)
def test_names_in_errors(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", features())
    found = exits(2, *command)
    assert clean(found.output), repr(found.output)
    log = gmkcf(*command, "--log", "log.txt")
    assert clean(log.output), repr(log.output)


def test_names_of_documents_in_sentences(tmp_path):
    (tmp_path / "x.csv").write_text("text,id\ntea,a\ntea,a\n".replace(",a", f',"{EVIL}"'))
    with pytest.raises(GmkcfError) as told:
        read_corpus(tmp_path / "x.csv")
    assert clean(str(told.value)), repr(str(told.value))


def test_a_run_in_a_folder_of_an_evil_name(tmp_path, monkeypatch):
    """Everything that a good run prints, and its log, with ids that are evil too."""
    monkeypatch.chdir(tmp_path)
    ids = [f"{EVIL}{i}" for i in range(30)]
    np.savez("x.npz", X=features(), ids=np.array(ids))
    shutil.move("x.npz", f"{EVIL}.npz")
    run = ("run", f"{EVIL}.npz", *FIT, *KERNELS, *THREADS, "--out", EVIL, "--log", "log.txt")
    found = exits(0, *run)
    assert clean(found.output), repr(found.output)
    assert clean((tmp_path / "log.txt").read_text())
    assert SEEN in found.output
    for command in (("score", EVIL), ("report", EVIL), ("info", f"{EVIL}/store.zarr")):
        found = gmkcf(*command)
        assert clean(found.output), repr(found.output)
    found = gmkcf("info", f"{EVIL}/store.zarr", "--json")
    assert json.loads(found.stdout.splitlines()[-1])["store"] == f"{EVIL}/store.zarr"
