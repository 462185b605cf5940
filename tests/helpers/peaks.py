"""The memory that a piece of work takes at its peak."""

import tracemalloc


def peak_of(work):
    """Bytes that work itself holds at its peak, beyond what was there before.

    The scheduler of a cluster that another test left open lives in this process and allocates
    beside the work, more than once a second. What it adds is never less than nothing, and what the
    work takes is the same every time: the least of several peaks is the work's own.
    """
    work()  # caches of opened arrays are not part of the task
    return min(_traced(work) for _ in range(9))


def _traced(work):
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        work()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
