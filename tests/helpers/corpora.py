"""Made-up text of any size, and stores of its kernels."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from gmkcf_dask import Corpus, pipeline
from gmkcf_dask.cluster.resources import Resources, threads
from gmkcf_dask.kernels.specs import KernelSpec, Rbf, resolve_kernels
from gmkcf_dask.store.build import look_up
from gmkcf_dask.store.kernel_store import KernelStore
from gmkcf_dask.store.request import KernelRequest


def text_like(n: int, n_terms: int = 5_000, n_topics: int = 10, seed: int = 0) -> Corpus:
    """Documents of 80 words, half from the words of their topic: sparse rows of unit length."""
    rng = np.random.default_rng(seed)
    topics = rng.integers(0, n_topics, n)
    own = n_terms // n_topics
    from_topic = topics[:, None] * own + (own * rng.random((n, 40)) ** 2).astype(int)
    from_all = (n_terms * rng.random((n, 40)) ** 2).astype(int)
    words = np.hstack([from_topic, from_all]).ravel()
    X = sparse.coo_array((np.ones(words.size), (np.repeat(np.arange(n), 80), words)), (n, n_terms))
    X = sparse.csr_array(X)
    X.sum_duplicates()
    lengths = np.sqrt(np.asarray(X.multiply(X).sum(axis=1)).ravel())
    X = sparse.csr_array(sparse.diags_array(1 / lengths) @ X)
    X.sort_indices()
    return Corpus(X, tuple(str(i) for i in range(n)), tuple(map(str, topics)))


def bank(m: int) -> tuple[KernelSpec, ...]:
    """The paper's twelve kernels; beyond those, more RBFs."""
    twelve = resolve_kernels("paper12")
    return (*twelve, *(Rbf(round(0.21 + 0.1 * i, 2)) for i in range(m - 12)))[:m]


def request_of(
    n: int, precision: str, m: int = 12, layout: str = "each", **options: Any
) -> KernelRequest:
    """All kernels of made-up text."""
    return KernelRequest(text_like(n), bank(m), precision=precision, layout=layout, **options)


@contextmanager
def scratch_folder(where: Path | None) -> Iterator[Path]:
    """A folder on disk that is removed at the end; beside the results if none is given."""
    parent = where or Path("bench_results")
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=parent) as folder:
        yield Path(folder)


def store_of(
    path: Path,
    n: int,
    precision: str,
    m: int = 12,
    resources: Resources | None = None,
    layout: str = "each",
) -> KernelStore:
    """A finished store of made-up text."""
    request, resources = request_of(n, precision, m, layout), resources or threads()
    place = look_up(path, request)
    plan = pipeline.request_plan(request, 10, resources, place, residency="recompute")
    return pipeline.build(place, request, plan, resources)
