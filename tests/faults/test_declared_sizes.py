"""Sizes that files declare are bounded before memory is given to them; .mat files cannot hurt."""

from __future__ import annotations

import gzip
import io
import os
import resource
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import scipy.io
from helpers.commands import exits
from helpers.refusals import K, raised
from scipy import sparse

from gmkcf_dask.corpus import as_features, limits, matrices, read_corpus
from gmkcf_dask.errors import DataWarning, GmkcfError, InputError, PlanRefused

X = np.arange(12.0).reshape(4, 3)


@pytest.fixture(autouse=True)
def little_memory():
    """What is refused in words must not have been taken first: resident size hardly grows."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 * 1024


def npy_header(shape: tuple[int, ...], dtype: str = "<f8") -> bytes:
    text = repr({"descr": dtype, "fortran_order": False, "shape": shape}).encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def zipped(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return path


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.mark.parametrize("shape", [(10**6, 10**6), (2**62, 4), (10**30, 1), (10**400, 1), (-1, 4)])
def test_npy_headers(shape, tmp_path):
    (tmp_path / "x.npy").write_bytes(npy_header(shape) + bytes(96))
    assert "x.npy" in raised(lambda: read_corpus(tmp_path / "x.npy"), InputError)
    zipped(tmp_path / "x.npz", X=npy_header(shape) + bytes(96))
    assert "x.npz" in raised(lambda: read_corpus(tmp_path / "x.npz"), InputError)


def test_entries_without_size_are_counted(tmp_path):
    """Text of length 0 takes no bytes in the file, and many in a list."""
    zipped(tmp_path / "x.npz", X=npy(X), y=npy_header((10**12,), "<U0"))
    raised(lambda: read_corpus(tmp_path / "x.npz"))
    zipped(tmp_path / "x.npz", X=npy(X), y=npy_header((10**7,), "|S0"))
    assert "labels for 4 samples" in raised(lambda: read_corpus(tmp_path / "x.npz"))


def test_a_zip_bomb(tmp_path, monkeypatch):
    """A million to one: what the archive's directory says is believed, and checked first."""
    zipped(tmp_path / "x.npz", X=npy_header((10**6, 5)) + bytes(40 * 10**6))
    assert (tmp_path / "x.npz").stat().st_size < 50_000
    monkeypatch.setattr(limits, "most_bytes", lambda: 10_000_000)
    sentence = raised(lambda: read_corpus(tmp_path / "x.npz"), PlanRefused)
    assert "38.1 MiB" in sentence
    exits(3, "plan", tmp_path / "x.npz", "-k", K)


def test_a_zip_bomb_that_lies_about_its_size(tmp_path):
    path = zipped(tmp_path / "x.npz", X=npy_header((10**6, 5)) + bytes(40 * 10**6))
    content = path.read_bytes().replace(struct.pack("<I", 40 * 10**6 + 128), struct.pack("<I", 500))
    path.write_bytes(content)
    assert "x.npz" in raised(lambda: read_corpus(path), InputError)


@pytest.mark.parametrize("kind", ["csc", "coo", "dia"])
def test_sparse_shapes(kind, tmp_path):
    """A few numbers in a matrix of 10¹² rows: every row would cost memory."""
    sparse.save_npz(tmp_path / "x.npz", sparse.csc_array(X).asformat(kind))
    with np.load(tmp_path / "x.npz", allow_pickle=False) as held:
        members = {name: npy(held[name]) for name in held} | {"shape": npy(np.array([10**12, 3]))}
    zipped(tmp_path / "x.npz", **members)
    assert "samples" in raised(lambda: read_corpus(tmp_path / "x.npz"), InputError)


def test_sparse_shapes_in_memory():
    huge = sparse.coo_array(([1.0], ([0], [0])), shape=(10**12, 3))
    assert "samples" in raised(lambda: as_features(huge), InputError)
    wide = sparse.csr_array(([1.0], [0], [0, 1]), shape=(1, 10**12))
    assert "features" in raised(lambda: as_features(wide), InputError)


MARKET = "%%MatrixMarket matrix {} real general\n% a note\n{}\n1 1 1\n"


@pytest.mark.parametrize("zipped_too", [False, True])
@pytest.mark.parametrize(
    ("form", "sizes"),
    [
        ("coordinate", "4 3 1000000000000"),
        ("coordinate", "1000000000000 3 1"),
        ("coordinate", "4 1000000000000 1"),
        ("coordinate", "4 3 -1"),
        ("coordinate", "99999999999999999999999 3 1"),
        ("array", "1000000 1000000"),
        ("array", "-4 3"),
        ("array", "0 4"),  # SciPy 1.17 divides by it, and the process is gone
        ("array", "4 0"),
        ("array", "0 4 "),
        ("array", "+0 4"),
        ("array", "4 3 2"),
        ("coordinate", "4 3"),
        ("coordinate", "0 0 0"),
        ("coordinate", "4x 3 1"),
        ("vector", "4"),
        ("", "4 3"),
    ],
)
def test_matrix_market_headers(form, sizes, zipped_too, tmp_path):
    text = MARKET.format(form, sizes).encode()
    path = tmp_path / ("x.mtx.gz" if zipped_too else "x.mtx")
    path.write_bytes(gzip.compress(text) if zipped_too else text)
    assert path.name in raised(lambda: read_corpus(path), InputError)


@pytest.mark.parametrize("banner", ["%MatrixMarket matrix array real general", " %%MatrixMarket"])
def test_no_other_spelling_slips_past_the_check(banner, tmp_path):
    (tmp_path / "x.mtx").write_text(f"{banner}\n0 4\n1\n")
    raised(lambda: read_corpus(tmp_path / "x.mtx"), InputError)


@pytest.mark.parametrize("symmetry", ["symmetric", "skew-symmetric", "general"])
def test_small_matrix_market_files_are_not_taken_for_damaged(symmetry, tmp_path):
    n = 5
    count = {"symmetric": 15, "skew-symmetric": 10, "general": 25}[symmetry]
    head = f"%%MatrixMarket matrix array real {symmetry}\n{n} {n}\n"
    (tmp_path / "x.mtx").write_text(head + "1\n" * count)
    assert read_corpus(tmp_path / "x.mtx").X.shape == (n, n)


def test_a_gzip_bomb(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "most_bytes", lambda: 8_000_000)
    (tmp_path / "x.mtx.gz").write_bytes(gzip.compress(b"%" * 10**8))
    raised(lambda: read_corpus(tmp_path / "x.mtx.gz"), PlanRefused)


def test_svmlight_indices(tmp_path):
    (tmp_path / "x.svmlight").write_text("1 1:1 999999999999:1\n2 1:1\n")
    raised(lambda: read_corpus(tmp_path / "x.svmlight"), InputError)


@pytest.mark.parametrize("ending", [".svmlight", ".csv", ".jsonl", ".mtx", ".txt"])
def test_text_beyond_the_memory_there_is(ending, tmp_path, monkeypatch):
    (tmp_path / f"x{ending}").write_text('{"text": "tea"}\n' * 100)
    monkeypatch.setattr(limits, "most_bytes", lambda: 1_000)
    path = tmp_path if ending == ".txt" else tmp_path / f"x{ending}"
    raised(lambda: read_corpus(path), PlanRefused)


def test_tables_of_too_many_rows_or_endless_lines(tmp_path, monkeypatch):
    (tmp_path / "x.jsonl").write_text('{"text": "tea"}\n' * 11)
    (tmp_path / "x.csv").write_text("text\n" + "tea\n" * 11)
    (tmp_path / "x.svmlight").write_text("1 1:1\n" * 11)
    monkeypatch.setattr(limits, "MOST_SAMPLES", 10)
    for name in ("x.jsonl", "x.csv", "x.svmlight"):
        assert "at most 10" in raised(lambda name=name: read_corpus(tmp_path / name), InputError)
    monkeypatch.setattr(limits, "MOST_SAMPLES", 100)
    monkeypatch.setattr(limits, "MOST_CHARACTERS", 12)
    assert "line 1 is longer" in raised(lambda: read_corpus(tmp_path / "x.jsonl"), InputError)


def test_other_fields_of_a_table_are_not_kept(tmp_path):
    line = '{"text": "tea", "other": [' + "[]," * 100_000 + "[]]}\n"
    (tmp_path / "x.jsonl").write_text(line * 5)
    with pytest.warns(DataWarning, match="4 of 5 documents repeat an earlier one"):
        assert read_corpus(tmp_path / "x.jsonl").n_samples == 5


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "x.npy")
    assert "regular file" in raised(lambda: read_corpus(tmp_path / "x.npy"), InputError)


# --- .mat -------------------------------------------------------------------------------------


def child(monkeypatch, tmp_path: Path, code: str) -> None:
    script = tmp_path / "child.py"
    script.write_text(code)
    monkeypatch.setattr(matrices, "_CHILD", script)


@pytest.fixture
def mat(tmp_path) -> Path:
    scipy.io.savemat(tmp_path / "x.mat", {"X": X, "y": [1, 2, 1, 2]})
    return tmp_path / "x.mat"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "crashed (SIGSEGV)"),
        ("import sys; sys.exit(7)", "exit code 7"),
        ("import time; time.sleep(60)", "did not end within"),
    ],
)
def test_a_child_that_dies_is_a_sentence(code, words, mat, tmp_path, monkeypatch):
    child(monkeypatch, tmp_path, code)
    monkeypatch.setattr(matrices, "FILE_SECONDS", 0.5)
    sentence = raised(lambda: read_corpus(mat), InputError)
    assert words in sentence
    assert "x.mat" in sentence


def test_a_python_that_cannot_be_started(mat, monkeypatch):
    monkeypatch.setattr("sys.executable", "/no/such/python")
    assert "could not be started" in raised(lambda: read_corpus(mat), InputError)


@pytest.mark.parametrize("shape", [(10**6, 10**6), (2**31 - 1, 2**31 - 1)])
def test_mat_headers(shape, tmp_path):
    scipy.io.savemat(tmp_path / "x.mat", {"X": X}, do_compression=False)
    content = (tmp_path / "x.mat").read_bytes()
    place = content.index(struct.pack("<ii", *X.shape))
    changed = content[:place] + struct.pack("<ii", *shape) + content[place + 8 :]
    (tmp_path / "x.mat").write_bytes(changed)
    raised(lambda: read_corpus(tmp_path / "x.mat"), InputError)


def test_mat_bombs(tmp_path, monkeypatch):
    scipy.io.savemat(tmp_path / "x.mat", {"X": np.zeros((10**6, 2))}, do_compression=True)
    monkeypatch.setattr(matrices, "most_bytes", lambda: 1_000_000)
    sentence = raised(lambda: read_corpus(tmp_path / "x.mat"), InputError)
    assert "memory" in sentence


def test_nothing_of_a_mat_file_is_parsed_here(mat, monkeypatch):
    for name in ("loadmat", "whosmat"):
        monkeypatch.setattr(scipy.io, name, lambda *_, **__: pytest.fail("parsed here"))
    assert read_corpus(mat).labels == ("1", "2", "1", "2")


@pytest.mark.parametrize(
    ("held", "words"),
    [
        (np.array([["a", "b"]], dtype=object), "not numbers"),
        (X * 1j, "omplex"),
        (np.array(["abc", "abd"]), "not numbers"),
        ({"field": 1}, "not numbers"),
    ],
)
def test_mat_files_of_other_things(held, words, tmp_path):
    scipy.io.savemat(tmp_path / "x.mat", {"X": held})
    assert words in raised(lambda: read_corpus(tmp_path / "x.mat"), GmkcfError)


def test_a_module_beside_the_data_is_not_run(mat, tmp_path, monkeypatch):
    (tmp_path / "scipy.py").write_text("raise SystemExit")
    monkeypatch.chdir(tmp_path)
    assert read_corpus("x.mat").n_samples == 4
