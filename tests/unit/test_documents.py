"""README, configuration and scripts do what they say."""

import re
import shutil
import subprocess
import tomllib

import pytest
import yaml
from click.testing import CliRunner
from helpers.paths import ROOT
from helpers.scripts import run_script
from scipy import sparse
from scipy.io import loadmat

from gmkcf_dask import load
from gmkcf_dask.cli import main
from gmkcf_dask.cluster.process_settings import WORKER_ENVIRONMENT

pytestmark = pytest.mark.once
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language):
    found = re.findall(r"^```(\w*)\n(.*?)^```$", README, flags=re.DOTALL | re.MULTILINE)
    return [body for name, body in found if name == language]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore::gmkcf_dask.errors.DataWarning")
def test_python_example_of_the_readme(capsys, tmp_path, monkeypatch):
    (example,) = blocks("python")
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(compile(example, "README.md", "exec"), names)
    assert len(set(names["labels"])) == 21
    assert re.fullmatch(r"\[\d+\]\n", capsys.readouterr().out)
    assert "21 clusters" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert (load(tmp_path / "docstrings.model").labels_ == names["labels"]).all()


NOT_HERE = {"benchmark", "doctor", "submit"}  # hours, other machines: tests of their own run them


def test_the_commands_of_the_readme_run_in_their_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    topics = ["roses soil", "oven cake", "goals match", "votes party", "chips code"]
    for i in range(30):
        words = topics[i % 5]
        (tmp_path / "INPUT").mkdir(exist_ok=True)
        (tmp_path / "INPUT" / f"{i}.txt").write_text(f"{words} {words} nr{i:02} and so on")
    shutil.copytree("INPUT", "NEW")
    (tmp_path / "known.csv").write_text(
        "id,label\n" + "".join(f"{i}.txt,{i % 5}\n" for i in range(30))
    )
    (block,) = [block for block in blocks("") if "gmkcf run   INPUT" in block]
    ran = set()
    for words in commands_in(block):
        if words[0] in NOT_HERE:
            continue
        words = [word.strip("[]") for word in words]
        words = ["known.csv" if word == "FILE" else word for word in words]
        # a second run may not take the place of the first, and 5 of 15 suggestions are enough
        words += ["--overwrite"] if words[0] == "fit" else []
        words += ["--ks", "2-6"] if words[0] == "suggest-k" else []
        done = CliRunner().invoke(main, words)
        assert done.exit_code == 0, (words, done.output)
        ran.add(words[0])
    assert ran == set(main.commands) - NOT_HERE
    assert len((tmp_path / "FILE.csv").read_text().splitlines()) == 31


DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md")),
             *sorted((ROOT / "cluster_configs").rglob("README.md"))]  # fmt: skip
BY_FILE = pytest.mark.parametrize("file", DOCUMENTS, ids=lambda file: file.name)


def help_of(words):
    return CliRunner().invoke(main, [*words, "-h"]).output


def commands_in(text):
    """Words of every command that begins a line; lines that go on are one."""
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    for line in lines:
        found = re.match(r"(?:\$ |# )?gmkcf (.*)", line)
        if found and not found[1].startswith(("submit slurm …", "COMMAND")):
            # a command after -- is one of its own
            yield from (part.split() for part in re.split(r" -- ", found[1].split("  #")[0]))


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 150, "details belong in docs/"


def test_the_readme_knows_all_commands():
    assert set(re.findall(r"^gmkcf ([\w-]+)", README, flags=re.MULTILINE)) == set(main.commands)


@BY_FILE
def test_commands_and_options_exist(file):
    for words in commands_in(file.read_text()):
        name = words[:2] if words[0] == "submit" else words[:1]
        shown = help_of(name)
        assert shown.startswith("Usage: "), words
        for word in words:
            if word.startswith("--"):
                assert re.search(rf"{word.partition('=')[0]}\b", shown), (word, words)


def anchors(file):
    """Of the headings of a file, as they are made where it is shown."""
    headings = re.findall(r"^#+ (.*)$", file.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings}


@BY_FILE
def test_links_lead_somewhere(file):
    for target in re.findall(r"\]\(([^)\s]+)\)", file.read_text()):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        there = (file.parent / path) if path else file
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), target


FOLDERS = "gmkcf_dask|scripts|tests|docs|cluster_configs|examples"


@BY_FILE
def test_files_that_are_named_exist(file):
    for name in re.findall(rf"`((?:{FOLDERS})/[\w./-]*)[` ]", file.read_text()):
        assert (ROOT / name).exists(), name


def test_functions_that_contributors_are_sent_to_exist():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    places = re.findall(r"`((?:\w+`, `)*\w+)`\s(?:in|of)\s+`((?:gmkcf_dask|tests)/\S+)`", text)
    assert len(places) > 3
    for names, file in places:
        for name in names.split("`, `"):
            assert re.search(rf"\b{name}\b", (ROOT / file).read_text()), (name, file)


def test_one_version_is_stated_everywhere():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert citation["version"] == newest[1] == project["version"]


def test_worker_settings_are_the_ones_we_use_ourselves():
    found = yaml.safe_load((ROOT / "cluster_configs" / "workers.yaml").read_text())
    environment = found["distributed"]["nanny"]["pre-spawn-environ"]
    assert {name: str(value) for name, value in environment.items()} == WORKER_ENVIRONMENT


@pytest.mark.parametrize(
    "more", [("--max-iter", 3), ("--method", "sc", "--kernels", "rbf_1,cosine")]
)
@pytest.mark.slow
def test_out_of_core_script_in_small(more):
    """The real one is n = 12,000; this shows that the script and the plan's bound hold."""
    arguments = ("--n", 1500, "--memory", "1GiB", "--workers", 2, *more)
    ran = run_script("out_of_core.py", *arguments, warnings="error")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "blocks spilled: 0" in ran.stdout
    assert re.search(r"peak per worker at the end: .* \(plan: .*\)", ran.stdout)


def test_paper_corpora_read_as_they_are(paper_data):
    from gmkcf_dask import read_corpus

    sizes = {"bbc": 737, "tr31": 927, "k1b": 2340, "webkb": 4199, "tr11": 414}
    for name, n in sizes.items():
        corpus = read_corpus(paper_data / f"{name}.mat")
        assert corpus.n_samples == n
        assert corpus.labels is not None
        raw = loadmat(paper_data / f"{name}.mat", variable_names=["X"])["X"]
        assert abs(sparse.csr_array(raw) - corpus.X).max() == 0


@pytest.mark.skipif(shutil.which("bash") is None, reason="no shell here")
@pytest.mark.parametrize("script", ["demo", "test", "environment", "out_of_core", "chaos"])
def test_shell_scripts_parse(script):
    assert subprocess.run(["bash", "-n", ROOT / "scripts" / script], check=False).returncode == 0


@pytest.mark.parametrize(
    ("document", "header"),
    [("docs/design.md", "| room | owns |"), ("CONTRIBUTING.md", "| room of `gmkcf_dask/` |")],
)
def test_rooms_of_the_documents_are_those_of_the_import_contract(document, header):
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (layers,) = [c["layers"] for c in contracts["contracts"] if c["type"] == "layers"]
    text = (ROOT / document).read_text(encoding="utf-8")
    table = text.partition(header)[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(\w+)(?:/|\.py)?` \|", table, flags=re.MULTILINE) == layers
