"""From rows to files: tables.md, and a picture per measure where Matplotlib is installed."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from gmkcf_dask.benchmark.published import MEASURES
from gmkcf_dask.benchmark.runs import RUNS, Row, read_settings
from gmkcf_dask.benchmark.tables import Results, markdown
from gmkcf_dask.files import put_atomic

TABLES = "tables.md"


def write_report(out: Path, rows: Sequence[Row]) -> list[Path]:
    """Tables and pictures of a benchmark folder; returns what was written."""
    settings = read_settings(out)
    assert settings is not None
    put_atomic(out / TABLES, markdown(rows, settings).encode())
    written = [out / RUNS, out / TABLES]
    if find_spec("matplotlib") is not None:
        from gmkcf_dask.benchmark.pictures import draw_means, draw_measure

        results = Results(rows)
        for measure in MEASURES:
            written.append(out / f"{measure}.png")
            draw_measure(results, measure, written[-1])
        written.append(out / "summary.png")
        draw_means(results, written[-1])
    return written
