"""How far a run has come, as one line that changes with every checkpoint and with a growing store.

A batch job compares the line from before and after its driver: a job that is started again and
again without progress has to end. `python -m gmkcf_dask.cluster.submit.progress RUN STORE`
prints it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

from gmkcf_dask.errors import GmkcfError
from gmkcf_dask.store.files import exists, get, names_in
from gmkcf_dask.store.object_storage import is_remote, location, sizes_below

_GENERATIONS = ("0.json", "1.json")
_MOST_BYTES = 1 << 30


def progress_mark(out: Path, store: Path | None = None) -> str:
    """A line for the state of a run folder, of those inside it, and of the store.

    Parameters
    ----------
    out : Path
        With a checkpoint or a result, or with one such folder per kernel.
    store : Path, optional
        Of which the number of files counts, for no checkpoint is written before it is complete.
    """
    folders = [out, *(out / name for name in sorted(names_in(out)) if name != "checkpoint")]
    digest = blake2b(digest_size=8)
    for folder in folders:
        for line in _marks(folder):
            digest.update(f"{folder.name}/{line}\n".encode())
    return f"{digest.hexdigest()} {0 if store is None else _files_in(store)}"


def _marks(folder: Path) -> Iterator[str]:
    if not is_remote(folder) and not folder.is_dir():
        return
    if exists(folder / "result.json"):
        yield "done"
    for name in _GENERATIONS:
        content = get(folder / "checkpoint" / name, _MOST_BYTES)
        if content is not None:
            yield f"{name} {_serial(content)}"


def _serial(content: bytes) -> object:
    try:
        return json.loads(content)["serial"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None  # damaged: the driver says so


def _files_in(store: Path) -> int:
    if is_remote(store):
        return len(sizes_below(store))
    return sum(len(files) for _, _, files in os.walk(store))


def main(words: list[str]) -> int:
    """Print the line; nothing where it cannot be told, which then counts as no progress."""
    try:
        sys.stdout.write(progress_mark(*map(location, words)) + "\n")
    except (GmkcfError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
