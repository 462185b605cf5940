"""Row: ids in CSV files cannot start a formula in a spreadsheet program, and come back as given."""

import csv
import json
import shutil
from dataclasses import fields

import numpy as np
import pytest
from helpers.commands import exits
from helpers.refusals import FIT, KERNELS, THREADS, features, gmkcf
from hypothesis import given, strategies as st

from gmkcf_dask.pipeline.benchmark.runs import Row, read_rows, write_rows
from gmkcf_dask.results.csv_cells import cell_text, escaped_cell
from gmkcf_dask.results.finished_run import model_of_run
from gmkcf_dask.results.run_folder import labels_of_run, read_result

STARTS = "=+-@\t\r\n＝＋－＠"
IDS = [
    "=HYPERLINK(\"http://x\",\"a\")", "+1", "-1", "@SUM(1)", "\t=1", "\r=1", "\n=1", "＝1", "＋1",
    "－1", "＠1", "'=1", "''", "'", "=1", "1", "a=1", "a,b", 'a"b', " x", "é",
]  # fmt: skip
IDS += [f"d{i}" for i in range(30 - len(IDS))]


@given(st.text())
def test_cells_are_reversible(text):
    assert cell_text(escaped_cell(text)) == text
    assert escaped_cell(text)[:1] not in set(STARTS)


def cells(path):
    with path.open(encoding="utf-8", newline="") as file:
        return [row[0] for row in csv.reader(file)][1:]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run with escaped ids and one with raw ones."""
    folder = tmp_path_factory.mktemp("made")
    X = features()
    np.savez(folder / "x.npz", X=X, ids=np.array(IDS), y=np.arange(30) % 3)
    for name, more in (("run", ()), ("raw", ("--raw-ids",))):
        how = (*FIT, *KERNELS, *THREADS, "--out", folder / name, *more)
        exits(0, "run", folder / "x.npz", *how)
    return folder


def test_labels_csv_starts_no_formula(made):
    found = cells(made / "run" / "labels.csv")
    assert found == [escaped_cell(name) for name in IDS]
    assert not any(cell[0] in STARTS for cell in found)
    assert cells(made / "raw" / "labels.csv") == IDS
    for name, escaped in (("run", True), ("raw", False)):
        assert json.loads((made / name / "result.json").read_text())["escaped_ids"] is escaped


@pytest.mark.parametrize("name", ["run", "raw"])
def test_ids_come_back(name, made, tmp_path):
    run = made / name
    assert tuple(labels_of_run(run, read_result(run))) == tuple(IDS)
    bare = shutil.copytree(run, tmp_path / "bare", ignore=shutil.ignore_patterns("store.zarr"))
    for file in (bare / "result.json", bare / "insight.json"):  # nothing knows the ids but the CSV
        file.write_text(file.read_text().replace(str(made), "/nowhere"))
    assert model_of_run(bare).training.ids == tuple(IDS)
    exits(0, "score", made / name)
    for other in ("run", "raw"):  # either file says which sample is which
        found = exits(0, "score", made / name, "--labels", made / other / "labels.csv")
        assert "ACC    1.0000" in found.stdout
    found = exits(0, "report", made / name, "--out", tmp_path / "report.html")
    insight = json.loads((made / name / "insight.json").read_text())
    assert insight["documents"]["ids"] == IDS


def test_predictions_start_no_formula(made, tmp_path):
    for more in ((), ("--raw-ids",)):
        out = tmp_path / f"p{len(more)}.csv"
        exits(0, "predict", made / "run", made / "x.npz", "--out", out, *more, *THREADS)
        assert cells(out) == (IDS if more else [escaped_cell(name) for name in IDS])
        exits(0, "score", made / "run", "--labels", out)


def test_a_run_of_before_has_raw_ids(made, tmp_path):
    """It does not say that its ids are escaped: an id that begins with an apostrophe keeps it."""
    run = shutil.copytree(made / "raw", tmp_path / "old")
    result = json.loads((run / "result.json").read_text())
    del result["escaped_ids"]
    (run / "result.json").write_text(json.dumps(result))
    assert tuple(labels_of_run(run, read_result(run))) == tuple(IDS)
    assert gmkcf("score", run).stdout == gmkcf("score", made / "raw").stdout


def test_tables_of_a_benchmark(tmp_path):
    values = {"str": "-x", "int": 1, "float": 0.5, "bool": True}
    row = Row(**{field.name: values[str(field.type)] for field in fields(Row)})
    write_rows(tmp_path / "runs.csv", [row])
    assert "'-x" in (tmp_path / "runs.csv").read_text()
    assert read_rows(tmp_path / "runs.csv") == [row]


def test_help_tells():
    for command in ("run", "fit", "predict"):
        assert "--raw-ids" in gmkcf(command, "--help").output
