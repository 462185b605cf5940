"""Runs of the command on small corpora."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from click.testing import CliRunner, Result

from gmkcf_dask import scores
from gmkcf_dask.cli import main

N, K = 48, 3
KERNELS = ("rbf_1", "cosine", "poly_a1_b2")
QUICK = ("--kernels", ",".join(KERNELS), "--cluster", "threads", "--workers", "2")
QUICK_FIT = ("-k", str(K), "--max-iter", "40", "--tol", "1e-3")
TOPICS = ("apple pear plum", "wolf bear lynx", "river lake ocean")
CLASSES = np.arange(N) % K


def gmkcf(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def exits(code: int, *arguments: object) -> Result:
    """Run a command that must end with this exit code."""
    result = gmkcf(*arguments)
    assert result.exit_code == code, result.output
    return result


def done(*arguments: object) -> Result:
    """Run a command that must succeed."""
    result = exits(0, *arguments)
    assert all(line.startswith("note: ") for line in result.stderr.splitlines())
    return result


def refused(*arguments: object, code: int = 2) -> str:
    """Run a command that must refuse, in one sentence, which is returned."""
    result = exits(code, *arguments)
    assert isinstance(result.exception, SystemExit), repr(result.exception)
    sentences = [line for line in result.stderr.splitlines() if not line.startswith("note: ")]
    assert len(sentences) == 1, result.stderr
    assert sentences[0].startswith("error: ")
    return sentences[0]


@dataclass(frozen=True)
class Run:
    """What a run folder holds."""

    folder: Path

    @property
    def rows(self) -> list[list[str]]:
        with (self.folder / "labels.csv").open(newline="", encoding="utf-8") as file:
            return list(csv.reader(file))

    @property
    def labels(self) -> list[int]:
        return [int(label) for _, label in self.rows[1:]]

    @property
    def result(self) -> dict:
        return json.loads((self.folder / "result.json").read_text(encoding="utf-8"))

    @property
    def factors(self) -> dict[str, np.ndarray]:
        with np.load(self.folder / "factors.npz", allow_pickle=False) as arrays:
            return dict(arrays)

    @property
    def contents(self) -> dict[str, bytes]:
        names = ("labels.csv", "result.json", "factors.npz")
        return {name: (self.folder / name).read_bytes() for name in names}


def same_grouping(labels: list[int], classes: object = CLASSES) -> bool:
    return scores(classes, labels)["ACC"] == 1.0


def texts() -> list[str]:
    words = [topic.split() for topic in TOPICS]
    rng = np.random.default_rng(1)
    return [" ".join(rng.choice(words[c], 6)) for c in CLASSES]
