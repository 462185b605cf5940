"""Loops compiled by Numba: on their first call, for one thread, without the lock of Python.

Numba is imported by that first call, so that modules with such loops load as fast as others.

Machine code is kept between processes where that is safe. Numba's files are pickles: who can write
them runs code as this user. They are therefore read and written in the user's own cache folder
only (`cache_folder`), and nowhere if that one is not private. A cache that is damaged, full or
read-only costs time, never a result.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import suppress
from functools import update_wrapper
from pathlib import Path
from threading import Lock
from types import FunctionType
from typing import Any, Generic, ParamSpec, TypeVar, cast

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_compiling = Lock()


class Compiled(Generic[Arguments, Result]):
    """A function that Numba compiles when it is first called, once per types of arguments.

    No fast mathematics and no threads: results have the same bits on every run. It may call other
    compiled functions of its own file; those of other files could change without the cache
    noticing.
    """

    def __init__(self, function: Callable[Arguments, Result]) -> None:
        self._function = function
        self._dispatcher: Callable[Arguments, Result] | None = None
        update_wrapper(self, function)

    def __call__(self, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        if self._dispatcher is None:
            with _compiling:
                self._prepare()
        assert self._dispatcher is not None
        return self._dispatcher(*args, **kwargs)

    def _prepare(self) -> Callable[Arguments, Result]:
        """The function as Numba's; called by one thread at a time."""
        if self._dispatcher is None:
            import numba

            function = cast(FunctionType, self._function)
            used = {name: function.__globals__.get(name) for name in function.__code__.co_names}
            compiled_ones = {
                name: each._prepare() for name, each in used.items() if isinstance(each, Compiled)
            }
            # Numba knows its own functions only: here they take the place of ours
            known = FunctionType(
                function.__code__, {**function.__globals__, **compiled_ones}, function.__name__
            )
            known.__qualname__, known.__module__ = function.__qualname__, function.__module__
            dispatcher = numba.njit(nogil=True, fastmath=False, parallel=False, cache=False)(known)
            folder = cache_folder(numba.__version__)
            if folder is not None:
                _keep(dispatcher, folder)
            self._dispatcher = dispatcher
        return self._dispatcher


def compiled(function: Callable[Arguments, Result]) -> Compiled[Arguments, Result]:
    """Compile a function of numbers and arrays on its first call."""
    return Compiled(function)


def cache_folder(numba_version: str) -> Path | None:
    """The private folder for machine code; None if there is none that only this user can write.

    It is ``gmkcf_dask/numba-VERSION`` in XDG_CACHE_HOME or ``~/.cache``. It and the folder it is in
    are made with mode 0700, belong to this user, are no links, and nobody else may write them or
    replace a folder above them.
    """
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        # the standard: a path that is not absolute does not count
        root = given if given.is_absolute() else Path.home() / ".cache"
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        root = root.resolve(strict=True)
        if not all(_only_owner_replaces_entries(each) for each in (root, *root.parents)):
            return None
        folder = root
        for name in ("gmkcf_dask", f"numba-{numba_version}"):
            folder = folder / name
            folder.mkdir(mode=0o700, exist_ok=True)
            if not _is_private(folder):
                return None
    except (OSError, RuntimeError):  # no home, a read-only one, a file in the way
        return None
    return folder if os.access(folder, os.W_OK | os.X_OK) else None


def _is_private(folder: Path) -> bool:
    stat_result = folder.lstat()
    return (
        stat.S_ISDIR(stat_result.st_mode)
        and stat_result.st_uid == os.geteuid()
        and not stat_result.st_mode & _OTHERS_WRITE
    )


def _only_owner_replaces_entries(folder: Path) -> bool:
    """Whether entries of this user there are safe.

    The folder belongs to this user or to root, and others cannot write there, or only with a sticky
    bit.
    """
    stat_result = folder.lstat()
    if stat_result.st_uid not in (0, os.geteuid()):
        return False
    return not stat_result.st_mode & _OTHERS_WRITE or bool(stat_result.st_mode & stat.S_ISVTX)


def _keep(dispatcher: Any, folder: Path) -> None:
    """Let Numba keep the machine code of a function in this folder, and nowhere else.

    Numba's own settings (NUMBA_CACHE_DIR, NUMBA_CACHE_LOCATOR_CLASSES) are for all functions of a
    process, those of other packages too, and its usual places are not checked: hence classes of
    our own. A version of Numba where they do not fit compiles anew in each process.
    """
    try:
        from numba.core.caching import (
            CompileResultCacheImpl,
            FunctionCache,
            UserProvidedCacheLocator,
        )

        class Place(UserProvidedCacheLocator):  # type: ignore[misc]  # Numba has no types
            def __init__(self, function: FunctionType, file: str) -> None:
                self._py_file = file
                self._lineno = function.__code__.co_firstlineno
                self._cache_path = str(folder)

            def get_disambiguator(self) -> str:
                return f"{self.get_suitable_cache_subpath(self._py_file)}-{self._lineno}"

            @classmethod
            def from_function(cls, function: FunctionType, file: str) -> Any:
                return cls(function, file) if Path(file).exists() else None

        class Files(CompileResultCacheImpl):  # type: ignore[misc]
            _locator_classes = (Place,)

        class Cache(FunctionCache):  # type: ignore[misc]
            _impl_class = Files

            def load_overload(self, *args: Any) -> Any:
                try:
                    return super().load_overload(*args)
                except Exception:  # noqa: BLE001  # unpickling a damaged file can raise anything
                    with suppress(OSError):
                        self.flush()  # an empty index, for a good one to be written
                    return None

            def save_overload(self, *args: Any) -> None:
                try:
                    super().save_overload(*args)
                except OSError:  # a full disk or quota: the code is there, only not kept
                    self.disable()

        cache = Cache(dispatcher.py_func)
        if Path(cache.cache_path) == folder:  # Numba's settings may name other places
            dispatcher._cache = cache
    except (AttributeError, ImportError, OSError, RuntimeError, TypeError):
        return
