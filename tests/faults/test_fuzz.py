"""Mutated files: read for what they are, or one typed sentence. In full: scripts/chaos fuzz."""

from __future__ import annotations

import pytest
from helpers.chaos import fuzz as chaos_fuzz, fuzz_stores as chaos_fuzz_stores
from helpers.chaos.mutations import Mutation, mutate
from hypothesis import given, settings, strategies as st

VALID = chaos_fuzz.valid_files()
MUTATIONS = st.lists(
    st.builds(
        Mutation,
        kind=st.integers(0, 9),
        where=st.floats(0, 1),
        length=st.integers(1, 100),
        value=st.integers(0, 65535),
    ),
    min_size=1,
    max_size=4,
)


@pytest.mark.parametrize("ending", VALID)
def test_files_as_they_are_give_a_corpus(ending, tmp_path):
    """Else the mutations would be of something that is refused anyway."""
    for number, content in enumerate(VALID[ending]):
        (tmp_path / f"{number}{ending}").write_bytes(content)
        whole_way = number == 0  # for .mat that is a process of its own
        assert chaos_fuzz.read_one(tmp_path / f"{number}{ending}", whole_way=whole_way) == "read"


# those of .mat and .parquet are read in a process of their own: see below
@pytest.mark.parametrize("ending", [e for e in VALID if e not in (".mat", ".parquet")])
@given(mutations=MUTATIONS, data=st.data())
@settings(max_examples=60)
def test_mutated_files_give_a_corpus_or_a_sentence(ending, mutations, data, tmp_path_factory):
    content = data.draw(st.sampled_from(VALID[ending]))
    path = tmp_path_factory.getbasetemp() / f"fuzzed{ending}"
    path.write_bytes(mutate(content, ending, mutations))
    assert chaos_fuzz.read_one(path) in ("read", "refused")


def test_a_cause_that_quotes_the_file_is_cut(tmp_path):
    """Found by the mutations: zipfile quotes a name of up to 64 KiB."""
    quotes = [Mutation(3, 0.5, 4, 0), Mutation(4, 0.0, 4, 1)]
    for number, content in enumerate(VALID[".npz"]):
        path = tmp_path / f"{number}.npz"
        path.write_bytes(mutate(content, ".npz", quotes))
        assert chaos_fuzz.read_one(path) in ("read", "refused")


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """A store and checkpoints, to be damaged and put right again."""
    folder = tmp_path_factory.mktemp("example")
    chaos_fuzz_stores.make_example(folder)
    return chaos_fuzz_stores.Examples(folder)


@pytest.mark.parametrize("kind", chaos_fuzz_stores.KINDS)
def test_files_of_stores_as_they_are_give_what_was_written(kind, example, tmp_path):
    for choice, content in enumerate(example.valid[kind]):
        case = tmp_path / f"0.{choice}{kind}"
        case.write_bytes(content)
        whole_way = choice == len(example.valid[kind]) - 1
        assert example.read(case, whole_way=whole_way) == "read"


@pytest.mark.parametrize("kind", chaos_fuzz_stores.KINDS)
@given(mutations=MUTATIONS, drawn=st.integers(0, 999))
@settings(max_examples=40)
def test_mutated_files_of_stores(kind, mutations, drawn, example, tmp_path_factory):
    choice = drawn % len(example.valid[kind])
    case = tmp_path_factory.getbasetemp() / f"0.{choice}{kind}"
    case.write_bytes(mutate(example.valid[kind][choice], kind, mutations))
    assert example.read(case) in ("read", "refused")


@pytest.mark.slow
def test_all_readers_in_workers_of_bounded_memory(capsys):
    """A small helping of what scripts/chaos does by the ten thousand, .mat included."""
    assert chaos_fuzz.fuzz(140, seed=1) == []
    table = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in table[1:]] == [*VALID, *chaos_fuzz_stores.KINDS]


def test_a_failure_is_found(monkeypatch, tmp_path):
    """The fuzzer itself: what is neither a corpus nor a typed error goes through."""

    def fail(path):
        raise ZeroDivisionError(str(path))

    monkeypatch.setattr("gmkcf_dask.corpus.read_corpus", fail)
    with pytest.raises(ZeroDivisionError):
        chaos_fuzz.read_one(tmp_path / "x.npy")
