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
    """A line for the state of a run folder, of those inside it (one per kernel), and of the store.

    The number of files of the store counts: no checkpoint is written before it is complete.
    """
    folders = [out, *(out / name for name in sorted(names_in(out)) if name != "checkpoint")]
    lines = [f"{folder.name}/{line}\n" for folder in folders for line in _marks(folder)]
    digest = blake2b("".join(lines).encode(), digest_size=8).hexdigest()
    if store is None:
        n_files = 0
    elif is_remote(store):
        n_files = len(sizes_below(store))
    else:
        n_files = sum(len(files) for _, _, files in os.walk(store))
    return f"{digest} {n_files}"


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
