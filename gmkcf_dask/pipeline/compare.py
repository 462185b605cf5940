"""All methods with the settings of both presets, on kernels that are made once.

A preset is a set of kernels and the parameters of the methods on it: `local`, the defaults, and
`paper`, the setting of the paper. Kernels of both live in one operator; each preset sees its part.
Methods that use one kernel use the mean of the preset's kernels, which is fused once, and share
the sweeps over it. gmkcf and rmkkm have weights of their own, and coreg works on every kernel.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from typing import Any

from sklearn.exceptions import ConvergenceWarning

from gmkcf_dask.compute.combined import CombinedKernels
from gmkcf_dask.compute.costs import Job, block_bytes, columns_in_flight, method_bytes
from gmkcf_dask.compute.factored import FactoredKernels
from gmkcf_dask.compute.operators import KernelStack, refuse_extremes
from gmkcf_dask.errors import (
    HopelessError,
    InputError,
    NumericsError,
    NumericsWarning,
    PlanRefused,
    WeakClustersWarning,
)
from gmkcf_dask.events import Listener, StageProgress, ignore
from gmkcf_dask.kernels.specs import HEAT, LOCAL, PAPER12, LocalSet
from gmkcf_dask.methods.base import (
    MEAN,
    Clustering,
    Method,
    SingleKernelMethod,
    fused_kernel,
    kernel_weights,
)
from gmkcf_dask.methods.contrast import add_contrast, internal_scores
from gmkcf_dask.methods.defaults import DEFAULT_KERNELS, DEFAULTS, PAPER, PAPER_KERNELS
from gmkcf_dask.methods.registry import METHODS, make_preset_method
from gmkcf_dask.methods.together import fit_together, may_share
from gmkcf_dask.pipeline.fitting import fit
from gmkcf_dask.pipeline.planning import job_of
from gmkcf_dask.pipeline.wordless import Mask, for_all, for_only, only
from gmkcf_dask.results.comparison import ComparedRun, Comparison, agreement_of
from gmkcf_dask.results.metrics import scores
from gmkcf_dask.store.request import KernelRequest

PRESETS: dict[str, Mapping[str, Any]] = {"local": DEFAULTS, "paper": PAPER}
"""Parameters of methods."""
PRESET_KERNELS = {"local": DEFAULT_KERNELS, "paper": PAPER_KERNELS}
_CANNOT_RUN = (HopelessError, NumericsError, PlanRefused)
"""What ends one method and not the comparison."""


def chosen_names(what: str, names: object, known: Sequence[str]) -> tuple[str, ...]:
    """Methods or presets, each once, in the known order; all of them for None.

    >>> chosen_names("methods", ["sc", "kcf"], ["gmkcf", "kcf", "sc"])
    ('kcf', 'sc')
    """
    if names is None:
        return tuple(known)
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise InputError(f"{what} must be a list of names such as {known[0]!r}, not {names!r}")
    for name in names:
        if name not in known:
            raise InputError(f"{what} has {name!r}: choose from {', '.join(known)}")
    if not names:
        raise InputError(f"{what} is empty: choose from {', '.join(known)}")
    return tuple(name for name in known if name in names)


def check_methods(names: object) -> tuple[str, ...]:
    """The methods to compare."""
    return chosen_names("methods", names, tuple(METHODS))


def check_presets(names: object) -> tuple[str, ...]:
    """The presets to compare."""
    return chosen_names("presets", names, tuple(PRESETS))


def kernels_of_presets(presets: Sequence[str]) -> str:
    """The kernels to build for them."""
    return ",".join(PRESET_KERNELS[preset] for preset in presets)


def comparison_job(methods: Sequence[str], presets: Sequence[str], k: int, n: int) -> Job:
    """The job that holds most in memory: a plan for it serves the others."""
    jobs = [job_of(_method(name, preset, k)) for preset in presets for name in methods]
    m = len(PAPER12)

    def held(job: Job) -> int:
        return method_bytes(job, n, m) + block_bytes(n, columns_in_flight(job, n, m))

    return max(jobs, key=held)


def check_clusters(methods: Sequence[str], k: int, n: int) -> None:
    """Refuse, before any work, a k that n samples do not have."""
    for name in methods:
        _method(name, "local", k).check_samples(n)


def without_paper(
    request: KernelRequest, error: PlanRefused
) -> tuple[KernelRequest, tuple[str, ...]]:
    """The request without the paper's kernels, which do not fit, and one sentence on it.

    Kernels of all pairs are too large for many data that local kernels are made for.
    """
    if not (request.tiled and request.factored):
        raise error
    return _local_only(request), (f"the paper's kernels: {error}",)


def _local_only(request: KernelRequest) -> KernelRequest:
    """Without the options of tiles."""
    return replace(
        request,
        specs=(LocalSet(),),
        normalization="unit",
        scaling="minmax",
        merge_duplicates=0.0,
        precision="float32",
        layout="each",
        block=None,
    )


def preset_stacks(stack: KernelStack, presets: Sequence[str]) -> dict[str, KernelStack]:
    """The kernels of each preset that are there: parts of one operator."""
    parts: list[KernelStack] = [stack]
    if isinstance(stack, CombinedKernels):
        parts = [stack.factored, stack.tiled]
    own = {*(spec.name for spec in LOCAL), *(spec.name for spec in HEAT)}
    stacks: dict[str, KernelStack] = {}
    for part in parts:
        if isinstance(part, FactoredKernels) and own.issuperset(part.names):
            stacks["local"] = part
        elif part.names == tuple(spec.name for spec in PAPER12):
            stacks["paper"] = part
    wanted = {preset: stacks[preset] for preset in presets if preset in stacks}
    if not wanted:
        raise InputError(
            f"there are only the kernels {', '.join(stack.names)}, which are not those of "
            f"{' or '.join(presets)}: build the store with --kernels "
            f"{kernels_of_presets(presets)}, or give the data"
        )
    return wanted


def compare_methods(
    stack: KernelStack,
    presets: Sequence[str],
    methods: Sequence[str],
    k: int,
    seed: int = 0,
    *,
    labels: Sequence[str] | None = None,
    skipped: Sequence[str] = (),
    kept: Mask | None = None,
    listen: Listener = ignore,
) -> Comparison:
    """Fit every method to the kernels of every preset, and measure all labels alike.

    Parameters
    ----------
    stack : KernelStack
        Kernels of one preset or several, see `preset_stacks`.
    presets, methods : sequence of str
    k, seed : int
    labels : sequence of str, optional
        Known ones, for scores.
    skipped : sequence of str
        What could not be made, in one sentence each.
    kept : ndarray of bool, shape (n,), optional
        Which samples take part; see `wordless`.
    listen : Listener

    Returns
    -------
    Comparison
        What one method cannot do is a sentence in `skipped`; refused only where none can run.
    """
    stacks = preset_stacks(stack, presets)
    sentences = list(skipped) or [
        f"{preset}: the store does not have its kernels"
        for preset in presets
        if preset not in stacks
    ]
    runs: list[ComparedRun] = []
    failed = None
    total = len(stacks) * len(methods)
    shared: dict[tuple[str, str], tuple[Clustering, float]] = {}
    for preset, part in stacks.items():
        found = _together(part, preset, methods, k, seed, kept, listen)
        shared |= {(preset, name): one for name, one in found.items()}
    for done, (preset, name) in enumerate(product(stacks, methods), 1):
        try:
            one = shared.get((preset, name))
            if one is None:
                one = _alone(stacks[preset], _method(name, preset, k), seed, kept, listen)
            runs.append(_compared(name, preset, *one, labels))
        except _CANNOT_RUN as error:
            failed = error
            sentences.append(f"{name}_{preset}: {error}")
        listen(StageProgress("compare", done, total, unit="runs"))
    if not runs:
        assert failed is not None
        raise failed
    labelings = [run.labels for run in runs]
    measured = {preset: _internal(part, labelings, k) for preset, part in stacks.items()}
    return Comparison(
        tuple(
            replace(
                run,
                contrast={preset: values[i][0] for preset, values in measured.items()},
                silhouette={preset: values[i][1] for preset, values in measured.items()},
            )
            for i, run in enumerate(runs)
        ),
        agreement_of(labelings),
        len(labelings[0]),
        k,
        seed,
        {preset: part.names for preset, part in stacks.items()},
        tuple(sentences),
    )


def _together(
    stack: KernelStack,
    preset: str,
    names: Sequence[str],
    k: int,
    seed: int,
    kept: Mask | None,
    listen: Listener,
) -> dict[str, tuple[Clustering, float]]:
    """What methods of one kernel find, sharing sweeps; nothing where they have to run alone."""
    methods = {name: _method(name, preset, k) for name in names}
    single = {n: m for n, m in methods.items() if isinstance(m, SingleKernelMethod)}
    own = only(stack, kept)
    if not may_share(list(single.values()), own.n_samples):
        return {}
    try:
        refuse_extremes(own)
        for method in single.values():
            for_only(method, kept)
        with _quiet():
            found = fit_together(own, list(single.values()), seed)
            return {
                name: (for_all(add_contrast(own, method, clustering), kept), seconds)
                for (name, method), (clustering, seconds) in zip(single.items(), found, strict=True)
            }
    except _CANNOT_RUN:  # one of them, and alone it says so
        return {}


def _alone(
    stack: KernelStack, method: Method, seed: int, kept: Mask | None, listen: Listener
) -> tuple[Clustering, float]:
    begun = time.perf_counter()
    with _quiet():
        (found,) = fit(stack, method, [seed], (MEAN,), listen, kept=kept)
    return found, time.perf_counter() - begun


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the warnings that columns of the table stand for."""
    with warnings.catch_warnings():
        for category in (ConvergenceWarning, NumericsWarning, WeakClustersWarning):
            warnings.simplefilter("ignore", category)
        yield


def _compared(
    name: str, preset: str, found: Clustering, seconds: float, labels: Sequence[str] | None
) -> ComparedRun:
    return ComparedRun(
        name,
        preset,
        found.labels,
        found.n_iter,
        found.converged,
        seconds,
        scores={} if labels is None else scores(labels, found.labels),
    )


def _internal(
    stack: KernelStack, labelings: Sequence[Any], k: int
) -> list[tuple[float | None, float | None]]:
    """Of all labels, in the mean of the kernels."""
    with fused_kernel(stack, kernel_weights(stack, MEAN)) as kernel:
        return internal_scores(kernel, labelings, k, stack.error_floor)


def _method(name: str, preset: str, k: int) -> Method:
    return make_preset_method(name, PRESETS[preset], n_clusters=k)
