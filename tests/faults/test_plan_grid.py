"""Plans at the border of what fits: accepted runs stay within the plan, others never begin.

The grid in full: scripts/chaos plans.
"""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from chaos_plans import Point, try_point


@pytest.mark.parametrize(
    ("point", "expected"),
    [
        (Point(300, 3, "float32", 2, 100), "–"),
        (Point(1400, 3, "float64", 2, 509), "–"),
        (Point(1400, 3, "float64", 1, 512, scarce_disk=True), "recompute"),
        (Point(1400, 3, "float64", 2, 540), "memory"),
    ],
    ids=str,
)
def test_promise_about_memory(point, expected, tmp_path):
    row, kept = try_point(point, tmp_path)
    assert kept, row
    assert row["K_w lives in"] == expected, "this point says nothing any more: choose another"
