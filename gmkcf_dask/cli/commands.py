"""The `gmkcf` command: parse, call the workflow, print. No logic of its own."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import click

from gmkcf_dask import __version__
from gmkcf_dask.cli.asked import is_done, kernels_asked, resumes
from gmkcf_dask.cli.group import Group
from gmkcf_dask.cli.options import (
    METHOD_PARAMETERS,
    Location,
    cluster_options,
    clusters_option,
    default_store,
    fit_options,
    force_option,
    input_argument,
    kernel_options,
    normalization_option,
    open_place,
    refuse_foreign_store,
)
from gmkcf_dask.cli.reading import check_samples, request_of, text_options
from gmkcf_dask.cli.report import found_in, report_many, report_one
from gmkcf_dask.cli.signals import or_interrupt
from gmkcf_dask.cli.watching import (
    note,
    reading,
    showing_notes,
    tell,
    the_voice,
    watch_options,
    watching,
)
from gmkcf_dask.errors import HopelessError, InputError, StoreBusyError
from gmkcf_dask.plan import human_bytes
from gmkcf_dask.redact import redacted

_STAGES = ("reading", "statistics", "write", "fit", "overview")
_SETTINGS = {"help_option_names": ["-h", "--help"], "show_default": True, "max_content_width": 100}


@click.group(cls=Group, context_settings=_SETTINGS)
@click.version_option(__version__)
def main() -> None:
    """Cluster samples with many kernels at once, in memory or far beyond it.

    INPUT is a .npz, .npy, .mtx, .svmlight or .mat matrix (rows are samples), a folder of .txt, .md
    or .html files, a .jsonl, .csv, .tsv or .parquet table with a text column, or a pattern such as
    "logs/*.jsonl.gz"; text files may end in .gz. Stores and runs are paths or s3:// URLs.

    Exit codes: 0 done, 2 bad input or usage, 3 no room in memory or on disk, 4 damaged store, 5
    cluster or object store lost or no space for a checkpoint (to be resumed), 6 store being written
    by another, 130 and 143 interrupted by SIGINT and SIGTERM.
    """


@main.command()
@input_argument
@clusters_option
@kernel_options
@text_options
@cluster_options
@watch_options
def plan(input_path: str, n_clusters: int, **options: Any) -> None:
    """Show what a job would cost: disk, memory, passes over the data. Runs nothing."""
    from gmkcf_dask import workflow
    from gmkcf_dask.methods.gmkcf import Gmkcf

    with showing_notes():
        request = reading(partial(request_of, input_path, options), "reading")
    check_samples(Gmkcf(n_clusters), request.n_samples, input_path)
    with open_place(request.n_samples, options, only_describe=True) as resources:
        here = workflow.free_disk(Path())
        the_plan = workflow.request_plan(request, n_clusters, resources, disk_free=here)
        tell(plan=asdict(the_plan), runs_on=resources.description)
        click.echo(str(the_plan))
        click.echo(f"runs on: {resources.description}")


@main.command()
@input_argument
@click.argument("store", type=Location())
@force_option
@kernel_options
@text_options
@cluster_options
@watch_options
def build(input_path: str, store: Path, **options: Any) -> None:
    """Compute the kernels of INPUT into STORE; an interrupted build goes on where it stopped."""
    from gmkcf_dask import workflow

    with showing_notes():
        request = reading(partial(request_of, input_path, options), *_STAGES[:3])

    def planned(place: Any) -> Any:
        # building alone needs no place for a fused kernel
        return workflow.request_plan(request, 1, place, store, residency="recompute")

    with (
        open_place(request.n_samples, options, check=planned) as resources,
        showing_notes(),
        watching() as listen,
    ):
        built = workflow.build(
            store, request, planned(resources), resources, listen, force=options["force"]
        )
    tell(store=store, kernels=list(built.names), n_samples=built.n_samples)
    click.echo(
        f"{store}: {len(built.names)} kernels of {built.n_samples:,} samples, "
        f"{human_bytes(built.stored_bytes())} on disk"
    )
    _echo_duplicates(built)
    click.echo(f"next: gmkcf fit {shlex.quote(str(store))} -k K --out RUN")


@main.command()
@click.argument("store", type=Location())
@fit_options
@cluster_options
@watch_options
def fit(store: Path, out: Path, overwrite: bool, **options: Any) -> None:
    """Cluster the samples of a finished STORE."""
    from gmkcf_dask import workflow
    from gmkcf_dask.kernels.store import KernelStore
    from gmkcf_dask.results.run import check_run_folder

    method = _method(options)
    resume = resumes(method, options, overwrite=overwrite)
    check_run_folder(out, overwrite=overwrite, resume=resume)
    opened = KernelStore.open(store)
    method.check_samples(opened.n_samples)
    kernels = kernels_asked(options["kernel"], method, opened.names)
    for name in kernels if len(kernels) > 1 else ():
        check_run_folder(out / name, overwrite=overwrite, resume=resume, inside=out)
    if resume and is_done(out, opened, method, kernels, options):
        return

    def planned(place: Any) -> Any:
        return workflow.store_plan(opened, method.n_clusters, place)

    with open_place(opened.n_samples, options, check=planned) as resources:
        _fit_and_report(out, opened, method, kernels, resources, options, {})


@main.command()
@input_argument
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
@watch_options
def run(input_path: str, out: Path, overwrite: bool, store: Path | None, **options: Any) -> None:
    """Plan, build and fit in one: from INPUT to clusters."""
    from gmkcf_dask import workflow
    from gmkcf_dask.kernels.build import find_store
    from gmkcf_dask.results.run import check_run_folder

    method = _method(options)
    resume = resumes(method, options, overwrite=overwrite)
    check_run_folder(out, overwrite=overwrite, resume=resume)
    watch = workflow.Stopwatch({})
    with showing_notes():
        read = partial(request_of, input_path, options)
        request = watch.time("read", lambda: reading(read, *_STAGES))
    check_samples(method, request.n_samples, input_path)
    kernels = kernels_asked(options["kernel"], method, tuple(spec.name for spec in request.specs))
    for name in kernels if len(kernels) > 1 else ():
        check_run_folder(out / name, overwrite=overwrite, resume=resume, inside=out)
    path = store or default_store(options, out)
    if resume and is_done(out, find_store(path, request), method, kernels, options):
        return
    replace = overwrite and store is None and workflow.is_other_store(path, request)
    if replace:
        refuse_foreign_store(out, path)

    def planned(place: Any) -> Any:
        used = None if replace else path
        free = workflow.free_disk(path)
        return workflow.request_plan(request, method.n_clusters, place, used, disk_free=free)

    with open_place(request.n_samples, options, check=planned) as resources:
        the_plan = planned(resources)
        click.echo(f"plan for {redacted(input_path)} on {resources.description}")
        for line in the_plan.lines():
            click.echo(f"  {line}")
        if replace:
            workflow.remove_store(path, force=options["force"])
        with showing_notes(), watching() as listen:
            built = watch.time(
                "build",
                lambda: workflow.build(
                    path, request, the_plan, resources, listen, force=options["force"]
                ),
            )
        _echo_duplicates(built)
        title = Path(input_path).name
        _fit_and_report(out, built, method, kernels, resources, options, watch.seconds, title)


@main.command()
@click.argument("run_folder", metavar="RUN", type=Location())
@click.option(
    "--labels",
    type=Location(),
    help="CSV with the columns id,label.  [default: the labels that came with the corpus]",
)
@cluster_options
@watch_options
def score(run_folder: Path, labels: Path | None, **options: Any) -> None:
    """Compare the clusters of a RUN with known labels: ACC, NMI, purity, ARI.

    This takes a moment in this process; the cluster options are understood but not needed.
    """
    from gmkcf_dask.kernels.store import KernelStore
    from gmkcf_dask.results.metrics import scores
    from gmkcf_dask.results.run import LABELS, match_labels, read_labels, read_result

    result = read_result(run_folder)
    predicted = read_labels(run_folder / LABELS)
    if labels is not None:
        known = read_labels(labels)
    else:
        store = KernelStore.open(result["store"])
        found = store.strings("labels")
        if found is None:
            raise InputError("the corpus came without labels: give them with --labels FILE")
        known = dict(zip(store.ids, found, strict=True))
    measured = scores(*match_labels(predicted, known))
    tell(run=run_folder, scores=measured)
    for name, value in measured.items():
        click.echo(f"{name:<7}{value:.4f}")


@main.command()
@click.option(
    "--data",
    type=click.Path(path_type=Path),
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
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, help="Folder for runs and tables."
)
@normalization_option
@cluster_options
@watch_options
def benchmark(
    data: Path,
    datasets: str,
    methods: str,
    n_seeds: int,
    out: Path,
    normalization: Any,
    **options: Any,
) -> None:
    """Run the paper's methods and others on its corpora, and set the scores beside its tables.

    What OUT already holds is not run again, so a benchmark that was broken off goes on.
    """
    from gmkcf_dask.benchmark.entries import choose_entries
    from gmkcf_dask.benchmark.report import write_report
    from gmkcf_dask.benchmark.runs import Benchmark, run_benchmark

    names = [name.strip() for name in methods.split(",") if name.strip()]
    sets = tuple(name.strip() for name in datasets.split(",") if name.strip())
    asked = Benchmark(data, out, sets, tuple(choose_entries(names)), n_seeds, normalization)
    options["cluster"] = options["cluster"] or "threads"
    with open_place(0, options) as resources, watching() as listen:

        def say(line: str) -> None:
            listen.close()
            click.echo(line)

        rows = run_benchmark(asked, resources, say, listen)
    written = write_report(out, rows)
    tell(runs=len(rows), written=written)
    for path in written:
        click.echo(f"written: {path}")
    if not any(path.suffix == ".png" for path in written):
        click.echo("no pictures: they need the extra [plot] (pip install 'gmkcf-dask[plot]')")


# helpers


def _echo_duplicates(store: Any) -> None:
    for sentence in store.duplicates():
        click.echo(f"nearly the same: {sentence}")


def _method(options: dict[str, Any]) -> Any:
    from gmkcf_dask.methods.registry import make_method

    given = {name: options[name] for name in METHOD_PARAMETERS if options[name] is not None}
    return make_method(options["method"], n_clusters=options["n_clusters"], **given)


def _fit_and_report(
    out: Path,
    store: Any,
    method: Any,
    kernels: list[str],
    resources: Any,
    options: dict[str, Any],
    seconds: dict[str, float],
    title: str | None = None,
) -> None:
    from gmkcf_dask import workflow
    from gmkcf_dask.files import exists
    from gmkcf_dask.kernels.lease import owning
    from gmkcf_dask.results.checkpoints import FOLDER, has_checkpoint, may_go_on
    from gmkcf_dask.results.run import REPORT

    folder, before = out / FOLDER, tuple(the_voice().noted)
    if options["resume"] and method.run_type is None:
        note(f"{method.name} keeps no checkpoints and begins again")
    elif options["resume"] and not has_checkpoint(folder):
        note(f"there is no checkpoint in {out}, beginning at the beginning")
    try:
        with owning(out) as still_ours, watching(*_STAGES[3:]) as listen:
            found = workflow.fit_into(
                out,
                store,
                method,
                resources,
                seed=options["seed"],
                kernels=kernels,
                listen=or_interrupt(listen),
                watch=workflow.Stopwatch(seconds),
                checkpoint_every=options["checkpoint_every"],
                resume=options["resume"],
                still_ours=still_ours,
                command=click.get_current_context().find_root().obj.anew(),
                title=title,
                said_before=before,
            )
    except (HopelessError, InputError, StoreBusyError):
        raise  # the same command would end there again; what InputError leaves waits for another
    except BaseException:
        click.get_current_context().find_root().obj.resumable = may_go_on(folder)
        raise
    for sentence in found[0][1]["warnings"]:
        note(sentence)
    if len(found) == 1:
        report_one(*found[0])
    else:
        report_many([clustering for clustering, _ in found])
    spent = ", ".join(f"{stage} {value:.1f} s" for stage, value in found[-1][1]["seconds"].items())
    click.echo(f"time: {spent}")
    where = out if len(found) == 1 else out / "KERNEL"
    tell(**found_in(out, store, found))
    click.echo(f"results: {where}/labels.csv, {where}/result.json, {where}/factors.npz")
    if exists(out / REPORT):
        click.echo(f"to read: {out / REPORT}, in a browser")
