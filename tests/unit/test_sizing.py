"""The sizing table in the documents is the one the plan gives now."""

import pytest
from helpers.paths import ROOT
from helpers.scripts import load_script

pytestmark = pytest.mark.once


def test_the_table_is_the_plans():
    sizing = load_script("sizing")
    documents = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md"))
    assert sizing.table() in documents, "run scripts/sizing and put its table into docs/clusters.md"
