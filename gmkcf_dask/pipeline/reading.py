"""INPUT of a run: its samples, and the kernels to compute of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from gmkcf_dask.cluster import ClusterConfig, LazyCluster, local_cluster
from gmkcf_dask.compute.blas import own_cores
from gmkcf_dask.compute.costs import StoredGram, expected_gram
from gmkcf_dask.compute.plan import refuse_by_count
from gmkcf_dask.compute.runner import Runner
from gmkcf_dask.corpus import TextOptions, read_corpus, refuse_equal_rows, warn_about_zero_rows
from gmkcf_dask.corpus.folders import text_files
from gmkcf_dask.corpus.model import Corpus
from gmkcf_dask.corpus.read import count_samples
from gmkcf_dask.errors import InputError
from gmkcf_dask.events import Listener, StageProgress, ignore
from gmkcf_dask.kernels.gram import is_function_of_gram
from gmkcf_dask.kernels.products import possible_products
from gmkcf_dask.kernels.specs import KernelSpec, Layout, Normalization, Scaling, TileSpec
from gmkcf_dask.kernels.tiling import Precision
from gmkcf_dask.store.given import given_factors
from gmkcf_dask.store.request import MAX_CLUSTERS, KernelRequest
from gmkcf_dask.system.units import MIB

PROCESSES_FROM = 32 * MIB
"""Bytes of text from which worker processes pay for their start."""


@dataclass(frozen=True)
class InputOptions:
    """An input and how it becomes kernels; see `KernelRequest`."""

    path: str
    specs: tuple[KernelSpec, ...]
    text: TextOptions
    normalization: Normalization = "unit"
    scaling: Scaling = "minmax"
    precision: Precision = "float32"
    layout: Layout = "each"
    block: int | None = None
    merge_duplicates: float = 0.0
    max_clusters: int = MAX_CLUSTERS
    factors: Mapping[str, str] | None = None
    """Files of arrays Z by name, whose kernels are Z Zᵀ; then `specs` are empty."""


def read_request(
    given: InputOptions,
    cluster: LazyCluster,
    listen: Listener = ignore,
    disk_free: int | None = None,
) -> KernelRequest:
    """Read an input, large texts with the workers of the cluster.

    Samples are counted before they are read: if `disk_free`, the bytes free for kernels, is too
    small for so many, the error comes at once.
    """
    if given.factors is not None:
        return _request_of(None, given_factors(given.factors), given)
    listen(StageProgress("reading", 0, -1, unit="samples"))
    n = None
    if disk_free is not None:
        n = count_samples(given.path, given.text)
        factored = possible_products(
            given.specs, given.normalization, given.precision, given.merge_duplicates
        )
        tiled = 0 if factored else sum(isinstance(spec, TileSpec) for spec in given.specs)
        refuse_by_count(n or 0, tiled, given.precision, disk_free, *_gram_and_instead(given))
    with text_runner(given.path, given.text, cluster, n) as runner:
        corpus = read_corpus(given.path, text=given.text, runner=runner, listen=listen)
    refuse_equal_rows(corpus.X)
    if corpus.reading is None:  # else reading has warned, by name
        warn_about_zero_rows(corpus.X)
    request = _request_of(corpus, given.specs, given)
    listen(StageProgress("reading", request.n_samples, request.n_samples, unit="samples"))
    return request


def _gram_and_instead(given: InputOptions) -> tuple[StoredGram | None, StoredGram | None]:
    """Layout gram as it may turn out, and the same where each kernel is to have an array."""
    if given.merge_duplicates:
        return None, None
    tiled = [spec for spec in given.specs if isinstance(spec, TileSpec)]
    gram = expected_gram(sum(map(is_function_of_gram, tiled)), len(tiled), given.precision)
    return (None, gram) if given.layout == "each" else (gram, None)


def _request_of(
    corpus: Corpus | None, specs: tuple[KernelSpec, ...], given: InputOptions
) -> KernelRequest:
    return KernelRequest(
        corpus, specs, given.normalization, given.scaling, given.precision, given.block,
        given.merge_duplicates, given.max_clusters, layout=given.layout,
    )  # fmt: skip


@contextmanager
def text_runner(
    path: str, text: TextOptions, cluster: LazyCluster, n_samples: int | None = None
) -> Iterator[Runner | None]:
    """Where texts are taken apart: large ones by worker processes of this machine.

    Python reads words with one core of a process. The workers are those of the cluster if it is on
    this machine, else a few that end with reading: texts do not travel to other machines.
    `--cluster threads` asks for no processes at all.
    """
    workers = 0 if cluster.config.where == "threads" else _reading_workers(cluster.config)
    if workers < 2 or _text_bytes(path) < PROCESSES_FROM:
        yield None
        return
    n = count_samples(path, text) if n_samples is None else n_samples
    resources = None if n is None else cluster.start_for_texts(n)
    if resources is not None:
        yield resources.runner
        return
    with local_cluster(workers) as client:
        yield Runner(client)


def _reading_workers(config: ClusterConfig) -> int:
    return (config.workers if config.where in ("", "local") else None) or own_cores()


def _text_bytes(path: str) -> int:
    """Bytes of texts on disk; 0 for a matrix, and for wrong input, which reading reports."""
    with suppress(OSError, ValueError):
        texts = text_files(path)
        return 0 if texts is None else texts.size
    return 0


@contextmanager
def single_text_in_errors(path: str, n_samples: int) -> Iterator[None]:
    """Where a check refuses one sample, say that one file is one document."""
    try:
        yield
    except InputError as error:
        if n_samples > 1 or not _is_one_text(path):
            raise
        wrong = str(error).partition(":")[0]
        raise InputError(
            f"{wrong}: one file is one document, so give a folder of them, or a table (.csv, "
            ".jsonl) with one document per row"
        ) from error


def _is_one_text(path: str) -> bool:
    with suppress(OSError, ValueError):  # a store
        texts = text_files(path)
        return texts is not None and not texts.tables and len(texts.files) == 1
    return False
