"""Stores and runs of commit d549cfb, extracted for a test; see tests/fixtures/d549cfb/README.md."""

import shutil
import tarfile
from dataclasses import dataclass
from pathlib import Path

from helpers.paths import ROOT

FIXTURE = ROOT / "tests" / "fixtures" / "d549cfb"
FIT_OPTIONS = (
    *("-k", 3, "--tol", 1e-9, "--max-iter", 40, "--seed", 0),
    *("--init", "random", "--solver", "paper", "--assign", "kmeans"),
)
"""Of both runs and of both unfinished fits."""
BUILD_OPTIONS = {
    "texts": (
        *("--kernels", "rbf_0.5,rbf_1,poly_a1_b2,cosine", "--block", 7),
        *("--text-preset", "plain"),
    ),
    "points": (
        *("--kernels", "rbf_0.5,rbf_1,cosine"),
        *("--normalization", "degree", "--block", 8),
    ),
}
KINDS = tuple(BUILD_OPTIONS)


@dataclass(frozen=True)
class Legacy:
    """One store with its input, a finished run and the checkpoint of an unfinished one.

    `begun` is the same store, interrupted while it was built.
    """

    store: Path
    begun: Path
    input: Path
    run: Path
    unfinished: Path
    new: Path
    new_labels: Path
    build_options: tuple[object, ...]


def extract_d549cfb(folder):
    """Extract everything into a folder; returns a `Legacy` by kind: texts and points."""
    for file in FIXTURE.iterdir():
        if file.suffix == ".gz":
            with tarfile.open(file) as archive:
                archive.extractall(folder, filter="data")
        elif file.suffix in {".jsonl", ".npy", ".csv"}:
            shutil.copy(file, folder)
    for file in folder.glob("*_run/result.json"):
        file.write_text(file.read_text().replace('"/data/', f'"{folder}/'))
    return {
        kind: Legacy(
            folder / f"{kind}.zarr",
            folder / f"{kind}_begun.zarr",
            folder / f"{kind}{ending}",
            folder / f"{kind}_run",
            folder / f"{kind}_unfinished",
            folder / f"new_{kind}{ending}",
            folder / f"new_{kind}.csv",
            BUILD_OPTIONS[kind],
        )
        for kind, ending in (("texts", ".jsonl"), ("points", ".npy"))
    }


FORMAT6 = ROOT / "tests" / "fixtures" / "format6"
FORMAT6_OPTIONS = {
    "texts": (
        *("--kernels", "paper12", "--layout", "gram", "--precision", "compact"),
        *("--text-preset", "plain", "--block", 7),
    ),
    "points": (
        *("--kernels", "rbf_0.5,rbf_1,cosine", "--layout", "gram"),
        *("--normalization", "degree", "--block", 8),
    ),
}


def extract_format6(folder):
    """Extract stores of layout gram, their runs and their inputs into a folder."""
    with tarfile.open(FORMAT6 / "stores.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    for name in ("texts.jsonl", "points.npy"):
        shutil.copy(FIXTURE / name, folder)
