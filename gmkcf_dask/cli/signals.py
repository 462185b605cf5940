"""SIGINT and SIGTERM end a command as an error would: what was reached is kept, and said."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from gmkcf_dask.events import Event, Listener


class Interrupted(KeyboardInterrupt):
    """A signal asked for the end; `exit_code` is the one shells give."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


_asked: list[int] = []


@contextmanager
def signals_interrupt() -> Iterator[None]:
    """Raise `Interrupted` in the main thread when a signal comes.

    Python drops an exception that is raised inside a destructor or a callback of the interpreter:
    the signal is remembered, `or_interrupt` raises it again after the iteration, and the report
    of what was dropped, a traceback that helps nobody, is left out.
    """
    _asked.clear()
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        _asked.append(number)
        raise Interrupted(number)

    # a job in the background of a shell ignores SIGINT, and goes on ignoring it
    wanted = [s for s in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(s) != signal.SIG_IGN]
    report_dropped = sys.unraisablehook

    def report(dropped: sys.UnraisableHookArgs) -> None:
        if not isinstance(dropped.exc_value, Interrupted):
            report_dropped(dropped)

    sys.unraisablehook = report
    before = {number: signal.signal(number, handle) for number in wanted}
    try:
        yield
    finally:
        sys.unraisablehook = report_dropped
        for number, handler in before.items():
            signal.signal(number, handler)


def or_interrupt(listen: Listener) -> Listener:
    """A listener that ends the work if a signal came and was not heard."""

    def hear(event: Event) -> None:
        listen(event)
        if _asked:
            raise Interrupted(_asked[-1])

    return hear
