"""A run, from INPUT to run folders: read, plan, start the cluster, build, fit, write results."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from gmkcf_dask.cluster import LazyCluster, Resources, threads
from gmkcf_dask.compute.factor_plan import FactorPlan
from gmkcf_dask.compute.plan import Plan
from gmkcf_dask.errors import InputError, StoreError, redacted
from gmkcf_dask.events import KernelsReady, Listener, PlanMade, RunListener, ignore
from gmkcf_dask.methods.base import MEAN, Method, SingleKernelMethod
from gmkcf_dask.pipeline.fitting import FitOptions, FittedRun, Stopwatch, fit_into, is_finished
from gmkcf_dask.pipeline.planning import disk_to_fill, plan_and_start, plan_fit_and_start
from gmkcf_dask.pipeline.reading import InputOptions, read_request, single_text_in_errors
from gmkcf_dask.pipeline.reports import finish_reports
from gmkcf_dask.results.run_folder import check_run_folder, read_result
from gmkcf_dask.store.build import StorePlace, build_at, look_up
from gmkcf_dask.store.files import is_link, names_in, resolved
from gmkcf_dask.store.kernel_store import KernelStore, delete_store
from gmkcf_dask.store.lock import writing
from gmkcf_dask.store.manifest import is_own_format
from gmkcf_dask.store.request import KernelRequest
from gmkcf_dask.system.disk_space import folder_in_errors


@dataclass(frozen=True)
class RunOptions:
    """One run: what to read, where kernels go, and what to fit."""

    given: InputOptions
    store: Path
    fit: FitOptions
    """Its kernels follow from `kernel` when the input is read."""
    kernel: str | None = None  # of a method that uses one: a name, "mean" or "all"
    replace_store: bool = False  # kernels of other data or parameters, at the place of this run
    force: bool = False  # take over the store of a writer that was killed


@dataclass(frozen=True)
class RunOutcome:
    """What a run came to; of one that was finished before, only its missing reports are made."""

    store: KernelStore | None
    runs: list[FittedRun]
    reports: list[Path]


def run(
    options: RunOptions,
    cluster: LazyCluster,
    listen: RunListener = ignore,
    notes: Sequence[str] = (),
) -> RunOutcome:
    """Cluster an input. `notes` are those of reading and building, which results keep."""
    path, method, watch = options.store, options.fit.method, Stopwatch({})
    with folder_in_errors(path), watch.time("read"):
        request = read_request(options.given, cluster, listen, disk_to_fill(path))
    with single_text_in_errors(options.given.path, request.n_samples):
        method.check_samples(request.n_samples)
    wanted = choose_kernels(options.fit, options.kernel, request.names)
    place, other = _place_of(options, request)
    if wanted.resume and is_finished(wanted, place.store):
        return RunOutcome(place.store, [], finish_reports(wanted, place.store, threads(), listen))
    resources, plan = plan_and_start(request, method.n_clusters, cluster, place, job=wanted.job())
    listen(PlanMade(tuple(plan.lines()), resources.description))
    if other:
        remove_store(path, force=options.force)
    with watch.time("build"):
        store = build(place, request, plan, resources, listen, force=options.force)
    said = tuple(notes)
    listen(KernelsReady(tuple(store.duplicates())))
    runs = fit_into(wanted, store, resources, listen=listen, watch=watch, notes=said)
    return RunOutcome(store, runs, [])


def run_on_store(
    options: FitOptions,
    kernel: str | None,
    store: KernelStore,
    cluster: LazyCluster,
    listen: RunListener = ignore,
    notes: Sequence[str] = (),
) -> RunOutcome:
    """The same on a finished store."""
    wanted = choose_kernels(options, kernel, store.manifest.kernel_names)
    if wanted.resume and is_finished(wanted, store):
        return RunOutcome(store, [], finish_reports(wanted, store, threads(), listen))
    resources, _ = plan_fit_and_start(store, options.method.n_clusters, cluster, wanted.job())
    said = tuple(notes)
    listen(KernelsReady(()))
    return RunOutcome(store, fit_into(wanted, store, resources, listen=listen, notes=said), [])


def choose_kernels(options: FitOptions, kernel: str | None, names: Sequence[str]) -> FitOptions:
    """The options with the kernels to fit on, once the run folder of each is free."""
    chosen = replace(options, kernels=select_kernels(kernel, options.method, names))
    for folder in chosen.folders if len(chosen.folders) > 1 else ():
        check_run_folder(
            folder, overwrite=options.overwrite, resume=options.resume, inside=options.out
        )
    return chosen


def select_kernels(kernel: str | None, method: Method, names: Sequence[str]) -> list[str]:
    """The kernels that a single-kernel method runs on."""
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


def build(
    place: StorePlace,
    request: KernelRequest,
    plan: Plan | FactorPlan,
    resources: Resources,
    listen: Listener = ignore,
    *,
    force: bool = False,
    verify: bool = False,
) -> KernelStore:
    """Build, finish or reuse the store of a request; by force where another build was killed.

    What is damaged of a complete store is repaired; with `verify` all of it is read to find out.
    """
    return build_at(
        place, request, resources.runner, listen, plan.block, force=force, verify=verify
    )


def remove_store(path: Path, *, force: bool = False) -> None:
    """Delete a store, unless somebody is writing into it."""
    with writing(path, force=force):
        delete_store(path)


def _place_of(options: RunOptions, request: KernelRequest) -> tuple[StorePlace, bool]:
    """Where the store of a run is, and whether one of other data is there, to be replaced."""
    path = options.store
    try:
        return look_up(path, request), False
    except StoreError:
        if not options.replace_store or is_link(path) or not is_own_format(path):
            raise
    _refuse_foreign_store(options.fit.out, path)
    return StorePlace(path), True


def _refuse_foreign_store(out: Path, store: Path) -> None:
    """Refuse to replace a store in the storage of a cluster file that is not of a run in `out`.

    Runs of the same name in other folders have their stores under the same name.
    """
    if str(store) == str(out / "store.zarr"):
        return
    path = redacted(str(resolved(store)))
    for folder in (out, *(out / name for name in names_in(out))):  # one for each of many kernels
        with suppress(InputError):  # no run, or one that did not come to its end
            if read_result(folder).store == path:
                return
    raise InputError(
        f"{store} holds kernels of other data or parameters, and no results in {out} come from "
        "it, so it may be another run's: choose another name for --out, give --store, or "
        "remove it"
    )
