"""README, configuration and scripts do what they say."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from scipy import sparse
from scipy.io import loadmat

from gmkcf_dask.cli import main
from gmkcf_dask.cluster import WORKER_ENVIRONMENT

pytestmark = pytest.mark.once
ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_python_example_of_the_readme(capsys):
    (example,) = blocks("python")
    names = {}
    exec(compile(example, "README.md", "exec"), names)
    assert len(set(names["labels"])) == 21
    assert "'cosine'" in capsys.readouterr().out


def test_commands_and_options_of_the_readme_exist():
    commands = set(re.findall(r"^gmkcf (\w+)", README, flags=re.MULTILINE))
    assert commands == set(main.commands)
    for command in commands:
        shown = CliRunner().invoke(main, [command, "-h"]).output
        for line in re.findall(rf"^gmkcf {command} .*$", README, flags=re.MULTILINE):
            for option in re.findall(r"--[\w-]+", line):
                assert option in shown


def test_files_the_readme_points_to_exist():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
    for name in re.findall(r"`((?:scripts|tests|docs|cluster_configs)/[\w./-]+)`", README):
        assert (ROOT / name).exists(), name


def test_worker_settings_are_the_ones_we_use_ourselves():
    found = yaml.safe_load((ROOT / "cluster_configs" / "workers.yaml").read_text())
    environment = found["distributed"]["nanny"]["pre-spawn-environ"]
    assert {name: str(value) for name, value in environment.items()} == WORKER_ENVIRONMENT


def run_script(name, *arguments):
    return subprocess.run(
        [sys.executable, "-W", "error", ROOT / "scripts" / name, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "more", [("--max-iter", 3), ("--method", "sc", "--kernels", "rbf_1,cosine")]
)
def test_out_of_core_script_in_small(more):
    """The real one is n = 12,000; this shows that the script and the plan's bound hold."""
    ran = run_script("out_of_core.py", "--n", 1500, "--memory", "1GiB", "--workers", 2, *more)
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
