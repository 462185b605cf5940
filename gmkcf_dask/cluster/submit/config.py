"""Options of one Slurm job with all inside, from a cluster file for workers that are jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask

from gmkcf_dask.cluster.config import ClusterConfig
from gmkcf_dask.cluster.jobqueue import shape, variables, with_default
from gmkcf_dask.cluster.process_settings import ENVIRONMENT
from gmkcf_dask.errors import InputError

# of dask-jobqueue: they would change the workers, and there is no place for them here
_NOT_TAKEN = ("worker-extra-args", "job-cpu", "job-mem", "job-directives-skip")
# names of dask-jobqueue and ours
_WORDS = {
    "queue": "partition",
    "account": "account",
    "walltime": "time",
    "interface": "interface",
    "local-directory": "local_directory",
    "python": "python",
}
_LISTS = {"job-extra-directives": "directives", "job-script-prologue": "prologue"}


def from_config(config: ClusterConfig, cpus: int | None = None) -> dict[str, Any]:
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
    options |= {ours: str(jobs[theirs]) for theirs, ours in _WORDS.items() if theirs in jobs}
    options |= {
        ours: tuple(map(str, jobs[theirs])) for theirs, ours in _LISTS.items() if theirs in jobs
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
