"""Commands that write a batch job, and hand it in."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from gmkcf_dask.cli.commands import main
from gmkcf_dask.cli.options import COUNT, FILE, FactorFiles, store_of, with_defaults
from gmkcf_dask.errors import ClusterError, InputError, redacted
from gmkcf_dask.store.files import absolute, make_folder, put_atomic
from gmkcf_dask.store.object_storage import is_remote

_COMMANDS = ("run", "fit")
# the job brings its own cluster; what is there is gone on with, not dropped
_NOT_INSIDE = ("cluster", "workers", "memory", "tls_ca", "tls_cert", "tls_key", "insecure",
               "dashboard", "overwrite")  # fmt: skip
_SUBMIT_SECONDS = 60.0
# options end where the command begins
_REST = {"allow_interspersed_args": False}

now_option = click.option(
    "--now", is_flag=True, help="Hand the job in, instead of only writing it."
)
command_argument = click.argument(
    "command", metavar="[--] run|fit ...", nargs=-1, required=True, type=click.UNPROCESSED
)


@dataclass(frozen=True)
class JobCommand:
    """A command that a job is to run, parsed."""

    words: tuple[str, ...]
    input: Path | None
    out: Path
    paths: tuple[str, ...]
    params: dict[str, Any]


@main.group()
def submit() -> None:
    """Write the batch job that runs a command inside its own allocation.

    The job starts a Dask cluster, runs the driver beside it, and resumes if interrupted.
    Results, checkpoint, script and logs are in one folder.
    """


@submit.command(context_settings=_REST)
@command_argument
@click.option("--ntasks", type=click.IntRange(min=2), help="One for the driver, the others work.")
@click.option("--cpus-per-task", type=COUNT, help="Threads of a worker.  [default: 1]")
@click.option("--mem-per-cpu", metavar="4G", help="Memory of a CPU, as Slurm reads it; or --mem.")
@click.option("--mem", metavar="64G", help="Memory of a node, instead; needs --nodes.")
@click.option(
    "--driver-memory",
    metavar="4G",
    help="Memory of driver and scheduler, as part of the request.  [default: by the plan, where "
    "INPUT is a matrix or a store; else as much as a worker]",
)
@click.option("--time", metavar="D-HH:MM:SS", help="Longest time of one start.")
@click.option("--nodes", type=COUNT, help="[default: as Slurm likes]")
@click.option("--partition", help="[default: Slurm's]")
@click.option("--account", help="[default: Slurm's]")
@click.option(
    "--job-name", "name", help="Jobs of one name run one after the other.  [default: of OUT]"
)
@click.option(
    "--interface", help="The network to talk over, such as ib0.  [default: Dask's choice]"
)
@click.option(
    "--local-directory",
    help="A disk of the node to spill to.  [default: $SLURM_TMPDIR, $TMPDIR or /tmp]",
)
@click.option("--python", help="The interpreter on the nodes.  [default: this one]")
@click.option("--prologue", multiple=True, metavar="LINE", help="Shell to run first; repeatable.")
@click.option(
    "--sbatch",
    "directives",
    multiple=True,
    metavar="OPTION",
    help="Any other option of sbatch, such as --sbatch=--qos=long; repeatable.",
)
@click.option(
    "--stop-before",
    type=click.IntRange(min=10),
    default=120,
    help="Seconds before the end of --time at which to write a checkpoint and queue again.",
)
@click.option(
    "--restarts", type=click.IntRange(min=0), default=20, help="How often a job queues again."
)
@click.option(
    "--cluster",
    "cluster_file",
    metavar="FILE.yaml",
    type=FILE,
    help="Defaults for these options: a cluster file of kind jobqueue.",
)
@click.option(
    "--folder",
    type=FILE,
    help="For the script and its logs.  [default: OUT/job; for a URL there is none]",
)
@now_option
def slurm(command: tuple[str, ...], now: bool, **options: Any) -> None:
    """A job for Slurm, as in

    gmkcf submit slurm --ntasks 9 --mem-per-cpu 4G --time 12:00:00 --now -- run x.npz -k 5 --out run
    """
    from gmkcf_dask.cluster.submit.memory import driver_memory
    from gmkcf_dask.cluster.submit.slurm import SlurmJob, job_name, slurm_script
    from gmkcf_dask.results.run_folder import check_run_folder
    from gmkcf_dask.system.units import human_bytes

    inner = parse_inner(command)
    check_run_folder(inner.out, overwrite=False, resume=True)
    if inner.input is not None and not inner.input.exists():
        raise InputError(f"there is no {inner.input} here: give a path that the nodes see as well")
    folder = options.pop("folder")
    if folder is None and is_remote(inner.out):
        raise InputError("--folder must be given: Slurm needs a path for the script and its logs")
    folder = (folder or inner.out / "job").absolute()
    given = _slurm_options(options)
    if "driver_memory" not in given:
        given["driver_memory"] = driver_memory(inner.words[0], with_defaults(inner.params))
    out = absolute(inner.out)
    store = inner.params.get("store") or store_of(out, given.get("storage"))
    job = SlurmJob(
        command=inner.words,
        places=(str(out), str(absolute(store))),
        folder=folder,
        cwd=Path.cwd(),
        **{"name": job_name(str(out)), "python": sys.executable, **given},
    )
    make_folder(folder, "the job")
    # for its owner alone: a command may have a secret in an address
    put_atomic(job.script, slurm_script(job).encode(), mode=0o700)
    click.echo(f"written: {job.script}")
    if job.driver_memory is not None and job.driver_tasks > 1:
        click.echo(
            f"driver: {human_bytes(job.driver_memory)}, the memory of {job.driver_tasks} tasks: "
            f"{job.workers + job.driver_tasks} tasks are asked for"
        )
    if not now:
        click.echo(f"next: sbatch {shlex.quote(str(job.script))}")
        return
    number = _call("sbatch", "--parsable", str(job.script)).partition(";")[0]
    click.echo(f"job {number} of Slurm: squeue --job {number}")
    click.echo(f"log: {folder}/slurm-{number}.log")


def _slurm_options(options: dict[str, Any]) -> dict[str, Any]:
    """Options of the command line, else of a cluster file, once nothing required is missing."""
    from gmkcf_dask.cluster import read_config
    from gmkcf_dask.cluster.submit.slurm import mebibytes, slurm_options

    path = options.pop("cluster_file")
    cpus = options["cpus_per_task"]
    from_file = {} if path is None else slurm_options(read_config(path), cpus)
    given = {name: value for name, value in options.items() if value not in (None, ())}
    for name in ("mem_per_cpu", "mem", "driver_memory"):
        if name in given:
            given[name] = mebibytes(given[name], f"--{name.replace('_', '-')}")
    if "mem" in given:
        from_file.pop("mem_per_cpu", None)
    merged = from_file | given
    required = {
        "--ntasks": "ntasks" in merged,
        "--mem-per-cpu (or --mem)": "mem_per_cpu" in merged or "mem" in merged,
        "--time": "time" in merged,
    }
    missing = ", ".join(option for option, present in required.items() if not present)
    if missing:
        raise InputError(f"{missing} must be given: how much to ask Slurm for, and for how long")
    return merged


@submit.command(context_settings=_REST)
@command_argument
@click.option("--image", required=True, help="With gmkcf-dask inside, of this version.")
@click.option("--workers", type=COUNT, required=True, help="Pods that work.")
@click.option("--cpus", type=COUNT, default=1, help="Threads of a worker.")
@click.option("--memory", required=True, metavar="4Gi", help="Of every pod.")
@click.option(
    "--volume",
    "volumes",
    multiple=True,
    required=True,
    metavar="CLAIM:/PATH",
    help="A claim that all pods mount, with input and output; repeatable.",
)
@click.option("--name", help="[default: of OUT]")
@click.option("--namespace", help="[default: kubectl's]")
@click.option(
    "--tls-secret",
    help="A secret with ca.pem, member.pem and member.key: all traffic is encrypted.",
)
@click.option("--insecure", is_flag=True, help="Talk in the open, for a network you trust.")
@click.option(
    "--image-pull-secret",
    "pull_secrets",
    multiple=True,
    metavar="NAME",
    help="A secret with which the image is pulled; repeatable.",
)
@click.option(
    "--scratch",
    default="20Gi",
    metavar="20Gi",
    help="Ephemeral storage of every pod, for temporary files and results that do not fit into "
    "memory: requested, and its limit.",
)
@click.option("--user", type=int, default=1000, help="Number of the user in pods; not root.")
@click.option(
    "--group",
    type=int,
    default=1000,
    help="Number of its group in pods; it reads --tls-secret, and owns claims that take a group.",
)
@click.option("--seconds", type=COUNT, help="Longest time.  [default: no end]")
@click.option("--file", type=FILE, help="To write to.  [default: NAME.yaml, here]")
@now_option
def kubernetes(
    command: tuple[str, ...], now: bool, insecure: bool, file: Path | None, **options: Any
) -> None:
    """A DaskJob for Kubernetes; paths are those that pods see. As in

    gmkcf submit kubernetes --image me/gmkcf:1 --workers 8 --memory 4Gi --volume data:/data
    --tls-secret gmkcf -- run /data/x.npz -k 5 --out /data/run
    """
    from gmkcf_dask.cluster.submit.kubernetes import KubernetesJob, manifest
    from gmkcf_dask.cluster.submit.slurm import job_name, mebibytes

    if (options["tls_secret"] is None) is not insecure:
        raise InputError(
            "give either --tls-secret, a secret with certificates, or --insecure, for a network "
            "that you trust"
        )
    inner = parse_inner(command)
    for option in ("memory", "scratch"):
        options[option] = mebibytes(options[option], f"--{option}")
    name = options.pop("name") or job_name(str(inner.out))
    job = KubernetesJob(command=inner.words, name=name, paths=inner.paths, **options)
    path = (file or Path(f"{name}.yaml")).absolute()
    make_folder(path.parent, "the job")
    put_atomic(path, manifest(job).encode(), mode=0o700)  # a command may have a secret
    click.echo(f"written: {path}")
    where = [] if job.namespace is None else ["--namespace", job.namespace]
    apply = ["kubectl", "apply", *where, "--filename", str(path)]
    if not now:
        click.echo(f"next: {shlex.join(apply)}")
        return
    click.echo(_call(*apply))
    click.echo(f"log: {shlex.join(['kubectl', 'logs', *where, '--follow', f'{name}-runner'])}")


# helpers


def parse_inner(command: tuple[str, ...]) -> JobCommand:
    """The command of a job, parsed as in the job, so that errors in it come now."""
    if command[0] not in _COMMANDS:
        raise InputError(
            f"a job runs gmkcf {' or gmkcf '.join(_COMMANDS)}, not {redacted(command[0])!r}"
        )
    inner = main.commands[command[0]]
    # a command keeps the names of its help from the first time it is read
    helps = click.get_current_context().help_option_names
    context = inner.make_context(f"gmkcf {command[0]}", list(command[1:]), help_option_names=helps)
    for name in _NOT_INSIDE:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            option = f"--{name.replace('_', '-')}"
            reason = "a job that is queued again resumes"
            if name != "overwrite":
                reason = "the job brings a cluster of its own"
            raise InputError(f"{option} cannot be part of a job: {reason}, leave it out")
    where = context.params.get("input_path", context.params.get("store"))
    files = list(where.files.values()) if isinstance(where, FactorFiles) else [where]
    path = None if files[0] is None or "://" in str(files[0]) else Path(files[0])
    named = (*files, *(context.params.get(name) for name in ("store", "out")))
    paths = tuple(str(one) for one in named if one is not None)
    return JobCommand(command, path, context.params["out"], paths, context.params)


def _call(*command: str) -> str:
    """The output of a program that submits jobs."""
    if shutil.which(command[0]) is None:
        raise InputError(
            f"there is no {command[0]} here: run {shlex.join(command)} where there is one"
        )
    try:
        done = subprocess.run(  # noqa: S603  # no shell, and words of our own
            command, capture_output=True, text=True, timeout=_SUBMIT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ClusterError(
            f"{command[0]} did not answer within {_SUBMIT_SECONDS:.0f} seconds: look whether the "
            f"job is there before you try again"
        ) from error
    if done.returncode != 0:
        message = " ".join((done.stderr or done.stdout).split())[:500]
        raise ClusterError(f"{command[0]} did not take the job: {message or done.returncode}")
    return done.stdout.strip()
