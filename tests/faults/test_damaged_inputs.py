"""Row: any file of a store damaged. Found, refused or survived with the right labels, and mended.

In full and as a table: scripts/chaos store.
"""

import pytest
from helpers.chaos import store as chaos_store

pytestmark = pytest.mark.usefixtures("calm")

FEW = set(map(str, chaos_store.few_cases()[::3]))
CASES = [
    pytest.param(case, id=str(case), marks=() if str(case) in FEW else pytest.mark.slow)
    for case in chaos_store.all_cases()
]


@pytest.fixture(scope="module")
def subjects(tmp_path_factory):
    return chaos_store.prepare(tmp_path_factory.mktemp("subjects"))


def test_every_kind_of_file_is_damaged(subjects):
    """Else a new kind of file would be left out here."""
    for name, subject in subjects.items():
        kinds = {_kind(kind.where) for kind in chaos_store.KINDS[name]}
        files = [file for file in subject.whole.rglob("*") if file.is_file()]
        assert {_kind(file.relative_to(subject.whole).as_posix()) for file in files} == kinds


def _kind(where):
    """A path inside a store without the kernel's name and the numbers of a chunk."""
    parts = where.split("/")
    if parts[0] in ("kernels", "diagonals", "norms", "gram_rows") and len(parts) > 2:
        parts[1] = "K"
    return "/".join(part for part in parts if not part.isdigit())


def test_there_are_more_than_a_hundred_cases():
    assert len(CASES) > 100
    assert {case.values[0].way for case in CASES} >= set(chaos_store.WAYS)


@pytest.mark.parametrize("case", CASES)
def test_damage(subjects, case):
    assert chaos_store.check_case(subjects[case.subject], case) == []
