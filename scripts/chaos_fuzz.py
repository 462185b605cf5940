"""Malformed input files by the thousand: each must be a valid corpus or one clean, typed sentence.

    .venv/bin/python scripts/chaos_fuzz.py [COUNT]

Files are mutations of small valid ones. They are read by workers, processes of their own with
bounded memory, so that a crash of a compiled reader is seen and counted instead of ending the run.
One file in 41 goes through `gmkcf build` as well, which must leave no store behind when it refuses.
A `.mat` file costs a process start in real use; here most are converted inside the worker, which
stands in for that process, one in 51 goes the whole way, and so does every one that crashes.
"""

from __future__ import annotations

import gzip
import io
import json
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import warnings
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.io
from scipy import sparse
from sklearn.datasets import dump_svmlight_file

BATCH = 250
MEMORY = 3 << 30
"""Address space of a worker; a reader that asks for more gets a MemoryError, and says so."""
SECONDS = 10.0
"""Longest time for one file; the slowest valid reading of these small files takes 0.02 s."""
GROWTH = 512 << 20
"""Most resident memory that one file may add to a worker."""

NUMBERS = (
    b"0", b"-1", b"1e999", b"nan", b"inf", b"2147483648", b"9223372036854775807",
    b"99999999999999999999999999", b"1000000000", b"1e-320", b"0x10", b"1_0", b"", b"3000000",
)  # fmt: skip
WORDS = (0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1, 1 << 40)


@dataclass(frozen=True)
class Mutation:
    """One change: what, where (a share of the length), how much, and a number to draw from."""

    kind: int
    where: float
    length: int
    value: int


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
    }


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


# --- mutations --------------------------------------------------------------------------------


def mutate(content: bytes, ending: str, mutations: Iterable[Mutation]) -> bytes:
    """The content after all changes; inside a container, as often as not its parts are changed."""
    for mutation in mutations:
        inside = mutation.value % 4 != 0
        if ending == ".npz" and inside:
            content = _inside_zip(content, mutation)
        elif ending == ".mtx.gz" and inside:
            content = _inside_gzip(content, mutation)
        else:
            content = _change(content, mutation)
    return content


def _inside_zip(content: bytes, mutation: Mutation) -> bytes:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = [(info.filename, archive.read(info)) for info in archive.infolist()]
    except Exception:  # noqa: BLE001  # an earlier change has spoilt the container itself
        return _change(content, mutation)
    if not members:
        return _change(content, mutation)
    chosen = mutation.value // 4 % len(members)
    file = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        warnings.simplefilter("ignore")  # of a name that is there twice
        for number, (name, data) in enumerate(members):
            archive.writestr(name, _change(data, mutation) if number == chosen else data)
    return file.getvalue()


def _inside_gzip(content: bytes, mutation: Mutation) -> bytes:
    try:
        return gzip.compress(_change(gzip.decompress(content), mutation), 1)
    except Exception:  # noqa: BLE001
        return _change(content, mutation)


def _change(content: bytes, m: Mutation) -> bytes:
    at = int(m.where * len(content))
    end = min(at + m.length, len(content))
    noise = random.Random(m.value).randbytes(m.length)
    word = WORDS[m.value % len(WORDS)].to_bytes(8, "little")[: 4 + 4 * (m.value // 8 % 2)]
    changes = (
        lambda: _flip(content, at, m.value),
        lambda: content[:at] + noise + content[end:],
        lambda: content[:at],
        lambda: content[:at] + content[end:],
        lambda: content[:at] + content[at:end] * (1 + m.value % 5) + content[end:],
        lambda: content[:at] + noise + content[at:],
        lambda: content[: at // 4 * 4] + word + content[at // 4 * 4 + len(word) :],
        lambda: _other_number(content, at, m.value),
        lambda: content[:at] + b"\n" * (1 + m.value % 3) + content[at:],
        lambda: content[at:] + content[:at],
    )
    return changes[m.kind % len(changes)]()


def _flip(content: bytes, at: int, value: int) -> bytes:
    if not content:
        return content
    at = min(at, len(content) - 1)
    return content[:at] + bytes([content[at] ^ (1 << value % 8)]) + content[at + 1 :]


def _other_number(content: bytes, at: int, value: int) -> bytes:
    """A number at or after a place becomes another: in headers these are the sizes."""
    found = re.compile(rb"\d+(\.\d+)?").search(content, at) or re.search(rb"\d+", content)
    if found is None:
        return content
    return content[: found.start()] + NUMBERS[value % len(NUMBERS)] + content[found.end() :]


def random_mutations(rng: random.Random) -> list[Mutation]:
    """One to four changes, small ones and those near the beginning preferred."""
    return [
        Mutation(
            rng.randrange(10),
            rng.random() ** rng.choice((1, 1, 3)),
            min(int(rng.expovariate(1 / 8)) + 1, 200),
            rng.randrange(1 << 16),
        )
        for _ in range(min(4, 1 + int(rng.expovariate(1.0))))
    ]


# --- the worker -------------------------------------------------------------------------------


def read_one(path: Path, *, whole_way: bool = False) -> str:
    """'corpus' or 'refused'; anything but a typed error goes through and is a failure."""
    from gmkcf_dask.corpus import matlab, matlab_child, read_corpus
    from gmkcf_dask.errors import GmkcfError

    here = path.suffix == ".mat" and not whole_way
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if here:
                with tempfile.TemporaryDirectory() as scratch:
                    report = matlab_child.convert(path, Path(scratch), MEMORY // 4)
                    report = json.loads(json.dumps(report))
                    try:
                        matlab.from_report(report, Path(scratch))
                    except ValueError:  # `read_corpus` makes a sentence of it
                        return "refused"
            else:
                found = read_corpus(path)
                values = found.X if isinstance(found.X, np.ndarray) else found.X.data
                assert np.isfinite(values).all()
                assert len(found.ids) == found.n_samples
    except GmkcfError as error:
        sentence = str(error)
        assert sentence, "an empty sentence"
        assert "\n" not in sentence, sentence
        assert "Traceback" not in sentence, sentence
        return "refused"
    return "corpus"


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


def work(folder: Path, numbers: Sequence[int]) -> None:
    """Read the files of these numbers; one line of JSON for each, before and after."""
    from gmkcf_dask.corpus import read_corpus  # noqa: F401  # imports must not count

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    files = {int(path.name.split(".")[0]): path for path in folder.iterdir() if path.is_file()}
    for number in numbers:
        print(json.dumps({"begun": number}), flush=True)
        signal.alarm(int(6 * SECONDS))  # what hangs is ended, and counted as a crash
        begun = time.perf_counter()
        try:
            outcome = read_one(files[number], whole_way=number % 51 == 0)
            if number % 41 == 0:
                build_one(files[number])
        except Exception as error:  # noqa: BLE001  # this is what is looked for
            outcome = f"{type(error).__name__}: {error}"[:300]
        spent = time.perf_counter() - begun
        before, peak = peak, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        grown = (peak - before) << 10
        done = {"done": number, "outcome": outcome, "seconds": spent, "grown": grown}
        print(json.dumps(done), flush=True)


# --- the parent -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Finding:
    """One file that did not end as it must."""

    ending: str
    number: int
    what: str


def fuzz(count: int = 10_000, seed: int = 0, *, keep: Path | None = None) -> list[Finding]:
    """Read `count` malformed files, print a table by reader, return what went wrong.

    `keep` gets the files that failed.
    """
    rng = random.Random(seed)
    valid = valid_files()
    endings = list(valid)
    findings: list[Finding] = []
    table: dict[str, Counter[str]] = {ending: Counter() for ending in endings}
    slowest = dict.fromkeys(endings, 0.0)
    grown = dict.fromkeys(endings, 0)
    for first in range(0, count, BATCH):
        with tempfile.TemporaryDirectory() as scratch:
            files = {}
            for number in range(first, min(first + BATCH, count)):
                ending = endings[number % len(endings)]
                files[number] = Path(scratch, f"{number}{ending}")
                content = rng.choice(valid[ending])
                files[number].write_bytes(mutate(content, ending, random_mutations(rng)))
            for number, told, seconds, more in _run_batch(files):
                ending, outcome = endings[number % len(endings)], told
                slowest[ending] = max(slowest[ending], seconds)
                grown[ending] = max(grown[ending], more)
                if seconds > SECONDS:
                    outcome = f"took {seconds:.0f} s"
                elif more > GROWTH:
                    outcome = f"grew by {more >> 20} MiB"
                good = outcome in ("corpus", "refused", "contained")
                table[ending][outcome if good else "FAILED"] += 1
                if not good:
                    findings.append(Finding(ending, number, outcome))
                    if keep is not None:
                        keep.mkdir(parents=True, exist_ok=True)
                        (keep / f"{seed}-{number}{ending}").write_bytes(files[number].read_bytes())
    _print_table(table, slowest, grown)
    return findings


def _run_batch(files: dict[int, Path]) -> Iterator[tuple[int, str, float, int]]:
    """Outcomes of all files; after a crash a new worker goes on behind the file that did it."""
    numbers = list(files)
    while numbers:
        listed = ",".join(map(str, numbers))
        folder = str(files[numbers[0]].parent)
        command = [sys.executable, __file__, "--worker", folder, listed]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
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
    columns = ("refused", "corpus", "contained", "FAILED")
    print(f"{'reader':<11}{'files':>7}" + "".join(f"{name:>11}" for name in columns)
          + f"{'slowest':>10}{'memory':>10}")  # fmt: skip
    for ending, found in table.items():
        row = "".join(f"{found[name]:>11}" for name in columns)
        size = f"{grown[ending] >> 20} MiB"
        print(f"{ending:<11}{found.total():>7}{row}{slowest[ending]:>8.2f} s{size:>10}")


def main(arguments: Sequence[str]) -> int:
    """Fuzz, or be a worker."""
    if arguments[:1] == ["--worker"]:
        work(Path(arguments[1]), [int(number) for number in arguments[2].split(",")])
        return 0
    count = int(arguments[0]) if arguments else 10_000
    findings = fuzz(count, keep=Path(arguments[1]) if len(arguments) > 1 else None)
    for finding in findings:
        print(f"{finding.ending} {finding.number}: {finding.what}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
