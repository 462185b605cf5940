"""--layout: which commands have it, what stands for it, and what a store says to another one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import click
import numpy as np
import pytest
from helpers.commands import gmkcf, refused
from scipy.io import savemat

from gmkcf_dask.cli import main
from gmkcf_dask.cli.options import with_defaults
from gmkcf_dask.cli.submit import parse_inner
from gmkcf_dask.cluster import ClusterConfig, LazyCluster
from gmkcf_dask.errors import InputError, PlanRefused
from gmkcf_dask.kernels.specs import Layout, resolve_kernels
from gmkcf_dask.pipeline import InputOptions, reading
from gmkcf_dask.pipeline.benchmark import runs
from gmkcf_dask.store.manifest import Manifest
from gmkcf_dask.store.request import KernelRequest

K, N = 3, 30
SEVERAL = ("--kernels", "rbf_1,cosine")
COMMANDS: dict[str, tuple[object, ...]] = {
    "plan": ("plan", "x.npy", "-k", K),
    "build": ("build", "x.npy", "new.zarr"),
    "run": ("run", "x.npy", "-k", K, "--out", "run"),
    "suggest-k": ("suggest-k", "x.npy", "--ks", "2-3"),
    "compare": ("compare", "x.npy", "-k", K),
}
BENCHMARK = ("benchmark", "--data", ".", "--datasets", "mine", "--methods", "kcf", "--out", "out")


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """The working folder, with an input and a corpus of the benchmark."""
    X = np.random.default_rng(0).random((N, 4)) + 4 * np.eye(4)[np.arange(N) % K]
    np.save(tmp_path / "x.npy", X)
    savemat(tmp_path / "mine.mat", {"X": X, "y": np.arange(N) % K})
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def asked(monkeypatch) -> list[str]:
    """Layouts of the requests of commands, which go no further."""
    layouts: list[str] = []

    def requested(*args: Any, **options: Any) -> KernelRequest:
        layouts.append(KernelRequest(*args, **options).layout)
        raise InputError("this is far enough")

    monkeypatch.setattr(reading, "KernelRequest", requested)
    monkeypatch.setattr(runs, "KernelRequest", requested)
    return layouts


def test_every_command_that_makes_kernels_has_it():
    having = {name for name, command in main.commands.items() if "--layout" in _options_of(command)}
    making = {
        name for name, command in main.commands.items() if "--precision" in _options_of(command)
    }
    assert having == making | {"benchmark"}
    assert making == set(COMMANDS)
    for name in having:
        choices = _options_of(main.commands[name])["--layout"].type
        assert isinstance(choices, click.Choice)
        assert tuple(choices.choices) == get_args(Layout)


def _options_of(command: click.Command) -> dict[str, click.Parameter]:
    return {name: option for option in command.params for name in option.opts}


@pytest.mark.parametrize("command", COMMANDS)
def test_it_reaches_the_request(command, folder, asked):
    own = () if command == "compare" else SEVERAL
    gmkcf(*COMMANDS[command], *own)
    for layout in get_args(Layout):
        gmkcf(*COMMANDS[command], *own, "--layout", layout)
    assert asked == ["auto", *get_args(Layout)]


@pytest.mark.parametrize("command", ["plan", "build", "run", "suggest-k"])
def test_paper_is_each_unless_it_is_given(command, folder, asked):
    gmkcf(*COMMANDS[command], "--paper")
    gmkcf(*COMMANDS[command], "--paper", *SEVERAL)
    gmkcf(*COMMANDS[command], "--paper", "--layout", "gram")
    assert asked == ["each", "each", "gram"]


def test_the_benchmark_is_each_unless_it_is_given(folder, asked):
    gmkcf(*BENCHMARK)
    assert json.loads((folder / "out" / "benchmark.json").read_text())["layout"] == "each"
    assert "layout each, not gram" in refused(*BENCHMARK, "--layout", "gram")
    gmkcf(*BENCHMARK[:-1], "other", "--layout", "gram")
    assert asked == ["each", "gram"]


def test_a_benchmark_of_an_earlier_version_is_each(folder, asked):
    gmkcf(*BENCHMARK)
    settings = folder / "out" / "benchmark.json"
    content = json.loads(settings.read_text())
    del content["layout"]
    settings.write_text(json.dumps(content))
    gmkcf(*BENCHMARK)
    assert asked == ["each", "each"]


@pytest.mark.parametrize("command", [*COMMANDS, "benchmark"])
def test_an_unknown_one_is_a_usage_error(command, folder):
    result = gmkcf(*(COMMANDS | {"benchmark": BENCHMARK})[command], "--layout", "both")
    assert result.exit_code == 2
    assert isinstance(result.exception, SystemExit)
    assert "both" in result.stderr.splitlines()[-1]


def test_a_finished_store_has_its_own(folder):
    result = gmkcf("fit", "s.zarr", "-k", K, "--out", "run", "--layout", "each")
    assert result.exit_code == 2
    assert "--layout" in result.stderr


@pytest.mark.parametrize(
    ("words", "layout"),
    [((), "auto"), (("--paper",), "each"), (("--paper", "--layout", "gram"), "gram")],
    ids=str,
)
def test_a_job_has_it(words, layout, folder):
    command = ("run", "x.npy", "-k", str(K), "--out", "run", *words)
    with click.Context(main):
        inner = parse_inner(command)
    assert inner.words == command
    assert with_defaults(inner.params)["layout"] == layout


# stores


@pytest.mark.parametrize(("made", "other"), [("each", "gram"), ("gram", "each")])
def test_a_store_refuses_the_other_one(made, other, folder):
    build = ("build", "x.npy", "s.zarr", *SEVERAL)
    run = ("run", "x.npy", "-k", K, "--store", "s.zarr", "--max-iter", 2, *SEVERAL)
    assert gmkcf(*build, "--layout", made).exit_code == 0
    assert (Manifest.read(folder / "s.zarr").gram is None) is (made == "each")
    before = (folder / "s.zarr" / "manifest.json").read_bytes()
    for command in (build, (*run, "--out", "other")):
        sentence = refused(*command, "--layout", other)
        assert f"layout (store: {made}, requested: {other})" in sentence
    for again in ((), ("--layout", "auto"), ("--layout", made)):
        assert gmkcf(*build, *again).exit_code == 0
        assert gmkcf(*run, "--out", "run", "--overwrite", *again).exit_code == 0
    assert (folder / "s.zarr" / "manifest.json").read_bytes() == before


@pytest.mark.parametrize("layout", ["each", "gram"])
def test_building_again_with_paper_takes_what_the_store_has(layout, folder):
    build = ("build", "x.npy", "s.zarr", "--paper")
    assert gmkcf(*build, "--layout", layout).exit_code == 0
    assert gmkcf(*build).exit_code == 0
    found = json.loads(gmkcf("info", "s.zarr", "--json").stdout)
    assert found["layout"] == layout


# what is refused before INPUT is read


@pytest.mark.parametrize(
    ("kernels", "changes", "entry"),
    [
        ("rbf_1,cosine", {"layout": "each"}, 8),
        ("rbf_1,cosine", {"layout": "auto"}, 4),
        ("rbf_1,cosine", {"layout": "gram", "precision": "float64"}, 8),
        ("rbf_1,cosine", {"layout": "auto", "merge_duplicates": 0.1}, 8),
        ("rbf_1", {"layout": "auto"}, 4),
        ("rbf_1", {"layout": "gram"}, 4),
    ],
)
def test_samples_are_counted_before_they_are_read(kernels, changes, entry, folder):
    given = InputOptions("x.npy", resolve_kernels(kernels), reading.TextOptions(), **changes)
    least = N * (N + 1) // 2 * entry
    with pytest.raises(PlanRefused, match=f"{N} samples"):
        reading.read_request(given, None, disk_free=least - 1)
    reading.read_request(given, LazyCluster(ClusterConfig("threads")), disk_free=least)
