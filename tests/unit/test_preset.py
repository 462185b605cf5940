"""The preset "auto" chooses options by the first documents, and keeps what is given."""

from __future__ import annotations

import gzip
import json
import os
import warnings
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from helpers.commands import QUICK, done
from helpers.telling import refused
from numpy.testing import assert_array_equal

from gmkcf_dask import GMKCF, JsonLines, Progress, TextOptions
from gmkcf_dask.corpus import (
    TextReading,
    corpus_from_texts,
    preset,
    read_corpus,
    read_like,
    vectorize,
)
from gmkcf_dask.corpus.preset import (
    choose_text_options,
    describe_choice,
    least_documents,
    sample_statistics,
)
from gmkcf_dask.corpus.text_options import CHOSEN
from gmkcf_dask.errors import DataWarning
from gmkcf_dask.events import StageNote
from gmkcf_dask.store.kernel_store import KernelStore

AUTO = TextOptions(preset="auto")
BESIDE = Path(__file__).parents[3] / "shared" / "data"
DATA = Path(os.environ.get("GMKCF_DATA", BESIDE)) / "text"

ENGLISH = [
    "The minister said that the budget would be ready before the summer.",
    "Heavy rain and strong winds closed the road between the two villages.",
    "Researchers found that the bees return to the flowers which they know.",
]
TITLES = ["How to sort a list with Python", "Excel macro", "Why does my query not use the index"]
QUERIES = ["what is my balance", "can you book a flight", "transfer money", "is it raining there"]
GERMAN = [
    "Der Minister sagte, dass der Haushalt noch vor dem Sommer fertig sein werde.",
    "Starker Regen und Wind haben die Straße zwischen den beiden Dörfern gesperrt.",
    "Forscher fanden heraus, dass die Bienen zu den Blumen zurückkehren, die sie kennen, und das "
    "auch dann, wenn man will, dass sie in der Nähe des Stocks bleiben.",
]
FRENCH = [
    "Le ministre a dit que le budget serait prêt avant la fin de l'été, or on attend encore.",
    "De fortes pluies ont coupé la route entre les deux villages.",
]
DUTCH = ["De minister zei dat de begroting voor de zomer klaar is, en we weten of het over was."]
SPANISH = ["El ministro ha dicho que no, y he visto que me lo has contado a mí sobre la mesa."]
KOREAN = ["장관은 예산이 여름 전에 준비될 것이라고 말했다", "폭우로 두 마을 사이의 도로가 막혔다"]
JAPANESE = ["新しいスマートフォンが発売された。", "映画の公開日が決まった。iPhone でも見られる。"]
CHINESE = ["新的手机已经上市。", "电影的上映日期已经确定，iPhone 也可以观看。"]
THAI = ["รัฐมนตรีกล่าวว่างบประมาณจะพร้อมก่อนฤดูร้อน", "ฝนตกหนักทำให้ถนนถูกปิด"]
NUMBERS = ["12 45 1999", "3.14 2718", "42"]
CODE = [
    "x = [i ** 2 for i in range(n)]",
    "int main() { return foo(bar); }",
    "<td>{{ row.sum }}</td>",
]


def language(texts):
    return sample_statistics(texts).language


def chosen(texts, **options):
    return choose_text_options(TextOptions(preset="auto", **options), sample_statistics(texts))


def quietly(call, *args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        return call(*args, **kwargs)


def read(texts, **options):
    return quietly(corpus_from_texts, texts, options=TextOptions(preset="auto", **options))


def many(texts, n=60):
    """So many different documents that document frequencies count."""
    return [f"{texts[i % len(texts)]} thing{i % 20}" for i in range(n)]


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (ENGLISH, "English"),
        (TITLES, "English"),
        (QUERIES, "English"),
        ([text.upper() for text in ENGLISH], "English"),
        ([*ENGLISH, *ENGLISH, *GERMAN], "English"),
        ([*ENGLISH, *JAPANESE[:1]], "English"),
        ([*GERMAN, *GERMAN, *GERMAN, *ENGLISH[:1]], "not English"),
        (GERMAN, "not English"),
        (FRENCH, "not English"),
        (DUTCH, "not English"),
        (SPANISH, "not English"),
        (KOREAN, "not English"),
        (CODE, "not English"),
        (JAPANESE, "Japanese"),
        (CHINESE, "Chinese"),
        (THAI, "Thai"),
        (["ລັດຖະມົນຕີກ່າວວ່າ"], "Lao"),
        (["រដ្ឋមន្ត្រីបាននិយាយ"], "Khmer"),
        (["ဝန်ကြီးက ပြောကြားခဲ့သည်"], "Burmese"),
        ([*JAPANESE, *ENGLISH[:2]], "Japanese"),
        (NUMBERS, "no letters"),
        (["", "  "], "no letters"),
        ([], "no letters"),
    ],
)
def test_languages_are_told_apart(texts, expected):
    assert language(texts) == expected


def test_empty_documents_have_no_say():
    assert language([*ENGLISH, *[""] * 50]) == "English"
    assert language([*THAI, *NUMBERS, *[""] * 50]) == "Thai"


def test_a_few_english_names_make_no_english():
    texts = [*GERMAN] * 20 + ["The Voice of Germany", "Wetten, dass", "Tatort"] * 5
    assert language(texts) == "not English"


def test_what_is_chosen():
    english = chosen(ENGLISH)
    assert (english.tokens, english.stop_words, english.max_df) == ("words", "english", 1.0)
    german = chosen(many(GERMAN))
    assert (german.tokens, german.stop_words, german.max_df) == ("words", None, 0.5)
    japanese = chosen(many(JAPANESE))
    assert (japanese.tokens, japanese.stop_words, japanese.max_df) == ("chars", None, 0.5)
    assert japanese.ngram_range == (2, 3)
    for found in (english, german, japanese):
        assert found.sublinear_tf is True
        assert found.open_options() == {"min_df"}  # which needs the number of all documents


def test_document_frequencies_of_few_documents_say_nothing():
    assert chosen(GERMAN).max_df == 1.0
    assert chosen(JAPANESE).max_df == 1.0


def test_words_are_kept_where_documents_have_no_others():
    lines = ["Verbindung getrennt"] * 60 + [f"Fehler {i}" for i in range(40)]
    assert sample_statistics(lines).emptied == 0.6
    assert chosen(lines).max_df == 1.0
    assert not (np.diff(read(lines).X.indptr) == 0).any()


def test_least_documents_grow_slowly():
    found = [least_documents(n) for n in range(1, 3_000_000, 997)]
    assert found == sorted(found)
    assert [least_documents(n) for n in (0, 49, 50, 999, 1_000)] == [1, 1, 2, 2, 3]
    assert least_documents(10**6) == 10


@pytest.mark.parametrize(
    ("texts", "given", "kept"),
    [
        (ENGLISH, {"stop_words": None}, {"stop_words": None, "max_df": 1.0, "sublinear_tf": True}),
        (ENGLISH, {"stop_words": ("tea",)}, {"stop_words": ("tea",), "max_df": 1.0}),
        (ENGLISH, {"max_df": 0.7}, {"stop_words": "english", "max_df": 0.7}),
        (ENGLISH, {"tokens": "chars"}, {"tokens": "chars", "stop_words": None}),
        (ENGLISH, {"sublinear_tf": False}, {"sublinear_tf": False, "stop_words": "english"}),
        (ENGLISH, {"min_df": 1}, {"min_df": 1, "stop_words": "english"}),
        (ENGLISH, {"ngrams": 2}, {"ngram_range": (1, 2), "stop_words": "english"}),
        (GERMAN, {"stop_words": "english"}, {"stop_words": "english", "max_df": 1.0}),
        (GERMAN, {"stop_words": None}, {"max_df": 1.0}),
        (GERMAN, {"max_df": 1.0}, {"max_df": 1.0, "stop_words": None}),
        (JAPANESE, {"tokens": "words"}, {"tokens": "words", "stop_words": None}),
        (JAPANESE, {"stop_words": ("映画",)}, {"tokens": "words", "stop_words": ("映画",)}),
        (JAPANESE, {"ngrams": 2}, {"ngram_range": (2, 2), "tokens": "chars"}),
        (GERMAN, {"features": "hashing"}, {"max_df": 1.0, "sublinear_tf": True}),
    ],
)
def test_what_is_given_wins(texts, given, kept):
    found = chosen(many(texts), **given)
    assert {name: getattr(found, name) for name in kept} == kept


def test_plain_chooses_nothing():
    plain = TextOptions(preset="plain")
    assert plain == TextOptions(
        max_df=1.0, stop_words=None, sublinear_tf=False, tokens="words", preset="plain"
    )
    assert choose_text_options(plain, sample_statistics(ENGLISH)) == plain
    assert quietly(corpus_from_texts, ENGLISH, options=plain).reading.options == plain
    assert "preset" in refused(lambda: TextOptions(preset="best"))


def test_choosing_twice_changes_nothing():
    once = chosen(many(GERMAN))
    assert choose_text_options(once, sample_statistics(ENGLISH)) == once
    corpus = read(many(ENGLISH))
    again = quietly(corpus_from_texts, many(ENGLISH), options=corpus.reading.options)
    assert again.reading == corpus.reading
    assert corpus.reading.options.open_options() == set()


def test_features_are_those_of_the_options_that_were_chosen():
    corpus = read(many(ENGLISH))
    plain = TextOptions(stop_words="english", min_df=2, sublinear_tf=True, preset="plain")
    expected = quietly(corpus_from_texts, many(ENGLISH), options=plain)
    assert corpus.terms == expected.terms
    assert_array_equal(corpus.X.toarray(), expected.X.toarray())
    assert replace(corpus.reading.options, preset="plain") == plain


def forms(folder, texts):
    """The same documents as a table, packed, in two tables, and as pages and plain files."""
    folder.mkdir(exist_ok=True)
    lines = [json.dumps({"text": text}) + "\n" for text in texts]
    (folder / "one.jsonl").write_text("".join(lines))
    with gzip.open(folder / "one.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(lines)
    (folder / "part-1.jsonl").write_text("".join(lines[:7]))
    (folder / "part-2.jsonl").write_text("".join(lines[7:]))
    for name in ("files", "pages"):
        (folder / name).mkdir()
    for number, text in enumerate(texts):
        (folder / "files" / f"{number:03}.txt").write_text(text, encoding="utf-8")
        page = f"<html><script>if (that and this) the()</script><p>{text}</p></html>"
        (folder / "pages" / f"{number:03}.html").write_text(page, encoding="utf-8")
    return ["one.jsonl", "one.jsonl.gz", "part-*.jsonl", "files", "pages"]


@pytest.mark.parametrize("texts", [ENGLISH, GERMAN, THAI], ids=["english", "german", "thai"])
def test_the_choice_is_the_same_for_any_form_and_partition(tmp_path, monkeypatch, texts):
    texts = many(texts)
    expected = read(texts).reading
    assert read(iter(texts)).reading == expected
    for name in forms(tmp_path / "texts", texts):
        corpus = quietly(read_corpus, tmp_path / "texts" / name, text=AUTO)
        assert corpus.reading == expected, name
    for characters in (1, 100, 1_000):
        monkeypatch.setattr(vectorize, "BATCH_CHARACTERS", characters)
        assert read(texts).reading == expected


def test_the_sample_is_bounded_and_every_document_is_read_once(monkeypatch):
    monkeypatch.setattr(preset, "SAMPLE_DOCUMENTS", 5)
    looked_at = []
    statistics = preset.sample_statistics
    monkeypatch.setattr(
        preset, "sample_statistics", lambda texts: looked_at.append(len(texts)) or statistics(texts)
    )
    texts = [*(ENGLISH[number % 3] for number in range(5)), *many(GERMAN, 55)]
    corpus = read(iter(texts))
    assert corpus.n_samples == 60
    assert corpus.reading.options.stop_words == "english"  # by the first five
    monkeypatch.setattr(preset, "SAMPLE_TEXT", 1)
    assert read(iter(texts)).n_samples == 60
    assert looked_at == [5, 1]


def test_no_documents_are_refused_as_ever():
    assert "there are no documents" in refused(lambda: read([]))
    assert "no terms are left" in refused(lambda: read(["", " "]))


def test_of_a_long_document_the_middle_counts():
    header = "this is the licence which you have with the book and that is all there is " * 20
    assert language([header + GERMAN[0] * 60 + header]) == "not English"


@pytest.mark.parametrize(
    ("texts", "options", "line"),
    [
        (
            many(ENGLISH),
            {},
            "text: English; stop words removed, words in at least 2 documents, sublinear tf",
        ),
        (
            many(GERMAN),
            {"sublinear_tf": False},
            "text: not English; words in at least 2 documents and at most 50% of the documents",
        ),
        (
            many(JAPANESE),
            {},
            "text: Japanese; runs of 2 to 3 characters in at least 2 documents and at most 50% of "
            "the documents, sublinear tf",
        ),
        (NUMBERS, {}, "text: no letters; all words, sublinear tf"),
        (
            many(ENGLISH),
            {"features": "hashing", "ngrams": 2},
            "text: English; stop words removed, all runs of 1 to 2 words, sublinear tf",
        ),
    ],
)
def test_listeners_get_one_line(texts, options, line):
    events = []
    options = TextOptions(preset="auto", **options)
    quietly(corpus_from_texts, texts, options=options, listen=events.append)
    assert [event.message for event in events if isinstance(event, StageNote)] == [line]


def test_nothing_is_told_where_nothing_is_chosen():
    events = []
    corpus = read(many(ENGLISH))
    for options in (corpus.reading.options, TextOptions(preset="plain")):
        quietly(corpus_from_texts, many(ENGLISH), options=options, listen=events.append)
    assert not [event for event in events if isinstance(event, StageNote)]


def test_ready_made_listeners_show_the_line(capsys, tmp_path):
    model = GMKCF(3, kernels=["linear"], random_state=0, text=AUTO, verbose=1)
    model.set_params(callbacks=[JsonLines(tmp_path / "events.jsonl"), Progress(enabled=False)])
    quietly(model.fit, many(ENGLISH))
    assert capsys.readouterr().err.count("note: text: English; ") == 1
    lines = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    (note,) = (line for line in lines if line["event"] == "stage_note")
    assert note["message"].startswith("text: English; ")


def test_a_choice_is_stored_and_new_documents_are_read_by_it(tmp_path):
    texts = many(ENGLISH)
    corpus = read(texts)
    again = TextReading.from_json(corpus.reading.to_json())
    assert again == corpus.reading
    assert again.options.preset == "auto"
    (tmp_path / "new.jsonl").write_text(json.dumps({"text": GERMAN[0] + " budget summer"}))
    new = quietly(read_like, tmp_path / "new.jsonl", again, corpus.terms)
    assert new.reading.options == corpus.reading.options  # nothing is chosen by new documents
    assert [corpus.terms[i] for i in new.X.indices] == ["budget", "minister", "summer"]

    store, kernels = tmp_path / "store.zarr", ["linear", "cosine"]
    model = GMKCF(3, kernels=kernels, random_state=0, text=AUTO, store=store)
    quietly(model.fit, texts)
    assert KernelStore.open(store).reading() == corpus.reading
    assert KernelStore.open(store).manifest.text_options == corpus.reading.options
    assert_array_equal(quietly(model.predict, texts[:9]), model.labels_[:9])
    model.save(tmp_path / "model")
    loaded = GMKCF.load(tmp_path / "model")
    assert loaded.reading_ == corpus.reading
    assert_array_equal(quietly(loaded.predict, texts[:9]), model.labels_[:9])


def lines_about_text(found):
    return [line for line in found.stderr.splitlines() if line.startswith("note: text: ")]


@pytest.mark.usefixtures("calm")
def test_commands_choose_where_they_are_asked_to(tmp_path):
    forms(tmp_path / "texts", many(ENGLISH))
    table, store = tmp_path / "texts" / "one.jsonl", tmp_path / "s.zarr"
    made = done("build", table, store, *QUICK, "--text-preset", "auto", "--min-df", 1)
    line = "note: text: English; stop words removed, all words, sublinear tf"
    assert lines_about_text(made) == [line]
    options = KernelStore.open(store).manifest.text_options
    assert (options.preset, options.stop_words, options.min_df) == ("auto", "english", 1)
    # the store knows what was chosen, and another look comes to the same
    assert lines_about_text(done("build", table, store, *QUICK)) == []
    done("build", table, store, *QUICK, "--text-preset", "auto", "--min-df", 1)
    assert KernelStore.open(store).manifest.text_options == options
    silent = done("build", table, tmp_path / "q.zarr", *QUICK, "--text-preset", "auto", "--quiet")
    assert "text:" not in silent.stderr
    how = ("--text-preset", "auto", "--stop-words", "none", "--no-sublinear-tf", "--json")
    told = done("build", table, tmp_path / "j.zarr", *QUICK, *how)
    notes = [json.loads(line) for line in told.stdout.splitlines() if '"stage_note"' in line]
    assert [note["message"] for note in notes] == ["text: English; words in at least 2 documents"]
    assert "text:" not in told.stderr


def test_readings_of_earlier_versions_are_plain():
    old = {"text_column": "text", "min_df": "auto", "max_df": 1.0, "stop_words": None}
    content = json.dumps({"version": 1, "options": old, "idf": [1.0]})
    options = TextReading.from_json(content).options
    assert options.preset == "plain"
    assert options.open_options() == {"min_df"}
    assert (options.tokens, options.sublinear_tf) == ("words", False)
    assert "preset" not in options.to_json()
    assert "preset" not in json.loads(TextReading(options, np.ones(1)).to_json())["options"]


def test_the_options_that_a_preset_chooses_have_no_other_default():
    fields = TextOptions.__dataclass_fields__
    others = {"encoding", "preset"}
    assert {name for name in fields if fields[name].default == "auto"} - others == CHOSEN


ENGLISH_CORPORA = (
    "bbc_full_raw", "masakhanews_eng", "reuters_r8", "stackoverflow_20k", "clinc10_domains",
    "20ng_clean", "arxiv_200k",
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "expected"),
    [("livedoor_ja", "Japanese"), *((name, "English") for name in ENGLISH_CORPORA)],
)
def test_languages_of_real_corpora(name, expected):
    path = DATA / f"{name}.jsonl.gz"
    if not path.exists():
        pytest.skip(f"{path.name} is not here (set GMKCF_DATA)")
    with gzip.open(path, "rt", encoding="utf-8") as file:
        texts = [json.loads(line)["text"] for line in islice(file, 5_000)]
    for part in (texts[: preset.SAMPLE_DOCUMENTS], texts[:100], texts[-500:], texts[::50]):
        assert language(part) == expected


def test_lines_say_what_options_do():
    options = TextOptions(stop_words=("a",), min_df=0.1, max_df=9, preset="plain")
    assert describe_choice(preset.TextChoice(options, "x")) == (
        "text: x; stop words removed, words in at least 10% of the documents and at most 9 "
        "documents"
    )
