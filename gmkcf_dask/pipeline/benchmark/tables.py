"""From rows to files: tables.md, and a picture per measure where Matplotlib is installed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean, stdev

from gmkcf_dask.methods.base import MEAN
from gmkcf_dask.pipeline.benchmark.entries import ENTRIES, Entry
from gmkcf_dask.pipeline.benchmark.published import (
    DATASET_TITLES,
    GAIN_GMKCF_OVER_SECOND,
    GAIN_MULTIPLE_OVER_SINGLE,
    MULTIPLE,
    PAPER_MEASURES,
    PAPER_METHODS,
    SCORES,
    SINGLE,
    SIZES,
)
from gmkcf_dask.pipeline.benchmark.runs import KERNEL_NAMES, RUNS, Row, Settings, read_settings
from gmkcf_dask.store.files import put_atomic

TABLES = "tables.md"
TABLE_OF = {"ACC": 2, "NMI": 3, "purity": 4}


@dataclass(frozen=True)
class Cell:
    """Mean over seeds and its standard error (0 where there is one run)."""

    mean: float
    error: float
    n_seeds: int

    def __str__(self) -> str:
        return (
            f"{three_decimals(self.mean)} ± {three_decimals(self.error)}"
            if self.n_seeds > 1
            else three_decimals(self.mean)
        )


def three_decimals(value: float) -> str:
    """Three decimals without the leading zero.

    >>> three_decimals(0.4567), three_decimals(-0.0123)
    ('.457', '-.012')
    """
    return f"{value:.3f}".replace("0.", ".", 1)


def signed(value: float) -> str:
    """Three decimals with a sign.

    >>> signed(0.0123), signed(-0.01)
    ('+.012', '-.010')
    """
    return f"{value:+.3f}".replace("0.", ".", 1)


class Results:
    """Rows, looked up and averaged.

    A seed of a single-kernel method counts with its mean over the kernels, as in the paper.
    """

    def __init__(self, rows: Iterable[Row]) -> None:
        self.rows = list(rows)
        present = {row.dataset for row in self.rows}
        known = [name for name in DATASET_TITLES if name in present]
        self.datasets = known + sorted(present - set(known))
        methods = {row.method for row in self.rows}
        self.entries = [entry for entry in ENTRIES.values() if entry.name in methods]

    def of(self, kind: str) -> list[Entry]:
        return [entry for entry in self.entries if entry.kind == kind]

    def rows_of(self, dataset: str, entry: Entry) -> list[Row]:
        return [row for row in self.rows if (row.dataset, row.method) == (dataset, entry.name)]

    def cell(
        self, dataset: str | None, entry: Entry, measure: str, kernel: str | None = None
    ) -> Cell | None:
        """One method on one set, or for no set the mean over `mean_sets`.

        None where it was not run on every kernel and set.
        """
        if dataset is None:
            return self._over_sets(entry, measure, kernel)
        kernels = (
            {kernel} if kernel is not None else set(KERNEL_NAMES if entry.single_kernel else [""])
        )
        by_seed: dict[int, list[float]] = {}
        for row in self.rows_of(dataset, entry):
            if row.kernel in kernels:
                by_seed.setdefault(row.seed, []).append(getattr(row, measure))
        values = [fmean(scores) for scores in by_seed.values() if len(scores) == len(kernels)]
        if not values:
            return None
        error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
        return Cell(fmean(values), error, len(values))

    def _over_sets(self, entry: Entry, measure: str, kernel: str | None) -> Cell | None:
        cells = [self.cell(dataset, entry, measure, kernel) for dataset in self.mean_sets()]
        known = [cell for cell in cells if cell is not None]
        if not known or len(known) < len(cells):
            return None
        error = math.sqrt(sum(cell.error**2 for cell in known)) / len(known)
        return Cell(fmean(cell.mean for cell in known), error, min(c.n_seeds for c in known))

    def paper_sets(self) -> list[str]:
        return [dataset for dataset in self.datasets if dataset in SIZES]

    def mean_sets(self) -> list[str]:
        """What every "mean" is over: the paper's sets, or all where none of them was run."""
        return self.paper_sets() or self.datasets


def published(measure: str, dataset: str | None, method: str, datasets: Sequence[str]) -> float:
    """A cell of the paper's table, or for no set the mean over sets."""
    table = SCORES[measure]
    if dataset is not None:
        return table[dataset][method]
    return fmean(table[each][method] for each in datasets)


def write_tables(out: Path, rows: Sequence[Row]) -> list[Path]:
    """Tables and pictures of a benchmark folder; returns what was written."""
    settings = read_settings(out)
    assert settings is not None
    put_atomic(out / TABLES, markdown(rows, settings).encode())
    written = [out / RUNS, out / TABLES]
    if find_spec("matplotlib") is not None:
        from gmkcf_dask.pipeline.benchmark.pictures import draw_means, draw_measure

        results = Results(rows)
        for measure in PAPER_MEASURES:
            written.append(out / f"{measure}.png")
            draw_measure(results, measure, written[-1])
        written.append(out / "summary.png")
        draw_means(results, written[-1])
    return written


def markdown(rows: Sequence[Row], settings: Settings) -> str:
    """The whole of tables.md."""
    results = Results(rows)
    used = "; then ".join(
        ", ".join(f"{name} {version}" for name, version in versions.items())
        for versions in settings.versions
    )
    parts = [
        "# The paper's tables, run again",
        f"Kernels with normalization `{settings.normalization}`, scaling `minmax`, float32. "
        f"{_seeds(results)}; mean ± standard error over seeds. In brackets the published value and "
        f"the difference to it. Versions: {used}.",
        _table_1(results, settings.sizes),
        *(_paper_table(results, measure) for measure in PAPER_MEASURES),
        _closeness(results),
        _gains(results),
        _others(results),
        _mean_kernel(results),
        _effort(results),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _section(title: str, header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [header, ["---"] * len(header), *lines]
    return f"## {title}\n\n" + "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _title(dataset: str) -> str:
    return DATASET_TITLES.get(dataset, dataset)


def _seeds(results: Results) -> str:
    counts = {
        (dataset, entry.title): len({row.seed for row in results.rows_of(dataset, entry)})
        for dataset in results.datasets
        for entry in results.entries
        if not entry.deterministic
    }
    if len(set(counts.values())) <= 1:
        return f"Seeds 0–{max(counts.values(), default=1) - 1}"
    shown = (f"{title} on {_title(dataset)} {n}" for (dataset, title), n in counts.items())
    return "Number of seeds: " + ", ".join(shown)


def _table_1(results: Results, sizes: Mapping[str, Sequence[int]]) -> str:
    lines = []
    for dataset in results.datasets:
        printed = SIZES.get(dataset)
        note = "" if printed is None else "yes" if list(sizes[dataset]) == list(printed) else "no"
        lines.append([_title(dataset), *map(str, sizes[dataset]), note])
    header = ["set", "samples", "features", "classes", "as in the paper"]
    return _section("Table 1: the data sets", header, lines)


def _paper_table(results: Results, measure: str) -> str:
    entries = [*results.of("paper"), *results.of("reference")]
    if not entries:
        return ""
    lines = []
    paper_sets = results.paper_sets()
    for dataset in (*results.datasets, None):
        cells = []
        for entry in entries:
            cell = results.cell(dataset, entry, measure)
            if cell is None or (dataset is None and not paper_sets):
                cells.append("–")
            elif entry.kind == "paper" and (dataset is None or dataset in SIZES):
                printed = published(measure, dataset, entry.title, paper_sets)
                cells.append(f"{cell} ({three_decimals(printed)}, {signed(cell.mean - printed)})")
            else:
                cells.append(str(cell))
        lines.append(["mean" if dataset is None else _title(dataset), *cells])
    settings = "; ".join(f"{entry.title}: {entry.settings}" for entry in entries)
    header = ["set", *(entry.title for entry in entries)]
    return _section(f"Table {TABLE_OF[measure]}: {measure}", header, lines) + f"\n\n{settings}."


def _closeness(results: Results) -> str:
    sets = results.paper_sets()
    lines = []
    for entry in results.of("paper"):
        line = [entry.title]
        for measure in PAPER_MEASURES:
            off = {
                dataset: cell.mean - published(measure, dataset, entry.title, sets)
                for dataset in (None, *sets)
                if sets and (cell := results.cell(dataset, entry, measure)) is not None
            }
            mean = off.pop(None, None)
            line.append(
                "–"
                if mean is None
                else f"{signed(mean)} (largest {signed(max(off.values(), key=abs))})"
            )
        lines.append(line)
    title = "How close: mean over the sets, and the largest difference of a set"
    return _section(title, ["method", *PAPER_MEASURES], lines) if lines else ""


def _gains(results: Results) -> str:
    sets = results.paper_sets()
    entries = {entry.title: entry for entry in results.of("paper")}
    if set(entries) != set(PAPER_METHODS) or not sets:
        return ""
    lines = []
    for measure in PAPER_MEASURES:
        cells = {name: results.cell(None, entries[name], measure) for name in PAPER_METHODS}
        ours = {name: cell.mean for name, cell in cells.items() if cell is not None}
        if len(ours) < len(PAPER_METHODS):
            return ""
        theirs = {name: published(measure, None, name, sets) for name in PAPER_METHODS}
        lines.append(
            [
                measure,
                f"{GAIN_MULTIPLE_OVER_SINGLE[measure]:.1%}",
                f"{multiple_over_single(theirs):.1%}",
                f"{multiple_over_single(ours):.1%}",
                f"{GAIN_GMKCF_OVER_SECOND[measure]:.1%}",
                f"{gmkcf_over_second(theirs):.1%}",
                f"{gmkcf_over_second(ours):.1%}",
            ]
        )
    header = ["measure", *(f"{what}: {whose}" for what in ("multiple over single", "GMKCF over the "
              "second") for whose in ("claimed", "from its tables", "here"))]  # fmt: skip
    return _section("The gains the paper claims, computed again", header, lines)


def multiple_over_single(scores: dict[str, float]) -> float:
    """Gain of the mean of the multiple-kernel methods over that of the single-kernel ones."""
    return fmean(scores[name] for name in MULTIPLE) / fmean(scores[name] for name in SINGLE) - 1.0


def gmkcf_over_second(scores: dict[str, float]) -> float:
    """Gain of GMKCF over the best of the other methods of the paper."""
    return scores["GMKCF"] / max(value for name, value in scores.items() if name != "GMKCF") - 1.0


def _all_measures(results: Results, entry: Entry, kernel: str | None = None) -> list[str]:
    """ACC / NMI / purity on every set, then their mean."""
    return [
        " / ".join(
            "–" if cell is None else three_decimals(cell.mean)
            for cell in (
                results.cell(dataset, entry, measure, kernel) for measure in PAPER_MEASURES
            )
        )
        for dataset in (*results.datasets, None)
    ]


def _others(results: Results) -> str:
    entries = [
        *(entry for entry in results.of("paper") if entry.name == "gmkcf"),
        *results.of("variant"),
        *results.of("reference"),
    ]
    lines = [[entry.title, entry.settings, *_all_measures(results, entry)] for entry in entries]
    title = "Not in the paper: variants, and what one would otherwise take (ACC / NMI / purity)"
    header = ["method", "settings", *map(_title, results.datasets), "mean"]
    return _section(title, header, lines) if lines else ""


def _mean_kernel(results: Results) -> str:
    entries = [entry for entry in results.entries if entry.single_kernel]
    lines = [[entry.title, *_all_measures(results, entry, MEAN)] for entry in entries]
    title = "Single-kernel methods on the equal-weight mean of the kernels (ACC / NMI / purity)"
    header = ["method", *map(_title, results.datasets), "mean"]
    return _section(title, header, lines) if lines else ""


def _effort(results: Results) -> str:
    lines = []
    for entry in results.entries:
        line = [entry.title]
        for dataset in results.datasets:
            own = [row for row in results.rows_of(dataset, entry) if row.kernel != MEAN]
            if not own:
                line.append("–")
                continue
            iterations, seconds = fmean(r.iterations for r in own), fmean(r.seconds for r in own)
            objective = math.nan if own[0].kernel else fmean(r.objective for r in own)
            shown = "" if math.isnan(objective) else f", objective {objective:.5g}"
            line.append(f"{iterations:.0f} it., {seconds:.2f} s{shown}")
        lines.append(line)
    title = (
        "Iterations, seconds per run, and mean objective\n\n"
        "Runs that share work share its time equally: kernels and seeds of KKM and KCF their "
        "sweeps, seeds of SC, Coreg and the spectral start everything but K-means."
    )
    return _section(title, ["method", *map(_title, results.datasets)], lines)
