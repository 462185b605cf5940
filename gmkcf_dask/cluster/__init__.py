"""Where work runs: describe a cluster, start it or connect to it, and what it has.

`ClusterConfig` (from a file or the command line) -> `describe` -> a plan -> `start` -> `Resources`.
Names are imported on first use, as Dask takes long to load.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gmkcf_dask.cluster.config import ClusterConfig, read_config
    from gmkcf_dask.cluster.launch import describe, start
    from gmkcf_dask.cluster.resources import Resources, local_cluster, of_client, threads
    from gmkcf_dask.cluster.tls import Certificates

_HOME = {
    "Certificates": "tls",
    "ClusterConfig": "config",
    "Resources": "resources",
    "describe": "launch",
    "local_cluster": "resources",
    "of_client": "resources",
    "read_config": "config",
    "start": "launch",
    "threads": "resources",
}

__all__ = [
    "Certificates",
    "ClusterConfig",
    "Resources",
    "describe",
    "local_cluster",
    "of_client",
    "read_config",
    "start",
    "threads",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
