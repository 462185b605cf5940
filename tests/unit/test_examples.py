"""The scripts of examples/ run as they are, without a warning, and print what they promise."""

import subprocess
import sys

import pytest
from helpers.paths import ROOT

pytestmark = pytest.mark.once


def run_example(name, folder, *arguments):
    done = subprocess.run(
        [sys.executable, "-W", "error", ROOT / "examples" / name, *map(str, arguments)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_own_text_without_a_folder(tmp_path):
    lines = run_example("own_text.py", tmp_path).splitlines()
    assert len(lines) == 4
    assert "random" in lines[0] + lines[1] + lines[2]
    assert (tmp_path / "report.html").stat().st_size > 10_000


def test_own_text_of_a_folder(tmp_path):
    texts = ["roses need soil", "tulips need soil", "cakes need an oven", "bread needs an oven"]
    for number, text in enumerate(texts * 3):
        (tmp_path / f"{number}.txt").write_text(f"{text} and note {number:02}")
    report = tmp_path / "page.html"
    lines = run_example("own_text.py", tmp_path, tmp_path, "-k", 2, "--report", report).splitlines()
    assert [line.split()[0] for line in lines[:2]] == ["6", "6"]
    assert report.exists()


def test_precomputed_kernels(tmp_path):
    lines = run_example("precomputed_kernels.py", tmp_path).splitlines()
    assert [line.split()[2] for line in lines[:3]] == ["rbf", "laplacian", "cosine_8"]
    assert all(float(line.split()[-1]) > 0.8 for line in lines[3:])


@pytest.mark.cluster
def test_on_a_cluster(tmp_path):
    lines = run_example("on_a_cluster.py", tmp_path).splitlines()
    assert "600 samples, 3 kernels" in lines[0]
    assert [line.split()[-1] for line in lines[1:]] == ["1.000", "1.000"]
    assert list(tmp_path.iterdir()) == []
