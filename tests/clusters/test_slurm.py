"""Under a real Slurm: workers as jobs, and a job with all inside that is cut off and goes on."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import yaml
from helpers.faulty import AS_PAPER, environment, outcome, run, serial_of
from helpers.needs import need_package, need_program
from helpers.paths import CONFIGS
from helpers.slurm import private_slurm

from gmkcf_dask.store.lock import LockInfo, lock_path

pytestmark = pytest.mark.cluster  # daemons of its own
OPTIONS = ("-k", 3, "--kernels", "linear,rbf_1", "--block", 40, "--tol", 0, "--max-iter", 25,
           "--checkpoint-every", 1, "--seed", 3, *AS_PAPER)  # fmt: skip
ASKED = ("--ntasks", 3, "--mem-per-cpu", "1G", "--time", "1:00:00")
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY")


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    need_program("openssl", "apt-get install openssl")
    with private_slurm(tmp_path_factory.mktemp("slurm")) as started:
        yield started


@pytest.fixture(scope="module")
def problem(tmp_path_factory):
    """A matrix, and what threads of this process find in it."""
    folder = tmp_path_factory.mktemp("problem")
    rng = np.random.default_rng(0)
    np.save(folder / "x.npy", rng.random((150, 8)) ** 2 + 2 * np.eye(8)[rng.integers(0, 3, 150)])
    out = folder / "threads"
    code, said = run("run", folder / "x.npy", *OPTIONS, "--out", out, "--cluster", "threads")
    assert code == 0, said
    return folder / "x.npy", outcome(out)


def gmkcf(slurm, *words, cwd=None):
    """What the command says, under that Slurm."""
    done = subprocess.run(
        [sys.executable, "-m", "gmkcf_dask.cli", *map(str, words)],
        env=environment() | slurm.variables,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def submitted(slurm, *words, cwd=None):
    """The number of the job that `gmkcf submit` handed in."""
    said = gmkcf(slurm, "submit", "slurm", *ASKED, *words, cwd=cwd)
    (line,) = [line for line in said.splitlines() if line.startswith("job ")]
    return line.split()[1]


def finished(slurm, job, out):
    """Wait for the end of a job, which is a good one, and leaves no key behind."""
    state = slurm.wait(job, *ENDED, seconds=120)
    log = (out / f"job/slurm-{job}.log").read_text()
    assert state == "COMPLETED", log + (out / f"job/dask-{job}.log").read_text()[-5000:]
    until = time.monotonic() + 10
    while list((out / "job").glob("cluster-*")) and time.monotonic() < until:
        time.sleep(0.1)
    assert sorted(path.name for path in (out / "job").iterdir()) == [
        f"dask-{job}.log", "job.sbatch", f"slurm-{job}.log",
    ]  # fmt: skip
    return log


def wait_for(true, slurm, job, seconds=120):
    """Something that a running job does."""
    until = time.monotonic() + seconds
    while not true():
        assert slurm.state(job) in ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING")
        assert time.monotonic() < until, "it took too long"
        time.sleep(0.02)


def test_workers_are_two_jobs(slurm, problem, tmp_path):
    """Our file for dask-jobqueue, with the lines changed that one changes, and TLS."""
    need_package("dask_jobqueue", "pip install 'gmkcf-dask[jobqueue]'")
    x, expected = problem
    script = CONFIGS / "tls/make_certificates.sh"
    folder = tmp_path / "configs/certificates"
    subprocess.run(["bash", script, folder], check=True, capture_output=True)
    config = yaml.safe_load((CONFIGS / "jobqueue/slurm.yaml").read_text())
    config["gmkcf"] |= {"workers": 2, "minimum": 2, "memory": "1GiB", "interface": "lo"}
    config["jobqueue"]["slurm"] |= {"cores": 1, "queue": "all", "log-directory": str(tmp_path)}
    file = tmp_path / "configs/slurm.yaml"
    file.write_text(yaml.safe_dump(config))
    said = gmkcf(slurm, "run", x, *OPTIONS, "--out", tmp_path / "out", "--cluster", file)
    assert "2 workers at tls://127.0.0.1:" in said
    assert len(list(tmp_path.glob("dask-worker-*.out"))) == 2
    assert outcome(tmp_path / "out") == expected
    # no job is left behind
    until = time.monotonic() + 20
    while slurm.call("squeue", "--noheader"):
        assert time.monotonic() < until
        time.sleep(0.2)


def test_one_job_with_all_inside_on_two_nodes(slurm, problem, tmp_path):
    x, expected = problem
    folder = tmp_path / "with a space"
    folder.mkdir()
    words = ("--nodes", 2, "--interface", "lo", "--now", "--")
    job = submitted(slurm, *words, "run", x, *OPTIONS, "--out", "out", cwd=folder)
    log = finished(slurm, job, folder / "out")
    assert "2 workers at tls://127.0.0.1:" in log
    assert outcome(folder / "out") == expected
    assert slurm.call("scontrol", "show", "job", job).count("NodeList=one,two") == 1


def spilled(out, job):
    """Folders of the workers of a job."""
    log = (out / f"job/dask-{job}.log").read_text()
    return [Path(found) for found in re.findall(r"Local Directory: +(\S+)", log)]


@pytest.mark.parametrize(
    ("memory", "asked", "limit"),
    [
        (("--mem", "2500M", "--nodes", 1), {"NumNodes": "1", "MinMemoryNode": "2500M"}, "690.0"),
        (("--mem-per-cpu", "1G", "--driver-memory", "1500M"), {"MinMemoryCPU": "1G"}, "972.0"),
    ],
    ids=["by-node", "by-cpu"],
)
def test_memory_of_the_driver_is_part_of_what_is_asked_for(
    slurm, problem, tmp_path, memory, asked, limit
):
    """By node it takes from workers, by CPU it has several tasks; workers spill where they may."""
    x, expected = problem
    out, scratch = tmp_path / "out", tmp_path / "scratch"
    words = ("--ntasks", 3, "--time", "1:00:00", "--local-directory", scratch, "--now", *memory)
    if "--mem" in memory:
        words += ("--driver-memory", "1045M")
    said = gmkcf(slurm, "submit", "slurm", *words, "run", x, *OPTIONS, "--out", out)
    job = said.partition("\njob ")[2].split()[0]
    log = finished(slurm, job, out)
    assert f"workers: 2 × 1 threads × {limit} MiB" in log
    assert outcome(out) == expected
    shown = slurm.call("scontrol", "--oneliner", "show", "job", job).split()
    found = dict(word.partition("=")[::2] for word in shown)
    assert {name: found[name] for name in asked} == asked
    assert found["NumTasks"] == ("3" if "--mem" in memory else "4")
    # folders of their own, gone with them
    assert len(spilled(out, job)) == 2
    for folder in spilled(out, job):
        assert folder.is_relative_to(scratch)
        assert folder.relative_to(scratch).parts[0].startswith("gmkcf-spill-")
    until = time.monotonic() + 20
    while list(scratch.iterdir()):
        assert time.monotonic() < until, list(scratch.iterdir())
        time.sleep(0.1)


def test_one_job_by_the_file_for_many(slurm, problem, tmp_path):
    """Our file for dask-jobqueue: number, network, storage and settings are taken from it."""
    need_package("dask_jobqueue", "pip install 'gmkcf-dask[jobqueue]'")
    x, expected = problem
    config = yaml.safe_load((CONFIGS / "jobqueue/slurm.yaml").read_text())
    config["gmkcf"] |= {"workers": 2, "memory": "1GiB", "interface": "lo", "storage": "stores"}
    config["jobqueue"]["slurm"] |= {"queue": "all", "account": None}
    config["distributed"]["comm"] = {"timeouts": {"connect": "45s"}}
    (tmp_path / "slurm.yaml").write_text(yaml.safe_dump(config))
    out = tmp_path / "out"
    words = ("--cluster", "slurm.yaml", "--now", "run", x, *OPTIONS, "--out", out)
    said = gmkcf(slurm, "submit", "slurm", *words, cwd=tmp_path)
    job = said.partition("\njob ")[2].split()[0]
    log = finished(slurm, job, out)
    assert "2 workers at tls://127.0.0.1:" in log
    assert "workers: 2 × 1 threads × 972.0 MiB" in log
    assert outcome(out) == expected
    assert len(list((tmp_path / "stores").glob("*.zarr"))) == 1
    assert not (out / "store.zarr").exists()


def test_a_job_that_is_killed_and_then_cut_by_its_time_goes_on(slurm, problem, tmp_path):
    """Its driver killed while it builds the store, then warned of its end during the fit."""
    x, expected = problem
    out = tmp_path / "out"
    job = submitted(slurm, "--now", "run", x, *OPTIONS, "--out", out)
    lease = lock_path(out / "store.zarr")
    wait_for(lambda: LockInfo.read(lease) is not None, slurm, job)
    os.kill(LockInfo.read(lease).pid, signal.SIGKILL)
    assert slurm.wait(job, *ENDED) == "FAILED"
    assert lease.exists()
    assert f"resume with: sbatch {out}/job/job.sbatch" in (out / f"job/slurm-{job}.log").read_text()
    slurm.requeue(job)
    # Slurm sends this signal, to the script alone, when the time of a job is almost up
    wait_for(lambda: serial_of(out), slurm, job)
    slurm.call("scancel", "--batch", "--signal", "USR1", job)
    slurm.wait(job, "PENDING")
    log = (out / f"job/slurm-{job}.log").read_text()
    assert "interrupted: the last complete iteration is kept" in log
    assert "time is up: this job queues itself again" in log
    assert not (out / "result.json").exists()
    slurm.start_now(job)
    log = finished(slurm, job, out)
    assert log.count("there is no checkpoint") == 1
    assert outcome(out) == expected


def test_a_job_that_is_cancelled_stays_so(slurm, problem, tmp_path):
    x, expected = problem
    out = tmp_path / "out"
    job = submitted(slurm, "--now", "run", x, *OPTIONS, "--out", out)
    wait_for(lambda: serial_of(out), slurm, job)
    slurm.call("scancel", job)
    assert slurm.wait(job, *ENDED) == "CANCELLED"
    wait_until_over(slurm, job)
    assert serial_of(out)
    assert not list((out / "job").glob("cluster-*"))
    code, said = run("run", x, *OPTIONS, "--out", out, "--resume", "--cluster", "threads")
    assert code == 0, said
    assert outcome(out) == expected


def wait_until_over(slurm, job, seconds=30):
    until = time.monotonic() + seconds
    while (
        slurm.call("squeue", "--noheader", "--states", "all", "--format", "%t", "-j", job) == "CG"
    ):
        assert time.monotonic() < until
        time.sleep(0.2)
