"""What clusters that are started from here have in common, wherever their processes run."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import psutil

from gmkcf_dask.cluster.config import ClusterConfig
from gmkcf_dask.cluster.resources import free_port, worker_environment
from gmkcf_dask.cluster.tls import configured_security, is_loopback, pages, security_of, settings_of
from gmkcf_dask.errors import ClusterError, InputError

WAIT_SECONDS = 600.0
"""How long the first workers are waited for; jobs may sit in a queue."""
ENVIRONMENT = "distributed.nanny.pre-spawn-environ"
_DEFAULT = re.compile(r"\$\{(\w+):-([^${}]*)\}")


@dataclass(frozen=True)
class ProcessSettings:
    """For every process of a cluster: Dask's settings, and how they talk.

    Attributes
    ----------
    settings : dict
        By dotted name: of the file, TLS, and the environment of workers.
    security : distributed.Security or None
    page : dict
        Of the scheduler, on loopback: its dashboard, or what `cluster_tls.pages` leaves of it.
    """

    settings: dict[str, Any]
    security: Any
    page: dict[str, Any]

    @property
    def protocol(self) -> str:
        """As Dask wants it."""
        return "tcp://" if self.security is None else "tls://"


def prepare(config: ClusterConfig, *, only_loopback: bool) -> ProcessSettings:
    """Settings of a cluster to be; one that others could reach must be encrypted.

    Dask's configuration must hold the settings of the file already.
    """
    settings = dict(config.settings)
    if config.certificates is not None:
        security = security_of(config.certificates)
        settings |= settings_of(config.certificates)
    else:
        security = configured_security()
        if security is not None:
            settings["distributed.comm.require-encryption"] = True
    if security is None and not (only_loopback or config.insecure):
        raise InputError(
            f"a cluster of kind {config.kind} listens on the network, and whoever can reach it can "
            "run code as you: give tls: {ca, cert, key} (cluster_configs/tls makes them), or say "
            "insecure: true on a network you trust"
        )
    settings[ENVIRONMENT] = worker_environment()
    return ProcessSettings(settings, security, _page(config, settings))


def _page(config: ClusterConfig, settings: dict[str, Any]) -> dict[str, Any]:
    if config.dashboard and find_spec("bokeh") is None:
        raise InputError("the dashboard needs bokeh: pip install 'gmkcf-dask[dashboard]'")
    # a page may only be talked to from its own address, which has to be known beforehand
    port = free_port() if config.dashboard else 0
    origins = "distributed.scheduler.dashboard.bokeh-application.allow_websocket_origin"
    settings[origins] = [f"127.0.0.1:{port}", f"localhost:{port}"]
    settings |= pages(dashboard=config.dashboard)
    return {"dashboard": config.dashboard, "dashboard_address": f"127.0.0.1:{port}"}


def is_loopback_interface(name: str | None) -> bool:
    """Whether a network interface of this machine leads nowhere else; refused if there is none."""
    if name is None:
        return False  # Dask takes the one that leads outside
    interfaces = psutil.net_if_addrs()
    if name not in interfaces:
        raise InputError(
            f"there is no network interface {name!r} on this machine: interface may be one of "
            f"{', '.join(sorted(interfaces))}"
        )
    # the address of the hardware has another family, and no host in it
    hosts = [address.address for address in interfaces[name] if address.family.name != "AF_PACKET"]
    return bool(hosts) and all(is_loopback(host.partition("%")[0]) for host in hosts)


def directory_here(config: ClusterConfig) -> str | None:
    """`local-directory` for workers on this machine, with its variables filled in."""
    if config.local_directory is None:
        return None
    directory = os.path.expandvars(_DEFAULT.sub(_filled, config.local_directory))
    if "$" in directory:
        raise InputError(
            f"local-directory {config.local_directory} names a variable that is not set here: set "
            "it, or give a path"
        )
    return str(os.path.expanduser(directory))  # noqa: PTH111  # stays a word


def _filled(match: re.Match[str]) -> str:
    """As a shell does it: the default stands for a variable that is not set, or empty."""
    return os.environ.get(match[1]) or match[2]


def not_installed(kind: str, package: str) -> InputError:
    """The sentence for a kind whose package is missing."""
    return InputError(f"a cluster of kind {kind} needs {package}: pip install 'gmkcf-dask[{kind}]'")


def not_started(kind: str, error: BaseException) -> ClusterError:
    """The sentence for a cluster that does not start, with the last line of what was said."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    why = lines[-1] if lines else type(error).__name__
    return ClusterError(f"the {kind} cluster cannot be started: {why[:300]}")
