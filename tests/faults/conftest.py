"""A whole store, and a copy of it to damage."""

import shutil

import pytest
from helpers.damage import store_at


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    path = tmp_path_factory.mktemp("clean") / "s.zarr"
    store_at(path)
    return path


@pytest.fixture
def store(clean, tmp_path):
    return shutil.copytree(clean, tmp_path / "s.zarr")
