"""A scheduler and workers in processes of their own: over TLS, and through a scheduler file."""

import pytest
from helpers.places import certificates, dask_processes, refused, same_labels, tls_section

from gmkcf_dask.cluster.connect import scheduler_address

pytestmark = pytest.mark.once


@pytest.fixture(scope="module")
def members(tmp_path_factory):
    return certificates(tmp_path_factory.mktemp("tls") / "members")


@pytest.fixture(scope="module")
def expired(members, tmp_path_factory):
    """A certificate of the same authority that was valid until yesterday."""
    folder = tmp_path_factory.mktemp("tls") / "expired"
    folder.mkdir()
    for name in ("ca.pem", "ca.key"):
        (folder / name).write_bytes((members / name).read_bytes())
    return certificates(folder, days=-1)


@pytest.fixture(scope="module")
def tls_cluster(members, tmp_path_factory):
    with dask_processes(tmp_path_factory.mktemp("cluster"), 2, members) as file:
        yield file


@pytest.mark.cluster
def test_through_a_scheduler_file_and_tls(tls_cluster, members, tmp_path):
    """The file may still be to come, and the workers after it: both are waited for."""
    config = tmp_path / "cluster.yaml"
    config.write_text(
        f"gmkcf: {{kind: scheduler-file, path: {tls_cluster}, tls: {tls_section(members)}, "
        "wait: 60s, minimum: 2}\n"
    )
    assert "on 2 workers at tls://127.0.0.1:" in same_labels(tmp_path, config)


@pytest.mark.cluster
def test_by_address_and_tls(tls_cluster, members, tmp_path):
    address = scheduler_address(tls_cluster, 60)
    config = tmp_path / "cluster.yaml"
    config.write_text(
        f"gmkcf: {{kind: address, address: '{address}', tls: {tls_section(members)}, wait: 60s, "
        f"minimum: 2, storage: {tmp_path / 'stores'}}}\n"
    )
    assert "on 2 workers at tls://127.0.0.1:" in same_labels(tmp_path, config)
    assert (tmp_path / "stores" / "out.zarr" / "manifest.json").exists()
    assert not (tmp_path / "out" / "store.zarr").exists()


def test_an_expired_certificate_of_ours(tls_cluster, expired, tmp_path):
    text = f"gmkcf: {{kind: scheduler-file, path: {tls_cluster}, tls: {tls_section(expired)}}}"
    assert "(certificate has expired)" in refused(tmp_path, text, code=2)


def test_an_expired_certificate_of_the_scheduler(members, expired, tmp_path, monkeypatch):
    monkeypatch.setattr("gmkcf_dask.cluster.connect.CONNECT_SECONDS", 3)
    with dask_processes(tmp_path / "cluster", 0, expired) as file:
        scheduler_address(file, 60)
        text = f"gmkcf: {{kind: scheduler-file, path: {file}, tls: {tls_section(members)}}}"
        assert "(certificate has expired)" in refused(tmp_path, text, code=2)


def test_no_workers_in_time(tmp_path):
    with dask_processes(tmp_path / "cluster", 0) as file:
        text = f"gmkcf: {{kind: scheduler-file, path: {file}, wait: 20s}}"
        scheduler_address(file, 60)
        sentence = refused(tmp_path, text.replace("20s", "2s"), code=2)
        assert "0 of 1 workers came within 2 s" in sentence
        text = text.replace(", wait: 20s", "")
        assert "has no workers: start some first" in refused(tmp_path, text, code=2)
