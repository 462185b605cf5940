"""What a clustering means, as one plain dict: all that a report shows, and nothing of size n×n.

The dict is JSON as it stands. Texts of the samples are in it as they came: whoever puts them on a
page has to escape them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from gmkcf_dask.engine.operators import KernelStack
from gmkcf_dask.events import Listener, StageProgress, ignore
from gmkcf_dask.kernels.features import Features
from gmkcf_dask.kernels.manifest import package_versions
from gmkcf_dask.methods.base import Clustering, Method
from gmkcf_dask.redact import redacted, redacted_tree
from gmkcf_dask.results.checkpoints import plain
from gmkcf_dask.results.document_map import SENTENCE, document_map
from gmkcf_dask.results.kernel_view import KernelView, group_samples, near_kernels, view_kernels
from gmkcf_dask.results.meaning import (
    Profile,
    Term,
    cluster_terms,
    concept_terms,
    has_words,
    read_profile,
)
from gmkcf_dask.results.membership import (
    CLEAR,
    Membership,
    fused_weights,
    membership,
    representation,
)
from gmkcf_dask.results.metrics import confusion, scores

Floats = npt.NDArray[np.float64]
VERSION = 1
EXCERPT, EXCERPTS = 200, 20_000_000
"""Characters of an excerpt, and of all: with many samples each is shorter, or there are none."""
SHORTEST = 40
MOST_TOPICS = 200
"""Topics beyond which nobody can read a table of them."""
HASHED = "hashing keeps no words: clusters have numbers instead of names, and no terms"
LOOSE = 1.25
"""Cohesion below which a cluster is hardly more than what fits nowhere else."""
NAMED = 4
"""Clusters that the summary names, the largest first."""


@dataclass(frozen=True)
class Samples:
    """What is known of n samples besides their kernels; None for what is not.

    Attributes
    ----------
    ids : tuple of str
    features : Features
    terms : tuple of str, length d
        Names of the features.
    titles, excerpts, topics : tuple of str
    texts : bool
        Whether the features were made of texts, so that their names are words. None where nobody
        knows: names of values that are never below 0 are taken for words then.
    """

    ids: tuple[str, ...]
    features: Features | None = None
    terms: tuple[str, ...] | None = None
    titles: tuple[str, ...] | None = None
    excerpts: tuple[str, ...] | None = None
    topics: tuple[str, ...] | None = None
    texts: bool | None = None


@dataclass(frozen=True)
class About:
    """How a clustering came about, for the reader of a report."""

    title: str = ""
    command: str | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    bytes: Mapping[str, int] = field(default_factory=dict)
    warnings: Sequence[str] = ()


def explain(
    stack: KernelStack,
    method: Method,
    found: Clustering,
    samples: Samples,
    about: About | None = None,
    *,
    profile: Profile | None = None,
    listen: Listener = ignore,
) -> dict[str, Any]:
    """All there is to say about a clustering, as plain JSON.

    Parameters
    ----------
    stack : KernelStack
        The kernels it was found on: one sweep over all of them, and for the k-means methods one
        over the fused one.
    method : Method
    found : Clustering
    samples : Samples
    about : About, optional
    profile : Profile, optional
        What `read_profile` found, where the features have been read already.
    listen : callable
        Hears of the stage "overview".
    """
    about = about or About()
    k = max(method.n_clusters, int(found.labels.max()) + 1)
    if profile is None:
        profile = read_profile(found.labels, k, samples.features, found.factors.get("U"))
    steps = 3
    listen(StageProgress("overview", 0, steps, unit="steps"))
    rows, called = representation(stack, method.name, found, k)
    members = membership(rows, found.labels, k)
    places = document_map(members)
    listen(StageProgress("overview", 1, steps, unit="steps"))
    coefficients = fused_weights(method.name, found.weights / found.weights.max())
    grouping = group_samples(members, len(stack.names))
    view = view_kernels(stack, coefficients, members, grouping)
    listen(StageProgress("overview", 2, steps, unit="steps"))
    words = has_words(samples.texts, samples.terms, profile)
    terms = cluster_terms(profile, samples.terms, samples.texts) or [[] for _ in range(k)]
    of_concepts = None
    if words:
        of_concepts = concept_terms(profile, samples.terms, found.factors.get("V"), found.labels)
    clusters = [
        _cluster(c, members, view, stack.names, terms[c], of_concepts[c] if of_concepts else [])
        for c in range(k)
    ]
    what = "documents" if samples.texts or words or _has_text(samples) else "samples"
    insight = {
        "version": VERSION,
        "title": redacted(about.title),
        "summary": _summary(clusters, members, what),
        "method": method.name,
        "n_samples": len(found.labels),
        "n_clusters": k,
        "converged": bool(found.converged),
        "n_iter": found.n_iter,
        "objective": _number(found.objective),
        "what": what,
        "clusters": clusters,
        "documents": _documents(samples, members, places),
        "map": f"{SENTENCE} Drawn from {called}.",
        "kernels": _kernels(stack.names, found, view),
        "runs": [
            {"history": [_number(J) for J in run.history], "converged": bool(run.converged)}
            for run in found.runs
        ],
        "best": min(range(len(found.runs)), key=lambda r: found.runs[r].objective),
        "fused": {
            "groups": grouping.sizes.tolist(),
            "labels": grouping.clusters.tolist(),
            "means": [[_number(mean) for mean in row] for row in view.group_means],
            "inside": _number(view.same),
            "between": _number(view.apart),
        },
        **_against_topics(samples.topics, found.labels, k),
        "seconds": {stage: round(float(value), 3) for stage, value in about.seconds.items()},
        "bytes": {name: int(value) for name, value in about.bytes.items()},
        "command": None if about.command is None else redacted(about.command),
        "versions": package_versions(),
        "parameters": redacted_tree(plain({**_parameters(method), "seed": found.seed})),
        "warnings": _notes(samples, about),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    listen(StageProgress("overview", steps, steps, unit="steps"))
    return insight


def _parameters(method: Method) -> dict[str, Any]:
    return asdict(method)  # type: ignore[call-overload, no-any-return]


def _has_text(samples: Samples) -> bool:
    """Rows that nobody says were no texts, but that have a title or begin like one."""
    shown = samples.titles is not None or samples.excerpts is not None
    return samples.texts is None and shown


def _notes(samples: Samples, about: About) -> list[str]:
    """What the reader should know; of hashed texts that there are no words to name clusters by."""
    hashed = samples.texts and samples.features is not None and samples.terms is None
    return [*map(redacted, about.warnings), *([HASHED] if hashed else [])]


def _cluster(
    label: int,
    members: Membership,
    view: KernelView,
    names: tuple[str, ...],
    terms: list[Term],
    of_concept: list[Term],
) -> dict[str, Any]:
    size = int(members.sizes[label])
    contrasts = view.contrasts(label)
    ranked = sorted(range(len(names)), key=lambda i: (-contrasts[i], i))
    return {
        "label": label,
        "name": ", ".join(term.in_words for term in terms[:3]) or f"cluster {label}",
        "size": size,
        "share": _number(size / len(members.labels)),
        "cohesion": _number(view.relative(label, label)),
        "terms": [term.plain() for term in terms],
        "concept_terms": [term.plain() for term in of_concept],
        "central": members.central(label),
        "doubtful": members.doubtful(label),
        "nearest": [
            {"label": other, "similarity": _number(value)} for other, value in view.nearest(label)
        ],
        "kernels": [
            {"name": names[i], "contrast": _number(contrasts[i])}
            for i in ranked
            if np.isfinite(contrasts[i])
        ],
    }


def _documents(samples: Samples, members: Membership, places: Floats) -> dict[str, Any]:
    n = len(members.labels)
    length = min(EXCERPT, EXCERPTS // n)
    excerpts = samples.excerpts if length >= SHORTEST else None
    x, y = np.round(places, 4).T + 0.0  # no −0
    return {
        "ids": list(samples.ids),
        "labels": members.labels.tolist(),
        "titles": _texts(samples.titles),
        "excerpts": None if excerpts is None else [text[:length] for text in excerpts],
        "topics": _texts(samples.topics),
        "sure": np.round(members.sure, 3).tolist(),
        "x": x.tolist(),
        "y": y.tolist(),
    }


def _kernels(names: tuple[str, ...], found: Clustering, view: KernelView) -> dict[str, Any]:
    correlation = view.overview.correlation()
    return {
        "names": list(names),
        "weights": [_number(w) for w in found.weights],
        "history": [[_number(w) for w in row] for row in found.weights_history],
        "correlation": np.round(correlation, 5).tolist(),
        "compared": round(view.compared, 4),
        "near": [
            {"a": a, "b": b, "correlation": round(value, 6)}
            for a, b, value in near_kernels(correlation, names)
        ],
    }


def _against_topics(
    topics: tuple[str, ...] | None, labels: npt.NDArray[np.integer], n_clusters: int
) -> dict[str, Any]:
    if topics is None:
        return {"scores": None, "confusion": None}
    found = {name: round(value, 4) for name, value in scores(topics, labels).items()}
    if len(set(topics)) > MOST_TOPICS:
        return {"scores": found, "confusion": None}
    named, clusters, counts = confusion(topics, labels, n_clusters)
    table = {"topics": named, "clusters": clusters, "counts": counts.tolist()}
    return {"scores": found, "confusion": table}


def _summary(clusters: list[dict[str, Any]], members: Membership, what: str) -> str:
    """One or two sentences for somebody who reads nothing else."""
    n = len(members.labels)
    filled = sorted((c for c in clusters if c["size"]), key=lambda c: -c["size"])
    named = "; ".join(f"{c['name']} ({c['size']:,})" for c in filled[:NAMED])
    more = f"; and {len(filled) - NAMED} more" if len(filled) > NAMED else ""
    one = n == 1
    many = f"{n:,} {what.removesuffix('s') if one else what} {'falls' if one else 'fall'}"
    if len(filled) == 1:
        return f"{many} into 1 cluster: {filled[0]['name']}."
    said = f"{many} into {len(filled)} clusters: {named}{more}."
    in_company = members.sizes[members.labels] > 1
    if not in_company.any():
        return f"{said} Each is alone in its cluster."
    loose = [c["label"] for c in filled if c["cohesion"] is not None and c["cohesion"] < LOOSE]
    rest = np.isin(members.labels, loose if len(filled) > 2 else [])
    if rest.any():
        said += (
            f" {rest.sum():,} are in clusters hardly more alike than any two: read these as the "
            "rest."
        )
    if rest.all():
        return said
    return f"{said} {_clearness(members, in_company & ~rest, others=bool(rest.any()))}"


def _clearness(members: Membership, asked: npt.NDArray[np.bool_], *, others: bool) -> str:
    """How many of those asked for lie clearly inside, and how many of all are alone."""
    alone = int((members.sizes[members.labels] == 1).sum())
    if not asked.any():
        return "Each of the others is alone in its cluster."
    clear = float((members.sure[asked] >= CLEAR).mean())
    share = "all" if clear == 1.0 else f"{min(100 * clear, 99):.0f} %"
    begin = f"Of the others {share}" if others else share.capitalize()
    end = f"; {alone:,} {'is' if alone == 1 else 'are'} alone in theirs." if alone else "."
    return f"{begin} lie clearly inside their cluster{end}"


def _texts(values: tuple[str, ...] | None) -> list[str] | None:
    return None if values is None else list(values)


def _number(value: float | None) -> float | None:
    """Six digits of a finite number; None for anything else."""
    if value is None or not np.isfinite(value):
        return None
    return float(f"{value:.6g}") + 0.0
