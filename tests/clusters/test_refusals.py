"""What is wrong with a cluster is said in one sentence, before work starts."""

import shutil
import socket

import pytest
from helpers.needs import need_package
from helpers.places import certificates, refused, tls_section

from gmkcf_dask.cluster.process_settings import is_loopback_interface

pytestmark = pytest.mark.once
INSTALL = "pip install 'gmkcf-dask[cluster-tests]'"


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr("gmkcf_dask.cluster.connect.CONNECT_SECONDS", 0.5)


@pytest.fixture
def tls(tmp_path):
    return tls_section(certificates(tmp_path / "tls"))


def closed_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.usefixtures("impatient")
def test_a_wrong_address(tmp_path):
    text = f"gmkcf: {{kind: address, address: 'tcp://127.0.0.1:{closed_port()}'}}"
    assert "no Dask scheduler answers at" in refused(tmp_path, text, code=2)


def test_a_scheduler_file_that_is_missing(tmp_path):
    text = "gmkcf: {kind: scheduler-file, path: no.json}"
    sentence = refused(tmp_path, text, code=2)
    assert "cannot read the scheduler file" in sentence
    assert "No such file" in sentence


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"address": 3}', "\x00", "[" * 5000])
def test_a_scheduler_file_that_is_something_else(content, tmp_path):
    (tmp_path / "scheduler.json").write_text(content)
    text = "gmkcf: {kind: scheduler-file, path: scheduler.json}"
    assert "is not the file of a Dask scheduler" in refused(tmp_path, text, code=2)


def test_a_scheduler_file_with_an_open_address(tmp_path):
    (tmp_path / "scheduler.json").write_text('{"address": "tcp://10.1.2.3:8786"}')
    text = "gmkcf: {kind: scheduler-file, path: scheduler.json}"
    assert "is not encrypted" in refused(tmp_path, text, code=2)


def test_an_unknown_batch_system(tmp_path):
    text = "gmkcf: {kind: jobqueue, system: slrum, workers: 1}"
    assert "not 'slrum': did you mean slurm?" in refused(tmp_path, text, code=2)


JOBS = "gmkcf: {kind: jobqueue, system: slurm, workers: 2, memory: 1GiB%s}\n"


def test_jobs_in_the_open(tmp_path):
    need_package("dask_jobqueue", INSTALL)
    assert "listens on the network" in refused(tmp_path, JOBS % "", code=2)


def test_an_interface_that_is_not_there(tmp_path):
    need_package("dask_jobqueue", INSTALL)
    text = JOBS % ", interface: ib77"
    assert "no network interface 'ib77' on this machine" in refused(tmp_path, text, code=2)


def test_a_batch_system_that_is_not_here(tmp_path, tls, monkeypatch):
    need_package("dask_jobqueue", INSTALL)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    sentence = refused(tmp_path, JOBS % f", tls: {tls}", code=2)
    assert "sbatch is not here, so no job can be given to slurm" in sentence


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ("echo 'sbatch: error: invalid partition' >&2; exit 1", "sbatch: error: invalid partition"),
        ("exit 1", "cannot be started"),
        ("echo hello", "cannot be started"),
        ("echo Submitted batch job 7", "0 of 1 workers came within 2 s: look at the queue"),
    ],
)
def test_jobs_that_do_not_start(answer, sentence, tmp_path, monkeypatch):
    """A batch system that refuses jobs, or never starts one."""
    need_package("dask_jobqueue", INSTALL)
    (tmp_path / "bin").mkdir()
    for name, script in (("sbatch", answer), ("scancel", f"echo $1 >> {tmp_path}/cancelled")):
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    text = JOBS.replace("workers: 2", "adaptive: {minimum: 1, maximum: 2}")
    found = refused(tmp_path, text % ", interface: lo, wait: 2s", code=2)
    assert sentence in found
    if "7" in answer:
        assert "7" in (tmp_path / "cancelled").read_text().split()


def test_more_workers_than_jobs_bring(tmp_path):
    need_package("dask_jobqueue", INSTALL)
    sentence = "wants minimum 5 workers before work begins, but never more than 4 come"
    for many in ("workers: 3", "adaptive: {minimum: 1, maximum: 3}"):
        text = JOBS.replace("workers: 2", many) % ", interface: lo, minimum: 5"
        text += "jobqueue: {slurm: {cores: 2}}\n"  # workers come in pairs
        assert sentence in refused(tmp_path, text, code=2)


def test_jobs_without_memory_or_number(tmp_path):
    need_package("dask_jobqueue", INSTALL)
    text = "gmkcf: {kind: jobqueue, system: slurm, interface: lo, %s}"
    assert "jobs need an amount of memory" in refused(tmp_path, text % "workers: 1", code=2)
    assert "needs workers: N or adaptive" in refused(tmp_path, text % "memory: 1GiB", code=2)


def test_old_and_dangerous_keys_of_jobqueue(tmp_path):
    need_package("dask_jobqueue", INSTALL)
    for line, hint in (
        ("job-extra: [a]", "did you mean job-extra-directives?"),
        ("worker-command: my.module", "there is no key 'worker-command'"),
        ("scheduler-options: {preload: [x]}", "there is no key 'preload'"),
        ("wall-time: x", "did you mean walltime?"),
    ):
        text = JOBS % "" + f"jobqueue: {{slurm: {{{line}}}}}\n"
        assert hint in refused(tmp_path, text, code=2)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("cores: four", "slurm.cores must be a whole number, not 'four'"),
        ('cores: "4"', "slurm.cores must be a whole number"),
        ("processes: two", "slurm.processes must be a whole number"),
        ("memory: lots", "slurm.memory must be an amount of memory such as 4GiB, not 'lots'"),
        ("walltime: 43200", "slurm.walltime must be a text in one line, not 43200"),
        ("local-directory: a b", "slurm.local-directory must be a name or path"),
        ("queue: 7", "slurm.queue must be a text in one line, not 7"),
        ("job-script-prologue: module load x", "job-script-prologue must be a list"),
        ("job-extra-directives: [1]", "job-extra-directives[0] must be a text"),
        ("death-timeout: never", "must be a time"),
        ("scheduler-options: {port: high}", "port must be a whole number, not 'high'"),
    ],
)
def test_wrong_values_of_jobqueue(line, sentence, tmp_path):
    need_package("dask_jobqueue", INSTALL)
    text = JOBS % ", interface: lo" + f"jobqueue: {{slurm: {{{line}}}}}\n"
    assert sentence in refused(tmp_path, text, code=2)


def test_wrong_values_of_jobqueue_in_dasks_own_configuration(tmp_path):
    need_package("dask_jobqueue", INSTALL)
    import dask

    with dask.config.set({"jobqueue.slurm.cores": "four"}):
        sentence = refused(tmp_path, JOBS % ", interface: lo", code=2)
    assert "Dask's configuration: jobqueue.slurm.cores must be a whole number" in sentence


@pytest.mark.parametrize(
    ("kind", "module", "more"),
    [
        ("jobqueue", "dask_jobqueue", "system: slurm, workers: 1, memory: 1GiB, interface: lo"),
        ("ssh", "asyncssh", "hosts: [127.0.0.1, 127.0.0.1], memory: 1GiB"),
        ("mpi", "dask_mpi", "memory: 1GiB"),
    ],
)
def test_a_package_that_is_missing(kind, module, more, tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, module, None)
    sentence = refused(tmp_path, f"gmkcf: {{kind: {kind}, {more}}}", code=2)
    assert f"pip install 'gmkcf-dask[{kind}]'" in sentence


def test_the_loopback_interface_is_known():
    assert is_loopback_interface("lo")
    assert not is_loopback_interface(None)
