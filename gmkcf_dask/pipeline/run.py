"""A run, from input to results."""

from __future__ import annotations

from pathlib import Path

from gmkcf_dask.cluster import Resources
from gmkcf_dask.compute.factor_plan import FactorPlan
from gmkcf_dask.compute.plan import (
    Plan,
)
from gmkcf_dask.errors import (
    StoreError,
)
from gmkcf_dask.events import Listener, ignore
from gmkcf_dask.store.build import build_store, find_store
from gmkcf_dask.store.files import is_link
from gmkcf_dask.store.kernel_store import KernelStore, delete_store
from gmkcf_dask.store.lock import writing
from gmkcf_dask.store.manifest import is_own_format
from gmkcf_dask.store.request import KernelRequest


def build(
    path: Path,
    request: KernelRequest,
    plan: Plan | FactorPlan,
    resources: Resources,
    listen: Listener = ignore,
    *,
    force: bool = False,
    verify: bool = False,
) -> KernelStore:
    """Build, finish or reuse the store of a request; by force where another build was killed.

    What is damaged of a complete store is repaired; with `verify` all of it is read to find out.
    """
    return build_store(
        path, request, resources.runner, listen, plan.block, force=force, verify=verify
    )


def remove_store(path: Path, *, force: bool = False) -> None:
    """Delete a store, unless somebody is writing into it."""
    with writing(path, force=force):
        delete_store(path)


def is_other_store(path: Path, request: KernelRequest) -> bool:
    """Whether a path holds a store of ours, but one made for other data or parameters."""
    if is_link(path) or not is_own_format(path):
        return False
    try:
        find_store(path, request)
    except StoreError:
        return True
    return False
