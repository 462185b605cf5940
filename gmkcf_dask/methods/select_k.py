"""Choice of k: short runs of KCF for several ks, and three criteria that score each k.

eigengap    how much of the fall of the eigenvalues of D^-½ K_w D^-½ behind the k-th comes at once
stability   whether restarts from other halves of the samples end in the same clusters
silhouette  how clearly the clusters lie apart, in V and in the kernel that separates them best

The V of a run shows the clusters of this run as clumps whether they are real or not. So clusters
are scored in the V of other runs, the next larger ks (`REFERENCES`): fine enough to separate what
this k has merged, while clusters that it has split are split elsewhere there, or not at all. Rows
of V are taken as what they stand for, points Φ U v in kernel space, because Vs of different k can
only be compared there. Clusters are also scored in every kernel on its own, and the best of these
counts: it is enough that one kernel has the right scale.

Heat kernels have a scale for every k, the time at which k clusters are left. There each k is tried
and scored in its own kernels: in those of the largest k all smaller ones look too coarse.

Cost, in sweeps over K_w: the eigenvectors (one for the degrees and, up to 1,000 samples, one more;
above, at most 60) and then as many as the *longest* run of all ks and restarts takes alone: one to
begin with, one or two per iteration, and one at its end. The reference ks have one run each and
share these sweeps. Last, one sweep over all kernels. That holds for blocks that fit into memory
together (`RUNS_BYTES`); more run in groups, one after the other. So do ks with kernels of their
own.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from operator import itemgetter
from typing import Any, Literal, cast, get_args

import numpy as np
import numpy.typing as npt
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score, pairwise_distances

from gmkcf_dask.compute.blas import one_blas_thread
from gmkcf_dask.compute.costs import RUN_BLOCKS, SHARED_BYTES, SILHOUETTE_SAMPLES, Job
from gmkcf_dask.compute.lockstep import SolverSteps, multiply_by, run_in_lockstep, run_solver
from gmkcf_dask.compute.operators import FusedKernel, KernelStack, refuse_extremes
from gmkcf_dask.errors import InputError, NumericsWarning
from gmkcf_dask.events import Listener, StageProgress, ignore
from gmkcf_dask.methods.assign import KMEANS_STARTS, kmeans_labels, place_rows
from gmkcf_dask.methods.base import MEAN, check_whole, fused_kernel, kernel_weights
from gmkcf_dask.methods.factorize import SolverOptions, multiply, symmetric_product
from gmkcf_dask.methods.init import Start, start_from_members
from gmkcf_dask.methods.kcf import kcf
from gmkcf_dask.methods.members import NO_CLUSTER, cluster_sizes, member_matrix
from gmkcf_dask.methods.silhouette import kernel_silhouette, mean_silhouette
from gmkcf_dask.methods.spectral import embed
from gmkcf_dask.methods.spherical import STARTS, normalized_rows, spherical_kmeans
from gmkcf_dask.system.arrays import AnyLabels, Floats, Labels
from gmkcf_dask.system.html import block, paragraph, table, text

Confidence = Literal["clear", "likely", "unsure"]
Rule = Literal["spherical", "kmeans"]
"""From rows to labels, see `assign`."""
StackOf = Callable[[int], KernelStack]

STAGE = "suggest"
DEFAULT_KS = range(2, 16)
RESTARTS = 5
MAX_ITER, TOL = 30, 1e-4
"""Of a run: a guide need not converge."""
SAMPLE_SIZE = SILHOUETTE_SAMPLES
"""Samples that silhouettes in V are computed on, drawn at random where there are more."""
RUNS_BYTES = SHARED_BYTES
"""For the blocks of runs that share sweeps, on the driver."""
_STARTS = 5
_STARTS_OF_ALL = {"kmeans": KMEANS_STARTS, "spherical": STARTS}

BEHIND = 4
"""Eigenvalues behind the k-th that tell how fast they fall where there is no gap."""
REFERENCES = (1, 2)
"""The clusters of k are scored in the V of k + 1 and of k + 2."""
SHARES = {"silhouette": 0.92, "stability": 0.05, "eigengap": 0.03}
"""What each criterion counts in the score. The silhouette decides, the others only where it is
nearly equal: a few groups of clusters are as stable as the clusters themselves, and wide kernels
have an eigengap where the dimensions of the data end. All three tell how sure it is."""
CLEAR_MARGIN = 0.05
NO_SILHOUETTE, CLEAR_SILHOUETTE = 0.4, 0.6
"""One cloud without clusters has about 0.4: a V has clumps of whatever it is made of."""
NEARLY = 0.02
"""A criterion within this of its best value counts as best."""
DOMINANT = 0.8
"""Share of the samples in one cluster beyond which the others are a few outliers."""
CLEAR, LIKELY = 0.7, 0.35
"""From here on a suggestion is called clear, or likely."""
_COLUMNS = ("k", "eigengap", "stability", "silhouette", "score")


@dataclass(frozen=True)
class KSuggestion:
    """Which k to take, how sure that is, and the scores of all ks.

    Attributes
    ----------
    k : int
        The suggestion.
    runner_up : int
    word : {"clear", "likely", "unsure"}
    sure : float
        From 0 to 1.
    why : str
        One sentence.
    ks : tuple of int
    eigengap, stability, silhouette, score : tuple of float
        For every k; the silhouette is the mean of the one in V and the one in the best kernel.
    eigenvalues : tuple of float
        Of D^-½ K_w D^-½, largest first; of the largest k, where each k has kernels of its own.
    n_samples : int
    kernel_weights : dict of str to float
        The weights of K_w.
    """

    k: int
    runner_up: int
    word: Confidence
    sure: float
    why: str
    ks: tuple[int, ...]
    eigengap: tuple[float, ...]
    stability: tuple[float, ...]
    silhouette: tuple[float, ...]
    score: tuple[float, ...]
    eigenvalues: tuple[float, ...] = ()
    n_samples: int = 0
    kernel_weights: Mapping[str, float] | None = None

    def _rows(self) -> list[tuple[Any, ...]]:
        """k, eigengap, stability, silhouette and score of every k."""
        columns = (self.ks, self.eigengap, self.stability, self.silhouette, self.score)
        return list(zip(*columns, strict=True))

    def _mark(self, k: int) -> str:
        return {self.k: "suggested", self.runner_up: "runner-up"}.get(k, "")

    def lines(self) -> list[str]:
        """A short table and the suggestion, for a terminal."""
        lines = [f"{'k':>4}{'eigengap':>11}{'stability':>11}{'silhouette':>12}{'score':>8}"]
        for k, gap, stable, apart, score in self._rows():
            mark = f"  ← {self._mark(k)}" if self._mark(k) else ""
            lines.append(f"{k:>4}{gap:>11.2f}{stable:>11.2f}{apart:>12.2f}{score:>8.2f}{mark}")
        return [*lines, f"k = {self.k}, {self.word} ({self.sure:.2f}): {self.why}"]

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def __repr__(self) -> str:
        return (
            f"KSuggestion(k={self.k}, word={self.word!r}, sure={self.sure:.2f}, "
            f"runner_up={self.runner_up})"
        )

    def _repr_html_(self) -> str:
        rows = [
            (text(k), *(text(f"{value:.2f}") for value in values), text(self._mark(k)))
            for k, *values in self._rows()
        ]
        heads = (*_COLUMNS, "")
        summary = f"k = {self.k}, {self.word} ({self.sure:.2f})"
        return block(summary, paragraph(self.why), table(rows, heads))

    def as_json(self) -> dict[str, Any]:
        """Plain values, as suggest_k.json contains them."""
        return {
            "version": 1,
            "k": self.k,
            "runner_up": self.runner_up,
            "word": self.word,
            "sure": self.sure,
            "why": self.why,
            "ks": [dict(zip(_COLUMNS, row, strict=True)) for row in self._rows()],
            "eigenvalues": list(self.eigenvalues),
            "n_samples": self.n_samples,
            "kernel_weights": dict(self.kernel_weights or {}),
        }


# the runs


@dataclass(frozen=True)
class KTrial:
    """The runs of one k.

    Attributes
    ----------
    labels : tuple of ndarray, each of shape (n,)
        Of every restart, the one of lowest objective first.
    points : ndarray, shape (s, k)
        Samples (the same ones for all k) as points in kernel space, of the first restart.
    """

    labels: tuple[Labels, ...]
    points: Floats


def suggest(
    stack: KernelStack,
    ks: Iterable[int] = DEFAULT_KS,
    *,
    n_restarts: int = RESTARTS,
    seed: int = 0,
    weights: Mapping[str, float] | None = None,
    assign: Rule = "spherical",
    stack_of: StackOf | None = None,
    listen: Listener = ignore,
) -> KSuggestion:
    """Suggest a k for kernels.

    Parameters
    ----------
    stack : KernelStack
    ks : iterable of int
        The default is cut off below the number of samples.
    n_restarts : int
        Runs of KCF for every k, at least two.
    seed : int
    weights : mapping of str to float, optional
        Weights w that GMKCF learned, by name: K_w = Σ w_i² K^i, scaled. The mean of all kernels
        unless given.
    assign : {"spherical", "kmeans"}
        How rows of V become labels.
    stack_of : callable, optional
        The kernels for k clusters, where they are not the same for all ks.
    listen : Listener

    Returns
    -------
    KSuggestion
    """
    n = stack.n_samples
    ks = validate_ks(ks, n)
    validate_restarts(n_restarts)
    validate_rule(assign)
    refuse_extremes(stack)
    used = given_weights(stack, weights)
    # a k that serves as a reference only needs no restarts
    restarts = dict.fromkeys((j for k in ks for j in references_of(k, n)), 1)
    restarts |= dict.fromkeys(ks, n_restarts)
    together = [restarts] if stack_of is None else [{k: restarts[k]} for k in sorted(restarts)]
    streams = np.random.SeedSequence(seed).spawn(max(restarts) + 1)
    drawn = np.random.default_rng(streams[0]).choice(n, min(n, SAMPLE_SIZE), replace=False)
    sample = np.sort(drawn)  # the samples that silhouettes in V are computed on
    trials: dict[int, KTrial] = {}
    gaps: dict[int, float] = {}
    in_kernels: dict[int, float] = {}
    total = sum(restarts.values())
    listen(StageProgress(STAGE, 0, total, unit="runs"))
    with one_blas_thread(), warnings.catch_warnings():
        # a guide: runs are cut off early, and ks that are too large have empty clusters
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.simplefilter("ignore", NumericsWarning)
        for group in together:
            own = [k for k in ks if k in group]
            kernels = stack if stack_of is None else stack_of(max(group))
            done = sum(restarts[k] for k in trials)

            def report(ended: int, done: int = done) -> None:
                listen(StageProgress(STAGE, done + ended, total, unit="runs"))

            with fused_kernel(kernels, used) as kernel:
                values, found = _run_trials(
                    kernel, group, own or list(group), streams, sample, used,
                    kernels.error_floor, assign, listen, report,
                )  # fmt: skip
            trials |= found
            listen(StageProgress(STAGE, sum(restarts[k] for k in trials), total, unit="runs"))
            if own:
                eigenvalues = values
                gaps |= dict(zip(own, eigengaps(values, own), strict=True))
                in_kernels |= _best_kernel_silhouettes(kernels, found, own)
        in_V = silhouettes(trials, ks, sample)
    sizes = (cluster_sizes(trials[k].labels[0], k) for k in ks)
    return recommend(
        ks,
        np.array([gaps[k] for k in ks]),
        np.array([stability(trials[k].labels) for k in ks]),
        (in_V + np.array([in_kernels[k] for k in ks])) / 2,
        np.array([own.max() for own in sizes]) / n,
        eigenvalues=tuple(eigenvalues.tolist()),
        n_samples=n,
        kernel_weights=dict(zip(stack.names, used.tolist(), strict=True)),
    )


def suggestion_job(ks: Sequence[int], n_samples: int, n_restarts: int = RESTARTS) -> Job:
    """The costs of `suggest`, for a plan; ks as `validate_ks` returns them."""
    references = {j for k in ks for j in references_of(k, n_samples)} - set(ks)
    return Job(
        max(*ks, *references),
        STAGE,
        n_init=n_restarts,
        max_iter=MAX_ITER,
        n_columns=n_restarts * sum(ks) + sum(references),
    )


def validate_ks(ks: Iterable[Any], n_samples: int) -> tuple[int, ...]:
    """The ks sorted, each once; the default ones are cut to the samples."""
    if n_samples < 4:
        raise InputError(f"{n_samples} samples are too few to choose a k: at least 4 are needed")
    if isinstance(ks, range) and ks == DEFAULT_KS:
        ks = [k for k in ks if k < n_samples]
    try:
        given = list(ks)
    except TypeError:
        raise InputError(f"ks must be several whole numbers, not {ks!r}") from None
    for k in given:
        if isinstance(k, bool) or not isinstance(k, int | np.integer):
            raise InputError(f"every k must be a whole number, not {k!r}")
    numbers = tuple(sorted({int(k) for k in given}))
    if not numbers:
        raise InputError("ks is empty: give at least two, such as 2 to 12")
    if numbers[0] < 2:
        raise InputError(f"k = {numbers[0]} is too small: every k must be at least 2")
    if numbers[-1] > n_samples:
        raise InputError(
            f"k = {numbers[-1]} is larger than the number of samples, {n_samples}: try smaller ks"
        )
    if len(numbers) == 1:
        raise InputError(f"k = {numbers[0]} is the only k: give at least two to choose from")
    return numbers


def validate_restarts(n_restarts: object) -> None:
    """Reject fewer than two restarts."""
    check_whole(n_restarts=n_restarts)
    if n_restarts == 1:
        raise InputError("n_restarts must be at least 2: stability compares restarts")


def validate_rule(assign: object) -> Rule:
    """Reject what is no rule from rows to labels here."""
    for rule in get_args(Rule):
        if isinstance(assign, str) and assign == rule:
            return cast(Rule, rule)
    raise InputError(f"assign must be one of {', '.join(get_args(Rule))}, not {assign!r}")


def given_weights(stack: KernelStack, learned: Mapping[str, float] | None) -> Floats:
    """The weights of K_w, sum 1, shape (m,)."""
    if learned is None:
        return kernel_weights(stack, MEAN)
    different = sorted(set(learned) ^ set(stack.names))
    if different:
        raise InputError(
            f"the weights belong to other kernels: {different[0]} is not among both; give weights "
            "of a fit on the same kernels"
        )
    w = np.array([learned[name] for name in stack.names], dtype=np.float64)
    if not (np.isfinite(w).all() and w.min() >= 0 and w.max() > 0):
        raise InputError("kernel weights must be finite and not negative, and not all 0")
    return np.asarray(w**2 / np.sum(w**2))


def _run_trials(
    kernel: FusedKernel,
    restarts: Mapping[int, int],
    ks: Sequence[int],
    streams: Sequence[np.random.SeedSequence],
    sample: npt.NDArray[np.intp],
    weights: Floats,
    rounding: float,
    rule: Rule,
    listen: Listener,
    report: Callable[[int], None],
) -> tuple[Floats, dict[int, KTrial]]:
    """Eigenvalues, enough for `ks`; and the runs of every k in `restarts`, by k.

    Every run starts from its own share of the eigenvectors.
    """
    n = len(kernel.diagonal())
    size = min(n, max(ks) + 1 + BEHIND)
    steps = embed(kernel, size, "symmetric", rounding, listen=listen, must_converge=False)
    spectrum = run_solver(steps, kernel)
    runs: dict[int, list[tuple[float, Labels, Floats]]] = {k: [] for k in sorted(restarts)}
    n_restarts = max(restarts.values())
    done = 0
    max_columns = RUNS_BYTES // (8 * RUN_BLOCKS[STAGE] * n * n_restarts)
    for group in group_ks(sorted(restarts, reverse=True), max_columns):
        starts = [
            (k, _seed_of(stream), _half_start(spectrum.vectors[:, :k], stream, rule, full=r == 0))
            for k in group
            for r, stream in enumerate(streams[k].spawn(restarts[k]))
        ]
        generators = [
            _run(kernel, start, k, weights, rounding, own_seed, sample, rule)
            for k, own_seed, start in starts
        ]

        def hear(event: object, done: int = done) -> None:
            if isinstance(event, StageProgress):
                report(done + event.done)

        results = run_in_lockstep(generators, multiply_by(kernel), hear, STAGE)
        for (k, _, _), run in zip(starts, results, strict=True):
            runs[k].append(run)
        done += len(results)
    trials = {}
    for k, ended in runs.items():
        best_first = sorted(ended, key=itemgetter(0))
        trials[k] = KTrial(tuple(labels for _, labels, _ in best_first), best_first[0][2])
    return 1.0 - spectrum.eigenvalues, trials


def _run(
    kernel: FusedKernel,
    start: Start,
    k: int,
    weights: Floats,
    rounding: float,
    seed: int,
    sample: npt.NDArray[np.intp],
    rule: Rule,
) -> SolverSteps[tuple[float, Labels, Floats]]:
    """The objective, labels and points of one short run; all else of size n×k is released."""
    # V is not polished: that takes a small problem for each of the n samples
    options = SolverOptions(
        k, v_steps=5, max_iter=MAX_ITER, tol=TOL, polish=False, solver="accelerated"
    )
    run = yield from kcf(kernel, start, options, weights, rounding)
    KU = yield from multiply(kernel, run.U)
    labels = _labels(run.V, k, seed, rule, _STARTS)
    points = concept_points(run.V[sample], symmetric_product(run.U, KU.full))
    return run.objective, labels, points


def group_ks(ks: Sequence[int], max_sum: int) -> Iterator[list[int]]:
    """Groups of ks whose sum is at most `max_sum`, at least one k in each."""
    group: list[int] = []
    for k in ks:
        if group and sum(group) + k > max_sum:
            yield group
            group = []
        group.append(k)
    yield group


def _labels(rows: Floats, k: int, seed: int, rule: Rule, n_init: int) -> Labels:
    if rule == "kmeans":
        return kmeans_labels(rows, k, seed, n_init)
    return place_rows(rows, rule, spherical_kmeans(rows, k, seed, n_init))[0]


def _half_start(
    vectors: Floats, stream: np.random.SeedSequence, rule: Rule, *, full: bool
) -> Start:
    """A spectral start with clusters of a random half of the samples, or of all.

    One start of K-means only: real clusters show in every half, and where there are none every
    half is cut in another way.
    """
    rows = normalized_rows(vectors)
    n, k = rows.shape
    state = _seed_of(stream)
    half = np.random.default_rng(stream).permutation(n)[: max(k, (n + 1) // 2)]
    if full:
        return start_from_members(rows, _labels(rows, k, state, rule, _STARTS_OF_ALL[rule]))
    if rule == "spherical":
        centres = spherical_kmeans(rows[half], k, state, n_init=1)
        return start_from_members(rows, place_rows(rows, rule, centres)[0])
    model = KMeans(n_clusters=k, n_init=1, random_state=state).fit(rows[half])
    return start_from_members(rows, model.predict(rows))


def _seed_of(stream: np.random.SeedSequence) -> int:
    """A whole number from a stream, for functions that take no streams."""
    return int(stream.generate_state(1)[0])


def _best_kernel_silhouettes(
    stack: KernelStack, trials: Mapping[int, KTrial], ks: Sequence[int]
) -> dict[int, float]:
    """Silhouette of the best clustering of every k in the kernel that separates it best.

    One sweep over all kernels, or a few where the products would not fit into memory.
    """
    n, m = stack.n_samples, len(stack.names)
    diagonals = [stack.diagonal(i) for i in range(m)]
    best: dict[int, float] = {}
    for group in group_ks(ks, min(stack.most_columns, RUNS_BYTES // (8 * (m + 1) * n))):
        labels = [trials[k].labels[0] for k in group]
        members = np.hstack([member_matrix(own, k) for k, own in zip(group, labels, strict=True)])
        products = stack.matmul_each(members)
        for k, end, own in zip(group, np.cumsum(group), labels, strict=True):
            best[k] = max(
                kernel_silhouette(product[:, end - k : end], diagonal, own)
                for product, diagonal in zip(products, diagonals, strict=True)
            )
    return best


# the criteria


def eigengaps(eigenvalues: Floats, ks: Sequence[int], behind: int = BEHIND) -> Floats:
    """(λ_k − λ_{k+1}) / (λ_k − λ_{k+1+behind}) for every k, shape (len(ks),), from 0 to 1.

    The share of the fall from the k-th eigenvalue to the last of the few behind it that comes right
    behind the k-th: 1 where they are all the same from there on, 1 / (behind + 1) on a straight
    line. Plain differences could not be compared between ks: they shrink with the eigenvalues.
    Eigenvalues have shape (c,), largest first; those that are missing at the end count as 0.
    """
    last = max(ks) + 1 + behind
    values = np.concatenate([eigenvalues, np.zeros(max(0, last - len(eigenvalues)))])
    at = np.asarray(ks)
    fall = values[at - 1] - values[at + behind]
    gap = values[at - 1] - values[at]
    # where nothing falls there is no gap either
    return np.asarray(np.where(fall > 1e-12, gap / np.maximum(fall, 1e-12), 0.0).clip(0.0, 1.0))


def stability(labelings: Sequence[AnyLabels]) -> float:
    """Mean adjusted Rand index of all pairs of labelings; 1 where there are no pairs."""
    indices = [float(adjusted_rand_score(a, b)) for a, b in combinations(labelings, 2)]
    return float(np.mean(indices)) if indices else 1.0


def concept_points(V: Floats, UtKU: Floats) -> Floats:
    """Rows of V as points whose distances are those of the Φ U v they stand for, shape (n, k)."""
    values, vectors = np.linalg.eigh(UtKU)
    return np.asarray(V @ (vectors * np.sqrt(np.maximum(values, 0.0))))


def silhouette(distances: Floats, labels: AnyLabels) -> float:
    """Mean silhouette of s samples (Rousseeuw 1987) from their distances, shape (s, s).

    0 for one that is alone, or without others. Samples without a cluster are left out.
    """
    placed = labels != NO_CLUSTER
    if not placed.all():
        distances, labels = distances[np.ix_(placed, placed)], labels[placed]
    used, own = np.unique(labels, return_inverse=True)
    if len(used) < 2:
        return 0.0
    member = np.eye(len(used))[own]
    size, rows = member.sum(axis=0), np.arange(len(own))
    sums = distances @ member
    inside = sums[rows, own] / np.maximum(size[own] - 1, 1)
    means = sums / size
    means[rows, own] = np.inf
    return mean_silhouette(inside, means.min(axis=1), size[own])


def references_of(k: int, n_samples: int) -> tuple[int, ...]:
    """The ks in whose V the clusters of k are scored; none beyond the number of samples."""
    return tuple(k + step for step in REFERENCES if k + step <= n_samples)


def silhouettes(
    trials: Mapping[int, KTrial], ks: Sequence[int], sample: npt.NDArray[np.intp]
) -> Floats:
    """Mean silhouette of the best clustering of every k in the Vs of its references, or 0.

    `trials` has the runs of all ks and of their references; `sample`, shape (s,), are the samples
    that their points belong to. Shape (len(ks),).
    """
    values: dict[int, list[float]] = {k: [] for k in ks}
    for reference, trial in trials.items():
        scored = [k for k in ks if reference in references_of(k, reference)]
        distances = pairwise_distances(trial.points) if scored else np.empty((0, 0))
        for k in scored:
            values[k].append(silhouette(distances, trials[k].labels[0][sample]))
    return np.array([float(np.mean(own)) if own else 0.0 for own in values.values()])


# the suggestion


def combined_score(eigengap: Floats, stability: Floats, silhouette: Floats) -> Floats:
    """The criteria in one number for every k, at most 1, weighted by `SHARES`.

    Silhouettes count relative to the best of them: how large they can be depends on the data.
    """
    best = max(float(silhouette.max()), 1e-12)
    parts = {
        "eigengap": eigengap,
        "stability": np.maximum(stability, 0.0),
        "silhouette": np.maximum(silhouette, 0.0) / best,
    }
    return np.asarray(sum(share * parts[name] for name, share in SHARES.items()))


def recommend(
    ks: Sequence[int],
    eigengap: Floats,
    stability: Floats,
    silhouette: Floats,
    largest: Floats | None = None,
    **about: Any,
) -> KSuggestion:
    """The k of the highest score, how sure that is, and why.

    The confidence is the product of three shares: how far its score is ahead of the next, all of
    it from `CLEAR_MARGIN` on; how far apart the clusters are, from none at a silhouette of
    `NO_SILHOUETTE` to all of it at `CLEAR_SILHOUETTE`; and a half, and the other half by how many
    of the criteria are at their best here.

    Parameters
    ----------
    ks : sequence of int
        At least two, each once, in order.
    eigengap, stability, silhouette : ndarray, shape (len(ks),)
    largest : ndarray, shape (len(ks),), optional
        Share of the samples in the largest cluster. Where that is nearly all, the others are a few
        outliers, which says little about the rest: less sure.
    **about
        Further fields of the suggestion.
    """
    score = combined_score(eigengap, stability, silhouette)
    best, second = (int(i) for i in np.argsort(-score, kind="stable")[:2])
    criteria = {"silhouette": silhouette, "stability": stability, "eigengap": eigengap}
    agree = [name for name, values in criteria.items() if values[best] >= values.max() - NEARLY]
    lead = float(score[best] - score[second])
    above = max(0.0, float(silhouette[best]) - NO_SILHOUETTE)
    apart = min(1.0, above / (CLEAR_SILHOUETTE - NO_SILHOUETTE))
    sure = min(1.0, lead / CLEAR_MARGIN) * apart * (1 + len(agree) / len(criteria)) / 2
    share = 0.0 if largest is None else float(largest[best])
    if share > DOMINANT:
        sure *= (1.0 - share) / (1.0 - DOMINANT)
    word: Confidence = "clear" if sure >= CLEAR else "likely" if sure >= LIKELY else "unsure"

    named = " and ".join(filter(None, [", ".join(agree[:-1]), *agree[-1:]]))
    verb = "are" if len(agree) > 1 else "is"
    why = f"{named} {verb} best here" if agree else "no criterion is best here, only their sum"
    why += f", and the score is {lead:.2f} ahead of k = {ks[second]}"
    if share > DOMINANT:
        why += f"; one cluster has {share:.0%} of the samples and may contain more clusters"
    elif word == "unsure" and silhouette[best] < (NO_SILHOUETTE + CLEAR_SILHOUETTE) / 2:
        why += "; the clusters are barely separated, other ks may fit as well"
    elif word == "unsure":
        why += "; other ks may fit as well"
    if ks[best] in (max(ks), min(ks)) and ks[best] != 2:
        why += "; this is the first or last k that was tried, try more"
    return KSuggestion(
        k=int(ks[best]),
        runner_up=int(ks[second]),
        word=word,
        sure=round(sure, 3),
        why=why,
        ks=tuple(map(int, ks)),
        eigengap=tuple(eigengap.tolist()),
        stability=tuple(stability.tolist()),
        silhouette=tuple(silhouette.tolist()),
        score=tuple(score.tolist()),
        **about,
    )
