"""SIGHUP, SIGINT and SIGTERM end a command like an error, so that finished work is kept."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from gmkcf_dask.events import Event, Listener


class Interrupted(KeyboardInterrupt):
    """A signal ended the command; `exit_code` is that of shells."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


_SIGNALS = [
    getattr(signal, name) for name in ("SIGHUP", "SIGINT", "SIGTERM") if hasattr(signal, name)
]
_received: list[int] = []


@contextmanager
def signals_interrupt() -> Iterator[None]:
    """Raise `Interrupted` in the main thread on a signal.

    Python drops exceptions that are raised in a destructor or in a callback of the interpreter.
    Therefore the signal is recorded, `interruptible` raises it again after the iteration, and the
    traceback of the dropped exception is not printed.
    """
    _received.clear()
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        _received.append(number)
        raise Interrupted(number)

    def report(dropped: sys.UnraisableHookArgs) -> None:
        if not isinstance(dropped.exc_value, Interrupted):
            default_report(dropped)

    default_report, sys.unraisablehook = sys.unraisablehook, report
    # background jobs of a shell ignore SIGINT, and nohup SIGHUP: keep that
    handlers = {
        number: signal.signal(number, handle)
        for number in _SIGNALS
        if signal.getsignal(number) != signal.SIG_IGN
    }
    try:
        yield
    finally:
        sys.unraisablehook = default_report
        for number, handler in handlers.items():
            signal.signal(number, handler)


def interruptible(listen: Listener) -> Listener:
    """A listener that raises a signal that Python dropped."""

    def listener(event: Event) -> None:
        listen(event)
        if _received:
            raise Interrupted(_received[-1])

    return listener
