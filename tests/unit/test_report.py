"""The report as text: what is in it, what is left out, and that nobody's words become markup."""

import json
import re

import pytest
from click.testing import CliRunner
from helpers.insights import HOSTILE, hostile_insight, make_insight
from helpers.report_page import Page, render_report
from hypothesis import given, strategies as st

from gmkcf_dask.cli import main
from gmkcf_dask.errors import InputError
from gmkcf_dask.results.report import data, render
from gmkcf_dask.results.report.data import json_in_html, shown_documents
from gmkcf_dask.results.run_folder import read_insight
from gmkcf_dask.results.schemas import parse_insight

pytestmark = pytest.mark.once


def embedded_data(insight):
    return data.embedded_data(parse_insight(insight))


def page_of(**changes):
    return Page(render_report({**make_insight(), **changes}))


def test_says_what_a_reader_without_scripts_needs():
    insight = make_insight()
    text = page_of().text
    assert insight["summary"] in text
    assert insight["command"] in text
    for cluster in insight["clusters"]:
        assert cluster["name"] in text
        assert all(term["term"] in text for term in cluster["terms"])
        for i in cluster["central"][:3]:
            assert insight["documents"]["titles"][i] in text
            assert insight["documents"]["excerpts"][i] in text
    assert insight["warnings"][0] in text
    assert "0.913" in text
    assert "Made by gmkcf-dask 0.1.0 on 17 November 2026" in text


def test_data_of_the_page_is_that_of_the_insight():
    insight = make_insight()
    data, documents = page_of().data, insight["documents"]
    assert data == embedded_data(insight)
    assert data["documents"]["ids"] == documents["ids"]
    assert data["documents"]["titles"] == documents["titles"]
    assert data["documents"]["excerpts"] == documents["excerpts"]
    topics = data["documents"]["topics"]
    assert [topics["names"][i] for i in topics["of"]] == documents["topics"]
    found = data["clusters"]
    assert [found[i]["label"] for i in data["documents"]["of"]] == documents["labels"]
    assert [run["history"] for run in data["runs"]] == [run["history"] for run in insight["runs"]]
    assert data["documents"]["sure"] == pytest.approx([1000 * s for s in documents["sure"]], abs=1)


def test_map_keeps_its_shape():
    insight = make_insight()
    documents, data = insight["documents"], embedded_data(insight)["documents"]
    for axis in "xy":
        given_, kept = documents[axis], data[axis]
        step = max(max(documents[a]) - min(documents[a]) for a in "xy") / 9999
        assert kept == pytest.approx([(v - min(given_)) / step for v in given_], abs=1)


def test_clusters_stand_from_the_largest_to_the_smallest():
    sizes = [cluster["size"] for cluster in page_of().data["clusters"]]
    assert sizes == sorted(sizes, reverse=True)


def test_cards_have_the_numbers_of_labels_csv():
    insight = make_insight()
    insight["clusters"][1]["name"] = "cluster 1"
    text = page_of(clusters=insight["clusters"]).text
    for cluster in insight["clusters"]:
        number = f"cluster {cluster['label']}"
        said = number if cluster["name"] == number else f"{cluster['name']} {number}"
        assert f"{said}\n" in text
    assert "cluster 1 cluster 1" not in text


def test_a_number_that_is_none_is_refused():
    insight = make_insight()
    insight["clusters"][0]["label"] = "<b>0</b>"
    with pytest.raises(InputError, match="is invalid in"):
        render_report(insight)


def test_hostile_words_stay_words():
    insight = hostile_insight()
    html = render_report(insight)
    page, plain = Page(html), page_of()
    assert set(page.elements) <= set(plain.elements)
    assert page.elements.count("script") == 2
    assert "img" not in page.elements
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert {name for name, _ in page.attributes} <= {name for name, _ in plain.attributes}
    assert page.data["documents"]["titles"][: len(HOSTILE)] == HOSTILE
    assert page.data["kernels"]["names"] == HOSTILE[:5]
    for text in HOSTILE:
        if text.isprintable():
            assert text in page.text
    html.encode()  # lone surrogates would be refused


@given(st.text(max_size=40))
def test_no_word_can_leave_the_data(word):
    text = json_in_html([word])
    assert not set("<>&\u2028\u2029") & set(text)
    text.encode()
    assert json.loads(text) == [word]


@given(st.text(min_size=1, max_size=30), st.text(max_size=30))
def test_any_words_give_the_same_elements(name, title):
    insight = make_insight(n=12, k=2, m=2, iterations=3, restarts=1)
    expected = Page(render_report(insight)).elements
    insight["clusters"][0]["name"] = name
    insight["documents"]["titles"][0] = f"x{title}"
    insight["title"] = insight["command"] = f"x{name}"
    assert Page(render_report(insight)).elements == expected


@pytest.mark.parametrize("insight", [make_insight(), hostile_insight()], ids=["usual", "hostile"])
def test_names_no_address(insight):
    html = render_report(insight).replace('http-equiv="Content-Security-Policy"', "")
    assert "http" not in html
    assert "url(" not in html
    assert "@import" not in html
    page = Page(html)
    places = [value for name, value in page.attributes if name in ("href", "src")]
    assert {place for place in places if not place.startswith("#")} == {"data:,"}


def test_only_its_own_script_and_style_may_run():
    html = render_report(make_insight())
    policy = re.search(r'content="(default-src[^"]+)"', html)[1].replace("&#39;", "'")
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "innerHTML" not in html
    assert "insertAdjacentHTML" not in html
    assert "document.write" not in html
    assert " style=" not in html


def test_parts_with_nothing_to_show_are_left_out():
    full = {"map", "documents", "topics", "similarity", "kernels", "search", "run", "clusters"}
    assert full <= set(page_of().ids)
    bare = make_insight(m=1, topics=False, titles=False, excerpts=False)
    bare["documents"].update(x=[], y=[])
    bare["runs"] = [{"history": [], "converged": True}]
    bare["best"] = 0
    bare["fused"] = {"groups": [], "labels": [], "means": []}
    bare["kernels"].update(history=[], correlation=[])
    bare.update(seconds={}, bytes={}, command=None, warnings=[], parameters={}, versions={})
    for cluster in bare["clusters"]:
        cluster.update(terms=[], concept_terms=[], central=[], doubtful=[], nearest=[], kernels=[])
        cluster["cohesion"] = None
    page = Page(render_report(bare))
    assert full & set(page.ids) == {"clusters", "documents", "run"}
    assert "Command to repeat this run" not in page.text
    assert "Most typical" not in page.text
    assert "Notes" not in [value for _, value in page.attributes]


def test_a_kernel_says_nothing_alone():
    assert "kernels" not in page_of(**_kernels(1)).ids
    assert "kernels" in page_of(**_kernels(2)).ids
    unlearned = _kernels(3)
    unlearned["kernels"]["history"] = []
    page = page_of(**unlearned)
    assert "kernels" in page.ids
    assert "weight-lines" not in page.ids


def _kernels(m):
    return {"kernels": make_insight(m=m)["kernels"]}


def test_numbers_that_are_none_are_shown_as_such():
    insight = make_insight()
    insight["documents"]["sure"][0] = None
    insight["documents"]["x"][1] = None
    insight["fused"]["means"][0][1] = None
    insight["runs"][0]["history"][3] = None
    insight["objective"] = None
    insight["clusters"][0]["terms"][0]["score"] = None
    data = Page(render_report(insight)).data
    assert data["documents"]["sure"][0] is None
    assert data["documents"]["x"][1] is data["documents"]["y"][1] is None
    assert data["runs"][0]["history"][3] is None


def test_distinguishing_columns_say_high_or_low():
    insight = make_insight()
    terms = insight["clusters"][0]["terms"]
    terms[0]["high"], terms[1]["high"] = True, False
    text = page_of(clusters=insight["clusters"]).text
    assert re.search(rf"↑high\s+{terms[0]['term']}", text)
    assert re.search(rf"↓low\s+{terms[1]['term']}", text)


def test_many_documents_leave_excerpts_to_those_that_clusters_name(monkeypatch):
    monkeypatch.setattr(data, "MOST_EXCERPTS", 100)
    insight = make_insight(n=300)
    page = page_of()
    found = page.data["documents"]["excerpts"]
    named = {i for c in insight["clusters"] for i in c["central"] + c["doubtful"]}
    assert set(found["rows"]) == named
    assert found["texts"] == [insight["documents"]["excerpts"][i] for i in found["rows"]]
    assert "only documents named by a cluster" in page.text


def test_very_many_documents_are_picked_evenly_and_named_ones_kept(monkeypatch):
    monkeypatch.setattr(data, "MOST_DOCUMENTS", 100)
    insight = make_insight(n=300)
    page = page_of()
    shown = shown_documents(parse_insight(insight))
    assert {i for c in insight["clusters"] for i in c["central"] + c["doubtful"]} <= set(shown)
    assert len(shown) < 160
    assert page.data["documents"]["ids"] == [insight["documents"]["ids"][i] for i in shown]
    assert f"This page shows {len(shown)} of 300 documents" in page.text
    rows = {int(value) for name, value in page.attributes if name == "data-row"}
    assert max(rows) < len(shown)


def test_long_names_are_cut():
    insight = make_insight()
    insight["documents"]["titles"][0] = "w" * 100_000
    assert len(embedded_data(insight)["documents"]["titles"][0]) == 300


def test_kernels_that_are_nearly_the_same_are_named_once():
    kernels = make_insight(m=6)["kernels"]
    names = kernels["names"]
    pairs = [(0, 1), (4, 5), (1, 2), (0, 2)]
    kernels["near"] = [{"a": names[i], "b": names[j], "correlation": 0.99} for i, j in pairs]
    text = " ".join(page_of(kernels=kernels).text.split())
    assert "may be enough: linear, cosine and poly 2; rbf 0.01 and rbf 0.05." in text
    kernels["near"] = []
    assert "No two kernels are nearly the same" in page_of(kernels=kernels).text


def test_equal_weights_are_said_to_be_equal():
    kernels = make_insight(m=3)["kernels"]
    assert "a longer bar means more influence" in page_of(kernels=kernels).text
    kernels["weights"] = [1 / 3] * 3
    assert "gives all of them the same weight" in page_of(kernels=kernels).text


def test_large_confusion_is_drawn_and_small_is_a_table():
    assert "confusion" not in page_of().ids
    many = make_insight(n=200, k=40)
    page = Page(render_report(many))
    assert "confusion" in page.ids
    assert page.data["confusion"]["counts"] == many["confusion"]["counts"]


# reading and writing


def _run_folder(tmp_path, insight):
    tmp_path.joinpath("insight.json").write_text(json.dumps(insight))
    return tmp_path


def test_command_writes_the_page_of_a_run(tmp_path):
    folder = _run_folder(tmp_path, make_insight())
    done = CliRunner().invoke(main, ["report", str(folder)])
    assert done.exit_code == 0, done.output
    assert str(folder / "report.html") in done.output
    html = (folder / "report.html").read_text(encoding="utf-8")
    assert html == render_report(make_insight())
    elsewhere = tmp_path / "pages" / "one.html"
    done = CliRunner().invoke(main, ["report", str(folder), "--out", str(elsewhere)])
    assert done.exit_code == 0, done.output
    assert elsewhere.read_text(encoding="utf-8") == html


def test_a_folder_is_no_file_to_write(tmp_path):
    folder = _run_folder(tmp_path, make_insight())
    done = CliRunner().invoke(main, ["report", str(folder), "--out", str(folder)])
    assert done.exit_code == 2
    assert f"{folder} is a folder: give a file to write" in done.output


def test_a_folder_that_is_not_there_is_said_to_be(tmp_path):
    done = CliRunner().invoke(main, ["report", str(tmp_path / "nosuch")])
    assert done.exit_code == 2
    assert f"{tmp_path / 'nosuch'} does not exist: give the folder of a finished run" in done.output


def test_hostile_names_survive_the_file(tmp_path):
    folder = _run_folder(tmp_path, hostile_insight())
    path = render.write_report(folder, read_insight(folder))
    page = Page(path.read_text(encoding="utf-8"))
    assert page.data["documents"]["titles"][: len(HOSTILE)] == HOSTILE


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "has no insight.json.*run gmkcf fit again"),
        ("{", "is damaged: remove it and make it again with gmkcf report"),
        ("[" * 100_000, "is damaged"),
        ("[]", "has no version"),
        ('{"version": 2}', "version 2, this is for version 1: install a newer"),
        ('{"version": 1}', "is invalid in"),
    ],
)
def test_insights_that_cannot_be_used_are_told_in_a_sentence(tmp_path, content, sentence):
    if content is not None:
        tmp_path.joinpath("insight.json").write_text(content)
    done = CliRunner().invoke(main, ["report", str(tmp_path)])
    assert done.exit_code == 2
    assert re.search(sentence, done.output)
    assert "Traceback" not in done.output
    assert not (tmp_path / "report.html").exists()


def _damaged():
    def change(path, value):
        def apply(insight):
            *parents, last = path
            for key in parents:
                insight = insight[key]
            insight[last] = value

        return pytest.param(apply, id=".".join(map(str, path)))

    return [
        change(("n_samples",), "many"),
        change(("n_samples",), 4),
        change(("documents", "labels", 0), 77),
        change(("documents", "titles", 0), {"a": 1}),
        change(("documents", "sure"), [0.5]),
        change(("documents", "x", 0), "left"),
        change(("clusters",), []),
        change(("clusters", 0, "central"), [10**9]),
        change(("clusters", 0, "doubtful"), [-1]),
        change(("clusters", 0, "nearest"), [{"label": 99, "similarity": 1}]),
        change(("clusters", 0, "terms"), [{"term": 3, "score": 1}]),
        change(("kernels", "weights"), [1]),
        change(("kernels", "correlation"), [[1]]),
        change(("fused", "means"), [[1, 2], [3]]),
        change(("fused", "groups", 0), "all"),
        change(("fused", "inside"), 0.5),
        change(("kernels", "compared"), "all"),
        change(("runs", 0, "history"), ["low"]),
        change(("best",), 99),
        change(("confusion", "counts"), [[1]]),
        change(("seconds",), {"fit": "long"}),
        change(("scores",), {"ACC": "good"}),
        change(("warnings",), [3]),
        change(("parameters",), None),
        change(("n_iter",), "many"),
        change(("command",), 3),
    ]


@pytest.mark.parametrize("damage", _damaged())
def test_damaged_insights_are_refused(damage):
    insight = make_insight(n=60, k=3, m=3, iterations=5, restarts=2)
    damage(insight)
    with pytest.raises(InputError, match="is invalid in"):
        render_report(insight)


def test_similarity_to_oneself_is_no_similarity_of_two():
    """Groups of one show their diagonal, and of s samples there are s(s − 1) ordered pairs."""
    insight = make_insight(n=4, k=2)
    insight["fused"] = {
        "groups": [2, 1, 1],
        "labels": [0, 1, 1],
        "means": [[0.5, 0.1, 0.1], [0.1, 1.0, 0.25], [0.1, 0.25, 1.0]],
    }
    assert "within clusters is 0.375 and between clusters 0.1." in render_report(insight)
    insight["fused"] |= {"inside": 0.75, "between": 0.125}
    assert "within clusters is 0.75 and between clusters 0.125." in render_report(insight)
    insight["fused"] |= {"inside": None}
    assert "of two documents between clusters is 0.125." in render_report(insight)


def test_a_time_that_is_not_known_is_not_shown():
    insight = make_insight(n=20, k=2)
    insight["seconds"] = {}
    assert "under 0.1 s" not in render_report(insight)


def test_it_is_said_that_a_part_of_the_pairs_was_compared():
    insight = make_insight(n=20, k=2)
    assert "correlation between two kernels." in render_report(insight)
    insight["kernels"]["compared"] = 0.25
    assert "measured on 25 % of all pairs." in render_report(insight)
