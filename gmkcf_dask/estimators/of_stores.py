"""Stores that estimators are fitted on, and the parameters of such a fit: those of the store."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gmkcf_dask.corpus.text import short
from gmkcf_dask.errors import StoreError
from gmkcf_dask.kernels.manifest import Manifest
from gmkcf_dask.kernels.specs import KERNEL_SETS
from gmkcf_dask.kernels.store import KernelStore, is_store
from gmkcf_dask.locations import location
from gmkcf_dask.methods.base import MEAN


def store_at(given: str | Path) -> KernelStore:
    """The finished store at a path; who gave a text or a file for it is told where these go."""
    path = location(given)
    said = f"there is no kernel store at {short(str(given))}: check the path"
    try:
        if "\0" not in str(given):  # which no path has
            return KernelStore.open(path)
    except StoreError as error:
        if is_store(path):  # what is wrong is with the store
            raise
        said = str(error)
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
    raise StoreError(f"{said}; texts go in a list, and files through read_corpus")


def parameters_of_store(manifest: Manifest, asked: Mapping[str, Any]) -> dict[str, Any]:
    """How the kernels of a store were made, in the words of an estimator.

    Parameters
    ----------
    manifest : Manifest
    asked : mapping
        The estimator's own parameters, functions by their names.
    """
    # matrices have options of their own, all others share theirs
    shared = [kernel for kernel in manifest.kernels if kernel.name in manifest.formulas]
    first = (shared or list(manifest.kernels))[0]
    found: dict[str, Any] = {
        "normalization": first.normalization,
        "scaling": first.scaling,
        "precision": manifest.precision,
        "block_size": manifest.block_size,
    }
    which = asked.get("kernels")
    if manifest.n_features == 0:
        if which is not None:
            found["kernels"] = "precomputed"
        elif asked.get("kernel") == MEAN:
            found["kernel"] = "precomputed"
    elif which is not None and not _is_set(which, manifest.names):
        found["kernels"] = list(manifest.names)
    return found


def _is_set(asked: Any, names: tuple[str, ...]) -> bool:
    """Whether the name of a set of kernels stands for just these."""
    if not isinstance(asked, str) or asked not in KERNEL_SETS:
        return False
    return tuple(spec.name for spec in KERNEL_SETS[asked]) == names
