"""Progress is one line on a terminal, and silence elsewhere."""

from __future__ import annotations

import io
import re

import pytest
from helpers.terminal import Clock, Terminal, iteration

from gmkcf_dask.events import StageProgress
from gmkcf_dask.events.progress import Progress

pytestmark = pytest.mark.usefixtures("real_terminal")


@pytest.fixture
def terminal() -> Terminal:
    return Terminal()


def rates(text: str) -> list[float]:
    return [float(rate) for rate in re.findall(r"([\d.]+)/s", text)]


# --- tiles ------------------------------------------------------------------------------------


def test_stage_count_rate_and_time_left_are_shown(terminal, clock):
    progress = Progress(terminal)
    for tiles in range(0, 50, 10):
        progress(StageProgress("write", tiles, 100))
        clock.now += 1
    last = terminal.drawn[-1]
    assert "write" in last
    assert "40/100 tiles" in last
    assert rates(last) == [pytest.approx(10)]
    assert "6 s left" in last


def test_bytes_per_second_are_shown_where_bytes_are_counted(terminal, clock):
    progress = Progress(terminal)
    for tiles in range(3):
        progress(StageProgress("write", tiles, 10, bytes_done=tiles << 20))
        clock.now += 1
    assert "1.0 MiB/s" in terminal.drawn[-1]


def test_a_resumed_stage_is_not_credited_with_work_done_before(terminal, clock):
    progress = Progress(terminal)
    for tiles in range(500, 550, 10):
        progress(StageProgress("write", tiles, 1000, bytes_done=tiles << 20))
        clock.now += 1
    last = terminal.drawn[-1]
    assert rates(last)[0] == pytest.approx(10, rel=0.3)
    speed, left = re.search(r"([\d.]+) MiB/s", last), re.search(r"(\d+) s left", last)
    assert speed is not None
    assert float(speed[1]) == pytest.approx(10, rel=0.3)
    assert left is not None
    assert int(left[1]) == pytest.approx(46, rel=0.3)


def test_no_rate_is_made_up_before_there_is_one(terminal, clock):
    progress = Progress(terminal)
    progress(StageProgress("write", 4, 100, bytes_done=4 << 20))
    progress.close()
    progress(iteration(1))
    progress.close()
    assert terminal.drawn
    assert all(rate < 1000 for text in terminal.drawn for rate in rates(text))
    assert not re.search(r"[GT]iB/s", terminal.getvalue())


def test_the_end_of_a_stage_is_always_drawn(terminal, clock):
    progress = Progress(terminal)
    for tiles in range(11):
        progress(StageProgress("write", tiles, 10))
    assert "10/10" in terminal.drawn[-1]


def test_lines_are_not_drawn_faster_than_anyone_reads(terminal, clock):
    progress = Progress(terminal)
    for tiles in range(1000):
        progress(StageProgress("write", tiles, 10_000))
        clock.now += 0.001
    assert 1 <= len(terminal.drawn) <= 15


def test_every_stage_has_its_own_line(terminal, clock):
    progress = Progress(terminal)
    for stage in ("statistics", "write"):
        progress(StageProgress(stage, 5, 5))
        clock.now += 1
    progress.close()
    first, second = terminal.getvalue().rstrip("\n").split("\n")
    assert "statistics" in first
    assert "write" in second
    assert terminal.getvalue().endswith("\n")


def test_an_empty_stage_is_no_trouble(terminal, clock):
    Progress(terminal)(StageProgress("write", 0, 0))
    assert "0/0" in terminal.drawn[-1]


def test_long_waits_are_told_in_minutes_and_hours(terminal, clock):
    progress = Progress(terminal)
    for total in (1000, 100_000):
        progress(StageProgress(f"stage of {total}", 0, total))
        clock.now += 10
        progress(StageProgress(f"stage of {total}", 10, total))
        clock.now += 1
    assert any(re.search(r"1[67] min left", text) for text in terminal.drawn)
    assert any(re.search(r"27\.\d h left", text) for text in terminal.drawn)


# --- iterations -------------------------------------------------------------------------------


def fit(progress: Progress, clock: Clock, changes: list[float], **more) -> None:
    for number, change in enumerate(changes, start=1):
        progress(iteration(number, change=change, **more))
        clock.now += 1


def test_iteration_objective_rate_and_time_left_are_shown(terminal, clock):
    fit(Progress(terminal), clock, [10 ** -(1 + n / 10) for n in range(21)])
    last = terminal.drawn[-1]
    assert "fit" in last
    assert "iteration 21" in last
    assert "2.5" in last
    assert "1e-05" in last
    assert rates(last) == [pytest.approx(1, rel=0.1)]
    left = re.search(r"(\d+) s left", last)
    assert left is not None
    assert int(left[1]) == pytest.approx(20, abs=3)


def test_time_left_is_bounded_by_the_iterations_that_are_left(terminal, clock):
    fit(Progress(terminal), clock, [0.001] * 10, max_iter=30)
    left = re.search(r"(\d+) s left", terminal.drawn[-1])
    assert left is not None
    assert int(left[1]) == pytest.approx(20, abs=3)


def test_no_time_left_is_guessed_from_the_first_steep_iterations(terminal, clock):
    fit(Progress(terminal), clock, [10.0**-n for n in range(8)])
    assert "left" not in terminal.getvalue()


def test_a_line_never_wraps(terminal, clock, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    fit(Progress(terminal), clock, [0.001] * 12, n_restarts=3)
    assert max(len(text) for text in terminal.drawn) < 40


def test_restarts_are_counted(terminal, clock):
    progress = Progress(terminal)
    for restart in range(3):
        fit(progress, clock, [0.1, 0.01], restart=restart, n_restarts=3)
    assert any("2/3" in text for text in terminal.drawn)
    assert "3/3" in terminal.drawn[-1]


def test_a_single_run_is_not_counted(terminal, clock):
    fit(Progress(terminal), clock, [0.1, 0.01])
    assert "1/1" not in terminal.getvalue()


def test_a_change_of_zero_or_below_is_no_trouble(terminal, clock):
    fit(Progress(terminal), clock, [0.1, 0.01, 0.0, -1e-9], tol=0.0)
    assert "iteration 4" in terminal.drawn[-1]


# --- silence ----------------------------------------------------------------------------------


def work(progress: Progress) -> None:
    progress(StageProgress("write", 1, 2))
    progress(StageProgress("write", 2, 2))
    progress(iteration(1))
    progress.close()


def test_silent_when_piped():
    stream = io.StringIO()
    work(Progress(stream))
    assert stream.getvalue() == ""


def test_silent_when_told_so(terminal):
    work(Progress(terminal, enabled=False))
    assert terminal.getvalue() == ""


def test_draws_on_any_stream_when_told_so():
    stream = io.StringIO()
    work(Progress(stream, enabled=True))
    assert "write" in stream.getvalue()


def test_standard_error_is_the_default(capsys):
    work(Progress(enabled=True))
    captured = capsys.readouterr()
    assert "write" in captured.err
    assert captured.out == ""


def test_closing_draws_nothing_of_its_own(terminal):
    progress = Progress(terminal)
    progress.close()
    progress.close()
    assert terminal.getvalue() == ""


def test_closing_twice_ends_one_line(terminal):
    progress = Progress(terminal)
    progress(StageProgress("write", 1, 2))
    progress.close()
    progress.close()
    assert terminal.getvalue().count("\n") == 1


def test_a_restart_takes_as_long_as_those_before_it(terminal, clock):
    """From its first iteration on, before its own changes tell anything."""
    progress = Progress(terminal)
    for restart in range(2):
        for number in range(1, 21):
            clock.now += 1
            change = 0.5 if restart else 0.8**number
            progress(iteration(number, change=change, restart=restart, n_restarts=3))
            if restart == 1 and number == 1:
                # the first was over after 21 s: as long for this one and for the last
                assert "42 s left" in terminal.drawn[-1]
            if restart == 1 and number == 11:
                assert "32 s left" in terminal.drawn[-1]


@pytest.mark.once
def test_the_line_fits_the_terminal_it_is_drawn_on(clock, monkeypatch):
    """Not standard output, which may be a file or another terminal."""
    import os
    import pty
    import struct
    from fcntl import ioctl
    from termios import TIOCSWINSZ

    monkeypatch.setenv("COLUMNS", "200")
    ours, theirs = pty.openpty()
    ioctl(theirs, TIOCSWINSZ, struct.pack("HHHH", 40, 50, 0, 0))
    with os.fdopen(theirs, "w") as stream:
        progress = Progress(stream)
        for number in range(1, 4):
            clock.now += 1
            progress(iteration(number, weights=(0.1,) * 12))
        drawn = os.read(ours, 1 << 16).decode()
    os.close(ours)
    lines = [line for line in re.split(r"[\r\n]", drawn.replace("\x1b[2K", "")) if line]
    assert lines
    assert max(map(len, lines)) < 50
