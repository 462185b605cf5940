"""Plans at the border of what fits: accepted runs stay within the plan, others never begin.

The grid in full: scripts/chaos plans.
"""

import pytest
from helpers.chaos.plans import Point, try_point


@pytest.mark.parametrize(
    ("point", "expected"),
    [
        (Point(300, 3, "float32", 2, 100), "–"),
        pytest.param(Point(1400, 3, "float64", 2, 509), "–", marks=pytest.mark.cluster),
        pytest.param(
            Point(1400, 3, "float64", 1, 512, scarce_disk=True),
            "recompute",
            marks=pytest.mark.cluster,
        ),
        pytest.param(Point(1400, 3, "float64", 2, 540), "memory", marks=pytest.mark.cluster),
        pytest.param(
            Point(1400, 12, "compact", 2, 720, layout="gram"), "memory", marks=pytest.mark.cluster
        ),
        pytest.param(
            Point(1400, 12, "float64", 1, 700, True, layout="gram"),
            "recompute",
            marks=pytest.mark.cluster,
        ),
    ],
    ids=str,
)
def test_promise_about_memory(point, expected, tmp_path):
    row, kept = try_point(point, tmp_path)
    assert kept, row
    assert row["K_w lives in"] == expected, "this point says nothing any more: choose another"
