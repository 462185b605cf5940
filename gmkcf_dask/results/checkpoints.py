"""Checkpoints of a running fit: two generations in a folder, each an npz and a JSON file.

Generations take turns, so that a write that fails, or a crash in it, costs the older one at most.
The JSON file is written last and holds the digests of both, the state, and whose it is; nothing is
read that does not agree with it, and nothing is ever unpickled.
"""

from __future__ import annotations

import json
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt
from msgspec import structs

from gmkcf_dask.errors import (
    CheckpointError,
    DamagedCheckpointError,
    DataWarning,
    HopelessError,
    InputError,
    StorageError,
)
from gmkcf_dask.results.schemas import CHECKPOINT_FORMAT, CheckpointFile, validated
from gmkcf_dask.results.serialize import (
    DAMAGE,
    check_seal,
    digest,
    jsonable,
    pack,
    read_arrays,
    seal,
    short_error,
    unpack,
)
from gmkcf_dask.store.files import (
    exists,
    get,
    is_link,
    make_folders,
    names_in,
    npz_bytes,
    put_atomic,
    remove,
)
from gmkcf_dask.store.object_storage import is_remote

FOLDER = "checkpoint"
SHARE_OF_TIME = 0.05
"""Largest share of the time that writing may take, where no interval is given."""
LEAST_SECONDS = 1.0
_GENERATIONS = ("0", "1")
_OWN_FILES = re.compile(r"[01]\.(npz|json)|\.[01]\.(npz|json)\.[0-9a-f]{32}")

Fingerprint = Mapping[str, Any]
"""What a checkpoint must have in common with the run that resumes from it, by name."""


@dataclass(frozen=True)
class Checkpoint:
    """A state that was read, and the warnings until then."""

    serial: int
    fingerprint: dict[str, Any]
    state: dict[str, Any]
    notes: tuple[str, ...]


def _no_lock() -> None:
    """Without a lock there is nothing to confirm."""


class RunCheckpoints:
    """Keeps the newest state of a fit, in memory after every iteration and on disk now and then.

    Parameters
    ----------
    folder : Path
        Made with the first checkpoint.
    fingerprint : mapping
    every : int or None
        Iterations between checkpoints; None for as often as it costs little time.
    resumed : Checkpoint or None
        Where to resume.
    still_ours : callable
        Raises where somebody else has taken the folder over: two would undo each other's work.
    notes : sequence of str
        What there is to say already; kept in every checkpoint.
    warned : sequence of WarningMessage
        Warnings of the fit, as they are recorded.
    """

    def __init__(
        self,
        folder: Path,
        fingerprint: Fingerprint,
        every: int | None = None,
        resumed: Checkpoint | None = None,
        still_ours: Callable[[], None] = _no_lock,
        notes: Sequence[str] = (),
        warned: Sequence[warnings.WarningMessage] = (),
    ) -> None:
        check_interval(every)
        self.folder = folder
        self._still_ours = still_ours
        self.resumed = None if resumed is None else resumed.state
        self._notes = (*notes, *(() if resumed is None else resumed.notes))
        self._warned = warned
        self._fingerprint = dict(fingerprint)
        self._every = every
        self._serial = 0 if resumed is None else resumed.serial
        self._newest: dict[str, Any] | None = None
        self._iterations = 0
        self._written, self._cost = time.monotonic(), 0.0

    @property
    def notes(self) -> list[str]:
        """What there is to say so far, each once."""
        new = (str(warning.message) for warning in self._warned)
        return list(dict.fromkeys((*self._notes, *new)))

    def keep(self, state: dict[str, Any]) -> None:
        """Remember a state; write it if it is time to."""
        self._newest = state
        self._iterations += 1
        since = time.monotonic() - self._written
        if self._every is not None:
            due = self._iterations >= self._every
        else:
            due = since > max(LEAST_SECONDS, self._cost / SHARE_OF_TIME)
        if due:
            self.write()

    def write(self) -> None:
        """Write the newest state, if it is not on disk yet."""
        if self._newest is None:
            return
        begin = time.monotonic()
        serial = self._serial + 1
        content = _encode(serial, self._fingerprint, self._newest, self.notes)
        generation = self.folder / _GENERATIONS[serial % 2]
        try:
            self._still_ours()
            _refuse_link(self.folder)
            make_folders(self.folder)
            for suffix, written in zip((".npz", ".json"), content, strict=True):
                put_atomic(generation.with_suffix(suffix), written)
        except (OSError, StorageError) as error:
            size = sum(map(len, content))
            reason = getattr(error, "strerror", None) or error
            raise CheckpointError(
                f"cannot write a checkpoint of {size:,} bytes to {self.folder}: "
                f"{reason}; the one before it is whole"
            ) from error
        self._serial, self._newest, self._iterations = serial, None, 0
        self._written = time.monotonic()
        self._cost = self._written - begin

    @contextmanager
    def until_done(self) -> Iterator[None]:
        """Whatever breaks the work off leaves its last complete iteration on disk."""
        try:
            yield
        except DamagedCheckpointError:
            raise  # the other generation may be whole
        except HopelessError:
            remove_checkpoints(self.folder)  # resuming after any other error can succeed
            raise
        except BaseException:
            self.write()
            raise


def check_interval(every: object) -> None:
    """Refuse what cannot be a number of iterations between checkpoints."""
    if every is not None and (isinstance(every, bool) or not isinstance(every, int) or every < 1):
        raise InputError(f"checkpoints are every 1 or more iterations, not {every!r}")


def open_checkpoints(
    folder: Path,
    fingerprint: Fingerprint,
    every: int | None = None,
    *,
    resume: bool = False,
    still_ours: Callable[[], None] = _no_lock,
    earlier: Fingerprint | None = None,
    notes: Sequence[str] = (),
    warned: Sequence[warnings.WarningMessage] = (),
) -> RunCheckpoints:
    """Checkpoints for a run, which resumes from those in a folder with `resume`.

    Those of another run are refused. `earlier` is the fingerprint as an earlier version wrote it.
    """
    if not resume:
        remove_checkpoints(folder)
    newest = read_checkpoint(folder) if resume else None
    if newest is not None:
        different = fingerprint_differences(newest.fingerprint, jsonable(dict(fingerprint)))
        if different and (earlier is None or newest.fingerprint != jsonable(dict(earlier))):
            raise InputError(
                f"the checkpoint in {folder} is of another run, it differs in "
                f"{'; '.join(different)}: use the same, or start again in another folder"
            )
    return RunCheckpoints(
        folder, jsonable(dict(fingerprint)), every, newest, still_ours, notes, warned
    )


def has_checkpoint(folder: Path) -> bool:
    """Whether there are files of a checkpoint, whole or not."""
    return bool(_generations(folder))


def may_resume(folder: Path) -> bool:
    """The same, when something has gone wrong: an object store that is lost may have some."""
    try:
        return has_checkpoint(folder)
    except StorageError:
        return True


def _generations(folder: Path) -> list[str]:
    return [name for name in _GENERATIONS if exists(folder / f"{name}.json")]


def remove_checkpoints(folder: Path) -> None:
    """Remove our own files from a folder, and the folder if nothing else is in it."""
    if is_link(folder):
        return
    for name in names_in(folder):
        path = folder / name
        if _OWN_FILES.fullmatch(name) and (is_remote(path) or not path.is_dir()):
            remove(path)
    if is_remote(folder):
        return
    with suppress(OSError):  # somebody else's files, or no folder
        folder.rmdir()


def read_checkpoint(folder: Path) -> Checkpoint | None:
    """The newest checkpoint that is whole; None where there is none at all."""
    _refuse_link(folder)
    there = _generations(folder)
    if not there:
        return None
    whole, broken = [], []
    for name in there:
        try:
            whole.append(_read_generation(folder / name))
        except DAMAGE as error:
            broken.append(f"{name}: {short_error(error)}")
    if not whole:
        raise InputError(
            f"no checkpoint in {folder} can be used, they are damaged ({'; '.join(broken)}): "
            "start again with --overwrite, or remove the folder"
        )
    newest = max(whole, key=lambda one: one.serial)
    if broken:
        warnings.warn(
            f"a checkpoint in {folder} is damaged or was not finished, the other one is used",
            DataWarning,
            stacklevel=2,
        )
    return newest


def fingerprint_differences(
    present: Fingerprint, wanted: Fingerprint, what: str = "checkpoint"
) -> list[str]:
    """The fields in which two fingerprints differ, in words.

    >>> fingerprint_differences({"seed": 1, "samples": 9}, {"seed": 2, "samples": 9})
    ['seed (checkpoint: 1, requested: 2)']
    """
    present, wanted = {**_IMPLIED, **present}, {**_IMPLIED, **wanted}
    names = [*wanted, *(name for name in present if name not in wanted)]
    return [
        f"{name} ({what}: {present.get(name)}, requested: {wanted.get(name)})"
        for name in names
        if present.get(name) != wanted.get(name)
    ]


_IMPLIED = {"assign": "kmeans"}
"""What fingerprints mean that do not have the word, see `Method.parameters`."""


# encoding


def _encode(
    serial: int, fingerprint: Fingerprint, state: Mapping[str, Any], notes: list[str]
) -> tuple[bytes, bytes]:
    arrays: dict[str, npt.NDArray[Any]] = {}
    packed = pack(state, arrays)
    content = npz_bytes(arrays, compressed=False)
    file = CheckpointFile(
        CHECKPOINT_FORMAT, serial, dict(fingerprint), digest(content), packed, notes
    )
    return content, seal(structs.asdict(file))


def _read_generation(path: Path) -> Checkpoint:
    body = json.loads(get(path.with_suffix(".json")) or b"")
    check_seal(body, "its digest does not fit")
    file = validated(body, CheckpointFile)
    content = get(path.with_suffix(".npz"), sys.maxsize) or b""
    if file.arrays != digest(content):
        raise ValueError("the digest of its arrays does not fit")
    state = unpack(file.state, read_arrays(content))
    return Checkpoint(file.serial, file.fingerprint, state, tuple(file.notes))


def _refuse_link(folder: Path) -> None:
    if is_link(folder):
        raise InputError(f"{folder} is a link: checkpoints are not written or read through one")
