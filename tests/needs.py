"""What a test needs beside Python: skipped with what to install, or failed where all must run."""

import os
import shutil
from importlib.util import find_spec

import pytest


def need_package(name, how):
    """Go on only where a Python package can be imported; `how` says how to install it."""
    if find_spec(name) is None:
        _missing(f"the package {name} is not installed: {how}")


def need_program(name, how):
    """Go on only where a program is on the path, and return where; `how` says how to install it."""
    path = shutil.which(name, path=_PATH)
    if path is None:
        _missing(f"the program {name} is not installed: {how}")
    return path


# daemons are often outside of a user's own path
_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


def _missing(reason):
    if os.environ.get("GMKCF_ALL") == "1":
        pytest.fail(reason)
    pytest.skip(reason)
