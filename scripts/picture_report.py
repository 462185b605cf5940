"""Draw docs/report.png: what a browser shows of the report that scripts/demo leaves in demo_run/.

Needs the package playwright and Chromium on the path.
"""

import io
import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

WIDTH, TOP, GAP = 1280, 1180, 48
SETTINGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]


def shots(page: Page) -> list[Image.Image]:
    """The beginning of the page, and its map."""
    parts = [page.screenshot(), page.locator("#map").screenshot()]
    return [Image.open(io.BytesIO(part)).convert("RGB") for part in parts]


def stacked(parts: list[Image.Image]) -> Image.Image:
    """One below the other, in as few colours as a picture of text needs."""
    height = sum(part.height for part in parts) + GAP
    whole = Image.new("RGB", (WIDTH, height), parts[0].getpixel((2, 2)))
    top = 0
    for part in parts:
        whole.paste(part, ((WIDTH - part.width) // 2, top))
        top += part.height + GAP
    return whole.quantize(128, dither=Image.Dither.NONE)


def main(report: Path, out: Path) -> None:
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=SETTINGS)
        page = browser.new_page(viewport={"width": WIDTH, "height": TOP}, color_scheme="light")
        page.goto(report.resolve().as_uri())
        page.wait_for_timeout(500)
        stacked(shots(page)).save(out, optimize=True)
        browser.close()


if __name__ == "__main__":
    root = Path(__file__).resolve().parents[1]
    given = sys.argv[1:2] or [root / "demo_run" / "report.html"]
    main(Path(given[0]), root / "docs" / "report.png")
