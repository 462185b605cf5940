"""The `gmkcf` command does the whole job: from a file to clusters on disk."""

from __future__ import annotations

import csv
import json
import re
import shutil
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import click
import numpy as np
import pytest
import scipy.io
from helpers.commands import (
    CLASSES,
    KERNELS,
    QUICK,
    QUICK_FIT,
    TOPICS,
    K,
    N,
    Run,
    done,
    gmkcf,
    refused,
    same_grouping,
    texts,
)
from numpy.testing import assert_array_equal
from scipy import sparse
from sklearn.datasets import dump_svmlight_file

from gmkcf_dask import KernelStore, TextOptions, __version__, scores
from gmkcf_dask.cli import main
from gmkcf_dask.methods.gmkcf import Gmkcf
from gmkcf_dask.store.manifest import sealed

COMMANDS = ("plan", "build", "fit", "run", "score", "benchmark", "compare")
IDS = tuple(f"sample {i}, of many" for i in range(N))


def features() -> np.ndarray:
    """Three well separated groups without negative entries."""
    noise = np.random.default_rng(0).uniform(0, 0.8, (N, 5))
    noise[np.arange(N), CLASSES] += 4
    return noise


def manifest(store: Path) -> dict:
    return json.loads((store / "manifest.json").read_text())


@pytest.fixture(scope="module")
def corpus_file(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "three groups.npz"
    np.savez(path, X=features(), y=CLASSES, ids=np.array(IDS))
    return path


@pytest.fixture(scope="module")
def store(tmp_path_factory, corpus_file) -> Path:
    """A finished store of ten tiles; tests only read it."""
    path = tmp_path_factory.mktemp("stores") / "kernels.zarr"
    done("build", corpus_file, path, *QUICK, "--block", 12)
    return path


@pytest.fixture(scope="module")
def a_run(tmp_path_factory, corpus_file) -> Run:
    """A finished run with its store inside; tests only read it."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    done("run", corpus_file, *QUICK_FIT, "--out", folder, *QUICK, "--seed", 5)
    return Run(folder)


# --- help -------------------------------------------------------------------------------------


def options_of(command: str) -> list[click.Option]:
    return [p for p in main.commands[command].params if isinstance(p, click.Option)]


def help_entries(command: str) -> dict[str, str]:
    """The text of every option in the help of a command, by its first name."""
    text = done(command, "-h").stdout
    _, _, listed = text.partition("Options:\n")
    entries = re.split(r"\n(?=  -)", "\n" + listed)[1:]
    return {re.split(r"[ ,]", entry.strip())[0]: " ".join(entry.split()) for entry in entries}


def test_all_commands_are_there():
    assert set(COMMANDS) <= set(main.commands)
    text = done("-h").stdout
    assert all(re.search(rf"^  {command} ", text, re.MULTILINE) for command in COMMANDS)


def test_version():
    assert __version__ in done("--version").stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_help_names_every_option_and_explains_it(command):
    entries = help_entries(command)
    for option in options_of(command):
        entry = entries[option.opts[0]]
        assert all(name in entry for name in option.opts + option.secondary_opts)
        assert option.help
        assert " ".join(option.help.split()) in entry


@pytest.mark.parametrize("command", COMMANDS)
def test_help_names_the_default_of_every_option(command):
    entries = help_entries(command)
    plain_flags = {o.opts[0] for o in options_of(command) if o.is_flag and not o.secondary_opts}
    silent = [
        name
        for name, entry in entries.items()
        if "default:" not in entry and "required" not in entry and name not in plain_flags | {"-h"}
    ]
    assert silent == []


@pytest.mark.parametrize("command", ["plan", "build", "fit", "run"])
def test_work_can_be_sent_anywhere(command):
    assert {"--cluster", "--workers", "--memory"} <= set(help_entries(command))


def test_defaults():
    defaults = {option.name: option.default for option in options_of("run")}
    assert (defaults["seed"], defaults["method"]) == (0, "gmkcf")
    expected = {"n_init": 1, "inner_iter": 1, "v_steps": 1, "tol": 1e-5, "max_iter": 500}
    assert expected.items() <= asdict(Gmkcf(2)).items()
    kernels = ("normalization", "scaling", "precision")
    assert [defaults[name] for name in kernels] == ["unit", "minmax", "float32"]
    entries = help_entries("run")
    for name, default in {
        "--kernels": "local",
        "--layout": "auto",
        "--init": "spectral",
        "--solver": "accelerated",
        "--assign": "spherical",
        "--text-preset": "auto",
    }.items():
        assert f"[default: {default}" in entries[name]
    assert TextOptions().preset == "auto"


def test_paper_is_its_setting_and_options_win(corpus_file, tmp_path):
    run = ("run", corpus_file, "-k", K, "--max-iter", 5)
    default, paper, mixed = (Run(tmp_path / name) for name in ("default", "paper", "mixed"))
    done(*run, "--out", default.folder)
    done(*run, "--out", paper.folder, "--paper")
    done(*run, "--out", mixed.folder, "--paper", "--kernels", "rbf_1", "--init", "spectral")
    names = ("init", "solver", "assign")
    usual, old, both = (
        [run.result["parameters"].get(name, "kmeans") for name in names]
        for run in (default, paper, mixed)
    )
    assert usual == ["spectral", "accelerated", "spherical"]
    assert old == ["random", "paper", "kmeans"]
    assert both == ["spectral", "paper", "kmeans"]
    kernels = [list(run.result["kernel_weights"]) for run in (default, paper, mixed)]
    assert kernels[0] == ["heat_s", "heat_m", "heat_l"]
    assert len(kernels[1]) == 12
    assert kernels[2] == ["rbf_1"]


# --- plan -------------------------------------------------------------------------------------


def test_plan_shows_the_costs_and_writes_nothing(corpus_file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = done("plan", corpus_file, "-k", K, *QUICK).stdout
    words = (f"samples {N}", "kernels 3", "clusters 3", "disk", "workers", "per iteration", "peak")
    assert all(word in text for word in words)
    assert list(tmp_path.iterdir()) == []


def test_plan_takes_what_build_takes(corpus_file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = ("--block", 16, "--precision", "compact", "--memory", "2GiB")
    text = done("plan", corpus_file, "-k", K, *QUICK, *options).stdout
    assert "6 of 16×16" in text
    assert "compact" in text
    assert "2.0 GiB" in text


def test_plan_is_not_about_a_store_that_happens_to_lie_around(corpus_file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    expected = done("plan", corpus_file, "-k", K, *QUICK).stdout.splitlines()[:2]
    np.save("other.npy", features()[:20])
    done("build", "other.npy", "store.zarr", *QUICK)
    assert done("plan", corpus_file, "-k", K, *QUICK).stdout.splitlines()[:2] == expected


def test_threads_are_the_default_for_few_samples(corpus_file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "threads" in done("plan", corpus_file, "-k", K).stdout.splitlines()[-1]


# --- build ------------------------------------------------------------------------------------


def test_build_makes_a_complete_store(store, corpus_file):
    opened = KernelStore.open(store)
    assert opened.manifest.complete
    assert opened.names == KERNELS
    assert opened.ids == IDS
    assert opened.strings("labels") == tuple(map(str, CLASSES))
    assert opened.tiling.n_tiles == 10
    assert_array_equal(opened.features().rows(slice(0, N)), features())


def test_build_says_what_it_made_and_what_comes_next(corpus_file, tmp_path):
    text = done("build", corpus_file, tmp_path / "s.zarr", *QUICK).stdout
    assert "3 kernels of 48 samples" in text
    assert f"gmkcf fit {tmp_path / 's.zarr'}" in text


def test_building_again_uses_what_is_there(store, corpus_file):
    before = manifest(store)
    done("build", corpus_file, store, *QUICK, "--block", 12)
    assert manifest(store) == before


@pytest.mark.parametrize(
    "options",
    [
        ("--precision", "float64"),
        ("--precision", "compact"),
        ("--normalization", "degree"),
        ("--normalization", "none", "--scaling", "none"),
    ],
    ids=" ".join,
)
def test_kernel_options_reach_the_store(corpus_file, tmp_path, options):
    done("build", corpus_file, tmp_path / "s.zarr", *QUICK, *options)
    found = manifest(tmp_path / "s.zarr")
    for name, value in zip(options[::2], options[1::2], strict=True):
        key = name.removeprefix("--")
        held = [found[key]] if key in found else [kernel[key] for kernel in found["kernels"]]
        assert set(held) == {value}


def test_default_kernels_follow_the_samples(corpus_file, tmp_path):
    done("build", corpus_file, tmp_path / "dense.zarr")
    assert KernelStore.open(tmp_path / "dense.zarr").kernel_names == ("heat_s", "heat_m", "heat_l")
    done("build", sparse_npz(tmp_path), tmp_path / "sparse.zarr")
    local = ("local_0", "local_1", "local_2", "local_4")
    assert KernelStore.open(tmp_path / "sparse.zarr").kernel_names == local


def test_twelve_kernels_of_the_paper(corpus_file, tmp_path):
    done("build", corpus_file, tmp_path / "s.zarr", "--paper")
    assert len(KernelStore.open(tmp_path / "s.zarr").names) == 12


def arrays_of(store: Path) -> list[Path]:
    """The folders of all arrays that have tiles."""
    return [*(store / "kernels").glob("*/"), *(store / "gram").glob("*/")]


def interrupt(store: Path, *, resolved: bool) -> None:
    """Leave a store as a build leaves it that was stopped half way, or before its first tile."""
    found = manifest(store)
    keep = found["tiles_done"][: len(found["tiles_done"]) // 2] if resolved else []
    lost = set(found["tiles_done"]) - set(keep)
    blocks = -(-found["n_samples"] // found["block_size"])
    pairs = [(i, j) for i in range(blocks) for j in range(i, blocks)]
    for folder in arrays_of(store):
        for t in lost:
            i, j = pairs[t]
            (folder / "c" / str(i) / str(j)).unlink()
    found |= {"complete": False, "tiles_done": keep, "resolved": resolved}
    if not resolved:
        found["stored_minima"] = None
        for kernel in found["kernels"]:
            kernel |= dict.fromkeys(("sigma", "d2_max", "minimum", "maximum"))
        if "gram" in found:
            found["gram"] |= {"d_max": 0.0, "tabulated": False}
    (store / "manifest.json").write_bytes(sealed(found))


@pytest.mark.parametrize("resolved", [True, False], ids=["half of the tiles", "no statistics yet"])
@pytest.mark.parametrize("normalization", ["unit", "degree"])
@pytest.mark.parametrize("layout", ["gram", "each"])
def test_an_interrupted_build_goes_on(corpus_file, tmp_path, resolved, normalization, layout):
    options = (*QUICK, "--block", 12, "--normalization", normalization, "--layout", layout)
    clean, stopped = tmp_path / "clean.zarr", tmp_path / "stopped.zarr"
    done("build", corpus_file, clean, *options)
    shutil.copytree(clean, stopped)
    interrupt(stopped, resolved=resolved)
    assert "incomplete" in refused("fit", stopped, *QUICK_FIT, "--out", tmp_path / "run")
    done("build", corpus_file, stopped, *options)
    assert manifest(stopped) == manifest(clean)
    first, second = KernelStore.open(clean), KernelStore.open(stopped)
    for array in set(first.reader.stored):
        for t in range(first.tiling.n_tiles):
            assert_array_equal(first.reader.raw(array, t), second.reader.raw(array, t), str(array))
    for kernel in range(len(KERNELS)):
        assert_array_equal(first.diagonal(kernel), second.diagonal(kernel))


def test_only_the_missing_tiles_are_written_again(corpus_file, store, tmp_path):
    stopped = tmp_path / "stopped.zarr"
    shutil.copytree(store, stopped)
    interrupt(stopped, resolved=True)
    arrays = arrays_of(stopped)
    kept = {p: p.stat().st_mtime_ns for array in arrays for p in array.glob("c/*/*")}
    assert len(kept) == len(arrays) * 5
    done("build", corpus_file, stopped, *QUICK, "--block", 12)
    assert {path: path.stat().st_mtime_ns for path in kept} == kept


def test_run_finishes_an_interrupted_store(corpus_file, store, tmp_path):
    stopped = tmp_path / "stopped.zarr"
    shutil.copytree(store, stopped)
    interrupt(stopped, resolved=True)
    done("run", corpus_file, *QUICK_FIT, "--out", tmp_path / "run", "--store", stopped, *QUICK)
    assert manifest(stopped) == manifest(store)


# --- run --------------------------------------------------------------------------------------


def test_labels_carry_the_ids(a_run):
    header, *rows = a_run.rows
    assert header == ["id", "label"]
    assert [name for name, _ in rows] == list(IDS)
    assert set(a_run.labels) == set(range(K))
    assert same_grouping(a_run.labels)


def test_result_tells_how_it_came_about(a_run):
    result = a_run.result
    asked = {"n_clusters": K, "n_init": 1, "inner_iter": 1, "v_steps": 1, "max_iter": 40}
    assert {name: result["parameters"][name] for name in asked} == asked
    assert result["parameters"]["tol"] == 1e-3
    assert result["seed"] == 5
    assert result["n_samples"] == N
    assert isinstance(result["converged"], bool)
    assert result["n_iter"] >= 1
    assert set(result["seconds"]) >= {"read", "build", "fit"}
    assert all(seconds >= 0 for seconds in result["seconds"].values())
    assert {"gmkcf-dask", "numpy", "scipy", "dask", "zarr", "python"} <= set(result["versions"])
    assert result["versions"]["gmkcf-dask"] == __version__


def test_result_counts_the_bytes(a_run):
    on_disk = sum(f.stat().st_size for f in (a_run.folder / "store.zarr").rglob("*") if f.is_file())
    assert a_run.result["bytes"]["stored"] == on_disk


def test_result_holds_weights_by_name_and_the_whole_history(a_run):
    result = a_run.result
    assert tuple(result["kernel_weights"]) == KERNELS
    assert sum(result["kernel_weights"].values()) == pytest.approx(1)
    history = result["objective_history"]
    assert len(history) == result["n_iter"] + 1
    assert all(later <= earlier * (1 + 1e-6) for earlier, later in pairwise(history))


def test_factors_fit_the_result(a_run):
    factors = a_run.factors
    assert {name: array.shape for name, array in factors.items()} == {
        "U": (N, K),
        "V": (N, K),
        "UtKU": (K, K),
        "centres": (K, K),
        "diagonal": (N,),
        "w": (len(KERNELS),),
    }
    np.testing.assert_allclose(np.diagonal(factors["UtKU"]), 1.0, rtol=1e-6)
    assert_array_equal(factors["w"], list(a_run.result["kernel_weights"].values()))
    assert all(np.isfinite(array).all() and (array >= 0).all() for array in factors.values())


def test_the_kernels_options_are_among_the_parameters(corpus_file, tmp_path):
    options = ("--normalization", "degree", "--scaling", "none", "--precision", "float64")
    done("run", corpus_file, *QUICK_FIT, "--out", tmp_path / "run", *QUICK, *options)
    written = (tmp_path / "run" / "result.json").read_text()
    assert all(f'"{word}"' in written for word in ("degree", "float64"))


def test_the_folder_holds_nothing_else(a_run):
    results = {"labels.csv", "result.json", "factors.npz", "insight.json", "report.html"}
    expected = {*results, "store.zarr"}
    assert {path.name for path in a_run.folder.iterdir()} == expected


def test_run_prints_plan_sizes_weights_and_where_to_look(corpus_file, tmp_path):
    text = done("run", corpus_file, *QUICK_FIT, "--out", tmp_path / "run", *QUICK).stdout
    words = ("disk: at most", "iterations", "clusters", "kernel weights", *KERNELS, "labels.csv")
    assert all(word in text for word in words)


def test_nothing_but_plain_lines_when_piped(corpus_file, tmp_path):
    result = done("run", corpus_file, *QUICK_FIT, "--out", tmp_path / "run", *QUICK)
    for text in (result.stdout, result.stderr):
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\x80-\x9f]", text)


def test_a_run_that_stops_early_says_so_once(corpus_file, tmp_path):
    result = done("run", corpus_file, "-k", K, "--out", tmp_path / "r", *QUICK, "--max-iter", 3)
    assert re.fullmatch(r"note: .*max_iter=3.*\n", result.stderr)
    found = Run(tmp_path / "r").result
    assert found["n_iter"] == 3
    assert found["converged"] is False
    assert any("max_iter=3" in note for note in found["warnings"])


def test_same_seed_same_everything(a_run, corpus_file, tmp_path):
    again = Run(tmp_path / "again")
    done("run", corpus_file, *QUICK_FIT, "--out", again.folder, *QUICK, "--seed", 5)
    assert again.contents["labels.csv"] == a_run.contents["labels.csv"]
    assert again.result["objective_history"] == a_run.result["objective_history"]
    assert_array_equal(again.factors["V"], a_run.factors["V"])


@pytest.mark.parametrize(("init", "n_starts"), [("random", 2), ("spectral", 1)])
def test_another_seed_starts_elsewhere_if_starts_are_random(store, tmp_path, init, n_starts):
    starts = set()
    for seed in (5, 6):
        run = Run(tmp_path / str(seed))
        done("fit", store, *QUICK_FIT, "--out", run.folder, "--seed", seed, "--init", init)
        assert run.result["seed"] == seed
        starts.add(run.result["objective_history"][0])
    assert len(starts) == n_starts


def test_a_store_that_fits_is_used_again(a_run, corpus_file, store, tmp_path):
    before = manifest(store)
    for folder in ("first", "second"):
        options = ("--store", store, *QUICK)
        done("run", corpus_file, *QUICK_FIT, "--out", tmp_path / folder, *options)
        assert manifest(store) == before
        assert not (tmp_path / folder / "store.zarr").exists()
    assert Run(tmp_path / "first").result["store"] == str(store.resolve())


def test_store_may_be_elsewhere(corpus_file, tmp_path):
    elsewhere = tmp_path / "deep" / "down.zarr"
    done("run", corpus_file, *QUICK_FIT, "--out", tmp_path / "r", "--store", elsewhere, *QUICK)
    assert KernelStore.open(elsewhere).names == KERNELS


def test_a_second_run_needs_leave_to_overwrite(corpus_file, tmp_path):
    run = Run(tmp_path / "run")
    arguments = ("run", corpus_file, *QUICK_FIT, "--out", run.folder, *QUICK)
    done(*arguments)
    before, store_id = run.contents, manifest(run.folder / "store.zarr")["store_id"]
    assert "--overwrite" in refused(*arguments, "--seed", 1)
    assert run.contents == before
    done(*arguments, "--seed", 1, "--overwrite")
    assert run.result["seed"] == 1
    assert manifest(run.folder / "store.zarr")["store_id"] == store_id


def test_other_files_in_the_folder_are_left_alone(corpus_file, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    done("run", corpus_file, *QUICK_FIT, "--out", tmp_path, *QUICK)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_restarts_are_all_recorded_and_the_best_is_kept(corpus_file, store, tmp_path):
    run = Run(tmp_path / "run")
    paper = ("--init", "random", "--solver", "paper")
    done("fit", store, "-k", K, "--max-iter", 6, "--out", run.folder, "--n-init", 3, *paper)
    objectives = [one["objective"] for one in run.result["runs"]]
    assert len(objectives) == 3
    assert len(set(objectives)) > 1
    assert run.result["objective_history"][-1] == min(objectives)
    assert run.result["parameters"]["n_init"] == 3
    assert {one["n_iter"] for one in run.result["runs"]} == {6}


def test_solver_options_change_the_run(store, tmp_path):
    histories = set()
    for name, options in {
        "plain": (),
        "inner": ("--inner-iter", 2),
        "v": ("--v-steps", 3),
    }.items():
        # the accelerated solver takes these as what it does at least
        done("fit", store, *QUICK_FIT, "--out", tmp_path / name, "--solver", "paper", *options)
        histories.add(tuple(Run(tmp_path / name).result["objective_history"]))
    assert len(histories) == 3


def test_polish_touches_only_the_last_step(store, tmp_path):
    done("fit", store, *QUICK_FIT, "--out", tmp_path / "polished")
    done("fit", store, *QUICK_FIT, "--out", tmp_path / "plain", "--no-polish")
    polished, plain = Run(tmp_path / "polished"), Run(tmp_path / "plain")
    assert polished.result["objective_history"] == plain.result["objective_history"]
    assert not np.array_equal(polished.factors["V"], plain.factors["V"])
    assert plain.result["parameters"]["polish"] is False


def test_build_then_fit_is_run(corpus_file, store, a_run, tmp_path):
    fitted, ran = Run(tmp_path / "fitted"), Run(tmp_path / "ran")
    options = (*QUICK_FIT, "--seed", 5)
    done("fit", store, *options, "--out", fitted.folder, "--cluster", "threads")
    done("run", corpus_file, *options, "--out", ran.folder, *QUICK, "--block", 12)
    assert fitted.contents["labels.csv"] == ran.contents["labels.csv"]
    assert fitted.result["objective_history"] == ran.result["objective_history"]
    assert fitted.result["kernel_weights"] == ran.result["kernel_weights"]
    assert all(np.array_equal(fitted.factors[name], ran.factors[name]) for name in "UVw")
    assert fitted.result["seconds"].keys() >= {"fit"}


def test_one_cluster(corpus_file, tmp_path):
    done("run", corpus_file, "-k", 1, "--out", tmp_path / "run", *QUICK, "--max-iter", 5)
    assert set(Run(tmp_path / "run").labels) == {0}


# --- every kind of input ----------------------------------------------------------------------


def sparse_npz(folder: Path) -> Path:
    sparse.save_npz(folder / "x.npz", sparse.csr_matrix(features()))
    return folder / "x.npz"


def dense_npy(folder: Path) -> Path:
    np.save(folder / "x.npy", features())
    return folder / "x.npy"


def matrix_market(folder: Path) -> Path:
    scipy.io.mmwrite(folder / "x.mtx", sparse.coo_matrix(features()))
    return folder / "x.mtx"


def svmlight(folder: Path) -> Path:
    dump_svmlight_file(features(), CLASSES, str(folder / "x.svmlight"))
    return folder / "x.svmlight"


def matlab(folder: Path) -> Path:
    scipy.io.savemat(folder / "x.mat", {"X": features(), "y": CLASSES})
    return folder / "x.mat"


def text_csv(folder: Path) -> Path:
    with (folder / "x.csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["id", "text", "label"])
        rows.writerows(zip(IDS, texts(), CLASSES, strict=True))
    return folder / "x.csv"


def text_jsonl(folder: Path) -> Path:
    documents = zip(IDS, texts(), CLASSES, strict=True)
    lines = [{"id": name, "text": text, "label": f"t{c}"} for name, text, c in documents]
    (folder / "x.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return folder / "x.jsonl"


def text_folder(folder: Path) -> Path:
    for i, (text, topic) in enumerate(zip(texts(), CLASSES, strict=True)):
        file = folder / "texts" / f"topic{topic}" / f"{i:03}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder / "texts"


MATRICES = [sparse_npz, dense_npy, matrix_market, svmlight, matlab]
TEXTS = [text_csv, text_jsonl, text_folder]


@pytest.mark.parametrize("make", MATRICES + TEXTS, ids=lambda make: make.__name__)
def test_every_kind_of_input_is_clustered(make, tmp_path):
    run = Run(tmp_path / "run")
    result = done("run", make(tmp_path), *QUICK_FIT, "--out", run.folder, *QUICK)
    ids = [name for name, _ in run.rows[1:]]
    if make in TEXTS:
        ordered = sorted(range(N), key=lambda i: (CLASSES[i], i))
        names = (
            IDS if make is not text_folder else [f"topic{CLASSES[i]}/{i:03}.txt" for i in ordered]
        )
        classes = CLASSES if make is not text_folder else CLASSES[ordered]
        assert ids == list(names)
        assert same_grouping(run.labels, classes)
        found = [set(cluster["terms"]) for cluster in run.result["clusters"]]
        assert all(any(set(topic.split()) <= terms for terms in found) for topic in TOPICS)
        assert "apple" in result.stdout
    else:
        assert ids == [str(i) for i in range(N)]
        assert same_grouping(run.labels)


def test_columns_may_be_named(tmp_path):
    with (tmp_path / "x.csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["doc", "body", "topic"])
        rows.writerows(zip(IDS, texts(), CLASSES, strict=True))
    columns = ("--text-column", "body", "--id-column", "doc", "--label-column", "topic")
    done("run", tmp_path / "x.csv", *QUICK_FIT, "--out", tmp_path / "run", *QUICK, *columns)
    assert [name for name, _ in Run(tmp_path / "run").rows[1:]] == list(IDS)
    assert "ACC    1.0000" in done("score", tmp_path / "run").stdout


def test_file_names_of_any_encoding_are_ids(tmp_path):
    folder = text_folder(tmp_path)
    strange = folder / "topic0" / b"caf\xe9.txt".decode("utf-8", "surrogateescape")
    try:
        strange.write_text(TOPICS[0])
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    done("run", folder, *QUICK_FIT, "--out", tmp_path / "run", *QUICK)
    assert len(Run(tmp_path / "run").labels) == N + 1


# --- score ------------------------------------------------------------------------------------


def scored(text: str) -> dict[str, float]:
    return {name: float(value) for name, value in map(str.split, text.splitlines())}


def write_labels(path: Path, rows: list[tuple[object, object]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("id", "label"), *rows])
    return path


def test_score_by_the_labels_of_the_corpus(a_run):
    found = scored(done("score", a_run.folder).stdout)
    assert found == {"ACC": 1.0, "NMI": 1.0, "purity": 1.0, "ARI": 1.0}


def test_score_by_a_file_in_any_order(a_run, tmp_path):
    topics = np.arange(N) % 4
    rows = [(name, f"topic {c}") for name, c in zip(IDS, topics, strict=True)]
    file = write_labels(tmp_path / "labels.csv", [*rows[::-1], ("not in the run", "x")])
    found = scored(done("score", a_run.folder, "--labels", file).stdout)
    expected = scores(topics, a_run.labels)
    assert found == {name: pytest.approx(value, abs=1e-4) for name, value in expected.items()}


def test_score_of_labels_saved_by_a_spreadsheet(a_run, tmp_path):
    file = write_labels(tmp_path / "labels.csv", list(zip(IDS, CLASSES, strict=True)))
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert scored(done("score", a_run.folder, "--labels", file).stdout)["ACC"] == 1.0


def test_score_names_an_id_that_is_missing(a_run, tmp_path):
    rows = list(zip(IDS, CLASSES, strict=True))
    sentence = refused(
        "score", a_run.folder, "--labels", write_labels(tmp_path / "labels.csv", rows[:-2])
    )
    assert "2 of 48" in sentence
    assert IDS[-2] in sentence


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("name,topic\na,b\n", "id,label"),
        ("", "id,label"),
        ("id,label\na,1\na,2\n", "twice"),
        ("id,label\na\n", "line 2"),
        ("id,label\n\xff,1\n", "cannot read"),
        (None, "cannot read"),
    ],
)
def test_unusable_label_files(a_run, tmp_path, content, words):
    if content is not None:
        (tmp_path / "labels.csv").write_text(content, encoding="latin-1")
    assert words in refused("score", a_run.folder, "--labels", tmp_path / "labels.csv")


def test_score_without_any_labels(tmp_path):
    done("run", dense_npy(tmp_path), *QUICK_FIT, "--out", tmp_path / "run", *QUICK)
    assert "--labels" in refused("score", tmp_path / "run")


def test_score_wants_a_finished_run(tmp_path):
    assert "result.json" in refused("score", tmp_path)
    assert "result.json" in refused("score", tmp_path / "nowhere")
    (tmp_path / "file").touch()
    assert "file" in refused("score", tmp_path / "file")


@pytest.mark.parametrize("content", ["{", "[]", "{}", "\udcff"])
def test_score_of_a_damaged_result(a_run, tmp_path, content):
    shutil.copytree(a_run.folder, tmp_path / "run")
    (tmp_path / "run" / "result.json").write_text(content, errors="surrogateescape")
    assert "result.json" in refused("score", tmp_path / "run", code=4)


# --- exit codes -------------------------------------------------------------------------------


def test_exit_codes(corpus_file, tmp_path):
    arguments = ("run", corpus_file, *QUICK, "--out", tmp_path / "run")
    assert gmkcf(*arguments, *QUICK_FIT).exit_code == 0
    assert gmkcf(*arguments, *QUICK_FIT).exit_code == 2
    assert gmkcf(*arguments).exit_code == 2
    assert gmkcf(*arguments, *QUICK_FIT, "--overwrite", "--memory", "100MiB").exit_code == 3


@pytest.mark.parametrize(
    ("layout", "array", "what"),
    [("each", "kernels/cosine", "kernel cosine"), ("gram", "gram/X", "the Gram matrix")],
)
def test_a_tile_that_was_lost_is_told(layout, array, what, corpus_file, tmp_path):
    damaged = tmp_path / "damaged.zarr"
    done("build", corpus_file, damaged, *QUICK, "--block", 12, "--layout", layout)
    (damaged / array / "c" / "0" / "1").unlink()
    sentence = refused("fit", damaged, *QUICK_FIT, "--out", tmp_path / "run", code=4)
    assert f"tile (0, 1) of {what}" in sentence
    assert not (tmp_path / "run").exists()


# --- other places to run ----------------------------------------------------------------------


@pytest.mark.cluster
def test_local_cluster_gives_the_same(corpus_file, store, tmp_path):
    here, there = Run(tmp_path / "here"), Run(tmp_path / "there")
    done("fit", store, *QUICK_FIT, "--out", here.folder, "--cluster", "threads")
    options = (*QUICK_FIT, "--kernels", ",".join(KERNELS), "--block", 12, "--max-iter", 8)
    where = ("--cluster", "local", "--workers", 1, "--memory", "2GiB")
    result = gmkcf("run", corpus_file, *options, "--out", there.folder, *where)
    assert result.exit_code == 0, result.output
    assert "1 workers at tcp://127.0.0.1" in result.stdout
    assert "\x1b" not in result.output
    history = there.result["objective_history"]
    assert history == here.result["objective_history"][: len(history)]
    assert len(there.result["bytes"]["worker_peaks"]) == 1


@pytest.fixture
def scheduler():
    """The address of a scheduler that somebody else started."""
    from distributed import LocalCluster

    settings = {"n_workers": 1, "threads_per_worker": 1, "processes": False}
    with LocalCluster(
        host="127.0.0.1", protocol="tcp://", dashboard_address="127.0.0.1:0", **settings
    ) as cluster:
        yield cluster.scheduler_address


@pytest.mark.cluster
def test_a_scheduler_by_its_address(corpus_file, store, scheduler, tmp_path):
    here, there = Run(tmp_path / "here"), Run(tmp_path / "there")
    options = (*QUICK_FIT, "--max-iter", 8)
    done("fit", store, *options, "--out", here.folder, "--cluster", "threads")
    text = done("fit", store, *options, "--out", there.folder, "--cluster", scheduler).stdout
    assert "iterations" in text
    assert there.contents["labels.csv"] == here.contents["labels.csv"]
    assert there.result["objective_history"] == here.result["objective_history"]
    assert scheduler in done("plan", corpus_file, "-k", K, "--cluster", scheduler).stdout


# --- methods ----------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["gmkcf", "kcf", "kkm", "sc", "coreg", "rmkkm"])
def test_fit_with_every_method(store, tmp_path, method):
    more = ("--n-init", 4) if method in ("kkm", "rmkkm") else ()
    text = done("fit", store, "-k", K, "--out", tmp_path / "r", "--method", method, *more).stdout
    run = Run(tmp_path / "r")
    assert text.startswith(f"{method}: ")
    assert run.result["method"] == method
    assert run.result["parameters"]["n_clusters"] == K
    assert run.result["kernel"] == ("mean" if method in ("kcf", "kkm", "sc") else None)
    assert same_grouping(run.labels)
    assert done("score", tmp_path / "r").stdout.startswith("ACC    1.0000")


def test_fit_with_one_kernel_by_name(store, tmp_path):
    done("fit", store, "-k", K, "--out", tmp_path / "r", "--method", "sc", "--kernel", "cosine")
    result = Run(tmp_path / "r").result
    assert result["kernel"] == "cosine"
    assert result["kernel_weights"]["cosine"] == 1.0
    kept = {"embedding", "eigenvalues", "extension", "centres", "w"}
    assert set(Run(tmp_path / "r").factors) == kept


def test_fit_on_every_kernel_gives_a_run_for_each(store, tmp_path):
    names = manifest(store)["kernels"]
    out = tmp_path / "all"
    text = done("fit", store, "-k", K, "--out", out, "--method", "kkm", "--kernel", "all").stdout
    for kernel in names:
        assert Run(out / kernel["name"]).result["kernel"] == kernel["name"]
        assert kernel["name"] in text
        done("score", out / kernel["name"])
    assert "holds another run" in refused(
        "fit", store, "-k", K, "--out", out, "--method", "kkm", "--kernel", "all"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--method", "sc", "--kernel", "rbf_7"), "there is no kernel 'rbf_7' here: choose mean"),
        (("--kernel", "cosine"), "gmkcf uses all kernels: leave --kernel out"),
        (("--method", "kkm", "--tol", "1"), "tol is not a parameter of kkm, only of gmkcf, kcf"),
        (("--method", "coreg", "--lam", "-1"), "lam must be a number above 0"),
        (("--init", "spectral", "--n-init", "2"), "n_init must be 1"),
    ],
    ids=str,
)
def test_options_that_do_not_fit_the_method_are_refused(store, tmp_path, options, message):
    out = tmp_path / "r"
    assert message in refused("fit", store, "-k", K, "--out", out, *options)
    assert not out.exists()
