"""Files in other encodings than UTF-8, and tables whose cells are not parted by commas."""

import csv
import gzip
from contextlib import suppress

import pytest
from click.testing import CliRunner
from helpers.telling import refused, told
from hypothesis import given, strategies as st

from gmkcf_dask import TextOptions, read_corpus
from gmkcf_dask.cli import main
from gmkcf_dask.corpus import TextReading, read_like
from gmkcf_dask.corpus.decode import decode
from gmkcf_dask.errors import InputError
from gmkcf_dask.results.run_folder import OWN_FILES, REPORT

WORDS = ["schöner schwarzer Tee", "größer", "Straße in Köln"]


def terms(place, **options):
    corpus, said = told(lambda: read_corpus(place, text=TextOptions(**options)))
    assert not said
    return set(corpus.terms)


EXPECTED = {"schöner", "schwarzer", "tee", "größer", "straße", "in", "köln"}


@pytest.mark.parametrize("encoding", ["cp1252", "latin-1", "utf-16-le", "cp437", "utf-8"])
def test_folder_in_another_encoding(tmp_path, encoding):
    for i, text in enumerate(WORDS):
        (tmp_path / f"{i}.txt").write_bytes(text.encode(encoding))
    assert terms(tmp_path, encoding=encoding) == EXPECTED


@pytest.mark.parametrize("encoding", ["cp1252", "utf-16-le", "utf-16-be", "gb18030"])
@pytest.mark.parametrize("ending", [".csv", ".csv.gz", ".jsonl"])
def test_table_in_another_encoding(tmp_path, encoding, ending):
    lines = [f'{{"text": "{t}"}}' for t in WORDS] if ending == ".jsonl" else ["text", *WORDS]
    content = "\n".join(lines).encode(encoding)
    path = tmp_path / f"x{ending}"
    path.write_bytes(gzip.compress(content) if ending.endswith("gz") else content)
    assert terms(path, encoding=encoding) == EXPECTED


@pytest.mark.parametrize("mark", ["utf-8-sig", "utf-16", "utf-32"])
def test_marks_of_a_file_are_believed_first(mark):
    assert decode("größer".encode(mark), "cp1252") == ("größer", "whole")


def test_files_that_tell_their_encoding_need_none(tmp_path):
    """Of a folder, where some were saved by one program and some by another."""
    (tmp_path / "a.txt").write_bytes("schöner Tee".encode("cp1252"))
    (tmp_path / "b.txt").write_bytes("große Straße".encode())
    (tmp_path / "c.html").write_bytes('<meta charset="koi8-r"><p>чай'.encode("koi8-r"))
    (tmp_path / "d.html").write_bytes("<p>grün".encode("cp1252"))
    found = {"schöner", "tee", "große", "straße", "чай", "grün"}
    assert terms(tmp_path, encoding="cp1252") == found


@pytest.mark.parametrize("named", ["auto", "cp1251"])
@pytest.mark.parametrize(
    ("declared", "meant", "text"),
    [("iso-8859-1", "cp1252", "le cœur des œuvres"), ("shift_jis", "cp932", "髙い"),
     ("gb2312", "gb18030", "镕基"), ("iso-8859-1", "latin-1", "caf\x81é")],
)  # fmt: skip
def test_pages_mean_what_browsers_take_them_to_mean(declared, meant, text, named):
    page = f'<meta charset="{declared}">{text}'
    assert decode(page.encode(meant), named, page=True) == (page, "whole")


@pytest.mark.parametrize("text", ["naïve café", "green tea "])
def test_files_without_nul_are_not_utf_16(text):
    assert decode(text.encode(), "utf-16-le") == (text, "whole")
    assert decode(text.encode("utf-16-le"), "utf-16-le") == (text, "whole")


def test_encodings_that_spell_all_with_ascii(tmp_path):
    (tmp_path / "a.txt").write_bytes("汉字 汉语".encode("hz"))
    assert terms(tmp_path, encoding="hz", tokens="words") == {"汉字", "汉语"}


@pytest.mark.parametrize("ending", [".txt", ".csv"])
def test_what_the_named_encoding_lacks_is_told(tmp_path, ending):
    (tmp_path / f"a{ending}").write_bytes(b"text\nlu \x81 gr\xfcn")  # no character of cp1252
    read = TextOptions(encoding="cp1252")
    corpus, said = told(
        lambda: read_corpus(tmp_path if ending == ".txt" else tmp_path / "a.csv", text=read)
    )
    assert "grün" in corpus.terms
    assert len(said) == 1
    assert ("1 of 1 files are not cp1252" in said[0]) == (ending == ".txt")


@pytest.mark.parametrize(
    "name", ["nonsense", "hex", "idna", "punycode", "utf-7", "unicode_escape", "utf\0", 8, "", None]
)
def test_encoding_that_is_none(name):
    assert "must be a table of characters" in refused(lambda: TextOptions(encoding=name))


@pytest.mark.parametrize("name", ["utf-16", "UTF32"])
def test_encoding_without_an_order_of_bytes(name):
    assert "-le' or 'utf-" in refused(lambda: TextOptions(encoding=name))


def test_encoding_has_the_name_that_python_gives_it():
    for name in ("\x1b]cp1252", "CP1252", "windows-1252"):
        assert TextOptions(encoding=name).encoding == "cp1252"


def test_what_was_read_before_there_were_encodings_is_the_same():
    # stores keep a digest of it
    assert "encoding" not in TextOptions().to_json()
    assert TextOptions.from_json(TextOptions().to_json()) == TextOptions()
    assert TextOptions.from_json({"encoding": "cp1252"}).to_json()["encoding"] == "cp1252"


def test_names_with_different_lost_bytes_stay_different(tmp_path):
    table = "id,text,label,title\né,tea milk,Köln,grün\nè,tea sugar,Käln,graün\n"
    (tmp_path / "x.csv").write_bytes(table.encode("latin-1"))
    corpus, said = told(lambda: read_corpus(tmp_path / "x.csv"))
    for names in (corpus.ids, corpus.labels, corpus.titles):
        assert len(set(names)) == 2
    assert len(said) == 1
    assert "2 of 2 documents contain unreadable characters" in said[0]


@given(
    st.binary(max_size=80),
    st.sampled_from(["cp1252", "utf-16-be", "hz", "gb18030", "utf-8", "auto"]),
)
def test_any_bytes_are_text_or_binary(tmp_path_factory, content, encoding):
    text, state = decode(content, encoding)
    assert state in ("whole", "repaired", "binary")
    text.encode("utf-8", "surrogatepass")
    path = tmp_path_factory.mktemp("any") / "x.jsonl"
    line = '{"text": "tea"}\n'.encode("ascii" if encoding == "auto" else encoding)
    path.write_bytes(line + content.replace(b"\n", b""))
    with suppress(InputError):  # a line that is no JSON
        told(lambda: read_corpus(path, text=TextOptions(encoding=encoding)))


def test_new_documents_may_have_another_encoding(tmp_path):
    (tmp_path / "a.csv").write_bytes("text\nschöner Tee\ngrün".encode("cp1252"))
    old = read_corpus(tmp_path / "a.csv", text=TextOptions(encoding="cp1252"))
    reading = TextReading.from_json(old.reading.to_json())
    assert reading.options.encoding == "cp1252"
    for encoding, asked in (("cp1252", None), ("utf-8", "utf-8"), ("utf-8", "auto")):
        (tmp_path / "b.csv").write_bytes("text\ngrün".encode(encoding))
        new = read_like(tmp_path / "b.csv", reading, old.terms, encoding=asked)
        assert new.X.nnz == 1
    refused(lambda: read_like(tmp_path / "b.csv", reading, old.terms, encoding=""))


def done(*arguments):
    result = CliRunner().invoke(main, [str(a) for a in arguments])
    assert result.exit_code == 0, result.output
    return result


def test_command_takes_an_encoding(tmp_path):
    texts = [f"{word} Köln {i}" for i in range(6) for word in ("schöner Tee", "große Straße")]
    (tmp_path / "x.csv").write_bytes("\n".join(["text", *texts]).encode("cp1252"))
    (tmp_path / "new.csv").write_text("text\nschöner\n", encoding="utf-8")
    run = tmp_path / "run"
    done("run", tmp_path / "x.csv", "-k", 2, "--out", run, "--encoding", "cp1252",
         "--min-df", 1, "--cluster", "threads", "--quiet")  # fmt: skip
    assert "schöner" in (run / "report.html").read_text(encoding="utf-8")
    place = ("predict", run, tmp_path / "new.csv", "--overwrite", "--cluster", "threads", "--out")
    unknown = "no term that the model knows"
    assert unknown in done(*place, tmp_path / "o.csv").stderr  # read as the run's input was
    assert unknown not in done(*place, tmp_path / "o.csv", "--encoding", "utf-8").stderr


# --- what parts the cells


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_separator_is_that_of_the_header(tmp_path, separator):
    rows = [["id", "text", "label"], ["a", "tea; milk, sugar | honey", "x"], ["b", "tea", "y"]]
    with (tmp_path / "x.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter=separator).writerows(rows)
    corpus = read_corpus(tmp_path / "x.csv")
    assert (corpus.ids, corpus.labels) == (("a", "b"), ("x", "y"))
    assert set(corpus.terms) == {"tea", "milk", "sugar", "honey"}


def test_commas_win_where_both_would_do(tmp_path):
    (tmp_path / "x.csv").write_text("text,a;b\ntea,1\nmilk,2\n")
    assert set(read_corpus(tmp_path / "x.csv").terms) == {"tea", "milk"}
    (tmp_path / "y.csv").write_text('"text";b\n"tea, milk";1\nsugar;2\n')
    assert set(read_corpus(tmp_path / "y.csv").terms) == {"tea", "milk", "sugar"}


def test_missing_column_is_named_whatever_parts_the_cells(tmp_path):
    (tmp_path / "x.csv").write_text("texte;b\ntea;1\n")
    sentence = refused(lambda: read_corpus(tmp_path / "x.csv"))
    assert "its columns are 'texte', 'b': name one of them (closest match: 'texte')" in sentence


@pytest.mark.parametrize(
    "table",
    [
        '"a\nb";text\nx;tea milk\n',  # a header of two lines
        'a;b;c,"x\ny",text\n1,2,tea milk\n',
    ],
)
def test_header_of_several_lines(tmp_path, table):
    (tmp_path / "x.csv").write_text(table)
    assert set(read_corpus(tmp_path / "x.csv").terms) == {"tea", "milk"}


def test_a_guess_is_no_reason_to_count_cells(tmp_path):
    (tmp_path / "x.csv").write_text("id,notes; remarks; other\n1,hello\n")
    assert "has no column 'text'" in refused(lambda: read_corpus(tmp_path / "x.csv"))


def test_header_whose_quote_is_left_open_is_told(tmp_path):
    (tmp_path / "x.csv").write_text('"text,id\n' + "tea,1\n" * 200)
    refused(lambda: read_corpus(tmp_path / "x.csv"))


@pytest.mark.parametrize("said", ["sep=;", '"sep=;"', "SEP=;"])
def test_separator_said_before_the_header(tmp_path, said):
    (tmp_path / "x.csv").write_text(f"{said}\na;text\n1,5;tea, milk\n")
    assert set(read_corpus(tmp_path / "x.csv").terms) == {"tea", "milk"}


def test_lines_are_counted_from_the_first_of_the_file(tmp_path):
    for before, line in (("", 3), ("sep=;\n", 4)):
        (tmp_path / "x.csv").write_text(f"{before}a;text\n1;tea\n2;milk;sugar\n")
        sentence = refused(lambda: read_corpus(tmp_path / "x.csv"))
        assert f"line {line} has 3 cells" in sentence


@pytest.mark.parametrize("ending", [".csv", ".jsonl"])
def test_misspelt_columns_are_told_before_any_row(tmp_path, ending):
    table = {".csv": "text,title\ntea\n", ".jsonl": '{"text": "tea", "title": "T"}\n'}[ending]
    path = tmp_path / f"x{ending}"
    path.write_text(table)
    sentence = refused(lambda: read_corpus(path, text=TextOptions(title_column="titel")))
    assert "column 'titel'" in sentence
    if ending == ".csv":
        assert "the header has no column 'titel'" in sentence
        assert "closest match: 'title'" in sentence


def test_tables_without_titles_among_others(tmp_path):
    (tmp_path / "a.csv").write_text("text,name\ntea,N\n")
    (tmp_path / "b.csv").write_text("text\nmilk\n")
    corpus = read_corpus(tmp_path / "*.csv", text=TextOptions(title_column="name"))
    assert corpus.titles == ("N", "b.csv:0")
    options = TextOptions(title_column="nane")
    assert "'nane'" in refused(lambda: read_corpus(tmp_path / "*.csv", text=options))


def test_titles_may_be_missing_here_and_there(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"text": "tea"}\n{"text": "milk", "head": "M"}\n')
    corpus = read_corpus(tmp_path / "x.jsonl", text=TextOptions(title_column="head"))
    assert corpus.titles == ("0", "M")


# --- runs beside the texts they are of


def test_reports_of_runs_are_no_documents(tmp_path):
    texts = tmp_path / "texts"
    (texts / "run").mkdir(parents=True)
    for name in ("a.txt", "b.txt", REPORT):
        (texts / name).write_text("green tea")
    for name in OWN_FILES:  # by the names that runs have for them
        (texts / "run" / name).write_text("{}")
    corpus, _ = told(lambda: read_corpus(texts))
    assert corpus.ids == ("a.txt", "b.txt", "report.html")
    corpus, _ = told(lambda: read_corpus(texts / "**/*.html"))
    assert corpus.ids == ("report.html",)
    sentence = refused(lambda: read_corpus(texts / "run"))
    assert "this is the folder of a run, not a corpus" in sentence
