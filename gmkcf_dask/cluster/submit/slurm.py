"""A batch job that runs a command of ours inside its own allocation: options to text, no more.

The driver, a scheduler and workers live and end with the job. All that is needed to resume is in
the output folder, so a job that is started again resumes: `--resume` finds the checkpoint,
`--force` takes over the lock of a writer that is gone (one that lives keeps it).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import dask
import yaml

from gmkcf_dask.cluster.config import ClusterConfig
from gmkcf_dask.cluster.jobqueue import shape, variables, with_default
from gmkcf_dask.cluster.process_settings import ENVIRONMENT, WORKER_ENVIRONMENT
from gmkcf_dask.cluster.submit.render import render
from gmkcf_dask.compute.plan import refuse_small_workers
from gmkcf_dask.errors import InputError, PlanRefused
from gmkcf_dask.kernels.specs import NAME
from gmkcf_dask.system.units import MIB, ceil_div, human_bytes

SCRIPT = "job.sbatch"
MOST_STALLED = 3
"""How often in a row a job queues itself again without progress."""
DASK_SETTINGS = {
    # no pages, and no proxy, but one that says ok
    "DASK_DISTRIBUTED__SCHEDULER__HTTP__ROUTES": '["distributed.http.health"]',
    "DASK_DISTRIBUTED__WORKER__HTTP__ROUTES": '["distributed.http.health"]',
    # shares of its memory at which a worker spills results, spills all it can, rests, begins anew
    "DASK_DISTRIBUTED__WORKER__MEMORY__TARGET": "0.60",
    "DASK_DISTRIBUTED__WORKER__MEMORY__SPILL": "0.70",
    "DASK_DISTRIBUTED__WORKER__MEMORY__PAUSE": "0.80",
    "DASK_DISTRIBUTED__WORKER__MEMORY__TERMINATE": "0.95",
}
"""Dask's own, as variables of its processes."""
_TIME = re.compile(r"(?:(\d{1,4})-)?(\d{1,6})(?::(\d{2}))?(?::(\d{2}))?")
_AMOUNT = re.compile(r"(\d{1,12})(?:([KMGT])(?:iB?|B)?)?", re.IGNORECASE)
_WORD = re.compile(r"[A-Za-z0-9_.,@+:/-]{1,200}")
_DIRECTIVE = re.compile(r"(--[a-z][a-z0-9-]*)(?:=([^\"'\\#\x00-\x1f\x7f]+))?")
_UNITS = {"K": 1 << 10, "M": MIB, "G": 1 << 30, "T": 1 << 40}
# what the script relies on
_OURS = {
    "--array", "--chdir", "--cpus-per-task", "--dependency", "--error", "--job-name", "--mem",
    "--mem-per-cpu", "--mem-per-gpu", "--nodes", "--no-requeue", "--ntasks", "--ntasks-per-node",
    "--open-mode", "--output", "--requeue", "--signal", "--time", "--wrap", "--account",
    "--partition",
}  # fmt: skip
# of dask-jobqueue: they would change the workers, and there is no place for them here
_NOT_TAKEN = ("worker-extra-args", "job-cpu", "job-mem", "job-directives-skip")
# names of dask-jobqueue and ours
_OPTION_OF_KEY = {
    "queue": "partition",
    "account": "account",
    "walltime": "time",
    "interface": "interface",
    "local-directory": "local_directory",
    "python": "python",
}
_LIST_OPTION_OF_KEY = {"job-extra-directives": "directives", "job-script-prologue": "prologue"}
JOB_SCHEDULER_BYTES = 512 * MIB
"""Of the scheduler, which shares its task with the driver."""


@dataclass(frozen=True)
class SlurmJob:
    """What to ask Slurm for, and what to run there. Memory in bytes.

    One of `mem_per_cpu` and `mem` is given, the latter together with `nodes`. A driver that takes
    more memory than a task has gets several tasks.
    """

    name: str
    command: tuple[str, ...]  # words after `gmkcf`, without options of a cluster
    folder: Path  # for the script, its logs and, while the job runs, its certificates
    cwd: Path  # where relative paths in the command begin
    ntasks: int  # one for scheduler and driver, the others are workers
    time: str  # as Slurm writes it: minutes, H:M:S or D-H:M:S
    python: str  # the interpreter on the nodes
    mem_per_cpu: int | None = None
    mem: int | None = None  # of a node
    driver_memory: int | None = None  # of driver and scheduler together; None: as of a worker
    cpus_per_task: int = 1
    nodes: int | None = None
    partition: str | None = None
    account: str | None = None
    interface: str | None = None  # the network to talk over; None: Dask's own choice
    local_directory: str | None = None
    directives: tuple[str, ...] = ()  # more options for sbatch
    prologue: tuple[str, ...] = ()  # lines of shell to run first, as `module load`
    stop_before: int = 120  # seconds before its end at which the driver writes its checkpoint
    restarts: int = 20  # how often a job queues itself again
    storage: str | None = None  # absolute path or URL for stores; None: beside the results
    places: tuple[str, ...] = ()  # run folder and store, which show progress: absolute, or URLs
    stall_timeout: float | None = None  # seconds without progress after which the driver gives up
    # variables of all processes, instead of ours: of the allocator and BLAS, and Dask's settings
    environment: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _validate_texts(self)
        _validate_sizes(self)

    @property
    def script(self) -> Path:
        """Where the script belongs."""
        return self.folder / SCRIPT

    @property
    def workers(self) -> int:
        """Tasks that work."""
        return self.ntasks - 1

    @property
    def tasks_per_node(self) -> int:
        """At most, where the number of nodes is given."""
        return ceil_div(self.ntasks, self.nodes or 1)

    @property
    def driver_tasks(self) -> int:
        """Tasks whose memory the driver and the scheduler have together."""
        if self.mem_per_cpu is None or self.driver_memory is None:
            return 1
        return max(1, ceil_div(self.driver_memory, self.mem_per_cpu * self.cpus_per_task))

    @property
    def worker_memory(self) -> int:
        """Bytes of a worker, and of the process that watches over it.

        By node: beside the driver, and on a node without one, whatever is less.
        """
        if self.mem_per_cpu is not None:
            return self.mem_per_cpu * self.cpus_per_task
        assert self.mem is not None  # checked when the job was made
        share = self.mem // self.tasks_per_node
        if self.driver_memory is None or self.tasks_per_node == 1:
            return share
        return min(share, (self.mem - self.driver_memory) // (self.tasks_per_node - 1))


def slurm_script(job: SlurmJob) -> str:
    """The batch script of a job."""
    return render(
        "slurm.sbatch.jinja",
        job=job,
        script=SCRIPT,
        directives=_directives(job),
        scratch=job.local_directory or "${SLURM_TMPDIR:-${TMPDIR:-/tmp}}",
        environment={**WORKER_ENVIRONMENT, **job.environment},
        settings={**DASK_SETTINGS, **job.settings},
        # the process that watches over a worker needs some of its memory
        limit=job.worker_memory // MIB * 95 // 100,
        most_stalled=MOST_STALLED,
        cluster_file=_cluster_file(job),
        command=resumed(job.command),
    )


def _directives(job: SlurmJob) -> list[str]:
    """Options for sbatch, each as it stands in a line of #SBATCH."""
    options: dict[str, object] = {
        "--job-name": job.name,
        "--chdir": _quoted(str(job.cwd)),
        "--output": _quoted(f"{job.folder}/slurm-%j.log"),
        "--nodes": job.nodes,
        "--ntasks": job.workers + job.driver_tasks,
        "--ntasks-per-node": None if job.mem is None else job.tasks_per_node,
        "--cpus-per-task": job.cpus_per_task,
        "--mem-per-cpu": None if job.mem_per_cpu is None else f"{job.mem_per_cpu // MIB}M",
        "--mem": None if job.mem is None else f"{job.mem // MIB}M",
        "--time": job.time,
        "--partition": job.partition,
        "--account": job.account,
    }
    lines = [f"{option}={value}" for option, value in options.items() if value is not None]
    matches = [match for match in map(_DIRECTIVE.fullmatch, job.directives) if match]
    return lines + [m[1] if m[2] is None else f"{m[1]}={_quoted(m[2])}" for m in matches]


def resumed(command: tuple[str, ...]) -> list[str]:
    """The command as a job gives it at every start."""
    more = ["--resume"] + (["--force"] if command[0] == "run" else [])
    return [*command, *(word for word in more if word not in command)]


def job_name(out: str) -> str:
    """The name of the job of an output folder: jobs of one name run one after the other.

    >>> job_name("/shared/ann/run")
    'gmkcf-run-0234'
    """
    end = re.sub(r"[^a-z0-9]+", "-", out.rstrip("/").rpartition("/")[2].lower()).strip("-")
    digest = blake2b(out.encode(), digest_size=2).hexdigest()
    return f"gmkcf-{end[:24].rstrip('-') or 'run'}-{digest}"


def mebibytes(amount: str, option: str = "--mem-per-cpu") -> int:
    """Bytes in an amount as Slurm reads it: 4G are 4 GiB, 4096 are MiB.

    >>> mebibytes("4G") == mebibytes("4096") == mebibytes("4GiB") == 4 << 30
    True
    """
    match = _AMOUNT.fullmatch(amount)
    if not match:
        raise InputError(
            f"{option} must be a whole number and a unit, such as 4G, not {amount[:60]!r}"
        )
    return int(match[1]) * _UNITS[(match[2] or "M").upper()]


def slurm_seconds(time: str) -> int:
    """Seconds of a time as Slurm writes it: minutes, M:S, H:M:S, D-H, D-H:M or D-H:M:S.

    >>> slurm_seconds("90"), slurm_seconds("1:30:00"), slurm_seconds("1-12"), slurm_seconds("5:30")
    (5400, 5400, 129600, 330)
    """
    match = _TIME.fullmatch(time)
    if not match:
        raise InputError(f"{time!r} is not a time as Slurm has it, such as 12:00:00 or 2-00:00:00")
    parts = [int(part) for part in match.groups()[1:] if part is not None]
    if match[1] is None and len(parts) < 3:  # it begins with minutes
        parts.insert(0, 0)
    hours, minutes, seconds = (*parts, 0, 0)[:3]
    return ((int(match[1] or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def refuse_lines(what: str, *values: str) -> None:
    """Refuse what would begin a new line in a file that is made of lines."""
    for value in values:
        if not value.isprintable():
            raise InputError(f"{what} must be in one line and printable, not {value[:60]!r}")


def _validate_texts(job: SlurmJob) -> None:
    if not NAME.fullmatch(job.name):
        raise InputError(f"the name of a job is made of A-Z a-z 0-9 _ . -, not {job.name[:60]!r}")
    refuse_lines("the command", *job.command)
    refuse_lines("--prologue", *job.prologue)
    refuse_lines("--python and --local-directory", job.python, job.local_directory or "")
    refuse_lines("storage", job.storage or "")
    refuse_lines("--out and --store", *job.places)
    refuse_lines("a setting", *job.environment.values(), *job.settings.values())
    for path in (job.folder, job.cwd):
        # Slurm puts in numbers for %
        if not re.fullmatch(r"/[^\"'\\#%]*", str(path)) or not str(path).isprintable():
            raise InputError(
                f"{str(path)[:200]!r} cannot stand in a job script: choose an absolute path "
                "without quotes, backslashes, # and %"
            )
    words = {
        "--partition": job.partition,
        "--account": job.account,
        "--interface": job.interface,
    }
    for option, word in words.items():
        if word is not None and not _WORD.fullmatch(word):
            raise InputError(f"{option} must be a name without spaces and quotes, not {word!r}")
    for directive in job.directives:
        match = _DIRECTIVE.fullmatch(directive)
        if not match:
            raise InputError(
                f"--sbatch takes an option in its long form, such as --sbatch=--qos=long, "
                f"not {directive[:60]!r}"
            )
        if match[1] in _OURS:
            raise InputError(f"--sbatch={match[1]} cannot be given: the job script sets it itself")


def _validate_sizes(job: SlurmJob) -> None:
    if job.ntasks < 2:
        raise InputError("--ntasks must be at least 2: one for the driver, the others are workers")
    if job.nodes is not None and not 1 <= job.nodes <= job.ntasks:
        raise InputError(f"--nodes must be from 1 to --ntasks, {job.ntasks}, not {job.nodes}")
    if slurm_seconds(job.time) <= job.stop_before:
        raise InputError(
            f"--time {job.time} is not more than the {job.stop_before} seconds that a job takes to "
            "end: ask for more, or lower --stop-before"
        )
    if (job.mem_per_cpu is None) is (job.mem is None):
        raise InputError(
            "give one of --mem-per-cpu and --mem: the memory of a CPU, or that of a node"
        )
    if job.mem is not None and job.nodes is None:
        raise InputError("--mem is the memory of a node and needs --nodes: tasks share it evenly")
    driver = job.driver_memory or 0
    if job.mem is not None and driver >= job.mem:
        raise PlanRefused(
            f"the driver takes {human_bytes(driver)}, and a node has {human_bytes(job.mem)}: ask "
            "for more with --mem"
        )
    tasks = (job.workers + job.driver_tasks) // (job.nodes or 1)
    if job.driver_tasks > 1 and tasks < job.driver_tasks:
        raise PlanRefused(
            f"the driver takes {human_bytes(driver)}, the memory of {job.driver_tasks} tasks, and "
            f"one of {job.nodes} nodes has {tasks}: ask for more with --mem-per-cpu, or for fewer "
            "nodes"
        )
    refuse_small_workers(job.worker_memory)


def _cluster_file(job: SlurmJob) -> str:
    """How the driver finds its cluster; paths are relative to the file."""
    section: dict[str, Any] = {
        "kind": "scheduler-file",
        "path": "scheduler.json",
        "tls": {"ca": "cert.pem", "cert": "cert.pem", "key": "key.pem"},
        "minimum": job.ntasks - 1,
        "wait": "5m",
        "storage": job.storage,
        "stall-timeout": job.stall_timeout,
    }
    section = {key: value for key, value in section.items() if value is not None}
    # a value stays in its line, however long it is
    return yaml.safe_dump({"gmkcf": section}, sort_keys=False, width=1 << 20).rstrip()


def _quoted(value: str) -> str:
    """For a line of #SBATCH, which knows double quotes."""
    return value if _WORD.fullmatch(value.replace("%j", "")) else f'"{value}"'


def slurm_options(config: ClusterConfig, cpus: int | None = None) -> dict[str, Any]:
    """Options of a job from a cluster file for dask-jobqueue and Slurm, as far as they are alike.

    A job of dask-jobqueue is one worker or several, here a task is a worker: each has the memory
    and the threads that it has there, or `cpus` threads in the same memory.
    """
    section = "jobqueue.slurm."
    if config.system != "slurm":
        raise InputError("--cluster must name a file of kind jobqueue whose system is slurm")
    jobs = {
        name.removeprefix(section): value
        for name, value in config.settings.items()
        if name.startswith(section) and value not in (None, [])
    }
    misplaced = [f"{section}{key}" for key in _NOT_TAKEN if key in jobs]
    if misplaced or config.dashboard:
        raise InputError(
            f"{(*misplaced, 'gmkcf.dashboard')[0]} of the cluster file has no place in a job that "
            "brings its own cluster: leave it out"
        )
    with dask.config.set(config.settings):
        worker = shape(config)
    options: dict[str, Any] = {"cpus_per_task": cpus or worker.threads}
    if worker.memory is not None:
        options["mem_per_cpu"] = worker.memory // options["cpus_per_task"]
    if config.workers is not None:
        options["ntasks"] = config.workers + 1
    options |= {
        ours: str(jobs[theirs]) for theirs, ours in _OPTION_OF_KEY.items() if theirs in jobs
    }
    options |= {
        ours: tuple(map(str, jobs[theirs]))
        for theirs, ours in _LIST_OPTION_OF_KEY.items()
        if theirs in jobs
    }
    storage: str | None = config.storage
    if storage is not None and "://" not in storage:
        storage = str(Path(storage).absolute())
    environment = config.settings.get(ENVIRONMENT) or {}
    ours = {
        "interface": config.interface,
        "local_directory": with_default(config.local_directory),
        "storage": storage,
        "stall_timeout": config.stall_timeout,
        "environment": {name: str(value) for name, value in environment.items()} or None,
        "settings": variables(config.settings) or None,
    }
    return options | {name: value for name, value in ours.items() if value is not None}
