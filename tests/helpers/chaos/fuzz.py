"""Malformed files by the thousand: each must be read for what it is, or be one typed sentence.

    .venv/bin/python scripts/chaos fuzz [COUNT] [FOLDER FOR FAILURES] [SEED] [KIND...]

Files are mutations of small valid ones. They are read by workers, processes of their own with
bounded memory, so that a crash of a compiled reader is seen and counted instead of ending the run.
One file in 41 goes through `gmkcf build` as well, which must leave no store behind when it refuses.
A `.mat` file costs a process start in real use; here most are converted inside the worker, which
stands in for that process, one in 51 goes the whole way, and so does every one that crashes.
Files of stores and checkpoints are in `chaos_fuzz_stores.py`; one in 7 goes through commands.
"""

from __future__ import annotations

import gzip
import io
import json
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.io
from scipy import sparse
from sklearn.datasets import dump_svmlight_file

from helpers.chaos.fuzz_stores import (
    KINDS as STORE_KINDS,
    Examples,
    make_example,
    refused,
    valid_store_files,
)
from helpers.chaos.mutations import mutate, random_mutations
from helpers.paths import with_helpers

BATCH = 250
MEMORY = 3 << 30
"""Address space of a worker; a reader that asks for more gets a MemoryError, and says so."""
SECONDS = 10.0
"""Longest time for one file; the slowest valid reading of these small files takes 0.02 s."""
GROWTH = 512 << 20
"""Most resident memory that one file may add to a worker."""
GOOD = ("refused", "read", "contained")


# --- valid files ------------------------------------------------------------------------------


def valid_files() -> dict[str, list[bytes]]:
    """By ending, a few small files that are fine."""
    rng = np.random.default_rng(0)
    X = np.round(rng.random((6, 4)), 3) * (rng.random((6, 4)) > 0.3)
    y = np.array([1, 2, 1, 3, 2, 1])
    names = np.array(list("abcdef"))
    texts = ["green tea", "black, strong tea", 'a "café"', "milk\nand tea", "rien", "tea"]
    records = [{"id": i, "text": t, "label": f"l{i % 2}"} for i, t in enumerate(texts)]
    csv = "id,text,label\n" + "".join(
        f'{i},"{text.replace(chr(34), chr(34) * 2)}",l{i % 2}\n' for i, text in enumerate(texts)
    )
    market = [_market(X), _market(sparse.coo_array(X)), _market(X @ X.T), _market(X > 0.5)]
    return {
        ".npy": [_npy(X), _npy(X.astype(np.float32)), _npy(np.asfortranarray(y[:, None]))],
        ".npz": [
            _npz(X=X, y=y, ids=names),
            _npz(X=X),
            *(_sparse_npz(sparse.csr_array(X).asformat(f)) for f in ("csr", "csc", "coo", "bsr")),
            _sparse_npz(sparse.dia_array(X)),
        ],
        ".mtx": market,
        ".mtx.gz": [gzip.compress(text) for text in market],
        ".svmlight": [_svmlight(X, y), b"1 qid:1 1:0.5 2:1 # note\n-1 qid:2 1:0.25\n"],
        ".mat": [
            _mat({"X": X, "y": y}, do_compression=False),
            _mat({"X": X, "y": y}, do_compression=True),
            _mat({"X": sparse.csc_array(X), "y": y}, do_compression=False),
            _mat({"X": X, "y": np.array(list("abcabc"), dtype=object)}, do_compression=False),
            _mat({"X": X, "y": y}, format="4"),
            _mat({"X": sparse.csc_array(X)}, format="4"),
        ],
        ".jsonl": ["".join(json.dumps(r) + "\n" for r in records).encode()],
        ".csv": [csv.encode()],
        ".yaml": [
            b"gmkcf:\n  kind: local\n  workers: 2\n  memory: 1GiB\n  stall-timeout: 10m\n"
            b"distributed:\n  worker:\n    memory: {spill: 0.8, target: false}\n",
            b"gmkcf:\n  kind: address\n  address: tls://host:8786\n"
            b"  tls: {ca: a.pem, cert: b.pem, key: c.key}\n",
            b"gmkcf: {kind: threads}\n",
        ],
        ".parquet": [_parquet(records, codec) for codec in ("none", "snappy", "zstd")],
        ".insight": [_insight(X)],
    }


def _parquet(records: list[dict[str, object]], codec: str) -> bytes:
    import pyarrow as pa
    from pyarrow import parquet as pq

    file = io.BytesIO()
    columns = {name: [record[name] for record in records] for name in records[0]}
    pq.write_table(pa.table(columns), file, compression=codec, row_group_size=4)
    return file.getvalue()


def _insight(X: np.ndarray) -> bytes:
    """insight.json of a small run."""
    from gmkcf_dask import GMKCF

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = GMKCF(2, kernels="rbf_1,cosine", max_iter=3, random_state=0).fit(X)
        return json.dumps(model.explain(X=X)).encode()


def _npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


def _npz(**arrays: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def _sparse_npz(matrix: object) -> bytes:
    file = io.BytesIO()
    sparse.save_npz(file, matrix)
    return file.getvalue()


def _market(matrix: object) -> bytes:
    file = io.BytesIO()
    scipy.io.mmwrite(file, matrix)
    return file.getvalue()


def _svmlight(X: np.ndarray, y: np.ndarray) -> bytes:
    file = io.BytesIO()
    dump_svmlight_file(X, y, file)
    return file.getvalue()


def _mat(variables: dict[str, object], **how: object) -> bytes:
    file = io.BytesIO()
    scipy.io.savemat(file, variables, **how)
    return file.getvalue()


# --- the worker -------------------------------------------------------------------------------


def read_one(path: Path, *, whole_way: bool = False) -> str:
    """'read' or 'refused'; anything but a typed error goes through and is a failure."""
    from gmkcf_dask.cluster.config import read_config
    from gmkcf_dask.corpus import matlab_child, matrices, read_corpus
    from gmkcf_dask.errors import GmkcfError

    here = path.suffix == ".mat" and not whole_way
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if path.suffix == ".yaml":  # the description of a cluster
                read_config(path)
            elif path.suffix == ".insight":
                _report_one(path)
            elif here:
                with tempfile.TemporaryDirectory() as scratch:
                    report = matlab_child.convert_mat(path, Path(scratch), MEMORY // 4)
                    report = json.loads(json.dumps(report))
                    try:
                        matrices.from_report(report, Path(scratch))
                    except ValueError:  # `read_corpus` makes a sentence of it
                        return "refused"
            else:
                found = read_corpus(path)
                values = found.X if isinstance(found.X, np.ndarray) else found.X.data
                assert np.isfinite(values).all()
                assert len(found.ids) == found.n_samples
    except GmkcfError as error:
        return refused(error)
    return "read"


def _report_one(path: Path) -> None:
    """`gmkcf report` of a run with this insight."""
    from gmkcf_dask.results.report.render import write_report
    from gmkcf_dask.results.run_folder import read_insight

    with tempfile.TemporaryDirectory() as name:
        shutil.copy(path, Path(name, "insight.json"))
        write_report(Path(name), read_insight(Path(name)))


def build_one(path: Path) -> None:
    """`gmkcf build` ends with a code of ours, and leaves nothing behind where it refuses."""
    from click.testing import CliRunner

    from gmkcf_dask.cli import main

    store = path.with_name(f"{path.name}.store")
    how = ["--kernels", "rbf_1,cosine", "--cluster", "threads", "--workers", "1"]
    found = CliRunner().invoke(main, ["build", str(path), str(store), *how])
    assert isinstance(found.exception, SystemExit | None), repr(found.exception)
    assert found.exit_code in (0, 2, 3), found.output
    assert store.exists() == (found.exit_code == 0), "a store was left behind"


def work(folder: Path, example: Path, numbers: Sequence[int]) -> None:
    """Read the files of these numbers; one line of JSON for each, before and after."""
    from gmkcf_dask.corpus import read_corpus  # noqa: F401  # imports must not count

    examples = Examples(example)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    files = {int(path.name.split(".")[0]): path for path in folder.iterdir() if path.is_file()}
    for number in numbers:
        print(json.dumps({"begun": number}), flush=True)
        signal.alarm(int(6 * SECONDS))  # what hangs is ended, and counted as a crash
        begun = time.perf_counter()
        try:
            outcome = _read_case(files[number], number, examples)
        except Exception as error:  # this is what is looked for  # noqa: BLE001
            where = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{Path(where.filename).name}:{where.lineno}"
            outcome = f"{type(error).__name__} at {place}: {error}"[:300]
        spent = time.perf_counter() - begun
        before, peak = peak, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        grown = (peak - before) << 10
        done = {"done": number, "outcome": outcome, "seconds": spent, "grown": grown}
        print(json.dumps(done), flush=True)


def _read_case(path: Path, number: int, examples: Examples) -> str:
    if path.name.endswith(STORE_KINDS):
        return examples.read(path, whole_way=number % 7 == 0)
    outcome = read_one(path, whole_way=number % 51 == 0)
    if number % 41 == 0 and path.suffix not in (".yaml", ".insight"):
        build_one(path)
    return outcome


# --- the parent -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Finding:
    """One file that did not end as it must."""

    ending: str
    number: int
    what: str


def fuzz(
    count: int = 10_000,
    seed: int = 0,
    kinds: Sequence[str] = (),
    *,
    keep: Path | None = None,
    limit: float = 3600.0,
) -> list[Finding]:
    """Read `count` malformed files, print a table by reader, return what went wrong.

    `keep` gets the files that failed; without `kinds` there are files of all. After `limit` seconds
    no more are begun with.
    """
    begun = time.monotonic()
    rng = random.Random(seed)
    findings: list[Finding] = []
    with tempfile.TemporaryDirectory() as name:
        example = Path(name)
        make_example(example)
        valid = valid_files() | valid_store_files(example)
        endings = list(kinds or valid)
        table: dict[str, Counter[str]] = {ending: Counter() for ending in endings}
        slowest = dict.fromkeys(endings, 0.0)
        grown = dict.fromkeys(endings, 0)
        for first in range(0, count, BATCH):
            if time.monotonic() - begun > limit:
                break
            with tempfile.TemporaryDirectory() as scratch:
                files = {}
                for number in range(first, min(first + BATCH, count)):
                    ending = endings[number % len(endings)]
                    choice = rng.randrange(len(valid[ending]))
                    files[number] = Path(scratch, f"{number}.{choice}{ending}")
                    content = mutate(valid[ending][choice], ending, random_mutations(rng))
                    files[number].write_bytes(content)
                for number, told, seconds, more in _run_batch(files, example):
                    ending = endings[number % len(endings)]
                    outcome = _judged(told, seconds, more)
                    slowest[ending] = max(slowest[ending], seconds)
                    grown[ending] = max(grown[ending], more)
                    good = outcome in GOOD
                    table[ending][outcome if good else "FAILED"] += 1
                    if not good:
                        findings.append(Finding(ending, number, outcome))
                        if keep is not None:
                            keep.mkdir(parents=True, exist_ok=True)
                            shutil.copy(files[number], keep / files[number].name)
    _print_table(table, slowest, grown)
    return findings


def _judged(outcome: str, seconds: float, grown: int) -> str:
    if seconds > SECONDS:
        return f"took {seconds:.0f} s"
    return f"grew by {grown >> 20} MiB" if grown > GROWTH else outcome


def _run_batch(files: dict[int, Path], example: Path) -> Iterator[tuple[int, str, float, int]]:
    """Outcomes of all files; after a crash a new worker goes on behind the file that did it."""
    numbers = list(files)
    while numbers:
        with tempfile.TemporaryDirectory() as scratch:  # a crash may leave its example changed
            own = shutil.copytree(example, Path(scratch, "example"))
            listed = ",".join(map(str, numbers))
            folder = str(files[numbers[0]].parent)
            command = [
                sys.executable,
                "-m",
                "helpers.chaos.fuzz",
                "--worker",
                folder,
                str(own),
                listed,
            ]
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, env=with_helpers()
            )
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        for line in lines:
            if "done" in line:
                yield line["done"], line["outcome"], line["seconds"], line["grown"]
        last = lines[-1] if lines else {"begun": numbers[0]}
        if last.get("done") == numbers[-1]:
            return
        crashed = last.get("begun", last.get("done"))
        what = f"worker ended with {done.returncode}: {done.stderr[-200:]}"
        if files[crashed].suffix == ".mat" and "begun" in last:
            # the whole way: the process that reads such files must turn it into a sentence
            read_one(files[crashed], whole_way=True)
            what = "contained"
        yield crashed, what, 0.0, 0
        numbers = numbers[numbers.index(crashed) + 1 :]


def _print_table(
    table: dict[str, Counter[str]], slowest: dict[str, float], grown: dict[str, int]
) -> None:
    columns = (*GOOD, "FAILED")
    print(f"{'reader':<11}{'files':>7}" + "".join(f"{name:>11}" for name in columns)
          + f"{'slowest':>10}{'memory':>10}")  # fmt: skip
    for ending, found in table.items():
        row = "".join(f"{found[name]:>11}" for name in columns)
        size = f"{grown[ending] >> 20} MiB"
        print(f"{ending:<11}{found.total():>7}{row}{slowest[ending]:>8.2f} s{size:>10}")


def main(arguments: Sequence[str]) -> int:
    """Fuzz, or be a worker."""
    if arguments[:1] == ["--worker"]:
        folder, example, numbers = arguments[1:]
        work(Path(folder), Path(example), [int(number) for number in numbers.split(",")])
        return 0
    count, keep, seed = (*arguments[:3], *("10000", "", "0")[len(arguments[:3]) :])
    findings = fuzz(int(count), int(seed), arguments[3:], keep=Path(keep) if keep else None)
    for finding in findings:
        print(f"{finding.ending} {finding.number}: {finding.what}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
