"""Folders of this checkout."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "cluster_configs"


def with_helpers():
    """Variables of a process that imports these helpers."""
    path = os.pathsep.join(filter(None, [str(ROOT / "tests"), os.environ.get("PYTHONPATH")]))
    return os.environ | {"PYTHONPATH": path}
