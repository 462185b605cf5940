"""What a report says in words and small bars, from the numbers of an insight."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np
from msgspec import UNSET

from gmkcf_dask.methods.members import NO_CLUSTER
from gmkcf_dask.results.insight import without_cluster
from gmkcf_dask.results.report.data import (
    MOST_TABLE_COLUMNS,
    by_size,
    cut,
    has_all_excerpts,
    listed_without,
    shown_documents,
)
from gmkcf_dask.results.schemas import ClusterInsight, FusedInsight, Insight, Number, Term
from gmkcf_dask.system.units import human_bytes

N_COLOURS, N_SHAPES = 20, 4
"""Clusters are told apart by colour, then by shape, and always by their names."""
OPEN_CARDS = 24
"""Clusters up to which every card is open at once."""
_CENTRAL = 3
_HEAT_STEPS = 8
_STAGES = {
    "read": "reading the input",
    "reading": "reading the input",
    "build": "computing the kernels",
    "fit": "clustering",
    "summary": "finding terms for the clusters",
    "overview": "map and overview",
    "insight": "map and overview",
    "report": "writing the report",
    "predict": "prediction",
    "suggest": "choosing the number of clusters",
}
_BYTES = {"stored": "kernels on disk", "planned_worker_peak": "memory planned for each worker"}


def view(insight: Insight) -> dict[str, Any]:
    """What the template shows, by name; parts with nothing to show are empty."""
    clusters = by_size(insight)
    shown = shown_documents(insight)
    row = {i: at for at, i in enumerate(shown)} if len(shown) < insight.n_samples else None
    mark = {
        cluster.label: Mark(at, at % N_COLOURS, at // N_COLOURS % N_SHAPES)
        for at, cluster in enumerate(clusters)
    }
    mark[NO_CLUSTER] = Mark(len(clusters), N_COLOURS, 0)
    names = {cluster.label: cluster.name for cluster in clusters} | {NO_CLUSTER: "no cluster"}
    return {
        "what": insight.what,
        "one": insight.what.removesuffix("s"),
        "n": insight.n_samples,
        "n_shown": len(shown),
        "cards": [_card(insight, cluster, mark, names, row) for cluster in clusters],
        "open_cards": len(clusters) <= OPEN_CARDS,
        "without": _without(insight, mark[NO_CLUSTER], row),
        "has_terms": any(cluster.terms for cluster in clusters),
        "has_columns": any(term.high is not UNSET for one in clusters for term in one.terms),
        "all_excerpts": insight.documents.excerpts is None or has_all_excerpts(insight),
        "facts": _facts(insight),
        "created": moment(insight.created),
        "maker": insight.versions.get("gmkcf-dask", ""),
        "has_map": bool(insight.documents.x),
        "fused": _fused_sentence(insight),
        "weights": _weights(insight),
        "has_weight_lines": len(insight.kernels.names) > 1 and len(insight.kernels.history) > 1,
        "has_likeness": len(insight.kernels.names) > 1 and bool(insight.kernels.correlation),
        "compared": _compared(insight),
        "families": _families(insight),
        "convergence": _convergence(insight),
        "confusion": _confusion(insight, mark, names),
        "scores": _scores(insight),
        "times": _times(insight),
        "bytes": [
            (_BYTES.get(name, name.replace("_", " ")), human_bytes(value))
            for name, value in insight.bytes.items()
        ],
        "parameters": [(name, _plain(value)) for name, value in insight.parameters.items()],
        "versions": [(name, _plain(value)) for name, value in insight.versions.items()],
    }


class Mark(NamedTuple):
    """How a cluster is told apart in drawings: a colour and a shape by its rank.

    The last colour is that of no cluster.
    """

    rank: int
    colour: int
    shape: int


def cohesion_words(cohesion: Number, what: str) -> str:
    """How close the documents of a cluster are, in a sentence.

    >>> cohesion_words(2.4, "documents")
    'close: 2.4× more similar than average'
    >>> cohesion_words(1.0, "documents")
    'no clear topic'
    """
    if cohesion is None:
        return ""
    if cohesion < 1.1:
        return "no clear topic" if what == "documents" else "no clear group"
    degree = next(word for most, word in _DEGREES if cohesion < most)
    return f"{degree}: {cohesion:.1f}× more similar than average"


_DEGREES = (
    (1.5, "loose"),
    (2.2, "fairly close"),
    (4.0, "close"),
    (8.0, "very close"),
    (float("inf"), "tight"),
)


def duration(seconds: float) -> str:
    """A length of time as one would say it.

    >>> [duration(value) for value in (0.004, 0.5, 12.31, 75, 7384)]
    ['under 0.1 s', '0.5 s', '12 s', '1 min 15 s', '2 h 3 min']
    """
    if seconds < 0.05:
        return "under 0.1 s"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def moment(created: str) -> str:
    """A time as ISO writes it, as one would say it; other words as they are.

    >>> moment("2026-11-07T09:05:00+00:00")
    '7 November 2026, 09:05 UTC'
    """
    try:
        then = datetime.fromisoformat(created)
    except ValueError:
        return created
    return f"{then.day} {then:%B %Y, %H:%M} {then.tzname() or ''}".strip()


def percent(share: Number) -> str:
    """A share in percent.

    >>> [percent(value) for value in (0.3, 0.042, 0.0004, 0)]
    ['30 %', '4.2 %', '<0.1 %', '0 %']
    """
    known = share or 0.0
    if known == 0:
        return "0 %"
    if known < 0.001:
        return "<0.1 %"
    return f"{100 * known:.1f} %" if known < 0.0995 else f"{100 * known:.0f} %"


# cards


def _card(
    insight: Insight,
    cluster: ClusterInsight,
    mark: Mapping[int, Mark],
    names: Mapping[int, str],
    row: Mapping[int, int] | None,
) -> dict[str, Any]:
    largest = max(other.size for other in insight.clusters)

    def documents(which: Sequence[int]) -> list[dict[str, Any]]:
        return [_document(insight, i, i if row is None else row[i]) for i in which]

    return {
        "label": cluster.label,
        "name": cut(cluster.name),
        "mark": mark[cluster.label],
        "size": cluster.size,
        "share": percent(cluster.share),
        "length": 100 * cluster.size / max(largest, 1),
        "cohesion": cohesion_words(cluster.cohesion, insight.what),
        "terms": _chips(cluster.terms),
        "concept_terms": _chips(cluster.concept_terms),
        "central": documents(cluster.central[:_CENTRAL]),
        "doubtful": documents(cluster.doubtful),
        "nearest": [
            {"label": near.label, "name": cut(names[near.label]), "mark": mark[near.label]}
            for near in cluster.nearest
        ],
        "kernels": [one.name for one in cluster.kernels if (one.contrast or 0.0) > 0][:3],
    }


def _without(insight: Insight, mark: Mark, row: Mapping[int, int] | None) -> dict[str, Any]:
    """The documents that have no cluster; empty where all have one."""
    listed = listed_without(insight)
    if not listed:
        return {}
    return {
        "sentence": without_cluster(insight.n_without_cluster, insight.what),
        "label": NO_CLUSTER,
        "mark": mark,
        "documents": [_document(insight, i, i if row is None else row[i]) for i in listed],
        "more": insight.n_without_cluster - len(listed),
    }


def _chips(terms: Sequence[Term]) -> list[dict[str, Any]]:
    """Terms with a size from 1 to 4 by their scores."""
    highest = max((abs(term.score or 0.0) for term in terms), default=0.0) or 1.0
    return [
        {
            "term": cut(term.term, 60),
            "size": 1 + min(int(4 * abs(term.score or 0.0) / highest), 3),
            "high": None if term.high is UNSET else term.high,
        }
        for term in terms
    ]


def _document(insight: Insight, i: int, row: int) -> dict[str, Any]:
    documents = insight.documents
    title = documents.titles[i] if documents.titles else ""
    return {
        "row": row,
        "title": cut(title.strip() or documents.ids[i]),
        "excerpt": cut(documents.excerpts[i]) if documents.excerpts else "",
    }


# numbers of the run


def _facts(insight: Insight) -> list[tuple[str, str]]:
    end = "" if insight.converged else ", not converged"
    facts = [
        (insight.what, f"{insight.n_samples:,}"),
        ("clusters", f"{insight.n_clusters:,}"),
        ("kernels", f"{len(insight.kernels.names):,}"),
        ("method", insight.method),
        ("iterations", f"{insight.n_iter:,}{end}"),
    ]
    if insight.objective is not None:
        facts.append(("objective", f"{insight.objective:.6g}"))
    if _total(insight) > 0:
        facts.append(("time", duration(_total(insight))))
    return facts


def _total(insight: Insight) -> float:
    return sum(value for name, value in insight.seconds.items() if name != "total")


def _times(insight: Insight) -> dict[str, Any]:
    """Stages with where each begins and how long it is, in percent of all."""
    total = _total(insight)
    if total <= 0:
        return {}
    stages: list[dict[str, Any]] = []
    begin = 0.0
    for at, (name, seconds) in enumerate(insight.seconds.items()):
        if name == "total" or seconds <= 0:
            continue
        length = 100 * seconds / total
        stages.append(
            {
                "name": cut(_STAGES.get(name, name), 80),
                "duration": duration(seconds),
                "share": percent(seconds / total),
                "begin": begin,
                "length": length,
                "colour": at % N_COLOURS,
            }
        )
        begin += length
    most = max(stages, key=lambda stage: stage["length"])
    return {"total": duration(total), "stages": stages, "most": most}


def _weights(insight: Insight) -> list[dict[str, Any]]:
    names, weights = insight.kernels.names, [w or 0.0 for w in insight.kernels.weights]
    if len(names) < 2:
        return []
    highest = max(weights) or 1.0
    ranked = sorted(zip(names, weights, strict=True), key=lambda pair: -pair[1])
    return [
        {"name": cut(name, 80), "weight": f"{weight:.4f}", "length": max(100 * weight / highest, 0)}
        for name, weight in ranked
    ]


def _families(insight: Insight) -> list[list[str]]:
    """Kernels that are nearly the same, directly or by way of others, each once."""
    families: list[set[str]] = []
    for pair in insight.kernels.near:
        both = {pair.a, pair.b}
        met = [family for family in families if family & both]
        families = [family for family in families if not family & both]
        families.append(both.union(*met))
    order = {name: at for at, name in enumerate(insight.kernels.names)}
    ranked = [sorted(family, key=lambda name: order.get(name, 0)) for family in families]
    return sorted(ranked, key=lambda family: order.get(family[0], 0))


def _compared(insight: Insight) -> str:
    """How much of the pairs kernels were compared on; empty for all of them."""
    share = insight.kernels.compared
    return "" if share is UNSET or share is None or share >= 1 else percent(share)


def _fused_sentence(insight: Insight) -> str:
    """Mean similarity inside clusters and between them; empty where there is no fused kernel."""
    if len(insight.fused.groups) < 2:
        return ""
    inside, between = _mean_similarities(insight.fused)
    if inside is None and between is None:
        return ""
    parts = [] if inside is None else [f"within clusters is {inside:.3g}"]
    parts += [] if between is None else [f"between clusters {'' if parts else 'is '}{between:.3g}"]
    return f"The mean similarity of two {insight.what} {' and '.join(parts)}."


def _mean_similarities(fused: FusedInsight) -> tuple[Number, Number]:
    """Between two samples of one cluster and of different ones; None where there are none.

    Insights of earlier versions have means of groups only: a group of one shows its similarity to
    itself, which is no pair.
    """
    if fused.inside is not UNSET and fused.between is not UNSET:
        return fused.inside, fused.between
    sizes, of = np.asarray(fused.groups, float), np.asarray(fused.labels)
    means = np.asarray(fused.means, float)
    pairs = (np.outer(sizes, sizes) - np.diag(sizes)) * np.isfinite(means)
    same = of[:, None] == of
    inside, between = (
        float((pairs * part * np.nan_to_num(means)).sum() / (pairs * part).sum())
        if (pairs * part).any()
        else None
        for part in (same, ~same)
    )
    return inside, between


def _convergence(insight: Insight) -> str:
    """How many restarts converged; empty where no history was kept."""
    runs = [run for run in insight.runs if len(run.history) > 1]
    if not runs:
        return ""
    converged = sum(run.converged for run in runs)
    if len(runs) == 1:
        end = "converged" if converged else "stopped before it converged"
        return f"The fit {end} after {insight.n_iter:,} iterations."
    return (
        f"{converged} of {len(runs)} random starts converged; number {insight.best + 1} has the "
        "lowest objective and was kept."
    )


def _scores(insight: Insight) -> list[tuple[str, str, str]]:
    return [
        (name, f"{value:.3f}", _SCORES.get(name.lower(), ""))
        for name, value in (insight.scores or {}).items()
        if value is not None
    ]


_SCORES = {
    "acc": "accuracy: share in the matching cluster",
    "nmi": "normalized mutual information",
    "purity": "share in the main topic of their cluster",
    "ari": "adjusted Rand index: pairs grouped correctly, corrected for chance",
    "coverage": "share that has a cluster; for the other scores the rest is one cluster more",
}


def _confusion(
    insight: Insight, mark: Mapping[int, Mark], names: Mapping[int, str]
) -> dict[str, Any] | None:
    """Rows of counts with a step of colour each; no rows where the matrix is drawn instead."""
    table = insight.confusion
    if table is None or not table.clusters:
        return None
    columns = [
        {"label": label, "name": cut(names[label]), "mark": mark[label]} for label in table.clusters
    ]
    if len(columns) > MOST_TABLE_COLUMNS:
        return {"columns": [], "rows": []}
    rows = [
        {"topic": cut(topic), "cells": [(count, _heat(count, sum(counts))) for count in counts]}
        for topic, counts in zip(table.topics, table.counts, strict=True)
    ]
    return {"columns": columns, "rows": rows}


def _heat(count: float, total: float) -> int:
    return 0 if count <= 0 else 1 + min(int(_HEAT_STEPS * count / total), _HEAT_STEPS - 1)


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
