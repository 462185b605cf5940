"""A run folder of the command line as a model: its results, and its store while that exists."""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gmkcf_dask.corpus.arrays import npz_names, read_npz
from gmkcf_dask.errors import DamagedModelError, StoreError
from gmkcf_dask.files import exists, get
from gmkcf_dask.kernels.cross import named_only
from gmkcf_dask.kernels.manifest import KernelRecord
from gmkcf_dask.kernels.specs import parse_kernel
from gmkcf_dask.kernels.store import KernelStore
from gmkcf_dask.kernels.tiles import ResolvedKernel
from gmkcf_dask.methods.base import Clustering
from gmkcf_dask.methods.registry import make_method
from gmkcf_dask.redact import redacted
from gmkcf_dask.results.model import Model, clustering_of, refuse_misfits, seconds_of
from gmkcf_dask.results.packing import DAMAGE
from gmkcf_dask.results.report import read_insight
from gmkcf_dask.results.run import FACTORS, INSIGHT, LABELS, RESULT, read_labels, read_result
from gmkcf_dask.results.training import Training, training_of_store

STORE = "store.zarr"
"""What `gmkcf run` calls the store inside its folder."""


def is_run(path: Path) -> bool:
    """Whether there is a finished run in a folder."""
    return exists(path / RESULT)


def model_of_run(path: Path) -> Model:
    """The model of a run folder.

    Raises
    ------
    DamagedModelError
        A file of it is missing or not one of ours.
    """
    result = read_result(path)
    labels = read_labels(path / LABELS)
    try:
        found = _clustering(result, labels, _factors(path / FACTORS))
        method = make_method(result["method"], **result["parameters"])
        training = _training(result, path, tuple(labels))
        refuse_misfits(method, found, training)
        seconds = seconds_of(result.get("seconds", {}))
    except DAMAGE as error:
        raise DamagedModelError(
            f"the run in {path} is damaged ({' '.join(str(error).split())[:100]}): run it again "
            "with --overwrite"
        ) from error
    insight = read_insight(path) if exists(path / INSIGHT) else None
    versions = result["versions"]
    how = _parameters(result)
    return Model(method, found, training, how, versions, insight=insight, seconds=seconds)


def store_of_run(result: Mapping[str, Any], run: Path) -> KernelStore:
    """The store that a run was made from: where it was, or inside the run, which may have moved.

    Raises
    ------
    StoreError
        It is gone, or another one is in its place.
    """
    wanted = result.get("fingerprint", {}).get("store")
    places = list(dict.fromkeys([result["store"], str(run / STORE), str(run.parent / STORE)]))
    reasons: list[StoreError] = []
    for place in places if wanted is not None else places[:1]:
        try:
            store = KernelStore.open(place)
        except StoreError as error:
            reasons.append(error)
            continue
        if wanted in (None, store.manifest.store_id):
            return store
        reasons.append(StoreError(f"{place} is not the store of this run any more"))
    looked = " and ".join(redacted(place) for place in places)
    raise StoreError(
        f"new samples and reports need the kernels of the run in {run}, and its store is gone: it "
        f"was looked for at {looked}; bring it back, or run it again"
    ) from reasons[0]


def _clustering(
    result: Mapping[str, Any],
    labels: Mapping[str, str],
    factors: dict[str, npt.NDArray[np.float64]],
) -> Clustering:
    told = {field.name: result[field.name] for field in fields(Clustering) if field.name in result}
    names = list(result["kernel_weights"])
    weights_history = np.array(result["weights_history"], dtype=np.float64)
    return clustering_of(
        {
            **told,
            "labels": np.array([int(label) for label in labels.values()], dtype=np.int32),
            "weights": factors.pop("w"),
            "kernel_names": names,
            "weights_history": weights_history.reshape(-1, len(names)),
            "history": result["objective_history"],
            "factors": factors,
        }
    )


def _factors(path: Path) -> dict[str, npt.NDArray[np.float64]]:
    content = get(path, sys.maxsize)
    if content is None:
        raise ValueError(f"{path.name} is missing")
    return read_npz(io.BytesIO(content), tuple(npz_names(io.BytesIO(content))))


def _training(result: Mapping[str, Any], run: Path, ids: tuple[str, ...]) -> Training:
    try:
        return training_of_store(store_of_run(result, run))
    except StoreError as error:
        gone = str(error)  # moved or removed: the results stand for themselves
    kernels = []
    for record in result["kernels"]:
        options = {f.name: record[f.name] for f in fields(KernelRecord) if f.name != "name"}
        try:
            spec: Any = parse_kernel(record["name"])
        except ValueError:
            spec = named_only(record["name"])
        kernels.append(ResolvedKernel(spec, **options))
    return Training(int(result["n_samples"]), 0, tuple(kernels), {}, None, ids, gone=gone)


def _parameters(result: Mapping[str, Any]) -> dict[str, Any]:
    """How its kernels were made, as an estimator has it."""
    records = result["kernels"]
    parameters = {
        name: records[0][name]
        for name in ("normalization", "scaling")
        if len({record[name] for record in records}) == 1
    }
    names = [record["name"] for record in records]
    kernel = result["kernel"]
    which = {"kernels": names} if kernel is None else {"kernel": kernel}
    return {
        **parameters,
        **which,
        "precision": result["precision"],
        "block_size": result["block_size"],
        "random_state": result["seed"],
    }
