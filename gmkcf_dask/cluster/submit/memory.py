"""Memory of the driver of a job, from what its input tells at once."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gmkcf_dask.cluster.submit.slurm import JOB_SCHEDULER_BYTES
from gmkcf_dask.compute.costs import (
    PROCESS_BYTES,
    SCHEDULER_BYTES,
    Job,
    StoredGram,
    expected_gram,
)
from gmkcf_dask.compute.factor_plan import OwnFactor, factor_sizes, make_factor_plan
from gmkcf_dask.compute.plan import make_plan
from gmkcf_dask.corpus.read import UNREADABLE
from gmkcf_dask.errors import GmkcfError
from gmkcf_dask.kernels.factored import FOR_CLUSTERS, FactorKind
from gmkcf_dask.kernels.gram import is_function_of_gram
from gmkcf_dask.kernels.products import possible_products
from gmkcf_dask.kernels.specs import HEAT, LOCAL, KernelSpec, LocalSet, TileSpec, resolve_kernels
from gmkcf_dask.kernels.tiling import Precision
from gmkcf_dask.store.kernel_store import KernelStore
from gmkcf_dask.store.object_storage import is_remote
from gmkcf_dask.store.request import MAX_CLUSTERS, factor_kinds

_LARGEST_SHAPE = 4096
_ANY_WORKER = 1 << 50  # the plan is asked for its driver only


def driver_memory(command: str, params: dict[str, Any]) -> int | None:
    """Bytes of driver and scheduler for "run" or "fit" with some options, by the plan.

    A store tells it by its manifest, a matrix by the headers of its `.npy` or `.npz`. None for
    other input, such as texts, which has to be read first.
    """
    try:
        sizes = _store_sizes(params) if command == "fit" else _input_sizes(params)
        drivers = [_tiles_driver(sizes, params)] if sizes.n_tiled else []
        if sizes.factored:
            drivers.append(max(_factors_driver(sizes, kinds, params) for kinds in sizes.factored))
    except (GmkcfError, KeyError, *UNREADABLE):
        return None  # the job itself says what is wrong with its input
    return sum(drivers) - (len(drivers) - 1) * PROCESS_BYTES + JOB_SCHEDULER_BYTES


@dataclass(frozen=True)
class _Sizes:
    """What a job is about.

    Attributes
    ----------
    factored : tuple of mappings of str to str
        Factored kernels by name, as they may turn out to be: dense rows have to be read to know.
    """

    shape: tuple[int, int]
    feature_bytes: int
    n_tiled: int
    factored: tuple[Mapping[str, FactorKind], ...]
    most: int
    precision: Precision
    signed: bool
    built: bool
    gram: StoredGram | None


def _store_sizes(params: dict[str, Any]) -> _Sizes:
    manifest = KernelStore.open(params["store"]).manifest
    kinds = {record.name: record.kind for record in manifest.factored}
    options = manifest.factor_options
    return _Sizes(
        (manifest.n_samples, manifest.n_features),
        0,
        len(manifest.kernels),
        (kinds,) if kinds else (),
        MAX_CLUSTERS if options is None else options.max_clusters,
        manifest.precision,
        min((manifest.stored_minima or {"": 0.0}).values()) < 0.0,
        built=True,
        gram=manifest.stored_gram,
    )


def _input_sizes(params: dict[str, Any]) -> _Sizes:
    shape, size, is_sparse = _matrix(params["input_path"])
    specs = resolve_kernels(params["kernels"])
    sets: tuple[tuple[KernelSpec, ...], ...] = ((),)
    if LocalSet() in specs:
        sets = (LOCAL,) if is_sparse else (LOCAL, HEAT)
    products = possible_products(
        specs,
        params.get("normalization") or "unit",
        params.get("precision") or "float32",
        params.get("merge_duplicates") or 0.0,
    )
    tiled = [spec for spec in specs if isinstance(spec, TileSpec)]
    factored = [factor_kinds((*specs, *local), products) for local in sets]
    return _Sizes(
        shape,
        size,
        # linear and cosine may be in tiles or factored, which the data decide: count both
        len(tiled),
        tuple(kinds for kinds in factored if kinds),
        params.get("max_clusters") or max(MAX_CLUSTERS, params["n_clusters"]),
        params.get("precision") or "float32",
        params.get("scaling") == "none",
        built=False,
        gram=_expected_gram(tiled, params),
    )


def _expected_gram(tiled: Sequence[TileSpec], params: dict[str, Any]) -> StoredGram | None:
    """Layout gram, if it is asked for or chosen; only the samples tell whether there are tables."""
    if params.get("layout") == "each" or params.get("merge_duplicates"):
        return None
    in_gram = sum(map(is_function_of_gram, tiled))
    return expected_gram(in_gram, len(tiled), params.get("precision") or "float32")


def _job(params: dict[str, Any], n_kernels: int) -> Job:
    return Job(
        params["n_clusters"],
        params.get("method") or "gmkcf",
        n_init=params.get("n_init") or 1,
        n_alone=n_kernels if params.get("kernel") == "all" else 1,
        spectral=params.get("init") == "spectral",
    )


def _tiles_driver(sizes: _Sizes, params: dict[str, Any]) -> int:
    plan = make_plan(
        *sizes.shape,
        sizes.n_tiled,
        params["n_clusters"],
        feature_bytes=sizes.feature_bytes,
        memory_per_worker=_ANY_WORKER,
        precision=sizes.precision,
        signed=sizes.signed,
        job=_job(params, sizes.n_tiled),
        gram=sizes.gram,
    )
    # the plan counts a scheduler inside the driver's process; here it has one of its own
    return plan.driver_bytes - SCHEDULER_BYTES


def _factors_driver(job: _Sizes, kinds: Mapping[str, FactorKind], params: dict[str, Any]) -> int:
    n_clusters = params["n_clusters"]
    # what is not local and not heat takes as much as the features at most, which are of 8 bytes
    own = [OwnFactor(job.feature_bytes, 0, job.shape[1], job.feature_bytes)] * sum(
        kind not in FOR_CLUSTERS for kind in kinds.values()
    )
    sizes = factor_sizes(kinds, *job.shape, n_clusters, job.most, job.feature_bytes, own=own)
    plan = make_factor_plan(
        sizes,
        n_workers=1,
        threads_per_worker=1,
        memory_per_worker=_ANY_WORKER,
        one_process=False,
        free_memory=_ANY_WORKER,
        built=job.built,
        job=_job(params, len(kinds)),
    )
    return plan.driver_bytes


def _matrix(given: str) -> tuple[tuple[int, int], int, bool]:
    """Shape and bytes of a matrix, and whether it is sparse, without reading it."""
    path = Path(given)
    if is_remote(given):
        raise ValueError(given)
    if path.suffix == ".npy":
        with path.open("rb") as file:
            (n, d), dtype = _header(file)
        return (n, d), n * d * dtype.itemsize, False
    with zipfile.ZipFile(path) as archive:
        size = sum(member.file_size for member in archive.infolist())
        is_sparse = "shape.npy" in archive.namelist()
        if is_sparse:
            if archive.getinfo("shape.npy").file_size > _LARGEST_SHAPE:
                raise ValueError(given)
            with archive.open("shape.npy") as member:
                n, d = map(int, np.lib.format.read_array(member, allow_pickle=False).ravel())
        else:
            with archive.open("X.npy") as member:
                (n, d), _ = _header(member)
    return (n, d), size, is_sparse


def _header(file: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    version = np.lib.format.read_magic(file)
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    shape, _, dtype = read[version](file)
    return shape, dtype
