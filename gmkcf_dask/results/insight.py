"""What a clustering means: all that a report shows, and nothing of size n×n.

Texts of the samples stay as they came: whoever puts them on a page has to escape them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import numpy as np
import numpy.typing as npt

from gmkcf_dask.compute.operators import KernelStack
from gmkcf_dask.errors import redacted, redacted_tree
from gmkcf_dask.events import Listener, StageProgress, ignore
from gmkcf_dask.kernels.features import Features
from gmkcf_dask.methods.base import Clustering, Method
from gmkcf_dask.methods.contrast import fusion_weights, weak_clusters
from gmkcf_dask.methods.members import NO_CLUSTER
from gmkcf_dask.results.cluster_terms import (
    Profile,
    cluster_terms,
    concept_terms,
    has_words,
    read_profile,
)
from gmkcf_dask.results.document_map import ASIDE, SENTENCE, document_map
from gmkcf_dask.results.kernel_view import KernelView, group_samples, near_kernels, view_kernels
from gmkcf_dask.results.membership import (
    CLEAR,
    Membership,
    membership,
    representation,
)
from gmkcf_dask.results.metrics import confusion, coverage, scores
from gmkcf_dask.results.schemas import (
    INSIGHT_VERSION,
    ClusterInsight,
    Confusion,
    Documents,
    FusedInsight,
    Insight,
    KernelContrast,
    KernelInsight,
    NearCluster,
    NearKernels,
    Number,
    Restart,
    Term,
)
from gmkcf_dask.results.serialize import jsonable
from gmkcf_dask.store.manifest import package_versions
from gmkcf_dask.system.arrays import Floats

EXCERPT, EXCERPTS = 200, 20_000_000
"""Characters of an excerpt, and of all: with many samples each is shorter, or there are none."""
SHORTEST = 40
MOST_TOPICS = 200
"""Topics beyond which nobody can read a table of them."""
HASHED = "hashing keeps no words, so clusters have numbers instead of names and terms"
LOOSE = 1.25
"""Cohesion below which a cluster holds what fits no other."""
NAMED = 4
"""Clusters that the summary names, the largest first."""


@dataclass(frozen=True)
class Samples:
    """What is known of n samples besides their kernels; None for what is not."""

    ids: tuple[str, ...]
    features: Features | None = None
    terms: tuple[str, ...] | None = None
    """Names of the d features."""
    titles: tuple[str, ...] | None = None
    excerpts: tuple[str, ...] | None = None
    topics: tuple[str, ...] | None = None
    texts: bool | None = None
    """Whether the features were made of texts, so that their names are words. None where that is
    not known: names of values that are never below 0 are taken for words then."""


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
    clustering: Clustering,
    samples: Samples,
    about: About | None = None,
    *,
    profile: Profile | None = None,
    listen: Listener = ignore,
) -> Insight:
    """Describe a clustering for a report.

    Parameters
    ----------
    stack : KernelStack
        The kernels of the clustering: one sweep over all of them, and for the k-means methods one
        over the fused one.
    method : Method
    clustering : Clustering
    samples : Samples
    about : About, optional
    profile : Profile, optional
        From `read_profile`, where the features have been read already.
    listen : callable
        Receives the events of the stage "overview".
    """
    about = about or About()
    k = max(method.n_clusters, int(clustering.labels.max()) + 1)
    if profile is None:
        profile = read_profile(clustering.labels, k, samples.features, clustering.factors.get("U"))

    def report_step(number: int) -> None:
        listen(StageProgress("overview", number, 3, unit="steps"))

    report_step(0)
    rows, source = representation(stack, method.name, clustering, k)
    members = membership(rows, clustering.labels, k)
    places = document_map(members)
    report_step(1)
    coefficients = fusion_weights(method.name, clustering.weights / clustering.weights.max())
    grouping = group_samples(members, len(stack.names))
    view = view_kernels(stack, coefficients, members, grouping)
    report_step(2)
    words = has_words(samples.texts, samples.terms, profile)
    no_terms: list[list[Term]] = [[] for _ in range(k)]
    terms = cluster_terms(profile, samples.terms, samples.texts) or no_terms
    of_concepts = no_terms
    if words:
        V = clustering.factors.get("V")
        of_concepts = concept_terms(profile, samples.terms, V, clustering.labels) or no_terms
    clusters = [_cluster(c, members, view, stack.names, terms[c], of_concepts[c]) for c in range(k)]
    # rows of unknown origin that have a title or an excerpt
    shown = samples.titles is not None or samples.excerpts is not None
    described = samples.texts is None and shown
    what = "documents" if samples.texts or words or described else "samples"
    hashed = samples.texts and samples.features is not None and samples.terms is None
    scored, table = _against_topics(samples.topics, clustering.labels, k)
    # an estimator's report does not know what was said during the fit
    notes = [*about.warnings, HASHED if hashed else "", weak_clusters(method.name, clustering)]
    insight = Insight(
        version=INSIGHT_VERSION,
        title=redacted(about.title),
        summary=summarize(clusters, members, what),
        method=method.name,
        n_samples=len(clustering.labels),
        n_clusters=k,
        converged=bool(clustering.converged),
        n_iter=clustering.n_iter,
        objective=_number(clustering.objective),
        what=what,
        clusters=clusters,
        documents=_documents(samples, members, places),
        map=_map_sentence(members, what, source),
        kernels=_kernels(stack.names, clustering, view),
        runs=[Restart(_numbers(run.history), bool(run.converged)) for run in clustering.runs],
        best=min(range(len(clustering.runs)), key=lambda r: clustering.runs[r].objective),
        fused=FusedInsight(
            grouping.sizes[: grouping.n_placed].tolist(),
            grouping.clusters[: grouping.n_placed].tolist(),
            [_numbers(row) for row in view.group_means],
            _number(view.same),
            _number(view.apart),
        ),
        scores=scored,
        confusion=table,
        seconds={stage: round(float(value), 3) for stage, value in about.seconds.items()},
        bytes={name: int(value) for name, value in about.bytes.items()},
        command=None if about.command is None else redacted(about.command),
        versions=dict(package_versions()),
        parameters=redacted_tree(jsonable({**method.parameters(), "seed": clustering.seed})),
        warnings=list(dict.fromkeys(map(redacted, filter(None, notes)))),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        n_without_cluster=int((~members.placed).sum()),
    )
    report_step(3)
    return insight


def _cluster(
    label: int,
    members: Membership,
    view: KernelView,
    names: tuple[str, ...],
    terms: list[Term],
    of_concept: list[Term],
) -> ClusterInsight:
    size = int(members.sizes[label])
    contrasts = view.contrasts(label)
    central, doubtful = members.central_and_doubtful(label)
    ranked = sorted(range(len(names)), key=lambda i: (-contrasts[i], i))
    return ClusterInsight(
        label=label,
        name=", ".join(term.in_words for term in terms[:3]) or f"cluster {label}",
        size=size,
        share=_number(size / len(members.labels)),
        cohesion=_number(view.relative(label, label)),
        terms=terms,
        concept_terms=of_concept,
        central=central,
        doubtful=doubtful,
        nearest=[NearCluster(other, _number(value)) for other, value in view.nearest(label)],
        kernels=[
            KernelContrast(names[i], _number(contrasts[i]))
            for i in ranked
            if np.isfinite(contrasts[i])
        ],
    )


def _documents(samples: Samples, members: Membership, places: Floats) -> Documents:
    n = len(members.labels)
    length = min(EXCERPT, EXCERPTS // n)
    excerpts = samples.excerpts if length >= SHORTEST else None
    x, y = np.round(places, 4).T + 0.0  # no −0
    return Documents(
        ids=list(samples.ids),
        labels=members.labels.tolist(),
        titles=None if samples.titles is None else list(samples.titles),
        excerpts=None if excerpts is None else [text[:length] for text in excerpts],
        topics=None if samples.topics is None else list(samples.topics),
        sure=np.round(members.sure, 3).tolist(),
        x=x.tolist(),
        y=y.tolist(),
    )


def _kernels(names: tuple[str, ...], clustering: Clustering, view: KernelView) -> KernelInsight:
    correlation = view.overview.correlation()
    return KernelInsight(
        names=list(names),
        weights=_numbers(clustering.weights),
        history=[_numbers(row) for row in clustering.weights_history],
        correlation=np.round(correlation, 5).tolist(),
        compared=round(view.compared, 4),
        near=[
            NearKernels(a, b, round(value, 6)) for a, b, value in near_kernels(correlation, names)
        ],
    )


def _against_topics(
    topics: tuple[str, ...] | None, labels: npt.NDArray[np.integer], n_clusters: int
) -> tuple[dict[str, Number] | None, Confusion | None]:
    """Scores and the table of counts, where topics are known."""
    if topics is None:
        return None, None
    rounded: dict[str, Number] = {
        name: round(value, 4) for name, value in scores(topics, labels).items()
    }
    if (labels == NO_CLUSTER).any():
        rounded["coverage"] = round(coverage(labels), 4)
    if len(set(topics)) > MOST_TOPICS:
        return rounded, None
    names, clusters, counts = confusion(topics, labels, n_clusters)
    return rounded, Confusion(names, clusters, counts.tolist())


def summarize(clusters: Sequence[ClusterInsight], members: Membership, what: str) -> str:
    """A few sentences for somebody who reads nothing else."""
    n = int(members.placed.sum())
    without = without_cluster(len(members.labels) - n, what)
    filled = sorted((c for c in clusters if c.size), key=lambda c: -c.size)
    if not filled:
        return without
    names = "; ".join(f"{c.name} ({c.size:,})" for c in filled[:NAMED])
    more = f"; and {len(filled) - NAMED} more" if len(filled) > NAMED else ""
    begin = f"{_counted(n, what)} {'falls' if n == 1 else 'fall'}"
    if len(filled) == 1:
        return f"{begin} into 1 cluster: {filled[0].name}. {without}".rstrip()
    sentences = [f"{begin} into {len(filled)} clusters: {names}{more}."]
    in_company = members.company > 1
    if not in_company.any():
        return f"{sentences[0]} Each is alone in its cluster. {without}".rstrip()
    loose = [c.label for c in filled if c.cohesion is not None and c.cohesion < LOOSE]
    rest = np.isin(members.labels, loose if len(filled) > 2 else [])
    if rest.any():
        one = "topic" if what == "documents" else "cluster"
        fit = "fits" if rest.sum() == 1 else "fit"
        sentences.append(f"{_counted(int(rest.sum()), what)} {fit} no {one} well.")
    if rest.sum() < n:
        sentences.append(_clearness(members, in_company & ~rest, others=bool(rest.any())))
    return " ".join([*sentences, without]).rstrip()


def without_cluster(n: int, what: str) -> str:
    """Say that n samples have no cluster; empty for none.

    >>> without_cluster(12, "documents")
    '12 documents have no usable words and belong to no cluster.'
    >>> without_cluster(1, "samples")
    '1 sample is similar to no concept and belongs to no cluster.'
    """
    if not n:
        return ""
    have, are, belong = ("has", "is", "belongs") if n == 1 else ("have", "are", "belong")
    why = f"{have} no usable words" if what == "documents" else f"{are} similar to no concept"
    return f"{_counted(n, what)} {why} and {belong} to no cluster."


def _map_sentence(members: Membership, what: str, source: str) -> str:
    sentences = [SENTENCE.format(what=what, one=what.removesuffix("s"))]
    if not members.placed.all():
        sentences.append(ASIDE.format(what=what))
    return " ".join([*sentences, f"Drawn from {source}."])


def _clearness(members: Membership, chosen: npt.NDArray[np.bool_], *, others: bool) -> str:
    """How many of the chosen samples lie clearly inside, and how many of all are alone."""
    alone = int((members.company == 1).sum())
    if not chosen.any():
        return "Each of the others is alone in its cluster."
    clear = float((members.sure[chosen] >= CLEAR).mean())
    share = "all" if clear == 1.0 else f"{min(100 * clear, 99):.0f} %"
    begin = f"Of the others, {share}" if others else share.capitalize()
    is_alone = "is alone in its cluster" if alone == 1 else "are alone in their clusters"
    end = f"; {alone:,} {is_alone}." if alone else "."
    return f"{begin} clearly belong to their cluster{end}"


def _counted(n: int, what: str) -> str:
    return f"{n:,} {what.removesuffix('s') if n == 1 else what}"


def _numbers(values: Iterable[float]) -> list[Number]:
    return [_number(value) for value in values]


def _number(value: float | None) -> Number:
    """Six digits of a finite number; None for anything else."""
    if value is None or not np.isfinite(value):
        return None
    return float(f"{value:.6g}") + 0.0
