"""The `gmkcf` command: parse, call the workflow, print. No logic of its own."""

from __future__ import annotations

import shlex
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from gmkcf_dask import __version__
from gmkcf_dask.errors import GmkcfError, InputError
from gmkcf_dask.plan import STORED_BYTES, human_bytes

_F = TypeVar("_F", bound=Callable[..., Any])
_SETTINGS = {"help_option_names": ["-h", "--help"], "show_default": True, "max_content_width": 100}


class _Group(click.Group):
    """Turns our errors into one sentence on standard error and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except GmkcfError as error:
            click.echo(f"error: {error}", err=True)
            sys.exit(error.exit_code)
        except KeyboardInterrupt:
            click.echo(
                "interrupted: a store that was begun is kept, the same command goes on with it",
                err=True,
            )
            sys.exit(130)
        except OSError as error:  # disk full, a vanished path: the system's own words
            click.echo(f"error: {error}", err=True)
            sys.exit(GmkcfError.exit_code)


def _bytes(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    from dask.utils import parse_bytes

    if value is None:
        return None
    try:
        amount = int(parse_bytes(value))
    except (ValueError, AttributeError):
        amount = 0
    if amount < 1:
        raise click.BadParameter(f"{value!r} is not an amount of memory, such as 2GiB")
    return amount


def _options(*options: Callable[[_F], _F]) -> Callable[[_F], _F]:
    def decorate(command: _F) -> _F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


cluster_options = _options(
    click.option(
        "--cluster",
        metavar="threads|local|ADDRESS",
        help="Where work runs: threads of this process, worker processes on this machine, or the "
        "address of a Dask scheduler.  [default: local from 5,000 samples, threads below]",
    ),
    click.option(
        "--workers",
        type=click.IntRange(min=1),
        help="Worker processes (local) or threads (threads).  [default: all cores]",
    ),
    click.option(
        "--memory",
        callback=_bytes,
        metavar="BYTES",
        help="Memory per worker, such as 2GiB.  [default: an equal share of what is free]",
    ),
)
kernel_options = _options(
    click.option(
        "--kernels",
        default="paper12",
        help="Comma-separated: the set paper12, linear, cosine, rbf_T (width T times the mean "
        "distance), poly_aA_bB.",
    ),
    click.option(
        "--normalization",
        type=click.Choice(["unit", "degree", "none"]),
        default="unit",
        help="Unit diagonal, D^-1/2 K D^-1/2, or none.",
    ),
    click.option(
        "--scaling",
        type=click.Choice(["minmax", "none"]),
        default="minmax",
        help="Kernel values to [0, 1], or as they are.",
    ),
    click.option(
        "--precision",
        type=click.Choice(list(STORED_BYTES)),
        default="float32",
        help="Of stored kernel entries; compact takes 2 bytes, for values in [0, 1].",
    ),
    click.option(
        "--block",
        type=click.IntRange(min=1),
        help="Edge of a tile, in samples.  [default: chosen by the plan]",
    ),
)
text_options = _options(
    click.option("--text-column", default="text", help="JSONL and CSV: the column with the text."),
    click.option("--id-column", help="JSONL and CSV: sample ids.  [default: id, if there]"),
    click.option("--label-column", help="JSONL and CSV: known topics.  [default: label, if there]"),
    click.option(
        "--stop-words", type=click.Choice(["english"]), help="Words to leave out.  [default: none]"
    ),
    click.option(
        "--min-df",
        type=click.IntRange(min=1),
        help="Documents a word must appear in.  [default: 2, 1 below 50 documents]",
    ),
    click.option(
        "--max-features",
        type=click.IntRange(min=1),
        help="Keep this many words only.  [default: all]",
    ),
    click.option("--sublinear-tf", is_flag=True, help="Count words as 1 + log(count)."),
)
clusters_option = click.option(
    "-k", "--clusters", "n_clusters", type=int, required=True, help="Number of clusters."
)
fit_options = _options(
    clusters_option,
    click.option(
        "--out", type=click.Path(path_type=Path), required=True, help="Folder for the results."
    ),
    click.option("--overwrite", is_flag=True, help="Replace the results of another run in --out."),
    click.option("--seed", type=click.IntRange(min=0), default=0, help="Seed of all randomness."),
    click.option("--n-init", type=int, default=1, help="Random restarts; the best one is kept."),
    click.option("--inner-iter", type=int, default=1, help="(U, V) rounds per weight step."),
    click.option("--v-steps", type=int, default=1, help="V steps per U step."),
    click.option("--tol", type=float, default=1e-5, help="Stop at this relative change."),
    click.option("--max-iter", type=int, default=500, help="Iterations at most."),
    click.option("--polish/--no-polish", default=True, help="Solve V exactly at the end, or not."),
)
input_argument = click.argument("input_path", metavar="INPUT")


@click.group(cls=_Group, context_settings=_SETTINGS)
@click.version_option(__version__)
def main() -> None:
    """Cluster samples with many kernels at once (GMKCF), in memory or far beyond it.

    INPUT is a .npz, .npy, .mtx, .svmlight or .mat matrix (rows are samples), a folder of .txt
    files, or a .jsonl or .csv file with a text column.

    Exit codes: 0 done, 2 bad input or usage, 3 refused by the plan, 4 damaged store.
    """


@main.command()
@input_argument
@clusters_option
@kernel_options
@text_options
@cluster_options
def plan(input_path: str, n_clusters: int, **options: Any) -> None:
    """Show what a job would cost: disk, memory, passes over the data. Runs nothing."""
    from gmkcf_dask import workflow
    from gmkcf_dask.methods.factorize import SolverOptions

    with _notes():
        request = _request(input_path, options)
    SolverOptions(n_clusters).check_samples(request.n_samples)
    with _cluster(request.n_samples, options, only_describe=True) as resources:
        here = workflow.free_disk(Path())
        the_plan = workflow.request_plan(request, n_clusters, resources, disk_free=here)
        click.echo(str(the_plan))
        click.echo(f"runs on: {resources.description}")


@main.command()
@input_argument
@click.argument("store", type=click.Path(path_type=Path))
@kernel_options
@text_options
@cluster_options
def build(input_path: str, store: Path, **options: Any) -> None:
    """Compute the kernels of INPUT into STORE; an interrupted build goes on where it stopped."""
    from gmkcf_dask import workflow

    with _notes():
        request = _request(input_path, options)
    with _cluster(request.n_samples, options) as resources, _progress() as progress:
        # building alone needs no place for a fused kernel
        the_plan = workflow.request_plan(request, 1, resources, store, residency="recompute")
        built = workflow.build(store, request, the_plan, resources, progress)
    click.echo(
        f"{store}: {len(built.names)} kernels of {built.n_samples:,} samples, "
        f"{human_bytes(built.stored_bytes())} on disk"
    )
    click.echo(f"next: gmkcf fit {shlex.quote(str(store))} -k K --out RUN")


@main.command()
@click.argument("store", type=click.Path(path_type=Path))
@fit_options
@cluster_options
def fit(store: Path, out: Path, overwrite: bool, **options: Any) -> None:
    """Cluster the samples of a finished STORE."""
    from gmkcf_dask.kernels.store import KernelStore
    from gmkcf_dask.results.run import check_run_folder

    solver = _solver_options(options)
    check_run_folder(out, overwrite=overwrite)
    opened = KernelStore.open(store)
    solver.check_samples(opened.n_samples)
    with _cluster(opened.n_samples, options) as resources:
        _fit_and_report(out, opened, solver, resources, options, {})


@main.command()
@input_argument
@fit_options
@click.option(
    "--store",
    type=click.Path(path_type=Path),
    help="Where the kernels go; a store that fits is used again.  [default: OUT/store.zarr]",
)
@kernel_options
@text_options
@cluster_options
def run(input_path: str, out: Path, overwrite: bool, store: Path | None, **options: Any) -> None:
    """Plan, build and fit in one: from INPUT to clusters."""
    from gmkcf_dask import workflow
    from gmkcf_dask.results.run import check_run_folder

    solver = _solver_options(options)
    check_run_folder(out, overwrite=overwrite)
    watch = workflow.Stopwatch({})
    with _notes():
        request = watch.time("read", lambda: _request(input_path, options))
    solver.check_samples(request.n_samples)
    path = store or out / "store.zarr"
    with _cluster(request.n_samples, options) as resources:
        replace = overwrite and store is None and workflow.is_other_store(path, request)
        the_plan = workflow.request_plan(
            request,
            solver.n_clusters,
            resources,
            None if replace else path,
            disk_free=workflow.free_disk(path),
        )
        click.echo(f"plan for {input_path} on {resources.description}")
        for line in the_plan.lines():
            click.echo(f"  {line}")
        if replace:
            shutil.rmtree(path)
        with _progress() as progress:
            built = watch.time(
                "build", lambda: workflow.build(path, request, the_plan, resources, progress)
            )
        _fit_and_report(out, built, solver, resources, options, watch.seconds)


@main.command()
@click.argument("run_folder", metavar="RUN", type=click.Path(path_type=Path))
@click.option(
    "--labels",
    type=click.Path(path_type=Path),
    help="CSV with the columns id,label.  [default: the labels that came with the corpus]",
)
@cluster_options
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
    for name, value in scores(*match_labels(predicted, known)).items():
        click.echo(f"{name:<7}{value:.4f}")


# helpers


def _request(input_path: str, options: dict[str, Any]) -> Any:
    from gmkcf_dask.corpus import TextOptions, read_corpus, warn_about_zero_rows
    from gmkcf_dask.kernels.build import KernelRequest
    from gmkcf_dask.kernels.specs import resolve_kernels
    from gmkcf_dask.workflow import refuse_equal_rows

    specs = resolve_kernels(options["kernels"])
    columns = ("text_column", "id_column", "label_column", "stop_words", "max_features")
    text = TextOptions(
        **{name: options[name] for name in columns},
        min_df=options["min_df"] or "auto",
        sublinear_tf=options["sublinear_tf"],
    )
    corpus = read_corpus(input_path, text=text)
    refuse_equal_rows(corpus.X)
    warn_about_zero_rows(corpus.X)
    how = {name: options[name] for name in ("normalization", "scaling", "precision", "block")}
    return KernelRequest(corpus, specs, **how)


def _solver_options(options: dict[str, Any]) -> Any:
    from gmkcf_dask.methods.factorize import SolverOptions

    if options["n_init"] < 1:
        raise InputError(f"n_init must be a whole number of at least 1, not {options['n_init']}")
    names = ("n_clusters", "inner_iter", "v_steps", "max_iter", "tol", "polish")
    return SolverOptions(**{name: options[name] for name in names})


def _cluster(n_samples: int, options: dict[str, Any], *, only_describe: bool = False) -> Any:
    from gmkcf_dask.cluster import open_cluster

    where = (options["cluster"], n_samples, options["workers"], options["memory"])
    return open_cluster(*where, only_describe=only_describe)


def _fit_and_report(
    out: Path,
    store: Any,
    solver: Any,
    resources: Any,
    options: dict[str, Any],
    seconds: dict[str, float],
) -> None:
    from gmkcf_dask import workflow

    with _progress() as progress:
        found, result = workflow.fit_into(
            out,
            store,
            solver,
            resources,
            seed=options["seed"],
            n_init=options["n_init"],
            listen=progress,
            watch=workflow.Stopwatch(seconds),
        )
    for note in result["warnings"]:
        click.echo(f"note: {note}", err=True)
    state = "converged" if found.converged else "not converged"
    click.echo(
        f"{found.n_iter} iterations, {state}, objective {found.history[-1]:.6g}"
        + (f" (run {best_run(found) + 1} of {len(found.runs)})" if len(found.runs) > 1 else "")
    )
    click.echo("clusters")
    for cluster in result["clusters"]:
        words = ", ".join(cluster["terms"])
        click.echo(f"  {cluster['label']:>3}  {cluster['size']:>7,}  {words}".rstrip())
    click.echo("kernel weights")
    largest = max(found.weights)
    for name, weight in zip(found.kernel_names, found.weights, strict=True):
        click.echo(f"  {name:<14}{weight:.4f}  {'█' * round(30 * weight / largest)}".rstrip())
    spent = ", ".join(f"{stage} {value:.1f} s" for stage, value in result["seconds"].items())
    click.echo(f"time: {spent}")
    click.echo(f"results: {out}/labels.csv, {out}/result.json, {out}/factors.npz")


def best_run(found: Any) -> int:
    """Number of the restart that was kept."""
    objectives = [run.objective for run in found.runs]
    return objectives.index(min(objectives))


@contextmanager
def _progress() -> Iterator[Any]:
    from gmkcf_dask.progress import Progress

    progress = Progress()
    try:
        yield progress
    finally:
        progress.close()


@contextmanager
def _notes() -> Iterator[None]:
    """Warnings as one sentence each, without the source line Python prints."""
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        yield
    for warning in raised:
        click.echo(f"note: {warning.message}", err=True)


if __name__ == "__main__":
    main()
