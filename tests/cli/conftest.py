"""Fixtures of the tests of the command line."""

import pytest
from helpers.terminal import Clock


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("time.monotonic", clock.monotonic)
    return clock


@pytest.fixture
def real_terminal(monkeypatch) -> None:
    """Terminals can move the cursor, also if the tests run on one that cannot."""
    monkeypatch.setenv("TERM", "xterm")
