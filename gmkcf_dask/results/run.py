"""A run folder: labels.csv, factors.npz and result.json, the last written last.

What the clusters mean, insight.json, comes after them: a run is whole without it.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt

from gmkcf_dask.errors import InputError
from gmkcf_dask.files import (
    check_writable,
    exists,
    get,
    is_link,
    is_no_folder,
    make_folder,
    names_in,
    npz_bytes,
    put_atomic,
    read,
    remove,
)
from gmkcf_dask.redact import redacted_tree
from gmkcf_dask.results.checkpoints import (
    FOLDER,
    Fingerprint,
    differences,
    has_checkpoint,
    plain,
)
from gmkcf_dask.security import confined, is_plain_name, refuse_link

LABELS, RESULT, FACTORS = "labels.csv", "result.json", "factors.npz"
INSIGHT, REPORT = "insight.json", "report.html"
OWN_FILES = (RESULT, LABELS, FACTORS, INSIGHT, REPORT)
_MOST_INSIDE = 100
"""Names in a folder that are looked at for runs."""


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
            f"{path} holds the checkpoint of a run that did not come to its end: go on from it "
            "with --resume, or start anew with --overwrite"
        )
    held = [name for name in OWN_FILES if exists(path / name)]
    # a run that was allowed to overwrite them is allowed to when it goes on
    if held and not (overwrite or (resume and (begun or RESULT in held))):
        raise InputError(
            f"{path} holds another run ({', '.join(held)}): choose another folder or --overwrite"
        )


def holds_run(path: Path, fingerprint: Fingerprint) -> bool:
    """Whether a folder holds the results of just this run; refused if they are of another one."""
    if not exists(path / RESULT):
        return False
    found = read_result(path).get("fingerprint")
    if not isinstance(found, dict):
        raise InputError(
            f"{path} holds another run, which does not say of what: choose another folder or "
            "--overwrite"
        )
    different = differences(found, redacted_tree(plain(fingerprint)), "run")
    if different:
        raise InputError(
            f"{path} holds another run, it differs in {'; '.join(different)}: ask for the same, "
            "choose another folder or --overwrite"
        )
    return exists(path / LABELS) and exists(path / FACTORS)


def remove_run(path: Path) -> None:
    """Remove the files of a run, result.json first; nothing happens where there is none.

    A file that is a link is removed itself, not what it points to.
    """
    files = [path / name for name in OWN_FILES]
    held = [file for file in files if exists(file) or is_link(file)]
    if held:
        refuse_link(path, "a run")
    for file in held:
        remove(file)


def write_run(
    path: Path,
    ids: tuple[str, ...],
    labels: npt.NDArray[Any],
    factors: Mapping[str, npt.NDArray[Any]],
    result: Mapping[str, Any],
) -> None:
    """Write all three files; a reader that finds result.json finds the others complete.

    What an earlier run meant goes with its result.
    """
    make_folder(path, "the run")
    remove(path / RESULT)
    remove(path / REPORT)
    remove(path / INSIGHT)
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["id", "label"])
    rows.writerows(zip(ids, labels.tolist(), strict=True))
    put_atomic(path / LABELS, text.getvalue().encode())
    put_atomic(path / FACTORS, npz_bytes(factors))
    write_result(path, result)


def write_result(path: Path, result: Mapping[str, Any]) -> None:
    """Write result.json, or write it anew."""
    # in ASCII: the path of a store need not be text in any encoding
    put_atomic(path / RESULT, json.dumps(redacted_tree(result), indent=1).encode())


def write_insight(path: Path, insight: Mapping[str, Any]) -> None:
    """Write insight.json: numbers are finite, texts as they came."""
    text = json.dumps(insight, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # half a character, as names of files can have, stays what it is in JSON
    put_atomic(path / INSIGHT, text.encode("utf-8", "backslashreplace"))


def read_result(path: Path) -> dict[str, Any]:
    """result.json of a run folder."""
    content = get(path / RESULT)
    if content is None:
        refuse_several(path)
        raise InputError(f"{path} is not a finished run: it has no {RESULT}")
    try:
        result: dict[str, Any] = json.loads(content)
        if not isinstance(result["store"], str):
            raise TypeError("store")
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"{path / RESULT} is damaged: run again with --overwrite") from error
    return result


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
            found: dict[str, str] = {}
            for row in rows:
                if row["id"] is None or row["label"] is None:
                    raise InputError(f"line {rows.line_num} of {path} lacks an id or a label")
                if row["id"] in found:
                    raise InputError(f"{path} names the id {row['id']!r} twice")
                found[row["id"]] = row["label"]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"cannot read labels from {path}: {error}") from error
    return found


def match_labels(predicted: dict[str, str], known: dict[str, str]) -> tuple[list[str], list[str]]:
    """Known and predicted labels of the same samples, in the order of the run."""
    missing = [name for name in predicted if name not in known]
    if missing:
        raise InputError(
            f"{len(missing)} of {len(predicted)} samples have no known label (first: id "
            f"{missing[0]!r}): the file must name every id of labels.csv"
        )
    return [known[name] for name in predicted], list(predicted.values())
