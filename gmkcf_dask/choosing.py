"""Several ks from one set of kernels: the runs behind `suggest_k`, sharing every sweep.

Cost, in sweeps over K_w: the eigenvectors (one for the degrees and, up to 1,000 samples, one more;
above, at most 60) and then as many as the *longest* run of all ks and restarts takes alone: one to
begin with, one or two per iteration, and one at its end. The two ks beyond each k, in whose V its
clusters are judged, have one run and share these sweeps. At last one sweep over all kernels. That
is for blocks that fit into memory together (`GROUP_BYTES`); more go in groups, one after the other.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning

from gmkcf_dask.blas import one_blas_thread
from gmkcf_dask.engine.operators import FusedKernel, KernelStack
from gmkcf_dask.errors import InputError, NumericsWarning
from gmkcf_dask.events import Listener, StageProgress, ignore
from gmkcf_dask.methods.assign import kmeans_labels
from gmkcf_dask.methods.base import MEAN, Method, check_whole, kernel_weights
from gmkcf_dask.methods.choose_k import (
    BEHIND,
    Judged,
    KSuggestion,
    concept_points,
    eigengaps,
    judges_of,
    kernel_silhouette,
    recommend,
    refuse_bad_ks,
    silhouettes,
    stability,
)
from gmkcf_dask.methods.factorize import Floats, SolverOptions, multiply, symmetric_product
from gmkcf_dask.methods.init import Start, start_from_members
from gmkcf_dask.methods.kcf import kcf
from gmkcf_dask.methods.spectral import embed, unit_rows
from gmkcf_dask.methods.steps import Steps, alone, on_kernel, together
from gmkcf_dask.workflow import refuse_extremes

STAGE = "suggest"
DEFAULT_KS = range(2, 16)
RESTARTS = 5
MAX_ITER, TOL = 30, 1e-4
"""Of a run: a guide need not converge."""
MOST_JUDGED = 2000
"""Samples that silhouettes are taken of, drawn from the seed where there are more."""
GROUP_BYTES = 1 << 30
"""For the blocks of runs that go together, on the driver."""
_BLOCKS = 8
"""Blocks of n×k numbers that a run holds."""
_KMEANS_STARTS = 5


@dataclass(frozen=True)
class Look:
    """What is kept of a run: labels, shape (n,), and points of the sample, shape (s, k)."""

    objective: float
    labels: npt.NDArray[np.int32]
    points: Floats


def suggest(
    stack: KernelStack,
    ks: Sequence[int] = DEFAULT_KS,
    *,
    n_restarts: int = RESTARTS,
    seed: int = 0,
    weights: Mapping[str, float] | None = None,
    listen: Listener = ignore,
) -> KSuggestion:
    """Suggest a k for kernels.

    Parameters
    ----------
    stack : KernelStack
    ks : sequence of int
        The default is cut off below the number of samples.
    n_restarts : int
        Runs of KCF for every k, at least two.
    seed : int
    weights : mapping of str to float, optional
        Weights w that GMKCF learned, by name: K_w = Σ w_i² K^i, scaled. The mean of all kernels
        unless given.
    listen : Listener

    Returns
    -------
    KSuggestion
    """
    ks = checked_ks(ks, stack.n_samples)
    check_whole(n_restarts=n_restarts)
    if n_restarts < 2:
        raise InputError("n_restarts must be at least 2: stability is the agreement of restarts")
    refuse_extremes(stack)
    used = fused_weights(stack, weights)
    kernel = stack.fuse(used)
    try:
        with one_blas_thread(), warnings.catch_warnings():
            # a guide: runs are cut off early, and ks that are too large have empty clusters
            warnings.simplefilter("ignore", ConvergenceWarning)
            warnings.simplefilter("ignore", NumericsWarning)
            found = _looks(kernel, ks, n_restarts, seed, used, stack.error_floor, listen)
            in_V = silhouettes(found.judged, ks, found.sample)
            in_kernels = _best_kernel_silhouettes(stack, found.judged, ks)
    finally:
        kernel.release()
    return recommend(
        ks,
        eigengaps(found.eigenvalues, ks),
        np.array([stability(found.judged[k].labels) for k in ks]),
        (in_V + in_kernels) / 2,
        np.array([np.bincount(found.judged[k].labels[0]).max() for k in ks]) / stack.n_samples,
        eigenvalues=tuple(found.eigenvalues.tolist()),
        n_samples=stack.n_samples,
        kernel_weights=dict(zip(stack.names, used.tolist(), strict=True)),
    )


class Choice(Method):
    """The ks that are asked for, in the place of a method while kernels are planned and made.

    Which of the default ks there are is known with the number of samples.
    """

    name = "suggest"

    def __init__(self, ks: Iterable[int]) -> None:
        try:
            self.ks: Sequence[int] = ks if isinstance(ks, range) else tuple(ks)
        except TypeError:
            raise InputError(f"ks must be several whole numbers, not {ks!r}") from None

    def check_samples(self, n: int) -> None:
        self.ks = checked_ks(self.ks, n)
        self.n_clusters = max(self.ks)


def checked_ks(ks: Sequence[int], n_samples: int) -> tuple[int, ...]:
    """The ks in order, refused where they cannot be; the default ones are cut to the samples."""
    if n_samples < 4:
        raise InputError(f"{n_samples} samples are too few to choose a k for: there must be 4")
    if isinstance(ks, range) and ks == DEFAULT_KS:
        ks = [k for k in ks if k < n_samples]
    return refuse_bad_ks(tuple(ks), n_samples)


def fused_weights(stack: KernelStack, learned: Mapping[str, float] | None) -> Floats:
    """What K_w is made with, sum 1, shape (m,)."""
    if learned is None:
        return kernel_weights(stack, MEAN)
    if set(learned) != set(stack.names):
        other = sorted(set(learned) ^ set(stack.names))
        raise InputError(f"the weights are of other kernels than these, they differ in {other[0]}")
    w = np.array([learned[name] for name in stack.names], dtype=np.float64)
    if not (np.isfinite(w).all() and w.min() >= 0 and w.max() > 0):
        raise InputError("kernel weights must be finite and not negative, and not all 0")
    return np.asarray(w**2 / np.sum(w**2))


@dataclass(frozen=True)
class _Found:
    eigenvalues: Floats
    judged: dict[int, Judged]
    sample: npt.NDArray[np.intp]


def _looks(
    kernel: FusedKernel,
    ks: Sequence[int],
    n_restarts: int,
    seed: int,
    weights: Floats,
    rounding: float,
    listen: Listener,
) -> _Found:
    """Eigenvectors, then all runs of all ks and judges, each started from its share of them."""
    n = len(kernel.diagonal())
    wanted = min(n, max(ks) + 1 + BEHIND)
    steps = embed(kernel, wanted, "symmetric", rounding, listen=listen, must_converge=False)
    spectrum = alone(steps, kernel)
    # a k that is there as a judge only needs no restarts
    restarts = dict.fromkeys((j for k in ks for j in judges_of(k, n)), 1)
    restarts |= dict.fromkeys(ks, n_restarts)
    streams = np.random.SeedSequence(seed).spawn(max(restarts) + 1)
    sample = _sample(n, streams[0])
    looks: dict[int, list[Look]] = {k: [] for k in sorted(restarts)}
    done, total = 0, sum(restarts.values())

    def heard(event: object, before: int) -> None:
        if isinstance(event, StageProgress):
            listen(StageProgress(STAGE, before + event.done, total, unit="runs"))

    most = GROUP_BYTES // (8 * _BLOCKS * n * n_restarts)
    for group in within(sorted(restarts, reverse=True), most):
        starts = [
            (k, seed_of(stream), half_start(spectrum.vectors[:, :k], stream, whole=r == 0))
            for k in group
            for r, stream in enumerate(streams[k].spawn(restarts[k]))
        ]
        runs = [_look(kernel, start, k, weights, rounding, own, sample) for k, own, start in starts]
        ends = together(runs, on_kernel(kernel), partial(heard, before=done), STAGE)
        for (k, _, _), look in zip(starts, ends, strict=True):
            looks[k].append(look)
        done += len(runs)
    judged = {}
    for k, ended in looks.items():
        best_first = sorted(ended, key=lambda look: look.objective)
        labels = tuple(look.labels for look in best_first)
        judged[k] = Judged(k, labels, best_first[0].points)
    return _Found(1.0 - spectrum.eigenvalues, judged, sample)


def _look(
    kernel: FusedKernel,
    start: Start,
    k: int,
    weights: Floats,
    rounding: float,
    seed: int,
    sample: npt.NDArray[np.intp],
) -> Steps[Look]:
    """One short run, and what is kept of it; everything of size n×k goes with it."""
    # V is not polished: that takes a small problem for each of the n samples
    options = SolverOptions(
        k, v_steps=5, max_iter=MAX_ITER, tol=TOL, polish=False, solver="accelerated"
    )
    run = yield from kcf(kernel, start, options, weights, rounding)
    KU = yield from multiply(kernel, run.U)
    labels = kmeans_labels(run.V, k, seed, _KMEANS_STARTS)
    points = concept_points(run.V[sample], symmetric_product(run.U, KU.full))
    return Look(run.objective, labels, points)


def _best_kernel_silhouettes(
    stack: KernelStack, judged: Mapping[int, Judged], ks: Sequence[int]
) -> Floats:
    """Silhouette of the best clustering of every k in the kernel that sees it best.

    One sweep over all kernels, or a few where the products would not fit into memory.
    """
    n, m = stack.n_samples, len(stack.names)
    diagonals = [stack.diagonal(i) for i in range(m)]
    best: dict[int, float] = {}
    most = min(stack.most_columns, GROUP_BYTES // (8 * (m + 1) * n))
    for group in within(ks, most):
        labels = [judged[k].labels[0] for k in group]
        members = np.hstack([np.eye(k)[own] for k, own in zip(group, labels, strict=True)])
        products = stack.matmul_each(members)
        ends = np.cumsum(group)
        for k, end, own in zip(group, ends, labels, strict=True):
            best[k] = max(
                kernel_silhouette(product[:, end - k : end], diagonal, own)
                for product, diagonal in zip(products, diagonals, strict=True)
            )
    return np.array([best[k] for k in ks])


def within(ks: Sequence[int], most: int) -> Iterator[list[int]]:
    """Ks whose sum is at most `most`, at least one in each group."""
    group: list[int] = []
    for k in ks:
        if group and sum(group) + k > most:
            yield group
            group = []
        group.append(k)
    yield group


def half_start(vectors: Floats, stream: np.random.SeedSequence, *, whole: bool) -> Start:
    """A spectral start whose clusters were found on a random half of the samples, or on all.

    One start of K-means only: where the clusters are really there every half shows them, and where
    they are not, every half is cut in another way.
    """
    rows = unit_rows(vectors)
    n, k = rows.shape
    state = seed_of(stream)
    some = np.random.default_rng(stream).permutation(n)[: max(k, (n + 1) // 2)]
    if whole:
        return start_from_members(rows, kmeans_labels(rows, k, state))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = KMeans(n_clusters=k, n_init=1, random_state=state).fit(rows[some])
    return start_from_members(rows, model.predict(rows))


def _sample(n: int, stream: np.random.SeedSequence) -> npt.NDArray[np.intp]:
    """The samples that are judged, in order."""
    if n <= MOST_JUDGED:
        return np.arange(n)
    return np.sort(np.random.default_rng(stream).choice(n, MOST_JUDGED, replace=False))


def seed_of(stream: np.random.SeedSequence) -> int:
    """A whole number from a stream, for what takes no streams."""
    return int(stream.generate_state(1)[0])
