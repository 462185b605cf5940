"""A run whose clusters are barely more similar than random groups says so, on every page."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from sklearn.datasets import make_blobs

from gmkcf_dask.cli import main
from gmkcf_dask.results.run_folder import read_insight, read_result

SENTENCE = "barely more similar than random groups"


def gmkcf(*words):
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture
def run(tmp_path):
    np.save(tmp_path / "x.npy", make_blobs(60, 4, centers=3, random_state=0)[0])

    def run(kernels, *words):
        out = tmp_path / "run"
        return out, gmkcf(
            "run", tmp_path / "x.npy", "-k", 3, "--kernels", kernels, "--out", out, *words
        )

    return run


@pytest.mark.parametrize("method", ["kcf", "kkm", "sc", "coreg", "rmkkm"])
def test_terminal_results_and_report_say_so_once(run, method):
    out, result = run("rbf_0.01", "--method", method)
    assert result.stderr.count(SENTENCE) == 1
    kept, insight = read_result(out), read_insight(out)
    assert [SENTENCE in note for note in kept.warnings].count(True) == 1
    assert [SENTENCE in note for note in insight.warnings].count(True) == 1
    assert kept.contrast is not None
    assert kept.contrast < 0.1
    assert (out / "report.html").read_text().count(SENTENCE) == 1
    (out / "insight.json").unlink()
    gmkcf("report", out)
    assert [SENTENCE in note for note in read_insight(out).warnings].count(True) == 1


def test_clear_clusters_say_nothing(run):
    out, result = run("rbf_1,cosine", "--json")
    assert SENTENCE not in result.output
    assert json.loads(result.stdout.splitlines()[-1])["contrast"] > 0.5
    assert read_result(out).contrast > 0.5


def test_results_of_earlier_versions_have_no_contrast(run):
    out, _ = run("rbf_1,cosine")
    content = json.loads((out / "result.json").read_text())
    del content["contrast"]
    (out / "result.json").write_text(json.dumps(content))
    assert read_result(out).contrast is None
    gmkcf("report", out)
