"""Workers of a local cluster that are killed."""

from __future__ import annotations

import os
import signal
import threading
import time


def two_settled(client):
    """Two workers, and none just being started: Dask gives one up that is killed in its start."""
    until = time.monotonic() + 60
    while True:
        client.wait_for_workers(2, timeout=60)
        states = client.run(lambda dask_worker: dask_worker.status.name, nanny=True)
        if list(states.values()) == ["running"] * 2:
            return
        assert time.monotonic() < until, states
        time.sleep(0.2)


def kill_one(client, seconds=0.0):
    """Kill a worker after a moment, from another thread: work goes on meanwhile."""
    pid = next(iter(client.run(os.getpid).values()))

    def later():
        time.sleep(seconds)
        os.kill(pid, signal.SIGKILL)

    thread = threading.Thread(target=later)
    thread.start()
    return thread
