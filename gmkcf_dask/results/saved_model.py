"""A fitted model as one folder that lasts: npz and JSON, stamped with its version, no pickle.

`model.json` names the other files by the digests of their content and is written last, so that a
crash leaves the model that was there before, or none. Nothing is used that does not agree with it.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
from msgspec import structs
from scipy import sparse

from gmkcf_dask.corpus.model import Matrix
from gmkcf_dask.corpus.text_options import TextReading
from gmkcf_dask.corpus.validate import as_features
from gmkcf_dask.errors import DamagedModelError, InputError, StoreError
from gmkcf_dask.kernels.cross import missing_kernel
from gmkcf_dask.kernels.factor_cross import DictArrays, TrainingFactors
from gmkcf_dask.kernels.factored import FEATURES
from gmkcf_dask.kernels.features import ArrayFeatures
from gmkcf_dask.kernels.specs import (
    FunctionKernel,
    KernelSpec,
    Precomputed,
    is_plain_name,
    parse_kernel,
)
from gmkcf_dask.kernels.tiles import ResolvedKernel
from gmkcf_dask.methods.base import Clustering, Method
from gmkcf_dask.methods.registry import make_method
from gmkcf_dask.results.schemas import (
    MODEL_FORMAT_VERSION,
    EstimatorParameters,
    Insight,
    ModelContent,
    ModelFile,
    ModelFiles,
    ModelKernel,
    ModelStrings,
    ModelTraining,
    parse_insight,
    plain_values,
    validated,
)
from gmkcf_dask.results.serialize import (
    DAMAGE,
    check_seal,
    digest,
    dump,
    pack,
    read_arrays,
    seal,
    short_error,
    unpack,
)
from gmkcf_dask.results.training import Training, features_of, matrix_of_name
from gmkcf_dask.store.files import (
    exists,
    get,
    is_no_folder,
    make_folder,
    names_in,
    npz_bytes,
    put_atomic,
    refuse_link,
    remove,
)
from gmkcf_dask.store.manifest import KernelRecord, package_versions

MODEL_FORMAT: Final = "gmkcf-model"
MODEL = "model.json"
_OWN_FILE = re.compile(r"(arrays|features|insight|strings)-[0-9a-f]{32}\.(npz|json)")
_MOST_JSON = 1 << 30


@dataclass(frozen=True)
class Model:
    """All there is to know about a fit."""

    method: Method
    clustering: Clustering
    training: Training
    """What new samples are compared with."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Of the estimator, beside those of the method: how kernels were made."""
    versions: Mapping[str, str] = field(default_factory=package_versions)
    named_features: bool = False
    """Whether the columns of the training samples had names, as those of a data frame have."""
    insight: Insight | None = None
    """What a report is made from, once it was computed."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """By stage of the fit."""


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
    packed = pack(_tree(model), arrays)
    files = {
        "arrays": npz_bytes(arrays, compressed=False),
        "strings": dump(_strings(training)),
    }
    if model.insight is not None:
        files["insight"] = dump(plain_values(model.insight))
    if features and training.features is not None:
        files["features"] = npz_bytes(_parts_of(features_of(training)), compressed=False)
    names = {what: f"{what}-{digest(content)}{_ENDING[what]}" for what, content in files.items()}
    file = ModelFile(
        MODEL_FORMAT, MODEL_FORMAT_VERSION, dict(model.versions), ModelFiles(**names), {}
    )
    body = {**plain_values(file), "content": packed}
    make_folder(path, "the model")
    for what, content in files.items():
        put_atomic(path / names[what], content)
    put_atomic(path / MODEL, seal(body))
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
    if not isinstance(body, dict) or body.get("format") != MODEL_FORMAT:
        raise _damaged(path, f"{MODEL} is not one of ours")
    _refuse_newer(path, body)
    try:
        check_seal(body, f"the digest of {MODEL} does not fit")
        return _model(path, validated(body, ModelFile))
    except (*DAMAGE, StoreError) as error:
        raise _damaged(path, short_error(error)) from error


def _refuse_newer(path: Path, body: Mapping[str, Any]) -> None:
    version = body.get("format_version")
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise _damaged(path, "its format version is invalid")
    if version > MODEL_FORMAT_VERSION:
        versions = body.get("versions")
        by = versions.get("gmkcf-dask") if isinstance(versions, dict) else None
        with_it = f" {by}" if isinstance(by, str) and by.isascii() and len(by) < 40 else ""
        raise InputError(
            f"the model at {path} has format version {version} and this program reads up to "
            f"{MODEL_FORMAT_VERSION}: install gmkcf-dask{with_it} or later, or save the model "
            "again with this version"
        )


# what is inside

_ENDING = {"arrays": ".npz", "features": ".npz", "insight": ".json", "strings": ".json"}


def _strings(training: Training) -> dict[str, Any]:
    strings = {name: getattr(training, name) for name in ModelStrings.__struct_fields__}
    reading = training.reading
    return strings | {"reading": None if reading is None else json.loads(reading.to_json())}


def _tree(model: Model) -> dict[str, Any]:
    clustering, training = model.clustering, model.training
    own = {f.name: getattr(clustering, f.name) for f in fields(clustering)}
    return {
        "method": {"name": model.method.name, "parameters": model.method.parameters()},
        "parameters": dict(model.parameters),
        "named_features": model.named_features,
        "seconds": {stage: float(value) for stage, value in model.seconds.items()},
        "clustering": {**own, "runs": [asdict(run) for run in clustering.runs]},
        "training": {
            "n_samples": training.n_samples,
            "n_features": training.n_features,
            "kernels": [
                {**structs.asdict(KernelRecord.of(kernel)), "kind": _kind(kernel.spec)}
                for kernel in training.kernels
            ],
            "norms": dict(training.norms),
            **_factors_tree(training),
        },
    }


def _kind(spec: KernelSpec) -> Literal["formula", "function", "matrix"]:
    if isinstance(spec, FunctionKernel):
        return "function"
    return "matrix" if isinstance(spec, Precomputed) else "formula"


def _factors_tree(training: Training) -> dict[str, Any]:
    if training.factors is None:
        return {}
    factors = training.factors
    arrays: dict[str, Any] = {n: factors.arrays.read(n) for n in factors.array_names()}
    for name, values in list(arrays.items()):
        if not isinstance(values, np.ndarray):  # a sparse factor that the user brought
            del arrays[name]
            arrays |= {f"{name}/{part}": own for part, own in _parts_of(values).items()}
    records = [{"name": name, "kind": kind} for name, kind in factors.kinds.items()]
    return {"factors": records, "factor_arrays": arrays}


def _factors(content: ModelTraining, X: Matrix | None) -> TrainingFactors | None:
    if not content.factors:
        return None
    kinds = {record.name: record.kind for record in content.factors}
    arrays: dict[str, Any] = dict(content.factor_arrays)
    for name in [name for name in arrays if name.endswith("/shape")]:
        whole = name.removesuffix("/shape")
        parts = {part: arrays.pop(f"{whole}/{part}") for part in _SPARSE}
        arrays[whole] = _checked_rows(parts)
    if X is not None:
        arrays[FEATURES] = X
    factors = TrainingFactors(kinds, DictArrays(arrays))
    missing = set(factors.array_names()) - set(arrays)
    if missing:
        raise ValueError(f"{min(missing)} is missing")
    return factors


_SPARSE = ("data", "indices", "indptr", "shape")


def _checked_rows(parts: Mapping[str, npt.NDArray[Any]]) -> Any:
    made = _whole(parts)
    made.check_format(full_check=True)
    return made


def _model(path: Path, file: ModelFile) -> Model:
    files = file.files
    arrays = read_arrays(_read(path, "arrays", files.arrays))
    content = validated(unpack(file.content, arrays), ModelContent)
    strings = validated(json.loads(_read(path, "strings", files.strings)), ModelStrings)
    insight = None
    if files.insight is not None:
        insight = parse_insight(json.loads(_read(path, "insight", files.insight)))
    n, d = content.training.n_samples, content.training.n_features
    features = None
    if files.features is not None:
        X = as_features(_whole(read_arrays(_read(path, "features", files.features))))
        features = ArrayFeatures(X)
        if X.shape != (n, d):
            raise ValueError(f"features have the shape {X.shape}")
    reading = strings.reading
    training = Training(
        n,
        d,
        tuple(map(_kernel, content.training.kernels)),
        content.training.norms,
        features,
        ids=_texts(strings.ids, n),
        terms=_texts(strings.terms, d),
        reading=None if reading is None else TextReading.from_json(json.dumps(reading)),
        titles=_texts(strings.titles, n),
        excerpts=_texts(strings.excerpts, n),
        topics=_texts(strings.topics, n),
        factors=_factors(content.training, None if features is None else features.X),
    )
    parameters = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in content.method.parameters.items()
    }
    method = make_method(content.method.name, **parameters)
    refuse_misfits(method, content.clustering, training)
    named = content.named_features and training.terms is not None
    return Model(
        method,
        content.clustering,
        training,
        _parameters(content.parameters),
        file.versions,
        named,
        insight,
        content.seconds,
    )


def _parameters(parameters: EstimatorParameters) -> dict[str, Any]:
    """Parameters of an estimator, as it takes them."""
    for names in (parameters.kernel, parameters.kernels):
        if isinstance(names, list) and not all(map(is_plain_name, names)):
            raise ValueError("the names of kernels are invalid")
    values: dict[str, Any] = plain_values(parameters)
    return values


def _kernel(entry: ModelKernel) -> ResolvedKernel:
    if not is_plain_name(entry.name):
        raise ValueError("the name of a kernel is invalid")
    spec: Any = missing_kernel(entry.name)
    if entry.kind == "formula":
        spec = parse_kernel(entry.name)
    elif entry.kind == "matrix":
        spec = matrix_of_name(entry.name, entry.normalization, entry.scaling)
    return ResolvedKernel(spec, **entry.options)


def refuse_misfits(method: Method, clustering: Clustering, training: Training) -> None:
    """Reject arrays whose shapes do not fit each other, though their digests are right."""
    n, k, m = training.n_samples, method.n_clusters, training.n_kernels
    shapes = {
        "U": (n, k), "V": (n, k), "UtKU": (k, k), "C": (n, k), "norms": (k,),
        "fused_weights": (m,), "embedding": (n, k), "extension": (n, k), "eigenvalues": (k,),
        "centres": (k, k),
        "diagonal": (n,),
    }  # fmt: skip
    right = {
        "labels": _fits(clustering.labels, (n,)) and clustering.labels.dtype.kind == "i",
        "weights": _fits(clustering.weights, (m,)),
        "kernel names": len(clustering.kernel_names) == m,
        "history": len(clustering.history) > 0,
        "weights history": _fits(clustering.weights_history, (len(clustering.weights_history), m)),
        **{name: _fits(array, shapes[name]) for name, array in clustering.factors.items()},
        **{f"norms of {name}": _fits(array, (n,)) for name, array in training.norms.items()},
    }
    wrong = [name for name, is_right in right.items() if not is_right]
    if wrong:
        raise ValueError(f"invalid {', '.join(wrong)}")


def _fits(value: Any, shape: tuple[int, ...]) -> bool:
    right = isinstance(value, np.ndarray) and value.dtype.kind in "if" and value.shape == shape
    return right and bool(np.isfinite(value).all())


def _texts(strings: list[str] | None, count: int) -> tuple[str, ...] | None:
    if strings is None:
        return None
    if len(strings) != count:
        raise ValueError("the names of samples or features are not as many as these")
    return tuple(strings)


def _parts_of(X: Matrix) -> dict[str, npt.NDArray[Any]]:
    if isinstance(X, np.ndarray):
        return {"X": X}
    shape = np.array(X.shape, dtype=np.int64)
    return {"data": X.data, "indices": X.indices, "indptr": X.indptr, "shape": shape}


def _whole(parts: Mapping[str, npt.NDArray[Any]]) -> Any:
    if "X" in parts:
        return parts["X"]
    rows, columns = parts["shape"].tolist()
    values = parts["data"], parts["indices"], parts["indptr"]
    return sparse.csr_array(values, shape=(rows, columns))


def _read(path: Path, what: str, name: str) -> bytes:
    """Content of a file that model.json names, once its digest fits."""
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
    present = names_in(path)
    if MODEL in present and not overwrite:
        raise InputError(f"{path} holds a model: choose another folder, or overwrite=True")
    others = [name for name in present if name != MODEL and not _OWN_FILE.fullmatch(name)]
    if others and MODEL not in present:
        raise InputError(
            f"{path} holds other files, such as {min(others)}: choose another folder for the model"
        )


def _damaged(path: Path, why: str) -> DamagedModelError:
    return DamagedModelError(
        f"the model at {path} is damaged ({why}): copy it again, or save it again from the fit"
    )
