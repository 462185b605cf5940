"""The `gmkcf` command: parse, call the workflow, print. No logic of its own."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
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
    fit_options,
    force_option,
    input_argument,
    kernel_options,
    layout_option,
    normalization_option,
    paper_option,
    start_cluster,
    store_of,
    which_options,
    with_defaults,
)
from gmkcf_dask.cli.output import add_note, add_result, current_output, echo, output_options
from gmkcf_dask.cli.paper import refuse_other_kernels
from gmkcf_dask.cli.progress import Listeners, show_progress
from gmkcf_dask.cli.reading import input_options, options_of_store, text_options
from gmkcf_dask.cli.report import machine_summary, report
from gmkcf_dask.cli.signals import interruptible
from gmkcf_dask.errors import HopelessError, InputError, StoreBusyError, redacted
from gmkcf_dask.events import Event, KernelsReady, PlanMade
from gmkcf_dask.methods.defaults import PAPER_LAYOUT
from gmkcf_dask.system.disk_space import folder_in_errors
from gmkcf_dask.system.units import human_bytes

if TYPE_CHECKING:
    from gmkcf_dask.pipeline import FitOptions, RunOutcome

_STAGES = ("reading", "statistics", "write", "fit", "overview")
_SETTINGS = {"help_option_names": ["-h", "--help"], "show_default": True, "max_content_width": 100}


@click.group(cls=Group, context_settings=_SETTINGS)
@click.version_option(__version__)
def main() -> None:
    """Cluster samples with many kernels at once, in memory or far beyond it.

    INPUT is a .npz, .npy, .mtx, .svmlight or .mat matrix (rows are samples), a folder of .txt, .md
    or .html files, a .jsonl, .csv, .tsv or .parquet table with a text column, or a pattern such as
    "logs/*.jsonl.gz"; text files may end in .gz. With --kernels factored it is one array (.npy,
    .npz, Zarr), or NAME=FILE for each of several. Stores and runs are paths or s3:// URLs.

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
    from gmkcf_dask import pipeline
    from gmkcf_dask.cli.cluster import CommandCluster
    from gmkcf_dask.pipeline.planning import free_disk

    options["n_clusters"] = n_clusters
    method, here = _method(options), free_disk(Path())
    given = input_options(input_path, options)
    with CommandCluster(options) as reading, show_progress("reading") as listen:
        request = pipeline.read_request(given, reading, listen, here)
    n = request.n_samples
    with pipeline.single_text_in_errors(input_path, n):
        method.check_samples(n)
    kernels = pipeline.select_kernels(options["kernel"], method, request.names)
    job = pipeline.job_of(method, kernels)
    with CommandCluster(options) as cluster:
        resources = cluster.describe(n) or cluster.start(n)
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
    from gmkcf_dask import pipeline
    from gmkcf_dask.cli.cluster import CommandCluster
    from gmkcf_dask.store.build import look_up

    given = input_options(input_path, options_of_store(store, options))
    with CommandCluster(options) as cluster:
        with folder_in_errors(store), show_progress(*_STAGES[:3]) as listen:
            free = pipeline.disk_to_fill(store)
            request = pipeline.read_request(given, cluster, listen, free)
        place = look_up(store, request)
        # building alone needs no place for a fused kernel
        resources, the_plan = pipeline.plan_and_start(
            request, 1, cluster, place, residency="recompute"
        )
        with show_progress() as listen:
            built = pipeline.build(
                place, request, the_plan, resources, listen, force=options["force"], verify=True
            )
    add_result(store=store, kernels=list(built.kernel_names), n_samples=built.n_samples)
    echo(
        f"{store}: {len(built.kernel_names)} kernels of {built.n_samples:,} samples, "
        f"{human_bytes(built.stored_bytes())} on disk"
    )
    _echo_duplicates(built.duplicates())
    echo(f"next: gmkcf fit {shlex.quote(str(store))} -k K --out RUN")


@main.command()
@click.argument("store", type=Location())
@paper_option
@fit_options
@cluster_options
@output_options
def fit(store: Path, out: Path, overwrite: bool, **options: Any) -> None:
    """Cluster the samples of a finished STORE."""
    from gmkcf_dask.cli.cluster import CommandCluster
    from gmkcf_dask.pipeline.run import run_on_store
    from gmkcf_dask.store.kernel_store import KernelStore

    method = _method_to_fit(out, options, overwrite=overwrite)
    opened = KernelStore.open(store)
    method.check_samples(opened.n_samples)
    if options["paper"]:
        refuse_other_kernels(opened)
    wanted = _fit_options(out, method, options, overwrite=overwrite)
    with CommandCluster(options) as cluster:
        with show_progress(*_STAGES[3:]) as listen:
            shown = _RunOutput(listen, str(store), wanted)
            with shown.resumable():
                outcome = run_on_store(
                    wanted, options["kernel"], opened, cluster, shown, current_output().notes
                )
        _echo_outcome(out, outcome)


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
    from gmkcf_dask import pipeline
    from gmkcf_dask.cli.cluster import CommandCluster
    from gmkcf_dask.pipeline.run import run as run_pipeline

    method = _method_to_fit(out, options, overwrite=overwrite)
    title = Path(input_path).name
    wanted = pipeline.RunOptions(
        input_options(input_path, options),
        store or store_of(out, options["cluster_config"].storage),
        _fit_options(out, method, options, overwrite=overwrite, title=title),
        options["kernel"],
        replace_store=overwrite and store is None,
        force=options["force"],
    )
    with CommandCluster(options) as cluster:
        with show_progress(*_STAGES) as listen:
            shown = _RunOutput(listen, input_path, wanted.fit)
            with shown.resumable():
                outcome = run_pipeline(wanted, cluster, shown, current_output().notes)
        _echo_outcome(out, outcome)


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
@layout_option(PAPER_LAYOUT)
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
    layout: Any,
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
    job = Benchmark(
        data, out, tuple(names_in(datasets)), entries, n_seeds, normalization,
        layout or PAPER_LAYOUT,
    )  # fmt: skip
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


def _echo_duplicates(sentences: Iterable[str]) -> None:
    for sentence in sentences:
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


def _fit_options(
    out: Path, method: Any, options: dict[str, Any], *, overwrite: bool, title: str | None = None
) -> FitOptions:
    from gmkcf_dask.pipeline import FitOptions

    return FitOptions(
        out,
        method,
        options["seed"],
        overwrite=overwrite,
        resume=options["resume"],
        checkpoint_every=options["checkpoint_every"],
        raw_ids=options["raw_ids"],
        command=click.get_current_context().find_root().obj.rerun_command(),
        title=title,
    )


class _RunOutput:
    """A listener that prints what a run tells between its stages, and notes when a fit begins."""

    def __init__(self, listeners: Listeners, given: str, fit: FitOptions) -> None:
        self._listeners, self._given, self._fit = listeners, given, fit
        self._progress = interruptible(listeners)
        self._fitting = False

    def __call__(self, event: Event | PlanMade | KernelsReady) -> None:
        if isinstance(event, PlanMade):
            self._listeners.close()
            echo(f"plan for {redacted(self._given)} on {event.runs_on}")
            for line in event.lines:
                click.echo(f"  {line}")
        elif isinstance(event, KernelsReady):
            self._listeners.close()
            _echo_duplicates(event.duplicates)
            self._begin_fit()
        else:
            self._progress(event)

    def _begin_fit(self) -> None:
        from gmkcf_dask.results.checkpoints import has_checkpoint

        fit, self._fitting = self._fit, True
        if fit.resume and fit.method.run_type is None:
            add_note(f"{fit.method.name} keeps no checkpoints and starts again")
        elif fit.resume and not has_checkpoint(fit.checkpoint):
            add_note(f"there is no checkpoint in {fit.out}, starting from the beginning")

    @contextmanager
    def resumable(self) -> Iterator[None]:
        """Whatever ends a fit, tell whether it left a checkpoint to resume from."""
        from gmkcf_dask.results.checkpoints import may_resume

        try:
            yield
        except (HopelessError, InputError, StoreBusyError):
            raise  # the same command would end there again; what InputError leaves waits
        except BaseException:
            if self._fitting:
                command = click.get_current_context().find_root().obj
                command.resumable = may_resume(self._fit.checkpoint)
            raise


def _echo_outcome(out: Path, outcome: RunOutcome) -> None:
    from gmkcf_dask.results.run_folder import REPORT
    from gmkcf_dask.store.files import exists

    store, runs, reports = outcome.store, outcome.runs, outcome.reports
    if store is None or not runs:
        if not reports:
            echo(f"this run is finished: {out} holds its results, nothing was done")
        for folder in reports:
            echo(f"this run is finished, its report was missing: {folder / REPORT} was written")
        add_result(out=out, finished_before=True, reports_written=reports)
        return
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
