"""Row: a few bytes of Parquet that declare or unpack to far more than a file of their size may."""

import datetime as dt
import resource
import signal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gmkcf_dask.corpus import TextOptions, parquet, read_corpus
from gmkcf_dask.corpus.parquet import FEWEST_ROWS, LEAST_TEXT, limits_of, parquet_rows
from gmkcf_dask.errors import InputError

pytestmark = [pytest.mark.usefixtures("calm"), pytest.mark.timeout(60)]


def write(path, **columns):
    pq.write_table(pa.table(columns), path, compression="zstd", write_statistics=False)
    return path


def repeated(text, times):
    """One text over and over: its number is stored once, with a count."""
    numbers = pa.array(np.zeros(times, np.int32))
    return pa.DictionaryArray.from_arrays(numbers, pa.array([text]))


def refused(path, **options):
    """The sentence; neither this process nor the child may need much memory for it."""
    with pytest.raises(InputError) as told:
        read_corpus(path, text=TextOptions(**options))
    assert path.name in str(told.value)
    assert len(str(told.value)) < 5_000
    return str(told.value)


def counted(path):
    """Rows that came before the refusal."""
    rows = parquet_rows(path, list)
    count = 0
    try:
        for _ in rows:
            count += 1
    except InputError:
        return count
    pytest.fail("it was read")


def test_more_rows_than_its_bytes_can_tell_apart(tmp_path):
    path = write(tmp_path / "x.parquet", text=repeated("tea", 1_500_000))
    assert path.stat().st_size < 6_000
    assert "1,500,000 rows" in refused(path)
    assert counted(path) == 0


def test_more_rows_than_anybody_can_use(tmp_path):
    path = write(tmp_path / "x.parquet", text=pa.nulls(2_000_001, pa.string()))
    assert "2,000,001 samples" in refused(path)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), None], ids=str)
def test_a_long_text_repeated(kind, tmp_path):
    column = repeated("tea and cake " * 10_000, 2_000)
    path = write(tmp_path / "x.parquet", text=column if kind is None else column.cast(kind))
    assert path.stat().st_size < 100_000
    assert "bytes" in refused(path)
    assert counted(path) * 130_000 <= limits_of(path.stat().st_size).text


@pytest.mark.slow
def test_a_page_that_unpacks_to_more_than_memory_allows(tmp_path):
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    path = tmp_path / "x.parquet"
    options = {"use_dictionary": False, "write_statistics": False, "compression": "brotli"}
    pq.write_table(pa.table({"text": pa.array(["a" * (1 << 28)])}), path, **options)
    assert path.stat().st_size < 4_000
    assert "unpack" in refused(path)
    grown = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss - before
    assert grown < 1_500_000  # KiB: the limit is of address space, libraries are in it


def test_nested_columns_are_never_unpacked(tmp_path):
    long = pa.ListArray.from_arrays(
        pa.array([0, 5_000_000], pa.int32()), pa.nulls(5_000_000, pa.string())
    )
    path = write(tmp_path / "x.parquet", text=pa.array(["tea"]), id=long)
    assert path.stat().st_size < 4_000
    assert "row 1 has no name or number in column 'id'" in refused(path)
    path = write(tmp_path / "y.parquet", text=long)
    assert "row 1 holds list in column 'text'" in refused(path)
    path = write(tmp_path / "z.parquet", text=pa.array(["tea"]), title=long)
    assert read_corpus(path).n_samples == 1


def test_thousands_of_columns(tmp_path):
    columns = {f"column {i} " + "x" * 200: pa.array([1.5]) for i in range(3_000)}
    path = write(tmp_path / "x.parquet", **columns)
    assert "more: name one of them" in refused(path)
    path = write(tmp_path / "y.parquet", **columns, text=pa.array(["tea"]))
    assert read_corpus(path).n_samples == 1


def test_deep_schemas_end_in_a_sentence(tmp_path):
    kind = pa.string()
    for _ in range(300):
        kind = pa.struct([("a", kind)])
    path = write(tmp_path / "x.parquet", text=pa.array([None], kind))
    refused(path)


def test_a_cell_longer_than_a_line_may_be(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet.Limits.__init__, "__defaults__", (1_000,))
    path = write(tmp_path / "x.parquet", text=pa.array(["a", "b" * 2_000]))
    assert "longer than 1,000 bytes" in refused(path)


def test_a_reader_that_crashes_or_hangs_is_a_sentence(tmp_path, monkeypatch):
    path = write(tmp_path / "x.parquet", text=pa.array(["tea"]))
    child = tmp_path / "child.py"
    monkeypatch.setattr(parquet, "_CHILD", child)
    child.write_text(f"import os, signal; os.kill(os.getpid(), signal.{signal.SIGSEGV.name})")
    assert "SIGSEGV" in refused(path)
    child.write_text(
        "import resource; resource.setrlimit(resource.RLIMIT_CPU, (1, 2))\nwhile True: pass"
    )
    assert f"{parquet.BATCH_SECONDS} s" in refused(path)


def test_a_reader_ends_with_who_reads(tmp_path, monkeypatch):
    started = []
    start = parquet._start
    monkeypatch.setattr(parquet, "_start", lambda *how: started.append(start(*how)) or started[-1])
    path = write(tmp_path / "x.parquet", text=pa.array(["tea"] * 5_000))
    rows = parquet_rows(path, list)
    assert next(rows) == (5_000, {"text": "tea"})
    rows.close()
    assert started[0].poll() is not None


def test_what_is_fine_is_read_as_before(tmp_path):
    path = write(
        tmp_path / "x.parquet",
        text=pa.array(["green tea", "black tea", "line\nbreak \u2028 tea", "tea"]),
        id=pa.array([dt.date(2026, 1, day) for day in (1, 2, 3, 4)]),
        label=pa.array([b"caf\xc3\xa9", b"b", b"a", b"a"]),
        title=pa.array([1.0, 2.5, None, 4.0]),
    )
    corpus = read_corpus(path)
    assert corpus.ids == ("2026-01-01", "2026-01-02", "2026-01-03", "2026-01-04")
    assert corpus.labels == ("café", "b", "a", "a")
    assert corpus.titles == ("1", "2.5", "2026-01-03", "4")
    assert "holds date in column 'id'" in refused(path, text_column="id", id_column="title")
    many = write(tmp_path / "y.parquet", text=repeated("a cup of tea", FEWEST_ROWS))
    assert sum(1 for _ in parquet_rows(many, list)) == FEWEST_ROWS
    assert 12 * FEWEST_ROWS < LEAST_TEXT
