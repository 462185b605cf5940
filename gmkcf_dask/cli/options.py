"""The options that several commands share."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast, get_args

import click
import msgspec

from gmkcf_dask.cli.output import current_output
from gmkcf_dask.compute import STALL_SECONDS
from gmkcf_dask.errors import DiskFullError, InputError
from gmkcf_dask.kernels.tiling import STORED_BYTES
from gmkcf_dask.methods.defaults import (
    DEFAULT_ASSIGN,
    DEFAULT_INIT,
    DEFAULT_KERNELS,
    DEFAULT_LAYOUT,
    DEFAULT_SOLVER,
    DEFAULT_TOL,
    DEFAULTS,
    PAPER,
    PAPER_KERNELS,
    PAPER_LAYOUT,
    Assign,
)

if TYPE_CHECKING:
    from gmkcf_dask.cluster import ClusterConfig, Resources

_F = TypeVar("_F", bound=Callable[..., Any])
FILE = click.Path(path_type=Path)
COUNT = click.IntRange(min=1)


class Location(click.Path):
    """A path of this machine, or a URL such as s3://BUCKET/NAME."""

    def convert(self, value: Any, param: Any, ctx: click.Context | None) -> Any:
        from gmkcf_dask.store.object_storage import location

        return location(value)


def _bytes(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    from dask.utils import parse_bytes

    if value is None:
        return None
    try:
        amount = int(parse_bytes(value))
    except (ValueError, AttributeError, OverflowError):
        amount = 0
    if amount < 1:
        raise click.BadParameter(f"{value!r} is not an amount of memory, such as 2GiB")
    return amount


def _finite(ctx: click.Context, param: click.Parameter, value: float | None) -> float | None:
    if value is not None and not 0 < value < float("inf"):
        raise click.BadParameter(f"{value} is not a number of seconds above 0, such as 600")
    return value


def _with_cluster_config(command: _F) -> _F:
    """Read the cluster options once, before any work, into `options["cluster_config"]`.

    Under `mpirun` one process runs the command; the others serve it.
    """

    @wraps(command)
    def run(*args: Any, **options: Any) -> Any:
        from gmkcf_dask.cluster.config import is_config_path, is_mpi
        from gmkcf_dask.cluster.plain_yaml import load_file

        where: str | None = options["cluster"]
        is_file = where is not None and is_config_path(where)
        document = load_file(Path(str(where))) if is_file else None
        if document is None or not is_mpi(document):
            return command(*args, **options, cluster_config=cluster_config(options, document))
        from gmkcf_dask.cluster.mpi import mpi_member

        with mpi_member(lambda: cluster_config(options, document)) as config:
            return None if config is None else command(*args, **options, cluster_config=config)

    return cast(_F, run)


def options_in_a_row(*options: Callable[[_F], _F]) -> Callable[[_F], _F]:
    def decorate(command: _F) -> _F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


cluster_options = options_in_a_row(
    click.option(
        "--cluster",
        metavar="threads|local|ADDRESS|FILE.yaml",
        help="Where work runs: threads of this process, worker processes on this machine, the "
        "address of a Dask scheduler, or a file that describes a cluster (cluster_configs/ has one "
        "for every kind, share/gmkcf_dask/cluster_configs of an installed package); options given "
        "here win over the file.  [default: local from 5,000 samples, threads below]",
    ),
    click.option(
        "--workers",
        type=COUNT,
        help="Worker processes (local) or threads (threads).  [default: all cores]",
    ),
    click.option(
        "--memory",
        callback=_bytes,
        metavar="BYTES",
        help="Memory per worker, such as 2GiB.  [default: an equal share of what is free]",
    ),
    click.option(
        "--tls-ca",
        type=FILE,
        help="For tls:// addresses and local: the cluster's authority, PEM.  [default: Dask's "
        "configuration]",
    ),
    click.option(
        "--tls-cert", type=FILE, help="Our certificate, PEM.  [default: Dask's configuration]"
    ),
    click.option("--tls-key", type=FILE, help="Its key, PEM.  [default: Dask's configuration]"),
    click.option(
        "--insecure",
        is_flag=True,
        help="Talk to a scheduler on another machine without encryption.",
    ),
    click.option(
        "--dashboard", is_flag=True, help="local: serve Dask's dashboard, on loopback only."
    ),
    click.option(
        "--stall-timeout",
        type=float,
        callback=_finite,
        help="Seconds without any progress after which a cluster is given up.  [default: "
        f"{STALL_SECONDS:g}]",
    ),
    _with_cluster_config,
)
normalization_option = click.option(
    "--normalization",
    type=click.Choice(["unit", "degree", "none"]),
    default="unit",
    help="Unit diagonal, D^-1/2 K D^-1/2, or none.",
)


def kernels_option(default: str) -> Callable[[_F], _F]:
    """--kernels of a command that has this default."""
    return click.option(
        "--kernels",
        help="Comma-separated: the sets local, paper12 and rbf_bank(M) (M Gaussian kernels of "
        "widths from 0.01 to 100, logarithmically spaced; in quotes for the shell), linear, "
        "cosine, rbf_T (width T times the mean distance), poly_aA_bB. Or factored: INPUT is an "
        "array Z (.npy, .npz, Zarr), or NAME=FILE for each of several, and kernels are Z Zᵀ.  "
        f"[default: {default}]",
    )


def layout_option(default: str) -> Callable[[_F], _F]:
    """--layout of a command; what it is by default, in words."""
    return click.option(
        "--layout",
        type=click.Choice(["auto", "each", "gram"]),
        help="Store each kernel, or one number per pair of samples, of which rbf, poly, linear and "
        "cosine are computed when they are read; auto is gram for two or more of these, unless "
        f"duplicates are merged.  [default: {default}]",
    )


kernel_making_options = options_in_a_row(
    click.option(
        "--max-k",
        "max_clusters",
        metavar="K",
        type=COUNT,
        help="local: clusters that the kernels of a store will be used for, at most.  [default: "
        "50, or -k if that is more]",
    ),
    normalization_option,
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
    layout_option(f"{DEFAULT_LAYOUT}, or {PAPER_LAYOUT} with --paper"),
    click.option(
        "--merge-duplicates",
        metavar="TOL",
        type=float,
        default=0.0,
        help="Kernels that differ nowhere by more than this are stored once; each keeps a weight "
        "of its own.",
    ),
    click.option(
        "--block", type=COUNT, help="Edge of a tile, in samples.  [default: chosen by the plan]"
    ),
)
kernel_options = options_in_a_row(kernels_option(DEFAULT_KERNELS), kernel_making_options)
paper_option = click.option(
    "--paper",
    is_flag=True,
    help="The paper's setting: twelve kernels, random start, Algorithm 1, K-means on V, and texts "
    "as plain TF-IDF. Options that are given win.",
)
clusters_option = click.option(
    "-k", "--clusters", "n_clusters", type=int, required=True, help="Number of clusters."
)
METHOD_PARAMETERS = (
    "n_init", "init", "solver", "inner_iter", "v_steps", "tol", "max_iter", "polish", "laplacian",
    "lam", "gamma", "restart_inner", "assign",
)  # fmt: skip
method_options = options_in_a_row(
    click.option("--n-init", type=int, help="Random restarts; the best one is kept.  [default: 1]"),
    click.option(
        "--init",
        type=click.Choice(["random", "spectral"]),
        help=f"gmkcf, kcf: where to start.  [default: {DEFAULT_INIT}]",
    ),
    click.option(
        "--solver",
        type=click.Choice(["paper", "accelerated"]),
        help="gmkcf, kcf: Algorithm 1, or fewer passes to the same objective.  [default: "
        f"{DEFAULT_SOLVER}]",
    ),
    click.option(
        "--inner-iter",
        type=int,
        help="gmkcf, kcf: (U, V) rounds per iteration  [default: 1]; rmkkm: cluster steps  "
        "[default: 30].",
    ),
    click.option("--v-steps", type=int, help="gmkcf, kcf: V steps per U step.  [default: 1]"),
    click.option(
        "--tol",
        type=float,
        help=f"gmkcf, kcf: stop at this relative change.  [default: {DEFAULT_TOL:g}]",
    ),
    click.option(
        "--max-iter",
        type=int,
        help="Iterations at most.  [default: gmkcf and kcf 500, kkm 100, rmkkm 50, coreg 10]",
    ),
    click.option(
        "--polish/--no-polish",
        default=None,
        help="gmkcf, kcf: solve V exactly at the end, or not.  [default: polish]",
    ),
    click.option(
        "--laplacian",
        type=click.Choice(["symmetric", "unnormalized"]),
        help="sc: which one.  [default: symmetric]",
    ),
    click.option(
        "--assign",
        type=click.Choice(get_args(Assign)),
        help="gmkcf, kcf, sc, coreg: from rows of V or of the embedding to clusters: K-means, "
        "spherical k-means (directions only), or (gmkcf, kcf) the largest entry.  [default: "
        f"{DEFAULT_ASSIGN}]",
    ),
    click.option("--lam", type=float, help="coreg: pull to the consensus.  [default: 0.1]"),
    click.option("--gamma", type=float, help="rmkkm: between 0 and 1.  [default: 0.3]"),
    click.option(
        "--restart-inner/--no-restart-inner",
        default=None,
        help="rmkkm: cluster from random starts after every weight step, or from the last "
        "centres.  [default: the last centres]",
    ),
)
raw_ids_option = click.option(
    "--raw-ids",
    is_flag=True,
    help="Write ids as they are. Without it, ids that begin with = + - @ ' or a tab get an "
    "apostrophe before them in CSV files, so that no spreadsheet program computes them.",
)
which_options = options_in_a_row(
    click.option(
        "--method",
        type=click.Choice(["gmkcf", "kcf", "kkm", "sc", "coreg", "rmkkm"]),
        default="gmkcf",
        help="Multiple kernels: gmkcf, coreg, rmkkm. One kernel: kcf, kkm (kernel k-means), sc "
        "(spectral clustering).",
    ),
    click.option(
        "--kernel",
        help="kcf, kkm, sc: a kernel of the store by name, mean of all, or all for every kernel in "
        "turn, sharing passes over them.  [default: mean]",
    ),
    method_options,
)
fit_options = options_in_a_row(
    clusters_option,
    click.option(
        "--out", type=Location(), required=True, help="Folder for the results, a path or a URL."
    ),
    click.option("--overwrite", is_flag=True, help="Replace the results of another run in --out."),
    raw_ids_option,
    click.option(
        "--resume",
        is_flag=True,
        help="Resume from the checkpoint in --out; without one, start from the beginning. A "
        "finished run stays as it is, with exit code 0.",
    ),
    click.option(
        "--checkpoint-every",
        metavar="ITERATIONS",
        type=COUNT,
        help="gmkcf, kcf, rmkkm, kkm: how often to write a checkpoint into --out.  [default: as "
        "often as it takes a twentieth of the time]",
    ),
    click.option("--seed", type=click.IntRange(min=0), default=0, help="Seed of all randomness."),
    which_options,
)
force_option = click.option(
    "--force", is_flag=True, help="Take over a store whose writer was killed and left it locked."
)


class FactorFiles(str):
    """NAME=FILE arguments; as text their names."""

    files: dict[str, str]

    @classmethod
    def of(cls, files: dict[str, str]) -> FactorFiles:
        made = cls(", ".join(files))
        made.files = files
        return made


def one_or_named(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> str:
    """One path, or NAME=FILE for each of several factors."""
    named = [part.partition("=") for part in value]
    if len(value) == 1 and (not named[0][1] or Path(value[0]).exists()):
        return value[0]
    files: dict[str, str] = {}
    for part, (name, equals, file) in zip(value, named, strict=True):
        if not (name and equals and file):
            raise click.UsageError(
                f"Got unexpected extra argument ({part}): several files are factors, each given as "
                "NAME=FILE",
                ctx,
            )
        if name in files:
            raise click.UsageError(f"{name} is named twice: name each factor once", ctx)
        files[name] = file
    return FactorFiles.of(files)


input_argument = click.argument(
    "input_path", metavar="INPUT", nargs=-1, required=True, callback=one_or_named
)
new_argument = click.argument("new", metavar="NEW", nargs=-1, required=True, callback=one_or_named)


def with_defaults(options: dict[str, Any]) -> dict[str, Any]:
    """Options with the kernels, layout and parameters that stand for those that are not given."""
    usual = PAPER if options["paper"] else DEFAULTS
    kernels = PAPER_KERNELS if options["paper"] else DEFAULT_KERNELS
    layout = PAPER_LAYOUT if options["paper"] else DEFAULT_LAYOUT
    missing = {"kernels": kernels, "layout": layout, **usual}
    return options | {n: value for n, value in missing.items() if options.get(n) is None}


def cluster_config(
    options: dict[str, Any], document: dict[str, Any] | None = None
) -> ClusterConfig:
    """The cluster that the options describe; they win over `document`, the file of --cluster."""
    from gmkcf_dask.cluster.config import ClusterConfig, parse_document
    from gmkcf_dask.cluster.schema import Text
    from gmkcf_dask.cluster.tls import certificates

    where: str | None = options["cluster"]
    if document is not None:
        assert where is not None
        config = parse_document(document, Path(where))
    elif where is None or where in ("threads", "local"):
        config = ClusterConfig(where or "")
    else:
        config = ClusterConfig("address", address=Text(where))
    tls = certificates(options["tls_ca"], options["tls_cert"], options["tls_key"])
    if tls is None and config.certificates is not None:
        files = config.certificates
        names = tuple(f"{where}: gmkcf.tls.{part}" for part in ("ca", "cert", "key"))
        tls = certificates(files.ca, files.cert, files.key, names)
    workers: int | None = options["workers"]
    if workers and config.kind == "mpi":
        raise InputError(
            "--workers is not for a cluster of kind mpi, whose processes are there already: start "
            "two more than that with mpirun -n"
        )
    if options["insecure"] and tls is not None:
        raise InputError(
            "--insecure and certificates do not go together: leave the option out, or the "
            "certificates (tls in a cluster file)"
        )
    minimum = config.minimum
    if workers is not None and minimum is not None:  # no more than --workers allows
        hosts = max(1, len(config.hosts) - 1)  # the first has the scheduler
        minimum = min(minimum, workers * hosts)
    return msgspec.structs.replace(
        config,
        workers=workers or config.workers,
        adaptive=None if workers else config.adaptive,
        minimum=minimum,
        memory=options["memory"] or config.memory,
        certificates=tls,
        insecure=options["insecure"] or config.insecure,
        dashboard=options["dashboard"] or config.dashboard,
        stall_timeout=options["stall_timeout"] or config.stall_timeout,
    )


def store_of(out: Path, storage: str | None) -> Path:
    """Where `gmkcf run` puts the kernels: into the cluster file's storage, or beside results."""
    from gmkcf_dask.store.files import absolute
    from gmkcf_dask.store.object_storage import location

    if not storage:
        return out / "store.zarr"
    return location(f"{storage.rstrip('/')}/{absolute(out).name}.zarr")


@contextmanager
def start_cluster(
    n_samples: int, options: dict[str, Any], *, unchecked: bool = False
) -> Iterator[Resources]:
    """Start the cluster that the options describe."""
    from gmkcf_dask.cluster import start
    from gmkcf_dask.system.temporary import sweep

    with suppress(DiskFullError):  # who needs a temporary folder finds out
        sweep()  # what killed runs left in TMPDIR
    # Dask logs connections that close after the end with a traceback
    logging.getLogger("distributed.batched").setLevel(logging.WARNING)
    config: ClusterConfig = options["cluster_config"]
    if config.wait and sys.stderr.isatty():
        minimum = config.minimum or 1
        workers = f"{minimum} worker{'s' if minimum > 1 else ''}"
        current_output().end_stage()
        click.echo(f"waiting for {workers}, at most {config.wait:g} s", err=True)
    with start(config, n_samples, unchecked=unchecked) as resources:
        if resources.dashboard:
            current_output().end_stage()
            click.echo(f"dashboard: {resources.dashboard}")
        yield resources
