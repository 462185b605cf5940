"""The report in a real browser: used by clicking, as a reader would, and watched while it is.

Every test fails on any error of a script and on any request but the one for the page itself.
Pictures of the pages are kept in build/screenshots, to be looked at.
"""

from contextlib import contextmanager
from pathlib import Path

import pytest
from helpers.insights import HOSTILE, hostile_insight, make_insight
from helpers.marks import mostly_slow
from helpers.needs import need_package, need_program

from gmkcf_dask.results.report.render import write_report
from gmkcf_dask.results.schemas import parse_insight

pytestmark = pytest.mark.once
PICTURES = Path(__file__).parents[2] / "build" / "screenshots"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PAGE_ROWS = 25


@pytest.fixture(scope="module")
def browser():
    program = need_program("chromium", "apt install chromium")
    need_package("playwright", "pip install 'gmkcf-dask[cluster-tests]'")
    from playwright.sync_api import sync_playwright

    PICTURES.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as play:
        started = play.chromium.launch(executable_path=program, args=FLAGS)
        yield started
        started.close()


@pytest.fixture(scope="module")
def insight():
    return make_insight(n=1000, k=6, iterations=120, restarts=5)


@pytest.fixture
def opened(browser, tmp_path):
    """A function that opens the report of an insight and watches what it does."""

    @contextmanager
    def open_report(insight, width=1280, height=900, **how):
        path = write_report(tmp_path, parse_insight(insight))
        context = browser.new_context(viewport={"width": width, "height": height}, **how)
        page = context.new_page()
        wrong, requests = [], []
        page.on("console", lambda said: wrong.append(f"{said.type}: {said.text}"))
        page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
        page.on(
            "dialog", lambda dialog: (wrong.append(f"dialog: {dialog.message}"), dialog.accept())
        )
        page.on("request", lambda request: requests.append(request.url))
        page.goto(path.as_uri())
        if how.get("java_script_enabled", True):
            page.wait_for_selector("html[data-ready]", state="attached")
        yield page
        page.wait_for_timeout(20)
        assert wrong == []
        assert {url for url in requests if not url.startswith("data:")} == {path.as_uri()}
        context.close()

    return open_report


def expect(found):
    """What is waited for, until it holds."""
    from playwright.sync_api import expect as waited_for

    return waited_for(found)


def picture(page, name):
    page.screenshot(path=PICTURES / f"{name}.png", full_page=True)


def column(page, name):
    return page.locator(f"#table tbody td.{name}").all_inner_texts()


def titles(page):
    return page.locator("#table tbody td.name button").all_inner_texts()


def sides_fit(page):
    """Nothing makes the page wider than the window."""
    return page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def painted(page, canvas):
    """How many different colours a canvas shows."""
    return page.evaluate(
        """(id) => {
          const canvas = document.getElementById(id);
          const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
          return new Set(new Uint32Array(pixels.data.buffer)).size;
        }""",
        canvas,
    )


def background(page):
    return page.evaluate("getComputedStyle(document.body).backgroundColor")


LIGHT, DARK = "rgb(251, 250, 248)", "rgb(22, 24, 28)"


@mostly_slow("scheme", ["light", "dark"])
def test_every_part_is_drawn(opened, insight, scheme):
    with opened(insight, color_scheme=scheme) as page:
        picture(page, f"usual-{scheme}")
        assert background(page) == (LIGHT if scheme == "light" else DARK)
        for canvas in ("map-points", "fused", "likeness"):
            assert painted(page, canvas) > 10
        assert page.locator("#weight-lines path.line").count() >= 12
        assert page.locator("#convergence path.best").count() == 1
        assert page.locator("#convergence circle.end").count() == 4
        assert page.locator("#map-legend button").count() == 6
        assert sides_fit(page)
        for link in page.locator("nav a").all():
            assert page.locator(link.get_attribute("href")).count() == 1


def test_clicks_on_headers_sort(opened, insight):
    found = insight["documents"]
    with opened(insight) as page:
        assert column(page, "id") == found["ids"][:PAGE_ROWS]
        header = page.get_by_role("button", name="Sure", exact=True)
        header.click()
        sure = [int(text.split()[0]) for text in column(page, "sure")]
        assert sure == sorted(sure, reverse=True)
        assert sure[0] == round(100 * max(found["sure"]))
        header.click()
        sure = [int(text.split()[0]) for text in column(page, "sure")]
        assert sure == sorted(sure)
        assert page.locator('th[aria-sort="ascending"]').inner_text() == "Sure"
        for name, expected in (
            ("Document", sorted(found["titles"])),
            ("Known topic", sorted(found["topics"])),
        ):
            page.get_by_role("button", name=name, exact=True).click()
            class_ = "name button" if name == "Document" else "topic"
            assert column(page, class_) == expected[:PAGE_ROWS]
            assert page.locator('th[aria-sort="ascending"]').inner_text() == name
        page.get_by_role("button", name="Cluster", exact=True).press("Enter")
        names = sorted(cluster["name"] for cluster in insight["clusters"])
        assert set(column(page, "cluster bdi")) == {names[0]}
        page.get_by_role("button", name="Id", exact=True).click()
        page.get_by_role("button", name="Id", exact=True).click()
        assert column(page, "id") == found["ids"][::-1][:PAGE_ROWS]


def test_search_and_filter(opened, insight):
    found = insight["documents"]
    with opened(insight) as page:
        hits = page.locator("#hits")
        page.fill("#query", "NEWS/00012")
        expect(page.locator("#table tbody tr")).to_have_count(10)
        assert column(page, "id") == found["ids"][120:130]
        assert hits.inner_text() == "10 of 1,000 documents"
        page.fill("#query", "no such words")
        page.get_by_text("No documents match.").wait_for()
        assert page.locator("#printed").text_content() == ""
        page.fill("#query", "")
        smallest = min(insight["clusters"], key=lambda cluster: cluster["size"])
        number = smallest["label"]
        page.select_option("#cluster", label=f"{number} · {smallest['name']} ({smallest['size']})")
        assert hits.inner_text() == f"{smallest['size']} of 1,000 documents"
        assert set(column(page, "cluster")) == {f"{number}{smallest['name']}"}
        word = smallest["terms"][5]["term"]
        page.fill("#query", word)
        expected = [
            i
            for i, label in enumerate(found["labels"])
            if label == smallest["label"]
            and word in f"{found['titles'][i]} {found['excerpts'][i]}".lower()
        ]
        expect(hits).to_have_text(f"{len(expected)} of 1,000 documents")


def test_pages_turn(opened, insight):
    with opened(insight) as page:
        assert page.locator("#before").is_disabled()
        page.click("#after")
        assert column(page, "id") == insight["documents"]["ids"][PAGE_ROWS : 2 * PAGE_ROWS]
        assert page.locator("#page").inner_text() == "page 2 of 40"


def test_theme_button(opened, insight):
    with opened(insight, color_scheme="light") as page:
        button = page.locator("#theme")
        assert button.inner_text() == "Theme: auto"
        button.click()
        assert (button.inner_text(), background(page)) == ("Theme: light", LIGHT)
        before = page.evaluate("document.getElementById('fused').toDataURL()")
        button.click()
        assert (button.inner_text(), background(page)) == ("Theme: dark", DARK)
        assert page.evaluate("document.getElementById('fused').toDataURL()") != before
        page.reload()
        page.wait_for_selector("html[data-ready]", state="attached")
        assert (button.inner_text(), background(page)) == ("Theme: dark", DARK)
        button.click()
        assert (button.inner_text(), background(page)) == ("Theme: auto", LIGHT)
        page.emulate_media(color_scheme="dark")
        assert background(page) == DARK


def test_theme_works_where_nothing_may_be_remembered(opened, insight):
    with opened(insight, color_scheme="light") as page:
        page.add_init_script(
            "Object.defineProperty(window, 'localStorage', {get() { throw new Error('no'); }})"
        )
        page.reload()
        page.wait_for_selector("html[data-ready]", state="attached")
        page.click("#theme")
        page.click("#theme")
        assert background(page) == DARK


# where the points of the map are: as the page itself draws them, y up and both axes alike
SPOT = """(row) => {
  const docs = JSON.parse(document.getElementById("data").textContent).documents;
  const canvas = document.getElementById("map-points");
  const [left, right] = [Math.min(...docs.x), Math.max(...docs.x)];
  const [low, high] = [Math.min(...docs.y), Math.max(...docs.y)];
  const edge = 0.04 * Math.max(right - left, high - low);
  const [wide, tall] = [canvas.clientWidth, canvas.clientHeight];
  const scale = Math.min(wide / (right - left + 2 * edge), tall / (high - low + 2 * edge));
  return {x: wide / 2 + scale * (docs.x[row] - (left + right) / 2),
          y: tall / 2 - scale * (docs.y[row] - (low + high) / 2)};
}"""


def test_map_tells_and_selects(opened, insight):
    found = insight["documents"]
    # far from all others, so that no neighbour is nearer
    row = max(range(1000), key=lambda i: found["y"][i])
    cluster = f"cluster {found['labels'][row]}: {_name(insight, row)}"
    with opened(insight) as page:
        plane = page.locator("#map-points")
        plane.scroll_into_view_if_needed()
        spot = page.evaluate(SPOT, row)
        plane.hover(position=spot)
        tip = page.locator("#tip")
        for text in (found["titles"][row], found["ids"][row], cluster):
            assert text in tip.inner_text()
        page.fill("#query", "nothing that would be found")
        plane.click(position=spot)
        chosen = page.locator('#table tr[aria-selected="true"]')
        assert chosen.count() == 1
        assert found["ids"][row] in chosen.inner_text()
        expect(chosen).to_be_in_viewport()
        page.screenshot(path=PICTURES / "map-selected.png")


def test_map_is_walked_by_keys(opened, insight):
    found = insight["documents"]
    top = max(range(1000), key=lambda i: found["y"][i])
    seen = []
    with opened(insight, reduced_motion="reduce") as page:
        plane, tip = page.locator("#map-points"), page.locator("#tip")
        plane.focus()
        page.wait_for_timeout(100)  # scrolling hides what was told
        for _ in range(200):
            page.keyboard.press("ArrowUp")
            if seen and tip.inner_text() == seen[-1]:
                break
            seen.append(tip.inner_text())
        heights = [found["y"][_row(found, text)] for text in seen]
        assert heights[1:] == sorted(heights[1:])  # the first is where one begins
        assert len(seen) > 3
        assert heights[-1] > 0.8 * found["y"][top]
        page.keyboard.press("Enter")
        chosen = page.locator('#table tr[aria-selected="true"]')
        assert found["ids"][_row(found, seen[-1])] in chosen.inner_text()
        plane.focus()
        page.wait_for_timeout(100)
        page.keyboard.press("ArrowDown")
        assert tip.is_visible()
        page.screenshot(path=PICTURES / "map-keys.png")
        page.keyboard.press("Escape")
        assert tip.is_hidden()
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("Tab")
        assert tip.is_hidden()


def test_map_shows_its_focus_and_scrolls_with_the_walk(opened, insight):
    with opened(insight, height=360, reduced_motion="reduce") as page:
        plane, tip = page.locator("#map-points"), page.locator("#tip")
        plane.scroll_into_view_if_needed()
        page.wait_for_timeout(100)
        before = plane.screenshot()
        page.locator("#map-legend button").first.focus()
        page.keyboard.press("Shift+Tab")
        assert page.evaluate("document.activeElement.id") == "map-points"
        assert plane.screenshot() != before
        page.wait_for_timeout(100)
        for _ in range(12):
            page.keyboard.press("ArrowDown")
            expect(tip).to_be_in_viewport(ratio=1)
        page.screenshot(path=PICTURES / "map-focus.png")


def test_keys_do_not_lead_to_what_is_hidden(opened, insight):
    with opened(insight, reduced_motion="reduce") as page:
        plane = page.locator("#map-points")
        plane.focus()
        page.wait_for_timeout(100)
        page.keyboard.press("ArrowUp")
        page.keyboard.press("Enter")
        for entry in page.locator("#map-legend button").all():
            entry.click()
        plane.focus()
        page.wait_for_timeout(100)
        page.keyboard.press("ArrowLeft")
        assert page.locator("#tip").is_hidden()


def _row(found, told):
    return next(row for row, name in enumerate(found["ids"]) if name in told)


def test_legend_hides_clusters_and_a_box_looks_closer(opened, insight):
    row = max(range(1000), key=lambda i: insight["documents"]["y"][i])
    with opened(insight) as page:
        plane = page.locator("#map-points")
        plane.scroll_into_view_if_needed()
        spot = page.evaluate(SPOT, row)
        entry = page.locator("#map-legend button", has_text=_name(insight, row))
        entry.click()
        assert entry.get_attribute("aria-pressed") == "false"
        plane.hover(position=spot)
        assert page.locator("#tip").is_hidden()
        page.click("#map-all")
        plane.hover(position=spot)
        assert page.locator("#tip").is_visible()
        frame = plane.bounding_box()
        page.mouse.move(frame["x"] + 200, frame["y"] + 150)
        page.mouse.down()
        page.mouse.move(frame["x"] + 500, frame["y"] + 350, steps=4)
        page.mouse.up()
        assert page.locator("#map-whole").is_visible()
        assert page.locator('#table tr[aria-selected="true"]').count() == 0
        page.screenshot(path=PICTURES / "map-closer.png")
        page.click("#map-whole")
        plane.hover(position=spot)
        assert insight["documents"]["ids"][row] in page.locator("#tip").inner_text()


def _name(insight, row):
    names = {cluster["label"]: cluster["name"] for cluster in insight["clusters"]}
    return names[insight["documents"]["labels"][row]]


def test_cards_lead_to_documents_and_clusters(opened, insight):
    with opened(insight) as page:
        card = page.locator(".card").first
        document = card.locator(".few a").first
        title = document.inner_text()
        document.click()
        assert title in page.locator('#table tr[aria-selected="true"]').inner_text()
        card.locator("a[data-cluster]").click()
        name = card.locator("h3 bdi").inner_text()
        assert set(column(page, "cluster bdi")) == {name}


def test_clusters_have_the_numbers_of_labels_csv(opened, insight):
    nameless = max(insight["clusters"], key=lambda cluster: cluster["size"])["label"]
    names = {cluster["label"]: cluster["name"] for cluster in insight["clusters"]}
    names[nameless] = f"cluster {nameless}"
    clusters = [{**one, "name": names[one["label"]]} for one in insight["clusters"]]
    with opened({**insight, "clusters": clusters}) as page:
        picture(page, "numbers")
        options = page.locator("#cluster option").all_inner_texts()[1:]
        legend = page.locator("#map-legend button").all_inner_texts()
        for label, name in names.items():
            heading = page.locator(f"#cluster-{label} h3").inner_text()
            if label == nameless:  # its number is its name, said once
                assert heading == name
                assert any(text.startswith(f"{name} (") for text in options)
                continue
            assert heading == f"{name} cluster {label}"
            assert any(text.startswith(f"{label} · {name} (") for text in options)
            assert any(text.split("\n")[:2] == [str(label), name] for text in legend)
        rows = column(page, "cluster")
        for label, text in zip(insight["documents"]["labels"], rows, strict=False):
            assert text == (names[label] if label == nameless else f"{label}{names[label]}")


def test_heat_maps_tell_their_values(opened, insight):
    with opened(insight) as page:
        for canvas in ("fused", "likeness"):
            drawn = page.locator(f"#{canvas}")
            drawn.scroll_into_view_if_needed()
            drawn.hover(position={"x": 330, "y": 100})
            assert "similarity" in page.locator("#tip").inner_text()


def test_command_is_copied(opened, insight):
    with opened(insight, permissions=["clipboard-read", "clipboard-write"]) as page:
        page.click("#copy")
        page.get_by_text("Copied").wait_for()
        assert page.evaluate("navigator.clipboard.readText()") == insight["command"]


def test_hostile_words_are_shown_as_words(opened):
    with opened(hostile_insight()) as page:
        picture(page, "hostile")
        shown = titles(page)
        # tabs and the like are shown as a browser shows them, so only what it shows as it is
        plain = [text for text in HOSTILE if text.isprintable()]
        assert set(plain) <= set(shown)
        assert sides_fit(page)
        page.fill("#query", "<img src=x")
        expect(page.locator("#hits")).to_contain_text(" of ")
        assert HOSTILE[1] in titles(page)
        page.locator("#map-points").hover()
        page.locator("#fused").hover(position={"x": 300, "y": 60})
        page.locator("#table tbody tr").first.click()
        for entry in page.locator("#map-legend button").all():
            entry.hover()
        assert page.locator("img").count() == 0
        assert page.locator("script").count() == 2


def test_on_a_phone(opened, insight):
    with opened(insight, width=390, height=844, device_scale_factor=2, has_touch=True) as page:
        picture(page, "phone")
        assert sides_fit(page)
        page.set_viewport_size({"width": 700, "height": 844})
        page.wait_for_timeout(150)
        assert sides_fit(page)


def test_on_paper_all_is_light_and_controls_are_gone(opened, insight):
    with opened(insight, width=794, color_scheme="dark") as page:
        page.evaluate(
            """() => addEventListener("beforeprint", () => {
              window.paper = getComputedStyle(document.body).backgroundColor;
            })"""
        )
        page.pdf(path=PICTURES / "print.pdf", format="A4", print_background=True)
        assert page.evaluate("window.paper") in (LIGHT, "rgb(255, 255, 255)")
        assert background(page) == DARK
        dark = page.evaluate("document.getElementById('fused').toDataURL()")
        page.emulate_media(media="print", color_scheme="dark")
        page.wait_for_selector("html[data-printing]", state="attached")
        picture(page, "print")
        assert background(page) == "rgb(255, 255, 255)"
        assert page.evaluate("document.getElementById('fused').toDataURL()") != dark
        for control in (".controls", ".pages", "#theme", "nav"):
            assert page.locator(control).is_hidden()
        assert "Rows 1 to 25 of 1,000 documents" in page.locator("#printed").inner_text()
        page.emulate_media(media="screen", color_scheme="dark")
        page.wait_for_selector("html:not([data-printing])", state="attached")
        assert background(page) == DARK


def test_without_scripts_the_words_are_there(opened, insight):
    with opened(insight, java_script_enabled=False) as page:
        picture(page, "no-scripts")
        text = page.locator("body").inner_text()
        assert insight["summary"] in text
        assert insight["command"] in text
        assert "JavaScript is off" in text
        for cluster in insight["clusters"]:
            assert cluster["name"] in text
            assert insight["documents"]["titles"][cluster["central"][0]] in text
        assert page.locator("#documents").is_hidden()


def test_two_clusters_of_one_kernel(opened):
    few = make_insight(n=40, k=2, m=1, iterations=1, restarts=1, topics=False, titles=False)
    with opened(few) as page:
        picture(page, "two-clusters")
        assert page.locator("#kernels").count() == 0
        assert page.locator("#table th").count() == 3


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.slow
def test_two_hundred_clusters(opened, width):
    many = make_insight(n=4000, k=200, iterations=30)
    with opened(many, width=width) as page:
        picture(page, f"200-clusters-{width}")
        assert sides_fit(page)
        assert painted(page, "confusion") > 3
        card = page.locator("details.card").nth(3)
        assert card.get_attribute("open") is None
        near = card.get_attribute("id")
        page.evaluate(f"location.hash = '{near}'")
        page.wait_for_selector(f"#{near}[open]")


@pytest.mark.slow
def test_a_hundred_thousand_documents(opened):
    n = 100_000
    large = make_insight(n=n, k=20, iterations=500, restarts=10)
    with opened(large) as page:
        picture(page, "100000-documents")
        rows = page.locator("#table tbody tr")
        assert rows.count() == PAGE_ROWS
        assert page.locator("#hits").inner_text() == "100,000 documents"
        page.fill("#query", "news/09999")
        expect(page.locator("#hits")).to_have_text("10 of 100,000 documents")
        assert column(page, "id") == large["documents"]["ids"][99_990:]
        page.fill("#query", "")
        expect(page.locator("#hits")).to_have_text("100,000 documents")
        page.get_by_role("button", name="Id", exact=True).click()
        page.get_by_role("button", name="Id", exact=True).click()
        assert column(page, "id") == large["documents"]["ids"][::-1][:PAGE_ROWS]
        assert rows.count() == PAGE_ROWS
        assert page.evaluate("document.getElementsByTagName('*').length") < 6000
