"""Tiles of an object store, requested before they are needed.

An object store takes tens of milliseconds to answer a request. A task knows the tiles it will read,
so it requests many of them at once and decodes one after the other. All tasks of a process share
one window. It bounds the requests in flight, and the bytes that wait to be used. A tile that finds
no room in the window is read when it is needed: no task waits for room.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import lru_cache, partial
from threading import RLock

from gmkcf_dask.kernels.tiling import encoded_bytes
from gmkcf_dask.store.object_storage import AHEAD_REQUESTS, request_object, requested_object

Request = Callable[[str, int], "Future[bytes] | None"]
"""Begins to fetch an object of at most so many bytes; None where that is not possible."""
Receive = Callable[[str, int, "Future[bytes] | None"], bytes]
"""The object of a request, or of a request made now where there is none."""
Read = Callable[[str, int], bytes]
"""From the path of a chunk, and the bytes of its values, to the bytes it has in the store."""


class Window:
    """What one process has requested ahead of use, shared by all its tasks.

    `in_flight` counts requests without an answer so far, at most `most_requests`; `held_bytes` the
    bytes of these at most, and of answers not yet used.
    """

    def __init__(
        self,
        most_requests: int = AHEAD_REQUESTS,
        request: Request = request_object,
        receive: Receive = requested_object,
    ) -> None:
        self.in_flight = self.held_bytes = 0
        self.most_requests = most_requests
        self.request, self.receive = request, receive
        self.lock = RLock()
        self._reads: list[TaskReads] = []
        self._filling = False

    @contextmanager
    def reading(self, paths: Iterable[str], most: int, limit: int) -> Iterator[Read]:
        """Fetch objects in this order, ahead of the calls of the function that is yielded.

        An object may have `most` bytes; all tasks of this process may hold `limit` bytes ahead.
        """
        reads = TaskReads(self, paths, most, limit)
        with self.lock:
            self._reads.append(reads)
        try:
            self.fill()
            yield reads.read
        finally:
            with self.lock:
                self._reads.remove(reads)
                reads.close()
                self.fill()

    def fill(self) -> None:
        """Make requests while there is room; each goes to the task that holds the fewest bytes."""
        with self.lock:
            if self._filling:  # called by a request that was answered at once
                return
            self._filling = True
            try:
                while self.in_flight < self.most_requests:
                    waiting = [reads for reads in self._reads if reads.wants()]
                    if not waiting:
                        break
                    min(waiting, key=lambda reads: reads.held_bytes).request_next()
            finally:
                self._filling = False


class TaskReads:
    """The objects that one task reads, in order."""

    def __init__(self, window: Window, paths: Iterable[str], most: int, limit: int) -> None:
        self.held_bytes = 0
        self._window, self._most, self._limit = window, most, limit
        self._wanted = deque(paths)
        self._requested: dict[str, Future[bytes]] = {}
        self._unanswered: set[str] = set()
        self._held: dict[str, int] = {}

    def wants(self) -> bool:
        """Whether there are objects to request, and room for one of them."""
        return bool(self._wanted) and self._window.held_bytes + self._most <= self._limit

    def request_next(self) -> None:
        """Request the next object."""
        path = self._wanted.popleft()
        future = self._window.request(path, self._most)
        if future is None:  # this kind of object store is read when it is needed
            self._wanted.clear()
            return
        self._hold(path, self._most)
        self._window.in_flight += 1
        self._unanswered.add(path)
        self._requested[path] = future
        future.add_done_callback(partial(self._answered, path))

    def read(self, path: str, n_bytes: int) -> bytes:
        """The bytes of a chunk that holds values of `n_bytes`: as requested, or requested now."""
        with self._window.lock:
            future = self._requested.get(path)
            if future is None and path in self._wanted:
                self._wanted.remove(path)
        try:
            return self._window.receive(path, encoded_bytes(n_bytes), future)
        finally:
            with self._window.lock:
                self._requested.pop(path, None)
                if future is not None and future.done():  # it may call back later
                    self._land(path)
                self._release(path)
                self._window.fill()

    def close(self) -> None:
        """Drop what was requested and not used."""
        self._wanted.clear()
        for path, future in list(self._requested.items()):
            future.cancel()
            self._release(path)
        self._requested.clear()

    def _answered(self, path: str, future: Future[bytes]) -> None:
        # called by the thread that fetches, or by the one that cancels
        with self._window.lock:
            self._land(path)
            if path in self._held:
                failed = future.cancelled() or future.exception() is not None
                size = 0 if failed else len(future.result())
                self._release(path)
                self._hold(path, size)
            self._window.fill()

    def _land(self, path: str) -> None:
        if path in self._unanswered:
            self._unanswered.remove(path)
            self._window.in_flight -= 1

    def _hold(self, path: str, size: int) -> None:
        self._held[path] = size
        self.held_bytes += size
        self._window.held_bytes += size

    def _release(self, path: str) -> None:
        size = self._held.pop(path, 0)
        self.held_bytes -= size
        self._window.held_bytes -= size


def window() -> Window:
    """The window of this process; a process made by a fork has its own."""
    return _window(os.getpid())


@lru_cache(maxsize=1)
def _window(pid: int) -> Window:
    return Window()
