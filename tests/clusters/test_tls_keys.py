"""A TLS key that others can read: told by a warning, and work goes on."""

import os

import dask
import pytest
from helpers.certificates import make_certificates
from helpers.faulty import run
from helpers.needs import need_program
from helpers.places import command

from gmkcf_dask.cluster.tls import configured_security, security_of, warn_of_open_key
from gmkcf_dask.errors import SecurityWarning


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    need_program("openssl", "apt-get install openssl")
    return make_certificates(tmp_path_factory.mktemp("keys with a space"), "member")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644])
def test_a_key_that_others_can_read_is_told(files, mode):
    files.key.chmod(mode)
    with pytest.warns(SecurityWarning, match=f"chmod 600 '{files.key}'") as told:
        assert security_of(files).require_encryption
    assert f"{mode:04o}" in str(told[0].message)


def test_a_key_for_its_owner_alone_is_not(files):
    files.key.chmod(0o600)
    assert security_of(files).require_encryption


def test_a_key_of_dasks_configuration_is_looked_at_too(files):
    files.key.chmod(0o644)
    section = "distributed.comm.tls"
    settings = {f"{section}.ca-file": str(files.ca)}
    for role in ("client", "scheduler", "worker"):
        settings |= {f"{section}.{role}.cert": str(files.cert)}
        settings |= {f"{section}.{role}.key": str(files.key)}
    with dask.config.set(settings), pytest.warns(SecurityWarning, match="chmod 600") as told:
        assert configured_security() is not None
    assert len(told) == 1


def test_a_mounted_secret_is_read_through_its_group(files, monkeypatch):
    """It belongs to root, and its user in the pod is another."""
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    files.key.chmod(0o440)
    warn_of_open_key(str(files.key))
    files.key.chmod(0o444)
    with pytest.warns(SecurityWarning):
        warn_of_open_key(str(files.key))


@pytest.mark.cluster
def test_a_command_says_it_once_and_goes_on(files, tmp_path):
    files.key.chmod(0o644)
    words = command(tmp_path, "local", "--workers", 1, "--memory", "1GiB")
    tls = ("--tls-ca", files.ca, "--tls-cert", files.cert, "--tls-key", files.key)
    code, said = run(*words, *tls)
    assert code == 0, said
    assert said.count("chmod 600") == 1
