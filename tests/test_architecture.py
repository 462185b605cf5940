"""The arrows between the rooms, read from the imports."""

import ast
from pathlib import Path

import pytest

import gmkcf_dask

pytestmark = pytest.mark.once
PACKAGE = Path(gmkcf_dask.__file__).parent

# left to right: a room may import from rooms before it, never from one after it
ORDER = [
    ["redact", "errors", "blas", "notebook", "tiling"],
    [
        "files",
        "pace",
        "events",
        "graph",
        "locations",
        "plan",
        "resident",
        "security",
        "traffic",
        "versions",
    ],
    ["cluster_tls"],
    ["cluster_values"],
    ["dask_values"],
    ["cluster_config"],
    ["corpus"],
    ["kernels"],
    ["engine", "cluster", "adaptive"],
    ["kinds", "doctor"],
    ["methods"],
    ["results"],
    ["prediction", "newcomers", "workflow", "submit", "submit_config", "submit_kubernetes"],
    ["choosing"],
    ["benchmark"],
    ["stages"],
    ["progress", "listeners", "plots"],
    ["estimators"],
    ["cli"],
]
LEVEL = {room: level for level, rooms in enumerate(ORDER) for room in rooms}
ONLY_HERE = {
    "zarr": {"kernels/arrays.py", "kernels/store.py"},
    "dask": {
        "graph.py",
        "cluster.py",
        "cluster_config.py",
        "cluster_tls.py",
        "cluster_values.py",
        "kinds/jobqueue.py",
        "kinds/mpi.py",
        "kinds/opening.py",
        "submit_config.py",
        "cli/options.py",
        "kernels/store.py",
        "kernels/tasks.py",
        "corpus/passes.py",
        "engine/cross.py",
        "engine/tiled.py",
    },
    "distributed": {
        "graph.py",
        "cluster.py",
        "cluster_config.py",
        "cluster_tls.py",
        "kinds/jobqueue.py",
        "kinds/ssh.py",
        "versions.py",
        "estimators/base.py",
    },
    "click": {
        "cli/asked.py",
        "cli/options.py",
        "cli/choose.py",
        "cli/commands.py",
        "cli/doctor.py",
        "cli/explain.py",
        "cli/group.py",
        "cli/predict.py",
        "cli/reading.py",
        "cli/report.py",
        "cli/stores.py",
        "cli/submit.py",
        "cli/voice.py",
        "cli/watching.py",
    },
}


def modules():
    return sorted(path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py")


def imported(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} uses a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def room_of(path):
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def test_no_arrow_points_back():
    wrong = []
    for path in modules():
        for name in imported(path):
            parts = name.split(".")
            if parts[0] != "gmkcf_dask" or len(parts) < 2 or parts[1] not in LEVEL:
                continue
            if LEVEL[parts[1]] > LEVEL[room_of(path)]:
                wrong.append(f"{path.relative_to(PACKAGE)} imports {name}")
    assert wrong == []


def test_every_module_has_a_room():
    assert {room_of(path) for path in modules()} <= set(LEVEL)


def test_libraries_stay_in_their_rooms():
    wrong = []
    for path in modules():
        here = path.relative_to(PACKAGE).as_posix()
        for name in imported(path):
            library = name.split(".")[0]
            if here not in ONLY_HERE.get(library, {here}):
                wrong.append(f"{here} imports {library}")
    assert wrong == []


def test_plan_needs_only_the_standard_library():
    libraries = {"__future__", "collections", "dataclasses", "html", "typing"}
    ours = ("gmkcf_dask.errors", "gmkcf_dask.notebook", "gmkcf_dask.tiling", "gmkcf_dask.traffic")
    for path in (PACKAGE / name for name in ("plan.py", "notebook.py", "tiling.py", "traffic.py")):
        for name in imported(path):
            assert name.split(".")[0] in libraries or name.startswith(ours)


def test_files_stay_readable():
    long = {p.name: n for p in modules() if (n := len(p.read_text().splitlines())) > 420}
    assert long == {}
