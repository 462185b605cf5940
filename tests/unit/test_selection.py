"""`.ci/run` runs the plain command first, and the plain command keeps a test of each promise."""

import ast
import os
import shutil
import subprocess

import pytest
from helpers.paths import ROOT

pytestmark = pytest.mark.once
BEYOND_DEV = {
    "asyncssh", "dask_jobqueue", "dask_kubernetes", "dask_mpi", "flask", "jsonschema", "moto",
    "mpi4py", "playwright", "s3fs", "upath",
}  # fmt: skip
ONLY_IN_ALL = {
    "tests/clusters/test_hosts.py": "waits for timeouts of connections between hosts",
    "tests/clusters/test_jobqueue.py": "needs dask-jobqueue, whose jobs start slowly",
    "tests/clusters/test_slurm.py": "needs the daemons of Slurm",
    "tests/faults/test_all_workers_lost.py": "waits for a stall, as test_workers_stopped.py does",
    "tests/faults/test_scheduler_killed.py": "waits as test_all_workers_lost.py does, only longer",
    "tests/faults/test_spill_disk_full.py": "needs workers of its own that fill a disk and pause",
}
"""Files of tests/faults and tests/clusters without a test in the plain run, and why."""

# .ci/run, with what it calls replaced


FAKE = """#!/bin/sh
{
    echo "scripts/test $*"
    echo "here: $PWD"
    echo "left: $(ls -d .venv .git 2>/dev/null | xargs)"
    echo "lent: $GMKCF_ALL$PYTHONPATH$VIRTUAL_ENV"
    echo "data: $GMKCF_DATA"
} >>"$SAID"
[ $# -gt 0 ] || exit "${PLAIN_EXIT:-0}"
"""


@pytest.fixture
def ci(tmp_path):
    """Run `.ci/run` of a checkout whose scripts/test only tells how it was called."""
    checkout = tmp_path / "checkout"
    for folder in (".ci", "scripts", ".venv/bin", ".git", "../shared/data", "../bin"):
        (checkout / folder).mkdir(parents=True)
    shutil.copy(ROOT / ".ci/run", checkout / ".ci/run")
    for program, text in ((checkout / "scripts/test", FAKE), (tmp_path / "bin/dpkg", "#!/bin/sh")):
        program.write_text(text)
        program.chmod(0o755)
    (tmp_path / "tmp").mkdir()

    def run(**variables):
        path = f"{tmp_path}/bin:{os.environ['PATH']}"
        own = {"PATH": path, "SAID": str(tmp_path / "said"), "TMPDIR": str(tmp_path / "tmp")}
        lent = {"GMKCF_ALL": "1", "PYTHONPATH": "/x", "VIRTUAL_ENV": "/y"}
        clean = {name: value for name, value in os.environ.items() if name != "GMKCF_DATA"}
        done = subprocess.run(
            [checkout / ".ci/run"],
            env={**clean, **lent, **own, **variables},
            cwd=tmp_path,
            check=False,
        )
        said = (tmp_path / "said").read_text().splitlines()
        return done.returncode, [said[first : first + 5] for first in range(0, len(said), 5)]

    return run


def test_ci_runs_the_command_of_the_readme_in_a_new_environment_first(ci, tmp_path):
    code, (plain, everything) = ci()
    assert code == 0
    called, here, *rest = plain
    assert called == "scripts/test "
    assert here.startswith(f"here: {tmp_path}/tmp/")
    assert rest == ["left: ", "lent: ", f"data: {tmp_path}/shared/data"]
    assert everything[:2] == ["scripts/test --all", f"here: {tmp_path}/checkout"]
    assert not list((tmp_path / "tmp").iterdir()), "the copy is left"


def test_ci_fails_where_the_command_of_the_readme_fails(ci, tmp_path):
    code, calls = ci(PLAIN_EXIT="3")
    assert code == 3
    assert [call[0] for call in calls] == ["scripts/test "]
    assert not list((tmp_path / "tmp").iterdir()), "the copy is left"


# the tests themselves, by their source


def marks_of(nodes):
    """Names of pytest.mark.NAME in some expressions, arguments of decorators left out."""
    found = set()
    for node in nodes:
        node = node.func if isinstance(node, ast.Call) else node
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "pytest.mark":
            found.add(node.attr)
        elif isinstance(node, ast.List | ast.Tuple):
            found |= marks_of(node.elts)
    return found


def plain_tests(path):
    """Tests of a file that the plain run takes, or of which it takes some case."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    ours = [
        node.value
        for node in body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
    ]
    if marks_of(ours) & {"slow", "cluster"}:
        return []
    return [
        node.name
        for node in body
        if isinstance(node, ast.FunctionDef)
        and node.name.startswith("test_")
        and not marks_of(node.decorator_list) & {"slow", "cluster"}
    ]


FILES = sorted(
    path.relative_to(ROOT).as_posix()
    for folder in ("faults", "clusters")
    for path in (ROOT / "tests" / folder).glob("test_*.py")
)


@pytest.mark.parametrize("name", FILES)
def test_every_file_of_faults_and_clusters_is_in_the_plain_run(name):
    assert bool(plain_tests(ROOT / name)) != (name in ONLY_IN_ALL)


def test_the_list_of_exceptions_names_files():
    assert set(ONLY_IN_ALL) <= set(FILES)


def test_modules_are_collected_without_what_only_all_installs():
    """Imports inside functions come after tests/helpers/needs.py has looked."""
    wrong = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            wrong += [f"{path.name}: {name}" for name in names if name.split(".")[0] in BEYOND_DEV]
    assert wrong == []
