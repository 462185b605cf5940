"""One BLAS thread per task: parallelism comes from tiles, and sums keep their order."""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import cache
from typing import Any, TypeVar

import numpy.typing as npt
from threadpoolctl import ThreadpoolController

from gmkcf_dask.system import resources

Item = TypeVar("Item")
T = TypeVar("T")


@cache
def _controller() -> Any:
    # finding the loaded libraries reads the process's memory map: milliseconds, so once
    import scipy.linalg  # noqa: F401  (brings the second BLAS that must be found)

    return ThreadpoolController()


@cache
def own_cores() -> int:
    """Cores this process may use; asked once, for every product wants to know."""
    return resources.cores()


def on_cores(prepare: Callable[[], Callable[[Item], T]], items: Sequence[Item]) -> list[T]:
    """Work on items, on all cores; results in their order.

    Each core prepares once, so that it can use the same buffers for all its items, and takes the
    next item when it is done with one.
    """
    results: dict[int, T] = {}
    todo = deque(enumerate(items))  # taking from it is atomic

    def run() -> None:
        work = prepare()
        while True:
            try:
                number, item = todo.popleft()
            except IndexError:
                return
            try:
                results[number] = work(item)
            except BaseException:
                todo.clear()  # the others stop at their next item
                raise

    # threads of this call: a pool kept for the next one would not survive a fork
    with ThreadPoolExecutor(own_cores()) as pool:
        runs = [pool.submit(run) for _ in range(min(own_cores(), len(items)))]
        try:
            for one in runs:
                one.result()
        finally:
            todo.clear()  # also where waiting was interrupted
    return [results[number] for number in range(len(items))]


def axpy(a: float, x: npt.NDArray[Any], y: npt.NDArray[Any]) -> None:
    """y += a·x in one pass, for C-contiguous arrays of the same shape and float dtype.

    NumPy would need two passes and a temporary; SciPy's own wrapper keeps other threads waiting.
    """
    assert x.dtype == y.dtype
    assert x.shape == y.shape
    assert x.flags.c_contiguous
    assert y.flags.c_contiguous
    assert x.size < 2**31  # what BLAS counts with
    function, number = _axpy(x.dtype.char)
    size = ctypes.c_int(x.size)
    function(size, number(a), x.ctypes.data, _ONE, y.ctypes.data, _ONE)


_ONE = ctypes.c_int(1)


@cache
def _axpy(char: str) -> tuple[Any, Any]:
    """BLAS's axpy as SciPy offers it to C code: called through ctypes it releases the GIL."""
    from scipy.linalg import cython_blas

    name, number = {"f": ("saxpy", ctypes.c_float), "d": ("daxpy", ctypes.c_double)}[char]
    capsule = cython_blas.__pyx_capi__[name]  # type: ignore[literal-required]
    api = ctypes.pythonapi
    api.PyCapsule_GetName.restype = ctypes.c_char_p
    api.PyCapsule_GetName.argtypes = [ctypes.py_object]
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    address = api.PyCapsule_GetPointer(capsule, api.PyCapsule_GetName(capsule))
    integer, values = ctypes.POINTER(ctypes.c_int), ctypes.c_void_p
    signature = ctypes.CFUNCTYPE(
        None, integer, ctypes.POINTER(number), values, integer, values, integer
    )
    return signature(address), number


def one_blas_thread() -> AbstractContextManager[Any]:
    """A context in which BLAS runs on one thread."""
    limits: AbstractContextManager[Any] = _controller().limit(limits=1)
    return limits
