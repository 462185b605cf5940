"""Watching work: one display for all stages, lines for machines, a log, and callbacks for code."""

from __future__ import annotations

import copy
import io
import json
import math
import os
import re
import shlex
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
import sklearn
from click.testing import CliRunner
from helpers.terminal import Clock, Terminal, iteration
from hypothesis import given, strategies as st
from sklearn.base import clone
from sklearn.datasets import make_blobs
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from gmkcf_dask import GMKCF, KCF, History, IterationDone, JsonLines, Progress, StageProgress
from gmkcf_dask.cli import main
from gmkcf_dask.cli.group import Invocation
from gmkcf_dask.cli.output import Output
from gmkcf_dask.errors import DataWarning, InputError
from gmkcf_dask.estimators import sklearn_callbacks
from gmkcf_dask.events.eta import ConvergenceForecast, Rate, SmoothedEta
from gmkcf_dask.events.progress import sparkline
from gmkcf_dask.events.stages import StageTracker

STAGES = ("reading", "statistics", "write", "fit", "overview")
FEW = ["rbf_1", "cosine", "poly_a1_b2"]
RESTARTS = {"kernels": FEW, "n_init": 2, "init": "random"}
pytestmark = pytest.mark.usefixtures("calm", "real_terminal")


@pytest.fixture(scope="module")
def blobs():
    return make_blobs(60, 4, centers=3, cluster_std=0.6, random_state=0)


@pytest.fixture(scope="module")
def corpus_file(tmp_path_factory, blobs) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "blobs.npz"
    np.savez(path, X=blobs[0], y=blobs[1])
    return path


# --- the display ------------------------------------------------------------------------------


def whole_run(progress: Progress, clock: Clock) -> None:
    """What a run tells, from reading to describing."""
    progress(StageProgress("reading", 0, -1, unit="samples"))
    clock.now += 2
    progress(StageProgress("reading", 500, 500, unit="samples"))
    for stage in ("statistics", "row sums", "write"):
        for tiles in range(0, 11, 5):
            progress(StageProgress(stage, tiles, 10, tiles << 20 if stage == "write" else 0))
            clock.now += 1
    progress(StageProgress("eigenvectors", 3, 60, unit="sweeps at most"))
    for number in range(1, 4):
        clock.now += 1
        progress(iteration(number, change=10.0**-number))
    progress(StageProgress("k-means", 0, 1, unit="clusterings"))
    progress(StageProgress("overview", 10, 10, unit="documents"))
    progress.close()


def test_every_stage_knows_its_place_and_leaves_one_line(clock):
    terminal = Terminal()
    whole_run(Progress(terminal, stages=STAGES), clock)
    lines = [
        line.split("\r")[-1] for line in terminal.getvalue().replace("\x1b[2K", "").split("\n")
    ]
    assert [re.sub(r" +", " ", line) for line in lines if line] == [
        "1/5 read 500/500 samples in 2.0 s",
        "2/5 statistics 10/10 tiles in 5.0 s",
        "3/5 write kernels 10/10 tiles in 2.0 s",
        "4/5 fit 3 iterations, objective 2.5, change 1e-03, in 3.0 s",
        "5/5 describe clusters 10/10 documents in 0.0 s",
    ]


def test_what_comes_after_is_said_where_there_is_room(clock, monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")
    terminal = Terminal()
    progress = Progress(terminal, stages=STAGES)
    progress(StageProgress("write", 0, 10))
    assert terminal.drawn[-1].endswith(", then fit, describe clusters")


@pytest.mark.parametrize("columns", [20, 40, 60, 80, 100, 200])
def test_lines_fit_into_any_terminal(clock, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    terminal = Terminal()
    whole_run(Progress(terminal, stages=STAGES), clock)
    assert max(map(len, terminal.drawn)) < columns


def test_a_narrow_terminal_shows_fewer_figures_but_whole_ones(clock, monkeypatch):
    lines = []
    for columns in (50, 120):
        monkeypatch.setenv("COLUMNS", str(columns))
        terminal = Terminal()
        Progress(terminal)(iteration(1, weights=(0.2,) * 12))
        lines.append(terminal.drawn[-1])
    assert lines[1].startswith(f"{lines[0]}, ")


def test_notes_stand_above_the_line_that_is_drawn(clock, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    terminal = Terminal()
    progress = Progress(terminal)
    progress(StageProgress("write", 1, 10))
    text = "note: [b]a long note[/b] is neither wrapped nor styled, and stays whole as it is"
    progress.print(text)
    progress.close()
    note, stage, end = terminal.getvalue().replace("\x1b[2K", "").split("\n")
    assert note.endswith(f"\r{text}")
    assert stage.endswith("1/10 tiles in 0.0 s")
    assert end == ""


def test_a_display_that_nobody_closes_leaves_the_terminal_as_it_was(clock):
    terminal, stderr = Terminal(), sys.stderr
    Progress(terminal)(StageProgress("write", 1, 10))
    assert "\x1b[?25l" not in terminal.getvalue()
    assert sys.stderr is stderr


def test_parts_of_a_stage_are_named(clock):
    terminal = Terminal()
    progress = Progress(terminal)
    progress(StageProgress("row sums", 1, 10))
    progress(StageProgress("eigenvectors", 3, 60, unit="sweeps at most"))
    assert any("statistics: row sums" in text for text in terminal.drawn)
    assert "fit: eigenvectors" in terminal.drawn[-1]
    assert "3 sweeps, at most 60" in terminal.drawn[-1]


def test_a_total_that_nobody_knows_is_not_shown(clock):
    terminal = Terminal()
    progress = Progress(terminal)
    for done in (0, 10, 20):
        progress(StageProgress("reading", done, -1, unit="documents"))
        clock.now += 1
    assert "20 documents, 10.0/s" in terminal.drawn[-1]
    assert "left" not in terminal.getvalue()


def test_of_runs_that_go_on_together_no_time_is_guessed(clock):
    terminal = Terminal()
    progress = Progress(terminal)
    for done in range(3):
        progress(StageProgress("kcf", done, 12, unit="runs"))
        clock.now += 1
    assert "2/12 runs" in terminal.drawn[-1]
    assert "left" not in terminal.getvalue()


def test_a_corpus_that_is_read_twice_is_one_stage(clock):
    terminal = Terminal()
    progress = Progress(terminal)
    for done in (0, 5, 10, 0, 5, 10):
        progress(StageProgress("reading", done, 10, unit="documents"))
        clock.now += 1
    progress.close()
    assert terminal.getvalue().count("\n") == 1


def test_weights_are_small_bars(clock):
    terminal = Terminal()
    Progress(terminal)(iteration(1, weights=(0.1, 0.4, 0.8)))
    assert "▂▅█" in terminal.drawn[-1]
    assert sparkline([0.0, 0.0]) == "▁▁"
    assert sparkline([]) == ""


def test_terminals_without_such_letters_get_plain_ones(clock):
    class Ascii(Terminal):
        encoding = "ascii"

    terminal = Ascii()
    whole_run(Progress(terminal, stages=STAGES), clock)
    terminal.getvalue().encode("ascii")
    assert any("-----" in text for text in terminal.drawn)


def test_no_colour_is_ever_used(clock):
    terminal = Terminal()
    whole_run(Progress(terminal, stages=STAGES), clock)
    assert set(re.findall(r"\x1b\[[\d;]*[A-Za-z]", terminal.getvalue())) == {"\x1b[2K"}


def test_plain_lines_are_few_where_there_is_no_terminal(clock):
    stream = io.StringIO()
    progress = Progress(stream, enabled=True)
    for tiles in range(101):
        progress(StageProgress("write", tiles, 100))
        clock.now += 0.01
    progress.close()
    assert len(stream.getvalue().splitlines()) == 2
    assert "\x1b" not in stream.getvalue()
    assert stream.getvalue().endswith("100/100 tiles in 1.0 s\n")


def test_a_stage_that_begins_again_is_counted_anew(clock):
    terminal = Terminal()
    progress = Progress(terminal)
    for _ in range(2):
        for tiles in (0, 10):
            progress(StageProgress("write", tiles, 10))
            clock.now += 1
    progress.close()
    assert terminal.getvalue().count("\n") == 2


def test_a_resumed_fit_is_not_credited_with_iterations_before(clock):
    terminal = Terminal()
    progress = Progress(terminal)
    clock.now += 1
    for number in range(301, 306):
        progress(iteration(number))
        clock.now += 1
    (rate,) = re.findall(r"([\d.]+)/s", terminal.drawn[-1])
    assert float(rate) == pytest.approx(1, rel=0.01)


# --- time left --------------------------------------------------------------------------------


def test_a_rate_forgets_what_is_long_ago():
    rate = Rate()
    for second in range(100):
        rate.update(100.0 * second, float(second))
    for second in range(100, 200):
        rate.update(9_900.0 + second, float(second))
    assert rate.per_second == pytest.approx(1, abs=1)


def test_one_odd_guess_does_not_move_the_time_left_far():
    left = SmoothedEta()
    shown = [left.update(100 - second, float(second)) for second in range(10)]
    assert shown == [pytest.approx(100 - second) for second in range(10)]
    assert left.update(5_000, 10.0) < 1_100
    assert left.remaining(20.0) < 1_100


@given(st.lists(st.floats(1, 1e4), min_size=2, max_size=50))
def test_the_time_left_stays_among_its_guesses(guesses):
    left = SmoothedEta()
    for second, guess in enumerate(guesses):
        shown = left.update(guess, float(second))
        assert 0 <= shown <= max(guesses) + 1e-6


def guesses(changes: list[float], tol: float = 1e-5) -> list[float | None]:
    decay, found = ConvergenceForecast(), []
    for change in changes:
        decay.update(change)
        found.append(decay.iterations_left(tol))
    return found


def test_changes_that_shrink_by_a_share_are_foretold_exactly():
    found = guesses([0.9**n for n in range(1, 110)])
    for iteration_, left in enumerate(found, start=1):
        if left is not None:
            assert left == pytest.approx(math.log(1e-5) / math.log(0.9) - iteration_, abs=0.5)
    assert sum(left is not None for left in found) > 60


def test_changes_that_shrink_like_a_power_are_foretold():
    found = guesses([n**-2.0 for n in range(1, 316)])  # 1e-5 at 316
    for iteration_, left in enumerate(found, start=1):
        if 100 <= iteration_ < 300:
            assert left == pytest.approx(316.2 - iteration_, rel=0.1)


def test_noise_does_not_make_the_guess_jump(rng):
    noisy = [0.9**n * math.exp(rng.normal(0, 0.2)) for n in range(1, 90)]
    later = [left for left in guesses(noisy)[50:] if left is not None]
    truth = [math.log(1e-5) / math.log(0.9) - n for n in range(51, 90)]
    assert len(later) > 30
    assert np.median(np.abs(np.array(later) - truth[-len(later) :])) < 12


def test_nothing_is_guessed_before_it_means_something():
    assert guesses([0.5] * 30) == [None] * 30  # the change is large still
    assert guesses([1e-3] * 9) == [None] * 9
    assert guesses([1e-3] * 12)[-1] == math.inf


@pytest.mark.parametrize("last", [0.0, -1e-9, 1e-3])
def test_changes_that_do_not_shrink_never_reach_the_tolerance(last):
    assert guesses([1e-3] * 11 + [last])[-1] == math.inf


def test_no_tolerance_is_never_reached_and_a_small_change_has_reached_it():
    assert guesses([0.5**n for n in range(1, 20)], tol=0.0)[-1] == math.inf
    assert guesses([0.5**n for n in range(1, 20)])[-1] == 0


def test_restarts_to_come_are_part_of_the_time_left(clock):
    shown = {}
    for restarts in (1, 3):
        terminal = Terminal()
        progress = Progress(terminal)
        for number in range(1, 41):
            progress(iteration(number, change=0.8**number, n_restarts=restarts))
            clock.now += 1
        found = re.search(r"(\d+) s left|(\d+) min left", terminal.drawn[-1])
        assert found is not None
        shown[restarts] = int(found[1] or 60 * int(found[2]))
    assert shown[3] - shown[1] == pytest.approx(2 * (40 + shown[1]), abs=40)


def test_stages_are_heard_from_events():
    tracker = StageTracker()
    assert tracker.update(StageProgress("write", 0, 4), 1.0)[1:] == (None, True)
    assert tracker.update(StageProgress("write", 4, 4), 3.0)[1:] == (None, False)
    current, finished, started = tracker.update(iteration(1), 5.0)
    assert started
    assert finished is not None
    assert (finished.name, finished.seconds, finished.count.done) == ("write", 2.0, 4)
    assert current.seconds == 2.0  # since the last event before
    assert tracker.finish() is current
    assert tracker.finish() is None


# --- listeners --------------------------------------------------------------------------------


def test_json_lines_hold_every_event(blobs, tmp_path):
    file, heard = io.StringIO(), []
    path = tmp_path / "events.jsonl"
    lines = JsonLines(path)
    callbacks = [JsonLines(file), lines, heard.append]
    GMKCF(3, kernels=FEW, callbacks=callbacks, tol=1e-3, random_state=0).fit(blobs[0])
    lines.close()
    records = [json.loads(line) for line in file.getvalue().splitlines()]
    told = [record for record in records if record["event"] != "stage_done"]
    assert len(told) == len(heard)
    for record, event in zip(told, heard, strict=True):
        fields = {name: value for name, value in record.items() if name not in ("event", "time")}
        assert fields == json.loads(json.dumps(event.__dict__))
    assert {record["event"] for record in told} == {"stage_progress", "iteration_done"}
    in_file = [json.loads(line) for line in path.read_text().splitlines()]
    assert in_file[-1]["event"] == "stage_done"
    assert in_file[-1]["stage"] == "fit"


def test_json_lines_have_no_secrets_and_no_nan():
    file = io.StringIO()
    lines = JsonLines(file)
    lines(iteration(1, objective=math.nan, change=math.inf))
    lines.write({"event": "note", "message": "tls://ann:pw@host token=abc", "path": Path("x")})
    first, second = (json.loads(line) for line in file.getvalue().splitlines())
    assert first["objective"] is first["change"] is None
    assert second["message"] == "tls://***@host token=***"
    assert second["path"] == "x"


def test_history_keeps_restarts_apart_and_begins_anew(blobs):
    history = History()
    model = GMKCF(3, **RESTARTS, tol=1e-3, callbacks=[history], random_state=0)
    for _ in range(2):
        model.fit(blobs[0])
        assert [len(run) for run in history.objective] == [run.n_iter for run in model.runs_]
        best = int(np.argmin([run.objective for run in model.runs_]))
        assert history.objective[best] == model.objective_history_[1:].tolist()
        assert history.weights[best][-1] == pytest.approx(tuple(model.kernel_weights_), rel=1e-6)
        assert [len(run) for run in history.change] == [len(run) for run in history.weights]


def test_estimators_with_listeners_can_be_cloned(blobs, tmp_path):
    callbacks = [JsonLines(sys.stdout), Progress(sys.stderr), History()]
    copied = clone(GMKCF(3, callbacks=callbacks))
    assert copied.callbacks[0] is callbacks[0]
    assert copied.callbacks[1] is callbacks[1]
    assert copy.deepcopy(callbacks[2]) is not callbacks[2]


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("kind", [StageProgress, IterationDone])
def test_what_a_callback_raises_ends_the_fit(blobs, tmp_path, stored, kind):
    class Enough(Exception):
        pass

    def stop(event):
        if isinstance(event, kind):
            raise Enough("seen")

    place = {"store": tmp_path / "s.zarr"} if stored else {}
    model = GMKCF(3, kernels=FEW, callbacks=[stop], random_state=0, block_size=20, **place)
    with pytest.raises(Enough, match="seen"):
        model.fit(blobs[0])
    assert not hasattr(model, "labels_")
    # nothing is left behind that would hinder another fit
    model.set_params(callbacks=None, max_iter=5).fit(blobs[0])
    assert model.labels_.shape == (60,)


def test_a_fit_that_a_callback_ended_goes_on_from_its_checkpoint(blobs, tmp_path):
    how = {"kernels": FEW, "random_state": 0, "max_iter": 12}
    whole = GMKCF(3, **how).fit(blobs[0])

    def stop(event):
        if isinstance(event, IterationDone) and event.iteration == 4:
            raise RuntimeError("enough")

    model = GMKCF(3, callbacks=[stop], checkpoint_dir=tmp_path / "c", checkpoint_every=1, **how)
    with pytest.raises(RuntimeError, match="enough"):
        model.fit(blobs[0])
    model.set_params(callbacks=None).fit(blobs[0], resume=True)
    np.testing.assert_array_equal(model.V_, whole.V_)


# --- scikit-learn's callbacks -----------------------------------------------------------------

needs_callbacks = pytest.mark.skipif(
    tuple(map(int, sklearn.__version__.split(".")[:2])) < (1, 9),
    reason="scikit-learn has callbacks from version 1.9 on",
)


class Tree:
    """A callback of scikit-learn that writes down the tasks it hears of."""

    def __init__(self, stop=False):
        self.begun, self.ended, self.states, self.stop = [], [], [], stop

    def setup(self, estimator, context):
        self.states.append("setup")

    def teardown(self, estimator, context):
        self.states.append("teardown")

    def on_fit_task_begin(self, estimator, context):
        self.begun.append((context.task_name, context.max_subtasks))

    def on_fit_task_end(self, estimator, context):
        self.ended.append(context.task_name)
        return self.stop


@needs_callbacks
def test_callbacks_of_scikit_learn_hear_stages_and_iterations(blobs):
    tree = Tree()
    model = GMKCF(3, **RESTARTS, max_iter=400, tol=1e-3, random_state=0).set_callbacks(tree)
    model.fit(blobs[0])
    assert tree.states == ["setup", "teardown"]
    assert tree.begun[0] == ("fit", None)
    assert tree.ended[-1] == "fit"
    assert sorted(name for name, _ in tree.begun) == sorted(tree.ended)
    assert ("run 1", 400) in tree.begun
    assert ("run 2", 400) in tree.begun
    assert tree.ended.count("iteration") == sum(run.n_iter for run in model.runs_)
    assert "write kernels" in tree.ended
    plain = GMKCF(3, **RESTARTS, max_iter=400, tol=1e-3, random_state=0).fit(blobs[0])
    np.testing.assert_array_equal(model.labels_, plain.labels_)


@needs_callbacks
def test_callbacks_of_scikit_learn_are_torn_down_after_an_error(blobs):
    tree = Tree()
    model = KCF(3, kernel="rbf_1", random_state=-1).set_callbacks(tree)
    with pytest.raises(InputError, match="random_state"):
        model.fit(blobs[0])
    assert tree.states == ["setup", "teardown"]
    assert not [name for name in vars(model) if name.startswith("_callback") or name == "_told"]


@needs_callbacks
def test_callbacks_of_scikit_learn_go_with_clones_and_into_pipelines(blobs):
    tree = Tree()
    assert clone(GMKCF(3).set_callbacks(tree))._skl_callbacks == [tree]

    class Everywhere(Tree):
        max_propagation_depth = None

    everywhere = Everywhere()
    steps = make_pipeline(StandardScaler(), GMKCF(3, kernels=FEW, random_state=0))
    steps.set_callbacks(everywhere).fit(blobs[0])
    assert "iteration" in everywhere.ended


@needs_callbacks
def test_a_callback_that_asks_to_stop_is_told_how(blobs):
    with pytest.raises(InputError, match="asked to stop"):
        GMKCF(3, kernels=FEW, random_state=0).set_callbacks(Tree(stop=True)).fit(blobs[0])


@pytest.mark.once
@pytest.mark.slow
def test_an_older_scikit_learn_is_told_politely():
    code = (
        "import sys, numpy as np, sklearn.cluster, sklearn.preprocessing, sklearn.callback as new\n"
        "sys.modules['sklearn.callback'] = None  # scikit-learn itself needs it, we do not\n"
        "from gmkcf_dask import KCF\n"
        "sys.modules['sklearn.callback'] = new\n"
        "KCF(2, kernel='rbf_1', random_state=0).fit(np.random.default_rng(0).random((20, 3)))\n"
        "KCF(2).set_callbacks()\n"
    )
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], check=False, capture_output=True, text=True
    )
    assert "set_callbacks needs the callbacks of scikit-learn 1.9 or later" in ran.stderr
    assert sklearn_callbacks.__doc__


# --- the command line -------------------------------------------------------------------------


def gmkcf(*arguments: object):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


QUICK = ("--kernels", ",".join(FEW), "--block", 20, "--cluster", "threads")


def run(corpus_file: Path, out: Path, *more: object):
    return gmkcf("run", corpus_file, "-k", 3, "--out", out, *QUICK, "--tol", 1e-3, *more)


def test_quiet_says_nothing(corpus_file, tmp_path):
    ran = run(corpus_file, tmp_path / "run", "--quiet")
    assert (ran.exit_code, ran.stdout, ran.stderr) == (0, "", "")
    assert (tmp_path / "run" / "labels.csv").exists()


def test_quiet_still_says_notes_and_errors(corpus_file, tmp_path):
    ran = run(corpus_file, tmp_path / "run", "--quiet", "--max-iter", 2, "--tol", 1e-9)
    assert ran.stdout == ""
    assert ran.stderr.startswith("note: ")
    ran = run(corpus_file, tmp_path / "run", "--quiet")
    assert (ran.exit_code, ran.stdout) == (2, "")
    assert ran.stderr.startswith("error: ")


def test_json_is_one_object_per_line_with_a_result_at_the_end(corpus_file, tmp_path):
    out = tmp_path / "run"
    ran = run(corpus_file, out, "--json", "--max-iter", 3, "--tol", 1e-9)
    records = [json.loads(line) for line in ran.stdout.splitlines()]
    assert all({"event", "time"} <= set(record) for record in records)
    kinds = [record["event"] for record in records]
    assert set(kinds) == {"stage_progress", "stage_done", "iteration_done", "note", "result"}
    assert [r["stage"] for r in records if r["event"] == "stage_done"][:4] == list(STAGES[:4])
    assert kinds.count("result") == 1
    last = records[-1]
    assert last["event"] == "result"
    assert last["command"] == "run"
    assert last["n_labels"] == 60
    assert last["n_clusters"] == 3
    assert set(last["scores"]) == {"ACC", "NMI", "purity", "ARI"}
    assert last["converged"] is False
    assert all(Path(path).exists() for path in last["paths"])
    assert [Path(path).name for path in last["paths"]] == [
        "labels.csv", "result.json", "factors.npz", "insight.json", "report.html",
    ]  # fmt: skip
    assert ran.stderr == ""


def test_json_tells_errors_too(corpus_file, tmp_path):
    for arguments in (
        ("fit", tmp_path / "nothing.zarr", "-k", 3, "--out", tmp_path / "r", "--json"),
        ("fit", tmp_path / "nothing.zarr", "--json"),  # options that are missing
        ("verify", tmp_path / "nothing.zarr", "--json", "--quiet"),
        ("verify", tmp_path / "nothing.zarr", "--json", "--cluster", "ftp://nowhere"),
    ):
        ran = gmkcf(*arguments)
        records = [json.loads(line) for line in ran.stdout.splitlines()]
        assert ran.exit_code == records[-1]["exit_code"] == 2, ran.output
        assert records[-1]["event"] == "error"
        assert not records[-1]["message"].startswith("error")
        assert ran.stderr == ""


def test_quiet_and_json_do_not_go_together(corpus_file, tmp_path):
    ran = run(corpus_file, tmp_path / "run", "--json", "--quiet")
    error = json.loads(ran.stdout)
    assert ran.exit_code == error["exit_code"] == 2
    assert "--quiet" in error["message"]


def test_the_log_holds_everything_with_the_time(corpus_file, tmp_path):
    log, out = tmp_path / "logs" / "all.log", tmp_path / "run"
    ran = run(corpus_file, out, "--log", log, "--max-iter", 3, "--tol", 1e-9)
    failed = run(corpus_file, out, "--log", log, "--quiet")
    assert failed.exit_code == 2
    lines = log.read_text(encoding="utf-8").splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d\d:\d\d ", line) for line in lines)
    said = [line.split(" ", 2)[2] for line in lines]
    for line in ran.stdout.splitlines():
        assert line in said
    for line in (*ran.stderr.splitlines(), *failed.stderr.splitlines()):
        assert line in said
    for beginning in (
        "begins: gmkcf run", "read: 60/60 samples in", "write kernels: 6/6 tiles in",
        "fit: iteration 3, objective", "fit: 3 iterations", "ends after",
    ):  # fmt: skip
        assert any(line.startswith(beginning) for line in said), beginning
    assert said[-1].endswith("with exit code 2")


def test_the_log_has_no_secrets_and_one_line_per_line(tmp_path):
    log = tmp_path / "log"
    gmkcf("verify", "s3://ann:pw@bucket/x\n\x1b[31mred", "--log", log, "--cluster", "tcp://a:b@h:1")
    text = log.read_text(encoding="utf-8")
    assert "pw" not in text
    assert "a:b@" not in text
    assert "\x1b" not in text
    assert all(line.startswith("20") for line in text.splitlines())


@pytest.mark.parametrize("kind", ["folder", "pipe", "below a file"])
def test_a_log_that_cannot_be_written_is_said_before_any_work(tmp_path, corpus_file, kind):
    log = tmp_path / "log"
    if kind == "folder":
        log.mkdir()
    elif kind == "pipe":
        os.mkfifo(log)
    else:
        log.write_text("")
        log = log / "log"
    ran = run(corpus_file, tmp_path / "run", "--log", log)
    assert ran.exit_code == 2
    assert "choose another path for --log" in ran.stderr
    assert not (tmp_path / "run").exists()


def test_every_long_command_can_be_watched(corpus_file, tmp_path):
    store, out = tmp_path / "s.zarr", tmp_path / "run"
    for arguments, told in (
        (("plan", corpus_file, "-k", 3, *QUICK), {"plan", "runs_on"}),
        (("build", corpus_file, store, *QUICK), {"store", "kernels", "n_samples"}),
        (("fit", store, "-k", 3, "--out", out, "--tol", 1e-3), {"paths", "scores"}),
        (("fit", store, "-k", 3, "--out", out, "--tol", 1e-3, "--resume"), {"finished_before"}),
        (("info", store), {"store", "kernels", "n_samples", "complete"}),
        (("score", out), {"scores"}),
        (("verify", store), {"damaged"}),
        (("repair", store), {"repaired", "left"}),
        (("doctor", "--cluster", "threads", "--samples", 10), {"workers"}),
    ):
        ran = gmkcf(*arguments, "--json")
        assert ran.exit_code == 0, ran.output
        last = json.loads(ran.stdout.splitlines()[-1])
        assert (last["event"], last["command"]) == ("result", arguments[0])
        assert told <= set(last)
    watched = {
        "plan",
        "info",
        "build",
        "fit",
        "run",
        "score",
        "benchmark",
        "verify",
        "repair",
        "doctor",
    }
    for name in watched:
        options = {option for p in main.commands[name].params for option in p.opts}
        assert {"--quiet", "--json", "--log"} <= options


def test_many_kernels_have_a_result_each(corpus_file, tmp_path):
    ran = run(corpus_file, tmp_path / "run", "--json", "--method", "kcf", "--kernel", "all")
    last = json.loads(ran.stdout.splitlines()[-1])
    assert [one["kernel"] for one in last["runs"]] == FEW
    assert all(Path(path).exists() for one in last["runs"] for path in one["paths"])


def test_an_error_nobody_foresaw_is_told_as_well(corpus_file, tmp_path, monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError("by token=abc")

    monkeypatch.setattr("gmkcf_dask.pipeline.run.build", broken)
    ran = run(corpus_file, tmp_path / "run", "--json", "--log", tmp_path / "log")
    last = json.loads(ran.stdout.splitlines()[-1])
    assert (last["event"], last["exit_code"]) == ("error", 1)
    assert last["message"] == "ZeroDivisionError: by token=***"
    assert isinstance(ran.exception, ZeroDivisionError)
    assert "abc" not in (tmp_path / "log").read_text()


@pytest.mark.once
def test_a_run_on_a_terminal_shows_its_stages(corpus_file, tmp_path):
    """A real terminal of 100 columns, by a pseudo terminal."""
    import pty
    import struct
    from fcntl import ioctl
    from termios import TIOCSWINSZ

    arguments = ["run", corpus_file, "-k", 3, "--out", tmp_path / "run", *QUICK, "--tol", 1e-3]
    pid, file = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-m", "gmkcf_dask.cli", *map(str, arguments)])
    ioctl(file, TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    shown = b""
    while True:
        try:
            part = os.read(file, 1 << 16)
        except OSError:  # the other side is closed
            break
        if not part:
            break
        shown += part
    _, status = os.waitpid(pid, 0)
    os.close(file)
    text = shown.decode().replace("\x1b[2K", "")
    assert os.waitstatus_to_exitcode(status) == 0, text
    ends = [line.rstrip("\r").split("\r")[-1] for line in text.split("\n")]
    for title in ("1/5 read", "2/5 statistics", "3/5 write kernels", "4/5 fit"):
        assert sum(line.startswith(title) for line in ends) == 1, text


@pytest.mark.slow
def test_a_reader_that_goes_is_no_error(tmp_path):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).random((12, 3)))
    command = f"{sys.executable} -m gmkcf_dask.cli plan x.npy -k 2 --cluster threads | true"
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, check=False)
    assert b"Broken pipe" not in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.slow
def test_work_is_done_when_its_reader_goes(corpus_file, tmp_path):
    for name, options in (("json", "--json"), ("text", ""), ("both", "--json 2>&1")):
        words = [
            sys.executable, "-m", "gmkcf_dask.cli", "run", corpus_file, "-k", 3, "--out",
            tmp_path / name, *QUICK, "--tol", 1e-3,
        ]  # fmt: skip
        command = f"{shlex.join(map(str, words))} {options}"
        piped = f"set -o pipefail; {command} | head -n 1"
        done = subprocess.run(["bash", "-c", piped], capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
        assert b"Broken pipe" not in done.stderr
        assert b"BrokenPipe" not in done.stderr
        assert (tmp_path / name / "labels.csv").exists()
        assert (tmp_path / name / "report.html").exists()


def test_the_command_of_a_report_runs_again(corpus_file, tmp_path):
    out, log = tmp_path / "run", tmp_path / "log"
    assert run(corpus_file, out, "--json", "--log", log).exit_code == 0
    insight = json.loads((out / "insight.json").read_text())
    words = shlex.split(insight["command"])
    assert words[0] == "gmkcf"
    assert words[-1] == "--overwrite"
    assert not {"--json", "--log", str(log), "--resume"} & set(words)
    labels = (out / "labels.csv").read_bytes()
    for _ in range(2):  # and so does that of the second report
        ran = gmkcf(*words[1:])
        assert ran.exit_code == 0, ran.output
        assert (out / "labels.csv").read_bytes() == labels
        assert shlex.split(json.loads((out / "insight.json").read_text())["command"]) == words


def test_what_only_watches_is_no_part_of_a_command():
    words = ["fit", "--log=a", "s", "--quiet", "--resume", "-k", "3", "--log", "b c"]
    assert Invocation(words).rerun_command() == "gmkcf fit s -k 3 --overwrite"
    assert Invocation(["fit", "--overwrite", "s"]).rerun_command() == "gmkcf fit s --overwrite"
    assert Invocation(["fit", "--", "-s"]).rerun_command() == "gmkcf fit --overwrite -- -s"


def test_notes_of_reading_are_kept_with_the_results(tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    for i in range(12):
        (folder / f"{i}.txt").write_text(f"{['tea cups', 'red roses'][i % 2]} nr{i:02}")
    (folder / "empty.txt").write_text("")
    words = ("run", str(folder), "-k", "2", "--out", str(tmp_path / "run"), "--cluster", "threads")
    done = CliRunner().invoke(main, [*words])
    assert done.exit_code == 0, done.output
    assert done.stderr.count("1 of 13 documents are empty") == 1
    (kept,) = [w for w in result_of(tmp_path / "run")["warnings"] if "are empty" in w]
    assert kept in json.loads((tmp_path / "run" / "insight.json").read_text())["warnings"]


def result_of(folder):
    return json.loads((folder / "result.json").read_text())


def test_quiet_still_answers_what_was_asked(tmp_path):
    X, _ = make_blobs(40, centers=2, cluster_std=0.3, random_state=0)
    np.save(tmp_path / "x.npy", X)
    words = ("suggest-k", str(tmp_path / "x.npy"), "--ks", "2-5", "--quiet")
    done = CliRunner().invoke(main, [*words])
    assert done.stdout == "2\n", done.output
    done = CliRunner().invoke(main, [*words[:1], str(tmp_path / "none.csv"), "--quiet"])
    assert "none.csv does not exist" in done.stderr


def test_a_log_that_fails_during_the_work_is_a_note_and_ends_nothing(tmp_path, capsys):
    output = Output()
    output.open_log(tmp_path / "log")
    (handler,) = output._logger.handlers
    (tmp_path / "full").symlink_to("/dev/full")
    handler.setStream((tmp_path / "full").open("w")).close()
    for _ in range(2):
        output.log("a line")
    assert capsys.readouterr().err.count("note: ") == 1
    assert "No space left" in output.notes[0]


def test_warnings_of_other_threads_are_notes(capsys):
    output = Output()
    with output.command(["fit"]):
        thread = threading.Thread(target=warnings.warn, args=("from a thread", DataWarning))
        thread.start()
        thread.join()
        warnings.warn("gone in version 9", DeprecationWarning, stacklevel=1)
    assert output.notes == ["from a thread"]
    assert capsys.readouterr().err == "note: from a thread\n"
