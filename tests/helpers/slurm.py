"""A private Slurm: a controller and two nodes on this machine, in a folder, without a daemon of the
system. What is under test finds it as on any cluster, by PATH and SLURM_CONF."""

import getpass
import os
import random
import shutil
import socket
import subprocess
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from helpers.needs import need_program

INSTALL = "apt-get install slurmctld slurmd slurm-client"
NODES = ("one", "two")
CPUS = 4
"""Of each node, declared: jobs share the processors of the machine."""
_SETTINGS = """
ClusterName=tests
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
MailProg=/bin/true
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
SlurmdParameters=config_overrides
SchedulerParameters=sched_min_interval=100000,sched_interval=1
KillWait=5
OverTimeLimit=0
"""


@dataclass(frozen=True)
class Slurm:
    """A running one; `variables` is all that somebody needs to talk to it."""

    folder: Path
    variables: dict[str, str]

    def call(self, *command):
        """What a command of Slurm prints."""
        done = subprocess.run(
            [str(word) for word in command],
            env=os.environ | self.variables,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def state(self, job):
        """PENDING, RUNNING, COMPLETED, …"""
        words = self.call("scontrol", "--oneliner", "show", "job", job).split()
        return next(word for word in words if word.startswith("JobState=")).partition("=")[2]

    def wait(self, job, *states, seconds=120):
        """Wait until a job is in one of some states; returns it."""
        until = time.monotonic() + seconds
        while (state := self.state(job)) not in states:
            assert time.monotonic() < until, f"job {job} is still {state}"
            time.sleep(0.2)
        return state

    def requeue(self, job):
        """Queue a job that has ended again, and let it start at once instead of in two minutes."""
        self.call("scontrol", "requeue", job)
        self.wait(job, "PENDING", "RUNNING", "CONFIGURING")
        self.start_now(job)

    def start_now(self, job):
        """A job that was queued again waits for two minutes, unless it is told not to."""
        # nodes revoke what was allowed until the second in which it ended, a new start included
        time.sleep(2.5)
        self.call("scontrol", "update", f"JobId={job}", "StartTime=now")


@contextmanager
def private_slurm(folder):
    """A Slurm that lives in a folder until the end of the block, with all that it started."""
    for program in ("slurmctld", "slurmd", "sbatch"):
        need_program(program, INSTALL)
    folder.mkdir(parents=True, exist_ok=True)
    path = os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/sbin"])
    slurm = Slurm(folder, {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": path})
    _write_settings(folder)
    daemons = []
    try:
        daemons.append(_start(slurm, ["slurmctld", "-D", "-c"]))
        daemons += [_start(slurm, ["slurmd", "-D", "-N", name]) for name in NODES]
        _wait_until_idle(slurm, daemons)
        yield slurm
    finally:
        _end_all(slurm)
        for daemon in daemons:
            daemon.wait(timeout=10)


def _write_settings(folder):
    port = _free_ports(1 + len(NODES))
    settings = _SETTINGS.format(port=port, user=getpass.getuser(), folder=folder)
    host, memory = socket.gethostname().split(".")[0], psutil.virtual_memory().total >> 21
    for number, name in enumerate(NODES, 1):
        (folder / "spool" / name).mkdir(parents=True, exist_ok=True)
        settings += (
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port + number} "
            f"CPUs={CPUS} RealMemory={memory} State=UNKNOWN\n"
        )
    settings += f"PartitionName=all Nodes={','.join(NODES)} Default=YES MaxTime=INFINITE State=UP\n"
    (folder / "state").mkdir(exist_ok=True)
    (folder / "slurm.conf").write_text(settings)


def _free_ports(count):
    """The first of some successive ports below those that the system itself gives away."""
    for _ in range(100):
        first = random.randrange(20_000, 32_000)
        with suppress(OSError):
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("", port))
            return first
    raise AssertionError("no free ports")


def _start(slurm, command):
    with (slurm.folder / f"{'-'.join(command)}.out").open("wb") as out:
        return subprocess.Popen(
            [shutil.which(command[0], path=slurm.variables["PATH"]), *command[1:]],
            env=os.environ | slurm.variables,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _wait_until_idle(slurm, daemons, seconds=30):
    until = time.monotonic() + seconds
    while True:
        ended = [daemon.args for daemon in daemons if daemon.poll() is not None]
        assert not ended, f"{ended}: see {slurm.folder}"
        with suppress(AssertionError):  # the controller does not answer yet
            if slurm.call("sinfo", "-hN", "-o", "%t").split() == ["idle"] * len(NODES):
                return
        assert time.monotonic() < until, f"no node came up: see {slurm.folder}"
        time.sleep(0.1)


def _end_all(slurm):
    """Jobs first, while there is somebody to end them; then all that is left."""
    with suppress(AssertionError, subprocess.TimeoutExpired, OSError):
        slurm.call("scancel", "--user", getpass.getuser(), "--signal", "KILL", "--full")
        slurm.call("scancel", "--user", getpass.getuser())
    until = time.monotonic() + 20
    while left := list(_members(slurm)):
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=2)
        assert time.monotonic() < until, f"still there: {left}"


def _members(slurm):
    """All that was started under this Slurm, told by its environment, for jobs leave the process
    tree of their daemon; the keepers of steps have none, but write into the log of their node."""
    for process in psutil.process_iter(["name", "status"]):
        if process.pid == os.getpid() or process.info["status"] == psutil.STATUS_ZOMBIE:
            continue
        with suppress(psutil.Error):
            if process.info["name"] == "slurmstepd":
                files = (Path(file.path) for file in process.open_files())
                if any(path.is_relative_to(slurm.folder) for path in files):
                    yield process
            elif process.environ().get("SLURM_CONF") == slurm.variables["SLURM_CONF"]:
                yield process
