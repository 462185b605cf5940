"""A batch job that runs a command of ours inside its own allocation: options to text, no more.

The driver, a scheduler and workers live and end with the job. All that is needed to go on is in the
output folder, so a job that is started again goes on: `--resume` finds the checkpoint, `--force`
takes over the lease of a writer that is gone (one that lives keeps it).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import yaml

from gmkcf_dask.cluster import WORKER_ENVIRONMENT
from gmkcf_dask.errors import InputError
from gmkcf_dask.plan import MIB, refuse_small_workers
from gmkcf_dask.security import NAME

SCRIPT = "job.sbatch"
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
_SHELL_WORD = re.compile(r"[\w@%+=:,./~${}-]{1,500}")
_DIRECTIVE = re.compile(r"(--[a-z][a-z0-9-]*)(?:=([^\"'\\#\x00-\x1f\x7f]+))?")
_UNITS = {"K": 1 << 10, "M": MIB, "G": 1 << 30, "T": 1 << 40}
# what the script relies on; --mem would contradict --mem-per-cpu
_OURS = {
    "--array", "--chdir", "--cpus-per-task", "--dependency", "--error", "--job-name", "--mem",
    "--mem-per-cpu", "--nodes", "--no-requeue", "--ntasks", "--open-mode", "--output", "--requeue",
    "--signal", "--time", "--wrap", "--account", "--partition",
}  # fmt: skip


@dataclass(frozen=True)
class SlurmJob:
    """What to ask Slurm for, and what to run there.

    Attributes
    ----------
    command : tuple of str
        Words after `gmkcf`, without options of a cluster.
    folder : Path
        For the script, its logs and, while the job runs, its certificates.
    cwd : Path
        Where relative paths in the command begin.
    ntasks : int
        One for scheduler and driver, the others are workers.
    mem_per_cpu : int
        Bytes.
    time : str
        As Slurm writes it: minutes, H:M:S or D-H:M:S.
    python : str
        The interpreter on the nodes.
    directives, prologue : tuple of str
        More options for sbatch; lines of shell to run first, as `module load`.
    interface : str, optional
        The network to talk over; Dask's own choice when not given.
    stop_before : int
        Seconds before the end of its time at which the driver is asked to write its checkpoint.
    restarts : int
        How often a job queues itself again.
    storage : str, optional
        An absolute path or URL that stores are put into; beside the results when not given.
    stall_timeout : float, optional
        Seconds without progress after which the driver gives up.
    environment, settings : mapping of str to str
        Variables of all processes, beside ours and instead of them: of the allocator and BLAS, and
        Dask's settings.
    """

    name: str
    command: tuple[str, ...]
    folder: Path
    cwd: Path
    ntasks: int
    mem_per_cpu: int
    time: str
    python: str
    cpus_per_task: int = 1
    nodes: int | None = None
    partition: str | None = None
    account: str | None = None
    interface: str | None = None
    local_directory: str | None = None
    directives: tuple[str, ...] = ()
    prologue: tuple[str, ...] = ()
    stop_before: int = 120
    restarts: int = 20
    storage: str | None = None
    stall_timeout: float | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_slurm(self)

    @property
    def script(self) -> Path:
        """Where the script belongs."""
        return self.folder / SCRIPT


def slurm_script(job: SlurmJob) -> str:
    """The batch script of a job."""
    mib = job.mem_per_cpu // MIB
    # the process that watches over a worker needs some of its memory
    limit = mib * job.cpus_per_task * 95 // 100
    log = _quoted(f"{job.folder}/slurm-%j.log")
    asked: dict[str, object] = {
        "--job-name": job.name,
        "--chdir": _quoted(str(job.cwd)),
        "--output": log,
        "--nodes": job.nodes,
        "--ntasks": job.ntasks,
        "--cpus-per-task": job.cpus_per_task,
        "--mem-per-cpu": f"{mib}M",
        "--time": job.time,
        "--partition": job.partition,
        "--account": job.account,
    }
    lines = [f"{option}={value}" for option, value in asked.items() if value is not None]
    names = [match for match in map(_DIRECTIVE.fullmatch, job.directives) if match]
    lines += [m[1] if m[2] is None else f"{m[1]}={_quoted(m[2])}" for m in names]
    values = {
        "DIRECTIVES": "\n".join(f"#SBATCH {line}" for line in lines),
        "STOP_BEFORE": str(job.stop_before),
        "RESTARTS": str(job.restarts),
        "FOLDER": shlex.quote(str(job.folder)),
        "SCRIPT": SCRIPT,
        "PYTHON": _assigned(job.python),
        "SCRATCH": _assigned(job.local_directory or "${SLURM_TMPDIR:-${TMPDIR:-/tmp}}"),
        "ENVIRONMENT": _exports({**WORKER_ENVIRONMENT, **job.environment}),
        "SETTINGS": _exports({**DASK_SETTINGS, **job.settings}),
        "PROLOGUE": "\n".join(job.prologue) if job.prologue else "# module load ...",
        "INTERFACE": f" --interface {shlex.quote(job.interface)}" if job.interface else "",
        "CPUS": str(job.cpus_per_task),
        "WORKERS": str(job.ntasks - 1),
        "LIMIT": f"{limit}MiB",
        "CLUSTER": _cluster_file(job),
        "COMMAND": shlex.join(resumed(job.command)),
    }
    # in one pass: what is put in is not looked at again
    return re.sub(r"@([A-Z_]+)@", lambda found: values[found[1]], _SLURM)


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
    return (
        f"gmkcf-{end[:24].rstrip('-') or 'run'}-{blake2b(out.encode(), digest_size=2).hexdigest()}"
    )


def mebibytes(amount: str, option: str = "--mem-per-cpu") -> int:
    """Bytes in an amount as Slurm reads it: 4G are 4 GiB, 4096 are MiB.

    >>> mebibytes("4G") == mebibytes("4096") == mebibytes("4GiB") == 4 << 30
    True
    """
    found = _AMOUNT.fullmatch(amount)
    if not found:
        raise InputError(
            f"{option} must be a whole number and a unit, such as 4G, not {amount[:60]!r}"
        )
    return int(found[1]) * _UNITS[(found[2] or "M").upper()]


def slurm_seconds(time: str) -> int:
    """Seconds of a time as Slurm writes it: minutes, M:S, H:M:S, D-H, D-H:M or D-H:M:S.

    >>> slurm_seconds("90"), slurm_seconds("1:30:00"), slurm_seconds("1-12"), slurm_seconds("5:30")
    (5400, 5400, 129600, 330)
    """
    found = _TIME.fullmatch(time)
    if not found:
        raise InputError(f"{time!r} is not a time as Slurm has it, such as 12:00:00 or 2-00:00:00")
    parts = [int(part) for part in found.groups()[1:] if part is not None]
    if found[1] is not None:
        hours, minutes, seconds = (*parts, 0, 0)[:3]
        return ((int(found[1]) * 24 + hours) * 60 + minutes) * 60 + seconds
    minutes_first = {1: (0, *parts, 0), 2: (0, *parts), 3: parts}[len(parts)]
    hours, minutes, seconds = minutes_first
    return (hours * 60 + minutes) * 60 + seconds


# what values may be


def refuse_lines(what: str, *values: str) -> None:
    """Refuse what would begin a new line in a file that is made of lines."""
    for value in values:
        if not value.isprintable():
            raise InputError(f"{what} must be in one line and printable, not {value[:60]!r}")


def _check_slurm(job: SlurmJob) -> None:
    if not NAME.fullmatch(job.name):
        raise InputError(f"the name of a job is made of A-Z a-z 0-9 _ . -, not {job.name[:60]!r}")
    refuse_lines("the command", *job.command)
    refuse_lines("--prologue", *job.prologue)
    refuse_lines("--python and --local-directory", job.python, job.local_directory or "")
    refuse_lines("storage", job.storage or "")
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
        found = _DIRECTIVE.fullmatch(directive)
        if not found:
            raise InputError(
                f"--sbatch takes an option in its long form, such as --sbatch=--qos=long, "
                f"not {directive[:60]!r}"
            )
        if found[1] in _OURS:
            raise InputError(f"--sbatch={found[1]} cannot be given: the job script says it itself")
    if job.ntasks < 2:
        raise InputError("--ntasks must be at least 2: one for the driver, the others are workers")
    if job.nodes is not None and not 1 <= job.nodes <= job.ntasks:
        raise InputError(f"--nodes must be from 1 to --ntasks, {job.ntasks}, not {job.nodes}")
    if slurm_seconds(job.time) <= job.stop_before:
        raise InputError(
            f"--time {job.time} is not more than the {job.stop_before} seconds that a job takes to "
            "end: ask for more, or lower --stop-before"
        )
    refuse_small_workers(job.mem_per_cpu * job.cpus_per_task)


def _cluster_file(job: SlurmJob) -> str:
    """How the driver finds its cluster; paths are relative to the file."""
    found: dict[str, Any] = {
        "kind": "scheduler-file",
        "path": "scheduler.json",
        "tls": {"ca": "cert.pem", "cert": "cert.pem", "key": "key.pem"},
        "minimum": job.ntasks - 1,
        "wait": "5m",
        "storage": job.storage,
        "stall-timeout": job.stall_timeout,
    }
    said = {key: value for key, value in found.items() if value is not None}
    # a value stays in its line, however long it is
    return yaml.safe_dump({"gmkcf": said}, sort_keys=False, width=1 << 20).rstrip()


def _exports(variables: Mapping[str, str]) -> str:
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in variables.items())


def _quoted(value: str) -> str:
    """For a line of #SBATCH, which knows double quotes."""
    return value if _WORD.fullmatch(value.replace("%j", "")) else f'"{value}"'


def _assigned(value: str) -> str:
    """For an assignment in a shell, in which variables are filled in; nothing else is."""
    return value if _SHELL_WORD.fullmatch(value) else shlex.quote(value)


_SLURM = """\
#!/bin/bash
# A job that starts a Dask cluster inside its allocation and runs gmkcf on it. One task is for the
# scheduler and the driver, the others are workers. Submit it with sbatch, as often as it takes: it
# goes on where it stopped, and jobs of one name run one after the other.
# Copied by hand it is to be @SCRIPT@ in its folder, which Slurm needs beforehand for the log:
#   mkdir -p @FOLDER@
@DIRECTIVES@
#SBATCH --open-mode=append
#SBATCH --dependency=singleton
# when its time is almost up the driver writes a checkpoint and the job queues itself again
#SBATCH --requeue
#SBATCH --signal=B:USR1@@STOP_BEFORE@

@PROLOGUE@

# from here on: what modules and environments run above may use variables that are not set
set -u
folder=@FOLDER@
python=@PYTHON@
# where workers spill to: a disk of the node, not memory and not the network
scratch=@SCRATCH@

# freed tiles are kept for the next ones, and a task has one BLAS thread
@ENVIRONMENT@
# no pages but one that says ok; shares of its memory at which a worker spills results, spills all
# it can, rests, begins anew
@SETTINGS@
export DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION=True

# a signal is passed on to the driver, which keeps what it has reached
asked='' driver='' code=1
stop() { asked=$1; [ -z "$driver" ] || kill -TERM "$driver" 2>/dev/null; }
trap 'stop time' USR1
trap 'stop cancel' TERM INT

# certificates of this start alone: nobody else can talk to its scheduler and workers
cluster=$folder/cluster-$SLURM_JOB_ID
rm -rf -- "$cluster" && mkdir -p -- "$folder" && mkdir -m 700 -- "$cluster" || exit 1
trap 'kill $(jobs -p) 2>/dev/null; rm -rf -- "$cluster"' EXIT
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -sha256 -nodes -days 365 \\
    -subj "/CN=gmkcf-$SLURM_JOB_ID" -keyout "$cluster/key.pem" -out "$cluster/cert.pem" \\
    2>"$cluster/openssl.log" || { cat "$cluster/openssl.log" >&2; exit 1; }
# as variables: the options of dask scheduler for them do not go together with --interface
export DASK_DISTRIBUTED__COMM__TLS__CA_FILE=$cluster/cert.pem
export DASK_DISTRIBUTED__COMM__TLS__SCHEDULER__CERT=$cluster/cert.pem
export DASK_DISTRIBUTED__COMM__TLS__SCHEDULER__KEY=$cluster/key.pem
export DASK_DISTRIBUTED__COMM__TLS__WORKER__CERT=$cluster/cert.pem
export DASK_DISTRIBUTED__COMM__TLS__WORKER__KEY=$cluster/key.pem
dask=(--protocol tls --scheduler-file "$cluster/scheduler.json"
    --no-dashboard --dashboard-address 127.0.0.1:0@INTERFACE@)
step=(srun --export=ALL --exact --cpus-per-task=@CPUS@ --kill-on-bad-exit=0 --wait=0)
log=$folder/dask-$SLURM_JOB_ID.log

# the scheduler takes the task that belongs to the node of the driver; workers get the others
"${step[@]}" --nodes=1 --ntasks=1 --nodelist="$SLURMD_NODENAME" \\
    "$python" -P -m dask scheduler --port 0 "${dask[@]}" >>"$log" 2>&1 &
for _ in {1..240}; do
    [ -z "$asked" ] && [ ! -s "$cluster/scheduler.json" ] || break
    sleep 0.5
done
"${step[@]}" --ntasks=@WORKERS@ "$python" -P -m dask worker --nthreads @CPUS@ \\
    --memory-limit @LIMIT@ --local-directory "$scratch" --death-timeout 120 "${dask[@]}" \\
    >>"$log" 2>&1 &

cat >"$cluster/cluster.yaml" <<'END'
@CLUSTER@
END

# exit code 6: the store is held by a writer of which nothing is known for less than 15 minutes,
# such as this job itself before its node was lost
for _ in {1..20}; do
    [ -z "$asked" ] || break
    "$python" -P -m gmkcf_dask.cli @COMMAND@ \\
        --cluster "$cluster/cluster.yaml" &
    driver=$!
    [ -z "$asked" ] || kill -TERM "$driver"
    while true; do
        wait "$driver"
        code=$?
        kill -0 "$driver" 2>/dev/null || break # else a signal ended wait, and not the driver
    done
    driver=''
    [ "$code" -eq 6 ] && [ -z "$asked" ] || break
    echo 'the store is not free yet: trying again in a minute'
    sleep 60 &
    wait $!
done

[ "$code" -eq 0 ] && exit 0
if [ "$asked" = time ] && [ "${SLURM_RESTART_COUNT:-0}" -lt @RESTARTS@ ]; then
    echo 'time is up: this job queues itself again'
    scontrol requeue "$SLURM_JOB_ID" && exit 0
fi
printf 'to go on: sbatch %q\\n' "$folder/@SCRIPT@"
exit "$code"
"""
