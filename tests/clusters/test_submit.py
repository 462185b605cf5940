"""Job scripts and manifests: what is in them, what may not get in, and that they are kept."""

import os
import re
import socket
import subprocess
import sys
from copy import deepcopy
from dataclasses import replace
from functools import cache
from importlib.metadata import PackageNotFoundError, entry_points, files
from pathlib import Path

import dask
import numpy as np
import pytest
import yaml
from helpers.cluster_files import parse_config
from helpers.faulty import run
from helpers.needs import need_package, need_program
from helpers.paths import CONFIGS
from helpers.pod_security import violations
from scipy import sparse

from gmkcf_dask.cli import main
from gmkcf_dask.cluster import threads
from gmkcf_dask.cluster.jobqueue import described
from gmkcf_dask.cluster.process_settings import WORKER_ENVIRONMENT
from gmkcf_dask.cluster.submit.kubernetes import KubernetesJob, manifest
from gmkcf_dask.cluster.submit.memory import driver_memory
from gmkcf_dask.cluster.submit.progress import main as progress
from gmkcf_dask.cluster.submit.slurm import (
    JOB_SCHEDULER_BYTES,
    SlurmJob,
    mebibytes,
    slurm_options,
    slurm_script,
)
from gmkcf_dask.compute.costs import SCHEDULER_BYTES, expected_gram
from gmkcf_dask.compute.plan import make_plan
from gmkcf_dask.compute.runner import Runner
from gmkcf_dask.corpus.model import Corpus
from gmkcf_dask.errors import InputError, PlanRefused
from gmkcf_dask.kernels.specs import resolve_kernels
from gmkcf_dask.pipeline import request_plan, store_plan
from gmkcf_dask.store.build import build_store
from gmkcf_dask.store.request import KernelRequest
from gmkcf_dask.system.units import GIB

JOBQUEUE = "pip install 'gmkcf-dask[jobqueue]'"
EXAMPLE = SlurmJob(
    name="gmkcf-news",
    command=("run", "news.npz", "-k", "20", "--out", "news"),
    folder=Path("/shared/ann/news/job"),
    cwd=Path("/shared/ann"),
    nodes=4,
    ntasks=33,
    cpus_per_task=1,
    mem_per_cpu=4 * GIB,
    time="12:00:00",
    partition="normal",
    account="myproject",
    interface="ib0",
    python="/shared/ann/venv/bin/python",
    places=("/shared/ann/news", "/shared/ann/news/store.zarr"),
)
DASKJOB = KubernetesJob(
    name="news",
    command=("run", "/data/news.npz", "-k", "20", "--out", "/data/news"),
    image="registry.example.org/ann/gmkcf:1",
    workers=8,
    memory=4 * GIB,
    volumes=("data:/data", "more:/more"),
    tls_secret="gmkcf-tls",
)


def test_the_example_is_what_the_command_writes():
    assert (CONFIGS / "slurm_job.sbatch").read_text() == slurm_script(EXAMPLE)


def test_scripts_are_bash(tmp_path):
    job = replace(
        EXAMPLE,
        command=("run", "it's $HOME `x` $(y).npz", "-k", "2", "--out", "a b"),
        folder=tmp_path / "a b",
        python="/a b/python",
        directives=("--qos=long", "--comment=two words", "--exclusive"),
        prologue=("module load python",),
        local_directory="$TMPDIR/x",
    )
    script = slurm_script(job)
    for folder in (EXAMPLE, job):
        done = subprocess.run(["bash", "-n"], input=slurm_script(folder), text=True, check=False)
        assert done.returncode == 0
    assert "run 'it'\"'\"'s $HOME `x` $(y).npz' -k 2 --out 'a b' --resume --force" in script
    assert f'#SBATCH --output="{tmp_path}/a b/slurm-%j.log"\n' in script
    assert '#SBATCH --qos=long\n#SBATCH --comment="two words"\n#SBATCH --exclusive\n' in script
    assert "\nmodule load python\n" in script
    assert "\npython='/a b/python'\n" in script
    assert "\nscratch=$TMPDIR/x\n" in script


def test_every_line_for_slurm_comes_before_the_first_command():
    lines = slurm_script(EXAMPLE).splitlines()
    first = next(number for number, line in enumerate(lines) if line and not line.startswith("#"))
    assert not any(line.startswith("#SBATCH") for line in lines[first:])
    for name, value in WORKER_ENVIRONMENT.items():
        assert f"export {name}={value}" in lines[first:]


def test_certificates_and_an_interface_go_together():
    """As options of `dask scheduler` they do not: it then takes the network for chosen already."""
    script = slurm_script(EXAMPLE)
    assert "--interface ib0" in script
    assert "--tls-" not in script
    for part in ("CA_FILE", "SCHEDULER__CERT", "SCHEDULER__KEY", "WORKER__CERT", "WORKER__KEY"):
        assert f"\nexport DASK_DISTRIBUTED__COMM__TLS__{part}=$cluster/" in script


def test_an_example_that_is_copied_says_what_it_needs():
    assert f"\n#   mkdir -p {EXAMPLE.folder}\n" in slurm_script(EXAMPLE)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"name": "x\n#SBATCH --uid=0"}, "name of a job"),
        ({"command": ("run", "x\n#SBATCH --uid=0")}, "in one line"),
        ({"prologue": ("true\n#SBATCH --uid=0",)}, "in one line"),
        ({"python": "python\nrm"}, "in one line"),
        ({"storage": "/a\nEND\nrm"}, "in one line"),
        ({"settings": {"DASK_X": "1\nrm"}}, "in one line"),
        ({"environment": {"OMP_NUM_THREADS": "1\nrm"}}, "in one line"),
        ({"folder": Path("/a\n#SBATCH --uid=0")}, "cannot stand"),
        ({"folder": Path('/a"b')}, "cannot stand"),
        ({"folder": Path("/a%jb")}, "cannot stand"),
        ({"cwd": Path("relative")}, "absolute"),
        ({"partition": "a b"}, "--partition"),
        ({"account": "x --uid=0"}, "--account"),
        ({"interface": "$(x)"}, "--interface"),
        ({"directives": ("--qos=a\n#SBATCH --uid=0",)}, "long form"),
        ({"directives": ('--comment="x',)}, "long form"),
        ({"directives": ("-p x",)}, "long form"),
        ({"directives": ("--array=1-4",)}, "sets it itself"),
        ({"time": "soon"}, "time as Slurm"),
        ({"time": "2"}, "not more than the 120 seconds"),
        ({"ntasks": 1}, "at least 2"),
        ({"nodes": 34}, "--nodes"),
        ({"places": ("/a\nrm",)}, "in one line"),
        ({"mem": 64 * GIB}, "one of --mem-per-cpu and --mem"),
        ({"mem_per_cpu": None}, "one of --mem-per-cpu and --mem"),
        ({"mem_per_cpu": None, "mem": 64 * GIB, "nodes": None}, "and needs --nodes"),
        ({"directives": ("--ntasks-per-node=4",)}, "sets it itself"),
    ],
)
def test_nothing_gets_into_a_script_that_is_not_one_value(changed, said):
    with pytest.raises(InputError, match=said) as raised:
        replace(EXAMPLE, **changed)
    assert "\n" not in str(raised.value)


def test_workers_too_small_for_any_work_are_refused():
    with pytest.raises(PlanRefused):
        replace(EXAMPLE, mem_per_cpu=1 << 20)


def directives(job):
    """What a job asks Slurm for, by option."""
    lines = [line.split(" ")[1] for line in slurm_script(job).splitlines() if "#SBATCH" in line]
    return dict(line.partition("=")[::2] for line in lines)


def test_memory_by_cpu_counts_the_driver_in_tasks():
    """4 GiB a task: a driver of 9 GiB has the memory of three of them, on its own node."""
    asked = directives(EXAMPLE)
    assert (asked["--ntasks"], asked["--mem-per-cpu"]) == ("33", "4096M")
    assert "--mem" not in asked
    job = replace(EXAMPLE, driver_memory=9 * GIB, cpus_per_task=2, mem_per_cpu=2 * GIB)
    asked = directives(job)
    assert asked["--ntasks"] == "35"
    script = slurm_script(job)
    assert "--nodes=1 --ntasks=1 --cpus-per-task=6 --nodelist" in script
    assert "--ntasks=32 --cpus-per-task=2 " in script
    assert f"--memory-limit {4096 * 95 // 100}MiB" in script
    with pytest.raises(PlanRefused, match="the memory of 9 tasks, and one of 8 nodes has 5"):
        replace(job, driver_memory=36 * GIB, nodes=8)


def test_memory_by_node_is_shared_with_the_driver():
    """33 tasks on 4 nodes: at most 9 on each, and one of these is the driver."""
    job = replace(EXAMPLE, mem_per_cpu=None, mem=36 * GIB)
    asked = directives(job)
    assert (asked["--mem"], asked["--ntasks-per-node"], asked["--ntasks"]) == ("36864M", "9", "33")
    assert "--mem-per-cpu" not in asked
    assert job.worker_memory == 4 * GIB
    assert "--exact --mem=0 " in slurm_script(job)
    assert replace(job, driver_memory=20 * GIB).worker_memory == 2 * GIB
    assert replace(job, driver_memory=1 * GIB).worker_memory == 4 * GIB
    with pytest.raises(PlanRefused, match=r"a node has 36\.0 GiB"):
        replace(job, driver_memory=36 * GIB)


def test_a_cluster_file_says_what_to_ask_for():
    need_package("dask_jobqueue", JOBQUEUE)
    content = b"""
gmkcf: {kind: jobqueue, system: slurm, workers: 8, interface: ib0, insecure: true}
jobqueue:
  slurm:
    cores: 4
    processes: 2
    memory: 16GiB
    queue: normal
    account: myproject
    walltime: "02:00:00"
    job-extra-directives: ["--qos=long"]
    job-script-prologue: ["module load python"]
"""
    assert slurm_options(parse_config(content, Path("x.yaml"))) == {
        "cpus_per_task": 2,
        "mem_per_cpu": 4 * GIB,
        "ntasks": 9,
        "partition": "normal",
        "account": "myproject",
        "time": "02:00:00",
        "interface": "ib0",
        "directives": ("--qos=long",),
        "prologue": ("module load python",),
    }


def jobqueue_file(ours="", theirs="", more=""):
    content = f"""
gmkcf: {{kind: jobqueue, system: slurm, workers: 8, insecure: true{ours}}}
jobqueue: {{slurm: {{walltime: "02:00:00"{theirs}}}}}
{more}
"""
    need_package("dask_jobqueue", JOBQUEUE)
    return parse_config(content.encode(), Path("/shared/ann/x.yaml"))


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("", ", cores: 4, memory: 16GiB"),
        ("", ", cores: 5, processes: 2, memory: 16GiB"),
        ("", ", processes: 3, memory: 9GiB"),
        (", threads: 2", ", cores: 4, memory: 16GiB"),
        (", threads: 2, memory: 3GiB", ""),
        (", memory: 3GiB", ", cores: 4"),
    ],
)
def test_a_file_means_the_same_workers_for_jobs_and_for_one_job(ours, theirs):
    config = jobqueue_file(ours, theirs)
    with dask.config.set(config.settings):
        workers, threads, memory = described(config)
    found = slurm_options(config)
    assert found["ntasks"] - 1 == workers
    assert found["cpus_per_task"] == threads
    assert found["mem_per_cpu"] * threads == memory
    # more threads share what a worker has
    found = slurm_options(config, 8)
    assert (found["cpus_per_task"], found["mem_per_cpu"] * 8) == (8, memory)


@pytest.mark.parametrize(
    "theirs", [", cores: 4", ", cores: 2", ", cores: 3, processes: 2", ", cores: 4, processes: 2"]
)
def test_threads_and_cores_that_contradict_each_other_are_refused(theirs):
    config = jobqueue_file(", threads: 3, memory: 3GiB", theirs)
    with pytest.raises(InputError, match=r"cores is \d, but"):
        slurm_options(config)
    with dask.config.set(config.settings), pytest.raises(InputError, match=r"cores is \d, but"):
        described(config)


def test_nothing_of_a_cluster_file_is_lost():
    settings = """
distributed:
  worker: {memory: {spill: 0.5}}
  comm: {timeouts: {connect: 1 m}, require-encryption: false}
  nanny: {pre-spawn-environ: {OMP_NUM_THREADS: 2}}
"""
    found = slurm_options(jobqueue_file(", storage: 'my stores', stall-timeout: 10m", "", settings))
    asked = {"storage", "stall_timeout", "settings", "environment"}
    script = slurm_script(replace(EXAMPLE, **{name: found[name] for name in asked}))
    lines = script.splitlines()
    for name, value in {
        "OMP_NUM_THREADS": "2",
        "MKL_NUM_THREADS": "1",
        "DASK_DISTRIBUTED__WORKER__MEMORY__SPILL": "0.5",
        "DASK_DISTRIBUTED__WORKER__MEMORY__PAUSE": "0.80",
        "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "'1 m'",
    }.items():
        assert [line for line in lines if line.startswith(f"export {name}=")] == [
            f"export {name}={value}"
        ]
    # but a job is encrypted in any case
    encryption = [line for line in lines if "REQUIRE_ENCRYPTION" in line]
    assert encryption[-1] == "export DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION=True"
    inside = script.partition("<<'END'\n")[2].partition("\nEND\n")[0]
    config = parse_config(inside.encode(), Path("/other/cluster.yaml"))
    assert (config.storage, config.stall_timeout) == ("/shared/ann/my stores", 600)


@pytest.mark.parametrize(
    ("ours", "theirs", "key"),
    [
        (", dashboard: true", "", "gmkcf.dashboard"),
        ("", ", worker-extra-args: [--lifetime=1h]", "jobqueue.slurm.worker-extra-args"),
        ("", ", job-mem: 9G", "jobqueue.slurm.job-mem"),
    ],
)
def test_what_one_job_cannot_do_is_refused(ours, theirs, key):
    with pytest.raises(InputError, match=f"{key} of the cluster file has no place"):
        slurm_options(jobqueue_file(ours, theirs))


# the command


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "x.npy").touch()
    return tmp_path


SLURM = ("submit", "slurm", "--ntasks", 3, "--mem-per-cpu", "1G", "--time", "1:00:00")


def test_a_script_is_written_for_its_owner_alone(here, monkeypatch):
    written = []
    monkeypatch.setattr(os, "fsync", lambda file: written.append(os.fstat(file).st_mode & 0o777))
    code, said = run(*SLURM, "run", "x.npy", "-k", 2, "--out", "run")
    assert code == 0, said
    script = here / "run/job/job.sbatch"
    assert said.splitlines() == [f"written: {script}", f"next: sbatch {script}"]
    assert script.stat().st_mode & 0o777 == 0o700
    assert written == [0o700]  # from the beginning, not only in the end
    assert f"#SBATCH --chdir={here}\n" in script.read_text()
    # a second time, with and without the two dashes, and more options after the folder is there
    assert run(*SLURM, "--", "run", "x.npy", "-k", 2, "--out", "run", "--resume")[0] == 0
    assert "--resume --force \\\n" in script.read_text()


@pytest.mark.parametrize("document", ["README.md", "docs/clusters.md"])
def test_the_command_of_a_document_is_taken(here, document):
    """As it stands there, but not handed in."""
    text = (CONFIGS.parent / document).read_text().replace("\\\n", " ")
    (words,) = set(re.findall(r"gmkcf (submit slurm --[^`\n]*?) --now\s+-- run", text))
    code, said = run(*words.split(), "--", "run", "x.npy", "-k", 2, "--out", "run")
    assert code == 0, said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((*SLURM, "build", "x.npy", "s.zarr"), "run or gmkcf fit"),
        ((*SLURM, "run", "x.npy", "--out", "run"), "Missing option '-k'"),
        ((*SLURM, "run", "y.npy", "-k", 2, "--out", "run"), "there is no y.npy"),
        ((*SLURM, "run", "x.npy", "-k", 2, "--out", "r", "--cluster", "local"), "of its own"),
        ((*SLURM, "run", "x.npy", "-k", 2, "--out", "r", "--overwrite"), "resumes"),
        ((*SLURM, "run", "x.npy", "-k", 2, "--out", "x.npy"), "is a file"),
        (("submit", "slurm", "run", "x.npy", "-k", 2, "--out", "r"), "--ntasks, --mem-per-cpu"),
        ((*SLURM, "--mem", "4G", "run", "x.npy", "-k", 2, "--out", "r"), "one of --mem-per-cpu"),
        ((*SLURM, "--mem-per-cpu", "much", "run", "x.npy", "-k", 2, "--out", "r"), "such as 4G"),
        ((*SLURM, "--now", "run", "x.npy", "-k", 2, "--out", "r"), "there is no sbatch here"),
    ],
)
def test_what_is_wrong_is_said_before_a_job_waits(here, words, said):
    code, output = run(*words)
    assert code == 2
    assert said in output


def test_what_sbatch_says_is_told(here):
    program = here / "bin/sbatch"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho sbatch: error: invalid account >&2\nexit 1\n")
    program.chmod(0o755)
    code, said = run(*SLURM, "--now", "run", "x.npy", "-k", 2, "--out", "run")
    assert code == 2
    assert "sbatch did not take the job: sbatch: error: invalid account" in said
    program.write_text("#!/bin/sh\necho '17;tests'\n")
    code, said = run(*SLURM, "--now", "run", "x.npy", "-k", 2, "--out", "run")
    assert code == 0, said
    assert f"job 17 of Slurm: squeue --job 17\nlog: {here}/run/job/slurm-17.log\n" in said


# what a script does, with everything around it played


DRIVER = """#!/bin/bash
[ "$3" = gmkcf_dask.cluster.submit.progress ] && { cat progress 2>/dev/null; exit 0; }
[ "$3" = gmkcf_dask.cli ] || exit 0
echo "driver: ${*: -3:1}" >>said
%s
"""
BE_STOPPED = (
    'trap "exit 143" TERM; kill -%s $PPID; for _ in {1..100}; do command -p sleep 0.1; done'
)


@pytest.fixture
def play(tmp_path):
    """Run the script of a job whose driver does something."""

    def played(first, restarts=0, **changed):
        bin_ = tmp_path / "bin"
        bin_.mkdir(exist_ok=True)
        (tmp_path / "said").unlink(missing_ok=True)
        programs = {
            # the address of a scheduler, before somebody waits for it
            "srun": '#!/bin/sh\nfor w; do [ "${w##*/}" = scheduler.json ] && echo {} >"$w"; done\n',
            "scancel": '#!/bin/bash\necho "scancel: $*" >>said\n',
            "scontrol": '#!/bin/bash\necho "scontrol: $*" >>said\n',
            "sleep": '#!/bin/bash\necho "sleep: $*" >>said\n',
            "python": DRIVER % first,
        }
        for name, text in programs.items():
            (bin_ / name).write_text(text)
            (bin_ / name).chmod(0o755)
        job = replace(EXAMPLE, folder=tmp_path, cwd=tmp_path, python=str(bin_ / "python"))
        job = replace(job, **changed)
        done = subprocess.run(
            ["bash", "-c", slurm_script(job)],
            env={
                "PATH": f"{bin_}:/usr/bin:/bin",
                "SLURM_JOB_ID": "7",
                "SLURMD_NODENAME": "one",
                "SLURM_RESTART_COUNT": str(restarts),
            },
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert not (tmp_path / "cluster-7").exists(), "the key is left"
        said = [line for line in (tmp_path / "said").read_text().splitlines() if "0.5" not in line]
        return done.returncode, said, done.stdout

    return played


def test_no_node_waits_for_a_store_that_is_held(play, tmp_path):
    need_program("openssl", "apt-get install openssl")
    code, said, out = play("exit 6")
    assert (code, said) == (6, ["driver: --force"])
    assert out.splitlines()[-1].endswith(f"sbatch --begin=now+15minutes {tmp_path}/job.sbatch")


def test_a_job_that_had_to_stop_queues_itself_three_times_without_progress(play, tmp_path):
    need_program("openssl", "apt-get install openssl")
    for start in range(3):
        code, said, out = play("exit 5", restarts=start)
        assert (code, said) == (0, ["driver: --force", "scontrol: requeue 7"]), out
    code, said, out = play("exit 5", restarts=3)
    assert (code, said) == (5, ["driver: --force"])
    assert out.splitlines()[-1] == f"resume with: sbatch {tmp_path}/job.sbatch"
    # a job that is handed in anew has three tries again
    (tmp_path / "stalled").write_text("6 3\n")
    assert play("exit 5")[0] == 0
    assert (tmp_path / "stalled").read_text() == "7 1\n"


@pytest.mark.parametrize("end", ["exit 5", "time"])
def test_progress_lets_a_job_queue_itself_further(play, tmp_path, end):
    """Each start comes a checkpoint further; one that does not is counted again from one."""
    need_program("openssl", "apt-get install openssl")
    end = BE_STOPPED % "USR1" if end == "time" else end
    for start in range(5):
        code, said, out = play(f"echo {start} >progress; {end}", restarts=start)
        assert (code, said[-1]) == (0, "scontrol: requeue 7"), out
    assert not (tmp_path / "stalled").exists()
    assert play(end, restarts=5)[0] == 0
    assert (tmp_path / "stalled").read_text() == "7 1\n"
    play("echo 9 >progress; exit 0", restarts=6)
    assert not (tmp_path / "stalled").exists()


def test_processes_of_a_job_write_into_private_folders(play, tmp_path):
    """Scheduler and workers are started in them; they end with the process, and none is shared."""
    need_program("openssl", "apt-get install openssl")
    scratch = tmp_path / "scratch"
    code, *_ = play("exit 0", local_directory=str(scratch))
    assert code == 0
    script = slurm_script(replace(EXAMPLE, local_directory=str(scratch)))
    lines = script.partition("private='")[2].partition("'\n")[0]
    look = 'echo "$DASK_TEMPORARY_DIRECTORY $(stat -c %a "$DASK_TEMPORARY_DIRECTORY") $*"'
    words = ["bash", "-c", lines, "gmkcf", str(scratch), "bash", "-c", look, "x", "a", "b c"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    folder, mode, more = done.stdout.strip().split(" ", 2)
    assert (Path(folder).parent, mode, more) == (scratch, "700", "a b c")
    assert list(scratch.iterdir()) == []
    started = [line for line in script.splitlines() if "${inside[@]}" in line]
    assert len(started) == 2
    assert "--local-directory" not in script


def test_a_job_queues_itself_again_so_often_and_no_more(play):
    need_program("openssl", "apt-get install openssl")
    code, said, out = play(BE_STOPPED % "USR1", restarts=19)
    assert (code, said) == (0, ["driver: --force", "scontrol: requeue 7"])
    assert out == "time is up: this job queues itself again\n"


@pytest.mark.parametrize(
    ("first", "restarts", "code"),
    [(BE_STOPPED % "USR1", 20, 143), (BE_STOPPED % "TERM", 0, 143), ("exit 3", 0, 3)],
    ids=["often-enough", "cancelled", "no-room"],
)
def test_a_job_that_does_not_queue_again_says_how_to_go_on(play, tmp_path, first, restarts, code):
    need_program("openssl", "apt-get install openssl")
    found, said, out = play(first, restarts)
    assert (found, said) == (code, ["driver: --force"])
    assert out.splitlines()[-1] == f"resume with: sbatch {tmp_path}/job.sbatch"


def test_lines_that_run_first_may_use_what_is_not_set_and_set_what_is_used(play, tmp_path):
    need_program("openssl", "apt-get install openssl")
    folder = tmp_path / "not there yet"
    lines = ('[ -z "$NOT_SET" ] && export MINE=$PWD',)
    code, said, _ = play("exit 0", folder=folder, prologue=lines, local_directory="$MINE/x")
    assert (code, said) == (0, ["driver: --force"])
    assert [path.name for path in folder.iterdir()] == ["dask-7.log"]


# progress, and the memory of a driver


def test_progress_is_told_by_checkpoints_and_the_size_of_a_store(tmp_path, capsys):
    out, store = tmp_path / "run", tmp_path / "store.zarr"
    seen = []

    def look():
        assert progress(["progress", str(out), str(store)][1:]) == 0
        seen.append(capsys.readouterr().out)
        assert seen[-1].endswith("\n")

    look()
    (store / "c").mkdir(parents=True)
    (store / "c/0").touch()
    look()
    (out / "checkpoint").mkdir(parents=True)
    (out / "checkpoint/1.json").write_text('{"serial": 1}')
    look()
    (out / "checkpoint/0.json").write_text('{"serial": 2}')
    look()
    (out / "linear/checkpoint").mkdir(parents=True)
    (out / "linear/checkpoint/1.json").write_text('{"serial": 1}')
    look()
    (out / "linear/checkpoint/1.json").write_text('{"serial": 3')  # damaged
    look()
    assert len(set(seen)) == len(seen)
    (out / "job").mkdir()
    (out / "job/slurm-1.log").touch()
    look()
    assert seen[-1] == seen[-2]


@pytest.mark.parametrize("name", ["x.npy", "x.npz", "sparse.npz"])
def test_a_matrix_tells_the_memory_of_its_driver(tmp_path, name):
    x = np.zeros((50_000, 40), np.float32)
    path = tmp_path / name
    if name == "x.npy":
        np.save(path, x)
    elif name == "x.npz":
        np.savez_compressed(path, X=x)
    else:
        sparse.save_npz(path, sparse.csr_array(x))
    params = {"input_path": str(path), "kernels": "linear,rbf_1", "n_clusters": 100}
    found = driver_memory("run", params)
    size = 0 if name == "sparse.npz" else x.nbytes
    gram = expected_gram(2, 2, "float32")
    plan = make_plan(*x.shape, 2, 100, feature_bytes=size, memory_per_worker=1 << 50, gram=gram)
    driver = (
        plan.driver_bytes - SCHEDULER_BYTES
    )  # which counts a scheduler in the driver's own process
    assert 0 <= found - JOB_SCHEDULER_BYTES - driver < 1 << 20
    assert driver_memory("run", params | {"input_path": "texts/*.txt"}) is None
    path.write_bytes(path.read_bytes()[:60])
    assert driver_memory("run", params) is None


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array], ids=["dense", "sparse"])
def test_factored_kernels_tell_the_memory_of_their_driver(tmp_path, kind):
    X = kind(np.random.default_rng(0).random((600, 20)))
    path = tmp_path / "x.npz"
    np.savez(path, X=X) if isinstance(X, np.ndarray) else sparse.save_npz(path, X)
    wanted = KernelRequest(Corpus(X, tuple(map(str, range(600)))), resolve_kernels("local"))
    store = build_store(tmp_path / "s.zarr", wanted, Runner())
    for command, given, plan in (
        ("run", {"input_path": str(path)}, request_plan(wanted, 40, threads(1))),
        ("fit", {"store": store.path}, store_plan(store, 40, threads(1))),
    ):
        params = {"kernels": "local", "n_clusters": 40, **given}
        found = driver_memory(command, params)
        assert abs(found - JOB_SCHEDULER_BYTES - plan.driver_bytes) < 1 << 20
    both = {"input_path": str(path), "kernels": "local,linear", "n_clusters": 40}
    assert driver_memory("run", both) > driver_memory("run", both | {"kernels": "local"})


def test_the_request_counts_the_driver_by_the_plan(here):
    np.save(here / "x.npy", np.zeros((50_000, 40), np.float32))
    code, said = run(*SLURM, "run", "x.npy", "-k", 100, "--out", "run")
    assert code == 0, said
    script = (here / "run/job/job.sbatch").read_text()
    tasks = int(re.search(r"#SBATCH --ntasks=(\d+)", script)[1])
    assert tasks > 3
    assert f"{tasks} tasks are asked for" in said
    assert "srun" in script
    assert "--ntasks=2 --cpus-per-task=1 " in script
    code, said = run(*SLURM, "--driver-memory", "1G", "run", "x.npy", "-k", 100, "--out", "run")
    assert code == 0, said
    assert "#SBATCH --ntasks=3\n" in (here / "run/job/job.sbatch").read_text()
    assert f"submit.progress {here}/run {here}/run/store.zarr " in script


# Kubernetes


@cache
def operator_schema(kind):
    """The schema of the operator itself."""
    need_package("jsonschema", "pip install jsonschema")
    try:
        found = files("dask-kubernetes") or []
    except PackageNotFoundError:
        need_package("dask_kubernetes", "pip install --no-deps dask-kubernetes")
    (path,) = [file for file in found if str(file).endswith(f"/crds/{kind.lower()}.yaml")]
    # the parser in C, where there is one: the file is long
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    made = yaml.load(path.read_text(), loader)
    (version,) = [one for one in made["spec"]["versions"] if one["name"] == "v1"]
    return version["schema"]["openAPIV3Schema"]


def closed(schema):
    """The schema with no other keys than those it knows, where it says which."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: closed(part) for key, part in schema.items()}
    free = made.get("x-kubernetes-preserve-unknown-fields")
    if isinstance(made.get("properties"), dict) and not free and made.get("type") == "object":
        made.setdefault("additionalProperties", False)
    return made


PODS = {
    "written": lambda: manifest(DASKJOB),
    "daskjob.yaml": lambda: (CONFIGS / "kubernetes/daskjob.yaml").read_text(),
    "daskcluster.yaml": lambda: (CONFIGS / "kubernetes/daskcluster.yaml").read_text(),
}


def need_s3():
    for package in ("s3fs", "upath"):
        need_package(package, "pip install 'gmkcf-dask[s3]'")


def pods_in(text):
    """All pods of a file, and what there is beside them, by kind."""
    parts = {part["kind"]: part for part in yaml.safe_load_all(text)}
    (spec,) = [part["spec"] for kind, part in parts.items() if kind.startswith("Dask")]
    cluster = spec.get("cluster", {"spec": spec})["spec"]
    pods = [cluster["worker"]["spec"], cluster["scheduler"]["spec"]]
    pods += [spec["job"]["spec"]] if "job" in spec else []
    return pods, parts


def containers_in(text):
    """The containers of its pods, without those that run first, and all else."""
    pods, parts = pods_in(text)
    return [container for pod in pods for container in pod["containers"]], parts


@pytest.mark.parametrize("text", PODS.values(), ids=PODS)
def test_pods_are_let_in_where_security_is_restricted(text):
    pods, _ = pods_in(text())
    for pod in pods:
        assert violations(pod) == []
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsUser"] > 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda pod, _: pod["securityContext"].pop("runAsNonRoot"), "worker: runAsNonRoot"),
        (lambda pod, _: pod["securityContext"].pop("seccompProfile"), "worker: seccompProfile"),
        (lambda pod, _: pod["securityContext"].update(runAsUser=0), "pod: runAsUser 0"),
        (lambda pod, _: pod["volumes"].append({"name": "x", "hostPath": {}}), "volume hostPath"),
        (lambda _, own: own["capabilities"].clear(), "worker: capabilities are not dropped"),
        (lambda _, own: own.pop("allowPrivilegeEscalation"), "worker: allowPrivilegeEscalation"),
        (lambda _, own: own.update(privileged=True), "worker: privileged"),
    ],
)
def test_the_check_of_pods_finds_what_is_not_restricted(change, said):
    (worker, *_), _ = pods_in(manifest(DASKJOB))
    change(worker, worker["containers"][0]["securityContext"])
    assert violations(worker) == [said]


@pytest.mark.parametrize("text", PODS.values(), ids=PODS)
def test_storage_of_pods_is_asked_for_and_bounded(text):
    """All that a container writes is in claims and in a folder with a limit."""
    pods, _ = pods_in(text())
    for pod in pods:
        (limit,) = [one["emptyDir"]["sizeLimit"] for one in pod["volumes"] if "emptyDir" in one]
        for container in (*pod["containers"], *pod.get("initContainers", ())):
            asked = container["resources"]
            storage = asked["requests"]["ephemeral-storage"]
            assert asked["limits"]["ephemeral-storage"] == storage
            assert mebibytes(storage) > mebibytes(limit)
        for container in pod["containers"]:
            mounted = [one["mountPath"] for one in container["volumeMounts"]]
            variables = {one["name"]: one["value"] for one in container["env"]}
            assert variables["TMPDIR"] == variables["HOME"] == "/scratch"
            assert "/scratch" in mounted


@pytest.mark.parametrize("text", PODS.values(), ids=PODS)
def test_secrets_are_for_their_user_alone(text):
    """Kubernetes gives a secret to root, and adds the bits for its group where there is fsGroup."""
    pods, _ = pods_in(text())
    for pod in pods:
        modes = [one["secret"]["defaultMode"] for one in pod["volumes"] if "secret" in one]
        assert modes == [0o400]
        assert pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsGroup"] > 0


def test_images_are_pulled_with_secrets_that_are_named():
    pods, _ = pods_in(manifest(replace(DASKJOB, pull_secrets=("ours", "the.other"))))
    for pod in pods:
        assert pod["imagePullSecrets"] == [{"name": "ours"}, {"name": "the.other"}]
    pods, _ = pods_in(manifest(DASKJOB))
    assert not any("imagePullSecrets" in pod for pod in pods)


@pytest.mark.parametrize("text", PODS.values(), ids=PODS)
def test_pods_run_programs_that_are_there(text):
    """As installed here, with options that they know."""
    programs = {point.name for point in entry_points(group="console_scripts")}
    inside = {point.name: point for point in entry_points(group="dask_cli")}
    containers, _ = containers_in(text())
    if any("s3://" in word for container in containers for word in container["args"]):
        need_s3()
    for container in containers:
        program, name, *words = container["args"]
        assert program in programs
        command = main.commands[name] if program == "gmkcf" else inside[name].load()
        assert command.make_context(name, words, help_option_names=["-h", "--help"])


def test_the_example_of_a_job_waits_and_goes_on():
    """Its driver is there before its workers, and may find what a killed one left."""
    containers, parts = containers_in(PODS["daskjob.yaml"]())
    worker, _, driver = containers
    job, settings = parts["DaskJob"]["spec"], parts["ConfigMap"]
    config = parse_config(settings["data"]["cluster.yaml"].encode(), Path("/x.yaml"))
    assert config.minimum == job["cluster"]["spec"]["worker"]["replicas"]
    assert config.wait == 600
    assert config.certificates is not None
    assert {"--resume", "--force"} < set(driver["args"])
    (file,) = [word for word in driver["args"] if word.startswith("--cluster=")]
    (mounted,) = [mount for mount in driver["volumeMounts"] if mount["name"] == "settings"]
    assert file == f"--cluster={mounted['mountPath']}/cluster.yaml"
    volumes = {volume["name"]: volume for volume in job["job"]["spec"]["volumes"]}
    assert volumes["settings"]["configMap"]["name"] == settings["metadata"]["name"]
    # whoever reads and writes the store has its keys
    assert worker["envFrom"] == driver["envFrom"] != []


@pytest.mark.parametrize(
    "text", [PODS["written"], PODS["daskjob.yaml"]], ids=["written", "example"]
)
def test_a_driver_waits_for_its_scheduler(text):
    _, parts = containers_in(text())
    name = parts["DaskJob"]["metadata"]["name"]
    (wait,) = parts["DaskJob"]["spec"]["job"]["spec"]["initContainers"]
    _, _, code, host, port = wait["args"]
    assert (host, port) == (f"{name}-scheduler", "8786")
    with socket.socket() as scheduler:
        scheduler.bind(("127.0.0.1", 0))
        here = [sys.executable, "-c", code, "127.0.0.1", str(scheduler.getsockname()[1])]
        with subprocess.Popen(here) as waiting:
            with pytest.raises(subprocess.TimeoutExpired):
                waiting.wait(1)
            scheduler.listen()
            assert waiting.wait(20) == 0


@pytest.mark.parametrize(
    "job", [DASKJOB, replace(DASKJOB, tls_secret=None, seconds=3600, pull_secrets=("x",))]
)
def test_manifests_are_what_the_operator_takes(job):
    settings, made = yaml.safe_load_all(manifest(job))
    schema = closed(operator_schema("DaskJob"))
    schema["properties"] |= {"apiVersion": {}, "kind": {}, "metadata": {}}
    import jsonschema

    jsonschema.validate(made, schema)
    broken = deepcopy(made)
    broken["spec"]["cluster"]["spec"]["worker"]["spec"]["containers"][0]["imagee"] = "x"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, schema)
    # the driver's file is one that we read
    config = parse_config(settings["data"]["cluster.yaml"].encode(), Path("/x.yaml"))
    assert (config.address, config.minimum) == (job.address, job.workers)
    assert config.insecure is (job.tls_secret is None)
    service = made["spec"]["cluster"]["spec"]["scheduler"]["service"]
    assert service["selector"]["dask.org/cluster-name"] == job.name


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"name": "News"}, "--name"),
        ({"namespace": "a b"}, "--namespace"),
        ({"image": "x y"}, "--image"),
        ({"volumes": ()}, "--volume is missing"),
        ({"volumes": ("data",)}, "CLAIM:/path"),
        ({"volumes": ("data:/scratch",)}, "/scratch .*for the job itself"),
        ({"volumes": ("data:/data/../etc/gmkcf/tls/",)}, "/etc/gmkcf .*for the job itself"),
        ({"volumes": ("data:/etc",)}, "/etc/gmkcf .*for the job itself"),
        ({"volumes": ("data:/",)}, "for the job itself"),
        ({"volumes": ("data:/data", "more:/data/")}, "/data twice"),
        ({"paths": ("run",)}, "'run' is not below a --volume"),
        ({"paths": ("/data/x.npz", "/home/run")}, "'/home/run' is not below a --volume"),
        ({"paths": ("/data/../run",)}, "not below a --volume .*/data, /more"),
        ({"paths": ("/database/run",)}, "not below a --volume"),
        ({"command": ("run", "a\nb")}, "in one line"),
        ({"pull_secrets": ("A b",)}, "--image-pull-secret"),
        ({"user": 0}, "--user must be a number from 1 .*not run as root"),
        ({"group": 0}, "--group"),
        ({"scratch": 0}, "--scratch"),
    ],
)
def test_nothing_gets_into_a_manifest_that_is_not_one_value(changed, said):
    with pytest.raises(InputError, match=said):
        replace(DASKJOB, **changed)


def test_a_text_in_a_manifest_stays_one_value():
    name = """/data/it's "x" {{ name }} #1: [a] - &b *c %d \\n ü😀.npz"""
    job = replace(DASKJOB, command=("run", name, "--out", "/data/o"), volumes=("data:/a{b},'c",))
    _, made = yaml.safe_load_all(manifest(job))
    (container,) = made["spec"]["job"]["spec"]["containers"]
    assert container["args"][:5] == ["gmkcf", "run", name, "--out", "/data/o"]
    assert container["volumeMounts"][0] == {"name": "data-0", "mountPath": "/a{b},'c"}


def test_a_manifest_by_command(here):
    words = ("submit", "kubernetes", "--image", "i:1", "--workers", 2, "--memory", "2Gi",
             "--volume", "data:/data", "--name", "news")  # fmt: skip
    job = ("run", "/data/x.npz", "-k", 2, "--out", "/data/run")
    code, said = run(*words, *job)
    assert code == 2
    assert "--tls-secret" in said
    code, said = run(*words, "--insecure", *job)
    assert code == 0, said
    file = here / "news.yaml"
    assert said.splitlines() == [f"written: {file}", f"next: kubectl apply --filename {file}"]
    assert file.stat().st_mode & 0o777 == 0o700
    code, said = run(*words, "--insecure", "--now", *job)
    assert code == 2
    assert "there is no kubectl here" in said
    more = ("--image-pull-secret", "a", "--image-pull-secret", "b", "--scratch", "2Gi", "--user", 7)
    code, said = run(*words, "--insecure", *more, *job)
    assert code == 0, said
    pods, _ = pods_in(file.read_text())
    for pod in pods:
        assert [one["name"] for one in pod["imagePullSecrets"]] == ["a", "b"]
        assert pod["securityContext"]["runAsUser"] == 7
        assert {"emptyDir": {"sizeLimit": "2048Mi"}, "name": "scratch"} in pod["volumes"]


@pytest.mark.parametrize(
    ("words", "job", "said"),
    [
        (("--memory", "2Gi"), ("run", "/data/x.npz", "--out", "run"), "'run' is not below"),
        (("--memory", "2Gi"), ("run", "x.npz", "--out", "/data/run"), "'x.npz' is not below"),
        (("--memory", "2Gi"), ("fit", "x.zarr", "--out", "/data/run"), "'x.zarr' is not below"),
        (
            ("--memory", "2Gi"),
            ("run", "/data/x.npz", "--out", "/data/run", "--store", "x.zarr"),
            "'x.zarr' is not below",
        ),
        (
            ("--memory", "4.5Gi"),
            ("run", "/data/x.npz", "--out", "/data/run"),
            "--memory must be a whole number and a unit, such as 4G, not '4.5Gi'",
        ),
    ],
)
def test_what_pods_would_not_share_is_said_before_a_manifest_is_written(here, words, job, said):
    asked = ("--image", "i:1", "--workers", 2, "--volume", "data:/data", "--insecure")
    code, output = run("submit", "kubernetes", *asked, *words, *job, "-k", 2)
    assert code == 2
    assert said in output
    assert not list(here.glob("*.yaml"))


def test_urls_are_seen_by_all_pods(here):
    need_s3()
    words = ("--image", "i:1", "--workers", 2, "--volume", "data:/data", "--insecure")
    job = ("fit", "s3://bucket/x.zarr", "-k", 2, "--out", "/data/run")
    code, said = run("submit", "kubernetes", *words, "--memory", "2Gi", *job)
    assert code == 0, said
