"""How every benchmark measures and reports: interleaved sides, the best of several, bars."""

from __future__ import annotations

import json
import platform
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

RESULTS = Path("bench_results")


@dataclass(frozen=True)
class Bar:
    """A bound a figure must hold."""

    what: str
    value: float
    limit: float
    at_least: bool = False

    @property
    def held(self) -> bool:
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def __str__(self) -> str:
        sign = "≥" if self.at_least else "≤"
        state = "held" if self.held else "MISSED"
        return f"{state}: {self.what} {self.value:.3g} ({sign} {self.limit:g})"


@dataclass(frozen=True)
class Report:
    """One benchmark's table, its bars, and whatever else is worth keeping."""

    name: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    bars: Sequence[Bar] = ()
    notes: Sequence[str] = ()
    figures: Mapping[str, Any] = field(default_factory=dict)


def show(report: Report) -> None:
    """The table as Markdown, then the bars."""
    print(f"\n## {report.name}: {report.title}\n")
    cells = [[str(column) for column in report.columns]]
    cells += [[_cell(value) for value in row] for row in report.rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(report.columns))]
    for number, row in enumerate(cells):
        print("| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) + " |")
        if number == 0:
            print("|" + "|".join("-" * (w + 2) for w in widths) + "|")
    print()
    for note in report.notes:
        print(note)
    for bar in report.bars:
        print(bar)


def save(report: Report, folder: Path = RESULTS) -> Path:
    """The report as JSON, with the machine it was made on."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{report.name}.json"
    content = asdict(report) | {
        "held": all(bar.held for bar in report.bars),
        "machine": {"processor": processor(), "python": platform.python_version()},
        "command": "scripts/bench " + " ".join(sys.argv[1:]),
    }
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False, default=float) + "\n")
    return path


def processor() -> str:
    """What /proc/cpuinfo calls this processor."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    named = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{len(named)} × {named[0]}" if named else platform.processor()


def best_seconds(sides: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """The best time of each side, taken in turns so that both meet the same weather."""
    best = dict.fromkeys(sides, float("inf"))
    for _ in range(repeats):
        for name, work in sides.items():
            time.sleep(0.2)  # idle BLAS threads of the last side spin for a while
            begun = time.perf_counter()
            work()
            best[name] = min(best[name], time.perf_counter() - begun)
    return best


def without_warnings(work: Callable[[], Any]) -> Any:
    """Runs of a few iterations do not converge, and say so."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return work()


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e5 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
