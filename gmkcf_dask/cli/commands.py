"""The `gmkcf` command: parse, call the workflow, print. No logic of its own."""

from __future__ import annotations

import shlex
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gmkcf_dask import __version__
from gmkcf_dask.cli.group import Group
from gmkcf_dask.cli.options import (
    FILE,
    METHOD_PARAMETERS,
    Location,
    cluster_options,
    clusters_option,
    describe_cluster,
    fit_options,
    force_option,
    input_argument,
    kernel_options,
    normalization_option,
    paper_option,
    refuse_foreign_store,
    start_cluster,
    start_planned,
    store_of,
    which_options,
    with_defaults,
)
from gmkcf_dask.cli.output import add_note, add_result, current_output, echo, output_options
from gmkcf_dask.cli.progress import read_input, show_progress
from gmkcf_dask.cli.reading import check_samples, options_of_store, request_of, text_options
from gmkcf_dask.cli.report import machine_summary, report
from gmkcf_dask.cli.signals import interruptible
from gmkcf_dask.errors import HopelessError, InputError, StoreBusyError, redacted
from gmkcf_dask.system.disk_space import folder_in_errors
from gmkcf_dask.system.units import human_bytes

if TYPE_CHECKING:
    from gmkcf_dask.pipeline.run import FitOptions
    from gmkcf_dask.store.kernel_store import KernelStore

_STAGES = ("reading", "statistics", "write", "fit", "overview")
_SETTINGS = {"help_option_names": ["-h", "--help"], "show_default": True, "max_content_width": 100}


@click.group(cls=Group, context_settings=_SETTINGS)
@click.version_option(__version__)
def main() -> None:
    """Cluster samples with many kernels at once, in memory or far beyond it.

    INPUT is a .npz, .npy, .mtx, .svmlight or .mat matrix (rows are samples), a folder of .txt, .md
    or .html files, a .jsonl, .csv, .tsv or .parquet table with a text column, or a pattern such as
    "logs/*.jsonl.gz"; text files may end in .gz. Stores and runs are paths or s3:// URLs.

    Exit codes: 0 done, 2 bad input, usage or missing rights, 3 no room in memory or on disk, 4
    damaged store or model, 5 cluster, file system or object store does not answer, or no space for
    a checkpoint (to be resumed), 6 store being written by another, 129, 130 and 143 interrupted by
    SIGHUP, SIGINT and SIGTERM.
    """


@main.command()
@input_argument
@clusters_option
@paper_option
@which_options
@kernel_options
@text_options
@cluster_options
@output_options
def plan(input_path: str, n_clusters: int, **options: Any) -> None:
    """Show what a job would cost: disk, memory, time, passes over the data. Runs nothing."""
    from gmkcf_dask.pipeline import run as pipeline

    options["n_clusters"] = n_clusters
    method = _method(options)
    here = pipeline.free_disk(Path())
    read = partial(request_of, input_path, options, disk_free=here)
    request = read_input(read, "reading")
    check_samples(method.check_samples, request.n_samples, input_path)
    kernels = _select_kernels(options["kernel"], method, request.names)
    with ExitStack() as stack:
        resources = describe_cluster(request.n_samples, options)
        if resources is None:
            resources = stack.enter_context(start_cluster(request.n_samples, options))
        job = pipeline.job_of(method, kernels)
        the_plan = pipeline.request_plan(request, n_clusters, resources, disk_free=here, job=job)
        add_result(plan=asdict(the_plan), runs_on=resources.description)
        click.echo(str(the_plan))
        click.echo(f"runs on: {resources.description}")


@main.command()
@input_argument
@click.argument("store", type=Location())
@force_option
@paper_option
@kernel_options
@text_options
@cluster_options
@output_options
def build(input_path: str, store: Path, **options: Any) -> None:
    """Compute the kernels of INPUT into STORE; an interrupted build resumes.

    A complete STORE of the same INPUT is verified; what is damaged or missing is written again
    from INPUT. Options that are not given are those that STORE was made with.
    """
    from gmkcf_dask.pipeline import run as pipeline

    options = options_of_store(store, options)
    with folder_in_errors(store):
        read = partial(request_of, input_path, options, disk_free=pipeline.disk_to_fill(store))
        request = read_input(read, *_STAGES[:3])

    def plan_on(resources: Any) -> Any:
        # building alone needs no place for a fused kernel
        with folder_in_errors(store):
            return pipeline.request_plan(request, 1, resources, store, residency="recompute")

    with (
        start_planned(request.n_samples, options, plan_on) as (resources, the_plan),
        show_progress() as listen,
    ):
        built = pipeline.build(
            store, request, the_plan, resources, listen, force=options["force"], verify=True
        )
    add_result(store=store, kernels=list(built.kernel_names), n_samples=built.n_samples)
    echo(
        f"{store}: {len(built.kernel_names)} kernels of {built.n_samples:,} samples, "
        f"{human_bytes(built.stored_bytes())} on disk"
    )
    _echo_duplicates(built)
    echo(f"next: gmkcf fit {shlex.quote(str(store))} -k K --out RUN")


@main.command()
@click.argument("store", type=Location())
@paper_option
@fit_options
@cluster_options
@output_options
def fit(store: Path, out: Path, overwrite: bool, **options: Any) -> None:
    """Cluster the samples of a finished STORE."""
    from gmkcf_dask.pipeline import run as pipeline
    from gmkcf_dask.store.kernel_store import KernelStore

    method = _method_to_fit(out, options, overwrite=overwrite)
    opened = KernelStore.open(store)
    method.check_samples(opened.n_samples)
    if options["paper"]:
        _refuse_other_kernels(opened)
    wanted = _fit_options(out, method, opened.kernel_names, options, overwrite=overwrite)
    if wanted.resume and _is_done(wanted, opened):
        return

    described = describe_cluster(opened.n_samples, options)
    if described is not None:
        pipeline.store_plan(opened, method.n_clusters, described, wanted.job())
    with start_cluster(opened.n_samples, options) as resources:
        _fit_and_report(wanted, opened, resources, {})


@main.command()
@input_argument
@paper_option
@fit_options
@click.option(
    "--store",
    type=Location(),
    help="Path or URL of the kernels; a store that fits is used again.  [default: OUT/store.zarr, "
    "or in the storage of the cluster file]",
)
@force_option
@kernel_options
@text_options
@cluster_options
@output_options
def run(input_path: str, out: Path, overwrite: bool, store: Path | None, **options: Any) -> None:
    """Plan, build and fit in one: from INPUT to clusters."""
    from gmkcf_dask.pipeline import run as pipeline
    from gmkcf_dask.store.build import find_store

    method = _method_to_fit(out, options, overwrite=overwrite)
    watch = pipeline.Stopwatch({})
    path = store or store_of(out, options["cluster_config"].storage)
    with folder_in_errors(path):
        read = partial(request_of, input_path, options, disk_free=pipeline.disk_to_fill(path))
        with watch.time("read"):
            request = read_input(read, *_STAGES)
    check_samples(method.check_samples, request.n_samples, input_path)
    title = Path(input_path).name
    wanted = _fit_options(out, method, request.names, options, overwrite=overwrite, title=title)
    if wanted.resume and _is_done(wanted, find_store(path, request)):
        return
    replace = overwrite and store is None and pipeline.is_other_store(path, request)
    if replace:
        refuse_foreign_store(out, path)

    def plan_on(resources: Any) -> Any:
        used = None if replace else path
        free = pipeline.free_disk(path)
        with folder_in_errors(path):
            return pipeline.request_plan(
                request, method.n_clusters, resources, used, disk_free=free, job=wanted.job()
            )

    with start_planned(request.n_samples, options, plan_on) as (resources, the_plan):
        echo(f"plan for {redacted(input_path)} on {resources.description}")
        for line in the_plan.lines():
            click.echo(f"  {line}")
        if replace:
            pipeline.remove_store(path, force=options["force"])
        with show_progress() as listen, watch.time("build"):
            built = pipeline.build(
                path, request, the_plan, resources, listen, force=options["force"]
            )
        _echo_duplicates(built)
        _fit_and_report(wanted, built, resources, watch.seconds)


@main.command()
@click.option(
    "--data",
    type=FILE,
    required=True,
    help="Folder with NAME.mat for every data set (X, and labels y).",
)
@click.option("--datasets", default="bbc,tr31,k1b,webkb", help="Comma-separated.")
@click.option(
    "--methods",
    default="all",
    help="Comma-separated: kkm, sc, kcf, coreg, rmkkm, gmkcf as the paper's rows were made; "
    "gmkcf_spectral, sc_symmetric, coreg_0.1, rmkkm_warm; kmeans, nmf, knn_spectral on X.",
)
@click.option("--runs", "n_seeds", type=int, default=20, help="Seeds 0, 1, … of every method.")
@click.option("--out", type=FILE, required=True, help="Folder for runs and tables.")
@normalization_option
@click.option("--paper", is_flag=True, help="Accepted for symmetry: this is the paper's setting.")
@cluster_options
@output_options
def benchmark(
    data: Path,
    datasets: str,
    methods: str,
    n_seeds: int,
    out: Path,
    normalization: Any,
    paper: bool,
    **options: Any,
) -> None:
    """Run the paper's methods and others on its corpora and compare with its tables.

    Results that OUT already holds are kept, so an interrupted benchmark resumes.
    """
    from gmkcf_dask.pipeline.benchmark.entries import choose_entries
    from gmkcf_dask.pipeline.benchmark.runs import Benchmark, run_benchmark
    from gmkcf_dask.pipeline.benchmark.tables import write_tables

    def names_in(text: str) -> list[str]:
        return [name.strip() for name in text.split(",") if name.strip()]

    entries = tuple(choose_entries(names_in(methods)))
    job = Benchmark(data, out, tuple(names_in(datasets)), entries, n_seeds, normalization)
    with start_cluster(0, options) as resources, show_progress() as listen:

        def print_row(line: str) -> None:
            listen.close()
            click.echo(line)

        rows = run_benchmark(job, resources, print_row, listen)
    written = write_tables(out, rows)
    add_result(runs=len(rows), written=written)
    for path in written:
        echo(f"written: {path}")
    if not any(path.suffix == ".png" for path in written):
        click.echo("no pictures: they need the extra [plot] (pip install 'gmkcf-dask[plot]')")


# helpers


def _refuse_other_kernels(store: KernelStore) -> None:
    """--paper is about the twelve kernels of the paper."""
    from gmkcf_dask.kernels.specs import PAPER12

    if store.kernel_names != tuple(spec.name for spec in PAPER12):
        raise InputError(
            f"{store.path} has the kernels {', '.join(store.kernel_names)}, not the twelve of the "
            "paper: build it with --paper, or leave --paper out"
        )


def _echo_duplicates(store: Any) -> None:
    for sentence in store.duplicates():
        click.echo(f"nearly the same: {sentence}")


def _method(options: dict[str, Any]) -> Any:
    from gmkcf_dask.methods.defaults import DEFAULTS
    from gmkcf_dask.methods.registry import make_method, parameters_of

    given = {name: options[name] for name in METHOD_PARAMETERS if options[name] is not None}
    own, chosen = parameters_of(options["method"]), with_defaults(options)
    usual = {name: chosen[name] for name in DEFAULTS if name in own}
    return make_method(options["method"], n_clusters=options["n_clusters"], **{**usual, **given})


def _method_to_fit(out: Path, options: dict[str, Any], *, overwrite: bool) -> Any:
    """The method, once --resume fits the other options and the run folder is free."""
    from gmkcf_dask.results.run_folder import check_run_folder

    method = _method(options)
    if options["resume"] and overwrite:
        raise InputError("--resume continues a run and --overwrite replaces it: choose one")
    if method.run_type is None and options["checkpoint_every"] is not None:
        raise InputError(
            f"{method.name} is short and keeps no checkpoints: leave --checkpoint-every out"
        )
    check_run_folder(out, overwrite=overwrite, resume=options["resume"])
    return method


def _is_done(wanted: FitOptions, store: KernelStore | None) -> bool:
    """Whether the run is finished already; writes the report that it lacks."""
    from gmkcf_dask.cluster import threads
    from gmkcf_dask.pipeline.run import finish_reports, is_finished
    from gmkcf_dask.results.run_folder import REPORT

    if not is_finished(wanted, store):
        return False
    with show_progress("overview") as listen:
        written = finish_reports(wanted, store, threads(), listen)
    if not written:
        echo(f"this run is finished: {wanted.out} holds its results, nothing was done")
    for folder in written:
        echo(f"this run is finished, its report was missing: {folder / REPORT} was written")
    add_result(out=wanted.out, finished_before=True, reports_written=written)
    return True


def _select_kernels(kernel: str | None, method: Any, names: tuple[str, ...]) -> list[str]:
    """The kernels that a single-kernel method runs on."""
    from gmkcf_dask.methods.base import MEAN, SingleKernelMethod

    if not isinstance(method, SingleKernelMethod):
        if kernel is not None:
            raise InputError(f"{method.name} uses all kernels: leave --kernel out")
        return [MEAN]
    if kernel == "all":
        return list(names)
    if kernel not in (None, MEAN, *names):
        raise InputError(
            f"there is no kernel {kernel!r} here: choose mean, all, or one of {', '.join(names)}"
        )
    return [kernel or MEAN]


def _fit_options(
    out: Path,
    method: Any,
    names: tuple[str, ...],
    options: dict[str, Any],
    *,
    overwrite: bool,
    title: str | None = None,
) -> FitOptions:
    """What to fit, once every run folder is known to be free for it."""
    from gmkcf_dask.pipeline.run import FitOptions
    from gmkcf_dask.results.run_folder import check_run_folder

    wanted = FitOptions(
        out,
        method,
        options["seed"],
        _select_kernels(options["kernel"], method, names),
        overwrite,
        options["resume"],
        options["checkpoint_every"],
        options["raw_ids"],
        click.get_current_context().find_root().obj.rerun_command(),
        title,
    )
    for folder in wanted.folders if len(wanted.folders) > 1 else ():
        check_run_folder(folder, overwrite=overwrite, resume=wanted.resume, inside=out)
    return wanted


def _fit_and_report(
    wanted: FitOptions, store: Any, resources: Any, seconds: dict[str, float]
) -> None:
    from gmkcf_dask.pipeline import run as pipeline
    from gmkcf_dask.results.checkpoints import has_checkpoint, may_resume
    from gmkcf_dask.results.run_folder import REPORT
    from gmkcf_dask.store.files import exists

    out, notes = wanted.out, tuple(current_output().notes)
    if wanted.resume and wanted.method.run_type is None:
        add_note(f"{wanted.method.name} keeps no checkpoints and starts again")
    elif wanted.resume and not has_checkpoint(wanted.checkpoint):
        add_note(f"there is no checkpoint in {out}, starting from the beginning")
    watch = pipeline.Stopwatch(seconds)
    try:
        with show_progress(*_STAGES[3:]) as listen:
            listener = interruptible(listen)
            runs = pipeline.fit_into(
                wanted, store, resources, listen=listener, watch=watch, notes=notes
            )
    except (HopelessError, InputError, StoreBusyError):
        raise  # the same command would end there again; what InputError leaves waits for another
    except BaseException:
        click.get_current_context().find_root().obj.resumable = may_resume(wanted.checkpoint)
        raise
    for sentence in runs[0].result.warnings:
        add_note(sentence)
    report(runs)
    last = runs[-1].result.seconds
    click.echo("time: " + ", ".join(f"{stage} {value:.1f} s" for stage, value in last.items()))
    where = out if len(runs) == 1 else out / "KERNEL"
    add_result(**machine_summary(out, store, runs))
    echo(f"results: {where}/labels.csv, {where}/result.json, {where}/factors.npz")
    if exists(out / REPORT):
        echo(f"Open {out / REPORT} in a browser.")
