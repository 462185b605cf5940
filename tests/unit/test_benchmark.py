"""The benchmark: rows, resuming, tables that say what the rows say, and pictures."""

import csv
import json
import math

import numpy as np
import pytest
from click.testing import CliRunner
from scipy import sparse
from scipy.io import savemat

from gmkcf_dask.cli import main
from gmkcf_dask.pipeline.benchmark import runs as runs_module
from gmkcf_dask.pipeline.benchmark.entries import ENTRIES
from gmkcf_dask.pipeline.benchmark.published import (
    GAIN_GMKCF_OVER_SECOND,
    GAIN_MULTIPLE_OVER_SINGLE,
    PAPER_MEASURES,
    PAPER_METHODS,
    SCORES,
    SIZES,
)
from gmkcf_dask.pipeline.benchmark.runs import KERNEL_NAMES, Row, Settings, read_rows, write_rows
from gmkcf_dask.pipeline.benchmark.tables import (
    Results,
    gmkcf_over_second,
    markdown,
    multiple_over_single,
    published,
)

KERNELS = 13  # twelve and their mean


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder with two small corpora in the form of the paper's."""
    folder = tmp_path_factory.mktemp("data")
    for name, seed in (("bbc", 0), ("mine", 1)):
        rng = np.random.default_rng(seed)
        y = np.arange(45) % 3
        X = rng.random((45, 12)) * (rng.random((45, 12)) < 0.4)
        X[np.arange(45), y] += 2
        X /= np.linalg.norm(X, axis=1, keepdims=True)
        savemat(folder / f"{name}.mat", {"X": sparse.csr_matrix(X), "y": y + 1})
    return folder


def benchmark(data, out, *options):
    result = CliRunner().invoke(
        main, ["benchmark", "--data", str(data), "--out", str(out), *map(str, options)]
    )
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("out") / "bench"
    text = benchmark(data, out, "--datasets", "bbc,mine", "--runs", 2, "--normalization", "degree")
    return out, text


@pytest.mark.slow
def test_every_method_kernel_and_seed_has_its_row(whole):
    out, _ = whole
    rows = list(csv.DictReader((out / "runs.csv").read_text().splitlines()))
    for dataset in ("bbc", "mine"):
        for name, entry in ENTRIES.items():
            own = [row for row in rows if (row["dataset"], row["method"]) == (dataset, name)]
            seeds = 1 if entry.deterministic else 2
            assert len(own) == seeds * (KERNELS if entry.single_kernel else 1)
    for row in rows:
        assert all(0 <= float(row[m]) <= 1 for m in PAPER_MEASURES)
        assert float(row["seconds"]) > 0
        assert int(row["iterations"]) >= 0
    assert {row["kernel"] for row in rows} == {"", "mean", *KERNEL_NAMES}


@pytest.mark.slow
def test_tables_and_pictures_are_there(whole):
    out, text = whole
    tables = (out / "tables.md").read_text()
    for title in ("Table 1", "Table 2: ACC", "Table 3: NMI", "Table 4: purity", "gains", "KMeans"):
        assert title in tables
    assert "(.457, " in tables, "the published value of KKM on BBC"
    for name in ("ACC", "NMI", "purity", "summary"):
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert f"{name}.png" in text


@pytest.mark.slow
def test_what_is_done_is_not_done_again(whole, data, monkeypatch):
    out, _ = whole
    before = (out / "runs.csv").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(runs_module, "read_corpus", lambda *_: pytest.fail("worked"))
        benchmark(data, out, "--datasets", "bbc,mine", "--runs", 2, "--normalization", "degree")
    assert (out / "runs.csv").read_bytes() == before


def test_a_broken_off_benchmark_goes_on(data, tmp_path, monkeypatch):
    out = tmp_path / "bench"
    asked = ("--datasets", "bbc", "--methods", "kkm,gmkcf,nmf", "--runs", 3)
    original, calls = runs_module.write_rows, []

    def break_off(path, rows):
        original(path, rows)
        calls.append(len(rows))
        if len(calls) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(runs_module, "write_rows", break_off)
        args = ["benchmark", "--data", str(data), "--out", str(out), *map(str, asked)]
        assert CliRunner().invoke(main, args).exit_code == 130
    kept = read_rows(out / "runs.csv")
    assert len(kept) == 3 * KERNELS + 1
    benchmark(data, out, *asked)
    rows = read_rows(out / "runs.csv")
    assert rows[: len(kept)] == kept
    assert len(rows) == 3 * KERNELS + 3 + 1


@pytest.mark.slow
def test_more_runs_add_to_those_that_are_there(data, tmp_path):
    few = ("--datasets", "bbc", "--methods", "sc,coreg")
    benchmark(data, tmp_path / "b", *few, "--runs", 1)
    one = read_rows(tmp_path / "b" / "runs.csv")
    benchmark(data, tmp_path / "b", *few, "--runs", 2)
    two = read_rows(tmp_path / "b" / "runs.csv")
    assert {row.key for row in two} == {(*row.key[:3], s) for row in one for s in (0, 1)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--datasets", "nothing"), "nothing.mat is not there: --data must name the folder"),
        (("--methods", "kkk"), "there is no method 'kkk' in the benchmark"),
        (("--runs", "0"), "runs must be at least 1"),
        (("--methods", ""), "there is nothing to run"),
        (("--datasets", ","), "there is nothing to run"),
    ],
)
def test_bad_requests_are_one_sentence(data, tmp_path, options, message):
    args = ["benchmark", "--data", str(data), "--datasets", "bbc", "--out", str(tmp_path / "b")]
    result = CliRunner().invoke(main, [*args, *options])
    assert result.exit_code == 2
    assert result.output.startswith("error: ")
    assert message in result.output
    assert not (tmp_path / "b").exists()


def test_features_a_reference_cannot_take_leave_out_its_row_only(data, tmp_path):
    rng = np.random.default_rng(0)
    folder = tmp_path / "data"
    folder.mkdir()
    X = rng.normal(size=(15, 4)) + 5 * np.eye(4)[np.arange(15) % 3]
    savemat(folder / "few.mat", {"X": X, "y": np.arange(15) % 3})
    text = benchmark(folder, tmp_path / "b", "--datasets", "few", "--runs", 1, "--methods",
                     "kkm,nmf,knn_spectral")  # fmt: skip
    assert "few: NMF on X is left out, the features have negative values" in text
    assert {one.method for one in read_rows(tmp_path / "b" / "runs.csv")} == {"kkm", "knn_spectral"}
    (tmp_path / "b" / "benchmark.json").unlink()
    args = ["benchmark", "--data", str(folder), "--datasets", "few", "--out", str(tmp_path / "b")]
    result = CliRunner().invoke(main, args)
    assert result.exit_code == 2
    assert "the settings of these runs are unknown" in result.output


def test_seeds_are_counted_for_every_set():
    rows = [row("bbc", "gmkcf", "", seed, 0.5) for seed in range(3)]
    rows += [row("mine", "gmkcf", "", 0, 0.5)]
    settings = Settings("unit", {}, {"bbc": [1, 1, 1], "mine": [1, 1, 1]}, [])
    assert "GMKCF on BBC 3, GMKCF on mine 1" in markdown(rows, settings)


@pytest.mark.slow
def test_other_kernels_need_another_folder(whole, data):
    out, _ = whole
    args = ["benchmark", "--data", str(data), "--datasets", "bbc", "--out", str(out)]
    result = CliRunner().invoke(main, args)
    assert result.exit_code == 2
    assert "holds runs with normalization degree, not unit" in result.output


@pytest.mark.slow
def test_other_settings_or_data_need_another_folder(data, tmp_path):
    out = tmp_path / "b"
    args = ["benchmark", "--data", str(data), "--datasets", "bbc", "--out", str(out)]
    few = [*args, "--methods", "coreg", "--runs"]
    assert CliRunner().invoke(main, [*few, "1"]).exit_code == 0
    held = json.loads((out / "benchmark.json").read_text())
    assert held["sizes"] == {"bbc": [45, 12, 3]}
    assert "| BBC | 45 | 12 | 3 | no |" in (out / "tables.md").read_text()
    changes = {
        "methods": {"coreg": "λ = 7"},
        "sizes": {"bbc": [45, 13, 3]},
    }
    messages = {"methods": "runs of coreg with other settings (λ = 7)", "sizes": "[45, 13, 3]"}
    for field, value in changes.items():
        (out / "benchmark.json").write_text(json.dumps({**held, field: value}))
        result = CliRunner().invoke(main, [*few, "2"])
        assert result.exit_code == 2
        assert messages[field] in result.output
    (out / "benchmark.json").write_text(json.dumps({**held, "versions": [{"numpy": "0.0.1"}]}))
    assert CliRunner().invoke(main, [*few, "2"]).exit_code == 0
    assert "numpy 0.0.1; then python" in (out / "tables.md").read_text()


def row(dataset, method, kernel, seed, value):
    return Row(dataset, method, kernel, seed, value, value, value, value, 1.0, 2, True, 0.5)


def test_a_seed_of_a_single_kernel_method_is_its_mean_over_kernels():
    rows = [
        row("bbc", "kkm", kernel, seed, 0.1 * seed + 0.01 * i)
        for seed in (0, 1, 2)
        for i, kernel in enumerate(KERNEL_NAMES)
    ]
    rows += [row("bbc", "kkm", "mean", seed, 0.9) for seed in (0, 1, 2)]
    cell = Results(rows).cell("bbc", ENTRIES["kkm"], "ACC")
    assert cell.mean == pytest.approx(0.1 + 0.055)
    assert cell.error == pytest.approx(0.1 / math.sqrt(3))
    assert cell.n_seeds == 3
    assert Results(rows).cell("bbc", ENTRIES["kkm"], "ACC", "mean").mean == pytest.approx(0.9)
    incomplete = [one for one in rows if one.kernel != "cosine"]
    assert Results(incomplete).cell("bbc", ENTRIES["kkm"], "ACC") is None


def test_tables_of_the_published_values_differ_by_nothing():
    """Rows that hold exactly what the paper prints."""
    rows = []
    for name, entry in ENTRIES.items():
        if entry.kind == "paper":
            for dataset in SCORES["ACC"]:
                values = {m: SCORES[m][dataset][entry.title] for m in PAPER_MEASURES}
                rows += [
                    Row(dataset, name, kernel, 0, **values, ARI=0, objective=0, iterations=1,
                        converged=True, seconds=1)
                    for kernel in (KERNEL_NAMES if entry.single_kernel else [""])
                ]  # fmt: skip
    settings = Settings("degree", {}, {name: list(size) for name, size in SIZES.items()}, [])
    text = markdown(rows, settings)
    differences = [line for line in text.splitlines() if "largest" in line and line.startswith("|")]
    assert len(differences) == len(PAPER_METHODS)
    for line in differences:
        assert line.count(".000 (largest") == 3


@pytest.mark.parametrize("measure", PAPER_MEASURES)
def test_the_claimed_gains_follow_from_the_published_tables(measure):
    means = {name: published(measure, None, name, list(SCORES[measure])) for name in PAPER_METHODS}
    assert multiple_over_single(means) == pytest.approx(
        GAIN_MULTIPLE_OVER_SINGLE[measure], abs=2e-3
    )
    assert gmkcf_over_second(means) == pytest.approx(GAIN_GMKCF_OVER_SECOND[measure], abs=1e-3)


def test_rows_survive_the_file(tmp_path):
    rows = [row("bbc", "kkm", "cosine", 3, 1 / 3), row("x", "spectral", "", 0, 0.0)]
    write_rows(tmp_path / "runs.csv", rows)
    assert read_rows(tmp_path / "runs.csv") == rows
    (tmp_path / "runs.csv").write_text("dataset,method\n1,2\n")
    with pytest.raises(ValueError, match="damaged"):
        read_rows(tmp_path / "runs.csv")
