"""The report of a run at 1,000 and at 100,000 documents: its size, and how long one waits for it.

Needs the package playwright and Chromium on the path.
"""

from __future__ import annotations

import argparse
import shutil
import time
from pathlib import Path

from helpers.corpora import scratch_folder
from helpers.insights import make_insight
from measure import Report

from gmkcf_dask.results.report.render import write_report
from gmkcf_dask.results.schemas import parse_insight

SETTINGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
# from the key or click to the picture of the table that follows it: milliseconds
WAITED = """async ([act, word]) => {
  const frame = () => new Promise(requestAnimationFrame);
  const query = document.getElementById("query"), table = document.getElementById("table");
  const acts = {
    search() { query.value = word; query.dispatchEvent(new Event("input", {bubbles: true})); },
    sort() { table.tHead.rows[0].querySelector("button").click(); },
  };
  await frame();
  const shown = new Promise((done) => {
    new MutationObserver(done).observe(table.tBodies[0], {childList: true});
  });
  const begun = performance.now();
  acts[act]();
  await shown;
  await frame();
  return performance.now() - begun;
}"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--n", type=int, nargs="+", default=[1_000, 100_000])
    parser.add_argument("--repeats", type=int, default=3)


def once(browser, path: Path) -> dict[str, float]:
    """Milliseconds of one visit: until the page is ready, then of what a reader does there."""
    page = browser.new_page()
    begun = time.perf_counter()
    page.goto(path.resolve().as_uri())
    page.wait_for_selector("html[data-ready]", state="attached")
    times = {"ready": 1e3 * (time.perf_counter() - begun)}
    for name, act in {
        "first search": ("search", "market"),
        "search": ("search", "film week"),
        "first sort": ("sort", ""),
        "sort": ("sort", ""),
    }.items():
        if name == "first sort":
            page.evaluate(WAITED, ["search", ""])
        times[name] = page.evaluate(WAITED, list(act))
    page.close()
    return times


def run(args: argparse.Namespace) -> Report:
    from playwright.sync_api import sync_playwright

    rows, columns = [], ["ready", "first search", "search", "first sort", "sort"]
    with scratch_folder(None) as folder, sync_playwright() as play:
        browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=SETTINGS)
        for n in args.n:
            insight = make_insight(n=n, k=10, iterations=120, restarts=5)
            begun = time.perf_counter()
            path = write_report(folder, parse_insight(insight))
            written = time.perf_counter() - begun
            visits = [once(browser, path) for _ in range(args.repeats)]
            best = [min(visit[name] for visit in visits) for name in columns]
            rows.append([n, path.stat().st_size / 1e6, 1e3 * written, *best])
        browser.close()
    return Report(
        "report",
        "made-up documents in ten clusters; milliseconds, the best of several visits",
        ["documents", "MB", "written", *columns],
        rows,
        notes=["Searches of many documents begin 120 ms after the last key."],
    )
