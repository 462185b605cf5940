"""What a call says: warnings as sentences, or the one sentence of a refusal."""

import warnings

import pytest

from gmkcf_dask.errors import DataWarning, InputError


def told(call):
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        found = call()
    assert all(issubclass(one.category, DataWarning) for one in raised)
    return found, [str(one.message) for one in raised]


def refused(call):
    with pytest.raises(InputError) as error:
        call()
    assert "\n" not in str(error.value)
    return str(error.value)
