"""A fitted model as one folder that lasts: npz and JSON, stamped with its version, no pickle.

`model.json` names the other files by the digests of their content and is written last, so that a
crash leaves the model that was there before, or none. Nothing is used that does not agree with it.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from gmkcf_dask.corpus.model import Matrix
from gmkcf_dask.corpus.reading import TextReading
from gmkcf_dask.corpus.validate import as_features
from gmkcf_dask.errors import DamagedModelError, InputError, StoreError
from gmkcf_dask.files import (
    exists,
    get,
    is_no_folder,
    make_folder,
    names_in,
    npz_bytes,
    put_atomic,
    remove,
)
from gmkcf_dask.kernels.cross import named_only
from gmkcf_dask.kernels.features import ArrayFeatures
from gmkcf_dask.kernels.manifest import KernelRecord, package_versions, right_record
from gmkcf_dask.kernels.specs import FunctionKernel, KernelSpec, Precomputed, parse_kernel
from gmkcf_dask.kernels.tiles import ResolvedKernel
from gmkcf_dask.methods.base import Clustering, Method, RunSummary
from gmkcf_dask.methods.registry import make_method, parameters_of
from gmkcf_dask.results.packing import DAMAGE, digest, dump, pack, read_arrays, unpack
from gmkcf_dask.results.training import Training, features_of, matrix_of_name
from gmkcf_dask.security import is_plain_name, refuse_link

FORMAT = "gmkcf-model"
FORMAT_VERSION = 1
MODEL = "model.json"
_OWN_FILE = re.compile(r"(arrays|features|insight|strings)-[0-9a-f]{32}\.(npz|json)")
_MOST_JSON = 1 << 30


@dataclass(frozen=True)
class Model:
    """All there is to know about a fit.

    Attributes
    ----------
    method : Method
        With its parameters.
    found : Clustering
        Labels, weights, history, factors.
    training : Training
        What new samples are compared with.
    parameters : mapping
        Of the estimator, beside those of the method: how kernels were made.
    versions : mapping of str
        Of what made it.
    named_features : bool
        Whether the columns of the training samples had names, as those of a data frame have.
    insight : mapping, or None
        What a report is made from, once somebody has asked for it.
    seconds : mapping of float
        How long the stages of the fit took.
    """

    method: Method
    found: Clustering
    training: Training
    parameters: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=package_versions)
    named_features: bool = False
    insight: Mapping[str, Any] | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)


def save_model(model: Model, path: Path, *, features: bool = True, overwrite: bool = False) -> None:
    """Write a model into a folder of its own.

    Parameters
    ----------
    path : Path
        Made if it is not there.
    features : bool
        Whether the training samples go with it, with which new samples are compared.
    overwrite : bool
        Replace the model that is there.
    """
    _check_place(path, overwrite=overwrite)
    training = model.training
    arrays: dict[str, npt.NDArray[Any]] = {}
    content = pack(_tree(model), arrays)
    files = {
        "arrays": npz_bytes(arrays, compressed=False),
        "strings": dump(_strings(training)),
    }
    if model.insight is not None:
        files["insight"] = dump(model.insight)
    if features and training.features is not None:
        files["features"] = npz_bytes(_parts_of(features_of(training)), compressed=False)
    names = {what: f"{what}-{digest(held)}{_ENDING[what]}" for what, held in files.items()}
    body = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "versions": dict(model.versions),
        "files": names,
        "content": content,
    }
    make_folder(path, "the model")
    for what, held in files.items():
        put_atomic(path / names[what], held)
    put_atomic(path / MODEL, dump({"digest": digest(dump(body)), **body}))
    for name in names_in(path):  # of the model before this one
        if _OWN_FILE.fullmatch(name) and name not in names.values():
            remove(path / name)


def is_model(path: Path) -> bool:
    """Whether there is a saved model in a folder."""
    return exists(path / MODEL)


def load_model(path: Path) -> Model:
    """Read a model that was saved.

    Raises
    ------
    InputError
        There is none, or one of a newer version.
    DamagedModelError
        It is not what was written.
    """
    try:
        content = get(path / MODEL, _MOST_JSON)
        body = json.loads(content or b"null")
    except (StoreError, ValueError, RecursionError) as error:
        raise _damaged(path, f"{MODEL} cannot be read") from error
    if content is None:
        raise InputError(f"there is no saved model at {path}: it has no {MODEL}, check the path")
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise _damaged(path, f"{MODEL} is not one of ours")
    _refuse_newer(path, body)
    try:
        if body.pop("digest") != digest(dump(body)):
            raise ValueError(f"the digest of {MODEL} does not fit")
        return _model(path, body)
    except (*DAMAGE, StoreError) as error:
        raise _damaged(path, _in_short(error)) from error


def _refuse_newer(path: Path, body: Mapping[str, Any]) -> None:
    version = body.get("format_version")
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise _damaged(path, "its format version cannot be right")
    if version > FORMAT_VERSION:
        made = body.get("versions")
        by = made.get("gmkcf-dask") if isinstance(made, dict) else None
        with_it = f" {by}" if isinstance(by, str) and by.isascii() and len(by) < 40 else ""
        raise InputError(
            f"the model at {path} has format version {version} and this program reads up to "
            f"{FORMAT_VERSION}: install gmkcf-dask{with_it} or later, or save the model again with "
            "this version"
        )


# what is inside

_OF_SAMPLES = ("ids", "titles", "excerpts", "topics")
_ENDING = {"arrays": ".npz", "features": ".npz", "insight": ".json", "strings": ".json"}


def _strings(training: Training) -> dict[str, Any]:
    names = {name: getattr(training, name) for name in (*_OF_SAMPLES, "terms")}
    reading = training.reading
    return {**names, "reading": None if reading is None else json.loads(reading.to_json())}


def _tree(model: Model) -> dict[str, Any]:
    found, training = model.found, model.training
    own = {f.name: getattr(found, f.name) for f in fields(found)}
    method = {name: getattr(model.method, name) for name in parameters_of(model.method.name)}
    return {
        "method": {"name": model.method.name, "parameters": method},
        "parameters": dict(model.parameters),
        "named_features": model.named_features,
        "seconds": {stage: float(value) for stage, value in model.seconds.items()},
        "clustering": {**own, "runs": [asdict(run) for run in found.runs]},
        "training": {
            "n_samples": training.n_samples,
            "n_features": training.n_features,
            "kernels": [
                {**asdict(KernelRecord.of(kernel)), "kind": _kind(kernel.spec)}
                for kernel in training.kernels
            ],
            "norms": dict(training.norms),
        },
    }


def _kind(spec: KernelSpec) -> str:
    if isinstance(spec, FunctionKernel):
        return "function"
    return "matrix" if isinstance(spec, Precomputed) else "formula"


def _model(path: Path, body: Mapping[str, Any]) -> Model:
    files = body["files"]
    tree = unpack(body["content"], read_arrays(_file(path, files, "arrays")))
    strings = json.loads(_file(path, files, "strings"))
    insight = None if "insight" not in files else json.loads(_file(path, files, "insight"))
    held, reading = tree["training"], strings["reading"]
    names: Any = {name: _texts(strings[name], held["n_samples"]) for name in _OF_SAMPLES}
    features = None
    if "features" in files:
        X = as_features(_whole(read_arrays(_file(path, files, "features"))))
        features = ArrayFeatures(X)
        if X.shape != (held["n_samples"], held["n_features"]):
            raise ValueError(f"features have the shape {X.shape}")
    training = Training(
        held["n_samples"],
        held["n_features"],
        tuple(map(_kernel, held["kernels"])),
        held["norms"],
        features,
        terms=_texts(strings["terms"], held["n_features"]),
        reading=None if reading is None else TextReading.from_json(json.dumps(reading)),
        **names,
    )
    method = make_method(tree["method"]["name"], **_tuples(tree["method"]["parameters"]))
    found = clustering_of(tree["clustering"])
    refuse_misfits(method, found, training)
    named = bool(tree["named_features"]) and training.terms is not None
    parameters = _parameters(tree["parameters"])
    seconds = seconds_of(tree.get("seconds", {}))  # not in models of earlier versions
    return Model(method, found, training, parameters, body["versions"], named, insight, seconds)


def _parameters(held: Mapping[str, Any]) -> dict[str, Any]:
    """What was kept of an estimator's parameters, once each is of its kind."""
    words = ("normalization", "scaling", "precision", "kernel")
    whole = {"block_size": "auto", "random_state": None}
    for name, value in held.items():
        names = isinstance(value, list) and all(map(is_plain_name, value))
        right = (
            (name in words and isinstance(value, str))
            or (name in whole and (value == whole[name] or type(value) is int))
            or (name in ("kernels", "kernel") and (isinstance(value, str) or names))
        )
        if not right:
            raise ValueError(f"the parameter {name[:40]} cannot be right")
    return dict(held)


def seconds_of(held: Any) -> dict[str, float]:
    """How long stages took, once these are names and numbers."""
    for stage, value in held.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (is_plain_name(stage) and number and 0.0 <= value < math.inf):
            raise ValueError("the seconds of a stage cannot be right")
    return {stage: float(value) for stage, value in held.items()}


def clustering_of(state: Mapping[str, Any]) -> Clustering:
    """A clustering from the fields of one, lists where it had tuples."""
    runs = tuple(RunSummary(**_tuples(run)) for run in state["runs"])
    return Clustering(**{**_tuples(state), "runs": runs})


def _tuples(state: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(part) if isinstance(part, list) else part for key, part in state.items()}


def _kernel(record: Mapping[str, Any]) -> ResolvedKernel:
    values = {name: value for name, value in record.items() if name not in ("name", "kind")}
    name = record["name"]
    if not (is_plain_name(name) and right_record(KernelRecord(name, **values))):
        raise ValueError("a kernel cannot be right")
    spec: KernelSpec
    if record["kind"] == "formula":
        spec = parse_kernel(name)
    elif record["kind"] == "matrix":
        spec = matrix_of_name(name, values["normalization"], values["scaling"])
    else:
        spec = named_only(name)
    return ResolvedKernel(spec, **values)


def refuse_misfits(method: Method, found: Clustering, training: Training) -> None:
    """Digests can be right and sizes wrong: nothing is multiplied before they fit."""
    n, k, m = training.n_samples, method.n_clusters, len(training.kernels)
    shapes = {
        "U": (n, k), "V": (n, k), "UtKU": (k, k), "C": (n, k), "norms": (k,),
        "fused_weights": (m,), "embedding": (n, k), "extension": (n, k), "eigenvalues": (k,),
        "centres": (k, k),
        "diagonal": (n,),
    }  # fmt: skip
    right = {
        "labels": _fits(found.labels, (n,)) and found.labels.dtype.kind == "i",
        "weights": _fits(found.weights, (m,)),
        "kernel names": len(found.kernel_names) == m,
        "history": len(found.history) > 0,
        "weights history": _fits(found.weights_history, (len(found.weights_history), m)),
        **{name: _fits(held, shapes[name]) for name, held in found.factors.items()},
        **{f"norms of {name}": _fits(held, (n,)) for name, held in training.norms.items()},
    }
    wrong = [name for name, is_right in right.items() if not is_right]
    if wrong:
        raise ValueError(f"{', '.join(wrong)} cannot be right")


def _fits(value: Any, shape: tuple[int, ...]) -> bool:
    right = isinstance(value, np.ndarray) and value.dtype.kind in "if" and value.shape == shape
    return right and bool(np.isfinite(value).all())


def _texts(strings: Any, count: int) -> tuple[str, ...] | None:
    if strings is None:
        return None
    if not isinstance(strings, list) or len(strings) != count:
        raise ValueError("the names of samples or features are not as many as these")
    return tuple(map(str, strings))


def _parts_of(X: Matrix) -> dict[str, npt.NDArray[Any]]:
    if isinstance(X, np.ndarray):
        return {"X": X}
    shape = np.array(X.shape, dtype=np.int64)
    return {"data": X.data, "indices": X.indices, "indptr": X.indptr, "shape": shape}


def _whole(parts: Mapping[str, npt.NDArray[Any]]) -> Any:
    if "X" in parts:
        return parts["X"]
    rows, columns = parts["shape"].tolist()
    held = parts["data"], parts["indices"], parts["indptr"]
    return sparse.csr_array(held, shape=(rows, columns))


def _file(path: Path, files: Mapping[str, str], what: str) -> bytes:
    name = files[what]
    if not (_OWN_FILE.fullmatch(name) and name.startswith(what)):
        raise ValueError(f"{MODEL} names a file that is not ours")
    content = get(path / name, sys.maxsize)
    if content is None:
        raise ValueError(f"{name} is missing")
    if f"{what}-{digest(content)}{_ENDING[what]}" != name:
        raise ValueError(f"{name} is not what was written")
    return content


def _check_place(path: Path, *, overwrite: bool) -> None:
    refuse_link(path, "a model")
    if is_no_folder(path):
        raise InputError(f"{path} is a file: choose a folder for the model")
    held = names_in(path)
    if MODEL in held and not overwrite:
        raise InputError(f"{path} holds a model: choose another folder, or overwrite=True")
    others = [name for name in held if name != MODEL and not _OWN_FILE.fullmatch(name)]
    if others and MODEL not in held:
        raise InputError(
            f"{path} holds other files, such as {min(others)}: choose another folder for the model"
        )


def _in_short(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 100 else f"{text[:97]}..."


def _damaged(path: Path, why: str) -> DamagedModelError:
    return DamagedModelError(
        f"the model at {path} is damaged ({why}): copy it again, or save it anew from the fit"
    )
