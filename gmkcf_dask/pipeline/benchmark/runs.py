"""Running the comparison: every set, method, kernel and seed, one row each, never one twice."""

from __future__ import annotations

import csv
import io
import json
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec

from gmkcf_dask import pipeline
from gmkcf_dask.cluster import Resources
from gmkcf_dask.compute.operators import KernelStack
from gmkcf_dask.corpus import Corpus, read_corpus
from gmkcf_dask.errors import InputError
from gmkcf_dask.events import Listener, ignore
from gmkcf_dask.kernels.specs import PAPER12, Layout, Normalization, is_plain_name
from gmkcf_dask.methods.base import MEAN
from gmkcf_dask.methods.gmkcf import Gmkcf
from gmkcf_dask.methods.rmkkm import Rmkkm
from gmkcf_dask.pipeline.benchmark.entries import Entry, run_on_features
from gmkcf_dask.results.csv_cells import cell_text, escaped_cell
from gmkcf_dask.results.metrics import scores
from gmkcf_dask.store.build import look_up
from gmkcf_dask.store.files import get, make_folder, put_atomic
from gmkcf_dask.store.manifest import package_versions
from gmkcf_dask.store.request import KernelRequest

RUNS, SETTINGS = "runs.csv", "benchmark.json"
KERNEL_NAMES = tuple(spec.name for spec in PAPER12)


@dataclass(frozen=True)
class Row:
    """One run. `kernel` is empty for methods that use all kernels, or none."""

    dataset: str
    method: str
    kernel: str
    seed: int
    ACC: float
    NMI: float
    purity: float
    ARI: float
    objective: float
    iterations: int
    converged: bool
    seconds: float
    """Wall time; runs that shared their sweeps share it equally."""

    @property
    def key(self) -> tuple[str, str, str, int]:
        return self.dataset, self.method, self.kernel, self.seed


@dataclass(frozen=True)
class Benchmark:
    """What to run and where the results go."""

    data: Path
    out: Path
    datasets: tuple[str, ...]
    entries: tuple[Entry, ...]
    n_seeds: int
    normalization: Normalization = "unit"
    layout: Layout = "each"

    def __post_init__(self) -> None:
        if self.n_seeds < 1:
            raise InputError(f"runs must be at least 1, not {self.n_seeds}")
        if not self.datasets or not self.entries:
            raise InputError("there is nothing to run: name at least one data set and one method")
        for dataset in self.datasets:
            if not is_plain_name(dataset):
                raise InputError(f"data set {dataset!r} is not the plain name of a NAME.mat file")
            if not self.file_of(dataset).is_file():
                raise InputError(
                    f"{self.file_of(dataset)} is not there: --data must name the folder that "
                    "holds the corpora as NAME.mat with X and y"
                )

    def file_of(self, dataset: str) -> Path:
        return self.data / f"{dataset}.mat"

    def kernels_of(self, entry: Entry) -> tuple[str, ...]:
        """Single-kernel methods run on every kernel and on their equal-weight mean."""
        return (*KERNEL_NAMES, MEAN) if entry.single_kernel else ("",)

    def seeds_of(self, entry: Entry) -> range:
        return range(1 if entry.deterministic else self.n_seeds)


def run_benchmark(
    benchmark: Benchmark,
    resources: Resources,
    echo: Callable[[str], object],
    listen: Listener = ignore,
) -> list[Row]:
    """All rows, earlier ones of the same folder included; the file grows batch by batch."""
    make_folder(benchmark.out, "the benchmark")
    settings = claim_settings(benchmark)
    rows = {row.key: row for row in read_rows(benchmark.out / RUNS)}
    for dataset in benchmark.datasets:
        todo = [(entry, _missing(benchmark, dataset, entry, rows)) for entry in benchmark.entries]
        todo = [(entry, seeds) for entry, seeds in todo if seeds]
        if not todo:
            continue
        corpus = read_corpus(benchmark.file_of(dataset))
        settings = settings.knowing(dataset, (*corpus.X.shape, _classes(corpus)))
        put_atomic(benchmark.out / SETTINGS, json.dumps(asdict(settings), indent=1).encode())
        stack = None
        for entry, seeds in todo:
            if entry.needs_nonnegative and corpus.X.min() < 0:
                echo(f"{dataset}: {entry.title} is left out, the features have negative values")
                continue
            if entry.method is not None and stack is None:
                begun = time.perf_counter()
                stack = _kernels(benchmark, dataset, corpus, resources, listen)
                echo(f"{dataset}: kernels ready in {time.perf_counter() - begun:.1f} s")
            for batch in _batches(entry, seeds):
                done = list(_run(benchmark, dataset, entry, batch, corpus, stack, listen))
                rows |= {row.key: row for row in done}
                write_rows(benchmark.out / RUNS, list(rows.values()))
            # the mean kernel is ours, the paper has the mean over kernels
            own = [
                row
                for row in rows.values()
                if (row.dataset, row.method) == (dataset, entry.name) and row.kernel != MEAN
            ]
            echo(
                f"{dataset}: {entry.title:<22} {len(own):>4} runs "
                f"{math.fsum(row.seconds for row in own):7.1f} s"
                f"   ACC {fmean(row.ACC for row in own):.3f}"
                f"  NMI {fmean(row.NMI for row in own):.3f}"
                f"  purity {fmean(row.purity for row in own):.3f}"
            )
    return list(rows.values())


def _missing(
    benchmark: Benchmark, dataset: str, entry: Entry, rows: dict[tuple[str, str, str, int], Row]
) -> list[int]:
    kernels = benchmark.kernels_of(entry)
    return [
        seed
        for seed in benchmark.seeds_of(entry)
        if any((dataset, entry.name, kernel, seed) not in rows for kernel in kernels)
    ]


def _batches(entry: Entry, seeds: Sequence[int]) -> list[list[int]]:
    """Seeds that gain from running together stay together; others are saved one by one."""
    method = None if entry.method is None else entry.method(1, "")
    alone = method is None or isinstance(method, Rmkkm)
    alone = alone or (isinstance(method, Gmkcf) and method.seeded)
    return [[seed] for seed in seeds] if alone else [list(seeds)]


def _kernels(
    benchmark: Benchmark, dataset: str, corpus: Corpus, resources: Resources, listen: Listener
) -> KernelStack:
    request = KernelRequest(
        corpus, PAPER12, normalization=benchmark.normalization, layout=benchmark.layout
    )
    path = benchmark.out / "stores" / f"{dataset}.zarr"
    make_folder(path.parent, "the stores")
    place = look_up(path, request)
    plan = pipeline.request_plan(request, _classes(corpus), resources, place)
    store = pipeline.build(place, request, plan, resources, listen)
    return pipeline.stored_kernels(store, plan, resources)


def _classes(corpus: Corpus) -> int:
    if corpus.labels is None:
        raise InputError("a benchmark needs corpora with known labels (y)")
    return len(set(corpus.labels))


def _run(
    benchmark: Benchmark,
    dataset: str,
    entry: Entry,
    seeds: list[int],
    corpus: Corpus,
    stack: KernelStack | None,
    listen: Listener,
) -> Iterator[Row]:
    k = _classes(corpus)
    assert corpus.labels is not None
    begun = time.perf_counter()
    outcomes: list[tuple[str, int, Any, float, int, bool]] = []
    if entry.method is None:
        for seed in seeds:
            result = run_on_features(entry, corpus.X, k, seed)
            outcomes.append(("", seed, result.labels, result.objective, result.iterations, True))
    else:
        assert stack is not None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what did not converge is a column of the table
            kernels = benchmark.kernels_of(entry)
            clusterings = pipeline.fit(stack, entry.method(k, dataset), seeds, kernels, listen)
        outcomes += [
            (c.kernel or "", c.seed, c.labels, c.objective, c.n_iter, c.converged)
            for c in clusterings
        ]
    seconds = (time.perf_counter() - begun) / len(outcomes)
    for kernel, seed, labels, objective, iterations, converged in outcomes:
        yield Row(
            dataset, entry.name, kernel, seed, **scores(corpus.labels, labels),
            objective=objective, iterations=iterations, converged=converged, seconds=seconds,
        )  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """What all rows of a folder have in common, in benchmark.json."""

    normalization: str
    methods: dict[str, str]  # settings by method: rows made with other ones must not be mixed in
    sizes: dict[str, list[int]]  # samples, features and classes of the sets, as they were read
    versions: list[dict[str, str]]  # of every session that added rows
    layout: str = "each"

    def knowing(self, dataset: str, size: tuple[int, int, int]) -> Settings:
        """With the size of one more set."""
        known = self.sizes.get(dataset, list(size))
        if known != list(size):
            raise InputError(
                f"{dataset} has {size[0]} samples, {size[1]} features and {size[2]} classes, but "
                f"earlier runs in this folder saw {known}: choose another folder"
            )
        return replace(self, sizes={**self.sizes, dataset: list(size)})


def read_settings(out: Path) -> Settings | None:
    """The settings of a folder; None where there are none."""
    content = get(out / SETTINGS)
    if content is None:
        return None
    try:
        return msgspec.json.decode(content, type=Settings)
    except msgspec.MsgspecError as error:
        raise InputError(f"{out / SETTINGS} is damaged: choose another folder") from error


def claim_settings(benchmark: Benchmark) -> Settings:
    """Settings for the rows to come, refused where those of the folder are others."""
    methods = {entry.name: entry.settings for entry in benchmark.entries}
    versions = [package_versions()]
    fresh = Settings(benchmark.normalization, methods, {}, versions, benchmark.layout)
    earlier = read_settings(benchmark.out)
    if earlier is None:
        if (benchmark.out / RUNS).exists():
            raise InputError(
                f"{benchmark.out} holds {RUNS} but not {SETTINGS}, so the settings of these runs "
                "are unknown: choose another folder"
            )
        return fresh
    for name in ("normalization", "layout"):
        if getattr(earlier, name) != getattr(fresh, name):
            raise InputError(
                f"{benchmark.out} holds runs with {name} {getattr(earlier, name)}, not "
                f"{getattr(fresh, name)}: choose another folder"
            )
    for name, settings in methods.items():
        if earlier.methods.get(name, settings) != settings:
            raise InputError(
                f"{benchmark.out} holds runs of {name} with other settings "
                f"({earlier.methods[name]}): choose another folder"
            )
    new = [] if package_versions() in earlier.versions else fresh.versions
    return replace(earlier, methods=earlier.methods | methods, versions=[*earlier.versions, *new])


def read_rows(path: Path) -> list[Row]:
    """Rows of an earlier run; none where there is no file."""
    content = get(path)
    if content is None:
        return []
    kinds: dict[str, Callable[[str], Any]] = {
        "str": cell_text, "int": int, "float": float, "bool": lambda text: text == "True",
    }  # fmt: skip
    try:
        return [
            Row(**{field.name: kinds[str(field.type)](line[field.name]) for field in fields(Row)})
            for line in csv.DictReader(io.StringIO(content.decode()))
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is damaged: remove it, or choose another folder") from error


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """All rows, whole or not at all."""
    text = io.StringIO()
    table = csv.DictWriter(text, [field.name for field in fields(Row)], lineterminator="\n")
    table.writeheader()
    table.writerows(
        {
            name: escaped_cell(value) if isinstance(value, str) else value
            for name, value in asdict(row).items()
        }
        for row in rows
    )
    put_atomic(path, text.getvalue().encode())
