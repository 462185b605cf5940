"""Samples are counted before they are read, and too many for the disk are refused then."""

import gzip
import json

import numpy as np
import pytest
from click.testing import CliRunner
from scipy import sparse

from gmkcf_dask.cli import main
from gmkcf_dask.corpus import TextOptions, read_corpus
from gmkcf_dask.corpus.read import count_samples

TEXTS = [f"word{i % 3} other{i % 11} and more" for i in range(30)]


def write_csv(path):
    quoted = (f'"{text}\nsecond ""line"""' for text in TEXTS)
    path.write_text("id,text\n" + "".join(f"{i},{cell}\n" for i, cell in enumerate(quoted)))


def write_jsonl(path):
    path.write_text("\n\n".join(json.dumps({"text": text}) for text in TEXTS) + "\n \n")


def write_packed(path):
    lines = "\n".join(json.dumps({"text": text}) for text in TEXTS)
    path.write_bytes(gzip.compress(lines.encode()))


def write_folder(path):
    path.mkdir()
    for i, text in enumerate(TEXTS):
        (path / f"{i}.txt").write_text(text)


def write_svmlight(path):
    path.write_text("".join(f"{i % 2} 1:{i + 1} 2:0.5\n" for i in range(30)))


def write_mtx(path):
    rows = "".join(f"{i + 1} {i % 4 + 1} 1.5\n" for i in range(30))
    path.write_text(f"%%MatrixMarket matrix coordinate real general\n% note\n30 4 30\n{rows}")


X = np.random.default_rng(0).random((30, 4))
WRITERS = {
    "a.csv": write_csv,
    "a.jsonl": write_jsonl,
    "a.jsonl.gz": write_packed,
    "folder": write_folder,
    "a.npy": lambda path: np.save(path, X),
    "a.npz": lambda path: np.savez_compressed(path, X=X),
    "sparse.npz": lambda path: sparse.save_npz(path, sparse.csr_matrix(X)),
    "a.svmlight": write_svmlight,
    "a.mtx": write_mtx,
}


@pytest.mark.parametrize("name", WRITERS)
def test_the_count_is_that_of_reading(name, tmp_path):
    path = tmp_path / name
    WRITERS[name](path)
    assert count_samples(path) == 30 == read_corpus(path).n_samples


def test_parquet(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table({"text": TEXTS}), tmp_path / "a.parquet")
    assert count_samples(tmp_path / "a.parquet") == 30


@pytest.mark.parametrize(
    ("name", "content"),
    [("no.csv", None), ("a.npy", b"\x93NUMPY"), ("a.npz", b"PK"), ("a.jsonl.gz", b"\x1f\x8bxx"),
     ("a.mtx", b"%%x\nmany\n"), ("a.csv", b'text\n"open'), ("a.odd", b"?")],
)  # fmt: skip
def test_what_cannot_be_counted_is_left_to_reading(name, content, tmp_path):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert count_samples(tmp_path / name, TextOptions()) is None


@pytest.mark.parametrize("command", ["run", "build", "plan", "suggest-k"])
def test_too_many_are_refused_before_any_is_taken_apart(command, tmp_path, monkeypatch):
    """The work is counted, not the seconds: no batch of texts is counted, no file is written."""
    source, store = tmp_path / "a.jsonl", tmp_path / "s.zarr"
    write_jsonl(source)
    analysed = []
    monkeypatch.setattr("gmkcf_dask.corpus.vectorize.count_batch", lambda *a: analysed.append(a))
    monkeypatch.setattr("gmkcf_dask.pipeline.planning.free_disk", lambda path: 5000)
    rest = {
        "run": ["-k", "2", "--out", str(tmp_path / "out")],
        "build": [str(store)],
        "plan": ["-k", "2"],
        "suggest-k": ["--store", str(store)],
    }[command]
    found = CliRunner().invoke(main, [command, str(source), *rest, "--paper"])
    assert found.exit_code == 3, found.output
    assert "30 samples" in found.stderr
    assert "choose another place" in found.stderr
    assert analysed == []
    assert list(tmp_path.iterdir()) == [source]


def test_the_plan_knows_method_restarts_and_kernels(tmp_path):
    write_jsonl(tmp_path / "a.jsonl")
    command = ["plan", str(tmp_path / "a.jsonl"), "-k", "2", "--cluster", "threads", "--paper"]
    plain = CliRunner().invoke(main, command)
    many = CliRunner().invoke(
        main, [*command, "--method", "kcf", "--kernel", "all", "--n-init", "20"]
    )
    assert plain.exit_code == many.exit_code == 0, many.output
    assert "gmkcf: 1 run" in plain.output
    assert "kcf, 20 restarts, 12 kernels one by one: 240 runs" in many.output
    assert "time: about" in many.output
