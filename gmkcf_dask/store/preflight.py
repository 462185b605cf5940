"""Asked of every worker before work starts: whether it sees the store, and may write there."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from gmkcf_dask.compute.runner import Runner
from gmkcf_dask.errors import (
    BlindWorkersError,
    InputError,
    StorageError,
    StorageRefused,
    StoreError,
)
from gmkcf_dask.store.files import put_if_absent, remove, resolved
from gmkcf_dask.store.manifest import Manifest
from gmkcf_dask.store.object_storage import location
from gmkcf_dask.store.scratch import can_keep_scratch


@dataclass(frozen=True)
class View:
    """What one process sees of a store."""

    host: str
    store_id: str | None
    """The store's own id; None where no store is seen."""
    trouble: str | None
    """Why it cannot be read or, where that was requested, written."""


def look(path: str, *, write: bool) -> View:
    """See a store from this process; with `write`, put a small file into it and take it away."""
    host = socket.gethostname()
    try:
        store = location(path)  # here, where the package for a URL may be missing
        store_id = Manifest.read(store).store_id
    except (StoreError, InputError, StorageRefused, OSError) as error:
        return View(host, None, str(error))
    return View(host, store_id, write_trouble(store) if write else None)


def write_trouble(folder: Path) -> str | None:
    """Why nothing can be written into a folder, or below a URL; None where it can."""
    # as the leftovers of a killed writer are named, so that even this one is swept some day
    probe = folder / f".probe.{uuid4().hex}"
    try:
        put_if_absent(probe, b"")
        remove(probe)
    except OSError as error:
        return error.strerror or str(error)
    except StorageRefused as error:
        return str(error)
    return None


@dataclass(frozen=True)
class StoreInSight:
    """Needed by tasks: their worker sees this very store, and may write where it has to."""

    path: str
    store_id: str
    write: bool

    def __call__(self) -> str | None:
        """What is wrong here; None where nothing is, which each process finds out once."""
        if self in _PASSED:
            return None
        wrong = trouble_with(look(self.path, write=self.write), self.store_id)
        if wrong is None:
            _PASSED.add(self)
            return None
        return f"{wrong}: {_everywhere(self.path, write=self.write)}"


_PASSED: set[StoreInSight] = set()


def may_keep_scratch(runner: Runner, store: Path) -> bool:
    """Whether fused kernels can be kept beside a store, by this process and every worker."""
    if not can_keep_scratch(store):
        return False
    folder = resolved(store).parent
    if write_trouble(folder) is not None:
        return False
    answers = runner.run_on_workers(write_trouble, folder).values()
    # one that went away meanwhile has no say
    return all(
        one is None or (isinstance(one, OSError) and not isinstance(one, TimeoutError))
        for one in answers
    )


def refuse_blind_workers(runner: Runner, path: Path, store_id: str, *, write: bool) -> None:
    """Before work: every worker sees this very store, and may write into it where it has to.

    Those that come later look before their first task. Raises a BlindWorkersError, or a
    StorageError where an object store does not answer, which says nothing of the workers.
    """
    views = runner.run_on_workers(look, str(path), write=write)
    for view in views.values():
        if isinstance(view, StorageError):
            raise view
    wrong = [words for where, view in views.items() if (words := _wrong(where, view, store_id))]
    if wrong:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise BlindWorkersError(
            f"{wrong[0]}{more}: {_everywhere(str(path), write=write)}; gmkcf doctor tells it of "
            "each worker"
        )
    runner.checks.add(StoreInSight(str(path), store_id, write))


def _everywhere(path: str, *, write: bool) -> str:
    need = "see and write it" if write else "see it"
    return (
        f"put the store at {path} where every worker can {need}, such as a shared file system or "
        "an object store"
    )


def _wrong(where: str, view: Any, store_id: str) -> str | None:
    if isinstance(view, TimeoutError):
        return f"worker {where} did not report whether it can access the store ({view})"
    if isinstance(view, OSError):  # it went away meanwhile: whoever runs tasks knows what to do
        return None
    if not isinstance(view, View):  # an error instead of an answer
        return f"worker {where} cannot look for the store ({view})"
    wrong = trouble_with(view, store_id)
    return None if wrong is None else f"worker {where} on {view.host} {wrong}"


def trouble_with(view: View, store_id: str) -> str | None:
    """What is wrong with what a process sees, as the end of a sentence about it."""
    if view.store_id is None:
        return f"does not see the store ({view.trouble})"
    if view.store_id != store_id:
        return "sees another store there"
    return None if view.trouble is None else f"cannot write to the store ({view.trouble})"
