"""Kind jobqueue with a batch system of two small scripts: jobs start at once, on this machine."""

import os
import signal
import time
from contextlib import suppress

import pytest
from helpers.faulty import start
from helpers.needs import need_package, need_program
from helpers.places import certificates, command, ends, on_threads, tls_section

pytestmark = pytest.mark.once

SBATCH = """#!/usr/bin/env bash
cp "$1" {folder}/job-$$.sh
setsid bash {folder}/job-$$.sh > {folder}/job-$$.log 2>&1 < /dev/null &
echo $! >> {folder}/started
echo Submitted batch job $!
"""
SCANCEL = """#!/usr/bin/env bash
echo $1 >> {folder}/cancelled
kill -- -$1
"""


@pytest.fixture
def batch_system(tmp_path):
    need_package("dask_jobqueue", "pip install 'gmkcf-dask[cluster-tests]'")
    need_program("setsid", "apt install util-linux")
    folder = tmp_path / "batch"
    (folder / "bin").mkdir(parents=True)
    for name, script in (("sbatch", SBATCH), ("scancel", SCANCEL)):
        (folder / "bin" / name).write_text(script.format(folder=folder))
        (folder / "bin" / name).chmod(0o755)
    yield folder
    for line in numbers(folder / "started"):
        with suppress(ProcessLookupError):
            os.killpg(line, signal.SIGKILL)


def numbers(path):
    return [int(line) for line in path.read_text().split()] if path.exists() else []


@pytest.mark.parametrize("encrypted", [False, True], ids=["tcp", "tls"])
@pytest.mark.cluster
def test_the_same_labels_and_no_job_is_left(encrypted, batch_system, tmp_path):
    expected = on_threads(tmp_path)
    tls = f"tls: {tls_section(certificates(tmp_path / 'tls'))}" if encrypted else ""
    file = tmp_path / "slurm.yaml"
    file.write_text(
        "gmkcf:\n  kind: jobqueue\n  system: slurm\n  workers: 3\n  memory: 1GiB\n  interface: lo\n"
        f"  local-directory: {tmp_path / 'scratch'}\n  minimum: 4\n  wait: 60s\n  {tls}\n"
        "jobqueue: {slurm: {cores: 2, job-script-prologue: ['export MY_OWN=1']}}\n"
    )
    path = f"{batch_system / 'bin'}{os.pathsep}{os.environ['PATH']}"
    code, said = ends(start(*command(tmp_path, file), settings={"PATH": path}))
    logs = "".join(log.read_text() for log in batch_system.glob("*.log"))
    assert code == 0, said + logs
    # workers come in pairs
    assert f"on 4 workers at {'tls' if encrypted else 'tcp'}://127.0.0.1:" in said
    assert "Traceback" not in said
    assert (tmp_path / "out" / "labels.csv").read_bytes() == expected
    # jobs are cancelled at the end, and remove what they made
    until = time.monotonic() + 20
    while list((tmp_path / "scratch").iterdir()):
        assert time.monotonic() < until
        time.sleep(0.1)
    started = numbers(batch_system / "started")
    assert len(started) == 2
    assert set(numbers(batch_system / "cancelled")) == set(started)
