"""What a test needs beside Python: without it the test is skipped, with what to install."""

import os
import shutil
from importlib.util import find_spec

import pytest

from gmkcf_dask.store import object_storage


def need_package(name, how):
    """Go on only where a Python package can be imported; `how` says how to install it."""
    if find_spec(name) is None:
        pytest.skip(f"the package {name} is not installed: {how}")


def need_program(name, how):
    """Go on only where a program is on the path, and return where; `how` says how to install it."""
    path = shutil.which(name, path=_PATH)
    if path is None:
        pytest.skip(f"the program {name} is not installed: {how}")
    return path


def another_object_store():
    """Let the next request go to the endpoint that the environment names now.

    File systems of the one before are kept: Zarr's own connections close with their process only,
    and a session that is dropped before it is closed is warned of.
    """
    _KEPT.extend(object_storage.filesystem("s3://x", asynchronous=each) for each in (False, True))
    object_storage._filesystem.cache_clear()


_KEPT = []

# daemons are often outside of a user's own path
_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


ALL = os.environ.get("GMKCF_ALL") == "1"
"""`scripts/test --all`: every test must run."""
