"""What the page of a report carries as data: checked, small, and harmless inside HTML."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gmkcf_dask.methods.members import NO_CLUSTER
from gmkcf_dask.results.schemas import ClusterInsight, Insight, Number

MOST_DOCUMENTS = 200_000
"""In table and map; of more, so many are picked evenly."""
MOST_EXCERPTS = 20_000
"""Documents up to which every excerpt is in the page; of more, those of shown documents are."""
MOST_EXCERPT_BYTES = 8 << 20
MOST_TABLE_COLUMNS = 30
"""Of a confusion matrix in numbers; larger ones are drawn."""
MOST_WITHOUT = 10
"""Documents without a cluster that are listed."""
_MOST_CHARACTERS = 300  # of one id or title
_STEPS = 9999  # of a coordinate: finer than any screen


def embedded_data(insight: Insight) -> dict[str, Any]:
    """What the scripts of the page need: clusters from the largest on, documents, charts.

    Documents without a cluster are one entry more at the end of the clusters.
    """
    clusters = [(one.label, one.name, one.size) for one in by_size(insight)]
    if insight.n_without_cluster:
        clusters.append((NO_CLUSTER, "no cluster", insight.n_without_cluster))
    place = {label: i for i, (label, _, _) in enumerate(clusters)}
    fused, kernels = insight.fused, insight.kernels
    return {
        "what": insight.what,
        "clusters": [
            {"label": label, "name": name, "size": size} for label, name, size in clusters
        ],
        "documents": _documents(insight, place),
        "kernels": {
            "names": kernels.names,
            "history": [[five_digits(value) for value in row] for row in kernels.history],
            "correlation": [[five_digits(value) for value in row] for row in kernels.correlation],
        },
        "runs": [{"history": run.history, "converged": run.converged} for run in insight.runs],
        "best": insight.best,
        "fused": {
            "groups": fused.groups,
            "of": [place[label] for label in fused.labels],
            "means": [[five_digits(value) for value in row] for row in fused.means],
        },
        "confusion": _large_confusion(insight, place),
    }


def by_size(insight: Insight) -> list[ClusterInsight]:
    """Clusters from the largest to the smallest, which is the order of the whole page."""
    return sorted(insight.clusters, key=lambda cluster: (-cluster.size, cluster.label))


def shown_documents(insight: Insight) -> list[int]:
    """Documents in table and map: all, or an even choice with those that clusters name."""
    n = insight.n_samples
    if n <= MOST_DOCUMENTS:
        return list(range(n))
    picked = set(np.linspace(0, n - 1, MOST_DOCUMENTS).astype(int).tolist())
    return sorted(picked | _named(insight))


def listed_without(insight: Insight) -> list[int]:
    """The first documents without a cluster."""
    if not insight.n_without_cluster:
        return []
    labels = insight.documents.labels
    return [i for i, label in enumerate(labels) if label == NO_CLUSTER][:MOST_WITHOUT]


def has_all_excerpts(insight: Insight) -> bool:
    """Whether every excerpt is in the page, where there are any."""
    excerpts = insight.documents.excerpts or []
    few = len(excerpts) <= MOST_EXCERPTS
    return few and sum(len(text) for text in excerpts) <= MOST_EXCERPT_BYTES


def json_in_html(value: Any) -> str:
    r"""JSON that no parser of HTML can take for anything else, and that UTF-8 can hold.

    >>> print(json_in_html(["</script>", "a & b", "\u2028"]))
    ["\u003c/script\u003e","a \u0026 b","\u2028"]
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


# brackets and & mean something in HTML, the separators end lines of scripts, lone surrogates and
# what Unicode gives no meaning are in no file
_UNSAFE = re.compile("[<>&\u2028\u2029\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")


def five_digits(value: Number) -> Number:
    """A number to five digits, which is more than a picture shows."""
    return None if value is None else float(f"{value:.5g}")


def cut(text: str, most: int = _MOST_CHARACTERS) -> str:
    """A text, or its beginning.

    >>> cut("a long title", 7)
    'a long…'
    """
    return text if len(text) <= most else text[: most - 1] + "…"


# the parts


def _documents(insight: Insight, place: Mapping[int, int]) -> dict[str, Any]:
    documents = insight.documents
    shown = shown_documents(insight)
    x, y = _grid(documents.x, documents.y, shown)
    return {
        "ids": [cut(documents.ids[i]) for i in shown],
        "of": [place[documents.labels[i]] for i in shown],
        "titles": documents.titles and [cut(documents.titles[i]) for i in shown],
        "excerpts": _excerpts(insight, shown),
        "topics": documents.topics and _numbered([documents.topics[i] for i in shown]),
        "sure": [_scaled(documents.sure[i], 0, 1000) for i in shown],
        "x": x,
        "y": y,
    }


def _excerpts(insight: Insight, shown: list[int]) -> Any:
    """All excerpts, or those of documents that clusters name with their rows."""
    excerpts = insight.documents.excerpts
    if excerpts is None:
        return None
    if has_all_excerpts(insight):
        return [cut(excerpts[i]) for i in shown]
    named = _named(insight)
    rows = [row for row, i in enumerate(shown) if i in named]
    return {"rows": rows, "texts": [cut(excerpts[shown[row]]) for row in rows]}


def _named(insight: Insight) -> set[int]:
    of_clusters = {i for one in insight.clusters for i in (*one.central, *one.doubtful)}
    return of_clusters.union(listed_without(insight))


def _numbered(values: list[str]) -> dict[str, Any]:
    """Repeated names once, and the number of each."""
    names = sorted(set(values))
    number = {name: i for i, name in enumerate(names)}
    return {"names": names, "of": [number[value] for value in values]}


def _grid(
    x: Sequence[Number], y: Sequence[Number], shown: list[int]
) -> tuple[list[int | None], list[int | None]]:
    """Both coordinates in whole steps of the same length; none where there is no map."""
    there = [i for i in shown if x and y and x[i] is not None and y[i] is not None]
    if not there:
        return [], []
    low = [min(axis[i] or 0.0 for i in there) for axis in (x, y)]
    high = [max(axis[i] or 0.0 for i in there) for axis in (x, y)]
    span = max(high[0] - low[0], high[1] - low[1])
    step = _STEPS / span if span > 0 else 0.0
    known = set(there)

    def steps(axis: Sequence[Number], least: float) -> list[int | None]:
        return [_scaled(axis[i], least, step) if i in known else None for i in shown]

    return steps(x, low[0]), steps(y, low[1])


def _scaled(value: Number, low: float, step: float) -> int | None:
    return None if value is None else round((value - low) * step)


def _large_confusion(insight: Insight, place: Mapping[int, int]) -> dict[str, Any] | None:
    table = insight.confusion
    if table is None or len(table.clusters) <= MOST_TABLE_COLUMNS:
        return None
    return {
        "topics": table.topics,
        "of": [place[label] for label in table.clusters],
        "counts": table.counts,
    }
