"""The sizing table in the documents is the one the plan gives now."""

import importlib.util
from pathlib import Path

import pytest

pytestmark = pytest.mark.once
ROOT = Path(__file__).resolve().parents[1]


def test_the_table_is_the_plans():
    spec = importlib.util.spec_from_file_location("sizing", ROOT / "scripts" / "sizing.py")
    sizing = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sizing)
    documents = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md"))
    assert sizing.table() in documents, "run scripts/sizing and put its table into docs/clusters.md"
