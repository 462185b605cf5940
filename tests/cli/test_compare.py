"""`gmkcf compare`: tables, files, and what is left out."""

import csv
import json

import numpy as np
import pytest
from helpers.commands import CLASSES, TOPICS, N, done, refused

THREADS = ("--cluster", "threads", "--workers", "2")
FEW = ("--methods", "gmkcf,sc", *THREADS)


@pytest.fixture
def table(tmp_path):
    """Texts with ids and labels."""
    path = tmp_path / "texts.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["id", "text", "label"])
        for i, of in enumerate(CLASSES):
            rows.writerow([f"={i}", f"{TOPICS[of]} {TOPICS[of].split()[i % 3]}", f"topic {of}"])
    return path


def test_tables_and_files(table, tmp_path):
    out = tmp_path / "out"
    said = done("compare", table, "-k", 3, "--out", out, *THREADS).stdout
    content = json.loads((out / "comparison.json").read_text())
    names = [run["name"] for run in content["runs"]]
    assert len(names) == 12
    assert all(name in said for name in names)
    assert content["input"] == str(table)
    assert content["runs"][0]["scores"]["ACC"] == 1.0
    assert "closest to the known labels: gmkcf_local" in said
    for name in names:
        with (out / f"labels_{name}.csv").open(newline="", encoding="utf-8") as file:
            head, *rows = csv.reader(file)
        assert head == ["id", "label"]
        assert [row[0] for row in rows] == [f"'={i}" for i in range(N)]
    pytest.importorskip("matplotlib")
    assert (out / "comparison.png").read_bytes().startswith(b"\x89PNG")


def test_raw_ids_stay_as_they_are(table, tmp_path):
    done("compare", table, "-k", 3, "--out", tmp_path / "out", "--raw-ids", *FEW)
    lines = (tmp_path / "out" / "labels_sc_local.csv").read_text().splitlines()
    assert lines[1].startswith("=0,")


def test_a_store_serves_both_presets_and_is_compared_again(table, tmp_path):
    store = tmp_path / "both.zarr"
    first = done("compare", table, "-k", 3, "--store", store, "--json", *FEW).stdout
    again = done("compare", store, "-k", 3, "--json", *FEW).stdout
    results = [json.loads(text.splitlines()[-1]) for text in (first, again)]
    assert [result["event"] for result in results] == ["result", "result"]
    for of_first, of_again in zip(*(result["runs"] for result in results), strict=True):
        of_first.pop("seconds"), of_again.pop("seconds")
        assert of_first == of_again
    assert len(results[0]["runs"]) == 4
    assert "is already a store" in refused("compare", store, "-k", 3, "--store", tmp_path / "b")


def test_quiet_prints_nothing(table):
    assert done("compare", table, "-k", 3, "--quiet", *FEW).stdout == ""


@pytest.mark.parametrize("stored", [False, True])
def test_where_the_papers_kernels_do_not_fit_one_line_says_so(stored, table, tmp_path, monkeypatch):
    if stored:
        monkeypatch.setattr("gmkcf_dask.pipeline.planning.free_disk", lambda path: 60_000)
    else:
        monkeypatch.setattr("gmkcf_dask.pipeline.kernels.free_memory", lambda: 30_000)
    where = ("--store", tmp_path / "s.zarr") if stored else ()
    said = done("compare", table, "-k", 3, *where, *FEW, "--layout", "each").stdout
    assert "sc_local" in said
    assert "sc_paper" not in said
    (line,) = [line for line in said.splitlines() if line.startswith("skipped: ")]
    assert line.startswith("skipped: the paper's kernels: ")
    assert "refused" not in line


def test_numbers_are_compared_with_heat_kernels(tmp_path):
    rng = np.random.default_rng(0)
    np.save(tmp_path / "x.npy", 8 * np.eye(3)[CLASSES] + rng.standard_normal((N, 3)))
    said = done("compare", tmp_path / "x.npy", "-k", 3, "--json", *FEW).stdout
    result = json.loads(said.splitlines()[-1])
    assert result["kernels"]["local"] == ["heat_s", "heat_m", "heat_l"]
    assert result["runs"][0]["scores"] == {}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (("--methods", "kmeans"), "methods has 'kmeans'"),
        (("--presets", "none"), "presets has 'none'"),
        (("-k", "99"), "n_samples=48"),
    ],
)
def test_wrong_options_are_refused(table, wrong, said):
    assert said in refused("compare", table, "-k", 3, *THREADS, *wrong)
