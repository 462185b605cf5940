"""The cluster of a command; import where it is needed, as Dask takes long to load."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from gmkcf_dask.cli.options import start_cluster
from gmkcf_dask.cluster import LazyCluster, Resources


class CommandCluster(LazyCluster):
    """The cluster that the options of a command describe."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(options["cluster_config"])
        self._options = options

    def _started(self, n_samples: int) -> AbstractContextManager[Resources]:
        return start_cluster(n_samples, self._options)
