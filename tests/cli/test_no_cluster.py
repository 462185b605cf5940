"""Documents without usable words, from the command line: counted, listed, in no cluster."""

import json
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from gmkcf_dask.cli import main
from gmkcf_dask.pipeline import predict_file
from gmkcf_dask.results.run_folder import read_insight, read_result

pytestmark = pytest.mark.usefixtures("calm")
WORDS = ["goal match league coach", "bank profit shares debt", "film actor screen drama"]
EMPTY = (4, 9)


def gmkcf(*words, code=0):
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == code, result.output
    return result.stdout


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Thirty documents with their topics; two have no word that others have."""
    path = tmp_path_factory.mktemp("texts") / "news.jsonl"
    random = np.random.default_rng(0)
    lines = []
    for i in range(30):
        own = random.choice(WORDS[i % 3].split(), 6)
        text = f"alone{i}" if i in EMPTY else " ".join([*own, "report"])
        lines.append(json.dumps({"id": f"d{i}", "text": text, "label": "abc"[i % 3]}))
    path.write_text("\n".join(lines))
    return path


@pytest.fixture
def run(texts, tmp_path):
    out = tmp_path / "run"
    words = ("run", texts, "--out", out, "-k", 3, "--kernels", "cosine,rbf_1", "--min-df", 2)
    return out, gmkcf(*words, "--max-iter", 20)


def test_a_run_counts_and_lists_them(run):
    out, shown = run
    assert "2 documents have no usable words and belong to no cluster." in shown
    labels = dict(line.split(",") for line in (out / "labels.csv").read_text().split()[1:])
    assert [name for name, label in labels.items() if label == "-1"] == ["d4", "d9"]
    result, insight = read_result(out), read_insight(out)
    assert (result.n_without_cluster, result.what) == (2, "documents")
    assert sum(cluster.size for cluster in result.clusters) == 28
    assert insight.n_without_cluster == 2
    assert insight.scores is not None
    assert insight.scores["coverage"] == pytest.approx(28 / 30, abs=1e-4)
    assert "2 documents have no usable words" in (out / "report.html").read_text()


@pytest.mark.parametrize("kernels", ["local", "paper12"])
@pytest.mark.parametrize("method", ["gmkcf", "kcf", "kkm", "sc", "coreg", "rmkkm"])
def test_it_is_so_for_every_method(texts, tmp_path, method, kernels):
    out = tmp_path / "run"
    words = (
        "run",
        texts,
        "--out",
        out,
        "-k",
        3,
        "--method",
        method,
        "--kernels",
        kernels,
        "--min-df",
        2,
    )
    assert "2 documents have no usable words and belong to no cluster." in gmkcf(*words)
    labels = dict(line.split(",") for line in (out / "labels.csv").read_text().split()[1:])
    assert [name for name, label in labels.items() if label == "-1"] == ["d4", "d9"]
    if method == "coreg":  # places no new samples
        return
    gmkcf("predict", out, texts, "--out", tmp_path / "new.csv")
    again = [line.split(",") for line in (tmp_path / "new.csv").read_text().split()[1:]]
    assert {name: label for name, label, _ in again if name in ("d4", "d9")} == {
        "d4": "-1",
        "d9": "-1",
    }
    assert sum(label == labels[name] for name, label, _ in again) >= 29


@pytest.mark.parametrize("method", ["gmkcf", "kkm", "sc"])
def test_paper_clusters_them_like_others(texts, tmp_path, method):
    out = tmp_path / "run"
    gmkcf("run", texts, "--out", out, "-k", 3, "--method", method, "--paper", "--min-df", 2)
    assert read_result(out).n_without_cluster == 0
    gmkcf("predict", out, texts, "--out", tmp_path / "new.csv")
    assert "-1" not in (tmp_path / "new.csv").read_text()


def test_fewer_documents_with_words_than_clusters_are_refused(tmp_path):
    path = tmp_path / "news.jsonl"
    texts = ["goal match"] * 2 + [f"alone{i}" for i in range(3)]
    path.write_text("\n".join(json.dumps({"text": text}) for text in texts))
    words = ("run", path, "--out", tmp_path / "run", "-k", 3, "--kernels", "paper12")
    result = CliRunner().invoke(main, [*map(str, words), "--min-df", "2"])
    assert result.exit_code == 2
    assert "only 2 of 5 documents have words to be clustered by" in result.stderr


def test_comparisons_and_suggestions_leave_them_out(texts, tmp_path):
    out = tmp_path / "compared"
    gmkcf("compare", texts, "-k", 3, "--out", out, "--min-df", 2)
    for file in out.glob("labels_*.csv"):
        labels = dict(line.split(",") for line in file.read_text().split()[1:])
        assert [name for name, label in labels.items() if label == "-1"] == ["d4", "d9"], file
    gmkcf("suggest-k", texts, "--ks", "2-5", "--restarts", 2, "--out", out, "--min-df", 2)
    assert json.loads((out / "suggest_k.json").read_text())["n_samples"] == 28


def test_score_prints_the_coverage(run):
    out, _ = run
    assert "coverage 0.9333" in gmkcf("score", out)
    last = json.loads(gmkcf("score", out, "--json").splitlines()[-1])
    assert last["coverage"] == pytest.approx(28 / 30)


def test_score_is_silent_where_all_have_a_cluster(texts, tmp_path):
    out = tmp_path / "run"
    gmkcf("run", texts, "--out", out, "-k", 3, "--kernels", "cosine", "--max-iter", 10)
    assert "coverage" not in gmkcf("score", out)


def test_the_last_line_of_json_tells_them(texts, tmp_path):
    words = (
        "run",
        texts,
        "--out",
        tmp_path / "run",
        "-k",
        3,
        "--kernels",
        "cosine",
        "--json",
        "--min-df",
        2,
    )
    last = json.loads(gmkcf(*words, "--max-iter", 10).splitlines()[-1])
    assert (last["n_without_cluster"], last["n_clusters"]) == (2, 3)
    assert last["coverage"] == pytest.approx(28 / 30)


def test_one_line_for_each_kernel_tells_them(texts, tmp_path):
    words = (
        "run",
        texts,
        "--out",
        tmp_path / "run",
        "-k",
        3,
        "--kernels",
        "cosine,rbf_1",
        "--min-df",
        2,
    )
    shown = gmkcf(*words, "--max-iter", 10, "--method", "kcf", "--kernel", "all")
    assert shown.count("2 without a cluster") == 2


def test_predict_tells_how_many_have_none(run, texts, tmp_path, monkeypatch):
    out, _ = run
    predict = predict_file.predict

    def unplaced(*words, **how):
        found = predict(*words, **how)
        labels, sure = found.labels.copy(), found.sure.copy()
        labels[list(EMPTY)], sure[list(EMPTY)] = -1, 0.0
        return replace(found, labels=labels, sure=sure)

    monkeypatch.setattr(predict_file, "predict", unplaced)
    new = tmp_path / "new.csv"
    shown = gmkcf("predict", out, texts, "--out", new)
    assert "28 samples in 3 clusters, 2 in no cluster (label -1)" in shown
    assert "d4,-1,0.0000" in new.read_text()
    last = json.loads(
        gmkcf("predict", out, texts, "--out", new, "--overwrite", "--json").splitlines()[-1]
    )
    assert (last["n_samples"], last["n_without_cluster"]) == (30, 2)


def test_an_interrupted_report_is_made_again(run):
    out, _ = run
    (out / "insight.json").unlink()
    gmkcf("report", out)
    assert read_insight(out).n_without_cluster == 2


def test_runs_of_earlier_versions_are_read(run):
    out, _ = run
    for name in ("result.json", "insight.json"):
        content = json.loads((out / name).read_text())
        for field in ("n_without_cluster", "what"):
            if not (name == "insight.json" and field == "what"):
                del content[field]
        if name == "insight.json":
            content["documents"]["labels"] = [
                max(label, 0) for label in content["documents"]["labels"]
            ]
        (out / name).write_text(json.dumps(content))
    assert read_result(out).n_without_cluster == 0
    assert read_insight(out).n_without_cluster == 0
