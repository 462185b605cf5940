"""Schemas of the files a run and a saved model consist of: field names, types and bounds.

`result.json` is a `RunResult`, `insight.json` an `Insight`, the JSON file of a checkpoint a
`CheckpointFile`, and `model.json` holds a `ModelFile`. Fields that earlier versions did not write
have a default.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

import msgspec
import numpy as np
from msgspec import UNSET, Meta, Struct, UnsetType

from gmkcf_dask.errors import InputError
from gmkcf_dask.kernels.specs import Layout
from gmkcf_dask.methods.base import Clustering, RunSummary
from gmkcf_dask.methods.members import NO_CLUSTER
from gmkcf_dask.store.manifest import Count, FactorRecord, KernelRecord

INSIGHT_VERSION = 1
CHECKPOINT_FORMAT = 1
MODEL_FORMAT_VERSION = 2
"""2 since models hold the layout of their kernels; those of version 1 can still be read."""
T = TypeVar("T")
_DEEPEST = 30
"""Levels of lists and tables in a parameter."""

_Number = Annotated[float, Meta(ge=-1e100, le=1e100)]
Number = _Number | None
"""None where a value is not finite; arithmetic with the others cannot overflow."""
NonNegative = Annotated[float, Meta(ge=0, le=1e100)]
Label = Annotated[int, Meta(ge=-(1 << 62), le=1 << 62)]
ByteCount = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
StageSeconds = dict[str, NonNegative]


# insight.json


class Term(Struct, frozen=True):
    """A term or column and how much it says; `high` where a column can be high or low."""

    term: str
    score: Number
    high: bool | UnsetType = UNSET

    @property
    def in_words(self) -> str:
        """As it stands in the name of a cluster."""
        if self.high is UNSET:
            return self.term
        return f"{'high' if self.high else 'low'} {self.term}"


class NearCluster(Struct, frozen=True):
    """A similar cluster; the similarity is 1 for the mean of any two samples."""

    label: Label
    similarity: Number


class KernelContrast(Struct, frozen=True):
    """How well a kernel separates a cluster from the other samples."""

    name: str
    contrast: Number


class ClusterInsight(Struct, frozen=True):
    """One cluster; `central` and `doubtful` are row numbers of samples."""

    label: Label
    name: str
    size: Count
    share: Number
    cohesion: Number
    terms: list[Term]
    concept_terms: list[Term]
    central: list[Count]
    doubtful: list[Count]
    nearest: list[NearCluster]
    kernels: list[KernelContrast]


class Documents(Struct, frozen=True):
    """Columns of length n_samples, or None; x and y are empty where there is no map.

    The label is −1 where a sample has no cluster.
    """

    ids: list[str]
    labels: list[Label]
    titles: list[str] | None
    excerpts: list[str] | None
    topics: list[str] | None
    sure: list[Number]
    x: list[Number]
    y: list[Number]


class NearKernels(Struct, frozen=True):
    """Two kernels that are nearly the same."""

    a: str
    b: str
    correlation: Number = None


class KernelInsight(Struct, frozen=True, kw_only=True):
    """The m kernels: weights, shape (m,), their history, (n_iter + 1, m), correlations, (m, m)."""

    names: list[str]
    weights: list[Number]
    history: list[list[Number]]
    correlation: list[list[Number]]
    compared: Number | UnsetType = UNSET
    near: list[NearKernels]


class Restart(Struct, frozen=True):
    """Objectives of one restart."""

    history: list[Number]
    converged: bool


class FusedInsight(Struct, frozen=True):
    """Mean similarities in the fused kernel between g groups of samples, shape (g, g).

    `inside` and `between` are means over pairs of one cluster and of different ones.
    """

    groups: list[Count]
    labels: list[Label]
    means: list[list[Number]]
    inside: Number | UnsetType = UNSET
    between: Number | UnsetType = UNSET


class Confusion(Struct, frozen=True):
    """Samples by known topic (rows) and cluster (columns); the column −1 is of no cluster."""

    topics: list[str]
    clusters: list[Label]
    counts: list[list[Count]]


class Insight(Struct, frozen=True):
    """What a clustering means: all that a report shows."""

    version: int
    title: str
    summary: str
    method: str
    n_samples: Annotated[int, Meta(ge=1, le=1 << 40)]
    n_clusters: Count
    converged: bool
    n_iter: Count
    objective: Number
    what: str
    clusters: Annotated[list[ClusterInsight], Meta(min_length=1)]
    documents: Documents
    map: str
    kernels: KernelInsight
    runs: list[Restart]
    best: Count
    fused: FusedInsight
    scores: dict[str, Number] | None
    confusion: Confusion | None
    seconds: StageSeconds
    bytes: dict[str, ByteCount]
    command: str | None
    versions: dict[str, Any]
    parameters: dict[str, Any]
    warnings: list[str]
    created: str
    n_without_cluster: Count = 0
    """Samples with the label −1."""


_AGAIN = "remove insight.json and make it again with gmkcf report RUN"


def parse_insight(content: object) -> Insight:
    """The insight in parsed JSON.

    Raises
    ------
    InputError
        It has a newer version, or a field is missing or invalid.
    """
    version = content.get("version") if isinstance(content, Mapping) else None
    if type(version) is not int:
        raise InputError(f"the insight has no version: {_AGAIN}")
    if version > INSIGHT_VERSION:
        raise InputError(
            f"the insight has version {str(version)[:12]}, this is for version {INSIGHT_VERSION}: "
            "install a newer gmkcf-dask to make a report of it"
        )
    try:
        insight = validated(content, Insight)
        misfit = next(_misfits(insight), None)
    except ValueError as error:
        misfit = str(error)
    if misfit is not None:
        raise InputError(f"the insight is invalid in {misfit}: {_AGAIN}")
    return insight


def _misfits(insight: Insight) -> Iterator[str]:
    """Fields whose lengths, row numbers or labels do not fit the others."""
    n, labels = insight.n_samples, {cluster.label for cluster in insight.clusters}
    or_none = labels | {NO_CLUSTER}
    if len(labels) < len(insight.clusters):
        yield "clusters (two have one label)"
    for i, cluster in enumerate(insight.clusters):
        if cluster.size > n:
            yield f"clusters[{i}].size"
        if max([*cluster.central, *cluster.doubtful], default=0) >= n:
            yield f"clusters[{i}].central or doubtful"
        if not labels.issuperset(near.label for near in cluster.nearest):
            yield f"clusters[{i}].nearest"
    for name in Documents.__struct_fields__:
        column = getattr(insight.documents, name)
        absent = column is None or (name in ("x", "y") and not column)
        if not absent and len(column) != n:
            yield f"documents.{name}"
    if not or_none.issuperset(insight.documents.labels):
        yield "documents.labels"
    if NO_CLUSTER in labels:
        yield "clusters (one has the label −1, which is no cluster)"
    elif insight.documents.labels.count(NO_CLUSTER) != insight.n_without_cluster:
        yield "n_without_cluster"
    kernels, fused, table = insight.kernels, insight.fused, insight.confusion
    m, g = len(kernels.names), len(fused.groups)
    shapes: dict[str, tuple[list[list[Any]], int, int]] = {
        "kernels.weights": ([kernels.weights], 1, m),
        "kernels.history": (kernels.history, len(kernels.history), m),
        "kernels.correlation": (kernels.correlation, m if kernels.correlation else 0, m),
        "fused.labels": ([fused.labels], 1, g),
        "fused.means": (fused.means, g, g),
    }
    if table is not None:
        shapes["confusion.counts"] = (table.counts, len(table.topics), len(table.clusters))
    for name, (rows, height, width) in shapes.items():
        if len(rows) != height or any(len(row) != width for row in rows):
            yield name
    if max(fused.groups, default=0) > n or not labels.issuperset(fused.labels):
        yield "fused.groups or labels"
    if (fused.inside is UNSET) != (fused.between is UNSET):
        yield "fused.inside"
    if table is not None and not or_none.issuperset(table.clusters):
        yield "confusion.clusters"
    if insight.best >= max(len(insight.runs), 1):
        yield "best"
    for part in ("parameters", "versions"):
        values = getattr(insight, part)
        yield from (f"{part}.{name}" for name in values if not _is_printable(values[name]))


def _is_printable(value: Any, level: int = 0) -> bool:
    """Texts, flags and finite numbers, in lists and tables that end."""
    if level > _DEEPEST:
        return False
    if isinstance(value, dict):
        return all(_is_printable(part, level + 1) for part in value.values())
    if isinstance(value, list | tuple):
        return all(_is_printable(part, level + 1) for part in value)
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, str | bool | None) or (isinstance(value, int) and abs(value) < 1 << 63)


# result.json


class ClusterEntry(Struct, frozen=True):
    """One cluster in short; cohesion and the title of a central sample come with the insight."""

    label: int
    size: int
    terms: list[str]
    cohesion: float | UnsetType | None = UNSET
    central: list[str] | UnsetType = UNSET


class RunBytes(Struct, frozen=True):
    """Sizes of a run."""

    stored: int
    touched_per_iteration: int | None
    planned_worker_peak: int
    worker_peaks: list[int]

    def shown(self) -> dict[str, int]:
        """As a report shows them, without what is not known."""
        sizes = msgspec.structs.asdict(self)
        peaks = sizes.pop("worker_peaks")
        largest = {"largest_worker_peak": max(peaks)} if peaks else {}
        return {name: int(size) for name, size in sizes.items() if size is not None} | largest


class RunResult(Struct, frozen=True, kw_only=True):
    """One clustering of a store, how it was made, and its result."""

    method: str
    parameters: dict[str, Any]
    kernel: str | None
    seed: int
    store: str
    n_samples: int
    precision: str
    block_size: int
    kernels: list[KernelRecord]
    """Kernels in tiles."""
    kernel_weights: dict[str, float]
    weights_history: list[list[float]] = []
    objective_history: list[float]
    n_iter: int
    converged: bool
    runs: list[RunSummary]
    bytes: RunBytes
    plan: dict[str, Any]
    versions: dict[str, str]
    fingerprint: dict[str, Any] | UnsetType = UNSET
    escaped_ids: bool = False
    """Ids in labels.csv are escaped against spreadsheet programs."""
    clusters: list[ClusterEntry] = []
    contrast: float | None = None
    """How much closer samples of one cluster are than any two; None where that is not known."""
    n_without_cluster: Count = 0
    """Samples with the label −1."""
    what: str = "samples"
    """What people call the samples: documents where they are texts."""
    warnings: list[str] = []
    seconds: StageSeconds = {}
    factored: list[FactorRecord] | UnsetType = UNSET
    """Factored kernels; left out where there are none."""
    layout: Literal["gram"] | UnsetType = UNSET
    """Left out where every kernel has tiles of its own, or none has any."""


# checkpoints


class CheckpointFile(Struct, frozen=True):
    """The JSON file of one generation; `state` refers to arrays of the npz file beside it."""

    format: Annotated[int, Meta(ge=CHECKPOINT_FORMAT, le=CHECKPOINT_FORMAT)]
    serial: Annotated[int, Meta(ge=1)]
    fingerprint: dict[str, Any]
    arrays: str
    state: dict[str, Any]
    notes: list[str]


# saved models


class ModelKernel(KernelRecord, frozen=True, kw_only=True):
    """A kernel and whether it is a formula, a function or a matrix."""

    kind: Literal["formula", "function", "matrix"]

    @property
    def options(self) -> dict[str, Any]:
        """Everything but the name and the kind."""
        return {name: getattr(self, name) for name in KernelRecord.__struct_fields__[1:]}


class ModelTraining(Struct, frozen=True):
    """Sizes of the training samples, kernels, and norms by kernel, shape (n,)."""

    n_samples: int
    n_features: int
    kernels: list[ModelKernel]
    norms: dict[str, np.ndarray[Any, Any]]
    factors: list[FactorRecord] = []
    """Factored kernels, in the order of their weights."""
    factor_arrays: dict[str, np.ndarray[Any, Any]] = {}


class ModelMethod(Struct, frozen=True):
    """A method and its parameters."""

    name: str
    parameters: dict[str, Any]


class EstimatorParameters(Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of an estimator beside those of its method."""

    normalization: str | UnsetType = UNSET
    scaling: str | UnsetType = UNSET
    precision: str | UnsetType = UNSET
    layout: Layout | UnsetType = UNSET
    kernel: str | list[str] | UnsetType = UNSET
    kernels: str | list[str] | UnsetType = UNSET
    block_size: int | Literal["auto"] | UnsetType = UNSET
    random_state: int | UnsetType | None = UNSET


class ModelContent(Struct, frozen=True):
    """A fitted model without its features and strings."""

    method: ModelMethod
    parameters: EstimatorParameters
    named_features: bool
    clustering: Clustering
    training: ModelTraining
    seconds: StageSeconds = {}


class ModelStrings(Struct, frozen=True):
    """Names of samples and features, and how texts were read."""

    ids: list[str] | None
    titles: list[str] | None
    excerpts: list[str] | None
    topics: list[str] | None
    terms: list[str] | None
    reading: dict[str, Any] | None


class ModelFiles(Struct, frozen=True, omit_defaults=True):
    """Names of the other files, which end in the digests of their content."""

    arrays: str
    strings: str
    insight: str | None = None
    features: str | None = None


class ModelFile(Struct, frozen=True):
    """model.json; `content` is a `ModelContent` that refers to arrays in another file."""

    format: Literal["gmkcf-model"]
    format_version: int
    versions: dict[str, str]
    files: ModelFiles
    content: dict[str, Any]


# all of them


def validated(content: object, schema: type[T]) -> T:
    """Parsed JSON as an object of a schema.

    Raises
    ------
    ValueError
        A field is missing or wrong; the message is its path, and why.
    """
    try:
        return msgspec.convert(content, schema)
    except msgspec.ValidationError as error:
        raise ValueError(_described(error, content, schema)) from error


def plain_values(value: Any) -> Any:
    """The same as dictionaries, lists, strings and numbers, for JSON."""
    return msgspec.to_builtins(value, enc_hook=_plain_number)


def _plain_number(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a {type(value).__name__} is not plain")


def _described(error: msgspec.ValidationError, content: Any, schema: type) -> str:
    """Path and reason of an error, such as "runs[1].converged (Expected `bool`, got `int`)"."""
    reason, _, path = str(error).partition(" - at `$")
    path = path.rstrip("`").lstrip(".")
    missing = re.fullmatch(r"Object missing required field `(\w+)`", reason)
    if missing is not None:
        return ".".join(filter(None, (path, missing[1]))) + " (missing)"
    table = path.removesuffix("[...]")
    if table != path and isinstance(content, Mapping) and table in content:  # which key is left out
        kind = get_type_hints(schema, include_extras=True)[table]
        wrong = (key for key, part in content[table].items() if not _fits({key: part}, kind))
        path = f"{table}.{str(next(wrong, '...'))[:60]}"
    return f"{path} ({reason})" if path else reason


def _fits(content: object, kind: Any) -> bool:
    try:
        msgspec.convert(content, kind)
    except msgspec.ValidationError:
        return False
    return True
