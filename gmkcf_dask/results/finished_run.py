"""A run folder of the command line as a model: its results, and its store while that exists."""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import UNSET

from gmkcf_dask.corpus.matrices import npz_names, read_npz
from gmkcf_dask.errors import DamagedModelError, DamagedStoreError, StoreError, redacted
from gmkcf_dask.kernels.cross import missing_kernel
from gmkcf_dask.kernels.specs import parse_kernel
from gmkcf_dask.kernels.tiles import ResolvedKernel
from gmkcf_dask.methods.base import Clustering
from gmkcf_dask.methods.registry import make_method
from gmkcf_dask.results.run_folder import (
    FACTORS,
    INSIGHT,
    labels_of_run,
    read_insight,
    read_result,
)
from gmkcf_dask.results.saved_model import Model, refuse_misfits
from gmkcf_dask.results.schemas import RunResult
from gmkcf_dask.results.serialize import DAMAGE
from gmkcf_dask.results.training import Training, training_of_store
from gmkcf_dask.store.files import exists, get
from gmkcf_dask.store.kernel_store import KernelStore

STORE = "store.zarr"
"""What `gmkcf run` calls the store inside its folder."""


def model_of_run(path: Path) -> Model:
    """The model of a run folder.

    Raises
    ------
    DamagedModelError
        A file of it is missing or not one of ours.
    """
    result = read_result(path)
    labels = labels_of_run(path, result)
    try:
        clustering = _clustering(result, labels, path / FACTORS)
        method = make_method(result.method, **result.parameters)
        training = _training(result, path, tuple(labels))
        refuse_misfits(method, clustering, training)
    except DAMAGE as error:
        raise DamagedModelError(
            f"the run in {path} is damaged ({' '.join(str(error).split())[:100]}): run it again "
            "with --overwrite"
        ) from error
    insight = read_insight(path) if exists(path / INSIGHT) else None
    parameters, versions = _parameters(result), result.versions
    return Model(
        method, clustering, training, parameters, versions, insight=insight, seconds=result.seconds
    )


def store_of_run(result: RunResult, run: Path) -> KernelStore:
    """The store that a run was made from: its own copy inside the folder, else where it was.

    A run folder may be copied or moved with its store. The copy inside is the run's own, whatever
    happened to the original since; what tells that it is the right one is its content.

    Raises
    ------
    StoreError
        It is gone, or another one is in its place; a DamagedStoreError where it is damaged.
    """
    wanted = None if result.fingerprint is UNSET else result.fingerprint.get("store")
    places = [result.store]
    if wanted is not None:
        own = [str(run / STORE), str(run.parent / STORE)]
        places = list(dict.fromkeys([*own, *places]))
    reasons: list[StoreError] = []
    others: list[str] = []
    for place in places:
        try:
            store = KernelStore.open(place)
        except StoreError as error:
            reasons.append(error)
            continue
        if wanted in (None, store.manifest.content["store"], store.manifest.store_id):
            return store
        reasons.append(StoreError(f"{place} is not the store of this run any more"))
        others.append(place)
    for reason in reasons:
        if isinstance(reason, DamagedStoreError):  # it is there, and can be repaired
            raise reason
    looked = " and ".join(
        redacted(place) + (" (another store is there)" if place in others else "")
        for place in places
    )
    raise StoreError(
        f"new samples and reports need the kernels of the run in {run}, and its store is gone "
        f"(looked at {looked}): bring it back, or run it again"
    ) from reasons[0]


def _clustering(result: RunResult, labels: Mapping[str, str], path: Path) -> Clustering:
    content = get(path, sys.maxsize)
    if content is None:
        raise ValueError(f"{path.name} is missing")
    factors = read_npz(io.BytesIO(content), tuple(npz_names(io.BytesIO(content))))
    names = tuple(result.kernel_weights)
    return Clustering(
        labels=np.array([int(label) for label in labels.values()], dtype=np.int32),
        weights=factors.pop("w"),
        kernel_names=names,
        history=tuple(result.objective_history),
        converged=result.converged,
        runs=tuple(result.runs),
        seed=result.seed,
        factors=factors,
        kernel=result.kernel,
        weights_history=np.array(result.weights_history, np.float64).reshape(-1, len(names)),
        contrast=result.contrast,
    )


def _training(result: RunResult, run: Path, ids: tuple[str, ...]) -> Training:
    damaged = {}
    try:
        return training_of_store(store_of_run(result, run))
    except DamagedStoreError as error:
        gone = damaged["store"] = str(error)
    except StoreError as error:
        gone = str(error)  # moved or removed: the results stand for themselves
    kernels = []
    for entry in result.kernels:
        try:
            spec: Any = parse_kernel(entry.name)
        except ValueError:
            spec = missing_kernel(entry.name)
        kernels.append(ResolvedKernel(spec, **entry.options))
    return Training(result.n_samples, 0, tuple(kernels), {}, None, ids, gone=gone, damaged=damaged)


def _parameters(result: RunResult) -> dict[str, Any]:
    """Parameters of an estimator that makes the same kernels."""
    factored = () if result.factored is UNSET else result.factored
    records = [one for one in (*result.kernels, *factored) if one.normalization is not None]
    options: dict[str, Any] = {
        name: getattr(records[0], name)
        for name in ("normalization", "scaling")
        if len({getattr(one, name) for one in records}) == 1
    }
    names = list(result.kernel_weights)
    which = {"kernels": names} if result.kernel is None else {"kernel": result.kernel}
    return {
        **options,
        **which,
        "precision": result.precision,
        # factors have no tiles
        "layout": ("each" if result.layout is UNSET else "gram") if result.kernels else "auto",
        "block_size": result.block_size if result.kernels else "auto",
        "random_state": result.seed,
    }
