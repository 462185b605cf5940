"""A run folder: labels.csv, factors.npz and result.json, which is written last.

insight.json, what the clusters mean, comes after them: a run is complete without it.
"""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt
from msgspec import UNSET

from gmkcf_dask.errors import DamagedModelError, InputError, redacted_tree
from gmkcf_dask.kernels.specs import is_plain_name
from gmkcf_dask.results.checkpoints import (
    FOLDER,
    Fingerprint,
    fingerprint_differences,
    has_checkpoint,
)
from gmkcf_dask.results.csv_cells import cell_text, csv_lines, escaped_cell
from gmkcf_dask.results.schemas import Insight, RunResult, parse_insight, plain_values, validated
from gmkcf_dask.results.serialize import jsonable
from gmkcf_dask.store.files import (
    check_writable,
    confined,
    exists,
    get,
    is_link,
    is_no_folder,
    make_folder,
    names_in,
    npz_bytes,
    put_atomic,
    read,
    refuse_link,
    remove,
)
from gmkcf_dask.store.object_storage import is_remote

LABELS, RESULT, FACTORS = "labels.csv", "result.json", "factors.npz"
INSIGHT, REPORT = "insight.json", "report.html"
OWN_FILES = (RESULT, LABELS, FACTORS, INSIGHT, REPORT)
_MOST_INSIDE = 100
"""Names in a folder that are looked at for runs."""
_MOST_INSIGHT_BYTES = 1 << 29
"""About a million documents with titles and excerpts."""


def check_run_folder(
    path: Path, *, overwrite: bool, resume: bool = False, inside: Path | None = None
) -> None:
    """Refuse a folder that holds another run, finished or not, or cannot be written.

    With `resume` it may hold a finished one: whether it is the same is for `holds_run` to say.
    `inside` is the folder it must not lead out of, where its name was made by us.
    """
    if inside is not None:
        confined(path, inside)
    if overwrite:
        refuse_link(path, "a run")
    if is_link(path) and not path.exists():
        raise InputError(f"{path} is a link that leads nowhere: choose a folder for the run")
    if is_no_folder(path):
        raise InputError(f"{path} is a file: choose a folder for the run")
    check_writable(path, "the run")
    begun = has_checkpoint(path / FOLDER)
    if begun and not (overwrite or resume):
        raise InputError(
            f"{path} holds the checkpoint of an unfinished run: resume it with --resume, or start "
            "again with --overwrite"
        )
    present = [name for name in OWN_FILES if exists(path / name)]
    # a run that was allowed to overwrite them may do so again when it resumes
    if present and not (overwrite or (resume and (begun or RESULT in present))):
        raise InputError(
            f"{path} holds another run ({', '.join(present)}): choose another folder or --overwrite"
        )


def holds_run(path: Path, fingerprint: Fingerprint, *others: Fingerprint) -> bool:
    """Whether a folder holds the results of just this run; refused if they are of another one.

    `others` are the same fingerprint as earlier versions wrote it.
    """
    if not exists(path / RESULT):
        return False
    of_run = read_result(path).fingerprint
    if of_run is UNSET:
        raise InputError(
            f"{path} holds another run without a fingerprint: choose another folder or --overwrite"
        )
    different = fingerprint_differences(of_run, redacted_tree(jsonable(fingerprint)), "run")
    if different and of_run not in [redacted_tree(jsonable(other)) for other in others]:
        raise InputError(
            f"{path} holds another run, which differs in {'; '.join(different)}: use the same, "
            "choose another folder or --overwrite"
        )
    return exists(path / LABELS) and exists(path / FACTORS)


def remove_run(path: Path) -> None:
    """Remove the files of a run, result.json first; nothing happens where there is none.

    A file that is a link is removed itself, not what it points to.
    """
    files = [path / name for name in OWN_FILES]
    present = [file for file in files if exists(file) or is_link(file)]
    if present:
        refuse_link(path, "a run")
    for file in present:
        remove(file)


def write_run(
    path: Path,
    ids: tuple[str, ...],
    labels: npt.NDArray[Any],
    factors: Mapping[str, npt.NDArray[Any]],
    result: RunResult,
) -> None:
    """Write all three files; a reader that finds result.json finds the others complete.

    The insight of an earlier run is removed. With `escaped_ids`, ids are written as cells that no
    spreadsheet program computes.
    """
    make_folder(path, "the run")
    sweep_run(path)
    for name in (RESULT, REPORT, INSIGHT):
        remove(path / name)
    cells = map(escaped_cell, ids) if result.escaped_ids else ids
    rows = zip(cells, labels.tolist(), strict=True)
    text = csv_lines([["id", "label"]]) + csv_lines(rows)
    put_atomic(path / LABELS, text.encode())
    put_atomic(path / FACTORS, npz_bytes(factors))
    write_result(path, result)


def sweep_run(path: Path) -> None:
    """Remove what a killed run left half written beside its results."""
    if is_remote(path):
        return  # nothing there is ever half written
    left = re.compile(rf"\.({'|'.join(map(re.escape, OWN_FILES))})\.[0-9a-f]{{32}}")
    for name in names_in(path):
        if left.fullmatch(name) and not (path / name).is_dir():
            remove(path / name)


def write_result(path: Path, result: RunResult) -> None:
    """Write result.json, or write it anew."""
    # in ASCII: the path of a store need not be text in any encoding
    put_atomic(path / RESULT, json.dumps(redacted_tree(plain_values(result)), indent=1).encode())


def write_insight(path: Path, insight: Insight) -> None:
    """Write insight.json: numbers are finite, texts as they came."""
    content = plain_values(insight)
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # half a character, as names of files can have, stays what it is in JSON
    put_atomic(path / INSIGHT, text.encode("utf-8", "backslashreplace"))


def read_insight(path: Path) -> Insight:
    """insight.json of a run folder.

    Raises
    ------
    InputError
        There is none, it is damaged, or of a newer version.
    """
    content = get(path / INSIGHT, _MOST_INSIGHT_BYTES)
    if content is None:
        refuse_several(path)
        if not exists(path):
            raise InputError(f"{path} does not exist: give the folder of a finished run")
        raise InputError(
            f"{path} has no {INSIGHT}, so there is nothing to report: run gmkcf fit again with "
            "--overwrite, or give the folder of a finished run"
        )
    try:
        return parse_insight(json.loads(content))
    except InputError as error:
        raise InputError(f"{path / INSIGHT} cannot be used: {error}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{path / INSIGHT} is damaged: remove it and make it again with gmkcf report "
            f"{shlex.quote(str(path))}"
        ) from error


def read_result(path: Path) -> RunResult:
    """result.json of a run folder."""
    content = get(path / RESULT)
    if content is None:
        refuse_several(path)
        raise InputError(f"{path} is not a finished run: it has no {RESULT}")
    try:
        return validated(json.loads(content), RunResult)
    except (ValueError, RecursionError) as error:
        raise DamagedModelError(
            f"{path / RESULT} is damaged ({' '.join(str(error).split())[:100]}): run again with "
            "--overwrite"
        ) from error


def refuse_several(path: Path) -> None:
    """Refuse a folder of runs, one for each kernel, where a run is wanted: its runs are named."""
    if exists(path / RESULT) or not exists(path) or is_no_folder(path):
        return
    inside = sorted(filter(is_plain_name, names_in(path)))[:_MOST_INSIDE]
    runs = [str(path / name) for name in inside if exists(path / name / RESULT)]
    if runs:
        raise InputError(f"{path} holds runs of several kernels: give one of {', '.join(runs)}")


def read_labels(path: Path) -> dict[str, str]:
    """Labels by id from a CSV file whose columns are id,label."""
    try:
        with io.StringIO(read(path).decode("utf-8-sig"), newline="") as file:
            rows = csv.DictReader(file)
            columns = rows.fieldnames or []
            if not {"id", "label"} <= set(columns):
                raise InputError(
                    f"{path} must have the columns id,label; it has {', '.join(columns) or 'none'}"
                )
            labels: dict[str, str] = {}
            for row in rows:
                if row["id"] is None or row["label"] is None:
                    raise InputError(f"line {rows.line_num} of {path} lacks an id or a label")
                if row["id"] in labels:
                    raise InputError(f"{path} names the id {row['id']!r} twice")
                labels[row["id"]] = row["label"]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"cannot read labels from {path}: {error}") from error
    return labels


def labels_of_run(path: Path, result: RunResult) -> dict[str, str]:
    """labels.csv of a run folder, by ids as the input had them; `result` is its result.json."""
    labels = read_labels(path / LABELS)
    if not result.escaped_ids:
        return labels
    return {cell_text(cell): label for cell, label in labels.items()}


def match_labels(predicted: dict[str, str], known: dict[str, str]) -> tuple[list[str], list[str]]:
    """Known and predicted labels of the same samples, in the order of the run.

    Ids of the known ones are as the input had them, or else all of them are escaped as in
    labels.csv.
    """
    missing = [name for name in predicted if name not in known]
    cells = [escaped_cell(name) for name in predicted]
    if missing and all(cell in known for cell in cells):
        return [known[cell] for cell in cells], list(predicted.values())
    if missing:
        raise InputError(
            f"{len(missing)} of {len(predicted)} samples have no known label (first: id "
            f"{missing[0]!r}): the file must name every id of labels.csv"
        )
    return [known[name] for name in predicted], list(predicted.values())
