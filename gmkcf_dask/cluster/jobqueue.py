"""Workers as jobs of a batch system, through dask-jobqueue; the scheduler is in this process."""

from __future__ import annotations

import json
import logging
import re
import shlex
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask

from gmkcf_dask.cluster.config import Adaptive, ClusterConfig
from gmkcf_dask.cluster.dask_settings import check_setting
from gmkcf_dask.cluster.process_settings import (
    ENVIRONMENT,
    ProcessSettings,
    is_loopback_interface,
    not_installed,
    not_started,
    private_space,
    writing_into,
)
from gmkcf_dask.cluster.tls import is_loopback
from gmkcf_dask.errors import InputError

# variables of their own, pages of the scheduler, files that are arguments of the worker
_NOT_EXPORTED = (
    ENVIRONMENT,
    "distributed.scheduler.dashboard.",
    "distributed.scheduler.http.",
    "distributed.comm.tls.",
)
_SPILL = "gmkcf_spill"  # a variable of the job script
# the page that remains (`tls.pages`) is for this machine
_NO_PAGE = ("--no-dashboard", "--dashboard-address", "127.0.0.1:0")


def bounds(config: ClusterConfig) -> Adaptive:
    """Workers to begin with, and at most."""
    if config.adaptive is not None:
        return config.adaptive
    if config.workers is None:
        raise InputError(
            "a cluster of kind jobqueue needs workers: N or adaptive: {minimum: a, maximum: b}"
        )
    return Adaptive(config.workers, config.workers)


def jobs_only_loopback(config: ClusterConfig) -> bool:
    """Whether the scheduler cannot be reached from another machine."""
    options = _scheduler_options(config)
    if options.get("host"):
        return is_loopback(options["host"])
    own = options.get("interface") or config.interface or _jobqueue_setting(config, "interface")
    return is_loopback_interface(own)


def _in_jobs(wanted: Adaptive, processes: int) -> Adaptive:
    """Bounds that whole jobs can meet: else one would be ended for the workers it has too many.

    >>> _in_jobs(Adaptive(1, 5), 4)
    Adaptive(minimum=4, maximum=8)
    """
    least, most = (-(-n // processes) * processes for n in (wanted.minimum, wanted.maximum))
    return Adaptive(least, most)


@dataclass(frozen=True)
class Shape:
    """Of one job: its cores, how many workers, and threads and bytes (if said) of each."""

    cores: int
    processes: int
    threads: int
    memory: int | None


def shape(config: ClusterConfig) -> Shape:
    """What a file makes of a job, for whoever starts workers by it.

    Dask's configuration must hold the settings of the file already.
    """
    cores, processes = (_jobqueue_setting(config, key) for key in ("cores", "processes"))
    cores = int(cores or (config.threads or 1) * int(processes or 1))
    processes = int(processes or max(1, cores // (config.threads or 1)))
    threads = config.threads or max(1, cores // processes)
    if config.threads and cores != threads * processes:
        raise InputError(
            f"jobqueue.{config.system}.cores is {cores}, but {processes} workers of a job with "
            f"gmkcf.threads {threads} each take {threads * processes}: make them agree"
        )
    memory: int | None = config.memory
    of_job = _jobqueue_setting(config, "memory")
    if memory is None and of_job is not None:
        memory = int(dask.utils.parse_bytes(str(of_job))) // processes
    return Shape(cores, processes, threads, memory)


def most_workers(config: ClusterConfig) -> int:
    """That whole jobs bring."""
    return _in_jobs(bounds(config), shape(config).processes).maximum


def job_options(config: ClusterConfig, process: ProcessSettings) -> dict[str, Any]:
    """What dask-jobqueue is told of a job; the rest it reads from its section."""
    one = shape(config)
    if one.memory is None:
        raise InputError(
            f"jobs need an amount of memory: give memory (of a worker) in the section gmkcf, or "
            f"jobqueue.{config.system}.memory (of a job)"
        )
    return {
        "cores": one.cores,
        # as an argument: else workers are not known to come in groups
        "processes": one.processes,
        "memory": str(one.memory * one.processes),
        "interface": config.interface or _jobqueue_setting(config, "interface"),
        "local_directory": f'"${_SPILL}"',
        "protocol": process.protocol,
        "security": process.security,
        "worker_extra_args": [*_NO_PAGE, *(_jobqueue_setting(config, "worker-extra-args") or ())],
        "job_script_prologue": [
            *exports(process.settings),
            *(_jobqueue_setting(config, "job-script-prologue") or ()),
            *private_folder(config.local_directory or _jobqueue_setting(config, "local-directory")),
        ],
    }


def private_folder(directory: str | None) -> list[str]:
    """Lines of a job script that make a private folder to spill to, and remove it at the end.

    A signal for the job lets the worker end first. What is killed at once leaves its folder.

    >>> private_folder("/scratch")[0]
    'mkdir -p -- "/scratch"'
    """
    within = with_default(directory or "$TMPDIR")
    return [
        f'mkdir -p -- "{within}"',
        # HTCondor would take $(...) for a variable of its own
        f'{_SPILL}=`umask 077 && mktemp -d "{within}/gmkcf-spill-XXXXXXXX"` || exit 1',
        f"""trap 'rm -rf -- "${_SPILL}"' EXIT""",
        "trap 'exit 143' INT TERM",
    ]


def with_default(directory: str | None) -> str | None:
    """The folder for a shell: a variable at its beginning stands for /tmp where it is not set."""
    begin = r"^\$(?:(\w+)|\{(\w+)\})"
    return None if directory is None else re.sub(begin, r"${\1\2:-/tmp}", directory)


def described(config: ClusterConfig) -> tuple[int, int, int]:
    """Workers, threads and bytes of each, as the file says."""
    options = job_options(config, ProcessSettings({ENVIRONMENT: {}}, None, {}))
    n = options["processes"]
    return bounds(config).minimum, options["cores"] // n, int(options["memory"]) // n


def exports(settings: dict[str, Any]) -> list[str]:
    """Dask's settings and the environment of workers as lines of a shell.

    >>> exports({"distributed.worker.memory.spill": 0.7, ENVIRONMENT: {"OMP_NUM_THREADS": "1"}})
    ['export OMP_NUM_THREADS=1', 'export DASK_DISTRIBUTED__WORKER__MEMORY__SPILL=0.7']
    """
    exported = settings[ENVIRONMENT] | variables(settings)
    return [f"export {name}={shlex.quote(value)}" for name, value in exported.items()]


def variables(settings: dict[str, Any]) -> dict[str, str]:
    """Dask's settings as variables of a process, without those that differ from one to another."""
    exported = {}
    for name, value in settings.items():
        if name.startswith("distributed.") and not name.startswith(_NOT_EXPORTED):
            # as Dask reads it; a list without single quotes, each of which a shell quotes again
            text = json.dumps(value) if isinstance(value, list) else repr(value)
            variable = "DASK_" + name.replace(".", "__").replace("-", "_").upper()
            exported[variable] = value if isinstance(value, str) else text
    return exported


@contextmanager
def jobqueue_cluster(config: ClusterConfig, process: ProcessSettings) -> Iterator[Any]:
    """A client of workers that a batch system starts; the first jobs are in its queue."""
    from distributed import Client

    make = cluster_class(config)
    program = shlex.split(make.job_cls.submit_command)[0]
    if shutil.which(program) is None:
        raise InputError(
            f"{program} is not here, so no job can be given to {config.system}: start this on a "
            "machine from which jobs are submitted"
        )
    options = {key: value for key, value in _scheduler_options(config).items() if value is not None}
    job = job_options(config, process)
    wanted = _in_jobs(bounds(config), job["processes"])
    with ExitStack() as stack:
        # of the scheduler, which is in this process
        folder = stack.enter_context(private_space(None))
        try:
            with writing_into(folder):
                cluster = make(
                    **job,
                    job_cls=_closing_job_class(make.job_cls),
                    scheduler_options={**options, **process.page},
                    silence_logs=logging.CRITICAL,
                )
            stack.enter_context(cluster)
            _submit(cluster, wanted.minimum)
        except (OSError, RuntimeError, ValueError) as error:
            raise not_started(str(config.system), error) from error
        # also with a fixed number: jobs that end by their time limit are replaced
        cluster.adapt(minimum=wanted.minimum, maximum=wanted.maximum)
        with Client(cluster, security=process.security, set_as_default=False) as client:
            yield client


def _submit(cluster: Any, n_workers: int) -> None:
    """Hand the first jobs to the batch system, and hear what it says to them."""

    async def submit() -> None:
        # `scale` would do this in the background, where an error ends in a log
        while len(cluster.plan) < n_workers:
            cluster.worker_spec.update(cluster.new_worker_spec())
        await cluster

    cluster.sync(submit)


def _closing_job_class(job: Any) -> Any:
    """Jobs of dask-jobqueue do not say that they are closed, which a cluster that ends asks for."""
    from distributed.deploy.spec import ProcessInterface

    async def close(self: Any) -> None:
        await job.close(self)
        await ProcessInterface.close(self)

    return type(job.__name__, (job,), {"close": close})


def cluster_class(config: ClusterConfig) -> Any:
    """The class of dask-jobqueue for a batch system."""
    try:
        import dask_jobqueue
    except ImportError as error:
        raise not_installed("jobqueue", "dask-jobqueue") from error
    name = "HTCondor" if config.system == "htcondor" else str(config.system).upper()
    return getattr(dask_jobqueue, f"{name}Cluster")


def _scheduler_options(config: ClusterConfig) -> dict[str, Any]:
    return dict(_jobqueue_setting(config, "scheduler-options") or {})


def _jobqueue_setting(config: ClusterConfig, key: str) -> Any:
    """From the section of the batch system in Dask's configuration, which has the file's by now."""
    name = f"jobqueue.{config.system}.{key}"
    value = dask.config.get(name, None)
    if not isinstance(value, dict):  # what is not from the file was not checked yet
        check_setting(name, value, "Dask's configuration", Path())
    return value
