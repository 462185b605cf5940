"""Choice of k: what speaks for each of several ks, and which of them to suggest. No kernels here.

Three criteria, each of which has a say in the score:

eigengap    how much of the fall of the eigenvalues of D^-½ K_w D^-½ behind the k-th comes at once
stability   whether restarts from other halves of the samples end in the same clusters
silhouette  how clearly the clusters lie apart, in V and in the kernel that sees them best

The V of a run shows the clusters of this run as clumps whether they are real or not. So clusters
are judged in the V of other runs, of `JUDGES`, the next larger ks: fine enough to see apart what
this k has merged, while clusters that it has split are split elsewhere there, or not at all. Rows
of V are taken as what they stand for, points Φ U v in kernel space, for Vs of different k can be
compared only there. Beside that clusters are judged in every kernel of its own, and the best of
these counts: it is enough that one kernel has the right scale.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from sklearn.metrics import adjusted_rand_score, pairwise_distances

from gmkcf_dask.errors import InputError
from gmkcf_dask.notebook import block, paragraph, table, text

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.integer[Any]]
Word = Literal["clear", "likely", "unsure"]

BEHIND = 4
"""Eigenvalues behind the k-th that tell how fast they fall where there is no gap."""
JUDGES = (1, 2)
"""The clusters of k are judged in the V of k + 1 and of k + 2."""
SHARES = {"silhouette": 0.92, "stability": 0.05, "eigengap": 0.03}
"""What each criterion counts in the score. The silhouette decides, the others only where it is
nearly equal: a few groups of clusters are as stable as the clusters themselves, and wide kernels
have an eigengap where the dimensions of the data end. All three tell how sure it is."""


@dataclass(frozen=True)
class Judged:
    """What the runs of one k came to.

    Attributes
    ----------
    k : int
    labels : tuple of ndarray, each of shape (n,)
        Of every restart, the one of lowest objective first.
    points : ndarray, shape (s, k)
        Samples (the same ones for all k) as points in kernel space, of the first restart.
    """

    k: int
    labels: tuple[Labels, ...]
    points: Floats


def eigengaps(eigenvalues: Floats, ks: Sequence[int], behind: int = BEHIND) -> Floats:
    """(λ_k − λ_{k+1}) / (λ_k − λ_{k+1+behind}) for every k, shape (len(ks),), from 0 to 1.

    The share of the fall from the k-th eigenvalue to the last of the few behind it that comes right
    behind the k-th: 1 where they are all the same from there on, 1 / (behind + 1) on a straight
    line. Plain differences could not be compared between ks: they shrink with the eigenvalues.

    Parameters
    ----------
    eigenvalues : ndarray, shape (c,)
        Largest first; those that are missing at the end count as 0.
    """
    last = max(ks) + 1 + behind
    values = np.concatenate([eigenvalues, np.zeros(max(0, last - len(eigenvalues)))])
    at = np.asarray(ks)
    fall = values[at - 1] - values[at + behind]
    gap = values[at - 1] - values[at]
    # where nothing falls there is no gap either
    return np.asarray(np.where(fall > 1e-12, gap / np.maximum(fall, 1e-12), 0.0).clip(0.0, 1.0))


def stability(labelings: Sequence[Labels]) -> float:
    """Mean adjusted Rand index of all pairs of labelings; 1 where there are no pairs."""
    found = [float(adjusted_rand_score(a, b)) for a, b in combinations(labelings, 2)]
    return float(np.mean(found)) if found else 1.0


def concept_points(V: Floats, UtKU: Floats) -> Floats:
    """Rows of V as points whose distances are those of the Φ U v they stand for, shape (n, k).

    Parameters
    ----------
    V : ndarray, shape (n, k)
    UtKU : ndarray, shape (k, k)
    """
    values, vectors = np.linalg.eigh(UtKU)
    return np.asarray(V @ (vectors * np.sqrt(np.maximum(values, 0.0))))


def silhouette(distances: Floats, labels: Labels) -> float:
    """Mean silhouette of samples (Rousseeuw 1987); 0 for one that is alone, or without others.

    Parameters
    ----------
    distances : ndarray, shape (s, s)
    labels : ndarray of int, shape (s,)
    """
    used, labels = np.unique(labels, return_inverse=True)
    if len(used) < 2:
        return 0.0
    member = np.eye(len(used))[labels]
    size, rows = member.sum(axis=0), np.arange(len(labels))
    sums = distances @ member
    inside = sums[rows, labels] / np.maximum(size[labels] - 1, 1)
    means = sums / size
    means[rows, labels] = np.inf
    return _mean_silhouette(inside, means.min(axis=1), size[labels])


def kernel_silhouette(KH: Floats, diagonal: Floats, labels: Labels) -> float:
    """Mean silhouette of all samples in a kernel's own space, by mean *squared* distances.

    These follow from products of the kernel with the indicator of the clusters.

    Parameters
    ----------
    KH : ndarray, shape (n, k)
        K H, where H_jc is 1 for the samples j of cluster c and 0 elsewhere.
    diagonal : ndarray, shape (n,)
        Of K.
    labels : ndarray of int, shape (n,)
    """
    k, rows = KH.shape[1], np.arange(len(labels))
    size = np.bincount(labels, minlength=k).astype(np.float64)
    lengths = np.bincount(labels, weights=diagonal, minlength=k)
    used = np.maximum(size, 1.0)
    means = np.maximum(diagonal[:, None] + lengths / used - 2 * KH / used, 0.0)
    inside = means[rows, labels] * size[labels] / np.maximum(size[labels] - 1, 1)
    means[:, size == 0] = np.inf
    means[rows, labels] = np.inf
    return _mean_silhouette(inside, means.min(axis=1), size[labels])


def _mean_silhouette(inside: Floats, outside: Floats, size: Floats) -> float:
    """From mean distances to the own and to the next cluster, shape (s,); 0 for one alone."""
    larger = np.maximum(inside, outside)
    judged = (larger > 0) & np.isfinite(larger) & (size > 1)
    gain = np.where(judged, outside, 0.0) - np.where(judged, inside, 0.0)
    return float(np.mean(gain / np.where(judged, larger, 1.0)))


def judges_of(k: int, n_samples: int) -> tuple[int, ...]:
    """The ks in whose V the clusters of k are judged; none beyond the number of samples."""
    return tuple(k + step for step in JUDGES if k + step <= n_samples)


def silhouettes(
    judged: Mapping[int, Judged], ks: Sequence[int], sample: npt.NDArray[np.intp]
) -> Floats:
    """Mean silhouette of the best clustering of every k in the Vs of its judges; 0 without any.

    Parameters
    ----------
    judged : mapping of int to Judged
        The runs of all ks and of their judges, by k.
    ks : sequence of int
    sample : ndarray of int, shape (s,)
        Which samples the points are of.

    Returns
    -------
    ndarray, shape (len(ks),)
    """
    found: dict[int, list[float]] = {k: [] for k in ks}
    for judge, one in judged.items():
        heard = [k for k in ks if judge in judges_of(k, judge)]
        distances = pairwise_distances(one.points) if heard else np.empty((0, 0))
        for k in heard:
            found[k].append(silhouette(distances, judged[k].labels[0][sample]))
    return np.array([float(np.mean(values)) if values else 0.0 for values in found.values()])


@dataclass(frozen=True)
class KSuggestion:
    """Which k to take, how sure that is, and what speaks for each of the others.

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
        Of D^-½ K_w D^-½, largest first.
    n_samples : int
    kernel_weights : dict of str to float
        What K_w was made with.
    """

    k: int
    runner_up: int
    word: Word
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

    def lines(self) -> list[str]:
        """A short table and the suggestion, for a terminal."""
        rows = [f"{'k':>4}{'eigengap':>11}{'stability':>11}{'silhouette':>12}{'score':>8}"]
        columns = (self.ks, self.eigengap, self.stability, self.silhouette, self.score)
        for k, gap, stable, apart, score in zip(*columns, strict=True):
            mark = {self.k: "  ← suggested", self.runner_up: "  ← runner-up"}.get(k, "")
            rows.append(f"{k:>4}{gap:>11.2f}{stable:>11.2f}{apart:>12.2f}{score:>8.2f}{mark}")
        return [*rows, f"k = {self.k}, {self.word} ({self.sure:.2f}): {self.why}"]

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def __repr__(self) -> str:
        return (
            f"KSuggestion(k={self.k}, word={self.word!r}, sure={self.sure:.2f}, "
            f"runner_up={self.runner_up})"
        )

    def _repr_html_(self) -> str:
        columns = (self.eigengap, self.stability, self.silhouette, self.score)
        marks = {self.k: "suggested", self.runner_up: "runner-up"}
        rows = [
            (text(k), *(text(f"{value:.2f}") for value in values), text(marks.get(k, "")))
            for k, *values in zip(self.ks, *columns, strict=True)
        ]
        heads = ("k", "eigengap", "stability", "silhouette", "score", "")
        said = f"k = {self.k}, {self.word} ({self.sure:.2f})"
        return block(said, paragraph(self.why), table(rows, heads))

    def as_json(self) -> dict[str, Any]:
        """Plain values, as suggest_k.json has them."""
        columns = (self.ks, self.eigengap, self.stability, self.silhouette, self.score)
        names = ("k", "eigengap", "stability", "silhouette", "score")
        return {
            "version": 1,
            "k": self.k,
            "runner_up": self.runner_up,
            "word": self.word,
            "sure": self.sure,
            "why": self.why,
            "ks": [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)],
            "eigenvalues": list(self.eigenvalues),
            "n_samples": self.n_samples,
            "kernel_weights": dict(self.kernel_weights or {}),
        }


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


CLEAR_MARGIN = 0.05
NO_SILHOUETTE, CLEAR_SILHOUETTE = 0.4, 0.6
"""One cloud without clusters has about 0.4: a V has clumps of whatever it is made of."""
NEARLY = 0.02
"""A criterion within this of its best value counts as best."""
MOST_OF_IT = 0.8
"""Share of the samples in one cluster beyond which the others are a few that stand out."""
CLEAR, LIKELY = 0.7, 0.35
"""From here on a suggestion is called clear, or likely."""


def how_sure(eigengap: Floats, stability: Floats, silhouette: Floats) -> tuple[float, list[str]]:
    """How sure the k of best score is, from 0 to 1, and the criteria that are best at it as well.

    The product of three shares: how far its score is ahead of the next, all of it from
    `CLEAR_MARGIN` on; how far apart the clusters are, from none at a silhouette of `NO_SILHOUETTE`
    to all of it at `CLEAR_SILHOUETTE`; and a half, and the other half by how many of the criteria
    are at their best here.
    """
    score = combined_score(eigengap, stability, silhouette)
    best, second = np.argsort(-score, kind="stable")[:2]
    criteria = {"silhouette": silhouette, "stability": stability, "eigengap": eigengap}
    agree = [name for name, values in criteria.items() if values[best] >= values.max() - NEARLY]
    margin = min(1.0, float(score[best] - score[second]) / CLEAR_MARGIN)
    above = float(silhouette[best]) - NO_SILHOUETTE
    apart = min(1.0, max(0.0, above) / (CLEAR_SILHOUETTE - NO_SILHOUETTE))
    return margin * apart * (1 + len(agree) / len(criteria)) / 2, agree


def recommend(
    ks: Sequence[int],
    eigengap: Floats,
    stability: Floats,
    silhouette: Floats,
    largest: Floats | None = None,
    **about: Any,
) -> KSuggestion:
    """The k of the highest score, how sure that is, and why.

    Parameters
    ----------
    ks : sequence of int
        At least two, each once, in order.
    eigengap, stability, silhouette : ndarray, shape (len(ks),)
    largest : ndarray, shape (len(ks),), optional
        Share of the samples that the largest cluster has. Where that is nearly all, the others are
        a few that stand out, which says little about the rest: less sure.
    **about
        Further fields of the suggestion.
    """
    score = combined_score(eigengap, stability, silhouette)
    order = np.argsort(-score, kind="stable")
    best, second = int(order[0]), int(order[1])
    sure, agree = how_sure(eigengap, stability, silhouette)
    share = 0.0 if largest is None else float(largest[best])
    if share > MOST_OF_IT:
        sure *= (1.0 - share) / (1.0 - MOST_OF_IT)
    word: Word = "clear" if sure >= CLEAR else "likely" if sure >= LIKELY else "unsure"
    return KSuggestion(
        k=int(ks[best]),
        runner_up=int(ks[second]),
        word=word,
        sure=round(sure, 3),
        why=_why(ks, best, second, agree, score, silhouette, word, share),
        ks=tuple(map(int, ks)),
        eigengap=tuple(eigengap.tolist()),
        stability=tuple(stability.tolist()),
        silhouette=tuple(silhouette.tolist()),
        score=tuple(score.tolist()),
        **about,
    )


def _why(
    ks: Sequence[int],
    best: int,
    second: int,
    agree: Sequence[str],
    score: Floats,
    silhouette: Floats,
    word: Word,
    share: float,
) -> str:
    named = " and ".join(filter(None, [", ".join(agree[:-1]), *agree[-1:]]))
    verb = "are" if len(agree) > 1 else "is"
    said = f"{named} {verb} best here" if agree else "no criterion is best here, only their sum is"
    lead = score[best] - score[second]
    said += f", and the score is {lead:.2f} ahead of k = {ks[second]}"
    if share > MOST_OF_IT:
        said += f"; one cluster has {share:.0%} of the samples, inside it there may be more"
    elif word == "unsure" and silhouette[best] < (NO_SILHOUETTE + CLEAR_SILHOUETTE) / 2:
        said += "; the clusters hardly lie apart, other ks may serve as well"
    elif word == "unsure":
        said += "; other ks may serve as well"
    if ks[best] in (max(ks), min(ks)) and ks[best] != 2:
        said += "; it is at the end of the ks that were tried, try further ones"
    return said


def refuse_bad_ks(ks: Sequence[Any], n_samples: int) -> tuple[int, ...]:
    """The ks as sorted whole numbers, each once, or a sentence that says what is wrong."""
    wrong = [k for k in ks if isinstance(k, bool) or not isinstance(k, int | np.integer)]
    if wrong:
        raise InputError(f"every k must be a whole number, not {wrong[0]!r}")
    found = tuple(sorted({int(k) for k in ks}))
    if not found:
        raise InputError("there are no ks to choose from: give at least two, such as 2 to 12")
    if found[0] < 2:
        raise InputError(f"k = {found[0]} cannot be judged: every k must be at least 2")
    if found[-1] > n_samples:
        raise InputError(
            f"k = {found[-1]} is more than the {n_samples} samples there are: try smaller ks"
        )
    if len(found) == 1:
        raise InputError(
            f"k = {found[0]} is the only one: there is nothing to choose, give at least two ks"
        )
    return found
