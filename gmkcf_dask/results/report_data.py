"""What the page of a report carries as data: checked, small, and harmless inside HTML."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from gmkcf_dask.errors import InputError

VERSION = 1
"""Of insights that are understood here."""
MOST_DOCUMENTS = 200_000
"""In table and map; of more, so many are picked evenly."""
MOST_EXCERPTS = 20_000
"""Documents up to which every excerpt is in the page; of more, those of shown documents are."""
MOST_EXCERPT_BYTES = 8 << 20
MOST_TABLE_COLUMNS = 30
"""Of a confusion matrix in numbers; larger ones are drawn."""
_MOST_CHARACTERS = 300  # of one id or title
_STEPS = 9999  # of a coordinate: finer than any screen

Insight = Mapping[str, Any]


def check_insight(insight: object) -> None:
    """Refuse what is not an insight that a page can be made of.

    Raises
    ------
    InputError
        It is of a newer version, or a part of it is missing or cannot be right.
    """
    version = insight.get("version") if isinstance(insight, Mapping) else None
    if not isinstance(version, int) or not isinstance(insight, Mapping):
        raise InputError("the insight does not say its version: run gmkcf fit again to make it new")
    if version > VERSION:
        raise InputError(
            f"the insight has version {version}, this is for version {VERSION}: install a newer "
            "gmkcf-dask to make a report of it"
        )
    try:
        wrong = [name for name, is_right in _PARTS.items() if not is_right(insight)]
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        wrong = [f"{type(error).__name__} at {error}"]
    if wrong:
        raise InputError(
            f"the insight cannot be right in {', '.join(wrong)}: run gmkcf fit again to make it new"
        )


def embedded_data(insight: Insight) -> dict[str, Any]:
    """What the scripts of the page need: clusters from the largest on, documents, charts.

    Parameters
    ----------
    insight : mapping
        One that `check_insight` lets pass.
    """
    place = {cluster["label"]: i for i, cluster in enumerate(by_size(insight))}
    fused, kernels = insight["fused"], insight["kernels"]
    return {
        "what": insight["what"],
        "clusters": [
            {"label": cluster["label"], "name": cluster["name"], "size": cluster["size"]}
            for cluster in by_size(insight)
        ],
        "documents": _documents(insight, place),
        "kernels": {
            "names": kernels["names"],
            "history": [[shortened(value) for value in row] for row in kernels["history"]],
            "correlation": [[shortened(value) for value in row] for row in kernels["correlation"]],
        },
        "runs": [
            {"history": [finite(value) for value in run["history"]], "converged": run["converged"]}
            for run in insight["runs"]
        ],
        "best": insight["best"],
        "fused": {
            "groups": fused["groups"],
            "of": [place[label] for label in fused["labels"]],
            "means": [[shortened(value) for value in row] for row in fused["means"]],
        },
        "confusion": _large_confusion(insight, place),
    }


def by_size(insight: Insight) -> list[Mapping[str, Any]]:
    """Clusters from the largest to the smallest, which is the order of the whole page."""
    return sorted(insight["clusters"], key=lambda cluster: (-cluster["size"], cluster["label"]))


def shown_documents(insight: Insight) -> list[int]:
    """Documents in table and map: all, or an even choice with those that clusters name."""
    n = insight["n_samples"]
    if n <= MOST_DOCUMENTS:
        return list(range(n))
    picked = set(np.linspace(0, n - 1, MOST_DOCUMENTS).astype(int).tolist())
    return sorted(picked | _named(insight))


def has_all_excerpts(insight: Insight) -> bool:
    """Whether every excerpt is in the page, where there are any."""
    excerpts: Sequence[str] = insight["documents"]["excerpts"] or ()
    few = len(excerpts) <= MOST_EXCERPTS
    return few and sum(len(text) for text in excerpts) <= MOST_EXCERPT_BYTES


def json_in_html(value: Any) -> str:
    r"""JSON that no parser of HTML can take for anything else, and that UTF-8 can hold.

    >>> print(json_in_html(["</script>", "a & b", "\u2028"]))
    ["\u003c/script\u003e","a \u0026 b","\u2028"]
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


# brackets and & mean something in HTML, the separators end lines of scripts, lone surrogates and
# what Unicode gives no meaning are in no file
_UNSAFE = re.compile("[<>&\u2028\u2029\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")


def finite(value: float | None) -> float | None:
    """A number that JSON has; None for others."""
    return value if value is not None and math.isfinite(value) else None


def shortened(value: float | None) -> float | None:
    """A number to five digits, which is more than a picture shows."""
    known = finite(value)
    return None if known is None else float(f"{known:.5g}")


def cut(text: str, most: int = _MOST_CHARACTERS) -> str:
    """A text, or its beginning.

    >>> cut("a long title", 7)
    'a long…'
    """
    return text if len(text) <= most else text[: most - 1] + "…"


# the parts


def _documents(insight: Insight, place: Mapping[int, int]) -> dict[str, Any]:
    found = insight["documents"]
    shown = shown_documents(insight)

    def column(name: str, make: Callable[[Any], Any]) -> list[Any] | None:
        values = found[name]
        return None if values is None else [make(values[i]) for i in shown]

    x, y = _grid(found["x"], found["y"], shown)
    return {
        "ids": column("ids", cut),
        "of": column("labels", place.__getitem__),
        "titles": column("titles", cut),
        "excerpts": _excerpts(insight, shown),
        "topics": _numbered(column("topics", str)),
        "sure": column("sure", lambda value: _scaled(value, 0, 1000)),
        "x": x,
        "y": y,
    }


def _excerpts(insight: Insight, shown: list[int]) -> Any:
    """All excerpts, or those of documents that clusters name with their rows."""
    excerpts = insight["documents"]["excerpts"]
    if excerpts is None:
        return None
    if has_all_excerpts(insight):
        return [cut(excerpts[i]) for i in shown]
    named = _named(insight)
    rows = [row for row, i in enumerate(shown) if i in named]
    return {"rows": rows, "texts": [cut(excerpts[shown[row]]) for row in rows]}


def _named(insight: Insight) -> set[int]:
    return {i for one in insight["clusters"] for i in (*one["central"], *one["doubtful"])}


def _numbered(values: list[str] | None) -> dict[str, Any] | None:
    """Repeated names once, and the number of each."""
    if values is None:
        return None
    names = sorted(set(values))
    number = {name: i for i, name in enumerate(names)}
    return {"names": names, "of": [number[value] for value in values]}


def _grid(
    x: Sequence[float | None], y: Sequence[float | None], shown: list[int]
) -> tuple[list[int | None], list[int | None]]:
    """Both coordinates in whole steps of the same length; none where there is no map."""
    there = [i for i in shown if x and y and finite(x[i]) is not None and finite(y[i]) is not None]
    if not there:
        return [], []
    low = [min(axis[i] or 0.0 for i in there) for axis in (x, y)]
    high = [max(axis[i] or 0.0 for i in there) for axis in (x, y)]
    span = max(high[0] - low[0], high[1] - low[1])
    step = _STEPS / span if span > 0 and math.isfinite(span) else 0.0
    known = set(there)

    def steps(axis: Sequence[float | None], least: float) -> list[int | None]:
        return [_scaled(axis[i], least, step) if i in known else None for i in shown]

    return steps(x, low[0]), steps(y, low[1])


def _scaled(value: float | None, low: float, step: float) -> int | None:
    known = finite(value)
    return None if known is None else round((known - low) * step)


def _large_confusion(insight: Insight, place: Mapping[int, int]) -> dict[str, Any] | None:
    found = insight["confusion"]
    if found is None or len(found["clusters"]) <= MOST_TABLE_COLUMNS:
        return None
    return {
        "topics": found["topics"],
        "of": [place[label] for label in found["clusters"]],
        "counts": found["counts"],
    }


# what must hold of an insight


def _is_matrix(rows: Sequence[Sequence[Any]], height: int, width: int) -> bool:
    right = len(rows) == height and all(len(row) == width for row in rows)
    return right and all(_is_number(value) for row in rows for value in row)


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _is_text(values: Iterable[object]) -> bool:
    return all(isinstance(value, str) for value in values)


def _right_documents(insight: Insight) -> bool:
    found, n = insight["documents"], insight["n_samples"]
    known = {cluster["label"] for cluster in insight["clusters"]}
    texts = [found["ids"], *(found[name] for name in ("titles", "excerpts", "topics"))]
    numbers = [found["sure"], *(found[axis] for axis in "xy" if found[axis])]
    return (
        len(found["labels"]) == n
        and set(found["labels"]) <= known
        and all(len(column) == n and _is_text(column) for column in texts if column is not None)
        and all(len(column) == n and all(map(_is_number, column)) for column in numbers)
    )


def _right_clusters(insight: Insight) -> bool:
    clusters, n = insight["clusters"], insight["n_samples"]
    known = {cluster["label"] for cluster in clusters}
    return len(known) == len(clusters) > 0 and all(
        isinstance(one["name"], str)
        and isinstance(one["label"], int)
        and isinstance(one["size"], int)
        and all(map(_is_number, (one["share"], one["cohesion"])))
        and all(isinstance(i, int) and 0 <= i < n for i in (*one["central"], *one["doubtful"]))
        and all(
            near["label"] in known and _is_number(near["similarity"]) for near in one["nearest"]
        )
        and _is_text(kernel["name"] for kernel in one["kernels"])
        and all(_is_number(kernel["contrast"]) for kernel in one["kernels"])
        and all(
            isinstance(term["term"], str) and _is_number(term["score"])
            for term in (*one["terms"], *one["concept_terms"])
        )
        for one in clusters
    )


def _right_kernels(insight: Insight) -> bool:
    found = insight["kernels"]
    m = len(found["names"])
    return (
        _is_text(found["names"])
        and _is_matrix([found["weights"]], 1, m)
        and _is_matrix(found["history"], len(found["history"]), m)
        and _is_number(found.get("compared"))
        and (not found["correlation"] or _is_matrix(found["correlation"], m, m))
        and all(_is_text((pair["a"], pair["b"])) for pair in found["near"])
    )


def _right_fused(insight: Insight) -> bool:
    found = insight["fused"]
    known = {cluster["label"] for cluster in insight["clusters"]}
    n = len(found["groups"])
    return (
        len(found["labels"]) == n
        and set(found["labels"]) <= known
        and all(isinstance(size, int) and size >= 0 for size in found["groups"])
        and _is_matrix(found["means"], n, n)
        and ("inside" in found) == ("between" in found)
        and all(_is_number(found.get(name)) for name in ("inside", "between"))
    )


def _right_runs(insight: Insight) -> bool:
    runs = insight["runs"]
    in_range = isinstance(insight["best"], int) and 0 <= insight["best"] < max(len(runs), 1)
    return in_range and all(
        all(map(_is_number, run["history"])) and isinstance(run["converged"], bool) for run in runs
    )


def _right_confusion(insight: Insight) -> bool:
    found = insight["confusion"]
    if found is None:
        return True
    known = {cluster["label"] for cluster in insight["clusters"]}
    topics, clusters = found["topics"], found["clusters"]
    return (
        _is_text(topics)
        and set(clusters) <= known
        and _is_matrix(found["counts"], len(topics), len(clusters))
    )


_PARTS: dict[str, Callable[[Insight], bool]] = {
    "n_samples": lambda insight: isinstance(insight["n_samples"], int) and insight["n_samples"] > 0,
    "its numbers": lambda insight: (
        isinstance(insight["n_iter"], int)
        and isinstance(insight["n_clusters"], int)
        and isinstance(insight["converged"], bool)
        and _is_number(insight["objective"])
    ),
    "its sentences": lambda insight: _is_text(
        [insight[name] for name in ("title", "summary", "method", "map", "created", "what")]
        + insight["warnings"]
    ),
    "clusters": _right_clusters,
    "documents": _right_documents,
    "kernels": _right_kernels,
    "fused": _right_fused,
    "runs": _right_runs,
    "confusion": _right_confusion,
    "seconds and bytes": lambda insight: all(
        map(_is_number, (*insight["seconds"].values(), *insight["bytes"].values()))
    ),
    "scores": lambda insight: all(map(_is_number, (insight["scores"] or {}).values())),
    "command": lambda insight: insight["command"] is None or isinstance(insight["command"], str),
    "parameters and versions": lambda insight: all(
        isinstance(insight[name], Mapping) for name in ("parameters", "versions")
    ),
}
