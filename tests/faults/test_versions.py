"""Other versions on the cluster than here: refused before any work, with all that differs."""

import pytest

from gmkcf_dask import versions
from gmkcf_dask.cluster import of_client
from gmkcf_dask.errors import ClusterError


def test_the_same_everywhere(one_worker):
    of_client(one_worker)


@pytest.mark.parametrize("package", versions.PACKAGES)
def test_a_mismatch_is_refused(one_worker, monkeypatch, package):
    real = versions.version
    monkeypatch.setattr(versions, "version", lambda name: "0.0" if name == package else real(name))
    with pytest.raises(ClusterError) as raised:
        of_client(one_worker)
    sentence = str(raised.value)
    # the scheduler of a local cluster lives in this process
    assert f"({package} {real(package)} on worker tcp://" in sentence
    assert sentence.count(" here") == 1
    assert raised.value.exit_code == 2
