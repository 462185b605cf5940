"""Every way in: the same data through the command line, the estimators and the functions."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np
from scipy import sparse

from gmkcf_dask import (
    GMKCF,
    KCF,
    CoregSpectralClustering,
    KernelKMeans,
    KernelSpectralClustering,
    RobustMultipleKernelKMeans,
    pipeline,
)
from gmkcf_dask.cluster.resources import threads
from gmkcf_dask.corpus import read_corpus
from gmkcf_dask.errors import InputError
from gmkcf_dask.kernels.specs import resolve_kernels
from gmkcf_dask.methods.defaults import PAPER
from gmkcf_dask.methods.registry import make_method
from gmkcf_dask.store.build import look_up
from gmkcf_dask.store.kernel_store import KernelStore
from gmkcf_dask.store.request import KernelRequest
from helpers.refusals import FIT, THREADS, all_named, gmkcf, raised, refused

ESTIMATORS = (
    GMKCF,
    KCF,
    KernelKMeans,
    KernelSpectralClustering,
    CoregSpectralClustering,
    RobustMultipleKernelKMeans,
)
KERNELS = "rbf_1,poly_a1_b2,cosine"


def on_kernels(estimator: type, k: int, kernels: object = None, **parameters: object) -> object:
    """A model of any class; methods of one kernel take the mean where several are named."""
    model = estimator(k, random_state=0, **parameters)
    several = "kernels" in model.get_params()
    if kernels is not None:
        model.set_params(**{"kernels" if several else "kernel": kernels})
    return model


def save(X: object, folder: Path) -> Path:
    """A file with these features."""
    folder.mkdir(parents=True, exist_ok=True)
    if sparse.issparse(X):
        sparse.save_npz(folder / "x.npz", X)
        return folder / "x.npz"
    np.save(folder / "x.npy", X)
    return folder / "x.npy"


def build_by_functions(path: Path, store: Path, kernels: str = KERNELS, **options: object) -> None:
    """`read_corpus`, a request and `pipeline.build`, nothing else."""
    request = KernelRequest(read_corpus(path), resolve_kernels(kernels), **options)
    resources = threads(1)
    place = look_up(store, request)
    plan = pipeline.request_plan(request, 1, resources, place)
    pipeline.build(place, request, plan, resources)


def refused_everywhere(
    X: object, words: tuple[str, ...] | str, folder: Path, *, k: int = 3, functions: bool = True
) -> None:
    """The same sentence from every way in, and nothing written by any of them."""
    file = save(X, folder)
    before = sorted(folder.rglob("*"))
    store, out = folder / "s.zarr", folder / "run"
    options = ("--kernels", KERNELS, *THREADS)
    calls: list[Callable[[], str]] = [
        lambda: refused("build", file, store, *options),
        lambda: refused("run", file, *FIT, "-k", k, "--out", out, *options),
        *(
            lambda estimator=estimator: raised(lambda: estimator(k).fit(X), InputError)
            for estimator in ESTIMATORS
        ),
        lambda: raised(lambda: GMKCF(k, kernels=KERNELS, store=store).fit(X), InputError),
    ]
    if functions:
        calls.append(lambda: raised(lambda: build_by_functions(file, store), InputError))
    for call in calls:
        sentence = call()
        assert all_named(words, sentence), sentence
    assert sorted(folder.rglob("*")) == before


def clustered_everywhere(
    X: np.ndarray, k: int, folder: Path, **options: object
) -> list[np.ndarray]:
    """Labels by GMKCF from the command line, a store, memory and the functions."""
    file = save(X, folder)
    given = {name.replace("block_size", "block"): value for name, value in options.items()}
    flags = [part for name, value in given.items() for part in (f"--{name}", value)]
    flags += [part for name, value in PAPER.items() for part in (f"--{name}", value)]
    out = ("--out", folder / "run", "--kernels", KERNELS, *THREADS, *flags)
    found = gmkcf("run", file, "-k", k, "--max-iter", 20, *out)
    assert found.exit_code == 0, found.output
    with (folder / "run" / "labels.csv").open() as lines:
        labels = [np.array([int(row["label"]) for row in csv.DictReader(lines)])]
    how = {"kernels": KERNELS, "random_state": 0, "max_iter": 20, **PAPER, **options}
    for store in (None, folder / "s.zarr"):
        model = GMKCF(k, store=store, **how).fit(X)
        for factor in (model.U_, model.V_, model.kernel_weights_, model.objective_history_):
            assert np.isfinite(factor).all()
        labels.append(model.labels_)
    build_by_functions(file, folder / "f.zarr", **given)
    method = make_method("gmkcf", n_clusters=k, max_iter=20, **PAPER)
    stack = KernelStore.open(folder / "f.zarr")
    plan = pipeline.store_plan(stack, k, threads(1))
    (clustering,) = pipeline.fit(pipeline.stored_kernels(stack, plan, threads(1)), method, [0])
    return [*labels, clustering.labels]
