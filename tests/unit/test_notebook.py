"""How estimators, plans and stores look in notebooks."""

from __future__ import annotations

import numpy as np
import pytest
import sklearn
from helpers.html_text import read
from hypothesis import given, strategies as st
from sklearn.datasets import make_blobs
from sklearn.exceptions import ConvergenceWarning

from gmkcf_dask import GMKCF, KCF, KernelStore, Plan, Precomputed, make_plan
from gmkcf_dask.system.html import bar, block, line_chart, table, text, titled

HOSTILE = '<script>alert("x")</script>'
FEW = ["rbf_1", "cosine"]
pytestmark = pytest.mark.usefixtures("calm")


@pytest.fixture(scope="module")
def X():
    return make_blobs(60, 4, centers=3, cluster_std=0.6, random_state=0)[0]


@pytest.fixture(scope="module")
def model(X):
    with pytest.warns(ConvergenceWarning):
        return GMKCF.paper(3, kernels=FEW, max_iter=30, random_state=0).fit(X)


def ours(html: str) -> str:
    """Our part, below the diagram."""
    return html[html.index('<div class="gmkcf"') :]


def test_a_fitted_estimator_shows_what_it_found(model):
    shown = ours(model._repr_html_())
    page = read(shown)
    assert "60 samples in 3 clusters" in page.text
    assert "30 iterations, not converged" in page.text
    for name, weight in zip(model.kernel_names_, model.kernel_weights_, strict=True):
        assert name in page.text
        assert f"{weight:.4f}" in page.text
    assert shown.count("<rect") == 2 * (3 + len(FEW))
    assert shown.count("<polyline") == 1
    assert page.addresses == []
    assert model._repr_mimebundle_()["text/html"].endswith(shown)


def test_the_diagram_of_scikit_learn_stays(model):
    diagram = model._repr_html_().removesuffix(ours(model._repr_html_()))
    assert "sk-top-container" in diagram
    assert 'class="gmkcf"' not in GMKCF(3)._repr_html_()
    assert "GMKCF(" in repr(model)
    assert model._repr_mimebundle_()["text/plain"] == repr(model)


def test_displaying_text_leaves_html_out(model):
    with sklearn.config_context(display="text"):
        assert not hasattr(model, "_repr_html_")
        assert set(model._repr_mimebundle_()) == {"text/plain"}


def test_hostile_names_stay_text(rng, tmp_path):
    A = rng.random((20, 4))
    model = KCF(2, kernel="precomputed", max_iter=3, random_state=0).fit(A @ A.T)
    model.kernel_names_ = (HOSTILE,)
    page = read(ours(model._repr_html_()))
    assert HOSTILE in page.text
    assert "script" not in page.seen


def test_many_clusters_are_cut_short(rng):
    model = KCF(2, kernel="precomputed", init="random", max_iter=3, random_state=0)
    model.fit(np.eye(4) + 0.1)
    model.labels_ = np.repeat(np.arange(50), 2)
    page = read(ours(model._repr_html_()))
    assert "and 30 more" in page.text


def test_a_plan_is_a_table_of_its_lines():
    plan = make_plan(1000, 10, 3, 4, feature_bytes=1000)
    assert isinstance(plan, Plan)
    page = read(plan._repr_html_())
    assert page.addresses == []
    folded = page.text.replace(" ", "")
    for line in plan.lines():
        words = (
            line if line.find(": ") > 24 or ";" in line.split(": ")[0] else line.replace(": ", "")
        )
        assert words.replace(" ", "") in folded
    assert str(plan) == "\n".join(plan.lines())


@pytest.mark.parametrize(
    ("layout", "tiles"), [("each", "1 of 1 per kernel"), ("gram", "the distance")]
)
def test_a_store_shows_kernels_sizes_and_state(X, tmp_path, layout, tiles):
    path = tmp_path / "a<b>.zarr"
    options = {"store": path, "layout": layout, "max_iter": 3, "random_state": 0}
    GMKCF(3, kernels=[*FEW, "rbf_100"], **options).fit(X)
    store = KernelStore.open(path)
    page = read(store._repr_html_())
    assert "b" not in page.seen
    for part in (str(path), *FEW, "60", tiles, "complete", "minmax", "float32"):
        assert part in page.text
    assert "KernelStore(" in repr(store)


def test_kernels_that_were_passed_in_are_shown_too(rng, tmp_path):
    A = rng.random((20, 4))
    kernel = Precomputed(A @ A.T, "mine")
    GMKCF(2, kernels="precomputed", store=tmp_path / "s", max_iter=3, random_state=0).fit([kernel])
    assert "none (precomputed kernels)" in read(KernelStore.open(tmp_path / "s")._repr_html_()).text


@given(st.text(max_size=40), st.lists(st.text(max_size=20), max_size=4))
def test_any_text_stays_text(title, lines):
    page = read(block(title, titled(lines), table([(text(line),) for line in lines], [title])))
    assert page.seen <= {"div", "table", "tbody", "tr", "th", "td", "span"}


@given(st.lists(st.floats(-1e300, 1e300), max_size=500), st.floats(0, 1))
def test_lines_and_bars_are_drawn_of_any_numbers(values, share):
    html = line_chart(values, "objective") + bar(share)
    read(html)
    assert "nan" not in html
    assert "inf" not in html
    assert len(html) < 6_000


@pytest.mark.once
def test_light_and_dark_notebooks_ask_no_address(model):
    """In a browser: nothing is asked for, no script fails, and text is seen on both grounds."""
    from helpers.needs import need_package, need_program

    need_package("playwright", "pip install playwright")
    chromium = need_program("chromium", "apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        asked, wrong = [], []
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        for ink in ("rgb(17, 17, 17)", "rgb(238, 238, 238)"):
            page.set_content(f'<body style="color:{ink}">{model._repr_html_()}</body>')
            cell = page.locator(".gmkcf td").first
            assert cell.evaluate("e => getComputedStyle(e).color") == ink
            assert page.locator(".gmkcf svg").count() == 1 + 3 + len(FEW)
        browser.close()
    assert asked == []
    assert wrong == []
